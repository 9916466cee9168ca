//! An open title, and reads that copy.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;
use tactus_core::units::{BitRate, MonoTime};

use crate::buffer::Buffer;
use crate::connection::{Connection, Read};
use crate::error::{Error, Result};
use crate::protocol::{Request, Stat};
use crate::reserve::{Reserve, ReserveOptions};
use crate::table::{Destination, Extent, Outcome, Token};
use crate::title_map::{TitleMap, TitleMemory};

/// An open title. It is closed on drop, when the requests for it that the server has taken have
/// ended. Requests that still wait in the ring then, behind 16 others, fail with `EBADF`: keep the
/// title until their completions have come.
pub struct Title {
    connection: Arc<Connection>,
    handle: u32,
    stat: Stat,
}

impl Title {
    pub(crate) fn new(connection: Arc<Connection>, handle: u32, stat: Stat) -> Self {
        Self { connection, handle, stat }
    }

    pub(crate) fn belongs_to(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Its length in bytes when it was opened. A title that grows later has to be opened again.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.stat.len
    }

    /// Whether it had no bytes when it was opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rate at which it plays, if the server knows it.
    #[must_use]
    pub fn rate(&self) -> Option<BitRate> {
        self.stat.rate.map(BitRate)
    }

    /// The facts, as they were when it was opened.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Has the title read into memory, if it is not there yet, and maps it.
    ///
    /// # Errors
    /// `ENOMEM` if the memory for titles of programs is in use (`[local] titles_max`), `EINVAL` for
    /// a title that grows or has no bytes, or what the server says.
    pub fn map(&self) -> Result<TitleMap<'_>> {
        TitleMap::new(&self.connection, self.handle)
    }

    /// Has the title read into memory, if it is not there yet, and returns its memory file: for a
    /// language that maps files itself. The memory is taken back when the title is closed.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn memory(&self) -> Result<TitleMemory> {
        TitleMemory::new(&self.connection, self.handle)
    }

    /// Reserves room for reads at moments: disk time, memory and CPU. From then on the moment of
    /// each read [`at`](crate::ReadRequest::at) a moment is kept, or the read is refused at once:
    ///
    /// | error | reason |
    /// |---|---|
    /// | `ETIME` | the moment is nearer than [`Reserve::ahead`] |
    /// | `EBUSY` | the moments are closer than the interval and the tolerance allow |
    /// | `EMSGSIZE` | the read is longer than reserved |
    ///
    /// A refused read takes nothing of the reserve. A title that was mapped before is read from
    /// memory: a moment may then be 5 ms ahead. The room is returned when the title is closed.
    ///
    /// # Errors
    /// `EBUSY` or `ENOSPC` if the server has no room: the text names the resource. `EMSGSIZE` for
    /// reads longer than a block, `EEXIST` if the title has a reserve, `EINVAL` for an interval
    /// that cannot be, and for a title that grows.
    pub fn reserve(&self, options: &ReserveOptions) -> Result<Reserve> {
        Reserve::new(&self.connection, self.handle, options)
    }

    /// Reads bytes from `offset` on into `into`, and waits for them. Returns their number, which is
    /// less than `into` has only at the end of the title.
    ///
    /// The bytes are copied out of the shared data, in pieces of [`PIECE`] bytes at most, some of
    /// them at once. To avoid the copy, use [`Client::submit`](crate::Client::submit).
    ///
    /// # Errors
    /// `ENOBUFS` if buffers of the program leave no page of the data free, `EAGAIN` if its requests
    /// leave no place in the ring, or what the server says. After an error the contents of `into`
    /// are not specified.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_pieces(offset, into.len(), |at, piece| {
            into[at..][..piece.len()].copy_from_slice(piece);
            Ok(())
        })
    }

    /// Reads `len` bytes from `offset` on, and passes them to `take` in place: piece by piece, in
    /// order, each with its distance from `offset`. Returns their number, which is less than `len`
    /// only at the end of the title. A piece has at most [`PIECE`] bytes; while `take` works on
    /// one, the server reads the next ones.
    ///
    /// # Errors
    /// As [`Self::read_at`], or the first error of `take`.
    pub fn read_pieces<E: From<Error>>(
        &self,
        offset: u64,
        len: usize,
        mut take: impl FnMut(usize, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<usize, E> {
        let mut window = Window::new(self, offset, len);
        let mut done = 0;
        loop {
            window.fill()?;
            let Some((piece, outcome)) = window.next()? else { return Ok(done) };
            // Free again when it is dropped, whatever `take` does.
            let buffer = Buffer::new(Arc::clone(&self.connection), outcome.buffer);
            let bytes = outcome.result.map_err(read_failed)? as usize;
            take(piece.at, &buffer[..bytes])?;
            done = piece.at + bytes;
            if bytes < piece.len {
                return Ok(done);
            }
        }
    }
}

impl Drop for Title {
    fn drop(&mut self) {
        self.connection.tell(&Request::Close { handle: self.handle });
    }
}

impl fmt::Debug for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Title").field("handle", &self.handle).field("stat", &self.stat).finish()
    }
}

/// The error of a read that was answered with an error number.
pub(crate) fn read_failed(errno: u32) -> Error {
    if errno == Errno::CONNRESET.raw_os_error() as u32 {
        return Error::gone();
    }
    Error::server(errno, "the title was not read")
}

/// Bytes of a piece at most. Several pieces are under way at once, so that the server fills one
/// while another is copied; both fit into the caches of a processor.
pub const PIECE: usize = 128 << 10;

/// Pieces under way at once.
const PIECES: usize = 4;

/// The pieces of one read that are under way, the oldest first. Dropped, it waits for none of them.
struct Window<'a> {
    title: &'a Title,
    offset: u64,
    len: usize,
    /// Bytes that were requested so far.
    requested: usize,
    pieces: [Option<Piece>; PIECES],
    oldest: usize,
}

#[derive(Clone, Copy)]
struct Piece {
    token: Token,
    /// Where its bytes go, from the beginning of the caller's memory.
    at: usize,
    len: usize,
}

impl<'a> Window<'a> {
    fn new(title: &'a Title, offset: u64, len: usize) -> Self {
        Self { title, offset, len, requested: 0, pieces: [None; PIECES], oldest: 0 }
    }

    /// Requests pieces as long as there is room. It is an error if none is under way then.
    fn fill(&mut self) -> Result<()> {
        for nth in 0..PIECES {
            let place = (self.oldest + nth) % PIECES;
            if self.requested == self.len || self.pieces[place].is_some() {
                continue;
            }
            match self.request() {
                Ok(piece) => self.pieces[place] = Some(piece),
                Err(_) if self.pieces[self.oldest].is_some() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn request(&mut self) -> Result<Piece> {
        let connection = &self.title.connection;
        let at = self.requested;
        let offset = self.offset.checked_add(at as u64).ok_or(OFFSET_TOO_LARGE)?;
        let mut state = connection.state();
        let mut len = PIECE.min(self.len - at);
        let pages = loop {
            match state.pages.take(len) {
                Some(pages) => break pages,
                None if len > SMALLEST => len = (len / 2).max(SMALLEST),
                None => return Err(NO_ROOM),
            }
        };
        let buffer = Extent { pages, len: len as u32 };
        let read = Read { handle: self.title.handle, offset, buffer, when: MonoTime(0) };
        let token = connection.submit(&mut state, &read, Destination::Caller(None))?;
        self.requested += len;
        Ok(Piece { token, at, len })
    }

    /// Waits for the oldest piece. `None` if none is under way.
    fn next(&mut self) -> Result<Option<(Piece, Outcome)>> {
        let Some(piece) = self.pieces[self.oldest] else { return Ok(None) };
        let outcome = self.title.connection.wait(None, |state| state.table.take(piece.token))?;
        self.pieces[self.oldest] = None;
        self.oldest = (self.oldest + 1) % PIECES;
        let outcome = outcome.expect("a wait without a limit ends with its result");
        Ok(Some((piece, outcome)))
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        for piece in self.pieces.iter().flatten() {
            self.title.connection.state().abandon(piece.token);
        }
    }
}

/// The shortest piece that is requested if the data are scarce.
const SMALLEST: usize = crate::pages::PAGE;

pub(crate) const NO_ROOM: Error = Error::new(
    Errno::NOBUFS,
    "the shared data have no free range of this length; drop buffers or connect with more data",
);
const OFFSET_TOO_LARGE: Error = Error::new(Errno::OVERFLOW, "no title is that long");
