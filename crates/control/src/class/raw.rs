//! `[[class]]` as written, and its meaning.
//!
//! Promise: the configuration and the control API read a class by the same rules.

use tactus_core::classes::ClassNumber;
use tactus_core::pacer::PRIORITIES;
use tactus_core::units::{BitRate, Nanos};
use tactus_notation::checks::{Checked, burst, dscp, in_range, number, quantity, unless_off};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use tactus_notation::value::{SpannedKey, Switch};
use toml::Spanned;

use super::{Class, Classes, share_of};

const RATE_MAX: BitRate = BitRate(100_000_000_000);
const RATE_MIN: BitRate = BitRate(1_000);

/// `[[class]]`: a part of the link.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each key is described in tactus.sample.toml")]
pub struct RawClass {
    pub name: Spanned<String>,
    #[serde(default)]
    pub parent: SpannedKey<String>,
    #[serde(default)]
    pub guaranteed: SpannedKey<Value<BitRate>>,
    #[serde(default)]
    pub ceiling: SpannedKey<Switch<Value<BitRate>>>,
    #[serde(default)]
    pub priority: SpannedKey<u32>,
    #[serde(default)]
    pub share: SpannedKey<Value<BitRate>>,
    #[serde(default)]
    pub oversubscribe: Option<Spanned<bool>>,
    #[serde(default)]
    pub burst: SpannedKey<Value<Nanos>>,
    #[serde(default)]
    pub dscp: SpannedKey<u32>,
}

/// Checks one class against the existing classes `known`.
pub(super) fn one(raw: RawClass, known: &Classes) -> Checked<Class> {
    let Some(parent) = &raw.parent else { return check(raw, None) };
    let Some((number, _)) = known.find(parent.get_ref()) else {
        let message = format!("there is no class {:?}; write one of them", parent.get_ref());
        return Err(Mistake::at(parent.span(), message));
    };
    check(raw, Some(number))
}

/// Checks one class whose parent is known.
///
/// # Errors
/// The first mistake, with its place.
pub fn check(raw: RawClass, parent: Option<ClassNumber>) -> Checked<Class> {
    let span = raw.name.span();
    let guaranteed = quantity(raw.guaranteed, BitRate(0), BitRate(0)..=RATE_MAX)?;
    let rates = RATE_MIN..=RATE_MAX;
    let ceiling = match unless_off(raw.ceiling, "write a rate, or \"off\"")? {
        Some((Value(rate), span)) => {
            let rate = in_range(rate, span.clone(), rates.clone())?;
            if rate < guaranteed {
                return Err(Mistake::at(span, "the ceiling of a class is not below its guarantee"));
            }
            Some(rate)
        }
        None => None,
    };
    let is_oversubscribed = raw.oversubscribe.as_ref().is_some_and(|over| *over.get_ref());
    if is_oversubscribed && ceiling.is_none() {
        let span = raw.oversubscribe.map_or(span, |over| over.span());
        return Err(Mistake::at(span, "a shared class needs a `ceiling`; write one"));
    }
    let share = share_of(guaranteed, ceiling);
    Ok(Class {
        name: raw.name.into_inner(),
        parent,
        guaranteed,
        ceiling,
        priority: number(raw.priority, 0, 0..=PRIORITIES as u32 - 1)? as u8,
        share: quantity(raw.share, share, rates)?,
        is_oversubscribed,
        burst: burst(raw.burst)?.unwrap_or(Nanos(0)),
        dscp: dscp(raw.dscp)?,
    })
}
