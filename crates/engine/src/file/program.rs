//! The side of a program for tests: its ends of the rings, its data, and the marks of sleep.
//!
//! It keeps no table of requests and checks nothing: what it writes is the choice of a test. Real
//! programs use the library `tactus-client`. Compiled for tests, fuzzing and the simulator only.

use std::sync::Arc;

use tactus_core::local::{ANSWER_WORDS, REQUEST_WORDS, RING_SLOTS, layout};
use tactus_ring::shared::{
    Receiver, RingLayout, Sender, SharedBytes, SharedMemory, SleepMark, Words,
};

use crate::message::ClientId;

/// A program that shares memory with a file server.
pub struct Program {
    /// Which client it is.
    pub id: ClientId,
    /// Its requests.
    pub requests: Sender<REQUEST_WORDS>,
    /// Their answers.
    pub answers: Receiver<ANSWER_WORDS>,
    /// Set while the server sleeps.
    pub server_mark: SleepMark,
    /// Set while the program sleeps.
    pub own_mark: SleepMark,
    /// What reads fill.
    pub data: SharedBytes,
    /// All of the memory.
    pub memory: SharedBytes,
    /// Reads so far.
    pub(super) reads: u64,
}

impl Program {
    /// The program's side of `memory`, which is that of [`LocalClient::new`].
    ///
    /// # Panics
    /// If the memory has no room for the rings.
    ///
    /// [`LocalClient::new`]: crate::message::LocalClient::new
    pub fn new(id: ClientId, memory: Arc<dyn SharedMemory>) -> Self {
        let words = Words::new(Arc::clone(&memory));
        Self {
            id,
            requests: Sender::new(words.clone(), RingLayout::new(layout::REQUESTS, RING_SLOTS)),
            answers: Receiver::new(words.clone(), RingLayout::new(layout::ANSWERS, RING_SLOTS)),
            server_mark: SleepMark::new(words.clone(), layout::SERVER_ASLEEP),
            own_mark: SleepMark::new(words, layout::CLIENT_ASLEEP),
            data: SharedBytes::new(Arc::clone(&memory), layout::DATA),
            memory: SharedBytes::new(memory, 0),
            reads: 0,
        }
    }

    /// Writes one word of the memory, at this byte.
    ///
    /// # Panics
    /// If the word does not lie within the memory.
    pub fn write(&mut self, at: usize, word: u64) {
        self.memory.copy_in(at as u64, &word.to_le_bytes());
    }

    /// Reads one word of the memory, at this byte.
    ///
    /// # Panics
    /// If the word does not lie within the memory.
    pub fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.memory.copy_out(at as u64, &mut word);
        u64::from_le_bytes(word)
    }
}
