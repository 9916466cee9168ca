//! A server of Tactus with one title, for benches of local programs.
//!
//! Promise: it listens for local programs when it is returned, and ends when it is dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tactus_core::units::Nanos;

use crate::priority;

/// The binary `tactus`: the given one, or that beside this program.
pub(super) fn program(given: Option<&Path>) -> Result<PathBuf> {
    Ok(match given {
        Some(path) => path.canonicalize()?,
        None => std::env::current_exe()?.with_file_name("tactus"),
    })
}

/// What a server is started with.
#[derive(Clone, Copy, Default)]
pub(super) struct ServerSettings<'a> {
    /// The folder of the volume, and its title.
    pub(super) name: &'a str,
    /// Bytes of the title.
    pub(super) len: u64,
    /// The lines of `[cores]`.
    pub(super) cores: &'a str,
    /// Whether programs may write; the token of HTTP is [`TOKEN`] then.
    pub(super) is_writable: bool,
    /// The cores that the process may use, as a list such as `0` or `0-1`; all unless given.
    pub(super) may_use: Option<&'a str>,
}

/// A running server with one title.
pub(super) struct LocalServer {
    process: Child,
    pub(super) socket: PathBuf,
    /// Where it serves HTTP.
    pub(super) http: SocketAddr,
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
        let cores = on_core(core);
        let settings = ServerSettings { name, len, cores: &cores, ..ServerSettings::default() };
        Self::start_with(&settings, tactus, data)
    }

    /// The same for programs that write.
    pub(super) fn start_writable(
        (name, len, core): (&str, u64, usize),
        tactus: Option<&Path>,
        data: &Path,
    ) -> Result<Self> {
        let cores = on_core(core);
        let settings =
            ServerSettings { name, len, cores: &cores, is_writable: true, may_use: None };
        Self::start_with(&settings, tactus, data)
    }

    /// The same with all settings.
    pub(super) fn start_with(
        settings: &ServerSettings<'_>,
        tactus: Option<&Path>,
        data: &Path,
    ) -> Result<Self> {
        let &ServerSettings { name, len, cores, is_writable, may_use } = settings;
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
        let (mut writers, mut uploads) = (String::new(), "");
        if is_writable {
            let token = place.path().join("token");
            fs::write(&token, TOKEN)?;
            fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
            let user = rustix::process::geteuid().as_raw();
            writers = format!(
                "write_users = [\"{user}\"]\nprincipal = \"bench\"\n[[upload.principal]]\n\
                 name = \"bench\"\ntoken_file = \"token\"\n"
            );
            uploads = "uploads = true\n";
        }
        let http = free_address()?;
        let text = format!(
            "[http]\naddress = \"{http}\"\n[admin]\naddress = \"off\"\n[cores]\n{cores}\
             [local]\npath = \"{}\"\n{writers}[[volume]]\npath = \"{}\"\nmount = \"/\"\n\
             {uploads}",
            socket.display(),
            folder.display()
        );
        fs::write(&file, text)?;
        let program = program(tactus)?;
        let mut command = match may_use {
            Some(cores) => priority::on_cores(cores, None, &program.to_string_lossy()),
            None => Command::new(program),
        };
        command.arg("serve").arg("--config").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        // It keeps the identity of no volume.
        for variable in ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"] {
            command.env_remove(variable);
        }
        let process = command.spawn().context("the server does not start")?;
        let mut served = Self { process, socket, http, title, _place: place };
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

/// All servers on the core `core`, as lines of `[cores]`.
fn on_core(core: usize) -> String {
    let servers = r#""disk", "block", "delivery", "link""#;
    format!("placement = [{{ cpu = {core}, servers = [{servers}] }}]\n")
}

/// An address that nothing listens at.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// The token of the principal that writes.
pub(super) const TOKEN: &str = "an-insecure-token-of-32-characters";

const MODEL: &str = "version = 1\nmeasured = \"never\"\ndevice = \"none\"\nprobes = false\n\
                     [model]\nvisit = \"50 us\"\nsweep = \"0 ns\"\nread_mib = \"400 us\"\n\
                     write_mib = \"900 us\"\ndepth = 8\n";
