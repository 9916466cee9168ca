//! The figures of the rounds: the balancer by itself, and beside the best placement by hand.
//!
//! Promise: a placement is compared with the best one of the same round, figure by figure. The
//! price of a byte is that of placements that carry all of the load.

use serde::Serialize;

use crate::report::{Report, Table, Verdict, number, spread};
use crate::spread::Spread;

/// What one run has shown.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub(super) struct Run {
    pub(super) arrangement: &'static str,
    pub(super) is_balanced: bool,
    /// From the last request of the doubling to the last move of the second after it, in seconds;
    /// none without a move.
    pub(super) settled: Option<f64>,
    /// Moves in the rest of the time of steady load.
    pub(super) later: usize,
    /// From the end of the further streams until the last move, in seconds.
    pub(super) together: Option<f64>,
    /// Requests of the doubling that were refused or broke.
    pub(super) refused: usize,
    /// The same of those that one core does not carry.
    pub(super) refused_beyond: usize,
    /// Underruns of the streams from the beginning, and those that failed.
    pub(super) late: u64,
    /// Underruns of the further streams, and those that broke.
    pub(super) further_late: u64,
    /// Streams at once, in all.
    pub(super) capacity: usize,
    /// CPU seconds per 10^9 bytes under steady load.
    pub(super) cpu_per_gb: f64,
}

impl Run {
    /// The price of a byte; without bound if requests were refused.
    fn price(&self) -> f64 {
        if self.refused + self.refused_beyond == 0 { self.cpu_per_gb } else { f64::INFINITY }
    }
}

/// All runs.
#[derive(Default)]
pub(super) struct Rounds(Vec<Run>);

impl Rounds {
    pub(super) fn add(&mut self, run: Run) {
        self.0.push(run);
    }

    /// Those of an arrangement.
    fn of(&self, arrangement: &str) -> Vec<Run> {
        self.0.iter().filter(|run| run.arrangement == arrangement).copied().collect()
    }

    /// The balancer's figure against the best one by hand in each round. `best` picks it.
    fn against(&self, value: fn(&Run) -> f64, best: fn(f64, f64) -> f64) -> Vec<f64> {
        let balanced: Vec<_> = self.0.iter().filter(|run| run.is_balanced).collect();
        let names = self.hands();
        let by_hand = |round: usize| {
            let runs = names.iter().filter_map(|name| self.of(name).get(round).map(value));
            runs.reduce(best)
        };
        let ratio = |(round, run): (usize, &&Run)| Some(value(run) / by_hand(round)?);
        balanced.iter().enumerate().filter_map(ratio).collect()
    }

    /// The names of the placements by hand.
    fn hands(&self) -> Vec<&'static str> {
        let mut names: Vec<_> =
            self.0.iter().filter(|run| !run.is_balanced).map(|run| run.arrangement).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Writes tables and goals.
    pub(super) fn summarise(&self, report: &mut Report) {
        let balanced: Vec<_> = self.0.iter().filter(|run| run.is_balanced).copied().collect();
        report.tables.push(self.places());
        let cpu = self.against(Run::price, f64::min);
        let capacity = self.against(|run| run.capacity as f64, f64::max);
        let median = |ratios: &[f64]| Spread::of(ratios).map(|all| all.median);
        let sum = |value: fn(&Run) -> u64| balanced.iter().map(value).sum::<u64>() as f64;
        if !balanced.is_empty() {
            report.tables.push(moves(&balanced));
            let settled: Vec<_> = balanced.iter().filter_map(|run| run.settled).collect();
            let slowest = settled.iter().copied().reduce(f64::max);
            let slowest = slowest.filter(|_| settled.len() == balanced.len());
            report.verdicts.extend([
                at_most(
                    "settled after load has doubled, s, in the slowest round",
                    slowest,
                    1.0,
                    0.3,
                ),
                at_most("moves afterwards", Some(sum(|run| run.later as u64)), 0.0, 0.0),
                at_most(
                    "requests refused, past what one core carries too",
                    Some(sum(|run| (run.refused + run.refused_beyond) as u64)),
                    0.0,
                    0.0,
                ),
                at_most(
                    "underruns and failed streams",
                    Some(sum(|run| run.late + run.further_late)),
                    0.0,
                    0.0,
                ),
            ]);
        }
        if !cpu.is_empty() {
            report.verdicts.extend([
                at_most(
                    "CPU per byte against the best placement by hand",
                    median(&cpu),
                    1.05,
                    1.02,
                ),
                // Less is worse here.
                at_most(
                    "the best capacity by hand against the balancer's",
                    median(&capacity).map(|ratio| 1.0 / ratio),
                    1.05,
                    1.02,
                ),
            ]);
        }
    }

    fn places(&self) -> Table {
        let head = ["placement", "CPU s/GB", "capacity, streams", "refused", "late"];
        let mut table = Table::new("placements", &head);
        let mut names: Vec<_> = self.0.iter().map(|run| run.arrangement).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let runs = self.of(name);
            let list = |value: fn(&Run) -> f64| spread(&runs.iter().map(value).collect::<Vec<_>>());
            table.row(vec![
                name.into(),
                list(|run| run.cpu_per_gb),
                list(|run| run.capacity as f64),
                list(|run| (run.refused + run.refused_beyond) as f64),
                list(|run| (run.late + run.further_late) as f64),
            ]);
        }
        table
    }
}

/// What the balancer did.
fn moves(balanced: &[Run]) -> Table {
    let mut table = Table::new("the balancer", &["figure", "median of the rounds (range)"]);
    let mut row = |name: &str, value: fn(&Run) -> Option<f64>| {
        let values: Vec<_> = balanced.iter().filter_map(value).collect();
        table.row(vec![name.into(), spread(&values)]);
    };
    row("settled after the last request of the doubling, s", |run| run.settled);
    row("moves afterwards, under steady load", |run| Some(run.later as f64));
    row("refused while the load doubled", |run| Some(run.refused as f64));
    row("refused past what one core carries", |run| Some(run.refused_beyond as f64));
    row("one core again after the last byte, s", |run| run.together);
    table
}

fn at_most(figure: &str, value: Option<f64>, must: f64, push: f64) -> Verdict {
    Verdict {
        figure: figure.into(),
        measured: value.map_or("-".into(), number),
        must: number(must),
        reached: Some(value.is_some_and(|value| value <= must)),
        push: number(push),
        pushed: Some(value.is_some_and(|value| value <= push)),
    }
}
