//! The send queue of a delivery of blocks: leases in order, and how far they have been sent.

use tactus_core::ports::FileHandle;
use tactus_core::units::Bytes;

use crate::pool::List;

/// The blocks of a delivery in memory.
pub(super) struct SendQueue {
    pub(super) volume: usize,
    /// The file, if the page cache holds the blocks.
    pub(super) file: FileHandle,
    pub(super) blocks: List,
    /// Bytes fed and not sent.
    pub(super) available: Bytes,
    pub(super) sent: Bytes,
    /// `None` while the title grows, or if it repeats.
    pub(super) len: Option<Bytes>,
    /// After its end the title begins again.
    pub(super) repeats: bool,
}

impl SendQueue {
    pub(super) const NONE: Self = Self {
        volume: 0,
        file: FileHandle(-1),
        blocks: List::EMPTY,
        available: Bytes(0),
        sent: Bytes(0),
        len: None,
        repeats: false,
    };

    /// Bytes fed so far.
    pub(super) fn fed(&self) -> Bytes {
        self.sent + self.available
    }

    /// One past the last byte that may be sent; for a growing title, one past the last byte fed.
    pub(super) fn end(&self) -> Bytes {
        self.len.unwrap_or(self.fed())
    }

    /// Whether the end is still unknown.
    pub(super) fn is_growing(&self) -> bool {
        self.len.is_none() && !self.repeats
    }
}
