//! A ring of bytes: one process writes, another one reads in place.
//!
//! Promise: the writer writes only where the reader has given bytes back, and publishes them
//! afterwards. The reader's position is read once and checked; one that cannot be is [`Broken`].
//! There is one writer at a time: a second one finds no room.

use super::{Broken, Words};
#[cfg(not(loom))]
use super::{SharedBytes, SharedMemory};
#[cfg(not(loom))]
use crate::sync::Arc;
use crate::sync::{AtomicU64, Ordering};

/// Where the parts of a ring of bytes lie in the memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRingLayout {
    /// The number of bytes written.
    pub written: usize,
    /// The number of bytes given back.
    pub taken: usize,
    /// The first byte.
    pub bytes: usize,
    /// The number of bytes that fit.
    pub capacity: usize,
}

/// One word that both sides read and write.
#[derive(Clone)]
pub struct SharedWord {
    words: Words,
    at: usize,
}

impl SharedWord {
    /// The word at this offset.
    ///
    /// # Panics
    /// If the offset is not one of the memory.
    pub fn new(words: Words, at: usize) -> Self {
        words.at(at);
        Self { words, at }
    }

    /// Its value, and everything that the other side did before it stored it.
    pub fn load(&self) -> u64 {
        // SYNC(shared word): acquire here, release in `store`.
        self.words.at(self.at).load(Ordering::Acquire)
    }

    /// Changes it, after everything that this side did before.
    pub fn store(&self, value: u64) {
        // SYNC(shared word): release here, acquire in `load`.
        self.words.at(self.at).store(value, Ordering::Release);
    }
}

/// The side that writes. It can be used from several threads, one after the other.
#[cfg(not(loom))]
pub struct ByteWriter {
    bytes: SharedBytes,
    positions: Positions,
}

/// The positions of the side that writes.
pub(super) struct Positions {
    capacity: u64,
    published: SharedWord,
    given_back: SharedWord,
    /// Its own positions, which the other side cannot change.
    written: AtomicU64,
    taken: AtomicU64,
    is_busy: AtomicU64,
}

/// The side that reads. It trusts the writer, but stays in bounds.
pub struct ByteReader {
    capacity: u64,
    published: SharedWord,
    given_back: SharedWord,
    written: u64,
    taken: u64,
}

#[cfg(not(loom))]
impl ByteWriter {
    /// The writing side of a new ring, whose positions are zero.
    ///
    /// # Panics
    /// If the layout is not one of the memory, or has no room for a byte.
    pub fn new(memory: Arc<dyn SharedMemory>, layout: ByteRingLayout) -> Self {
        let words = Words::new(Arc::clone(&memory));
        let bytes = SharedBytes::new(memory, layout.bytes);
        let capacity = layout.capacity as u64;
        assert!(capacity > 0 && bytes.has(0, capacity), "the ring lies in the memory");
        Self { bytes, positions: Positions::new(words, layout) }
    }

    /// The number of bytes written so far.
    pub fn written(&self) -> u64 {
        self.positions.written.load(Ordering::Acquire)
    }

    /// Copies as much of `parts`, in order, as there is room for. Returns the number of bytes.
    ///
    /// # Errors
    /// [`Broken`] if the other side claims to have read what was never written.
    pub fn write(&self, parts: &[&[u8]]) -> Result<usize, Broken> {
        let Some(room) = self.positions.room()? else { return Ok(0) };
        let mut done = 0;
        for part in parts {
            let mut rest = &part[..part.len().min(room.len - done)];
            while !rest.is_empty() {
                let (at, len) = self.positions.place(room.first + done as u64, rest.len());
                let (now, later) = rest.split_at(len);
                // SAFETY: the room is this writer's alone: no other one is in here, and the other
                // side has given it back. `write` reads nothing there.
                unsafe { self.bytes.bytes_mut(at, len) }.copy_from_slice(now);
                done += len;
                rest = later;
            }
        }
        room.publish(done);
        Ok(done)
    }

    /// Lets `write` fill up to `len` bytes, in one or two pieces, as far as there is room: it gets
    /// the number of bytes before the piece, and the piece. It must not rely on what it reads
    /// there. Returns the number of bytes. If it fails, none of them is published.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn fill<E>(
        &self,
        len: usize,
        mut write: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Result<usize, E>, Broken> {
        let Some(room) = self.positions.room()? else { return Ok(Ok(0)) };
        let (len, mut done) = (len.min(room.len), 0);
        while done < len {
            let (at, piece) = self.positions.place(room.first + done as u64, len - done);
            // SAFETY: as in `write`.
            let into = unsafe { self.bytes.bytes_mut(at, piece) };
            if let Err(error) = write(done, into) {
                return Ok(Err(error));
            }
            done += piece;
        }
        room.publish(done);
        Ok(Ok(done))
    }

    /// The free bytes that lie behind each other, in place, as far as there is room. They are the
    /// caller's until it has filled them; it must not rely on what it reads there. A later call
    /// returns them again.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn space(&mut self) -> Result<&mut [u8], Broken> {
        let room = self.positions.room()?.expect("a writer that is borrowed mutably is alone");
        let (at, len) = self.positions.place(room.first, room.len);
        drop(room);
        // SAFETY: as in `write`; and this writer cannot be used while the slice lives.
        Ok(unsafe { self.bytes.bytes_mut(at, len) })
    }

    /// Publishes the next `bytes`, which the caller has filled.
    ///
    /// # Panics
    /// If they are more than there was room for at the last look.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.seen_room(), "only bytes that there is room for");
        self.positions.publish(bytes);
    }

    /// The number of bytes that there was room for at the last look, some of them perhaps written
    /// since.
    pub fn seen_room(&self) -> usize {
        let used = self.written().wrapping_sub(self.taken());
        (self.positions.capacity - used) as usize
    }

    /// The number of bytes that the other side had given back at the last look.
    pub fn taken(&self) -> u64 {
        self.positions.taken.load(Ordering::Relaxed)
    }

    /// The word that changes when the other side gives bytes back.
    pub fn given_back(&self) -> SharedWord {
        self.positions.given_back.clone()
    }
}

impl Positions {
    /// Of a new ring.
    pub(super) fn new(words: Words, layout: ByteRingLayout) -> Self {
        Self {
            capacity: layout.capacity as u64,
            published: SharedWord::new(words.clone(), layout.written),
            given_back: SharedWord::new(words, layout.taken),
            written: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            is_busy: AtomicU64::new(0),
        }
    }

    /// The free part of the ring; `None` if another writer is in here.
    pub(super) fn room(&self) -> Result<Option<Room<'_>>, Broken> {
        // SYNC(byte ring writer): acquire here, release in `Room::drop`.
        if self.is_busy.swap(1, Ordering::Acquire) != 0 {
            return Ok(None);
        }
        let first = self.written.load(Ordering::Relaxed);
        let mut room = Room { positions: self, first, len: 0 };
        let taken = self.given_back.load();
        // Positions only grow, and never past what was written.
        let before = self.taken.load(Ordering::Relaxed);
        if first.wrapping_sub(taken) > first.wrapping_sub(before) {
            return Err(Broken);
        }
        self.taken.store(taken, Ordering::Relaxed);
        room.len = (self.capacity - first.wrapping_sub(taken)) as usize;
        Ok(Some(room))
    }

    /// Where the byte at `position` lies, and how many of `len` bytes lie behind each other there.
    pub(super) fn place(&self, position: u64, len: usize) -> (u64, usize) {
        let at = position % self.capacity;
        (at, len.min((self.capacity - at) as usize))
    }

    /// Hands the next `bytes` over, which the caller has filled.
    fn publish(&self, bytes: usize) {
        if bytes > 0 {
            let written = self.written.load(Ordering::Relaxed).wrapping_add(bytes as u64);
            // SYNC(byte ring): release in the store, acquire in `ByteReader::look`.
            self.published.store(written);
            self.written.store(written, Ordering::Release);
        }
    }
}

/// The free part of a ring, while one writer fills it.
pub(super) struct Room<'a> {
    positions: &'a Positions,
    pub(super) first: u64,
    pub(super) len: usize,
}

impl Room<'_> {
    pub(super) fn publish(&self, bytes: usize) {
        self.positions.publish(bytes);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.positions.is_busy.store(0, Ordering::Release);
    }
}

impl ByteReader {
    /// The reading side of a new ring, whose positions are zero.
    ///
    /// # Panics
    /// If the positions do not lie in the memory, or there is no room for a byte.
    pub fn new(words: Words, layout: ByteRingLayout) -> Self {
        assert!(layout.capacity > 0, "a ring has room");
        Self {
            capacity: layout.capacity as u64,
            published: SharedWord::new(words.clone(), layout.written),
            given_back: SharedWord::new(words, layout.taken),
            written: 0,
            taken: 0,
        }
    }

    /// Looks for new bytes. Returns the number of those that can be read.
    ///
    /// # Errors
    /// [`Broken`] if the writer claims more bytes than the ring has.
    pub fn look(&mut self) -> Result<u64, Broken> {
        // SYNC(byte ring): acquire here, release in `Positions::publish`.
        let written = self.published.load();
        let bytes = written.wrapping_sub(self.taken);
        let is_possible = bytes <= self.capacity && bytes >= self.written.wrapping_sub(self.taken);
        if !is_possible {
            return Err(Broken);
        }
        self.written = written;
        Ok(bytes)
    }

    /// The next bytes that lie behind each other, as far as [`Self::look`] has seen: where they
    /// are from the first byte of the ring, and how many. They stay until they are consumed.
    pub fn next(&self) -> (usize, usize) {
        let at = self.taken % self.capacity;
        let bytes = self.seen().min(self.capacity - at);
        (at as usize, bytes as usize)
    }

    /// The number of bytes that [`Self::look`] has seen and that are not given back.
    pub fn seen(&self) -> u64 {
        self.written.wrapping_sub(self.taken)
    }

    /// The number of bytes given back so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Gives the next `bytes` back.
    ///
    /// # Panics
    /// If they have not been seen.
    pub fn consume(&mut self, bytes: u64) {
        assert!(bytes <= self.seen(), "only bytes that have come");
        self.taken = self.taken.wrapping_add(bytes);
        // SYNC(byte ring given back): release in the store, acquire in `Positions::room`.
        self.given_back.store(self.taken);
    }

    /// The word that changes when bytes come.
    pub fn published(&self) -> SharedWord {
        self.published.clone()
    }
}
