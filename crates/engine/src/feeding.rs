//! What both link servers have in common: how bytes come to them, where these lie, and what is told of it.
//!
//! Promise: a part of a block that has been fed is held by its lease until it is given back. Nothing here knows by what it
//! leaves.

mod moved;
mod window;

use tactus_core::units::Bytes;
use tactus_ring::arena::{Lease, View};

pub(crate) use moved::Moved;
pub(crate) use window::{Second, Window};

/// Where the bytes of a volume's blocks are, as long as they are leased.
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

/// A part of a block that is to be sent.
pub(crate) struct Fed {
    pub(crate) lease: Lease,
    pub(crate) at: u32,
    pub(crate) len: u32,
    /// Where it lies in the file.
    pub(crate) offset: Bytes,
}
