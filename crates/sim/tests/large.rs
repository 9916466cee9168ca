//! Servers of a large machine move ten thousand times beside streams, datagrams, uploads and local
//! programs.
//!
//! The world stops at the first byte or datagram that is early, late, lost or sent twice, at an
//! acknowledged byte that is not on its disk, at a read of a program that is answered wrongly,
//! twice, not at all or after the moment that was promised, and at a block, stream or timer that is
//! left over.

use tactus_core::units::MILLISECOND;
use tactus_sim::large::LargeMachine;
use tactus_sim::run::tally;

#[test]
fn ten_thousand_moves_among_64_cores_lose_delay_and_repeat_nothing() {
    let world = LargeMachine {
        volumes: 4,
        streams: 400,
        datagrams: 40,
        uploads: 2,
        programs: 8,
        every: MILLISECOND,
        seconds: 12,
        ..LargeMachine::default()
    };
    let tally = tally(&world, world.measure().map(|speed| speed.outcome));
    assert!(tally.moves >= 10_000, "{tally:?}");
    assert_eq!((tally.streams_max, tally.underruns), (440, 0), "{tally:?}");
    // The file server has moved with requests under way, and their answers came.
    assert!(tally.carried > 1000 && tally.moments > 20 && tally.reads > 1000, "{tally:?}");
    assert!(tally.killed > 1 && tally.broken_off > 0, "{tally:?}");
    assert!(tally.datagrams > 10_000 && tally.uploads > 0 && tally.completed > 0, "{tally:?}");
}
