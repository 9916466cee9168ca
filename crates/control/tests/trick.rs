//! Trick play: from a plain file to what ffmpeg and a foreign checker say of the datagrams.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dvb_conformance::{ConformanceMonitor, Indicator};
use tactus_control::broker::{DeliverySpec, Output, UdpOutput};
use tactus_control::engine::{self, Engine};
use tactus_control::generated::End;
use tactus_control::settings::{EngineSettings, Sendfile, Volume};
use tactus_control::trick::{Continuation, Destination, Fault, Trick, TrickRequest};
use tactus_core::datagrams::{Framing, Session};
use tactus_core::path::RequestPath;
use tactus_core::rtp;
use tactus_core::stagger::Tick;
use tactus_core::ts::trick::Scale;
use tactus_core::ts::{self, Continuity, Index, pes_times};
use tactus_core::units::{BitRate, Bytes, MIB, MediaTime, Nanos};
use tactus_engine::message::Rate;
use tactus_media::index;
use tactus_notation::Auto;
use tactus_storage::catalogue::{Catalogue, CatalogueRules, OpenTitle, PathObject};
use tactus_sys::packets::udp_output;
use tactus_sys::udp_input::{InputOptions as Inbox, UdpInput};

const SECOND: u64 = 27_000_000;
const SESSION: Session = Session { source: 0x5eed, sequence: 65_530, timestamp: u32::MAX - 9 };
/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A film of 24 seconds, with an I-frame every 0.48.
const FILM: &str = "-f lavfi -i testsrc2=size=320x180:rate=25 -f lavfi -i sine -t 24 \
    -c:v libx264 -preset veryfast -pix_fmt yuv420p -g 12 -keyint_min 12 -sc_threshold 0 -bf 2 \
    -b:v 900k -maxrate 1M -bufsize 500k -c:a mp2 -b:a 128k -muxrate 1600k -f mpegts";

struct Fixture {
    engine: Engine,
    title: Arc<OpenTitle>,
    index: Arc<Index>,
    udp_output: Arc<UdpOutput>,
    dir: tempfile::TempDir,
}

fn fixture(sendfile: Sendfile) -> Fixture {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let film = dir.path().join("film.ts");
    let mut make = Command::new("ffmpeg");
    make.args(["-v", "error", "-y"]).args(FILM.split_whitespace()).arg(&film);
    let generated = make.status().expect("ffmpeg is installed (package ffmpeg)");
    assert!(generated.success(), "ffmpeg makes a film");
    let catalogue = Catalogue::new(dir.path(), CatalogueRules::default()).expect("a volume");
    let path = RequestPath::parse(b"/film.ts").expect("a plain path");
    let Ok(PathObject::Title(title)) = catalogue.find_blocking(&path) else {
        panic!("it is there")
    };
    let file = std::fs::File::open(&film).expect("a film");
    let (index, _) = index::make(&file, |_, _| {}).expect("it has an index");
    let volumes = vec![Volume::new(dir.path().into())];
    let mut settings = EngineSettings { volumes, ..EngineSettings::default() };
    settings.volumes[0].sendfile = sendfile;
    settings.memory.arena = Auto::Set(Bytes(32 * MIB));
    let engine = engine::start(&settings).expect("the engine starts");
    let udp_output = udp_output::UdpOptions {
        from: Ipv4Addr::UNSPECIFIED.into(),
        interface: None,
        hops: None,
        dscp: 0,
        heard_here: true,
        buffer: 4 << 20,
    };
    let udp_output = UdpOutput::of(udp_output::open(&udp_output).expect("a UDP output"), None);
    Fixture { engine, title, index: Arc::new(index), udp_output, dir }
}

impl Fixture {
    fn start(&self, wanted: TrickRequest, inbox: &UdpInput) -> Result<Trick, Fault> {
        let to = inbox.address().expect("bound");
        let output = Output::datagrams(&self.udp_output, to, Nanos(0));
        let framing = Framing::Rtp(SESSION);
        let destination = Destination { output, framing, channel: None };
        Trick::start(
            &self.engine.broker,
            &self.title,
            &self.index,
            wanted,
            destination,
            Continuation::default(),
        )
    }

    async fn is_empty_again(&self) {
        let end = Instant::now() + PATIENCE;
        while self.engine.broker.levels().iter().any(|level| level.used > 0) {
            assert!(Instant::now() < end, "{:?}", self.engine.broker.levels());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn inbox() -> UdpInput {
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let wanted = Inbox { to, source: None, interface: None, buffer: 32 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

/// What has come, which must follow each other; each payload with its time in ticks of 90 kHz.
fn take(inbox: &mut UdpInput) -> Vec<(u32, Vec<u8>)> {
    let mut came = vec![];
    // What has left is here.
    while inbox.receive(|datagram| came.push(datagram.bytes.to_vec())).is_ok() {}
    assert_eq!(inbox.dropped().expect("it is counted"), 0);
    let read = |bytes| rtp::Packet::read(bytes).expect("RTP");
    let packets = came.iter().enumerate().map(|(nth, bytes)| {
        let packet = read(bytes);
        assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(nth as u16));
        assert_eq!((packet.source, packet.marker), (SESSION.source, nth == 0));
        (packet.timestamp.wrapping_sub(SESSION.timestamp), packet.payload.to_vec())
    });
    packets.collect()
}

/// What a checker of other people says of them.
fn check(packets: &[(u32, Vec<u8>)]) {
    let (mut watch, mut monitor) = (Continuity::default(), ConformanceMonitor::new());
    for (time, payload) in packets {
        let time = Duration::from_nanos(u64::from(*time) * 100_000 / 9);
        for (at, packet) in payload.chunks(188).enumerate() {
            let read = tactus_core::ts::Packet::first_of(packet).expect("whole packets");
            assert_eq!(watch.handle_packet(&read), None);
            for event in monitor.feed(packet, time) {
                // 3.10 is judged against a rate of draining that the monitor guesses.
                let is_guess = event.indicator == Indicator::DataDelayError;
                assert!(is_guess, "packet {at} at {time:?}: {event:?}");
            }
        }
    }
}

/// The times at which video frames are shown, in ticks of 90 kHz.
fn shown(bytes: &[u8]) -> Vec<u64> {
    let packets = ts::Framing::PLAIN.packets(bytes);
    packets.filter_map(|(_, packet)| Some(pes_times(&packet)?.shown.ticks())).collect()
}

/// How many video frames ffmpeg decodes, without a complaint.
fn decoded(path: &Path) -> usize {
    let text = path.to_str().expect("a plain name");
    let args = ["-v", "error", "-xerror", "-i", text, "-map", "0", "-fps_mode", "passthrough"];
    let out = Command::new("ffmpeg").args(args).args(["-f", "framemd5", "-"]).output();
    let out = out.expect("ffmpeg is installed");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.is_empty(), "{said}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().filter(|line| !line.starts_with('#')).count()
}

async fn play(fixture: &Fixture, thousandths: i64, from: u64) -> (Vec<u64>, PathBuf, usize, Trick) {
    let mut inbox = inbox();
    let scale = Scale::nearest(thousandths).expect("a speed");
    let wanted = TrickRequest { scale, from: MediaTime(from * SECOND) };
    let trick = fixture.start(wanted, &inbox).expect("an empty server has room");
    let end = tokio::time::timeout(PATIENCE, trick.ended()).await.expect("it ends");
    assert_eq!(end, End::Complete);
    let packets = take(&mut inbox);
    check(&packets);
    let left = packets.len();
    let bytes: Vec<u8> = packets.into_iter().flat_map(|(_, payload)| payload).collect();
    let path = fixture.dir.path().join(format!("{thousandths}.ts"));
    std::fs::write(&path, &bytes).expect("room on the disk");
    (shown(&bytes), path, left, trick)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_faster_and_backwards_is_clean_and_every_video_frame_of_it_decodes() {
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let fixture = fixture(sendfile);
        for (scale, from, most) in [(8000, 0, 24), (2000, 16, 8), (-4000, 24, 24), (-1000, 4, 4)] {
            let (shown, path, left, trick) = play(&fixture, scale, from).await;
            assert!(shown.windows(2).all(|pair| pair[1] - pair[0] >= 90_000 / 8), "{shown:?}");
            // All that there is to be shown, at the scale.
            let took = shown.last().unwrap() - shown[0];
            let passed = took * scale.unsigned_abs() / 1000;
            assert!(passed <= most * 90_000 && passed >= (most - 2) * 90_000, "{scale}: {passed}");
            assert_eq!(decoded(&path), shown.len(), "{scale}");
            let (first, last) = trick.span();
            assert_eq!(last.0.abs_diff(first.0) / 300, passed.next_multiple_of(1).max(passed));
            assert_eq!(trick.position(tactus_sys::clock::now()), last);
            let gone = trick.stop().await;
            assert_eq!((gone.packets, gone.is_whole), (left as u64, true));
            fixture.is_empty_again().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_slower_has_all_its_video_frames() {
    let fixture = fixture(Sendfile::Off);
    let (shown, path, left, trick) = play(&fixture, 500, 20).await;
    // From the entry before: four seconds and a part of a group, each video frame for 80 ms.
    let mut sorted = shown.clone();
    sorted.sort_unstable();
    assert!(shown.len() >= 4 * 25 && shown.len() <= 4 * 25 + 12, "{}", shown.len());
    assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] == 7200), "{sorted:?}");
    assert_eq!(decoded(&path), shown.len());
    let gone = trick.stop().await;
    assert_eq!((gone.packets, gone.is_whole), (left as u64, true));
    fixture.is_empty_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_disks_have_no_time_there_are_fewer_video_frames_or_none() {
    let fixture = fixture(Sendfile::Off);
    let broker = &fixture.engine.broker;
    let rate = Rate { rate: BitRate(1_000_000), burst: Bytes(0), tick: Tick::Ms62 };
    let spec = DeliverySpec::connection(broker, &fixture.title, Some(rate), Bytes(1 << 40));
    let spec = spec.of_any_title();
    let mut grants = vec![];
    while let Ok(grant) = broker.admit(&spec) {
        grants.push(grant);
    }
    let before = broker.levels();
    let wanted = TrickRequest { scale: Scale::nearest(16_000).unwrap(), from: MediaTime(0) };
    let inbox = inbox();
    let Err(Fault::Refused(refusal)) = fixture.start(wanted, &inbox) else { panic!("it is full") };
    assert!(refusal.message.contains("would be promised"), "{refusal}");
    assert_eq!(broker.levels(), before);
    drop(grants);
    drop(fixture.start(wanted, &inbox).expect("there is room again"));
    fixture.is_empty_again().await;
}
