//! Threads that do what may wait, for a port that must not.
//!
//! Promise: the port's side never waits, and allocates nothing after the start; jobs of one thread
//! are done in order. A thread that hangs when the port is dropped is left behind with whatever its
//! job owns, so a job owns, or keeps alive, all that it touches.

use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tactus_ring::spsc::{Consumer, Producer, ring};

use crate::thread::AbortOnPanic;
use crate::waker::{Sleeper, Waker, waker};

/// What a thread does.
pub(crate) trait Work: Send + 'static {
    /// What it is given.
    type Job: Send + 'static;
    /// What it gives back.
    type Outcome: Send + 'static;

    /// Called once on the thread, before its first job.
    fn begin(&mut self) {}

    /// Does a job, however long that takes.
    fn handle(&mut self, job: Self::Job) -> Self::Outcome;

    /// Ends a job without doing it: the port is gone.
    fn abandon(&mut self, job: Self::Job);
}

/// How long a dropped port waits for its threads. One that hangs longer is left behind.
const PATIENCE: Duration = Duration::from_secs(5);

/// The threads of one port.
pub(crate) struct Workers<W: Work> {
    workers: Box<[Worker<W>]>,
    /// The one whose results are looked at next, so that none starves.
    turn: usize,
    stop: Arc<AtomicBool>,
}

struct Worker<W: Work> {
    jobs: Producer<W::Job>,
    done: Consumer<W::Outcome>,
    waker: Waker,
    in_flight: u32,
    /// Jobs were pushed since the waker was last woken.
    waiting: bool,
    thread: Option<JoinHandle<()>>,
}

impl<W: Work> Workers<W> {
    /// Starts one thread for each of `works`, for at most `depth` jobs at a time.
    ///
    /// # Errors
    /// `EAGAIN` when no thread can be started, `EMFILE` when file descriptors are exhausted.
    pub(crate) fn start(
        name: &str,
        depth: u32,
        works: impl IntoIterator<Item = W>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(number, work)| Worker::start(format!("{name}-{number}"), depth, work, &stop);
        let workers: Result<_, io::Error> = works.into_iter().enumerate().map(start).collect();
        // When one cannot be started, the others see their wakers gone silent and `stop` set.
        let workers = workers.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        Ok(Self { workers, turn: 0, stop })
    }

    /// The one with the fewest jobs of those threads whose numbers lie in `among`.
    pub(crate) fn idlest(&self, among: impl RangeBounds<usize>) -> usize {
        let numbers = (0..self.workers.len()).filter(|at| among.contains(at));
        let idlest = numbers.min_by_key(|&at| self.workers[at].in_flight);
        idlest.expect("there is at least one thread")
    }

    /// Gives a job to one thread; it begins at the next kick.
    ///
    /// # Panics
    /// When the thread has as many jobs as the depth.
    pub(crate) fn push(&mut self, at: usize, job: W::Job) {
        let worker = &mut self.workers[at];
        let pushed = worker.jobs.push(job);
        assert!(pushed.is_ok(), "each ring has room for every transfer");
        worker.waiting = true;
        worker.in_flight += 1;
    }

    /// Wakes those who have been given something.
    pub(crate) fn kick(&mut self) {
        for worker in &mut self.workers {
            if std::mem::take(&mut worker.waiting) {
                worker.waker.wake();
            }
        }
    }

    /// The next job that is done, of any thread.
    pub(crate) fn pop(&mut self) -> Option<W::Outcome> {
        for _ in 0..self.workers.len() {
            let worker = &mut self.workers[self.turn];
            if let Some(done) = worker.done.pop() {
                worker.in_flight -= 1;
                return Some(done);
            }
            self.turn = (self.turn + 1) % self.workers.len();
        }
        None
    }
}

impl<W: Work> Drop for Workers<W> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in &self.workers {
            worker.waker.wake();
        }
        let deadline = Instant::now() + PATIENCE;
        for worker in &mut self.workers {
            let thread = worker.thread.take().expect("a thread is joined once");
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() && thread.join().is_err() && !std::thread::panicking() {
                panic!("a working thread stopped the program");
            }
        }
    }
}

impl<W: Work> Worker<W> {
    fn start(name: String, depth: u32, work: W, stop: &Arc<AtomicBool>) -> io::Result<Self> {
        let (jobs, to_do) = ring(depth as usize);
        let (finished, done) = ring(depth as usize);
        let (waker, sleeper) = waker()?;
        let worker = WorkerThread { work, to_do, finished, sleeper, stop: Arc::clone(stop) };
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok(Self { jobs, done, waker, in_flight: 0, waiting: false, thread: Some(thread) })
    }
}

/// The thread's side.
struct WorkerThread<W: Work> {
    work: W,
    to_do: Consumer<W::Job>,
    finished: Producer<W::Outcome>,
    sleeper: Sleeper,
    stop: Arc<AtomicBool>,
}

impl<W: Work> WorkerThread<W> {
    fn run(mut self) {
        // A job that is never done would be waited for for ever.
        let _vital = AbortOnPanic;
        self.work.begin();
        loop {
            // Relaxed is enough: the waker that follows `stop` orders it.
            let stopped = self.stop.load(Ordering::Relaxed);
            match self.to_do.pop() {
                Some(job) if stopped => self.work.abandon(job),
                Some(job) => {
                    let done = self.work.handle(job);
                    let pushed = self.finished.push(done);
                    assert!(pushed.is_ok(), "the ring has room for every job");
                }
                None if stopped => return,
                None => {
                    self.sleeper.wait_until(None);
                }
            }
        }
    }
}
