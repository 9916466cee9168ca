//! The ring of a recording, as the server sees it.
//!
//! Promise: whatever the program writes into the memory, what is taken lies in the ring, was
//! claimed to be there, and is taken once. Nothing that the server has written is read back. When
//! the program has let the recording go, no more is taken than was there then.

use std::sync::Arc;

use tactus_core::local::stream::{
    BYTES, CLOSED, DURABLE, END, OVERRUNS, StreamEnd, TAKEN, UNDERRUNS, WRITTEN,
};
use tactus_ring::shared::{
    ByteReader, ByteRingLayout, SharedBytes, SharedMemory, SharedWord, Words,
};

use crate::errno::{EPROTO, Refusal};

/// The server's side of the ring of a recording.
pub(crate) struct RecordingRing {
    positions: ByteReader,
    bytes: SharedBytes,
    capacity: u64,
    closed: SharedWord,
    end: SharedWord,
    durable: SharedWord,
    overruns: Count,
    underruns: Count,
    /// Bytes that are still to be taken, from the moment on at which no more count.
    rest: Option<u64>,
}

/// What a look into the ring has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingContent {
    /// Bytes that are there.
    pub(crate) there: u64,
    /// Those of them that are to be taken.
    pub(crate) wanted: u64,
    /// There is no room for another one.
    pub(crate) is_full: bool,
}

/// A number that the program is told. It may write the word, so the value is kept here.
struct Count {
    word: SharedWord,
    value: u64,
}

impl RecordingRing {
    /// The server's side of a new ring with room for `capacity` bytes.
    pub(crate) fn new(memory: &Arc<dyn SharedMemory>, capacity: u64) -> Self {
        let words = Words::new(Arc::clone(memory));
        let word = |at| SharedWord::new(words.clone(), at);
        let count = |at| Count { word: word(at), value: 0 };
        let layout = ByteRingLayout {
            written: WRITTEN,
            taken: TAKEN,
            bytes: BYTES,
            capacity: capacity as usize,
        };
        Self {
            positions: ByteReader::new(words.clone(), layout),
            bytes: SharedBytes::new(Arc::clone(memory), BYTES),
            capacity,
            closed: word(CLOSED),
            end: word(END),
            durable: word(DURABLE),
            overruns: count(OVERRUNS),
            underruns: count(UNDERRUNS),
            rest: None,
        }
    }

    /// Looks for bytes. `is_let_go`: the program has said on another way that no more come.
    pub(crate) fn look(&mut self, is_let_go: bool) -> Result<RingContent, Refusal> {
        let is_last = self.rest.is_none() && (is_let_go || self.closed.load() != 0);
        let there = self.positions.look().map_err(|_| {
            (EPROTO, "the program claims to have written what its ring cannot hold".to_owned())
        })?;
        if is_last {
            self.rest = Some(there);
        }
        let wanted = self.rest.map_or(there, |rest| rest.min(there));
        Ok(RingContent { there, wanted, is_full: there == self.capacity })
    }

    /// Moves the next bytes of the last look into `space`. Returns their number.
    pub(crate) fn take(&mut self, space: &mut [u8]) -> usize {
        let (at, len) = self.positions.next();
        let rest = self.rest.map_or(usize::MAX, |rest| rest as usize);
        let len = len.min(space.len()).min(rest);
        self.bytes.copy_out(at as u64, &mut space[..len]);
        self.positions.consume(len as u64);
        if let Some(rest) = &mut self.rest {
            *rest -= len as u64;
        }
        len
    }

    /// Whether all bytes that count were taken.
    pub(crate) fn is_over(&self) -> bool {
        self.rest == Some(0)
    }

    /// So many bytes outlive a power failure.
    pub(crate) fn set_durable(&self, bytes: u64) {
        self.durable.store(bytes);
    }

    /// The program was faster than its rate once more.
    pub(crate) fn note_overrun(&mut self) {
        self.overruns.increase();
    }

    /// It was slower.
    pub(crate) fn note_underrun(&mut self) {
        self.underruns.increase();
    }

    /// The recording has ended.
    pub(crate) fn end(&self, end: StreamEnd) {
        self.end.store(end.encode());
    }
}

impl Count {
    fn increase(&mut self) {
        self.value += 1;
        self.word.store(self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_ring::arena::HeapRegion;

    fn ring(capacity: u64) -> (RecordingRing, SharedBytes) {
        let region = HeapRegion::new(BYTES + capacity as usize);
        let memory: Arc<dyn SharedMemory> = Arc::new(region);
        (RecordingRing::new(&memory, capacity), SharedBytes::new(memory, 0))
    }

    fn word(memory: &SharedBytes, at: usize) -> u64 {
        let mut word = [0; 8];
        memory.copy_out(at as u64, &mut word);
        u64::from_le_bytes(word)
    }

    #[test]
    fn what_is_written_behind_the_end_is_not_taken() {
        let (mut ring, mut memory) = ring(16);
        memory.copy_in(BYTES as u64, b"0123456789");
        memory.copy_in(WRITTEN as u64, &5_u64.to_le_bytes());
        memory.copy_in(CLOSED as u64, &1_u64.to_le_bytes());
        assert_eq!(ring.look(false).map(|content| content.wanted), Ok(5));
        assert_eq!(ring.take(&mut [0; 2]), 2);
        memory.copy_in(WRITTEN as u64, &10_u64.to_le_bytes());
        memory.copy_in(CLOSED as u64, &0_u64.to_le_bytes());
        let content = RingContent { there: 8, wanted: 3, is_full: false };
        assert_eq!((ring.look(true), ring.is_over()), (Ok(content), false));
        let mut space = [0; 9];
        assert_eq!((ring.take(&mut space), &space[..3]), (3, &b"234"[..]));
        assert_eq!((ring.is_over(), ring.take(&mut space)), (true, 0));
    }

    #[test]
    fn counts_go_on_whatever_a_program_writes_there() {
        let (mut ring, mut memory) = ring(16);
        memory.copy_in(OVERRUNS as u64, &u64::MAX.to_le_bytes());
        memory.copy_in(UNDERRUNS as u64, &u64::MAX.to_le_bytes());
        for _ in 0..2 {
            ring.note_overrun();
        }
        ring.note_underrun();
        assert_eq!((word(&memory, OVERRUNS), word(&memory, UNDERRUNS)), (2, 1));
    }
}
