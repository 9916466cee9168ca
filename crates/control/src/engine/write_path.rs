//! A volume's write path: slots of its write share, writes and flushes for the disk server, and
//! their answers.
//!
//! Promise: an upload waits for nothing but a slot, and slots are given in the order of the
//! requests. A write that was handed over completes even if its future is dropped: its file stays
//! open, and its slot returns with the answer. No request is repeated. There are never more
//! requests than slots and flushes, so no queue can be full.
//!
//! ```text
//!  slot  ──► fill ──► write ──► ring ──► disk server ──► device
//!    ▲                 │                                    │
//!    └── free ◄────────┴──── answer, file closed ◄── ring ◄─┘
//! ```

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tactus_core::ports::{self, FileHandle, SyncScope, Waker as _};
use tactus_core::units::{Nanos, SECTOR};
use tactus_engine::message::{WriteAnswer, WriteClass, WriteRequest};
use tactus_ring::arena::{ArenaOwner, BlockRef, KernelBlock, View};
use tactus_ring::spsc::{Consumer, Producer};
use tactus_storage::store::{
    Extent, Flush, Medium, Pending, PendingIo, Reserve, WriteSlot, stopped,
};
use tactus_sys::clock;
use tactus_sys::thread::AbortOnPanic;
use tactus_sys::waker::Sleeper;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::core_threads::Wakers;

/// Most unanswered flushes. An upload requests two or three at its end, and one for its name; at
/// the limit, further requests wait.
pub(super) const SYNCS_MAX: u32 = 512;

/// One volume's write path. Clones share it.
#[derive(Clone)]
pub struct WritePath(Arc<Inner>);

/// The use of a write path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePathLevels {
    /// Slots of the write share.
    pub places: u32,
    /// Slots that are being filled or written.
    pub places_used: u32,
    /// Uploads that wait for a slot.
    pub waiting: u32,
    /// Unanswered flushes.
    pub syncs: u32,
}

/// The memory of a write share, and the state of its slots.
pub(super) struct WriteShare {
    pub(super) keeper: ArenaOwner,
    pub(super) view: View,
}

struct Inner {
    view: View,
    /// A permit for each free slot.
    places: Arc<Semaphore>,
    /// A permit for each flush that may be requested.
    syncs: Arc<Semaphore>,
    waiting: AtomicU32,
    /// Held only for a few memory writes.
    queue: Mutex<RequestQueue>,
    wakers: Wakers,
}

struct RequestQueue {
    keeper: ArenaOwner,
    requests: Producer<WriteRequest>,
    /// Unanswered requests, by token.
    asked: Box<[Option<PendingRequest>]>,
    free: Vec<u32>,
    is_closed: bool,
}

struct PendingRequest {
    /// Keeps the file open until the answer.
    file: Arc<OwnedFd>,
    /// The slot that is written; none for a flush.
    block: Option<BlockRef>,
    permit: OwnedSemaphorePermit,
    kept: Option<Arc<ReservationGuard>>,
    tell: oneshot::Sender<io::Result<()>>,
}

impl WritePath {
    pub(super) fn new(share: WriteShare, requests: Producer<WriteRequest>, wakers: Wakers) -> Self {
        let WriteShare { keeper, view } = share;
        let places = view.places();
        let slots = places + SYNCS_MAX;
        Self(Arc::new(Inner {
            view,
            places: Arc::new(Semaphore::new(places as usize)),
            syncs: Arc::new(Semaphore::new(SYNCS_MAX as usize)),
            waiting: AtomicU32::new(0),
            queue: Mutex::new(RequestQueue {
                keeper,
                requests,
                asked: (0..slots).map(|_| None).collect(),
                free: (0..slots).rev().collect(),
                is_closed: false,
            }),
            wakers,
        }))
    }

    /// The present use.
    pub fn levels(&self) -> WritePathLevels {
        let places = self.0.view.places();
        let free = |permits: &Semaphore| permits.available_permits() as u32;
        WritePathLevels {
            places,
            places_used: places - free(&self.0.places).min(places),
            waiting: self.0.waiting.load(Ordering::Relaxed),
            syncs: SYNCS_MAX - free(&self.0.syncs).min(SYNCS_MAX),
        }
    }

    /// Handles received answers.
    fn handle_answers(&self, answers: &mut Consumer<WriteAnswer>) {
        while let Some(answer) = answers.pop() {
            let (token, result) = match answer {
                WriteAnswer::Written { token, result } | WriteAnswer::Synced { token, result } => {
                    (token, result)
                }
            };
            let asked = self.0.queue().end(token);
            // Closing the last handle of an unnamed file frees its blocks; that may take a while,
            // and delays uploads only.
            drop(asked.file);
            drop(asked.permit);
            drop(asked.kept);
            // The caller may have stopped waiting.
            asked.tell.send(result.map_err(|fault| io::Error::from_raw_os_error(fault.0))).ok();
        }
    }

    /// The engine has ended: unanswered requests will get no answer.
    fn close(&self) {
        let mut queue = self.0.queue();
        queue.is_closed = true;
        // Their slots stay taken: the device may still use them.
        queue.asked.iter_mut().for_each(|asked| *asked = None);
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, RequestQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests something from the disk server, with a token that is unique until the answer. The
    /// caller wakes its core.
    fn ask(
        &self,
        file: Arc<OwnedFd>,
        block: Option<BlockRef>,
        permit: OwnedSemaphorePermit,
        kept: Option<Arc<ReservationGuard>>,
        request: impl FnOnce(u32, FileHandle) -> WriteRequest,
    ) -> PendingIo {
        let (tell, told) = oneshot::channel();
        let handle = FileHandle(file.as_raw_fd());
        self.queue().begin(PendingRequest { file, block, permit, kept, tell }, |token| {
            request(token, handle)
        });
        Box::pin(async move { told.await.unwrap_or_else(|_| Err(stopped())) })
    }

    /// Requests a flush, now or when there may be one more.
    fn ask_sync(self: &Arc<Self>, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        let reach = match what {
            Flush::Data => SyncScope::Data,
            Flush::All => SyncScope::All,
        };
        let ask = move |inner: &Self, file, permit| {
            inner.ask(file, None, permit, None, |token, file| WriteRequest::Sync {
                token,
                file,
                reach,
            })
        };
        let (inner, file) = (Arc::clone(self), Arc::clone(file));
        if let Ok(permit) = Arc::clone(&inner.syncs).try_acquire_owned() {
            return ask(&inner, file, permit);
        }
        // The write must complete without its caller, so a task of its own waits for its turn.
        let begun = tokio::spawn(async move {
            let permit = Arc::clone(&inner.syncs).acquire_owned().await;
            let asked = ask(&inner, file, permit.expect("the flushes are never closed"));
            inner.wakers.wake();
            asked.await
        });
        Box::pin(async move { begun.await.unwrap_or_else(|_| Err(stopped())) })
    }
}

impl RequestQueue {
    fn begin(&mut self, asked: PendingRequest, request: impl FnOnce(u32) -> WriteRequest) {
        if self.is_closed {
            // Dropping the request notifies the caller.
            return;
        }
        let token = self.free.pop().expect("there is one for each place and each flush");
        self.asked[token as usize] = Some(asked);
        let pushed = self.requests.push(request(token));
        assert!(pushed.is_ok(), "the ring has room for every place and every flush");
    }

    fn end(&mut self, token: u32) -> PendingRequest {
        let asked = self.asked[token as usize].take().expect("a request is answered once");
        self.free.push(token);
        if let Some(block) = asked.block {
            self.keeper.emptied(block);
        }
        asked
    }
}

impl Medium for WritePath {
    fn slot_size(&self) -> usize {
        self.0.view.block_size() as usize
    }

    fn places_each(&self) -> usize {
        (self.0.view.places() as usize / EACH_MAX).max(2)
    }

    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            // One by one: a request for all at once would block later ones from each slot that
            // becomes free.
            let one = || Arc::clone(&inner.places).acquire_many_owned(1);
            let mut places = one().await.expect("the places are never closed");
            for _ in 1..what.places {
                places.merge(one().await.expect("the places are never closed"));
            }
            let free = Arc::new(Semaphore::new(what.places as usize));
            let within = what.within;
            let kept = Arc::new(ReservationGuard { _places: places, _promise: what.promise });
            Arc::new(ReservedSlots { inner, free, within, kept }) as Arc<dyn Medium>
        })
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let waiting = WaitingUpload::begin(&inner);
            let permit = Arc::clone(&inner.places).acquire_owned().await;
            drop(waiting);
            let permit = permit.expect("the places are never closed");
            WritePathSlot::take(inner, permit, None)
        })
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        let asked = self.0.ask_sync(file, what);
        self.0.wakers.wake();
        asked
    }

    fn sync_all(&self, files: &[Arc<OwnedFd>]) -> Vec<PendingIo> {
        let asked = files.iter().map(|file| self.0.ask_sync(file, Flush::All)).collect();
        // Not before all are there: a core that wakes at the first one flushes it alone.
        self.0.wakers.wake();
        asked
    }
}

/// Part of the slots that an upload may hold: an eighth. That is more than a disk needs to be busy,
/// and the first bytes of a new upload do not wait behind all the memory of another.
const EACH_MAX: usize = 8;

/// A recording that is behind may use slots of uploads while more than a quarter of them is free.
const SPARE_FROM: usize = 4;

/// A slot that is being filled.
struct WritePathSlot {
    /// None only at its end.
    filling: Option<KernelBlock>,
    block: BlockRef,
    inner: Arc<Inner>,
    /// None once it was handed over.
    permit: Option<OwnedSemaphorePermit>,
    /// For a recording: the deadline of the write.
    paced: Option<(Nanos, Arc<ReservationGuard>)>,
}

impl WritePathSlot {
    fn take(
        inner: Arc<Inner>,
        permit: OwnedSemaphorePermit,
        paced: Option<(Nanos, Arc<ReservationGuard>)>,
    ) -> Box<dyn WriteSlot> {
        let block = inner.queue().keeper.take().expect("a permit stands for a free place");
        let filling = Some(inner.view.filling(block));
        Box::new(Self { filling, block, inner, permit: Some(permit), paced })
    }
}

/// The reserved slots of a recording. Its writes go before those of uploads.
struct ReservedSlots {
    inner: Arc<Inner>,
    /// A permit for each of its free slots.
    free: Arc<Semaphore>,
    within: Nanos,
    kept: Arc<ReservationGuard>,
}

/// Releases the reservation when the last slot of a recording has returned.
struct ReservationGuard {
    _places: OwnedSemaphorePermit,
    _promise: Arc<dyn std::any::Any + Send + Sync>,
}

impl Medium for ReservedSlots {
    fn slot_size(&self) -> usize {
        self.inner.view.block_size() as usize
    }

    fn places_each(&self) -> usize {
        // Its slots are the only bound: all of them may be at the device.
        usize::MAX
    }

    fn reserve(&self, _what: Reserve) -> Pending<Arc<dyn Medium>> {
        unreachable!("a recording's places are not shared out again")
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        let (inner, free) = (Arc::clone(&self.inner), Arc::clone(&self.free));
        let paced = Some((self.within, Arc::clone(&self.kept)));
        Box::pin(async move {
            let permit = free.acquire_owned().await.expect("the places are never closed");
            WritePathSlot::take(inner, permit, paced)
        })
    }

    fn spare_now(&self) -> Option<Box<dyn WriteSlot>> {
        let (places, all) = (&self.inner.places, self.inner.view.places() as usize);
        // Uploads may begin at any time, and a recording may be behind for long.
        if places.available_permits() < all / SPARE_FROM {
            return None;
        }
        let permit = Arc::clone(places).try_acquire_owned().ok()?;
        Some(WritePathSlot::take(Arc::clone(&self.inner), permit, None))
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        WritePath(Arc::clone(&self.inner)).sync(file, what)
    }
}

impl WriteSlot for WritePathSlot {
    fn memory(&mut self) -> &mut [u8] {
        self.filling.as_mut().expect("only its end takes the memory").bytes()
    }

    fn write(mut self: Box<Self>, to: Extent) -> PendingIo {
        let Extent { file, offset, len } = to;
        assert!(len <= self.inner.view.block_size() as usize, "no more than the place holds");
        assert!(len > 0 && (len as u64 | offset.0).is_multiple_of(SECTOR), "whole sectors");
        self.filling = None;
        let permit = self.permit.take().expect("a place is written once");
        let block = self.block;
        let (class, kept) = match self.paced.take() {
            None => (WriteClass::BestEffort, None),
            Some((within, kept)) => {
                (WriteClass::Paced { deadline: clock::now() + within }, Some(kept))
            }
        };
        let write = |token, file| WriteRequest::Write {
            token,
            block: ports::BlockRef { place: block.place, generation: block.generation },
            file,
            offset,
            len: len as u32,
            class,
            // The position is unknown while the file is new; best effort goes in the order of
            // arrival.
            position: 0,
        };
        let asked = self.inner.ask(file, Some(block), permit, kept, write);
        self.inner.wakers.wake();
        asked
    }
}

impl Drop for WritePathSlot {
    fn drop(&mut self) {
        self.filling = None;
        if let Some(permit) = self.permit.take() {
            self.inner.queue().keeper.emptied(self.block);
            drop(permit);
        }
    }
}

/// Counts an upload that waits for a slot, until it gets one or is dropped.
struct WaitingUpload<'a>(&'a Inner);

impl<'a> WaitingUpload<'a> {
    fn begin(inner: &'a Inner) -> Self {
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }
}

impl Drop for WaitingUpload<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts the thread that handles the answers of all volumes: a thread of its own, because closing
/// a file may take a while.
pub(super) fn start_answers(
    mut write_paths: Vec<(WritePath, Consumer<WriteAnswer>)>,
    mut sleeper: Sleeper,
    stopping: Arc<AtomicBool>,
) -> io::Result<JoinHandle<()>> {
    let body = move || {
        let _vital = AbortOnPanic;
        while !stopping.load(Ordering::Acquire) {
            for (write_path, answers) in &mut write_paths {
                write_path.handle_answers(answers);
            }
            sleeper.wait_until(Some(clock::now() + LOOK));
        }
        for (write_path, answers) in &mut write_paths {
            write_path.handle_answers(answers);
            write_path.close();
        }
    };
    std::thread::Builder::new().name("tactus-writes".to_owned()).spawn(body)
}

/// The waker wakes the thread; this only bounds the delay of the engine's stop.
const LOOK: Nanos = Nanos::from_millis(500);

impl std::fmt::Debug for WritePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WritePath").field(&self.levels()).finish()
    }
}

#[cfg(test)]
mod tests;
