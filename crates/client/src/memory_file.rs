//! A title that a program builds in memory, as a memory file.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tactus_core::local::Operation;

use crate::completion::WriteRequest;
use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::protocol::{Origin, Replace, Reply, Request};
use crate::writer::{Writer, time_of};

/// A title that a program builds in memory, as the memory file that it shares with the server: for
/// a language that maps files itself. It is a [`MemoryWriter`](crate::MemoryWriter) without the
/// mapping.
///
/// The file only becomes longer, so a mapping of it stays valid. Bytes that are final
/// ([`written_back`](Self::written_back)) must not be changed: the server may have taken them.
pub struct MemoryFile {
    writer: Writer,
    file: OwnedFd,
    first: u64,
    /// Bytes that are there.
    len: u64,
    limit: u64,
    /// Bytes that are final.
    end: u64,
    upload: String,
}

impl MemoryFile {
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        path: &str,
        replace: Replace,
        origin: Origin,
    ) -> Result<Self> {
        let request = Request::CreateInMemory { title: path.to_owned(), replace, origin };
        let (reply, files) = connection.ask_for_files(&request)?;
        let Reply::CreatedInMemory { writer, first, len, end, limit, upload } = reply else {
            return Err(unexpected(reply));
        };
        let writer = Writer::in_memory(Arc::clone(connection), writer);
        let file = files.into_iter().next().ok_or(NO_FILE)?;
        let is_possible = end <= len && len <= limit && first.checked_add(limit).is_some();
        if !is_possible {
            return Err(NO_FILE);
        }
        Ok(Self { writer, file, first, len, limit, end, upload })
    }

    /// Where the title begins in the file, in bytes.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number of bytes that are there.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no bytes are there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As [`MemoryWriter::limit`](crate::MemoryWriter::limit).
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// As [`MemoryWriter::written_back`](crate::MemoryWriter::written_back).
    #[must_use]
    pub fn written_back(&self) -> u64 {
        self.end
    }

    /// As [`MemoryWriter::upload`](crate::MemoryWriter::upload).
    #[must_use]
    pub fn upload(&self) -> &str {
        &self.upload
    }

    /// As [`MemoryWriter::grow`](crate::MemoryWriter::grow).
    ///
    /// # Errors
    /// As there.
    pub fn grow(&mut self, len: u64) -> Result<()> {
        if len <= self.len {
            return Ok(());
        }
        if len > self.limit {
            return Err(TOO_LONG);
        }
        self.writer.request(Operation::Grow, len)?;
        self.len = len;
        Ok(())
    }

    /// As [`MemoryWriter::write_back`](crate::MemoryWriter::write_back).
    ///
    /// # Errors
    /// As there.
    pub fn write_back(&mut self, end: u64) -> Result<()> {
        if self.finalise(end)? {
            self.writer.request(Operation::WriteBack, end)?;
        }
        Ok(())
    }

    /// As [`MemoryWriter::sync`](crate::MemoryWriter::sync).
    ///
    /// # Errors
    /// As there.
    pub fn sync(&mut self, end: u64) -> Result<()> {
        self.write_back(end)?;
        self.writer.request(Operation::Sync, 0)
    }

    /// As [`MemoryWriter::publish_at`](crate::MemoryWriter::publish_at); with a time of zero as
    /// [`MemoryWriter::publish`](crate::MemoryWriter::publish).
    ///
    /// # Errors
    /// As there.
    pub fn publish_at(mut self, len: u64, modified: i64) -> Result<()> {
        let modified = time_of(modified)?;
        self.write_back(len)?;
        self.writer.request(Operation::Publish, modified)
    }

    /// As [`MemoryWriter::abort`](crate::MemoryWriter::abort).
    ///
    /// # Errors
    /// As there.
    pub fn abort(self) -> Result<()> {
        self.writer.abort()
    }

    pub(crate) fn write_back_request(&mut self, end: u64) -> Result<WriteRequest<'_>> {
        self.finalise(end)?;
        Ok(WriteRequest::write_back(&self.writer, end))
    }

    pub(crate) fn sync_request(&self) -> WriteRequest<'_> {
        WriteRequest::sync(&self.writer)
    }

    /// Makes the first `end` bytes final. Returns whether some of them were not.
    fn finalise(&mut self, end: u64) -> Result<bool> {
        if end < self.end || end > self.len {
            return Err(NOT_THERE);
        }
        // The server may take bytes even if the request fails.
        let before = std::mem::replace(&mut self.end, end);
        Ok(before < self.end)
    }
}

impl AsFd for MemoryFile {
    /// The memory file, open for reading and writing.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryFile");
        shown.field("len", &self.len).field("written_back", &self.end);
        shown.field("upload", &self.upload).finish_non_exhaustive()
    }
}

const NO_FILE: Error = Error::new(Errno::PROTO, "the server sent no memory of the title");
const TOO_LONG: Error =
    Error::new(Errno::NOMEM, "no title in memory can be so long; see [local] titles_max");
const NOT_THERE: Error =
    Error::new(Errno::INVAL, "the bytes are not there, or more of them are final already");
