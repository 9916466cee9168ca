//! Probes: reads of free places, at the depth that the model is about, in time that is left over.
//!
//! Promise: a probe begins only on an idle disk without waiting work, after the head of a cycle, if
//! by the model it ends within the cycle. It takes at most a twentieth of the time while the disk
//! is not known, and a hundredth afterwards. An idle server stops when it knows its disk.

use crate::estimator::Doubt;
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
    /// Reads of the running probe that have not begun.
    left: u32,
    in_flight: u32,
    begun: MonoTime,
    /// When the next one may begin.
    next: MonoTime,
    /// The last real-time work.
    worked: MonoTime,
    /// Chooses the places.
    dice: u64,
}

/// Time between two probes, in lengths of a probe, while the disk is not known, and afterwards.
const SHARE: u64 = 20;
const SHARE_KNOWN: u64 = 100;
/// Time between two probes of a disk that changes: one for each window of the estimator.
const CHANGING_EVERY: Nanos = SECOND;
/// Least time between two probes of a known disk.
const KNOWN_EVERY: Nanos = Nanos(4 * SECOND.0);
/// A known disk without streams is not probed any more after this time.
const IDLE: Nanos = Nanos(60 * SECOND.0);

impl Probes {
    pub(super) fn new(limits: ProbeLimits) -> Self {
        let zero = MonoTime(0);
        let dice = 0x9E37_79B9_7F4A_7C15;
        Self { limits, left: 0, in_flight: 0, begun: zero, next: zero, worked: zero, dice }
    }

    /// Number of reads at the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Notes real-time work.
    pub(super) fn note_work(&mut self, now: MonoTime) {
        self.worked = now;
    }

    /// When the next probe may begin; `None` if none is needed.
    pub(super) fn next(&self, doubt: Doubt) -> Option<MonoTime> {
        (doubt == Doubt::Unknown || self.next < self.worked + IDLE).then_some(self.next)
    }

    /// Begins a probe of this many reads.
    pub(super) fn begin(&mut self, now: MonoTime, reads: u32) {
        (self.left, self.begun) = (reads, now);
    }

    /// Ends the running probe: its rest is not read.
    pub(super) fn stop(&mut self) {
        self.left = 0;
    }

    /// The next read of the running probe.
    pub(super) fn poll(&mut self) -> Option<ProbeRead> {
        self.left = self.left.checked_sub(1)?;
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
        if self.in_flight > 0 || self.left > 0 {
            return;
        }
        let took = now.since(self.begun);
        let known = took.times(SHARE_KNOWN - 1);
        self.next = now
            + match doubt {
                Doubt::Unknown => took.times(SHARE - 1),
                Doubt::Changing => Nanos(known.0.max(CHANGING_EVERY.0)),
                Doubt::Known => Nanos(known.0.max(KNOWN_EVERY.0)),
            };
    }

    /// Whether a probe is running.
    pub(super) fn is_running(&self) -> bool {
        self.left > 0
    }

    /// Size of a read.
    pub(super) fn block(&self) -> u32 {
        self.limits.block
    }
}
