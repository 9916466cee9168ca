//! Maps bytes to times: the clock of a title as a polyline through as few PCR samples as possible.
//!
//! Promise: every sample lies within the tolerance of the line. There are at most [`POINTS_MAX`]
//! points and [`RUNS_MAX`] runs, whatever the samples. Positions and times are inverse: the
//! position of a time is the first byte that is not before it.
//!
//! The line is built online. From the last point a cone is kept of all slopes that pass every later
//! sample within the tolerance. A sample inside the cone narrows it; for one outside, the sample
//! before it becomes a point. Fractions of 128 bits are exact.

use alloc::vec::Vec;

use super::super::{Pcr, PcrSample};
use crate::units::MediaTime;

/// The initial tolerance, in ticks. With the tick that [`Polyline::time_at`] rounds off it is 481
/// ns: within the 500 ns of PCR accuracy in the standard (2.4.2.2).
pub(super) const TOLERANCE: u64 = 12;
/// Points of a line; with more, the tolerance is increased. Two hours of a variable-rate title with
/// a sample each 30 ms.
pub(super) const POINTS_MAX: usize = 1 << 18;
/// Runs of the clock. A clock with more jumps is invalid.
pub(super) const RUNS_MAX: usize = 4096;
/// A larger distance of neighbouring samples is a jump, as in [`super::super::measure`].
pub(super) const GAP_MAX: MediaTime = MediaTime(27_000_000);

/// Upper bound of times: five thousand years.
const TIME_MAX: u64 = 1 << 62;

/// A byte and its time since the title's beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub(super) at: u64,
    pub(super) time: u64,
}

/// The relation of a PCR to the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Join {
    /// Unknown: a difference beyond [`GAP_MAX`] is a jump.
    None,
    /// The stream has signalled a discontinuity.
    Announced,
    /// The clock continued while no PCR was sent.
    Gap,
}

/// A range in which the clock runs without a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The position of its first sample.
    pub at: u64,
    /// The title's time there.
    pub time: MediaTime,
    /// The stream's clock there.
    pub pcr: Pcr,
    /// Whether the stream has signalled the jump before it.
    pub announced: bool,
}

/// The line under construction. Times count from the first sample.
#[derive(Clone, Debug)]
pub(super) struct PolylineBuilder {
    points: Vec<Point>,
    runs: Vec<Run>,
    last: Option<(Point, Pcr)>,
    cone: Cone,
    tolerance: u64,
    overflown: bool,
}

/// The slopes, in ticks per byte, of lines from the last point that pass all later samples.
#[derive(Clone, Copy, Debug)]
struct Cone {
    low: Slope,
    high: Slope,
}

/// A fraction with a positive denominator.
#[derive(Clone, Copy, Debug)]
struct Slope {
    ticks: i128,
    bytes: i128,
}

/// The finished line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Polyline {
    /// At least two: the title's beginning and its end.
    pub(super) points: Vec<Point>,
    pub(super) runs: Vec<Run>,
    pub(super) tolerance: u64,
}

impl Default for PolylineBuilder {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            runs: Vec::new(),
            last: None,
            cone: Cone::OPEN,
            tolerance: TOLERANCE,
            overflown: false,
        }
    }
}

impl PolylineBuilder {
    /// Handles the next PCR of the clock.
    pub(super) fn handle_sample(&mut self, sample: PcrSample, join: Join) {
        let announced = join == Join::Announced;
        let Some((last, pcr)) = self.last else {
            self.begin_run(Point { at: sample.at, time: 0 }, sample.pcr, announced);
            return;
        };
        let span = sample.pcr.since(pcr);
        if announced || span > GAP_MAX && join != Join::Gap {
            // Over a jump the time is extrapolated.
            let more = self.slope().map_or(0, |slope| slope.over(sample.at - last.at));
            let time = later(last.time, more);
            self.point(last);
            self.begin_run(Point { at: sample.at, time }, sample.pcr, announced);
        } else if span.0 > 0 && sample.at > last.at {
            // A repeated packet does not advance the clock.
            let now = Point { at: sample.at, time: later(last.time, span.0) };
            self.go_on(last, now);
            self.last = Some((now, sample.pcr));
        }
    }

    /// The last sample: its time since the first one, and its clock.
    pub(super) fn last(&self) -> Option<(MediaTime, Pcr)> {
        self.last.map(|(point, pcr)| (MediaTime(point.time), pcr))
    }

    /// The clock jumps too often.
    pub(super) fn is_restless(&self) -> bool {
        self.overflown
    }

    /// The line of a title of `len` bytes, and the time of the first sample; `None` if the clock
    /// has not advanced.
    pub(super) fn finish(mut self, len: u64) -> Option<(Polyline, MediaTime)> {
        let (last, _) = self.last?;
        let end = self.slope();
        self.point(last);
        let first = *self.points.first()?;
        let begin = self.points.windows(2).find_map(|pair| Slope::between(pair[0], pair[1]))?;
        let end = end.unwrap_or(begin);
        let lead = begin.over(first.at);
        for point in &mut self.points {
            point.time = later(point.time, lead);
        }
        for run in &mut self.runs {
            run.time.0 = later(run.time.0, lead);
        }
        if first.at > 0 {
            self.points.insert(0, Point { at: 0, time: 0 });
        }
        if len > last.at {
            let time = later(later(last.time, lead), end.over(len - last.at));
            self.points.push(Point { at: len, time });
        }
        let Self { points, runs, tolerance, .. } = self;
        Some((Polyline { points, runs, tolerance }, MediaTime(lead)))
    }

    fn begin_run(&mut self, point: Point, pcr: Pcr, announced: bool) {
        if self.runs.len() == RUNS_MAX {
            self.overflown = true;
            return;
        }
        self.point(point);
        let time = MediaTime(point.time);
        self.runs.push(Run { at: point.at, time, pcr, announced });
        self.last = Some((point, pcr));
    }

    fn go_on(&mut self, last: Point, now: Point) {
        if !self.cone.holds(self.anchor(), now) {
            self.point(last);
        }
        self.cone.narrow(self.anchor(), now, self.tolerance);
    }

    fn anchor(&self) -> Point {
        *self.points.last().expect("a run begins with a point")
    }

    /// The current slope.
    fn slope(&self) -> Option<Slope> {
        let (last, _) = self.last?;
        let anchor = *self.points.last()?;
        Slope::between(anchor, last).or_else(|| {
            self.points.windows(2).rev().find_map(|pair| Slope::between(pair[0], pair[1]))
        })
    }

    /// Adds a point, from which a new cone opens.
    fn point(&mut self, point: Point) {
        if self.points.last().is_none_or(|last| last.at < point.at) {
            self.points.push(point);
            self.cone = Cone::OPEN;
            if self.points.len() >= POINTS_MAX {
                self.coarsen(POINTS_MAX / 2);
            }
        }
    }

    /// Increases the tolerance until at most `wanted` points are left.
    fn coarsen(&mut self, wanted: usize) {
        while self.points.len() > wanted && self.tolerance < u64::MAX / 4 {
            // Dropped points deviate by their samples' tolerance, and by as much again.
            let more = self.tolerance;
            self.points = thinned(&self.points, &self.runs, more);
            self.tolerance += more;
        }
    }
}

/// A line through some of `points`, with all of them within `tolerance`. The ends of runs stay.
fn thinned(points: &[Point], runs: &[Run], tolerance: u64) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    let mut cone = Cone::OPEN;
    let mut starts = runs.iter().map(|run| run.at).peekable();
    for (nth, &point) in points.iter().enumerate() {
        let begins = starts.next_if_eq(&point.at).is_some();
        let Some(&anchor) = kept.last() else {
            kept.push(point);
            continue;
        };
        let before = points[nth - 1];
        let anchor = if !begins && cone.holds(anchor, point) {
            anchor
        } else {
            if before.at > anchor.at {
                kept.push(before);
            }
            cone = Cone::OPEN;
            before
        };
        if begins {
            kept.push(point);
            cone = Cone::OPEN;
        } else {
            cone.narrow(anchor, point, tolerance);
        }
    }
    kept.extend(points.last().filter(|last| kept.last().is_some_and(|kept| kept.at < last.at)));
    kept
}

impl Polyline {
    /// The due time of byte `at`, from the beginning. Rounds down to a tick.
    pub(super) fn time_at(&self, at: u64) -> MediaTime {
        let after = self.points.partition_point(|point| point.at <= at);
        let Some(to) = self.points.get(after) else {
            return MediaTime(self.points.last().map_or(0, |last| last.time));
        };
        let Some(from) = after.checked_sub(1).map(|nth| self.points[nth]) else {
            return MediaTime(0);
        };
        let slope = Slope::between(from, *to);
        MediaTime(from.time + slope.map_or(0, |slope| slope.over(at - from.at)))
    }

    /// The first byte that is due at `time` or later; the end if there is none.
    pub(super) fn position_at(&self, time: MediaTime) -> u64 {
        let after = self.points.partition_point(|point| point.time < time.0);
        let Some(to) = self.points.get(after) else {
            return self.points.last().map_or(0, |last| last.at);
        };
        let Some(from) = after.checked_sub(1).map(|nth| self.points[nth]) else { return to.at };
        let bytes = u128::from(to.at - from.at) * u128::from(time.0 - from.time);
        // Time advances here, as `to` is the first point that is not before `time`. Rounds up:
        // never early.
        from.at + bytes.div_ceil(u128::from(to.time - from.time)) as u64
    }
}

impl Cone {
    /// Any line that does not go back in time.
    const OPEN: Self = Self {
        low: Slope { ticks: 0, bytes: 1 },
        high: Slope { ticks: i128::MAX >> 64, bytes: 1 },
    };

    fn holds(&self, from: Point, to: Point) -> bool {
        Slope::from(from, to, 0)
            .is_some_and(|slope| self.low.is_at_most(slope) && slope.is_at_most(self.high))
    }

    fn narrow(&mut self, from: Point, to: Point, tolerance: u64) {
        let tolerance = i128::from(tolerance);
        if let Some(low) = Slope::from(from, to, -tolerance).filter(|&low| self.low.is_at_most(low))
        {
            self.low = low;
        }
        if let Some(high) = Slope::from(from, to, tolerance).filter(|&h| h.is_at_most(self.high)) {
            self.high = high;
        }
    }
}

impl Slope {
    fn from(from: Point, to: Point, more: i128) -> Option<Self> {
        let bytes = i128::from(to.at) - i128::from(from.at);
        let ticks = i128::from(to.time) - i128::from(from.time) + more;
        (bytes > 0).then_some(Self { ticks, bytes })
    }

    /// `None` unless both times and bytes ascend.
    fn between(from: Point, to: Point) -> Option<Self> {
        Self::from(from, to, 0).filter(|slope| slope.ticks > 0)
    }

    /// Both terms of a slope are below 2^63, so the products fit.
    fn is_at_most(self, other: Self) -> bool {
        self.ticks * other.bytes <= other.ticks * self.bytes
    }

    /// Ticks over `bytes`. Rounds down; saturates.
    fn over(self, bytes: u64) -> u64 {
        let ticks = i128::from(bytes) * self.ticks / self.bytes;
        u64::try_from(ticks).map_or(TIME_MAX, |ticks| ticks.min(TIME_MAX))
    }
}

fn later(time: u64, span: u64) -> u64 {
    time.saturating_add(span).min(TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drawn(samples: &[(u64, u64)]) -> PolylineBuilder {
        let mut drawing = PolylineBuilder::default();
        for &(at, time) in samples {
            drawing.handle_sample(PcrSample { at, pcr: Pcr::at(MediaTime(time)) }, Join::None);
        }
        drawing
    }

    /// Samples of a title whose rate changes at every one of them, and their own timeline.
    fn varied() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let step = (1u64..200_000, 1u64..1_000_000);
        (0u64..Pcr::WRAP.0, proptest::collection::vec(step, 2..200)).prop_map(|(base, steps)| {
            let (mut at, mut time) = (10, base);
            let mut samples = Vec::new();
            for (bytes, ticks) in steps {
                samples.push((at, time));
                (at, time) = (at + bytes, time + ticks);
            }
            samples
        })
    }

    proptest! {
        #[test]
        fn every_sample_lies_within_the_tolerance(samples in varied()) {
            let (line, lead) = drawn(&samples).finish(samples.last().unwrap().0 + 5000).unwrap();
            prop_assert_eq!(line.tolerance, TOLERANCE);
            for &(at, time) in &samples {
                let found = line.time_at(at).0;
                prop_assert!(found.abs_diff(time - samples[0].1 + lead.0) <= TOLERANCE + 1);
            }
        }

        #[test]
        fn the_position_of_a_time_is_the_first_byte_not_before_it(
            samples in varied(), wanted in proptest::collection::vec(0u64..1 << 26, 20),
        ) {
            let (line, _) = drawn(&samples).finish(samples.last().unwrap().0 + 5000).unwrap();
            let end = line.points.last().unwrap();
            for time in wanted {
                let time = MediaTime(time % (end.time + 1));
                let at = line.position_at(time);
                prop_assert!(line.time_at(at) >= time);
                prop_assert!(at == 0 || line.time_at(at - 1) < time);
            }
            for at in 0..end.at.min(3000) {
                prop_assert!(line.position_at(line.time_at(at)) <= at);
            }
        }

        #[test]
        fn a_constant_rate_needs_two_points_and_those_of_the_ends(
            rate in 100_000u64..200_000_000, base in 0u64..Pcr::WRAP.0, gap in 1u64..400,
        ) {
            let law = |at: u64| base + (u128::from(at) * 216_000_000 / u128::from(rate)) as u64;
            let samples: Vec<_> = (0..500).map(|nth| nth * gap * 188 + 198)
                .take_while(|&at| law(at) - law(198) < 400 * 20_000_000)
                .map(|at| (at, law(at))).collect();
            prop_assume!(samples.len() > 2 && law(gap * 188) - base < 27_000_000);
            prop_assume!(law(gap * 188) > base);
            let (line, _) = drawn(&samples).finish(samples.last().unwrap().0 + 1).unwrap();
            prop_assert!(line.points.len() <= 4, "{:?}", line.points);
        }

        #[test]
        fn too_many_points_cost_tolerance_and_no_more(samples in varied(), wanted in 4usize..50) {
            let mut drawing = drawn(&samples);
            drawing.point(drawing.last.unwrap().0);
            drawing.coarsen(wanted);
            prop_assert!(drawing.points.len() <= wanted);
            let tolerance = drawing.tolerance;
            let (line, lead) = drawing.finish(samples.last().unwrap().0).unwrap();
            for &(at, time) in &samples {
                let found = line.time_at(at).0;
                // The lead is as exact as the first slope.
                let due = time - samples[0].1 + lead.0;
                prop_assert!(found.abs_diff(due) <= tolerance + 1, "{found} {due} {tolerance}");
            }
        }

        #[test]
        fn no_samples_are_hostile_enough(
            samples in proptest::collection::vec(
                (0u64..1 << 40, 0u64..Pcr::WRAP.0, any::<bool>()),
                0..300,
            ),
        ) {
            let mut drawing = PolylineBuilder::default();
            let mut at = 0;
            for (bytes, time, announced) in samples {
                at += bytes;
                let join = if announced { Join::Announced } else { Join::None };
                drawing.handle_sample(PcrSample { at, pcr: Pcr::at(MediaTime(time)) }, join);
            }
            if let Some((line, _)) = drawing.finish(at + 1) {
                let ascend =
                    |pair: &[Point]| pair[0].at < pair[1].at && pair[0].time <= pair[1].time;
                prop_assert!(line.points.windows(2).all(ascend));
                prop_assert!(line.time_at(u64::MAX) >= line.time_at(0));
            }
        }
    }

    #[test]
    fn over_a_jump_time_goes_on_with_the_bytes() {
        let samples =
            [(0, 0), (1000, 27_000), (2000, 54_000), (3000, 90 << 30), (4000, (90 << 30) + 27_000)];
        let (line, _) = drawn(&samples).finish(5000).unwrap();
        assert_eq!(line.time_at(3000), MediaTime(81_000));
        assert_eq!(line.time_at(5000), MediaTime(135_000));
        assert_eq!(line.runs.len(), 2);
        assert_eq!(line.runs[1].pcr, Pcr::at(MediaTime(90 << 30)));
    }

    #[test]
    fn a_clock_that_stands_still_is_no_line() {
        assert!(drawn(&[(0, 7), (1000, 7), (2000, 7)]).finish(3000).is_none());
        assert!(drawn(&[(0, 7)]).finish(3000).is_none());
        assert!(drawn(&[]).finish(3000).is_none());
    }

    #[test]
    fn what_jumps_all_the_time_is_no_clock() {
        let samples: Vec<_> =
            (0..RUNS_MAX as u64 + 2).map(|nth| (nth * 1000, (nth % 2) << 40)).collect();
        assert!(drawn(&samples).is_restless());
    }
}
