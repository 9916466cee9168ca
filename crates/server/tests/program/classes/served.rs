//! `tactus serve` on a directory of its own, and what it answers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tactus_testkit::process::Process;
use tactus_testkit::{DISK_MODEL, server};

use super::{PATIENCE, marked};
use crate::TACTUS;

pub(crate) struct RunningServer {
    pub(crate) server: Process,
    pub(crate) url: String,
    pub(crate) dir: tempfile::TempDir,
}

impl RunningServer {
    /// Serves titles that are called by their marks, and takes changes. A volume has to stand in
    /// the `config`.
    pub(crate) fn new(config: impl FnOnce(&str) -> String, marks: &[u8]) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let media = dir.path().join("media");
        fs::create_dir_all(media.join(".tactus")).expect("a directory");
        fs::write(media.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        marks.iter().for_each(|&mark| marked(&media, mark));
        let file = dir.path().join("tactus.toml");
        fs::write(&file, config(media.to_str().expect("a plain name"))).expect("a configuration");
        let mut command = server::serve(TACTUS, dir.path());
        command.args(["--uploads", "--http", "127.0.0.1:0", "--config"]).arg(&file);
        command.env("TACTUS_LOG", "info");
        let log = dir.path().join("log");
        let (server, said) =
            server::start(&mut command, Some(&log), server::until("Serving"), drop);
        let said = said.last().expect("the server says where it is");
        let url = said.rsplit(' ').next().expect("the last word is the address").to_owned();
        Self { server, url, dir }
    }

    /// The command `words[0]` to this server, with what else is said of it.
    pub(crate) fn tactus(&self, words: &[&str], more: &[&str]) -> Output {
        let mut command = Command::new(TACTUS);
        command.args(words).arg(&self.url).args(more).arg("--token-file").arg(self.token_file());
        command.stdin(Stdio::null()).env_remove("TACTUS_LOG").output().expect("the program starts")
    }

    fn token_file(&self) -> std::path::PathBuf {
        self.dir.path().join("media/.tactus/upload-token")
    }

    /// What the command prints, which must do what it is asked.
    pub(crate) fn told(&self, words: &[&str], more: &[&str]) -> String {
        let output = self.tactus(words, more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?} {more:?}: {said}");
        String::from_utf8(output.stdout).expect("what it says is UTF-8")
    }

    /// Why the command does not do what it is asked, and its exit code.
    pub(crate) fn refused(&self, words: &[&str], more: &[&str]) -> (i32, String) {
        let output = self.tactus(words, more);
        let code = output.status.code().expect("it ends by itself");
        assert_ne!(code, 0, "{words:?} {more:?}");
        (code, String::from_utf8(output.stderr).expect("what it says is UTF-8"))
    }

    /// A request with a body, with the token or without; status, and content.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
        is_known: bool,
    ) -> (u16, String) {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).expect("a connection");
        let token = fs::read_to_string(self.token_file()).expect("a token");
        let token = token.trim();
        let authorization = match is_known {
            true => format!("Authorization: Bearer {token}\r\n"),
            false => String::new(),
        };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             {authorization}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8(answer).expect("text");
        let (head, content) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, content.to_owned())
    }

    /// One class, as it is told to everybody on this machine.
    pub(crate) fn class(&self, name: &str) -> Value {
        let (status, text) = self.ask("GET", &format!("/api/v1/classes/{name}"), "", false);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits for a class of which `is_so`.
    pub(crate) fn until(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let class = self.class(name);
            if is_so(&class) {
                return class;
            }
            assert!(Instant::now() < end, "{class}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).expect("a log")
    }
}
