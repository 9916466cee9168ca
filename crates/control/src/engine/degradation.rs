//! Degradation levels of a volume whose disk does not keep its model.
//!
//! Promise: one level down for each cycle that the disk has missed while it was attended, and one
//! level up for each window without a missed cycle. Admitted streams are ended last, and only when
//! no other measure has helped for a while. This module reads counters; the broker and the disk's
//! cycle implement the levels. The order of the levels is in `docs/guide/degradation.md`.

use std::path::PathBuf;
use std::sync::Arc;

use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_engine::counters::DiskCounters;
use tactus_engine::message::VolumeId;

use super::VolumeFacts;
use super::watchdog::LOOK;
use crate::broker::{Broker, DegradationLevel, Degradations};

/// Watches the disks.
pub(super) struct Watch {
    disks: Vec<Disk>,
    degradations: Degradations,
}

struct Disk {
    counters: Arc<DiskCounters>,
    path: PathBuf,
    levels: Levels,
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
            levels: Levels::new(facts.cycle(), now),
        };
        let disks: Vec<_> = counters.iter().zip(volumes).map(disk).collect();
        let degradations = Degradations::new(disks.len());
        Self { disks, degradations }
    }

    pub(super) fn degradations(&self) -> Degradations {
        self.degradations.clone()
    }

    pub(super) fn look(&mut self, now: MonoTime, broker: &Broker) {
        for (disk, number) in self.disks.iter_mut().zip(0..) {
            let volume = VolumeId(number);
            let before = disk.levels.level;
            let ends = disk.levels.look(now, CounterSample::of(&disk.counters));
            let level = disk.levels.level;
            self.degradations.set(volume, level);
            let name = disk.path.display();
            if level > before {
                tracing::error!(
                    volume = %name, degradation = level.number(),
                    "the disk is too slow: {}", level.name()
                );
            } else if level < before {
                tracing::warn!(
                    volume = %name, degradation = level.number(),
                    "the disk keeps its cycle: {}", level.name()
                );
            }
            if ends {
                let ended = broker.end_newest(volume);
                tracing::error!(
                    volume = %name, ended,
                    "streams are ended: the disk does not keep its model"
                );
                self.degradations.note_ended(volume, ended);
            }
        }
    }
}

/// The counters of a disk.
#[derive(Clone, Copy, Default, Debug)]
struct CounterSample {
    missed: u64,
    transfers: u64,
    /// Time in which the disk was not attended.
    unattended: u64,
}

impl CounterSample {
    fn of(counters: &DiskCounters) -> Self {
        Self {
            missed: counters.cycles_missed.value(),
            transfers: counters.transfers.value(),
            unattended: counters.unattended.value(),
        }
    }
}

/// The state of one volume.
struct Levels {
    level: DegradationLevel,
    window: Nanos,
    begun: MonoTime,
    seen: CounterSample,
    /// Since when new streams have been refused, and every window has missed a cycle.
    refusing: Option<MonoTime>,
}

/// Refusing new streams must have failed to help for this long: a disk that only pauses recovers.
const PATIENCE: Nanos = SECOND.times(2);

impl Levels {
    fn new(cycle: Nanos, now: MonoTime) -> Self {
        let window = Nanos(cycle.0.max(LOOK.0));
        Self {
            level: DegradationLevel::Nothing,
            window,
            begun: now,
            seen: CounterSample::default(),
            refusing: None,
        }
    }

    /// Evaluates the counters; returns whether streams must be ended now.
    fn look(&mut self, now: MonoTime, seen: CounterSample) -> bool {
        let length = now.since(self.begun);
        if length < self.window {
            return false;
        }
        let (before, begun) = (self.seen, self.begun);
        (self.seen, self.begun) = (seen, now);
        if seen.missed == before.missed {
            self.level = self.level.up();
            self.refusing = None;
            return false;
        }
        // The disk is late without a fault of its own: no degradation would help.
        if seen.unattended - before.unattended > length.0 / UNATTENDED_PART {
            return false;
        }
        let is_last = self.level >= DegradationLevel::Newcomers;
        if is_last && now.since(*self.refusing.get_or_insert(begun)) < PATIENCE {
            return false;
        }
        // A disk without completions would not become faster with fewer streams: they wait.
        if is_last && seen.transfers == before.transfers {
            return false;
        }
        self.level = self.level.down();
        self.level == DegradationLevel::Streams
    }
}

/// A disk that was not attended for a tenth of the window is not judged.
const UNATTENDED_PART: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Nanos = Nanos::from_millis(250);

    struct Fixture {
        levels: Levels,
        now: MonoTime,
        seen: CounterSample,
    }

    impl Fixture {
        fn new() -> Self {
            let now = MonoTime(SECOND.0);
            Self { levels: Levels::new(CYCLE, now), now, seen: CounterSample::default() }
        }

        /// One more window with completed transfers.
        fn window(&mut self, missed: u64, unattended: Nanos) -> (DegradationLevel, bool) {
            self.now += CYCLE;
            self.seen.missed += missed;
            self.seen.transfers += 10;
            self.seen.unattended += unattended.0;
            let ends = self.levels.look(self.now, self.seen);
            (self.levels.level, ends)
        }
    }

    #[test]
    fn p11_everything_else_is_given_up_before_a_stream_in_one_order_and_comes_back() {
        let mut fixture = Fixture::new();
        let mut levels = vec![fixture.levels.level];
        let mut windows = 0;
        while fixture.levels.level < DegradationLevel::Streams {
            let (level, ends) = fixture.window(1, Nanos(0));
            assert_eq!(ends, level == DegradationLevel::Streams, "no stream is ended before");
            if *levels.last().unwrap() != level {
                levels.push(level);
            }
            windows += 1;
            assert!(windows < 100);
        }
        assert_eq!(levels, DegradationLevel::ALL);
        assert!(windows as u64 * CYCLE.0 >= 4 * CYCLE.0 + PATIENCE.0, "{windows}");
        assert_eq!(
            fixture.window(1, Nanos(0)),
            (DegradationLevel::Streams, true),
            "and the next ones"
        );
        for level in DegradationLevel::ALL.into_iter().rev().skip(1) {
            assert_eq!(fixture.window(0, Nanos(0)), (level, false));
        }
        assert_eq!(fixture.window(0, Nanos(0)), (DegradationLevel::Nothing, false));
    }

    #[test]
    fn p11_cycles_that_are_missed_for_want_of_a_processor_cost_nobody_anything() {
        let mut fixture = Fixture::new();
        for _ in 0..100 {
            assert_eq!(
                fixture.window(1, Nanos::from_millis(40)),
                (DegradationLevel::Nothing, false)
            );
        }
    }

    #[test]
    fn p11_a_disk_that_hangs_ends_no_stream() {
        let mut fixture = Fixture::new();
        for _ in 0..100 {
            let transfers = fixture.seen.transfers;
            fixture.seen.missed += 1;
            fixture.now += CYCLE;
            assert!(!fixture.levels.look(fixture.now, fixture.seen));
            assert_eq!(fixture.seen.transfers, transfers);
        }
        assert_eq!(fixture.levels.level, DegradationLevel::Newcomers);
    }

    #[test]
    fn p11_a_pause_of_two_seconds_ends_no_stream() {
        let mut fixture = Fixture::new();
        for _ in 0..8 {
            assert!(!fixture.window(1, Nanos(0)).1);
        }
        while fixture.window(0, Nanos(0)).0 > DegradationLevel::Nothing {}
    }
}
