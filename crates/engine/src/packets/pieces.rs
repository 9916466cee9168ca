//! Titles in the page cache, read some datagrams ahead.
//!
//! A call of the kernel for each datagram costs half as much as sending it. So each place has a piece of memory, which
//! is filled with what comes next of the stream there, as far as it was fed: no further, as what was not fed may not be in
//! the cache, and reading would wait for a disk.

use std::ops::Range;

/// As many bytes as are read at once: twelve datagrams.
pub(super) const PIECE: usize = 16 * 1024;

/// A piece for each place. The memory of one that nobody uses is not touched, and so not there.
pub(super) struct Pieces {
    memory: Vec<u8>,
    /// What is in each, counted from the first byte of the stream, over all turns.
    held: Vec<Range<u64>>,
}

impl Pieces {
    /// For so many places.
    pub(super) fn new(places: usize) -> Self {
        Self { memory: vec![0; places * PIECE], held: vec![0..0; places] }
    }

    /// Another stream has the place.
    pub(super) fn clear(&mut self, place: u32) {
        if let Some(held) = self.held.get_mut(place as usize) {
            *held = 0..0;
        }
    }

    /// What is held of a stream from byte `at` on; empty when that byte is not.
    pub(super) fn from(&self, place: u32, at: u64) -> &[u8] {
        let held = &self.held[place as usize];
        if !held.contains(&at) {
            return &[];
        }
        let begin = place as usize * PIECE;
        &self.memory[begin + (at - held.start) as usize..begin + (held.end - held.start) as usize]
    }

    /// Memory for `len` bytes, which are held when [`keep`](Self::keep) says which.
    pub(super) fn room(&mut self, place: u32, len: usize) -> &mut [u8] {
        self.clear(place);
        &mut self.memory[place as usize * PIECE..][..len]
    }

    /// The room of a place has been filled with the bytes `held`.
    pub(super) fn keep(&mut self, place: u32, held: Range<u64>) {
        self.held[place as usize] = held;
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
