//! The disk port without io_uring: ordinary threads that read, for kernels and containers where
//! io_uring is refused.
//!
//! Promise: the same as the port on io_uring, at a higher price: a hand-over and a wake-up for each
//! batch, and at most as many reads at a time as there are threads. The real-time thread never waits
//! for them. A thread that hangs in a read keeps its block and the arena, whatever becomes of the
//! port.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tactus_core::ports::{Completion, DiskPort, Transfer};
use tactus_core::units::MonoTime;
use tactus_ring::arena::{BlockRef, View};
use tactus_ring::spsc::{Consumer, Producer, ring};

use crate::bell::{Bell, Sleeper, bell};
use crate::progress::{Progress, Rest, Step};

/// The disk port on ordinary threads.
pub struct DiskThreads {
    view: View,
    workers: Box<[Worker]>,
    depth: u32,
    in_flight: u32,
    /// The worker whose completions are looked at next, so that none starves.
    turn: usize,
    stop: Arc<AtomicBool>,
}

/// Most threads of one port. A device gains from 8 to 32 reads at a time.
pub const THREADS_MAX: u32 = 64;

/// How long a dropped port waits for its threads. One that hangs longer is left behind.
const PATIENCE: Duration = Duration::from_secs(5);

struct Worker {
    jobs: Producer<Job>,
    done: Consumer<Completion>,
    bell: Bell,
    in_flight: u32,
    /// Jobs were pushed since the bell was last rung.
    waiting: bool,
    thread: Option<JoinHandle<()>>,
}

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
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Result<_, io::Error> =
            (0..threads).map(|number| Worker::start(number, depth, &view, &stop)).collect();
        // When one cannot be started, the others see their bells gone silent and `stop` set.
        let workers = workers.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        Ok(Self { view, workers, depth, in_flight: 0, turn: 0, stop })
    }

    /// How many transfers were submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl DiskPort for DiskThreads {
    fn submit(&mut self, _now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        if self.in_flight == self.depth {
            return Err(transfer);
        }
        let progress = Progress::new(transfer);
        let target = self.view.target(block_of(transfer), transfer.at, transfer.len);
        let idlest = self.workers.iter_mut().min_by_key(|worker| worker.in_flight);
        let worker = idlest.expect("there is at least one thread");
        let pushed = worker.jobs.push(Job { progress, target });
        assert!(pushed.is_ok(), "each ring has room for every transfer");
        worker.waiting = true;
        worker.in_flight += 1;
        self.in_flight += 1;
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {
        for worker in &mut self.workers {
            if std::mem::take(&mut worker.waiting) {
                worker.bell.ring();
            }
        }
    }

    fn poll_completion(&mut self, _now: MonoTime) -> Option<Completion> {
        if self.in_flight == 0 {
            return None;
        }
        for _ in 0..self.workers.len() {
            let worker = &mut self.workers[self.turn];
            if let Some(completion) = worker.done.pop() {
                worker.in_flight -= 1;
                self.in_flight -= 1;
                return Some(completion);
            }
            self.turn = (self.turn + 1) % self.workers.len();
        }
        None
    }
}

impl Drop for DiskThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in &self.workers {
            worker.bell.ring();
        }
        let deadline = Instant::now() + PATIENCE;
        for worker in &mut self.workers {
            let thread = worker.thread.take().expect("a thread is joined once");
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            // One that hangs is left behind; it holds its own view, so its memory stays.
            if thread.is_finished() && thread.join().is_err() && !std::thread::panicking() {
                panic!("a reading thread stopped the program");
            }
        }
    }
}

impl Worker {
    fn start(number: u32, depth: u32, view: &View, stop: &Arc<AtomicBool>) -> io::Result<Self> {
        let (jobs, to_do) = ring(depth as usize);
        let (finished, done) = ring(depth as usize);
        let (bell, sleeper) = bell()?;
        let reader =
            Reader { to_do, finished, sleeper, view: view.clone(), stop: Arc::clone(stop) };
        let thread = std::thread::Builder::new()
            .name(format!("tactus-read-{number}"))
            .spawn(move || reader.run())?;
        Ok(Self { jobs, done, bell, in_flight: 0, waiting: false, thread: Some(thread) })
    }
}

/// The thread's side.
struct Reader {
    to_do: Consumer<Job>,
    finished: Producer<Completion>,
    sleeper: Sleeper,
    view: View,
    stop: Arc<AtomicBool>,
}

impl Reader {
    fn run(mut self) {
        loop {
            // Relaxed is enough: the bell that follows `stop` orders it.
            let stopped = self.stop.load(Ordering::Relaxed);
            match self.to_do.pop() {
                Some(job) if stopped => self.land(&job),
                Some(job) => {
                    let completion = read(&job);
                    self.land(&job);
                    let pushed = self.finished.push(completion);
                    assert!(pushed.is_ok(), "the ring has room for every transfer");
                }
                None if stopped => return,
                None => {
                    self.sleeper.wait_until(None);
                }
            }
        }
    }

    fn land(&self, job: &Job) {
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
fn read_once(rest: Rest, job: &Job) -> i32 {
    let Rest { offset, from, len } = rest;
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
