//! The titles of one recording: each a task that stores what a bounded queue holds for it.
//!
//! Promise: handing bytes over never waits. When the queue is full they are dropped, whole packets of them, and
//! counted. What has come of a title is stored also when the disk has no room for more of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tactus_core::ts::PACKET;
use tactus_core::units::{BitRate, MonoTime, Nanos};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{Names, Target};
use crate::config::pattern::another;
use crate::store::{Finished, Precondition, Principal, Put, UploadError};

/// Where titles come from and go to.
pub(super) struct Titles {
    target: Target,
    principal: Principal,
    names: Arc<Names>,
    /// Bytes that wait for the disk at most.
    queue: usize,
    /// What titles are admitted with, once it is known.
    terms: watch::Sender<Option<Terms>>,
    current: Option<Current>,
    /// Packets that are on their way into the queue.
    chunk: Vec<u8>,
    chunk_since: Option<MonoTime>,
    tasks: JoinSet<Ended>,
    begun: u64,
}

/// The title that comes in.
struct Current {
    number: u64,
    name: String,
    len: u64,
    written: Arc<AtomicU64>,
    queue: mpsc::Sender<Vec<u8>>,
}

/// What has become of a title.
pub(super) struct Ended {
    number: u64,
    /// Its path, as it was stored.
    pub(super) name: String,
    pub(super) result: Result<Finished, UploadError>,
    /// Why it ended before its end.
    pub(super) cut_short: Option<UploadError>,
    /// Bytes that were handed over and are not in it.
    pub(super) lost: u64,
    /// Bytes that it has, or would have had.
    len: u64,
    /// Whether more was to come.
    pub(super) was_current: bool,
}

/// What a title is admitted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    /// What is reserved; none: it gets what is left.
    pub(super) rate: Option<BitRate>,
}

/// What became of bytes that were handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    /// They wait for more.
    Kept,
    /// They are on their way.
    Taken,
    /// They have been dropped.
    Dropped(u64),
}

/// Handed over at once: 348 packets, a little less than 64 KiB.
const CHUNK: usize = 348 * PACKET;
/// What has come is handed over after this time, though it is less.
const CHUNK_WAIT: Nanos = Nanos::from_millis(200);
/// Chunks that wait at most: from what a slow disk is behind in an ordinary cycle, to 32 MiB.
const CHUNKS: std::ops::RangeInclusive<u64> = 64..=512;
/// Seconds of the stream that a stall of the disk may last without a gap, within these bounds.
const STALL_SECONDS: u64 = 4;
/// Titles that are being stored besides the one that comes in: then a title grows on.
const FINISHING_MAX: usize = 2;
/// A title of which nothing comes for so long gives its place of the write share to others.
const PARK_AFTER: Duration = Duration::from_millis(500);

impl Titles {
    /// None yet. `rate` is what is reserved, if that is known.
    pub(super) fn new(
        target: Target,
        principal: Principal,
        names: Arc<Names>,
        rate: Option<BitRate>,
    ) -> Self {
        let bytes = rate.map_or(16 << 20, |rate| rate.0 / 8 * STALL_SECONDS);
        let queue = (bytes / CHUNK as u64).clamp(*CHUNKS.start(), *CHUNKS.end()) as usize;
        let (current, chunk, chunk_since, begun) = (None, Vec::new(), None, 0);
        let terms = watch::channel(rate.map(|rate| Terms { rate: Some(rate) })).0;
        let tasks = JoinSet::new();
        Self { target, principal, names, queue, terms, current, chunk, chunk_since, tasks, begun }
    }

    /// From now on titles may be stored, on these terms.
    pub(super) fn admit(&mut self, terms: Terms) {
        self.terms.send_replace(Some(terms));
    }

    /// Whether a title comes in.
    pub(super) fn has_current(&self) -> bool {
        self.current.is_some()
    }

    /// Whether another title may begin.
    pub(super) fn may_cut(&self) -> bool {
        self.tasks.len() <= FINISHING_MAX
    }

    /// Begins a title that wants the name `wanted`.
    pub(super) fn begin(&mut self, wanted: String) {
        assert!(self.current.is_none(), "one title at a time comes in");
        self.begun += 1;
        let (queue, chunks) = mpsc::channel(self.queue);
        let written = Arc::new(AtomicU64::new(0));
        let number = self.begun;
        self.current = Some(Current {
            number,
            name: wanted.clone(),
            len: 0,
            written: Arc::clone(&written),
            queue,
        });
        let (target, names) = (self.target.clone(), Arc::clone(&self.names));
        let (principal, terms) = (self.principal.clone(), self.terms.subscribe());
        let writing = Writing { target, principal, names, terms, chunks, written };
        self.tasks.spawn(writing.run(number, wanted));
    }

    /// Takes whole packets.
    pub(super) fn push(&mut self, now: MonoTime, packets: &[u8]) -> Pushed {
        self.chunk_since.get_or_insert(now);
        if self.chunk.capacity() == 0 {
            self.chunk.reserve_exact(CHUNK);
        }
        self.chunk.extend(packets);
        if self.chunk.len() >= CHUNK { self.flush() } else { Pushed::Kept }
    }

    /// Hands over what has waited long enough for more.
    pub(super) fn handle_tick(&mut self, now: MonoTime) -> Pushed {
        match self.chunk_since {
            Some(since) if now.since(since) >= CHUNK_WAIT => self.flush(),
            _ => Pushed::Kept,
        }
    }

    fn flush(&mut self) -> Pushed {
        self.chunk_since = None;
        if self.chunk.is_empty() {
            return Pushed::Kept;
        }
        let chunk = std::mem::take(&mut self.chunk);
        let len = chunk.len() as u64;
        let Some(current) = &mut self.current else { return Pushed::Dropped(len) };
        match current.queue.try_send(chunk) {
            Ok(()) => {
                current.len += len;
                Pushed::Taken
            }
            Err(_) => Pushed::Dropped(len),
        }
    }

    /// The title that comes in has come to its end.
    pub(super) fn close(&mut self) -> Pushed {
        let pushed = self.flush();
        self.current = None;
        pushed
    }

    /// The next title that has ended. Nothing is lost when it is given up; waits for ever when there is none.
    pub(super) async fn ended(&mut self) -> Ended {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(mut ended)) => {
                    let is_it = |title: &mut Current| title.number == ended.number;
                    let pushed = match self.current.take_if(is_it) {
                        Some(title) => {
                            ended.was_current = true;
                            title.len
                        }
                        None => ended.len,
                    };
                    let stored = if ended.result.is_ok() { ended.len } else { 0 };
                    ended.lost = pushed.saturating_sub(stored);
                    return ended;
                }
                Some(Err(error)) => tracing::error!(%error, "the task of a title has failed"),
                None => std::future::pending().await,
            }
        }
    }

    /// Whether something is still being stored.
    pub(super) fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Name, bytes so far and bytes written of the title that comes in.
    pub(super) fn current(&self) -> Option<(&str, u64, u64)> {
        let current = self.current.as_ref()?;
        Some((&current.name, current.len, current.written.load(Ordering::Relaxed)))
    }
}

/// The task of one title.
struct Writing {
    target: Target,
    principal: Principal,
    names: Arc<Names>,
    terms: watch::Receiver<Option<Terms>>,
    chunks: mpsc::Receiver<Vec<u8>>,
    written: Arc<AtomicU64>,
}

/// Titles of one name that are tried.
const AGAIN_MAX: u32 = 10_000;

impl Writing {
    async fn run(mut self, number: u64, wanted: String) -> Ended {
        // Until it is known how fast it is, it waits in the queue.
        let known = self.terms.wait_for(Option::is_some).await;
        drop(known);
        let mut again = 1;
        let (name, upload) = loop {
            let name = another(&wanted, again);
            again += 1;
            if !self.names.claim(&name) {
                continue;
            }
            let put = Put {
                path: name[self.target.mount.len()..].to_owned(),
                len: None,
                precondition: Precondition::CreateOnly,
                principal: self.principal.clone(),
            };
            match self.target.store.begin(put).await {
                Err(UploadError::Exists | UploadError::PreconditionFailed) if again < AGAIN_MAX => {
                    self.names.release(&name);
                }
                Err(error) => {
                    self.names.release(&name);
                    return Ended::failed(number, name, error, 0);
                }
                Ok(upload) => break (name, upload),
            }
        };
        let mut upload = upload;
        let mut cut_short = None;
        loop {
            let chunk = match tokio::time::timeout(PARK_AFTER, self.chunks.recv()).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(_) => {
                    upload.park();
                    match self.chunks.recv().await {
                        Some(chunk) => chunk,
                        None => break,
                    }
                }
            };
            if let Err(error) = upload.append(&chunk).await {
                if !has_no_room(&error) {
                    self.names.release(&name);
                    return Ended::failed(number, name, error, upload.len());
                }
                // Nothing is wrong with what has come.
                cut_short = Some(error);
                break;
            }
            self.written.store(upload.len(), Ordering::Relaxed);
        }
        // Closed first: from now on nothing more is taken for it.
        drop(self.chunks);
        let len = upload.len();
        let result = upload.finish().await;
        self.names.release(&name);
        Ended { number, name, result, cut_short, lost: 0, len, was_current: false }
    }
}

impl Ended {
    fn failed(number: u64, name: String, error: UploadError, len: u64) -> Self {
        let (result, cut_short) = (Err(error), None);
        Self { number, name, result, cut_short, lost: 0, len, was_current: false }
    }
}

/// Whether a title may have no more, for want of room and for nothing else.
pub(super) fn has_no_room(error: &UploadError) -> bool {
    matches!(error, UploadError::NoSpace | UploadError::QuotaExceeded(_) | UploadError::TooLarge(_))
}
