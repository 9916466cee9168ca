//! Checks of written values that several tables share.
//!
//! Promise: a value out of its range is an error at its place, with the range.

use std::ops::{Range, RangeInclusive};

use tactus_core::units::Nanos;

use super::error::Mistake;
use super::raw::{Placed, Switch};
use super::units::{Quantity, Value};

pub(super) type Checked<T> = Result<T, Mistake>;

pub(super) fn number(
    written: Placed<u32>,
    default: u32,
    range: RangeInclusive<u32>,
) -> Checked<u32> {
    written.map_or(Ok(default), |written| {
        let span = written.span();
        in_range(written.into_inner(), span, range)
    })
}

pub(super) fn quantity<Q>(
    written: Placed<Value<Q>>,
    default: Q,
    range: RangeInclusive<Q>,
) -> Checked<Q>
where
    Q: Quantity + PartialOrd + std::fmt::Display,
{
    written.map_or(Ok(default), |written| {
        let span = written.span();
        in_range(written.into_inner().0, span, range)
    })
}

/// A value within `range`, or an error at its place.
pub(super) fn in_range<T>(value: T, span: Range<usize>, range: RangeInclusive<T>) -> Checked<T>
where
    T: PartialOrd + std::fmt::Display,
{
    if range.contains(&value) {
        return Ok(value);
    }
    let message =
        format!("{value} is out of range; write a value from {} to {}", range.start(), range.end());
    Err(Mistake::at(span, message))
}

/// The written value and its place; none for `"off"`, which is also the default.
pub(super) fn unless_off<T>(
    written: Placed<Switch<T>>,
    otherwise: &str,
) -> Checked<Option<(T, Range<usize>)>> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    match written.into_inner() {
        Switch::Off => Ok(None),
        Switch::Value(value) => Ok(Some((value, span))),
        Switch::Auto | Switch::Max => Err(Mistake::at(span, otherwise)),
    }
}

/// The DSCP, if one is written.
pub(super) fn dscp(written: Placed<u32>) -> Checked<Option<u8>> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    Ok(Some(in_range(written.into_inner(), span, 0..=63)? as u8))
}

/// How long datagrams may be gathered, if it is written.
pub(super) fn burst(written: Placed<Value<Nanos>>) -> Checked<Option<Nanos>> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    Ok(Some(in_range(written.into_inner().0, span, Nanos(0)..=BURST_MAX)?))
}

/// The jitter that receivers of IP television compensate: 40 ms from peak to peak (ETSI TS 102 034,
/// section 7.2).
const BURST_MAX: Nanos = Nanos::from_millis(40);

pub(super) fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

pub(super) const PLAIN_NAME: &str =
    "write a name of letters, digits and `-_.@`, at most 64 of them";
