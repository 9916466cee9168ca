//! Writes and flushes without io_uring: ordinary threads, for kernels and containers where io_uring
//! is refused.
//!
//! Promise: the same as the ring for writes, at twice the CPU time (0.45 instead of 0.23 s for each
//! GB in pieces of 128 KiB). The real-time thread never waits for them. A flush never waits behind
//! a write, nor a write behind a flush. A thread that hangs keeps its place of the write share and
//! the share itself, whatever becomes of the port.

use std::io;
use std::ptr::NonNull;

use tactus_core::ports::{
    Completion, Direction, DiskFault, DiskPort, FileHandle, Sync, SyncResult, SyncScope, Transfer,
};
use tactus_core::units::MonoTime;
use tactus_ring::arena::{BlockRef, View};

use crate::disk::progress::{Progress, Remainder, Step};
use crate::disk::workers::{Work, Workers};
use crate::thread;

/// How much a port for writes takes at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteOptions {
    /// Most transfers in flight.
    pub depth: u32,
    /// Most flushes in flight.
    pub syncs: u32,
    /// The cores on which the threads run that wait for the file system; any when empty.
    pub cores: Vec<u32>,
}

/// The port for writes on ordinary threads.
pub struct WriteThreads {
    view: View,
    workers: Workers<Writer>,
    depth: u32,
    syncs_max: u32,
    /// Threads that write come first, then those that flush.
    writers: usize,
    /// Submitted and not yet polled.
    transfers: u32,
    syncs: u32,
    /// Ended, and found when the other kind was looked for.
    moved: Vec<Completion>,
    synced: Vec<SyncResult>,
}

/// Most threads that write: a device gains from a few writes at a time.
pub const WRITERS_MAX: u32 = 8;
/// Most threads that flush. The journal of a file system takes all that come together at once.
pub const FLUSHERS_MAX: u32 = 4;

enum Job {
    Write { progress: Progress, target: NonNull<u8> },
    Sync(Sync),
}

// SAFETY: the target is an address in a write share; the thread that follows it holds a view of its
// own.
unsafe impl Send for Job {}

enum Outcome {
    Moved(Completion),
    Synced(SyncResult),
}

impl WriteThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// `EINVAL` when a number is zero; `EAGAIN` when no thread can be started, `EMFILE` when file
    /// descriptors are exhausted.
    pub fn open(view: View, options: &WriteOptions) -> io::Result<Self> {
        let WriteOptions { depth, syncs, ref cores } = *options;
        if depth == 0 || syncs == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let (writers, flushers) = (depth.min(WRITERS_MAX), syncs.min(FLUSHERS_MAX));
        let works =
            (0..writers + flushers).map(|_| Writer { view: view.clone(), cores: cores.clone() });
        Ok(Self {
            workers: Workers::start("tactus-write", depth.max(syncs), works)?,
            view,
            depth,
            syncs_max: syncs,
            writers: writers as usize,
            transfers: 0,
            syncs: 0,
            moved: Vec::with_capacity(depth as usize),
            synced: Vec::with_capacity(syncs as usize),
        })
    }

    /// How many transfers and flushes were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        self.transfers + self.syncs
    }

    /// Sorts what is done into `moved` and `synced`, until `enough` has come.
    fn take_done(&mut self, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            match self.workers.pop() {
                Some(Outcome::Moved(completion)) => self.moved.push(completion),
                Some(Outcome::Synced(synced)) => self.synced.push(synced),
                None => return,
            }
        }
    }
}

impl DiskPort for WriteThreads {
    fn submit(&mut self, _now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        assert_eq!(transfer.direction, Direction::Write, "these threads only write");
        if self.transfers == self.depth {
            return Err(transfer);
        }
        let progress = Progress::new(transfer);
        let target = self.view.target(block_of(transfer), transfer.at, transfer.len);
        let idlest = self.workers.idlest(0..self.writers);
        self.workers.push(idlest, Job::Write { progress, target });
        self.transfers += 1;
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {
        self.workers.kick();
    }

    fn poll_completion(&mut self, _now: MonoTime) -> Option<Completion> {
        self.take_done(|port| !port.moved.is_empty());
        let completion = self.moved.pop()?;
        self.transfers -= 1;
        Some(completion)
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        if self.syncs == self.syncs_max {
            return Err(sync);
        }
        let idlest = self.workers.idlest(self.writers..);
        self.workers.push(idlest, Job::Sync(sync));
        self.syncs += 1;
        Ok(())
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<SyncResult> {
        self.take_done(|port| !port.synced.is_empty());
        let synced = self.synced.pop()?;
        self.syncs -= 1;
        Some(synced)
    }
}

/// The thread's side.
struct Writer {
    view: View,
    cores: Vec<u32>,
}

impl Work for Writer {
    type Job = Job;
    type Outcome = Outcome;

    fn begin(&mut self) {
        if !self.cores.is_empty() {
            // Where that is refused they run anywhere, after every real-time thread.
            thread::keep_to(&self.cores).ok();
        }
    }

    fn handle(&mut self, job: Job) -> Outcome {
        match job {
            // Whatever the error: a flush is never tried again.
            Job::Sync(sync) => Outcome::Synced(SyncResult { sync, result: flush(sync) }),
            Job::Write { progress, target } => {
                let completion = write(progress, target);
                self.abandon(job);
                Outcome::Moved(completion)
            }
        }
    }

    fn abandon(&mut self, job: Job) {
        if let Job::Write { progress, .. } = job {
            // SAFETY: every write of this target has returned, or none was ever made.
            unsafe { self.view.landed(block_of(progress.transfer)) };
        }
    }
}

/// Makes the whole transfer.
fn write(mut progress: Progress, target: NonNull<u8>) -> Completion {
    loop {
        let Remainder { offset, from, len } = progress.rest();
        let file = progress.transfer.file.0;
        // SAFETY: `from < len` of the transfer, which `View::target` has checked to lie in the
        // block.
        let target = unsafe { target.add(from as usize) };
        // SAFETY: the bytes are a part of a place that is InKernel, which nobody changes until
        // `landed` and the caller's view keeps mapped.
        let result =
            unsafe { libc::pwrite(file, target.as_ptr().cast(), len as usize, offset as i64) };
        let result = if result < 0 { -errno() } else { result as i32 };
        if let Step::Done(result) = progress.handle_result(result) {
            return Completion { transfer: progress.transfer, result };
        }
    }
}

fn flush(sync: Sync) -> Result<(), DiskFault> {
    let Sync { file: FileHandle(file), reach, .. } = sync;
    let result = match reach {
        // SAFETY: takes a number; a wrong descriptor is an error.
        SyncScope::Data => unsafe { libc::fdatasync(file) },
        // SAFETY: as above.
        SyncScope::All => unsafe { libc::fsync(file) },
    };
    match result {
        0 => Ok(()),
        _ => Err(DiskFault(errno())),
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn block_of(transfer: Transfer) -> BlockRef {
    BlockRef { place: transfer.block.place, generation: transfer.block.generation }
}
