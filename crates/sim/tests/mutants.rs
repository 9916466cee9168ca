//! Each mistake that the file of past seeds names is told by its seed when it is switched on again.
//! One test, because a mistake is switched on in the whole process.

use tactus_core::mutant::{Mutant, switch_on};
use tactus_sim::run::{Scenario, run_once};

#[test]
fn every_mutant_is_told_by_the_seed_that_names_it() {
    let lines = include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#'));
    let mut told = vec![];
    for line in lines {
        let mut words = line.split_whitespace();
        let seed = words.next().and_then(|seed| seed.parse().ok()).expect("a line has a seed");
        for name in words.skip(1) {
            let mut all = Mutant::ALL.into_iter();
            let mutant = all.find(|mutant| format!("{mutant:?}") == name).expect("a known mutant");
            switch_on(Some(mutant));
            let result = run_once(Scenario::of(seed));
            switch_on(None);
            assert!(result.is_err(), "seed {seed} does not tell {name}");
            told.push(mutant);
        }
    }
    assert!(Mutant::ALL.iter().all(|mutant| told.contains(mutant)), "only {told:?}");
}
