//! The disk port on the kernel's page cache: blocks that are sent by reference, never copied.
//!
//! Promise: a filled block stays in memory until its only stream has sent it, or until its place is
//! filled again. So no send waits for the disk. While free memory is scarce, the pages of a reused
//! place leave the page cache. Pinned memory therefore has the bound of an arena; the kernel may
//! evict all other pages at any time.
//!
//! A place is a pipe. To fill it is to splice a part of a file into it: the pages are read if they
//! are not there, and the pipe then refers to them, which keeps the kernel from taking them back.
//! The only stream of a block moves them from the pipe into its socket ([`HeldBlocks`]). Streams
//! that share a block send its pages by `sendfile`, and the pipe keeps them. A title that
//! is read in sequence is there before it is asked for: each splice makes the kernel read the next
//! part, in large folios, for half the CPU of a direct read.
//!
//! A block whose sum is known is compared before it is given up to be sent: the thread that has
//! filled it looks at the bytes of the same pages once, 31 us for 256 KiB.
//!
//! ```text
//!  submit ──► in memory? ── yes ──► thread 0: splice, nothing to wait for
//!                 └──────── no ───► threads 1..: splice, waits for the disk
//!  new life of a place ──► rest of the pipe emptied ──► discarder: FADV_DONTNEED
//! ```

mod compare;
mod discard;
mod pin;
mod random_access;
mod resident;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tactus_core::ports::{
    Completion, Direction, DiskFault, DiskPort, FileHandle, Sum, Sync, SyncResult, Transfer,
};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::disk::workers::{Work, Workers};
use crate::thread;
use compare::Comparer;
use discard::{Discarder, FilePages};
use pin::Pin;
use random_access::{Advice, RandomAccess, advise};
use resident::Residence;

pub use pin::HeldBlocks;

/// The disk port on the page cache.
pub struct DiskPages {
    pins: Box<[Pin]>,
    held: Arc<HeldBlocks>,
    workers: Workers<Filler>,
    discarder: Discarder,
    sink: OwnedFd,
    /// Where the threads run, or [`ANY_CORE`].
    core: Arc<AtomicU32>,
    depth: u32,
    in_flight: u32,
    read_ahead: ReadAhead,
    /// Of the last transfer.
    ahead: u32,
    needs_device: bool,
    /// Of the last completion.
    waited: Nanos,
}

/// How the port is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesOptions {
    /// Places: each keeps one block in memory.
    pub places: u32,
    /// Bytes of a block, whole pages.
    pub block: u32,
    /// Most transfers in flight.
    pub depth: u32,
    /// Threads that wait for the disk. One more fills what is in memory.
    pub threads: u32,
    /// While the machine has less free memory than this, blocks that are given up leave the page
    /// cache.
    pub free_min: Bytes,
    /// How far the kernel reads ahead.
    pub read_ahead: ReadAhead,
    /// Where the threads run, and before whom.
    pub rights: FillerRights,
}

/// How far the kernel reads ahead of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadAhead {
    /// As far as the device says, in all files.
    Usual,
    /// So many bytes in all files: twice as many as the device says. Larger reads cost less CPU.
    Doubled(Bytes),
    /// In windows of this size, and only for transfers that say so.
    InTurns(Bytes),
}

impl ReadAhead {
    /// How far behind a block everything has been read when the block makes the kernel read no
    /// more. Large windows are [looked at](resident::is_behind) by themselves.
    fn behind(self, transfer: &Transfer) -> Bytes {
        let block = Bytes(u64::from(transfer.len));
        let behind = match self {
            Self::Usual => block,
            Self::Doubled(bytes) => bytes + block,
            Self::InTurns(_) => Bytes(0),
        };
        behind.min(transfer.rest)
    }
}

/// Where the threads run that fill blocks. What the host refuses they do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FillerRights {
    /// The core, if not any.
    pub core: Option<u32>,
    /// Their `SCHED_FIFO` priority, if they are not ordinary.
    pub priority: Option<u8>,
}

/// File descriptors that each place needs: its pipe, and the file of its block.
pub const FILES_PER_PLACE: u32 = 2;

impl DiskPages {
    /// Makes all pipes and starts the threads.
    ///
    /// # Errors
    /// `EPERM` when a pipe cannot be as large as a block (above `fs.pipe-max-size`) or the pipes
    /// together are larger than an ordinary user's may be (`fs.pipe-user-pages-soft`); `EMFILE`
    /// when file descriptors are exhausted; `EAGAIN` when no thread can be started; `EINVAL` when a
    /// number is zero.
    pub fn open(options: PagesOptions) -> io::Result<Self> {
        let PagesOptions { places, block, depth, threads, free_min, rights, .. } = options;
        if [places, block, depth, threads].contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let held = Arc::new(HeldBlocks::new(places, block)?);
        let core = Arc::new(AtomicU32::new(rights.core.unwrap_or(ANY_CORE)));
        let filler = |number| Filler {
            read_ahead: options.read_ahead,
            waits: number > 0,
            core: Arc::clone(&core),
            pinned: ANY_CORE,
            priority: rights.priority,
            comparer: Comparer::default(),
        };
        let fillers = (0..=threads).map(filler);
        let sink = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Self {
            pins: (0..places).map(|place| Pin::new(place, block)).collect(),
            held,
            workers: Workers::start("tactus-fill", depth, fillers)?,
            discarder: Discarder::start(places, block, free_min)?,
            core: Arc::clone(&core),
            sink: sink.into(),
            depth,
            in_flight: 0,
            read_ahead: options.read_ahead,
            ahead: 0,
            needs_device: true,
            waited: Nanos(0),
        })
    }

    /// The blocks, for links that send them.
    pub fn held(&self) -> Arc<HeldBlocks> {
        Arc::clone(&self.held)
    }

    /// How many transfers were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl DiskPort for DiskPages {
    fn submit(&mut self, _now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        assert_eq!(transfer.direction, Direction::Read, "the page cache is only read");
        if self.in_flight == self.depth {
            return Err(transfer);
        }
        let pin = &mut self.pins[transfer.block.place as usize];
        let is_new = pin.begin(transfer.block.generation);
        if is_new {
            pin.empty(&self.held, &self.sink);
            self.discarder.emptied(transfer.block.place);
        }
        let compare = pin.started(&transfer, &self.held);
        let held = Arc::clone(&self.held);
        let Transfer { file, offset, len, reads_ahead, .. } = transfer;
        let behind = self.read_ahead.behind(&transfer);
        let Residence { is_in_memory, is_ahead } = Residence::of(file, offset.0, len, behind);
        self.needs_device = !is_in_memory;
        let at = if self.needs_device { self.workers.idlest(1..) } else { 0 };
        self.ahead = match self.read_ahead {
            ReadAhead::InTurns(_) if !reads_ahead => 0,
            // What lies behind the windows is there if the title is in memory, or another stream
            // reads it. Otherwise this is the mean of what the kernel reads.
            ReadAhead::InTurns(window) if resident::is_behind(file, offset, window, len) => 0,
            ReadAhead::Usual | ReadAhead::Doubled(_) if is_ahead => 0,
            // The splice lets the kernel read the next part.
            _ => len,
        };
        let keep = is_new && self.discarder.wants();
        self.workers.push(at, Job { transfer, compare, part: Part::New { held, keep } });
        self.in_flight += 1;
        Ok(())
    }

    fn read_ahead(&self) -> u32 {
        self.ahead
    }

    fn needs_device(&self) -> bool {
        self.needs_device
    }

    fn waited(&self) -> Nanos {
        self.waited
    }

    fn kick(&mut self, _now: MonoTime) {
        self.workers.kick();
    }

    fn poll_completion(&mut self, _now: MonoTime) -> Option<Completion> {
        loop {
            let Outcome { completion, is_final, file, took } = self.workers.pop()?;
            let Transfer { block, offset, at, .. } = completion.transfer;
            if let Some(file) = file {
                let offset = offset.0 - u64::from(at);
                self.discarder.filled(block.place, FilePages { file, offset });
            }
            let pin = &mut self.pins[block.place as usize];
            let last = pin.landed(completion, is_final, &self.held);
            if let Some((Completion { transfer, result }, compare)) = last {
                let idlest = self.workers.idlest(..);
                self.workers.push(idlest, Job { transfer, compare, part: Part::Landed(result) });
                self.workers.kick();
            }
            if is_final {
                self.waited = took;
                self.in_flight -= 1;
                return Some(completion);
            }
        }
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        // It only reads.
        Err(sync)
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<SyncResult> {
        None
    }

    /// The threads run on the processor `cpu` from their next block on, if they keep to one.
    fn leave(&mut self, cpu: u32) {
        if self.core.load(Ordering::Relaxed) != ANY_CORE {
            self.core.store(cpu, Ordering::Relaxed);
        }
    }
}

struct Job {
    transfer: Transfer,
    /// What the whole block must sum up to, as far as it is time to compare.
    compare: Option<Sum>,
    part: Part,
}

enum Part {
    /// To be filled.
    New {
        /// The pipes, kept alive for as long as the thread may hang in the splice.
        held: Arc<HeldBlocks>,
        /// Whether the file is to be kept for the discarder.
        keep: bool,
    },
    /// Was filled before other parts of its block, with this result, and has waited for them.
    Landed(Result<u32, DiskFault>),
}

struct Outcome {
    completion: Completion,
    /// Nothing is left to be done for it.
    is_final: bool,
    file: Option<OwnedFd>,
    /// The time of the splice.
    took: Nanos,
}

/// A thread's side.
struct Filler {
    read_ahead: ReadAhead,
    /// Whether its blocks are read by the disk.
    waits: bool,
    /// The core of all fillers, or [`ANY_CORE`].
    core: Arc<AtomicU32>,
    /// Where this one was pinned.
    pinned: u32,
    priority: Option<u8>,
    comparer: Comparer,
}

/// No core: the threads are not pinned.
const ANY_CORE: u32 = u32::MAX;

impl Filler {
    /// The advice that the kernel needs before this transfer. A block that was read ahead needs
    /// none: the first block of its stream had it.
    fn advice(&self, transfer: &Transfer) -> Option<Advice> {
        match self.read_ahead {
            ReadAhead::InTurns(_) if !transfer.reads_ahead => Some(Advice::Random),
            ReadAhead::InTurns(_) => Some(Advice::Normal),
            ReadAhead::Doubled(_) if self.waits => Some(Advice::Sequential),
            ReadAhead::Doubled(_) | ReadAhead::Usual => None,
        }
    }

    fn keep_to_core(&mut self) {
        let core = self.core.load(Ordering::Relaxed);
        if core != self.pinned {
            // A refusal is known already: the core's own thread has asked for more.
            thread::pin(core).ok();
            self.pinned = core;
        }
    }
}

impl Work for Filler {
    type Job = Job;
    type Outcome = Outcome;

    fn begin(&mut self) {
        self.keep_to_core();
        if let Some(priority) = self.priority {
            thread::run_fifo(priority).ok();
        }
    }

    fn handle(&mut self, job: Job) -> Outcome {
        self.keep_to_core();
        let Job { transfer, compare, part } = job;
        let begun = Instant::now();
        let (result, is_new, keep) = match part {
            Part::Landed(result) => (result, false, false),
            Part::New { held, keep } => {
                let pipe = held.pipe(transfer.block.place);
                if let Some(advice) = self.advice(&transfer) {
                    advise(transfer.file, advice);
                }
                (splice_all(transfer, pipe).map_err(DiskFault), true, keep)
            }
        };
        let took = Nanos(begun.elapsed().as_nanos() as u64);
        let file = (keep && result.is_ok()).then(|| duplicate(transfer.file)).flatten();
        let waits = is_new && compare.is_none() && transfer.sum.is_some() && result.is_ok();
        let result = match (result, compare) {
            // Less than all: the file has been cut, and the count says so.
            (Ok(count), Some(sum)) if transfer.at + count >= sum.len => {
                let begin = transfer.offset.0 - u64::from(transfer.at);
                self.comparer.compare(transfer.file, begin, sum).map(|()| count)
            }
            (result, _) => result,
        };
        Outcome { completion: Completion { transfer, result }, is_final: !waits, file, took }
    }

    fn abandon(&mut self, _job: Job) {}
}

/// Splices the transfer into its pipe; less is there only at the end of the file. What cannot be
/// read is looked at again: the error may be another block's, read together with this one.
fn splice_all(transfer: Transfer, pipe: RawFd) -> Result<u32, i32> {
    let mut offset = transfer.offset.0 as i64;
    let end = transfer.offset.0 as i64 + i64::from(transfer.len);
    let mut alone: Option<RandomAccess> = None;
    let mut looks = 1;
    while offset < end {
        let left = (end - offset) as usize;
        match pin::splice(transfer.file.0, Some(&mut offset), pipe, left, 0) {
            Ok(0) => break,
            // The pipe is full before the end: of its last page the file has only a part.
            Err(libc::EAGAIN) => break,
            Ok(_) | Err(libc::EINTR) => (),
            Err(_) if looks < LOOKS => {
                looks += 1;
                alone.get_or_insert_with(|| RandomAccess::begin(transfer.file)).forget(offset, end);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok((offset - transfer.offset.0 as i64) as u32)
}

/// How often a page is tried: once as the kernel likes, and twice alone, as who reads beside may
/// have the kernel read it together with others again. A failing disk takes seconds for each.
const LOOKS: u32 = 3;

/// Another descriptor of the same open file: the first may be closed before the place is filled
/// anew. None when there is no room for one; then its pages leave the cache when the kernel needs
/// room.
fn duplicate(file: FileHandle) -> Option<OwnedFd> {
    // SAFETY: the caller of `submit` keeps the file open until the completion.
    let file = unsafe { BorrowedFd::borrow_raw(file.0) };
    file.try_clone_to_owned().ok()
}

#[cfg(test)]
mod tests;
