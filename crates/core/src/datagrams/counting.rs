//! Continuity counters, table versions and RTP timestamps across the parts of a session, each of
//! which is a stream of its own.
//!
//! Promise: a part continues where the part before it ended, wherever in the title it begins. The
//! caller that starts a part reads the counters that the ended part has left.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ts::{Count, LongTable, PIDS, Pid, Restamper, TABLES, TableCount};

/// The continuation of counters from the parts before.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counting {
    /// The last counters of the parts before.
    pub before: Box<[Count]>,
    /// Table versions of the part before.
    pub tables: Box<[TableCount]>,
    /// The part begins elsewhere in the title: counters are moved to be continuous, and the first
    /// PCR of each clock is marked as discontinuous. Only for streams with
    /// [`Restamping`](super::Restamping), as bytes are changed.
    pub jumps: bool,
    /// Where the counters are published at the end.
    pub kept: Arc<FinalCounters>,
}

/// The last counters of a stream. They are valid when the end of the stream has been reported.
#[derive(Debug)]
pub struct FinalCounters {
    counts: [AtomicU32; PIDS],
    /// Each table: its PID, identity and versions, then its two hashes.
    tables: [[AtomicU64; 3]; TABLES],
    /// The last RTP time, and a flag that it is set.
    ticks: AtomicU64,
}

impl Counting {
    /// A restamper that continues these counters.
    pub(super) fn restamper(&self, ahead: Option<LongTable>) -> Restamper {
        let mut restamper = Restamper::behind(&self.before, &self.tables);
        if self.jumps {
            restamper.join(ahead);
        }
        restamper
    }
}

impl Default for FinalCounters {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; PIDS],
            tables: [const { [const { AtomicU64::new(0) }; 3] }; TABLES],
            ticks: AtomicU64::new(0),
        }
    }
}

impl FinalCounters {
    /// Stores the counters and the RTP time of the next datagram; the report of the end publishes
    /// them.
    pub(super) fn keep(&self, restamper: &Restamper, ticks: u32) {
        self.ticks.store(TICKS_THERE | u64::from(ticks), Ordering::Relaxed);
        for (place, count) in self.counts.iter().zip(restamper.counts()) {
            let Count { pid, last, step, is_behind } = count;
            let word = u32::from(pid.0) << 16 | u32::from(step) << 4 | u32::from(last);
            place.store(THERE | u32::from(is_behind) << 8 | word, Ordering::Relaxed);
        }
        for (places, table) in self.tables.iter().zip(restamper.tables()) {
            let TableCount { pid, kind, number, version, own, is_behind, hash } = table;
            let word = u64::from(pid.0) << 40 | u64::from(kind) << 32 | u64::from(number) << 16;
            let word = word | u64::from(version) << 8 | u64::from(own);
            let word = TABLE_THERE | u64::from(is_behind) << 62 | word;
            for (place, word) in places.iter().zip([word, hash[0], hash[1]]) {
                place.store(word, Ordering::Relaxed);
            }
        }
    }

    /// The due time of the next datagram, in ticks of 90 kHz from the part's first timestamp;
    /// `None` before the end.
    pub fn ticks(&self) -> Option<u32> {
        let ticks = self.ticks.load(Ordering::Relaxed);
        (ticks & TICKS_THERE != 0).then_some(ticks as u32)
    }

    /// The last counters of all PIDs.
    pub fn counts(&self) -> Vec<Count> {
        let words = self.counts.iter().map(|place| place.load(Ordering::Relaxed));
        let words = words.take_while(|word| word & THERE != 0);
        let of = |word: u32| Count {
            pid: Pid((word >> 16) as u16 & 0x1fff),
            last: word as u8 & 0x0f,
            step: (word >> 4) as u8 & 0x0f,
            is_behind: word & 0x100 != 0,
        };
        words.map(of).collect()
    }

    /// The sent tables.
    pub fn tables(&self) -> Vec<TableCount> {
        let all = self.tables.iter().map(|places| {
            let [word, first, whole] = places;
            [word, first, whole].map(|place| place.load(Ordering::Relaxed))
        });
        let of = |[word, first, whole]: [u64; 3]| TableCount {
            pid: Pid((word >> 40) as u16 & 0x1fff),
            kind: (word >> 32) as u8,
            number: (word >> 16) as u16,
            version: (word >> 8) as u8 & 0x1f,
            own: word as u8 & 0x1f,
            is_behind: word >> 62 & 1 == 1,
            hash: [first, whole],
        };
        all.take_while(|[word, ..]| word & TABLE_THERE != 0).map(of).collect()
    }
}

/// Set in valid entries.
const THERE: u32 = 1 << 31;
const TABLE_THERE: u64 = 1 << 63;
const TICKS_THERE: u64 = 1 << 32;

impl PartialEq for FinalCounters {
    fn eq(&self, other: &Self) -> bool {
        self.counts() == other.counts() && self.tables() == other.tables()
    }
}

impl Eq for FinalCounters {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_what_has_left(
            counts in proptest::collection::btree_map(
                0u16..8191,
                (0u8..16, 0u8..16, any::<bool>()),
                0..PIDS,
            ),
            tables in proptest::collection::vec(
                (0u16..8191, any::<(u8, u16, bool, [u64; 2])>(), 0u8..32, 0u8..32),
                0..TABLES,
            ),
            ticks: u32,
        ) {
            let count = |(&pid, &(last, step, is_behind)): (&u16, &(u8, u8, bool))| {
                Count { pid: Pid(pid), last, step, is_behind }
            };
            let counts: Vec<_> = counts.iter().map(count).collect();
            let table = |&(pid, (kind, number, is_behind, hash), version, own): &(u16, _, u8, u8)| {
                TableCount { pid: Pid(pid), kind, number, version, own, is_behind, hash }
            };
            let tables: Vec<_> = tables.iter().map(table).collect();
            let kept = FinalCounters::default();
            prop_assert_eq!((kept.counts(), kept.ticks()), (vec![], None));
            kept.keep(&Restamper::behind(&counts, &tables), ticks);
            prop_assert_eq!((kept.counts(), kept.ticks()), (counts, Some(ticks)));
            prop_assert_eq!(kept.tables(), tables);
        }
    }
}
