//! How long the file server stays awake for its clients.
//!
//! Promise: it asks for turns without sleep only for a short time after a request or before a
//! moment that a request names, and in the mean no longer than for the beginning of each period, so
//! that other programs get the processor as well, and the kernel has no reason to take it from a
//! real-time thread. The other servers of the core have their turns all the same.

use tactus_core::units::{MonoTime, Nanos};

/// Time after a request in which the next one needs no wake-up.
pub(super) const AWAKE: Nanos = Nanos::from_micros(20);

/// The clock is divided into periods of this length.
const PERIOD: Nanos = Nanos::from_millis(10);

/// The beginning of each period in which the server may stay awake.
const AWAKE_MAX: Nanos = Nanos::from_millis(8);

/// Time in the rest of a period in which it may wait awake for moments, which have no choice when
/// they come. The beginning of the next period is shorter by what was used.
const APPROACH_MAX: Nanos = Nanos::from_millis(1);

/// Whether to stay awake.
#[derive(Default)]
pub(super) struct Attention {
    until: MonoTime,
    /// The last turn of a wait in the rest of a period, if the next turn belongs to it as well.
    approaching: Option<MonoTime>,
    /// The last period with such waits, their length, and how much shorter its beginning was.
    period: u64,
    used: Nanos,
    owed: Nanos,
}

impl Attention {
    /// A request has come, and the next one may come while the server is awake.
    pub(super) fn extend(&mut self, now: MonoTime) {
        self.until = now + AWAKE;
    }

    /// Whether the next turn should follow at once.
    pub(super) fn stays(&self, now: MonoTime) -> bool {
        now < self.until && self.is_free(now)
    }

    /// Whether the next turn should follow at once, because a moment `is_near`. Call it once in
    /// each turn.
    pub(super) fn approaches(&mut self, now: MonoTime, is_near: bool) -> bool {
        let before = self.approaching.take();
        if !is_near {
            return false;
        }
        if self.is_free(now) {
            return true;
        }
        let period = now.0 / PERIOD.0;
        if period != self.period {
            (self.owed, self.used) = (self.owed_in(period), Nanos(0));
            self.period = period;
        } else if let Some(before) = before {
            self.used += now.since(before);
        }
        let may = self.used < APPROACH_MAX;
        self.approaching = may.then_some(now);
        may
    }

    /// When work that a turn has left goes on, unless something else begins a turn before: at once,
    /// or in the next period.
    pub(super) fn resumed(&self, now: MonoTime) -> MonoTime {
        if self.is_free(now) { now } else { now + Nanos(PERIOD.0 - now.0 % PERIOD.0) }
    }

    /// Whether `now` is in the beginning of its period.
    fn is_free(&self, now: MonoTime) -> bool {
        now.0 % PERIOD.0 + self.owed_in(now.0 / PERIOD.0).0 < AWAKE_MAX.0
    }

    /// How much shorter the beginning of `period` is.
    fn owed_in(&self, period: u64) -> Nanos {
        match period.checked_sub(self.period) {
            Some(0) => self.owed,
            Some(1) => self.used,
            _ => Nanos(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_awake_for_a_while_after_each_request() {
        let mut attention = Attention::default();
        let start = MonoTime(1_000_000_000);
        assert!(!attention.stays(start), "nobody has asked");
        attention.extend(start);
        assert!(attention.stays(start));
        assert!(attention.stays(start + Nanos(AWAKE.0 - 1)));
        assert!(!attention.stays(start + AWAKE));
    }

    #[test]
    fn others_get_the_end_of_each_period_whatever_clients_do() {
        let mut attention = Attention::default();
        let start = MonoTime(1_000_000_000);
        let asleep = (0..10_000_u64).filter(|step| {
            let now = start + Nanos::from_micros(step * 10);
            attention.extend(now);
            !attention.stays(now)
        });
        assert_eq!(asleep.count(), 2_000);
        let moments = (0..10_000_u64).map(|step| start + Nanos::from_micros(step * 10));
        let delayed = moments.filter(|&now| attention.resumed(now) > now);
        assert_eq!(delayed.count(), 2_000);
        let last = start + Nanos::from_micros(9_999);
        assert_eq!(attention.resumed(last), start + Nanos::from_millis(10));
    }

    #[test]
    fn it_is_awake_while_a_moment_is_near() {
        // In the beginning of a period, and in its rest.
        for start in [1_000_000_000, 1_008_500_000] {
            let mut attention = Attention::default();
            let start = MonoTime(start);
            assert!(!attention.approaches(start, false));
            for micros in 0..100 {
                assert!(attention.approaches(start + Nanos::from_micros(micros), true));
            }
            assert!(!attention.approaches(start + Nanos::from_micros(100), false));
        }
    }

    /// A program that has a moment always near and writes requests without a pause keeps the core
    /// awake for 8 ms of 10, as one without moments does: what the rest of a period is used for is
    /// missing at the beginning of the next one.
    #[test]
    fn moments_without_end_leave_others_as_much_as_requests_without_end() {
        let mut attention = Attention::default();
        let start = MonoTime(1_000_000_000);
        let mut asleep_in = [0_u64; 100];
        for step in 0..100_000_u64 {
            let now = start + Nanos::from_micros(step * 10);
            attention.extend(now);
            let stays = attention.stays(now);
            let approaches = attention.approaches(now, true);
            asleep_in[step as usize / 1000] += u64::from(!(stays || approaches));
        }
        // Each sample is 10 us: the first period has used 1 ms of its rest and owes it.
        assert!(asleep_in.iter().all(|&asleep| (95..=205).contains(&asleep)), "{asleep_in:?}");
        let mean = asleep_in.iter().sum::<u64>() / 100;
        assert!((195..=205).contains(&mean), "{mean}");
    }
}
