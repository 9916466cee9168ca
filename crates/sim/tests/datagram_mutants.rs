//! Each of the packet server's mistakes is told by a world with datagrams, in a process of its own:
//! a mistake is switched on everywhere at once.

use std::time::Duration;

use tactus_core::mutant::{Mutant, switch_on};
use tactus_sim::hunt::hunt_datagrams;
use tactus_sim::run::{Scenario, run_once};

/// The worlds that have told them so far; a hunt found them. What a seed stands for changes when
/// worlds are drawn in another way: then the hunt finds another.
const TOLD_BY: &[(u64, &[Mutant])] = &[
    (5, &[Mutant::FedKept, Mutant::SeamIgnored]),
    (24, &[Mutant::SequenceByMessage, Mutant::TimestampOfMessage, Mutant::LateEarly]),
    (39, &[Mutant::FullDropped]),
    (59, &[Mutant::RefusedCounted, Mutant::StallOwed]),
    (142, &[Mutant::BurstEarly]),
    (208, &[Mutant::CancelForgotten, Mutant::OfferedUnready]),
    (920, &[Mutant::FullForAll]),
];

#[test]
fn every_mistake_of_the_packet_server_is_told_by_a_world_with_datagrams() {
    for mutant in Mutant::OF_DATAGRAMS {
        if is_told_by_its_seed(mutant) {
            continue;
        }
        let hunted = hunt_datagrams(mutant, Duration::from_secs(600), 2);
        let Some((scenario, violation)) = hunted.found else {
            panic!("{mutant:?} lived through {} worlds", hunted.worlds);
        };
        println!("{mutant:?} is told by seed {}: {violation}", scenario.seed);
    }
}

fn is_told_by_its_seed(mutant: Mutant) -> bool {
    let seed = TOLD_BY.iter().find(|(_, mutants)| mutants.contains(&mutant));
    seed.is_some_and(|&(seed, _)| {
        switch_on(Some(mutant));
        let result = run_once(Scenario::of(seed));
        switch_on(None);
        result.is_err()
    })
}
