//! One phase of a run: what the streams were like in it, so that two phases can be compared.
//!
//! Promise: lateness is fitted over both phases together, so a shift between them shows.

use anyhow::{Context, Result};
use serde::Serialize;
use tactus_core::units::{BitRate, MILLISECOND, SECOND};

use crate::arrivals::Trace;
use crate::figures::delay_factor::{self, DelayFactor};
use crate::figures::jitter::{self, Jitter};
use crate::figures::lateness;
use crate::figures::windows::{Grid, Span};
use crate::report::{Table, spread};
use crate::spread;

/// The figures of a phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Phase {
    /// J over 1 s.
    pub j1s: Jitter,
    /// J over 100 ms.
    pub j100ms: Jitter,
    /// DF over the phase.
    pub df: DelayFactor,
    /// The median lateness of an arrival, milliseconds.
    pub late_p50: f64,
    /// Its 99th percentile.
    pub late_p99: f64,
}

/// Two phases of several rounds beside each other; `during` is the head of the second.
pub fn table(during: &str, phases: [&[Phase]; 2]) -> Table {
    let mut table = Table::new("phases", &["figure", "before", during]);
    let mut row = |name: &str, value: fn(&Phase) -> f64| {
        let values = |phases: &[Phase]| phases.iter().map(value).collect::<Vec<_>>();
        let [before, during] = phases.map(|phases| spread(&values(phases)));
        table.row(vec![name.into(), before, during]);
    };
    row("J 1 s, mean, %", |phase| phase.j1s.mean);
    row("J 100 ms, mean, %", |phase| phase.j100ms.mean);
    row("DF p99, ms", |phase| phase.df.p99);
    row("lateness p50, ms", |phase| phase.late_p50);
    row("lateness p99, ms", |phase| phase.late_p99);
    table
}

/// The figures of `traces` in `phase`, which lies in `whole`.
pub fn of(
    traces: &[Trace],
    rate: BitRate,
    whole: Span,
    phase: Span,
    gaps: &[Span],
) -> Result<Phase> {
    let grid = |window| Grid::new(phase, window, gaps);
    let lack = "a phase without a stream or a window";
    let each = traces.iter().flat_map(|trace| lateness::in_phase(trace, rate, whole, phase));
    let mut late: Vec<f64> = each.collect();
    Ok(Phase {
        j1s: jitter::jitter(traces, rate, &grid(SECOND)).context(lack)?,
        j100ms: jitter::jitter(traces, rate, &grid(MILLISECOND.times(100))).context(lack)?,
        df: delay_factor::per_run(traces, rate, &grid(SECOND)).context(lack)?,
        late_p50: spread::quantile(&mut late, 0.5).context(lack)?,
        late_p99: spread::quantile(&mut late, 0.99).context(lack)?,
    })
}
