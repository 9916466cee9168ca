//! Flushes: all waiting flushes go together, as one planned operation.
//!
//! Promise: a flush covers the writes that were completed before its request. One group of at most
//! [`GROUP_MAX`] files is under way at a time. Each flush goes to the device once, whatever its
//! result. The cycle decides when a group may begin.

use alloc::collections::VecDeque;

use crate::ports::Sync;
use crate::units::{MonoTime, Nanos};

/// Limit of flushes at the device. A journalling file system writes one record for all of them;
/// with more, the first would only wait for the last.
pub const GROUP_MAX: usize = 64;

/// The files that wait for a flush.
pub(super) struct Flushes {
    waiting: VecDeque<Sync>,
    /// Number of those in front that belong to the group under way.
    to_give: usize,
    under_way: u32,
    begun: MonoTime,
    /// The cycle in which the last group began.
    cycle: Option<u64>,
    /// Before this time, a group yields to waiting reads and writes.
    rested: MonoTime,
    /// The last cycle with best-effort time.
    free: Option<u64>,
    /// Limit of the duration of a group, by the model.
    time: Nanos,
    /// The duration of the last group; before the first one, the limit.
    took: Nanos,
}

impl Flushes {
    pub(super) fn new(syncs_max: usize, time: Nanos) -> Self {
        Self {
            waiting: VecDeque::with_capacity(syncs_max),
            to_give: 0,
            under_way: 0,
            begun: MonoTime(0),
            cycle: None,
            rested: MonoTime(0),
            free: None,
            time,
            took: time,
        }
    }

    pub(super) fn push(&mut self, sync: Sync) {
        assert!(self.waiting.len() < self.waiting.capacity(), "a flush has a place");
        self.waiting.push_back(sync);
    }

    /// Whether files wait and none is at the device.
    pub(super) fn is_waiting(&self) -> bool {
        self.under_way == 0 && self.to_give == 0 && !self.waiting.is_empty()
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    pub(super) fn time(&self) -> Nanos {
        self.time
    }

    /// Remaining time of the group under way, by the model.
    pub(super) fn left(&self, now: MonoTime) -> Nanos {
        if self.under_way == 0 { Nanos(0) } else { (self.begun + self.time).since(now) }
    }

    pub(super) fn has_begun_in(&self, cycle: u64) -> bool {
        self.cycle == Some(cycle)
    }

    /// Until when a group in best-effort time yields to waiting reads and writes. Flushes take at
    /// most half of this time; otherwise a sequence of small uploads would leave no time for their
    /// writes.
    pub(super) fn rested(&self) -> MonoTime {
        self.rested
    }

    /// Notes that `cycle` has best-effort time, at `now`. Waiting writes come before the first
    /// group, and so into it, for the duration of the last group, but only while this one still
    /// fits: it must begin by `latest`.
    pub(super) fn note_free(&mut self, now: MonoTime, cycle: u64, latest: MonoTime) {
        if self.free.replace(cycle) != Some(cycle) {
            self.rested = self.rested.max((now + self.took.min(self.time)).min(latest));
        }
    }

    /// Makes a group of the waiting flushes.
    pub(super) fn begin(&mut self, now: MonoTime, cycle: u64) {
        self.to_give = self.waiting.len().min(GROUP_MAX);
        self.begun = now;
        self.cycle = Some(cycle);
    }

    /// The next file of the group under way.
    pub(super) fn poll(&mut self) -> Option<Sync> {
        self.to_give = self.to_give.checked_sub(1)?;
        self.under_way += 1;
        self.waiting.pop_front()
    }

    /// Notes the end of one flush; returns the time of the group when all of it has ended.
    pub(super) fn note_end(&mut self, now: MonoTime) -> Option<Nanos> {
        assert!(self.under_way > 0, "the device only ends what was submitted");
        self.under_way -= 1;
        let ended = self.under_way == 0 && self.to_give == 0;
        self.took = ended.then(|| now.since(self.begun))?;
        self.rested = now + self.took;
        Some(self.took)
    }
}
