//! How long the file server stays awake for its clients.
//!
//! Promise: it asks for turns without sleep only for a short time after a request, and for at most
//! a part of each period, so that a client in a loop leaves the processor to others.

use tactus_core::units::{MonoTime, Nanos};

/// Time after a request in which the next one needs no wake-up.
pub(super) const AWAKE: Nanos = Nanos::from_micros(20);

/// The period in which the time without sleep is limited.
const PERIOD: Nanos = Nanos::from_millis(10);

/// Part of each period without sleep at most. The ledger takes it from the core.
pub const AWAKE_SHARE_THOUSANDTHS: u64 = 250;

const AWAKE_MAX: Nanos = Nanos(PERIOD.0 * AWAKE_SHARE_THOUSANDTHS / 1000);

/// Whether to stay awake.
#[derive(Default)]
pub(super) struct Attention {
    until: MonoTime,
    /// The current period.
    period: u64,
    /// Time without sleep in it.
    spent: Nanos,
    /// When the last turn was, if the core was asked for the next one at once.
    since: Option<MonoTime>,
}

impl Attention {
    /// A turn begins.
    pub(super) fn begin(&mut self, now: MonoTime) {
        let period = now.0 / PERIOD.0;
        if period != self.period {
            (self.period, self.spent) = (period, Nanos(0));
        }
        if let Some(since) = self.since.take() {
            self.spent += now.since(since);
        }
    }

    /// A request has come.
    pub(super) fn extend(&mut self, now: MonoTime) {
        self.until = now + AWAKE;
    }

    /// The turn ends. Returns whether the next one should follow at once.
    pub(super) fn end(&mut self, now: MonoTime) -> bool {
        let stays = now < self.until && self.spent < AWAKE_MAX;
        self.since = stays.then_some(now);
        stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_awake_for_a_while_after_each_request() {
        let mut attention = Attention::default();
        let start = MonoTime(1_000_000_000);
        attention.begin(start);
        assert!(!attention.end(start), "nobody has asked");
        attention.extend(start);
        assert!(attention.end(start));
        let later = start + Nanos(AWAKE.0 - 1);
        attention.begin(later);
        assert!(attention.end(later));
        let over = start + AWAKE;
        attention.begin(over);
        assert!(!attention.end(over));
    }

    #[test]
    fn a_client_in_a_loop_gets_its_part_of_the_time() {
        let mut attention = Attention::default();
        let mut now = MonoTime(1_000_000_000);
        let (mut awake, mut turns) = (0_u64, 0_u64);
        let end = now + Nanos::from_millis(100);
        while now < end {
            attention.begin(now);
            attention.extend(now);
            let stays = attention.end(now);
            // A turn takes a microsecond; a sleep ten.
            let step = if stays { 1_000 } else { 10_000 };
            awake += if stays { step } else { 0 };
            turns += 1;
            now = now + Nanos(step);
        }
        assert!((20_000_000..=26_000_000).contains(&awake), "{awake} ns in {turns} turns");
    }
}
