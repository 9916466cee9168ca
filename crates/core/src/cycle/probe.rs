//! Probes: reads of free places, at the depth that the model is about, in time that is left over.
//!
//! Promise: a read of a probe begins only after the head of a cycle, when nothing else is at the
//! disk or waits. Short probes take at most a twentieth of the time while the disk is not known, a
//! fiftieth while it changes, and a hundredth afterwards; long ones at most as much again. An idle
//! server stops when it knows its disk.
//!
//! A short probe shows how fast a disk is at that moment. A disk that is limited by its host, as
//! those of clouds are, serves it faster than it can serve streams, because the limit counts the
//! bytes of some time. So now and then a long probe keeps the disk busy for a second.

use crate::disk_model::{DiskModel, MilliVisits};
use crate::estimator::Doubt;
use crate::mutant;
use crate::units::{Bytes, MonoTime, Nanos, SECOND};

/// What is probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeLimits {
    /// The part of the device that may be read, from its first byte.
    pub len: Bytes,
    /// Size of a read: that of a block.
    pub block: u32,
}

/// A read of a probe, whose bytes are not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeRead {
    /// Offset of the first byte, a multiple of the sector.
    pub offset: Bytes,
    /// Length in bytes.
    pub len: u32,
}

/// The probes of one disk.
pub(super) struct Probes {
    limits: ProbeLimits,
    /// Reads of the running short probe that have not begun.
    left: u32,
    in_flight: u32,
    begun: MonoTime,
    /// When the next short one may begin.
    next: MonoTime,
    /// End of the running long probe.
    until: Option<MonoTime>,
    /// It is in its first cycle.
    is_cold: bool,
    /// Time of it in which it has had reads at the disk, but for those since `busy_since`.
    busy: Nanos,
    busy_since: MonoTime,
    /// When the last long one began.
    long_begun: Option<MonoTime>,
    /// The last real-time work.
    worked: MonoTime,
    /// Chooses the places.
    dice: u64,
}

/// Time between two probes, in lengths of a probe, while the disk is not known, while it changes,
/// and afterwards.
const SHARE: u64 = 20;
const SHARE_CHANGING: u64 = 50;
const SHARE_KNOWN: u64 = 100;
/// Time between two probes of a disk that changes: one for each window of the estimator.
const CHANGING_EVERY: Nanos = SECOND;
/// Least time between two probes of a known disk.
const KNOWN_EVERY: Nanos = Nanos(4 * SECOND.0);
/// A long probe lasts for the rest of its first cycle and at least so long. Pauses in which other
/// work has the disk belong to it.
pub(super) const LONG: Nanos = SECOND;
/// Time between two long probes of a disk that is as fast in them as in short ones.
const LONG_EVERY: Nanos = Nanos(600 * SECOND.0);
/// A known disk without streams is not probed any more after this time.
const IDLE: Nanos = Nanos(60 * SECOND.0);

impl Probes {
    pub(super) fn new(limits: ProbeLimits) -> Self {
        let zero = MonoTime(0);
        let dice = 0x9E37_79B9_7F4A_7C15;
        Self {
            limits,
            left: 0,
            in_flight: 0,
            begun: zero,
            next: zero,
            until: None,
            is_cold: false,
            busy: Nanos(0),
            busy_since: zero,
            long_begun: None,
            worked: zero,
            dice,
        }
    }

    /// Number of reads at the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Notes real-time work.
    pub(super) fn note_work(&mut self, now: MonoTime) {
        self.worked = now;
    }

    /// When the next probe may begin, or the running long one may go on; `None` if none is needed.
    pub(super) fn next(&self, doubt: Doubt, is_bounded: bool) -> Option<MonoTime> {
        let is_needed = doubt == Doubt::Unknown || self.next < self.worked + IDLE;
        match self.until {
            Some(_) => Some(self.begun),
            None => is_needed.then_some(self.next.min(self.next_long(doubt, is_bounded))),
        }
    }

    /// When the next long one may begin. `is_bounded`: short ones are faster.
    fn next_long(&self, doubt: Doubt, is_bounded: bool) -> MonoTime {
        let every = match (is_bounded, doubt) {
            (true, Doubt::Unknown) => LONG.times(SHARE),
            (true, _) => LONG.times(SHARE_KNOWN),
            (false, _) => LONG_EVERY,
        };
        self.long_begun.map_or(MonoTime(0), |begun| begun + every)
    }

    /// Begins a short probe of this many reads.
    pub(super) fn begin(&mut self, now: MonoTime, reads: u32) {
        (self.left, self.begun) = (reads, now);
    }

    /// Whether a long probe is due at `now`.
    pub(super) fn is_long_due(&self, now: MonoTime, doubt: Doubt, is_bounded: bool) -> bool {
        mutant!(BurstTrusted, false, self.next_long(doubt, is_bounded) <= now)
    }

    /// Begins a long probe, which lasts until `end`.
    pub(super) fn begin_long(&mut self, now: MonoTime, end: MonoTime) {
        (self.until, self.begun, self.busy) = (Some(end), now, Nanos(0));
        (self.long_begun, self.is_cold) = (Some(now), true);
    }

    /// The end of the long probe whose first cycle is over. Only the others count: a host that
    /// limits the disk serves much at once after a pause.
    pub(super) fn warmed_up(&mut self) -> Option<MonoTime> {
        let is_over = core::mem::take(&mut self.is_cold);
        self.until.filter(|_| is_over)
    }

    /// Ends the long probe whose time is over. True if it has had the disk for most of its time.
    pub(super) fn end_long(&mut self, now: MonoTime) -> bool {
        if self.until.take_if(|until| *until <= now).is_none() {
            return false;
        }
        if self.in_flight > 0 {
            self.busy += now.since(self.busy_since);
        }
        let is_filled = self.busy.times(4) >= now.since(self.begun).times(3);
        // Its last reads are not a short probe of its length.
        self.begun = now;
        is_filled
    }

    /// Stops for other work: the rest of a short probe is not read, and a long one goes on later.
    pub(super) fn stop(&mut self) {
        self.left = 0;
    }

    /// Gives the running probe up: its file cannot be read.
    pub(super) fn give_up(&mut self, now: MonoTime) {
        self.left = 0;
        self.until = self.until.map(|until| until.min(now));
    }

    /// The next read of the running probe, which begins at `now`.
    pub(super) fn poll(&mut self, now: MonoTime) -> Option<ProbeRead> {
        if self.until.is_none() {
            self.left = self.left.checked_sub(1)?;
        }
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.in_flight += 1;
        // xorshift64: any place is as good as another.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let len = self.limits.block;
        let places = (self.limits.len.0 / u64::from(len)).max(1);
        Some(ProbeRead { offset: Bytes(self.dice % places * u64::from(len)), len })
    }

    /// Notes the end of a read.
    pub(super) fn note_end(&mut self, now: MonoTime, doubt: Doubt) {
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.busy += now.since(self.busy_since);
        }
        if self.in_flight > 0 || self.is_running() {
            return;
        }
        let took = now.since(self.begun);
        self.next = now
            + match doubt {
                Doubt::Unknown => took.times(SHARE - 1),
                Doubt::Changing => took.times(SHARE_CHANGING - 1).max(CHANGING_EVERY),
                Doubt::Known => took.times(SHARE_KNOWN - 1).max(KNOWN_EVERY),
            };
    }

    /// Whether a probe is running.
    pub(super) fn is_running(&self) -> bool {
        self.left > 0 || self.until.is_some()
    }

    /// The time of a probe of this many reads by a model. The first answer takes the latency, so as
    /// many more are counted as are at the device at a time.
    pub(super) fn time(&self, model: &DiskModel, reads: u32) -> Nanos {
        let visits = u64::from(reads) + u64::from(model.depth);
        model.reading(MilliVisits(visits * 1000), Bytes(visits * u64::from(self.limits.block)))
    }
}
