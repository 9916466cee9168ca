//! How the store writes: write slots that are filled and handed over, and flushes.
//!
//! Promise: an upload waits for nothing but a slot. A write that was handed over completes even if
//! its future is dropped. The engine's write path is one medium, plain files are the other; the
//! store works the same with both.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use tactus_core::units::{Bytes, KIB, MIB, Nanos, SECTOR};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A boxed future.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A write or a flush that has begun: it continues when this is dropped.
pub type PendingIo = Pending<io::Result<()>>;

/// Where the bytes of a slot go.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file; open for direct I/O where its file system permits it.
    pub file: Arc<OwnedFd>,
    /// Offset in the file, whole sectors.
    pub offset: Bytes,
    /// Bytes from the beginning of the slot, whole sectors.
    pub len: usize,
}

/// The reservation of a recording.
#[derive(Clone, Debug)]
pub struct Reserve {
    /// Write slots of its own.
    pub places: u32,
    /// Each write completes within this time after its start.
    pub within: Nanos,
    /// The reservation; it is released with the last slot.
    pub promise: Arc<dyn Any + Send + Sync>,
}

/// What a flush must make durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// The bytes, and the metadata that is needed to read them (`fdatasync`).
    Data,
    /// Attributes and names too (`fsync`).
    All,
}

/// Memory of the medium for one write. A slot that is dropped unwritten returns to the medium.
pub trait WriteSlot: Send {
    /// All of it: [`Medium::slot_size`] bytes, aligned to a sector. Its initial contents are
    /// arbitrary.
    fn memory(&mut self) -> &mut [u8];

    /// Begins to write the first bytes of the slot. The slot returns to the medium when the device
    /// has the bytes, or has failed.
    fn write(self: Box<Self>, to: Extent) -> PendingIo;
}

/// A way to stable storage. It has at least two slots: the journal keeps one for itself.
pub trait Medium: Send + Sync {
    /// Bytes of a slot: whole units of 64 KiB.
    fn slot_size(&self) -> usize;

    /// Most slots that one upload may have under way, at least one; at this limit it waits for its
    /// own.
    fn places_each(&self) -> usize;

    /// Reserves write slots with deadlines for a recording that was granted them. Waits until
    /// uploads have returned the slots.
    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>>;

    /// Waits for a free slot.
    fn place(&self) -> Pending<Box<dyn WriteSlot>>;

    /// A free slot, if there is one now.
    fn place_now(&self) -> Option<Box<dyn WriteSlot>> {
        now(self.place())
    }

    /// A free slot in addition to the reserved ones, for a recording that is late. Its write has no
    /// deadline. There is none where uploads may need it.
    fn spare_now(&self) -> Option<Box<dyn WriteSlot>> {
        None
    }

    /// Begins to flush a file or a directory, together with all waiting flushes. Covers the writes
    /// that ended before the call.
    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo;

    /// The same for several at once, as [`Flush::All`].
    fn sync_all(&self, files: &[Arc<OwnedFd>]) -> Vec<PendingIo> {
        files.iter().map(|file| self.sync(file, Flush::All)).collect()
    }
}

/// Plain files: each write and each flush runs on a thread that may block. For volumes without a
/// disk server, and for tools.
#[derive(Clone, Debug)]
pub struct PlainMedium(Arc<Plain>);

#[derive(Debug)]
struct Plain {
    slot_size: usize,
    places: Arc<Semaphore>,
    syncs: Arc<Semaphore>,
    /// Memory for reuse.
    spare: Mutex<Vec<AlignedMemory>>,
}

/// Flushes at once. The kernel joins flushes that wait for one journal; more threads would only
/// wait.
const SYNCS_AT_ONCE: usize = 16;

impl PlainMedium {
    /// Makes `places` slots of `slot_size`, a whole number of 64 KiB.
    ///
    /// # Panics
    /// When there are fewer than two slots (one is the journal's), or their size is zero.
    pub fn new(places: usize, slot_size: usize) -> Self {
        assert!(places > 1, "one place for the journal, one for everybody else");
        assert!(slot_size > 0 && slot_size.is_multiple_of(64 * KIB as usize), "whole units");
        Self(Arc::new(Plain {
            slot_size,
            places: Arc::new(Semaphore::new(places)),
            syncs: Arc::new(Semaphore::new(SYNCS_AT_ONCE)),
            spare: Mutex::new(Vec::with_capacity(places)),
        }))
    }
}

impl Default for PlainMedium {
    /// 32 slots of a mebibyte: enough to keep a disk busy while all are being filled.
    fn default() -> Self {
        Self::new(32, MIB as usize)
    }
}

impl Medium for PlainMedium {
    fn slot_size(&self) -> usize {
        self.0.slot_size
    }

    fn places_each(&self) -> usize {
        usize::MAX
    }

    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>> {
        let own = Self::new((what.places as usize).max(2), self.0.slot_size);
        Box::pin(async move { Arc::new(own) as Arc<dyn Medium> })
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        let plain = Arc::clone(&self.0);
        Box::pin(async move {
            let places = Arc::clone(&plain.places);
            let permit = places.acquire_owned().await.expect("the semaphore is never closed");
            let spare = plain.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let memory = spare.unwrap_or_else(|| AlignedMemory::new(plain.slot_size));
            Box::new(PlainSlot { memory: Some(memory), plain, permit }) as Box<dyn WriteSlot>
        })
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        let (plain, file) = (Arc::clone(&self.0), Arc::clone(file));
        begin(async move {
            let turn = Arc::clone(&plain.syncs).acquire_owned().await;
            blocking(move || {
                let _turn = turn;
                match what {
                    Flush::Data => rustix::fs::fdatasync(&file)?,
                    Flush::All => rustix::fs::fsync(&file)?,
                }
                Ok(())
            })
            .await
        })
    }
}

struct PlainSlot {
    /// None only during `drop`.
    memory: Option<AlignedMemory>,
    plain: Arc<Plain>,
    #[expect(dead_code, reason = "its end gives the place back")]
    permit: OwnedSemaphorePermit,
}

impl WriteSlot for PlainSlot {
    fn memory(&mut self) -> &mut [u8] {
        self.memory.as_mut().expect("only its end takes the memory").bytes()
    }

    fn write(mut self: Box<Self>, to: Extent) -> PendingIo {
        begin(blocking(move || {
            let mut done = 0;
            while done < to.len {
                let rest = &self.memory()[done..to.len];
                match rustix::io::pwrite(&to.file, rest, to.offset.0 + done as u64) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => done += count,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Ok(())
        }))
    }
}

impl Drop for PlainSlot {
    fn drop(&mut self) {
        let mut spare = self.plain.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.extend(self.memory.take());
    }
}

/// The result of a future that is ready at the first poll. Polls without the task's budget: at its
/// end a ready future would look like one that must wait.
pub(super) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut look = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(tokio::task::unconstrained(future)).poll(&mut look) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

/// Starts `work`; it continues when the result is dropped.
fn begin(work: impl Future<Output = io::Result<()>> + Send + 'static) -> PendingIo {
    let work = tokio::spawn(work);
    Box::pin(async move { work.await.unwrap_or_else(|_| Err(stopped())) })
}

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(stopped()))
}

/// The error of a write or flush whose result is lost because the server ends.
pub fn stopped() -> io::Error {
    io::Error::other(StopError)
}

/// Whether an error is a stop of the server and says nothing about the disk.
pub(super) fn is_stop(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<StopError>())
}

#[derive(Debug, thiserror::Error)]
#[error("the server stops")]
struct StopError;

/// Memory that is aligned to a sector, as direct I/O requires.
#[derive(Debug)]
pub(super) struct AlignedMemory {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
}

impl AlignedMemory {
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0; len + SECTOR as usize].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(SECTOR as usize);
        Self { bytes, start, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// Reads until the memory is full or the file ends.
pub(super) fn read_full(file: &OwnedFd, memory: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < memory.len() {
        match rustix::io::pread(file, &mut memory[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            // Direct I/O reads whole sectors only: the rest lies beyond the end of the file.
            Err(Errno::INVAL) if filled > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(filled)
}

/// Writes under way, in the order in which they began.
#[derive(Default)]
pub(super) struct InFlight(VecDeque<(u64, PendingIo)>);

impl InFlight {
    /// Adds the write that ends at `end`.
    pub(super) fn push(&mut self, end: u64, write: PendingIo) {
        self.0.push_back((end, write));
    }

    /// Removes completed writes, without waiting.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        let mut look = std::task::Context::from_waker(std::task::Waker::noop());
        while let Some((_, write)) = self.0.front_mut() {
            match write.as_mut().poll(&mut look) {
                std::task::Poll::Pending => break,
                std::task::Poll::Ready(result) => {
                    self.0.pop_front();
                    result?;
                }
            }
        }
        Ok(())
    }

    /// Waits until at most `most` writes are under way, and removes completed ones.
    pub(super) async fn thin(&mut self, most: usize) -> io::Result<()> {
        while self.0.len() > most
            && let Some((_, write)) = self.0.front_mut()
        {
            let landed = write.await;
            self.0.pop_front();
            landed?;
        }
        self.reap()
    }

    /// Waits until all writes have completed, even after one has failed; returns the first error.
    pub(super) async fn land(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        while let Some((_, write)) = self.0.front_mut() {
            let landed = write.await;
            self.0.pop_front();
            result = result.and(landed);
        }
        result
    }

    /// Whether all writes that end at or before `end` have completed.
    pub(super) fn landed(&self, end: u64) -> bool {
        self.0.front().is_none_or(|(first, _)| *first > end)
    }
}
