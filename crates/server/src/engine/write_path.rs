//! A volume's intake: places of its write share, writes and flushes for the disk server, and their
//! answers.
//!
//! Promise: a place is the only thing that an upload waits for, and who waits first is served first.
//! What has been handed over goes on to its end whether or not anybody waits for it: its file stays
//! open, and its place comes back with the answer. Nothing is asked for twice. There are never more
//! requests than places and flushes, so no queue can be full.
//!
//! ```text
//!  place ──► fill ──► write ──► ring ──► disk server ──► device
//!    ▲                 │                                    │
//!    └── free ◄────────┴──── answer, file closed ◄── ring ◄─┘
//! ```

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tactus_core::ports::{self, FileHandle, Reach, Waker as _};
use tactus_core::units::{Nanos, SECTOR};
use tactus_engine::message::{IntakeAnswer, IntakeRequest, WriteClass};
use tactus_ring::arena::{BlockRef, Filling, Keeper, View};
use tactus_ring::spsc::{Consumer, Producer};
use tactus_sys::clock;
use tactus_sys::thread::Vital;
use tactus_sys::waker::Sleeper;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::host::Wakers;
use crate::store::{Extent, Flush, Medium, Pending, PendingIo, Reserve, WriteSlot, stopped};

/// Most flushes that are asked for and not answered. An upload asks for two or three at its end, all in
/// one group; who finds no room waits.
pub(super) const SYNCS_MAX: u32 = 256;

/// One volume's intake. Clones are the same one.
#[derive(Clone)]
pub struct WritePath(Arc<Inner>);

/// How full an intake is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePathLevels {
    /// Places of the write share.
    pub places: u32,
    /// Those of them that are being filled or written.
    pub places_used: u32,
    /// Uploads that wait for a place.
    pub waiting: u32,
    /// Flushes that are asked for and not answered.
    pub syncs: u32,
}

/// The memory of a write share, and who moves its places.
pub(super) struct WriteShare {
    pub(super) keeper: Keeper,
    pub(super) view: View,
}

struct Inner {
    view: View,
    /// A permit for each free place.
    places: Arc<Semaphore>,
    /// A permit for each flush that may be asked for.
    syncs: Arc<Semaphore>,
    waiting: AtomicU32,
    /// Held for as long as it takes to change a few words.
    queue: Mutex<RequestQueue>,
    wakers: Wakers,
}

struct RequestQueue {
    keeper: Keeper,
    requests: Producer<IntakeRequest>,
    /// By token: what is asked for and not answered.
    asked: Box<[Option<PendingRequest>]>,
    free: Vec<u32>,
    is_closed: bool,
}

struct PendingRequest {
    /// Open until the answer, whoever else closes it.
    file: Arc<OwnedFd>,
    /// The place that is written; none for a flush.
    block: Option<BlockRef>,
    permit: OwnedSemaphorePermit,
    kept: Option<Arc<ReservationGuard>>,
    tell: oneshot::Sender<io::Result<()>>,
}

impl WritePath {
    pub(super) fn new(
        share: WriteShare,
        requests: Producer<IntakeRequest>,
        wakers: Wakers,
    ) -> Self {
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

    /// How full it is.
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

    /// Takes the answers that have come.
    fn handle_answers(&self, answers: &mut Consumer<IntakeAnswer>) {
        while let Some(answer) = answers.pop() {
            let (token, result) = match answer {
                IntakeAnswer::Written { token, result }
                | IntakeAnswer::Synced { token, result } => (token, result),
            };
            let asked = self.0.queue().end(token);
            // The last to hold a file that has no name gives its room back; that may take a while,
            // and concerns uploads only.
            drop(asked.file);
            drop(asked.permit);
            drop(asked.kept);
            // Whoever asked may have gone.
            asked.tell.send(result.map_err(|fault| io::Error::from_raw_os_error(fault.0))).ok();
        }
    }

    /// The engine has ended: what was not answered never will be.
    fn close(&self) {
        let mut queue = self.0.queue();
        queue.is_closed = true;
        // Their places stay taken: nobody knows whether the device is done with them.
        queue.asked.iter_mut().for_each(|asked| *asked = None);
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, RequestQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the disk server for something, with a token that is its own until the answer.
    fn ask(
        &self,
        file: Arc<OwnedFd>,
        block: Option<BlockRef>,
        permit: OwnedSemaphorePermit,
        kept: Option<Arc<ReservationGuard>>,
        request: impl FnOnce(u32, FileHandle) -> IntakeRequest,
    ) -> PendingIo {
        let (tell, told) = oneshot::channel();
        let handle = FileHandle(file.as_raw_fd());
        self.queue().begin(PendingRequest { file, block, permit, kept, tell }, |token| {
            request(token, handle)
        });
        self.wakers.wake();
        Box::pin(async move { told.await.unwrap_or_else(|_| Err(stopped())) })
    }
}

impl RequestQueue {
    fn begin(&mut self, asked: PendingRequest, request: impl FnOnce(u32) -> IntakeRequest) {
        if self.is_closed {
            // Whoever waits is told when `asked` is gone.
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
            // One by one: who waits for all at once keeps everybody behind it from each that becomes free.
            let one = || Arc::clone(&inner.places).acquire_many_owned(1);
            let mut places = one().await.expect("the places are never closed");
            for _ in 1..what.places {
                places.merge(one().await.expect("the places are never closed"));
            }
            let free = Arc::new(Semaphore::new(what.places as usize));
            let within = what.within;
            let kept = Arc::new(ReservationGuard { _places: places, _promise: what.promise });
            Arc::new(Reserved { inner, free, within, kept }) as Arc<dyn Medium>
        })
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let waiting = Waiting::begin(&inner);
            let permit = Arc::clone(&inner.places).acquire_owned().await;
            drop(waiting);
            let permit = permit.expect("the places are never closed");
            WritePathSlot::take(inner, permit, None)
        })
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        let reach = match what {
            Flush::Data => Reach::Data,
            Flush::All => Reach::All,
        };
        let ask = move |inner: &Inner, file, permit| {
            inner.ask(file, None, permit, None, |token, file| IntakeRequest::Sync {
                token,
                file,
                reach,
            })
        };
        let (inner, file) = (Arc::clone(&self.0), Arc::clone(file));
        if let Ok(permit) = Arc::clone(&inner.syncs).try_acquire_owned() {
            return ask(&inner, file, permit);
        }
        // It must go on without the one who asks, so somebody else waits for its turn.
        let begun = tokio::spawn(async move {
            let permit = Arc::clone(&inner.syncs).acquire_owned().await;
            ask(&inner, file, permit.expect("the flushes are never closed")).await
        });
        Box::pin(async move { begun.await.unwrap_or_else(|_| Err(stopped())) })
    }
}

/// An upload may hold an eighth of the places. That is more than a disk needs to be busy, and a new
/// upload's first bytes do not wait behind all the memory of another.
const EACH_MAX: usize = 8;

/// A recording that is behind gets places of uploads while more than a quarter of them is free.
const SPARE_FROM: usize = 4;

/// A place that is being filled.
struct WritePathSlot {
    /// Taken only by its end.
    filling: Option<Filling>,
    block: BlockRef,
    inner: Arc<Inner>,
    /// None once it has been handed over.
    permit: Option<OwnedSemaphorePermit>,
    /// Of a recording: how soon it is to be written.
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

/// A recording's own part of the places. Its writes go before those of uploads.
struct Reserved {
    inner: Arc<Inner>,
    /// A permit for each of its places that is free.
    free: Arc<Semaphore>,
    within: Nanos,
    kept: Arc<ReservationGuard>,
}

/// What goes back when the last place of a recording has.
struct ReservationGuard {
    _places: OwnedSemaphorePermit,
    _promise: Arc<dyn std::any::Any + Send + Sync>,
}

impl Medium for Reserved {
    fn slot_size(&self) -> usize {
        self.inner.view.block_size() as usize
    }

    fn places_each(&self) -> usize {
        // Its places are the only bound: all of them may be at the device.
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
        // Uploads come at any time, and who is behind may be so for long.
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
        self.inner.ask(file, Some(block), permit, kept, |token, file| IntakeRequest::Write {
            token,
            block: ports::BlockRef { place: block.place, generation: block.generation },
            file,
            offset,
            len: len as u32,
            class,
            // Not known while the file is being made; best effort goes in the order of arrival.
            position: 0,
        })
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

/// Counts one who waits for a place, also when he gives up.
struct Waiting<'a>(&'a Inner);

impl<'a> Waiting<'a> {
    fn begin(inner: &'a Inner) -> Self {
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts the thread that takes the answers of all volumes: one of its own, because closing a file may
/// take a while.
pub(super) fn start_answers(
    mut intakes: Vec<(WritePath, Consumer<IntakeAnswer>)>,
    mut sleeper: Sleeper,
    stopping: Arc<AtomicBool>,
) -> io::Result<JoinHandle<()>> {
    let body = move || {
        let _vital = Vital;
        while !stopping.load(Ordering::Acquire) {
            for (intake, answers) in &mut intakes {
                intake.handle_answers(answers);
            }
            sleeper.wait_until(Some(clock::now() + LOOK));
        }
        for (intake, answers) in &mut intakes {
            intake.handle_answers(answers);
            intake.close();
        }
    };
    std::thread::Builder::new().name("tactus-intake".to_owned()).spawn(body)
}

/// The waker wakes the thread; this is only how soon it sees that the engine stops.
const LOOK: Nanos = Nanos::from_millis(500);

impl std::fmt::Debug for WritePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Intake").field(&self.levels()).finish()
    }
}

#[cfg(test)]
mod tests;
