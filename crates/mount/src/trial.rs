//! Whether a means that has a price makes a program faster.
//!
//! Promise: a program has the means only where its periods were shorter by a sixteenth with it than
//! without it, and for the few periods of a trial. Trials are repeated, because a machine that was
//! busy may be idle by now.

use std::time::{Duration, Instant};

/// The trials of one means with one program.
#[derive(Default)]
pub(crate) struct Trial {
    /// The end of the last period.
    last: Option<Instant>,
    /// Those of the present phase, until it is over.
    lengths: Vec<Duration>,
    phase: Phase,
}

/// Where it is.
#[derive(Clone, Copy, Default, Debug)]
enum Phase {
    /// Periods without the means.
    #[default]
    Without,
    /// Periods with it; without it they had this median.
    With(Duration),
    /// The result, for so many more periods.
    Over { helps: bool, left: u32 },
}

impl Trial {
    /// A period ends at `now`, and the next one begins. Returns whether to use the means in it.
    pub(crate) fn end_period(&mut self, now: Instant) -> bool {
        let last = self.last.replace(now);
        let length = last.map(|last| now.saturating_duration_since(last));
        // The program has paused.
        if let Some(length) = length.filter(|length| *length <= LONGEST) {
            self.count(length);
        }
        match self.phase {
            Phase::Without => false,
            Phase::With(_) => true,
            Phase::Over { helps, .. } => helps,
        }
    }

    fn count(&mut self, length: Duration) {
        if let Phase::Over { left, .. } = &mut self.phase {
            *left -= 1;
            if *left == 0 {
                self.phase = Phase::Without;
            }
            return;
        }
        self.lengths.push(length);
        if self.lengths.len() < PERIODS {
            return;
        }
        self.lengths.sort_unstable();
        let median = self.lengths[PERIODS / 2];
        self.lengths.clear();
        self.phase = match self.phase {
            Phase::With(without) => {
                Phase::Over { helps: median + median / 15 < without, left: BETWEEN }
            }
            Phase::Without | Phase::Over { .. } => Phase::With(median),
        };
    }
}

/// Periods with the means, and as many without it.
const PERIODS: usize = 16;

/// Periods between two trials: a trial without the means costs little.
const BETWEEN: u32 = 1024;

/// A longer time between two ends is a pause of the program.
const LONGEST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `periods` pass, each as long as `length` says of its number and of whether it has the
    /// means. Returns how many had it.
    fn pass(
        trial: &mut Trial,
        now: &mut Instant,
        periods: u32,
        length: impl Fn(u32, bool) -> u64,
    ) -> u32 {
        let mut uses = false;
        let mut used = 0;
        for nth in 0..periods {
            *now += Duration::from_micros(length(nth, uses));
            uses = trial.end_period(*now);
            used += u32::from(uses);
        }
        used
    }

    #[test]
    fn what_makes_a_program_faster_is_used_nearly_always() {
        let (mut trial, mut now) = (Trial::default(), Instant::now());
        // With single long periods, as a disk has them.
        let length = |nth: u32, uses: bool| match nth % 9 {
            0 => 5_000,
            _ => 250 - 60 * u64::from(uses),
        };
        let used = pass(&mut trial, &mut now, 4_000, length);
        assert!((3_850..=3_950).contains(&used), "{used} of 4,000");
    }

    #[test]
    fn what_does_not_is_used_in_trials_only() {
        for with in [245, 250, 300] {
            let (mut trial, mut now) = (Trial::default(), Instant::now());
            let length = |_: u32, uses: bool| if uses { with } else { 250 };
            let used = pass(&mut trial, &mut now, 4_000, length);
            assert!((1..=4 * PERIODS as u32).contains(&used), "{used} of 4,000 with {with} us");
        }
    }

    #[test]
    fn a_machine_that_has_changed_is_found_out() {
        let (mut trial, mut now) = (Trial::default(), Instant::now());
        pass(&mut trial, &mut now, 1_000, |_, _| 250);
        let length = |_: u32, uses: bool| if uses { 150 } else { 250 };
        pass(&mut trial, &mut now, 200, length);
        assert_eq!(pass(&mut trial, &mut now, 800, length), 800);
    }

    #[test]
    fn pauses_of_the_program_are_no_periods() {
        let (mut trial, mut now) = (Trial::default(), Instant::now());
        let used =
            pass(&mut trial, &mut now, 1_000, |nth, _| if nth % 2 == 0 { 250 } else { 20_000 });
        assert!(used <= 200, "{used}");
        let used = pass(&mut Trial::default(), &mut now, 1_000, |_, _| 20_000);
        assert_eq!(used, 0, "nothing can be learned");
    }
}
