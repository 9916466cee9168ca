//! Seeds that once broke a promise do not break it again, and a seed's world is the same each time.

use tactus_core::units::SECOND;
use tactus_sim::Mode;
use tactus_sim::run::{Scenario, run_once, run_twice};

/// The lines of the file of past seeds.
fn past() -> Vec<Scenario> {
    let lines = include_str!("../seeds.txt").lines();
    let seeds = lines.filter(|line| !line.starts_with('#')).map(|line| {
        let mut words = line.split_whitespace();
        let seed = words.next().and_then(|seed| seed.parse().ok()).expect("a line has a seed");
        let mode = match words.next() {
            Some("guarantee") => Mode::Guarantee,
            Some("safety") => Mode::Safety,
            Some("liveness") => Mode::Liveness,
            Some("degradation") => Mode::Degradation,
            other => panic!("no mode: {other:?}"),
        };
        Scenario { seed, mode: Some(mode), duration: None }
    });
    seeds.collect()
}

#[test]
fn seeds_that_once_broke_a_promise_keep_it() {
    let (one, two): (Vec<_>, Vec<_>) = past().into_iter().partition(|past| past.seed % 2 == 0);
    std::thread::scope(|scope| {
        for half in [one, two] {
            scope.spawn(move || {
                for scenario in half {
                    if let Err(violation) = run_once(scenario) {
                        panic!("seed {} broke {violation}\n{}", scenario.seed, scenario.command());
                    }
                }
            });
        }
    });
}

#[test]
fn a_seed_is_the_same_world_each_time_and_another_seed_is_not() {
    let short = |seed| Scenario { duration: Some(SECOND), ..Scenario::of(seed) };
    let first = run_twice(short(4)).expect("it keeps every promise");
    assert_eq!(run_once(short(4)), Ok(first));
    assert_ne!(run_once(short(9)).map(|outcome| outcome.trace), Ok(first.trace));
    assert!(first.tally.started > 0 && first.tally.bytes > 0);
}

#[test]
fn the_command_of_a_scenario_names_all_of_it() {
    let scenario = Scenario { seed: 7, mode: Some(Mode::Safety), duration: Some(SECOND.times(3)) };
    let command = "cargo run --release -p tactus-sim -- --seed 7 --mode safety --duration 3";
    assert_eq!(scenario.command(), command);
}
