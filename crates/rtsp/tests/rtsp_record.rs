//! Recording by RTSP: what ffmpeg and GStreamer announce becomes a title, with every frame.
//!
//! Promise: over UDP and in the connection; by TEARDOWN, and when the connection is cut. Who may
//! not is told so. A program that is not installed fails its test by name.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use tactus_control::engine::{self, Engine};
use tactus_control::recording::Recorder;
use tactus_control::rights::Paths;
use tactus_control::settings::{EngineSettings, Volume};
use tactus_core::rtp::Header;
use tactus_core::rtp::rtcp::{self, Compound, NtpTime, SenderInfo};
use tactus_core::ts::{Continuity, Packet};
use tactus_core::units::{Bytes, MIB, SECOND};
use tactus_media::probe;
use tactus_notation::Auto;
use tactus_rtsp::Rtsp;
use tactus_rtsp::settings::{Principal, Recorders, RtspSettings};
use tactus_storage::catalogue::{Catalogue, CatalogueRules};
use tactus_storage::store::{Medium, Store, StoreOptions};
use tactus_testkit::DISK_MODEL;
use tactus_testkit::process::turn;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than it takes until the first report of what comes, which senders must take.
const SECONDS: usize = 7;
const PICTURES: usize = 25 * SECONDS;

/// A server that records. One at a time: it pins its cores.
struct Fixture {
    /// Until it is dropped.
    rtsp: Option<Rtsp>,
    serving: tokio::task::JoinHandle<()>,
    /// Where recordings go; none where no client may record.
    store: Option<Store>,
    engine: Engine,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Fixture {
    /// `change` also gets the file with the password of all principals.
    fn new(change: impl FnOnce(&mut RtspSettings, &Path)) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        // A disk that is measured while the machine has no time may have room for nothing.
        fs::create_dir_all(titles.join(".tactus")).expect("a directory of the server's own");
        fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        fs::write(dir.path().join("password"), "correct-horse").expect("a password");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(dir.path().join("password"), private).expect("a file of ours");
        let volume = Volume { uploads: true, ..Volume::new(titles.clone()) };
        let mut settings = EngineSettings { volumes: vec![volume], ..EngineSettings::default() };
        settings.memory.arena = Auto::Set(Bytes(64 * MIB));
        let mut rtsp = RtspSettings::default();
        change(&mut rtsp, &dir.path().join("password"));
        let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
        let catalogue = Arc::new(Catalogue::new(&titles, rules).expect("a volume"));
        let engine = engine::start(&settings).expect("the engine starts");
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let store = (rtsp.recorders != Recorders::Nobody).then(|| {
            let write_path = engine.write_paths[0].clone().expect("the volume takes uploads");
            let medium = Arc::new(write_path) as Arc<dyn Medium>;
            runtime
                .block_on(Store::open(&titles, medium, StoreOptions::default()))
                .expect("a store")
                .0
        });
        let recorder = store
            .clone()
            .map(|store| Recorder::new(engine.broker.clone(), Arc::new([Some(store)])));
        let rtsp = Rtsp::new(&rtsp, &catalogue, &engine.broker, recorder);
        let rtsp = rtsp.expect("passwords");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        let serving = runtime.spawn(rtsp.clone().serve(listener));
        let (rtsp, runtime) = (Some(rtsp), Some(runtime));
        Self { rtsp, serving, store, engine, address, runtime, dir, _turn: turn }
    }

    fn rtsp(&self) -> &Rtsp {
        self.rtsp.as_ref().expect("it is there until the fixture is dropped")
    }

    fn url(&self, name: &str) -> String {
        format!("rtsp://{}/{name}", self.address)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("titles").join(name)
    }

    /// Video frames by H.264 with some out of order, and audio.
    fn film(&self) -> PathBuf {
        self.film_by("libx264", &["-preset", "veryfast"])
    }

    /// The same by H.265.
    fn film_by_h265(&self) -> PathBuf {
        let quiet = "log-level=none";
        let parameters = ["-preset", "ultrafast", "-tag:v", "hvc1", "-x265-params", quiet];
        self.film_by("libx265", &parameters)
    }

    fn film_by(&self, encoder: &str, parameters: &[&str]) -> PathBuf {
        let film = self.dir.path().join(format!("{encoder}.mp4"));
        let seconds = SECONDS.to_string();
        let video = format!("testsrc2=size=320x240:rate=25:duration={seconds}");
        let audio = format!("anoisesrc=sample_rate=48000:duration={seconds}");
        let words = [
            "-v", "error", "-y", "-f", "lavfi", "-i", &video, "-f", "lavfi", "-i", &audio, "-c:v",
            encoder, "-bf", "3", "-g", "25", "-c:a", "aac", "-b:a", "320k", "-ac", "2",
        ];
        let out = film.display().to_string();
        said("ffmpeg", "ffmpeg", &[&words[..], parameters, &[&out]].concat());
        film
    }

    /// Waits until the title is there.
    fn title(&self, name: &str) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        while !self.file(name).exists() {
            assert!(Instant::now() < end, "{:?}", self.rtsp().all());
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::read(self.file(name)).expect("a title")
    }

    fn connect(&self) -> Client {
        let socket = TcpStream::connect(self.address).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Client { socket, cseq: 0 }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.block_on(async {
            if let Some(rtsp) = self.rtsp.take() {
                rtsp.close().await;
            }
            // A store waits for all that could still record.
            self.serving.abort();
            if let Some(store) = self.store.take() {
                store.close().await;
            }
        });
        runtime.shutdown_timeout(PATIENCE);
    }
}

struct Client {
    socket: TcpStream,
    cseq: u32,
}

impl Client {
    /// The status, and all of the answer.
    fn ask(&mut self, method: &str, uri: &str, fields: &str, body: &str) -> (u16, String) {
        self.cseq += 1;
        let (cseq, len) = (self.cseq, body.len());
        let length = if len > 0 { format!("Content-Length: {len}\r\n") } else { String::new() };
        let text = format!("{method} {uri} RTSP/1.0\r\nCSeq: {cseq}\r\n{fields}{length}\r\n{body}");
        self.socket.write_all(text.as_bytes()).expect("the server reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.socket.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        let mut text = String::from_utf8(head).expect("text");
        let status = text.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        if let Some(length) = length.and_then(|text| text.parse().ok()) {
            let mut body = vec![0; length];
            self.socket.read_exact(&mut body).expect("a body");
            text += std::str::from_utf8(&body).expect("text");
        }
        (status, text)
    }

    fn announce(&mut self, uri: &str, sdp: &str) -> (u16, String) {
        self.ask("ANNOUNCE", uri, "Content-Type: application/sdp\r\n", sdp)
    }
}

const SDP: &str = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 33\r\n";
const FRAMES: &str = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1;mode=record\r\n";
const DATAGRAMS: &str = "Transport: RTP/AVP;unicast;client_port=40000-40001;mode=record\r\n";
/// Every client may record.
fn anyone(settings: &mut RtspSettings, _: &Path) {
    settings.recorders = Recorders::Anyone;
}

/// A principal that may record if it `records`, at every path.
fn principal(name: &str, password: &Path, records: bool) -> Principal {
    let paths = Paths::everywhere();
    Principal { name: name.into(), password: password.into(), destinations: vec![], records, paths }
}

/// Has GStreamer record a title until it ends well itself, and says its name. Over TCP its sink
/// (1.22) may flush the connection under its own last packet, which it calls an error, or wait for
/// itself for ever, with nothing left unread on either side.
fn gstreamer_records(name: &str, pipeline: impl Fn(&str) -> String) -> String {
    for attempt in 0..10 {
        let name = format!("{attempt}-{name}");
        let pipeline = pipeline(&name);
        let out = Command::new("timeout")
            .args(["--kill-after=5", "20", "gst-launch-1.0"])
            .args(pipeline.split_whitespace())
            .output();
        let out = out.expect("gst-launch-1.0 is there: package gstreamer1.0-tools");
        if out.status.success() {
            return name;
        }
        println!("{name}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    panic!("GStreamer never ended well");
}

/// What a program says; it has to end well.
fn said(program: &str, package: &str, words: &[&str]) -> String {
    let out = run(program, package, words);
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

fn run(program: &str, package: &str, words: &[&str]) -> Output {
    let out = Command::new("timeout").args(["120", program]).args(words).output();
    out.unwrap_or_else(|_| panic!("{program} is missing: install the package {package}"))
}

/// The sums of all decoded frames of a stream, like `v:0`.
fn sums(file: &Path, stream: &str) -> Vec<String> {
    let file = file.display().to_string();
    let map = format!("0:{stream}");
    let words = [
        "-v",
        "error",
        "-i",
        &file,
        "-map",
        &map,
        "-fps_mode",
        "passthrough",
        "-f",
        "framemd5",
        "-",
    ];
    let out = run("ffmpeg", "ffmpeg", &words);
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && complaint.is_empty(), "{complaint}");
    let told = String::from_utf8(out.stdout).expect("text");
    let lines = told.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned())).collect()
}

fn has_no_gap(title: &[u8]) {
    let mut continuity = Continuity::default();
    for bytes in title.as_chunks().0 {
        let packet = Packet::read(bytes).expect("a sync byte");
        assert_eq!(continuity.handle_packet(&packet), None);
    }
    assert!(!title.is_empty() && title.len().is_multiple_of(188));
}

fn film_is_recorded(fixture: &Fixture, film: &Path, transport: &str) {
    let coding = film.file_stem().and_then(|stem| stem.to_str()).expect("a plain name");
    let name = format!("{coding}-{transport}.ts");
    let (film, url) = (film.display().to_string(), fixture.url(&name));
    let words = ["-v", "error", "-re", "-i", &film, "-c", "copy", "-f", "rtsp", "-rtsp_transport"];
    // Players call it as the announcement does, or like its file.
    let (called, more) = match transport {
        "tcp" => ("\u{201e}Evening\u{201c}", vec!["-metadata", "title=\u{201e}Evening\u{201c}"]),
        _ => (name.trim_end_matches(".ts"), vec![]),
    };
    said("ffmpeg", "ffmpeg", &[&words[..], &[transport], &more, &[&url]].concat());
    has_no_gap(&fixture.title(&name));
    let file = fixture.file(&name).display().to_string();
    let show =
        ["-v", "error", "-show_entries", "program_tags=service_name", "-of", "csv=p=0", &file];
    let shown = said("ffprobe", "ffmpeg", &show);
    // What stands in its table is separated by commas, and ended by one.
    let shown = shown.lines().next().map(|line| line.trim_end_matches(','));
    assert_eq!(shown, Some(called), "{transport}");
    let [came, sent] = [fixture.file(&name), PathBuf::from(&film)].map(|file| sums(&file, "v:0"));
    assert_eq!(came.len(), PICTURES);
    assert!(came == sent, "{transport}: every video frame as in the movie");
    // What is shown when: as in the movie, all moved by the same time.
    let [came, sent] = [fixture.file(&name), PathBuf::from(&film)].map(|file| {
        let file = file.display().to_string();
        let show =
            ["-v", "error", "-show_entries", "packet=codec_type,pts_time", "-of", "csv=p=0", &file];
        let told = said("ffprobe", "ffmpeg", &show);
        let times = told.lines().filter_map(|line| {
            let (kind, time) = line.split_once(',')?;
            let time: f64 = time.trim_end_matches(',').parse().ok()?;
            Some((kind.to_owned(), time))
        });
        let times: Vec<_> = times.collect();
        ["video", "audio"].map(|kind| {
            let of = times.iter().filter(|(known, _)| known == kind);
            let mut of: Vec<f64> = of.map(|(_, time)| *time).collect();
            of.sort_by(f64::total_cmp);
            of
        })
    });
    let moved = came[0][0] - sent[0][0];
    for (came, sent) in came[0].iter().zip(&sent[0]) {
        assert!((came - sent - moved).abs() < 0.001, "{came} {sent}");
    }
    // ffmpeg gathers audio frames for a packet (three of these do not fit), and does not send what
    // it has at the end.
    assert!(came[1].len() + 2 >= sent[1].len(), "{} of {}", came[1].len(), sent[1].len());
    for (came, sent) in came[1].iter().zip(&sent[1]) {
        assert!((came - sent - moved).abs() < 0.001, "{transport}: audio at {came}, {sent}");
    }
}

#[test]
fn ffmpeg_records_a_film_by_udp_and_in_the_connection_with_every_frame() {
    let fixture = Fixture::new(anyone);
    for film in [fixture.film(), fixture.film_by_h265()] {
        film_is_recorded(&fixture, &film, "udp");
        film_is_recorded(&fixture, &film, "tcp");
    }
}

#[test]
fn gstreamer_records_a_film_and_a_transport_stream() {
    let fixture = Fixture::new(anyone);
    let film = fixture.film();
    for transport in ["udp", "tcp"] {
        let pipeline = |name: &str| {
            format!(
                "-q rtspclientsink name=s location={} protocols={transport} filesrc location={} ! \
                 qtdemux name=d d.video_0 ! queue ! h264parse ! s.sink_0 d.audio_0 ! queue ! \
                 aacparse ! s.sink_1",
                fixture.url(name),
                film.display(),
            )
        };
        let name = gstreamer_records(&format!("parts-{transport}.ts"), pipeline);
        has_no_gap(&fixture.title(&name));
        assert!(sums(&fixture.file(&name), "v:0") == sums(&film, "v:0"), "{transport}");
    }
    let whole = fixture.dir.path().join("film.ts");
    let (from, to) = (film.display().to_string(), whole.display().to_string());
    said("ffmpeg", "ffmpeg", &["-v", "error", "-i", &from, "-c", "copy", "-f", "mpegts", &to]);
    // What tsparse makes of it: at the end it says some packets twice.
    let parsed = fixture.dir.path().join("parsed.ts");
    let parse = format!(
        "-q filesrc location={to} ! tsparse set-timestamps=true alignment=7 ! filesink location={}",
        parsed.display()
    );
    let words: Vec<_> = parse.split_whitespace().collect();
    said("gst-launch-1.0", "gstreamer1.0-tools", &words);
    let sent = fs::read(&parsed).expect("it was written");
    for transport in ["udp", "tcp"] {
        let pipeline = |name: &str| {
            format!(
                "-q filesrc location={to} ! tsparse set-timestamps=true alignment=7 ! \
                 rtspclientsink location={} protocols={transport}",
                fixture.url(name)
            )
        };
        let name = gstreamer_records(&format!("whole-{transport}.ts"), pipeline);
        let came = fixture.title(&name);
        has_no_gap(&came);
        assert!(came == sent, "{transport}: {} of {} bytes", came.len(), sent.len());
    }
}

#[test]
fn a_connection_that_is_cut_leaves_a_title_of_what_came() {
    let fixture = Fixture::new(anyone);
    let mut client = fixture.connect();
    let url = fixture.url("cut.ts");
    assert_eq!(client.announce(&url, SDP).0, 200);
    let (status, said) = client.ask("SETUP", &url, FRAMES, "");
    assert_eq!(status, 200, "{said}");
    let session = said.lines().find(|line| line.starts_with("Session")).expect("a session");
    let session = format!("{}\r\n", session.split(';').next().expect("a name"));
    assert_eq!(client.ask("RECORD", &url, &session, "").0, 200);
    let other = fixture.connect().announce(&url, SDP);
    assert_eq!(other.0, 409, "it is being recorded: {}", other.1);
    let mut sent = Vec::new();
    for nth in 0..200u8 {
        let mut packet = vec![0x47, 1, 0, 0x10 | nth & 15];
        packet.resize(188, nth);
        let head = [b'$', 0, 0, 200, 0x80, 33, 0, nth, 0, 0, 0, 0, 0, 0, 0, 9];
        client.socket.write_all(&[&head, &packet[..]].concat()).expect("the server reads");
        sent.extend(packet);
    }
    drop(client);
    assert!(fixture.title("cut.ts") == sent);
    // Now it is there, and stays.
    assert_eq!(fixture.connect().announce(&url, SDP).0, 409);
}

const SOURCE: u32 = 9;
/// A sender's report, from which the delay is counted.
const TOLD: NtpTime = NtpTime(0x1234_5678_9abc_def0);

/// Packet `nth` of a transport stream of a hundred packets a second.
fn packet(nth: u16) -> Vec<u8> {
    let mut packet = vec![0x47, 1, 0, 0x10 | (nth & 15) as u8];
    packet.resize(188, nth as u8);
    let timestamp = u32::from(nth) * 900;
    let header =
        Header { marker: false, payload_type: 33, sequence: nth, timestamp, source: SOURCE };
    [&header.write()[..], &packet].concat()
}

/// Sends packets without each twentieth until `heard` has a report, which must tell of it.
fn is_told_of_losses(
    mut send: impl FnMut(bool, &[u8]),
    mut heard: impl FnMut() -> Option<Vec<u8>>,
) {
    let info = SenderInfo { time: TOLD, timestamp: 0, packets: 0, octets: 0 };
    send(true, &Compound::of_sender(SOURCE, &info, &[]).into_bytes());
    let begun = Instant::now();
    let report = (0..u16::MAX).find_map(|nth| {
        if nth % 20 != 10 {
            send(false, &packet(nth));
        }
        std::thread::sleep(Duration::from_millis(10));
        assert!(begun.elapsed() < PATIENCE, "no report comes");
        heard()
    });
    let took = begun.elapsed();
    let report = report.expect("a report");
    let packets: Vec<_> = rtcp::read(&report).expect("RTCP").collect();
    let [rtcp::Packet::Receiver { source, receptions }, rtcp::Packet::Description(names)] =
        &packets[..]
    else {
        panic!("{packets:?}");
    };
    assert_eq!(names.names().collect::<Vec<_>>(), [(*source, Some(&b"tactus"[..]))]);
    let told: Vec<_> = receptions.iter().collect();
    let [told] = told[..] else { panic!("{told:?}") };
    assert_eq!((told.source, told.last_report), (SOURCE, TOLD.middle()));
    // One of twenty: about twelve of 256.
    let lost = (told.highest + 10) / 20;
    let fraction = lost * 256 / (told.highest + 1);
    assert_eq!((told.lost as u32, u32::from(told.fraction_lost)), (lost, fraction), "{told:?}");
    assert!(lost > 1, "{told:?}");
    let delay = f64::from(told.delay) / 65_536.0;
    assert!(delay > 0.0 && delay <= took.as_secs_f64(), "{told:?} in {took:?}");
}

/// A recording that has begun, and what was said of its transport.
fn recording(fixture: &Fixture, name: &str, transport: &str) -> (Client, String, String, String) {
    let mut client = fixture.connect();
    let url = fixture.url(name);
    assert_eq!(client.announce(&url, SDP).0, 200);
    let (status, said) = client.ask("SETUP", &url, transport, "");
    assert_eq!(status, 200, "{said}");
    let session = said.lines().find(|line| line.starts_with("Session")).expect("a session");
    let session = format!("{}\r\n", session.split(';').next().expect("a name"));
    assert_eq!(client.ask("RECORD", &url, &session, "").0, 200);
    (client, url, session, said)
}

#[test]
fn who_sends_datagrams_is_told_how_much_of_them_is_lost() {
    let fixture = Fixture::new(anyone);
    let (rtp, rtcp) = loop {
        let rtp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = rtp.local_addr().expect("bound").port();
        if port.is_multiple_of(2)
            && let Ok(rtcp) = UdpSocket::bind(("127.0.0.1", port + 1))
        {
            break (rtp, rtcp);
        }
    };
    rtcp.set_nonblocking(true).expect("a socket");
    let port = rtp.local_addr().expect("bound").port();
    let transport =
        format!("Transport: RTP/AVP;unicast;client_port={port}-{};mode=record\r\n", port + 1);
    let (mut client, url, session, said) = recording(&fixture, "udp.ts", &transport);
    let ports = said.split("server_port=").nth(1).and_then(|text| text.split('-').next());
    let to: u16 = ports.expect("ports").parse().expect("a port");
    let send = |is_report: bool, bytes: &[u8]| {
        let (socket, to) = if is_report { (&rtcp, to + 1) } else { (&rtp, to) };
        socket.send_to(bytes, ("127.0.0.1", to)).expect("it is sent");
    };
    is_told_of_losses(send, || {
        let mut bytes = [0; 1500];
        let (len, from) = rtcp.recv_from(&mut bytes).ok()?;
        assert_eq!(from.port(), to + 1);
        Some(bytes[..len].to_vec())
    });
    assert_eq!(client.ask("TEARDOWN", &url, &session, "").0, 200);
    assert!(!fixture.title("udp.ts").is_empty());
}

#[test]
fn who_sends_within_the_connection_is_told_so_on_the_channel_of_reports() {
    let fixture = Fixture::new(anyone);
    let (mut client, url, session, _) = recording(&fixture, "tcp.ts", FRAMES);
    let mut socket = client.socket.try_clone().expect("a socket");
    let send = |is_report: bool, bytes: &[u8]| {
        let [a, b] = (bytes.len() as u16).to_be_bytes();
        let head = [b'$', u8::from(is_report), a, b];
        (&client.socket).write_all(&[&head, bytes].concat()).expect("the server reads");
    };
    is_told_of_losses(send, || {
        let mut head = [0; 4];
        socket.set_nonblocking(true).expect("a socket");
        let came = socket.peek(&mut head);
        socket.set_nonblocking(false).expect("a socket");
        came.ok()?;
        socket.read_exact(&mut head).expect("a frame");
        assert_eq!(head[..2], *b"$\x01");
        let mut bytes = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
        socket.read_exact(&mut bytes).expect("a frame");
        Some(bytes)
    });
    assert_eq!(client.ask("TEARDOWN", &url, &session, "").0, 200);
    assert!(!fixture.title("tcp.ts").is_empty());
}

/// A transport packet, and how it is sent: in RTP, as from `source`.
fn numbered(nth: u8, source: u32) -> (Vec<u8>, Vec<u8>) {
    let mut packet = vec![0x47, 1, 0, 0x10 | nth & 15];
    packet.resize(188, nth);
    let head = [0x80, 33, 0, nth, 0, 0, 0, 0];
    let sent = [&head[..], &source.to_be_bytes(), &packet].concat();
    (packet, sent)
}

#[test]
fn s11_d01_a_recording_by_udp_is_of_who_announced_and_is_stored_when_that_one_is_silent() {
    const SOURCE: u32 = 9;
    let fixture = Fixture::new(anyone);
    fixture.rtsp().end_after(SECOND.times(3));
    let mut client = fixture.connect();
    let url = fixture.url("silent.ts");
    assert_eq!(client.announce(&url, SDP).0, 200);
    let (status, said) = client.ask("SETUP", &url, DATAGRAMS, "");
    assert_eq!(status, 200, "{said}");
    let (_, ports) = said.split_once("server_port=").expect("ports");
    let (rtp, rest) = ports.split_once('-').expect("two ports");
    let (rtcp, _) = rest.split_once(';').expect("two ports");
    let [rtp, rtcp] = [rtp, rtcp].map(|text| text.parse::<u16>().expect("a port"));
    let session = said.lines().find(|line| line.starts_with("Session")).expect("a session");
    let session = format!("{}\r\n", session.split(';').next().expect("a name"));
    assert_eq!(client.ask("RECORD", &url, &session, "").0, 200);

    let [own, stranger] =
        ["127.0.0.1", "127.0.0.2"].map(|ip| UdpSocket::bind((ip, 0)).expect("a loopback"));
    let report = [&[0x80, 200, 0, 6][..], &SOURCE.to_be_bytes(), &[0; 20]].concat();
    let mut sent = Vec::new();
    for nth in 0..200 {
        let (bytes, packet) = numbered(nth, SOURCE);
        own.send_to(&packet, ("127.0.0.1", rtp)).expect("it is sent");
        sent.extend(bytes);
    }
    // Somebody else says the same source, and goes on: nothing of it counts, nor keeps the session.
    let end = Instant::now() + PATIENCE;
    for nth in (200..=u8::MAX).cycle() {
        if fixture.file("silent.ts").exists() {
            break;
        }
        assert!(Instant::now() < end, "{:?}", fixture.rtsp().all());
        stranger.send_to(&numbered(nth, SOURCE).1, ("127.0.0.1", rtp)).ok();
        stranger.send_to(&report, ("127.0.0.1", rtcp)).ok();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fixture.rtsp().counters().silent_sessions(), 1);
    let came = fixture.title("silent.ts");
    assert!(came == sent, "{} of {} bytes", came.len(), sent.len());
    assert_eq!(client.ask("GET_PARAMETER", &url, &session, "").0, 454);
}

#[test]
fn s17_who_may_not_record_is_told_so() {
    let url = |fixture: &Fixture| fixture.url("a.ts");
    let fixture = Fixture::new(|_, _| {});
    assert_eq!(fixture.connect().announce(&url(&fixture), SDP).0, 401);
    drop(fixture);
    let fixture = Fixture::new(|settings, password| {
        settings.recorders = Recorders::Principals;
        settings.principals =
            vec![principal("anna", password, true), principal("wall", password, false)];
    });
    assert_eq!(fixture.connect().announce(&url(&fixture), SDP).0, 401);
    let film = fixture.film().display().to_string();
    for (name, may) in [("wall", false), ("anna", true)] {
        let url = format!("rtsp://{name}:correct-horse@{}/{name}.ts", fixture.address);
        let words =
            ["-v", "error", "-re", "-t", "2", "-i", &film, "-c", "copy", "-f", "rtsp", &url];
        let out = run("ffmpeg", "ffmpeg", &words);
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), may, "{name}: {told}");
        assert!(may || told.contains("403"), "{told}");
    }
    has_no_gap(&fixture.title("anna.ts"));
    assert!(!fixture.file("wall.ts").exists());
    drop(fixture);

    let fixture = Fixture::new(anyone);
    let says = |name: &str, sdp: &str| fixture.connect().announce(&fixture.url(name), sdp);
    assert_eq!(says("a.ts", &format!("{SDP}{}", "m=video 0 RTP/AVP 33\r\n".repeat(16))).0, 400);
    assert_eq!(says("a.ts", "no description").0, 400);
    let (status, said) = says("a.ts", &SDP.replace("33", "96\r\na=rtpmap:96 VP8/90000"));
    assert!(status == 415 && said.contains("VP8"), "{said}");
    assert_eq!(says("a.mp4", SDP).0, 403);
    let long = format!("Content-Length: {}\r\n", (64 << 10) + 1);
    assert_eq!(fixture.connect().ask("ANNOUNCE", &url(&fixture), &long, "").0, 413);
    assert_eq!(fixture.connect().ask("RECORD", &url(&fixture), "", "").0, 455);
}

#[test]
fn s14_a_principal_records_only_below_its_paths() {
    let fixture = Fixture::new(|settings, password| {
        settings.recorders = Recorders::Principals;
        let paths = Paths::parse(&["/live/".into()]).expect("a path");
        settings.principals = vec![Principal { paths, ..principal("anna", password, true) }];
    });
    let film = fixture.film().display().to_string();
    for (path, may) in [("a.ts", false), ("livestream/a.ts", false), ("live/a.ts", true)] {
        let url = format!("rtsp://anna:correct-horse@{}/{path}", fixture.address);
        let words =
            ["-v", "error", "-re", "-t", "1", "-i", &film, "-c", "copy", "-f", "rtsp", &url];
        let out = run("ffmpeg", "ffmpeg", &words);
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), may, "{path}: {told}");
        assert!(may || told.contains("403"), "{told}");
        match may {
            true => has_no_gap(&fixture.title(path)),
            false => assert!(!fixture.file(path).exists(), "{path}"),
        }
    }
}

#[test]
fn a_record_that_is_refused_has_begun_nothing() {
    let fixture = Fixture::new(anyone);
    let files = || {
        let dir = fs::read_dir(fixture.file("")).expect("a directory");
        let mut names: Vec<_> = dir.map(|file| file.expect("a file").file_name()).collect();
        names.sort();
        names
    };
    let (before, none) = (files(), fixture.engine.broker.levels());
    // Ten orders come in a tenth of a second, unless the machine has no time.
    let tries = (0..100).find(|nth| {
        let mut client = fixture.connect();
        let url = fixture.url(&format!("{nth}.ts"));
        assert_eq!(client.announce(&url, SDP).0, 200);
        let (status, said) = client.ask("SETUP", &url, FRAMES, "");
        assert_eq!(status, 200, "{said}");
        let session = said.lines().find(|line| line.starts_with("Session")).expect("a session");
        let session = format!("{}\r\n", session.split(';').next().expect("a name"));
        for _ in 0..10 {
            assert_eq!(client.ask("PAUSE", &url, &session, "").0, 200);
        }
        let (status, said) = client.ask("RECORD", &url, &session, "");
        let is_refused = status == 503;
        if is_refused {
            assert!(said.contains("Retry-After"), "{said}");
            assert_eq!(fixture.engine.broker.levels(), none, "nothing is held of it");
            assert_eq!(files(), before);
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(client.ask("RECORD", &url, &session, "").0, 200, "its turn has come");
        }
        assert_eq!(client.ask("TEARDOWN", &url, &session, "").0, 200);
        is_refused
    });
    assert!(tries.is_some(), "it was never refused");
    assert_eq!(files(), before, "nothing has come, and nothing is left");
}

#[test]
fn the_last_place_is_taken_by_one() {
    const CLIENTS: usize = 8;
    let fixture = Fixture::new(|settings, password| {
        anyone(settings, password);
        settings.recordings_max = 1;
    });
    for round in 0..4 {
        let mut ready: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                let mut client = fixture.connect();
                let url = fixture.url(&format!("{round}-{nth}.ts"));
                assert_eq!(client.announce(&url, SDP).0, 200);
                let (status, said) = client.ask("SETUP", &url, FRAMES, "");
                assert_eq!(status, 200, "{said}");
                let session = said.lines().find(|line| line.starts_with("Session"));
                let session = session.and_then(|line| line.split(';').next()).expect("a name");
                (client, url, format!("{session}\r\n"))
            })
            .collect();
        // All at once: each waits for its file while the others ask.
        let start = std::sync::Barrier::new(CLIENTS);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let ask = |(client, url, session): &mut (Client, String, String)| {
                start.wait();
                client.ask("RECORD", url, session, "").0
            };
            let asked: Vec<_> = ready.iter_mut().map(|one| scope.spawn(move || ask(one))).collect();
            asked.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        let count = |status| answers.iter().filter(|answer| **answer == status).count();
        assert_eq!((count(200), count(453)), (1, CLIENTS - 1), "{answers:?}");
        // Its place is free when it is over.
        for (client, url, session) in &mut ready {
            assert_eq!(client.ask("TEARDOWN", url, session, "").0, 200);
        }
    }
}

#[test]
fn what_has_no_room_is_told_what_is_short() {
    let fixture = Fixture::new(anyone);
    let mut client = fixture.connect();
    let url = fixture.url("huge.ts");
    let sdp = format!("{SDP}b=AS:900000\r\n");
    assert_eq!(client.announce(&url, &sdp).0, 200);
    let (status, said) = client.ask("SETUP", &url, FRAMES, "");
    assert_eq!(status, 200, "{said}");
    let session = said.lines().find(|line| line.starts_with("Session")).expect("a session");
    let session = format!("{}\r\n", session.split(';').next().expect("a name"));
    let (status, said) = client.ask("RECORD", &url, &session, "");
    assert_eq!(status, 453, "{said}");
    assert!(said.contains("Retry-After") && said.contains("recording of 1.35 Gbit/s"), "{said}");
    assert!(!fixture.file("huge.ts").exists());
}
