//! How long the file server stays awake for its clients.
//!
//! Promise: it asks for turns without sleep only for a short time after a request, and in no period
//! to its end, so that other programs get the processor as well, and the kernel has no reason to
//! take it from a real-time thread. The other servers of the core have their turns all the same.

use tactus_core::units::{MonoTime, Nanos};

/// Time after a request in which the next one needs no wake-up.
pub(super) const AWAKE: Nanos = Nanos::from_micros(20);

/// The clock is divided into periods of this length.
const PERIOD: Nanos = Nanos::from_millis(10);

/// The beginning of each period in which the server may stay awake.
const AWAKE_MAX: Nanos = Nanos::from_millis(8);

/// Whether to stay awake.
#[derive(Default)]
pub(super) struct Attention {
    until: MonoTime,
}

impl Attention {
    /// A request has come.
    pub(super) fn extend(&mut self, now: MonoTime) {
        self.until = now + AWAKE;
    }

    /// Whether the next turn should follow at once.
    pub(super) fn stays(&self, now: MonoTime) -> bool {
        now < self.until && now.0 % PERIOD.0 < AWAKE_MAX.0
    }

    /// When work that a turn has left goes on, unless something else begins a turn before: at once,
    /// or in the next period.
    pub(super) fn resumed(&self, now: MonoTime) -> MonoTime {
        let within = now.0 % PERIOD.0;
        if within < AWAKE_MAX.0 { now } else { now + Nanos(PERIOD.0 - within) }
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
}
