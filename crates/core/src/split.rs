//! Cuts best-effort transfers into pieces small enough to look at the clock between.

use crate::ports::Transfer;
use crate::units::{Bytes, KIB};

/// The largest piece of best-effort work: at 150 MB/s it delays a real-time transfer by under 1 ms.
pub const PIECE: u32 = 128 * KIB as u32;

/// The pieces of one transfer, in order.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    rest: Option<Transfer>,
}

impl Pieces {
    /// Cuts `whole`.
    pub fn of(whole: Transfer) -> Self {
        Self { rest: (whole.len > 0).then_some(whole) }
    }

    /// What has not been given yet, in one piece.
    pub fn rest(&self) -> Option<Transfer> {
        self.rest
    }

    /// The piece that [`Iterator::next`] will give.
    pub fn peek(&self) -> Option<Transfer> {
        self.rest.map(|rest| match rest.len {
            // What the whole block must sum up to goes with its end.
            ..=PIECE => rest,
            _ => Transfer { len: PIECE, sum: None, ..rest },
        })
    }
}

impl Iterator for Pieces {
    type Item = Transfer;

    fn next(&mut self) -> Option<Transfer> {
        let piece = self.peek()?;
        let rest = self.rest?;
        self.rest = (rest.len > piece.len).then(|| Transfer {
            offset: rest.offset + Bytes(u64::from(piece.len)),
            at: rest.at + piece.len,
            len: rest.len - piece.len,
            ..rest
        });
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{BlockRef, Direction, FileHandle, Sum};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_whole_without_gap_or_overlap(sectors in 0u32..2000, start in 0u64..99) {
            let whole = Transfer {
                direction: Direction::Read,
                block: BlockRef { place: 0, generation: 1 },
                file: FileHandle(3),
                offset: Bytes(start * 4096),
                at: 0,
                len: sectors * 4096,
                sum: Some(Sum { len: 7, crc32c: 9 }),
                reads_ahead: true,
                rest: Bytes(8192),
            };
            let (mut offset, mut at) = (whole.offset, 0);
            for piece in Pieces::of(whole) {
                prop_assert_eq!((piece.offset, piece.at), (offset, at));
                prop_assert!(piece.len > 0 && piece.len <= PIECE);
                offset += Bytes(u64::from(piece.len));
                at += piece.len;
                prop_assert_eq!(piece.sum, whole.sum.filter(|_| at == whole.len));
            }
            prop_assert_eq!(at, whole.len);
        }
    }
}
