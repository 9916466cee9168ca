//! Each of the packet server's mistakes is told by a world with datagrams, in a process of its own:
//! a mistake is switched on everywhere at once.
#![cfg(feature = "mutants")]

use std::time::Duration;

use tactus_core::mutant::Mutant;
use tactus_sim::hunt::hunt_datagrams;

#[test]
fn every_mistake_of_the_packet_server_is_told_by_a_world_with_datagrams() {
    for mutant in Mutant::OF_DATAGRAMS {
        let hunted = hunt_datagrams(mutant, Duration::from_secs(600), 2);
        assert!(hunted.found.is_some(), "{mutant:?} lived through {} worlds", hunted.worlds);
    }
}
