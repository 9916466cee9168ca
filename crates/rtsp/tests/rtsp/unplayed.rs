//! Reservations of sessions: played ones, and those that are set up and never played.

use tactus_core::units::BitRate;

use super::*;

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn p07_an_unplayed_session_ends_with_its_connection() {
    let fixture = Fixture::new(SECOND.times(6));
    let mut keeper = fixture.connect();
    let receiver = Receiver::new();
    let session = keeper.set_up(receiver.port).session();
    assert_eq!(keeper.play(&session, "npt=0-").status, 200);
    {
        let (mut client, receiver) = (fixture.connect(), Receiver::new());
        assert_eq!(client.set_up(receiver.port).status, 200);
        let mut framed = fixture.connect();
        let tcp = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
        assert_eq!(framed.ask("SETUP", &fixture.url(), tcp).status, 200);
        assert_eq!(fixture.rtsp.len(), 3);
        assert!(fixture.engine.broker.streams() >= 3);
    }
    until("both are over", || fixture.rtsp.len() == 1);
    // The title had several viewers, so it may be pinned in memory, which counts as a stream.
    let streams = || fixture.engine.broker.streams() - fixture.engine.broker.pinned_titles() as u32;
    until("both have given back their rate", || streams() == 1);
    // A client that has played may return on another connection.
    drop(keeper);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((fixture.rtsp.len(), fixture.rtsp.all()[0].state), (1, "playing"));
}

#[test]
fn p07_an_unplayed_reservation_is_released_and_renewed_by_play() {
    let fixture = Fixture::new(SECOND.times(6));
    for tcp in [false, true] {
        let (mut client, mut receiver) = (fixture.connect(), Receiver::new());
        let set = match tcp {
            true => {
                let fields = "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n";
                client.ask("SETUP", &fixture.url(), fields)
            }
            false => client.set_up(receiver.port),
        };
        let session = set.session();
        assert_eq!(fixture.engine.broker.streams(), 1);
        // Keep-alives do not hold the reservation: it is released after five seconds.
        until("the reservation is released", || {
            std::thread::sleep(Duration::from_millis(200));
            fixture.engine.broker.streams() == 0
        });
        assert_eq!(client.order("GET_PARAMETER", &session).status, 200);
        assert_eq!(fixture.rtsp.len(), 1);
        let played = client.play(&session, "npt=0-");
        assert_eq!(played.status, 200, "{played:?}");
        let packets = if tcp { client.frames(4, 30) } else { receiver.take(30) };
        first_matches(&played, &packets[0]);
        assert_eq!(fixture.engine.broker.streams(), 1);
        assert_eq!(client.order("TEARDOWN", &session).status, 200);
        fixture.wait_for_peace();
    }
}

#[test]
fn p07_connections_that_only_set_up_keep_no_other_client_out() {
    // The title has 3.76 Mbit/s: two streams are a tenth of the link, and 20 fill it.
    let fixture = Fixture::with(SECOND.times(6), |settings| {
        settings.engine.link.rate = Auto::Set(BitRate(80_000_000));
        settings.rtsp.connections_per_address_max = 1000;
    });
    let mut halves = vec![];
    let mut set_up = 0;
    for _ in 0..200 {
        let (mut client, receiver) = (fixture.connect(), Receiver::new());
        let status = client.set_up(receiver.port).status;
        assert!(matches!(status, 200 | 453), "{status}");
        set_up += u32::from(status == 200);
        halves.push((client, receiver));
        if halves.len() > 100 {
            halves.remove(0);
        }
    }
    assert!(fixture.engine.broker.streams() <= 2);
    // Each closed session makes room for another one.
    assert!((2..100).contains(&set_up), "{set_up}");
    let viewers: Vec<_> = (0..8)
        .map(|nth| {
            let mut client = Client::connect_from(fixture.address, "127.0.0.2", fixture.url());
            let receiver = Receiver::at("127.0.0.2".parse().expect("an address"));
            let set = client.set_up(receiver.port);
            assert_eq!(set.status, 200, "{nth}: {set:?}");
            assert_eq!(client.play(&set.session(), "npt=0-").status, 200, "{nth}");
            (client, receiver)
        })
        .collect();
    assert_eq!(fixture.rtsp.all().iter().filter(|one| one.state == "playing").count(), 8);
    drop(viewers);
}

#[test]
fn a_session_without_room_gets_453_with_the_short_resource() {
    let fixture = Fixture::with(SECOND.times(2), |settings| {
        settings.engine.link = Link { rate: Auto::Set(BitRate(9_000_000)), budget: Percent::WHOLE };
    });
    let mut client = fixture.connect();
    // Both play: of unplayed sessions, an address may hold only one on such a narrow link.
    let [_, two] = [40_000, 40_002].map(|port| {
        let set = client.set_up(port);
        assert_eq!((set.status, client.play(&set.session(), "").status), (200, 200), "{set:?}");
        set
    });
    let three = client.set_up(40_004);
    assert_eq!(three.status, 453, "{three:?}");
    assert!(three.body.contains("the link"), "{}", three.body);
    assert!(three.field("Retry-After").parse::<u32>().is_ok());
    // An ended session has released its reservation before TEARDOWN is answered.
    let mut last = two.session();
    for round in 0..100 {
        if round % 2 == 0 {
            assert_eq!(client.play(&last, "").status, 200);
        }
        assert_eq!(client.order("TEARDOWN", &last).status, 200);
        let next = client.set_up(40_004);
        assert_eq!(next.status, 200, "{round}: {}", next.body);
        last = next.session();
    }
}
