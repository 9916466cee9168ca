//! RTSP: from a request to datagrams on the loopback, and every row S01 to S20 of what is sent
//! wrongly.
//!
//! Rows that are judged without a connection have their tests in `tactus_core::rtsp` and beside the
//! modules, by the same names.

#[path = "rtsp/client.rs"]
mod client;
#[path = "rtsp/framings.rs"]
mod framings;
#[path = "rtsp/jumps.rs"]
mod jumps;
#[path = "rtsp/literals.rs"]
mod literals;
#[path = "rtsp/reports.rs"]
mod reports;
#[path = "rtsp/rights.rs"]
mod rights;
#[path = "rtsp/scales.rs"]
mod scales;
#[path = "rtsp/seeks.rs"]
mod seeks;
#[path = "rtsp/unplayed.rs"]
mod unplayed;
#[path = "rtsp/v2.rs"]
mod v2;
#[path = "rtsp/versions.rs"]
mod versions;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use client::{Client, PATIENCE, Receiver, digest, first_matches, payload};
use tactus_control::engine::{self, Engine};
use tactus_control::rights::{Paths, Readers};
use tactus_control::settings::{EngineSettings, Link, Volume};
use tactus_core::rtp;
use tactus_core::ts::{Framing, Pid};
use tactus_core::units::{Bytes, MIB, Nanos, SECOND};
use tactus_media::{probe, sample};
use tactus_notation::Auto;
use tactus_notation::net::Net;
use tactus_notation::units::Percent;
use tactus_rtsp::settings::{Principal, RtspSettings};
use tactus_rtsp::{Reason, Rtsp};
use tactus_storage::catalogue::{Catalogue, CatalogueRules};
use tactus_testkit::DISK_MODEL;
use tactus_testkit::process::turn;
use tactus_testkit::programs::installed;
use tempfile::TempDir;

/// A server of one title, `/a.ts`. One at a time: it pins its cores.
struct Fixture {
    rtsp: Rtsp,
    engine: Engine,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    title: Vec<u8>,
    _dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// What the servers of a test start with.
struct Settings {
    engine: EngineSettings,
    rtsp: RtspSettings,
    /// A file with the password of all principals.
    password: PathBuf,
}

impl Settings {
    /// Only principals may play; adds one that may do so at every path.
    fn add_principal(&mut self, name: &str) -> &mut Principal {
        self.rtsp.readers = Readers::Principals;
        self.rtsp.principals.push(Principal {
            name: name.into(),
            password: self.password.clone(),
            destinations: vec![],
            records: false,
            paths: Paths::everywhere(),
        });
        self.rtsp.principals.last_mut().expect("it was added")
    }
}

impl Fixture {
    fn new(length: Nanos) -> Self {
        Self::with(length, |_| {})
    }

    fn with(length: Nanos, change: impl FnOnce(&mut Settings)) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        std::fs::create_dir(&titles).expect("a directory for titles");
        // A disk that is measured while the machine has no time may have room for nothing.
        std::fs::create_dir(titles.join(".tactus")).expect("a directory of the server's own");
        std::fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        sample::write_ts(&titles.join("a.ts"), length).expect("a title");
        std::fs::write(titles.join("a.txt"), "no film").expect("a title");
        let title = std::fs::read(titles.join("a.ts")).expect("a title");
        std::fs::write(dir.path().join("password"), "correct-horse").expect("a password");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(dir.path().join("password"), private).expect("a file of ours");
        let volumes = vec![Volume::new(titles.clone())];
        let mut settings = Settings {
            engine: EngineSettings { volumes, sends_datagrams: true, ..EngineSettings::default() },
            rtsp: RtspSettings::default(),
            password: dir.path().join("password"),
        };
        settings.engine.memory.arena = Auto::Set(Bytes(32 * MIB));
        change(&mut settings);
        let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
        let catalogue = Arc::new(Catalogue::new(&titles, rules).expect("a volume"));
        let engine = engine::start(&settings.engine).expect("the engine starts");
        let rtsp = Rtsp::new(&settings.rtsp, &catalogue, &engine.broker, None).expect("passwords");
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(rtsp.clone().serve(listener));
        Self { rtsp, engine, address, runtime: Some(runtime), title, _dir: dir, _turn: turn }
    }

    fn url(&self) -> String {
        format!("rtsp://{}/a.ts", self.address)
    }

    fn connect(&self) -> Client {
        Client::connect(self.address, self.url())
    }

    /// Waits until no stream is promised any more.
    fn wait_for_peace(&self) {
        let end = Instant::now() + PATIENCE;
        while self.engine.broker.streams() > 0 {
            assert!(Instant::now() < end, "{:?}", self.rtsp.all());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.rtsp.close());
            runtime.shutdown_timeout(PATIENCE);
        }
    }
}

const RECEIVER_REPORT: [u8; 8] = [0x80, 201, 0, 1, 0, 0, 0, 7];
const RECEIVER_BYE: [u8; 16] = [0x80, 201, 0, 1, 0, 0, 0, 7, 0x81, 203, 0, 1, 0, 0, 0, 7];

#[test]
fn a_title_is_played_paused_sought_in_and_ended() {
    let fixture = Fixture::new(SECOND.times(12));
    let mut client = fixture.connect();
    let url = fixture.url();
    assert!(client.ask("OPTIONS", "*", "").field("Public").contains("DESCRIBE"));
    let described = client.ask("DESCRIBE", &url, "Accept: application/sdp\r\n");
    assert_eq!(described.status, 200);
    assert_eq!(described.field("Content-Base"), format!("{url}/"));
    for line in [
        "m=video 0 RTP/AVP 33",
        "a=rtpmap:33 MP2T/90000",
        "a=control:track1",
        "a=range:npt=0.000-1",
    ] {
        assert!(
            described.body.lines().any(|each| each.starts_with(line)),
            "{line}: {}",
            described.body
        );
    }
    let mut receiver = Receiver::new();
    let set = client.set_up(receiver.port);
    assert_eq!(set.status, 200, "{set:?}");
    assert_eq!(set.parameter("Session", "timeout"), "60");
    assert_eq!(
        set.parameter("Transport", "client_port"),
        format!("{0}-{1}", receiver.port, receiver.port + 1)
    );
    let session = set.session();

    let played = client.play(&session, "npt=0-");
    assert_eq!(played.status, 200, "{played:?}");
    assert!(played.field("Range").starts_with("npt=0.000-1"), "{}", played.field("Range"));
    let mut packets = receiver.take(300);
    first_matches(&played, &packets[0]);
    let source = rtp::Packet::read(&packets[0]).unwrap().source;
    assert_eq!(set.parameter("Transport", "ssrc"), format!("{source:08X}"));

    // What was paused goes on with the very next byte and number.
    assert_eq!(client.order("PAUSE", &session).status, 200);
    packets.extend(receiver.rest());
    assert!(receiver.rest().is_empty(), "nothing comes while it is paused");
    let again = client.play(&session, "");
    let more = receiver.take(100);
    first_matches(&again, &more[0]);
    assert!(!again.field("Range").starts_with("npt=0.000"), "{}", again.field("Range"));
    packets.extend(more);
    let bytes = payload(&packets);
    assert!(bytes == fixture.title[..bytes.len()], "the title's own bytes");

    // A seek while it plays: from an entry at or before, and the answer says which.
    let sought = client.play(&session, "npt=7.3-9");
    assert_eq!(sought.status, 200, "{sought:?}");
    let range = sought.field("Range").strip_prefix("npt=").expect("npt").to_owned();
    let (from, to) = range.split_once('-').expect("two times");
    let [from, to] = [from, to].map(|text| text.parse::<f64>().expect("seconds"));
    assert!(from <= 7.3 && from > 6.0 && (9.0..10.5).contains(&to), "{range}");
    let expected = sought.parameter("RTP-Info", "seq").parse::<u16>().expect("a number");
    let end = Instant::now() + PATIENCE;
    let mut part = vec![];
    while part.is_empty() && Instant::now() < end {
        let came = receiver.take(1);
        let at =
            came.iter().position(|bytes| rtp::Packet::read(bytes).unwrap().sequence == expected);
        packets.extend_from_slice(&came[..at.unwrap_or(came.len())]);
        part = at.map(|at| came[at..].to_vec()).unwrap_or_default();
    }
    first_matches(&sought, &part[0]);
    // Its end comes by itself, and is told by BYE.
    assert_eq!(receiver.goodbye(), source);
    part.extend(receiver.rest());
    let bytes = payload(&part);
    // The tables stand in front, so that nobody waits for the next ones, and the mark of the new
    // clock.
    let pids: Vec<_> =
        Framing::PLAIN.packets(&bytes).take(3).map(|(_, packet)| packet.pid()).collect();
    assert_eq!(pids[0], Pid(0), "the PAT, and the PMT behind it: {pids:?}");
    assert!(jumps::are_of(&fixture.title, &bytes[3 * 188..]), "it is of the title");
    let before = packets.len();
    packets.append(&mut part);
    let all = payload(&packets);
    let at = all.len() - bytes.len();
    assert_eq!(payload(&packets[..before]).len(), at);
    jumps::is_marked(&all[..at], &all[at..]);
    let seconds = bytes.len() as f64 * 8.0 / 3_760_000.0;
    assert!((seconds - (to - from)).abs() < 0.5, "{seconds} of {range}");

    assert_eq!(client.order("GET_PARAMETER", &session).status, 200);
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
    assert_eq!(client.order("GET_PARAMETER", &session).status, 454);
    fixture.wait_for_peace();
}

/// ffmpeg, if it is there: what it needs is nothing else.
fn ffmpeg(program: &str, args: &[&str]) -> String {
    installed(program, "ffmpeg");
    let said = Command::new("timeout").args(["--kill-after=5", "120", program]).args(args).output();
    let said = said.expect("timeout is part of coreutils");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(said.status.success(), "{args:?}: {}", text(&said.stderr));
    text(&said.stdout)
}

#[test]
fn ffmpeg_plays_every_packet_of_a_title() {
    let fixture = Fixture::new(SECOND.times(6));
    let url = fixture.url();
    for transport in ["udp", "tcp"] {
        let show = "stream=codec_name,nb_read_packets";
        let fixed = ["-v", "error", "-rtsp_transport", transport, "-count_packets"];
        let said = ffmpeg(
            "ffprobe",
            &[&fixed[..], &["-show_entries", show, "-of", "csv=p=0", &url]].concat(),
        );
        // 150 video frames and 250 audio frames; of the last video frame ffmpeg does not know that
        // it is whole.
        let ends = |end: &str| said.lines().any(|line| line.trim().ends_with(end));
        assert!((ends(",149") || ends(",150")) && ends(",250"), "{transport}: {said}");
        fixture.wait_for_peace();
    }
}

#[test]
fn a_title_is_played_in_frames_of_the_connection() {
    let fixture = Fixture::new(SECOND.times(12));
    let mut client = fixture.connect();
    let url = format!("{}/track1", fixture.url());
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
    let set = client.ask("SETUP", &url, transport);
    assert_eq!(
        (set.status, set.parameter("Transport", "interleaved").as_str()),
        (200, "4-5"),
        "{set:?}"
    );
    assert_eq!(client.ask("SETUP", &url, transport).status, 461, "one session each connection");
    let session = set.session();
    let played = client.play(&session, "npt=0-");
    assert_eq!(played.status, 200);
    let mut packets = client.frames(4, 300);
    first_matches(&played, &packets[0]);
    // Answers stand between frames; what came before them is kept.
    assert_eq!(client.order("GET_PARAMETER", &session).status, 200);
    assert_eq!(client.order("PAUSE", &session).status, 200);
    packets.append(&mut client.kept);
    let again = client.play(&session, "");
    assert_eq!(again.status, 200);
    packets.append(&mut client.kept);
    let more = client.frames(4, 100);
    first_matches(&again, &more[0]);
    packets.extend(more);
    let bytes = payload(&packets);
    assert!(bytes == fixture.title[..bytes.len()], "the title's own bytes");
    let sought = client.play(&session, "npt=8-");
    packets.append(&mut client.kept);
    let part = client.frames(4, 200);
    first_matches(&sought, &part[0]);
    let at = payload(&packets).len();
    packets.extend(part);
    let all = payload(&packets);
    jumps::is_marked(&all[..at], &all[at..]);
    assert!(jumps::are_of(&fixture.title, &all[at + 3 * 188..]), "it is of the title");
    // A receiver's report is heard on its channel.
    client.send(&[&b"$\x05\0\x08"[..], &RECEIVER_REPORT].concat());
    let end = Instant::now() + PATIENCE;
    while fixture.rtsp.counters().reports() == 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
    assert_eq!(client.ask("OPTIONS", "*", "").status, 200, "the connection is of use again");
    fixture.wait_for_peace();

    // S12: floods, and frames on channels that nobody has.
    for (channel, len) in [(5u8, 65_535u16), (7, 8)] {
        let mut client = fixture.connect();
        let set = client.ask("SETUP", &url, transport);
        assert_eq!(set.status, 200);
        client.send(&[&[b'$', channel][..], &len.to_be_bytes()].concat());
        client.socket.write_all(&vec![0; usize::from(len)]).ok();
        assert!(client.receive().is_none(), "it is closed");
        fixture.wait_for_peace();
    }
    // S12: receivers report every few seconds; a hundred frames at once are borne, and a thousand
    // are not.
    let mut client = fixture.connect();
    assert_eq!(client.ask("SETUP", &url, transport).status, 200);
    let frame = [&b"$\x05\0\x08"[..], &RECEIVER_REPORT].concat();
    client.send(&frame.repeat(100));
    assert_eq!(client.ask("OPTIONS", "*", "").status, 200);
    let malformed = fixture.rtsp.counters().refused_for(Reason::Malformed);
    client.socket.write_all(&frame.repeat(1000)).ok();
    assert!(client.receive().is_none(), "it is closed");
    assert_eq!(fixture.rtsp.counters().refused_for(Reason::Malformed), malformed + 1);
    fixture.wait_for_peace();
    // Who goes away takes its stream along.
    let mut client = fixture.connect();
    let session = client.ask("SETUP", &url, transport).session();
    assert_eq!(client.play(&session, "").status, 200);
    drop(client);
    fixture.wait_for_peace();
}

#[test]
fn a_report_that_comes_in_two_reads_is_not_slow() {
    let fixture = Fixture::new(SECOND.times(16));
    let mut client = fixture.connect();
    let url = format!("{}/track1", fixture.url());
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
    let session = client.ask("SETUP", &url, transport).session();
    assert_eq!(client.play(&session, "npt=0-").status, 200);
    client.frames(4, 10);
    client.send(b"$\x05\0\x08");
    std::thread::sleep(Duration::from_millis(50));
    client.send(&RECEIVER_REPORT);
    // Longer than a message may take.
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        client.frames(4, 50);
    }
    let counters = fixture.rtsp.counters();
    assert_eq!((counters.reports(), counters.refused_for(Reason::Slow)), (1, 0));
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
}

#[test]
fn s01_to_s05_s13_what_is_no_request_is_answered_and_closes() {
    let fixture = Fixture::new(SECOND.times(2));
    let long = "x".repeat(5000);
    for (row, text, status, closes) in [
        ("S01", format!("OPTIONS rtsp://h/{long} RTSP/1.0\r\nCSeq: 1\r\n\r\n"), 414, true),
        ("S01", format!("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nX: {long}\r\n\r\n"), 400, true),
        (
            "S01",
            format!("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n{}\r\n", "X: y\r\n".repeat(3000)),
            400,
            true,
        ),
        ("S02", "\r\n\r\n".into(), 400, true),
        ("S02", " OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n".into(), 400, true),
        ("S02", "OPTIONS\r\n\r\n".into(), 400, true),
        ("S03", "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nContent-Length: -1\r\n\r\n".into(), 400, true),
        ("S03", "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nContent-Length: 65537\r\n\r\n".into(), 413, true),
        ("S04", "OPTIONS * RTSP/1.0\r\n\r\n".into(), 400, true),
        ("S05", "FLY * RTSP/1.0\r\nCSeq: 1\r\n\r\n".into(), 501, false),
        ("S05", "OPTIONS * RTSP/3.0\r\nCSeq: 1\r\n\r\n".into(), 505, false),
        ("S13", "GET /a.ts HTTP/1.0\r\nx-sessioncookie: 1\r\n\r\n".into(), 404, true),
        ("S13", "POST /a.ts HTTP/1.1\r\nHost: h\r\n\r\n".into(), 404, true),
    ] {
        let mut client = fixture.connect();
        client.send(text.as_bytes());
        let reply = client.receive().unwrap_or_else(|| panic!("{row}: closed without an answer"));
        assert_eq!(reply.status, status, "{row}: {}", &text[..text.len().min(60)]);
        if closes {
            assert!(client.receive().is_none(), "{row}");
        } else {
            client.cseq = 7;
            assert_eq!(client.ask("OPTIONS", "*", "").status, 200, "{row}");
        }
    }
}

#[test]
fn s03_a_body_that_never_comes_is_not_waited_for() {
    let fixture = Fixture::new(SECOND.times(2));
    let mut client = fixture.connect();
    let begun = Instant::now();
    client.send(b"ANNOUNCE rtsp://h/a RTSP/1.0\r\nCSeq: 1\r\nContent-Length: 100\r\n\r\n");
    assert!(client.receive().is_none(), "it is closed without an answer");
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(fixture.rtsp.counters().refused_for(Reason::Slow), 1);
}

#[test]
fn s04_a_request_that_is_repeated_is_answered_once() {
    let fixture = Fixture::new(SECOND.times(2));
    let mut client = fixture.connect();
    let twice = "OPTIONS * RTSP/1.0\r\nCSeq: 5\r\n\r\n".repeat(2);
    client.send(twice.as_bytes());
    client.send(b"OPTIONS * RTSP/1.0\r\nCSeq: 6\r\n\r\n");
    assert_eq!(client.receive().expect("an answer").field("CSeq"), "5");
    assert_eq!(client.receive().expect("an answer").field("CSeq"), "6");
}

#[test]
fn s06_s07_s14_steps_have_their_state_their_owner_and_their_range() {
    let fixture = Fixture::new(SECOND.times(6));
    let (mut client, receiver) = (fixture.connect(), Receiver::new());
    let url = fixture.url();
    assert_eq!(client.ask("PLAY", &url, "").status, 455, "S06: before SETUP");
    let session = client.set_up(receiver.port).session();
    for range in
        ["npt=1e308-", "clock=99999999999999999999T9Z-", "smpte=junk-", "npt=500-", "npt=5-1"]
    {
        assert_eq!(client.play(&session, range).status, 457, "S14: {range}");
    }
    let mut stranger = fixture.connect();
    for method in ["PLAY", "PAUSE", "TEARDOWN", "GET_PARAMETER", "OPTIONS"] {
        assert_eq!(stranger.order(method, &session).status, 454, "S07: {method}");
    }
    assert_eq!(client.order("PLAY", "no-such-session").status, 454);
    assert_eq!(client.play(&session, "").status, 200, "nothing of it has ended the session");
    let transport = "Transport: RTP/AVP;unicast;client_port=40000-40001\r\n";
    let again = client.ask(
        "SETUP",
        &format!("{url}/track1"),
        &format!("Session: {session}\r\n{transport}"),
    );
    assert_eq!(again.status, 455, "S06: another transport");
    assert_eq!(client.ask("DESCRIBE", &url, "Require: magic\r\n").status, 551);
    for method in ["SET_PARAMETER", "GET_PARAMETER"] {
        // RFC 7826, section 10.5: without a body it says that somebody is there.
        assert_eq!(client.ask(method, &url, &format!("Session: {session}\r\n")).status, 200);
        assert_eq!(client.ask_about(method, &url, "volume: 11\r\n").status, 451);
    }
    assert_eq!(
        client.ask("DESCRIBE", &format!("rtsp://{}/none.ts", fixture.address), "").status,
        404
    );
    assert_eq!(
        client.ask("DESCRIBE", &format!("rtsp://{}/a.txt", fixture.address), "").status,
        415
    );
}

#[test]
fn a_session_answers_to_the_urls_of_its_own_title_only() {
    let fixture = Fixture::new(SECOND.times(12));
    let (mut client, mut receiver) = (fixture.connect(), Receiver::new());
    let (url, other) = (fixture.url(), format!("rtsp://{}/none.ts", fixture.address));
    let transport = "Transport: RTP/AVP;unicast;client_port=40000-40001\r\n";
    for number in [0, 2, 7] {
        let set = client.ask("SETUP", &format!("{url}/track{number}"), transport);
        assert_eq!(set.status, 404, "it has one track: {number}");
    }
    assert!(fixture.rtsp.is_empty() && fixture.engine.broker.streams() == 0);
    let set = client.set_up(receiver.port);
    let session = format!("Session: {}\r\n", set.session());
    // Of all that means the title something else than its own URL is asked for in each way that
    // players know.
    let urls = ["", "/", "/track1", "/track1/", "?x=y"].map(|end| format!("{url}{end}"));
    for own in &urls {
        let played = client.ask("PLAY", own, &session);
        assert_eq!(played.status, 200, "{own}: {played:?}");
        let info = played.field("RTP-Info").to_owned();
        assert!(info.starts_with(&format!("url={url}/track1;")), "{info}");
        assert_eq!(client.ask("PAUSE", own, &session).status, 200, "{own}");
        std::thread::sleep(Duration::from_millis(250));
    }
    // As SAT>IP calls it.
    let stream = format!("rtsp://{}/stream=0", fixture.address);
    for method in ["PAUSE", "PLAY"] {
        assert_eq!(client.ask(method, &stream, &session).status, 200, "{method}");
    }
    receiver.rest();
    for strange in [&other, &format!("{other}/track1"), &format!("{url}/track2")] {
        for method in ["PLAY", "PAUSE", "TEARDOWN"] {
            assert_eq!(client.ask(method, strange, &session).status, 454, "{method} {strange}");
        }
    }
    let fields = format!("{session}Transport: {}\r\n", set.field("Transport"));
    assert_eq!(client.ask("SETUP", &format!("{other}/track1"), &fields).status, 459);
    assert_eq!(client.ask("SETUP", &format!("{url}/track2"), &fields).status, 404);
    // Nothing of it has done anything.
    receiver.take(10);
    assert_eq!(fixture.rtsp.all()[0].state, "playing");
    assert_eq!(client.ask("TEARDOWN", &urls[2], &session).status, 200);
    fixture.wait_for_peace();
}

#[test]
fn s06_s07_a_setup_that_is_repeated_is_answered_as_before() {
    let fixture = Fixture::with(SECOND.times(6), |settings| {
        settings.add_principal("anna");
    });
    let url = format!("{}/track1", fixture.url());
    let connect = || {
        let mut client = fixture.connect();
        client.credentials = Some(("anna".into(), "correct-horse".into()));
        client
    };
    let (frames, ports) = ("RTP/AVP/TCP;unicast;interleaved=0-1", Receiver::new().port);
    let datagrams = format!("RTP/AVP;unicast;client_port={ports}-{}", ports + 1);
    // The first of two, and the second where the first cannot be taken.
    for offered in [
        format!("{frames},{datagrams}"),
        format!("{datagrams},{frames}"),
        format!("RTP/AVP;multicast,{datagrams}"),
        format!("RTP/AVP;multicast,{frames}"),
    ] {
        let mut client = connect();
        let transport = format!("Transport: {offered}\r\n");
        let set = client.ask_for("SETUP", &url, &transport);
        assert_eq!(set.status, 200, "{offered}: {set:?}");
        let named = format!("Session: {}\r\n", set.session());
        let fields = format!("{named}{transport}");
        let again = client.ask_for("SETUP", &url, &fields);
        assert_eq!(again.status, 200, "{offered}: {again:?}");
        assert_eq!(again.field("Transport"), set.field("Transport"));
        assert_eq!(again.session(), set.session());
        let other = format!("{named}Transport: RTP/AVP;unicast;client_port=40000-40001\r\n");
        assert_eq!(client.ask_for("SETUP", &url, &other).status, 455, "another transport");
        // What goes within a connection is nobody's on another one; the rest may be taken up there.
        let is_framed = set.field("Transport").contains("interleaved");
        let status = connect().ask_for("SETUP", &url, &fields).status;
        assert_eq!(status, if is_framed { 454 } else { 200 }, "{offered}");
        let mut last = if is_framed { client } else { connect() };
        assert_eq!(last.order("TEARDOWN", &set.session()).status, 200);
        fixture.wait_for_peace();
    }
}

#[test]
fn s08_s09_s10_s12_nobody_is_sent_to_who_did_not_ask() {
    let fixture = Fixture::with(SECOND.times(2), |settings| {
        settings.rtsp.groups = vec![Net::parse("239.192.7.0/30").expect("a network")];
        settings.rtsp.hops = 4;
    });
    let mut client = fixture.connect();
    let url = format!("{}/track1", fixture.url());
    for (row, transport) in [
        ("S08", "RTP/AVP;unicast;destination=192.0.2.1;client_port=5000-5001"),
        ("S08", "RTP/AVP;unicast;destination=victim.example;client_port=5000-5001"),
        ("S09", "RTP/AVP;unicast;client_port=0-1"),
        ("S09", "RTP/AVP;unicast;client_port=22-23"),
        ("S09", "RTP/AVP;unicast;client_port=5000-6000"),
        ("S09", "RTP/AVP;unicast;client_port=70000-70001"),
        ("S10", "RTP/AVP;unicast;destination=255.255.255.255;client_port=5000-5001"),
        ("S10", "RTP/AVP;unicast;destination=239.192.7.1;client_port=5000-5001"),
        ("S10", "RTP/AVP;multicast;destination=239.1.1.1;port=5004-5005;ttl=1"),
        ("S10", "RTP/AVP;multicast;ttl=255"),
        ("S10", "RTP/AVP;multicast;destination=239.192.7.1;port=5004-5005;ttl=5"),
        ("S12", "RTP/AVP/TCP;unicast;interleaved=256-257"),
        ("S12", "RTP/AVP/TCP;multicast;interleaved=0-1"),
        ("", "RAW/RAW/UDP;unicast;client_port=5000-5001"),
        ("", ""),
    ] {
        let reply = client.ask("SETUP", &url, &format!("Transport: {transport}\r\n"));
        assert_eq!(reply.status, 461, "{row}: {transport}");
    }
    assert_eq!(fixture.rtsp.counters().refused_for(Reason::Reflect), 3);
    assert!(fixture.rtsp.is_empty() && fixture.engine.broker.streams() == 0);
    // Our own ports: known after one SETUP that is good.
    let receiver = Receiver::new();
    let set = client.set_up(receiver.port);
    let own = set.parameter("Transport", "server_port");
    let transport = format!("Transport: RTP/AVP;unicast;client_port={own}\r\n");
    assert_eq!(client.ask("SETUP", &url, &transport).status, 461, "S10: to ourselves");
    // S12: frames before anybody has offered a channel.
    client.send(&[&b"$\0\x01\0"[..], &[0; 256]].concat());
    assert!(client.receive().is_none(), "it is closed");
}

/// An address of this host that is not the loopback: nobody is sent to there but who asks from
/// there. A host that has none, as it has no network, gets one.
fn address_here() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    // Nothing is sent: it is only looked for the way (RFC 5737 has the addresses).
    let local = socket.connect("198.51.100.1:9").and_then(|()| socket.local_addr());
    local.map(|address| address.ip()).unwrap_or_else(|_| {
        let mut ip = std::process::Command::new("ip");
        let added = ip.args(["address", "replace", "203.0.113.77/32", "dev", "lo"]).status();
        assert!(added.is_ok_and(|status| status.success()), "an address besides the loopback");
        Ipv4Addr::new(203, 0, 113, 77).into()
    })
}

#[test]
fn s08_a_receiver_that_may_be_named_is_sent_to_and_heard() {
    let there = address_here();
    let fixture = Fixture::with(SECOND.times(12), |settings| {
        let there = Net::parse(&there.to_string()).expect("an address");
        settings.add_principal("anna").destinations = vec![there];
        settings.add_principal("ben");
    });
    let mut receiver = Receiver::at(there);
    let (url, port) = (format!("{}/track1", fixture.url()), receiver.port);
    let transport = format!(
        "Transport: RTP/AVP;unicast;destination={there};client_port={port}-{}\r\n",
        port + 1
    );
    let set_up = |name: &str| {
        let mut client = fixture.connect();
        client.credentials = Some((name.into(), "correct-horse".into()));
        let set = client.ask_for("SETUP", &url, &transport);
        (client, set)
    };
    assert_eq!(set_up("ben").1.status, 461);
    assert_eq!(fixture.rtsp.counters().refused_for(Reason::Reflect), 1);
    let (mut client, set) = set_up("anna");
    assert_eq!(set.status, 200, "{set:?}");
    assert_eq!(set.parameter("Transport", "destination"), there.to_string());
    let session = set.session();
    let played = client.play(&session, "");
    first_matches(&played, &receiver.take(100)[0]);
    let server = set.parameter("Transport", "server_port");
    let server: u16 = server.split('-').nth(1).and_then(|text| text.parse().ok()).expect("a port");
    let until = |what: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !what() {
            assert!(Instant::now() < end, "{:?}", fixture.rtsp.counters());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // Its reports count, and those of who asked do not.
    let asker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    asker.send_to(&RECEIVER_BYE, (Ipv4Addr::LOCALHOST, server)).expect("it is sent");
    until(&|| fixture.rtsp.counters().reports_bad() == 1);
    receiver.rtcp.send_to(&RECEIVER_REPORT, (Ipv4Addr::LOCALHOST, server)).expect("it is sent");
    until(&|| fixture.rtsp.counters().reports() == 1);
    assert_eq!(fixture.rtsp.all()[0].state, "playing");
    receiver.rtcp.send_to(&RECEIVER_BYE, (Ipv4Addr::LOCALHOST, server)).expect("it is sent");
    until(&|| fixture.rtsp.is_empty());
    fixture.wait_for_peace();
}

#[test]
fn s11_s15_who_is_silent_is_sent_no_more_and_its_rate_comes_back() {
    const SILENCE: Duration = Duration::from_secs(3);
    let fixture = Fixture::new(SECOND.times(24));
    fixture.rtsp.end_after(Nanos::from_millis(SILENCE.as_secs() * 1000));
    let (mut client, mut receiver) = (fixture.connect(), Receiver::new());
    let silent = || fixture.rtsp.counters().silent_sessions();
    for (nth, plays) in (1..).zip([true, false]) {
        let begun = Instant::now();
        let session = client.set_up(receiver.port).session();
        if plays {
            assert_eq!(client.play(&session, "").status, 200);
            receiver.take(100);
        }
        assert!(fixture.engine.broker.streams() > 0);
        fixture.wait_for_peace();
        assert!(begun.elapsed() >= SILENCE, "{:?}", begun.elapsed());
        assert_eq!((silent(), fixture.rtsp.len()), (nth, 0));
        assert_eq!(client.order("GET_PARAMETER", &session).status, 454);
        receiver.rest();
        assert!(receiver.rest().is_empty(), "nothing is sent to who is silent");
    }
    // Who reports goes on for twice as long.
    let set = client.set_up(receiver.port);
    assert_eq!(client.play(&set.session(), "").status, 200);
    let port = set.parameter("Transport", "server_port");
    let port: u16 = port.split('-').nth(1).and_then(|text| text.parse().ok()).expect("a port");
    let begun = Instant::now();
    while begun.elapsed() < 2 * SILENCE {
        let sent = receiver.rtcp.send_to(&RECEIVER_REPORT, (Ipv4Addr::LOCALHOST, port));
        sent.expect("it is sent");
        assert!(!receiver.rest().is_empty());
    }
    assert_eq!((silent(), fixture.rtsp.len()), (2, 1));
    fixture.wait_for_peace();
    assert_eq!((silent(), fixture.rtsp.len()), (3, 0));
}

#[test]
fn s15_the_address_that_does_not_play_has_thirty_two_sessions() {
    let fixture = Fixture::new(SECOND.times(2));
    let mut client = fixture.connect();
    let statuses: Vec<_> = (0..40).map(|nth| client.set_up(40_000 + 2 * nth).status).collect();
    assert!(statuses[..32].iter().all(|status| *status == 200), "{statuses:?}");
    assert!(statuses[32..].iter().all(|status| *status == 453), "{statuses:?}");
    assert_eq!((fixture.rtsp.len(), fixture.rtsp.all().len()), (32, 32));
}

#[test]
fn s15_all_sessions_together_are_bounded_and_those_of_one_receiver() {
    let fixture = Fixture::with(SECOND.times(2), |settings| settings.rtsp.sessions_max = 12);
    let mut client = fixture.connect();
    let same: Vec<_> = (0..10).map(|_| client.set_up(40_000)).collect();
    let statuses: Vec<_> = same.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [&[200; 8][..], &[461; 2]].concat(), "of one port");
    let more: Vec<_> = (1..6).map(|nth| client.set_up(40_000 + 2 * nth)).collect();
    let statuses: Vec<_> = more.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 453], "of all");
    assert!(more[4].body.contains("sessions_max"), "{}", more[4].body);
    assert_eq!(client.order("TEARDOWN", &same[0].session()).status, 200);
    assert_eq!(client.set_up(40_000).status, 200, "there is room again, of both");
}

#[test]
fn s16_a_password_is_asked_for_and_guessing_is_slow() {
    let fixture = Fixture::with(SECOND.times(2), |settings| {
        settings.add_principal("anna");
    });
    let (mut client, url) = (fixture.connect(), fixture.url());
    let challenge = client.ask("DESCRIBE", &url, "");
    assert_eq!((challenge.status, challenge.fields("WWW-Authenticate").len()), (401, 2));
    client.credentials = Some(("anna".into(), "correct-horse".into()));
    assert_eq!(client.ask_for("DESCRIBE", &url, "").status, 200);
    let receiver = Receiver::new();
    let session = client.set_up(receiver.port).session();
    assert_eq!(client.play(&session, "").status, 200);

    // What was heard on that connection is worth nothing on another one.
    let mut other = fixture.connect();
    let old = *challenge.fields("WWW-Authenticate").last().expect("a challenge");
    let replayed = digest(old, "anna", "correct-horse", "DESCRIBE", &url);
    let reply = other.ask("DESCRIBE", &url, &format!("Authorization: {replayed}\r\n"));
    assert_eq!(reply.status, 401);
    assert!(reply.field("WWW-Authenticate").contains("stale=true"));
    // Who shows to be the same may come back by another connection (row S07).
    other.credentials.clone_from(&client.credentials);
    assert_eq!(other.order("PAUSE", &session).status, 200);

    other.credentials = Some(("anna".into(), "wrong-horse".into()));
    let begun = Instant::now();
    assert_eq!(other.ask_for("DESCRIBE", &url, "").status, 401);
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    let basic = other.ask("DESCRIBE", &url, "Authorization: Basic YW5uYTpjb3JyZWN0LWhvcnNl\r\n");
    assert_eq!(basic.status, 401, "there is no Basic without TLS");

    // S17: nobody records without a right.
    let announced = fixture.connect().ask("ANNOUNCE", &url, "");
    assert_eq!(announced.status, 401);
}

#[test]
fn s16_an_address_that_guesses_is_locked_out_and_no_other_one() {
    let fixture = Fixture::with(SECOND.times(2), |settings| {
        settings.add_principal("anna");
    });
    let url = fixture.url();
    let status = |from: &str, password: &str| {
        let mut client = Client::connect_from(fixture.address, from, url.clone());
        client.credentials = Some(("anna".into(), password.into()));
        client.ask_for("DESCRIBE", &url, "").status
    };
    // At once: each waits for its answer by itself.
    let guess = || status("127.0.0.1", "wrong-horse");
    let guessed: Vec<_> = std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..20).map(|_| scope.spawn(guess)).collect();
        guesses.into_iter().map(|guess| guess.join().expect("an answer")).collect()
    });
    assert_eq!(guessed, [401; 20]);
    for password in ["wrong-horse", "correct-horse"] {
        assert_eq!(status("127.0.0.1", password), 403, "{password}");
    }
    assert_eq!(status("127.0.0.2", "correct-horse"), 200, "of another address");
}

#[test]
fn s18_p05_forty_requests_at_once_wait_for_their_turn() {
    let fixture = Fixture::new(SECOND.times(12));
    let (mut client, receiver) = (fixture.connect(), Receiver::new());
    let session = client.set_up(receiver.port).session();
    let begun = Instant::now();
    let url = fixture.url();
    for nth in 0..40 {
        let method = if nth % 4 == 3 { "PAUSE" } else { "PLAY" };
        let cseq = 100 + nth;
        let text = format!("{method} {url} RTSP/1.0\r\nCSeq: {cseq}\r\nSession: {session}\r\n\r\n");
        client.send(text.as_bytes());
    }
    let statuses: Vec<_> = (0..40).map(|_| client.receive().expect("an answer").status).collect();
    assert_eq!(statuses, [200; 40]);
    // Ten at once, and ten per second.
    assert!(begun.elapsed() >= Duration::from_millis(2900), "{:?}", begun.elapsed());
    assert_eq!(fixture.rtsp.counters().refused_for(Reason::Often), 0);
}

#[test]
fn s19_reports_count_only_from_the_receiver_itself() {
    let fixture = Fixture::new(SECOND.times(12));
    let (mut client, mut receiver) = (fixture.connect(), Receiver::new());
    let set = client.set_up(receiver.port);
    let session = set.session();
    assert_eq!(client.play(&session, "").status, 200);
    receiver.take(1);
    let server = set.parameter("Transport", "server_port");
    let port: u16 = server.split('-').nth(1).and_then(|text| text.parse().ok()).expect("a port");
    let to = (Ipv4Addr::LOCALHOST, port);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let until = |what: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !what() {
            assert!(Instant::now() < end, "{:?}", fixture.rtsp.counters());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    stranger.send_to(&RECEIVER_BYE, to).expect("it is sent");
    let mut for_others = RECEIVER_BYE;
    for_others[15] = 8;
    receiver.rtcp.send_to(&for_others, to).expect("it is sent");
    receiver.rtcp.send_to(&RECEIVER_BYE[..13], to).expect("it is sent");
    until(&|| fixture.rtsp.counters().reports_bad() == 3);
    assert_eq!(fixture.rtsp.len(), 1);
    receiver.rtcp.send_to(&RECEIVER_REPORT, to).expect("it is sent");
    until(&|| fixture.rtsp.counters().reports() == 1);
    assert_eq!(fixture.rtsp.all()[0].state, "playing");
    receiver.rtcp.send_to(&RECEIVER_BYE, to).expect("it is sent");
    until(&|| fixture.rtsp.is_empty());
    fixture.wait_for_peace();
}

#[test]
fn groups_of_the_plan_are_played_to_one_session_each() {
    // Longer than it takes until reports come.
    let fixture = Fixture::with(SECOND.times(8), |settings| {
        settings.rtsp.groups = vec![Net::parse("239.192.7.0/31").expect("a network")];
        settings.rtsp.interface = Some("lo".into());
        settings.rtsp.group_port = 15_004;
    });
    let mut client = fixture.connect();
    let url = format!("{}/track1", fixture.url());
    let mut set_up =
        |transport: &str| client.ask("SETUP", &url, &format!("Transport: {transport}\r\n"));
    let set = set_up("RTP/AVP;multicast");
    assert_eq!(set.status, 200, "{set:?}");
    let group: IpAddr = set.parameter("Transport", "destination").parse().expect("a group");
    assert_eq!(
        (set.parameter("Transport", "port"), set.parameter("Transport", "ttl")),
        ("15004-15005".into(), "1".into())
    );
    let other = set_up("RTP/AVP;multicast;destination=239.192.7.1");
    assert_eq!(other.status, if group.to_string() == "239.192.7.1" { 453 } else { 200 });
    assert_eq!(set_up("RTP/AVP;multicast;destination=239.192.7.1").status, 453, "it is taken");
    let mut receiver = Receiver::of_group(SocketAddr::new(group, 15004));
    let mut listener = Receiver::of_group(SocketAddr::new(group, 15005));
    let played = client.play(&set.session(), "");
    let packets = receiver.take(200);
    first_matches(&played, &packets[0]);
    let bytes = payload(&packets);
    assert!(bytes == fixture.title[..bytes.len()]);
    // Whoever is in the group is told which times its stamps mean, and when it has ended.
    let source = u32::from_str_radix(&set.parameter("Transport", "ssrc"), 16).expect("a source");
    let heard = listener.reports_to_goodbye(source);
    assert!(!heard.is_empty(), "a report before the goodbye");
    assert!(heard.iter().all(|info| info.packets > 200), "{heard:?}");
    // It is another one's at once, and nothing comes of what has ended.
    let mut session = set.session();
    for round in 0..20 {
        assert_eq!(client.order("TEARDOWN", &session).status, 200);
        while receiver.rtp.receive(|_| {}).is_ok() {}
        let transport = format!("Transport: RTP/AVP;multicast;destination={group}\r\n");
        let next = client.ask("SETUP", &url, &transport);
        assert_eq!(next.status, 200, "{round}: {}", next.body);
        assert!(receiver.rest().is_empty(), "{round}");
        session = next.session();
        assert_eq!(client.play(&session, "").status, 200);
        receiver.take(1);
    }
}
