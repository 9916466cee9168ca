//! Envelopes: the rates that a stream of a variable rate needs in each second, at most.
//!
//! Promise: an envelope is never below the stream's schedule. Bytes are sent up to `lag` after they
//! are due, and never before; they are read from `lead` before to `lag` after. It has few steps, so
//! that thousands of them add up quickly. Design note: `docs/design/variable-rates.md`.

use alloc::vec::Vec;
use core::ops::Range;

use crate::polyline::Polyline;
use crate::timeline::{SLOT, SLOTS};
use crate::units::{BitRate, Nanos, SECOND};

/// The rates of a stream, second by second from its beginning. Afterwards it needs nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Adjacent, from zero on.
    steps: Vec<Step>,
}

/// Seconds with one rate of each kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Seconds from the beginning.
    pub seconds: Range<u64>,
    /// The highest rate of reading in them.
    pub read: BitRate,
    /// The highest rate of sending in them.
    pub sent: BitRate,
}

/// So much later than due may a peer take its bytes within the envelope: a player that is further
/// behind has used up a buffer of two seconds, and stands still because of its own network.
const PEER_LAG: Nanos = Nanos(2 * SECOND.0);

/// How far apart a byte and its due time may be when it is read and sent, for a stream from a disk
/// with this `cycle` whose peer is ended when it is behind by `behind_max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spans {
    /// A byte is read so much before it is due, at most.
    pub lead: Nanos,
    /// A byte is read and sent so much after it is due, at most.
    pub lag: Nanos,
}

impl Spans {
    /// A block is read two cycles and its own duration before it is due. A stream that waits for
    /// its first blocks begins up to four cycles after its admission.
    pub fn of(cycle: Nanos, behind_max: Nanos) -> Self {
        Self { lead: cycle.times(2) + SECOND, lag: cycle.times(4) + behind_max.min(PEER_LAG) }
    }
}

/// Ticks of 27 MHz in a slot.
const TICKS: u64 = SLOT.0 / 1000 * 27;
/// Steps of an envelope. An hour with a cut every few seconds has hundreds of different ones: few
/// steps would promise its peak nearly all the time.
const STEPS_MAX: usize = 256;

impl Envelope {
    /// The envelope of a stream that is sent by `line`. `None` if it lasts too long to be planned.
    pub fn of(line: &Polyline, spans: Spans) -> Option<Self> {
        Self::with_steps(line, spans, STEPS_MAX)
    }

    fn with_steps(line: &Polyline, Spans { lead, lag }: Spans, steps_max: usize) -> Option<Self> {
        let ticks = u128::from(line.duration().0);
        let lasts = u64::try_from(ticks * 1000 / 27).ok()?.div_ceil(SLOT.0).max(1);
        let (lead, lag) = (lead.0.div_ceil(SLOT.0), lag.0.div_ceil(SLOT.0));
        // A second may begin anywhere in a slot.
        let all = lasts + lag + 1;
        if all > SLOTS / 2 {
            return None;
        }
        let rates = rates(line, lasts as usize);
        let around = |second: u64, lead: u64| {
            let from = second.saturating_sub(lag + 1).min(lasts) as usize;
            let to = (second + lead + 1).min(lasts) as usize;
            BitRate(rates[from.min(to)..to].iter().copied().max().unwrap_or(0))
        };
        let mut steps: Vec<Step> = Vec::new();
        for second in 0..all {
            let (read, sent) = (around(second, lead), around(second, 0));
            match steps.last_mut() {
                Some(last) if (last.read, last.sent) == (read, sent) => {
                    last.seconds.end = second + 1;
                }
                _ => steps.push(Step { seconds: second..second + 1, read, sent }),
            }
        }
        while steps.len() > steps_max {
            let too_many = steps.len() - steps_max;
            steps = merge_cheapest(&steps, too_many);
        }
        Some(Self { steps })
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The highest rate.
    pub fn peak(&self) -> BitRate {
        self.steps.iter().map(|step| step.sent).max().unwrap_or(BitRate(0))
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

/// Merges the neighbours for which the higher rates of both cost least: at most `count` of them,
/// and no step twice.
fn merge_cheapest(steps: &[Step], count: usize) -> Vec<Step> {
    let cost = |pair: &[Step]| pair[0].and(&pair[1]).size() - pair[0].size() - pair[1].size();
    let costs: Vec<u128> = steps.windows(2).map(cost).collect();
    let mut ascending = costs.clone();
    ascending.sort_unstable();
    let limit = ascending[count - 1];
    let mut merged: Vec<Step> = Vec::with_capacity(steps.len());
    let (mut left, mut next) = (count, 0);
    while let Some(step) = steps.get(next) {
        match steps.get(next + 1) {
            Some(other) if left > 0 && costs[next] <= limit => {
                merged.push(step.and(other));
                (left, next) = (left - 1, next + 2);
            }
            _ => {
                merged.push(step.clone());
                next += 1;
            }
        }
    }
    merged
}

impl Step {
    /// A step over both, at the higher rates.
    fn and(&self, next: &Self) -> Self {
        Self {
            seconds: self.seconds.start..next.seconds.end,
            read: self.read.max(next.read),
            sent: self.sent.max(next.sent),
        }
    }

    /// Bits that are promised.
    fn size(&self) -> u128 {
        let lasts = u128::from(self.seconds.end - self.seconds.start);
        (u128::from(self.read.0) + u128::from(self.sent.0)) * lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, MediaTime};
    use proptest::prelude::*;

    fn spans(lead: u64, lag: u64) -> Spans {
        Spans { lead: SECOND.times(lead), lag: SECOND.times(lag) }
    }

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
        let envelope = Envelope::of(&line, spans(1, 1)).unwrap();
        let last = envelope.steps().last().unwrap();
        assert_eq!((envelope.steps().len(), envelope.peak()), (1, BitRate(8_000_000)));
        assert_eq!(last.seconds.end, 102);
    }

    #[test]
    fn a_day_is_too_long_to_be_planned() {
        let line = line(&[(100_000_000, 86_400 * 27_000_000)]);
        assert_eq!(Envelope::of(&line, spans(1, 1)), None);
    }

    #[test]
    fn bytes_are_read_ahead_and_sent_when_they_are_due() {
        // Ten calm seconds, ten at ten times the rate.
        let line = line(&[(1_250_000, 10 * 27_000_000), (12_500_000, 10 * 27_000_000)]);
        let envelope = Envelope::of(&line, spans(3, 1)).unwrap();
        let rate_at = |second: u64, of: fn(&Step) -> BitRate| {
            let step = envelope.steps().iter().find(|step| step.seconds.contains(&second));
            step.map(|step| of(step).0)
        };
        let (low, high) = (Some(1_000_000), Some(10_000_000));
        assert_eq!([6, 7].map(|second| rate_at(second, |step| step.read)), [low, high]);
        assert_eq!([9, 10].map(|second| rate_at(second, |step| step.sent)), [low, high]);
        assert_eq!([21, 22].map(|second| rate_at(second, |step| step.sent)), [high, None]);
    }

    #[test]
    fn an_hour_of_short_scenes_is_promised_little_more_than_by_seconds() {
        let scene = |nth: u64| (125_000 * (1 + nth * nth % 17), 5 * 27_000_000);
        let line = line(&(0..720).map(scene).collect::<Vec<_>>());
        let steps = Envelope::of(&line, spans(1, 3)).unwrap().steps;
        let promised: u128 = steps.iter().map(Step::size).sum();
        let by_peak =
            Step { seconds: 0..3604, ..steps.iter().max_by_key(|s| s.sent).unwrap().clone() };
        assert!((200..=STEPS_MAX).contains(&steps.len()), "{}", steps.len());
        assert!(promised < by_peak.size() * 9 / 10, "{promised} of {}", by_peak.size());
    }

    proptest! {
        #[test]
        fn it_is_never_below_the_schedule_wherever_seconds_begin_and_has_few_steps(
            steps in prop::collection::vec((1000u64..10_000_000, 1_000_000u64..100_000_000), 1..60),
            lead in 0u64..12, lag in 0u64..12, offset in 0u64..1000,
        ) {
            let line = line(&steps);
            let envelope = Envelope::with_steps(&line, spans(lead, lag), 16).unwrap();
            prop_assert!(envelope.steps().len() <= 16);
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
                        prop_assert!(rate <= step.read.0 + 8, "{due} at {second}");
                        prop_assert!(due > second || rate <= step.sent.0 + 8, "{due} at {second}");
                    }
                }
            }
            prop_assert!(envelope.steps().last().unwrap().seconds.end >= lasts + lag);
        }
    }
}
