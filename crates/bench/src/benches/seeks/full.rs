//! The servers: Tactus with a full link, and nginx without a limit.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::titles::{Container, Titles};
use super::{missing, wait_for};

/// A link that four viewers of 1.7 Mbit/s fill. The rest is as after an installation.
pub(super) const CONFIGURATION: &str =
    "[link]\nrate = \"8 Mbit/s\"\n[memory]\narena = \"64 MiB\"\n[admin]\naddress = \"off\"\n";
/// The disk as it is in these tests: not the matter here.
const DISK_MODEL: &str = "version = 1\nmeasured = \"never\"\ndevice = \"none\"\n[model]\n\
    visit = \"50 us\"\nsweep = \"0 ns\"\nread_mib = \"400 us\"\n\
    write_mib = \"900 us\"\ndepth = 8\n";
/// More viewers than fit.
const VIEWERS_MAX: usize = 50;

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServerKind {
    Tactus,
    Nginx,
}

impl ServerKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tactus => "tactus, full",
            Self::Nginx => "nginx, idle",
        }
    }
}

/// A running server of the titles.
pub(super) struct Site {
    kind: ServerKind,
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

/// The viewers beside the player.
#[derive(Default)]
pub(super) struct Crowd {
    ends: Arc<AtomicBool>,
    lost: Arc<AtomicUsize>,
}

impl Site {
    pub(super) fn start(kind: ServerKind, tactus: &Path, titles: &Titles) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tactus-bench-seeks-").tempdir()?;
        match kind {
            ServerKind::Tactus => Self::start_tactus(tactus, titles, folder),
            ServerKind::Nginx => Self::start_nginx(titles, folder),
        }
    }

    fn start_tactus(tactus: &Path, titles: &Titles, folder: tempfile::TempDir) -> Result<Self> {
        ensure!(tactus.is_file(), "{} is missing", tactus.display());
        let model = titles.root().join(".tactus");
        fs::create_dir_all(&model)?;
        fs::write(model.join("disk-model.toml"), DISK_MODEL)?;
        let file = folder.path().join("tactus.toml");
        fs::write(&file, CONFIGURATION)?;
        let log = folder.path().join("log");
        let mut command = Command::new(tactus);
        command.args(["serve", "--http", "127.0.0.1:0", "--config"]).arg(&file);
        command.arg(titles.root()).env("XDG_CACHE_HOME", folder.path());
        let mut child = spawn(&mut command, &log)?;
        let address = wait_for("tactus serves", || {
            let text = fs::read_to_string(&log)?;
            if let Some(status) = child.try_wait()? {
                bail!("it ended with {status}: {text}");
            }
            let line = text.lines().find(|line| line.contains("Serving"));
            let address = line.and_then(|line| line.split("http://").nth(1));
            let address = address.and_then(|rest| rest.split([' ', '/', ',']).next());
            Ok(address.and_then(|address| address.parse().ok()))
        })?;
        Ok(Self { kind: ServerKind::Tactus, child, address, _folder: folder })
    }

    fn start_nginx(titles: &Titles, folder: tempfile::TempDir) -> Result<Self> {
        let at = folder.path().display();
        let address: SocketAddr = "127.0.0.1:18089".parse().expect("an address");
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let paths = kinds.map(|kind| format!("    {kind}_temp_path {at}/{kind};\n")).concat();
        let text = format!(
            "user root;\npid {at}/pid;\nerror_log {at}/errors crit;\ndaemon off;\nevents {{ }}\n\
             http {{\n    access_log off;\n    sendfile on;\n{paths}\
             types {{ video/mp4 mp4; video/mp2t ts; video/x-matroska mkv; }}\n\
             server {{ listen {address}; root {}; }}\n}}\n",
            titles.root().display()
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, text)?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file);
        let mut child = spawn(&mut command, &folder.path().join("log"))
            .with_context(|| missing("nginx", "nginx-light"))?;
        wait_for("nginx serves", || {
            if let Some(status) = child.try_wait()? {
                bail!("it ended with {status}");
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(Self { kind: ServerKind::Nginx, child, address, _folder: folder })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fills the server with viewers, until one is refused. Returns how many have joined.
    pub(super) fn fill(&self, container: Container, crowd: &mut Crowd) -> Result<usize> {
        if self.kind == ServerKind::Nginx {
            return Ok(0);
        }
        for joined in 0..VIEWERS_MAX {
            let Some(stream) = self.open(container)? else { return Ok(joined) };
            stream.get_ref().set_read_timeout(Some(Duration::from_secs(2)))?;
            let (ends, lost) = (Arc::clone(&crowd.ends), Arc::clone(&crowd.lost));
            thread::spawn(move || watch(stream, &ends, &lost));
        }
        bail!("{VIEWERS_MAX} viewers did not fill the server")
    }

    /// A stream of a viewer, if it is admitted.
    fn open(&self, container: Container) -> Result<Option<BufReader<TcpStream>>> {
        let mut stream = TcpStream::connect(self.address)?;
        write!(
            stream,
            "GET /{} HTTP/1.1\r\nHost: bench\r\nUser-Agent: viewer\r\n\r\n",
            container.file()
        )?;
        let mut reader = BufReader::with_capacity(1 << 16, stream);
        let mut status = String::new();
        reader.read_line(&mut status)?;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        match status.split(' ').nth(1) {
            Some("200" | "206") => Ok(Some(reader)),
            Some("503") => Ok(None),
            _ => bail!("the server answers {status:?}"),
        }
    }
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let log = File::create(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {command:?}"))
}

/// Reads like a player that plays.
fn watch(mut stream: BufReader<TcpStream>, ends: &AtomicBool, lost: &AtomicUsize) {
    let mut bytes = vec![0; 1 << 16];
    while !ends.load(Ordering::Relaxed) {
        if !matches!(stream.read(&mut bytes), Ok(1..)) {
            lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

impl Crowd {
    /// Whether all of them still play.
    pub(super) fn is_whole(&self) -> bool {
        self.lost.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let process = rustix::process::Pid::from_child(&self.child);
        // It may have ended.
        rustix::process::kill_process(process, rustix::process::Signal::TERM).ok();
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
