//! A title at a rate, in a ring of shared memory.
//!
//! Promise: the bytes that a program sees stay as they are until it consumes them. The server's
//! positions are checked, and nothing outside of the ring is read.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::local::stream::{BYTES, StreamEnd, TAKEN, WRITTEN};
use tactus_core::units::BitRate;
use tactus_ring::shared::{ByteReader, ByteRingLayout, SharedBytes, SharedMemory, Words};

use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::protocol::{Reply, Request};
use crate::stream_gauge::StreamGauge;
use crate::title::Title;

/// What can be chosen for a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamOptions {
    /// The first byte of the title.
    pub first: u64,
    /// Bits per second. `None`: the title's own rate, which may vary with its content; then the
    /// bytes of its first second come at once.
    pub rate: Option<BitRate>,
    /// Bytes that come at once at the beginning, if the rate is constant. The server reserves
    /// memory for them.
    pub burst: u64,
    /// Bytes of the ring: how far the program may be behind. Zero: the burst and half a second, at
    /// least 256 KiB.
    pub room: u64,
}

/// A title that comes at a rate.
///
/// The server has promised the rate: the bytes come in time, never early, whatever else the server
/// does. They lie in a ring that the server shares with this program. A program looks at them
/// there ([`chunk`](Self::chunk), [`wait`](Self::wait)) and gives them back
/// ([`consume`](Self::consume)), or copies them ([`read`](Self::read), [`io::Read`]).
///
/// A program that leaves the ring full delays only itself: the bytes wait, and come as fast as
/// there is room. If the oldest byte has waited for `slow_reader.behind_max`, the server ends the
/// stream with `ETIMEDOUT`.
pub struct Stream {
    connection: Arc<Connection>,
    number: u32,
    /// Length of the title.
    len: u64,
    rate: BitRate,
    bytes: SharedBytes,
    ring: ByteReader,
    gauge: Arc<StreamGauge>,
    /// The byte of the title that lies at `base` in the ring.
    first: u64,
    base: u64,
}

impl Stream {
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        title: &Title,
        options: &StreamOptions,
    ) -> Result<Self> {
        let StreamOptions { first, rate, burst, room } = *options;
        let rate = rate.map(|rate| rate.0);
        let request = Request::Stream { handle: title.handle(), first, rate, burst, room };
        let (number, memory, rate, files) = match connection.ask_for_files(&request)? {
            (Reply::Stream { stream, memory, rate }, files) => (stream, memory, rate, files),
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
        let layout = ByteRingLayout { written: WRITTEN, taken: TAKEN, bytes: BYTES, capacity };
        let ring = ByteReader::new(words.clone(), layout);
        let gauge = Arc::new(StreamGauge::new(words, ring.published()));
        connection.state().streams.push(Arc::clone(&gauge));
        Ok(Self {
            connection: Arc::clone(connection),
            number,
            len: title.len(),
            rate: BitRate(rate),
            bytes: SharedBytes::new(mapping, BYTES),
            ring,
            gauge,
            first,
            base: 0,
        })
    }

    /// The rate in bits per second; the highest one if it varies with the content.
    #[must_use]
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// The byte of the title that comes next to the program.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.first + (self.ring.taken() - self.base)
    }

    /// Whether the program has consumed the title to its end.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.position() >= self.len
    }

    /// The bytes that have come and lie behind each other, in place. None: no byte has come, or
    /// the title is [at its end](Self::is_at_end). Never waits. They stay until they are
    /// [consumed](Self::consume), and a later call returns them again, with those that have come
    /// since. A chunk ends where the ring begins again, even if [more](Self::seen) have come.
    ///
    /// # Errors
    /// When all bytes that have come are consumed: why the stream has ended early. `ETIMEDOUT` if
    /// this program was too slow, `EIO` and others of the disk, `ECANCELED` if the server ended
    /// it, `ECONNRESET` if the server has gone.
    pub fn chunk(&mut self) -> Result<&[u8]> {
        if !self.look()? {
            let state = self.connection.current();
            let ended = state.ended();
            self.connection.release(state);
            // What came before the end is to be read first.
            if let Some(error) = ended
                && !self.look()?
            {
                return Err(error);
            }
        }
        Ok(self.come())
    }

    /// The same, but waits until at least one byte has come, the title is at its end, or
    /// `timeout` is over.
    ///
    /// # Errors
    /// As [`Self::chunk`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<&[u8]> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let connection = Arc::clone(&self.connection);
        let found = connection.wait(deadline, |state| match self.look() {
            Ok(false) if !self.is_at_end() => Some(Err(state.ended()?)),
            Ok(_) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        })?;
        found.transpose()?;
        Ok(self.come())
    }

    /// The number of bytes that the last look has seen and that are not consumed.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.ring.seen() as usize
    }

    /// Gives the next `bytes` of [`chunk`](Self::chunk) back: the server may write there.
    ///
    /// # Panics
    /// If they are more than the last look has returned.
    pub fn consume(&mut self, bytes: usize) {
        self.ring.consume(bytes as u64);
    }

    /// Copies the next bytes into `into`, and consumes them. Waits for at least one. Returns their
    /// number, which is zero only at the end of the title or if `into` is empty.
    ///
    /// # Errors
    /// As [`Self::chunk`].
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let chunk = self.wait(None)?;
        let len = chunk.len().min(into.len());
        into[..len].copy_from_slice(&chunk[..len]);
        self.consume(len);
        Ok(len)
    }

    /// Goes on at another byte of the title, at once. Bytes of the old place are dropped. The
    /// stream keeps its place at the server; at a rate that varies, the new place may need more.
    ///
    /// # Errors
    /// `EINVAL` if the byte is behind the end; the stream then goes on where it is. `EBUSY` if the
    /// server has no room for what the new place needs; the stream has ended then.
    pub fn seek(&mut self, to: u64) -> Result<()> {
        let request = Request::Seek { stream: self.number, first: to };
        let (position, rate) = match self.connection.ask(&request)? {
            Reply::Sought { position, rate } => (position, rate),
            other => return Err(unexpected(other)),
        };
        let come = self.ring.look().map_err(|_| Error::broken())?;
        let old = position.checked_sub(self.ring.taken()).filter(|&old| old <= come);
        self.ring.consume(old.ok_or_else(Error::broken)?);
        (self.first, self.base, self.rate) = (to, position, BitRate(rate));
        Ok(())
    }

    /// Looks for bytes. False if there are none, and the stream goes on or is complete.
    fn look(&mut self) -> Result<bool> {
        let end = self.gauge.end();
        let come = self.ring.look().map_err(|_| Error::broken())?;
        self.gauge.note_look(self.ring.taken() + come);
        match end {
            Some(StreamEnd::Failed(errno)) if come == 0 => {
                Err(Error::server(errno, "the stream has ended early"))
            }
            _ => Ok(come > 0),
        }
    }

    fn come(&self) -> &[u8] {
        let (at, len) = self.ring.next();
        // SAFETY: the server, which is trusted, writes only where bytes were given back, and
        // giving back needs this stream mutably, which the slice excludes.
        unsafe { self.bytes.bytes(at as u64, len) }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(Self::read(self, into)?)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.state().streams.retain(|gauge| !Arc::ptr_eq(gauge, &self.gauge));
        self.connection.tell(&Request::EndStream { stream: self.number });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = self.position();
        f.debug_struct("Stream").field("number", &self.number).field("position", &position).finish()
    }
}
