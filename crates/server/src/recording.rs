//! Recordings: titles that come in at a rate and cannot wait.
//!
//! Promise: what is admitted has disk time and memory of its own for its rate, and what does not
//! fit is refused with the name of what is short. What has been taken is durable after some seconds
//! and a title in the end, however the recording ends: by its own end, by that of its source, or by
//! a crash. What cannot be taken is counted and said; it is never kept waiting in memory. See
//! `docs/design/recording.md`. It knows no sockets.

mod counts;
mod meter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::units::BitRate;
use tactus_engine::message::VolumeId;

use crate::broker::{Broker, Refusal};
use crate::store::{
    Appender, Create, Finished, Left, Live, Precondition, Principal, Reserve, ResumeError, Store,
    StoreId, UploadError,
};

pub use counts::{Figures, Loss, LossKind, Totals};

use counts::{Counts, Roll};
use meter::Meter;

/// Begins recordings. Clones are the same one.
#[derive(Clone)]
pub struct Recorder(Arc<Shared>);

struct Shared {
    broker: Broker,
    /// By their numbers; none where nothing is taken.
    volumes: Arc<[Option<Store>]>,
    roll: Roll,
}

/// A recording that is to begin.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The disk that it goes to.
    pub volume: VolumeId,
    /// The title's path there, decoded, without outer slashes.
    pub path: String,
    /// At most so much comes in each second; more is lost.
    pub rate: BitRate,
    /// When it may have the name.
    pub precondition: Precondition,
    /// Whose it is.
    pub principal: Principal,
}

/// Why a recording does not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// There is no room for its rate.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The volume takes no uploads; say `uploads = true` for it.
    #[error("nothing is recorded to this volume")]
    NotHere,
    /// Uploads have not left its places; the disk is far too slow.
    #[error("the disk has had no time to make room for a recording; try again later")]
    Stalled,
    /// It cannot be stored.
    #[error(transparent)]
    Store(#[from] ResumeError),
}

/// What became of bytes that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome {
    /// They are in the recording.
    All,
    /// They are lost, all of them, and have been counted.
    Lost(LossKind),
}

/// A title that comes in at its rate. Dropped, it ends as by [`Self::finish`], unobserved.
pub struct Recording {
    recorder: Recorder,
    begin: Begin,
    store: Store,
    id: StoreId,
    live: Live,
    /// A little more than its rate.
    promised: BitRate,
    /// None only at the end.
    appender: Option<Appender>,
    /// The end of a piece whose beginning was the end of a place.
    spill: Vec<u8>,
    meter: Meter,
    /// What the place that is being filled takes beside the rate, because uploads do not need it.
    spare: u64,
    counts: Arc<Counts>,
}

/// More is not written at once: as much as a datagram can have.
pub const PIECE_MAX: usize = 64 * 1024;

/// What the store keeps with a recording that is not finished, by which a start knows it. No field
/// of a request can have the first byte.
const MARK: &[u8] = b"\0recording\n";

/// How long uploads have to leave places: many times what the slowest disk takes for all that may
/// wait.
const RESERVE_WAIT: Duration = Duration::from_secs(30);

impl Recorder {
    /// Records to `volumes`, by their numbers, as far as `broker` has room.
    pub fn new(broker: Broker, volumes: Arc<[Option<Store>]>) -> Self {
        let roll = Roll::new(volumes.len());
        Self(Arc::new(Shared { broker, volumes, roll }))
    }

    /// Begins a recording: from now on it has its disk time and its memory. Waits for the disk, and
    /// for uploads to leave its places.
    ///
    /// # Errors
    /// When it has no room, or its title cannot be stored. Nothing is left of it then.
    pub async fn begin(&self, begin: Begin) -> Result<Recording, BeginError> {
        let store = self.store(begin.volume)?;
        let grant = self.0.broker.admit_recording(begin.volume, begin.rate)?;
        let (promised, places, within) = (grant.rate, grant.places(), grant.within);
        let reserve = store.reserve(Reserve { places, within, promise: Arc::new(grant) });
        let medium = tokio::time::timeout(RESERVE_WAIT, reserve).await;
        let medium = medium.map_err(|_| BeginError::Stalled)?;
        let live = Live { rate: begin.rate, medium };
        self.record(begin, live, promised).await
    }

    async fn record(
        &self,
        begin: Begin,
        live: Live,
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

    /// Makes titles of what recordings of an earlier run have left, in the background. To be called
    /// before the first recording begins.
    pub fn finish_left(&self) {
        for store in self.0.volumes.iter().flatten() {
            let (store, left) = (store.clone(), store.left(MARK));
            if left.is_empty() {
                continue;
            }
            tokio::spawn(async move {
                for Left { id, principal, path, len } in left {
                    match name(&store, id, &principal, len).await {
                        Ok(Some(_)) => {
                            tracing::warn!(
                                path,
                                len,
                                "a recording was cut off by the last end; as far as it came it is a title"
                            );
                        }
                        Ok(None) => {
                            tracing::warn!(path, "a recording had not begun when the server ended")
                        }
                        Err(error) => {
                            tracing::error!(path, %error, "a recording was cut off, and cannot be named")
                        }
                    }
                }
            });
        }
    }

    /// The recordings that are running.
    pub fn running(&self) -> Vec<Figures> {
        self.0.roll.running()
    }

    /// All recordings of a volume since the start.
    pub fn totals(&self, volume: VolumeId) -> Totals {
        self.0.roll.totals(volume)
    }
}

impl Recording {
    /// Another recording with the disk time and memory of this one, which is to end soon: for the
    /// next file of a long one. It may begin before it is needed; bytes go to one of the two at a
    /// time.
    ///
    /// # Errors
    /// When its title cannot be stored.
    pub async fn successor(
        // Not shared: what is under way may be looked at by one thread only.
        &mut self,
        path: String,
        precondition: Precondition,
    ) -> Result<Self, BeginError> {
        let begin = Begin { path, precondition, ..self.begin.clone() };
        self.recorder.record(begin, self.live.clone(), self.promised).await
    }

    /// Takes `bytes`, all of them or none, and waits for nothing: what the disk is not ready for,
    /// or is more than its rate, is lost and counted. Whoever brings packets loses whole packets.
    ///
    /// # Errors
    /// When nothing more can be taken, ever. What has been taken becomes a title by
    /// [`Self::finish`].
    ///
    /// # Panics
    /// When there are more than [`PIECE_MAX`].
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

    /// Counts bytes as lost that never came here: the source has said that they were sent.
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
        // Mostly there is a place for that, too.
        self.drain_spill()?;
        Ok(true)
    }

    /// Puts what was spilled where it belongs; whether nothing is left.
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

    /// Does what is due while nothing comes; to be waited for together with what comes. It ends
    /// only with an error, and may be dropped at any time.
    pub async fn tend(&mut self) -> ResumeError {
        loop {
            if let Err(error) = self.tend_at(Instant::now()) {
                return error;
            }
            tokio::time::sleep(TEND_EVERY).await;
        }
    }

    /// Room for the next bytes, for a source that can wait: at its rate, and when the disk is
    /// ready; faster as far as uploads leave places. Fill it from its beginning, then tell with
    /// [`Self::advance`].
    ///
    /// # Errors
    /// As [`Self::write`].
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

    /// The first `count` bytes of the space have been filled.
    pub fn advance(&mut self, count: usize) {
        let spare = self.spare.min(count as u64);
        self.spare -= spare;
        self.meter.take(count as u64 - spare);
        self.counts.took(count as u64);
        self.appender.as_mut().expect("only the end takes it").advance(count);
    }

    /// What it is and how far it has come.
    pub fn figures(&self) -> Figures {
        self.counts.figures()
    }

    /// Ends it: all that was taken becomes a title (none when nothing was), and is durable under
    /// its name when this returns. Goes on to its end also when nobody waits; on a disk that hangs,
    /// as long as that does.
    ///
    /// # Errors
    /// When the title is not, or not surely, stored. Where the disk has not failed, the recording
    /// stays until it expires.
    pub async fn finish(mut self) -> Result<Option<Finished>, ResumeError> {
        let stops = || UploadError::Io(std::io::Error::other("the server stops"));
        self.end().await.map_err(|_| stops())?
    }

    fn end(&mut self) -> tokio::task::JoinHandle<Result<Option<Finished>, ResumeError>> {
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

/// How often a recording to which nothing comes is looked after.
const TEND_EVERY: Duration = Duration::from_millis(250);

/// How soon a source that waits hears that it may go on. The promise has 50 ms for it.
const SPACE_EVERY: Duration = Duration::from_millis(10);

impl Drop for Recording {
    fn drop(&mut self) {
        if self.appender.is_some() && tokio::runtime::Handle::try_current().is_ok() {
            drop(self.end());
        }
    }
}

/// Makes a title of what has come.
async fn close(
    store: &Store,
    id: StoreId,
    principal: &Principal,
    mut appender: Appender,
    spill: Vec<u8>,
) -> Result<Option<Finished>, ResumeError> {
    // What there is no room for any more is as good as not taken; the rest is kept all the same.
    let spilled = appender.append(&spill).await;
    if let Err(error) = &spilled {
        tracing::warn!(%error, bytes = spill.len(), "the end of a recording is lost");
    }
    let len = appender.commit().await?;
    name(store, id, principal, len).await
}

async fn name(
    store: &Store,
    id: StoreId,
    principal: &Principal,
    len: u64,
) -> Result<Option<Finished>, ResumeError> {
    if len == 0 {
        store.terminate(&id, principal).await?;
        return Ok(None);
    }
    store.declare(&id, principal, len).await?;
    let finished = store.finish(&id, principal).await?;
    // Nobody asks for it by its identifier.
    forget(store, id, principal).await;
    Ok(Some(finished))
}

async fn forget(store: &Store, id: StoreId, principal: &Principal) {
    if let Err(error) = store.terminate(&id, principal).await {
        tracing::warn!(%error, %id, "a recording's entry stays until it expires");
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
