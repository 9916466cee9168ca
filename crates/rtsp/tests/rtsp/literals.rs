//! Requests in other letter case, odd ports, and passwords in URLs.

use std::net::Ipv4Addr;

use super::*;
use tactus_sys::udp_input::{InputOptions, UdpInput};

/// A receiver at an odd RTP port, with RTCP at the next port.
fn odd() -> (UdpInput, UdpSocket, u16) {
    loop {
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let wanted = InputOptions { to, source: None, interface: None, buffer: 4 << 20 };
        let rtp = UdpInput::open(&wanted).expect("a port");
        let port = rtp.address().expect("bound").port();
        if port % 2 == 1
            && port < u16::MAX
            && let Ok(rtcp) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port + 1))
        {
            return (rtp, rtcp, port);
        }
    }
}

#[test]
fn p04_requests_in_other_letters_are_played_to_odd_ports() {
    let fixture = Fixture::new(SECOND.times(6));
    let url = fixture.url();
    for version in ["RTSP/1.0", "rtsp/1.0"] {
        let mut client = fixture.connect();
        let described = client.ask_in(version, "DESCRIBE", &url, "ACCEPT: Application/SDP\r\n");
        assert_eq!(described.status, 200);
        let (mut rtp, rtcp, port) = odd();
        let transport = format!("rtp/AVP/Udp;UNICAST;Client_Port={port}-{}", port + 1);
        let fields = format!("TRANSPORT: {transport};MODE=\"play\"\r\n");
        let track = format!("{}/track1", url.replace("rtsp://", "RTSP://"));
        let set = client.ask_in(version, "SETUP", &track, &fields);
        assert_eq!(set.status, 200, "{set:?}");
        assert!(set.field("Transport").contains("unicast"), "{set:?}");
        assert_eq!(set.parameter("Transport", "client_port"), format!("{port}-{}", port + 1));
        let session = set.session();
        let fields = format!("session: {session}\r\nrange: NPT=1-Now\r\n");
        assert_eq!(
            client.ask_in(version, "PLAY", &url, &fields).status,
            457,
            "the range has no end"
        );
        let fields = format!("session: {session}\r\nrange: NPT=0-4\r\n");
        let played = client.ask_in(version, "PLAY", &url, &fields);
        assert_eq!(played.status, 200, "{played:?}");
        let end = Instant::now() + PATIENCE;
        let mut came = 0;
        while came < 20 {
            assert!(Instant::now() < end);
            if rtp.receive(|_| came += 1).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(rtcp);
        assert_eq!(client.order("TEARDOWN", &session).status, 200);
    }
    fixture.wait_for_peace();
}

#[test]
fn p05_no_answer_repeats_a_password_of_a_url() {
    let fixture = Fixture::new(SECOND.times(6));
    let mut client = fixture.connect();
    let plain = fixture.url();
    let url = plain.replace("rtsp://", "rtsp://anna:correct-horse@");
    let described = client.ask("DESCRIBE", &url, "");
    assert_eq!((described.status, described.field("Content-Base")), (200, &*format!("{plain}/")));
    let receiver = Receiver::new();
    let transport = format!("RTP/AVP;unicast;client_port={}-{}", receiver.port, receiver.port + 1);
    let fields = format!("Transport: {transport}\r\n");
    let set = client.ask("SETUP", &format!("{url}/track1"), &fields);
    let session = format!("Session: {}\r\n", set.session());
    let played = client.ask("PLAY", &url, &session);
    assert_eq!(played.status, 200);
    for reply in [&described, &set, &played] {
        assert!(!reply.head.contains("correct-horse") && !reply.body.contains("correct-horse"));
    }
    assert!(played.field("RTP-Info").starts_with(&format!("url={plain}/track1;")));
    assert_eq!(client.ask("TEARDOWN", &url, &session).status, 200);
}
