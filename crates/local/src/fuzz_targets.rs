//! The ring of a recording as a function of bytes: what a program may write into its memory.
//!
//! Promise: whatever one program writes there, the server does not panic, takes each byte once and
//! as it lies in the ring at that time, never more than was claimed, and comes to an end when the
//! program has let the recording go. Compiled for tests and fuzzing only.

use std::sync::Arc;

use tactus_core::local::stream::{BYTES, CLOSED, StreamEnd, TAKEN, WRITTEN};
use tactus_engine::fuzz_targets::take;
use tactus_ring::arena::HeapRegion;
use tactus_ring::shared::{SharedBytes, SharedMemory};

use crate::errno::EPROTO;
use crate::recording_ring::RecordingRing;

/// Room of the ring: short, so that it is full often, and no power of two.
const CAPACITY: u64 = 600;

/// Plays the bytes as steps of a program and of the server that records. Returns whether the
/// program has kept to the protocol.
pub fn recording(script: &[u8]) -> bool {
    let region = HeapRegion::new(BYTES + CAPACITY as usize);
    let memory: Arc<dyn SharedMemory> = Arc::new(region);
    let mut steps = Steps {
        rest: script,
        ring: RecordingRing::new(&memory, CAPACITY),
        memory: SharedBytes::new(memory, 0),
        written: 0,
        taken: 0,
        most: u64::MAX,
        is_let_go: false,
    };
    while !steps.rest.is_empty() {
        if steps.step() == Outcome::Broken {
            return false;
        }
    }
    // The program has gone: what counts is taken in two pieces at most, whatever comes behind it.
    steps.is_let_go = true;
    for _ in 0..3 {
        if steps.turn(CAPACITY as usize, u8::MAX) == Outcome::Broken {
            return false;
        }
        steps.claim(1);
    }
    assert!(steps.ring.is_over(), "the recording goes on");
    steps.ring.end(StreamEnd::Complete);
    true
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The recording goes on.
    Going,
    /// The program was caught at a lie, and is cut off.
    Broken,
}

struct Steps<'a> {
    rest: &'a [u8],
    ring: RecordingRing,
    /// The memory, as the program sees it.
    memory: SharedBytes,
    /// The position that an honest program would have written.
    written: u64,
    /// Bytes that the server has taken.
    taken: u64,
    /// The most that it may take, from the moment on at which it knows that no more come.
    most: u64,
    is_let_go: bool,
}

impl Steps<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        take(&mut self.rest)
    }

    fn step(&mut self) -> Outcome {
        let [step] = self.take();
        match step {
            // Any word, those of the server included.
            b'w' => {
                let at = u64::from(u16::from_le_bytes(self.take())) * 8 % BYTES as u64;
                let word: [u8; 8] = self.take();
                self.memory.copy_in(at, &word);
            }
            // Any bytes of the ring, those that are under way included.
            b'r' => {
                let [low, high, byte] = self.take();
                let at = u64::from(u16::from_le_bytes([low, high])) % CAPACITY;
                self.memory.copy_in(BYTES as u64 + at, &[byte]);
            }
            // As an honest program does.
            b'b' => {
                let [len] = self.take();
                let room = CAPACITY.saturating_sub(self.written.wrapping_sub(self.taken));
                for nth in 0..(u64::from(len) * 4).min(room) {
                    let at = BYTES as u64 + self.written.wrapping_add(nth) % CAPACITY;
                    self.memory.copy_in(at, &[len.wrapping_add(nth as u8)]);
                }
                self.claim((u64::from(len) * 4).min(room));
            }
            b'c' => self.memory.copy_in(CLOSED as u64, &1_u64.to_le_bytes()),
            b'g' => self.is_let_go = true,
            b'o' => self.ring.note_overrun(),
            b'u' => self.ring.note_underrun(),
            b'd' => self.ring.set_durable(self.taken),
            // A turn of the server, with as much space as the disk has.
            b't' => {
                let [len, pieces] = self.take();
                return self.turn(1 + usize::from(len), pieces);
            }
            _ => {}
        }
        Outcome::Going
    }

    /// The program says that it has written `more` bytes.
    fn claim(&mut self, more: u64) {
        self.written = self.written.wrapping_add(more);
        self.memory.copy_in(WRITTEN as u64, &self.written.to_le_bytes());
    }

    /// The server takes what is there, into so many pieces of space.
    fn turn(&mut self, len: usize, pieces: u8) -> Outcome {
        let was_closed = self.is_let_go || self.word(CLOSED) != 0;
        let found = match self.ring.look(self.is_let_go) {
            Ok(found) => found,
            Err((errno, _)) => {
                assert_eq!(errno, EPROTO);
                return Outcome::Broken;
            }
        };
        assert!(found.wanted <= found.there && found.there <= CAPACITY);
        assert_eq!(found.is_full, found.there == CAPACITY);
        if was_closed {
            self.most = self.most.min(self.taken + found.there);
        }
        let mut left = found.wanted;
        for _ in 0..pieces {
            let mut space = vec![0; len.min(left as usize)];
            if space.is_empty() {
                break;
            }
            let at = self.taken % CAPACITY;
            let mut there = vec![0; space.len().min((CAPACITY - at) as usize)];
            self.memory.copy_out(BYTES as u64 + at, &mut there);
            let count = self.ring.take(&mut space);
            assert!(count > 0 && space[..count] == there[..count], "as it lies there");
            left -= count as u64;
            self.taken += count as u64;
            assert_eq!(self.word(TAKEN), self.taken);
        }
        assert!(self.taken <= self.most, "{} of {} bytes", self.taken, self.most);
        assert_eq!(self.ring.is_over(), self.taken == self.most);
        Outcome::Going
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.memory.copy_out(at as u64, &mut word);
        u64::from_le_bytes(word)
    }
}
