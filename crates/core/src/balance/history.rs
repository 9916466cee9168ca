//! What a server has used lately, and when it may move again.

use alloc::collections::VecDeque;

use super::{CALM, Reading, Reason};
use crate::units::{MonoTime, Nanos};

/// The time between two readings.
pub const SAMPLE: Nanos = Nanos::from_millis(100);

/// Samples of a second.
const SAMPLES: usize = 10;
/// Samples of what a server uses now: two cycles of a disk on flash, eight ticks of a stream.
const RECENT: usize = 5;
/// Recent values of which the peak is taken: ten seconds, the longest cycle of a disk.
const PEAKS: usize = 100;

/// One server's.
pub(super) struct History {
    core: Option<usize>,
    /// Time used at the last reading.
    used: Nanos,
    /// Thousandths of a core's time, the newest last.
    samples: VecDeque<u32>,
    /// What it used at the time of each reading.
    peaks: VecDeque<u32>,
    /// When it may move again.
    rest: MonoTime,
    /// The next move lets its core sleep.
    is_packed: bool,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            core: None,
            used: Nanos(0),
            samples: VecDeque::with_capacity(SAMPLES),
            peaks: VecDeque::with_capacity(PEAKS),
            rest: MonoTime(0),
            is_packed: false,
        }
    }

    /// Takes a reading, `passed` after the one before. Returns whether the server has moved for
    /// another reason than to let its core sleep.
    pub(super) fn take(&mut self, passed: Nanos, reading: &Reading) -> bool {
        let used = reading.busy.saturating_sub(self.used);
        self.used = reading.busy;
        let thousandths = u128::from(used.0) * 1000 / u128::from(passed.0.max(1));
        let thousandths = u32::try_from(thousandths).unwrap_or(u32::MAX);
        // A late reading counts for those that were left out.
        for _ in 0..(passed.0 / SAMPLE.0).clamp(1, PEAKS as u64) {
            push(&mut self.samples, SAMPLES, thousandths);
            let recent = self.recent();
            push(&mut self.peaks, PEAKS, recent);
        }
        let has_moved = self.core.is_some_and(|core| core != reading.core);
        self.core = Some(reading.core);
        has_moved && !core::mem::take(&mut self.is_packed)
    }

    /// What it uses now.
    pub(super) fn recent(&self) -> u32 {
        mean(self.samples.iter().rev().take(RECENT))
    }

    pub(super) fn peak(&self) -> u32 {
        self.peaks.iter().copied().max().unwrap_or(0)
    }

    /// What it has used in the last second.
    pub(super) fn share(&self) -> u32 {
        mean(self.samples.iter())
    }

    pub(super) fn propose(&mut self, now: MonoTime, reason: Reason) {
        self.is_packed = reason == Reason::Idle;
        if matches!(reason, Reason::Busy(_) | Reason::Promised(_) | Reason::Refused(_)) {
            self.rest(now);
        }
    }

    pub(super) fn rest(&mut self, now: MonoTime) {
        self.is_packed = false;
        self.rest = now + CALM;
    }

    pub(super) fn rests(&self, now: MonoTime) -> bool {
        now < self.rest
    }
}

fn push(ring: &mut VecDeque<u32>, len: usize, value: u32) {
    if ring.len() == len {
        ring.pop_front();
    }
    ring.push_back(value);
}

/// The mean, rounded up; zero of nothing.
fn mean<'a>(values: impl Iterator<Item = &'a u32>) -> u32 {
    let (sum, count) =
        values.fold((0u64, 0u64), |(sum, count), &value| (sum + u64::from(value), count + 1));
    u32::try_from(sum.div_ceil(count.max(1))).unwrap_or(u32::MAX)
}
