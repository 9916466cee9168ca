//! Whether a stream or a recording has something new, for the event loop of its client.

use std::sync::atomic::{AtomicU64, Ordering};

use tactus_core::local::stream::{END, StreamEnd};
use tactus_ring::shared::{SharedWord, Words};

/// What the event loop of a client looks at: whether a ring has something new.
pub(crate) struct StreamGauge {
    /// What the server moves: the bytes written of a stream, the bytes taken of a recording.
    position: SharedWord,
    end: SharedWord,
    /// The values at the last look of the program.
    seen_position: AtomicU64,
    seen_end: AtomicU64,
}

impl StreamGauge {
    /// The gauge of a new ring, in which the server moves `position`.
    pub(crate) fn new(words: Words, position: SharedWord) -> Self {
        Self {
            position,
            end: SharedWord::new(words, END),
            seen_position: AtomicU64::new(0),
            seen_end: AtomicU64::new(0),
        }
    }

    /// Whether bytes, room or the end have come since the program has looked.
    pub(crate) fn has_news(&self) -> bool {
        self.position.load() != self.seen_position.load(Ordering::Relaxed)
            || self.end.load() != self.seen_end.load(Ordering::Relaxed)
    }

    /// The end, if it has come. To be called before a look for bytes: all bytes are there then.
    pub(crate) fn end(&self) -> Option<StreamEnd> {
        let word = self.end.load();
        self.seen_end.store(word, Ordering::Relaxed);
        StreamEnd::decode(word)
    }

    /// The program has looked at the ring up to this position.
    pub(crate) fn note_look(&self, position: u64) {
        self.seen_position.store(position, Ordering::Relaxed);
    }
}
