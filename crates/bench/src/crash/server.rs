//! A Tactus of our own on the volume: started as an operator would, and killed as a power failure
//! would.
//!
//! Promise: when it has started it answers; nothing of it is linked into the bench. It never ends
//! by itself without an error that quotes it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tactus_client::Client as LocalProgram;
use tactus_core::units::{Bytes, Nanos, SECOND};
use tempfile::TempDir;

use super::client::Client;
use super::starvation;
use crate::clock;

/// What is started.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) binary: PathBuf,
    /// A step that it is asked to do wrongly.
    pub(super) wrong: Option<&'static str>,
    /// How long an upload waits after its last byte.
    pub(super) expiry: Nanos,
    /// Programs of the machine may write.
    pub(super) local: bool,
    /// What the client may have stored.
    pub(super) quota: Bytes,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
    /// Its configuration and its output.
    folder: TempDir,
}

/// Knowing the disk beforehand it measures nothing at its start.
const MODEL: &str = r#"
version = 1
measured = "for power failures"
device = "none"
probes = false
[model]
visit = "30 us"
sweep = "0 ns"
read_mib = "600 us"
write_mib = "600 us"
depth = 16
"#;
/// What the client may have stored: more than any load needs.
pub(super) const QUOTA: Bytes = Bytes(64 << 20);
/// Where programs of the machine connect, in its folder.
const SOCKET: &str = "local.sock";
const TOKEN: &str = "nothing-is-lost-that-was-acknowledged";
/// How long it may take to start; what is ready late is judged elsewhere.
const PATIENCE: Nanos = SECOND.times(60);
const PAUSE: Nanos = Nanos::from_millis(4);

impl Program {
    /// Starts it on the volume at `root`, and waits until it listens.
    pub(super) fn start(&self, root: &Path) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("tactus-crash-server-").tempdir()?;
        let file = folder.path().join("tactus.toml");
        fs::write(folder.path().join("disk-model.toml"), MODEL)?;
        fs::write(folder.path().join("token"), TOKEN)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(folder.path().join("token"), private)?;
        let local = if self.local { local(&folder.path().join(SOCKET)) } else { String::new() };
        fs::write(&file, self.configuration(root) + &local)?;
        let log = File::create(folder.path().join("output.log"))?;
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--config").arg(&file);
        command.envs(self.wrong.map(|step| ("TACTUS_FAULT", step)));
        // Without a state directory the server stores no volume identities: here a new disk appears
        // in the same directory for each run.
        for place in ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"] {
            command.env_remove(place);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { child, address: nowhere, folder };
        server.address = server.listening()?;
        Ok(server)
    }

    /// Checks the volume at `root`, on which a write has failed, and releases it.
    pub(super) fn verify(&self, root: &Path) -> Result<()> {
        let mut command = Command::new(&self.binary);
        let ended = command.args(["verify", "--clear"]).arg(root).output()?;
        let said = String::from_utf8_lossy(&ended.stdout);
        ensure!(ended.status.success(), "verify ended with {}: {said}", ended.status);
        Ok(())
    }

    /// Small and without a measurement of the network, so that it starts quickly, with short
    /// cycles, so that a flush does not wait long for its turn: the replay starts it thousands of
    /// times.
    fn configuration(&self, root: &Path) -> String {
        format!(
            "[http]\n\
             address = \"127.0.0.1:0\"\n\n\
             [admin]\n\
             address = \"off\"\n\
             on_http = true\n\n\
             [memory]\n\
             arena = \"16 MiB\"\n\
             streams_max = 64\n\
             lock = \"off\"\n\n\
             [cores]\n\
             realtime = \"off\"\n\n\
             [packets]\n\
             back_end = \"sendmmsg\"\n\n\
             [best_effort]\n\
             client_share = \"100 %\"\n\
             streams_max = 16\n\n\
             [[volume]]\n\
             path = \"{}\"\n\
             mount = \"/\"\n\
             model = \"disk-model.toml\"\n\
             cycle = \"50 ms\"\n\
             write_share = \"8 MiB\"\n\
             uploads = true\n\n\
             [upload]\n\
             open_per_principal_max = 10000\n\
             expiry = \"{} s\"\n\n\
             [[upload.principal]]\n\
             name = \"crash\"\n\
             token_file = \"token\"\n\
             quota = \"{} B\"\n",
            root.display(),
            self.expiry.0 / SECOND.0,
            self.quota.0
        )
    }
}

/// The keys that let this program write.
fn local(socket: &Path) -> String {
    format!(
        "\n[local]\n\
         path = \"{}\"\n\
         clients_max = 2\n\
         write_users = [\"{}\"]\n\
         principal = \"crash\"\n",
        socket.display(),
        rustix::process::geteuid().as_raw()
    )
}

impl Server {
    /// A program of the machine that may write.
    pub(super) fn program(&self) -> Result<LocalProgram> {
        let connected = LocalProgram::connect(self.socket());
        connected.context("no connection in shared memory")
    }

    /// Where programs of the machine connect.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// A client that may upload.
    pub(super) fn client(&self) -> Client {
        Client::new(self.address, format!("Authorization: Bearer {TOKEN}\r\n"))
    }

    /// Ends it at once (SIGKILL).
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("it had ended with {status}: {}", self.output());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Where it listens, once it says so.
    fn listening(&mut self) -> Result<SocketAddr> {
        let deadline = clock::now() + PATIENCE;
        loop {
            let said = self.output();
            let line = said.lines().find(|line| line.starts_with("Serving "));
            if let Some(place) = line.and_then(|line| line.rsplit_once("http://")) {
                return Ok(place.1.trim_end_matches('/').parse()?);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {said}");
            }
            ensure!(clock::now() < deadline, "it does not listen after {PATIENCE}: {said}");
            clock::sleep(PAUSE);
        }
    }

    /// How long it was kept from its work by others so far.
    pub(super) fn starved(&self) -> Result<Duration> {
        starvation::of(self.child.id())
    }

    /// What it has said so far.
    pub(super) fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output.log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed before.
        if self.child.kill().and_then(|()| self.child.wait()).is_err() {
            eprintln!("left behind: process {}", self.child.id());
        }
    }
}
