//! How much may come at once: a rate, and what a network brings early.
//!
//! Promise: in no span of time more comes than the rate gives, and one burst beside. The disk has been
//! promised for that and no more.

use std::time::{Duration, Instant};

use tactus_core::units::{BitRate, Nanos};

pub(super) struct Meter {
    rate: BitRate,
    burst: u64,
    /// Bytes that may come, as of `at`.
    credit: u64,
    at: Instant,
}

/// What may come early: networks and senders hold packets back for so long, and then send them all.
const BURST: Nanos = Nanos::from_millis(250);
/// At least so much: the largest piece fits at once.
const BURST_MIN: u64 = 2 * super::PIECE_MAX as u64;

impl Meter {
    pub(super) fn new(rate: BitRate, now: Instant) -> Self {
        let burst = rate.bytes_in(BURST).0.max(BURST_MIN);
        Self { rate, burst, credit: burst, at: now }
    }

    /// Bytes that may come now.
    pub(super) fn room(&mut self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.at).min(LONG);
        let gained = self.rate.bytes_in(Nanos(passed.as_nanos() as u64)).0;
        // Looked at often, a slow one would gain nothing but remainders.
        if gained > 0 {
            self.at = if passed == LONG { now } else { self.at + time_for(self.rate, gained) };
            self.credit = (self.credit + gained).min(self.burst);
        }
        self.credit
    }

    /// Whether more has come than its rate for some time: of what may come early, most has been used up.
    pub(super) fn is_behind(&mut self, now: Instant) -> bool {
        self.room(now) < self.burst / 2
    }

    pub(super) fn allows(&mut self, bytes: u64, now: Instant) -> bool {
        self.room(now) >= bytes
    }

    /// So many have come.
    pub(super) fn take(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
    }
}

/// Rounds down: what is due sooner by less than a nanosecond is not lost.
fn time_for(rate: BitRate, bytes: u64) -> Duration {
    let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.0.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// After so long the credit is full at any rate.
const LONG: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_span_of_time_has_more_than_its_rate_and_one_burst(
            rate in 16_000u64..2_000_000_000,
            steps in proptest::collection::vec((0u64..3_000_000_000, 1u64..65_536), 1..200),
        ) {
            let rate = BitRate(rate);
            let begin = Instant::now();
            let mut meter = Meter::new(rate, begin);
            let (mut now, mut taken) = (begin, Vec::new());
            for (pause, bytes) in steps {
                now += Duration::from_nanos(pause / 10);
                if meter.allows(bytes, now) {
                    meter.take(bytes);
                    taken.push((now, bytes));
                }
            }
            for from in 0..taken.len() {
                let mut sum = 0;
                for &(at, bytes) in &taken[from..] {
                    sum += bytes;
                    let span = Nanos((at - taken[from].0).as_nanos() as u64);
                    prop_assert!(sum <= meter.burst + rate.bytes_in(span).0 + 2);
                }
            }
        }

        #[test]
        fn who_keeps_to_the_rate_loses_nothing(rate in 64_000u64..200_000_000, packet in 188u64..1500) {
            let rate = BitRate(rate);
            let begin = Instant::now();
            let mut meter = Meter::new(rate, begin);
            for number in 1..3000u64 {
                let now = begin + time_for(rate, packet * number) + Duration::from_nanos(1);
                prop_assert!(meter.allows(packet, now), "packet {number}");
                meter.take(packet);
            }
        }
    }
}
