//! A movie's tracks as elementary RTP, played by others.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tactus_control::broker::{Output, UdpOutput};
use tactus_control::engine::{self, Engine};
use tactus_control::generated::movie::{MovieStreams, Part, TrackStream};
use tactus_control::generated::{End, GeneratedSession, Lane};
use tactus_control::settings::{EngineSettings, Volume};
use tactus_core::datagrams::Session;
use tactus_core::path::RequestPath;
use tactus_core::units::{Bytes, MIB, Nanos, SECOND};
use tactus_media::movie::Movie;
use tactus_media::sample;
use tactus_notation::Auto;
use tactus_storage::catalogue::{Catalogue, CatalogueRules, OpenTitle, PathObject};
use tactus_sys::packets::udp_output;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// One server at a time: each pins its cores.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Fixture {
    engine: Engine,
    title: Arc<OpenTitle>,
    movie: Arc<Movie>,
    file: PathBuf,
    dir: tempfile::TempDir,
    udp_output: Arc<UdpOutput>,
}

fn fixture(seconds: u64) -> Fixture {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = dir.path().join("movie.mp4");
    sample::write_mp4(&file, SECOND.times(seconds)).expect("a movie");
    let catalogue = Catalogue::new(dir.path(), CatalogueRules::default()).expect("a volume");
    let path = RequestPath::parse(b"/movie.mp4").expect("a plain path");
    let Ok(PathObject::Title(title)) = catalogue.find_blocking(&path) else {
        panic!("it is there")
    };
    let volumes = vec![Volume::new(dir.path().into())];
    let mut settings = EngineSettings { volumes, ..EngineSettings::default() };
    settings.memory.arena = Auto::Set(Bytes(32 * MIB));
    let engine = engine::start(&settings).expect("the engine starts");
    let movie =
        Arc::new(Movie::read(&File::open(&file).expect("a movie")).expect("it can be sent"));
    let options = udp_output::UdpOptions {
        from: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        interface: None,
        hops: None,
        dscp: 0,
        heard_here: true,
        buffer: 4 << 20,
    };
    let udp_output = UdpOutput::of(udp_output::open(&options).expect("a UDP output"), None);
    Fixture { engine, title, movie, file, dir, udp_output }
}

impl Fixture {
    /// Sends the movie from `wanted` on; video frames to the first port, audio to the second.
    fn send(&self, wanted: Nanos, ports: [u16; 2]) -> GeneratedSession {
        let sent = (0..2).map(|track| TrackStream {
            track,
            payload_type: 96 + track as u8,
            session: Session { source: 77 + track, sequence: 65_530, timestamp: u32::MAX - 90_000 },
        });
        let part = Part {
            movie: Arc::clone(&self.movie),
            begin: self.movie.begin(wanted),
            end: None,
            tracks: sent.collect(),
            stretch: 1,
        };
        let source_spec = part.source_spec(&self.title).expect("there is something to send");
        let outputs = part.needs().into_iter().zip(ports).map(|(needs, port)| {
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            Lane { output: Output::datagrams(&self.udp_output, to, Nanos(0)), needs }
        });
        let streams = MovieStreams::new(part.clone(), source_spec.reading.range.start);
        GeneratedSession::start(&self.engine.broker, source_spec, outputs.collect(), streams)
            .expect("room for it")
    }

    /// What players are given to find the streams.
    fn description(&self, ports: [u16; 2]) -> PathBuf {
        let mut text =
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=movie\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
                .to_owned();
        for (nth, (track, port)) in (96..).zip(self.movie.tracks.iter().zip(ports)) {
            let media = track.media(nth);
            let attribute = |name| media.attribute(name).expect("it is described");
            text += &format!(
                "m={} {port} RTP/AVP {nth}\r\na=rtpmap:{}\r\na=fmtp:{}\r\n",
                media.kind,
                attribute("rtpmap"),
                attribute("fmtp"),
            );
        }
        let path = self.dir.path().join("movie.sdp");
        std::fs::write(&path, text).expect("a description");
        path
    }
}

/// Two free ports: even ones, whose neighbours are free too.
fn ports() -> [u16; 2] {
    let mut found = vec![];
    while found.len() < 2 {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("bound").port();
        let free = UdpSocket::bind(("127.0.0.1", port.wrapping_add(1))).is_ok();
        if port.is_multiple_of(2)
            && free
            && found.iter().all(|&other: &u16| other.abs_diff(port) > 1)
        {
            found.push(port);
        }
    }
    [found[0], found[1]]
}

/// Waits until somebody listens on all ports.
fn await_listeners(ports: &[u16], player: &mut Child) {
    for &port in ports {
        let end = std::time::Instant::now() + PATIENCE;
        while UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            assert!(std::time::Instant::now() < end, "nobody listens on {port}");
            assert!(player.try_wait().expect("a player").is_none(), "the player has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Checksums of decoded frames of the first stream of a kind, in order.
fn frames(ffmpeg: &mut Command, kind: &str, count: usize) -> Child {
    let counted = if kind == "v" { "-frames:v" } else { "-frames:a" };
    ffmpeg
        .args(["-map", &format!("0:{kind}:0"), counted, &count.to_string()])
        .args(["-fps_mode:v", "passthrough", "-f", "framemd5", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("ffmpeg is missing: install the package ffmpeg")
}

fn ffmpeg() -> Command {
    let mut command = Command::new("timeout");
    command.args(["240", "ffmpeg", "-v", "error", "-nostats"]);
    command
}

/// The checksums that a player has said.
fn sums(player: Child) -> Vec<String> {
    let said = player.wait_with_output().expect("a player");
    let text = String::from_utf8(said.stdout).expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned())).collect()
}

fn of_file(file: &Path, kind: &str, count: usize) -> Vec<String> {
    sums(frames(ffmpeg().arg("-i").arg(file), kind, count))
}

#[tokio::test(flavor = "multi_thread")]
async fn ffmpeg_decodes_every_frame_of_video_and_audio() {
    let _turn = TURN.lock().await;
    let fixture = fixture(8);
    // The last frames come out of a decoder only when something follows.
    for (kind, count) in [("v", 180), ("a", 340)] {
        let ports = ports();
        let mut player = frames(
            ffmpeg()
                .args(["-protocol_whitelist", "file,udp,rtp", "-buffer_size", "8388608", "-i"])
                .arg(fixture.description(ports)),
            kind,
            count,
        );
        tokio::task::block_in_place(|| await_listeners(&ports, &mut player));
        let generated = fixture.send(Nanos(0), ports);
        let ended = tokio::time::timeout(PATIENCE, generated.ended()).await.expect("it ends");
        assert_eq!(ended.why, End::Complete);
        let came = tokio::task::block_in_place(|| sums(player));
        let expected = tokio::task::block_in_place(|| of_file(&fixture.file, kind, count + 5));
        assert!(came.len() >= count - 5, "{kind}: {} came", came.len());
        // Of audio a file's first frame, which primes the decoder, is cut away.
        let first = came.iter().position(|first| *first == expected[3]).expect("the same frames");
        let same = came[first..].iter().zip(&expected[3..]).take_while(|(own, other)| own == other);
        let compared = came[first..].len().min(expected[3..].len());
        assert!(compared >= count - 10, "{kind}: {compared} frames");
        assert_eq!(same.count(), compared, "{kind}: every frame as in the file");
        let counters = &fixture.engine.counters.packets[0];
        assert_eq!(counters.refused.value(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gstreamer_depacketises_every_video_frame() {
    let _turn = TURN.lock().await;
    let fixture = fixture(6);
    let known = Command::new("gst-inspect-1.0").args(["--exists", "rtph264depay"]).status();
    assert!(
        known.is_ok_and(|known| known.success()),
        "GStreamer's rtph264depay is missing: install gstreamer1.0-tools and \
         gstreamer1.0-plugins-good"
    );
    let ports = ports();
    let out = fixture.dir.path().join("video_frames.h264");
    let media = fixture.movie.tracks[0].media(96);
    let sets = media
        .attribute("fmtp")
        .and_then(|parameters| parameters.split_once("sprop-parameter-sets="));
    let caps = format!(
        "application/x-rtp,media=video,clock-rate=90000,encoding-name=H264,payload=96,\
         sprop-parameter-sets=(string)\"{}\"",
        sets.expect("it names them").1
    );
    let mut player = Command::new("timeout")
        .args(["240", "gst-launch-1.0", "-q", "udpsrc"])
        .args([
            format!("port={}", ports[0]),
            "buffer-size=8388608".into(),
            "timeout=3000000000".into(),
        ])
        .arg(format!("caps={caps}"))
        .args([
            "!",
            "rtph264depay",
            "!",
            "video/x-h264,stream-format=byte-stream,alignment=au",
            "!",
        ])
        .args(["filesink", "buffer-mode=unbuffered"])
        .arg(format!("location={}", out.display()))
        .stdin(Stdio::null())
        .spawn()
        .expect("gst-launch-1.0 is missing: install gstreamer1.0-tools");
    tokio::task::block_in_place(|| await_listeners(&ports[..1], &mut player));
    // From a seek on.
    let generated = fixture.send(SECOND.times(3), ports);
    let ended = tokio::time::timeout(PATIENCE, generated.ended()).await.expect("it ends");
    assert_eq!(ended.why, End::Complete);
    // The last access unit is pushed when the one behind it begins; here none does.
    tokio::time::sleep(Duration::from_secs(1)).await;
    // `timeout` hands on what it is told, but to die.
    let told = Command::new("kill").arg(player.id().to_string()).status();
    assert!(told.is_ok_and(|told| told.success()), "it runs until it is told");
    player.wait().expect("it has ended");
    let begin = fixture.movie.begin(SECOND.times(3));
    let expected = fixture.movie.tracks[0].samples().len() - begin.first[0] as usize;
    let came = of_file(&out, "v", expected + 10).len();
    assert!((expected - 1..=expected).contains(&came), "{came} of {expected} video frames");
}
