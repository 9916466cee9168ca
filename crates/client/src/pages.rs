//! Which pages of the shared data are free.
//!
//! Promise: a page belongs to one range at a time. The lowest free range is taken first, so that a
//! program with few buffers uses the same pages again, which are still in the processor's cache.

/// Bytes of a page; every range begins at a multiple of it.
pub(crate) const PAGE: usize = 4096;

/// The free pages: one bit for each, set while the page is in use.
pub(crate) struct Pages {
    words: Vec<u64>,
    count: usize,
    /// No page below it is free.
    lowest: usize,
}

/// Pages next to each other that belong to one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRange {
    first: u32,
    count: u32,
}

impl PageRange {
    /// No page.
    pub(crate) const NONE: Self = Self { first: 0, count: 0 };

    /// The first byte, from the beginning of the data.
    pub(crate) const fn at(self) -> u64 {
        self.first as u64 * PAGE as u64
    }

    pub(crate) const fn number(self) -> u64 {
        self.first as u64 | (self.count as u64) << 32
    }

    pub(crate) const fn of_number(number: u64) -> Self {
        Self { first: number as u32, count: (number >> 32) as u32 }
    }
}

impl Pages {
    /// `count` free pages.
    pub(crate) fn new(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(BITS)], count, lowest: 0 }
    }

    /// Takes the lowest free range with room for `len` bytes; none if there is no such range or
    /// `len` is zero.
    pub(crate) fn take(&mut self, len: usize) -> Option<PageRange> {
        let count = len.div_ceil(PAGE);
        if count == 0 {
            return None;
        }
        let mut first = self.free_from(self.lowest)?;
        // Single pages are taken most, and never from the middle of the free ones.
        self.lowest = first;
        loop {
            if count > self.count - first {
                return None;
            }
            let end = self.used_from(first, first + count);
            if end == first + count {
                break;
            }
            first = self.free_from(end)?;
        }
        if first == self.lowest {
            self.lowest += count;
        }
        let range = PageRange { first: first as u32, count: count as u32 };
        self.change(range, |word, mask| {
            debug_assert_eq!(*word & mask, 0, "a page has one owner");
            *word |= mask;
        });
        Some(range)
    }

    /// Returns a range that was taken.
    pub(crate) fn give_back(&mut self, range: PageRange) {
        if range == PageRange::NONE {
            return;
        }
        self.lowest = self.lowest.min(range.first as usize);
        self.change(range, |word, mask| {
            debug_assert_eq!(*word & mask, mask, "what is returned was taken");
            *word &= !mask;
        });
    }

    /// The first free page from `at` on.
    fn free_from(&self, at: usize) -> Option<usize> {
        let mut word = at / BITS;
        let mut used = self.words.get(word)? | low_bits(at % BITS);
        while used == u64::MAX {
            word += 1;
            used = *self.words.get(word)?;
        }
        let page = word * BITS + used.trailing_ones() as usize;
        (page < self.count).then_some(page)
    }

    /// The first page in use from `at` on, or `end`.
    fn used_from(&self, at: usize, end: usize) -> usize {
        let mut word = at / BITS;
        let mut used = self.words[word] & !low_bits(at % BITS);
        while used == 0 {
            word += 1;
            if word * BITS >= end {
                return end;
            }
            used = self.words[word];
        }
        end.min(word * BITS + used.trailing_zeros() as usize)
    }

    fn change(&mut self, range: PageRange, with: impl Fn(&mut u64, u64)) {
        let (mut at, end) = (range.first as usize, (range.first + range.count) as usize);
        while at < end {
            let within = at % BITS;
            let count = (BITS - within).min(end - at);
            with(&mut self.words[at / BITS], low_bits(count) << within);
            at += count;
        }
    }
}

const BITS: usize = u64::BITS as usize;

/// The lowest `count` bits, up to all 64.
const fn low_bits(count: usize) -> u64 {
    if count == BITS { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_belongs_to_one_range_and_the_lowest_free_range_is_taken() {
        // A model: for each page whether it is in use. 200 pages end within a word.
        let mut pages = Pages::new(200);
        let mut model = [false; 200];
        let mut ranges: Vec<PageRange> = vec![];
        let mut random = 12345_u64;
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn);
            let choice = (random >> 33) as usize;
            if choice.is_multiple_of(2) && !ranges.is_empty() {
                let range = ranges.swap_remove(choice / 2 % ranges.len());
                pages.give_back(range);
                model[range.first as usize..][..range.count as usize].fill(false);
                continue;
            }
            // Mostly small ones, sometimes longer than a word of the bits.
            let count =
                if choice.is_multiple_of(5) { 1 + choice / 5 % 90 } else { 1 + choice / 5 % 4 };
            let expected = (0..=200 - count).find(|&at| !model[at..at + count].contains(&true));
            let taken = pages.take(count * PAGE - choice % PAGE);
            assert_eq!(taken.map(|range| range.first as usize), expected, "turn {turn}");
            if let Some(range) = taken {
                model[range.first as usize..][..count].fill(true);
                ranges.push(range);
            }
        }
        assert!(!ranges.is_empty());
    }

    #[test]
    fn all_pages_can_be_one_range_and_nothing_is_none() {
        let mut pages = Pages::new(128);
        assert_eq!(pages.take(0), None);
        assert_eq!(pages.take(128 * PAGE + 1), None);
        let all = pages.take(128 * PAGE).unwrap();
        assert_eq!((all.at(), pages.take(1)), (0, None));
        pages.give_back(all);
        assert_eq!(pages.take(PAGE + 1), Some(PageRange { first: 0, count: 2 }));
        assert_eq!(pages.take(1).unwrap().at(), 2 * PAGE as u64);
    }
}
