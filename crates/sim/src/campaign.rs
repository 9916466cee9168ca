//! Campaigns: many seeds on all cores, for a time or until the first failure.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::run::{Scenario, run_once, run_twice};
use crate::verdict::Violation;
use crate::world::{Outcome, Tally};

/// The result of a campaign.
pub struct CampaignResult {
    /// Number of worlds run.
    pub worlds: u64,
    /// Sums over them.
    pub tally: Tally,
    /// The failures, by seed; with `stop_at_first` at most one for each core.
    pub failures: Vec<(Scenario, Violation)>,
    /// Time until the first failure, or the end.
    pub took: Duration,
}

/// The selection of seeds.
#[derive(Clone, Copy, Debug)]
pub struct Campaign<'a> {
    /// The first seed; the others count up from it.
    pub first: u64,
    /// These seeds instead, in this order.
    pub among: Option<&'a [u64]>,
    /// Settings common to all of them.
    pub template: Scenario,
    /// Duration.
    pub lasts: Duration,
    /// Limit of seeds.
    pub seeds_max: u64,
    /// Runs of each world: two, to compare them.
    pub runs: u32,
    /// Whether the first failure ends it.
    pub stop_at_first: bool,
    /// Threads.
    pub threads: usize,
}

/// Runs seeds until the time is over.
pub fn run(campaign: &Campaign<'_>, seen: &(impl Fn(Scenario, &Outcome) + Sync)) -> CampaignResult {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let found = Mutex::new(CampaignResult {
        worlds: 0,
        tally: Tally::default(),
        failures: vec![],
        took: Duration::ZERO,
    });
    let work = || {
        while begin.elapsed() < campaign.lasts && !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= campaign.seeds_max {
                break;
            }
            let seed = match campaign.among {
                None => campaign.first.wrapping_add(number),
                Some(seeds) => match seeds.get(number as usize) {
                    Some(&seed) => seed,
                    None => break,
                },
            };
            let scenario = Scenario { seed, ..campaign.template };
            let result = if campaign.runs > 1 { run_twice(scenario) } else { run_once(scenario) };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.worlds += 1;
            match result {
                Ok(outcome) => {
                    found.tally.add(&outcome.tally);
                    seen(scenario, &outcome);
                }
                Err(violation) => {
                    if found.failures.is_empty() {
                        found.took = begin.elapsed();
                    }
                    found.failures.push((scenario, violation));
                    stop.fetch_or(campaign.stop_at_first, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    if found.failures.is_empty() {
        found.took = begin.elapsed();
    }
    found.failures.sort_by_key(|(scenario, _)| scenario.seed);
    found
}
