//! `GET /api/v1/classes`: each class of the link, what it may, and what it carries.
//!
//! Promise: what was carried is what the pacer has counted, of the last whole second; all rates are of what
//! is on the wire.

use serde::Serialize;
use tactus_core::units::BitRate;
use tactus_engine::counters::ClassCounters;

use super::Sources;
use crate::config::class::Class;

#[derive(Clone, Serialize)]
pub(super) struct OneClass {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    pub(super) guaranteed_bits_per_second: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling_bits_per_second: Option<u64>,
    priority: u8,
    share_bits_per_second: u64,
    oversubscribed: bool,
    /// What its streams, and the classes below it, are promised.
    pub(super) promised_bits_per_second: u64,
    /// What left.
    real_rate_bits_per_second: u64,
    /// What of it was beyond its guarantee.
    borrowed_bits_per_second: u64,
    /// What of its guarantee others may use.
    pub(super) lent_bits_per_second: u64,
    pub(super) sent_bytes: u64,
    pub(super) borrowed_bytes: u64,
}

/// All of them, each behind its parent.
pub(super) fn all(sources: &Sources) -> Vec<OneClass> {
    let classes = &sources.config.classes.0;
    let promised = sources.broker.classes();
    let each = classes.iter().zip(promised).zip(&*sources.counters.classes);
    each.map(|((class, promised), counters)| one(classes, class, promised, counters)).collect()
}

fn one(classes: &[Class], class: &Class, promised: BitRate, counters: &ClassCounters) -> OneClass {
    let carried = counters.second_bytes.value() * 8;
    let borrowed = counters.second_borrowed.value() * 8;
    OneClass {
        name: class.name.clone(),
        parent: class.parent.map(|parent| classes[parent.index()].name.clone()),
        guaranteed_bits_per_second: class.guaranteed.0,
        ceiling_bits_per_second: class.ceiling.map(|ceiling| ceiling.0),
        priority: class.priority,
        share_bits_per_second: class.share.0,
        oversubscribed: class.is_oversubscribed,
        promised_bits_per_second: promised.0,
        real_rate_bits_per_second: carried,
        borrowed_bits_per_second: borrowed,
        // The two are told one after the other.
        lent_bits_per_second: class.guaranteed.0.saturating_sub(carried.saturating_sub(borrowed)),
        sent_bytes: counters.bytes.value(),
        borrowed_bytes: counters.borrowed.value(),
    }
}
