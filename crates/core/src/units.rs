//! Units: every number of the system says what it counts.
//!
//! Rates are decimal bits per second, sizes are bytes, spans are nanoseconds. The three kinds of
//! time (monotonic, wall, media) are three types, so that they cannot be mixed. All arithmetic is
//! integer; every division says how it rounds.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// Nanoseconds in a second.
pub const SECOND: Nanos = Nanos(1_000_000_000);
/// Nanoseconds in a millisecond.
pub const MILLISECOND: Nanos = Nanos(1_000_000);
/// Nanoseconds in a microsecond.
pub const MICROSECOND: Nanos = Nanos(1_000);
/// 1024 bytes.
pub const KIB: u64 = 1024;
/// 1024 KiB.
pub const MIB: u64 = 1024 * KIB;
/// The unit of direct transfers: offsets, lengths and addresses are multiples of it.
pub const SECTOR: u64 = 4096;

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Nanos(pub u64);

/// A point of the monotonic clock, in nanoseconds since an arbitrary start (`CLOCK_MONOTONIC`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct MonoTime(pub u64);

/// A point of the wall clock, in nanoseconds since 1970 (UTC).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct WallTime(pub u64);

/// A span of media time in ticks of 27 MHz, the system clock of ISO/IEC 13818-1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct MediaTime(pub u64);

/// A count of bytes: a size or an offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Bytes(pub u64);

/// A rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct BitRate(pub u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * MILLISECOND.0)
    }

    /// A span of whole microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * MICROSECOND.0)
    }

    /// The difference, or zero when `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The span `count` times over.
    pub const fn times(self, count: u64) -> Self {
        Self(self.0 * count)
    }
}

impl MonoTime {
    /// The span since `earlier`, or zero when `earlier` lies in the future.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// This point moved back by `span`, not before the clock's start.
    pub const fn before(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// The difference, or zero when `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl BitRate {
    /// Bytes that leave within `span`. Rounds down: never early.
    pub const fn bytes_in(self, span: Nanos) -> Bytes {
        let bits_e9 = self.0 as u128 * span.0 as u128;
        Bytes((bits_e9 / 8_000_000_000) as u64)
    }

    /// Time in which `bytes` leave. Rounds up: never early.
    ///
    /// # Panics
    /// When the rate is zero: a rate of zero never delivers a byte, so no caller may hold one.
    pub const fn time_for(self, bytes: Bytes) -> Nanos {
        assert!(self.0 > 0, "a rate is never zero");
        let bits_e9 = bytes.0 as u128 * 8_000_000_000;
        Nanos(bits_e9.div_ceil(self.0 as u128) as u64)
    }
}

impl Add<Nanos> for MonoTime {
    type Output = Self;
    fn add(self, span: Nanos) -> Self {
        Self(self.0 + span.0)
    }
}

impl AddAssign<Nanos> for MonoTime {
    fn add_assign(&mut self, span: Nanos) {
        self.0 += span.0;
    }
}

macro_rules! sums {
    ($($unit:ident)*) => {$(
        impl Add for $unit {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $unit {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sub for $unit {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl SubAssign for $unit {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }
        impl core::iter::Sum for $unit {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self(0), Add::add)
            }
        }
    )*};
}
sums!(Nanos Bytes BitRate);

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        decimal(
            f,
            self.0,
            &[(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")],
            "bit/s",
        )
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        decimal(f, self.0, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")], "ns")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        decimal(f, self.0, &[(1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")], "B")
    }
}

/// Writes `value` in the largest unit that it fills. Without a precision: at most three decimals,
/// rounded down. With a precision, as in `{:.1}`: at most that many decimals, rounded to the
/// nearest.
fn decimal(
    f: &mut fmt::Formatter<'_>,
    value: u64,
    units: &[(u64, &str)],
    smallest: &str,
) -> fmt::Result {
    for &(size, name) in units {
        if value < size {
            continue;
        }
        let mut digits = f.precision().unwrap_or(3).min(3);
        let parts = 10u128.pow(digits as u32);
        let mut whole = u128::from(value / size);
        let mut thousandths = u128::from(value % size) * parts;
        thousandths = match f.precision() {
            Some(_) => (thousandths + u128::from(size) / 2) / u128::from(size),
            None => thousandths / u128::from(size),
        };
        whole += thousandths / parts;
        thousandths %= parts;
        while digits > 0 && thousandths.is_multiple_of(10) {
            thousandths /= 10;
            digits -= 1;
        }
        return match digits {
            0 => write!(f, "{whole} {name}"),
            _ => write!(f, "{whole}.{thousandths:0digits$} {name}"),
        };
    }
    write!(f, "{value} {smallest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn n09_a_precision_rounds_to_the_nearest() {
        for (bytes, one, two) in [
            (85_659_688, "81.7 MiB", "81.69 MiB"),
            (1_181_116_006, "1.1 GiB", "1.1 GiB"),
            (8 * MIB, "8 MiB", "8 MiB"),
            (MIB - 1, "1024 KiB", "1024 KiB"),
            (900, "900 B", "900 B"),
        ] {
            assert_eq!(alloc::format!("{:.1}", Bytes(bytes)), one);
            assert_eq!(alloc::format!("{:.2}", Bytes(bytes)), two);
        }
        assert_eq!(alloc::format!("{:.0}", BitRate(1_169_500)), "1 Mbit/s");
        assert_eq!(Bytes(85_659_688).to_string(), "81.691 MiB");
    }

    #[test]
    fn a_rate_and_its_inverse_never_deliver_early() {
        for rate in [64_000, 3_750_000, 8_800_001, 999_999_937] {
            for bytes in [1, 187, 1316, 275_000, 10_000_000_019] {
                let rate = BitRate(rate);
                let time = rate.time_for(Bytes(bytes));
                assert!(rate.bytes_in(time).0 >= bytes);
                assert!(rate.bytes_in(Nanos(time.0 - 1)).0 < bytes);
            }
        }
    }

    #[test]
    fn units_are_printed_as_people_write_them() {
        assert_eq!(BitRate(8_800_000).to_string(), "8.8 Mbit/s");
        assert_eq!(BitRate(999).to_string(), "999 bit/s");
        assert_eq!(Nanos::from_micros(62_500).to_string(), "62.5 ms");
        assert_eq!(Bytes(256 * KIB).to_string(), "256 KiB");
        assert_eq!(Bytes(1_050_000).to_string(), "1.001 MiB");
    }
}
