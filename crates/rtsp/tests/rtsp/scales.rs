//! Scales: fast forward, reverse, and back to what is played as it is.

use std::time::{Duration, Instant};

use tactus_core::rtp;
use tactus_core::units::SECOND;

use crate::Fixture;
use crate::client::{PATIENCE, Receiver, Reply, first_matches, payload};

/// The video frames that packets carry, which must be one stream: counters run on, and each has its
/// time.
fn video_frames(packets: &[Vec<u8>]) -> Vec<u64> {
    let bytes = payload(packets);
    let mut watch = tactus_core::ts::Continuity::default();
    let mut shown = vec![];
    for packet in bytes.chunks(188) {
        let packet = tactus_core::ts::Packet::first_of(packet).expect("whole packets");
        assert_eq!(watch.handle_packet(&packet), None);
        shown.extend(tactus_core::ts::pes_times(&packet).map(|times| times.shown.ticks()));
    }
    shown
}

fn source(packet: &[u8]) -> u32 {
    rtp::Packet::read(packet).expect("it is RTP").source
}

/// What comes of a part that begins with the packet that the answer names, until nothing comes for
/// a second.
fn part(receiver: &mut Receiver, reply: &Reply) -> Vec<Vec<u8>> {
    let first = reply.parameter("RTP-Info", "seq").parse::<u16>().expect("a number");
    let mut came = receiver.take(1);
    let mut quiet = 0;
    while quiet < 10 {
        let more = receiver.rest();
        quiet = if more.is_empty() { quiet + 1 } else { 0 };
        came.extend(more);
    }
    let is_first = |bytes: &Vec<u8>| rtp::Packet::read(bytes).expect("it is RTP").sequence == first;
    let at = came.iter().position(is_first).expect("the packet that was named");
    came.split_off(at)
}

fn times(reply: &Reply) -> (f64, f64) {
    let range = reply.field("Range").strip_prefix("npt=").expect("npt");
    let (from, to) = range.split_once('-').expect("two times");
    (from.parse().expect("seconds"), to.parse().expect("seconds"))
}

#[test]
fn a_title_is_shown_faster_and_backwards_and_goes_on_from_there() {
    let fixture = Fixture::new(SECOND.times(24));
    let mut client = fixture.connect();
    let mut receiver = Receiver::new();
    let session = client.set_up(receiver.port).session();
    let url = fixture.url();
    let mut scaled = |scale: &str, range: &str| {
        let range = if range.is_empty() { String::new() } else { format!("Range: {range}\r\n") };
        let fields = format!("Session: {session}\r\nScale: {scale}\r\n{range}");
        let end = Instant::now() + PATIENCE;
        loop {
            let reply = client.ask("PLAY", &url, &fields);
            // On a slow machine the times are still being found out.
            if reply.status != 503 || Instant::now() > end {
                return reply;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    };
    for wrong in ["fast", "0", "1e9", "2,0"] {
        assert_eq!(scaled(wrong, "npt=0-").status, 400, "{wrong}");
    }
    assert_eq!(scaled("4", "npt=99-").status, 457);

    // Forwards to the end, at the nearest scale.
    let fast = scaled("7.5", "npt=2-");
    assert_eq!((fast.status, fast.field("Scale")), (200, "8.0"), "{fast:?}");
    let (from, to) = times(&fast);
    assert!(from <= 2.0 && to > 20.0 && to <= 24.0, "{fast:?}");
    let packets = part(&mut receiver, &fast);
    first_matches(&fast, &packets[0]);
    let shown = video_frames(&packets);
    let took = (shown.last().unwrap() - shown[0]) as f64 / 90_000.0;
    assert!((took - (to - from) / 8.0).abs() < 0.01, "{took} of {from} to {to}");
    // As at every end.
    assert_eq!(receiver.goodbye(), source(&packets[0]));

    // From where that has ended back again, and into normal play on the way.
    let back = scaled("-2", "");
    assert_eq!((back.status, back.field("Scale")), (200, "-2.0"), "{back:?}");
    let (from, to) = times(&back);
    assert!(from > 20.0 && to < 1.0, "{back:?}");
    let mut came = receiver.take(100);
    let play = scaled("1", "");
    assert_eq!((play.status, play.field("Scale")), (200, "1"));
    let (here, end) = times(&play);
    assert!(here <= from && end > 20.0, "{play:?}");
    came.extend(receiver.take(300));
    assert_eq!(client.order("PAUSE", &session).status, 200);
    came.extend(receiver.rest());
    let first = play.parameter("RTP-Info", "seq").parse::<u16>().expect("a number");
    let is_first = |bytes: &Vec<u8>| rtp::Packet::read(bytes).unwrap().sequence == first;
    let at = came.iter().position(is_first).expect("the packet that was named");
    assert!(video_frames(&came[..at]).windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(payload(&came[at..])[0], 0x47);
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
    fixture.wait_for_peace();
}

#[test]
fn in_frames_of_a_connection_it_is_shown_so_too_and_the_answer_comes_before_the_first() {
    let fixture = Fixture::new(SECOND.times(24));
    let mut client = fixture.connect();
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
    let session = client.ask("SETUP", &format!("{}/track1", fixture.url()), transport).session();
    let url = fixture.url();
    // From the packet on that the answer names; those before it are of what was shown before.
    let mut shown = |scale: &str, range: &str, count: usize| {
        let range = if range.is_empty() { String::new() } else { format!("Range: {range}\r\n") };
        let fields = format!("Session: {session}\r\nScale: {scale}\r\n{range}");
        let end = Instant::now() + PATIENCE;
        let reply = loop {
            let reply = client.ask("PLAY", &url, &fields);
            if reply.status != 503 || Instant::now() > end {
                break reply;
            }
            std::thread::sleep(Duration::from_millis(500));
        };
        assert_eq!(reply.status, 200, "{reply:?}");
        let before = std::mem::take(&mut client.kept);
        let packets = client.frames(4, count);
        first_matches(&reply, &packets[0]);
        (reply, before, packets)
    };
    let (fast, before, packets) = shown("8", "npt=2-", 60);
    assert!(before.is_empty());
    assert_eq!(fast.field("Scale"), "8.0");
    let (from, to) = times(&fast);
    assert!(from <= 2.0 && to > 20.0, "{fast:?}");
    assert!(video_frames(&packets).windows(2).all(|pair| pair[0] < pair[1]));

    let (back, more, reverse) = shown("-2", "", 60);
    assert_eq!(back.field("Scale"), "-2.0");
    // No packet is missing between the two.
    payload(&[packets, more, reverse.clone()].concat());
    assert!(video_frames(&reverse).windows(2).all(|pair| pair[0] < pair[1]));

    let (play, more, packets) = shown("1", "", 100);
    assert_eq!(play.field("Scale"), "1");
    assert!(times(&play).0 <= times(&back).0, "it goes on from there: {play:?}");
    let bytes = payload(&[reverse, more, packets.clone()].concat());
    assert_eq!((bytes[0], payload(&packets)[0]), (0x47, 0x47));
    assert_eq!(client.order("PAUSE", &session).status, 200);
    // Its end is told behind its last frame.
    client.kept.clear();
    let fields = format!("Session: {session}\r\nScale: 16\r\nRange: npt=16-\r\n");
    let last = client.ask("PLAY", &url, &fields);
    let (gone, packets) = client.goodbye();
    first_matches(&last, &packets[0]);
    let shown = video_frames(&packets);
    let (from, to) = times(&last);
    let took = (shown.last().unwrap() - shown[0]) as f64 / 90_000.0;
    assert!((took - (to - from) / 16.0).abs() < 0.01, "{took} of {from} to {to}");
    assert_eq!(gone, source(&packets[0]));
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
    assert_eq!(client.ask("OPTIONS", &fixture.url(), "").status, 200, "it is a connection again");
    fixture.wait_for_peace();
}
