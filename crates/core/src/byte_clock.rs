//! The byte clock: when each byte of a stream is due, in exact integers.
//!
//! Promise: byte *n* of a segment that started at *t0* with rate *r* is due at `t0 + ceil(8e9 * n /
//! r)` ns. The law is anchored at the start, so nothing drifts, and a late send never moves its
//! successors. A change of rate, or a pause of the machine, starts a new segment. The clock knows
//! neither the content nor the sender of the bytes.

use crate::mutant;
use crate::units::{BitRate, Bytes, MonoTime, Nanos};

/// A schedule: the due times of the bytes of a stream.
pub trait DueTimes {
    /// When byte `offset` of the stream is due.
    fn due(&self, offset: Bytes) -> MonoTime;

    /// Upper bound of the rate at which a block of bytes is due.
    fn rate(&self) -> BitRate;
}

impl DueTimes for ByteClock {
    fn due(&self, offset: Bytes) -> MonoTime {
        ByteClock::due(self, offset)
    }

    fn rate(&self) -> BitRate {
        ByteClock::rate(self)
    }
}

/// The departure law of one segment of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteClock {
    /// When byte 0 of the segment is due.
    start: MonoTime,
    /// Bytes of the stream before this segment.
    base: Bytes,
    rate: BitRate,
}

impl ByteClock {
    /// A clock whose byte 0 is due at `start`.
    ///
    /// # Panics
    /// If `rate` is zero.
    pub const fn new(start: MonoTime, rate: BitRate) -> Self {
        assert!(rate.0 > 0, "a rate is never zero");
        Self { start, base: Bytes(0), rate }
    }

    /// The rate in force.
    pub const fn rate(&self) -> BitRate {
        self.rate
    }

    /// When the segment began.
    pub const fn start(&self) -> MonoTime {
        self.start
    }

    /// When byte `offset` of the stream is due. Rounds up: never early.
    pub fn due(&self, offset: Bytes) -> MonoTime {
        self.start + self.rate.time_for(offset.saturating_sub(self.base))
    }

    /// The number of bytes of the stream that may have left by `now`. Rounds down: never early.
    pub fn allowed(&self, now: MonoTime) -> Bytes {
        let now = mutant!(ClockEarly, now + Nanos::from_millis(1), now);
        let since = now.since(self.start);
        let since = mutant!(RemainderDropped, Nanos(since.0 / 1_000_000 * 1_000_000), since);
        self.base + self.rate.bytes_in(since)
    }

    /// Continues at `rate` from `now`; bytes already due stay due.
    #[must_use]
    pub fn with_rate(&self, now: MonoTime, rate: BitRate) -> Self {
        assert!(rate.0 > 0, "a rate is never zero");
        Self { start: now, base: self.allowed(now), rate }
    }

    /// The same law, `pause` later: for a stall of the machine.
    #[must_use]
    pub fn delayed(&self, pause: Nanos) -> Self {
        Self { start: self.start + pause, ..*self }
    }

    /// The same law with `ahead` bytes due at once: the start burst.
    #[must_use]
    pub fn with_burst(&self, ahead: Bytes) -> Self {
        Self { base: self.base + ahead, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;
    use proptest::prelude::*;

    #[test]
    fn an_hour_of_sends_has_no_drift() {
        let clock = ByteClock::new(MonoTime(77), BitRate(8_800_000));
        let hour = MonoTime(77 + 3600 * SECOND.0);
        assert_eq!(clock.allowed(hour), Bytes(3600 * 1_100_000));
        assert_eq!(clock.due(Bytes(3600 * 1_100_000)), hour);
    }

    #[test]
    fn a_burst_moves_the_whole_law() {
        let clock = ByteClock::new(MonoTime(0), BitRate(8_000)).with_burst(Bytes(500));
        assert_eq!(clock.allowed(MonoTime(0)), Bytes(500));
        assert_eq!(clock.allowed(MonoTime(SECOND.0)), Bytes(1500));
        assert_eq!(clock.due(Bytes(400)), MonoTime(0));
    }

    proptest! {
        #[test]
        fn a_byte_is_due_exactly_when_it_becomes_allowed(
            rate in 1_000u64..100_000_000_000, offset in 0u64..1 << 40, start in 0u64..1 << 50,
        ) {
            let clock = ByteClock::new(MonoTime(start), BitRate(rate));
            let due = clock.due(Bytes(offset));
            prop_assert!(clock.allowed(due).0 >= offset);
            if due.0 > start {
                prop_assert!(clock.allowed(MonoTime(due.0 - 1)).0 < offset);
            }
        }

        #[test]
        fn a_rate_change_never_takes_back_or_gives_early(
            before in 1_000u64..1_000_000_000, after in 1_000u64..1_000_000_000,
            change in 0u64..100_000_000_000, later in 0u64..100_000_000_000,
        ) {
            let old = ByteClock::new(MonoTime(0), BitRate(before));
            let new = old.with_rate(MonoTime(change), BitRate(after));
            prop_assert_eq!(new.allowed(MonoTime(change)), old.allowed(MonoTime(change)));
            let span = Nanos(later);
            let gained = new.allowed(MonoTime(change) + span).0 - old.allowed(MonoTime(change)).0;
            prop_assert_eq!(gained, BitRate(after).bytes_in(span).0);
        }
    }
}
