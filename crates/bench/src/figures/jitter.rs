//! J: how far each window's payload is from what the rate says, in percent.
//!
//! Promise: `J = abs(real - exp) / exp x 100` per stream and window, where `real` is the payload
//! stamped in the window and `exp` = rate x window; the mean goes over windows, then over streams,
//! the p99 over all pairs of stream and window. The floor that counting in whole units forces is
//! given apart.

use serde::Serialize;
use tactus_core::units::{BitRate, MonoTime};

use crate::arrivals::Trace;
use crate::figures::windows::Grid;
use crate::spread;

/// J of one window length over all streams.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Jitter {
    /// Percent; the mean over windows, then over streams.
    pub mean: f64,
    /// Percent; the 99th percentile over all pairs of stream and window.
    pub p99: f64,
}

/// J of `traces`, all of which should run at `rate`. `None` without a stream or a window.
pub fn jitter(traces: &[Trace], rate: BitRate, grid: &Grid) -> Option<Jitter> {
    let expected = rate.0 as f64 / 8.0 * grid.window().0 as f64 / 1e9;
    let mut all = Vec::with_capacity(traces.len() * grid.count());
    let mut means = Vec::with_capacity(traces.len());
    for trace in traces {
        let first = all.len();
        for window in grid.kept() {
            let real = trace.bytes_between(window.from, window.to) as f64;
            all.push((real - expected).abs() / expected * 100.0);
        }
        means.extend(spread::mean(&all[first..]));
    }
    Some(Jitter { mean: spread::mean(&means)?, p99: spread::quantile(&mut all, 0.99)? })
}

/// J of each kept window, the mean over streams: pairs of its end, in seconds after `zero`, and
/// percent.
pub fn over_time(traces: &[Trace], rate: BitRate, grid: &Grid, zero: MonoTime) -> Vec<(f64, f64)> {
    let expected = rate.0 as f64 / 8.0 * grid.window().0 as f64 / 1e9;
    let points = grid.kept().filter_map(|window| {
        let real = |trace: &Trace| trace.bytes_between(window.from, window.to) as f64;
        let all = traces.iter().map(|trace| (real(trace) - expected).abs() / expected * 100.0);
        Some((window.to.since(zero).0 as f64 / 1e9, spread::mean(&all.collect::<Vec<_>>())?))
    });
    points.collect()
}

/// The floor of the mean in percent, when a window should hold `units` units (packets, or cycles'
/// sends) at a random phase: with f the fractional part, 2 f (1 - f) / units.
pub fn floor_mean(units: f64) -> f64 {
    let part = units.fract();
    2.0 * part * (1.0 - part) / units * 100.0
}

/// The floor of the p99 in percent: max(f, 1 - f) / units while both exceed one percent, since then
/// the rarer of the two counts occurs in more than one window of a hundred.
pub fn floor_p99(units: f64) -> f64 {
    let part = units.fract();
    match part.min(1.0 - part) > 0.01 {
        true => part.max(1.0 - part) / units * 100.0,
        false => part.min(1.0 - part) / units * 100.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::windows::Span;
    use tactus_core::units::{MILLISECOND, Nanos, SECOND};

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 0.01, "{left} is not {right}");
    }

    /// Sends `bytes` every `period` from `first` on, for ten seconds.
    fn steady(first: Nanos, period: Nanos, bytes: u32) -> Trace {
        let mut trace = Trace::default();
        let mut at = MonoTime(0) + first;
        while at < MonoTime(0) + SECOND.times(10) {
            trace.push(at, bytes);
            at += period;
        }
        trace
    }

    fn ten_seconds(window: Nanos) -> Grid {
        Grid::new(Span { from: MonoTime(0), to: MonoTime(0) + SECOND.times(10) }, window, &[])
    }

    #[test]
    fn a_cycle_that_divides_the_window_has_no_jitter() {
        // 4 Mbit/s in cycles of 250 ms: 125,000 bytes each, four in every second.
        let trace = steady(MILLISECOND, Nanos::from_millis(250), 125_000);
        let found = jitter(&[trace], BitRate(4_000_000), &ten_seconds(SECOND)).unwrap();
        assert_eq!((found.mean, found.p99), (0.0, 0.0));
    }

    #[test]
    fn a_burst_in_every_second_window_counts_both_as_wrong() {
        // 1,000 bytes where 500 are due, then nothing: 100 % in each window.
        let trace = steady(Nanos::ZERO, SECOND.times(2), 1_000);
        let found = jitter(&[trace], BitRate(4_000), &ten_seconds(SECOND)).unwrap();
        assert_eq!((found.mean, found.p99), (100.0, 100.0));
    }

    #[test]
    fn the_mean_goes_over_streams_and_the_p99_over_all_windows() {
        // One exact stream, and one that sends 10 % too much in one of ten windows.
        let exact = steady(Nanos::ZERO, SECOND, 500);
        let mut wrong = Trace::default();
        for second in 0..10 {
            wrong.push(MonoTime(0) + SECOND.times(second), if second == 3 { 550 } else { 500 });
        }
        let found = jitter(&[exact, wrong], BitRate(4_000), &ten_seconds(SECOND)).unwrap();
        close(found.mean, 0.5);
        close(found.p99, 10.0);
    }

    #[test]
    fn over_time_every_window_has_its_own_mean_over_streams() {
        let exact = steady(Nanos::ZERO, SECOND, 500);
        let mut late = Trace::default();
        late.push(MonoTime(0) + SECOND.times(2), 1_000); // nothing in the first two seconds
        let grid = ten_seconds(SECOND);
        let found = over_time(&[exact, late], BitRate(4_000), &grid, MonoTime(0));
        assert_eq!(found[..4], [(1.0, 50.0), (2.0, 50.0), (3.0, 50.0), (4.0, 50.0)]);
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn floors_are_those_of_the_table() {
        close(floor_mean(3.80), 8.42);
        close(floor_p99(3.80), 21.05);
        close(floor_mean(379.94), 0.030);
        close(floor_p99(379.94), 0.247);
        close(floor_mean(835.87), 0.027);
        close(floor_p99(835.87), 0.104);
        close(floor_mean(15.625), 3.0);
        close(floor_p99(15.625), 4.0);
        close(floor_mean(3.90625), 4.35);
        close(floor_p99(3.90625), 23.2);
        assert_eq!((floor_mean(4.0), floor_p99(16.0)), (0.0, 0.0));
    }

    #[test]
    fn a_cycle_that_does_not_divide_the_window_reaches_its_floor() {
        // 64 ms in windows of one second: 15.625 sends, so 15 or 16, at phases spread evenly.
        let traces: Vec<Trace> = (0..64)
            .map(|phase| steady(MILLISECOND.times(phase), Nanos::from_millis(64), 32_000))
            .collect();
        let found = jitter(&traces, BitRate(4_000_000), &ten_seconds(SECOND)).unwrap();
        close(found.mean, floor_mean(15.625));
        close(found.p99, floor_p99(15.625));
    }
}
