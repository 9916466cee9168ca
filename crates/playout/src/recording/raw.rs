//! `[[recording]]` as written, and its meaning.
//!
//! Promise: the configuration and the control API read a recording by the same rules.

use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};
use tactus_notation::checks::{
    Checked, PLAIN_NAME, RATES, auto_quantity, in_range, interface, is_plain_name, quantity,
    unless_off,
};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use tactus_notation::value::{SpannedKey, Switch};
use toml::Spanned;

use super::{Input, Keep, Recording, Rotate};
use crate::pattern::Pattern;

/// `[[recording]]`: one live input and its titles.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RawRecording {
    pub name: Spanned<String>,
    pub from: Spanned<String>,
    #[serde(default)]
    pub interface: SpannedKey<Switch<String>>,
    pub to: Spanned<String>,
    #[serde(default)]
    pub rate: SpannedKey<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub rotate: SpannedKey<Switch<String>>,
    #[serde(default)]
    pub keep_titles: SpannedKey<Switch<u32>>,
    #[serde(default)]
    pub keep_size: SpannedKey<Switch<Value<Bytes>>>,
    #[serde(default)]
    pub keep_age: SpannedKey<Switch<Value<Nanos>>>,
    #[serde(default)]
    pub silence: SpannedKey<Value<Nanos>>,
}

/// Checks one recording without regard to the others.
///
/// # Errors
/// The first mistake, with its place.
pub fn check(raw: RawRecording) -> Checked<Recording> {
    let said = |text: &Spanned<String>| {
        let span = text.span();
        move |message: String| Mistake::at(span, message)
    };
    if !is_plain_name(raw.name.get_ref()) {
        return Err(Mistake::at(raw.name.span(), PLAIN_NAME));
    }
    let from = Input::parse(raw.from.get_ref()).map_err(said(&raw.from))?;
    let interface = interface(raw.interface)?;
    if interface.is_none() && from.needs_interface() {
        let message = "this is a link-local address; name its link with `interface`";
        return Err(Mistake::at(raw.from.span(), message));
    }
    let to = Pattern::parse(raw.to.get_ref()).map_err(said(&raw.to))?;
    let fits = |rate: BitRate| RATES.contains(&rate);
    let rate = auto_quantity(raw.rate, fits, "write a rate from 1 kbit/s to 100 Gbit/s")?;
    let rotate = match unless_off(
        raw.rotate,
        "write a time like \"1 h\", a size like \"1 GB\", or \"off\"",
    )? {
        None => None,
        Some((text, span)) => Some(Rotate::parse(&text).map_err(|m| Mistake::at(span, m))?),
    };
    let titles = unless_off(raw.keep_titles, "write a number, or \"off\"")?;
    let titles = titles.map(|(titles, span)| in_range(titles, span, 1..=1_000_000)).transpose()?;
    let size = unless_off(raw.keep_size, "write a size like \"500 GB\", or \"off\"")?;
    let size = size.map(|(Value(size), span)| in_range(size, span, Bytes(MIB)..=Bytes(u64::MAX)));
    let age = unless_off(raw.keep_age, "write a time like \"168 h\", or \"off\"")?;
    let ages = SECOND..=SECOND.times(86_400 * 3_660);
    let age = age.map(|(Value(age), span)| in_range(age, span, ages)).transpose()?;
    let keep = Keep { titles, size: size.transpose()?, age };
    if (rotate.is_some() || keep.is_limited()) && !to.has_fields() {
        let message = "every title would get this name; add %n or a time to it, like \
            \"/live/%Y%m%d-%H%M%S.ts\"";
        return Err(Mistake::at(raw.to.span(), message));
    }
    let silence = quantity(raw.silence, SECOND.times(5), SECOND..=SECOND.times(3600))?;
    let name = raw.name.into_inner();
    Ok(Recording { name, from, interface, to, rate, rotate, keep, silence })
}
