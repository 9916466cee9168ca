//! A title that a program builds in memory.

use std::fmt;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use tactus_core::local::Operation;

use crate::completion::WriteRequest;
use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::memory::GrowingMapping;
use crate::protocol::{Origin, Replace, Reply, Request};
use crate::writer::{Writer, time_of};

/// A title that a program builds in place, in memory that it shares with the server, in any order.
///
/// Memory comes by [`grow`](Self::grow), and never moves. The program says which bytes are final,
/// from the first one on: [`write_back`](Self::write_back), [`sync`](Self::sync) and
/// [`publish`](Self::publish) have the server store them, in the time that the disk has left. Final
/// bytes can still be read here, and not be changed.
///
/// What was synced outlives the program and the server: it is an open upload
/// ([`upload`](Self::upload)) until it is published, [aborted](Self::abort) or expired. All other
/// bytes are lost if the program ends, however it ends.
pub struct MemoryWriter {
    writer: Writer,
    mapping: GrowingMapping,
    /// Where the title begins in the mapping.
    first: usize,
    /// Bytes that are there.
    len: usize,
    limit: u64,
    /// Bytes that are final.
    end: usize,
    upload: String,
}

impl MemoryWriter {
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
        let whole = first.checked_add(limit).and_then(|whole| usize::try_from(whole).ok());
        let whole = whole.filter(|_| end <= len && len <= limit).ok_or(NO_FILE)?;
        let mapping = GrowingMapping::new(file.as_fd(), whole)
            .map_err(|error| Error::system(&error, "the memory of the title cannot be mapped"))?;
        let (first, len, end) = (first as usize, len as usize, end as usize);
        Ok(Self { writer, mapping, first, len, limit, end, upload })
    }

    /// The most bytes that its memory can ever have.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The number of bytes that are final.
    #[must_use]
    pub fn written_back(&self) -> u64 {
        self.end as u64
    }

    /// What it is continued by after a crash, if it was synced:
    /// [`Client::resume_in_memory`](crate::Client::resume_in_memory), or over HTTP as
    /// `/api/v1/uploads/UPLOAD`.
    #[must_use]
    pub fn upload(&self) -> &str {
        &self.upload
    }

    /// Has memory for at least `len` bytes from now on, new ones zero. Quota and space for a title
    /// of this length are claimed as well.
    ///
    /// # Errors
    /// `ENOMEM` if the memory for titles of programs is in use (`[local] titles_max`), `EDQUOT`,
    /// `ENOSPC`, or `EFBIG`. The title has the room that it had before, and can be published.
    pub fn grow(&mut self, len: u64) -> Result<()> {
        if len <= self.len as u64 {
            return Ok(());
        }
        if len > self.limit {
            return Err(TOO_LONG);
        }
        self.writer.request(Operation::Grow, len)?;
        // Not beyond the limit, and so not beyond the mapping.
        self.len = len as usize;
        Ok(())
    }

    /// The bytes that are not final, to be changed: from [`written_back`](Self::written_back) on.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (first, len) = (self.first + self.end, self.len - self.end);
        // SAFETY: the server has made `len` bytes from `first` on, in a file that cannot shrink. It
        // only reads them until the writer ends, which `self` owns.
        unsafe { self.mapping.bytes_mut(first, len) }
    }

    /// Makes the first `end` bytes final, and waits until the server has taken them: into its own
    /// memory, on the way to the disk.
    ///
    /// # Errors
    /// `EINVAL` if there are not so many bytes, or more are final already; else as
    /// [`Writer::write_all`]. After another error than `EINVAL` the title cannot be completed.
    pub fn write_back(&mut self, end: u64) -> Result<()> {
        if self.finalise(end)? {
            self.writer.request(Operation::WriteBack, end)?;
        }
        Ok(())
    }

    /// The same as a request, for [`Client::submit_write`](crate::Client::submit_write) or
    /// [`Client::write`](crate::Client::write): the program goes on while the disk takes the bytes.
    /// They are final from now on.
    ///
    /// # Errors
    /// `EINVAL` as for [`Self::write_back`].
    pub fn write_back_request(&mut self, end: u64) -> Result<WriteRequest<'_>> {
        self.finalise(end)?;
        Ok(WriteRequest::write_back(&self.writer, end))
    }

    /// A request that is answered when all final bytes are on stable storage, as by
    /// [`Self::sync`].
    pub fn sync_request(&self) -> WriteRequest<'_> {
        WriteRequest::sync(&self.writer)
    }

    /// Makes the first `end` bytes final. Returns whether some of them were not.
    fn finalise(&mut self, end: u64) -> Result<bool> {
        if end < self.end as u64 || end > self.len as u64 {
            return Err(NOT_THERE);
        }
        // The server may take bytes even if the request fails.
        let before = std::mem::replace(&mut self.end, end as usize);
        Ok(before < self.end)
    }

    /// The same, and waits until they are on stable storage. They outlive a crash of this program,
    /// of the server and of the machine.
    ///
    /// # Errors
    /// As [`Self::write_back`]; `EIO` if the disk has failed.
    pub fn sync(&mut self, end: u64) -> Result<()> {
        self.write_back(end)?;
        self.writer.request(Operation::Sync, 0)
    }

    /// Makes a title of the first `len` bytes. When this returns, bytes and name are on stable
    /// storage, and every door of the server shows it.
    ///
    /// # Errors
    /// As [`Self::write_back`] and [`Writer::publish`]; `ESTALE` for the next version of a title of
    /// which there is another version by now.
    pub fn publish(self, len: u64) -> Result<()> {
        self.publish_at(len, 0)
    }

    /// The same with a modification time, in nanoseconds since 1970; zero: the time of publishing.
    ///
    /// # Errors
    /// As [`Self::publish`]; `EINVAL` for a time before 1970.
    pub fn publish_at(mut self, len: u64, modified: i64) -> Result<()> {
        let modified = time_of(modified)?;
        self.write_back(len)?;
        self.writer.request(Operation::Publish, modified)
    }

    /// Drops all bytes, even if they were synced. When this returns, their space and their quota
    /// are free again.
    ///
    /// # Errors
    /// `ECONNRESET` if the server has gone.
    pub fn abort(self) -> Result<()> {
        self.writer.abort()
    }
}

impl Deref for MemoryWriter {
    type Target = [u8];

    /// All bytes that are there, final or not.
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`; only this program writes, for which it borrows `self` mutably.
        unsafe { self.mapping.bytes(self.first, self.len) }
    }
}

impl fmt::Debug for MemoryWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryWriter");
        shown.field("len", &self.len).field("written_back", &self.end);
        shown.field("upload", &self.upload).finish_non_exhaustive()
    }
}

const NO_FILE: Error = Error::new(Errno::PROTO, "the server sent no memory of the title");
const TOO_LONG: Error =
    Error::new(Errno::NOMEM, "no title in memory can be so long; see [local] titles_max");
const NOT_THERE: Error =
    Error::new(Errno::INVAL, "the bytes are not there, or more of them are final already");
