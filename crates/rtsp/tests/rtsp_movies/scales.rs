//! Movies at other scales: which video frames come, when, and that they decode.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use tactus_control::broker::DeliverySpec;
use tactus_core::rtp;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::Rate;
use tactus_testkit::DISK_MODEL;

use crate::{Client, Fixture, TURN, field, fixture, said, stage_of};

/// 24 seconds with a video frame that stands alone every 0.48, and others between them that are
/// decoded in another order.
const FILM: &str =
    "-f lavfi -i testsrc2=size=320x180:rate=25 -f lavfi -i sine=r=48000 -t 24 -c:a aac";
const H264: &str = "-c:v libx264 -preset ultrafast -g 12 -bf 2 -sc_threshold 0 -b:v 400k";
/// Groups are open: all but the first of those video frames are CRA.
const H265: &str = "-c:v libx265 -preset ultrafast -tag:v hvc1 -b:v 400k \
    -x265-params log-level=none:keyint=12:min-keyint=12:scenecut=0:open-gop=1";
const FRAMES_PER_SECOND: f64 = 25.0;
/// A session of which nothing is heard for a minute is over; on a busy machine that may be a second
/// of what is shown.
const ALIVE_EACH: Duration = Duration::from_secs(10);

/// A film made by ffmpeg, with these parameters.
fn film(file: &Path, parameters: &str) {
    let out = file.to_str().expect("a plain name");
    let parameters: Vec<_> = FILM.split_whitespace().chain(parameters.split_whitespace()).collect();
    said("ffmpeg", "ffmpeg", &[&["-v", "error", "-nostdin"], &parameters[..], &[out]].concat());
}

/// Sums of the video frames of a file, which must decode without a complaint.
fn sums(file: &Path) -> Vec<String> {
    let input = file.to_str().expect("a plain name");
    let before = ["-v", "error", "-xerror", "-nostdin", "-i", input, "-map", "0:v:0"];
    let told = said(
        "ffmpeg",
        "ffmpeg",
        &[&before[..], &["-fps_mode", "passthrough", "-f", "framemd5", "-"]].concat(),
    );
    let lines = told.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned())).collect()
}

/// A session of both tracks, in a connection.
struct Session<'a> {
    fixture: &'a Fixture,
    client: Client,
    fields: String,
    is_h265: bool,
    /// The number of the next packet of each track.
    next: [Option<u16>; 2],
    heard: ReceivedMedia,
    /// When it has last said that it is there.
    said: Instant,
}

/// What has come since the last answer.
#[derive(Default)]
struct ReceivedMedia {
    /// Of each video frame, its timestamp and its units.
    video_frames: Vec<(u32, Vec<Vec<u8>>)>,
    /// Whether the last one is all there.
    is_whole: bool,
    audio: usize,
    goodbyes: BTreeSet<u8>,
}

/// An answer to PLAY.
struct PlayAnswer {
    head: String,
    /// In seconds.
    from: f64,
    to: f64,
    asked: Instant,
}

impl PlayAnswer {
    fn stamp(&self, track: usize) -> u32 {
        let info = field(&self.head, "RTP-Info");
        let of = info.split(',').nth(track).expect("both tracks");
        let stamp = of.split(';').find_map(|part| part.strip_prefix("rtptime="));
        stamp.expect("it is told").parse().expect("a number")
    }
}

impl<'a> Session<'a> {
    fn new(fixture: &'a Fixture, is_h265: bool) -> Self {
        let mut client = Client::new(fixture);
        let mut fields = String::new();
        for track in [1, 2] {
            let (url, channel) = (format!("{}/track{track}", fixture.url), 2 * track - 2);
            let transport = format!("RTP/AVP/TCP;unicast;interleaved={channel}-{}", channel + 1);
            let (head, _) =
                client.ask("SETUP", &url, &format!("Transport: {transport}\r\n{fields}"));
            assert!(head.starts_with("RTSP/1.0 200"), "{head}");
            let name = field(&head, "Session");
            let name = name.split(';').next().expect("a name");
            fields = format!("Session: {name}\r\n");
        }
        let heard = ReceivedMedia::default();
        Self { fixture, client, fields, is_h265, next: [None; 2], heard, said: Instant::now() }
    }

    /// What PLAY is answered with.
    fn answer(&mut self, more: &str) -> String {
        let fields = format!("{}{more}", self.fields);
        let (head, frames) = self.client.ask("PLAY", &self.fixture.url, &fields);
        frames.into_iter().for_each(|frame| self.hear(frame));
        head
    }

    fn play(&mut self, more: &str) -> PlayAnswer {
        let asked = Instant::now();
        let head = self.answer(more);
        assert!(head.starts_with("RTSP/1.0 200"), "{more}: {head}");
        let range = field(&head, "Range");
        let range = range.strip_prefix("npt=").and_then(|times| times.split_once('-'));
        let (from, to) = range.expect("two times");
        let (from, to) = (from.parse().expect("seconds"), to.parse().expect("seconds"));
        // Numbers run on, as the answer says.
        for (nth, of) in field(&head, "RTP-Info").split(',').enumerate() {
            let seq = of.split(';').find_map(|part| part.strip_prefix("seq="));
            let seq: u16 = seq.expect("it is told").parse().expect("a number");
            let next = self.next[nth].replace(seq);
            assert!(next.is_none_or(|next| next == seq), "{next:?}: {head}");
        }
        self.heard = ReceivedMedia::default();
        PlayAnswer { head, from, to, asked }
    }

    fn hear(&mut self, (channel, bytes): (u8, Vec<u8>)) {
        if channel % 2 == 1 {
            let mut rest = &bytes[..];
            while let [_, kind, a, b, ..] = *rest {
                assert_ne!(kind, 201, "nothing is received from us");
                if kind == 203 {
                    self.heard.goodbyes.insert(channel);
                }
                rest = &rest[4 + 4 * usize::from(u16::from_be_bytes([a, b]))..];
            }
            return;
        }
        let packet = rtp::Packet::read(&bytes).expect("it is RTP");
        let next = self.next[usize::from(channel / 2)].as_mut().expect("it was told");
        assert_eq!(packet.sequence, *next, "channel {channel}");
        *next = next.wrapping_add(1);
        if channel == 2 {
            self.heard.audio += 1;
            return;
        }
        let ReceivedMedia { video_frames, is_whole, .. } = &mut self.heard;
        if video_frames.last().is_none_or(|(stamp, _)| *stamp != packet.timestamp) {
            assert!(video_frames.is_empty() || *is_whole);
            video_frames.push((packet.timestamp, vec![]));
        }
        *is_whole = packet.marker;
        let (_, units) = video_frames.last_mut().expect("one was begun");
        take_units(packet.payload, self.is_h265, units);
    }

    fn end(&mut self) {
        let (head, _) = self.client.ask("TEARDOWN", &self.fixture.url, &self.fields);
        assert!(head.starts_with("RTSP/1.0 200"), "{head}");
    }

    /// Hears the next frame, and says now and then that it is there.
    fn hear_more(&mut self) {
        if self.said.elapsed() > ALIVE_EACH {
            let (head, frames) = self.client.ask("GET_PARAMETER", &self.fixture.url, &self.fields);
            assert!(head.starts_with("RTSP/1.0 200"), "{head}");
            frames.into_iter().for_each(|frame| self.hear(frame));
            self.said = Instant::now();
        } else {
            let frame = self.client.frame();
            self.hear(frame);
        }
    }

    /// All that comes until the goodbyes of both tracks.
    fn rest(&mut self) -> ReceivedMedia {
        while self.heard.goodbyes.len() < 2 {
            self.hear_more();
        }
        std::mem::take(&mut self.heard)
    }
}

/// The units that a packet adds (RFC 6184, RFC 7798).
fn take_units(payload: &[u8], is_h265: bool, units: &mut Vec<Vec<u8>>) {
    let (kind, head) = match is_h265 {
        true => (payload[0] >> 1 & 0x3f, 2),
        false => (payload[0] & 0x1f, 1),
    };
    match (is_h265, kind) {
        (false, 24) | (true, 48) => {
            let mut rest = &payload[head..];
            while let [a, b, behind @ ..] = rest {
                let (unit, behind) = behind.split_at(usize::from(u16::from_be_bytes([*a, *b])));
                units.push(unit.to_vec());
                rest = behind;
            }
        }
        (false, 28) | (true, 49) => {
            let part = payload[head];
            if part & 0x80 != 0 {
                units.push(match is_h265 {
                    true => vec![payload[0] & 0x81 | (part & 0x3f) << 1, payload[1]],
                    false => vec![payload[0] & 0xe0 | part & 0x1f],
                });
            }
            units.last_mut().expect("it has begun").extend(&payload[head + 1..]);
        }
        _ => units.push(payload.to_vec()),
    }
}

impl ReceivedMedia {
    /// Its video frames decoded, in the order in which they come out.
    fn decoded(&self, fixture: &Fixture, is_h265: bool) -> Vec<String> {
        let file = fixture.dir.path().join(if is_h265 { "came.h265" } else { "came.h264" });
        let units = self.video_frames.iter().flat_map(|(_, units)| units);
        let bytes: Vec<u8> = units.flat_map(|unit| [&[0, 0, 0, 1], &unit[..]].concat()).collect();
        std::fs::write(&file, bytes).expect("room");
        sums(&file)
    }
}

/// Shows it at every kind of scale, and judges what has come when all has: nobody waits for
/// decoders.
fn is_shown_at_every_scale(fixture: &Fixture, is_h265: bool) {
    let whole = sums(&fixture.file);
    let mut session = Session::new(fixture, is_h265);
    let mut shown = vec![];
    for (scale, from) in [(4, "0"), (-4, "23.5"), (16, "0.3"), (-16, "20"), (-1, "3")] {
        let played = session.play(&format!("Scale: {scale}\r\nRange: npt={from}-\r\n"));
        assert_eq!(field(&played.head, "Scale"), format!("{scale}.0"));
        let heard = session.rest();
        shown.push((f64::from(scale), played, heard, Instant::now()));
    }
    let slow = session.play("Scale: 0.5\r\nRange: npt=21-\r\n");
    assert_eq!(field(&slow.head, "Scale"), "0.5");
    let slow = (slow, session.rest(), Instant::now());
    // As it is again, with its audio.
    let again = session.play("Range: npt=20.5-\r\n");
    let heard = session.rest();
    session.end();

    for (scale, played, heard, end) in &shown {
        are_those_that_stand_alone(&whole, *scale, (played, heard, *end), fixture, is_h265);
    }
    let first = |played: &PlayAnswer| (played.from * FRAMES_PER_SECOND).round() as usize;
    // All of them, each for twice as long.
    let (played, slowly, end) = slow;
    assert_eq!(slowly.audio, 0);
    assert_eq!(slowly.video_frames[0].0, played.stamp(0));
    let after = |&(stamp, _): &(u32, _)| stamp.wrapping_sub(played.stamp(0)).cast_signed();
    let stamps: BTreeSet<_> = slowly.video_frames.iter().map(after).collect();
    let stamps: Vec<_> = stamps.into_iter().collect();
    assert!(stamps.windows(2).all(|pair| pair[1] - pair[0] == 7200), "{stamps:?}");
    // Of an open group there come some that are shown before it, and cannot be decoded without the
    // group before.
    assert!(stamps[0] == 0 || is_h265 && stamps[0] >= -3 * 7200, "{stamps:?}");
    assert!((20.5..=21.0).contains(&played.from), "{}", played.head);
    assert_eq!(slowly.decoded(fixture, is_h265), whole[first(&played)..]);
    let lasts = f64::from(*stamps.last().expect("video frames")) / 90_000.0;
    // The last ones leave while those before them are shown.
    let took = (end - played.asked).as_secs_f64();
    assert!(took >= lasts - 0.5, "it takes twice as long: {took} of {lasts}");

    assert_eq!(heard.decoded(fixture, is_h265), whole[first(&again)..]);
    assert!(heard.audio > 100, "{}", heard.audio);
}

/// Video frames in their order, at their times, as in the file.
fn are_those_that_stand_alone(
    whole: &[String],
    scale: f64,
    (played, heard, end): (&PlayAnswer, &ReceivedMedia, Instant),
    fixture: &Fixture,
    is_h265: bool,
) {
    assert_eq!(heard.audio, 0, "{scale}: it is silent");
    assert_eq!(heard.video_frames[0].0, played.stamp(0), "{scale}");
    let due = |stamp: u32| f64::from(stamp.wrapping_sub(played.stamp(0))) / 90_000.0;
    let times: Vec<_> = heard.video_frames.iter().map(|(stamp, _)| due(*stamp)).collect();
    for pair in times.windows(2) {
        let gap = pair[1] - pair[0];
        assert!((0.1249..=1.2).contains(&gap), "{scale}: {times:?}");
    }
    let last = *times.last().expect("video frames");
    assert!((last * scale - (played.to - played.from)).abs() < 0.01, "{}", played.head);
    // What is late does not count; nothing comes early.
    assert!((end - played.asked).as_secs_f64() >= last, "{scale}");
    let decoded = heard.decoded(fixture, is_h265);
    assert_eq!(decoded.len(), times.len(), "{scale}: each of them decodes");
    for (sum, time) in decoded.iter().zip(&times) {
        let nth = ((played.from + time * scale) * FRAMES_PER_SECOND).round() as usize;
        assert_eq!(*sum, whole[nth], "{scale}: {time} of {times:?}");
        assert!(nth.is_multiple_of(12), "it stands alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn video_frames_of_h264_come_at_the_scale_in_order_and_decode() {
    let _turn = TURN.lock().await;
    let fixture = stage_of(DISK_MODEL, |file| film(file, H264)).await;
    tokio::task::block_in_place(|| is_shown_at_every_scale(&fixture, false));
    fixture.peace().await;
    assert_eq!(fixture.engine.counters.packets[0].refused.value(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn video_frames_of_open_groups_of_h265_do_so_too() {
    let _turn = TURN.lock().await;
    let fixture = stage_of(DISK_MODEL, |file| film(file, H265)).await;
    tokio::task::block_in_place(|| is_shown_at_every_scale(&fixture, true));
    fixture.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scale_changes_while_it_plays_and_it_goes_on_from_there() {
    let _turn = TURN.lock().await;
    let fixture = fixture(60).await;
    tokio::task::block_in_place(|| {
        let mut session = Session::new(&fixture, false);
        let hear = |session: &mut Session<'_>, count: usize| {
            while session.heard.video_frames.len() < count {
                session.hear_more();
            }
        };
        let play = session.play("");
        hear(&mut session, 20);
        assert!(session.heard.audio > 0);
        let fast = session.play("Scale: 4\r\n");
        assert!(fast.from >= play.from && fast.to > 55.0, "{}", fast.head);
        hear(&mut session, 5);
        assert_eq!(session.heard.audio, 0);
        // The nearest that there is.
        let faster = session.play("Scale: 7.5\r\n");
        assert_eq!(field(&faster.head, "Scale"), "8.0");
        assert!(faster.from > fast.from, "{}", faster.head);
        hear(&mut session, 5);
        let back = session.play("Scale: -2\r\n");
        assert!(back.from > faster.from && back.to < 0.1, "{}", back.head);
        hear(&mut session, 3);
        let slow = session.play("Scale: 0.5\r\n");
        assert!(slow.from < back.from, "{}", slow.head);
        hear(&mut session, 10);
        let again = session.play("Scale: 1.0\r\n");
        assert_eq!(field(&again.head, "Scale"), "1");
        assert!(again.from >= slow.from && again.from < back.from, "{}", again.head);
        hear(&mut session, 30);
        assert!(session.heard.audio > 0, "audio comes again");
        // Timestamps run on with the time of whoever watches.
        let plays = [&play, &fast, &faster, &back, &slow, &again];
        for pair in plays.windows(2) {
            for (track, clock) in [(0, 90_000.0), (1, f64::from(fixture.movie.tracks[1].clock()))] {
                let passed = (pair[1].asked - pair[0].asked).as_secs_f64();
                let ticks = pair[1].stamp(track).wrapping_sub(pair[0].stamp(track));
                let shown = f64::from(ticks) / clock;
                // Between the question and the answer there may be as much as there is.
                assert!(ticks < 1 << 31 && shown <= passed + 60.0, "{shown} in {passed}");
            }
        }
        // To its end, and on from there; back from its end.
        session.play("Scale: 16\r\nRange: npt=50-\r\n");
        session.rest();
        let back = session.play("Scale: -16\r\n");
        assert!(back.from > 55.0, "{}", back.head);
        session.rest();
        let again = session.play("");
        assert!(again.from < 0.1, "{}", again.head);
        session.end();
    });
    fixture.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_title_does_not_have_is_refused_and_it_plays_on() {
    let _turn = TURN.lock().await;
    let fixture = fixture(20).await;
    tokio::task::block_in_place(|| {
        let mut session = Session::new(&fixture, false);
        session.play("Range: npt=6-\r\n");
        let hear = |session: &mut Session<'_>| {
            let ReceivedMedia { video_frames, audio, .. } = &session.heard;
            let (video_frames, audio) = (video_frames.len() + 10, audio + 10);
            while session.heard.video_frames.len() < video_frames || session.heard.audio < audio {
                session.hear_more();
            }
        };
        for (fields, status) in [
            ("Range: npt=9999-\r\n", "457"),
            ("Scale: 4\r\nRange: npt=99-\r\n", "457"),
            ("Range: npt=now-0.5\r\n", "457"),
            ("Scale: fast\r\n", "400"),
        ] {
            hear(&mut session);
            // No packet is missing before or behind the answer, and none comes again.
            let answer = session.answer(fields);
            assert!(answer.starts_with(&format!("RTSP/1.0 {status}")), "{fields}: {answer}");
            assert_eq!(fixture.rtsp.all()[0].state, "playing", "{fields}");
        }
        hear(&mut session);
        assert!(session.heard.goodbyes.is_empty());
        session.end();
        // Audio alone is not shown faster, and is heard on.
        let mut client = Client::new(&fixture);
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
        let (head, _) = client.ask("SETUP", &format!("{}/track2", fixture.url), transport);
        let name = field(&head, "Session");
        let named = format!("Session: {}\r\n", name.split(';').next().expect("a name"));
        let (play, _) = client.ask("PLAY", &fixture.url, &named);
        assert!(play.starts_with("RTSP/1.0 200"), "{play}");
        let (none, _) = client.ask("PLAY", &fixture.url, &format!("{named}Scale: 2\r\n"));
        assert!(none.starts_with("RTSP/1.0 415"), "{none}");
        assert_eq!(fixture.rtsp.all()[0].state, "playing");
        let heard = (0..50).map(|_| client.frame()).filter(|(channel, _)| *channel == 0).count();
        assert!(heard > 40, "{heard}");
    });
    fixture.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_disk_has_no_time_it_is_453_and_says_so() {
    let _turn = TURN.lock().await;
    let fixture = fixture(30).await;
    tokio::task::block_in_place(|| {
        let mut session = Session::new(&fixture, false);
        let broker = &fixture.engine.broker;
        let rate = Rate { rate: BitRate(1_000_000), burst: Bytes(0), tick: Tick::Ms62 };
        let title = fixture.title();
        let spec = DeliverySpec::connection(broker, &title, Some(rate), Bytes(1 << 40));
        let spec = spec.of_any_title();
        let grants: Vec<_> = std::iter::from_fn(|| broker.admit(&spec).ok()).collect();
        let before = broker.levels();
        for scale in ["4", "-16", "0.5"] {
            let head = session.answer(&format!("Scale: {scale}\r\nRange: npt=20-\r\n"));
            assert!(head.starts_with("RTSP/1.0 453"), "{scale}: {head}");
            field(&head, "Retry-After");
        }
        assert_eq!(broker.levels(), before, "nothing is held of it");
        drop(grants);
        session.play("Scale: 16\r\n");
        session.rest();
        session.end();
    });
    fixture.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_that_is_none_is_refused_and_the_session_goes_on() {
    let _turn = TURN.lock().await;
    let fixture = fixture(8).await;
    tokio::task::block_in_place(|| {
        let mut session = Session::new(&fixture, false);
        for (fields, status) in [
            ("Scale: fast\r\nRange: npt=0-\r\n", "400"),
            ("Scale: 0\r\nRange: npt=0-\r\n", "400"),
            ("Scale: 1e9\r\n", "400"),
            ("Scale: 2,0\r\n", "400"),
            ("Scale:\r\n", "400"),
            ("Scale: 4\r\nRange: npt=99-\r\n", "457"),
            ("Scale: -4\r\nRange: npt=99-\r\n", "457"),
            ("Scale: 0.5\r\nRange: npt=99-\r\n", "457"),
            ("Scale: -4\r\nRange: npt=6-2\r\n", "457"),
        ] {
            let answer = session.answer(fields);
            assert!(answer.starts_with(&format!("RTSP/1.0 {status}")), "{fields}: {answer}");
        }
        let back = session.play("Scale: -0.0625\r\nRange: npt=1-\r\n");
        assert_eq!(field(&back.head, "Scale"), "-1.0");
        session.rest();
        session.end();
        // Audio alone has no video frames.
        let mut client = Client::new(&fixture);
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
        let (head, _) = client.ask("SETUP", &format!("{}/track2", fixture.url), transport);
        let name = field(&head, "Session");
        let named = format!("Session: {}\r\n", name.split(';').next().expect("a name"));
        let (none, _) = client.ask("PLAY", &fixture.url, &format!("{named}Scale: 2\r\n"));
        assert!(none.starts_with("RTSP/1.0 415"), "{none}");
        let (play, _) = client.ask("PLAY", &fixture.url, &named);
        assert!(play.starts_with("RTSP/1.0 200"), "{play}");
        let (end, _) = client.ask("TEARDOWN", &fixture.url, &named);
        assert!(end.starts_with("RTSP/1.0 200"), "{end}");
    });
    fixture.peace().await;
}
