//! No turn of a core allocates or frees after the start. Every world counts that, in every turn;
//! here it is shown for worlds of each kind, and that the count would tell.

use tactus_core::units::SECOND;
use tactus_sim::Mode;
use tactus_sim::run::{Scenario, run_once};

#[test]
fn no_turn_allocates_after_the_start() {
    for (seed, mode) in
        [(11, Mode::Guarantee), (12, Mode::Safety), (13, Mode::Liveness), (14, Mode::Safety)]
    {
        let scenario = Scenario { seed, mode: Some(mode), duration: Some(SECOND.times(2)) };
        let outcome = run_once(scenario).unwrap_or_else(|violation| panic!("{seed}: {violation}"));
        assert!(outcome.tally.turns > 100, "{seed}: {:?}", outcome.tally);
    }
}

#[test]
fn the_count_tells_of_a_single_byte() {
    let allocated = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(7_u8))));
    assert_eq!((allocated.count_total, allocated.bytes_total), (1, 1));
    let byte = Box::new(7_u8);
    let freed = allocation_counter::measure(|| drop(std::hint::black_box(byte)));
    assert_eq!(freed.count_current, -1);
}
