//! Block lists: the blocks of a title in another order, with gaps or backwards.
//!
//! Promise: every block of a list exists in the title. The number of bytes before each position of
//! the list has a closed form. The control side makes a list once; its readers free nothing.

use alloc::sync::Arc;

use crate::units::Bytes;

/// Whole blocks of a title, in read order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockList {
    blocks: Arc<[u32]>,
    block: Bytes,
    short: Option<ShortBlock>,
}

/// The position of the title's last block, which is shorter than the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShortBlock {
    pub(crate) nth: u64,
    pub(crate) missing: Bytes,
}

/// Why blocks form no block list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockListError {
    /// The list is empty.
    Empty,
    /// The title has no such block.
    Beyond(u32),
    /// The title's last block is not a whole one, and comes twice: lengths would have no closed
    /// form.
    Twice(u32),
}

impl BlockList {
    /// Reads `blocks` of a title of `len` bytes, in blocks of `block`.
    ///
    /// # Errors
    /// [`BlockListError`] gives the error in the list.
    pub fn new(blocks: Arc<[u32]>, len: Bytes, block: Bytes) -> Result<Self, BlockListError> {
        let count = len.0.div_ceil(block.0);
        let missing = Bytes(count * block.0 - len.0);
        let mut short = None;
        for (nth, &each) in (0u64..).zip(blocks.iter()) {
            if u64::from(each) >= count {
                return Err(BlockListError::Beyond(each));
            }
            if u64::from(each) + 1 == count && missing > Bytes(0) {
                if short.is_some() {
                    return Err(BlockListError::Twice(each));
                }
                short = Some(ShortBlock { nth, missing });
            }
        }
        if blocks.is_empty() {
            return Err(BlockListError::Empty);
        }
        Ok(Self { blocks, block, short })
    }

    /// Number of bytes of all blocks in the list.
    pub fn len(&self) -> Bytes {
        begins(self.blocks.len() as u64, self.block, self.short)
    }

    /// Never: a block list has at least one block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block of the title at position `nth` of the list.
    ///
    /// # Panics
    /// If there is no such position.
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

    pub(crate) fn short(&self) -> Option<ShortBlock> {
        self.short
    }
}

/// Number of bytes before position `nth` of the list.
pub(crate) fn begins(nth: u64, block: Bytes, short: Option<ShortBlock>) -> Bytes {
    let missing = short.filter(|short| short.nth < nth).map_or(Bytes(0), |short| short.missing);
    Bytes(nth * block.0) - missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_none() {
        let of = |blocks: &[u32], len| BlockList::new(blocks.into(), Bytes(len), Bytes(10));
        assert_eq!(of(&[], 25), Err(BlockListError::Empty));
        assert_eq!(of(&[2, 3], 25), Err(BlockListError::Beyond(3)));
        assert_eq!(of(&[2, 0, 2], 25), Err(BlockListError::Twice(2)));
        assert_eq!(of(&[2, 0, 1], 25).map(|one| one.len()), Ok(Bytes(25)));
        assert_eq!(of(&[2, 0, 2], 30).map(|one| one.len()), Ok(Bytes(30)));
    }
}
