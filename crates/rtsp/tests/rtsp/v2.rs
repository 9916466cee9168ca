//! RTSP 2.0 on the wire, by a client of its own and beside 1.0 on one connection.

use tactus_core::rtp;
use tactus_core::units::SECOND;

use crate::Fixture;
use crate::client::{Client, Receiver, Reply, payload};

const TWO: &str = "RTSP/2.0";

impl Client {
    fn two(&mut self, method: &str, url: &str, fields: &str) -> Reply {
        let reply = self.ask_in(TWO, method, url, fields);
        assert!(reply.head.starts_with("RTSP/2.0 "), "{}", reply.head);
        assert!(reply.field("Date").ends_with(" GMT"), "{}", reply.head);
        reply
    }
}

fn sequence(packet: &[u8]) -> u16 {
    rtp::Packet::read(packet).expect("RTP").sequence
}

/// The numbers that the answer names, as 2.0 writes them.
fn first_is_named(reply: &Reply, url: &str, first: &[u8]) {
    let packet = rtp::Packet::read(first).expect("RTP");
    let (source, sequence, timestamp) = (packet.source, packet.sequence, packet.timestamp);
    let info = reply.field("RTP-Info");
    let named =
        format!("url=\"{url}/track1\" ssrc={source:08X}:seq={sequence};rtptime={timestamp}");
    assert!(info.starts_with(&named), "{info} is not {named}");
}

#[test]
fn both_versions_are_spoken_on_one_connection() {
    let fixture = Fixture::new(SECOND.times(2));
    let mut client = fixture.connect();
    for round in 0..2 {
        let one = client.ask("OPTIONS", "*", "Supported: play.basic\r\n");
        let exact = format!(
            "RTSP/1.0 200 OK\r\nCSeq: {}\r\nServer: tactus\r\n\
             Public: OPTIONS, DESCRIBE, ANNOUNCE, SETUP, PLAY, \
             PAUSE, RECORD, TEARDOWN, GET_PARAMETER, SET_PARAMETER\r\n\r\n",
            client.cseq
        );
        assert_eq!(one.head, exact, "{round}: 1.0 is as it was");
        let two = client.two("OPTIONS", "*", "Supported: play.basic\r\nTimestamp: 7.5\r\n");
        assert_eq!((two.status, two.field("Timestamp")), (200, "7.5"));
        assert_eq!(two.field("Supported"), "play.basic, play.scale");
        assert!(!two.field("Public").contains("RECORD"), "{}", two.head);
        for other in ["RTSP/1.1", "RTSP/2.1", "RTSP/3.0"] {
            let reply = client.ask_in(other, "OPTIONS", "*", "");
            assert!(reply.head.starts_with("RTSP/1.0 505 "), "{}", reply.head);
        }
    }
    let url = fixture.url();
    for (method, fields, status) in [
        ("DESCRIBE", "Require: play.basic, play.scale\r\n", 200),
        ("DESCRIBE", "Require: play.basic, setup.rtp.rtcp.mux\r\n", 551),
        ("DESCRIBE", "Proxy-Require: com.example.x\r\n", 551),
        ("ANNOUNCE", "", 501),
        ("RECORD", "", 501),
        ("FLY", "", 501),
        ("PLAY", "", 454),
        ("PAUSE", "", 454),
        ("TEARDOWN", "", 454),
        ("PLAY", "Session: 0123\r\n", 454),
        (
            "SETUP",
            "Transport: RTP/AVP;unicast;dest_addr=\"192.0.2.1:5000\"/\"192.0.2.1:5001\"\r\n",
            463,
        ),
        ("SETUP", "Transport: RTP/AVP;unicast;dest_addr=\":5000\"/\":5001\";RTCP-mux\r\n", 461),
        (
            "SETUP",
            "Accept-Ranges: clock\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n",
            456,
        ),
        (
            "SETUP",
            "Pipelined-Requests: x\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n",
            400,
        ),
    ] {
        let reply = client.two(method, &url, fields);
        assert_eq!(reply.status, status, "{method} {fields}: {}", reply.head);
        match status {
            551 => assert!(fields.contains(reply.field("Unsupported")), "{}", reply.head),
            456 => assert_eq!(reply.field("Accept-Ranges"), "npt"),
            501 => assert!(reply.field("Public").contains("DESCRIBE"), "{}", reply.head),
            _ => {}
        }
    }
    assert!(fixture.rtsp.is_empty() && fixture.engine.broker.streams() == 0);
    // Nothing was asked, so nothing is answered.
    client.send(b"RTSP/2.0 200 OK\r\nCSeq: 1\r\n\r\n");
    assert_eq!(client.receive().expect("an answer").status, 400);
    assert!(client.receive().is_none(), "it is closed");
}

#[test]
fn a_title_is_played_to_an_end_that_is_told() {
    let fixture = Fixture::new(SECOND.times(12));
    let mut client = fixture.connect();
    let mut receiver = Receiver::new();
    let url = fixture.url();
    let (rtp, rtcp) = (receiver.port, receiver.port + 1);
    let transport = format!("Transport: RTP/AVP;unicast;dest_addr=\":{rtp}\"/\":{rtcp}\"\r\n");
    let fields = format!("{transport}Accept-Ranges: npt, clock\r\nRequire: play.basic\r\n");
    let set = client.two("SETUP", &format!("{url}/track1"), &fields);
    assert_eq!(set.status, 200, "{}", set.head);
    let ends = set.parameter("Transport", "dest_addr");
    assert_eq!(ends, format!("\"127.0.0.1:{rtp}\"/\"127.0.0.1:{rtcp}\""));
    let from = set.parameter("Transport", "src_addr");
    assert!(from.starts_with("\"127.0.0.1:") && from.contains("/\"127.0.0.1:"), "{from}");
    assert_eq!(set.field("Accept-Ranges"), "npt");
    assert_eq!(set.field("Media-Properties"), "Random-Access, Immutable, Unlimited");
    assert!(set.field("Media-Range").starts_with("npt=0.000-1"), "{}", set.head);
    assert_eq!(set.parameter("Session", "timeout"), "60");
    let session = format!("Session: {}\r\n", set.session());
    let name = set.session();

    // Until the times of the title are known, ends within it are not.
    let end = std::time::Instant::now() + crate::client::PATIENCE;
    let played = loop {
        let reply = client.two("PLAY", &url, &format!("{session}Range: npt=0-2\r\n"));
        if reply.status != 503 || std::time::Instant::now() > end {
            break reply;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    assert_eq!((played.status, played.field("Session")), (200, &*name), "{}", played.head);
    assert_eq!(played.field("Seek-Style"), "RAP");
    let asked = client.hear();
    let line = format!("PLAY_NOTIFY {url} RTSP/2.0\r\n");
    assert!(asked.head.starts_with(&line), "{}", asked.head);
    assert_eq!(asked.field("Notify-Reason"), "end-of-stream");
    let status = format!("cseq={} status=200 reason=\"OK\"", client.cseq);
    assert_eq!((asked.field("Request-Status"), asked.field("Session")), (&*status, &*name));
    let (_, to) = played.field("Range").split_once('-').expect("two times");
    assert_eq!(asked.field("Range"), format!("npt=-{to}"));
    let mut packets = receiver.take(1);
    let last: u16 = {
        let info = asked.field("RTP-Info");
        let (_, number) = info.rsplit_once(":seq=").expect("a number");
        number.parse().expect("a number")
    };
    while sequence(packets.last().expect("one")) != last {
        packets.extend(receiver.take(1));
    }
    first_is_named(&played, &url, &packets[0]);
    let bytes = payload(&packets);
    assert!(bytes == fixture.title[..bytes.len()], "the title's own bytes");

    // What was answered is taken; the connection goes on, and so does the session.
    let again = client.two("PLAY", &url, &format!("{session}Range: npt=6-\r\nSpeed: 1.0-2.0\r\n"));
    assert_eq!((again.status, again.field("Speed")), (200, "1.0-1.0"), "{}", again.head);
    first_is_named(&again, &url, &receiver.take(1)[0]);
    let paused = client.two("PAUSE", &url, &session);
    let range = paused.field("Range").strip_prefix("npt=").expect("npt");
    let at: f64 = range.split('-').next().and_then(|text| text.parse().ok()).expect("a time");
    assert!(paused.status == 200 && (5.0..12.5).contains(&at), "{}", paused.head);
    let clock = client.two("PLAY", &url, &format!("{session}Range: clock=20200101T000000Z-\r\n"));
    assert_eq!((clock.status, clock.field("Accept-Ranges")), (456, "npt"), "{}", clock.head);
    let backwards = "Range: npt=8-2\r\nScale: -4\r\n";
    let reply = client.two("PLAY", &url, &format!("{session}{backwards}"));
    assert_eq!((reply.status, reply.field("Scale")), (200, "-4.0"), "{}", reply.head);
    let asked = client.hear();
    assert_eq!((asked.field("Scale"), asked.field("Range")), ("-4.0", "npt=-0.000"));
    // In 1.0 no end is told: the next thing that comes is an answer.
    assert_eq!(client.play(&name, "npt=0-1").status, 200);
    let end = std::time::Instant::now() + crate::client::PATIENCE;
    while fixture.rtsp.all().iter().any(|one| one.state == "playing") {
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(client.order("TEARDOWN", &name).status, 200);
    fixture.wait_for_peace();
}

#[test]
fn requests_are_pipelined_before_their_session_has_a_name() {
    let fixture = Fixture::new(SECOND.times(12));
    let mut client = fixture.connect();
    let url = fixture.url();
    let pipeline = "Pipelined-Requests: 2147483646\r\n";
    let all = format!(
        "SETUP {url}/track1 RTSP/2.0\r\nCSeq: 1\r\n\
         {pipeline}Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n\
         PLAY {url} RTSP/2.0\r\nCSeq: 2\r\n{pipeline}\r\n\
         PAUSE {url} RTSP/2.0\r\nCSeq: 3\r\n{pipeline}\r\n\
         PLAY {url} RTSP/2.0\r\nCSeq: 4\r\nPipelined-Requests: 7\r\n\r\n"
    );
    client.send(all.as_bytes());
    let [set, played, paused, stranger] =
        [(); 4].map(|()| client.receive().expect("an answer to each"));
    for (cseq, reply) in (1..).zip([&set, &played, &paused]) {
        assert_eq!(
            (reply.status, reply.field("CSeq")),
            (200, &*format!("{cseq}")),
            "{}",
            reply.head
        );
        assert_eq!(reply.field("Pipelined-Requests"), "2147483646");
        assert_eq!(reply.session(), set.session());
    }
    assert_eq!((stranger.status, stranger.field("CSeq")), (454, "4"));
    client.cseq = 4;
    // By its name it is the same session, and of another connection the number is nothing.
    let session = format!("Session: {}\r\n", set.session());
    let again = client.two("PLAY", &url, &session);
    assert_eq!(again.status, 200, "{}", again.head);
    client.kept.clear();
    let other = fixture.connect().two("PLAY", &url, pipeline);
    assert_eq!(other.status, 454);
    first_is_named(&again, &url, &client.frames(0, 1)[0]);
    assert_eq!(client.two("TEARDOWN", &url, pipeline).status, 200);
    fixture.wait_for_peace();
    // Its number may be used again.
    let ports = Receiver::new().port;
    let transport = format!("Transport: RTP/AVP;unicast;client_port={ports}-{}\r\n", ports + 1);
    let next = client.two("SETUP", &format!("{url}/track1"), &format!("{pipeline}{transport}"));
    assert_eq!(next.status, 200, "{}", next.head);
    // As it was asked for: by ports.
    assert_eq!(next.parameter("Transport", "client_port"), format!("{ports}-{}", ports + 1));
    assert_ne!(next.session(), set.session());
    assert_eq!(client.two("PLAY", &url, pipeline).session(), next.session());
}

#[test]
fn an_end_is_told_between_frames_and_may_be_left_unanswered() {
    let fixture = Fixture::new(SECOND.times(2));
    let mut client = fixture.connect();
    let url = fixture.url();
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
    let set = client.two("SETUP", &format!("{url}/track1"), transport);
    let session = format!("Session: {}\r\n", set.session());
    for round in 0..2 {
        let played = client.two("PLAY", &url, &session);
        assert_eq!(played.status, 200, "{}", played.head);
        let asked = client.hear();
        assert_eq!(asked.field("Notify-Reason"), "end-of-stream");
        let packets = std::mem::take(&mut client.kept);
        first_is_named(&played, &url, &packets[0]);
        // When it begins again its counters go on, and tables and a mark stand in front.
        let bytes = payload(&packets);
        let is_whole = bytes == fixture.title || round > 0 && bytes.len() >= fixture.title.len();
        assert!(is_whole, "{round}: every byte is before its end: {}", bytes.len());
        let last = sequence(packets.last().expect("many"));
        assert!(asked.field("RTP-Info").ends_with(&format!(":seq={last}")), "{}", asked.head);
    }
    assert_eq!(client.two("TEARDOWN", &url, &session).status, 200);
    fixture.wait_for_peace();
}
