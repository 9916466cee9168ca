//! Channels over HTTP: `GET /api/v1/channels/NAME.ts` of the real server, beside the datagrams that
//! the same channel sends.

use std::fs::{self};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use tactus_core::ts::{Continuity, PACKET, Packet};
use tactus_core::units::{MediaTime, Nanos, SECOND};
use tactus_media::sample;
use tactus_sys::udp_input::{InputOptions, UdpInput};
use tactus_testkit::process::{Process, turn};
use tactus_testkit::server;

use crate::TACTUS;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The token of a principal with all rights.
const TOKEN: &str = "an-insecure-token-of-32-characters";

struct Server {
    _process: Process,
    dir: tempfile::TempDir,
    http: String,
    admin: String,
    _turn: MutexGuard<'static, ()>,
}

/// A server with a title of each of `titles`: its name, its seconds, and the last byte of its
/// packets.
fn serve(titles: &[(&str, u64, u8)], config: &str) -> Server {
    let turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let media = dir.path().join("media");
    fs::create_dir(&media).expect("a directory");
    for &(name, seconds, mark) in titles {
        marked(&media, name, seconds, mark);
    }
    fs::write(dir.path().join("token"), TOKEN).expect("a token");
    fs::set_permissions(dir.path().join("token"), fs::Permissions::from_mode(0o600)).expect("own");
    let text = format!(
        "[memory]\narena = \"64 MiB\"\n{config}\n\
         [[upload.principal]]\nname = \"ann\"\ntoken_file = \"token\"\n"
    );
    fs::write(dir.path().join("tactus.toml"), text).expect("a configuration");
    let mut command = server::serve(TACTUS, dir.path());
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--uploads", "--config"]);
    command.args([dir.path().join("tactus.toml"), media]);
    let log = dir.path().join("err");
    let (process, said) = server::start(&mut command, Some(&log), server::until("Metrics"), drop);
    let [http, admin] = ["Serving", "Metrics"]
        .map(|first| server::address(&said, first, "http://").expect("an address").to_owned());
    Server { _process: process, dir, http, admin, _turn: turn }
}

/// A title of so many seconds, of which each packet ends in `mark`.
fn marked(dir: &Path, name: &str, seconds: u64, mark: u8) {
    let file = dir.join(name);
    sample::write_ts(&file, SECOND.times(seconds)).expect("a title");
    let mut title = fs::read(&file).expect("a title");
    title.chunks_mut(PACKET).for_each(|packet| packet[PACKET - 1] = mark);
    fs::write(&file, &title).expect("a title");
}

fn inbox() -> UdpInput {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let wanted = InputOptions { to, source: None, interface: None, buffer: 32 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

fn channel(name: &str, inbox: &UdpInput, keys: &str) -> String {
    let to = inbox.address().expect("bound");
    format!("[[channel]]\nname = \"{name}\"\nto = \"udp://{to}\"\n{keys}\n")
}

fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// A connection whose kernel holds little of what is not read.
fn connect_small(address: &str) -> TcpStream {
    let address: SocketAddr = address.parse().expect("an address");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    let socket = socket.expect("a socket");
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 16 << 10).expect("it is small");
    rustix::net::connect(&socket, &address).expect("a connection");
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Sends a request and reads the head of its answer.
fn ask(address: &str, request: &str) -> (BufReader<TcpStream>, String) {
    ask_on(connect(address), request)
}

fn ask_on(mut socket: TcpStream, request: &str) -> (BufReader<TcpStream>, String) {
    socket.write_all(request.as_bytes()).expect("it is sent");
    let mut socket = BufReader::new(socket);
    let head = head(&mut socket);
    (socket, head)
}

fn head(socket: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(socket.read_line(&mut head).expect("a head") > 0, "{head}");
    }
    head
}

fn get(name: &str) -> String {
    format!("GET /api/v1/channels/{name} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// The next HTTP chunk; `None` is the last one, of no bytes.
fn chunk(socket: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = String::new();
    socket.read_line(&mut head)?;
    let cut = || std::io::Error::other("a cut");
    let len = usize::from_str_radix(head.strip_suffix("\r\n").ok_or_else(cut)?, 16);
    let mut bytes = vec![0; len.expect("a head is a number") + 2];
    socket.read_exact(&mut bytes)?;
    assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
    Ok((!bytes.is_empty()).then_some(bytes))
}

/// At least `count` bytes of a live stream.
fn listen(socket: &mut impl BufRead, count: usize) -> Vec<u8> {
    let mut came = vec![];
    while came.len() < count {
        came.extend(chunk(socket).expect("a chunk").expect("it goes on"));
    }
    came
}

fn status(server: &Server, name: &str) -> serde_json::Value {
    let fields = "Host: localhost\r\nConnection: close";
    let request = format!("GET /api/v1/channels/{name} HTTP/1.1\r\n{fields}\r\n\r\n");
    let (mut socket, head) = ask(&server.admin, &request);
    let mut body = String::new();
    socket.read_to_string(&mut body).expect("an answer");
    serde_json::from_str(&body).unwrap_or_else(|_| panic!("{head}{body}"))
}

/// Waits for this status of a channel.
fn until(server: &Server, name: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = status(server, name);
        if is_so(&status) {
            return;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_running(status: &serde_json::Value) -> bool {
    status["state"] == "running"
}

/// Whole packets without a break of a counter.
fn assert_whole(bytes: &[u8]) {
    let mut watch = Continuity::default();
    for (nth, bytes) in bytes.chunks(PACKET).enumerate() {
        let packet = Packet::first_of(bytes).expect("whole packets");
        assert_eq!(watch.handle_packet(&packet), None, "packet {nth}");
    }
}

/// The marks of the titles in `bytes`, in turns.
fn turns_of(bytes: &[u8]) -> Vec<u8> {
    let mut turns: Vec<u8> = bytes.chunks(PACKET).map(|packet| packet[PACKET - 1]).collect();
    turns.dedup();
    turns
}

/// What has come as datagrams.
fn heard(inbox: &mut UdpInput) -> Vec<u8> {
    let mut all = vec![];
    while inbox.receive(|datagram| all.extend(datagram.bytes)).is_ok() {}
    assert_eq!(inbox.dropped().expect("it is counted"), 0);
    all
}

/// Longest time by which a busy machine may begin a title late without a pause for the listeners.
const LATE_MAX: Nanos = Nanos::from_millis(500);

/// `part` lies in `whole` as it is. Where the channel has begun a title late, the clocks behind it
/// show that in the datagrams only.
fn assert_holds(whole: &[u8], part: &[u8]) {
    let first = &part[..20 * PACKET];
    let mut at = whole.windows(first.len()).step_by(PACKET).zip((0..).step_by(PACKET));
    let at = at.find_map(|(window, at)| (window == first).then_some(at));
    let whole = &whole[at.expect("the first bytes of the listener are those of a datagram")..];
    assert!(part.len() <= whole.len(), "{} of {} bytes in datagrams", whole.len(), part.len());
    let pairs = || whole.chunks(PACKET).zip(part.chunks(PACKET));
    let Some(nth) = pairs().position(|(datagram, came)| datagram != came) else { return };
    let clock = |bytes| Packet::first_of(bytes).expect("whole packets").pcr();
    let mut clocks = pairs().skip(nth).filter_map(|(sent, came)| clock(sent).zip(clock(came)));
    let late = clocks.next().map_or(MediaTime(0), |(sent, came)| sent.since(came));
    let late_max = MediaTime(LATE_MAX.0 * 27 / 1000);
    assert!(MediaTime(0) < late && late < late_max, "packet {nth} differs, by {late:?}");
    println!("a title has begun {late:?} late");
    let is_same = |(sent, came)| without_times(sent) == without_times(came);
    assert_eq!(pairs().position(|pair| !is_same(pair)), None, "a difference beside the clocks");
}

/// A packet without its PCR, its mark that the clock jumps, and its PTS and DTS.
fn without_times(bytes: &[u8]) -> Vec<u8> {
    let (own, mut packet) = (Packet::first_of(bytes).expect("whole packets"), bytes.to_vec());
    let payload = own.payload_at();
    if payload > 5 {
        packet[5] &= !0x80;
        if packet[5] & 0x10 != 0 {
            packet[6..12].fill(0);
        }
    }
    if own.starts_unit() && own.payload().starts_with(&[0, 0, 1]) {
        let len = usize::from(packet[payload + 8]);
        packet[payload + 9..][..len].fill(0);
    }
    packet
}

#[test]
fn listeners_get_the_bytes_of_the_datagrams_at_their_pace_over_changes_of_title() {
    let mut udp = inbox();
    let keys = "playlist = [\"/a.ts\", \"/b.ts\"]";
    let server = serve(&[("a.ts", 4, 1), ("b.ts", 3, 2)], &channel("tv", &udp, keys));
    until(&server, "tv", is_running);
    let (mut one, head) = ask(&server.http, &get("tv.ts"));
    for line in [
        "HTTP/1.1 200 OK\r\n",
        "Content-Type: video/mp2t\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Cache-Control: no-store\r\n",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let len = |name| fs::read(server.dir.path().join("media").join(name)).expect("it").len();
    let (a, b) = (len("a.ts"), len("b.ts"));
    let rate = a as f64 / 4.0;
    let (mut first, mut came, mut others) = (None, vec![], None);
    while came.len() < 2 * (a + b) {
        came.extend(chunk(&mut one).expect("a chunk").expect("it goes on"));
        let begun = *first.get_or_insert_with(Instant::now);
        // A tenth of a second for a machine that has stopped within the first chunk.
        let due = rate * (begun.elapsed().as_secs_f64() + 0.1) + 1316.0;
        assert!((came.len() as f64) < due, "{} bytes of {due}", came.len());
        if came.len() > a && others.is_none() {
            let mut socket = ask(&server.http, &get("tv.ts")).0;
            others = Some(std::thread::spawn(move || listen(&mut socket, 2_000_000)));
        }
    }
    let other = others.expect("it has begun").join().expect("it has ended");
    let slow = first.expect("it has begun").elapsed().as_secs_f64();
    assert!(slow < 2.0 * 7.0 + 3.0, "{slow} s");
    assert_whole(&came);
    let turns = turns_of(&came);
    assert!(turns.len() >= 4, "{turns:?}");
    drop(one);
    let datagrams = heard(&mut udp);
    assert_holds(&datagrams, &came);
    assert_holds(&datagrams, &other);
    until(&server, "tv", |status| status["listeners"] == 0);
}

#[test]
fn a_channel_that_ends_sends_the_last_chunk_and_the_connection_goes_on() {
    let udp = [inbox(), inbox()];
    let config = channel("once", &udp[0], "title = \"/a.ts\"\nrepeat = false")
        + &channel("loop", &udp[1], "title = \"/b.ts\"");
    let server = serve(&[("a.ts", 5, 1), ("b.ts", 2, 2)], &config);
    until(&server, "once", is_running);
    // Two requests at once: the second is answered when the first has ended.
    let request = get("once.ts") + &get("none.ts");
    let (mut socket, _) = ask(&server.http, &request);
    let mut came = vec![];
    while let Some(bytes) = chunk(&mut socket).expect("a chunk") {
        came.extend(bytes);
    }
    let title = fs::read(server.dir.path().join("media/a.ts")).expect("a title");
    assert!(came.len() > title.len() / 2 && title.ends_with(&came), "its end, as it is");
    assert!(head(&mut socket).starts_with("HTTP/1.1 404 "));

    // Who is removed ends as well, and at once.
    until(&server, "loop", is_running);
    let (mut socket, _) = ask(&server.http, &get("loop.ts"));
    let (mut old, head) = ask(&server.http, "GET /api/v1/channels/loop.ts HTTP/1.0\r\n\r\n");
    assert!(head.contains("Connection: close") && !head.contains("Transfer-Encoding"), "{head}");
    let came = listen(&mut socket, 2_500_000);
    assert_whole(&came);
    let remove = format!(
        "DELETE /api/v1/channels/loop HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {}\r\n\r\n",
        TOKEN
    );
    let (_, head) = ask(&server.http, &remove);
    assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
    while chunk(&mut socket).expect("a chunk").is_some() {}
    // HTTP/1.0 has no chunks: the end of the connection is the end.
    let mut plain = vec![];
    old.read_to_end(&mut plain).expect("no reset");
    assert!(plain.len().is_multiple_of(PACKET));
    assert_whole(&plain);
    let (_, head) = ask(&server.http, &get("loop.ts"));
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

#[test]
fn a_request_that_cannot_be_served_says_why() {
    let udp = [inbox(), inbox()];
    let config = "[link]\nrate = \"8 Mbit/s\"\n[http]\nreaders = \"principals\"\n".to_owned()
        + &channel("tv", &udp[0], "title = \"/a.ts\"")
        + &channel("none", &udp[1], "title = \"/missing.ts\"");
    let server = serve(&[("a.ts", 2, 1)], &config);
    until(&server, "tv", is_running);
    until(&server, "none", |status| !status["reason"].is_null());
    // Reading needs a token here.
    let (_, head) = ask(&server.http, &get("tv.ts"));
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    let with = |method: &str, name: &str| {
        let field = format!("Authorization: Bearer {}\r\nConnection: close", TOKEN);
        let request =
            format!("{method} /api/v1/channels/{name} HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n");
        let (mut socket, head) = ask(&server.http, &request);
        let mut body = String::new();
        if !head.starts_with("HTTP/1.1 200 ") || method == "HEAD" {
            socket.read_to_string(&mut body).expect("an answer");
        }
        (head, body)
    };
    let (head, body) = with("GET", "no.ts");
    assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("no channel has this name"));
    let (head, body) = with("GET", "none.ts");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: 5"), "{head}");
    assert!(body.contains("the channel sends nothing now: "), "{body}");
    let (head, body) = with("HEAD", "tv.ts");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}{body}");
    assert!(head.contains("Transfer-Encoding: chunked") && head.contains("video/mp2t"), "{head}");
    // The channel and a listener do not fit on the link.
    let (head, body) = with("GET", "tv.ts");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After"), "{head}");
    let refused: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(refused["resource"], "link", "{body}");
}

#[test]
fn a_listener_that_reads_nothing_is_cut_and_the_others_lose_nothing() {
    let mut udp = inbox();
    let config = "[slow_reader]\nbehind_max = \"1 s\"\n".to_owned()
        + &channel("tv", &udp, "title = \"/a.ts\"");
    let server = serve(&[("a.ts", 3, 1)], &config);
    until(&server, "tv", is_running);
    let (mut slow, _) = ask_on(connect_small(&server.http), &get("tv.ts"));
    let (mut good, _) = ask(&server.http, &get("tv.ts"));
    let mut came = vec![];
    until(&server, "tv", |status| status["listeners"] == 2);
    // The kernel holds some seconds of it.
    let end = Instant::now() + PATIENCE;
    loop {
        came.extend(listen(&mut good, 100_000));
        let status = status(&server, "tv");
        if status["listeners"] == 1 {
            break;
        }
        assert!(Instant::now() < end, "{status}");
    }
    // No last chunk: it is a cut.
    let cut = loop {
        match chunk(&mut slow) {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(cut.is_err());
    came.extend(listen(&mut good, 500_000));
    assert_whole(&came);
    assert_holds(&heard(&mut udp), &came);
}

#[test]
fn curl_and_ffprobe_take_it_as_a_stream() {
    let udp = inbox();
    let server = serve(&[("a.ts", 4, 1)], &channel("tv", &udp, "title = \"/a.ts\""));
    until(&server, "tv", is_running);
    let url = format!("http://{}/api/v1/channels/tv.ts", server.http);
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).arg(&url).output().expect("it is installed")
    };
    let curl = run("curl", &["-sS", "--max-time", "7"]);
    assert_eq!(curl.status.code(), Some(28), "it would go on: {curl:?}");
    // It stops at any byte.
    let whole = curl.stdout.len() / PACKET * PACKET;
    assert!(whole > 500_000, "{whole}");
    assert_whole(&curl.stdout[..whole]);
    let entries = "stream=codec_type";
    let probe = run("ffprobe", &["-v", "error", "-show_entries", entries, "-of", "csv=p=0"]);
    let text = String::from_utf8_lossy(&probe.stdout);
    // As every receiver that joins, it complains of pictures before the first access point.
    assert!(probe.status.success(), "{probe:?}");
    assert!(text.contains("video") && text.contains("audio"), "{text}");
}
