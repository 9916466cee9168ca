//! Read-ahead: the next block that a stream needs of its title, and its deadline.
//!
//! Promise: every block is wanted at least one cycle before the cycle in which its first byte is
//! due, and there are never more blocks out than the ledger granted. Wanting blocks a whole block's
//! duration earlier still lets slow streams share cycles: the disk may use any cycle in between. Of
//! a growing title only whole blocks are wanted, so that none is read twice. This module knows
//! neither the disk nor the memory.

use crate::block_list::{self, BlockList, ShortBlock};
use crate::byte_clock::DueTimes;
use crate::mutant;
use crate::units::{Bytes, MonoTime, Nanos};

/// The part of a title that is sent, and the block size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte of the title that is sent.
    pub first: Bytes,
    /// One past the last.
    pub end: Bytes,
    /// Size of a block.
    pub block: Bytes,
}

/// The read position of one stream.
#[derive(Clone, Copy, Debug)]
pub struct ReadAhead {
    extent: Extent,
    next: u64,
    /// Blocks wanted and not returned.
    out: u32,
    window: u32,
    /// The end is not known yet.
    grows: bool,
    /// The delivery repeats from the first byte.
    repeats: bool,
    /// Bytes of the earlier turns.
    turned: Bytes,
    /// For a block list, its short block.
    short: Option<ShortBlock>,
}

/// The part of one block that a stream sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Number of the block within its title; with a block list, position within the list.
    pub block: u64,
    /// First byte within the block.
    pub at: u32,
    /// Bytes.
    pub len: u32,
}

impl ReadAhead {
    /// Starts before the first block.
    ///
    /// # Panics
    /// If the extent is empty or the window is zero.
    pub fn new(extent: Extent, window: u32) -> Self {
        assert!(extent.first < extent.end, "an empty extent is never delivered");
        assert!(window > 0, "the ledger grants at least one block");
        let next = extent.first.0 / extent.block.0;
        let turned = Bytes(0);
        Self { extent, next, out: 0, window, grows: false, repeats: false, turned, short: None }
    }

    /// Reads the blocks of a block list, numbered by their position in it.
    ///
    /// # Panics
    /// If the window is zero.
    pub fn along(block_list: &BlockList, window: u32) -> Self {
        let block = block_list.block();
        let extent = Extent { first: Bytes(0), end: block_list.len(), block };
        Self { short: block_list.short(), ..Self::new(extent, window) }
    }

    /// Reads a growing title; the bytes before the end are available.
    #[must_use]
    pub fn growing(self) -> Self {
        Self { grows: true, ..self }
    }

    /// Repeats without end.
    #[must_use]
    pub fn repeating(self) -> Self {
        Self { repeats: true, ..self }
    }

    /// Extends the available part of a growing title. `is_whole`: it will not grow any more.
    ///
    /// # Panics
    /// If the title was whole, or has become shorter.
    pub fn extend(&mut self, end: Bytes, is_whole: bool) {
        assert!(self.grows && end >= self.extent.end, "a title grows until it is whole");
        self.extent.end = end;
        self.grows = !is_whole;
    }

    /// Whether the end is still unknown.
    pub const fn is_growing(&self) -> bool {
        self.grows
    }

    /// The next block, if the window has room and its first byte is due before `horizon` by the
    /// clock of this delivery. Without a clock every block is due.
    pub fn poll(&mut self, clock: Option<&dyn DueTimes>, horizon: MonoTime) -> Option<Piece> {
        if self.is_at_end() || self.out >= self.window + mutant!(WindowOffByOne, 1, 0) {
            return None;
        }
        if clock.is_some_and(|clock| self.due(clock) >= horizon) {
            return None;
        }
        let piece = self.piece(self.next);
        self.next += 1;
        self.out += 1;
        if self.repeats && self.begins(self.next) >= self.extent.end {
            self.next = self.extent.first.0 / self.extent.block.0;
            self.turned += self.extent.end - self.extent.first;
        }
        Some(piece)
    }

    /// When the first byte of the next block is due.
    pub fn due(&self, clock: &dyn DueTimes) -> MonoTime {
        let begins = self.begins(self.next);
        clock.due(self.turned + begins.saturating_sub(self.extent.first))
    }

    /// Notes that a block was returned.
    ///
    /// # Panics
    /// If no block is out.
    pub fn give_back(&mut self) {
        assert!(self.out > 0, "only what was asked for comes back");
        self.out -= 1;
    }

    /// Blocks wanted and not returned.
    pub const fn out(&self) -> u32 {
        self.out
    }

    /// Size of a block.
    pub const fn block(&self) -> Bytes {
        self.extent.block
    }

    /// Whether every block has been wanted, and there will be no more.
    pub fn is_complete(&self) -> bool {
        !self.grows && self.is_at_end()
    }

    /// Whether every available block has been wanted.
    pub fn is_at_end(&self) -> bool {
        let begins = self.begins(self.next + u64::from(self.grows));
        if self.grows { begins > self.extent.end } else { begins >= self.extent.end }
    }

    /// The end of the due times whose blocks must be wanted at `now`, the start of a cycle: those
    /// of the next cycle, and one block's duration beyond.
    pub fn horizon(&self, clock: &dyn DueTimes, now: MonoTime, cycle: Nanos) -> MonoTime {
        now + cycle.times(2) + clock.rate().time_for(self.extent.block)
    }

    fn piece(&self, block: u64) -> Piece {
        let begin = self.begins(block).0;
        let from = begin.max(self.extent.first.0);
        let to = self.begins(block + 1).0.min(self.extent.end.0);
        Piece { block, at: (from - begin) as u32, len: (to - from) as u32 }
    }

    /// The position of a block; with a block list, the number of bytes before it.
    fn begins(&self, block: u64) -> Bytes {
        block_list::begins(block, self.extent.block, self.short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_clock::ByteClock;
    use crate::units::{BitRate, KIB, SECOND};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_extent_without_gap_or_overlap(
            first in 0u64..10_000_000, len in 1u64..10_000_000, window in 1u32..9,
        ) {
            let block = Bytes(256 * KIB);
            let extent = Extent { first: Bytes(first), end: Bytes(first + len), block };
            let mut read = ReadAhead::new(extent, window);
            let mut at = first;
            while !read.is_complete() {
                let Some(piece) = read.poll(None, MonoTime(0)) else {
                    prop_assert_eq!(read.out(), window);
                    read.give_back();
                    continue;
                };
                prop_assert_eq!(piece.block * block.0 + u64::from(piece.at), at);
                prop_assert!(piece.len > 0);
                at += u64::from(piece.len);
            }
            prop_assert_eq!(at, first + len);
        }
    }

    proptest! {
        #[test]
        fn what_repeats_is_the_extent_again_and_again_each_block_due_when_its_turn_comes(
            first in 0u64..1_000_000, len in 1u64..1_000_000, rate in 100_000u64..100_000_000,
        ) {
            let block = Bytes(256 * KIB);
            let extent = Extent { first: Bytes(first), end: Bytes(first + len), block };
            let clock = ByteClock::new(MonoTime(5), BitRate(rate));
            let mut read = ReadAhead::new(extent, 1000).repeating();
            let mut sent = 0;
            for _ in 0..100 {
                prop_assert!(!read.is_complete());
                prop_assert_eq!(read.due(&clock), clock.due(Bytes(sent)));
                let piece = read.poll(None, MonoTime(0)).unwrap();
                prop_assert_eq!(piece.block * block.0 + u64::from(piece.at), first + sent % len);
                sent += u64::from(piece.len);
            }
        }
    }

    proptest! {
        #[test]
        fn by_an_block_list_each_stop_is_read_whole_and_due_when_all_before_it_has_left(
            len in 1u64..3_000_000, stops in prop::collection::vec(any::<u32>(), 1..40),
            rate in 100_000u64..100_000_000,
        ) {
            let block = Bytes(64 * KIB);
            let count = len.div_ceil(block.0) as u32;
            let mut stops: Vec<u32> = stops.iter().map(|stop| stop % count).collect();
            // The last block comes once at most.
            let mut is_new = true;
            stops.retain(|&stop| stop + 1 < count || core::mem::take(&mut is_new));
            let block_list = BlockList::new(stops.clone().into(), Bytes(len), block).unwrap();
            let clock = ByteClock::new(MonoTime(5), BitRate(rate));
            let mut read = ReadAhead::along(&block_list, 1000);
            let mut sent = 0;
            for (nth, &stop) in stops.iter().enumerate() {
                prop_assert!(!read.is_complete());
                prop_assert_eq!(read.due(&clock), clock.due(Bytes(sent)));
                let piece = read.poll(None, MonoTime(0)).unwrap();
                prop_assert_eq!((piece.block, piece.at), (nth as u64, 0));
                prop_assert_eq!(block_list.block_at(piece.block), u64::from(stop));
                let there = (len - u64::from(stop) * block.0).min(block.0);
                prop_assert_eq!(u64::from(piece.len), there);
                sent += there;
            }
            prop_assert!(read.is_complete() && read.poll(None, MonoTime(0)).is_none());
            prop_assert_eq!(block_list.len(), Bytes(sent));
        }
    }

    proptest! {
        #[test]
        fn of_a_growing_title_each_byte_is_asked_for_once_and_whole_blocks_only_until_it_is_whole(
            first in 0u64..1_000_000, steps in prop::collection::vec(0u64..700_000, 1..20),
        ) {
            let block = Bytes(256 * KIB);
            let extent = Extent { first: Bytes(first), end: Bytes(first + 1), block };
            let mut read = ReadAhead::new(extent, 100).growing();
            let (mut at, mut end) = (first, first + 1);
            for (number, step) in steps.iter().enumerate() {
                end += step;
                let is_whole = number + 1 == steps.len();
                read.extend(Bytes(end), is_whole);
                while let Some(piece) = read.poll(None, MonoTime(0)) {
                    prop_assert_eq!(piece.block * block.0 + u64::from(piece.at), at);
                    at += u64::from(piece.len);
                    prop_assert!(at <= end && (is_whole || at.is_multiple_of(block.0)));
                }
                prop_assert!(is_whole || end - at < block.0 || at == first);
                prop_assert_eq!(read.is_complete(), is_whole);
            }
            prop_assert_eq!(at, end);
        }
    }

    #[test]
    fn a_block_is_asked_for_a_cycle_before_the_cycle_it_is_due_in() {
        let cycle = Nanos::from_millis(250);
        let extent = Extent { first: Bytes(0), end: Bytes(1 << 40), block: Bytes(256 * KIB) };
        for rate in [64_000, 3_750_000, 8_800_000, 400_000_000] {
            let clock = ByteClock::new(MonoTime(0), BitRate(rate));
            let window = (2 * 250 * rate / 8000).div_ceil(256 * KIB) as u32 + 2;
            let mut read = ReadAhead::new(extent, window);
            let mut held = alloc::collections::VecDeque::new();
            for turn in 0..400 {
                let now = MonoTime(turn * cycle.0);
                // Due blocks have left.
                while held.front().is_some_and(|&(_, end)| clock.due(Bytes(end)) <= now) {
                    held.pop_front();
                    read.give_back();
                }
                while let Some(piece) = read.poll(Some(&clock), read.horizon(&clock, now, cycle)) {
                    let end = piece.block * 256 * KIB + u64::from(piece.len);
                    held.push_back((now, end));
                }
                // Every block due before the end of the next cycle is out by now.
                let next = read.due(&clock);
                assert!(next >= now + cycle.times(2), "{rate} bit/s, turn {turn}: {next:?}");
            }
        }
        assert!(SECOND.0.is_multiple_of(cycle.0));
    }
}
