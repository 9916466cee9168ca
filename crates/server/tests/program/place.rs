//! Servers of the engine that move to other cores while streams run.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tactus_testkit::process::{Process, turn};
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

const TOKEN: &str = "an-insecure-token-of-32-characters";
/// All servers of an engine with one volume.
const SERVERS: [&str; 6] = ["disk.0", "block.0", "delivery", "link", "packets", "file"];

struct Site {
    _process: Process,
    http: String,
    token: PathBuf,
    film: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Site {
    /// A server with everything on one core, and a second real-time core without a server.
    fn new(settings: &str) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        fs::create_dir_all(titles.join(".tactus")).expect("a directory");
        fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        let film: Vec<u8> = (0..6_000_001_u32).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        fs::write(titles.join("film.bin"), &film).expect("a title");
        let token = dir.path().join("token");
        fs::write(&token, TOKEN).expect("a token");
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("a file of ours");
        let config = dir.path().join("tactus.toml");
        let text = format!(
            "{settings}[memory]\narena = \"64 MiB\"\n[local]\npath = \"local.sock\"\n\
             [cores]\nplacement = [{{ cpu = 0, servers = [] }}, {{ cpu = 1, servers = \
             [\"disk.0\", \"block.0\", \"delivery\", \"link\", \"packets\", \"file\"] }}]\n\
             [[upload.principal]]\nname = \"ann\"\ntoken_file = \"token\"\n\
             rights = [\"placement\"]\n\
             [[upload.principal]]\nname = \"bob\"\ntoken_file = \"token-of-bob\"\n\
             rights = [\"publish\"]\n"
        );
        let bob = dir.path().join("token-of-bob");
        fs::write(&bob, TOKEN.replace("insecure", "unrelated")).expect("a token");
        fs::set_permissions(&bob, fs::Permissions::from_mode(0o600)).expect("a file of ours");
        fs::write(&config, text).expect("a configuration");
        let mut command = server::serve(TACTUS, dir.path());
        command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--uploads", "--config"]);
        command.args([config, titles]);
        let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
        let http = server::address(&said, "Serving", "http://").expect("an address").to_owned();
        Self { _process: process, http, token, film, _dir: dir }
    }

    fn place(&self, words: &[&str]) -> Output {
        let (what, rest) = words.split_first().expect("an action");
        let mut command = Command::new(TACTUS);
        command.args(["place", what, &format!("http://{}/", self.http)]).args(rest);
        command.arg("--token-file").arg(&self.token);
        command.output().expect("it starts")
    }

    /// The servers of each core.
    fn placement(&self) -> Vec<(u64, Vec<String>)> {
        let output = self.place(&["list", "--json"]);
        let all: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let core = |core: &Value| {
            let servers = core["servers"].as_array().expect("a list").iter();
            let mut servers: Vec<_> =
                servers.map(|name| name.as_str().expect("a name").to_owned()).collect();
            servers.sort();
            (core["cpu"].as_u64().expect("a number"), servers)
        };
        all.as_array().expect("a list").iter().map(core).collect()
    }

    /// Begins a stream.
    fn play(&self, rate: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.http).expect("a connection");
        let request = format!(
            "GET /film.bin?rate={rate} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.http
        );
        stream.write_all(request.as_bytes()).expect("a request");
        stream
    }

    /// Reads a stream to its end, and compares it with the title.
    fn check(&self, mut stream: TcpStream) {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let head = answer.windows(4).position(|at| at == b"\r\n\r\n").expect("a head") + 4;
        assert!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer[..head])
        );
        assert!(answer[head..] == self.film, "{} bytes came, or others", answer.len() - head);
    }
}

#[test]
fn every_server_moves_between_cores_while_streams_run_and_no_byte_is_lost() {
    let _turn = turn();
    let site = Site::new("");
    let streams: Vec<_> = ["8M", "12M", "16M"].map(|rate| site.play(rate)).into();
    let moving = |core: &str| {
        for name in SERVERS {
            let moved = site.place(&["move", name, "--core", core]);
            let said = String::from_utf8_lossy(&moved.stdout).into_owned();
            assert!(moved.status.success() && said.starts_with(name), "{moved:?}");
        }
    };
    let all = |core| -> Vec<String> {
        let there = site.placement().into_iter().find(|(cpu, _)| *cpu == core).expect("a core");
        there.1
    };
    let mut every = SERVERS.map(str::to_owned).to_vec();
    every.sort();
    for _ in 0..3 {
        moving("0");
        assert_eq!((all(0), all(1)), (every.clone(), vec![]));
        moving("1");
        assert_eq!((all(0), all(1)), (vec![], every.clone()));
    }
    let mut again = TcpStream::connect(&site.http).expect("a connection");
    write!(again, "GET /film.bin HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", site.http)
        .expect("a request");
    site.check(again);
    streams.into_iter().for_each(|stream| site.check(stream));
}

#[test]
fn a_server_stays_where_it_is_if_the_core_is_unknown_or_full_or_the_right_is_missing() {
    let _turn = turn();
    // The file server keeps as much of its core as streams may have of each.
    let site = Site::new("[cpu]\nbudget = \"10 %\"\n");
    assert!(site.place(&["move", "file", "--core", "0"]).status.success());
    let stream = site.play("12M");
    // It has begun.
    stream.peek(&mut [0]).expect("an answer");
    let before = site.placement();
    let refused = |words: &[&str], reason: &str| {
        let output = site.place(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(reason), "{output:?}");
        assert_eq!(site.placement(), before);
    };
    refused(&["move", "disk.7", "--core", "0"], "no part with this name");
    refused(&["move", "link", "--core", "9"], "core 9 has no real-time thread");
    refused(&["move", "link", "--core", "0"], "no room for link on core 0");
    let put = |token: &str, body: &str| {
        let mut stream = TcpStream::connect(&site.http).expect("a connection");
        write!(
            stream,
            "PUT /api/v1/placement/link HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            site.http,
            body.len()
        )
        .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let bob = TOKEN.replace("insecure", "unrelated");
    assert!(put(&bob, "{\"core\": 0}").starts_with("HTTP/1.1 403"));
    assert!(put("nobody-has-this-token-of-letters", "{\"core\": 0}").starts_with("HTTP/1.1 401"));
    for body in ["", "{}", "{\"core\": -1}", "{\"core\": 0, \"cpu\": 1}", "[0]"] {
        let answer = put(TOKEN, body);
        assert!(answer.starts_with("HTTP/1.1 400"), "{body}: {answer}");
    }
    assert_eq!(site.placement(), before);
    site.check(stream);
}
