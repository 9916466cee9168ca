//! Seeks of viewers that are inside, on a server without further room.
//!
//! Promise: a viewer that seeks keeps its room, whether its player opens the new stream before it
//! closes the old one or afterwards. The others keep theirs, and newcomers are refused as before.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tactus_core::units::SECOND;
use tactus_media::sample;
use tactus_testkit::process::{Process, turn};
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

/// Three streams of 1.7 Mbit/s fit into 90 % of it.
const LINK: &str = "[link]\nrate = \"6 Mbit/s\"\n[rate]\ndefault = \"1.7 Mbit/s\"\n\
    [memory]\narena = \"32 MiB\"\n";
/// A minute and a half at that rate.
const LEN: u64 = 20_000_000;
/// Seeks of each kind. `TACTUS_SEEKS=100` measures: the times are printed.
fn seeks() -> u64 {
    std::env::var("TACTUS_SEEKS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

struct FullServer {
    _process: Process,
    http: String,
    admin: String,
    _dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl FullServer {
    fn new() -> Self {
        Self::with(LINK, |titles| {
            for name in ["film.ts", "other.ts"] {
                fs::write(titles.join(name), vec![7; LEN as usize]).expect("a title");
            }
        })
    }

    fn with(settings: &str, lay: impl FnOnce(&Path)) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        fs::create_dir_all(titles.join(".tactus")).expect("a directory for titles");
        fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        lay(&titles);
        let config = dir.path().join("tactus.toml");
        fs::write(&config, settings).expect("a configuration");
        let mut command = server::serve(TACTUS, dir.path());
        command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
        command.args([config, titles]);
        let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
        let address = |first| server::address(&said, first, "http://").expect("told").to_owned();
        let (http, admin) = (address("Serving"), address("Metrics"));
        Self { _process: process, http, admin, _dir: dir, _turn: turn }
    }

    /// A new stream of `/film.ts` from `start`, and the status of its answer.
    fn open(&self, player: &str, start: Option<u64>) -> (u16, BufReader<TcpStream>) {
        self.open_title("film.ts", player, start)
    }

    fn open_title(
        &self,
        name: &str,
        player: &str,
        start: Option<u64>,
    ) -> (u16, BufReader<TcpStream>) {
        let (head, reader) = self.head("GET", name, player, start);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), reader)
    }

    /// The head of an answer, and its connection.
    fn head(
        &self,
        method: &str,
        name: &str,
        player: &str,
        start: Option<u64>,
    ) -> (String, BufReader<TcpStream>) {
        let mut socket = TcpStream::connect(&self.http).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a live socket");
        let range = start.map(|start| format!("Range: bytes={start}-\r\n")).unwrap_or_default();
        let request = format!(
            "{method} /{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             User-Agent: {player}\r\n{range}\r\n"
        );
        socket.write_all(request.as_bytes()).expect("the server reads");
        let mut reader = BufReader::with_capacity(1 << 16, socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).expect("a head") > 0, "{head:?}");
        }
        (head, reader)
    }

    fn refusals(&self) -> f64 {
        self.sum_of("tactus_refusals_total")
    }

    /// Waits until so many streams of the sample have a rate.
    fn wait_for_streams(&self, range: Range<f64>) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let bytes_per_second = sample::TS_RATE.0 as f64 / 8.0;
        let streams = || self.sum_of("tactus_stream_set_rate") / bytes_per_second;
        while !range.contains(&streams()) {
            assert!(Instant::now() < deadline, "{} streams", streams());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The sum of the metrics whose names begin so.
    fn sum_of(&self, name: &str) -> f64 {
        let metrics = tactus_testkit::process::exchange(
            &self.admin,
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        );
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

fn byte(reader: &mut BufReader<TcpStream>) -> bool {
    reader.read(&mut [0]).is_ok_and(|read| read == 1)
}

/// Reads like a player that plays, until told to stop. Whether the stream went on.
fn plays(reader: &mut BufReader<TcpStream>, stops: &AtomicBool, bytes: &AtomicU64) -> bool {
    let socket = reader.get_ref().try_clone().expect("a descriptor");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a live socket");
    let mut piece = vec![0; 1 << 16];
    while !stops.load(Ordering::Relaxed) {
        match reader.read(&mut piece) {
            Ok(read @ 1..) => bytes.fetch_add(read as u64, Ordering::Relaxed),
            _ => return false,
        };
    }
    true
}

/// Tells the other threads to stop, also when a test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Seeks of one viewer among three with the same player, behind one address, while newcomers try.
fn seeks_of(opens_first: bool, seeks: u64) {
    let server = FullServer::new();
    // A player's own requests begin with a range, too.
    let mut own = server.open("Lavf/60.16.100", Some(0));
    assert_eq!(own.0, 206);
    let stops = AtomicBool::new(false);
    let bytes = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut times = vec![];
    thread::scope(|scope| {
        let others: Vec<_> = bytes
            .iter()
            .map(|bytes| {
                let mut other = server.open("Lavf/60.16.100", Some(0));
                assert_eq!(other.0, 206);
                let stops = &stops;
                scope.spawn(move || plays(&mut other.1, stops, bytes))
            })
            .collect();
        let newcomer = scope.spawn(|| {
            let mut admitted = 0;
            while !stops.load(Ordering::Relaxed) {
                admitted += u32::from(server.open("VLC/3.0.20", None).0 != 503);
                thread::sleep(Duration::from_millis(7));
            }
            admitted
        });
        let end = StopAtEnd(&stops);
        for seek in 0..seeks {
            let start = seek * 7_919_003 % (LEN - 2_000_000);
            let begun = Instant::now();
            if opens_first {
                let next = server.open("Lavf/60.16.100", Some(start));
                own = next;
            } else {
                drop(own);
                own = server.open("Lavf/60.16.100", Some(start));
            }
            assert_eq!(own.0, 206, "seek {seek}");
            assert!(byte(&mut own.1), "seek {seek} got no data");
            times.push(begun.elapsed());
            assert!(byte(&mut own.1));
            thread::sleep(Duration::from_millis(seek % 5 * 20));
        }
        drop(end);
        for other in others {
            assert!(other.join().expect("no panic"), "a neighbour lost its stream");
        }
        assert_eq!(newcomer.join().expect("no panic"), 0, "a newcomer got the viewer's room");
    });
    println!(
        "opens first: {opens_first}: p50 {:?}, p99 {:?} of {seeks}",
        percentile(&mut times, 50),
        percentile(&mut times, 99)
    );
}

#[test]
fn r05_a_player_that_opens_before_it_closes_can_seek_on_a_full_server() {
    seeks_of(true, seeks());
}

#[test]
fn r05_a_player_that_closes_before_it_opens_can_seek_on_a_full_server() {
    seeks_of(false, seeks());
}

#[test]
fn r05_another_title_gets_the_room_that_its_viewer_has_left() {
    let server = FullServer::new();
    let own: Vec<_> = (0..3).map(|_| server.open("mpv", Some(0))).collect();
    assert!(own.iter().all(|(status, _)| *status == 206));
    let before = server.refusals();
    assert_eq!(server.open_title("other.ts", "mpv", Some(0)).0, 503, "all of them play");
    assert!(server.refusals() > before);
    let before = server.refusals();
    drop(own);
    let mut other = server.open_title("other.ts", "mpv", Some(0));
    assert!(other.0 == 206 && byte(&mut other.1));
    assert_eq!(server.refusals(), before, "none is counted");
}

#[test]
fn r05_a_newcomer_with_the_player_of_a_viewer_gets_nothing_of_its_room() {
    let server = FullServer::new();
    let mut own: Vec<_> = (0..3).map(|_| server.open("mpv", Some(0))).collect();
    // Without a range it is no seek, and has an answer that it can act on.
    assert_eq!(server.open("mpv", None).0, 503);
    // With a range only the viewers inside could tell: they keep their connections open.
    let (status, mut newcomer) = server.open("mpv", Some(1_000_000));
    assert!(status == 206 && !byte(&mut newcomer), "a head and no content");
    for (status, reader) in &mut own {
        assert!(*status == 206 && byte(reader));
    }
}

#[test]
fn r05_a_look_at_the_end_of_a_title_needs_no_room() {
    let server = FullServer::new();
    let mut own: Vec<_> = (0..3).map(|_| server.open("mpv", Some(0))).collect();
    // As libavformat looks for the last time stamp before it closes the stream.
    for len in [1024, 3072, 7168, 65_535] {
        let (status, mut look) = server.open("mpv", Some(LEN - len));
        assert_eq!(status, 206);
        look.read_exact(&mut vec![0; len as usize]).expect("all of it");
    }
    for (status, reader) in &mut own {
        assert!(*status == 206 && byte(reader));
    }
    assert_eq!(server.open("vlc", None).0, 503, "the server is as full as before");
    drop(own.pop());
    let (status, mut look) = server.open("mpv", Some(LEN - 1024));
    assert!(status == 206 && byte(&mut look));
    let (status, mut sought) = server.open("mpv", Some(1_000_000));
    assert!(status == 206 && byte(&mut sought), "the look has not taken the room");
}

/// Twenty seconds, of which four are noise and the rest is nearly nothing.
fn encode(path: &Path) {
    let noise = "noise=alls=60:allf=t:enable='between(t,8,12)'";
    let picture = format!("color=gray:s=320x180:r=25:d=20,{noise}");
    let encoded = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &picture])
        .args(["-c:v", "libx264", "-crf", "30", "-g", "25", "-preset", "ultrafast"])
        .arg(path)
        .status();
    assert!(encoded.expect("ffmpeg is missing: install the package ffmpeg").success());
}

#[test]
fn r05_a_seek_to_what_needs_more_than_there_is_has_a_slower_pace() {
    let settings = "[link]\nrate = \"20 Mbit/s\"\n[memory]\narena = \"64 MiB\"\n\
        [rate.asked]\nclient_share = \"100 %\"\n";
    let server = FullServer::with(settings, |titles| {
        encode(&titles.join("peak.ts"));
        fs::write(titles.join("film.ts"), vec![7; LEN as usize]).expect("a title");
    });
    let rates = |head: &str| {
        let line = head.lines().find(|line| line.starts_with("Tactus-Rate: ")).expect("a rate");
        let number = |name| line.split_once(name)?.1.split(';').next()?.parse::<u64>().ok();
        Some([number("mean=")?, number("peak=")?])
    };
    let (head, _) = server.head("HEAD", "peak.ts", "mpv", None);
    let [mean, peak] = rates(&head).expect("a variable rate");
    assert!(peak > 3 * mean, "{head}");
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let len: u64 = len.and_then(|len| len.parse().ok()).expect("a length");
    let (status, mut own) = server.open_title("peak.ts", "mpv", Some(len - 100_000));
    assert!(status == 206 && byte(&mut own), "behind the noise");
    let fill = |rate: u64| {
        let name = format!("film.ts?rate={rate}");
        let (status, reader) = server.open_title(&name, "viewer", None);
        (status == 200).then_some(reader)
    };
    let more = fill(2 * mean).expect("there is room");
    let shrinking = [8_000_000, 2_000_000, 500_000, 100_000, 20_000];
    let _others: Vec<_> = shrinking
        .into_iter()
        .flat_map(|rate| std::iter::from_fn(|| fill(rate)).collect::<Vec<_>>())
        .collect();
    assert_eq!(server.open_title("peak.ts", "vlc", Some(len / 5)).0, 503, "a newcomer");
    drop(own);
    let (head, mut own) = server.head("GET", "peak.ts", "mpv", Some(0));
    assert!(head.contains(" 206 ") && byte(&mut own), "{head}");
    assert!(head.contains("Tactus-Rate: max\r\n"), "no promise, and no refusal: {head}");
    // With some room, it is promised what fits.
    drop(own);
    let (status, mut own) = server.open_title("peak.ts", "mpv", Some(len - 100_000));
    assert!(status == 206 && byte(&mut own), "behind the noise again");
    drop(more);
    thread::sleep(Duration::from_millis(2500));
    drop(own);
    let (head, mut own) = server.head("GET", "peak.ts", "mpv", Some(0));
    assert!(head.contains(" 206 ") && byte(&mut own), "{head}");
    let [_, slower] = rates(&head).expect("a variable rate");
    assert!((mean / 2..peak).contains(&slower), "{head}");
}

#[test]
fn r05_a_seek_begins_with_what_a_player_holds() {
    // All that is behind the target.
    let settings = "[rate]\nplayer_buffer = \"12 s\"\n[memory]\narena = \"32 MiB\"\n";
    let lay = |titles: &Path| sample::write_ts(&titles.join("film.ts"), SECOND.times(20));
    let server = FullServer::with(settings, |titles| drop(lay(titles).expect("a title")));
    let (_, mut plays) = server.open("mpv", Some(0));
    let (status, mut sought) = server.open("mpv", Some(4_900_000));
    assert_eq!(status, 206);
    let len = sought.read_to_end(&mut vec![]).expect("the rest of the title");
    // The stream that began before is at its rate.
    plays.get_ref().set_nonblocking(true).expect("a live socket");
    let mut played = vec![];
    plays.read_to_end(&mut played).expect_err("it plays on");
    assert!(len > 4_000_000 && played.len() < len, "{} and {len}", played.len());
}

#[test]
fn r05_a_viewer_that_played_what_it_had_kept_returns_to_a_full_server() {
    // Three streams of the sample fit into 90 % of it.
    let link = sample::TS_RATE.0 * 7 / 2;
    let settings = format!("[link]\nrate = \"{link} bit/s\"\n[memory]\narena = \"32 MiB\"\n");
    let mut film = vec![];
    let server = FullServer::with(&settings, |titles| {
        let path = titles.join("film.ts");
        sample::write_ts(&path, SECOND.times(60)).expect("a title");
        film = fs::read(&path).expect("it is there");
    });
    let mut others: Vec<_> = (0..2).map(|_| server.open("viewer", None)).collect();
    let (status, own) = server.open("chromium", Some(0));
    assert_eq!(status, 206);
    drop(own);
    assert_eq!(server.open("vlc", None).0, 503, "the room is kept for two seconds");
    thread::sleep(Duration::from_millis(2200));
    others.push(server.open("vlc", None));
    assert!(others.iter().all(|(status, _)| *status == 200), "another viewer has the room");
    assert_eq!(server.open("chromium", None).0, 503, "a viewer that begins");
    assert_eq!(server.open("mpv", Some(1_000_000)).0, 503, "another player");
    let (head, mut back) = server.head("GET", "film.ts", "chromium", Some(1_000_000));
    assert!(head.contains(" 206 ") && byte(&mut back), "{head}");
    assert!(head.contains("Tactus-Rate: max\r\n"), "it promises nothing: {head}");
    drop(back);
    let start = 2_000_000;
    let (status, mut back) = server.open("chromium", Some(start as u64));
    assert_eq!(status, 206, "it seeks on");
    // When another viewer has left, it has a rate again, and its stream has all bytes.
    drop(others.pop());
    let (stops, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (got, status) = thread::scope(|scope| {
        for (_, mut other) in others {
            let (stops, bytes) = (&stops, &bytes);
            scope.spawn(move || assert!(plays(&mut other, stops, bytes), "it plays on"));
        }
        let reads = scope.spawn(|| {
            let mut got = vec![];
            let mut piece = vec![0; 1 << 16];
            // On behind the byte at which the rest with a rate began.
            while !stops.load(Ordering::Relaxed) || got.len() <= 2_000_000 {
                let read = back.read(&mut piece).expect("a live socket");
                assert!(read > 0, "the stream ends after {} bytes", got.len());
                got.extend_from_slice(&piece[..read]);
                // A player that holds enough.
                thread::sleep(Duration::from_millis(100));
            }
            got
        });
        let end = StopAtEnd(&stops);
        server.wait_for_streams(0.0..2.5);
        server.wait_for_streams(2.5..3.5);
        let status = server.open("mpv", None).0;
        thread::sleep(Duration::from_millis(300));
        drop(end);
        (reads.join().expect("no panic"), status)
    });
    assert!(got.len() > 2_000_000 && film[start..].starts_with(&got), "{} bytes", got.len());
    assert_eq!(status, 503, "its room is promised again");
}
