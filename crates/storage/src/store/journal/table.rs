//! The state that all records together add up to.
//!
//! Promise: the state after a start equals the state before it, because both come from the same
//! records by this same function. A record that does not fit the state changes nothing, or gives
//! the upload up.

use std::collections::HashMap;
use std::sync::Arc;

use super::record::{CreationRecord, Record, WatermarkRecord};
use crate::store::id::StoreId;
use crate::store::sums::{SumsState, UNIT};

/// Uploads by their identifiers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::store) struct Table(HashMap<StoreId, Entry>);

/// The durable state of one upload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct Entry {
    pub(in crate::store) created: Arc<CreationRecord>,
    pub(in crate::store) len: Option<u64>,
    pub(in crate::store) mark: SumsState,
    pub(in crate::store) prefix: u32,
    pub(in crate::store) units: Vec<u32>,
    pub(in crate::store) expires: u64,
    /// The entity tag of the finished title.
    pub(in crate::store) named: Option<String>,
}

impl Entry {
    /// Whether all its bytes are durable.
    pub(in crate::store) fn is_complete(&self) -> bool {
        self.named.is_some() || self.len == Some(self.mark.len)
    }

    /// Bytes that are durable.
    pub(in crate::store) fn offset(&self) -> u64 {
        match self.named {
            Some(_) => self.len.unwrap_or_default(),
            None => self.mark.len,
        }
    }
}

impl Table {
    pub(in crate::store) fn apply(&mut self, record: Record) {
        match record {
            Record::Created(created) => {
                let (len, expires) = (created.len, created.expires);
                let (mark, prefix) = (SumsState::default(), 0);
                let created = Arc::new(*created);
                let (units, named) = (Vec::new(), None);
                let id = created.id;
                self.0.insert(id, Entry { created, len, mark, prefix, units, expires, named });
            }
            Record::Advanced(advanced) => {
                let id = advanced.id;
                if self.0.get_mut(&id).is_some_and(|entry| !entry.advance(advanced)) {
                    // A record before this one was damaged, and its contents cannot be restored.
                    self.0.remove(&id);
                }
            }
            Record::Length { id, len } => {
                if let Some(entry) = self.0.get_mut(&id) {
                    entry.len = Some(len);
                }
            }
            Record::Named { id, etag } => {
                if let Some(entry) = self.0.get_mut(&id) {
                    entry.named = Some(etag);
                    // A finished title has its checksums elsewhere.
                    entry.units = Vec::new();
                    (entry.mark, entry.prefix) = (SumsState::default(), 0);
                }
            }
            Record::Gone { id } => {
                self.0.remove(&id);
            }
        }
    }

    pub(in crate::store) fn find(&self, id: &StoreId) -> Option<&Entry> {
        self.0.get(id)
    }

    pub(in crate::store) fn entries(&self) -> impl Iterator<Item = (&StoreId, &Entry)> {
        self.0.iter()
    }

    /// Forgets finished uploads, the oldest first, until at most `count` uploads are left in all.
    pub(in crate::store) fn keep_at_most(&mut self, count: usize) {
        let more = self.0.len().saturating_sub(count);
        let finished = self.0.iter().filter(|(_, entry)| entry.named.is_some());
        let mut finished: Vec<_> = finished.map(|(id, entry)| (entry.expires, *id)).collect();
        finished.sort_unstable();
        for (_, id) in finished.into_iter().take(more) {
            self.0.remove(&id);
        }
    }

    /// Records that add up to this state.
    pub(in crate::store) fn records(&self) -> impl Iterator<Item = Record> {
        self.0.values().flat_map(Entry::records)
    }
}

impl Entry {
    fn advance(&mut self, advanced: WatermarkRecord) -> bool {
        let WatermarkRecord { mark, prefix, from, units, expires, .. } = advanced;
        let Ok(from) = usize::try_from(from) else { return false };
        let fits = from <= self.units.len()
            && (from + units.len()) as u64 == mark.len / UNIT
            && mark.len >= self.mark.len
            && self.len.is_none_or(|len| mark.len <= len);
        if fits {
            self.units.truncate(from);
            self.units.extend(units);
            (self.mark, self.prefix, self.expires) = (mark, prefix, expires);
        }
        fits
    }

    fn records(&self) -> Vec<Record> {
        let id = self.created.id;
        let created =
            CreationRecord { expires: self.expires, ..CreationRecord::clone(&self.created) };
        let mut records = vec![Record::Created(Box::new(created))];
        if let Some(len) = self.len.filter(|_| self.created.len.is_none()) {
            records.push(Record::Length { id, len });
        }
        let (mark, prefix, expires) = (self.mark, self.prefix, self.expires);
        match &self.named {
            Some(etag) => records.push(Record::Named { id, etag: etag.clone() }),
            None => {
                let units = self.units.clone();
                let all = WatermarkRecord { id, mark, prefix, from: 0, units, expires };
                records.extend(all.split(0).into_iter().map(Record::Advanced));
            }
        }
        records
    }
}
