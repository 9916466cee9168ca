//! The hunt for mutants: each deliberate mistake is switched on, and seeds are run until one
//! detects it.
//!
//! Every second world is a crowded server, in which the order of reads matters. Only a fifth of all
//! seeds are such worlds, and subtle mistakes show nowhere else.

use std::time::{Duration, Instant};

use tactus_core::mutant::{Mutant, switch_on};

use crate::campaign::{self, Campaign};
use crate::packets::{self, Search};
use crate::run::Scenario;
use crate::swarm::{Mode, Swarm};
use crate::verdict::Violation;

/// The result for one mutant.
pub struct HuntResult {
    /// The mistake.
    pub mutant: Mutant,
    /// The seed that detected it, and how.
    pub found: Option<(Scenario, Violation)>,
    /// Worlds until then.
    pub worlds: u64,
    /// Time until then.
    pub took: Duration,
}

/// Hunts `mutant` for at most `lasts`.
pub fn hunt(mutant: Mutant, lasts: Duration, threads: usize) -> HuntResult {
    hunt_among(&in_turn(), mutant, lasts, threads)
}

/// Hunts `mutant` in worlds with datagrams.
pub fn hunt_datagrams(mutant: Mutant, lasts: Duration, threads: usize) -> HuntResult {
    let sends = |&seed: &u64| !Swarm::draw(seed, Mode::of(seed), None).udp_outputs.is_empty();
    let seeds: Vec<u64> = (1..=SEEDS).filter(sends).collect();
    hunt_among(&seeds, mutant, lasts, threads)
}

fn hunt_among(seeds: &[u64], mutant: Mutant, lasts: Duration, threads: usize) -> HuntResult {
    switch_on(Some(mutant));
    let found = campaign::run(
        &Campaign {
            first: 1,
            among: Some(seeds),
            template: Scenario::of(0),
            lasts,
            seeds_max: u64::MAX,
            stop_at_first: true,
            runs: 1,
            threads,
        },
        &|_, _| {},
    );
    switch_on(None);
    let campaign::CampaignResult { worlds, took, failures, .. } = found;
    HuntResult { mutant, found: failures.into_iter().next(), worlds, took }
}

/// Seeds from 1 on, a crowded server and another world in turn.
fn in_turn() -> Vec<u64> {
    let is_crowded = |&seed: &u64| Swarm::draw(seed, Mode::of(seed), None).is_crowded;
    let (crowded, others): (Vec<u64>, Vec<u64>) = (1..=SEEDS).partition(is_crowded);
    crowded.into_iter().zip(others).flat_map(|(crowded, other)| [other, crowded]).collect()
}

/// Four times the largest number that any mistake has needed.
const SEEDS: u64 = 4000;

/// Hunts `mutant` in worlds of packets.
pub fn hunt_packets(mutant: Mutant, lasts: Duration, threads: usize) -> HuntResult {
    let begin = Instant::now();
    switch_on(Some(mutant));
    let found = packets::search(&Search { first: 1, seeds_max: u64::MAX, lasts, threads });
    switch_on(None);
    let failure = found.failure.map(|(seed, violation)| (Scenario::of(seed), violation));
    HuntResult { mutant, found: failure, worlds: found.worlds, took: begin.elapsed() }
}

/// The table of all hunts.
pub fn table(hunts: &[HuntResult]) -> String {
    let mut text = String::from("mutant               found  seconds  worlds  by\n");
    for hunted in hunts {
        let (found, by) = match &hunted.found {
            Some((scenario, violation)) => {
                ("yes", format!("seed {}: {}", scenario.seed, violation.invariant))
            }
            None => ("NO", String::new()),
        };
        let name = format!("{:?}", hunted.mutant);
        let seconds = hunted.took.as_secs_f64();
        text += &format!("{name:<20} {found:<5} {seconds:>8.1} {:>7}  {by}\n", hunted.worlds);
    }
    text
}
