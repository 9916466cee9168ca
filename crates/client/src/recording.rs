//! A title that is written at a rate, through a ring of shared memory.
//!
//! Promise: the server takes no byte that the program has not handed over. Its positions are
//! checked, and nothing outside of the ring is written.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tactus_core::local::stream::{
    BYTES, CLOSED, DURABLE, OVERRUNS, StreamEnd, TAKEN, UNDERRUNS, WRITTEN,
};
use tactus_core::units::BitRate;
use tactus_ring::shared::{ByteRingLayout, ByteWriter, SharedMemory, SharedWord, Words};

use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::protocol::{Replace, Reply, Request};
use crate::stream_gauge::StreamGauge;

/// What can be chosen for a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordingOptions {
    /// The most bits per second that the program writes. The server reserves disk time and memory
    /// for them.
    pub rate: BitRate,
    /// What may have the name already, at the beginning and at the end.
    pub replace: Replace,
    /// Bytes of the ring: how far the server may be behind. Zero: half a second, at least 256 KiB.
    pub room: u64,
}

impl RecordingOptions {
    /// A recording at this rate, which replaces an older title.
    #[must_use]
    pub fn new(rate: BitRate) -> Self {
        Self { rate, replace: Replace::default(), room: 0 }
    }
}

/// A title that is written at a rate.
///
/// The server has promised the rate: it takes the bytes in time and writes them, whatever else it
/// does. A program builds them in the ring that the server shares ([`space`](Self::space),
/// [`wait`](Self::wait), [`commit`](Self::commit)), or has them copied there
/// ([`write`](Self::write), [`io::Write`]).
///
/// A program that is faster than its rate finds the ring full, and waits. One that is slower is
/// served as well. However a recording ends, by [`finish`](Self::finish), by its drop, or with this
/// program: what the ring holds then becomes a title.
pub struct Recording {
    connection: Arc<Connection>,
    number: u32,
    rate: BitRate,
    ring: ByteWriter,
    closed: SharedWord,
    durable: SharedWord,
    overruns: SharedWord,
    underruns: SharedWord,
    gauge: Arc<StreamGauge>,
    /// The server knows that it is over.
    is_ended: bool,
}

impl Recording {
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        path: &str,
        options: &RecordingOptions,
    ) -> Result<Self> {
        let RecordingOptions { rate, replace, room } = *options;
        let title = path.to_owned();
        let request = Request::Record { title, rate: rate.0, replace, room };
        let (number, memory, files) = match connection.ask_for_files(&request)? {
            (Reply::Recording { recording, memory }, files) => (recording, memory, files),
            (other, _) => return Err(unexpected(other)),
        };
        let [file] = <[OwnedFd; 1]>::try_from(files).map_err(|_| Error::broken())?;
        let memory = usize::try_from(memory).map_err(|_| Error::broken())?;
        let capacity = memory.checked_sub(BYTES).filter(|&room| room > 0);
        let capacity = capacity.ok_or_else(Error::broken)?;
        let mapping = Mapping::new(file.as_fd(), memory)
            .map_err(|error| Error::system(&error, "the ring cannot be mapped"))?;
        let mapping: Arc<dyn SharedMemory> = Arc::new(mapping);
        let words = Words::new(Arc::clone(&mapping));
        let word = |at| SharedWord::new(words.clone(), at);
        let layout = ByteRingLayout { written: WRITTEN, taken: TAKEN, bytes: BYTES, capacity };
        let ring = ByteWriter::new(mapping, layout);
        let gauge = Arc::new(StreamGauge::new(words.clone(), ring.given_back()));
        connection.state().streams.push(Arc::clone(&gauge));
        Ok(Self {
            connection: Arc::clone(connection),
            number,
            rate,
            ring,
            closed: word(CLOSED),
            durable: word(DURABLE),
            overruns: word(OVERRUNS),
            underruns: word(UNDERRUNS),
            gauge,
            is_ended: false,
        })
    }

    /// The rate in bits per second.
    #[must_use]
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// Bytes handed over so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.ring.written()
    }

    /// Whether no byte was handed over so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes, from the first one on, that a power failure does not take any more: some seconds
    /// behind [`len`](Self::len).
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable.load()
    }

    /// How often this program was faster than its rate: the ring was full when the server came.
    #[must_use]
    pub fn overruns(&self) -> u64 {
        self.overruns.load()
    }

    /// How often this program was slower than its rate: for a quarter of a second, less came.
    #[must_use]
    pub fn underruns(&self) -> u64 {
        self.underruns.load()
    }

    /// The free bytes of the ring that lie behind each other, in place. None: the ring is full.
    /// Never waits. They are handed over by [`commit`](Self::commit); a later call returns them
    /// again, with those that have become free. What lies there before is not defined. The space
    /// ends where the ring begins again, even if more is free.
    ///
    /// # Errors
    /// Why the recording has ended early: `ENOSPC`, `EDQUOT`, `EIO` and others of the disk,
    /// `ECONNRESET` if the server has gone. What was taken before is a title.
    pub fn space(&mut self) -> Result<&mut [u8]> {
        match self.look()? {
            Look::Room => {}
            Look::Ended(end) => return Err(self.failed(end)),
            Look::Full => {
                let state = self.connection.current();
                let ended = state.ended();
                self.connection.release(state);
                if let Some(error) = ended {
                    return Err(error);
                }
            }
        }
        self.free()
    }

    /// The same, but waits until at least one byte is free, or `timeout` is over.
    ///
    /// # Errors
    /// As [`Self::space`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<&mut [u8]> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let connection = Arc::clone(&self.connection);
        let found = connection.wait(deadline, |state| match self.look() {
            Ok(Look::Full) => Some(Err(state.ended()?)),
            other => Some(other),
        })?;
        if let Some(Look::Ended(end)) = found.transpose()? {
            return Err(self.failed(end));
        }
        self.free()
    }

    /// The number of bytes that the last look has found free, which [`commit`](Self::commit) takes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.ring.seen_room()
    }

    /// Hands the first `bytes` of [`space`](Self::space) over.
    ///
    /// # Panics
    /// If they are more than the last look has found free.
    pub fn commit(&mut self, bytes: usize) {
        self.ring.advance(bytes);
    }

    /// Copies the first of `bytes` into the ring, as many as have room, and hands them over. Waits
    /// for room for at least one. Returns their number, which is zero only if `bytes` is empty.
    ///
    /// # Errors
    /// As [`Self::space`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let space = self.wait(None)?;
        let len = space.len().min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        self.commit(len);
        Ok(len)
    }

    /// Copies all of `bytes` into the ring and hands them over. Waits for room.
    ///
    /// # Errors
    /// As [`Self::space`].
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.write(rest)?..];
        }
        Ok(())
    }

    /// Makes a title of all bytes. When this returns, they and the name are on stable storage, and
    /// every door of the server shows the title. Returns its length.
    ///
    /// # Errors
    /// As [`Self::space`]; `ENODATA` if no byte was handed over: then there is no title. `EEXIST`
    /// or `ENOENT` as [`RecordingOptions::replace`] says.
    pub fn finish(mut self) -> Result<u64> {
        self.closed.store(1);
        // What the server takes from here on is no news for an event loop.
        self.forget();
        let connection = Arc::clone(&self.connection);
        // Its end is looked for first: it may have come with the end of the connection.
        let ended = connection.wait(None, |state| match self.gauge.end() {
            Some(end) => Some(Ok(end)),
            None => Some(Err(state.ended()?)),
        })?;
        match ended.expect("a wait without a limit ends with its result")? {
            StreamEnd::Complete => Ok(self.len()),
            failed @ StreamEnd::Failed(_) => Err(self.failed(failed)),
        }
    }

    fn look(&mut self) -> Result<Look> {
        if let Some(end) = self.gauge.end() {
            return Ok(Look::Ended(end));
        }
        let is_free = !self.ring.space().map_err(|_| Error::broken())?.is_empty();
        self.gauge.note_look(self.ring.taken());
        Ok(if is_free { Look::Room } else { Look::Full })
    }

    /// No event loop looks at it any more.
    fn forget(&self) {
        self.connection.state().streams.retain(|gauge| !Arc::ptr_eq(gauge, &self.gauge));
    }

    fn free(&mut self) -> Result<&mut [u8]> {
        self.ring.space().map_err(|_| Error::broken())
    }

    /// The error of a recording that has ended before this program has finished it: with the
    /// server's reason, if it has one.
    fn failed(&mut self, end: StreamEnd) -> Error {
        let StreamEnd::Failed(errno) = end else { return ENDED };
        let own = Error::server(errno, "the recording has ended early");
        if self.is_ended {
            return own;
        }
        self.is_ended = true;
        let reason = self.connection.ask(&Request::EndRecording { recording: self.number });
        reason.err().filter(|reason| reason.errno() == own.errno()).unwrap_or(own)
    }
}

/// What a look at the ring has found.
enum Look {
    Room,
    Full,
    /// The server takes no more bytes.
    Ended(StreamEnd),
}

/// Hands bytes over; `flush` does nothing, because the server takes them by itself.
impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(Self::write(self, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.forget();
        if !self.is_ended {
            self.connection.tell(&Request::EndRecording { recording: self.number });
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Recording");
        shown.field("number", &self.number).field("len", &self.len()).finish_non_exhaustive()
    }
}

const ENDED: Error = Error::new(Errno::CANCELED, "the recording has ended");
