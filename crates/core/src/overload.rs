//! Overload: which streams suffer when a disk does not keep up with what was promised.
//!
//! Promise: the newest do, and as few as possible. Their reads come after those of all others, so
//! the others stay on time. They are ended if that lasts, and come back if it does not. A disk that
//! does all reads in time defers and ends nobody, however slow it has become: streams that share
//! titles need less than was promised to each. This module knows neither slots nor commands.

use crate::disk_model::Ratio;
use crate::estimator::{Estimate, Leftover};
use crate::units::{MonoTime, Nanos, SECOND};

/// What is promised on one disk.
#[derive(Clone, Copy)]
pub struct Promise<'a> {
    /// Length of the cycle.
    pub cycle: Nanos,
    /// The part of it that is promised at most.
    pub limit: Nanos,
    /// Needs of the streams that may be deferred, newest first.
    pub newest: &'a [Need],
    /// Time of the cycle, by the model of the start, without this part of the promises.
    pub time: &'a dyn Fn(Need) -> Nanos,
}

/// Needs of a stream in each cycle.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Need {
    /// Visits, in thousandths.
    pub visits: u64,
    /// Bytes read.
    pub bytes: u64,
}

impl Need {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { visits: self.visits + other.visits, bytes: self.bytes + other.bytes }
    }

    /// Whether the stream needs the disk.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.visits > 0 || self.bytes > 0
    }
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Measures {
    /// The number of the newest streams to be deferred from now on.
    pub deferred: usize,
    /// They are to be ended.
    pub ends: bool,
}

/// The overload of one disk.
#[derive(Clone, Copy, Default, Debug)]
pub struct Overload {
    deferred: usize,
    since: Option<MonoTime>,
    /// Since when fewer would do.
    calm: Option<MonoTime>,
}

/// A disk that keeps up again must do so for this long, and for a cycle: longer than the estimator
/// needs to notice a change.
const CALM: Nanos = Nanos(4 * SECOND.0);
/// A deferred stream is ended after this time, and two and a half cycles: its viewer can go
/// elsewhere.
const DEFERRED_MAX: Nanos = Nanos(10 * SECOND.0);

impl Overload {
    /// Whether any stream is deferred.
    pub const fn is_any(&self) -> bool {
        self.deferred > 0
    }

    /// What is to be done at `now`, by what is known about the disk.
    pub fn look(&mut self, now: MonoTime, estimate: &Estimate, promise: &Promise<'_>) -> Measures {
        let worst = estimate.ratio.max(estimate.pressure.unwrap_or(Ratio::MIN));
        self.deferred = self.deferred.min(promise.newest.len());
        // What was missed must be made up for.
        let limit = match estimate.pressure {
            Some(_) => Nanos(promise.limit.0 / 4 * 3),
            None => promise.limit,
        };
        let is_behind = estimate.leftover == Leftover::Promised;
        let needed = match estimate.leftover {
            Leftover::Nothing => 0,
            Leftover::Deferred | Leftover::Promised => promise.excess(worst, limit),
        };
        let without =
            promise.newest[..self.deferred].iter().fold(Need::default(), |a, b| a.plus(*b));
        if is_behind && worst.times((promise.time)(without)) > promise.cycle {
            self.deferred = self.deferred.max(needed);
            self.calm = None;
        } else if needed < self.deferred {
            if now.since(*self.calm.get_or_insert(now)) >= CALM.max(promise.cycle) {
                self.deferred = needed;
            }
        } else {
            self.calm = None;
        }
        if self.deferred == 0 {
            *self = Self::default();
            return Measures::default();
        }
        let since = *self.since.get_or_insert(now);
        let lasts = now.since(since) >= DEFERRED_MAX.max(Nanos(promise.cycle.0 / 2 * 5));
        let ends = lasts && estimate.leftover != Leftover::Nothing;
        if ends {
            self.since = None;
        }
        Measures { deferred: self.deferred, ends }
    }
}

impl Promise<'_> {
    /// The least number of newest streams without which the others fit into `limit`.
    fn excess(&self, ratio: Ratio, limit: Nanos) -> usize {
        let mut without = Need::default();
        for (count, need) in self.newest.iter().enumerate() {
            if ratio.times((self.time)(without)) <= limit {
                return count;
            }
            without = without.plus(*need);
        }
        self.newest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Nanos = Nanos::from_millis(100);
    const LIMIT: Nanos = Nanos::from_millis(90);

    /// A hundred streams of 0.9 ms each.
    fn measures(
        overload: &mut Overload,
        millis: u64,
        percent: u32,
        leftover: Leftover,
    ) -> Measures {
        let newest = [Need { visits: 900, bytes: 0 }; 100];
        let time = |without: Need| Nanos((90_000 - without.visits) * 1000);
        let promise = Promise { cycle: CYCLE, limit: LIMIT, newest: &newest, time: &time };
        let ratio = Ratio::of_thousandths(percent * 10);
        let (ratio, pressure) = match leftover {
            Leftover::Promised => (Ratio::ONE, Some(ratio)),
            Leftover::Deferred | Leftover::Nothing => (ratio, None),
        };
        let estimate = Estimate { ratio, pressure, leftover, confidence: 1000, samples: 100 };
        overload.look(MonoTime(millis * 1_000_000), &estimate, &promise)
    }

    #[test]
    fn r11_the_fewest_of_the_newest_are_deferred_and_come_back_after_a_calm_time() {
        use Leftover::{Deferred, Promised};
        let mut overload = Overload::default();
        assert_eq!(measures(&mut overload, 0, 111, Promised), Measures::default(), "still fits");
        // A quarter of the time makes up for what was missed.
        let half = Measures { deferred: 63, ends: false };
        assert_eq!(measures(&mut overload, 250, 200, Promised), half);
        assert_eq!(measures(&mut overload, 500, 100, Deferred), half, "not yet calm");
        assert_eq!(measures(&mut overload, 1000, 310, Promised).deferred, 76);
        assert_eq!(measures(&mut overload, 1250, 100, Deferred).deferred, 76);
        assert_eq!(measures(&mut overload, 5000, 100, Deferred).deferred, 76);
        assert_eq!(measures(&mut overload, 5250, 100, Deferred), Measures::default());
    }

    #[test]
    fn r11_streams_that_stay_deferred_are_ended_and_no_sooner() {
        let mut overload = Overload::default();
        assert_eq!(measures(&mut overload, 0, 200, Leftover::Promised).deferred, 63);
        for millis in (250..10_000).step_by(250) {
            let left = measures(&mut overload, millis, 200, Leftover::Deferred);
            assert!(left.deferred >= 50 && !left.ends, "{millis} {left:?}");
        }
        assert!(measures(&mut overload, 10_000, 200, Leftover::Deferred).ends);
    }

    #[test]
    fn r11_a_slow_disk_that_does_all_reads_defers_and_ends_nobody() {
        let mut overload = Overload::default();
        for millis in (0..60_000).step_by(250) {
            let all_done = measures(&mut overload, millis, 400, Leftover::Nothing);
            assert_eq!(all_done, Measures::default(), "{millis}");
        }
        assert!(measures(&mut overload, 60_000, 400, Leftover::Promised).deferred > 0);
        for millis in (60_250..64_000).step_by(250) {
            assert!(measures(&mut overload, millis, 400, Leftover::Nothing).deferred > 0);
        }
        // The reads of the deferred streams were done in time, too.
        let calm = measures(&mut overload, 64_250, 400, Leftover::Nothing);
        assert_eq!(calm, Measures::default());
    }
}
