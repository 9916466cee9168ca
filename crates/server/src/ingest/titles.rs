//! The titles of one recording: a task that stores them one after the other, from a bounded queue.
//!
//! Promise: handing bytes over never waits. When the queue is full they are dropped, whole packets of them, and
//! counted. What has come of a title is stored also when the disk has no room for more of it. A title has
//! disk time and memory of its own where its rate is known and there is room for it, and hands them on to the
//! next one; else it gets what is left, and an alarm says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tactus_core::ts::PACKET;
use tactus_core::units::{BitRate, MonoTime, Nanos};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::status::{Alarm, StatusCell};
use super::{Names, Target};
use crate::config::pattern::another;
use crate::recording::{Begin, BeginError, Recording};
use crate::store::{Precondition, Principal, ResumeError, Upload, UploadError, UploadSpec};

/// Where titles come from and go to.
pub(super) struct Titles {
    words: mpsc::UnboundedSender<Command>,
    /// Chunks in the queue.
    queued: Arc<AtomicUsize>,
    queued_max: usize,
    ends: mpsc::UnboundedReceiver<EndedTitle>,
    /// What titles are admitted with, once it is known.
    terms: watch::Sender<Option<Admission>>,
    current: Option<Current>,
    /// Titles of which no more comes and no end has been heard: number and bytes.
    closed: Vec<(u64, u64)>,
    /// Packets that are on their way into the queue.
    chunk: Vec<u8>,
    chunk_since: Option<MonoTime>,
    begun: u64,
}

/// The title that comes in.
struct Current {
    number: u64,
    name: String,
    len: u64,
    durable: Arc<AtomicU64>,
}

/// To the task: at most so many chunks, and few others.
enum Command {
    Begin {
        number: u64,
        wanted: String,
        durable: Arc<AtomicU64>,
    },
    Chunk(Vec<u8>),
    /// Whether another one begins at once.
    End {
        goes_on: bool,
    },
}

/// What has become of a title.
pub(super) struct EndedTitle {
    number: u64,
    /// Its path, as it was stored.
    pub(super) name: String,
    /// Bytes stored.
    pub(super) result: Result<u64, Failure>,
    /// Why it ended before its end.
    pub(super) cut_short: Option<Failure>,
    /// Bytes that were handed over and are not in it.
    pub(super) lost: u64,
    /// Whether more was to come.
    pub(super) was_current: bool,
}

/// Why a title is not stored, or ends.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) what: String,
    pub(super) cause: Cause,
}

/// What can be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Another title has the name.
    Taken,
    /// It is as long as a title may be.
    Long,
    /// Disk or quota are full.
    Full,
    /// Nothing.
    Other,
}

/// What a title is admitted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Admission {
    /// What is reserved; none: it gets what is left.
    pub(super) rate: Option<BitRate>,
}

/// What became of bytes that were handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PushResult {
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
/// Seconds of the stream that a stall of the disk, or the beginning of many titles at once, may last without a
/// gap, within these bounds.
const STALL_SECONDS: u64 = 10;
/// Titles that are being stored besides the one that comes in: then a title grows on.
const FINISHING_MAX: usize = 2;
/// A title of which nothing comes for so long gives its place of the write share to others.
const PARK_AFTER: Duration = Duration::from_millis(500);
/// How often the durable length of a title that receives no data is checked.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A title that has ended hands its disk time on to one that begins within this time.
const HEIR_WAIT: Duration = Duration::from_secs(1);
/// Titles of one name that are tried.
const AGAIN_MAX: u32 = 10_000;

impl Titles {
    /// None yet. `rate` is what is reserved, if that is known.
    pub(super) fn new(
        target: Target,
        principal: Principal,
        names: Arc<Names>,
        board: Arc<StatusCell>,
        rate: Option<BitRate>,
    ) -> Self {
        let bytes = rate.map_or(16 << 20, |rate| rate.0 / 8 * STALL_SECONDS);
        let queued_max = (bytes / CHUNK as u64).clamp(*CHUNKS.start(), *CHUNKS.end()) as usize;
        let (terms, known) = watch::channel(rate.map(|rate| Admission { rate: Some(rate) }));
        let ((words, heard), (told, ends)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            target,
            principal,
            names,
            board,
            terms: known,
            words: heard,
            queued: Arc::clone(&queued),
            ends: told,
            turns: OrderedTasks::default(),
        };
        tokio::spawn(writer.run());
        Self {
            words,
            queued,
            queued_max,
            ends,
            terms,
            current: None,
            closed: Vec::new(),
            chunk: Vec::new(),
            chunk_since: None,
            begun: 0,
        }
    }

    /// From now on titles may be stored, on these terms.
    pub(super) fn admit(&mut self, terms: Admission) {
        self.terms.send_replace(Some(terms));
    }

    /// Whether a title comes in.
    pub(super) fn has_current(&self) -> bool {
        self.current.is_some()
    }

    /// Whether another title may begin.
    pub(super) fn may_cut(&self) -> bool {
        self.closed.len() < FINISHING_MAX
    }

    /// Begins a title that wants the name `wanted`.
    pub(super) fn begin(&mut self, wanted: String) {
        assert!(self.current.is_none(), "one title at a time comes in");
        self.begun += 1;
        let (number, durable) = (self.begun, Arc::new(AtomicU64::new(0)));
        let (name, len) = (wanted.clone(), 0);
        self.current = Some(Current { number, name, len, durable: Arc::clone(&durable) });
        self.say(Command::Begin { number, wanted, durable });
    }

    /// Takes whole packets.
    pub(super) fn push(&mut self, now: MonoTime, packets: &[u8]) -> PushResult {
        self.chunk_since.get_or_insert(now);
        if self.chunk.capacity() == 0 {
            self.chunk.reserve_exact(CHUNK);
        }
        self.chunk.extend(packets);
        if self.chunk.len() >= CHUNK { self.flush() } else { PushResult::Kept }
    }

    /// Hands over what has waited long enough for more.
    pub(super) fn handle_tick(&mut self, now: MonoTime) -> PushResult {
        match self.chunk_since {
            Some(since) if now.since(since) >= CHUNK_WAIT => self.flush(),
            _ => PushResult::Kept,
        }
    }

    fn flush(&mut self) -> PushResult {
        self.chunk_since = None;
        if self.chunk.is_empty() {
            return PushResult::Kept;
        }
        let chunk = std::mem::take(&mut self.chunk);
        let len = chunk.len() as u64;
        let Some(current) = &mut self.current else { return PushResult::Dropped(len) };
        if self.queued.load(Ordering::Relaxed) >= self.queued_max {
            return PushResult::Dropped(len);
        }
        current.len += len;
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.say(Command::Chunk(chunk));
        PushResult::Taken
    }

    /// The title that comes in has come to its end; whether another one begins at once.
    pub(super) fn close(&mut self, goes_on: bool) -> PushResult {
        let pushed = self.flush();
        if let Some(current) = self.current.take() {
            self.closed.push((current.number, current.len));
            self.say(Command::End { goes_on });
        }
        pushed
    }

    fn say(&self, word: Command) {
        // Its task hears until nobody can say anything more.
        drop(self.words.send(word));
    }

    /// The next title that has ended. Nothing is lost when it is given up; waits for ever when there is none.
    pub(super) async fn ended(&mut self) -> EndedTitle {
        let Some(mut ended) = self.ends.recv().await else { return std::future::pending().await };
        let pushed = match self.current.take_if(|title| title.number == ended.number) {
            Some(title) => {
                ended.was_current = true;
                title.len
            }
            None => {
                let at = self.closed.iter().position(|(number, _)| *number == ended.number);
                at.map_or(0, |at| self.closed.remove(at).1)
            }
        };
        ended.lost = pushed.saturating_sub(*ended.result.as_ref().unwrap_or(&0));
        ended
    }

    /// Whether something is still being stored.
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || !self.closed.is_empty()
    }

    /// Name, bytes so far and durable bytes of the title that comes in.
    pub(super) fn current(&self) -> Option<(&str, u64, u64)> {
        let current = self.current.as_ref()?;
        Some((&current.name, current.len, current.durable.load(Ordering::Relaxed)))
    }
}

/// The task that stores.
struct Writer {
    target: Target,
    principal: Principal,
    names: Arc<Names>,
    board: Arc<StatusCell>,
    terms: watch::Receiver<Option<Admission>>,
    words: mpsc::UnboundedReceiver<Command>,
    queued: Arc<AtomicUsize>,
    ends: mpsc::UnboundedSender<EndedTitle>,
    turns: OrderedTasks,
}

/// Does one thing after the other, in the order in which they were given, beside whoever gives them.
#[derive(Default)]
struct OrderedTasks(Option<JoinHandle<()>>);

impl OrderedTasks {
    fn give(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let before = self.0.take();
        self.0 = Some(tokio::spawn(async move {
            if let Some(before) = before {
                // One that has panicked has had its turn, too.
                drop(before.await);
            }
            work.await;
        }));
    }
}

/// A title that takes bytes.
struct Open {
    number: u64,
    name: String,
    sink: Sink,
    durable: Arc<AtomicU64>,
}

enum Sink {
    /// With disk time and memory of its own.
    Recorded(Box<Recording>),
    /// In the time that is left.
    Uploaded(Box<Upload>),
}

impl Writer {
    async fn run(mut self) {
        let mut open: Option<Open> = None;
        // It has ended, and may hand on what it has.
        let mut before: Option<Open> = None;
        loop {
            let word = tokio::select! {
                word = self.words.recv() => word,
                failure = tend(&mut open) => {
                    if let Some(title) = open.take() {
                        self.fail(title.number, title.name, failure);
                    }
                    continue;
                }
                () = tokio::time::sleep(HEIR_WAIT), if before.is_some() => {
                    self.finish(before.take(), None);
                    continue;
                }
            };
            match word {
                None => break,
                Some(Command::Begin { number, wanted, durable }) => {
                    match self.begin(&wanted, &mut before).await {
                        Ok((name, sink)) => open = Some(Open { number, name, sink, durable }),
                        Err((name, failure)) => self.fail(number, name, failure),
                    }
                    self.finish(before.take(), None);
                }
                Some(Command::Chunk(chunk)) => {
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                    // Without a title it is lost: who has sent it counts that.
                    let Some(title) = &mut open else { continue };
                    let Err(failure) = title.append(&chunk).await else { continue };
                    if matches!(failure.cause, Cause::Long | Cause::Full) {
                        // Nothing is wrong with what has come.
                        self.finish(open.take(), Some(failure));
                    } else if let Some(title) = open.take() {
                        self.fail(title.number, title.name, failure);
                    }
                }
                Some(Command::End { goes_on }) => {
                    self.finish(before.take(), None);
                    if goes_on {
                        before = open.take();
                    } else {
                        self.finish(open.take(), None);
                    }
                }
            }
        }
        self.finish(before, None);
        self.finish(open, None);
    }

    /// Opens a title of the name that is wanted, or of one that is like it.
    async fn begin(
        &mut self,
        wanted: &str,
        before: &mut Option<Open>,
    ) -> Result<(String, Sink), (String, Failure)> {
        // Until it is known how fast it comes, it waits in the queue.
        let rate = match self.terms.wait_for(Option::is_some).await {
            Ok(terms) => terms.and_then(|terms| terms.rate),
            Err(_) => None,
        };
        let mut again = 1;
        loop {
            let name = another(wanted, again);
            again += 1;
            if !self.names.claim(&name) {
                continue;
            }
            match self.open(&name, rate, before).await {
                Ok(sink) => return Ok((name, sink)),
                Err(failure) => {
                    self.names.release(&name);
                    if failure.cause != Cause::Taken || again > AGAIN_MAX {
                        return Err((name, failure));
                    }
                }
            }
        }
    }

    async fn open(
        &self,
        name: &str,
        rate: Option<BitRate>,
        before: &mut Option<Open>,
    ) -> Result<Sink, Failure> {
        let path = name[self.target.mount.len()..].to_owned();
        let (precondition, principal) = (Precondition::CreateOnly, self.principal.clone());
        if let Some(Open { sink: Sink::Recorded(before), .. }) = before {
            let heir = before.successor(path, precondition).await?;
            return Ok(Sink::Recorded(Box::new(heir)));
        }
        if let Some(rate) = rate {
            let (volume, path) = (self.target.volume, path.clone());
            let precondition = precondition.clone();
            let begin = Begin { volume, path, rate, precondition, principal: principal.clone() };
            match self.target.recorder.begin(begin).await {
                Ok(recording) => {
                    self.board.clear(Alarm::Reserve);
                    return Ok(Sink::Recorded(Box::new(recording)));
                }
                Err(BeginError::Refused(refusal)) => {
                    let what = format!("{}; it gets what is left", refusal.message);
                    self.board.raise(Alarm::Reserve, what);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let put = UploadSpec { path, len: None, precondition, principal };
        let upload = self.target.store.begin(put).await?;
        Ok(Sink::Uploaded(Box::new(upload)))
    }

    /// Makes a title of what has come, beside the next one and after the one before: files change last in
    /// the order of their titles, which is what `keep` goes by where names have no counter.
    fn finish(&mut self, title: Option<Open>, cut_short: Option<Failure>) {
        let Some(Open { number, name, sink, .. }) = title else { return };
        let (names, ends) = (Arc::clone(&self.names), self.ends.clone());
        self.turns.give(async move {
            let result = sink.finish().await;
            names.release(&name);
            let (lost, was_current) = (0, false);
            // Nobody listens any more: the log has it.
            drop(ends.send(EndedTitle { number, name, result, cut_short, lost, was_current }));
        });
    }

    fn fail(&self, number: u64, name: String, failure: Failure) {
        self.names.release(&name);
        let (result, cut_short) = (Err(failure), None);
        let (lost, was_current) = (0, false);
        drop(self.ends.send(EndedTitle { number, name, result, cut_short, lost, was_current }));
    }
}

/// Does for a title what is due while nothing comes; ends only with a failure.
async fn tend(title: &mut Option<Open>) -> Failure {
    match title {
        Some(Open { sink: Sink::Recorded(recording), durable, .. }) => loop {
            tokio::select! {
                error = recording.tend() => return error.into(),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            durable.store(recording.figures().durable.0, Ordering::Relaxed);
        },
        Some(Open { sink: Sink::Uploaded(upload), .. }) => {
            tokio::time::sleep(PARK_AFTER).await;
            upload.park();
            std::future::pending().await
        }
        None => std::future::pending().await,
    }
}

impl Open {
    /// Takes `bytes`, at the pace of the disk.
    async fn append(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.sink {
            Sink::Uploaded(upload) => upload.append(bytes).await?,
            Sink::Recorded(recording) => {
                while !bytes.is_empty() {
                    let space = recording.space().await?;
                    let count = bytes.len().min(space.len());
                    space[..count].copy_from_slice(&bytes[..count]);
                    recording.advance(count);
                    bytes = &bytes[count..];
                }
                self.durable.store(recording.figures().durable.0, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Sink {
    /// Bytes of the title that it has become; without any there is none.
    async fn finish(self) -> Result<u64, Failure> {
        match self {
            // An empty title would hide that nothing was stored.
            Self::Uploaded(upload) if upload.len() == 0 => Ok(0),
            Self::Uploaded(upload) => Ok(upload.finish().await?.len.0),
            Self::Recorded(recording) => {
                let finished = recording.finish().await?;
                Ok(finished.map_or(0, |finished| finished.len.0))
            }
        }
    }
}

impl From<UploadError> for Failure {
    fn from(error: UploadError) -> Self {
        let cause = match &error {
            UploadError::Exists | UploadError::PreconditionFailed => Cause::Taken,
            UploadError::TooLarge(_) => Cause::Long,
            UploadError::NoSpace | UploadError::QuotaExceeded(_) => Cause::Full,
            _ => Cause::Other,
        };
        Self { what: error.to_string(), cause }
    }
}

impl From<ResumeError> for Failure {
    fn from(error: ResumeError) -> Self {
        match error {
            ResumeError::Upload(error) => error.into(),
            error => Self { what: error.to_string(), cause: Cause::Other },
        }
    }
}

impl From<BeginError> for Failure {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Store(error) => error.into(),
            error => Self { what: error.to_string(), cause: Cause::Other },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_takes_longer_is_not_overtaken() {
        let (done, mut seen) = mpsc::unbounded_channel();
        let (go, gone) = oneshot::channel::<()>();
        let mut turns = OrderedTasks::default();
        let first = done.clone();
        turns.give(async move {
            gone.await.unwrap();
            first.send(1).unwrap();
        });
        turns.give(async move { done.send(2).unwrap() });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(seen.try_recv().is_err(), "the second waits");
        go.send(()).unwrap();
        assert_eq!((seen.recv().await, seen.recv().await), (Some(1), Some(2)));
    }
}
