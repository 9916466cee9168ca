//! How regularly a program flushes what it writes.
//!
//! Promise: a flush is expected only after the same number of writes has been followed by a flush
//! several times in a row. A program that changes its habit causes one flush too many, no more.

/// The writes and flushes of one file, as far as the next flush depends on them.
#[derive(Default, Debug)]
pub(crate) struct FlushHabit {
    /// Writes since the last flush.
    writes: u32,
    /// Writes between the last two flushes.
    period: u32,
    /// How many flushes have come after the same number of writes, one after the other.
    repeats: u32,
}

impl FlushHabit {
    /// Whether a flush is expected behind the next write.
    pub(crate) fn expects_flush(&self) -> bool {
        self.repeats >= REPEATS && self.writes.saturating_add(1) == self.period
    }

    /// Notes a write. True if a flush is expected behind it.
    pub(crate) fn write(&mut self) -> bool {
        let is_expected = self.expects_flush();
        self.writes = self.writes.saturating_add(1);
        is_expected
    }

    /// Notes a request for a flush.
    pub(crate) fn flush(&mut self) {
        let is_regular = self.writes > 0 && self.writes == self.period;
        self.repeats = if is_regular { self.repeats.saturating_add(1) } else { 0 };
        (self.period, self.writes) = (self.writes, 0);
    }
}

/// Regular flushes before the next one is expected.
const REPEATS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is expected after each of `writes` writes, which a flush follows.
    fn round(habit: &mut FlushHabit, writes: u32) -> Vec<bool> {
        let expected = (0..writes).map(|_| habit.write()).collect();
        habit.flush();
        expected
    }

    #[test]
    fn a_flush_is_expected_after_several_regular_ones() {
        for period in [1, 2, 7] {
            let mut habit = FlushHabit::default();
            for _ in 0..=REPEATS {
                assert!(!round(&mut habit, period).contains(&true), "not yet");
            }
            for _ in 0..3 {
                let expected = round(&mut habit, period);
                assert_eq!(expected.iter().filter(|expected| **expected).count(), 1);
                assert_eq!(expected.last(), Some(&true), "after the last write");
            }
        }
    }

    #[test]
    fn a_change_of_the_habit_is_one_flush_too_many() {
        let mut habit = FlushHabit::default();
        for _ in 0..10 {
            round(&mut habit, 2);
        }
        let expected = round(&mut habit, 5);
        assert_eq!(expected, [false, true, false, false, false]);
        assert!(!round(&mut habit, 5).contains(&true));
        for writes in 0..10 {
            assert!(!round(&mut habit, writes).contains(&true), "never regular");
        }
        for _ in 0..10 {
            assert!(round(&mut habit, 0).is_empty(), "nothing to flush");
        }
        assert!(!habit.write());
        let mut habit = FlushHabit::default();
        for _ in 0..10 {
            round(&mut habit, 1);
        }
        let expected = (0..100).filter(|_| habit.write()).count();
        assert_eq!(expected, 1, "no flush comes any more");
    }
}
