//! Mistakes in what is learned about disks are told by worlds whose disks differ from their models.
//! One test, because a mistake is switched on in the whole process.

use tactus_core::mutant::{Mutant, switch_on};
use tactus_sim::Outcome;
use tactus_sim::learning::{Learning, TRUTH};

#[test]
fn r11_every_mutant_of_learning_is_told() {
    // Many viewers on a disk that is slower than its guess, and few on one that becomes slow and on
    // one that is fast for a moment only.
    let many =
        Learning { guess: 40, viewers: 60, arrive_within: 5, seconds: 15, ..Learning::default() };
    let few = Learning { seconds: 60, ..Learning::default() };
    let slow = Learning { slow: vec![(20, 60, 2)], ..few.clone() };
    let limited = Learning { guess: 400, limited: Some(50), seconds: 135, ..few };
    let worlds = [(&many, TRUTH), (&slow, TRUTH / 2), (&limited, TRUTH / 2)];
    let told = || {
        worlds.iter().find_map(|&(world, truth)| match world.run() {
            Err(violation) => Some(violation.to_string()),
            Ok(Outcome { tally, .. }) if tally.deferred_max > 0 => {
                Some(format!("{} deferred", tally.deferred_max))
            }
            Ok(Outcome { tally, .. }) if tally.capacity * 10 > truth * 11 => {
                Some(format!("{} of {truth} promised", tally.capacity))
            }
            Ok(_) => None,
        })
    };
    assert_eq!(told(), None, "without a mistake the streams are on time");
    for mutant in Mutant::OF_LEARNING {
        switch_on(Some(mutant));
        let found = told();
        switch_on(None);
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not told");
    }
}
