//! Timing of disks: the laws of three kinds of disk, and the model that each obeys.
//!
//! The spinning one is the emulated disk of the benchmarks, law for law: one arm, requests in order
//! of arrival, `seek = 1.5 ms + 14.5 ms * sqrt(distance)`, rotation uniform from 0 to 8.3 ms, 150
//! MB/s. A request that continues the previous one has neither seek nor rotation.

use tactus_core::disk_model::DiskModel;
use tactus_core::units::{BitRate, Bytes, MIB, MonoTime, Nanos};

use super::Service;
use crate::dice::Dice;

/// A kind of disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DiskKind {
    Spinning,
    Sata,
    Nvme,
}

/// Bytes from the first place of a device to the last.
pub(crate) const SPAN: u64 = 4_000_000_000_000;

const SEEK_MIN: u64 = 1_500_000;
const SEEK_ARM: u64 = 14_500_000;
const ROTATION: u64 = 8_300_000;

impl DiskKind {
    /// The rate of a long read.
    pub(crate) fn rate(self) -> BitRate {
        BitRate(match self {
            Self::Spinning => 8 * 150_000_000,
            Self::Sata => 8 * 500_000_000,
            Self::Nvme => 8 * 3_000_000_000,
        })
    }

    /// The model of the disk: its own law, and a margin for the engine's polling.
    ///
    /// With an arm: each visit costs the shortest seek and half a rotation. The way of the arm over
    /// a sweep of n places is at most `14.5 * (1 + sqrt(n - 1))` ms, where the first seek is the
    /// way back; this is at most `14.5 * sqrt(2 n)`. Three deviations of the rotation are `7.2 *
    /// sqrt(n)`.
    ///
    /// Without: the engine polls for completions once a millisecond, so the depth must cover three
    /// of them.
    pub(crate) fn model(self, block: u32) -> DiskModel {
        let mib = self.rate().time_for(Bytes(MIB));
        let in_three_ms = self.rate().bytes_in(Nanos::from_millis(3));
        let depth = in_three_ms.0.div_ceil(u64::from(block)).clamp(8, 64) as u32;
        match self {
            Self::Spinning => DiskModel {
                visit: Nanos(SEEK_MIN + ROTATION / 2),
                sweep: Nanos::from_micros(27_800),
                read_mib: mib,
                write_mib: mib,
                depth: 2,
                flush: DiskModel::ARM_FLUSH,
            },
            Self::Sata | Self::Nvme => DiskModel {
                visit: Nanos::from_micros(5),
                sweep: Nanos(0),
                read_mib: mib,
                write_mib: mib,
                depth,
                flush: DiskModel::FLASH_FLUSH,
            },
        }
    }
}

/// The moving parts.
pub(super) struct Mechanics {
    kind: DiskKind,
    /// The end of the device's present work.
    busy: MonoTime,
    /// Where the last transfer ended.
    head: u64,
    /// When the last group of flushes was requested, and when it ends.
    flush_asked: Option<MonoTime>,
    flush_done: MonoTime,
    /// When the token bucket of the host will be full again.
    used: MonoTime,
}

impl Mechanics {
    pub(super) fn new(kind: DiskKind) -> Self {
        let zero = MonoTime(0);
        Self { kind, busy: zero, head: 0, flush_asked: None, flush_done: zero, used: zero }
    }

    pub(super) fn busy_until(&self) -> MonoTime {
        self.busy
    }

    /// Serves a transfer of `len` bytes at `place` after everything before it.
    pub(super) fn serve(
        &mut self,
        now: MonoTime,
        place: u64,
        len: u64,
        dice: &mut Dice,
    ) -> Service {
        let begun = self.busy.max(now);
        let moving = Nanos(len * 8_000_000_000 / self.kind.rate().0);
        let (arm, latency) = match self.kind {
            DiskKind::Spinning if place == self.head => (Nanos(0), Nanos(0)),
            DiskKind::Spinning => {
                // sqrt(distance / span) in millionths, so that no float decides anything.
                let share = place.abs_diff(self.head) as u128 * 1_000_000_000_000 / SPAN as u128;
                let seek = SEEK_MIN + SEEK_ARM * (share.isqrt() as u64) / 1_000_000;
                (Nanos(seek + dice.below(ROTATION)), Nanos(0))
            }
            DiskKind::Sata => (Nanos(0), Nanos::from_micros(60 + dice.below(60))),
            DiskKind::Nvme => (Nanos(0), Nanos::from_micros(40 + dice.below(60))),
        };
        self.head = place + len;
        self.busy = begun + arm + moving;
        Service { begun, done: self.busy + latency }
    }

    /// Serves a flush after everything before it. A flush that is requested at the same time as the
    /// last one joins it.
    pub(super) fn flush(&mut self, now: MonoTime, most: Nanos, dice: &mut Dice) -> MonoTime {
        if self.flush_asked != Some(now) {
            self.flush_asked = Some(now);
            let took = Nanos(dice.between(most.0 / 10, most.0));
            self.busy = self.busy.max(now) + took;
            self.flush_done = self.busy;
            // The arm has been to the journal.
            self.head = 0;
        }
        self.flush_done
    }

    /// Makes the transfer just served take `factor` times as long.
    pub(super) fn stretch(&mut self, service: Service, factor: u64) -> Service {
        let more = service.took().times(factor - 1);
        self.busy += more;
        Service { done: service.done + more, ..service }
    }

    /// Delays the end of a transfer until a token bucket has given its `len` bytes. The bucket
    /// fills at `rate` and holds the bytes of the time `burst`.
    pub(super) fn limit(
        &mut self,
        now: MonoTime,
        service: Service,
        len: u64,
        (rate, burst): (BitRate, Nanos),
    ) -> Service {
        self.used = self.used.max(now) + rate.time_for(Bytes(len));
        Service { done: service.done.max(self.used.before(burst)), ..service }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::disk_model::MilliVisits;

    /// Time of one sweep over `places`, in order.
    fn sweep(mechanics: &mut Mechanics, places: &[u64], len: u64, dice: &mut Dice) -> Nanos {
        let begin = mechanics.busy;
        for &place in places {
            mechanics.serve(begin, place, len, dice);
        }
        mechanics.busy.since(begin)
    }

    #[test]
    fn sweeps_of_every_size_keep_the_model() {
        let mut dice = Dice::new(4);
        for kind in [DiskKind::Spinning, DiskKind::Sata, DiskKind::Nvme] {
            let len = 1 << 20;
            let model = kind.model(len as u32);
            let mut mechanics = Mechanics::new(kind);
            let mut over = 0;
            for round in 0..2000 {
                let count = 1 + round % 100;
                let mut places: Vec<u64> = (0..count).map(|_| dice.below(SPAN)).collect();
                places.sort_unstable();
                let took = sweep(&mut mechanics, &places, len, &mut dice);
                over +=
                    u32::from(took > model.reading(MilliVisits(count * 1000), Bytes(count * len)));
            }
            // Three deviations of the rotation: some sweeps of a thousand may take longer.
            assert!(over <= 10, "{kind:?}: {over}");
        }
    }

    #[test]
    fn random_reads_of_a_spinning_disk_are_as_slow_as_the_benchmarks_say() {
        let mut dice = Dice::new(9);
        let mut mechanics = Mechanics::new(DiskKind::Spinning);
        let places: Vec<u64> = (0..2000).map(|_| dice.below(SPAN)).collect();
        let took = sweep(&mut mechanics, &places, 256 * 1024, &mut dice);
        let per_second = 2000 * 1_000_000_000 / took.0;
        assert!((63..=69).contains(&per_second), "{per_second}");
    }
}
