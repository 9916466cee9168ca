//! What a delivery of blocks is fed: leases in order, and how far they have been sent.

use tactus_core::ports::FileHandle;
use tactus_core::units::Bytes;

use crate::pool::List;

/// The blocks of a delivery in memory.
pub(super) struct Feed {
    pub(super) volume: usize,
    /// What is sent from where the page cache holds the blocks.
    pub(super) file: FileHandle,
    pub(super) blocks: List,
    /// Bytes fed and not sent.
    pub(super) available: Bytes,
    pub(super) sent: Bytes,
    /// None while the title grows, or when it repeats.
    pub(super) len: Option<Bytes>,
    /// After its end the title begins again.
    pub(super) repeats: bool,
}

impl Feed {
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

    /// One past the last byte that may be sent: of a growing title what has been fed.
    pub(super) fn end(&self) -> Bytes {
        self.len.unwrap_or(self.fed())
    }

    /// The end is not known yet.
    pub(super) fn is_growing(&self) -> bool {
        self.len.is_none() && !self.repeats
    }
}
