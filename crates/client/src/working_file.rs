//! A title that is written in place, through a descriptor of its file.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tactus_core::local::{Operation, Request};
use tactus_core::units::{Bytes, MonoTime};

use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::protocol::{Change, Reply};
use crate::table::{Destination, Extent, Outcome};

/// A title that is written in place: any byte of it, any number of times, by the system calls for
/// files. It is no title before [`Self::publish`]: until then every other reader has the version
/// before it. After [`Self::sync`] bytes and name survive the end of the server and of the machine,
/// which then make a title of it; so does dropping it. Dropped before both, nothing of it is left.
pub struct WorkingFile {
    connection: Arc<Connection>,
    writer: u32,
    number: u64,
    permitted: AtomicU64,
    is_discarded: AtomicBool,
}

/// A new working file.
#[derive(Debug)]
pub struct NewWorkingFile {
    /// What it is requested by.
    pub working: WorkingFile,
    /// Its file for reading and writing, empty. It must be closed before [`WorkingFile::publish`].
    /// Only [`WorkingFile::permitted`] bytes may be written.
    pub write: File,
    /// The same file for reading. It may stay open.
    pub read: File,
}

impl WorkingFile {
    pub(crate) fn new(
        connection: Arc<Connection>,
        (writer, number): (u32, u64),
        permitted: u64,
    ) -> Self {
        let permitted = AtomicU64::new(permitted);
        Self { connection, writer, number, permitted, is_discarded: AtomicBool::new(false) }
    }

    /// The number of the file, which the title has as well ([`crate::Stat::file`]).
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How long the file may be by now, in bytes.
    #[must_use]
    pub fn permitted(&self) -> u64 {
        self.permitted.load(Ordering::Acquire)
    }

    /// Claims quota and space for a length of `len` bytes. The server drops the bytes of a file
    /// that is longer than is permitted.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EFBIG`, `EROFS` if the volume has failed.
    pub fn grow(&self, len: u64) -> Result<()> {
        if len <= self.permitted() {
            return Ok(());
        }
        match self.connection.ask(&Change::Grow { writer: self.writer, len }.into())? {
            Reply::Granted { len } => {
                self.permitted.fetch_max(len, Ordering::AcqRel);
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    }

    /// From now on the title gets the name `path`, over a title that has it. As durable when this
    /// returns as the bytes are.
    ///
    /// # Errors
    /// As [`crate::Client::create`].
    pub fn retarget(&self, path: &str) -> Result<()> {
        let retarget = Change::Retarget { writer: self.writer, to: path.to_owned() };
        match self.connection.ask(&retarget.into())? {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Waits until all bytes that were written before are on stable storage, with the name that
    /// the title is to have. After the first call of it, `fdatasync` of the descriptor is enough.
    ///
    /// # Errors
    /// `EIO` if the disk has failed; `ETIMEDOUT` if it takes longer than `patience`.
    pub fn sync(&self, patience: Option<Duration>) -> Result<()> {
        self.request(Operation::Sync, patience)
    }

    /// Makes a title of the file, over an older version. When this returns, every door of the
    /// server shows it. The descriptor for writing must be closed: while it is open, the server
    /// waits a moment, and then makes a title of a copy.
    ///
    /// # Errors
    /// As [`Self::sync`] and [`Self::grow`]; `EACCES` if this user lacks a right, `EISDIR`,
    /// `ENOTDIR`. Bytes that were synchronized are then kept for the next start of the server.
    pub fn publish(&self, patience: Option<Duration>) -> Result<()> {
        self.request(Operation::Publish, patience)
    }

    /// It loses its name: nothing is made of it, also after [`Self::sync`]. It can be written and
    /// can grow until this is dropped; quota and space are claimed as before.
    ///
    /// # Errors
    /// `ECONNRESET` if the server has gone.
    pub fn forget_name(&self) -> Result<()> {
        match self.connection.ask(&Change::Unname { writer: self.writer }.into())? {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Drops the file: it gets no name any more. Descriptors of it go on, within the length that
    /// is permitted: the server drops the bytes of a file that gets longer.
    ///
    /// # Errors
    /// `ECONNRESET` if the server has gone.
    pub fn abort(&self) -> Result<()> {
        if self.is_discarded.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        match self.connection.ask(&Change::Abandon { writer: self.writer, keeps: false }.into())? {
            Reply::Closed => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn request(&self, operation: Operation, patience: Option<Duration>) -> Result<()> {
        let (token, offset, len, at, when) = (0, Bytes(0), 0, 0, MonoTime(0));
        let request = Request { token, operation, handle: self.writer, offset, len, at, when };
        let deadline = patience.map(|patience| Instant::now() + patience);
        let token = loop {
            let mut state = self.connection.state();
            let destination = Destination::Caller(None);
            let token =
                self.connection.submit_request(&mut state, request, Extent::NONE, destination);
            self.connection.release(state);
            match token {
                // Other threads have all places of the ring; each gives its own back.
                Err(error)
                    if error.errno() == Errno::AGAIN.raw_os_error()
                        && deadline.is_none_or(|deadline| Instant::now() < deadline) =>
                {
                    std::thread::sleep(FULL_PAUSE);
                }
                token => break token?,
            }
        };
        let waited = self.connection.wait(deadline, |state| state.table.take(token));
        let outcome: Outcome = match waited {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                self.connection.state().abandon(token);
                return Err(Error::new(Errno::TIMEDOUT, "the server does not answer"));
            }
            Err(error) => {
                self.connection.state().abandon(token);
                return Err(error);
            }
        };
        self.connection.state().pages.give_back(outcome.buffer.pages);
        outcome.result.map(drop).map_err(|errno| self.connection.writer_failed(self.writer, errno))
    }
}

impl Drop for WorkingFile {
    fn drop(&mut self) {
        if !self.is_discarded.load(Ordering::Relaxed) {
            // After its end as well: the server forgets it.
            self.connection.tell(&Change::Abandon { writer: self.writer, keeps: true }.into());
        }
    }
}

impl fmt::Debug for WorkingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WorkingFile");
        shown.field("number", &self.number).finish_non_exhaustive()
    }
}

/// How long a thread waits for a place in the ring before it looks again.
const FULL_PAUSE: Duration = Duration::from_micros(200);
