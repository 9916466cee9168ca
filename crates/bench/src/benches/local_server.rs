//! A server of Tactus with one title, for benches of local programs.
//!
//! Promise: it listens for local programs when it is returned, and ends when it is dropped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tactus_core::units::Nanos;

/// The binary `tactus`: the given one, or that beside this program.
pub(super) fn program(given: Option<&Path>) -> Result<PathBuf> {
    Ok(match given {
        Some(path) => path.canonicalize()?,
        None => std::env::current_exe()?.with_file_name("tactus"),
    })
}

/// A running server with one title.
pub(super) struct LocalServer {
    process: Child,
    pub(super) socket: PathBuf,
    /// The file of the title.
    pub(super) title: PathBuf,
    _place: tempfile::TempDir,
}

impl LocalServer {
    /// Starts the server on the core `core`, with a title of `len` bytes in the folder `name` of
    /// `data`; the binary `tactus` beside this one unless it is given.
    pub(super) fn start(
        (name, len, core): (&str, u64, usize),
        tactus: Option<&Path>,
        data: &Path,
    ) -> Result<Self> {
        Self::begin((name, len, core), tactus, data, false)
    }

    /// The same for programs that write.
    pub(super) fn start_writable(
        (name, len, core): (&str, u64, usize),
        tactus: Option<&Path>,
        data: &Path,
    ) -> Result<Self> {
        Self::begin((name, len, core), tactus, data, true)
    }

    fn begin(
        (name, len, core): (&str, u64, usize),
        tactus: Option<&Path>,
        data: &Path,
        is_writable: bool,
    ) -> Result<Self> {
        let folder = data.join(name);
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let title = folder.join(format!("{name}.bin"));
        if fs::metadata(&title).map_or(0, |found| found.len()) != len {
            let bytes: Vec<u8> = (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
            fs::write(&title, bytes)?;
        }
        // A model without an arm, so that the start measures nothing.
        fs::create_dir_all(folder.join(".tactus"))?;
        fs::write(folder.join(".tactus/disk-model.toml"), MODEL)?;
        let place = tempfile::Builder::new().prefix("tactus-bench-local-").tempdir()?;
        let socket = place.path().join("local.sock");
        let file = place.path().join("tactus.toml");
        let servers = r#""disk", "block", "delivery", "link""#;
        let (mut writers, mut uploads) = (String::new(), "");
        if is_writable {
            let token = place.path().join("token");
            fs::write(&token, "an-insecure-token-of-32-characters")?;
            fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
            let user = rustix::process::geteuid().as_raw();
            writers = format!(
                "write_users = [\"{user}\"]\nprincipal = \"bench\"\n[[upload.principal]]\n\
                 name = \"bench\"\ntoken_file = \"token\"\n"
            );
            uploads = "uploads = true\n";
        }
        let text = format!(
            "[http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\n[cores]\n\
             placement = [{{ cpu = {core}, servers = [{servers}] }}]\n[local]\n\
             path = \"{}\"\n{writers}[[volume]]\npath = \"{}\"\nmount = \"/\"\n{uploads}",
            socket.display(),
            folder.display()
        );
        fs::write(&file, text)?;
        let mut command = Command::new(program(tactus)?);
        command.arg("serve").arg("--config").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        // It keeps the identity of no volume.
        for variable in ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"] {
            command.env_remove(variable);
        }
        let process = command.spawn().context("the server does not start")?;
        let mut served = Self { process, socket, title, _place: place };
        served.wait()?;
        Ok(served)
    }

    /// Its process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while !Path::exists(&self.socket) {
            if let Some(status) = self.process.try_wait()? {
                bail!("the server has ended: {status}");
            }
            if Instant::now() > until {
                bail!("the server does not listen");
            }
            crate::clock::sleep(Nanos::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

const MODEL: &str = "version = 1\nmeasured = \"never\"\ndevice = \"none\"\nprobes = false\n\
                     [model]\nvisit = \"50 us\"\nsweep = \"0 ns\"\nread_mib = \"400 us\"\n\
                     write_mib = \"900 us\"\ndepth = 8\n";
