//! Spinning disks with the cycle that their memory allows.
//!
//! Every world stops at the first byte of a stream that is late. Times are those of the simulation.

use tactus_core::units::{Nanos, SECOND};
use tactus_sim::Tally;
use tactus_sim::run::tally;
use tactus_sim::spinning::Spinning;

fn run(world: &Spinning) -> Tally {
    tally(world, world.run())
}

#[test]
fn r08_with_the_chosen_cycle_a_disk_holds_what_its_memory_allows_and_no_stream_is_late() {
    let filled = |seed, memory, deliveries| {
        let world = Spinning { seed, memory, deliveries, ..Spinning::default() };
        let (choice, tally) = (world.choice(), run(&world));
        assert_eq!(tally.underruns, 0, "{tally:?}");
        assert_eq!(tally.streams_max, u64::from(choice.streams), "{choice:?} {tally:?}");
        (choice.cycle.0 / SECOND.0, choice.streams)
    };
    assert_eq!(filled(1, 1024, 1), (3, 88));
    assert_eq!(filled(2, 3072, 1), (10, 110));
    // Two delivery servers on two cores ask for it together.
    assert_eq!(filled(1, 1024, 2), (3, 88));
}

#[test]
fn r08_a_seek_on_a_full_disk_does_not_wait_for_a_long_cycle() {
    let world = Spinning { viewers: 110, zappers: 8, ..Spinning::default() };
    assert_eq!(world.choice().cycle, SECOND.times(10));
    let tally = run(&world);
    assert!(tally.streams_max == 110 && tally.begun > 120, "{tally:?}");
    assert!(tally.wait_max < Nanos::from_millis(2000), "{tally:?}");
    assert!(tally.waits < Nanos::from_millis(300).times(tally.begun), "{tally:?}");
}

#[test]
fn r08_a_crowd_on_an_idle_disk_begins_as_fast_as_the_disk_reads_its_windows() {
    let median = |cycle| {
        let world =
            Spinning { cycle, viewers: 60, arrive_within: 1, seconds: 30, ..Spinning::default() };
        run(&world).wait_median
    };
    // 60 windows of 24 MiB take ten seconds.
    assert!(median(None) <= Nanos::from_millis(4500), "{}", median(None));
    assert!(median(Some(4)) <= Nanos::from_millis(2500), "{}", median(Some(4)));
}
