//! Movies by RTSP, as elementary streams, played by others.

#[path = "rtsp_movies/fragments.rs"]
mod fragments;
#[path = "rtsp_movies/scales.rs"]
mod scales;
#[path = "rtsp_movies/seeks.rs"]
mod seeks;
#[path = "rtsp_movies/sounds.rs"]
mod sounds;

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_control::engine::{self, Engine};
use tactus_control::settings::{EngineSettings, Volume};
use tactus_core::path::RequestPath;
use tactus_core::rtp::rtcp;
use tactus_core::units::{Bytes, MIB, SECOND};
use tactus_media::movie::Movie;
use tactus_media::{probe, sample};
use tactus_notation::Auto;
use tactus_notation::net::Net;
use tactus_rtsp::Rtsp;
use tactus_rtsp::settings::RtspSettings;
use tactus_storage::catalogue::{Catalogue, CatalogueRules, OpenTitle, PathObject};
use tactus_sys::udp_input::{InputOptions, UdpInput};
use tactus_testkit::DISK_MODEL;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How packets may travel.
const TRANSPORTS: [&str; 2] = ["udp", "tcp"];

/// One server at a time: each pins its cores.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Fixture {
    engine: Engine,
    rtsp: Rtsp,
    catalogue: Arc<Catalogue>,
    url: String,
    movie: Movie,
    file: PathBuf,
    dir: tempfile::TempDir,
}

async fn fixture(seconds: u64) -> Fixture {
    stage_of(DISK_MODEL, |file| {
        sample::write_mp4(file, SECOND.times(seconds)).expect("a movie");
    })
    .await
}

/// The same for a movie that `make` makes, on a disk of this `model`.
async fn stage_of(model: &str, make: impl FnOnce(&Path)) -> Fixture {
    stage_by(model, make, |_| {}).await
}

/// The same, configured.
async fn stage_by(
    model: &str,
    make: impl FnOnce(&Path),
    configure: impl FnOnce(&mut RtspSettings),
) -> Fixture {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    // A disk that is measured while the machine has no time may have room for nothing.
    std::fs::create_dir(dir.path().join(".tactus")).expect("a directory of the server's own");
    std::fs::write(dir.path().join(".tactus/disk-model.toml"), model).expect("a model");
    let file = dir.path().join("movie.mp4");
    make(&file);
    let movie = Movie::read(&File::open(&file).expect("a movie")).expect("it can be sent");
    let volumes = vec![Volume::new(dir.path().into())];
    let mut settings = EngineSettings { volumes, ..EngineSettings::default() };
    settings.memory.arena = Auto::Set(Bytes(32 * MIB));
    let mut rtsp = RtspSettings::default();
    configure(&mut rtsp);
    let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
    let catalogue = Arc::new(Catalogue::new(dir.path(), rules).expect("a volume"));
    let engine = engine::start(&settings).expect("the engine starts");
    let rtsp = Rtsp::new(&rtsp, &catalogue, &engine.broker, None).expect("it has no passwords");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("rtsp://{}/movie.mp4", listener.local_addr().expect("bound"));
    tokio::spawn(rtsp.clone().serve(listener));
    Fixture { engine, rtsp, catalogue, url, movie, file, dir }
}

impl Fixture {
    /// How many samples of each track come from `wanted` on.
    fn expected(&self, wanted: u64) -> [usize; 2] {
        let begin = self.movie.begin(SECOND.times(wanted));
        [0, 1].map(|nth| self.movie.tracks[nth].samples().len() - begin.first[nth] as usize)
    }

    fn title(&self) -> Arc<OpenTitle> {
        let path = RequestPath::parse(b"/movie.mp4").expect("a plain path");
        match self.catalogue.find_blocking(&path).expect("the title is there") {
            PathObject::Title(title) => title,
            PathObject::Directory(_) => panic!("the title is a file"),
        }
    }

    /// Waits until no stream is promised any more.
    async fn peace(&self) {
        let end = Instant::now() + PATIENCE;
        while self.engine.broker.streams() > 0 {
            assert!(Instant::now() < end, "{:?}", self.rtsp.all());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// What a program says; it has to end well.
fn said(program: &str, package: &str, parameters: &[&str]) -> String {
    let out = Command::new("timeout").args(["120", program]).args(parameters).output();
    let out = out.unwrap_or_else(|_| panic!("{program} is missing: install the package {package}"));
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn ffprobe_gets_every_frame_of_video_and_audio_to_the_goodbye() {
    let _turn = TURN.lock().await;
    let fixture = fixture(8).await;
    for transport in TRANSPORTS {
        let parameters = [
            &["-v", "error", "-rtsp_transport", transport, "-count_packets", "-of", "csv=p=0"][..],
            &["-show_entries", "stream=codec_name,nb_read_packets", &fixture.url],
        ];
        let parameters = parameters.concat();
        let told = tokio::task::block_in_place(|| said("ffprobe", "ffmpeg", &parameters));
        let [video_frames, audio] = fixture.expected(0);
        assert!(told.contains(&format!("h264,{video_frames}")), "{transport}: {told}");
        assert!(told.contains(&format!("aac,{audio}")), "{transport}: {told}");
        fixture.peace().await;
    }
    assert_eq!(fixture.engine.counters.packets[0].refused.value(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ffmpeg_seeks_and_decodes_what_the_file_has_from_there_on() {
    let _turn = TURN.lock().await;
    let fixture = fixture(9).await;
    let sums = |from: &[&str], input: &str| {
        let parameters = [
            from,
            &["-i", input, "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "framemd5", "-"],
        ]
        .concat();
        let parameters = [&["-v", "error", "-nostdin"], &parameters[..]].concat();
        let told = tokio::task::block_in_place(|| said("ffmpeg", "ffmpeg", &parameters));
        let lines = told.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned()))
            .collect::<Vec<_>>()
    };
    let whole = sums(&[], &fixture.file.display().to_string());
    for transport in TRANSPORTS {
        let came = sums(&["-rtsp_transport", transport, "-ss", "5"], &fixture.url);
        // ffmpeg leaves out what comes before the second asked for.
        assert!(
            (whole.len() / 3..whole.len() / 2).contains(&came.len()),
            "{} of {}",
            came.len(),
            whole.len()
        );
        // Of the first one, where the seek begins, it does not know the time yet, and keeps it.
        assert!(whole.ends_with(&came[1..]), "every video frame to the end, as in the file");
        assert!(whole.contains(&came[0]));
        fixture.peace().await;
    }
    // All of it, decoded as in the file.
    let came = sums(&["-rtsp_transport", "tcp"], &fixture.url);
    assert_eq!(came, whole);
    fixture.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gstreamer_plays_to_the_end() {
    let _turn = TURN.lock().await;
    let fixture = fixture(5).await;
    for transport in TRANSPORTS {
        let out = fixture.dir.path().join(format!("{transport}.h264"));
        let pipeline = format!(
            "-q rtspsrc location={} protocols={transport} ! rtph264depay ! \
         video/x-h264,stream-format=byte-stream,alignment=au ! filesink location={}",
            fixture.url,
            out.display()
        );
        let words: Vec<_> = pipeline.split_whitespace().collect();
        tokio::task::block_in_place(|| said("gst-launch-1.0", "gstreamer1.0-tools", &words));
        let file = out.display().to_string();
        let parameters = [
            "-v",
            "error",
            "-count_packets",
            "-of",
            "csv=p=0",
            "-show_entries",
            "stream=nb_read_packets",
            &file,
        ];
        let told = tokio::task::block_in_place(|| said("ffprobe", "ffmpeg", &parameters));
        let came: usize = told.trim().parse().expect("a number");
        let [video_frames, _] = fixture.expected(0);
        // The last one is only complete when something follows it.
        assert!(
            (video_frames - 1..=video_frames).contains(&came),
            "{transport}: {came} of {video_frames}"
        );
        fixture.peace().await;
    }
}

/// A movie goes to a group for each track; so do its reports.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_in_the_group_of_a_track_gets_its_reports_and_its_goodbye() {
    let _turn = TURN.lock().await;
    let make = |file: &Path| {
        sample::write_mp4(file, SECOND.times(2)).expect("a movie");
    };
    let fixture = stage_by(DISK_MODEL, make, |settings| {
        settings.groups = vec![Net::parse("239.192.8.0/31").expect("a network")];
        settings.interface = Some("lo".into());
        settings.group_port = 15_014;
    })
    .await;
    tokio::task::block_in_place(|| {
        let mut client = Client::new(&fixture);
        let mut named = String::new();
        let mut listeners = vec![];
        for track in [1, 2] {
            let url = format!("{}/track{track}", fixture.url);
            let transport = "Transport: RTP/AVP;multicast\r\n";
            let (head, _) = client.ask("SETUP", &url, &format!("{transport}{named}"));
            let name = field(&head, "Session");
            named = format!("Session: {}\r\n", name.split(';').next().expect("a name"));
            let transport = field(&head, "Transport");
            let told = |name: &str| {
                let value = transport.split(';').find_map(|part| part.strip_prefix(name));
                value.expect("it is told").to_owned()
            };
            assert_eq!(told("port="), "15014-15015");
            let group = told("destination=").parse().expect("a group");
            let interface = tactus_sys::udp_input::interface("lo").ok();
            let to = SocketAddr::new(group, 15_015);
            let wanted = InputOptions { to, source: None, interface, buffer: 1 << 20 };
            let listener = UdpInput::open(&wanted).expect("a group");
            let source = u32::from_str_radix(&told("ssrc="), 16).expect("a source");
            listeners.push((listener, source));
        }
        let (play, _) = client.ask("PLAY", &fixture.url, &named);
        assert!(play.starts_with("RTSP/1.0 200"), "{play}");
        for (listener, source) in &mut listeners {
            let end = Instant::now() + PATIENCE;
            let (mut reports, mut is_over) = (0, false);
            while !is_over {
                assert!(Instant::now() < end, "no goodbye behind {reports} reports");
                let came = listener.receive(|one| {
                    let packets = || rtcp::read(one.bytes).expect("RTCP");
                    let is_of = |packet: rtcp::Packet<'_>| {
                        matches!(packet, rtcp::Packet::Sender { source: by, .. } if by == *source)
                    };
                    if !packets().any(is_of) {
                        return;
}
                    match packets().any(|packet| matches!(packet, rtcp::Packet::Bye { .. })) {
                        true => is_over = true,
                        false => reports += 1,
}
                });
                if came.is_err() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            assert!(reports > 0, "its times are told before the end");
        }
        let (end, _) = client.ask("TEARDOWN", &fixture.url, &named);
        assert!(end.starts_with("RTSP/1.0 200"), "{end}");
    });
    fixture.peace().await;
}

/// A connection, by hand.
struct Client {
    socket: std::net::TcpStream,
    cseq: u32,
}

impl Client {
    fn new(fixture: &Fixture) -> Self {
        let host = fixture.url.strip_prefix("rtsp://").and_then(|url| url.split('/').next());
        let socket = std::net::TcpStream::connect(host.expect("a host")).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self { socket, cseq: 0 }
    }

    /// The answer with its body, and the frames that came before it.
    fn ask(&mut self, method: &str, url: &str, fields: &str) -> (String, Vec<(u8, Vec<u8>)>) {
        self.cseq += 1;
        let cseq = self.cseq;
        let request = format!("{method} {url} RTSP/1.0\r\nCSeq: {cseq}\r\n{fields}\r\n");
        self.socket.write_all(request.as_bytes()).expect("it reads");
        let (mut head, mut frames) = (Vec::new(), vec![]);
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.socket.read_exact(&mut byte).expect("an answer");
            match byte {
                [b'$'] if head.is_empty() => frames.push(self.rest_of_frame()),
                [byte] => head.push(byte),
            }
        }
        let head = String::from_utf8(head).expect("text");
        let length = head.to_ascii_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(0, |text| text.trim().parse().expect("a length"));
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body).expect("a body");
        (head + &String::from_utf8_lossy(&body), frames)
    }

    fn rest_of_frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 3];
        self.socket.read_exact(&mut head).expect("a frame");
        let mut bytes = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        self.socket.read_exact(&mut bytes).expect("a frame");
        (head[0], bytes)
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut mark = [0];
        self.socket.read_exact(&mut mark).expect("a frame");
        assert_eq!(mark, *b"$");
        self.rest_of_frame()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s15_movies_that_hold_nothing_are_counted_whatever_they_have_played() {
    let _turn = TURN.lock().await;
    let fixture = fixture(8).await;
    tokio::task::block_in_place(|| {
        let mut client = Client::new(&fixture);
        for (range, answer, pauses) in [("99999-", "457", false), ("0-", "200", true)] {
            let mut sessions = vec![];
            for nth in 0..40 {
                let port = 40_000 + 2 * nth;
                let ports = format!("client_port={port}-{}", port + 1);
                let fields = format!("Transport: RTP/AVP;unicast;{ports}\r\n");
                let (head, _) = client.ask("SETUP", &format!("{}/track1", fixture.url), &fields);
                let expected = if nth < 32 { "RTSP/1.0 200" } else { "RTSP/1.0 453" };
                assert!(head.starts_with(expected), "{range}, {nth}: {head}");
                if nth >= 32 {
                    continue;
                }
                let session = field(&head, "Session");
                let session = session.split(';').next().expect("a name");
                let named = format!("Session: {session}\r\n");
                let fields = format!("{named}Range: npt={range}\r\n");
                let (play, _) = client.ask("PLAY", &fixture.url, &fields);
                assert!(play.starts_with(&format!("RTSP/1.0 {answer}")), "{range}: {play}");
                if pauses {
                    let (pause, _) = client.ask("PAUSE", &fixture.url, &named);
                    assert!(pause.starts_with("RTSP/1.0 200"), "{pause}");
                }
                sessions.push(named);
            }
            // Who plays makes room for the next, until it is at its end.
            let last = format!("{}Range: npt=4-\r\n", sessions[0]);
            let (play, _) = client.ask("PLAY", &fixture.url, &last);
            assert!(play.starts_with("RTSP/1.0 200"), "{play}");
            let set_up = |client: &mut Client| {
                let fields = "Transport: RTP/AVP;unicast;client_port=41000-41001\r\n";
                client.ask("SETUP", &format!("{}/track1", fixture.url), fields).0
            };
            let one_more = set_up(&mut client);
            assert!(one_more.starts_with("RTSP/1.0 200"), "{one_more}");
            let end = Instant::now() + PATIENCE;
            while fixture.rtsp.all().iter().any(|session| session.state == "playing") {
                assert!(Instant::now() < end, "{:?}", fixture.rtsp.all());
                std::thread::sleep(Duration::from_millis(5));
            }
            let session = field(&one_more, "Session");
            let session = session.split(';').next().expect("a name");
            let (over, _) =
                client.ask("TEARDOWN", &fixture.url, &format!("Session: {session}\r\n"));
            assert!(over.starts_with("RTSP/1.0 200"), "{over}");
            let none = set_up(&mut client);
            assert!(none.starts_with("RTSP/1.0 453"), "it waits again: {none}");
            for named in sessions {
                let (over, _) = client.ask("TEARDOWN", &fixture.url, &named);
                assert!(over.starts_with("RTSP/1.0 200"), "{over}");
            }
        }
    });
    // What two have asked for at once is kept in memory, which is a stream of its own.
    assert!(fixture.rtsp.is_empty() && fixture.engine.broker.streams() <= 1);
}

fn field(head: &str, name: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name}: {head}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_tracks_of_a_movie_share_a_connection_on_channels_of_their_own() {
    let _turn = TURN.lock().await;
    let fixture = fixture(8).await;
    tokio::task::block_in_place(|| {
        let mut client = Client::new(&fixture);
        let tracks = [1, 2].map(|number| format!("{}/track{number}", fixture.url));
        let tcp = "RTP/AVP/TCP;unicast";
        let fields = format!("Transport: {tcp};interleaved=0-1\r\n");
        let (first, _) = client.ask("SETUP", &tracks[0], &fields);
        let session = field(&first, "Session").split(';').next().expect("a name").to_owned();
        let mut set_up = |transport: &str| {
            let fields = format!("Transport: {transport}\r\nSession: {session}\r\n");
            client.ask("SETUP", &tracks[1], &fields).0
        };
        for wrong in [
            format!("{tcp};interleaved=0-1"),
            format!("{tcp};interleaved=1-2"),
            format!("{tcp};interleaved=4-256"),
            "RTP/AVP/UDP;unicast;client_port=20002-20003".to_owned(),
        ] {
            let refused = set_up(&wrong);
            assert!(refused.starts_with("RTSP/1.0 461"), "{wrong}: {refused}");
        }
        let second = set_up(tcp);
        assert!(field(&second, "Transport").contains("interleaved=2-3"), "{second}");
        let (again, other) = (set_up(tcp), set_up(&format!("{tcp};interleaved=6-7")));
        assert_eq!(field(&again, "Transport"), field(&second, "Transport"));
        assert!(other.starts_with("RTSP/1.0 455"), "{other}");
        // What it is told elsewhere is nobody's.
        let named = format!("Session: {session}\r\n");
        let (strange, _) = Client::new(&fixture).ask("PLAY", &fixture.url, &named);
        assert!(strange.starts_with("RTSP/1.0 454"), "{strange}");

        let (play, before) = client.ask("PLAY", &fixture.url, &named);
        assert!(play.starts_with("RTSP/1.0 200") && before.is_empty(), "the answer comes first");
        let info = field(&play, "RTP-Info");
        let told = |number: u32, name: &str| -> u32 {
            let of = info.split(',').nth(number as usize - 1).expect("each track");
            assert!(of.contains(&format!("track{number}")), "{info}");
            let value = of.split(';').find_map(|part| part.strip_prefix(&format!("{name}=")));
            value.expect("it is told").parse().expect("a number")
        };
        let (mut next, mut reports) = ([told(1, "seq") as u16, told(2, "seq") as u16], [0, 0]);
        let mut firsts = [true, true];
        let mut check = |frames: Vec<(u8, Vec<u8>)>, next: &mut [u16; 2]| {
            for (channel, bytes) in frames {
                let track = usize::from(channel / 2);
                if channel % 2 == 1 {
                    assert_eq!(bytes[1], 200, "a sender report");
                    reports[track] += 1;
                    continue;
                }
                let packet = tactus_core::rtp::Packet::read(&bytes).expect("it is RTP");
                assert_eq!((packet.sequence, packet.payload_type), (next[track], 96 + track as u8));
                next[track] = next[track].wrapping_add(1);
                if std::mem::take(&mut firsts[track]) {
                    let stamp = told(track as u32 + 1, "rtptime");
                    // A audio frame may have begun before.
                    let before = stamp.wrapping_sub(packet.timestamp);
                    assert!(before <= 1024, "{before}");
                }
            }
            reports
        };
        let frames = (0..200).map(|_| client.frame()).collect();
        let reports = check(frames, &mut next);
        assert!(
            reports.iter().all(|&count| count >= 1),
            "which audio belongs to which video frame"
        );
        let (pause, frames) = client.ask("PAUSE", &fixture.url, &named);
        assert!(pause.starts_with("RTSP/1.0 200"), "{pause}");
        check(frames, &mut next);
        // Numbers go on over a pause and a seek.
        let fields = format!("{named}Range: npt=4-\r\n");
        let (play, before) = client.ask("PLAY", &fixture.url, &fields);
        assert!(play.starts_with("RTSP/1.0 200") && before.is_empty(), "{play}");
        let seqs = format!("seq={};", next[0]);
        assert!(field(&play, "RTP-Info").contains(&seqs), "{play} {seqs}");
        let frames = (0..100).map(|_| client.frame()).collect();
        check(frames, &mut next);
        let (end, frames) = client.ask("TEARDOWN", &fixture.url, &named);
        assert!(end.starts_with("RTSP/1.0 200"), "{end}");
        check(frames, &mut next);
        let (after, frames) = client.ask("OPTIONS", &fixture.url, "");
        assert!(after.starts_with("RTSP/1.0 200") && frames.is_empty(), "it is a connection again");
    });
    fixture.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_one_track_of_several_does_nothing_to_the_others() {
    let _turn = TURN.lock().await;
    let fixture = fixture(8).await;
    tokio::task::block_in_place(|| {
        let mut client = Client::new(&fixture);
        let other = fixture.url.replace("movie.mp4", "none.mp4");
        let [first, second] = [1, 2].map(|number| format!("{}/track{number}", fixture.url));
        let transport = "Transport: RTP/AVP/TCP;unicast\r\n";
        let mut ask = |method: &str, url: &str, fields: &str, status: u16| {
            let (said, frames) = client.ask(method, url, fields);
            assert!(said.starts_with(&format!("RTSP/1.0 {status} ")), "{method} {url}: {said}");
            (said, frames.len())
        };
        let session = |said: &str| {
            let field = field(said, "Session");
            format!("Session: {}\r\n", field.split(';').next().expect("a name"))
        };
        ask("SETUP", &format!("{}/track3", fixture.url), transport, 404);
        // Of one track its URL means the session.
        let named = session(&ask("SETUP", &second, transport, 200).0);
        ask("PLAY", &first, &named, 454);
        ask("PLAY", &second, &named, 200);
        ask("PAUSE", &format!("{second}/"), &named, 200);
        ask("TEARDOWN", &first, &named, 454);
        ask("TEARDOWN", &second, &named, 200);

        let named = session(&ask("SETUP", &first, transport, 200).0);
        let more = format!("{named}{transport}");
        ask("SETUP", &format!("{other}/track2"), &more, 459);
        ask("SETUP", &second, &more, 200);
        ask("PLAY", &first, &named, 460);
        ask("PLAY", &other, &named, 454);
        ask("PLAY", &fixture.url.replace("movie.mp4", "stream=0"), &named, 454);
        let (said, _) = ask("PLAY", &format!("{}/", fixture.url), &named, 200);
        assert!(field(&said, "RTP-Info").starts_with(&format!("url={first};")), "{said}");
        for method in ["PAUSE", "PLAY", "TEARDOWN"] {
            ask(method, &second, &named, 460);
            ask(method, &other, &named, 454);
        }
        // All of it goes on.
        let mut frames = 0;
        while frames < 50 {
            frames += ask("OPTIONS", "*", &named, 200).1;
        }
        ask("TEARDOWN", &fixture.url, &named, 200);
    });
    fixture.peace().await;
}
