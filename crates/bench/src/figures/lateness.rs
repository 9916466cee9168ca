//! Lateness: how long after its own instant a byte came, drift included.
//!
//! Promise: a_k - (t0 + b_k / rate) minus the smallest such value of the same stream (the offset
//! fit), where b_k is the first byte of arrival k. One `recv` may return a part of a send, so for
//! TCP the value contains up to one tick by design: compare it between phases of one run, not
//! between servers.

use tactus_core::units::BitRate;

use crate::arrivals::Trace;
use crate::figures::windows::Span;

/// The lateness of each arrival of `trace` in `phase`, in milliseconds, fitted over `whole`.
pub fn in_phase(trace: &Trace, rate: BitRate, whole: Span, phase: Span) -> Vec<f64> {
    let nanos_per_byte = 8e9 / rate.0 as f64;
    let offset = |at: u64, byte: u64| at as f64 - byte as f64 * nanos_per_byte;
    let fit = trace
        .between(whole.from, whole.to)
        .iter()
        .map(|step| offset(step.at.0, step.before))
        .fold(f64::INFINITY, f64::min);
    let steps = trace.between(phase.from, phase.to).iter();
    steps.map(|step| (offset(step.at.0, step.before) - fit) / 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::{MILLISECOND, MonoTime};

    #[test]
    fn lateness_is_counted_from_the_earliest_arrival_of_the_stream() {
        // One byte per microsecond, 100,000 bytes every 100 ms; the third send is 7 ms late.
        let mut trace = Trace::default();
        let at = |millis| MonoTime(0) + MILLISECOND.times(millis);
        for millis in [5, 105, 212, 305] {
            trace.push(at(millis), 100_000);
        }
        let whole = Span { from: at(0), to: at(400) };
        let found = in_phase(&trace, BitRate(8_000_000), whole, whole);
        assert_eq!(found.iter().map(|ms| ms.round()).collect::<Vec<_>>(), [0.0, 0.0, 7.0, 0.0]);
        let phase = Span { from: at(200), to: at(300) };
        assert_eq!(in_phase(&trace, BitRate(8_000_000), whole, phase).len(), 1);
    }
}
