//! Mistakes of the balancer are told by worlds whose load must move servers soon, and then no more.
//! One test, because a mistake is switched on in the whole process.

use tactus_core::mutant::{Mutant, switch_on};
use tactus_core::units::SECOND;
use tactus_sim::Outcome;
use tactus_sim::balancing::{BEGIN, Balancing};

/// Seconds: a disk is busy when streams begin, and servers that have parted for that come together
/// again after ten.
const SETTLED: u64 = 12;

#[test]
fn every_mutant_of_the_balancer_is_told() {
    // Together on one core the servers fill it, by themselves none of them does.
    let parts = Balancing { viewers: 34, seconds: 60, ..Balancing::default() };
    // One server fills a core by itself, beside two others.
    let fills = Balancing { cores: 3, links: 1, viewers: 50, ..parts };
    let told = || {
        [&parts, &fills].into_iter().find_map(|world| match world.run() {
            Err(violation) => Some(violation.to_string()),
            Ok(Outcome { tally, .. }) => {
                let last = tally.last_balanced;
                let is_settled =
                    last > SECOND.times(BEGIN) && last <= SECOND.times(BEGIN + SETTLED);
                (!is_settled)
                    .then(|| format!("{} moves, the last at {last}: {world:?}", tally.balanced))
            }
        })
    };
    assert_eq!(told(), None, "without a mistake servers have soon settled");
    for mutant in Mutant::OF_THE_BALANCER {
        switch_on(Some(mutant));
        let found = told();
        switch_on(None);
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not told");
    }
}
