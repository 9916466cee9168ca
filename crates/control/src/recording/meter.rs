//! A token bucket: a rate, and a burst for network jitter.
//!
//! Promise: in any span of time no more bytes pass than the rate gives plus one burst. The disk
//! time is reserved for that.

use std::time::{Duration, Instant};

use tactus_core::units::{BitRate, Nanos};

pub(super) struct Meter {
    rate: BitRate,
    burst: u64,
    /// The tokens at `at`, in bytes.
    credit: u64,
    at: Instant,
}

/// The burst: networks and senders delay packets this long and then send them all.
const BURST: Nanos = Nanos::from_millis(250);
/// Smallest burst: the largest piece fits at once.
const BURST_MIN: u64 = 2 * super::PIECE_MAX as u64;

impl Meter {
    pub(super) fn new(rate: BitRate, now: Instant) -> Self {
        let burst = rate.bytes_in(BURST).0.max(BURST_MIN);
        Self { rate, burst, credit: burst, at: now }
    }

    /// Bytes that may pass now.
    pub(super) fn room(&mut self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.at).min(LONG);
        let gained = self.rate.bytes_in(Nanos(passed.as_nanos() as u64)).0;
        // Small gains are kept as time: frequent calls at a low rate would gain only remainders.
        if gained > 0 {
            self.at = if passed == LONG { now } else { self.at + time_for(self.rate, gained) };
            self.credit = (self.credit + gained).min(self.burst);
        }
        self.credit
    }

    /// Whether the source has exceeded its rate for a while: most of the burst is used up.
    pub(super) fn is_behind(&mut self, now: Instant) -> bool {
        self.room(now) < self.burst / 2
    }

    /// Whether a burst could come now.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.room(now) == self.burst
    }

    pub(super) fn allows(&mut self, bytes: u64, now: Instant) -> bool {
        self.room(now) >= bytes
    }

    /// Takes tokens for `bytes`.
    pub(super) fn take(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
    }
}

/// Rounds down: less than a nanosecond early is no loss.
fn time_for(rate: BitRate, bytes: u64) -> Duration {
    let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.0.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// After this time the bucket is full at any rate.
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
        fn who_keeps_to_the_rate_loses_nothing(
            rate in 64_000u64..200_000_000,
            packet in 188u64..1500,
        ) {
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
