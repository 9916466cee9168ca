//! The disk model: the time of a cycle's transfers, as a small formula.
//!
//! A sweep over `n` places costs `n * visit + sqrt(n) * sweep`, plus the time of all bytes at the
//! sequential rate. The linear part is the cost of each visit, however near the next place is (the
//! command, settling, half a rotation). The root part is the way of the arm: the seek curve grows
//! with the root of the distance, and `n` places in order are `1/n` of the span apart, so their
//! seeks add up to `n * sqrt(1/n)`. It also contains three standard deviations of the rotation,
//! which grow with the root of `n`. On flash it is zero. The model makes no statement about single
//! requests: it bounds whole cycles.

use crate::units::{BitRate, Bytes, MIB, Nanos};

/// A disk's measured performance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskModel {
    /// The minimum cost of each visit to a new place.
    pub visit: Nanos,
    /// The part of a sweep that grows with the root of the number of visits.
    pub sweep: Nanos,
    /// Time to read 1 contiguous MiB.
    pub read_mib: Nanos,
    /// Time to write 1 contiguous MiB.
    pub write_mib: Nanos,
    /// Requests in flight beyond which the disk does not get faster.
    pub depth: u32,
    /// Upper bound of the duration of a flush, whatever the number of files: the file system's
    /// journal and the device's own cache.
    pub flush: Nanos,
}

/// Bytes that a sweep moves, by direction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TransferredBytes {
    /// From the device.
    pub read: Bytes,
    /// To the device.
    pub written: Bytes,
}

impl TransferredBytes {
    /// Nothing.
    pub const NOTHING: Self = Self { read: Bytes(0), written: Bytes(0) };

    /// Both together.
    pub const fn plus(self, other: Self) -> Self {
        let read = Bytes(self.read.0 + other.read.0);
        Self { read, written: Bytes(self.written.0 + other.written.0) }
    }

    /// The rest without `other`, which is part of it.
    pub const fn minus(self, other: Self) -> Self {
        let read = Bytes(self.read.0 - other.read.0);
        Self { read, written: Bytes(self.written.0 - other.written.0) }
    }
}

/// Visits of one cycle, in thousandths: a slow stream visits the disk only in some cycles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct MilliVisits(pub u64);

/// A time relative to the time by the model of the start, in millionths: two million are half the
/// speed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ratio(pub u32);

impl Ratio {
    /// The disk is as the model of the start says.
    pub const ONE: Self = Self::of_thousandths(1000);
    /// The lowest ratio. A guess can be a hundred times too slow, if the disk stood still during
    /// the look at the start.
    pub const MIN: Self = Self::of_thousandths(1);
    /// The highest ratio: slower disks count as this slow.
    pub const MAX: Self = Self::of_thousandths(16_000);

    /// The ratio of this many thousandths, at most four million.
    pub const fn of_thousandths(thousandths: u32) -> Self {
        Self(thousandths * 1000)
    }

    /// In thousandths. Rounds up.
    pub const fn thousandths(self) -> u32 {
        self.0.div_ceil(1000)
    }

    /// `taken` compared with `expected`, which is not zero. Rounds up.
    pub fn of(taken: Nanos, expected: Nanos) -> Self {
        let one = u128::from(Self::ONE.0);
        let ratio = (u128::from(taken.0) * one).div_ceil(u128::from(expected.0.max(1)));
        Self(u32::try_from(ratio).unwrap_or(u32::MAX).clamp(Self::MIN.0, Self::MAX.0))
    }

    /// This part of a time. Rounds up.
    pub fn times(self, time: Nanos) -> Nanos {
        Nanos((u128::from(time.0) * u128::from(self.0)).div_ceil(u128::from(Self::ONE.0)) as u64)
    }
}

impl DiskModel {
    /// An unknown spinning disk: half of what any disk of the last fifteen years does.
    pub const SLOWEST: Self = Self {
        visit: Nanos::from_micros(6_000),
        sweep: Nanos::from_millis(24),
        read_mib: Nanos::from_micros(13_000),
        write_mib: Nanos::from_micros(13_000),
        depth: 2,
        flush: Self::ARM_FLUSH,
    };

    /// The flush of an unknown spinning disk: two seeks to the journal, and a rotation.
    pub const ARM_FLUSH: Nanos = Nanos::from_millis(30);

    /// The flush of an unknown flash disk.
    pub const FLASH_FLUSH: Nanos = Nanos::from_millis(5);

    /// Time for `visits` and `bytes` of reading within one sweep. Rounds up.
    pub fn reading(&self, visits: MilliVisits, bytes: Bytes) -> Nanos {
        self.moving(visits, TransferredBytes { read: bytes, written: Bytes(0) })
    }

    /// Time for `visits` and for the bytes read and written within one sweep. Rounds up.
    pub fn moving(&self, visits: MilliVisits, moved: TransferredBytes) -> Nanos {
        let linear = (self.visit.0 as u128 * visits.0 as u128).div_ceil(1000);
        // sqrt(v / 1000) = sqrt(1000 v) / 1000; one more makes the integer root an upper bound.
        let root = if visits.0 == 0 { 0 } else { (visits.0 * 1000).isqrt() + 1 };
        let arm = (self.sweep.0 as u128 * root as u128).div_ceil(1000);
        let reading = self.read_mib.0 as u128 * moved.read.0 as u128;
        let writing = self.write_mib.0 as u128 * moved.written.0 as u128;
        let moving = (reading + writing).div_ceil(MIB as u128);
        Nanos((linear + arm + moving) as u64)
    }

    /// The time that a cycle of this length reserves for a flush. A flush longer than half the
    /// cycle begins in its first half, and may end after the cycle.
    pub fn planned_flush(&self, cycle: Nanos) -> Nanos {
        Nanos(self.flush.0.min(cycle.0 / 2))
    }

    /// The model of a disk that takes this ratio of the time for reads. The times of writes and
    /// flushes stay.
    #[must_use]
    pub fn slower_by(self, ratio: Ratio) -> Self {
        let read_mib = ratio.times(self.read_mib);
        Self { visit: ratio.times(self.visit), sweep: ratio.times(self.sweep), read_mib, ..self }
    }

    /// The model with a queue that keeps the disk busy when completions are seen every `interval`,
    /// for reads of this size. Without the additional depth, the disk would do one queue in each
    /// interval: nearly half as much when a queue takes slightly longer than one. The few reads of
    /// an arm take longer than any interval.
    #[must_use]
    pub fn polled_every(self, interval: Nanos, read: Bytes) -> Self {
        if self.has_arm() {
            return self;
        }
        let each = self.reading(MilliVisits(1000), read);
        let ended = interval.0.div_ceil(each.0.max(1)).min(u64::from(POLLED_DEPTH_MAX)) as u32;
        Self { depth: (self.depth + ended).min(self.depth.max(POLLED_DEPTH_MAX)), ..self }
    }

    /// Whether the disk has an arm, so that the order of requests matters.
    pub const fn has_arm(&self) -> bool {
        self.sweep.0 > 0
    }

    /// Limit of transfers in flight with this number of best-effort pieces: on a spinning disk,
    /// pieces of one run may exceed the depth, as they do not move the arm.
    pub fn in_flight_max(&self, best_effort_depth: u32) -> u32 {
        if self.has_arm() { self.depth.max(best_effort_depth) } else { self.depth }
    }

    /// The rate of one long read. Rounds down.
    pub fn sequential(&self) -> BitRate {
        BitRate((MIB as u128 * 8 * 1_000_000_000 / self.read_mib.0.max(1) as u128) as u64)
    }

    /// Bytes of `span` of uninterrupted reading. Rounds down.
    pub fn bytes_in(&self, span: Nanos) -> Bytes {
        self.sequential().bytes_in(span)
    }
}

/// The deepest queue that is chosen because completions are seen only now and then.
const POLLED_DEPTH_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    /// A 7200 rpm disk: 150 MB/s, seek 1.5 ms to 16 ms, rotation 8.3 ms.
    const SPINNING: DiskModel = DiskModel {
        visit: Nanos::from_micros(5_650),
        sweep: Nanos::from_micros(21_700),
        read_mib: Nanos::from_micros(6_991),
        write_mib: Nanos::from_micros(9_000),
        depth: 2,
        flush: DiskModel::ARM_FLUSH,
    };

    #[test]
    fn a_sweep_costs_less_per_place_the_more_places_it_has() {
        let mut before = u64::MAX;
        for places in [1, 4, 16, 64, 256] {
            let each = SPINNING.reading(MilliVisits(places * 1000), Bytes(0)).0 / places;
            assert!(each < before);
            before = each;
        }
    }

    #[test]
    fn a_hundred_streams_of_television_fit_four_seconds_of_a_spinning_disk() {
        let each = 4 * 1_100_000;
        let time = |n: u64| SPINNING.reading(MilliVisits(n * 1000), Bytes(n * each));
        assert!(time(100) < SECOND.times(4));
        assert!(time(112) > SECOND.times(4));
    }

    #[test]
    fn r11_a_queue_holds_its_depth_until_the_next_poll() {
        let read = Bytes(MIB / 4);
        for (read_mib, depth) in [(800, 4), (1_000, 4), (2_000, 8), (200, 16)] {
            let read_mib = Nanos::from_micros(read_mib);
            let flash = DiskModel { sweep: Nanos(0), visit: Nanos(0), read_mib, depth, ..SPINNING };
            let interval = Nanos::from_millis(1);
            let ended = (interval.0 * 4).div_ceil(read_mib.0) as u32;
            assert_eq!(flash.polled_every(interval, read).depth, depth + ended);
        }
        assert_eq!(SPINNING.polled_every(Nanos::from_millis(1), read), SPINNING);
    }

    #[test]
    fn what_is_written_costs_its_own_rate() {
        let moved = |read, written| TransferredBytes {
            read: Bytes(read * MIB),
            written: Bytes(written * MIB),
        };
        let time = |moved| SPINNING.moving(MilliVisits(0), moved);
        assert_eq!(time(moved(2, 0)), SPINNING.read_mib.times(2));
        assert_eq!(time(moved(2, 3)), SPINNING.read_mib.times(2) + SPINNING.write_mib.times(3));
    }

    #[test]
    fn the_bound_rounds_up() {
        let flash = DiskModel { visit: Nanos(3), sweep: Nanos(0), ..SPINNING };
        assert_eq!(flash.reading(MilliVisits(500), Bytes(0)), Nanos(2));
        assert_eq!(flash.reading(MilliVisits(0), Bytes(1)), Nanos(7));
        assert!(!flash.has_arm() && SPINNING.has_arm());
    }
}
