//! Each of the pacer's mistakes is told by a world of packets, in a process of its own: a mistake
//! is switched on everywhere at once.

use std::time::Duration;

use tactus_core::mutant::Mutant;
use tactus_sim::hunt::hunt_packets;

#[test]
fn every_mistake_of_the_pacer_is_told_by_a_world_of_packets() {
    for mutant in Mutant::OF_THE_PACER {
        let hunted = hunt_packets(mutant, Duration::from_secs(600), 2);
        assert!(hunted.found.is_some(), "{mutant:?} lived through {} worlds", hunted.worlds);
    }
}
