//! The titles of one recording: a task that stores them one after another, from a bounded queue.
//!
//! Promise: handing bytes over never waits. When the queue is full, whole packets are dropped and
//! counted. The received part of a title is stored even when the disk has no room for more. A title
//! has reserved disk time and memory if its rate is known and there is room for it, and passes them
//! on to the next title. Otherwise it uses the time left over, and an alarm reports that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tactus_control::recording::{Begin, BeginError, Recording};
use tactus_core::ts::PACKET;
use tactus_core::units::{BitRate, MonoTime, Nanos};
use tactus_storage::store::{
    Precondition, Principal, ResumeError, Upload, UploadError, UploadSpec,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::status::{Alarm, StatusCell};
use super::{Names, RecordingVolume};
use crate::pattern::another;

/// The sender's side of the titles.
pub(super) struct Titles {
    words: mpsc::UnboundedSender<Command>,
    /// Chunks in the queue.
    queued: Arc<AtomicUsize>,
    queued_max: usize,
    ends: mpsc::UnboundedReceiver<EndedTitle>,
    /// The admission of titles, once it is known.
    admission: watch::Sender<Option<Admission>>,
    current: Option<Current>,
    /// Titles that are closed and whose result is pending: number and bytes.
    closed: Vec<(u64, u64)>,
    /// Packets of the next chunk.
    chunk: Vec<u8>,
    chunk_since: Option<MonoTime>,
    begun: u64,
}

/// The title that is being recorded.
struct Current {
    number: u64,
    name: String,
    len: u64,
    durable: Arc<AtomicU64>,
}

/// A message to the task: the chunks are bounded, and the others are few.
enum Command {
    Begin {
        number: u64,
        wanted: String,
        durable: Arc<AtomicU64>,
    },
    Chunk(Vec<u8>),
    /// Whether another title begins at once.
    End {
        goes_on: bool,
    },
}

/// The result of a title.
pub(super) struct EndedTitle {
    number: u64,
    /// Its path, as stored.
    pub(super) name: String,
    /// Bytes stored.
    pub(super) result: Result<u64, Failure>,
    /// Why it ended early.
    pub(super) cut_short: Option<Failure>,
    /// Bytes that were handed over and are not in the title.
    pub(super) lost: u64,
    /// Whether the title was still being recorded.
    pub(super) was_current: bool,
}

/// Why a title is not stored, or ends early.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) what: String,
    pub(super) cause: Cause,
}

/// The cause of a failure, which decides the reaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Another title has the name.
    Taken,
    /// It has the largest permitted length.
    Long,
    /// The disk or the quota is full.
    Full,
    /// Any other cause: there is no reaction.
    Other,
}

/// The admission of a title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Admission {
    /// The reserved rate; none: the title uses the time left over.
    pub(super) rate: Option<BitRate>,
}

/// The result of handing bytes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PushResult {
    /// They wait until a chunk is full.
    Kept,
    /// They are in the queue.
    Taken,
    /// This many bytes were dropped.
    Dropped(u64),
}

/// Size of a chunk: 348 packets, a little less than 64 KiB.
const CHUNK: usize = 348 * PACKET;
/// A partial chunk is handed over after this time.
const CHUNK_WAIT: Nanos = Nanos::from_millis(200);
/// Bounds of the queue in chunks: from the delay of a slow disk's ordinary cycle to 32 MiB.
const CHUNKS: std::ops::RangeInclusive<u64> = 64..=512;
/// Length of a disk stall, or of the beginning of many titles at once, that the queue covers
/// without a gap, in seconds of the stream, within these bounds.
const STALL_SECONDS: u64 = 10;
/// Titles that are being stored while another is recorded; at this limit the present title
/// continues.
const FINISHING_MAX: usize = 2;
/// A title without data for this long returns its write slot for use by others.
const PARK_AFTER: Duration = Duration::from_millis(500);
/// How often the durable length of a title that receives no data is checked.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A title that has ended passes its disk time on to a title that begins within this time.
const HEIR_WAIT: Duration = Duration::from_secs(1);
/// Upper bound of alternative names for one title.
const AGAIN_MAX: u32 = 10_000;

impl Titles {
    /// Without a title yet. `rate` is the reserved rate, if known.
    pub(super) fn new(
        target: RecordingVolume,
        principal: Principal,
        names: Arc<Names>,
        board: Arc<StatusCell>,
        rate: Option<BitRate>,
    ) -> Self {
        let bytes = rate.map_or(16 << 20, |rate| rate.0 / 8 * STALL_SECONDS);
        let queued_max = (bytes / CHUNK as u64).clamp(*CHUNKS.start(), *CHUNKS.end()) as usize;
        let (admission, known) = watch::channel(rate.map(|rate| Admission { rate: Some(rate) }));
        let ((words, heard), (told, ends)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            target,
            principal,
            names,
            board,
            admission: known,
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
            admission,
            current: None,
            closed: Vec::new(),
            chunk: Vec::new(),
            chunk_since: None,
            begun: 0,
        }
    }

    /// Permits titles with this admission.
    pub(super) fn admit(&mut self, admission: Admission) {
        self.admission.send_replace(Some(admission));
    }

    /// Whether a title is being recorded.
    pub(super) fn has_current(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a further title may begin.
    pub(super) fn may_cut(&self) -> bool {
        self.closed.len() < FINISHING_MAX
    }

    /// Begins a title with the preferred name `wanted`.
    pub(super) fn begin(&mut self, wanted: String) {
        assert!(self.current.is_none(), "one title at a time comes in");
        self.begun += 1;
        let (number, durable) = (self.begun, Arc::new(AtomicU64::new(0)));
        let (name, len) = (wanted.clone(), 0);
        self.current = Some(Current { number, name, len, durable: Arc::clone(&durable) });
        self.say(Command::Begin { number, wanted, durable });
    }

    /// Adds whole packets.
    pub(super) fn push(&mut self, now: MonoTime, packets: &[u8]) -> PushResult {
        self.chunk_since.get_or_insert(now);
        if self.chunk.capacity() == 0 {
            self.chunk.reserve_exact(CHUNK);
        }
        self.chunk.extend(packets);
        if self.chunk.len() >= CHUNK { self.flush() } else { PushResult::Kept }
    }

    /// Hands over a partial chunk that has waited long enough.
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

    /// Closes the present title; `goes_on` if another one begins at once.
    pub(super) fn close(&mut self, goes_on: bool) -> PushResult {
        let pushed = self.flush();
        if let Some(current) = self.current.take() {
            self.closed.push((current.number, current.len));
            self.say(Command::End { goes_on });
        }
        pushed
    }

    fn say(&self, word: Command) {
        // The task runs until all senders are gone.
        drop(self.words.send(word));
    }

    /// The next title that has ended. Cancelling the wait loses nothing; without a title it waits
    /// for ever.
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

    /// Whether a title is still being stored.
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || !self.closed.is_empty()
    }

    /// Name, bytes so far and durable bytes of the present title.
    pub(super) fn current(&self) -> Option<(&str, u64, u64)> {
        let current = self.current.as_ref()?;
        Some((&current.name, current.len, current.durable.load(Ordering::Relaxed)))
    }
}

/// The task that stores titles.
struct Writer {
    target: RecordingVolume,
    principal: Principal,
    names: Arc<Names>,
    board: Arc<StatusCell>,
    admission: watch::Receiver<Option<Admission>>,
    words: mpsc::UnboundedReceiver<Command>,
    queued: Arc<AtomicUsize>,
    ends: mpsc::UnboundedSender<EndedTitle>,
    turns: OrderedTasks,
}

/// Runs jobs in their order, concurrently with the caller.
#[derive(Default)]
struct OrderedTasks(Option<JoinHandle<()>>);

impl OrderedTasks {
    fn give(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let before = self.0.take();
        self.0 = Some(tokio::spawn(async move {
            if let Some(before) = before {
                // A job that has panicked counts as done.
                drop(before.await);
            }
            work.await;
        }));
    }
}

/// A title that accepts bytes.
struct Open {
    number: u64,
    name: String,
    writer: TitleWriter,
    durable: Arc<AtomicU64>,
}

enum TitleWriter {
    /// With reserved disk time and memory.
    Recorded(Box<Recording>),
    /// Without a reservation, in the time left over.
    Uploaded(Box<Upload>),
}

impl Writer {
    async fn run(mut self) {
        let mut open: Option<Open> = None;
        // The previous title, which has ended and may pass on its reservation.
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
                        Ok((name, writer)) => open = Some(Open { number, name, writer, durable }),
                        Err((name, failure)) => self.fail(number, name, failure),
                    }
                    self.finish(before.take(), None);
                }
                Some(Command::Chunk(chunk)) => {
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                    // Without a title the chunk is lost; the sender counts it.
                    let Some(title) = &mut open else { continue };
                    let Err(failure) = title.append(&chunk).await else { continue };
                    if matches!(failure.cause, Cause::Long | Cause::Full) {
                        // The bytes so far are good.
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

    /// Opens a title with the preferred name, or with a similar one.
    async fn begin(
        &mut self,
        wanted: &str,
        before: &mut Option<Open>,
    ) -> Result<(String, TitleWriter), (String, Failure)> {
        // Chunks wait in the queue until the rate is known.
        let rate = match self.admission.wait_for(Option::is_some).await {
            Ok(admission) => admission.and_then(|admission| admission.rate),
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
                Ok(writer) => return Ok((name, writer)),
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
    ) -> Result<TitleWriter, Failure> {
        let path = name[self.target.mount.len()..].to_owned();
        let (precondition, principal) = (Precondition::CreateOnly, self.principal.clone());
        if let Some(Open { writer: TitleWriter::Recorded(before), .. }) = before {
            let heir = before.successor(path, precondition).await?;
            return Ok(TitleWriter::Recorded(Box::new(heir)));
        }
        if let Some(rate) = rate {
            let (volume, path) = (self.target.volume, path.clone());
            let precondition = precondition.clone();
            let begin = Begin { volume, path, rate, precondition, principal: principal.clone() };
            match self.target.recorder.begin(begin).await {
                Ok(recording) => {
                    self.board.clear(Alarm::Reserve);
                    return Ok(TitleWriter::Recorded(Box::new(recording)));
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
        Ok(TitleWriter::Uploaded(Box::new(upload)))
    }

    /// Makes a title of the bytes so far, concurrently with the next title and after the previous
    /// one. So modification times have the order of the titles, which `keep` uses when names have
    /// no counter.
    fn finish(&mut self, title: Option<Open>, cut_short: Option<Failure>) {
        let Some(Open { number, name, writer, .. }) = title else { return };
        let (names, ends) = (Arc::clone(&self.names), self.ends.clone());
        self.turns.give(async move {
            let result = writer.finish().await;
            names.release(&name);
            let (lost, was_current) = (0, false);
            // Without a receiver, the log has the result.
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

/// Does the due work of a title while no data arrives; ends only with a failure.
async fn tend(title: &mut Option<Open>) -> Failure {
    match title {
        Some(Open { writer: TitleWriter::Recorded(recording), durable, .. }) => loop {
            tokio::select! {
                error = recording.tend() => return error.into(),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            durable.store(recording.figures().durable.0, Ordering::Relaxed);
        },
        Some(Open { writer: TitleWriter::Uploaded(upload), .. }) => {
            tokio::time::sleep(PARK_AFTER).await;
            upload.park();
            std::future::pending().await
        }
        None => std::future::pending().await,
    }
}

impl Open {
    /// Appends `bytes`, at the pace of the disk.
    async fn append(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.writer {
            TitleWriter::Uploaded(upload) => upload.append(bytes).await?,
            TitleWriter::Recorded(recording) => {
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

impl TitleWriter {
    /// Returns the bytes of the stored title; zero if there was no data and hence no title.
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
    use tokio::sync::oneshot;

    use super::*;

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
