//! Titles in the page cache, read some datagrams ahead.
//!
//! A kernel call for each datagram costs half as much as sending it. So each slot has a piece of
//! memory for the next bytes of its stream, as far as they have been fed. Bytes that have not been
//! fed may be missing in the cache, and reading them would wait for a disk.

use std::ops::Range;

/// Bytes of one read: twelve datagrams.
pub(super) const PIECE: usize = 16 * 1024;

/// A piece for each slot. The memory of an unused piece is never touched, so the kernel does not
/// allocate it.
pub(super) struct Pieces {
    memory: Vec<u8>,
    /// The content of each piece, counted from the first byte of the stream, over all turns.
    filled: Vec<Range<u64>>,
}

impl Pieces {
    /// Makes this number of pieces.
    pub(super) fn new(places: usize) -> Self {
        Self { memory: vec![0; places * PIECE], filled: vec![0..0; places] }
    }

    /// Empties the piece of a slot, which has a new stream.
    pub(super) fn clear(&mut self, place: u32) {
        if let Some(filled) = self.filled.get_mut(place as usize) {
            *filled = 0..0;
        }
    }

    /// The content from byte `at` of a stream on; empty if that byte is not in the piece.
    pub(super) fn from(&self, place: u32, at: u64) -> &[u8] {
        let filled = &self.filled[place as usize];
        if !filled.contains(&at) {
            return &[];
        }
        let begin = place as usize * PIECE;
        &self.memory
            [begin + (at - filled.start) as usize..begin + (filled.end - filled.start) as usize]
    }

    /// Memory for `len` bytes; they become valid with [`keep`](Self::keep).
    pub(super) fn room(&mut self, place: u32, len: usize) -> &mut [u8] {
        self.clear(place);
        &mut self.memory[place as usize * PIECE..][..len]
    }

    /// Declares that the piece of a slot holds the bytes `filled`.
    pub(super) fn keep(&mut self, place: u32, filled: Range<u64>) {
        self.filled[place as usize] = filled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_what_was_kept_of_the_same_stream() {
        let mut pieces = Pieces::new(2);
        assert!(pieces.from(1, 0).is_empty());
        pieces.room(1, 3).copy_from_slice(&[7, 8, 9]);
        assert!(pieces.from(1, 20).is_empty(), "nobody has said that it was filled");
        pieces.keep(1, 20..23);
        assert_eq!(pieces.from(1, 20), [7, 8, 9]);
        assert_eq!(pieces.from(1, 22), [9]);
        assert!(pieces.from(1, 19).is_empty() && pieces.from(1, 23).is_empty());
        assert!(pieces.from(0, 20).is_empty());
        pieces.clear(1);
        assert!(pieces.from(1, 20).is_empty());
    }
}
