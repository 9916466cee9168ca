//! The disk port on io_uring: direct reads into registered blocks, or writes from those of a write
//! share and flushes; completions by looking.
//!
//! Promise: the kernel-memory rule. A block given to the kernel comes back with its completion and
//! not before; dropping the port asks the kernel to cancel and waits for every completion, and
//! where it cannot wait it leaks the arena rather than free memory that may still be written.
//! Completions cannot overflow: there are never more transfers and flushes than places for them.
//! After [`DiskRing::open`] nothing is allocated. It decides no order and knows no cycle.
//!
//! ```text
//!    submit --> [ table of depth ] --> submission queue --kick--> kernel --> completion queue
//!                      ^    |                                                     |
//!                      |    +------- again: interrupted or short ------<----------+
//!                      +------------ done: landed, place free <------- poll_completion
//! ```
//!
//! **Two rings.** One reads, the other writes; each can do nothing else. A write may have to wait
//! for the file system (blocks to be found, a journal that is full), and a flush always waits. The
//! ring for them tells the kernel to use threads of its own from the beginning (`IOSQE_ASYNC`),
//! which are kept off the issuer's core. Submitted as a read is, a write of 128 KiB to ext4 kept
//! the issuer for 41 us at the median, 0.27 ms at the 99th percentile and up to 2 ms; so it is 2.4,
//! 4.6 and 70 us.
//!
//! **Threads.** The ring is made disabled on any thread, with all its memory; the first thread that
//! kicks it enables it and becomes its only issuer (`SINGLE_ISSUER`), so that completions are
//! worked off when that thread looks (`DEFER_TASKRUN`) and at no other time. To move the port to
//! another thread, the control side makes the next ring ([`RingRenewer`]), and the thread calls
//! `leave`: the port continues with the next ring on the next thread at once, while the old thread
//! tends the old ring ([`Tender`]) until all that was under way has come. A kick from a thread that
//! is not the issuer stops the program.
//!
//! **Wake-ups.** The core polls for the ends of transfers. The end of a flush wakes the issuer, if
//! the issuer is the thread of a [`Sleeper`](crate::waker::Sleeper): an upload waits for each
//! flush.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use tactus_core::ports::{
    Completion, Direction, DiskFault, DiskPort, Sync, SyncResult, SyncScope, Transfer,
};
use tactus_core::units::MonoTime;
use tactus_ring::arena::{BlockRef, View};

use crate::disk::progress::{Progress, Remainder, Step};
use crate::disk::writes::WriteOptions;
use crate::waker;

/// The disk port on io_uring.
pub struct DiskRing {
    ring: Ring,
    exchange: Exchange,
    renewer: RingRenewer,
    view: View,
    /// Flushes at a time, and where they run; `None` when it reads.
    writes: Option<Writes>,
    facts: RingFacts,
    /// What is under way, on this ring or on the one before.
    table: Table,
    /// Submitted and not yet polled.
    transfers: u32,
    syncs: u32,
    /// Ended, and found when the other kind was looked for.
    moved: Vec<Completion>,
    synced: Vec<SyncResult>,
}

#[derive(Clone)]
struct Writes {
    syncs: u32,
    cores: Box<[u32]>,
}

/// What the kernel granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingFacts {
    /// Most transfers in flight.
    pub depth: u32,
    /// Completions are worked off only when the port looks (Linux 6.1).
    pub deferred: bool,
    /// The arena is registered, so the kernel does not look up its pages for each read; or the
    /// error number by which that was refused (`ENOMEM`: `RLIMIT_MEMLOCK` is too small).
    pub registered: Result<(), i32>,
    /// The ring can do nothing but what it is for: read, or write and flush; and cancel.
    pub restricted: bool,
}

/// Whether the arena is offered to the kernel for registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registration {
    /// Yes; transfers go on without it when it is refused.
    Wanted,
    /// No.
    NotWanted,
}

/// Most transfers in flight on one ring: far above what any device gains from.
pub const DEPTH_MAX: u32 = 4096;

/// The kernel's limit for one registered buffer.
const CHUNK_MAX: usize = 1 << 30;

/// How long a dropped port waits for its completions before it leaks the arena: as long as a disk
/// may take to reset its link and answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Marks the completion of a cancel; no transfer's tag looks so, as tables are smaller than 2^32.
const CANCEL: u64 = u64::MAX;

impl DiskRing {
    /// Makes a ring that reads, with all its memory, for at most `depth` transfers at a time.
    ///
    /// # Errors
    /// `ENOSYS` or `EPERM` where io_uring is not there or not allowed; `ENOMEM`, `EMFILE` when
    /// resources are short; `EINVAL` when `depth` is zero or above [`DEPTH_MAX`].
    pub fn open(view: View, depth: u32, registration: Registration) -> io::Result<Self> {
        Self::open_as(view, depth, None, registration)
    }

    /// Makes a ring that writes from the places of a write share, and flushes.
    ///
    /// # Errors
    /// As [`DiskRing::open`].
    pub fn open_for_writes(
        view: View,
        options: &WriteOptions,
        registration: Registration,
    ) -> io::Result<Self> {
        let WriteOptions { depth, syncs, ref cores } = *options;
        let writes = Writes { syncs, cores: cores.clone().into() };
        Self::open_as(view, depth, Some(writes), registration)
    }

    fn open_as(
        view: View,
        depth: u32,
        writes: Option<Writes>,
        registration: Registration,
    ) -> io::Result<Self> {
        let syncs = writes.as_ref().map_or(0, |writes| writes.syncs);
        if depth == 0 || depth > DEPTH_MAX || syncs > DEPTH_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let recipe = Recipe { view, depth: depth + syncs, writes, registration };
        let ring = recipe.make()?;
        let Ring { deferred, registered, restricted, .. } = ring;
        let facts = RingFacts { depth, deferred, registered, restricted };
        // What was refused once is not tried again: the reason is kept.
        let registration = match registered {
            Ok(()) => registration,
            Err(_) => Registration::NotWanted,
        };
        let (view, writes) = (recipe.view.clone(), recipe.writes.clone());
        let (exchange, renewer) = exchange::exchange(Recipe { registration, ..recipe }, &ring);
        Ok(Self {
            ring,
            exchange,
            renewer,
            view,
            writes,
            facts,
            table: Table::new(depth + syncs),
            transfers: 0,
            syncs: 0,
            moved: Vec::with_capacity(depth as usize),
            synced: Vec::with_capacity(syncs as usize),
        })
    }

    /// What the kernel granted.
    pub fn facts(&self) -> RingFacts {
        self.facts
    }

    /// How many transfers and flushes were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        self.transfers + self.syncs
    }

    /// The control side's end: makes the ring for the next thread.
    pub fn renewer(&self) -> RingRenewer {
        self.renewer.clone()
    }

    /// Puts the next request of a transfer or a flush into the submission queue.
    fn push(&mut self, tag: u64) {
        let entry = match self.table.running(tag) {
            InFlightOperation::Sync(Sync { file, reach, .. }) => {
                let flags = match reach {
                    SyncScope::Data => types::FsyncFlags::DATASYNC,
                    SyncScope::All => types::FsyncFlags::empty(),
                };
                opcode::Fsync::new(types::Fd(file.0)).flags(flags).build()
            }
            InFlightOperation::Transfer(moving) => {
                let Remainder { offset, from, len } = moving.progress.rest();
                // SAFETY: `from < len`, and `View::target` has checked that `len` bytes lie in the
                // block.
                let target = unsafe { moving.target.add(from as usize) }.as_ptr();
                let file = types::Fd(moving.progress.transfer.file.0);
                let buffer = self.ring.chunk.map(|chunk| {
                    let from_base = target as usize - self.view.region().0.as_ptr() as usize;
                    u16::try_from(from_base / chunk).expect("checked by `register`")
                });
                match (moving.progress.transfer.direction, buffer) {
                    (Direction::Read, None) => {
                        opcode::Read::new(file, target, len).offset(offset).build()
                    }
                    (Direction::Read, Some(buffer)) => {
                        opcode::ReadFixed::new(file, target, len, buffer).offset(offset).build()
                    }
                    (Direction::Write, None) => {
                        opcode::Write::new(file, target, len).offset(offset).build()
                    }
                    (Direction::Write, Some(buffer)) => {
                        opcode::WriteFixed::new(file, target, len, buffer).offset(offset).build()
                    }
                }
            }
        };
        let how = match self.writes {
            // Both may wait for the file system: never on this thread.
            Some(_) => squeue::Flags::ASYNC,
            None => squeue::Flags::empty(),
        };
        self.push_entry(&entry.flags(how).user_data(tag));
    }

    fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: a transfer's target lies in the arena, which `self.view` keeps alive, and its
        // block stays InKernel until `landed`; flushes and cancels have no memory. `drop` waits for
        // all.
        let pushed = unsafe { self.ring.uring.submission().push(entry) };
        pushed.expect("the queue has a place for all that is in flight, and then for a cancel");
    }

    /// Gives the queue to the kernel and lets it work off completions.
    fn enter(&mut self) {
        self.enable();
        match self.ring.uring.submit() {
            Ok(_) => (),
            Err(refused) => match errno_of(&refused) {
                // Interrupted, or short of memory for now: what is left goes with the next kick.
                libc::EINTR | libc::EAGAIN | libc::EBUSY => (),
                libc::EEXIST => panic!("a ring is kicked by one thread only: leave it first"),
                errno => panic!("the ring is set up and its entries are valid: errno {errno}"),
            },
        }
    }

    /// Whether the end of a flush wakes the thread that has begun it.
    pub(super) fn wakes(&self) -> bool {
        self.ring.wakes
    }

    /// Makes the calling thread the issuer, once.
    fn enable(&mut self) {
        if self.ring.disabled {
            // Flushes end in threads of the kernel, and only such ends write the event: a wake-up
            // for each transfer would cost too much. An enabled ring may be restricted, and then
            // the kernel refuses the registration.
            let ring = self.ring.uring.submitter();
            let woken = |event: BorrowedFd<'_>| ring.register_eventfd_async(event.as_raw_fd());
            self.ring.wakes =
                self.writes.is_some() && matches!(waker::with_own_event(woken), Some(Ok(())));
            let enabled = self.ring.uring.submitter().register_enable_rings();
            enabled.expect("a ring that was made disabled can be enabled");
            self.ring.disabled = false;
            if let Some(writes) = &self.writes {
                let most = self.facts.depth + writes.syncs;
                // Where it is refused they run on this core, after this thread: slower, not wrong.
                place_kernel_threads(&writes.cores, most).ok();
            }
        }
    }

    /// The next completion that the kernel has posted, if it is not a cancel's.
    fn next_posted(&mut self) -> Option<(u64, i32)> {
        self.exchange.next_posted().or_else(|| self.ring.next_posted())
    }

    /// Ends what a tag names: a block may leave the kernel, the place is free.
    fn land(&mut self, tag: u64) -> InFlightOperation {
        let ended = self.table.end(tag);
        if let InFlightOperation::Transfer(moving) = &ended {
            // SAFETY: the kernel has posted the completion of the last request for this target, or
            // was never told of it.
            unsafe { self.view.landed(block_of(moving.progress.transfer)) };
        }
        ended
    }

    /// Sorts what the kernel has posted into `moved` and `synced`, until `enough` has come. At most
    /// one look into the kernel, and none while completions are posted.
    fn take_posted(&mut self, enough: impl Fn(&Self) -> bool) {
        let mut looked = false;
        while !enough(self) && self.table.in_flight() > 0 {
            let Some((tag, result)) = self.next_posted() else {
                let waiting = self.ring.uring.submission();
                let worth_it = !waiting.is_empty() || waiting.taskrun() || waiting.cq_overflow();
                drop(waiting);
                if looked || self.ring.disabled || !worth_it {
                    return;
                }
                looked = true;
                self.enter();
                continue;
            };
            match self.table.running(tag) {
                &mut InFlightOperation::Sync(sync) => {
                    // Whatever the error: a flush is never tried again.
                    let result = if result < 0 { Err(DiskFault(-result)) } else { Ok(()) };
                    self.land(tag);
                    self.synced.push(SyncResult { sync, result });
                }
                InFlightOperation::Transfer(moving) => {
                    match moving.progress.handle_result(result) {
                        Step::Again => self.push(tag),
                        Step::Done(result) => {
                            let transfer = moving.progress.transfer;
                            self.land(tag);
                            self.moved.push(Completion { transfer, result });
                        }
                    }
                }
            }
        }
    }

    fn direction(&self) -> Direction {
        if self.writes.is_some() { Direction::Write } else { Direction::Read }
    }
}

impl DiskPort for DiskRing {
    fn submit(&mut self, _now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        assert_eq!(transfer.direction, self.direction(), "this ring is for the other direction");
        if self.transfers == self.facts.depth {
            return Err(transfer);
        }
        let progress = Progress::new(transfer);
        let target = self.view.target(block_of(transfer), transfer.at, transfer.len);
        let tag =
            self.table.begin(InFlightOperation::Transfer(InFlightTransfer { progress, target }));
        self.push(tag);
        self.transfers += 1;
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {
        if !self.ring.uring.submission().is_empty() {
            self.enter();
        }
    }

    fn poll_completion(&mut self, _now: MonoTime) -> Option<Completion> {
        if self.transfers > 0 {
            self.take_posted(|ring| !ring.moved.is_empty());
        }
        let completion = self.moved.pop()?;
        self.transfers -= 1;
        Some(completion)
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        if self.writes.as_ref().is_none_or(|writes| self.syncs == writes.syncs) {
            return Err(sync);
        }
        let tag = self.table.begin(InFlightOperation::Sync(sync));
        self.push(tag);
        self.syncs += 1;
        Ok(())
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<SyncResult> {
        if self.syncs > 0 {
            self.take_posted(|ring| !ring.synced.is_empty());
        }
        let synced = self.synced.pop()?;
        self.syncs -= 1;
        Some(synced)
    }

    fn may_leave(&mut self) -> bool {
        // What the kernel was short of memory for is still in the queue.
        if self.exchange.is_ready() && !self.ring.uring.submission().is_empty() {
            self.enter();
        }
        self.exchange.is_ready() && self.ring.uring.submission().is_empty()
    }

    fn leave(&mut self, _cpu: u32) {
        self.exchange.leave(&mut self.ring, self.table.in_flight());
        if self.facts.registered.is_ok() {
            self.facts.registered = self.ring.registered;
        }
    }
}

impl Drop for DiskRing {
    fn drop(&mut self) {
        if self.table.in_flight() > 0 && !self.settle(Instant::now() + PATIENCE) {
            // Closing the ring lets the kernel finish by itself, some time. Until then the arena
            // must stay mapped, so it stays for ever.
            std::mem::forget(self.view.clone());
        }
    }
}

impl DiskRing {
    /// Cancels everything and waits for every completion. False when that cannot be done: the
    /// device hangs, or this is not the issuer's thread.
    fn settle(&mut self, deadline: Instant) -> bool {
        // Its thread tends the old ring, or has ended: then the kernel posts all that was left.
        while self.exchange.has_old() {
            match self.exchange.next_posted() {
                Some((tag, _)) => {
                    self.land(tag);
                }
                None if Instant::now() >= deadline => return false,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        if self.ring.disabled {
            // The kernel was never told of any.
            while let Some(tag) = self.table.any() {
                self.land(tag);
            }
            return true;
        }
        // First empty the queue: it has places for all that is in flight, then the cancel fits as
        // well.
        let mut cancelled = false;
        while self.table.in_flight() > 0 {
            if !cancelled && self.ring.uring.submission().is_empty() {
                let all = types::CancelBuilder::any().all();
                self.push_entry(&opcode::AsyncCancel2::new(all).build().user_data(CANCEL));
                cancelled = true;
            }
            while let Some((tag, _)) = self.next_posted() {
                self.land(tag);
            }
            let waits = self.table.in_flight() > 0;
            if waits && (Instant::now() >= deadline || !self.wait_briefly()) {
                return false;
            }
        }
        true
    }

    /// Waits for a completion for at most some milliseconds. False when this thread may not.
    fn wait_briefly(&self) -> bool {
        let span = types::Timespec::new().nsec(20_000_000);
        let wait = types::SubmitArgs::new().timespec(&span);
        let entered = match self.ring.uring.params().is_feature_ext_arg() {
            true => self.ring.uring.submitter().submit_with_args(1, &wait),
            // Before Linux 5.11: no time limit.
            false => self.ring.uring.submit_and_wait(1),
        };
        match entered {
            Ok(_) => true,
            Err(refused) => {
                let passing = [libc::ETIME, libc::EINTR, libc::EAGAIN, libc::EBUSY];
                passing.contains(&errno_of(&refused))
            }
        }
    }
}

/// Tries a small ring: whether completions are deferred, and whether it can be restricted.
pub(crate) fn try_out() -> Result<(bool, bool), i32> {
    let (ring, deferred) = set_up(2).map_err(|refused| errno_of(&refused))?;
    Ok((deferred, restrict(&ring, false).is_ok()))
}

/// Sets up a disabled ring, with what this kernel has: whether completions are deferred.
fn set_up(depth: u32) -> io::Result<(IoUring, bool)> {
    // Linux 6.1.
    let newest = IoUring::builder()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(depth);
    if let Ok(ring) = newest {
        return Ok((ring, true));
    }
    // Linux 5.19: at least no interrupts of this thread by completions.
    let newer = IoUring::builder()
        .setup_r_disabled()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(depth);
    if let Ok(ring) = newer {
        return Ok((ring, false));
    }
    // Linux 5.10.
    Ok((IoUring::builder().setup_r_disabled().build(depth)?, false))
}

/// Lets the ring read, or write and flush, and cancel, and nothing else: whoever takes over this
/// thread cannot use it to connect or to open.
fn restrict(ring: &IoUring, writes: bool) -> io::Result<()> {
    let ours: &[u8] = match writes {
        true => &[opcode::Write::CODE, opcode::WriteFixed::CODE, opcode::Fsync::CODE],
        false => &[opcode::Read::CODE, opcode::ReadFixed::CODE],
    };
    let allowed = ours.iter().chain(&[opcode::AsyncCancel2::CODE]).copied();
    let mut allowed: Vec<_> = allowed.map(Restriction::sqe_op).collect();
    if writes {
        allowed.push(Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()));
    }
    ring.submitter().register_restrictions(&mut allowed)
}

/// Keeps the kernel threads that work for the calling thread on `cores`, and lets there be as many
/// as may wait at once (by default four for each core: flushes would keep transfers waiting). They
/// are ordinary threads, and without this run on the caller's core. Linux 5.15.
fn place_kernel_threads(cores: &[u32], most: u32) -> io::Result<()> {
    thread_local! {
        /// As many as this thread may have. A ring takes tens of microseconds to make, and a port
        /// that comes back to its thread finds this done.
        static PLACED: Cell<u32> = const { Cell::new(0) };
    }
    if PLACED.get() >= most {
        return Ok(());
    }
    // The setting is the thread's, whichever ring it is made through; ours allow no settings.
    let any = IoUring::new(1)?;
    // SAFETY: a set of cores is bits, of which none are set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores.iter().filter(|&&core| core < libc::CPU_SETSIZE as u32) {
        // SAFETY: `core` lies in the set.
        unsafe { libc::CPU_SET(core as usize, &mut set) };
    }
    // Zero: those for sockets and pipes stay as they are.
    any.submitter().register_iowq_max_workers(&mut [most, 0])?;
    if !cores.is_empty() {
        any.submitter().register_iowq_aff(&set)?;
    }
    PLACED.set(most);
    Ok(())
}

/// Registers the arena in chunks of whole blocks, so that no block lies in two. Returns their size.
fn register(ring: &IoUring, view: &View) -> io::Result<usize> {
    let (base, _) = view.region();
    let block = view.block_size() as usize;
    let used = view.places() as usize * block;
    let chunk = (CHUNK_MAX / block).max(1) * block;
    let vectors: Vec<_> = (0..used)
        .step_by(chunk)
        .map(|from| {
            let len = chunk.min(used - from);
            libc::iovec { iov_base: base.as_ptr().wrapping_add(from).cast(), iov_len: len }
        })
        .collect();
    if u16::try_from(vectors.len()).is_err() {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    // SAFETY: the vectors describe the arena, which the port's view keeps mapped as long as the
    // ring lives; the kernel itself writes nothing until a block is given to it.
    unsafe { ring.submitter().register_buffers(&vectors) }?;
    Ok(chunk)
}

fn block_of(transfer: Transfer) -> BlockRef {
    BlockRef { place: transfer.block.place, generation: transfer.block.generation }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

mod exchange;
mod table;
use exchange::{Exchange, Recipe, Ring};
use table::{InFlightOperation, InFlightTransfer, Table};

pub use exchange::{RingRenewer, Tender};
