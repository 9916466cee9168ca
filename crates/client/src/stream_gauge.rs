//! Whether a stream has something new, for the event loop of its client.

use std::sync::atomic::{AtomicU64, Ordering};

use tactus_core::local::stream::{END, StreamEnd};
use tactus_ring::shared::{ByteReader, SharedWord, Words};

/// What the event loop of a client looks at: whether a stream has something new.
pub(crate) struct StreamGauge {
    written: SharedWord,
    end: SharedWord,
    /// The values at the last look of the program.
    seen_written: AtomicU64,
    seen_end: AtomicU64,
}

impl StreamGauge {
    /// The gauge of a new ring.
    pub(crate) fn new(words: Words, ring: &ByteReader) -> Self {
        Self {
            written: ring.published(),
            end: SharedWord::new(words, END),
            seen_written: AtomicU64::new(0),
            seen_end: AtomicU64::new(0),
        }
    }

    /// Whether bytes or the end have come since the program has looked.
    pub(crate) fn has_news(&self) -> bool {
        self.written.load() != self.seen_written.load(Ordering::Relaxed)
            || self.end.load() != self.seen_end.load(Ordering::Relaxed)
    }

    /// The end, if it has come. To be called before a look for bytes: all bytes are there then.
    pub(crate) fn end(&self) -> Option<StreamEnd> {
        let word = self.end.load();
        self.seen_end.store(word, Ordering::Relaxed);
        StreamEnd::decode(word)
    }

    /// The program has looked at the bytes up to this position of the ring.
    pub(crate) fn note_look(&self, written: u64) {
        self.seen_written.store(written, Ordering::Relaxed);
    }
}
