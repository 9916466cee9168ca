//! Flushes: all that wait go together, as one planned operation.
//!
//! Promise: a flush covers what was written before it was asked for; one group is under way at a time,
//! of at most [`GROUP_MAX`] files; each flush goes to the device once, whatever becomes of it. When a
//! group may begin is the cycle's decision.

use alloc::collections::VecDeque;

use crate::ports::Sync;
use crate::units::{MonoTime, Nanos};

/// Flushes at the device at once. A journalling file system writes one record for all of them; more would
/// only make the first wait for the last.
pub const GROUP_MAX: usize = 64;

/// The files that wait for a flush.
pub(super) struct Flushes {
    waiting: VecDeque<Sync>,
    /// How many of those in front belong to the group that has begun.
    to_give: usize,
    under_way: u32,
    begun: MonoTime,
    /// The cycle in which the last group began.
    cycle: Option<u64>,
    /// Before this a group gives way to what waits to be read or written.
    rested: MonoTime,
    /// The last cycle in which there was free time.
    free: Option<u64>,
    /// Most that a group takes, by the model.
    time: Nanos,
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
        }
    }

    pub(super) fn push(&mut self, sync: Sync) {
        assert!(self.waiting.len() < self.waiting.capacity(), "a flush has a place");
        self.waiting.push_back(sync);
    }

    /// Files wait, and none is at the device.
    pub(super) fn is_waiting(&self) -> bool {
        self.under_way == 0 && self.to_give == 0 && !self.waiting.is_empty()
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    pub(super) fn time(&self) -> Nanos {
        self.time
    }

    /// What by the model is left of the group under way.
    pub(super) fn left(&self, now: MonoTime) -> Nanos {
        if self.under_way == 0 { Nanos(0) } else { (self.begun + self.time).since(now) }
    }

    pub(super) fn has_begun_in(&self, cycle: u64) -> bool {
        self.cycle == Some(cycle)
    }

    /// Until when a group in free time gives way to reads and writes that wait: flushes take at most half of
    /// it, or a stream of small uploads would leave no time for what they write.
    pub(super) fn rested(&self) -> MonoTime {
        self.rested
    }

    /// Notes that `cycle` has free time, at `now`. What waits to be written comes before the first group,
    /// and so into it, as long as a flush takes, and not so long that the group fits no more:
    /// it must begin by `latest`.
    pub(super) fn note_free(&mut self, now: MonoTime, cycle: u64, latest: MonoTime) {
        if self.free.replace(cycle) != Some(cycle) {
            self.rested = self.rested.max((now + self.time).min(latest));
        }
    }

    /// Makes what waits a group.
    pub(super) fn begin(&mut self, now: MonoTime, cycle: u64) {
        self.to_give = self.waiting.len().min(GROUP_MAX);
        self.begun = now;
        self.cycle = Some(cycle);
    }

    /// The next file of the group that has begun.
    pub(super) fn poll(&mut self) -> Option<Sync> {
        self.to_give = self.to_give.checked_sub(1)?;
        self.under_way += 1;
        self.waiting.pop_front()
    }

    /// Notes the end of one; true when the group has ended.
    pub(super) fn note_end(&mut self, now: MonoTime) -> bool {
        assert!(self.under_way > 0, "the device only ends what was submitted");
        self.under_way -= 1;
        let ended = self.under_way == 0 && self.to_give == 0;
        if ended {
            self.rested = now + now.since(self.begun);
        }
        ended
    }
}
