//! A title that is written.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use tactus_core::local::{Operation, Request};
use tactus_core::units::{Bytes, MonoTime};

use crate::buffer::Buffer;
use crate::connection::{Connection, State, unexpected};
use crate::error::{Error, Result};
use crate::protocol::{Change, Reply};
use crate::table::{Destination, Extent, Outcome, Token};
use crate::title::{NO_ROOM, PIECE};

/// A title that is written, from its first byte to its last. It has no name until it is published;
/// dropped before, nothing of it is left.
///
/// When a request has failed, the writer is over: further requests fail with the same error, and
/// the server has dropped all bytes. Only `ESPIPE` ends nothing, which this library never causes.
pub struct Writer {
    connection: Arc<Connection>,
    number: u32,
    /// The offset of the next write. Changed under the lock of the connection only, so that writes
    /// are in the ring in the order of their offsets.
    end: AtomicU64,
    /// What was synced of it outlives it.
    keeps: bool,
    /// The server has ended it.
    is_ended: bool,
}

/// One request of a writer, by numbers.
pub(crate) struct Part {
    pub(crate) operation: Operation,
    pub(crate) extent: Extent,
    pub(crate) len: u32,
    /// The modification time of a title that is published, or a number of bytes of one in memory.
    pub(crate) value: u64,
}

impl Writer {
    pub(crate) fn new(connection: Arc<Connection>, number: u32) -> Self {
        Self::with(connection, number, false)
    }

    /// The writer of a title that is built in memory.
    pub(crate) fn in_memory(connection: Arc<Connection>, number: u32) -> Self {
        Self::with(connection, number, true)
    }

    fn with(connection: Arc<Connection>, number: u32, keeps: bool) -> Self {
        Self { connection, number, end: AtomicU64::new(0), keeps, is_ended: false }
    }

    pub(crate) fn belongs_to(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }

    /// Bytes that were submitted so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    /// Whether no byte was submitted so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`, and waits until the server has them: in its own memory, on the way to the
    /// disk. They are copied into the shared data, in pieces of [`PIECE`] bytes at most, some of
    /// them at once. To build them in place, use
    /// [`Client::submit_write`](crate::Client::submit_write).
    ///
    /// # Errors
    /// `ENOBUFS` if buffers of the program leave no page of the data free, `EAGAIN` if its requests
    /// leave no place in the ring, `ENOSPC`, `EDQUOT`, `EFBIG`, or what else the server says. After
    /// an error the title cannot be completed.
    pub fn write_all(&self, bytes: &[u8]) -> Result<()> {
        let mut window = Window { writer: self, pieces: VecDeque::with_capacity(PIECES) };
        let mut rest = bytes;
        loop {
            while !rest.is_empty() && window.pieces.len() < PIECES {
                match self.submit_piece(rest) {
                    Ok((token, len)) => {
                        window.pieces.push_back(token);
                        rest = &rest[len..];
                    }
                    // There is room again when a piece has been taken.
                    Err(_) if !window.pieces.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            let Some(token) = window.pieces.pop_front() else { return Ok(()) };
            self.wait(token)?;
        }
    }

    /// Submits as many of `bytes` as there is room for in one piece. Returns their number.
    fn submit_piece(&self, bytes: &[u8]) -> Result<(Token, usize)> {
        let mut len = PIECE.min(bytes.len());
        let pages = loop {
            match self.connection.state().pages.take(len) {
                Some(pages) => break pages,
                None if len > SMALLEST => len = (len / 2).max(SMALLEST),
                None => return Err(NO_ROOM),
            }
        };
        let extent = Extent { pages, len: len as u32 };
        let mut buffer = Buffer::new(Arc::clone(&self.connection), extent);
        buffer.copy_from_slice(&bytes[..len]);
        let operation = Operation::Write;
        let extent = buffer.into_extent();
        let part = Part { operation, extent, len: len as u32, value: 0 };
        let mut state = self.connection.state();
        let token = self.submit(&mut state, part, Destination::Caller(None));
        self.connection.release(state);
        Ok((token?, len))
    }

    /// Waits until all bytes so far are on stable storage. They are no title yet: a power failure
    /// before [`Self::publish`] takes them like all of an unfinished title.
    ///
    /// # Errors
    /// As [`Self::write_all`]; `EIO` if the disk has failed.
    pub fn sync(&self) -> Result<()> {
        self.request(Operation::Sync, 0)
    }

    /// Makes a title of all bytes. When this returns, its bytes and its name are on stable storage,
    /// and every door of the server shows it. An older version of it is replaced in one step.
    ///
    /// # Errors
    /// As [`Self::write_all`]; `EEXIST` or `ENOENT` as
    /// [`WriteOptions::replace`](crate::WriteOptions::replace) says, `ENODATA` if it has fewer
    /// bytes than were declared, `EISDIR`, `EBUSY` if another client has locked the name.
    pub fn publish(self) -> Result<()> {
        self.request(Operation::Publish, 0)
    }

    /// The same with a modification time, in nanoseconds since 1970.
    ///
    /// # Errors
    /// As [`Self::publish`]; `EINVAL` for a time before 1970.
    pub fn publish_at(self, modified: i64) -> Result<()> {
        self.request(Operation::Publish, time_of(modified)?)
    }

    /// Drops all bytes. When this returns, their space and their quota are free again. A writer
    /// that is dropped does the same, and does not wait for it.
    ///
    /// # Errors
    /// `ECONNRESET` if the server has gone.
    pub fn abort(mut self) -> Result<()> {
        self.is_ended = true;
        match self.connection.ask(&Change::Abandon { writer: self.number, keeps: false }.into())? {
            Reply::Closed => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Submits a request, whose buffer belongs to it from here on, or is free on an error.
    pub(crate) fn submit(
        &self,
        state: &mut State,
        part: Part,
        destination: Destination,
    ) -> Result<Token> {
        let Part { operation, extent, len, value } = part;
        let has_bytes = operation == Operation::Write;
        let offset = if has_bytes { self.end.load(Ordering::Relaxed) } else { value };
        let (token, when) = (0, MonoTime(0));
        let (handle, offset, at) = (self.number, Bytes(offset), extent.pages.at());
        let request = Request { token, operation, handle, offset, len, at, when };
        let token = self.connection.submit_request(state, request, extent, destination)?;
        self.end.fetch_add(u64::from(len), Ordering::Relaxed);
        Ok(token)
    }

    /// Submits a request without bytes, and waits for its end.
    pub(crate) fn request(&self, operation: Operation, value: u64) -> Result<()> {
        let part = Part { operation, extent: Extent::NONE, len: 0, value };
        let mut state = self.connection.state();
        let token = self.submit(&mut state, part, Destination::Caller(None));
        self.connection.release(state);
        self.wait(token?)
    }

    fn wait(&self, token: Token) -> Result<()> {
        let waited = self.connection.wait(None, |state| state.table.take(token));
        let outcome: Outcome = match waited {
            Ok(outcome) => outcome.expect("a wait without a limit ends with its result"),
            Err(error) => {
                self.connection.state().abandon(token);
                return Err(error);
            }
        };
        self.connection.state().pages.give_back(outcome.buffer.pages);
        outcome.result.map(drop).map_err(|errno| self.connection.writer_failed(self.number, errno))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_ended {
            let (writer, keeps) = (self.number, self.keeps);
            self.connection.tell(&Change::Abandon { writer, keeps }.into());
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Writer");
        shown.field("number", &self.number).field("len", &self.len()).finish()
    }
}

/// A modification time as a request has it.
pub(crate) fn time_of(modified: i64) -> Result<u64> {
    u64::try_from(modified).map_err(|_| Error::new(Errno::INVAL, "the time is before 1970"))
}

/// The pieces of one call that are under way, the oldest first. Dropped, it waits for none of them.
struct Window<'a> {
    writer: &'a Writer,
    pieces: VecDeque<Token>,
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        for token in &self.pieces {
            self.writer.connection.state().abandon(*token);
        }
    }
}

/// Pieces under way at once.
const PIECES: usize = 4;

/// The shortest piece that is submitted if the data are scarce.
const SMALLEST: usize = crate::pages::PAGE;
