//! The ring of a stream: memory that a local client shares, into which a link server sends.

use std::fmt;
use std::sync::Arc;

use tactus_core::local::layout;
use tactus_core::local::stream::{BYTES, END, StreamEnd, TAKEN, WRITTEN};
use tactus_core::ports::{SendResult, Waker};
use tactus_ring::shared::{ByteRingLayout, ByteWriter, SharedMemory, SharedWord, SleepMark, Words};

/// The server's side of the ring of a stream. Its deliveries, one at a time, continue in it.
pub struct StreamRing {
    bytes: ByteWriter,
    end: SharedWord,
    /// Set while the client sleeps.
    client_mark: SleepMark,
    /// Wakes the client. Never blocks.
    bell: Box<dyn Waker + Sync>,
}

/// Where the parts of a ring with `capacity` bytes lie in its memory.
#[must_use]
pub const fn ring_layout(capacity: usize) -> ByteRingLayout {
    ByteRingLayout { written: WRITTEN, taken: TAKEN, bytes: BYTES, capacity }
}

impl StreamRing {
    /// A ring in all of `memory`, which is new and zero. `client` is the memory of the client whose
    /// mark says whether it sleeps. `bell` wakes it, and must never block.
    ///
    /// # Panics
    /// If the memory has no room for a ring.
    #[must_use]
    pub fn new(
        memory: Arc<dyn SharedMemory>,
        client: Arc<dyn SharedMemory>,
        bell: Box<dyn Waker + Sync>,
    ) -> Self {
        let end = SharedWord::new(Words::new(Arc::clone(&memory)), END);
        let capacity = memory.len().checked_sub(BYTES).expect("a ring has a head");
        Self {
            bytes: ByteWriter::new(memory, ring_layout(capacity)),
            end,
            client_mark: SleepMark::new(Words::new(client), layout::CLIENT_ASLEEP),
            bell,
        }
    }

    /// The number of bytes that deliveries have written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.bytes.written()
    }

    /// Before the next delivery: the end of the one before is not the client's end.
    pub fn continue_stream(&self) {
        self.end.store(0);
    }

    /// Tells the client how the stream has ended. No delivery writes any more.
    pub fn end(&self, end: StreamEnd) {
        self.end.store(end.encode());
        self.ring();
    }

    /// Copies what there is room for.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> SendResult {
        self.sent(self.bytes.write(parts).map_err(|_| SendResult::Broken(EPROTO)))
    }

    /// Has `read` fill what there is room for, up to `len` bytes.
    pub(crate) fn send_read(
        &self,
        len: usize,
        read: impl FnMut(usize, &mut [u8]) -> Result<(), i32>,
    ) -> SendResult {
        match self.bytes.fill(len, read) {
            Ok(filled) => self.sent(filled.map_err(SendResult::Lost)),
            Err(_) => SendResult::Broken(EPROTO),
        }
    }

    fn sent(&self, sent: Result<usize, SendResult>) -> SendResult {
        match sent {
            Ok(0) => SendResult::Blocked,
            Ok(bytes) => {
                self.ring();
                SendResult::Some(bytes as u32)
            }
            Err(result) => result,
        }
    }

    fn ring(&self) {
        if self.client_mark.must_ring() {
            self.bell.wake();
        }
    }
}

impl fmt::Debug for StreamRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamRing").field("written", &self.written()).finish_non_exhaustive()
    }
}

/// The client has written a position that cannot be.
pub const EPROTO: i32 = 71;
