//! The meter: a stream's real rate in each whole second, beside the set one.
//!
//! J is `abs(real - expected) / expected` over windows of one second on a grid that all streams
//! share, in millionths; the first and the last second of a stream are only partly its own and do
//! not count. Time is when the socket took the bytes.

use tactus_core::units::{BitRate, Bytes, MonoTime, SECOND};

/// Counts one stream's bytes by seconds.
#[derive(Clone, Copy)]
pub(super) struct Meter {
    /// The running second.
    second: u64,
    bytes: Bytes,
    /// The running second began while the stream ran.
    whole: bool,
}

/// A whole second has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// Payload rate in that second.
    pub(super) real: BitRate,
    /// J in millionths.
    pub(super) jitter: u64,
}

impl Meter {
    /// A meter for a stream that begins at `now`.
    pub(super) fn new(now: MonoTime) -> Self {
        Self { second: now.0 / SECOND.0, bytes: Bytes(0), whole: false }
    }

    /// Counts bytes that left at `now`; answers when they are the first of a new second.
    pub(super) fn count(&mut self, now: MonoTime, bytes: Bytes, set: BitRate) -> Option<Reading> {
        let second = now.0 / SECOND.0;
        if second == self.second {
            self.bytes += bytes;
            return None;
        }
        let passed = std::mem::replace(&mut self.bytes, bytes);
        // Seconds without a single byte are all J; one reading stands for them.
        let passed = if second == self.second + 1 { passed } else { Bytes(0) };
        self.second = second;
        if !std::mem::replace(&mut self.whole, true) {
            return None;
        }
        let expected = set.bytes_in(SECOND).0.max(1);
        let jitter = passed.0.abs_diff(expected) as u128 * 1_000_000 / expected as u128;
        Some(Reading { real: BitRate(passed.0 * 8), jitter: jitter as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::stagger::Tick;

    const SET: BitRate = BitRate(8_800_000);

    fn readings(sends: impl Iterator<Item = (u64, u64)>) -> Vec<Reading> {
        let mut meter = Meter::new(MonoTime(SECOND.0 / 2));
        sends.filter_map(|(at, bytes)| meter.count(MonoTime(at), Bytes(bytes), SET)).collect()
    }

    #[test]
    fn a_stream_on_its_clock_has_no_jitter() {
        let tick = Tick::Ms62.span().0;
        let sends = (0..100).map(|n| (SECOND.0 / 2 + n * tick, 68_750));
        let all = readings(sends);
        assert_eq!(all, vec![Reading { real: SET, jitter: 0 }; 5]);
    }

    #[test]
    fn a_send_that_slips_into_the_next_second_counts_in_both() {
        let tick = Tick::Ms62.span().0;
        let late = |n| if n == 23 { 40_000_000 } else { 0 };
        let sends = (0..60).map(|n| (SECOND.0 / 2 + n * tick + late(n), 68_750));
        let jitter: Vec<_> = readings(sends).iter().map(|reading| reading.jitter).collect();
        assert_eq!(jitter, [62_500, 62_500]);
    }

    #[test]
    fn silent_seconds_are_all_jitter() {
        let sends = [0, 1, 2, 9].map(|second| (second * SECOND.0 + 7, 1_100_000));
        let jitter: Vec<_> = readings(sends.into_iter()).iter().map(|r| r.jitter).collect();
        assert_eq!(jitter, [0, 1_000_000]);
    }
}
