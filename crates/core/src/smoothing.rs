//! Optimal smoothing: the evenest schedule at which a player never waits and never holds more than
//! its buffer (Salehi, Zhang, Kurose, Towsley 1996).
//!
//! Promise: of all schedules between the two bounds, the result has the least peak rate, or the
//! title's mean rate if that is higher: it is never slower without a need. It is made of straight
//! segments, and a title of a constant rate is one segment. All comparisons are exact.
//! Time and memory are linear in the points of the consumption.
//!
//! The server sends the first `burst` of the title at the start. The player begins to play when its
//! buffer is full: at once, if the burst fills it. Two bounds apply afterwards. The player has
//! received the bytes that it plays now (lower bound), and at most those that it plays one buffer
//! later (upper bound). A byte may come `late` after its due time, so the lower bound is earlier by
//! as much.
//!
//! ```text
//! bytes                       ___ may be held: consumption(t + burst)
//!                         ___/ __/
//!                     ___/  __/ /     schedule: the shortest path in between
//!           burst -> /   __/  _/
//!                   / __/   _/___ must be there: consumption(t + burst + late - buffer)
//!                  /_/_____/                                          time
//! ```
//!
//! The shortest path is that of a string pulled taut: it bends only at points of the bounds. A
//! funnel of the points that are visible from the last bend finds it in one pass.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use crate::polyline::Polyline;
use crate::units::{Bytes, MediaTime};

/// How many bytes of a range must have arrived by which time of the title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Consumption {
    shape: Shape,
    /// Ascending in both.
    points: Vec<Point>,
    /// How much later than its point a byte may really be needed.
    resolution: u64,
    /// How much sooner than its point a byte may really be needed.
    lead: u64,
}

/// The consumption between two points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Bytes are needed evenly, as by the clock of a transport stream.
    Lines,
    /// All bytes up to the next point are needed at its time, as the samples of a movie.
    Steps,
}

/// The buffer of a player.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlayerBuffer {
    /// The size of the buffer, in time of the title.
    pub held: MediaTime,
    /// What is sent at once at the start, in time of the title; not more than `held`.
    pub burst: MediaTime,
    /// Limit of the bytes that are sent at once.
    pub burst_max: Bytes,
    /// A byte comes so much after its due time, at most; less than `held`.
    pub late: MediaTime,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    time: u64,
    bytes: u64,
}

/// Lines behind steps become steps of a quarter of a second, or of longer ones if there are more of
/// them than in half an hour.
const JOINED_STEP: u64 = 27_000_000 / 4;
const JOINED_MAX: u64 = 8192;

/// A bound at one time.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// At least this many bytes.
    Lower(Point),
    /// At most this many bytes.
    Upper(Point),
}

impl Consumption {
    /// A consumption through these points, whose times and bytes do not descend. Of points at one
    /// time the last one counts. `None` if there are no bytes.
    pub fn new(shape: Shape, points: impl Iterator<Item = (MediaTime, Bytes)>) -> Option<Self> {
        let mut kept: Vec<Point> = Vec::new();
        for (time, bytes) in points {
            let point = Point { time: time.0, bytes: bytes.0 };
            let last = kept.last().copied();
            let is_in_order = |last: Point| last.time <= point.time && last.bytes <= point.bytes;
            if !last.is_none_or(is_in_order) {
                return None;
            }
            let is_same = |last: Point| match shape {
                Shape::Lines => last.time == point.time && kept.len() > 1,
                Shape::Steps => last.time == point.time,
            };
            if last.is_some_and(is_same) {
                kept.pop();
            }
            // A step of no bytes is none.
            if shape == Shape::Lines || last.is_none_or(|last| last.bytes < point.bytes) {
                kept.push(point);
            }
        }
        (kept.last()?.bytes > 0).then_some(Self { shape, points: kept, resolution: 0, lead: 0 })
    }

    /// The same, for points that gather what is needed within this time behind them.
    #[must_use]
    pub fn with_resolution(self, resolution: MediaTime) -> Self {
        Self { resolution: resolution.0, ..self }
    }

    /// The same, for points at which bytes come, which are needed up to this much sooner.
    #[must_use]
    pub fn with_lead(self, lead: MediaTime) -> Self {
        Self { lead: lead.0, ..self }
    }

    /// All bytes.
    pub fn len(&self) -> Bytes {
        Bytes(self.points[self.points.len() - 1].bytes)
    }

    /// When the last byte is needed.
    pub fn duration(&self) -> MediaTime {
        MediaTime(self.points[self.points.len() - 1].time)
    }

    /// The number of its points.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// The consumption of a part of the bytes, whose time begins with the first byte needed of it;
    /// `None` if none of them is ever needed, as of an index behind the media.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Option<Self> {
        let mut part = match self.shape {
            Shape::Lines => self.part_of_lines(&range)?,
            Shape::Steps => self.part_of_steps(&range)?,
        };
        // Bytes behind the last needed one come at the mean rate.
        let last = part.points[part.points.len() - 1];
        let rest = range.end - range.start - last.bytes;
        if rest > 0 {
            let later = u128::from(rest) * u128::from(last.time) / u128::from(last.bytes);
            let time = last.time.saturating_add(u64::try_from(later).unwrap_or(u64::MAX));
            let end = Point { time, bytes: last.bytes + rest };
            part = part.followed_by(&Self::along(&[last, end]));
        }
        Some(part)
    }

    /// A consumption along lines.
    fn along(points: &[Point]) -> Self {
        Self { shape: Shape::Lines, points: points.to_vec(), resolution: 0, lead: 0 }
    }

    fn part_of_steps(&self, range: &Range<u64>) -> Option<Self> {
        let after = self.points.partition_point(|point| point.bytes <= range.start);
        // The first needed byte may be behind its point, and all others are early by as much.
        let begin = self.points.get(after)?.time + self.resolution;
        let points = self.points[after..].iter().scan(false, |is_over, point| {
            let this = (!*is_over).then_some(point);
            *is_over = point.bytes >= range.end;
            this
        });
        let points = points.map(|point| {
            let bytes = point.bytes.min(range.end) - range.start;
            (MediaTime(point.time.saturating_sub(begin)), Bytes(bytes))
        });
        Some(Self { resolution: self.resolution, ..Self::new(self.shape, points)? })
    }

    fn part_of_lines(&self, range: &Range<u64>) -> Option<Self> {
        let end = range.end.min(self.len().0);
        if range.start >= end {
            return None;
        }
        let begin = self.time_of(range.start);
        let inner =
            self.points.iter().filter(|point| (range.start + 1..end).contains(&point.bytes));
        let first = Point { time: begin, bytes: range.start };
        let last = Point { time: self.time_of(end), bytes: end };
        let points = core::iter::once(&first).chain(inner).chain([&last]).map(|point| {
            (MediaTime(point.time.saturating_sub(begin)), Bytes(point.bytes - range.start))
        });
        Some(Self { lead: self.lead, ..Self::new(self.shape, points)? })
    }

    /// When byte `at` is needed, along the lines; rounds down.
    fn time_of(&self, at: u64) -> u64 {
        let after = self.points.partition_point(|point| point.bytes <= at);
        let from = after.checked_sub(1).map(|before| self.points[before]);
        match (from, self.points.get(after)) {
            (Some(from), Some(to)) => {
                let over = u128::from(to.time - from.time) * u128::from(at - from.bytes);
                from.time + (over / u128::from(to.bytes - from.bytes)) as u64
            }
            (Some(last), None) => last.time,
            (None, first) => first.map_or(0, |first| first.time),
        }
    }

    /// This consumption, and behind its bytes those of `rest`, a consumption of the same range by
    /// lines. Each of them is needed when `rest` says so, and not before all bytes of this one.
    #[must_use]
    pub fn followed_by(mut self, rest: &Self) -> Self {
        let last = self.points[self.points.len() - 1];
        let end = rest.points[rest.points.len() - 1];
        if rest.shape != Shape::Lines || end.bytes <= last.bytes {
            return self;
        }
        // Steps of lines are early by their length.
        let span = end.time.saturating_sub(last.time);
        let step = (span / JOINED_MAX).max(JOINED_STEP);
        let time = rest.time_of(last.bytes).saturating_sub(rest.lead).max(last.time);
        let bytes = rest.at(time.saturating_add(rest.lead)).max(last.bytes);
        let mut from = Point { time, bytes };
        if bytes > last.bytes {
            self.step(from);
        }
        for to in rest.points.iter().filter(|to| to.bytes > bytes) {
            let time = to.time.saturating_sub(rest.lead).max(from.time);
            let to = Point { time, ..*to };
            let lasts = u128::from(to.time - from.time);
            let mut at = from;
            while self.shape == Shape::Steps && to.time - at.time > step {
                let over = u128::from(at.time + step - from.time);
                let bytes = u128::from(to.bytes - from.bytes) * over / lasts;
                let bytes = from.bytes + bytes as u64;
                self.step(Point { time: at.time, bytes });
                at = Point { time: at.time + step, bytes };
            }
            self.step(match self.shape {
                Shape::Steps => Point { time: at.time, bytes: to.bytes },
                Shape::Lines => to,
            });
            from = to;
        }
        self
    }

    /// Adds a point, which replaces one at the same time.
    fn step(&mut self, point: Point) {
        let last = self.points[self.points.len() - 1];
        // The first point of lines is their beginning.
        let is_begin = self.shape == Shape::Lines && self.points.len() == 1;
        if last.time == point.time && !is_begin {
            self.points.pop();
        }
        if self.points.last().is_none_or(|last| last.bytes < point.bytes) {
            self.points.push(point);
        }
    }

    /// Always false: a consumption has bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes needed by `time`.
    fn at(&self, time: u64) -> u64 {
        let after = self.points.partition_point(|point| point.time <= time);
        let Some(from) = after.checked_sub(1).map(|before| self.points[before]) else { return 0 };
        let to = self.points.get(after).filter(|_| self.shape == Shape::Lines);
        to.map_or(from.bytes, |to| {
            let over = u128::from(to.bytes - from.bytes) * u128::from(time - from.time);
            from.bytes + (over / u128::from(to.time - from.time)) as u64
        })
    }

    /// The schedule of least peak for a player with this buffer.
    pub fn smoothed(&self, player: PlayerBuffer) -> Polyline {
        let start = Point { time: 0, bytes: self.at(player.burst.0).min(player.burst_max.0) };
        let mut string = TautString::new(start);
        for bound in self.bounds(player) {
            string.add(bound);
        }
        through(&string.finish(self.points[self.points.len() - 1]))
    }

    /// The bounds in order of time. Those of the start itself are left out.
    fn bounds(&self, player: PlayerBuffer) -> impl Iterator<Item = Bound> + use<'_> {
        let points = &self.points;
        let PlayerBuffer { held, burst: MediaTime(burst), burst_max: _, late } = player;
        // Points are early, so the bytes that fill the buffer may come as much sooner.
        let delay = held.0.saturating_sub(burst).saturating_sub(self.resolution);
        let lead = self.lead + late.0;
        let lower = points.iter().map(move |point| {
            let time = (point.time + delay).saturating_sub(lead);
            Point { time, ..*point }
        });
        // The bytes of a step are needed until just before the next one.
        let shift = usize::from(self.shape == Shape::Steps);
        let upper = points.iter().zip(&points[shift..]).filter_map(move |(point, next)| {
            Some(Point { time: next.time.checked_sub(burst)?, ..*point })
        });
        let mut lower = lower.skip_while(|point| point.time == 0).peekable();
        let mut upper = upper.skip_while(|point| point.time == 0).peekable();
        core::iter::from_fn(move || {
            let is_upper = match (lower.peek(), upper.peek()) {
                (Some(lower), Some(upper)) => upper.time < lower.time,
                (None, upper) => upper.is_some(),
                (Some(_), None) => false,
            };
            if is_upper { upper.next().map(Bound::Upper) } else { lower.next().map(Bound::Lower) }
        })
    }
}

mod form;

/// A string from the last bend through a funnel of bounds.
struct TautString {
    bends: Vec<Point>,
    /// The bend that the funnel begins at.
    apex: Point,
    /// Lower bounds visible from the apex: slopes descend.
    lower: VecDeque<Point>,
    /// Upper bounds visible from the apex: slopes ascend.
    upper: VecDeque<Point>,
}

impl TautString {
    fn new(start: Point) -> Self {
        let (lower, upper) = (VecDeque::new(), VecDeque::new());
        Self { bends: alloc::vec![start], apex: start, lower, upper }
    }

    fn add(&mut self, bound: Bound) {
        let (point, is_lower) = match bound {
            Bound::Lower(point) => (point, true),
            Bound::Upper(point) => (point, false),
        };
        // The path is at the apex then, which is on a bound and within the other one.
        if point.time <= self.apex.time {
            return;
        }
        let (same, other) = match is_lower {
            true => (&mut self.lower, &mut self.upper),
            false => (&mut self.upper, &mut self.lower),
        };
        let is_beyond = |turn: i128| if is_lower { turn > 0 } else { turn < 0 };
        while let Some(&last) = same.back() {
            let before = same.len().checked_sub(2).map_or(self.apex, |before| same[before]);
            let turn = turn(before, last, point);
            if turn != 0 && !is_beyond(turn) {
                break;
            }
            same.pop_back();
        }
        if same.is_empty() {
            // The string touches the other side where that hides the point.
            while let Some(&bend) = other.front()
                && is_beyond(turn(self.apex, bend, point))
            {
                self.apex = bend;
                self.bends.push(bend);
                other.pop_front();
            }
        }
        if point.time > self.apex.time {
            same.push_back(point);
        }
    }

    /// Pulls the string to the bytes of the title, whenever that is. It goes on straight, or at the
    /// mean rate if it has not bent, as far as the bounds allow.
    fn finish(mut self, title: Point) -> Vec<Point> {
        let (apex, len) = (self.apex, title.bytes);
        if apex.bytes >= len {
            return self.bends;
        }
        let (slowest, fastest) = (self.lower.front().copied(), self.upper.front().copied());
        // The end is a lower bound, which is not reached yet.
        let slowest = slowest.expect("the end is ahead");
        let (from, through) = match self.bends.len().checked_sub(2) {
            Some(before) => (self.bends[before], apex),
            None => (Point { time: 0, bytes: 0 }, title),
        };
        let straight = Point {
            time: apex.time + through.time - from.time,
            bytes: apex.bytes + through.bytes - from.bytes,
        };
        let through = match fastest {
            _ if turn(apex, straight, slowest) > 0 => slowest,
            Some(fastest) if turn(apex, straight, fastest) < 0 => fastest,
            Some(_) | None => straight,
        };
        let span = u128::from(through.time - apex.time) * u128::from(len - apex.bytes);
        let span = span.div_ceil(u128::from(through.bytes - apex.bytes).max(1));
        let time = apex.time.saturating_add(u64::try_from(span).unwrap_or(u64::MAX));
        self.bends.push(Point { time, bytes: len });
        self.bends
    }
}

/// Positive if `point` lies above the line from `from` through `over`, zero on it.
fn turn(from: Point, over: Point, point: Point) -> i128 {
    let apart = |to: Point| {
        let time = i128::from(to.time) - i128::from(from.time);
        (time, i128::from(to.bytes) - i128::from(from.bytes))
    };
    let ((over_time, over_bytes), (time, bytes)) = (apart(over), apart(point));
    over_time * bytes - over_bytes * time
}

/// The line through `bends`, the first of which is sent at the start. A pause is one byte that
/// takes as long, which a line has to ascend.
fn through(bends: &[Point]) -> Polyline {
    let mut points = alloc::vec![(Bytes(0), MediaTime(0))];
    // The bytes of the last bend, and whether the byte of a pause is on top of them.
    let (mut reached, mut is_ahead) = (0, false);
    for &Point { time, bytes } in bends {
        let end = points.len() - 1;
        let is_pause = bytes == reached && time > 0;
        if is_ahead && bytes <= reached + 1 {
            // The pause lasts longer, or its byte is all that follows it.
            points[end].1 = MediaTime(time);
        } else if is_pause || bytes > reached {
            points.push((Bytes(bytes + u64::from(is_pause)), MediaTime(time)));
        }
        (reached, is_ahead) = (bytes, is_pause);
    }
    // A range that is sent at once ends in the next tick.
    let (len, time) = points[points.len() - 1];
    if time == MediaTime(0) {
        points.pop();
        points.push((len, MediaTime(1)));
    }
    Polyline::through(&points).expect("a schedule ascends from zero")
}

#[cfg(test)]
mod tests;
