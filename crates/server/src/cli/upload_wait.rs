//! Whether uploads get as much of a disk as they need.
//!
//! Promise: one answer for each window, from the counters of the disk alone. Uploads have too
//! little if in a quarter of the cycles one of them has waited for a whole cycle.

use std::time::Duration;

use tactus_core::units::Nanos;
use tactus_engine::counters::DiskCounters;
use tactus_notation::units::Percent;

/// Follows the uploads of one volume.
pub(super) struct UploadWait {
    cycle: Nanos,
    floor: Percent,
    /// The beginning of the window, and the use of the disk until then.
    begun: Duration,
    before: DiskUse,
}

/// The use of a disk by uploads since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct DiskUse {
    /// Cycles through which a write or a flush has waited.
    waited: u64,
    /// Time of the disk.
    time: Nanos,
}

/// Long enough that a pause of the disk, or a burst of uploads, is no news.
const WINDOW: Duration = Duration::from_secs(30);

impl DiskUse {
    pub(super) fn of(counters: &DiskCounters) -> Self {
        Self {
            waited: counters.upload_cycles_waited.value(),
            time: Nanos(counters.upload_time.value()),
        }
    }
}

impl UploadWait {
    /// Begins at the time zero of a clock. `floor` is the volume's `upload_floor`.
    pub(super) fn new(cycle: Nanos, floor: Percent) -> Self {
        Self { cycle, floor, begun: Duration::ZERO, before: DiskUse::default() }
    }

    /// At the end of a window: the problem, if there is one.
    pub(super) fn look(&mut self, now: Duration, so_far: DiskUse) -> Option<Option<String>> {
        let length = now.saturating_sub(self.begun);
        if length < WINDOW {
            return None;
        }
        let before = std::mem::replace(&mut self.before, so_far);
        self.begun = now;
        let cycles = length.as_nanos() / u128::from(self.cycle.0.max(1));
        let waited = so_far.waited - before.waited;
        let used = u128::from(so_far.time.0 - before.time.0) * 100 / length.as_nanos();
        let is_short = waited > 0 && u128::from(waited) * 4 >= cycles;
        Some(is_short.then(|| {
            format!(
                "uploads wait for the disk: through {waited} of the last {cycles} cycles; streams \
                 leave them {used} % of its time, of which upload_floor keeps {}; a higher \
                 upload_floor keeps more for uploads, and fewer streams are admitted",
                self.floor
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_have_too_little_if_they_wait_for_whole_cycles_and_a_pause_is_no_news() {
        let mut wait = UploadWait::new(Nanos::from_millis(250), Percent::whole(5));
        let counters = DiskCounters::default();
        let mut at = |seconds: u64, waited: u64, millis: u64| {
            counters.upload_cycles_waited.add(waited);
            counters.upload_time.add(millis * 1_000_000);
            wait.look(Duration::from_secs(seconds), DiskUse::of(&counters))
        };
        assert_eq!(at(29, 29, 1_500), None, "the window has not ended");
        assert_eq!(at(30, 0, 0), Some(None));
        let message = at(60, 30, 2_700).flatten().expect("a quarter of the cycles");
        assert!(message.contains("30 of the last 120 cycles"), "{message}");
        assert!(message.contains("9 %") && message.contains("5 %"), "{message}");
        assert_eq!(at(90, 29, 3_000), Some(None));
    }
}
