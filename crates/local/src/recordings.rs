//! Recordings of one client: titles that it writes at a rate, through rings that it shares.
//!
//! Promise: a recording is admitted like any other, and refused with the short resource. Its client
//! is held to its rate by a full ring. However it ends, by its client's word, with its client or
//! with the disk: the bytes that were taken become a title, and its place, its memory and its name
//! come back. It ends all others that the client has only if the client has lied.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tactus_client::memory::{self, Mapping};
use tactus_client::protocol::{Replace, Reply};
use tactus_control::changes::ChangeGuard;
use tactus_control::recording::{Recorder, Recording};
use tactus_core::local::layout;
use tactus_core::local::stream::{BYTES, StreamEnd};
use tactus_core::ports::Waker;
use tactus_core::stagger::Tick;
use tactus_core::units::BitRate;
use tactus_ring::shared::{SharedMemory, SleepMark, Words};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::budget::{MemoryBudget, MemoryShare};
use crate::changes::{Changes, Publication};
use crate::doorbell::Doorbell;
use crate::errno::{EBADF, EINVAL, EIO, EMFILE, ENODATA, EPROTO, EROFS, ETIMEDOUT, Refusal};
use crate::recording_ring::{RecordingRing, RingContent};
use crate::rings::{RATES, TICK, claim, room_of};

/// Recordings that a client may have at once.
const RECORDINGS_MAX: usize = 64;

/// A disk that takes nothing for so long takes nothing any more. As for a body over HTTP.
const SPACE_TIME: Duration = Duration::from_secs(60);

/// What the recordings of a client use of the server and of the client.
pub(crate) struct RecordingContext {
    /// None if no volume takes recordings.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) runtime: Handle,
    /// The client's memory, with its mark.
    pub(crate) client: Arc<Mapping>,
    pub(crate) bell: Doorbell,
    /// Ends the client's connection.
    pub(crate) cut: Arc<dyn Fn() + Send + Sync>,
    pub(crate) memory: MemoryBudget,
}

/// A request for a recording.
pub(crate) struct RecordingRequest {
    pub(crate) title: String,
    /// Bits per second.
    pub(crate) rate: u64,
    pub(crate) replace: Replace,
    /// Bytes of the ring; zero: the server chooses.
    pub(crate) room: u64,
}

/// The recordings of a client, by number.
pub(crate) struct Recordings {
    context: RecordingContext,
    running: HashMap<u32, Entry>,
}

/// One recording. When this is dropped, it takes what is in its ring and ends.
struct Entry {
    reason: Arc<Mutex<Option<Refusal>>>,
    _client: oneshot::Sender<()>,
}

impl Recordings {
    pub(crate) fn new(context: RecordingContext) -> Self {
        Self { context, running: HashMap::new() }
    }

    /// Begins a recording. Returns its ring with the reply. Waits for the disk.
    pub(crate) fn begin(
        &mut self,
        request: &RecordingRequest,
    ) -> Result<(Reply, Option<OwnedFd>), Refusal> {
        let number = (0..RECORDINGS_MAX as u32).find(|number| !self.running.contains_key(number));
        let number = number.ok_or_else(|| {
            let text =
                format!("{RECORDINGS_MAX} recordings run, which is the most for one program");
            (EMFILE, text)
        })?;
        let rate = BitRate(request.rate);
        if !RATES.contains(&rate.0) {
            return Err((EINVAL, "a rate is 1 kbit/s to 1 Tbit/s".into()));
        }
        let tick = Tick::for_rate(rate, TICK);
        let room = room_of(rate, tick, 0, request.room)?;
        let share = claim(&self.context.memory, room)?;
        let (file, ring) = self.context.ring(room).map_err(|error| {
            let errno = error.raw_os_error().map_or(EIO, |errno| errno as u32);
            (errno, format!("no memory for the ring: {error}"))
        })?;
        let RecordingContext { recorder, changes, runtime, .. } = &self.context;
        let none = || (EROFS, "no volume of this server accepts recordings".to_owned());
        let recorder = recorder.as_ref().ok_or_else(none)?;
        let begun = changes.record(recorder, &request.title, rate, request.replace);
        let (recording, publication, under_way) = runtime.block_on(begun)?;
        let (sender, client) = oneshot::channel();
        let reason = Arc::<Mutex<Option<Refusal>>>::default();
        let memory = Arc::clone(&self.context.client) as Arc<dyn SharedMemory>;
        let intake = Intake {
            recording,
            publication,
            ring,
            client_mark: SleepMark::new(Words::new(memory), layout::CLIENT_ASLEEP),
            bell: self.context.bell.clone(),
            client: Some(client),
            tick: Duration::from_nanos(tick.span().0),
            cut: Arc::clone(&self.context.cut),
            is_dry: true,
            last: Instant::now(),
            _share: share,
            _under_way: under_way,
        };
        runtime.spawn(intake.run(Arc::clone(&reason)));
        self.running.insert(number, Entry { reason, _client: sender });
        Ok((Reply::Recording { recording: number, memory: BYTES as u64 + room }, Some(file)))
    }

    /// Lets a recording go: one that still runs takes what is in its ring, and ends. Says why it
    /// has ended early, if it has.
    pub(crate) fn end(&mut self, number: u32) -> Result<Reply, Refusal> {
        let entry = self.running.remove(&number);
        let entry =
            entry.ok_or_else(|| (EBADF, format!("no recording has the number {number}")))?;
        let reason = entry.reason.lock().unwrap_or_else(PoisonError::into_inner).take();
        reason.map_or(Ok(Reply::Closed), Err)
    }
}

impl RecordingContext {
    /// A new ring with room for `room` bytes: the client's descriptor of it, and this side.
    fn ring(&self, room: u64) -> std::io::Result<(OwnedFd, RecordingRing)> {
        let len = BYTES + room as usize;
        let file = memory::create(len)?;
        let mapping: Arc<dyn SharedMemory> = Arc::new(Mapping::new(file.as_fd(), len)?);
        Ok((file, RecordingRing::new(&mapping, room)))
    }
}

/// What takes the bytes of one recording.
struct Intake {
    recording: Recording,
    publication: Publication,
    ring: RecordingRing,
    /// Set while the client sleeps.
    client_mark: SleepMark,
    bell: Doorbell,
    /// Ends when the client has let the recording go; `None` then.
    client: Option<oneshot::Receiver<()>>,
    /// How often it looks into the ring.
    tick: Duration,
    cut: Arc<dyn Fn() + Send + Sync>,
    /// The client has been slower than its rate, and this is counted.
    is_dry: bool,
    /// When bytes were taken, or there were none.
    last: Instant,
    /// While the ring has memory.
    _share: MemoryShare,
    /// No lock may be granted that would forbid the title.
    _under_way: ChangeGuard,
}

impl Intake {
    async fn run(mut self, reason: Arc<Mutex<Option<Refusal>>>) {
        let taken = self.take_all().await;
        self.ring.set_durable(self.recording.durable());
        let Self { recording, publication, ring, client_mark, bell, cut, .. } = self;
        if let Err((EPROTO, text)) = &taken {
            tracing::warn!("a local client is cut off: {text}");
            cut();
        }
        let len = recording.figures().taken.0;
        let result = match (taken, recording.finish().await) {
            (Err(refusal), _) => Err(refusal),
            (Ok(()), Ok(Some(_))) => Ok(()),
            (Ok(()), Ok(None)) => Err((ENODATA, "the recording received no data".to_owned())),
            (Ok(()), Err(error)) => Err(publication.resume_refusal(&error)),
        };
        let end = result.as_ref().map_or_else(
            |&(errno, _)| StreamEnd::Failed(errno),
            |()| {
                ring.set_durable(len);
                StreamEnd::Complete
            },
        );
        *reason.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
        ring.end(end);
        if client_mark.must_ring() {
            bell.wake();
        }
    }

    /// Takes bytes, turn by turn, until the client has written all of them.
    async fn take_all(&mut self) -> Result<(), Refusal> {
        loop {
            self.turn().await?;
            if self.ring.is_over() {
                return Ok(());
            }
            self.rest().await?;
        }
    }

    /// Takes what is in the ring, as much as the rate and the disk allow.
    async fn turn(&mut self) -> Result<(), Refusal> {
        let Self { ring, recording, publication, .. } = self;
        let RingContent { there, wanted, is_full } = ring.look(self.client.is_none())?;
        if is_full {
            recording.note_overrun();
            ring.note_overrun();
        }
        let mut taken = 0;
        while taken < wanted {
            let space = recording.space_now();
            let space = space.map_err(|error| publication.resume_refusal(&error))?;
            let len = space.len().min((wanted - taken) as usize);
            let count = ring.take(&mut space[..len]);
            if count == 0 {
                break;
            }
            recording.advance(count);
            taken += count as u64;
            // The thread serves all connections.
            tokio::task::yield_now().await;
        }
        let now = Instant::now();
        if taken > 0 || there == 0 {
            self.last = now;
        } else if now.duration_since(self.last) > SPACE_TIME {
            let text = "the disk was busy for a minute and could not take these bytes";
            return Err((ETIMEDOUT, text.to_owned()));
        }
        ring.set_durable(recording.durable());
        if taken > 0 && self.client_mark.must_ring() {
            self.bell.wake();
        }
        let was_dry = std::mem::replace(&mut self.is_dry, there == 0 && recording.is_dry());
        if self.is_dry && !was_dry {
            recording.note_underrun();
            ring.note_underrun();
        }
        Ok(())
    }

    /// Waits for the next turn. What was taken is flushed meanwhile.
    async fn rest(&mut self) -> Result<(), Refusal> {
        let Self { recording, client, tick, publication, .. } = self;
        let gone = async {
            match client {
                Some(client) => drop(client.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = recording.tend() => return Err(publication.resume_refusal(&error)),
            () = tokio::time::sleep(*tick) => {}
            () = gone => self.client = None,
        }
        Ok(())
    }
}
