//! Programs of this machine that read titles through shared memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tactus_client::protocol::{Reply, Request as Message};
use tactus_core::local::{Operation, REQUEST_WORDS, Request, layout};
use tactus_core::units::{Bytes, MonoTime};
use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;
use raw::{DATA, Raw};

mod building;
mod killed;
mod library;
mod raw;
mod streams;
mod timed;
mod writing;

const PATIENCE: Duration = Duration::from_secs(60);
const TITLE: &str = "/news/a b#.ts";
const OTHER: &str = "other.ts";

/// A server with one title.
struct Served {
    process: Process,
    admin: String,
    socket: PathBuf,
    bytes: Vec<u8>,
    dir: tempfile::TempDir,
}

fn serve() -> Served {
    serve_with(DISK_MODEL, "")
}

/// The same, from a disk of which `model` is the model.
fn serve_from(model: &str) -> Served {
    serve_with(model, "")
}

/// The same with further lines of its configuration.
fn serve_with(model: &str, lines: &str) -> Served {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir_all(titles.join("news")).expect("a directory");
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    fs::write(titles.join(&TITLE[1..]), &bytes).expect("a title");
    fs::write(titles.join(OTHER), vec![7; 2_500_000]).expect("a title");
    fs::create_dir_all(titles.join(".tactus")).expect("a directory");
    fs::write(titles.join(".tactus/disk-model.toml"), model).expect("a model");
    let config = dir.path().join("tactus.toml");
    let text = format!(
        "[memory]\narena = \"64 MiB\"\n[local]\npath = \"local.sock\"\n\
         titles_max = \"5 MB\"\n{lines}"
    );
    fs::write(&config, text).expect("a configuration");
    let mut command = server::serve(TACTUS, dir.path());
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    command.args([config, titles]);
    let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let admin = server::address(&said, "Metrics", "http://").expect("an address").to_owned();
    let socket = dir.path().join("local.sock");
    Served { process, admin, socket, bytes, dir }
}

impl Served {
    /// The directory of its titles.
    fn titles(&self) -> PathBuf {
        self.dir.path().join("titles")
    }

    fn metrics(&self) -> String {
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
        exchange(&self.admin, request.as_bytes())
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().expect("a number")
            as u64
    }

    fn wait_until_nobody_is_left(&self) {
        let until = Instant::now() + PATIENCE;
        while self.metric("tactus_local_clients") > 0 {
            assert!(Instant::now() < until, "a client is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its descriptors and mappings that belong to clients.
    fn left(&self) -> (usize, usize) {
        let proc = Path::new("/proc").join(self.process.0.id().to_string());
        // Descriptors of titles are the page cache's, which keeps them as long as their blocks.
        let all = fs::read_dir(proc.join("fd")).expect("its descriptors");
        let is_of_a_client = |link: &PathBuf| {
            let link = link.to_string_lossy();
            link.starts_with("socket:") || link.contains("memfd:tactus-")
        };
        let links = all.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let descriptors = links.filter(is_of_a_client).count();
        let maps = fs::read_to_string(proc.join("maps")).expect("its mappings");
        (descriptors, maps.lines().filter(|line| line.contains("memfd:tactus-")).count())
    }
}

#[test]
fn a_signal_ends_the_server_before_and_while_programs_are_connected() {
    let _turn = turn();
    for is_connected in [false, true] {
        let mut served = serve();
        assert_eq!(served.metric("tactus_local_clients"), 0, "it answers");
        let _client = is_connected.then(|| Raw::connect(&served.socket));
        let pid = rustix::process::Pid::from_child(&served.process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = served.process.0.try_wait().expect("its state") {
                break status;
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_program_reads_titles_through_shared_memory() {
    let _turn = turn();
    let served = serve();
    let mut client = Raw::connect(&served.socket);
    let handle = client.open(TITLE);
    let bytes = &served.bytes;
    let mut copy = vec![0; 1 << 20];
    let parts = [(0, 4096), (2_999_000, 4096), (1, 1 << 20), (262_143, 2), (0, 0), (9_000_000, 5)];
    for (offset, len) in parts {
        let expected = bytes.get(offset..bytes.len().min(offset + len)).unwrap_or_default();
        let got =
            client.read(handle, offset as u64, len as u32, 4096).expect("a server that answers");
        assert_eq!(got as usize, expected.len());
        client.data.copy_out(4096, &mut copy[..got as usize]);
        assert!(copy[..got as usize] == *expected, "{offset} {len}");
    }
    // Asleep in between, and several at once, out of which each gets its own bytes.
    std::thread::sleep(Duration::from_millis(50));
    for turn in 0..100 {
        client.push(&read(handle, turn * 30_000, 1000, turn * 1000).encode());
    }
    let mut answers: Vec<_> = (0..100).map(|_| client.answer()).collect();
    answers.sort_by_key(|answer| answer.token);
    for (turn, answer) in (0..100).zip(answers) {
        assert_eq!((answer.token, answer.result), (turn * 30_000, Ok(1000)));
        client.data.copy_out(turn * 1000, &mut copy[..1000]);
        assert!(copy[..1000] == bytes[turn as usize * 30_000..][..1000], "{turn}");
    }

    match client.ask(&Message::Stat { title: TITLE.into() }) {
        Reply::Stat(stat) => assert_eq!((stat.len, stat.is_directory), (3_000_001, false)),
        other => panic!("{other:?}"),
    }
    let list =
        |directory: &str| client.ask(&Message::List { directory: directory.into(), after: None });
    match (list("/"), list("/news")) {
        (Reply::List { entries: top, .. }, Reply::List { entries: news, more: false }) => {
            assert_eq!((top[0].name.as_str(), top[0].stat.is_directory), ("news/", true));
            assert_eq!((news[0].name.as_str(), news[0].stat.len), ("a b#.ts", 3_000_001));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.ask(&Message::Close { handle }), Reply::Closed);
    assert_eq!(client.read(handle, 0, 1, 0), Err(9));
    assert_eq!(served.metric("tactus_local_clients"), 1);
    drop(client);
    served.wait_until_nobody_is_left();
}

fn read(handle: u32, offset: u64, len: u32, at: u64) -> Request {
    let (operation, when) = (Operation::Read, MonoTime(0));
    Request { token: offset, operation, handle, offset: Bytes(offset), len, at, when }
}

#[test]
fn a_request_with_a_time_takes_effect_then_and_not_before() {
    let _turn = turn();
    let served = serve();
    let mut client = Raw::connect(&served.socket);
    let handle = client.open(TITLE);
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    for wait in [1, 10, 100] {
        let when = now() + wait * 1_000_000;
        client.push(&Request { when: MonoTime(when), ..read(handle, 0, 4096, 0) }.encode());
        let answer = client.answer();
        assert_eq!(answer.result, Ok(4096));
        assert!(answer.at.0 >= when && now() >= when, "{wait} ms");
    }
}

#[test]
fn l01_what_a_program_does_wrong_is_an_error_number_and_harms_nobody() {
    let _turn = turn();
    let served = serve();
    let mut other = Raw::connect(&served.socket);
    let others = other.open(TITLE);
    let mut client = Raw::connect(&served.socket);
    let open = |title: &str| client.refusal(&Message::Open { title: title.into() });
    assert_eq!(
        [open("/none"), open("/news"), open("/../etc/passwd"), open("/a\0b")],
        [2, 21, 22, 22]
    );
    let list = Message::List { directory: TITLE.into(), after: None };
    assert_eq!(client.refusal(&list), 20);
    assert_eq!(client.refusal(&Message::Close { handle: 0 }), 9);
    assert_eq!(client.refusal(&Message::Hello { version: 1, data: 1 }), 22);

    let handle = client.open(TITLE);
    assert_eq!(client.read(handle + 1, 0, 1, 0), Err(9), "no such handle");
    assert_eq!(client.read(u32::MAX, 0, 1, 0), Err(9));
    assert_eq!(client.read(handle, 0, 2, DATA - 1), Err(14), "beyond the data");
    assert_eq!(client.read(handle, 0, 1, u64::MAX / 2), Err(14));
    client.push(&[7, 99, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.answer().result, Err(38), "no such operation");
    client.push(&[7, 1, 0, 0, 0, 0, 0, 1]);
    assert_eq!(client.answer().result, Err(22));
    let opened: Vec<_> = (1..64).map(|_| client.open(TITLE)).collect();
    assert_eq!(opened.len(), 63);
    assert_eq!(client.refusal(&Message::Open { title: TITLE.into() }), 24);
    assert_eq!(client.read(handle, 0, 4096, 0), Ok(4096), "it is served as before");

    // More requests than the ring has.
    client.memory.copy_in(layout::REQUESTS_PUSHED as u64, &u64::MAX.to_le_bytes());
    client.ring();
    assert!(client.is_cut());
    assert_eq!(other.read(others, 4096, 4096, 0), Ok(4096));
}

#[test]
fn l02_rubbish_and_deaths_leave_nothing_behind_and_harm_nobody() {
    let _turn = turn();
    let served = serve();
    let mut other = Raw::connect(&served.socket);
    let others = other.open(TITLE);
    assert_eq!(other.read(others, 0, 4096, 0), Ok(4096));
    let before = served.left();
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for turn in 0..200 {
        let mut client = Raw::connect(&served.socket);
        let handle = client.open(TITLE);
        for _ in 0..next() % 40 {
            let request =
                read(handle, next() % 3_000_000, (next() % 300_000) as u32, next() % DATA);
            let mut words: [u64; REQUEST_WORDS] = request.encode();
            if turn % 2 == 0 {
                words[next() as usize % REQUEST_WORDS] = next() >> (next() % 64);
            }
            client.push(&words);
        }
        if turn % 4 == 0 {
            for _ in 0..100 {
                let at = next() % (layout::DATA as u64 / 8) * 8;
                client.memory.copy_in(at, &(next() >> (next() % 64)).to_le_bytes());
            }
            client.ring();
        }
        if turn % 3 == 0 {
            std::thread::sleep(Duration::from_micros(next() % 2000));
        }
        drop(client);
        assert_eq!(other.read(others, next() % 2_000_000, 4096, 0), Ok(4096));
    }
    let until = Instant::now() + PATIENCE;
    let is_back = |(files, maps)| files <= before.0 && maps <= before.1;
    while served.metric("tactus_local_clients") > 1 || !is_back(served.left()) {
        assert!(Instant::now() < until, "{:?} and not {before:?}", served.left());
        std::thread::sleep(Duration::from_millis(20));
    }
}
