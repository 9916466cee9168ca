//! A title that a program builds in memory.

use std::fmt;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::completion::WriteRequest;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::GrowingMapping;
use crate::memory_file::MemoryFile;
use crate::protocol::{Origin, Replace};

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
    file: MemoryFile,
    mapping: GrowingMapping,
}

impl MemoryWriter {
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        path: &str,
        replace: Replace,
        origin: Origin,
    ) -> Result<Self> {
        let file = MemoryFile::begin(connection, path, replace, origin)?;
        let whole = usize::try_from(file.first() + file.limit()).map_err(|_| TOO_LARGE)?;
        let mapping = GrowingMapping::new(file.as_fd(), whole)
            .map_err(|error| Error::system(&error, "the memory of the title cannot be mapped"))?;
        Ok(Self { file, mapping })
    }

    /// The same without the mapping, for a language that maps the file itself.
    #[must_use]
    pub fn into_file(self) -> MemoryFile {
        self.file
    }

    /// The most bytes that its memory can ever have.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.file.limit()
    }

    /// The number of bytes that are final.
    #[must_use]
    pub fn written_back(&self) -> u64 {
        self.file.written_back()
    }

    /// What it is continued by after a crash, if it was synced:
    /// [`Client::resume_in_memory`](crate::Client::resume_in_memory), or over HTTP as
    /// `/api/v1/uploads/UPLOAD`.
    #[must_use]
    pub fn upload(&self) -> &str {
        self.file.upload()
    }

    /// Has memory for at least `len` bytes from now on, new ones zero. Quota and space for a title
    /// of this length are claimed as well.
    ///
    /// # Errors
    /// `ENOMEM` if the memory for titles of programs is in use (`[local] titles_max`), `EDQUOT`,
    /// `ENOSPC`, or `EFBIG`. The title has the room that it had before, and can be published.
    pub fn grow(&mut self, len: u64) -> Result<()> {
        self.file.grow(len)
    }

    /// The bytes that are not final, to be changed: from [`written_back`](Self::written_back) on.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let [first, len, end] =
            [self.file.first(), self.file.len(), self.file.written_back()].map(in_mapping);
        // SAFETY: the server has made `len` bytes from `first` on, in a file that cannot shrink. It
        // only reads them until the writer ends, which `self` owns.
        unsafe { self.mapping.bytes_mut(first + end, len - end) }
    }

    /// Makes the first `end` bytes final, and waits until the server has taken them: into its own
    /// memory, on the way to the disk.
    ///
    /// # Errors
    /// `EINVAL` if there are not so many bytes, or more are final already; else as
    /// [`Writer::write_all`](crate::Writer::write_all). After another error than `EINVAL` the title
    /// cannot be completed.
    pub fn write_back(&mut self, end: u64) -> Result<()> {
        self.file.write_back(end)
    }

    /// The same as a request, for [`Client::submit_write`](crate::Client::submit_write) or
    /// [`Client::write`](crate::Client::write): the program goes on while the disk takes the bytes.
    /// They are final from now on.
    ///
    /// # Errors
    /// `EINVAL` as for [`Self::write_back`].
    pub fn write_back_request(&mut self, end: u64) -> Result<WriteRequest<'_>> {
        self.file.write_back_request(end)
    }

    /// A request that is answered when all final bytes are on stable storage, as by
    /// [`Self::sync`].
    pub fn sync_request(&self) -> WriteRequest<'_> {
        self.file.sync_request()
    }

    /// The same, and waits until they are on stable storage. They outlive a crash of this program,
    /// of the server and of the machine.
    ///
    /// # Errors
    /// As [`Self::write_back`]; `EIO` if the disk has failed.
    pub fn sync(&mut self, end: u64) -> Result<()> {
        self.file.sync(end)
    }

    /// Makes a title of the first `len` bytes. When this returns, bytes and name are on stable
    /// storage, and every door of the server shows it.
    ///
    /// # Errors
    /// As [`Self::write_back`] and [`Writer::publish`](crate::Writer::publish); `ESTALE` for the
    /// next version of a title of which there is another version by now.
    pub fn publish(self, len: u64) -> Result<()> {
        self.publish_at(len, 0)
    }

    /// The same with a modification time, in nanoseconds since 1970; zero: the time of publishing.
    ///
    /// # Errors
    /// As [`Self::publish`]; `EINVAL` for a time before 1970.
    pub fn publish_at(self, len: u64, modified: i64) -> Result<()> {
        self.file.publish_at(len, modified)
    }

    /// Drops all bytes, even if they were synced. When this returns, their space and their quota
    /// are free again.
    ///
    /// # Errors
    /// `ECONNRESET` if the server has gone.
    pub fn abort(self) -> Result<()> {
        self.file.abort()
    }
}

impl Deref for MemoryWriter {
    type Target = [u8];

    /// All bytes that are there, final or not.
    fn deref(&self) -> &[u8] {
        let [first, len] = [self.file.first(), self.file.len()].map(in_mapping);
        // SAFETY: as in `bytes_mut`; only this program writes, for which it borrows `self` mutably.
        unsafe { self.mapping.bytes(first, len) }
    }
}

/// A place within the mapping, whose length is a `usize`.
fn in_mapping(at: u64) -> usize {
    at as usize
}

impl fmt::Debug for MemoryWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryWriter");
        shown.field("len", &self.file.len()).field("written_back", &self.written_back());
        shown.field("upload", &self.upload()).finish_non_exhaustive()
    }
}

const TOO_LARGE: Error =
    Error::new(Errno::OVERFLOW, "the title does not fit into the address space");
