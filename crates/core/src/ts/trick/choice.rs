//! Which pictures are shown, and when.
//!
//! Promise: what is chosen is shown at the scale exactly; between two pictures there is time for the second one at
//! the title's rate, with all that is sent beside it; and no more pictures come in a second than asked for.

use alloc::vec::Vec;
use core::fmt;

use super::super::{Access, AccessKind};
use super::mux::{beside, place_ticks};
use crate::units::{BitRate, MediaTime};

/// How fast, and whereto, a title is shown: forwards or backwards, in halves of its own speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale(i8);

impl Scale {
    /// As it is.
    pub const PLAY: Self = Self(2);
    /// Half as fast, with all its pictures.
    pub const SLOW: Self = Self(1);
    /// All that there are, in halves.
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

    /// The one nearest to `thousandths` of the title's own speed, the faster of two; none for zero, which is
    /// no speed. Backwards stays backwards.
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

    /// As RTSP has it (RFC 2326, section 12.34): digits, a point and digits, perhaps with a sign. None for what is
    /// neither that nor a speed.
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
        // Three digits behind the point, which rounds towards nothing.
        let mut thousandths = [b'0'; 3];
        for (to, from) in thousandths.iter_mut().zip(part.bytes()) {
            *to = from;
        }
        let all = value(whole.as_bytes()).saturating_mul(1000).saturating_add(value(&thousandths));
        Self::nearest(sign * all)
    }

    /// Backwards.
    pub const fn is_reverse(self) -> bool {
        self.0 < 0
    }

    /// How long what takes `span` of the title is shown. Rounds down to a tick.
    pub fn shown(self, span: MediaTime) -> MediaTime {
        let ticks = u128::from(span.0) * 2 / u128::from(self.0.unsigned_abs());
        MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// How much of the title is passed in `span`. Rounds down to a tick.
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

/// Fewer pictures in a second are none to find one's way by; where a title has no more, there are no more.
pub const PER_SECOND_MIN: u32 = 2;

/// By what is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// How fast; neither [`Scale::SLOW`] nor [`Scale::PLAY`], which show all pictures.
    pub scale: Scale,
    /// From where, on the title's line of time.
    pub from: MediaTime,
    /// Most pictures in a second.
    pub per_second: u32,
    /// Of what is built.
    pub rate: BitRate,
}

/// A picture that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The packets in which it lies, and others between them.
    pub at: u64,
    /// Behind the last one.
    pub end: u64,
    /// Where in the title, on its line of time.
    pub shown: MediaTime,
    /// When it is shown, from the first one on.
    pub due: MediaTime,
}

/// Chooses from `accesses`, which lie `stride` bytes a packet: the last entry at or before the beginning, then
/// whatever comes soon enough.
pub fn choose(accesses: &[Access], stride: usize, terms: Terms) -> Vec<Choice> {
    let Terms { scale, from, per_second, rate } = terms;
    let mut chosen: Vec<Choice> = Vec::new();
    let after = accesses.partition_point(|access| access.shown <= from);
    let is_entry = |access: &Access| access.kind == AccessKind::Entry;
    // A decoder begins with an entry; where none comes before, with the first one.
    let first = accesses[..after].iter().rposition(is_entry);
    let Some(first) = first.or_else(|| accesses.iter().position(is_entry)) else { return chosen };
    let begin = accesses[first].shown;
    let apart = MediaTime(SECOND / u64::from(per_second.max(1)));
    let mut take = |access: &Access| {
        if access.end <= access.at {
            return;
        }
        let due = scale.shown(MediaTime(access.shown.0.abs_diff(begin.0)));
        if let Some(last) = chosen.last() {
            let gap = MediaTime(due.0 - last.due.0);
            let packets = (access.end - access.at).div_ceil(stride as u64);
            let needed = place_ticks(packets + beside(gap) + 1, rate);
            if gap < apart || needed > gap {
                return;
            }
        }
        let Access { at, end, shown, .. } = *access;
        chosen.push(Choice { at, end, shown, due });
    };
    if scale.is_reverse() {
        accesses[..=first].iter().rev().for_each(&mut take);
    } else {
        accesses[first..].iter().for_each(&mut take);
    }
    chosen
}

const SECOND: u64 = 27_000_000;

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
