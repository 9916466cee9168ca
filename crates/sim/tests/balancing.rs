//! The balancer in a world whose load is steady, and doubles.
//!
//! Every world stops at the first byte of a stream that is late. Times are those of the simulation.

use tactus_core::units::SECOND;
use tactus_sim::Tally;
use tactus_sim::balancing::{BEGIN, Balancing};
use tactus_sim::run::tally;

fn run(world: &Balancing) -> Tally {
    tally(world, world.run())
}

#[test]
fn idle_servers_share_a_core_and_ten_minutes_of_steady_load_move_none_of_them() {
    let steady = run(&Balancing { seconds: 620, ..Balancing::default() });
    assert!(steady.balanced > 0 && steady.streams_max == 20, "{steady:?}");
    assert!(steady.last_balanced < SECOND.times(BEGIN), "{steady:?}");
}

#[test]
fn load_that_doubles_takes_another_core_within_a_second_and_moves_nothing_later() {
    for (seed, seconds) in [(1, 640), (2, 60), (3, 60)] {
        let world = Balancing { seed, ..Balancing::default() };
        let before = run(&world);
        let doubled = run(&Balancing { doubles: Some(40), seconds, ..world });
        assert!(doubled.balanced > before.balanced, "{doubled:?}");
        let last = doubled.last_balanced;
        // The last of the viewers comes a tenth of a second after the first.
        assert!(last > SECOND.times(40) && last <= SECOND.times(41), "{doubled:?}");
        assert_eq!((doubled.streams_max, doubled.underruns), (40, 0), "{doubled:?}");
    }
}
