//! Rings that change: a port leaves its thread with a fresh ring, and the old one ends what it has
//! begun.
//!
//! Promise: a transfer under way is neither lost nor waited for. What takes time (making a ring,
//! registering memory, closing) is done by the control side, before and after.
//!
//! ```text
//! control side: RingRenewer ── fresh ──► port: Exchange ── worn ──► control side: closes it
//!                    └── the old ring ──► Tender of the old thread
//! ```
//!
//! Of a ring with `DEFER_TASKRUN` only the thread that has enabled it can have completions posted,
//! by `io_uring_enter`. But posted completions lie in shared memory, and one reader at a time is
//! all that the kernel asks for. So the old thread enters the old ring from time to time
//! ([`Tender`]), and the port, wherever it is, reads the completions.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::IoUring;
use tactus_ring::arena::View;
use tactus_ring::spsc::{Consumer, Producer, ring};

use super::{CANCEL, Registration, Writes, errno_of, register, restrict, set_up};

/// A ring of the kernel.
pub(super) struct Ring {
    pub(super) uring: IoUring,
    /// No thread has kicked it yet.
    pub(super) disabled: bool,
    /// The end of a flush wakes the thread that has enabled the ring.
    pub(super) wakes: bool,
    /// Bytes in a registered buffer; `None` when registration was refused.
    pub(super) chunk: Option<usize>,
    pub(super) registered: Result<(), i32>,
    pub(super) deferred: bool,
    pub(super) restricted: bool,
    /// For its tender.
    descriptor: Arc<OwnedFd>,
}

impl Ring {
    /// The next completion that the kernel has posted, if it is not a cancel's.
    pub(super) fn next_posted(&mut self) -> Option<(u64, i32)> {
        let mut posted = self.uring.completion();
        let entry = posted.find(|entry| entry.user_data() != CANCEL)?;
        Some((entry.user_data(), entry.result()))
    }
}

/// What a port's rings are made of.
pub(super) struct Recipe {
    pub(super) view: View,
    /// Transfers and flushes at a time.
    pub(super) depth: u32,
    pub(super) writes: Option<Writes>,
    pub(super) registration: Registration,
}

impl Recipe {
    pub(super) fn make(&self) -> io::Result<Ring> {
        let (uring, deferred) = set_up(self.depth)?;
        let restricted = restrict(&uring, self.writes.is_some()).is_ok();
        let registered = match self.registration {
            Registration::Wanted => register(&uring, &self.view),
            Registration::NotWanted => Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
        };
        let chunk = registered.as_ref().ok().copied();
        let registered = registered.map(|_| ()).map_err(|refused| errno_of(&refused));
        // SAFETY: the ring is open.
        let own = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) };
        let descriptor = Arc::new(own.try_clone_to_owned()?);
        let (disabled, wakes) = (true, false);
        Ok(Ring { uring, disabled, wakes, chunk, registered, deferred, restricted, descriptor })
    }
}

/// A port's end: fresh rings come, worn ones go.
pub(super) struct Exchange {
    fresh: Consumer<Ring>,
    worn: Producer<Ring>,
    /// The ring for the next thread.
    next: Option<Ring>,
    old: Option<OldRing>,
}

/// A ring that another thread has enabled, with the number of its completions to come.
struct OldRing {
    ring: Ring,
    left: u32,
}

impl Exchange {
    /// Whether [`Self::leave`] has a ring, and the last one has ended.
    pub(super) fn is_ready(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.fresh.pop();
        }
        self.next.is_some() && self.old.is_none()
    }

    /// Puts the fresh ring in the place of `ring`, which has `in_flight` completions to come.
    pub(super) fn leave(&mut self, ring: &mut Ring, in_flight: u32) {
        let next = self.next.take().expect("the port may leave: a fresh ring is there");
        self.old = Some(OldRing { ring: std::mem::replace(ring, next), left: in_flight });
        self.retire();
    }

    /// Whether an old ring has completions to come.
    pub(super) fn has_old(&self) -> bool {
        self.old.is_some()
    }

    /// The next completion of the old ring.
    pub(super) fn next_posted(&mut self) -> Option<(u64, i32)> {
        let old = self.old.as_mut()?;
        let found = old.ring.next_posted()?;
        old.left -= 1;
        self.retire();
        Some(found)
    }

    /// Gives the old ring back when nothing of it is left.
    fn retire(&mut self) {
        if let Some(old) = self.old.take_if(|old| old.left == 0) {
            let taken = self.worn.push(old.ring);
            assert!(taken.is_ok(), "the next ring is made when the last one has been closed");
        }
    }
}

/// The control side's end of a port: makes the ring for its next thread, and closes the last one.
#[derive(Clone)]
pub struct RingRenewer(Arc<Mutex<Renewal>>);

struct Renewal {
    recipe: Recipe,
    fresh: Producer<Ring>,
    worn: Consumer<Ring>,
    in_force: Arc<OwnedFd>,
    /// The ring that is left or will be, and who tends it.
    leaving: Option<(Arc<OwnedFd>, Tender)>,
}

/// Both ends of the rings that follow `first`.
pub(super) fn exchange(recipe: Recipe, first: &Ring) -> (Exchange, RingRenewer) {
    let ((fresh, coming), (going, worn)) = (ring(1), ring(1));
    let in_force = Arc::clone(&first.descriptor);
    let renewal = Renewal { recipe, fresh, worn, in_force, leaving: None };
    let exchange = Exchange { fresh: coming, worn: going, next: None, old: None };
    (exchange, RingRenewer(Arc::new(Mutex::new(renewal))))
}

impl RingRenewer {
    /// Closes the ring that the port has left, if nothing of it is under way any more. Returns
    /// whether the port may leave again.
    pub fn settle(&self) -> bool {
        let mut renewal = self.open();
        if let Some((descriptor, tender)) = renewal.leaving.take() {
            let Some(worn) = renewal.worn.pop() else {
                renewal.leaving = Some((descriptor, tender));
                return false;
            };
            tender.release(&descriptor);
            drop((worn, descriptor));
        }
        true
    }

    /// Makes the ring for the next thread.
    pub(in crate::disk) fn make(&self) -> io::Result<FreshRing> {
        self.open().recipe.make().map(FreshRing)
    }

    /// Lets the port leave its thread, which `tender` belongs to, with the ring `next`.
    ///
    /// # Panics
    /// If the port has left before and is not settled.
    pub(in crate::disk) fn hand_in(&self, next: FreshRing, tender: &Tender) {
        let mut renewal = self.open();
        assert!(renewal.leaving.is_none(), "a port leaves again when it is settled");
        let descriptor = Arc::clone(&next.0.descriptor);
        let old = std::mem::replace(&mut renewal.in_force, descriptor);
        tender.take(&old);
        renewal.leaving = Some((old, tender.clone()));
        assert!(renewal.fresh.push(next.0).is_ok(), "one ring is handed in at a time");
    }

    fn open(&self) -> MutexGuard<'_, Renewal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ring that no thread uses yet.
pub(in crate::disk) struct FreshRing(Ring);

/// The rings that have left a thread with completions to come. Clones share them.
#[derive(Clone, Default)]
pub struct Tender(Arc<TendedRings>);

#[derive(Default)]
struct TendedRings {
    count: AtomicUsize,
    rings: Mutex<Vec<Arc<OwnedFd>>>,
}

impl Tender {
    /// Has the kernel post what has ended. Returns whether there are rings. Only the thread that
    /// the rings have left calls this. It never waits: rings that the control side looks at just
    /// now are tended the next time.
    pub fn tend(&self) -> bool {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        if let Ok(rings) = self.0.rings.try_lock() {
            rings.iter().for_each(|ring| work_off(ring.as_fd()));
        }
        true
    }

    fn take(&self, ring: &Arc<OwnedFd>) {
        let mut rings = self.0.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.push(Arc::clone(ring));
        self.0.count.store(rings.len(), Ordering::Release);
    }

    fn release(&self, ring: &Arc<OwnedFd>) {
        let mut rings = self.0.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|tended| !Arc::ptr_eq(tended, ring));
        self.0.count.store(rings.len(), Ordering::Release);
    }
}

/// Lets the kernel work off completions of a ring whose memory another thread reads.
fn work_off(ring: BorrowedFd<'_>) {
    const GET_EVENTS: u32 = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: nothing is submitted and nothing waited for, so no memory is passed. An error (the
    // ring was never enabled, or is another thread's) means that there is nothing to work off here.
    unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            ring.as_raw_fd(),
            0,
            0,
            GET_EVENTS,
            nothing,
            0_usize,
        );
    }
}
