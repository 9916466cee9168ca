//! A class's clock: when the next byte at a rate is due, moved by sent bytes.
//!
//! Promise: after any packets it equals `ByteClock::due` of their sum. The remainder of each
//! division is carried to the next, so nothing drifts. One division of 64 bits per packet; the
//! anchored law needs one of 128.

use crate::mutant;
use crate::units::{BitRate, Bytes, MonoTime};

/// Limit of the bytes of one packet: 8e9 times as much fits 64 bits with room for a remainder.
pub const PACKET_MAX: Bytes = Bytes(1 << 20);

/// A point of time in whole nanoseconds, plus a remainder of less than one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Clock {
    nanos: u64,
    /// In units of 1/rate ns, less than the rate.
    rest: u64,
    /// The rate of its last move.
    rate: BitRate,
}

impl Clock {
    pub(super) const fn at(time: MonoTime) -> Self {
        Self { nanos: time.0, rest: 0, rate: BitRate(0) }
    }

    /// When the next byte is due. Rounds up: never early.
    pub(super) const fn due(self) -> MonoTime {
        MonoTime(self.nanos + (self.rest > 0) as u64)
    }

    /// Counts `bytes` as sent at `rate`. A remainder at another rate is rounded up: less than 1 ns.
    pub(super) fn advance(&mut self, bytes: Bytes, rate: BitRate) {
        if self.rate != rate {
            *self = Self { rate, ..Self::at(self.due()) };
        }
        let work = bytes.0 * 8_000_000_000 + mutant!(RestDropped, 0, self.rest);
        self.nanos += work / rate.0;
        self.rest = work % rate.0;
    }

    /// Replaces the time by its distance from `time`; zero, if it lies before `time`.
    pub(super) const fn rewind(&mut self, time: MonoTime) {
        self.nanos = self.nanos.saturating_sub(time.0);
    }

    /// Moves the clock to `time` if it lies before it: unused time is not saved.
    pub(super) const fn pull_up(&mut self, time: MonoTime) {
        if self.nanos < time.0 {
            *self = Self::at(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_clock::ByteClock;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_carried_rest_is_the_anchored_law(
            start in 0u64..1 << 50,
            rate in 1_000u64..=100_000_000_000,
            packets in prop::collection::vec(1u64..=1 << 20, 1..200),
        ) {
            let law = ByteClock::new(MonoTime(start), BitRate(rate));
            let mut clock = Clock::at(MonoTime(start));
            let mut sent = 0;
            for bytes in packets {
                clock.advance(Bytes(bytes), BitRate(rate));
                sent += bytes;
                prop_assert_eq!(clock.due(), law.due(Bytes(sent)));
            }
        }

        #[test]
        fn a_change_of_rate_costs_less_than_a_nanosecond(
            packets in prop::collection::vec((1u64..=1 << 20, 1_000u64..=100_000_000_000), 1..100),
        ) {
            let mut clock = Clock::at(MonoTime(0));
            let mut least = 0u128;
            for (number, &(bytes, rate)) in packets.iter().enumerate() {
                clock.advance(Bytes(bytes), BitRate(rate));
                // In billionths of a nanosecond, rounded down.
                least += u128::from(bytes) * 8_000_000_000_000_000_000 / u128::from(rate);
                let stands = u128::from(clock.due().0) * 1_000_000_000;
                prop_assert!(stands + 1_000_000_000 > least);
                prop_assert!(stands < least + (number as u128 + 2) * 1_000_000_000);
            }
        }
    }
}
