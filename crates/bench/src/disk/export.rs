//! The emulated medium: its requests are answered when the model says so.
//!
//! Promise: reads, writes and flushes reach the model one by one in the order in which the kernel
//! sends them, at most a mebibyte each; the data move when the request is answered, hot in the
//! cache. In fast mode the model is left out, to lay down titles.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use serde::Serialize;
use tactus_core::units::{Bytes, Nanos};

use super::exported_file::{Medium, REQUEST_MAX};
use super::model::{Model, Request, RequestKind, Ticket};
use super::store::Store;
use super::{Profile, Shape};
use crate::clock;
use crate::priority;

/// Above the receiver, below the gap detector: a disk does not wait for a processor.
const PRIORITY: u32 = 50;
const FOREVER: Duration = Duration::from_secs(3600);

/// Shared between the thread that takes requests and the one that answers them.
#[derive(Debug)]
pub(super) struct Export {
    size: Bytes,
    store: Store,
    /// Requests are answered at once.
    fast: AtomicBool,
    stop: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
    counts: Counts,
}

#[derive(Debug)]
struct Queue {
    model: Model,
    waiting: HashMap<Ticket, Pending>,
    next: Ticket,
}

#[derive(Debug)]
enum Pending {
    Read(Request, ReplyData),
    Write(Request, ReplyWrite),
    Flush(ReplyEmpty),
}

impl Pending {
    fn request(&self) -> Request {
        match self {
            Self::Read(request, _) | Self::Write(request, _) => *request,
            Self::Flush(_) => Request::FLUSH,
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_time: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    write_time: AtomicU64,
    flushes: AtomicU64,
    flush_time: AtomicU64,
    contiguous: AtomicU64,
    last_end: AtomicU64,
}

/// What a disk was asked since its start.
#[derive(Clone, Copy, Debug, Default, Serialize, serde::Deserialize)]
pub struct RequestCounts {
    /// Read requests.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// Nanoseconds of the disk's time that they took by the model; none in fast mode.
    pub read_time: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes that they brought.
    pub write_bytes: u64,
    /// Nanoseconds of the disk's time, as above.
    pub write_time: u64,
    /// Flushes.
    pub flushes: u64,
    /// Nanoseconds of the disk's time, as above.
    pub flush_time: u64,
    /// Requests that began where the last ended.
    pub contiguous: u64,
}

impl std::ops::Sub for RequestCounts {
    type Output = Self;

    /// What was asked in between.
    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            read_time: self.read_time - earlier.read_time,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            write_time: self.write_time - earlier.write_time,
            flushes: self.flushes - earlier.flushes,
            flush_time: self.flush_time - earlier.flush_time,
            contiguous: self.contiguous - earlier.contiguous,
        }
    }
}

impl Export {
    pub(super) fn new(shape: &Shape) -> io::Result<Arc<Self>> {
        let (Shape { profile, size, seed, .. }, next) = (shape, 0);
        let model = Model::new(*profile, *size, *seed);
        Ok(Arc::new(Self {
            size: *size,
            store: Store::new(*size)?,
            fast: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            queue: Mutex::new(Queue { model, waiting: HashMap::new(), next }),
            changed: Condvar::new(),
            counts: Counts::default(),
        }))
    }

    /// The model's own words.
    pub(super) fn describe(profile: Profile) -> String {
        Model::describe(profile)
    }

    /// Whether requests are answered at once.
    pub(super) fn set_fast(&self, fast: bool) {
        self.fast.store(fast, Ordering::Relaxed);
    }

    /// Ends the thread that answers.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn asked(&self) -> RequestCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            reads: count(&self.counts.reads),
            read_bytes: count(&self.counts.read_bytes),
            read_time: count(&self.counts.read_time),
            writes: count(&self.counts.writes),
            write_bytes: count(&self.counts.write_bytes),
            write_time: count(&self.counts.write_time),
            flushes: count(&self.counts.flushes),
            flush_time: count(&self.counts.flush_time),
            contiguous: count(&self.counts.contiguous),
        }
    }

    /// Answers requests at their time until it is stopped.
    pub(super) fn answer_in_time(&self) -> Result<()> {
        hurry();
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let mut buffer = vec![0; REQUEST_MAX as usize];
        let mut queue = self.lock();
        while !self.stop.load(Ordering::Relaxed) {
            let now = clock::now();
            if let Some(ticket) = queue.model.poll_done(now) {
                let pending = queue.waiting.remove(&ticket);
                drop(queue);
                if let Some(pending) = pending {
                    self.answer(pending, &mut buffer);
                }
                queue = self.lock();
                continue;
            }
            let wait = queue
                .model
                .poll_timeout()
                .map_or(FOREVER, |at| Duration::from_nanos(at.since(now).0));
            queue = match self.changed.wait_timeout(queue, wait) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        Ok(())
    }

    fn handle(&self, pending: Pending) {
        // The thread belongs to the FUSE library; it is ours to hurry from the first request on.
        thread_local!(static HURRIED: () = hurry());
        HURRIED.with(|()| ());
        let request = pending.request();
        self.count(request);
        if self.fast.load(Ordering::Relaxed) {
            self.answer(pending, &mut Vec::new());
            return;
        }
        let mut queue = self.lock();
        let ticket = queue.next;
        queue.next += 1;
        queue.waiting.insert(ticket, pending);
        let time = queue.model.handle_request(clock::now(), ticket, request);
        drop(queue);
        self.count_time(request, time);
        self.changed.notify_one();
    }

    fn answer(&self, pending: Pending, buffer: &mut Vec<u8>) {
        match pending {
            Pending::Read(request, reply) => {
                buffer.resize(buffer.len().max(request.length as usize), 0);
                let target = &mut buffer[..request.length as usize];
                match self.store.read(request.at, target) {
                    Ok(()) => reply.data(target),
                    Err(_) => reply.error(Errno::EIO),
                }
            }
            Pending::Write(request, reply) => reply.written(request.length),
            Pending::Flush(reply) => reply.ok(),
        }
    }

    fn count(&self, request: Request) {
        let counts = &self.counts;
        let (requests, bytes) = match request.act {
            RequestKind::Write => (&counts.writes, &counts.write_bytes),
            RequestKind::Read => (&counts.reads, &counts.read_bytes),
            RequestKind::Flush => {
                counts.flushes.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        requests.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(u64::from(request.length), Ordering::Relaxed);
        let end = request.at + u64::from(request.length);
        if counts.last_end.swap(end, Ordering::Relaxed) == request.at {
            counts.contiguous.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count_time(&self, request: Request, time: Nanos) {
        let sum = match request.act {
            RequestKind::Read => &self.counts.read_time,
            RequestKind::Write => &self.counts.write_time,
            RequestKind::Flush => &self.counts.flush_time,
        };
        sum.fetch_add(time.0, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic of the other thread ends the process; its queue is as good as any.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the calling thread SCHED_FIFO. Without it answers may be late by a turn of the scheduler;
/// the check of the disk shows it.
fn hurry() {
    if let Err(error) = priority::fifo(PRIORITY) {
        eprintln!("the disk runs without SCHED_FIFO: {error:#}");
    }
}

impl Medium for Export {
    fn size(&self) -> Bytes {
        self.size
    }

    fn read(&self, at: u64, length: u32, reply: ReplyData) {
        self.handle(Pending::Read(Request { at, length, act: RequestKind::Read }, reply));
    }

    fn write(&self, at: u64, data: &[u8], reply: ReplyWrite) {
        // When the data are visible does not matter to anybody, since the answer comes in the
        // model's time.
        if self.store.write(at, data).is_err() {
            reply.error(Errno::EIO);
            return;
        }
        self.handle(Pending::Write(
            Request { at, length: data.len() as u32, act: RequestKind::Write },
            reply,
        ));
    }

    fn sync(&self, reply: ReplyEmpty) {
        self.handle(Pending::Flush(reply));
    }
}
