//! A server for each test, and programs that run against it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::MutexGuard;

use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::programs::installed;
use tactus_testkit::server::{keep_state, little_memory};
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

/// Enough for a slow machine; hanging programs are ended then.
const SECONDS_MAX: &str = "60";

/// `tactus` on ports of its own. One server at a time, as it pins its cores.
pub(crate) struct Server {
    _child: Process,
    pub(crate) said: Vec<String>,
    pub(crate) dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Server {
    /// `tactus serve DIR/titles --uploads`.
    pub(crate) fn with_uploads() -> Self {
        let dir = directory();
        let titles = dir.path().join("titles");
        std::fs::create_dir_all(titles.join(".tactus")).expect("a directory");
        std::fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        let config = little_memory(dir.path());
        let args = ["serve", text(&titles), "--uploads", "--http", "127.0.0.1:0", "--config"];
        let args = [&args[..], &[text(&config)]].concat();
        Self::start(dir, &args, "Uploads with")
    }

    /// Starts the server, and reads its output up to the line that begins with `last`.
    pub(crate) fn start(dir: tempfile::TempDir, args: &[&str], last: &str) -> Self {
        let turn = turn();
        let log = dir.path().join("log");
        let mut command = Command::new(TACTUS);
        keep_state(&mut command, dir.path()).args(args);
        let (child, said) = server::start(&mut command, Some(&log), server::until(last), drop);
        Self { _child: child, said, dir, _turn: turn }
    }

    /// The HTTP address, without a slash at the end.
    pub(crate) fn base(&self) -> &str {
        let line = self.said.iter().find(|line| line.starts_with("Serving"));
        let at = line.and_then(|line| line.split_once(" at ")).expect("it prints its address").1;
        at.split_whitespace().next().expect("a URL").trim_end_matches('/')
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base())
    }

    pub(crate) fn token(&self) -> String {
        let titles = self.dir.path().join("titles/.tactus/upload-token");
        std::fs::read_to_string(titles).expect("a token").trim().to_owned()
    }

    pub(crate) fn stored(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.dir.path().join("titles").join(name)).ok()
    }

    /// A file outside of the volume.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// Runs the command with this server's token.
    pub(crate) fn tactus<S: AsRef<OsStr>>(&self, args: &[S]) -> ProgramOutput {
        ProgramOutput::of(tactus(args).env("TACTUS_TOKEN", self.token()))
    }

    /// The answer to a request for `target`, head and body.
    pub(crate) fn ask(&self, target: &str, fields: &str) -> String {
        let address = self.base().trim_start_matches("http://");
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {address}\r\n{fields}Connection: close\r\n\r\n"
        );
        exchange(address, request.as_bytes())
    }
}

/// The output and exit code of a program.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl ProgramOutput {
    pub(crate) fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().expect("timeout is there");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }
}

/// `tactus ARGS`, ended by force if it hangs.
pub(crate) fn tactus<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = program(TACTUS);
    command.args(args);
    command
}

/// A program that must be installed.
pub(crate) fn program(name: &str) -> Command {
    if !Path::new(name).is_file() {
        installed(name, name);
    }
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", SECONDS_MAX, name]).stdin(Stdio::null());
    // Variables of the user must not influence the tests.
    for name in ["NO_COLOR", "TACTUS_TOKEN", "http_proxy", "https_proxy", "HTTPS_PROXY"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk")
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}
