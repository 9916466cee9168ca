//! DF: the buffer that a receiver needs to drain at the rate, as time.
//!
//! Promise: VB(t) = bytes received - rate x (t - t0), taken just before and just after each
//! arrival; DF = (max VB - min VB) / rate. Two forms, as RFC 4445 and as the goals use them: per
//! second, and per run (one value per stream over the largest piece without a dropped window). A
//! piece without any arrival drains for its whole length.

use serde::Serialize;
use tactus_core::units::BitRate;

use crate::arrivals::Trace;
use crate::figures::windows::{Grid, Span};
use crate::spread;

/// Quantiles of a delay factor, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct DelayFactor {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// DF per run: one value per stream, quantiles over the streams.
pub fn per_run(traces: &[Trace], rate: BitRate, grid: &Grid) -> Option<DelayFactor> {
    let piece = grid.largest_piece()?;
    quantiles(traces.iter().map(|trace| of(trace, rate, piece)).collect())
}

/// DF per window: one value per stream and window, quantiles over all of them.
pub fn per_window(traces: &[Trace], rate: BitRate, grid: &Grid) -> Option<DelayFactor> {
    let all = traces.iter().flat_map(|trace| grid.kept().map(|window| of(trace, rate, window)));
    quantiles(all.collect())
}

/// DF of one stream over one span, in milliseconds.
pub fn of(trace: &Trace, rate: BitRate, span: Span) -> f64 {
    let bytes_per_nano = rate.0 as f64 / 8e9;
    let (mut lowest, mut highest) = (f64::INFINITY, f64::NEG_INFINITY);
    let steps = trace.between(span.from, span.to);
    let received = steps.first().map_or(0, |first| first.before);
    for step in steps {
        let drained = step.at.since(span.from).0 as f64 * bytes_per_nano;
        lowest = lowest.min((step.before - received) as f64 - drained);
        highest = highest.max((step.after - received) as f64 - drained);
    }
    if steps.is_empty() {
        return span.length().0 as f64 / 1e6;
    }
    (highest - lowest) / bytes_per_nano / 1e6
}

fn quantiles(mut values: Vec<f64>) -> Option<DelayFactor> {
    Some(DelayFactor {
        p50: spread::quantile(&mut values, 0.5)?,
        p99: spread::quantile(&mut values, 0.99)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::{MILLISECOND, MonoTime, Nanos, SECOND};

    const RATE: BitRate = BitRate(8_000_000); // one byte per microsecond

    fn at(millis: u64) -> MonoTime {
        MonoTime(0) + MILLISECOND.times(millis)
    }

    fn trace(arrivals: &[(u64, u32)]) -> Trace {
        let mut trace = Trace::default();
        for &(millis, bytes) in arrivals {
            trace.push(at(millis), bytes);
        }
        trace
    }

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-6, "{left} is not {right}");
    }

    #[test]
    fn a_steady_cycle_needs_one_cycle_of_buffer() {
        // 62,500 bytes every 62.5 ms.
        let mut steady = Trace::default();
        for tick in 0..160 {
            steady.push(MonoTime(0) + Nanos::from_micros(62_500 * tick), 62_500);
        }
        close(of(&steady, RATE, Span { from: at(0), to: at(10_000) }), 62.5);
    }

    #[test]
    fn a_late_arrival_adds_its_lateness() {
        // Due at 0, 100, 200, 300 ms; the third comes 30 ms late: -130,000 .. 0 after the second.
        // After the arrivals: +100, +100, +70, +100; before them: 0, 0, -30, 0 (thousands).
        let late = trace(&[(0, 100_000), (100, 100_000), (230, 100_000), (300, 100_000)]);
        close(of(&late, RATE, Span { from: at(0), to: at(400) }), 130.0);
    }

    #[test]
    fn the_forms_differ_when_a_stream_drifts() {
        // A stream that carries 10 % too little: 90,000 bytes every 100 ms, for ten seconds.
        let mut slow = Trace::default();
        for tick in 0..100 {
            slow.push(at(100 * tick), 90_000);
        }
        let grid = Grid::new(Span { from: at(0), to: at(10_000) }, SECOND, &[]);
        // One second: from +90 down to 90 x 9 - 900 = -90, its last arrival at 900 ms.
        close(per_window(std::slice::from_ref(&slow), RATE, &grid).unwrap().p50, 180.0);
        // The run: +90 at its start, 90 x 99 - 9,900 = -990 before its last arrival.
        close(per_run(&[slow], RATE, &grid).unwrap().p99, 1_080.0);
    }

    #[test]
    fn silence_drains_for_the_whole_span() {
        close(of(&trace(&[]), RATE, Span { from: at(0), to: at(1_000) }), 1_000.0);
    }

    #[test]
    fn a_dropped_window_cuts_the_run() {
        let steady: Vec<(u64, u32)> = (0..100).map(|tick| (100 * tick, 100_000)).collect();
        let gap = Span { from: at(4_100), to: at(4_200) };
        let grid = Grid::new(Span { from: at(0), to: at(10_000) }, SECOND, &[gap]);
        assert_eq!(grid.largest_piece(), Some(Span { from: at(5_000), to: at(10_000) }));
        close(per_run(&[trace(&steady)], RATE, &grid).unwrap().p99, 100.0);
    }
}
