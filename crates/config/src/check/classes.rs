//! Checks `[[class]]` and sorts each class after its parent.

use std::collections::HashMap;

use tactus_core::classes::ClassNumber;
use tactus_core::pacer::{DEPTH_MAX, PRIORITIES};
use tactus_core::units::{BitRate, Nanos};
use tactus_notation::Auto;
use tactus_notation::checks::{
    Checked, PLAIN_NAME, burst, dscp, in_range, is_plain_name, number, quantity, unless_off,
};
use tactus_notation::error::Mistake;
use tactus_notation::units::{Value, exact};
use toml::Spanned;

use crate::class::{Class, Classes, share_of};
use crate::{GapFrames, Link, raw};

/// Upper bound of the configured classes: one for each of a country's channels, with 6 KB each.
const CLASSES_MAX: usize = 1000;
const RATE_MAX: BitRate = BitRate(100_000_000_000);
const RATE_MIN: BitRate = BitRate(1_000);

/// Checks all classes, and sorts each after its parent.
pub(super) fn classes(
    raw: Vec<raw::Class>,
    link: &Link,
    gap_frames: Option<&GapFrames>,
) -> Checked<Classes> {
    let mut spans = HashMap::new();
    for class in &raw {
        let (name, span) = (class.name.get_ref(), class.name.span());
        if !is_plain_name(name) {
            return Err(Mistake::at(span, PLAIN_NAME));
        }
        if spans.insert(name.clone(), span.clone()).is_some() {
            let message = format!("the class {name:?} is defined twice; give each its own name");
            return Err(Mistake::at(span, message));
        }
        if spans.len() > CLASSES_MAX {
            return Err(Mistake::at(span, format!("write {CLASSES_MAX} classes at most")));
        }
    }
    let mut left = raw;
    let mut classes = Classes::default();
    // One level of the hierarchy after another.
    for depth in 0..=DEPTH_MAX {
        let mut behind = vec![];
        let known = classes.0.len();
        for written in left {
            let parent = written.parent.as_ref();
            if let Some(parent) = parent
                && !spans.contains_key(parent.get_ref())
            {
                let message =
                    format!("there is no class {:?}; write one of them", parent.get_ref());
                return Err(Mistake::at(parent.span(), message));
            }
            let above = parent.map(|parent| {
                classes.0[..known].iter().position(|class| class.name == *parent.get_ref())
            });
            match above {
                Some(None) => behind.push(written),
                above => {
                    // Streams are a level of their own.
                    if depth + 1 >= DEPTH_MAX {
                        let message =
                            format!("classes may be nested at most {} deep", DEPTH_MAX - 1);
                        return Err(Mistake::at(written.name.span(), message));
                    }
                    let parent = above.flatten().map(|at| ClassNumber(at as u16));
                    classes.0.push(class(written, parent)?);
                }
            }
        }
        left = behind;
    }
    if let Some(circle) = left.first() {
        let span = circle.parent.as_ref().map_or(circle.name.span(), Spanned::span);
        return Err(Mistake::at(span, "a class cannot be its own parent; name another one"));
    }
    if let Err((number, message)) = classes.check() {
        let name = &classes.0[number.index()].name;
        return Err(Mistake::at(spans[name].clone(), message));
    }
    let of_link = match link.rate {
        Auto::Set(rate) => Some((rate, "`[link]` rate")),
        Auto::Auto => None,
    };
    let kept_full = gap_frames.map(|gaps| (gaps.rate, "`[gap_frames]` rate"));
    let narrowest = of_link.into_iter().chain(kept_full).min_by_key(|&(rate, _)| rate);
    if let (Some((rate, key)), Some(first)) = (narrowest, classes.0.first()) {
        let room = BitRate(link.budget.of(rate.0));
        let all = classes.guaranteed(None);
        if all > room {
            let message = format!(
                "classes are guaranteed {} together, and their link has {} for streams ({key}, \
                 `[link]` budget)",
                exact(all),
                exact(room)
            );
            return Err(Mistake::at(spans[&first.name].clone(), message));
        }
    }
    Ok(classes)
}

/// Checks one class against the existing classes `known`.
pub(crate) fn one(raw: raw::Class, known: &Classes) -> Checked<Class> {
    let Some(parent) = &raw.parent else { return class(raw, None) };
    let Some((number, _)) = known.find(parent.get_ref()) else {
        let message = format!("there is no class {:?}; write one of them", parent.get_ref());
        return Err(Mistake::at(parent.span(), message));
    };
    class(raw, Some(number))
}

fn class(raw: raw::Class, parent: Option<ClassNumber>) -> Checked<Class> {
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
