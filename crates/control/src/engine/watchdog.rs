//! Detects disks that do not answer, by comparing requests with completions at intervals.
//!
//! Promise: a disk that has requests and completes none is down within two of its cycles and a
//! second, and up again with its first completion. The watchdog only reads counters, and waits for
//! no disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::counters::DiskCounters;

use super::VolumeFacts;

/// Interval of the check.
pub(super) const LOOK: Nanos = Nanos::from_millis(250);

/// Longer than any operation of a healthy disk, except its internal repairs.
const GRACE: Nanos = Nanos::from_millis(500);

/// The state of the disks at the last check. Clones share it; the default is for disks without a
/// watchdog.
#[derive(Clone, Default, Debug)]
pub struct Watchdog(Arc<[AtomicBool]>);

impl Watchdog {
    /// Whether the volume's disk answers; a disk without requests counts as up.
    pub fn is_up(&self, volume: usize) -> bool {
        self.0.get(volume).is_none_or(|up| up.load(Ordering::Relaxed))
    }
}

/// Watches the disks.
pub(super) struct Watch {
    disks: Vec<Disk>,
    watchdog: Watchdog,
}

struct Disk {
    counters: Arc<DiskCounters>,
    path: PathBuf,
    patience: Nanos,
    answered: u64,
    /// When it last had no requests, or had completed one.
    well: MonoTime,
}

impl Watch {
    pub(super) fn new(
        counters: &[Arc<DiskCounters>],
        volumes: &[VolumeFacts],
        now: MonoTime,
    ) -> Self {
        let disk = |(counters, facts): (&Arc<DiskCounters>, &VolumeFacts)| Disk {
            counters: Arc::clone(counters),
            path: facts.path.clone(),
            patience: facts.cycle().times(2) + GRACE,
            answered: 0,
            well: now,
        };
        let disks: Vec<_> = counters.iter().zip(volumes).map(disk).collect();
        let watchdog = Watchdog(disks.iter().map(|_| AtomicBool::new(true)).collect());
        Self { disks, watchdog }
    }

    pub(super) fn watchdog(&self) -> Watchdog {
        self.watchdog.clone()
    }

    pub(super) fn look(&mut self, now: MonoTime) {
        for (disk, up) in self.disks.iter_mut().zip(&*self.watchdog.0) {
            let DiskCounters { in_flight, transfers, writes, syncs, probes, .. } = &*disk.counters;
            let answers = [transfers, writes, syncs, probes];
            let answered = answers.into_iter().map(|counter| counter.value()).sum();
            if in_flight.value() == 0 || answered != disk.answered {
                disk.well = now;
            }
            disk.answered = answered;
            let is_up = now.since(disk.well) <= disk.patience;
            if up.swap(is_up, Ordering::Relaxed) == is_up {
                continue;
            }
            let volume = disk.path.display();
            match is_up {
                true => tracing::warn!(%volume, "the disk answers again"),
                false => tracing::error!(%volume, "the disk does not answer: the volume is down"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Nanos = Nanos::from_millis(250);

    #[test]
    fn a_disk_that_hangs_is_down_within_two_cycles_and_a_second_and_up_with_its_first_answer() {
        let begun = MonoTime(1_000_000_000);
        let counters = Arc::new(DiskCounters::default());
        let disk = Disk {
            counters: Arc::clone(&counters),
            path: PathBuf::new(),
            patience: CYCLE.times(2) + GRACE,
            answered: 0,
            well: begun,
        };
        let watchdog = Watchdog([AtomicBool::new(true)].into());
        let mut watch = Watch { disks: vec![disk], watchdog: watchdog.clone() };
        let mut now = begun;
        let mut look = |now: &mut MonoTime| {
            *now += LOOK;
            watch.look(*now);
            watchdog.is_up(0)
        };
        // The disk completes requests, or has none.
        for done in 0..20 {
            counters.in_flight.set(1);
            counters.writes.add(done % 2);
            assert!(look(&mut now));
        }
        // It is busy with a long probe.
        for _ in 0..20 {
            counters.probes.add(100);
            assert!(look(&mut now));
        }
        counters.in_flight.set(0);
        (0..20).for_each(|_| assert!(look(&mut now)));
        counters.in_flight.set(3);
        let hung = now;
        while look(&mut now) {}
        assert!(
            now.since(hung) <= CYCLE.times(2) + Nanos::from_millis(1000),
            "{:?}",
            now.since(hung)
        );
        assert!(now.since(hung) > CYCLE.times(2), "a cycle or two may pass without an answer");
        (0..20).for_each(|_| assert!(!look(&mut now)));
        counters.transfers.add(1);
        assert!(look(&mut now), "what is still under way does not matter");
    }
}
