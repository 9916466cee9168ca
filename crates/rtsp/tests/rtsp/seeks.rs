//! Seeks on a full server.

use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::units::BitRate;

use super::*;

#[test]
fn r05_a_seek_by_rtsp_keeps_its_room_on_a_full_server() {
    // Two streams of 3.76 Mbit/s fit.
    let fixture = Fixture::with(SECOND.times(12), |settings| {
        settings.engine.link = Link { rate: Auto::Set(BitRate(9_000_000)), budget: Percent::WHOLE };
    });
    let mut client = fixture.connect();
    let [own, _other] = [40_000, 40_002].map(|port| {
        let session = client.set_up(port).session();
        assert_eq!(client.play(&session, "npt=0-").status, 200);
        session
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| {
            let mut client = fixture.connect();
            let mut statuses = vec![];
            while !is_over.load(Ordering::Relaxed) {
                statuses.push(client.set_up(40_004).status);
                std::thread::sleep(Duration::from_millis(1));
            }
            statuses
        });
        for seek in 0..40 {
            if seek % 2 == 1 {
                assert_eq!(client.order("PAUSE", &own).status, 200);
            }
            let played = client.play(&own, &format!("npt={}-", seek * 3 % 10));
            assert_eq!(played.status, 200, "{seek}: {played:?}");
        }
        is_over.store(true, Ordering::Relaxed);
        let statuses = newcomer.join().expect("no panic");
        assert!(!statuses.is_empty() && statuses.iter().all(|&status| status == 453));
    });
}
