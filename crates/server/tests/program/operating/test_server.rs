//! A server with its output in files and its admin address on a free port, and a client.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::server::keep_state;

use crate::TACTUS;

/// A server with the default memory touches a gigabyte of it or more first, which a virtual machine
/// may get from its host page by page.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    child: Process,
    pub(crate) dir: tempfile::TempDir,
    /// `127.0.0.1:PORT`
    pub(crate) http: String,
    pub(crate) admin: String,
    _turn: Option<MutexGuard<'static, ()>>,
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Server {
    /// A server with `config` after the test's own keys, and a title `film.ts` of 2 MB.
    pub(crate) fn new(config: &str) -> Self {
        Self::with(&[], config)
    }

    pub(crate) fn with(more: &[&str], config: &str) -> Self {
        let turn = turn();
        let mut server = Self::beside_others(more, config);
        server._turn = Some(turn);
        server
    }

    /// Starts while other servers may run.
    pub(crate) fn beside_others(more: &[&str], config: &str) -> Self {
        let (dir, command) = prepared(more, config);
        Self::start(dir, command)
    }

    /// Serves a directory, without a configuration file.
    pub(crate) fn without_file() -> Self {
        let turn = turn();
        let (dir, _) = prepared(&[], "");
        let mut command = Command::new(TACTUS);
        let addresses = ["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        keep_state(&mut command, dir.path());
        command.args(addresses).arg(dir.path().join("media"));
        command.stdin(Stdio::null());
        command.stdout(File::create(dir.path().join("out")).expect("a file"));
        command.stderr(File::create(dir.path().join("err")).expect("a file"));
        let mut server = Self::start(dir, command);
        server._turn = Some(turn);
        server
    }

    pub(crate) fn start(dir: tempfile::TempDir, mut command: Command) -> Self {
        let child = command.spawn().expect("the server starts");
        Self::of(dir, child)
    }

    /// A server that was started by other means, with its output in the usual files.
    pub(crate) fn of(dir: tempfile::TempDir, child: Child) -> Self {
        let (http, admin) = (String::new(), String::new());
        let mut server = Self { child: Process(child), dir, http, admin, _turn: None };
        let address = |line: &str| {
            let rest = line.split_once("http://").expect("an address").1;
            rest.split('/').next().unwrap_or_default().to_owned()
        };
        server.http = address(&server.wait_for(|server| line(&server.out(), "Serving ")));
        server.admin = address(&server.wait_for(|server| line(&server.out(), "Metrics ")));
        server
    }

    pub(crate) fn out(&self) -> String {
        read(self.dir.path().join("out"))
    }

    pub(crate) fn err(&self) -> String {
        read(self.dir.path().join("err"))
    }

    /// Waits for the result of `look`.
    pub(crate) fn wait_for<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let (out, err) = (self.out(), self.err());
            assert!(begun.elapsed() < PATIENCE, "not seen in\n{out}\n{err}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child.0);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.0.try_wait().expect("a child").is_none()
    }

    /// Ends the server with SIGTERM.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.child.0.wait().expect("it ends")
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let answer = get(&self.admin, "/api/v1/status", "");
        assert_eq!(answer.status, 200, "{}", answer.head);
        serde_json::from_str(&answer.body).expect("JSON")
    }
}

/// A directory with a title and a configuration, and the command that serves it.
pub(crate) fn prepared(more: &[&str], config: &str) -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let media = dir.path().join("media");
    fs::create_dir(&media).expect("a directory");
    fs::write(media.join("film.ts"), vec![0x47; 2_000_000]).expect("a title");
    let text =
        format!("[admin]\naddress = \"127.0.0.1:0\"\n[memory]\narena = \"64 MiB\"\n{config}");
    fs::write(dir.path().join("tactus.toml"), text).expect("a configuration");
    let mut command = Command::new(TACTUS);
    keep_state(&mut command, dir.path())
        .args(["serve", "--http", "127.0.0.1:0", "--config"])
        .args([dir.path().join("tactus.toml"), media])
        .args(more)
        .env_remove("TACTUS_LOG")
        .stdin(Stdio::null())
        .stdout(File::create(dir.path().join("out")).expect("a file"))
        .stderr(File::create(dir.path().join("err")).expect("a file"));
    (dir, command)
}

fn read(path: PathBuf) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The first line that contains `part`, once it is complete.
pub(crate) fn line(text: &str, part: &str) -> Option<String> {
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.find(|line| line.contains(part)).map(|line| line.trim_end().to_owned())
}

pub(crate) fn get(address: &str, path: &str, fields: &str) -> Response {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"),
    )
}

pub(crate) fn ask(address: &str, request: &str) -> Response {
    let answer = exchange(address, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Response { status, head: head.to_owned(), body: body.to_owned() }
}
