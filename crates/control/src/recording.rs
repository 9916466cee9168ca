//! Recordings: uploads with a reserved rate, whose source cannot wait.
//!
//! Promise: an admitted recording has its own disk time and memory for its rate; otherwise it is
//! refused with the name of the short resource. Accepted bytes are durable after some seconds and
//! become a title, whether the recording ends by itself, with its source, or by a crash. Bytes that
//! cannot be accepted are counted and reported; they never wait in memory. See
//! `docs/design/recording.md`. It knows no sockets.

mod counts;
mod meter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::units::BitRate;
use tactus_engine::message::VolumeId;
use tactus_storage::store::{
    Appender, Create, LeftoverUpload, Precondition, Principal, RecordingSpec, Reserve, ResumeError,
    Store, StoreId, StoredTitle, UploadError,
};

use crate::broker::{Broker, Refusal};

pub use counts::{Figures, Loss, LossKind, Totals};

use counts::{Counts, Roll};
use meter::Meter;

/// Starts recordings. Clones share one recorder.
#[derive(Clone)]
pub struct Recorder(Arc<Shared>);

struct Shared {
    broker: Broker,
    /// By volume number; `None` for a read-only volume.
    volumes: Arc<[Option<Store>]>,
    roll: Roll,
}

/// The parameters of a new recording.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The destination volume.
    pub volume: VolumeId,
    /// The path of the title on that volume, decoded, without outer slashes.
    pub path: String,
    /// The largest rate of the source; bytes beyond it are lost.
    pub rate: BitRate,
    /// The condition for using the name.
    pub precondition: Precondition,
    /// The owner.
    pub principal: Principal,
}

/// Why a recording does not start.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// There is no room for its rate.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The volume takes no uploads; set `uploads = true` for it.
    #[error("this volume takes no recordings; set `uploads = true` for it")]
    NotHere,
    /// Uploads did not release write slots in time; the disk is far too slow.
    #[error("the disk is too slow to start a recording now; try again later")]
    Stalled,
    /// It cannot be stored.
    #[error(transparent)]
    Store(#[from] ResumeError),
}

/// The fate of written bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome {
    /// They are in the recording.
    All,
    /// All of them are lost, and are counted.
    Lost(LossKind),
}

/// A title that is received at its rate. Dropping it ends it as [`Self::finish`] does, without a
/// result.
pub struct Recording {
    recorder: Recorder,
    begin: Begin,
    store: Store,
    id: StoreId,
    live: RecordingSpec,
    /// A little more than its rate.
    promised: BitRate,
    /// `None` only at the end.
    appender: Option<Appender>,
    /// The rest of a piece that began in the previous slot.
    spill: Vec<u8>,
    meter: Meter,
    /// How much the current slot takes beyond the rate, because uploads do not need it.
    spare: u64,
    counts: Arc<Counts>,
}

/// Upper bound of one write: the largest datagram.
pub const PIECE_MAX: usize = 64 * 1024;

/// Stored with an unfinished recording, so that a restart recognises it. No request field can start
/// with this byte.
const MARK: &[u8] = b"\0recording\n";

/// How long uploads have to release write slots: many times what the slowest disk takes for all
/// queued writes.
const RESERVE_WAIT: Duration = Duration::from_secs(30);

impl Recorder {
    /// Records to `volumes` (by number) as far as `broker` has room.
    pub fn new(broker: Broker, volumes: Arc<[Option<Store>]>) -> Self {
        let roll = Roll::new(volumes.len());
        Self(Arc::new(Shared { broker, volumes, roll }))
    }

    /// Starts a recording and reserves its disk time and memory. Waits for the disk, and for
    /// uploads to release write slots.
    ///
    /// # Errors
    /// If there is no room, or its title cannot be stored. Nothing is left of it then.
    pub async fn begin(&self, begin: Begin) -> Result<Recording, BeginError> {
        let store = self.store(begin.volume)?;
        let grant = self.0.broker.admit_recording(begin.volume, begin.rate)?;
        let (promised, places, within) = (grant.rate, grant.places(), grant.within);
        let reserve = store.reserve(Reserve { places, within, promise: Arc::new(grant) });
        let medium = tokio::time::timeout(RESERVE_WAIT, reserve).await;
        let medium = medium.map_err(|_| BeginError::Stalled)?;
        let live = RecordingSpec { rate: begin.rate, medium };
        self.record(begin, live, promised).await
    }

    async fn record(
        &self,
        begin: Begin,
        live: RecordingSpec,
        promised: BitRate,
    ) -> Result<Recording, BeginError> {
        let store = self.store(begin.volume)?.clone();
        let create = Create {
            path: Some(begin.path.clone()),
            len: None,
            precondition: begin.precondition.clone(),
            principal: begin.principal.clone(),
            metadata: MARK.to_vec(),
        };
        let id = store.create(create).await?;
        let appender = match store.append_live(&id, &begin.principal, &live).await {
            Ok(appender) => appender,
            Err(error) => {
                forget(&store, id, &begin.principal).await;
                return Err(error.into());
            }
        };
        let counts = self.0.roll.begin(begin.volume, &begin.path, begin.rate);
        let (recorder, meter) = (self.clone(), Meter::new(promised, Instant::now()));
        let (appender, spill) = (Some(appender), Vec::with_capacity(PIECE_MAX));
        Ok(Recording {
            recorder,
            begin,
            store,
            id,
            live,
            promised,
            appender,
            spill,
            meter,
            spare: 0,
            counts,
        })
    }

    fn store(&self, volume: VolumeId) -> Result<&Store, BeginError> {
        let store = self.0.volumes.get(usize::from(volume.0));
        store.and_then(Option::as_ref).ok_or(BeginError::NotHere)
    }

    /// Publishes the unfinished recordings of an earlier run as titles, in the background. Must be
    /// called before the first recording starts.
    pub fn finish_left(&self) {
        for store in self.0.volumes.iter().flatten() {
            let (store, left) = (store.clone(), store.left(MARK));
            if left.is_empty() {
                continue;
            }
            tokio::spawn(async move {
                for LeftoverUpload { id, principal, path, len } in left {
                    match name(&store, id, &principal, len).await {
                        Ok(Some(_)) => {
                            tracing::warn!(
                                path,
                                len,
                                "a recording was interrupted by the last shutdown; \
                                 its stored part is a title"
                            );
                        }
                        Ok(None) => {
                            tracing::warn!(
                                path,
                                "a recording without data was interrupted by the \
                                 last shutdown and is dropped"
                            )
                        }
                        Err(error) => {
                            tracing::error!(
                                path, %error,
                                "an interrupted recording cannot be published as a title"
                            )
                        }
                    }
                }
            });
        }
    }

    /// The running recordings.
    pub fn running(&self) -> Vec<Figures> {
        self.0.roll.running()
    }

    /// The sums of a volume's recordings since the start.
    pub fn totals(&self, volume: VolumeId) -> Totals {
        self.0.roll.totals(volume)
    }
}

impl Recording {
    /// The next file of a long recording: it takes over the disk time and memory of this one. It
    /// may start before it is needed; bytes go to one of the two at a time.
    ///
    /// # Errors
    /// If its title cannot be stored.
    pub async fn successor(
        // `&mut`: only one thread may poll pending writes.
        &mut self,
        path: String,
        precondition: Precondition,
    ) -> Result<Self, BeginError> {
        let begin = Begin { path, precondition, ..self.begin.clone() };
        self.recorder.record(begin, self.live.clone(), self.promised).await
    }

    /// Writes all of `bytes` or none of them, and never waits: bytes beyond the rate, or for which
    /// the disk is not ready, are lost and counted. A caller that writes packets loses whole
    /// packets.
    ///
    /// # Errors
    /// If no more bytes can ever be written. [`Self::finish`] makes a title of those written
    /// before.
    ///
    /// # Panics
    /// If there are more than [`PIECE_MAX`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<WriteOutcome, ResumeError> {
        assert!(bytes.len() <= PIECE_MAX, "a piece is bounded");
        let now = Instant::now();
        self.tend_at(now)?;
        let taken = if !self.meter.allows(bytes.len() as u64, now) {
            WriteOutcome::Lost(LossKind::Rate)
        } else if !self.put(bytes)? {
            WriteOutcome::Lost(LossKind::Disk)
        } else {
            self.meter.take(bytes.len() as u64);
            WriteOutcome::All
        };
        match taken {
            WriteOutcome::All => self.counts.took(bytes.len() as u64),
            WriteOutcome::Lost(kind) => self.counts.lost(kind, bytes.len() as u64, now),
        }
        Ok(taken)
    }

    /// Counts bytes that were lost before they arrived here, as the source's numbering shows.
    pub fn missed(&self, bytes: u64) {
        self.counts.lost(LossKind::Source, bytes, Instant::now());
    }

    /// Whether all of it is in the recording now.
    fn put(&mut self, bytes: &[u8]) -> Result<bool, ResumeError> {
        if !self.drain_spill()? {
            return Ok(false);
        }
        let appender = self.appender.as_mut().expect("only the end takes it");
        let Some(space) = appender.space_now()? else { return Ok(bytes.is_empty()) };
        let count = bytes.len().min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        appender.advance(count);
        self.spill.extend_from_slice(&bytes[count..]);
        // Usually there is a slot for the rest, too.
        self.drain_spill()?;
        Ok(true)
    }

    /// Moves spilled bytes into a slot; true if none are left.
    fn drain_spill(&mut self) -> Result<bool, ResumeError> {
        let appender = self.appender.as_mut().expect("only the end takes it");
        while !self.spill.is_empty() {
            let Some(space) = appender.space_now()? else { return Ok(false) };
            let count = self.spill.len().min(space.len());
            space[..count].copy_from_slice(&self.spill[..count]);
            appender.advance(count);
            self.spill.drain(..count);
        }
        Ok(true)
    }

    fn tend_at(&mut self, now: Instant) -> Result<(), ResumeError> {
        let appender = self.appender.as_mut().expect("only the end takes it");
        if appender.tend(now)? {
            self.counts.looked(appender.durable());
        }
        Ok(())
    }

    /// Flushes when no data arrives; to be polled together with the source. It ends only with an
    /// error, and may be dropped at any time.
    pub async fn tend(&mut self) -> ResumeError {
        loop {
            if let Err(error) = self.tend_at(Instant::now()) {
                return error;
            }
            tokio::time::sleep(TEND_EVERY).await;
        }
    }

    /// Space for the next bytes, for a source that can wait: at its rate, when the disk is ready,
    /// and faster if uploads do not need the slots. Fill it from its start, then call
    /// [`Self::advance`].
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub async fn space(&mut self) -> Result<&mut [u8], ResumeError> {
        let room = loop {
            let now = Instant::now();
            self.tend_at(now)?;
            let room = self.room(now);
            if room > 0 && self.drain_spill()? && self.has_space()? {
                break room;
            }
            tokio::time::sleep(SPACE_EVERY).await;
        };
        let appender = self.appender.as_mut().expect("only the end takes it");
        let space = appender.space_now()?.expect("there was some");
        let room = space.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(&mut space[..room])
    }

    /// Space for the next bytes of a source that is held to its rate: as much as the rate and the
    /// disk leave now, which may be none. Never waits. Fill it from its start, then call
    /// [`Self::advance`].
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn space_now(&mut self) -> Result<&mut [u8], ResumeError> {
        let now = Instant::now();
        self.tend_at(now)?;
        let room = usize::try_from(self.meter.room(now)).unwrap_or(usize::MAX);
        if room == 0 || !self.drain_spill()? {
            return Ok(&mut []);
        }
        let appender = self.appender.as_mut().expect("only the end takes it");
        let space = appender.space_now()?.unwrap_or_default();
        let room = room.min(space.len());
        Ok(&mut space[..room])
    }

    /// Whether the source has been slower than its rate for as long as a burst lasts.
    pub fn is_dry(&mut self) -> bool {
        self.meter.is_full(Instant::now())
    }

    /// Counts that the source was faster than its rate and had to wait.
    pub fn note_overrun(&self) {
        self.counts.overran();
    }

    /// Counts that the source was slower than its rate.
    pub fn note_underrun(&self) {
        self.counts.underran();
    }

    /// The durable part in bytes, as of the last check.
    pub fn durable(&self) -> u64 {
        self.counts.durable()
    }

    fn room(&mut self, now: Instant) -> u64 {
        let appender = self.appender.as_mut().expect("only the end takes it");
        if !appender.has_place() {
            self.spare = if self.meter.is_behind(now) { appender.hurry() } else { 0 };
        }
        self.meter.room(now) + self.spare
    }

    fn has_space(&mut self) -> Result<bool, ResumeError> {
        let appender = self.appender.as_mut().expect("only the end takes it");
        Ok(appender.space_now()?.is_some())
    }

    /// The first `count` bytes of the space are filled.
    pub fn advance(&mut self, count: usize) {
        let spare = self.spare.min(count as u64);
        self.spare -= spare;
        self.meter.take(count as u64 - spare);
        self.counts.took(count as u64);
        self.appender.as_mut().expect("only the end takes it").advance(count);
    }

    /// Its description and progress.
    pub fn figures(&self) -> Figures {
        self.counts.figures()
    }

    /// Ends it. When this returns, the written bytes are a durable title (`None` if there were
    /// none). It runs to its end even if the future is dropped; on a hanging disk it waits.
    ///
    /// # Errors
    /// If the title is not, or not certainly, stored. Unless the disk has failed, the recording
    /// stays until it expires.
    pub async fn finish(mut self) -> Result<Option<StoredTitle>, ResumeError> {
        let stops = || UploadError::Io(std::io::Error::other("the server stops"));
        self.end().await.map_err(|_| stops())?
    }

    fn end(&mut self) -> tokio::task::JoinHandle<Result<Option<StoredTitle>, ResumeError>> {
        let appender = self.appender.take().expect("it ends once");
        let (store, id) = (self.store.clone(), self.id);
        let (principal, spill) = (self.begin.principal.clone(), std::mem::take(&mut self.spill));
        let (counts, path) = (Arc::clone(&self.counts), self.begin.path.clone());
        let recorder = self.recorder.clone();
        tokio::spawn(async move {
            let ended = close(&store, id, &principal, appender, spill).await;
            recorder.0.roll.end(&counts);
            match &ended {
                Ok(Some(finished)) => tracing::info!(path, len = finished.len.0, "recorded"),
                Ok(None) => tracing::info!(path, "the recording received no data"),
                Err(error) => tracing::error!(path, %error, "a recording is not stored"),
            }
            ended
        })
    }
}

/// Interval of the flush check of an idle recording.
const TEND_EVERY: Duration = Duration::from_millis(250);

/// Polling interval of a waiting source. The promise allows 50 ms.
const SPACE_EVERY: Duration = Duration::from_millis(10);

impl Drop for Recording {
    fn drop(&mut self) {
        if self.appender.is_some() && tokio::runtime::Handle::try_current().is_ok() {
            drop(self.end());
        }
    }
}

/// Makes a title of the written bytes.
async fn close(
    store: &Store,
    id: StoreId,
    principal: &Principal,
    mut appender: Appender,
    spill: Vec<u8>,
) -> Result<Option<StoredTitle>, ResumeError> {
    // Spilled bytes without room are lost; the rest is kept.
    let spilled = appender.append(&spill).await;
    if let Err(error) = &spilled {
        tracing::warn!(%error, bytes = spill.len(), "storing the end of a recording failed");
    }
    let len = appender.commit().await?;
    name(store, id, principal, len).await
}

async fn name(
    store: &Store,
    id: StoreId,
    principal: &Principal,
    len: u64,
) -> Result<Option<StoredTitle>, ResumeError> {
    if len == 0 {
        store.terminate(&id, principal).await?;
        return Ok(None);
    }
    store.declare(&id, principal, len).await?;
    let finished = store.finish(&id, principal).await?;
    // No client uses its identifier.
    forget(store, id, principal).await;
    Ok(Some(finished))
}

async fn forget(store: &Store, id: StoreId, principal: &Principal) {
    if let Err(error) = store.terminate(&id, principal).await {
        tracing::warn!(
            %error, %id,
            "the entry of a finished recording could not be removed; it expires later"
        );
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
