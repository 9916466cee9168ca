//! When a volume gives something up because its disk does not keep its model.
//!
//! Promise: a step down for a cycle that the disk has missed while it was looked after, a step back for
//! each time in which it missed none; streams that are promised are ended last of all, and only when
//! nothing else has helped for a while. It looks at counters; what a step means is done by the broker,
//! and by the disk's cycle. The order is printed in `docs/guide/degradation.md`.

use std::path::PathBuf;
use std::sync::Arc;

use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_engine::counters::DiskCounters;
use tactus_engine::message::VolumeId;

use super::VolumeFacts;
use super::watchdog::LOOK;
use crate::broker::{Broker, Degradations, Step};

/// Who looks at the disks.
pub(super) struct Watch {
    disks: Vec<Disk>,
    degradations: Degradations,
}

struct Disk {
    counters: Arc<DiskCounters>,
    path: PathBuf,
    ladder: Ladder,
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
            ladder: Ladder::new(facts.cycle(), now),
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
            let before = disk.ladder.step;
            let ends = disk.ladder.look(now, Seen::of(&disk.counters));
            let step = disk.ladder.step;
            self.degradations.set(volume, step);
            let name = disk.path.display();
            if step > before {
                tracing::error!(volume = %name, step = step.number(), "the disk is too slow: {}", step.name());
            } else if step < before {
                tracing::warn!(volume = %name, step = step.number(), "the disk keeps its cycle: {}", step.name());
            }
            if ends {
                let ended = broker.end_newest(volume);
                tracing::error!(volume = %name, ended, "streams are ended: the disk does not keep its model");
                self.degradations.note_ended(volume, ended);
            }
        }
    }
}

/// What is counted of a disk.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    missed: u64,
    transfers: u64,
    /// Time in which nobody looked after it.
    unattended: u64,
}

impl Seen {
    fn of(counters: &DiskCounters) -> Self {
        Self {
            missed: counters.cycles_missed.value(),
            transfers: counters.transfers.value(),
            unattended: counters.unattended.value(),
        }
    }
}

/// Where one volume stands.
struct Ladder {
    step: Step,
    window: Nanos,
    begun: MonoTime,
    seen: Seen,
    /// Since when newcomers have been refused, and every window has missed a cycle.
    refusing: Option<MonoTime>,
}

/// So long it must not have helped that nobody comes: a disk that only pauses is waited for.
const PATIENCE: Nanos = SECOND.times(2);

impl Ladder {
    fn new(cycle: Nanos, now: MonoTime) -> Self {
        let window = Nanos(cycle.0.max(LOOK.0));
        Self { step: Step::Nothing, window, begun: now, seen: Seen::default(), refusing: None }
    }

    /// Looks at what has been counted; whether streams must be ended now.
    fn look(&mut self, now: MonoTime, seen: Seen) -> bool {
        let length = now.since(self.begun);
        if length < self.window {
            return false;
        }
        let (before, begun) = (self.seen, self.begun);
        (self.seen, self.begun) = (seen, now);
        if seen.missed == before.missed {
            self.step = self.step.up();
            self.refusing = None;
            return false;
        }
        // Late through no fault of the disk: nothing that could be given up would help.
        if seen.unattended - before.unattended > length.0 / UNATTENDED_PART {
            return false;
        }
        let is_last = self.step >= Step::Newcomers;
        if is_last && now.since(*self.refusing.get_or_insert(begun)) < PATIENCE {
            return false;
        }
        // One that answers nothing would not be faster for fewer: who waits for it, waits.
        if is_last && seen.transfers == before.transfers {
            return false;
        }
        self.step = self.step.down();
        self.step == Step::Streams
    }
}

/// A disk that nobody has looked after for a tenth of the time is not judged.
const UNATTENDED_PART: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Nanos = Nanos::from_millis(250);

    struct Fixture {
        ladder: Ladder,
        now: MonoTime,
        seen: Seen,
    }

    impl Fixture {
        fn new() -> Self {
            let now = MonoTime(SECOND.0);
            Self { ladder: Ladder::new(CYCLE, now), now, seen: Seen::default() }
        }

        /// One more window, in which the disk has answered.
        fn window(&mut self, missed: u64, unattended: Nanos) -> (Step, bool) {
            self.now += CYCLE;
            self.seen.missed += missed;
            self.seen.transfers += 10;
            self.seen.unattended += unattended.0;
            let ends = self.ladder.look(self.now, self.seen);
            (self.ladder.step, ends)
        }
    }

    #[test]
    fn p11_everything_else_is_given_up_before_a_stream_in_one_order_and_comes_back() {
        let mut fixture = Fixture::new();
        let mut steps = vec![fixture.ladder.step];
        let mut windows = 0;
        while fixture.ladder.step < Step::Streams {
            let (step, ends) = fixture.window(1, Nanos(0));
            assert_eq!(ends, step == Step::Streams, "no stream is ended before");
            if *steps.last().unwrap() != step {
                steps.push(step);
            }
            windows += 1;
            assert!(windows < 100);
        }
        assert_eq!(steps, Step::ALL);
        assert!(windows as u64 * CYCLE.0 >= 4 * CYCLE.0 + PATIENCE.0, "{windows}");
        assert_eq!(fixture.window(1, Nanos(0)), (Step::Streams, true), "and the next ones");
        for step in Step::ALL.into_iter().rev().skip(1) {
            assert_eq!(fixture.window(0, Nanos(0)), (step, false));
        }
        assert_eq!(fixture.window(0, Nanos(0)), (Step::Nothing, false));
    }

    #[test]
    fn p11_cycles_that_are_missed_for_want_of_a_processor_cost_nobody_anything() {
        let mut fixture = Fixture::new();
        for _ in 0..100 {
            assert_eq!(fixture.window(1, Nanos::from_millis(40)), (Step::Nothing, false));
        }
    }

    #[test]
    fn p11_a_disk_that_hangs_ends_no_stream() {
        let mut fixture = Fixture::new();
        for _ in 0..100 {
            let transfers = fixture.seen.transfers;
            fixture.seen.missed += 1;
            fixture.now += CYCLE;
            assert!(!fixture.ladder.look(fixture.now, fixture.seen));
            assert_eq!(fixture.seen.transfers, transfers);
        }
        assert_eq!(fixture.ladder.step, Step::Newcomers);
    }

    #[test]
    fn p11_a_pause_of_two_seconds_ends_no_stream() {
        let mut fixture = Fixture::new();
        for _ in 0..8 {
            assert!(!fixture.window(1, Nanos(0)).1);
        }
        while fixture.window(0, Nanos(0)).0 > Step::Nothing {}
    }
}
