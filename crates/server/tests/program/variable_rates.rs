//! Titles of a variable rate through the real server, judged as a player hears them.
//!
//! Promise: a player that buffers two seconds never waits, from the beginning and from a key frame
//! before a peak, in each container.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tactus_core::units::Nanos;
use tactus_media::sample;
use tactus_testkit::ffprobe::{Packet, packets};
use tactus_testkit::process::{Process, turn};
use tactus_testkit::server;

const TACTUS: &str = env!("CARGO_BIN_EXE_tactus");

/// Still, noise and still again: the noise needs ten times the rate of the rest.
const PICTURE: &str = "nullsrc=s=320x180:r=25:d=16,\
                       geq=lum='if(between(T,6,10),random(1)*255,16)':cb=128:cr=128";
/// What the player buffers before it begins.
const BUFFER: f64 = 2.0;
/// The server sends every 62.5 ms, and the threads of this test are late on a busy machine. At its
/// mean rate this title makes the player wait for more than two seconds.
const TOLERANCE: f64 = 0.2;

struct Arrival {
    /// Since the request.
    at: Duration,
    /// Bytes so far.
    bytes: u64,
}

fn encode(path: &Path) {
    let encoded = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", PICTURE])
        .args(["-f", "lavfi", "-i", "sine=r=48000:d=16", "-c:v", "libx264", "-crf", "30"])
        .args(["-g", "50", "-preset", "veryfast", "-c:a", "aac", "-b:a", "64k"])
        .arg(path)
        .status();
    assert!(encoded.expect("ffmpeg is missing: install the package ffmpeg").success());
}

/// The same media in another container.
fn remux(from: &Path, options: &[&str], to: &Path) {
    let mut copy = Command::new("ffmpeg");
    copy.args(["-nostdin", "-v", "error", "-y", "-i"]).arg(from).args(["-c", "copy"]);
    let copied = copy.args(options).arg(to).status();
    assert!(copied.expect("ffmpeg is missing: install the package ffmpeg").success());
}

/// The same with more and faster noise, 40 Mbit/s, encoded in little time.
fn encode_fast(path: &Path, noise: Range<u32>) {
    let Range { start, end } = noise;
    let noise = format!("noise=alls=100:allf=t:enable='between(t,{start},{end})'");
    let picture = format!("color=gray:s=640x360:r=25:d={},{noise}", end + 6);
    let picture = picture.as_str();
    let encoded = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", picture])
        .args(["-f", "lavfi", "-i", "sine=r=48000", "-shortest", "-c:v", "libx264"])
        .args(["-crf", "20", "-g", "50", "-preset", "ultrafast", "-c:a", "aac", "-b:a", "64k"])
        .arg(path)
        .status();
    assert!(encoded.expect("ffmpeg is missing: install the package ffmpeg").success());
}

/// `times` times the title `from`.
fn repeat(from: &Path, times: u32, to: &Path) {
    let again = (times - 1).to_string();
    let mut copy = Command::new("ffmpeg");
    copy.args(["-nostdin", "-v", "error", "-y", "-stream_loop", &again, "-i"]).arg(from);
    let copied = copy.args(["-c", "copy"]).arg(to).status();
    assert!(copied.expect("ffmpeg is missing: install the package ffmpeg").success());
}

/// The head of the answer, and when the bytes from `start` on came.
fn fetch(address: &str, name: &str, start: u64) -> (String, Vec<Arrival>) {
    fetch_for(address, name, start, (Duration::MAX, drop))
}

/// The same, for at most this long. Each piece is handed on.
fn fetch_for(
    address: &str,
    name: &str,
    start: u64,
    (most, mut handle): (Duration, impl FnMut(Vec<u8>)),
) -> (String, Vec<Arrival>) {
    let begun = Instant::now();
    let mut socket = TcpStream::connect(address).expect("a connection");
    let request = format!(
        "GET /{name} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).expect("the server reads");
    let mut reader = BufReader::with_capacity(1 << 18, socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("a head") > 0, "{head}");
    }
    let (mut arrivals, mut bytes, mut piece) = (vec![], 0, vec![0; 1 << 16]);
    loop {
        let count = reader.read(&mut piece).expect("the whole range");
        if count == 0 || begun.elapsed() > most {
            return (head, arrivals);
        }
        bytes += count as u64;
        handle(piece[..count].to_vec());
        arrivals.push(Arrival { at: begun.elapsed(), bytes });
    }
}

/// For how long a player stands still that begins with [`BUFFER`] seconds of the title, until it
/// has played what came.
fn wait(packets: &[Packet], start: u64, arrivals: &[Arrival]) -> f64 {
    let end = start + arrivals.last().expect("bytes").bytes;
    let own = packets.iter().filter(|packet| packet.at >= start && packet.end <= end);
    let mut own: Vec<_> = own.collect();
    own.sort_by(|one, other| one.decoded.total_cmp(&other.decoded));
    let first = own.first().expect("media").decoded;
    let came = |packet: &Packet| {
        let needed = packet.end - start;
        let nth = arrivals.partition_point(|arrival| arrival.bytes < needed);
        arrivals[nth].at.as_secs_f64()
    };
    let buffered = own.iter().filter(|packet| packet.decoded - first <= BUFFER);
    let begun = buffered.map(|packet| came(packet)).fold(0.0, f64::max);
    own.iter().fold(0.0, |waited: f64, packet| {
        waited + (came(packet) - (begun + waited + packet.decoded - first)).max(0.0)
    })
}

struct Server {
    _server: Process,
    address: String,
}

fn serve(titles: &Path) -> Server {
    let dir = titles.parent().expect("it is in a directory");
    let mut command = server::serve(TACTUS, dir);
    command.arg(titles).args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    command.arg(server::little_memory(dir));
    let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let first = said.iter().find(|line| line.contains("http://")).expect("its address");
    let (_, url) = first.split_once("http://").expect("it was found");
    let address = url.split(['/', ' ']).next().expect("a host and a port").to_owned();
    Server { _server: process, address }
}

#[test]
fn r01_r06_a_player_that_buffers_two_seconds_never_waits() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir(&titles).expect("a directory for titles");
    let forms: [(&str, &[&str]); 7] = [
        ("title.ts", &[]),
        ("front.mp4", &["-movflags", "+faststart"]),
        ("behind.mp4", &[]),
        ("fragments.mp4", &["-movflags", "frag_keyframe+empty_moov+default_base_moof"]),
        ("behind.mkv", &[]),
        ("front.mkv", &["-cues_to_front", "1"]),
        ("live.mkv", &["-f", "matroska", "-live", "1"]),
    ];
    // Encoded once: the noise takes more time than everything else here together.
    let media = dir.path().join("media.mp4");
    encode(&media);
    for (name, options) in forms {
        remux(&media, options, &titles.join(name));
    }
    let server = serve(&titles);
    thread::scope(|scope| {
        for (name, _) in forms {
            let packets = packets(&titles.join(name));
            let len = fs::metadata(titles.join(name)).expect("a title").len();
            let keys: Vec<_> = packets.iter().filter(|packet| packet.is_key).collect();
            let before_peak = keys.iter().rev().find(|key| key.decoded < 5.9).expect("a key frame");
            for start in [0, before_peak.at] {
                let (packets, address) = (packets.clone(), server.address.as_str());
                scope.spawn(move || {
                    let (head, arrivals) = fetch(address, name, start);
                    assert!(head.contains("; peak="), "{name} is not variable: {head}");
                    let last = arrivals.last().expect("bytes");
                    assert_eq!(last.bytes, len - start, "{name}");
                    // A download would not make a player wait either.
                    assert!(last.at > Duration::from_secs(6), "{name}: {:?}", last.at);
                    let waited = wait(&packets, start, &arrivals);
                    assert!(waited <= TOLERANCE, "{name} from {start}: waited {waited} s");
                });
            }
        }
    });
}

#[test]
fn r01_the_first_viewer_of_a_title_never_waits() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let [base, far] = ["base.ts", "far.ts"].map(|name| dir.path().join(name));
    encode_fast(&base, 6..10);
    encode_fast(&far, 4..14);
    // The first is read as a whole. The others are too long for that: of one the third noise plays,
    // and of the last the noise goes on behind what a preview reads.
    let titles = [
        ("title.ts", &base, 1, 0),
        ("long.ts", &base, 4, 0),
        ("long.mkv", &base, 4, 0),
        ("long.ts", &base, 4, 2),
        ("far.ts", &far, 1, 0),
    ];
    let titles = titles.map(|(name, from, times, nth)| {
        let titles = dir.path().join(format!("{name}-{nth}")).join("titles");
        fs::create_dir_all(&titles).expect("a directory for titles");
        repeat(from, times, &titles.join(name));
        let packets = packets(&titles.join(name));
        let noise = 16.0 * f64::from(nth) + 5.9;
        let keys = packets.iter().rev().filter(|packet| packet.is_key && packet.decoded < noise);
        let start = if nth == 0 { 0 } else { keys.clone().next().expect("a key frame").at };
        (titles, name, packets, start)
    });
    thread::scope(|scope| {
        for (titles, name, packets, start) in &titles {
            scope.spawn(move || {
                let server = serve(titles);
                let most = Duration::from_secs(if *name == "far.ts" { 18 } else { 13 });
                let mut content = Vec::new();
                let handle = |piece| content.push(piece);
                let (head, arrivals) = fetch_for(&server.address, name, *start, (most, handle));
                assert!(head.contains("; peak="), "{name} has no schedule: {head}");
                let waited = wait(packets, *start, &arrivals);
                assert!(waited <= TOLERANCE, "{name} from {start}: waited {waited} s");
                // Where a schedule takes over from another one, no byte is lost.
                let (content, start) = (content.concat(), *start as usize);
                let title = fs::read(titles.join(name)).expect("a title");
                assert!(title[start..].starts_with(&content), "{name} from {start}");
            });
        }
    });
}

#[test]
fn r03_an_index_at_the_end_comes_at_once() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir(&titles).expect("a directory for titles");
    // Ten minutes: at the rate of the title the index would take three seconds.
    let front = dir.path().join("front.mp4");
    sample::write_mp4(&front, Nanos::from_millis(600_000)).expect("a title");
    let to = titles.join("behind.mp4");
    remux(&front, &[], &to);
    let bytes = fs::read(&to).expect("a title");
    let index = bytes.windows(4).rposition(|kind| kind == b"moov").expect("an index") as u64 - 4;
    let server = serve(&titles);
    // The rate of the title is known by then.
    fetch(&server.address, "behind.mp4", bytes.len() as u64 - 1);
    // Chromium rounds the beginning of a request down to a multiple of 32 KiB.
    for start in [index, index & !0x7fff] {
        let (_, arrivals) = fetch(&server.address, "behind.mp4", start);
        let first = &arrivals[0];
        let last = arrivals.last().expect("bytes");
        assert_eq!(last.bytes, bytes.len() as u64 - start);
        let at_mean = Duration::from_secs_f64(last.bytes as f64 * 600.0 / bytes.len() as f64);
        let took = last.at - first.at;
        assert!(at_mean > Duration::from_secs(2) && took < at_mean / 3, "{took:?} of {at_mean:?}");
    }
}

#[test]
fn r04_an_index_in_front_comes_at_once_with_a_second_of_media_behind_it() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir(&titles).expect("a directory for titles");
    let path = titles.join("front.mp4");
    sample::write_mp4(&path, Nanos::from_millis(600_000)).expect("a title");
    let packets = packets(&path);
    let len = fs::metadata(&path).expect("a title").len();
    let index = packets.iter().map(|packet| packet.at).min().expect("media");
    let first = packets.iter().filter(|packet| packet.decoded < 1.0);
    let at_once = first.map(|packet| packet.end).max().expect("media");
    let server = serve(&titles);
    let (head, arrivals) =
        fetch_for(&server.address, "front.mp4", 0, (Duration::from_secs(1), drop));
    let reached = arrivals.iter().find(|arrival| arrival.bytes >= at_once).expect("the burst");
    // What would have come by then, had the longer of the two been sent at once.
    let second = len / 600;
    let later = (reached.at - arrivals[0].at).as_secs_f64() * second as f64;
    let longer = index.max(second) + later as u64;
    assert!(at_once > longer, "{head}: {at_once} bytes after {:?}", reached.at);
}
