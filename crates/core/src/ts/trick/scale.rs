//! The scale of a PLAY.
//!
//! Promise: the nearest supported scale in the same direction; times are exact to a tick.

use core::fmt;

use crate::units::MediaTime;

/// The speed and direction of a PLAY, in halves of the normal speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale(i8);

impl Scale {
    /// Normal speed.
    pub const PLAY: Self = Self(2);
    /// Half speed, with all video frames.
    pub const SLOW: Self = Self(1);
    /// All supported scales, in halves.
    const ALL: [Self; 11] = [
        Self(-32),
        Self(-16),
        Self(-8),
        Self(-4),
        Self(-2),
        Self(1),
        Self(2),
        Self(4),
        Self(8),
        Self(16),
        Self(32),
    ];

    /// The scale nearest to `thousandths` of the normal speed, the faster of two; `None` for zero.
    /// The direction stays.
    pub fn nearest(thousandths: i64) -> Option<Self> {
        let same_way =
            Self::ALL.iter().filter(|one| i64::from(one.0).signum() == thousandths.signum());
        same_way
            .min_by_key(|one| {
                let off = (i64::from(one.0) * 500).saturating_sub(thousandths).unsigned_abs();
                (off, core::cmp::Reverse(one.0.unsigned_abs()))
            })
            .copied()
    }

    /// Parses the RTSP form (RFC 2326, section 12.34): digits, a point and digits, with an optional
    /// sign. `None` for anything else, and for zero.
    pub fn parse(text: &str) -> Option<Self> {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !are_digits(whole)
            || !are_digits(part)
            || digits.len() < 1 + usize::from(whole.len() < digits.len())
        {
            return None;
        }
        let value = |bytes: &[u8]| {
            bytes.iter().fold(0i64, |sum, byte| {
                sum.saturating_mul(10).saturating_add(i64::from(byte - b'0'))
            })
        };
        // Three digits after the point; the rest is truncated.
        let mut thousandths = [b'0'; 3];
        for (to, from) in thousandths.iter_mut().zip(part.bytes()) {
            *to = from;
        }
        let all = value(whole.as_bytes()).saturating_mul(1000).saturating_add(value(&thousandths));
        Self::nearest(sign * all)
    }

    /// Whether it is backwards.
    pub const fn is_reverse(self) -> bool {
        self.0 < 0
    }

    /// How long `span` of the title is shown. Rounds down to a tick.
    pub fn shown(self, span: MediaTime) -> MediaTime {
        let ticks = u128::from(span.0) * 2 / u128::from(self.0.unsigned_abs());
        MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// How much of the title passes in `span`. Rounds down to a tick.
    pub fn passed(self, span: MediaTime) -> MediaTime {
        let ticks = u128::from(span.0) * u128::from(self.0.unsigned_abs()) / 2;
        MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 2 {
            0 => write!(f, "{}.0", self.0 / 2),
            _ => write!(f, "{}.5", self.0 / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_scale_is_granted_and_the_way_is_kept() {
        let of = |thousandths| Scale::nearest(thousandths).map(|scale| alloc::format!("{scale}"));
        for (asked, granted) in [
            (1000, "1.0"),
            (2000, "2.0"),
            (3000, "4.0"),
            (5000, "4.0"),
            (100_000, "16.0"),
            (500, "0.5"),
            (1, "0.5"),
            (750, "1.0"),
            (-1, "-1.0"),
            (-1000, "-1.0"),
            (-7000, "-8.0"),
            (i64::MIN, "-16.0"),
        ] {
            assert_eq!(of(asked).as_deref(), Some(granted), "{asked}");
        }
        assert_eq!(of(0), None);
    }

    #[test]
    fn scales_are_read_as_they_are_written() {
        for (text, scale) in [
            ("1", "1.0"),
            ("1.0", "1.0"),
            ("+2.5", "2.0"),
            ("-4", "-4.0"),
            (".5", "0.5"),
            ("8.", "8.0"),
            ("-0.25", "-1.0"),
            ("99999999999999999999", "16.0"),
            ("-99999999999999999999.9", "-16.0"),
        ] {
            let granted = Scale::parse(text).map(|scale| alloc::format!("{scale}"));
            assert_eq!(granted.as_deref(), Some(scale), "{text}");
        }
        for text in ["", ".", "-", "0", "-0.0", "0.0001", "1e3", "two", "1,5", "--1", " 1", "1.2.3"]
        {
            assert_eq!(Scale::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_and_what_is_passed_are_inverse() {
        for scale in Scale::ALL {
            let span = MediaTime(32 * 12_345);
            assert_eq!(scale.passed(scale.shown(span)), span);
        }
    }
}
