//! Envelopes: the rate that a stream of a variable rate needs in each second, at most.
//!
//! Promise: an envelope is never below the stream's schedule, from `lead` before to `lag` after it.
//! It has few steps, so that thousands of them add up quickly. Design note:
//! `docs/design/variable-rates.md`.

use alloc::vec::Vec;
use core::ops::Range;

use crate::polyline::Polyline;
use crate::timeline::{SLOT, SLOTS};
use crate::units::{BitRate, Nanos};

/// The rates of a stream, second by second from its beginning. Afterwards it needs nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Adjacent, from zero on.
    steps: Vec<Step>,
}

/// Seconds with one rate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Seconds from the beginning.
    pub seconds: Range<u64>,
    /// The highest rate in them.
    pub rate: BitRate,
}

/// Ticks of 27 MHz in a slot.
const TICKS: u64 = SLOT.0 / 1000 * 27;
/// Steps of an envelope.
const STEPS_MAX: usize = 16;

impl Envelope {
    /// The envelope of a stream that is sent by `line`. Its bytes are read up to `lead` before, and
    /// sent up to `lag` after they are due. `None` if it lasts too long to be planned.
    pub fn of(line: &Polyline, lead: Nanos, lag: Nanos) -> Option<Self> {
        let ticks = u128::from(line.duration().0);
        let lasts = u64::try_from(ticks * 1000 / 27).ok()?.div_ceil(SLOT.0).max(1);
        let (lead, lag) = (lead.0.div_ceil(SLOT.0), lag.0.div_ceil(SLOT.0));
        // A second may begin anywhere in a slot.
        let all = lasts + lag + 1;
        if all > SLOTS / 2 {
            return None;
        }
        let rates = rates(line, lasts as usize);
        let around = |second: u64| {
            let from = second.saturating_sub(lag + 1).min(lasts) as usize;
            let to = (second + lead + 1).min(lasts) as usize;
            rates[from.min(to)..to].iter().copied().max().unwrap_or(0)
        };
        let mut steps: Vec<Step> = Vec::new();
        for second in 0..all {
            let rate = BitRate(around(second));
            match steps.last_mut() {
                Some(last) if last.rate == rate => last.seconds.end = second + 1,
                _ => steps.push(Step { seconds: second..second + 1, rate }),
            }
        }
        while steps.len() > STEPS_MAX {
            merge_cheapest(&mut steps);
        }
        Some(Self { steps })
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The highest rate.
    pub fn peak(&self) -> BitRate {
        self.steps.iter().map(|step| step.rate).max().unwrap_or(BitRate(0))
    }
}

/// The highest rate within each second. The mean of a second is not enough: the seconds of the
/// clock begin anywhere in those of the stream, and cycles of disks are shorter.
fn rates(line: &Polyline, lasts: usize) -> Vec<u64> {
    let mut rates = alloc::vec![0; lasts];
    let points = line.points();
    let segments = points.clone().zip(points.skip(1)).filter(|(from, to)| from.1 < to.1);
    for (((_, from), (_, to)), rate) in segments.zip(line.rates()) {
        let seconds = from.0 / TICKS..(to.0 - 1) / TICKS + 1;
        for second in &mut rates[seconds.start as usize..seconds.end as usize] {
            *second = rate.0.max(*second);
        }
    }
    rates
}

/// Merges the two neighbours for which the higher rate of both costs least.
fn merge_cheapest(steps: &mut Vec<Step>) {
    let cost = |pair: &[Step]| {
        let lower = if pair[0].rate < pair[1].rate { &pair[0] } else { &pair[1] };
        let lasts = u128::from(lower.seconds.end - lower.seconds.start);
        u128::from(pair[0].rate.0.abs_diff(pair[1].rate.0)) * lasts
    };
    let cheapest = steps.windows(2).map(cost).enumerate().min_by_key(|&(_, cost)| cost);
    let Some((at, _)) = cheapest else { return };
    let next = steps.remove(at + 1);
    steps[at].seconds.end = next.seconds.end;
    steps[at].rate = steps[at].rate.max(next.rate);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, MediaTime, SECOND};
    use proptest::prelude::*;

    fn line(steps: &[(u64, u64)]) -> Polyline {
        let (mut at, mut time) = (0, 0);
        let mut points = alloc::vec![(Bytes(0), MediaTime(0))];
        for &(bytes, ticks) in steps {
            (at, time) = (at + bytes, time + ticks);
            points.push((Bytes(at), MediaTime(time)));
        }
        Polyline::through(&points).unwrap()
    }

    #[test]
    fn a_constant_rate_is_one_step() {
        let line = line(&[(100_000_000, 100 * 27_000_000)]);
        let envelope = Envelope::of(&line, SECOND, SECOND).unwrap();
        let last = envelope.steps().last().unwrap();
        assert_eq!((envelope.steps().len(), envelope.peak()), (1, BitRate(8_000_000)));
        assert_eq!(last.seconds.end, 102);
    }

    #[test]
    fn a_day_is_too_long_to_be_planned() {
        let line = line(&[(100_000_000, 86_400 * 27_000_000)]);
        assert_eq!(Envelope::of(&line, SECOND, SECOND), None);
    }

    proptest! {
        #[test]
        fn it_is_never_below_the_schedule_wherever_seconds_begin_and_has_few_steps(
            steps in prop::collection::vec((1000u64..10_000_000, 1_000_000u64..100_000_000), 1..60),
            lead in 0u64..12, lag in 0u64..12, offset in 0u64..1000,
        ) {
            let line = line(&steps);
            let envelope = Envelope::of(&line, SECOND.times(lead), SECOND.times(lag)).unwrap();
            prop_assert!(envelope.steps().len() <= STEPS_MAX);
            let adjacent = envelope.steps().windows(2).all(|pair| {
                pair[0].seconds.end == pair[1].seconds.start
            });
            prop_assert!(adjacent && envelope.steps()[0].seconds.start == 0);
            let lasts = line.duration().0.div_ceil(27_000_000);
            let sent = |second: u64| {
                let span = Nanos((second * SECOND.0).saturating_sub(offset * 1_000_000));
                match span >= Nanos(line.duration().0 * 1000 / 27) {
                    true => line.len(),
                    false => line.allowed(span),
                }
            };
            for step in envelope.steps() {
                for second in step.seconds.clone() {
                    let from = second.saturating_sub(lag);
                    for due in from..(second + lead + 1).min(lasts) {
                        let rate = (sent(due + 1) - sent(due)).0 * 8;
                        // Bytes are whole.
                        prop_assert!(rate <= step.rate.0 + 8, "{due} at {second}");
                    }
                }
            }
            prop_assert!(envelope.steps().last().unwrap().seconds.end >= lasts + lag);
        }
    }
}
