//! Checks of written values that several tables share.
//!
//! Promise: a value out of its range is an error at its place, with the range.

use std::ops::{Range, RangeInclusive};
use std::path::Path;

use serde::de::{DeserializeOwned, IgnoredAny};
use tactus_core::units::{BitRate, Nanos};

use super::error::{ConfigError, Mistake};
use super::units::{Quantity, Value, exact};
use super::value::{Auto, SpannedKey, Switch};

/// The meaning of what is written, or a mistake with its place.
pub type Checked<T> = Result<T, Mistake>;

/// The written number, or the default.
///
/// # Errors
/// When it is out of range.
pub fn number(written: SpannedKey<u32>, default: u32, range: RangeInclusive<u32>) -> Checked<u32> {
    written.map_or(Ok(default), |written| {
        let span = written.span();
        in_range(written.into_inner(), span, range)
    })
}

/// The written quantity, or the default.
///
/// # Errors
/// When it is out of range.
pub fn quantity<Q>(
    written: SpannedKey<Value<Q>>,
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
///
/// # Errors
/// When it is out of range.
pub fn in_range<T>(value: T, span: Range<usize>, range: RangeInclusive<T>) -> Checked<T>
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
///
/// # Errors
/// Another word is written; `otherwise` says what to write instead.
pub fn unless_off<T>(
    written: SpannedKey<Switch<T>>,
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
///
/// # Errors
/// When it has more than six bits.
pub fn dscp(written: SpannedKey<u32>) -> Checked<Option<u8>> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    Ok(Some(in_range(written.into_inner(), span, 0..=63)? as u8))
}

/// How long datagrams may be gathered, if it is written.
///
/// # Errors
/// When it is longer than receivers compensate.
pub fn burst(written: SpannedKey<Value<Nanos>>) -> Checked<Option<Nanos>> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    Ok(Some(in_range(written.into_inner().0, span, Nanos(0)..=BURST_MAX)?))
}

/// The jitter that receivers of IP television compensate: 40 ms from peak to peak (ETSI TS 102 034,
/// section 7.2).
const BURST_MAX: Nanos = Nanos::from_millis(40);

/// Whether a name is short and plain enough for logs, metrics and paths.
pub fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

/// What to write instead of a name that is not.
pub const PLAIN_NAME: &str = "write a name of letters, digits and `-_.@`, at most 64 of them";

/// Rates that a stream may have.
pub const RATES: RangeInclusive<BitRate> = BitRate(1_000)..=BitRate(100_000_000_000);

/// The name of a network interface, or `"auto"`.
///
/// # Errors
/// When no interface can have this name.
pub fn interface(written: SpannedKey<Switch<String>>) -> Checked<Option<String>> {
    match or_auto(written)? {
        Auto::Auto => Ok(None),
        // IFNAMSIZ includes a closing zero.
        Auto::Set((name, _)) if (1..16).contains(&name.len()) => Ok(Some(name)),
        Auto::Set((name, span)) => Err(Mistake::at(
            span,
            format!(
                "{name:?} is not an interface name; write it like \
                \"eth0\""
            ),
        )),
    }
}

/// A quantity that satisfies `fits`, or `"auto"`.
///
/// # Errors
/// When it does not; `rule` says which quantities do.
pub fn auto_quantity<Q: Quantity + std::fmt::Display>(
    written: SpannedKey<Switch<Value<Q>>>,
    fits: impl FnOnce(Q) -> bool,
    rule: &str,
) -> Checked<Auto<Q>> {
    match or_auto(written)? {
        Auto::Auto => Ok(Auto::Auto),
        Auto::Set((Value(value), _)) if fits(value) => Ok(Auto::Set(value)),
        Auto::Set((Value(value), span)) => {
            Err(Mistake::at(span, format!("{} does not fit: {rule}", exact(value))))
        }
    }
}

/// The written value and its place, or `"auto"`, which is also the default.
///
/// # Errors
/// Another word is written.
pub fn or_auto<T>(written: SpannedKey<Switch<T>>) -> Checked<Auto<(T, Range<usize>)>> {
    let Some(written) = written else { return Ok(Auto::Auto) };
    let span = written.span();
    match written.into_inner() {
        Switch::Auto => Ok(Auto::Auto),
        Switch::Value(value) => Ok(Auto::Set((value, span))),
        Switch::Off | Switch::Max => {
            Err(Mistake::at(span, "this key is not a switch; write a value, or \"auto\""))
        }
    }
}

/// Whether to try: `"auto"` (also the default), or `"off"`.
///
/// # Errors
/// Another word is written.
pub fn auto_or_off(written: SpannedKey<Switch<IgnoredAny>>) -> Checked<bool> {
    let Some(written) = written else { return Ok(true) };
    match written.get_ref() {
        Switch::Auto => Ok(true),
        Switch::Off => Ok(false),
        Switch::Max | Switch::Value(_) => {
            Err(Mistake::at(written.span(), "write \"auto\" or \"off\""))
        }
    }
}

/// Reads `text`, the content of one table, as `check` understands it. `what` names it in messages.
///
/// # Errors
/// The first mistake, with line and column.
pub fn table<R: DeserializeOwned, T>(
    text: &str,
    what: &str,
    check: impl FnOnce(R) -> Checked<T>,
) -> Result<T, ConfigError> {
    let raw = toml::from_str(text).map_err(Mistake::from);
    raw.and_then(check).map_err(|mistake| mistake.in_file(Path::new(what), text))
}
