//! The server as a program, and a small client.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::MutexGuard;
use std::time::Duration;

use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::server;
use tactus_testkit::server::keep_state;
use tempfile::TempDir;

use crate::TACTUS;

pub(crate) const TOKEN: &str = "a-token-of-these-volumes";

/// A user without rights.
pub(crate) const NOBODY: u32 = 65_534;

/// A fixed model of a fast disk, so that no case waits for measurements.
const MODEL: &str = "version = 1\nmeasured = \"for the cases\"\ndevice = \"none\"\n\
                     probes = false\n[model]\n\
                     visit = \"30 us\"\nsweep = \"0 ns\"\nread_mib = \"600 us\"\n\
                     write_mib = \"600 us\"\ndepth = 16\n";

/// The directories of a case.
pub(crate) struct Fixture {
    dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// A running server.
pub(crate) struct Server {
    child: Process,
    pub(crate) http: SocketAddr,
    admin: SocketAddr,
    log: PathBuf,
}

impl Fixture {
    /// With a directory `media`, a token and a disk model, which other users may list.
    pub(crate) fn new() -> Self {
        let turn = turn();
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("media")).unwrap();
        fs::write(dir.path().join("model"), MODEL).unwrap();
        let fixture = Self { dir, _turn: turn };
        fixture.secret("token", TOKEN, 0o600);
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn secret(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Writes `tactus.toml`: small limits, a free port, then `more`.
    pub(crate) fn configure(&self, more: &str) {
        let text = format!(
            "[http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [memory]\nstreams_max = 64\nlock = \"off\"\n{}[cores]\nrealtime = \"off\"\n{more}",
            if more.contains("arena") { "" } else { "arena = \"32 MiB\"\n" }
        );
        fs::write(self.path("tactus.toml"), text).unwrap();
    }

    /// A volume at `media` that accepts uploads of one principal with these keys.
    pub(crate) fn configure_uploads(&self, keys: &str) {
        self.configure(&format!(
            "[[volume]]\npath = \"media\"\nmodel = \"model\"\nwrite_share = \"8 MiB\"\n\
             uploads = true\n\
             [[upload.principal]]\nname = \"ann\"\ntoken_file = \"token\"\n{keys}"
        ));
    }

    /// Runs `tactus` with these arguments.
    pub(crate) fn tactus(&self, words: &[&str]) -> Output {
        let mut command = Command::new(TACTUS);
        self.within(command.args(words)).output().unwrap()
    }

    /// The output and the exit code of the configuration check.
    pub(crate) fn checked(&self) -> (Option<i32>, String) {
        let said = self.tactus(&["serve", "--config", "tactus.toml", "--check-config"]);
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    }

    fn within<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        keep_state(command, self.dir.path()).current_dir(self.dir.path())
    }

    /// Starts the server in its own mount namespace, after the shell commands `before` there.
    pub(crate) fn serve_after(&self, before: &str, words: &str) -> Server {
        let program = TACTUS;
        let script = format!("set -e; {before}\nexec {program} serve {words}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        self.start(&mut command)
    }

    pub(crate) fn serve(&self) -> Server {
        let mut command = Command::new(TACTUS);
        self.start(command.args(["serve", "--config", "tactus.toml"]))
    }

    /// Starts the server as a user without rights.
    pub(crate) fn serve_as_nobody(&self) -> Server {
        let program = TACTUS;
        let mut command = Command::new("setpriv");
        let user = NOBODY.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", program]);
        self.start(command.args(["serve", "--config", "tactus.toml"]))
    }

    fn start(&self, command: &mut Command) -> Server {
        let log = self.path("log");
        let command = self.within(command).env("TACTUS_LOG", "info");
        let (child, said) = server::start(command, Some(&log), server::until("Metrics"), drop);
        let [http, admin] = ["Serving", "Metrics"]
            .map(|first| server::address(&said, first, "http://").unwrap().parse().unwrap());
        Server { child, http, admin, log }
    }

    /// Gives `path` and its contents to the user without rights.
    pub(crate) fn give(&self, path: &str) {
        let owner = format!("{NOBODY}:{NOBODY}");
        let gave = Command::new("chown").args(["-R", &owner]).arg(self.path(path)).status();
        assert!(gave.unwrap().success());
    }
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Runs shell commands in the server's mount namespace.
    pub(crate) fn shell(&self, words: &str) {
        let pid = self.pid().to_string();
        let done = Command::new("nsenter")
            .args(["--target", &pid, "--mount", "sh", "-c", &format!("set -e; {words}")])
            .output()
            .unwrap();
        assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// The status and the body of an answer.
    pub(crate) fn ask(&self, method: &str, path: &str, fields: &str, body: &[u8]) -> (u16, String) {
        ask(self.http, method, path, fields, body)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "", b"")
    }

    /// Like [`Self::ask`], with the principal's token.
    pub(crate) fn change(
        &self,
        method: &str,
        path: &str,
        fields: &str,
        body: &[u8],
    ) -> (u16, String) {
        let fields = format!("Authorization: Bearer {TOKEN}\r\n{fields}");
        self.ask(method, path, &fields, body)
    }

    pub(crate) fn put(&self, path: &str, body: &[u8]) -> (u16, String) {
        self.change("PUT", path, "", body)
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let (status, body) = ask(self.admin, "GET", "/api/v1/status", "", b"");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The message of the current condition of this kind.
    pub(crate) fn condition(&self, kind: &str) -> Option<String> {
        let status = self.status();
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|one| one["kind"] == kind)?;
        Some(format!("{}: {}", found["subject"], found["message"].as_str().unwrap()))
    }

    /// Waits for a change that the server notices within seconds.
    pub(crate) fn wait_until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        for _ in 0..400 {
            if let Some(found) = look(self) {
                return found;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{what} did not happen: {}\n{}", self.status()["conditions"], self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends the server by a signal, as an operator does.
    pub(crate) fn stop(mut self) {
        let pid = self.child.0.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        let ended = self.child.0.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.log());
    }
}

fn ask(to: SocketAddr, method: &str, path: &str, fields: &str, body: &[u8]) -> (u16, String) {
    let len = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\
         Content-Length: {len}\r\n\r\n"
    );
    let text = exchange(to, &[head.as_bytes(), body].concat());
    let status = text.get(9..12).and_then(|digits| digits.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{method} {path}: no answer: {text}"));
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status, body.unwrap_or_default())
}

/// Whether a path exists.
pub(crate) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
