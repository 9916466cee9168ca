//! The disk port without io_uring: ordinary threads that read, for kernels and containers where
//! io_uring is refused.
//!
//! Promise: the same as the port on io_uring, at a higher price: a hand-over and a wake-up for each
//! batch, and at most as many reads at a time as there are threads. The real-time thread never
//! waits for them. A thread that hangs in a read keeps its block and the arena, whatever becomes of
//! the port.

use std::io;
use std::ptr::NonNull;

use tactus_core::ports::{Completion, Direction, DiskPort, Sync, SyncResult, Transfer};
use tactus_core::units::MonoTime;
use tactus_ring::arena::{BlockRef, View};

use crate::disk::progress::{Progress, Remainder, Step};
use crate::disk::workers::{Work, Workers};

/// The disk port on ordinary threads.
pub struct DiskThreads {
    view: View,
    workers: Workers<Reader>,
    depth: u32,
    in_flight: u32,
}

/// Most threads of one port. A device gains from 8 to 32 reads at a time.
pub const THREADS_MAX: u32 = 64;

struct Job {
    progress: Progress,
    target: NonNull<u8>,
}

// SAFETY: the target is an address in an arena; the thread that follows it holds a view of its own.
unsafe impl Send for Job {}

impl DiskThreads {
    /// Starts `threads` threads, for at most `depth` transfers at a time.
    ///
    /// # Errors
    /// `EINVAL` when either number is zero or there are more than [`THREADS_MAX`] threads; `EAGAIN`
    /// when no thread can be started, `EMFILE` when file descriptors are exhausted.
    pub fn open(view: View, depth: u32, threads: u32) -> io::Result<Self> {
        if depth == 0 || threads == 0 || threads > THREADS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let readers = (0..threads).map(|_| Reader { view: view.clone() });
        let workers = Workers::start("tactus-read", depth, readers)?;
        Ok(Self { view, workers, depth, in_flight: 0 })
    }

    /// How many transfers were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl DiskPort for DiskThreads {
    fn submit(&mut self, _now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        assert_eq!(transfer.direction, Direction::Read, "these threads only read");
        if self.in_flight == self.depth {
            return Err(transfer);
        }
        let progress = Progress::new(transfer);
        let target = self.view.target(block_of(transfer), transfer.at, transfer.len);
        let idlest = self.workers.idlest(..);
        self.workers.push(idlest, Job { progress, target });
        self.in_flight += 1;
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {
        self.workers.kick();
    }

    fn poll_completion(&mut self, _now: MonoTime) -> Option<Completion> {
        let completion = self.workers.pop()?;
        self.in_flight -= 1;
        Some(completion)
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        // It only reads.
        Err(sync)
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<SyncResult> {
        None
    }
}

/// The thread's side.
struct Reader {
    view: View,
}

impl Work for Reader {
    type Job = Job;
    type Outcome = Completion;

    fn handle(&mut self, job: Job) -> Completion {
        let completion = read(&job);
        self.abandon(job);
        completion
    }

    fn abandon(&mut self, job: Job) {
        // SAFETY: every read of this target has returned, or none was ever made.
        unsafe { self.view.landed(block_of(job.progress.transfer)) };
    }
}

/// Makes the whole transfer.
fn read(job: &Job) -> Completion {
    let mut progress = job.progress;
    loop {
        let result = read_once(progress.rest(), job);
        if let Step::Done(result) = progress.handle_result(result) {
            return Completion { transfer: progress.transfer, result };
        }
    }
}

/// Asks the kernel once: a count, or a negative error number.
fn read_once(rest: Remainder, job: &Job) -> i32 {
    let Remainder { offset, from, len } = rest;
    // SAFETY: `from < len` of the transfer, which `View::target` has checked to lie in the block.
    let target = unsafe { job.target.add(from as usize) };
    let vector = libc::iovec { iov_base: target.as_ptr().cast(), iov_len: len as usize };
    let file = job.progress.transfer.file.0;
    // SAFETY: the vector describes a part of an InKernel block, which nobody reads until `landed`
    // and the caller's view keeps mapped.
    let result = unsafe { libc::preadv2(file, &raw const vector, 1, offset as i64, 0) };
    match result {
        -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        count => count as i32,
    }
}

fn block_of(transfer: Transfer) -> BlockRef {
    BlockRef { place: transfer.block.place, generation: transfer.block.generation }
}
