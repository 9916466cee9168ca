//! Block lists: the blocks of a title in another order than its own, with gaps or backwards.
//!
//! Promise: a block list is of blocks that the title has, and how many bytes lie before each of its
//! stops is known without looking at those before. It is made once, by the control side; whoever
//! reads by it frees nothing.

use alloc::sync::Arc;

use crate::units::Bytes;

/// Whole blocks of a title, in the order in which they are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockList {
    blocks: Arc<[u32]>,
    block: Bytes,
    short: Option<Short>,
}

/// The stop at the title's last block, which has less than a whole one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Short {
    pub(crate) nth: u64,
    pub(crate) missing: Bytes,
}

/// Why a list of blocks is no block list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItineraryFault {
    /// There is nothing to read.
    Empty,
    /// The title has no such block.
    Beyond(u32),
    /// The title's last block is not a whole one, and comes twice: lengths would have no closed form.
    Twice(u32),
}

impl BlockList {
    /// Reads `blocks` of a title of `len` bytes, in blocks of `block`.
    ///
    /// # Errors
    /// [`ItineraryFault`] says what is wrong with the list.
    pub fn new(blocks: Arc<[u32]>, len: Bytes, block: Bytes) -> Result<Self, ItineraryFault> {
        let count = len.0.div_ceil(block.0);
        let missing = Bytes(count * block.0 - len.0);
        let mut short = None;
        for (nth, &each) in (0u64..).zip(blocks.iter()) {
            if u64::from(each) >= count {
                return Err(ItineraryFault::Beyond(each));
            }
            if u64::from(each) + 1 == count && missing > Bytes(0) {
                if short.is_some() {
                    return Err(ItineraryFault::Twice(each));
                }
                short = Some(Short { nth, missing });
            }
        }
        if blocks.is_empty() {
            return Err(ItineraryFault::Empty);
        }
        Ok(Self { blocks, block, short })
    }

    /// Bytes of all stops.
    pub fn len(&self) -> Bytes {
        begins(self.blocks.len() as u64, self.block, self.short)
    }

    /// A block list has a stop at least.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Which block of the title stop `nth` is.
    ///
    /// # Panics
    /// When there is no such stop.
    pub fn block_at(&self, nth: u64) -> u64 {
        u64::from(self.blocks[nth as usize])
    }

    /// The blocks, in order.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Size of a block.
    pub(crate) fn block(&self) -> Bytes {
        self.block
    }

    pub(crate) fn short(&self) -> Option<Short> {
        self.short
    }
}

/// Bytes before stop `nth`.
pub(crate) fn begins(nth: u64, block: Bytes, short: Option<Short>) -> Bytes {
    let missing = short.filter(|short| short.nth < nth).map_or(Bytes(0), |short| short.missing);
    Bytes(nth * block.0) - missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_none() {
        let of = |blocks: &[u32], len| BlockList::new(blocks.into(), Bytes(len), Bytes(10));
        assert_eq!(of(&[], 25), Err(ItineraryFault::Empty));
        assert_eq!(of(&[2, 3], 25), Err(ItineraryFault::Beyond(3)));
        assert_eq!(of(&[2, 0, 2], 25), Err(ItineraryFault::Twice(2)));
        assert_eq!(of(&[2, 0, 1], 25).map(|one| one.len()), Ok(Bytes(25)));
        assert_eq!(of(&[2, 0, 2], 30).map(|one| one.len()), Ok(Bytes(30)));
    }
}
