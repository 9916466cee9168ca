//! The clock of one paced reader: when bytes of a title may be handed out.
//!
//! Promise: whatever the sizes of the reads, no more bytes are handed out than the title plays in
//! the time since the start, and the burst. A reader that pauses gets the burst again, no more. The
//! clock counts bytes from its start and divides once, so that no error adds up.

use std::time::{Duration, Instant};

use tactus_client::BitRate;

/// How far a reader may be ahead of the clock.
pub(crate) const BURST: Duration = Duration::from_secs(1);

/// The clock.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: BitRate,
    start: Instant,
    /// Bytes since the start.
    bytes: u64,
}

impl Pace {
    /// A clock that starts now; `None` for a rate of zero.
    pub(crate) fn new(rate: BitRate, now: Instant) -> Option<Self> {
        (rate.0 > 0).then_some(Self { rate, start: now, bytes: 0 })
    }

    /// When the next `bytes` may be handed out, all together; they count from here on.
    pub(crate) fn due(&mut self, now: Instant, bytes: u64) -> Instant {
        if self.played(self.bytes) < now {
            (self.start, self.bytes) = (now, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        let end = self.played(self.bytes);
        end.checked_sub(BURST).map_or(now, |due| due.max(now))
    }

    /// When the first `bytes` since the start have been played, rounded up.
    fn played(&self, bytes: u64) -> Instant {
        let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.rate.0));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        // A time behind the end of the clock is never reached.
        self.start.checked_add(Duration::from_nanos(nanos)).unwrap_or(self.start + FOREVER)
    }
}

/// Longer than any mount lives.
const FOREVER: Duration = Duration::from_secs(1 << 32);

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: BitRate = BitRate(8_800_000);

    #[test]
    fn bytes_are_due_at_the_rate_behind_the_burst_whatever_the_sizes() {
        let start = Instant::now();
        for size in [1, 188, 4096, 65_536, 1 << 20] {
            let mut pace = Pace::new(RATE, start).unwrap();
            let (mut now, mut bytes) = (start, 0_u64);
            while bytes < 11_000_000 {
                bytes += size;
                now = pace.due(now, size);
                let exact = (bytes as f64 * 8.0 / RATE.0 as f64 - 1.0).max(0.0);
                let due = now.duration_since(start).as_secs_f64();
                assert!((due - exact).abs() < 2e-9, "{size}: {due} {exact}");
            }
        }
    }

    #[test]
    fn a_pause_earns_no_more_than_the_burst() {
        let start = Instant::now();
        let mut pace = Pace::new(RATE, start).unwrap();
        assert_eq!(pace.due(start, 1_100_000), start, "the burst at once");
        let later = start + Duration::from_secs(3600);
        assert_eq!(pace.due(later, 1_100_000), later);
        assert_eq!(pace.due(later, 1_100_000), later + Duration::from_secs(1));
    }

    #[test]
    fn no_rate_is_no_clock_and_no_length_breaks_it() {
        assert!(Pace::new(BitRate(0), Instant::now()).is_none());
        let now = Instant::now();
        let mut pace = Pace::new(BitRate(1), now).unwrap();
        for _ in 0..3 {
            assert!(pace.due(now, u64::MAX) > now);
        }
    }
}
