//! Reads at moments that are promised: how many the ledger sets room aside for, and which it keeps.
//!
//! Promise: of the accepted reads of a reserve, no span of time has more moments than
//! [`TimedReads::most_in`], in whatever order they came, and none is nearer than its blocks take to
//! be read. A refused read takes nothing of the reserve.

use crate::units::{Bytes, MonoTime, Nanos};

/// The reads of a title that a program reserves room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedReads {
    /// Between two moments in the mean; not zero.
    pub interval: Nanos,
    /// How much earlier a moment may be than the mean interval allows.
    pub tolerance: Nanos,
    /// Bytes of a read at most.
    pub len: Bytes,
}

impl TimedReads {
    /// Most moments in any span of time.
    pub const fn most_in(&self, span: Nanos) -> u64 {
        span.0.saturating_add(self.tolerance.0) / self.interval.0 + 1
    }
}

/// Time from the arrival of a read's last block to its moment: for the copy, which other work of
/// the core may delay by a few milliseconds.
pub const COPYING: Nanos = Nanos::from_millis(5);

/// Room for the reads of a title at moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedReserve {
    /// What was reserved.
    pub reads: TimedReads,
    /// How far ahead of its moment each block of a read is wanted, one after the other.
    pub ahead: Nanos,
    /// Bytes of a block.
    pub block: Bytes,
}

impl TimedReserve {
    /// The number of blocks from byte `first` to byte `end`.
    pub const fn blocks(&self, first: Bytes, end: Bytes) -> u64 {
        end.0.div_ceil(self.block.0).saturating_sub(first.0 / self.block.0)
    }

    /// When the first of `blocks` blocks is wanted, of which the last has to be there in time for
    /// `when`.
    pub const fn wanted(&self, when: MonoTime, blocks: u64) -> MonoTime {
        when.before(self.ahead.times(blocks))
    }

    /// When the first of `blocks` blocks, at least one, has to be in memory.
    pub fn due(&self, when: MonoTime, blocks: u64) -> MonoTime {
        self.wanted(when, blocks) + Nanos(self.ahead.0 - COPYING.0)
    }
}

/// A reserve, and what was taken of it.
#[derive(Clone, Copy, Debug)]
pub struct ReserveUse {
    /// The room.
    pub reserve: TimedReserve,
    /// The next moment by the mean interval.
    next: MonoTime,
}

/// A read, as its reserve sees it.
#[derive(Clone, Copy, Debug)]
pub struct TimedRead {
    /// Its moment.
    pub when: MonoTime,
    /// Its bytes.
    pub len: Bytes,
    /// Blocks that have to be read for it; zero if the title is in memory.
    pub blocks: u64,
}

/// Why the moment of a read cannot be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveFault {
    /// It has more bytes than were reserved.
    TooLong,
    /// The moment is nearer than the reads take.
    TooNear,
    /// The moments of its title are closer than was reserved.
    TooMany,
}

impl ReserveUse {
    /// A reserve of which nothing is taken.
    pub const fn new(reserve: TimedReserve) -> Self {
        Self { reserve, next: MonoTime(0) }
    }

    /// Takes a read out of the reserve.
    ///
    /// # Errors
    /// Why its moment cannot be kept; nothing is taken then.
    pub fn take(&mut self, now: MonoTime, read: TimedRead) -> Result<(), ReserveFault> {
        let TimedReads { interval, tolerance, len } = self.reserve.reads;
        if read.len > len {
            return Err(ReserveFault::TooLong);
        }
        let needed = match read.blocks {
            0 => COPYING,
            blocks => self.reserve.ahead.times(blocks),
        };
        if read.when < now + needed {
            return Err(ReserveFault::TooNear);
        }
        if read.when + tolerance < self.next {
            return Err(ReserveFault::TooMany);
        }
        self.next = self.next.max(read.when) + interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const START: MonoTime = MonoTime(1_000_000_000);
    const READS: TimedReads = TimedReads {
        interval: Nanos::from_millis(10),
        tolerance: Nanos::from_millis(25),
        len: Bytes(4096),
    };
    const RESERVE: TimedReserve =
        TimedReserve { reads: READS, ahead: Nanos::from_millis(500), block: Bytes(65_536) };

    fn at(millis: u64, blocks: u64) -> TimedRead {
        TimedRead { when: START + Nanos::from_millis(millis), len: Bytes(4096), blocks }
    }

    #[test]
    fn moments_that_the_disk_cannot_keep_are_refused_and_take_nothing() {
        let mut used = ReserveUse::new(RESERVE);
        let mut take = |read| used.take(START, read);
        for _ in 0..10 {
            assert_eq!(take(at(499, 1)), Err(ReserveFault::TooNear));
            assert_eq!(take(at(999, 2)), Err(ReserveFault::TooNear));
            assert_eq!(take(at(4, 0)), Err(ReserveFault::TooNear), "no time for the copy");
            let long = TimedRead { len: Bytes(4097), ..at(5000, 0) };
            assert_eq!(take(long), Err(ReserveFault::TooLong));
        }
        assert_eq!(take(at(5, 0)), Ok(()), "it is in memory");
        assert_eq!(take(at(500, 1)), Ok(()));
        assert_eq!(take(at(1000, 2)), Ok(()));
        assert_eq!(RESERVE.wanted(at(1000, 2).when, 2), START);
        assert_eq!(RESERVE.due(at(1000, 2).when, 2), START + Nanos::from_millis(495));
    }

    #[test]
    fn in_their_own_interval_all_are_accepted_and_faster_ones_are_refused() {
        let mut used = ReserveUse::new(RESERVE);
        assert!((0..1000).all(|nth| used.take(START, at(5 + nth * 10, 0)).is_ok()));
        // As many as a program can ask for, for a second: those of the mean, and the tolerance.
        let mut used = ReserveUse::new(RESERVE);
        let accepted = (0..10_000_u64).filter(|step| {
            let when = START + Nanos::from_millis(5) + Nanos::from_micros(step * 100);
            used.take(START, TimedRead { when, ..at(0, 0) }).is_ok()
        });
        let most = READS.most_in(Nanos::from_millis(1000)) as usize;
        let accepted = accepted.count();
        assert!((100..=most).contains(&accepted), "{accepted} of {most}");
    }

    /// Moments in any order, near and far: what the ledger counts with is the most that there is.
    #[test]
    fn no_span_has_more_moments_than_were_reserved() {
        let mut random = 7_u64;
        let mut used = ReserveUse::new(RESERVE);
        let mut accepted: Vec<u64> = Vec::new();
        for step in 0..20_000_u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let millis = 5 + step / 10 + random % 60;
            if used.take(START, at(millis, 0)).is_ok() {
                accepted.push(millis);
            }
        }
        assert!(accepted.len() > 100);
        accepted.sort_unstable();
        for span in [0, 5, 30, 250, 1000] {
            let most = READS.most_in(Nanos::from_millis(span)) as usize;
            for (nth, first) in accepted.iter().enumerate() {
                let within = accepted[nth..].iter().take_while(|&&at| at <= first + span).count();
                assert!(within <= most, "{within} in {span} ms, of {most}");
            }
        }
    }

    #[test]
    fn a_read_lies_in_the_blocks_that_it_touches() {
        let reserve = TimedReserve { block: Bytes(100), ..RESERVE };
        let blocks = |first, end| reserve.blocks(Bytes(first), Bytes(end));
        assert_eq!(blocks(0, 0), 0);
        assert_eq!(blocks(99, 100), 1);
        assert_eq!(blocks(99, 101), 2);
        assert_eq!(blocks(100, 200), 1);
    }
}
