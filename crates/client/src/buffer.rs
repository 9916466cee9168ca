//! Buffers: parts of the memory that the server shares, in which it places bytes of titles.
//!
//! Promise: a buffer is the program's alone. While a request is under way in it, the request owns
//! it, so the program cannot touch it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::connection::Connection;
use crate::table::Extent;

/// A part of the shared data, read in place. It begins at a page, and is free again on drop.
pub struct Buffer {
    connection: Arc<Connection>,
    /// `None` only while it is taken apart.
    extent: Option<Extent>,
}

impl Buffer {
    /// A buffer of pages that belong to nobody else.
    pub(crate) fn new(connection: Arc<Connection>, extent: Extent) -> Self {
        Self { connection, extent: Some(extent) }
    }

    pub(crate) fn belongs_to(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }

    /// Its pages, which now belong to the caller.
    pub(crate) fn into_extent(mut self) -> Extent {
        self.extent.take().expect("a buffer has its pages")
    }

    fn extent(&self) -> Extent {
        self.extent.expect("a buffer has its pages")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Extent { pages, len } = self.extent();
        // SAFETY: the pages are this buffer's alone, and the server, which is trusted, writes only
        // where a request is under way.
        unsafe { self.connection.data.bytes(pages.at(), len as usize) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Extent { pages, len } = self.extent();
        // SAFETY: as in `deref`; in this program nobody else has a slice of these pages, because
        // this buffer is borrowed mutably.
        unsafe { self.connection.data.bytes_mut(pages.at(), len as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(extent) = self.extent {
            self.connection.state().pages.give_back(extent.pages);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} bytes", self.len())
    }
}
