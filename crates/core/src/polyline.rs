//! Due times of the bytes of a range, as a line of straight segments.
//!
//! Promise: lookups are pure and do not allocate. A byte is never early. Beyond its end the range
//! begins again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::ts::Index;
use crate::units::{BitRate, Bytes, MediaTime, Nanos};

/// The due times of the bytes of a range, counted from its first byte: a polyline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Polyline {
    points: Box<[Point]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    at: u64,
    /// Ticks of 27 MHz.
    time: u64,
}

/// A time between two ticks.
#[derive(Clone, Copy)]
struct ExactTicks {
    ticks: u128,
    /// In fractions of `parts` to a tick.
    more: u128,
    parts: u128,
}

impl Polyline {
    /// The line of the part `first..end` of an indexed title; `None` if it has no duration.
    pub fn of(index: &Index, first: u64, end: u64) -> Option<Self> {
        let begin = index.time_at(first).0;
        let end = end.min(index.len());
        let last = index.time_at(end).0.checked_sub(begin).filter(|&last| last > 0)?;
        let inner = index.points().filter(|&(at, _)| first < at && at < end);
        let inner = inner.map(|(at, time)| Point { at: at - first, time: time.0 - begin });
        let points: Vec<_> = core::iter::once(Point { at: 0, time: 0 })
            .chain(inner)
            .chain([Point { at: end - first, time: last }])
            .collect();
        Some(Self { points: points.into() })
    }

    /// A line through points; `None` unless they begin at zero and ascend in both coordinates.
    pub fn through(points: &[(Bytes, MediaTime)]) -> Option<Self> {
        let points: Box<[Point]> =
            points.iter().map(|&(at, time)| Point { at: at.0, time: time.0 }).collect();
        let ascends = |pair: &[Point]| pair[0].at < pair[1].at && pair[0].time <= pair[1].time;
        let (first, last) = (points.first()?, points.last()?);
        let is_line = (first.at, first.time) == (0, 0) && last.at > 0 && last.time > 0;
        (is_line && points.windows(2).all(ascends)).then_some(Self { points })
    }

    /// Its points.
    pub fn points(&self) -> impl Iterator<Item = (Bytes, MediaTime)> + Clone + '_ {
        self.points.iter().map(|point| (Bytes(point.at), MediaTime(point.time)))
    }

    /// The length of the range.
    pub fn len(&self) -> Bytes {
        Bytes(self.points[self.points.len() - 1].at)
    }

    /// Always false: a line is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == Bytes(0)
    }

    /// The duration of the range.
    pub fn duration(&self) -> MediaTime {
        MediaTime(self.points[self.points.len() - 1].time)
    }

    /// The due time of byte `at`, counted over all turns of the range. Rounds up: never early.
    pub fn due(&self, at: Bytes, hint: usize) -> Nanos {
        let ExactTicks { ticks, more, parts } = self.exact(at, hint);
        // A tick of 27 MHz is 1000/27 ns.
        let thousands = ticks * 1000;
        let rest = (thousands % 27 * parts + 1000 * more).div_ceil(27 * parts);
        Nanos(u64::try_from(thousands / 27 + rest).unwrap_or(u64::MAX))
    }

    /// The same in ticks of 27 MHz. Rounds down, as clocks do.
    pub fn ticks(&self, at: Bytes, hint: usize) -> MediaTime {
        MediaTime(u64::try_from(self.exact(at, hint).ticks).unwrap_or(u64::MAX))
    }

    /// The bytes due by `span` after the first. Rounds down.
    pub fn allowed(&self, span: Nanos) -> Bytes {
        let ticks = u128::from(span.0) * 27 / 1000;
        let duration = u128::from(self.duration().0);
        let (turn, within) = (ticks / duration, (ticks % duration) as u64);
        let after = self.points.partition_point(|point| point.time <= within);
        // The time of the last point is the duration, which lies outside.
        let (from, to) = (self.points[after - 1], self.points[after]);
        let (bytes, time) = (u128::from(to.at - from.at), u128::from(to.time - from.time));
        let here = u128::from(from.at) + u128::from(within - from.time) * bytes / time;
        let all = turn * u128::from(self.len().0) + here;
        Bytes(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// The bytes that are due at once.
    pub fn burst(&self) -> Bytes {
        self.allowed(Nanos(0))
    }

    /// The rates of its segments, rounded up. Bytes that are due at once have none.
    pub fn rates(&self) -> impl Iterator<Item = BitRate> + '_ {
        let segments = self.points.windows(2).filter(|pair| pair[0].time < pair[1].time);
        segments.map(|pair| {
            let bits = u128::from(pair[1].at - pair[0].at) * 216_000_000;
            let rate = bits.div_ceil(u128::from(pair[1].time - pair[0].time));
            BitRate(u64::try_from(rate).unwrap_or(u64::MAX))
        })
    }

    /// The same line at `to` where it was at `from`: all its times are closer together.
    #[must_use]
    pub fn hastened(mut self, from: BitRate, to: BitRate) -> Self {
        for point in &mut self.points {
            let time = u128::from(point.time) * u128::from(from.0) / u128::from(to.0.max(1));
            point.time = u64::try_from(time).unwrap_or(u64::MAX);
        }
        self
    }

    /// The same line at no more than `rate`: bytes are later than before where the line is faster,
    /// and behind such a place until they have caught up. Bytes that are due at the start stay
    /// there. The line does not become longer by points.
    #[must_use]
    pub fn capped(mut self, rate: BitRate) -> Self {
        let (mut at, mut time) = (0, 0_u64);
        for point in &mut self.points {
            if point.time > 0 {
                let bits = u128::from(point.at - at) * 216_000_000;
                let least = bits.div_ceil(u128::from(rate.0.max(1)));
                let least = u64::try_from(least).unwrap_or(u64::MAX);
                point.time = point.time.max(time.saturating_add(least));
            }
            (at, time) = (point.at, point.time);
        }
        self
    }

    /// The line of the bytes behind the first `skipped`, at the same times; `None` if there are
    /// none. If the first of them is due later, the line begins with a pause of one byte.
    #[must_use]
    pub fn behind(&self, skipped: Bytes) -> Option<Self> {
        let len = Bytes(self.len().0.checked_sub(skipped.0).filter(|&len| len > 0)?);
        let second = skipped + Bytes(1);
        let begin = match len > Bytes(1) {
            true => self.ticks(second, self.hint(second)),
            false => self.duration(),
        };
        let mut points = alloc::vec![(Bytes(0), MediaTime(0))];
        if begin > MediaTime(0) && len > Bytes(1) {
            points.push((Bytes(1), begin));
        }
        let from = skipped + points[points.len() - 1].0;
        let rest = self.points().filter(|&(at, _)| at > from);
        points.extend(rest.map(|(at, time)| (at - skipped, time.max(begin))));
        // A range that is due at once ends in the next tick.
        let last = points.last_mut().expect("there is the first");
        last.1 = last.1.max(MediaTime(1));
        Self::through(&points)
    }

    /// The segment of byte `at`, as a hint for lookups shortly after it.
    pub fn hint(&self, at: Bytes) -> usize {
        self.points.partition_point(|point| point.at <= at.0 % self.len().0) - 1
    }

    /// The same, for lookups that go forwards from segment `before`.
    pub fn hint_near(&self, at: Bytes, before: usize) -> usize {
        let within = at.0 % self.len().0;
        let is_right = |nth: usize| {
            nth + 1 < self.points.len()
                && (self.points[nth].at..self.points[nth + 1].at).contains(&within)
        };
        [before, before + 1].into_iter().find(|&nth| is_right(nth)).unwrap_or_else(|| self.hint(at))
    }

    /// The rate of the fastest block of `block` bytes, which is enough to read the range. The range
    /// begins at byte `first` of its title. Rounds up.
    pub fn peak(&self, first: Bytes, block: Bytes) -> BitRate {
        let len = self.len().0;
        let ticks = |at: u64| match at == len {
            true => self.duration().0,
            false => self.ticks(Bytes(at), self.hint(Bytes(at))).0,
        };
        let mut peak = rate(len, self.duration().0);
        let (mut at, mut time) = (0, 0);
        while at < len {
            let next = len.min((first.0 + at) / block.0 * block.0 + block.0 - first.0);
            let then = ticks(next);
            // A partial block is read no faster than the complete blocks around it.
            if next - at == block.0 {
                peak = peak.max(rate(next - at, then - time));
            }
            (at, time) = (next, then);
        }
        peak
    }

    fn exact(&self, at: Bytes, hint: usize) -> ExactTicks {
        let len = self.len().0;
        let (turn, within) = (at.0 / len, at.0 % len);
        let nth = self.hint_near(at, hint);
        let (from, to) = (self.points[nth], self.points[nth + 1]);
        let parts = u128::from(to.at - from.at);
        let over = u128::from(within - from.at) * u128::from(to.time - from.time);
        let before = u128::from(turn) * u128::from(self.duration().0) + u128::from(from.time);
        ExactTicks { ticks: before + over / parts, more: over % parts, parts }
    }
}

/// Rounds up, after allowing for the tick by which times are rounded.
fn rate(bytes: u64, ticks: u64) -> BitRate {
    let rate =
        (u128::from(bytes) * 216_000_000).div_ceil(u128::from(ticks.saturating_sub(1).max(1)));
    BitRate(u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;
    use proptest::prelude::*;

    pub(crate) fn line(steps: &[(u64, u64)]) -> Polyline {
        let (mut at, mut time) = (0, 0);
        let mut points = alloc::vec![(Bytes(0), MediaTime(0))];
        for &(bytes, ticks) in steps {
            (at, time) = (at + bytes, time + ticks);
            points.push((Bytes(at), MediaTime(time)));
        }
        Polyline::through(&points).unwrap()
    }

    proptest! {
        #[test]
        fn a_byte_is_due_when_its_tick_is_and_never_before(
            steps in proptest::collection::vec((188u64..1_000_000, 1u64..100_000_000), 1..20),
            wanted in proptest::collection::vec(0u64..1 << 40, 30), hint in 0usize..25,
        ) {
            let line = line(&steps);
            for at in wanted.into_iter().map(Bytes) {
                let (due, ticks) = (line.due(at, hint), line.ticks(at, hint));
                prop_assert_eq!(due, line.due(at, line.hint(at)));
                // Within a tick of 37 ns, and one of rounding.
                let behind = i128::from(due.0) * 27 - i128::from(ticks.0) * 1000;
                prop_assert!((0..1000 + 27).contains(&behind), "{behind}");
                prop_assert!(line.due(at + Bytes(1), hint) >= due);
                // Nothing is early, and nothing waits for longer than a tick. A nanosecond may be
                // hundreds of bytes of a fast segment.
                prop_assert!(line.due(line.allowed(due), hint) <= due);
                prop_assert!(line.allowed(due + Nanos(38)) >= at);
            }
        }

        #[test]
        fn the_bytes_behind_others_keep_their_times(
            steps in proptest::collection::vec((188u64..1_000_000, 1u64..100_000_000), 1..20),
            burst in 0u64..1_000_000, skipped in 0u64..2_000_000,
            wanted in proptest::collection::vec(2u64..20_000_000, 30),
        ) {
            let mut points: alloc::vec::Vec<_> = line(&steps).points().collect();
            if burst > 0 {
                points.iter_mut().skip(1).for_each(|point| point.0 += Bytes(burst));
                points.insert(1, (Bytes(burst), MediaTime(0)));
            }
            let line = Polyline::through(&points).unwrap();
            let rest = line.behind(Bytes(skipped));
            prop_assert_eq!(rest.is_some(), skipped < line.len().0);
            let Some(rest) = rest else { return Ok(()) };
            prop_assert_eq!(rest.len().0, line.len().0 - skipped);
            prop_assert!(rest.rates().max() <= line.rates().max().max(Some(BitRate(216_000_000))));
            for at in wanted.into_iter().filter(|&at| at < rest.len().0) {
                let (now, then) = (rest.due(Bytes(at), 0), line.due(Bytes(at + skipped), 0));
                prop_assert!(now.0.abs_diff(then.0) <= 50, "{at}: {now:?} {then:?}");
            }
        }

        #[test]
        fn r05_a_capped_line_has_no_higher_rate_and_no_earlier_byte(
            steps in proptest::collection::vec((188u64..1_000_000, 1u64..100_000_000), 1..20),
            burst in 0u64..1_000_000, cap in 100_000u64..100_000_000,
            wanted in proptest::collection::vec(0u64..20_000_000, 30),
        ) {
            let mut points: alloc::vec::Vec<_> = line(&steps).points().collect();
            if burst > 0 {
                points.iter_mut().skip(1).for_each(|point| point.0 += Bytes(burst));
                points.insert(1, (Bytes(burst), MediaTime(0)));
            }
            let line = Polyline::through(&points).unwrap();
            let capped = line.clone().capped(BitRate(cap));
            prop_assert!(capped.rates().all(|rate| rate.0 <= cap));
            prop_assert_eq!((capped.len(), capped.burst()), (line.len(), line.burst()));
            for at in wanted.into_iter().map(Bytes).filter(|&at| at < line.len()) {
                prop_assert!(capped.due(at, 0) >= line.due(at, 0));
            }
            let fastest = line.rates().max().unwrap();
            prop_assert_eq!(line.clone().capped(fastest), line, "nothing to cap");
        }

        #[test]
        fn one_segment_is_a_rate(rate in 100_000u64..1_000_000_000, at in 0u64..1 << 36) {
            // A second of it.
            let line = line(&[(rate / 8, 27_000_000)]);
            let due = BitRate(rate / 8 * 8).time_for(Bytes(at));
            prop_assert_eq!(line.due(Bytes(at), 0), due);
            prop_assert_eq!(line.duration(), MediaTime(27_000_000));
            prop_assert!(line.allowed(SECOND) == Bytes(rate / 8));
        }

        #[test]
        fn no_block_is_due_sooner_after_the_one_before_than_the_peak_lets_it(
            steps in
                proptest::collection::vec((188u64..1_000_000, 1_000_000u64..100_000_000), 1..20),
            first in 0u64..300_000,
        ) {
            let line = line(&steps);
            let block = 65_536;
            let peak = line.peak(Bytes(first), Bytes(block));
            let starts = (first / block + 1..).map(|nth| nth * block - first);
            let starts: alloc::vec::Vec<_> =
                starts.take_while(|&at| at < line.len().0).map(Bytes).collect();
            for pair in starts.windows(2) {
                let apart = line.due(pair[1], 0).0 - line.due(pair[0], 0).0;
                prop_assert!(apart + 1 >= peak.time_for(Bytes(block)).0, "{apart} {peak}");
            }
        }
    }
}
