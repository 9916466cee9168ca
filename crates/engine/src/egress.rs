//! Egress, common to both link servers: how bytes reach them, where the bytes lie, and which
//! answers they give.
//!
//! Promise: a part of a block that has been fed is held by its lease until it is returned. This
//! module does not depend on the output.

mod moved;
mod rings;
mod window;

use tactus_core::units::Bytes;
use tactus_ring::arena::{Lease, View};

pub(crate) use moved::StreamSet;
pub(crate) use rings::{DeliveryEnd, DeliveryRings};
pub(crate) use window::{Second, Window};

/// The memory of a volume's blocks, as long as they are leased.
#[derive(Clone)]
pub enum Memory {
    /// In an arena, sent by a copy.
    Arena(View),
    /// In the kernel's page cache, sent by reference.
    PageCache,
}

impl Memory {
    /// The bytes, if they are in an arena.
    pub(crate) fn view(&self) -> Option<&View> {
        match self {
            Self::Arena(view) => Some(view),
            Self::PageCache => None,
        }
    }
}

/// A part of a block to send.
pub(crate) struct BlockPart {
    pub(crate) lease: Lease,
    pub(crate) at: u32,
    pub(crate) len: u32,
    /// Its offset in the file.
    pub(crate) offset: Bytes,
}
