//! Servers of the engine that move to other cores while streams run.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

const TOKEN: &str = "an-insecure-token-of-32-characters";
/// All servers of an engine with one volume.
const SERVERS: [&str; 6] = ["disk.0", "block.0", "delivery", "link", "packets", "file"];

struct Site {
    _process: Process,
    http: String,
    admin: String,
    token: PathBuf,
    config: PathBuf,
    film: Vec<u8>,
    _dir: tempfile::TempDir,
}

/// Everything on core 1, and core 0 without a server.
const ALL_ON_ONE: &str = "[{ cpu = 0, servers = [] }, { cpu = 1, servers = [\"disk.0\", \
                          \"block.0\", \"delivery\", \"link\", \"packets\", \"file\"] }]";
/// Sending on core 0.
const APART: &str = "[{ cpu = 0, servers = [\"link\", \"delivery\", \"packets\"] }, { cpu = 1, \
                     servers = [\"disk.0\", \"block.0\", \"file\"] }]";

impl Site {
    /// A server with everything on one core, and a second real-time core without a server.
    fn new(settings: &str) -> Self {
        Self::placed(ALL_ON_ONE, settings)
    }

    /// A server with this value of `placement`, which further keys of `[cores]` may follow.
    fn placed(placement: &str, settings: &str) -> Self {
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
            "[memory]\narena = \"64 MiB\"\n[local]\npath = \"local.sock\"\n\
             [[upload.principal]]\nname = \"ann\"\ntoken_file = \"token\"\n\
             rights = [\"placement\", \"reload\"]\n\
             [[upload.principal]]\nname = \"bob\"\ntoken_file = \"token-of-bob\"\n\
             rights = [\"publish\"]\n\
             {settings}[cores]\nplacement = {placement}\n"
        );
        let bob = dir.path().join("token-of-bob");
        fs::write(&bob, TOKEN.replace("insecure", "unrelated")).expect("a token");
        fs::set_permissions(&bob, fs::Permissions::from_mode(0o600)).expect("a file of ours");
        fs::write(&config, text).expect("a configuration");
        let mut command = server::serve(TACTUS, dir.path());
        command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--uploads", "--config"]);
        command.args([&config, &titles]);
        let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
        let address =
            |what| server::address(&said, what, "http://").expect("an address").to_owned();
        let (http, admin) = (address("Serving"), address("Metrics"));
        Self { _process: process, http, admin, token, config, film, _dir: dir }
    }

    /// Changes the configuration and reloads it; the server's answer.
    fn reload(&self, from: &str, to: &str) -> Value {
        let text = fs::read_to_string(&self.config).expect("a configuration");
        assert!(text.contains(from), "{text}");
        fs::write(&self.config, text.replace(from, to)).expect("a configuration");
        let mut command = Command::new(TACTUS);
        command.args(["reload", "--json", &format!("http://{}/", self.http), "--token-file"]);
        let output = command.arg(&self.token).output().expect("it starts");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    /// The servers of a core.
    fn on_core(&self, core: u64) -> Vec<String> {
        let mut all = self.placement().into_iter();
        all.find(|(cpu, _)| *cpu == core).expect("a core").1
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
        self.ask(&format!("GET /film.bin?rate={rate}"), "", "")
    }

    /// Sends one request on a connection of its own. `fields` end with their line.
    fn ask(&self, line: &str, fields: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.http).expect("a connection");
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\n{fields}Connection: close\r\n\r\n{body}",
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
    let second = "delivery.1";
    let placement = ALL_ON_ONE.replace("\"link\"", &format!("\"{second}\", \"link\""));
    let site = Site::placed(&placement, "");
    let streams: Vec<_> = ["8M", "12M", "16M"].map(|rate| site.play(rate)).into();
    let moving = |core: &str| {
        for name in SERVERS.into_iter().chain([second]) {
            let moved = site.place(&["move", name, "--core", core]);
            let said = String::from_utf8_lossy(&moved.stdout).into_owned();
            assert!(moved.status.success() && said.starts_with(name), "{moved:?}");
        }
    };
    let all = |core| -> Vec<String> {
        let there = site.placement().into_iter().find(|(cpu, _)| *cpu == core).expect("a core");
        there.1
    };
    let mut every: Vec<_> = SERVERS.into_iter().chain([second]).map(str::to_owned).collect();
    every.sort();
    for _ in 0..2 {
        moving("0");
        assert_eq!((all(0), all(1)), (every.clone(), vec![]));
        moving("1");
        assert_eq!((all(0), all(1)), (vec![], every.clone()));
    }
    site.check(site.ask("GET /film.bin", "", ""));
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
        let length = body.len();
        let fields = format!("Authorization: Bearer {token}\r\nContent-Length: {length}\r\n");
        let mut stream = site.ask("PUT /api/v1/placement/link", &fields, body);
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

#[test]
fn idle_servers_share_a_core_and_say_why_and_one_that_was_moved_by_command_stays() {
    let _turn = turn();
    let site = Site::placed(APART, "");
    // It runs for longer than it takes until idle servers share a core.
    let stream = site.play("3M");
    std::thread::scope(|scope| {
        scope.spawn(|| site.check(stream));
        watch_idle_servers(&site);
    });
}

/// Waits until all servers are on core 0, where one has been put by command.
fn watch_idle_servers(site: &Site) {
    let moved = site.place(&["move", "packets", "--core", "0"]);
    assert!(moved.status.success(), "{moved:?}");
    // Core 0 has a server that stays, so core 1 is the one that can sleep.
    let because = "core 0 has time for the work of both, and core 1 can sleep";
    let from = Instant::now();
    while site.on_core(0).len() < SERVERS.len() {
        assert!(from.elapsed() < Duration::from_secs(60), "{:?}", site.placement());
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = exchange(&site.admin, b"GET /api/v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let (_, body) = status.split_once("\r\n\r\n").expect("an answer");
    let status: Value = serde_json::from_str(body).expect("JSON");
    let moves = status["moves"].as_array().expect("a list");
    assert!(moves.len() == 3 && moves.iter().all(|one| one["reason"] == because), "{moves:?}");
    let url = format!("http://{}/", site.admin);
    let doctor = Command::new(TACTUS).args(["doctor", "--server", &url]).output();
    let shown = String::from_utf8(doctor.expect("it starts").stdout).expect("text");
    assert!(shown.contains("core 0 is busy") && shown.contains("nothing is on it"), "{shown}");
    let listed = site.place(&["list"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("packets") && listed.contains("(command)"), "{listed}");
    let released = site.place(&["release", "packets"]);
    let released = String::from_utf8_lossy(&released.stdout).into_owned();
    assert_eq!(released, "packets is on core 0, and may move by itself\n");
}

#[test]
fn another_placement_of_the_configuration_moves_servers_while_streams_run() {
    let _turn = turn();
    let site = Site::placed(&format!("{ALL_ON_ONE}\nbalance = \"off\""), "");
    let stream = site.play("12M");
    let answer = site.reload(ALL_ON_ONE, APART);
    let changed = answer["changed"].as_array().expect("a list");
    assert!(changed.iter().any(|one| one == "cores.placement: link is on core 0"), "{answer}");
    assert_eq!((changed.len(), answer["failed"].as_array().map(Vec::len)), (3, Some(0)));
    assert_eq!(site.on_core(0), ["delivery", "link", "packets"]);
    let back = site.reload(APART, ALL_ON_ONE);
    assert_eq!(back["changed"].as_array().map(Vec::len), Some(3), "{back}");
    let same = site.reload(ALL_ON_ONE, ALL_ON_ONE);
    assert_eq!(same["changed"], serde_json::json!([]), "{same}");
    let unknown = site.reload("cpu = 0", "cpu = 77");
    let failed = unknown["failed"][0].as_str().unwrap_or_default();
    assert!(failed.starts_with("core 77: the server cannot use processor 77"), "{unknown}");
    let ended = "cores.placement: core 0 has no real-time thread any more";
    assert_eq!(unknown["changed"], serde_json::json!([ended]), "{unknown}");
    let far = ALL_ON_ONE.replace("cpu = 0", "cpu = 77");
    let there =
        far.replace("[] }", "[\"packets\"] }").replace(", \"packets\", \"file\"", ", \"file\"");
    let refused = site.reload(&far, &there);
    let failed = refused["failed"][1].as_str().unwrap_or_default();
    assert!(failed.starts_with("packets stays on core 1: core 77 has no real-time"), "{refused}");
    let auto = site.reload(
        &format!("placement = {there}\nbalance = \"off\""),
        "placement = \"auto\"\nbalance = \"auto\"",
    );
    assert_eq!(auto["needs_restart"], serde_json::json!(["cores.placement"]), "{auto}");
    assert_eq!(auto["changed"], serde_json::json!(["cores.balance"]), "{auto}");
    site.check(stream);
}

#[test]
fn a_core_comes_and_goes_while_streams_run_and_no_byte_is_lost() {
    let _turn = turn();
    let only = "[{ cpu = 1, servers = [\"disk.0\", \"block.0\", \"delivery\", \"link\", \
                \"packets\", \"file\"] }]\nbalance = \"off\"";
    let site = Site::placed(only, "[cpu]\nbudget = \"40 %\"\n");
    let streams = ["8M", "12M", "16M"].map(|rate| site.play(rate));
    std::thread::scope(|scope| {
        for stream in streams {
            scope.spawn(|| site.check(stream));
        }
        add_and_remove(&site);
    });
}

/// Adds core 0 and removes it again, some times.
fn add_and_remove(site: &Site) {
    let said = |words: &[&str]| {
        let output = site.place(words);
        let all = [&output.stdout[..], &output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&all).into_owned())
    };
    let cores = || site.placement().into_iter().map(|(cpu, _)| cpu).collect::<Vec<_>>();
    let cpu_time = || {
        let answer =
            exchange(&site.admin, b"GET /api/v1/capacity HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
        body.matches("nanoseconds per second").count()
    };
    let (alone, with_one) = (said(&["remove", "--core", "1"]), cpu_time());
    assert!(!alone.0 && alone.1.contains("is the last one online"), "{alone:?}");
    for _ in 0..3 {
        let (done, text) = said(&["add", "--core", "0"]);
        assert!(done && text.starts_with("core 0 has a"), "{text}");
        assert_eq!((cores(), cpu_time()), (vec![1, 0], with_one + 1));
        let again = said(&["add", "--core", "0"]);
        assert!(again.0 && again.1.contains("already"), "{again:?}");
        for name in ["link", "disk.0", "block.0"] {
            let (done, text) = said(&["move", name, "--core", "0"]);
            assert!(done, "{text}");
        }
        let (done, text) = said(&["remove", "--core", "0"]);
        assert!(done && text.contains("link moved from core 0 to core 1"), "{text}");
        assert!(text.ends_with("core 0 has no real-time thread any more\n"), "{text}");
        assert_eq!((cores(), cpu_time()), (vec![1], with_one));
        let (done, text) = said(&["move", "link", "--core", "0"]);
        assert!(!done && text.contains("core 0 has no real-time thread"), "{text}");
    }
    let (done, text) = said(&["add", "--core", "977"]);
    assert!(!done && text.contains("977"), "{text}");
    let status = exchange(&site.admin, b"GET /api/v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let (_, body) = status.split_once("\r\n\r\n").expect("an answer");
    let status: Value = serde_json::from_str(body).expect("JSON");
    // A machine that stops the cores makes streams late as well.
    let was_stalled = status["stalls"]["count"] != 0;
    assert!(status["totals"]["underruns"] == 0 || was_stalled, "{status}");
}

#[test]
fn a_core_stays_if_its_promises_have_no_room_on_others() {
    let _turn = turn();
    // The file server keeps as much of its core as streams may have of each.
    let site = Site::new("[cpu]\nbudget = \"10 %\"\n");
    assert!(site.place(&["move", "file", "--core", "0"]).status.success());
    let stream = site.play("12M");
    // It has begun.
    stream.peek(&mut [0]).expect("an answer");
    let before = site.placement();
    let refused = site.place(&["remove", "--core", "1"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("no room for"), "{refused:?}");
    assert_eq!(site.placement(), before);
    // What was promised is promised still, and the same core goes when it is free.
    site.check(stream);
    let from = Instant::now();
    while !site.place(&["remove", "--core", "1"]).status.success() {
        assert!(from.elapsed() < Duration::from_secs(20), "{:?}", site.placement());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(site.on_core(0).len(), SERVERS.len());
}

#[test]
fn another_configuration_adds_the_cores_that_it_names_and_removes_the_others() {
    let _turn = turn();
    let on = |core: u32| {
        ALL_ON_ONE
            .replace("{ cpu = 0, servers = [] }, ", "")
            .replace("cpu = 1", &format!("cpu = {core}"))
    };
    let site = Site::placed(&format!("{}\nbalance = \"off\"", on(1)), "");
    let stream = site.play("12M");
    let answer = site.reload(&on(1), &on(0));
    assert_eq!(answer["failed"], serde_json::json!([]), "{answer}");
    let changed = answer["changed"].as_array().expect("a list");
    // A core begins, six servers move, and a core ends.
    assert_eq!(changed.len(), 8, "{answer}");
    assert_eq!(changed[0], "cores.placement: core 0 has a real-time thread");
    assert_eq!(changed[7], "cores.placement: core 1 has no real-time thread any more");
    assert_eq!(site.placement().len(), 1);
    assert_eq!(site.on_core(0).len(), SERVERS.len());
    site.check(stream);
}
