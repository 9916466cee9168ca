//! The page cache under a simulated volume: which place keeps which block of which title in memory.
//!
//! It keeps no more than the real port: the content of a place stays until the place gets another
//! block to fill, and nothing else stays. So a byte found here is also found by a send by reference
//! without a disk.

use std::collections::HashMap;

use tactus_core::ports::{FileHandle, FilePart, Transfer};
use tactus_core::units::Bytes;

/// The places of one volume, and their content.
pub(crate) struct Pages {
    block: u64,
    pins: Vec<Pin>,
    /// The place with the last request for a block.
    found: HashMap<Key, u32>,
}

/// A block of a title.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    file: FileHandle,
    block: u64,
}

/// The content of one place.
#[derive(Clone, Copy)]
struct Pin {
    generation: u32,
    key: Key,
    /// Number of distinct bytes that have been read.
    read: u64,
    /// One of them differs from the stored byte.
    is_damaged: bool,
}

impl Pages {
    pub(crate) fn new(places: u32, block: u32) -> Self {
        let nothing = Key { file: FileHandle(-1), block: 0 };
        Self {
            block: u64::from(block),
            pins: vec![
                Pin { generation: 0, key: nothing, read: 0, is_damaged: false };
                places as usize
            ],
            // With so much room to spare the map cleans itself up without asking for more.
            found: HashMap::with_capacity(2 * places as usize + 2),
        }
    }

    pub(super) fn places(&self) -> u32 {
        self.pins.len() as u32
    }

    /// Notes that a transfer has been submitted: in a new generation a place loses its content.
    pub(super) fn begin(&mut self, transfer: Transfer) {
        let Transfer { block, file, offset, .. } = transfer;
        let pin = &mut self.pins[block.place as usize];
        if pin.generation == block.generation {
            return;
        }
        if self.found.get(&pin.key) == Some(&block.place) {
            self.found.remove(&pin.key);
        }
        let key = Key { file, block: offset.0 / self.block };
        *pin = Pin { generation: block.generation, key, read: 0, is_damaged: false };
        self.found.insert(key, block.place);
    }

    /// Notes that `bytes` of a transfer are in memory.
    pub(super) fn pin(&mut self, transfer: Transfer, bytes: u32) {
        self.pins[transfer.block.place as usize].read += u64::from(bytes);
    }

    /// Notes that a transfer returns bytes other than the stored ones.
    pub(super) fn damage(&mut self, transfer: Transfer) {
        self.pins[transfer.block.place as usize].is_damaged = true;
    }

    pub(super) fn is_damaged(&self, transfer: Transfer) -> bool {
        self.pins[transfer.block.place as usize].is_damaged
    }

    /// Whether a block of `part` differs from the stored bytes in each place that has it.
    pub(super) fn any_damaged(&self, part: FilePart) -> bool {
        let FilePart { file, offset: Bytes(from), len } = part;
        let mut blocks = from / self.block..(from + u64::from(len)).div_ceil(self.block);
        blocks.any(|block| {
            let key = Key { file, block };
            let is_intact = |pin: &Pin| pin.key == key && pin.read > 0 && !pin.is_damaged;
            let place = self.found.get(&key);
            place.is_some_and(|&place| self.pins[place as usize].is_damaged)
                && !self.pins.iter().any(is_intact)
        })
    }

    /// The first byte of `part` that is not in memory. A block of a growing title may be in memory
    /// twice, with more bytes the second time.
    pub(super) fn first_missing_of_growing(&self, part: FilePart) -> Option<Bytes> {
        let FilePart { file, offset: Bytes(from), len: bytes } = part;
        let to = from + u64::from(bytes);
        let mut blocks = from / self.block..to.div_ceil(self.block);
        let missing = blocks.find(|&block| {
            let wanted = (to - block * self.block).min(self.block);
            let key = Key { file, block };
            !self.pins.iter().any(|pin| pin.key == key && pin.read >= wanted)
        });
        missing.map(|block| Bytes((block * self.block).max(from)))
    }

    /// The first byte of `part` whose block is not wholly in memory; the title has `len` bytes.
    pub(super) fn first_missing(&self, part: FilePart, len: Bytes) -> Option<Bytes> {
        let FilePart { file, offset: Bytes(from), len: bytes } = part;
        let to = from + u64::from(bytes);
        let blocks = from / self.block..to.div_ceil(self.block);
        let missing = blocks.into_iter().find(|&block| {
            let whole = len.0.saturating_sub(block * self.block).min(self.block);
            let key = Key { file, block };
            let has = |pin: &Pin| pin.key == key && pin.read >= whole;
            let last = self.found.get(&key).map(|&place| self.pins[place as usize]);
            // Each stream may have a place of its own for the same block.
            !last.is_some_and(|pin| has(&pin)) && !self.pins.iter().any(has)
        });
        missing.map(|block| Bytes((block * self.block).max(from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::ports::{BlockRef, Direction};

    const BLOCK: u32 = 65_536;
    /// Two blocks and a half.
    const TITLE: Bytes = Bytes(5 * BLOCK as u64 / 2);

    fn transfer(place: u32, generation: u32, number: u64, at: u32) -> Transfer {
        let offset = Bytes(number * u64::from(BLOCK) + u64::from(at));
        let block = BlockRef { place, generation };
        let (direction, file, len) = (Direction::Read, FileHandle(3), BLOCK - at);
        Transfer { at, ..Transfer::new(direction, block, file, offset, len) }
    }

    fn missing(pages: &Pages, from: u64, len: u32) -> Option<u64> {
        let part = FilePart { file: FileHandle(3), offset: Bytes(from), len };
        pages.first_missing(part, TITLE).map(|missing| missing.0)
    }

    #[test]
    fn a_block_is_in_memory_from_its_last_transfer_to_the_next_life_of_its_place() {
        let mut pages = Pages::new(2, BLOCK);
        let block = u64::from(BLOCK);
        for number in 1..3 {
            pages.begin(transfer(number - 1, 1, u64::from(number), 0));
        }
        pages.pin(transfer(0, 1, 1, 0), BLOCK - 4096);
        assert_eq!(missing(&pages, block, 1), Some(block), "it is not filled");
        pages.begin(transfer(0, 1, 1, BLOCK - 4096));
        pages.pin(transfer(0, 1, 1, BLOCK - 4096), 4096);
        assert_eq!(missing(&pages, block + 5, BLOCK - 5), None);
        assert_eq!(missing(&pages, block - 1, 2), Some(block - 1));
        assert_eq!(missing(&pages, block + 5, BLOCK), Some(2 * block));
        // The last block has only half of its bytes.
        pages.pin(transfer(1, 1, 2, 0), BLOCK / 2);
        assert_eq!(missing(&pages, block, BLOCK * 3 / 2), None);
        pages.begin(transfer(0, 2, 0, 0));
        assert_eq!(missing(&pages, block + 5, 1), Some(block + 5));
        assert_eq!(missing(&pages, 2 * block, 1), None);
    }

    #[test]
    fn a_block_that_moves_to_another_place_is_not_forgotten_with_the_first() {
        let mut pages = Pages::new(2, BLOCK);
        for place in 0..2 {
            pages.begin(transfer(place, 1, 0, 0));
            pages.pin(transfer(place, 1, 0, 0), BLOCK);
        }
        pages.begin(transfer(0, 2, 1, 0));
        assert_eq!(missing(&pages, 0, BLOCK), None);
    }
}
