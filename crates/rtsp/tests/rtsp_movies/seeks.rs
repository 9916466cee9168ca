//! Seeks in a movie on a full server, with and without a PAUSE before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tactus_control::broker::DeliverySpec;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::Rate;

use crate::{Client, TURN, field, fixture};

const SEEKS: u32 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn r05_a_seek_in_a_movie_by_rtsp_keeps_its_room_on_a_full_server() {
    let _turn = TURN.lock().await;
    let fixture = fixture(30).await;
    tokio::task::block_in_place(|| {
        let mut client = Client::new(&fixture);
        let mut named = String::new();
        for track in [1, 2] {
            let ports = format!("client_port={}-{}", 40_000 + 2 * track, 40_001 + 2 * track);
            let transport = format!("Transport: RTP/AVP;unicast;{ports}\r\n{named}");
            let url = format!("{}/track{track}", fixture.url);
            let (head, _) = client.ask("SETUP", &url, &transport);
            let name = field(&head, "Session");
            named = format!("Session: {}\r\n", name.split(';').next().expect("a name"));
        }
        let (play, _) = client.ask("PLAY", &fixture.url, &named);
        assert!(play.starts_with("RTSP/1.0 200"), "{play}");
        let (broker, title) = (&fixture.engine.broker, fixture.title());
        let rate = Rate { rate: BitRate(200_000), burst: Bytes(0), tick: Tick::Ms62 };
        let spec = DeliverySpec::connection(broker, &title, Some(rate), Bytes(1 << 40));
        let spec = spec.of_any_title();
        let others: Vec<_> = std::iter::from_fn(|| broker.admit(&spec).ok()).collect();
        assert!(!others.is_empty());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let newcomer = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if broker.admit(&spec).is_ok() {
                        return true;
                    }
                    thread::sleep(Duration::from_micros(200));
                }
                false
            });
            let mut refused = vec![];
            for seek in 0..SEEKS {
                if seek % 2 == 1 {
                    let (pause, _) = client.ask("PAUSE", &fixture.url, &named);
                    assert!(pause.starts_with("RTSP/1.0 200"), "{pause}");
                }
                let fields = format!("{named}Range: npt={}-\r\n", seek * 7 % 25);
                let (play, _) = client.ask("PLAY", &fixture.url, &fields);
                if !play.starts_with("RTSP/1.0 200") {
                    refused.push((seek, play));
                }
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(!newcomer.join().expect("no panic"), "a newcomer has got the room");
            assert!(refused.is_empty(), "{refused:?}");
        });
        let (over, _) = client.ask("TEARDOWN", &fixture.url, &named);
        assert!(over.starts_with("RTSP/1.0 200"), "{over}");
        assert!(broker.admit(&spec).is_ok(), "a session that has ended keeps nothing");
        drop(others);
    });
    fixture.peace().await;
}
