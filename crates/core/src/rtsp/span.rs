//! The `Range` field (RFC 2326, sections 3.5 to 3.7 and 12.29; RFC 7826, section 18.40).
//!
//! Promise: times are exact to a tick of 27 MHz, rounded down. A value that overflows or is not a
//! title time is an error.

use alloc::format;
use alloc::string::String;

use crate::units::MediaTime;

/// Ticks in a second.
const TICKS: u64 = 27_000_000;

/// The start of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeStart {
    /// The current position.
    Now,
    /// This time of the title.
    At(MediaTime),
}

/// A range of title time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The start.
    pub from: RangeStart,
    /// The end; `None`: the end of the title.
    pub to: Option<MediaTime>,
}

/// Not a range of title time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalid;

impl Span {
    /// From the current position to the end.
    pub const ON: Self = Self { from: RangeStart::Now, to: None };

    /// Parses a `Range`. Wall-clock times (`clock=`) are not title times.
    ///
    /// # Errors
    /// If it is invalid, or ends before it begins.
    pub fn parse(value: &str) -> Result<Self, Invalid> {
        match Self::read(value)? {
            Self { from: RangeStart::At(from), to: Some(to) } if to < from => Err(Invalid),
            span => Ok(span),
        }
    }

    /// The same for reverse play, which ends at an earlier time (RFC 7826, section 18.46).
    ///
    /// # Errors
    /// If it is invalid, or ends after it begins.
    pub fn parse_reverse(value: &str) -> Result<Self, Invalid> {
        match Self::read(value)? {
            Self { from: RangeStart::At(from), to: Some(to) } if to > from => Err(Invalid),
            span => Ok(span),
        }
    }

    /// The unit of a `Range`.
    pub fn format(value: &str) -> &str {
        value.split(['=', ';']).next().unwrap_or_default().trim()
    }

    /// Its literals are case-insensitive (RFC 2326, section 15.1).
    fn read(value: &str) -> Result<Self, Invalid> {
        // The start time (`;time=`) is ignored: this server plays at once.
        let range = value.split(';').next().unwrap_or_default().trim();
        let (unit, times) = range.split_once('=').ok_or(Invalid)?;
        let unit = unit.trim().to_ascii_lowercase();
        let read: fn(&str, Frames) -> Option<MediaTime> = match unit.as_str() {
            "npt" => |text, _| npt(text),
            _ => smpte,
        };
        let frames = Frames::of(&unit).ok_or(Invalid)?;
        let (from, to) = times.trim().split_once('-').ok_or(Invalid)?;
        let (from, to) = (from.trim(), to.trim());
        if from.is_empty() && to.is_empty() {
            return Err(Invalid);
        }
        let from = match from {
            "" => RangeStart::Now,
            text if unit == "npt" && text.eq_ignore_ascii_case("now") => RangeStart::Now,
            text => RangeStart::At(read(text, frames).ok_or(Invalid)?),
        };
        let to = match to {
            "" => None,
            text => Some(read(text, frames).ok_or(Invalid)?),
        };
        Ok(Self { from, to })
    }
}

/// Frame counting (RFC 2326, section 3.5).
#[derive(Clone, Copy)]
enum Frames {
    None,
    /// 30000/1001 in a second, with dropped numbers so that the clock is right.
    Drop30,
    /// 25 in a second.
    Whole25,
}

impl Frames {
    fn of(unit: &str) -> Option<Self> {
        match unit {
            "npt" => Some(Self::None),
            "smpte" | "smpte-30-drop" => Some(Self::Drop30),
            "smpte-25" => Some(Self::Whole25),
            _ => None,
        }
    }
}

/// `12.5`, `0:00:12.5` (section 3.6).
fn npt(text: &str) -> Option<MediaTime> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.split(':').map(number);
    let seconds = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        (seconds, None, None, None) => seconds?,
        (hours, Some(minutes), Some(seconds), None) => clock(hours?, minutes?, seconds?)?,
        _ => return None,
    };
    // `12.` is a number by the grammar of section 3.6.
    let fraction = if fraction.is_empty() { "0" } else { fraction };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Digits after the ninth are less than a tick.
    let digits = &fraction[..fraction.len().min(9)];
    let ticks = number(digits)? * TICKS / 10u64.pow(digits.len() as u32);
    seconds.checked_mul(TICKS)?.checked_add(ticks).map(MediaTime)
}

/// `0:10:20:12.05`: hours, minutes, seconds, frames and hundredths of a frame (section 3.5).
fn smpte(text: &str, frames: Frames) -> Option<MediaTime> {
    let mut parts = text.split(':');
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let (frame, part) = match parts.next() {
        None => (0, 0),
        Some(text) => match text.split_once('.') {
            None => (number(text)?, 0),
            Some((frame, part)) if part.len() <= 2 => (number(frame)?, number(part)?),
            Some(_) => return None,
        },
    };
    if parts.next().is_some() {
        return None;
    }
    let seconds = clock(number(hours)?, number(minutes)?, number(seconds)?)?;
    let whole = seconds.checked_mul(TICKS)?;
    let (in_a_second, frame_ticks) = match frames {
        Frames::None => return None,
        Frames::Drop30 => (30, TICKS * 1001 / 30_000),
        Frames::Whole25 => (25, TICKS / 25),
    };
    (frame < in_a_second).then_some(())?;
    whole.checked_add(frame * frame_ticks + part * frame_ticks / 100).map(MediaTime)
}

fn clock(hours: u64, minutes: u64, seconds: u64) -> Option<u64> {
    (minutes < 60 && seconds < 60).then_some(())?;
    hours.checked_mul(3600)?.checked_add(minutes * 60 + seconds)
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The range of an answer: milliseconds, the beginning rounded down.
pub fn write(from: MediaTime, to: MediaTime) -> String {
    let millis = |time: MediaTime| u128::from(time.0) * 1000 / u128::from(TICKS);
    let (from, to) = (millis(from), millis(to));
    format!("npt={}.{:03}-{}.{:03}", from / 1000, from % 1000, to / 1000, to % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Result<u64, Invalid> {
        match Span::parse(&format!("{text}-"))?.from {
            RangeStart::At(time) => Ok(time.0),
            RangeStart::Now => Err(Invalid),
        }
    }

    #[test]
    fn ranges_are_read_exactly() {
        assert_eq!(at("npt=12.5"), Ok(TICKS * 25 / 2));
        assert_eq!(at("npt=0:01:15.5"), Ok(TICKS * 151 / 2));
        assert_eq!(at("npt=7."), Ok(TICKS * 7));
        assert_eq!(at("npt=0.0000000009999999999"), Ok(0));
        assert_eq!(at("smpte-25=10:07:00:12"), Ok(TICKS * 36_420 + TICKS * 12 / 25));
        assert_eq!(at("smpte=0:00:01:01.50"), Ok(TICKS + 900_900 * 3 / 2));
        assert_eq!(Span::parse("npt=now-"), Ok(Span::ON));
        let to = Some(MediaTime(TICKS * 20));
        assert_eq!(Span::parse("npt=-20"), Ok(Span { from: RangeStart::Now, to }));
        let from = RangeStart::At(MediaTime(TICKS * 10));
        assert_eq!(Span::parse("npt=10-20;time=19970123T153600Z"), Ok(Span { from, to }));
        assert_eq!(write(MediaTime(TICKS * 3 / 2), MediaTime(TICKS * 60 + 1)), "npt=1.500-60.000");
    }

    #[test]
    fn what_is_played_backwards_ends_before_it_begins() {
        let (from, to) = (RangeStart::At(MediaTime(TICKS * 10)), Some(MediaTime(TICKS * 4)));
        assert_eq!(Span::parse_reverse("npt=10-4"), Ok(Span { from, to }));
        assert_eq!(Span::parse_reverse("npt=10-"), Ok(Span { from, to: None }));
        assert_eq!(Span::parse_reverse("npt=4-10"), Err(Invalid));
        assert_eq!(
            ["npt=1-", " smpte-25 =x", "clock"].map(Span::format),
            ["npt", "smpte-25", "clock"]
        );
    }

    #[test]
    fn s14_ranges_that_are_none_are_invalid() {
        for text in [
            "npt=1e308-",
            "npt=",
            "npt=-",
            "npt",
            "npt=20-10",
            "npt=99999999999999999999-",
            "npt=9999999999999999999-",
            "npt=5124095576030432:00:00-",
            "npt=0:60:00-",
            "npt=1:2-",
            "npt=-1-",
            "npt=.-",
            "npt=nan-",
            "npt=1.5.5-",
            "clock=19961108T142300Z-",
            "clock=99999999999999999999T999999999Z-99999999999999999999999Z",
            "smpte=",
            "smpte=junk-",
            "smpte=now-",
            "smpte=10:00-",
            "smpte=10:00:00:99-",
            "smpte-24=0:00:00-",
            "smpte=1:0:0:0:0-",
            "smpte=18446744073709551615:00:00-",
            "bytes=0-",
            "",
        ] {
            assert_eq!(Span::parse(text), Err(Invalid), "{text}");
        }
    }

    #[test]
    fn p04_units_of_a_range_are_case_insensitive() {
        for (upper, lower) in [
            ("NPT=10-20", "npt=10-20"),
            ("Npt=NOW-20", "npt=now-20"),
            ("nPt=Now-", "npt=now-"),
            ("SMPTE=0:00:01:01-", "smpte=0:00:01:01-"),
            ("Smpte-30-Drop=0:00:01-0:00:02", "smpte-30-drop=0:00:01-0:00:02"),
            ("SMPTE-25=10:07:00:12-", "smpte-25=10:07:00:12-"),
        ] {
            assert!(Span::parse(lower).is_ok());
            assert_eq!(Span::parse(upper), Span::parse(lower), "{upper}");
        }
        assert_eq!(Span::parse("SMPTE=NOW-"), Err(Invalid));
    }

    proptest! {
        #[test]
        fn any_text_is_a_span_or_none(
            text in "\\PC{0,40}",
            unit in "(npt|smpte|smpte-25|clock)=",
            rest in "[-0-9:.now]{0,40}",
        ) {
            // A unit is required.
            prop_assert!(Span::parse(&text.replace('=', "")).is_err());
            if let Ok(Span { from: RangeStart::At(from), to: Some(to) }) =
                Span::parse(&format!("{unit}{rest}"))
            {
                prop_assert!(from <= to);
            }
        }

        #[test]
        fn what_is_written_is_read(from in 0u64..100_000_000, more in 0u64..100_000_000) {
            let (from, to) = (MediaTime(from * 27_000), MediaTime((from + more) * 27_000));
            prop_assert_eq!(
                Span::parse(&write(from, to)),
                Ok(Span { from: RangeStart::At(from), to: Some(to) })
            );
        }
    }
}
