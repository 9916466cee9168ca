//! The reads of one connection: any number at once, answered in the order of their completion.
//!
//! Promise: a call never waits, and each read is answered once: with its bytes, with the error
//! number of the server, or with `EIO` when it has not been answered for a long time. What finds no
//! room in the rings or in the shared memory waits in a queue. One thread takes the completions.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use rustix::io::Errno as Number;
use tactus_client::{Client, Error, ReadRequest, Title, Token};

/// Gets the bytes of a read, or why there are none.
pub(crate) type Answer = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// One connection and its reads.
pub(crate) struct Reader {
    client: Client,
    queue: Mutex<Queue>,
    /// Reads are under way, or the reader is over.
    begun: Condvar,
    has_ended: AtomicBool,
}

#[derive(Default)]
struct Queue {
    under_way: HashMap<Token, Job>,
    waiting: VecDeque<Job>,
    is_closed: bool,
}

struct Job {
    title: Arc<Title>,
    offset: u64,
    len: usize,
    since: Instant,
    answer: Answer,
}

impl Reader {
    /// A reader, and its thread, which ends after [`Self::close`].
    pub(crate) fn start(client: Client) -> io::Result<Arc<Self>> {
        let (queue, begun, has_ended) = Default::default();
        let reader = Arc::new(Self { client, queue, begun, has_ended });
        let own = Arc::clone(&reader);
        std::thread::Builder::new().name("tactus-reads".to_owned()).spawn(move || own.run())?;
        Ok(reader)
    }

    /// The connection.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether nothing can be read by it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The connection is over. What is under way is still answered.
    pub(crate) fn close(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.queue().is_closed = true;
        self.begun.notify_one();
    }

    /// Reads `len` bytes of `title`, a title of this connection, from `offset` on.
    pub(crate) fn read(&self, title: Arc<Title>, offset: u64, len: usize, answer: Answer) {
        let job = Job { title, offset, len, since: Instant::now(), answer };
        let mut queue = self.queue();
        queue.waiting.push_back(job);
        let was_idle = queue.under_way.is_empty();
        let failed = self.submit(&mut queue);
        let is_busy = !queue.under_way.is_empty();
        drop(queue);
        if was_idle && is_busy {
            self.begun.notify_one();
        }
        self.fail(failed);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits what waits, as long as there is room. Returns the jobs that cannot be submitted.
    fn submit(&self, queue: &mut Queue) -> Vec<(Job, Errno)> {
        let mut failed = vec![];
        while let Some(job) = queue.waiting.pop_front() {
            let submitted = self.client.buffer(job.len).and_then(|buffer| {
                self.client.submit(ReadRequest::new(&job.title, job.offset, buffer))
            });
            match submitted {
                Ok(token) => {
                    queue.under_way.insert(token, job);
                }
                // With nothing under way no room would ever come.
                Err(error) if is_full(&error) && !queue.under_way.is_empty() => {
                    queue.waiting.push_front(job);
                    break;
                }
                Err(error) => failed.push((job, self.errno(&error))),
            }
        }
        failed
    }

    fn fail(&self, failed: Vec<(Job, Errno)>) {
        for (job, errno) in failed {
            (job.answer)(Err(errno));
        }
    }

    fn run(&self) {
        loop {
            let mut queue = self.queue();
            while queue.under_way.is_empty() {
                if queue.is_closed {
                    return;
                }
                queue = self.begun.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            drop(queue);
            match self.client.wait(Some(LOOK)) {
                Ok(Some(completion)) => {
                    let mut queue = self.queue();
                    let job = queue.under_way.remove(&completion.token);
                    drop(queue);
                    // Without a job it comes too late.
                    if let Some(job) = job {
                        (job.answer)(completion.bytes().map_err(|error| self.errno(&error)));
                    }
                    drop(completion);
                    self.go_on();
                }
                Ok(None) => self.expire(),
                Err(error) => {
                    tracing::warn!("reads cannot be waited for: {error}");
                    self.end();
                }
            }
        }
    }

    fn go_on(&self) {
        let mut queue = self.queue();
        let failed = self.submit(&mut queue);
        drop(queue);
        self.fail(failed);
    }

    /// Answers what has waited for too long.
    fn expire(&self) {
        let mut queue = self.queue();
        let old = |job: &mut Job| job.since.elapsed() > PATIENCE;
        let expired = queue.under_way.extract_if(|_, job| old(job));
        let mut expired: Vec<_> = expired.map(|(_, job)| job).collect();
        if queue.under_way.is_empty() {
            expired.extend(queue.waiting.drain(..));
        }
        drop(queue);
        if !expired.is_empty() {
            tracing::warn!(count = expired.len(), "reads were not answered in {PATIENCE:?}");
        }
        self.fail(expired.into_iter().map(|job| (job, Errno::EIO)).collect());
    }

    /// Answers everything with an error.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let mut queue = self.queue();
        let mut all: Vec<_> = queue.under_way.drain().map(|(_, job)| job).collect();
        all.extend(queue.waiting.drain(..));
        drop(queue);
        self.fail(all.into_iter().map(|job| (job, Errno::ENOTCONN)).collect());
    }

    /// The error number for the program; notes that the connection is over.
    fn errno(&self, error: &Error) -> Errno {
        if is_gone(error) {
            self.has_ended.store(true, Ordering::Relaxed);
            return Errno::ENOTCONN;
        }
        Errno::from_i32(error.errno())
    }
}

fn is_full(error: &Error) -> bool {
    [Number::AGAIN, Number::NOBUFS].iter().any(|full| full.raw_os_error() == error.errno())
}

/// Whether the connection is over.
pub(crate) fn is_gone(error: &Error) -> bool {
    let gone = [Number::CONNRESET, Number::PIPE, Number::PROTO, Number::TIMEDOUT];
    gone.iter().any(|gone| gone.raw_os_error() == error.errno())
}

/// How often reads are looked at that nobody answers.
const LOOK: Duration = Duration::from_secs(1);

/// A disk that answers nothing for so long does not answer.
const PATIENCE: Duration = Duration::from_secs(20);
