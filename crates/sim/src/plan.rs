//! Streams whose rate follows their content: the due times of a range, drawn from a seed.
//!
//! Promise: bytes that are due are counted by an arithmetic of its own, so that an error of the
//! engine's lines cannot hide in it.

use std::ops::Range;
use std::sync::Arc;

use tactus_core::polyline::Polyline;
use tactus_core::units::{BitRate, Bytes, MediaTime, Nanos};

use crate::dice::Dice;

/// When the bytes of a range are due.
#[derive(Clone, Debug)]
pub(crate) struct PlannedRange {
    pub(crate) line: Polyline,
    /// The rate of its fastest segment.
    pub(crate) peak: BitRate,
}

/// What is promised to a stream by a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanPromise {
    /// Bytes and ticks of 27 MHz, ascending from zero.
    points: Arc<[(u64, u64)]>,
    /// The rates of the link that are promised, by seconds of the clock; none at the peak's rate.
    pub(crate) seconds: Arc<[(Range<u64>, u64)]>,
}

const TICKS_PER_SECOND: u64 = 27_000_000;

impl PlannedRange {
    /// A plan of `len` bytes that changes its rate every few seconds for about `lasts`, with rates
    /// up to `peak` and at most `burst` at once. `None` for a range that is too short.
    pub(crate) fn draw(
        dice: &mut Dice,
        len: Bytes,
        peak: BitRate,
        burst: Bytes,
        lasts: Nanos,
    ) -> Option<Self> {
        let bytes_of = |rate: u64, ticks: u64| {
            (u128::from(rate) * u128::from(ticks) / 8 / u128::from(TICKS_PER_SECOND)) as u64
        };
        let (mut at, mut time) = (0, 0);
        let mut points = vec![(Bytes(0), MediaTime(0))];
        if burst > Bytes(0) {
            at = dice.between(1, burst.0);
            points.push((Bytes(at), MediaTime(0)));
        }
        let until = lasts.0 / 1000 * 27;
        while at < len.0 {
            let rate = dice.spread((peak.0 / 20).max(1), peak.0);
            // The rest of a long title has one rate.
            let ticks = match time < until {
                true => dice.spread(TICKS_PER_SECOND / 3, 8 * TICKS_PER_SECOND),
                false => u64::MAX >> 20,
            };
            let bytes = bytes_of(rate, ticks).clamp(1, len.0 - at);
            let ticks = u128::from(bytes) * 8 * u128::from(TICKS_PER_SECOND);
            (at, time) = (at + bytes, time + ticks.div_ceil(u128::from(rate)) as u64);
            points.push((Bytes(at), MediaTime(time)));
        }
        let line = Polyline::through(&points)?;
        let peak = line.rates().max()?;
        (line.len() == len).then_some(Self { line, peak })
    }

    /// What is promised to its stream, in these seconds.
    pub(crate) fn promise(&self, seconds: &[(Range<u64>, [u64; 2])]) -> PlanPromise {
        let points = self.line.points().map(|(at, time)| (at.0, time.0)).collect();
        let sent = seconds.iter().map(|(seconds, [_, sent])| (seconds.clone(), *sent));
        PlanPromise { points, seconds: sent.collect() }
    }
}

impl PlanPromise {
    /// The bytes due by `span` after the start. Rounds down.
    pub(crate) fn due(&self, span: Nanos) -> u64 {
        let ticks = span.0 / 1000 * 27 + span.0 % 1000 * 27 / 1000;
        let after = self.points.partition_point(|&(_, time)| time <= ticks);
        let (from, begun) = self.points[after - 1];
        let Some(&(to, ends)) = self.points.get(after) else { return from };
        from + (u128::from(to - from) * u128::from(ticks - begun) / u128::from(ends - begun)) as u64
    }

    /// The rate that is promised in a second of the clock; `None` without an envelope.
    pub(crate) fn rate_in(&self, second: u64) -> Option<u64> {
        if self.seconds.is_empty() {
            return None;
        }
        let found = self.seconds.iter().find(|(seconds, _)| seconds.contains(&second));
        Some(found.map_or(0, |&(_, rate)| rate))
    }
}
