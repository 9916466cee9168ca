//! The turns in which streams begin to be read ahead by the kernel.
//!
//! While a file in the page cache is read in sequence, the kernel reads up to two *windows* of the
//! device ahead of it. Some devices have a window of 8 MiB: a new stream of 8 Mbit/s would then
//! read 16 MiB in its first seconds, in front of blocks that others wait for, and a seek would
//! waste them. Promise: streams begin with reads of their blocks only. After some seconds the
//! kernel reads ahead for them too, for one after the other: the windows of those that begin take
//! at most an eighth of the volume's share of the disk, which admission keeps free for them, and a
//! quarter of what running streams do not need. All windows together take at most a given memory.

use crate::cost::WindowLimits;
use crate::disk_model::{DiskModel, MilliVisits, Ratio};
use crate::units::{BitRate, Bytes, MIB, MonoTime, Nanos, SECOND};

/// How long a stream has lasted before the kernel reads ahead for it: what lasts for less is
/// mostly a viewer who looks for something.
pub const SETTLED: Nanos = Nanos::from_millis(5000);

/// Longest title that the kernel reads ahead of from the first block on, as a segment: most of it
/// would be read in the next seconds anyway.
pub const SHORT: Bytes = Bytes(4 * MIB);

/// Most windows that the kernel has read ahead of one file.
pub const WINDOWS: u64 = 2;

/// The bounds of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnLimits {
    /// Time of the disk for the windows of one stream, by its model.
    pub windows: Nanos,
    /// Time of the disk for each MiB of the running streams, by its model.
    pub read_mib: Nanos,
    /// How fast the disk probably is, until it is known.
    pub expected: Ratio,
    /// The volume's share of the disk's time, in thousandths.
    pub share_thousandths: u32,
    /// Time whose turns may be taken at once: the cycle, at whose head streams ask.
    pub cycle: Nanos,
    /// Size of a window.
    pub window: Bytes,
    /// Most streams at once for which the kernel reads ahead.
    pub streams: u32,
    /// Servers that give turns. Each has as many streams as the others.
    pub servers: u32,
}

impl TurnLimits {
    /// Limits for a disk with this model and expected speed. The kernel reads `window` bytes at a
    /// time; `memory` bounds the windows of all streams. `None` if the disk needs more than a
    /// quarter of the cycle for a window, which would delay the reads of other streams too long.
    pub fn new(
        (model, expected): (&DiskModel, Ratio),
        window: Bytes,
        memory: Bytes,
        cycle: Nanos,
        share_thousandths: u32,
    ) -> Option<Self> {
        let time = model.reading(MilliVisits(1000), window);
        let streams = (memory.0 / (WINDOWS * window.0.max(1))).min(u64::from(u32::MAX)) as u32;
        (expected.times(time).0 <= cycle.0 / 4).then_some(Self {
            windows: time.times(WINDOWS),
            read_mib: model.read_mib,
            expected,
            share_thousandths,
            cycle,
            window,
            streams,
            servers: 1,
        })
    }

    /// The part of one of several servers.
    #[must_use]
    pub fn split(self, servers: u32) -> Self {
        Self { streams: self.streams / servers, servers, ..self }
    }

    /// Memory for the windows, in blocks of this size.
    pub fn memory(&self, block: Bytes) -> WindowLimits {
        let each = (WINDOWS * self.window.0).div_ceil(block.0) as u32;
        WindowLimits { each, all: each.saturating_mul(self.streams) }
    }

    /// Share of the disk's time that may be promised to streams, in thousandths.
    pub const fn promised_thousandths(&self) -> u32 {
        self.share_thousandths - self.share_thousandths / 8
    }

    /// Time between two turns while the streams of this server take `running` together, and the
    /// disk is so fast.
    fn interval(&self, running: BitRate, ratio: Ratio) -> Nanos {
        let servers = u128::from(self.servers);
        let bytes = u128::from(running.0 / 8) * servers;
        let (windows, read_mib) = (ratio.times(self.windows), ratio.times(self.read_mib));
        let busy = bytes * u128::from(read_mib.0) * 1000 / u128::from(MIB * SECOND.0);
        let promised = u128::from(self.promised_thousandths());
        let share =
            u128::from(self.share_thousandths) - promised + promised.saturating_sub(busy) / 4;
        Nanos((u128::from(windows.0) * 1000 * servers / share.max(1)) as u64)
    }
}

/// Says when the next stream may begin.
#[derive(Debug)]
pub struct Turns {
    limits: TurnLimits,
    interval: Nanos,
    /// Time of the next turn.
    next: MonoTime,
    streams: u32,
}

impl Turns {
    /// No stream has begun.
    pub fn new(limits: TurnLimits) -> Self {
        let interval = limits.interval(BitRate(0), limits.expected);
        Self { limits, interval, next: MonoTime(0), streams: 0 }
    }

    /// Notes what the running streams of this server take together, and how fast the disk is, if
    /// that is known.
    pub fn note(&mut self, running: BitRate, learned: Option<Ratio>) {
        self.interval = self.limits.interval(running, learned.unwrap_or(self.limits.expected));
    }

    /// Takes a turn for one stream, if there is one at `now`.
    pub fn take(&mut self, now: MonoTime) -> bool {
        if self.streams == self.limits.streams || now < self.next {
            return false;
        }
        self.next = self.next.max(now.before(self.limits.cycle)) + self.interval;
        self.streams += 1;
        true
    }

    /// Notes the end of a stream that had a turn.
    pub fn end(&mut self) {
        self.streams -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Nanos = Nanos::from_millis(250);
    const WINDOW: Bytes = Bytes(8 * MIB);
    const MEMORY: Bytes = Bytes(1024 * MIB);

    /// Limits of a disk that reads a MiB in this time, and needs no time for a visit.
    fn limits(read_mib: Nanos) -> Option<TurnLimits> {
        let model = DiskModel { read_mib, visit: Nanos(0), sweep: Nanos(0), ..DiskModel::SLOWEST };
        TurnLimits::new((&model, Ratio::ONE), WINDOW, MEMORY, CYCLE, 1000)
    }

    /// A GiB in a second, for any number of streams.
    fn fast() -> TurnLimits {
        TurnLimits { streams: u32::MAX, ..limits(Nanos(SECOND.0 / 1024)).unwrap() }
    }

    /// Turns that are taken in ten seconds by who asks in this interval, beside these streams.
    fn begun(interval: Nanos, running: BitRate) -> usize {
        let mut turns = Turns::new(fast());
        turns.note(running, None);
        let asks = (0..10 * SECOND.0).step_by(interval.0 as usize).map(MonoTime);
        asks.map(|now| (0..999).filter(|_| turns.take(now)).count()).sum()
    }

    #[test]
    fn windows_of_streams_that_begin_take_their_share_of_the_disk_at_most() {
        // 16 MiB are a 64th of a second of the disk. It has an eighth of the time for them beside
        // streams that take all that is promised, and up to a third beside fewer. The last cycle
        // may be lacking.
        let mib = |mib: u64| BitRate(mib * MIB * 8);
        for asks in [CYCLE, Nanos::from_millis(1)] {
            let close = |running, expected: usize| {
                let begun = begun(asks, running);
                assert!((expected..expected + 7).contains(&begun), "{begun} at {running}");
            };
            close(mib(896), 77);
            close(mib(1600), 77);
            close(mib(384), 155);
            close(mib(0), 214);
        }
    }

    #[test]
    fn turns_that_nobody_took_do_not_add_up() {
        let mut turns = Turns::new(TurnLimits { windows: Nanos::from_micros(34_300), ..fast() });
        let later = MonoTime(3600 * SECOND.0);
        // Of a cycle, in which each takes 100 ms.
        assert_eq!((0..99).filter(|_| turns.take(later)).count(), 3);
        assert!(!turns.take(later + Nanos::from_millis(49)));
        assert!(turns.take(later + Nanos::from_millis(51)));
    }

    #[test]
    fn memory_bounds_the_streams_and_one_that_ends_makes_room() {
        let limits = limits(Nanos(0)).unwrap();
        assert_eq!((limits.streams, limits.split(3).streams), (64, 21));
        assert_eq!(limits.memory(Bytes(MIB)), WindowLimits { each: 16, all: 1024 });
        let mut turns = Turns::new(TurnLimits { streams: 2, ..limits });
        assert!(turns.take(MonoTime(0)) && turns.take(MonoTime(0)) && !turns.take(MonoTime(0)));
        turns.end();
        assert!(turns.take(MonoTime(0)) && !turns.take(MonoTime(0)));
    }

    #[test]
    fn several_servers_give_as_many_turns_together_as_one() {
        let running = BitRate(1_000_000_000);
        let one = fast().interval(running, Ratio::ONE);
        let each = fast().split(4).interval(BitRate(250_000_000), Ratio::ONE);
        assert!(each.0.abs_diff(4 * one.0) < 4, "rounded down");
    }

    #[test]
    fn a_disk_that_is_slower_than_expected_has_fewer_turns_once_that_is_known() {
        let (twice, half) = (Ratio::of_thousandths(2000), Ratio::of_thousandths(500));
        let cautious = TurnLimits { expected: half, ..limits(Nanos::from_millis(4)).unwrap() };
        let mut turns = Turns::new(cautious);
        let begun = turns.interval;
        turns.note(BitRate(0), Some(twice));
        assert!(turns.interval.0.abs_diff(4 * begun.0) < 4, "rounded down");
        turns.note(BitRate(0), None);
        assert_eq!(turns.interval, begun);
    }

    #[test]
    fn a_disk_that_is_busy_too_long_with_a_window_has_no_turns() {
        assert!(limits(Nanos::from_millis(7)).is_some());
        assert_eq!(limits(Nanos::from_millis(8)), None);
        let guess = DiskModel {
            read_mib: Nanos::from_millis(15),
            visit: Nanos(0),
            sweep: Nanos(0),
            ..DiskModel::SLOWEST
        };
        assert!(
            TurnLimits::new((&guess, Ratio::of_thousandths(500)), WINDOW, MEMORY, CYCLE, 1000)
                .is_some()
        );
    }
}
