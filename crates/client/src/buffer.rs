//! Buffers: parts of the memory that the server shares, in which it places bytes of titles.
//!
//! Promise: a buffer is the program's alone. While a request is under way in it, the request owns
//! it, so the program cannot touch it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::connection::Connection;
use crate::pages::PageRange;
use crate::table::Extent;

/// A part of the shared data, read in place. It begins at a page, and is free again on drop.
pub struct Buffer {
    connection: Arc<Connection>,
    /// `None` only while it is taken apart.
    extent: Option<Extent>,
}

/// A [`Buffer`] as numbers, for a language without owners: it is not free again by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawBuffer {
    /// The first byte.
    pub data: *mut u8,
    /// The number of bytes.
    pub len: u32,
    /// Its pages.
    pub pages: u64,
}

impl Buffer {
    /// A buffer of pages that the caller has taken from the table of free pages.
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

    /// The buffer as numbers, until [`Client::buffer_from_raw`](crate::Client::buffer_from_raw).
    #[must_use]
    pub fn into_raw(mut self) -> RawBuffer {
        let data = self.as_mut_ptr();
        let Extent { pages, len } = self.into_extent();
        RawBuffer { data, len, pages: pages.number() }
    }

    /// The buffer of these numbers.
    ///
    /// # Safety
    /// They are from [`Self::into_raw`] of a buffer of this connection, and none was made of them
    /// since.
    pub(crate) unsafe fn from_raw(connection: Arc<Connection>, raw: RawBuffer) -> Self {
        let extent = Extent { pages: PageRange::of_number(raw.pages), len: raw.len };
        Self::new(connection, extent)
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
        // SAFETY: as in `deref`. The mutable borrow of this buffer excludes every other slice of
        // its pages in this program.
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
