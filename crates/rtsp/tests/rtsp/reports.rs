//! What receivers report of what they are sent is told, over UDP and within the connection, and
//! nothing else of it happens.

use std::time::Instant;

use tactus_core::rtp::rtcp::{self, Compound, Packet, Reception, SenderInfo};
use tactus_core::units::SECOND;
use tactus_rtsp::Receiver as Told;

use crate::Fixture;
use crate::client::{Client, PATIENCE, Receiver, Reply};

const OWN: u32 = 7;

/// Some packets are lost, and the report before is half a second old.
fn report(source: u32, heard: Option<SenderInfo>) -> Vec<u8> {
    let block = Reception {
        source,
        fraction_lost: 32,
        lost: 17,
        highest: 400,
        jitter: 45,
        last_report: heard.map_or(0, |info| info.time.middle()),
        delay: 0,
    };
    Compound::of_receiver(OWN, &[block]).name(OWN, "a receiver").into_bytes()
}

fn source(set: &Reply) -> u32 {
    u32::from_str_radix(&set.parameter("Transport", "ssrc"), 16).expect("a source")
}

/// What is told of the only session, when anything is.
fn told(fixture: &Fixture) -> Told {
    let end = Instant::now() + PATIENCE;
    loop {
        let all = fixture.rtsp.all();
        assert_eq!(all.len(), 1, "{all:?}");
        if let [told] = all[0].receivers[..] {
            let json = serde_json::to_value(&all[0]).expect("it is plain");
            assert_eq!(json["receivers"][0]["lost_packets"], told.lost_packets);
            return told;
        }
        assert!(Instant::now() < end, "nothing is told");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn is_as_reported(told: &Told) {
    assert_eq!((told.track, told.lost_packets, told.lost_ratio), (1, 17, 0.125));
    assert!((told.jitter_seconds - 0.0005).abs() < 1e-9, "{told:?}");
    assert!((0.0..300.0).contains(&told.reported_seconds_ago), "{told:?}");
}

fn sender_report(bytes: &[u8]) -> Option<SenderInfo> {
    rtcp::read(bytes).expect("RTCP").find_map(|packet| match packet {
        Packet::Sender { info, .. } => Some(info),
        _ => None,
    })
}

#[test]
fn what_a_receiver_reports_by_udp_is_told() {
    let fixture = Fixture::new(SECOND.times(12));
    let mut client = fixture.connect();
    let receiver = Receiver::new();
    let set = client.set_up(receiver.port);
    let (source, session) = (source(&set), set.session());
    assert_eq!(client.play(&session, "npt=0-").status, 200);
    let ports = set.parameter("Transport", "server_port");
    let port: u16 = ports.split('-').nth(1).expect("two ports").parse().expect("a number");
    let to = (fixture.address.ip(), port);
    let heard = sender_report(&receiver.report()).expect("a sender report");
    receiver.rtcp.send_to(&report(source, Some(heard)), to).expect("it is sent");
    let one = told(&fixture);
    is_as_reported(&one);
    assert!(one.round_trip_seconds.is_some_and(|trip| trip < 60.0), "{one:?}");
    assert_eq!(fixture.rtsp.reported().round_trip.count(), 1);

    // Of others, from elsewhere, cut off: counted or passed over, and nothing of it is told.
    let counters = fixture.rtsp.counters();
    let (bad, good) = (counters.reports_bad(), counters.reports());
    let right = report(source, None);
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    stranger.send_to(&right, to).expect("it is sent");
    receiver.rtcp.send_to(&right[..right.len() - 4], to).expect("it is sent");
    receiver.rtcp.send_to(&report(!source, None), to).expect("it is sent");
    let end = Instant::now() + PATIENCE;
    while counters.reports_bad() < bad + 2 || counters.reports() < good + 1 {
        assert!(Instant::now() < end, "{} {}", counters.reports_bad(), counters.reports());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(told(&fixture).reports, 1);
    assert_eq!(fixture.rtsp.reported().lost.count(), 1);
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
    assert!(fixture.rtsp.all().is_empty());
    fixture.wait_for_peace();
}

#[test]
fn what_a_receiver_reports_within_the_connection_is_told() {
    let fixture = Fixture::new(SECOND.times(12));
    let mut client: Client = fixture.connect();
    let url = fixture.url();
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
    let set = client.ask("SETUP", &format!("{url}/track1"), transport);
    let (source, session) = (source(&set), set.session());
    let bytes = report(source, None);
    let frame = |bytes: &[u8]| [&[b'$', 5, 0, bytes.len() as u8][..], bytes].concat();
    // Before anything is played, and while it is.
    client.send(&frame(&bytes));
    let one = told(&fixture);
    is_as_reported(&one);
    assert_eq!((one.reports, one.round_trip_seconds), (1, None), "it has heard no report");
    assert_eq!(client.play(&session, "npt=0-").status, 200);
    client.frames(4, 20);
    client.send(&frame(&bytes));
    let end = Instant::now() + PATIENCE;
    while told(&fixture).reports < 2 {
        assert!(Instant::now() < end, "{:?}", fixture.rtsp.all());
        // The connection flows only while it is read.
        client.frames(4, 20);
    }
    assert_eq!(fixture.rtsp.reported().jitter.count(), 2);
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
    fixture.wait_for_peace();
}
