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
