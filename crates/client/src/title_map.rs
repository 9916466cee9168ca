//! A title in memory, mapped into the program.

use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tactus_ring::shared::SharedBytes;

use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::protocol::{Reply, Request};

/// All bytes of a title, in place: reading them is no request and costs no copy, at any size.
///
/// The server reads the title into memory once for all programs that map it. The memory holds one
/// version of the title, and nobody changes it. It is taken back when the title is closed, so a map
/// lives no longer than its [`Title`](crate::Title).
pub struct TitleMap<'a> {
    data: SharedBytes,
    len: usize,
    _title: PhantomData<&'a ()>,
}

/// The memory file of a title, for reading only.
#[derive(Debug)]
pub struct TitleMemory {
    /// The file.
    pub file: OwnedFd,
    /// Where the title begins in it, in bytes.
    pub first: u64,
    /// The length of the title in bytes.
    pub len: u64,
}

impl TitleMemory {
    pub(crate) fn new(connection: &Connection, handle: u32) -> Result<Self> {
        let (reply, files) = connection.ask_for_files(&Request::Map { handle })?;
        let Reply::Mapped { first, len } = reply else { return Err(unexpected(reply)) };
        let file = files.into_iter().next().ok_or(NO_FILE)?;
        Ok(Self { file, first, len })
    }
}

impl TitleMap<'_> {
    pub(crate) fn new(connection: &Connection, handle: u32) -> Result<Self> {
        let TitleMemory { file, first, len } = TitleMemory::new(connection, handle)?;
        let (first, len) = match (usize::try_from(first), usize::try_from(len)) {
            (Ok(first), Ok(len)) if first.checked_add(len).is_some() => (first, len),
            _ => return Err(TOO_LARGE),
        };
        let mapping = Mapping::of_title(file.as_fd(), first + len)
            .map_err(|error| Error::system(&error, "the title cannot be mapped"))?;
        let data = SharedBytes::new(Arc::new(mapping), first);
        Ok(Self { data, len, _title: PhantomData })
    }
}

impl Deref for TitleMap<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the server has sealed the content before it sent the file, fills it before its
        // reply, and keeps it until the title is closed, which outlives `self`.
        unsafe { self.data.bytes(0, self.len) }
    }
}

impl std::fmt::Debug for TitleMap<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TitleMap").field("len", &self.len).finish_non_exhaustive()
    }
}

const TOO_LARGE: Error =
    Error::new(Errno::OVERFLOW, "the title does not fit into the address space");
const NO_FILE: Error = Error::new(Errno::PROTO, "the server sent no memory of the title");
