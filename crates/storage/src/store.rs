//! The store: uploads, deletions and renames on a volume.
//!
//! Promise: the write protocol of `docs/design/uploads.md`. An answered change is on stable storage
//! under its name. No reader sees a part of an unfinished upload, and a failed upload leaves
//! nothing. The store knows names, lengths and checksums, and no protocol; the [`Medium`] writes
//! the bytes to the device.

mod census;
mod change;
#[cfg(debug_assertions)]
mod deliberate_fault;
mod directory_flushes;
mod due;
mod fault;
mod growing;
mod id;
mod identity;
mod journal;
mod late_removals;
mod medium;
mod metadata;
mod names;
mod publish;
mod quotas;
mod recovery;
mod resume;
mod source;
mod sums;
mod upload;
mod verify;
mod working_file;
mod write_buffer;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tactus_core::units::Bytes;
use tactus_engine::message::VolumeId;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

pub use change::RenameResult;
pub use fault::is_busy;
pub use fault::{ChangeError, NameFault, OpenError, ResumeError, UploadError};
pub use id::{InvalidId, StoreId};
pub use identity::{Identity, IdentityMismatch, KnownIdentities};
pub use medium::{
    Extent, Flush, Medium, Pending, PendingIo, PlainMedium, Reserve, WriteSlot, stopped,
};
pub use metadata::TitleMetadata;
pub use names::{Precondition, ReplacePolicy};
pub use publish::StoredTitle;
pub use quotas::{Account, Limits, Principal, Purpose, QuotaUsage, Reservation};
pub use recovery::{RecoveryReport, check, clear_failed};
pub use resume::{
    Appender, Create, LeftoverUpload, PARTS_MAX, RecordingSpec, Status, UploadReader,
};
pub use source::{Busy, Reading, Source};
pub use sums::{ATTRIBUTE_UNITS_MAX, ChecksumFault, Manifests, Sums, UNIT};
pub use upload::{Upload, UploadSpec};
pub use verify::{Verdict, VerifyError, verify};
pub use working_file::{WorkingDescriptors, WorkingFile, WorkingFileSpec};

use crate::catalogue::Catalogue;

use directory_flushes::DirectoryFlushes;
use due::DueTitles;
use growing::Announcer;
use journal::Journal;
use late_removals::LateRemovals;
use names::{Discard, Names};
use quotas::{Claim, Quotas};
use resume::Sessions;

/// Options of a volume that takes uploads.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The limits of uploads.
    pub limits: Limits,
    /// How long a resumable upload is kept after its last byte.
    pub expiry: Duration,
    /// A title of at most this many [`UNIT`]s keeps its checksums in an attribute of its file,
    /// which needs no flush of its own; at most [`ATTRIBUTE_UNITS_MAX`].
    pub attribute_units: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            expiry: Duration::from_secs(24 * 60 * 60),
            attribute_units: ATTRIBUTE_UNITS_MAX,
        }
    }
}

/// One volume that takes uploads. Clones refer to the same volume.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    names: Arc<Names>,
    medium: Arc<dyn Medium>,
    directories: DirectoryFlushes,
    removals: LateRemovals,
    quotas: Arc<Quotas>,
    journal: Journal,
    sessions: Sessions,
    /// The claims of working files that the next start makes titles of.
    waiting: Mutex<Vec<Claim>>,
    expiry: Duration,
    attribute_units: usize,
    /// Permits for threads that may block on this volume: a disk that hangs holds at most these
    /// threads.
    turns: Arc<Semaphore>,
    /// Permits for paths whose directories are opened for flushing.
    opening: Semaphore,
    /// The catalogue that shows titles while they are uploaded; unset: none.
    audience: OnceLock<Announcer>,
    /// The callback for each title that gets its name.
    named: OnceLock<NameObserver>,
    /// Titles whose checksums are due.
    due: DueTitles,
    /// The callback for each title that gets its checksums after its name.
    summed: OnceLock<SummedObserver>,
    /// The source that reads stored titles at the disk's pace; unset: reads start at once.
    source: OnceLock<Arc<dyn Source>>,
    /// Why the volume accepts no more writes (W9).
    broken: OnceLock<String>,
    /// Whether the census has counted the stored titles.
    counted: watch::Receiver<bool>,
    /// Discarded titles and directories that must be unlinked.
    discards: mpsc::Sender<Discard>,
    /// Background tasks that end when the store closes.
    background: Mutex<Vec<JoinHandle<()>>>,
    /// The expiry task; it ends only when it is aborted.
    clock: OnceLock<JoinHandle<()>>,
}

/// Gets the path of a title within its volume. Must not wait.
type NameObserver = Box<dyn Fn(&str) + Send + Sync>;

/// Gets the file of a title. Must not wait.
type SummedObserver = Box<dyn Fn(&OwnedFd) + Send + Sync>;

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(clock) = self.clock.get() {
            clock.abort();
        }
    }
}

/// Discarded titles that wait to be unlinked. When the queue is full, changes wait for the disk.
const DISCARDS_MAX: usize = 1024;

/// Upper bound of the wait for open work when a store closes; only a disk that hangs needs longer.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// Same number as the threads that look up names for reading.
const TURNS: usize = 64;

impl Store {
    /// The checksums of an open title of this volume; none when it has none. May block.
    ///
    /// # Errors
    /// When its checksums do not fit the title: then the title must not be served.
    pub fn sums_of(&self, title: impl AsFd) -> Result<Option<Arc<Sums>>, ChecksumFault> {
        self.inner.names.own.manifests.sums_of(title)
    }

    /// Makes titles visible in `catalogue` while they are uploaded; this volume is `volume` there.
    pub fn show_unfinished(&self, catalogue: Arc<Catalogue>, volume: VolumeId) {
        // Only the first call takes effect.
        self.inner.audience.set(Announcer { catalogue, volume }).ok();
    }

    /// Calls `told` with the path of each title that gets its name; `told` must not wait.
    pub fn tell_named(&self, told: impl Fn(&str) + Send + Sync + 'static) {
        // Only the first call takes effect.
        self.inner.named.set(Box::new(told)).ok();
    }

    /// Calls `told` with the file of each title that gets its checksums after its name; `told` must
    /// not wait.
    pub fn tell_summed(&self, told: impl Fn(&OwnedFd) + Send + Sync + 'static) {
        // Only the first call takes effect.
        self.inner.summed.set(Box::new(told)).ok();
    }

    /// How many titles wait for their checksums: they are read without comparison.
    #[must_use]
    pub fn checksums_due(&self) -> u64 {
        self.inner.due.count()
    }

    /// Reads stored titles through `source` from now on.
    pub fn read_by(&self, source: Arc<dyn Source>) {
        // Only the first call takes effect.
        self.inner.source.set(source).ok();
    }

    /// Reserves write slots for a recording, whose writes have deadlines.
    pub async fn reserve(&self, what: Reserve) -> Arc<dyn Medium> {
        self.inner.medium.reserve(what).await
    }

    /// The stored and reserved bytes of all principals.
    #[must_use]
    pub fn usage(&self) -> Account {
        self.inner.quotas.all()
    }

    /// The stored and reserved bytes of one principal.
    #[must_use]
    pub fn usage_of(&self, principal: &Principal) -> Account {
        self.inner.quotas.of(principal)
    }

    /// The account of a principal and its reservations, the oldest first, from one moment.
    #[must_use]
    pub fn held(&self, principal: &Principal) -> (Account, Vec<Reservation>) {
        self.inner.quotas.held(principal)
    }

    /// The quota of a principal here and its use.
    ///
    /// # Errors
    /// When the server stops.
    pub async fn room(&self, principal: &Principal) -> std::io::Result<QuotaUsage> {
        self.inner.counted().await;
        let (quotas, principal) = (Arc::clone(&self.inner.quotas), principal.clone());
        self.inner.blocking(move || Ok(quotas.room(&principal))).await
    }

    /// The limits of uploads.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.inner.quotas.limits()
    }

    /// Why the volume accepts no more writes; none while it accepts them.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.inner.broken.get().map(String::as_str)
    }

    /// The place whose size could not be determined, if there is one: uploads with a quota are then
    /// refused.
    #[must_use]
    pub fn uncounted(&self) -> Option<String> {
        self.inner.quotas.uncounted().filter(|_| self.limits().counts_stored())
    }

    /// Refuses all writes from now on, for this reason. Unlike a failed write, this does not mark
    /// the disk.
    pub fn refuse(&self, why: &str) {
        // Only the first reason counts.
        if self.inner.broken.set(why.to_owned()).is_ok() {
            tracing::error!("uploads are refused: {why}");
        }
    }

    /// Ends the background work and closes the volume. Waits at most `CLOSE_WAIT` for open
    /// uploads.
    pub async fn close(self) {
        let tasks = std::mem::take(&mut *lock(&self.inner.background));
        drop(self);
        let ended = async {
            for task in tasks {
                if let Err(error) = task.await {
                    tracing::error!(%error, "a task of the store has failed");
                }
            }
        };
        if tokio::time::timeout(CLOSE_WAIT, ended).await.is_err() {
            tracing::warn!("an upload is still open, and keeps its volume");
        }
    }
}

impl Inner {
    /// Checks that the volume accepts writes.
    fn writable(&self) -> Result<(), UploadError> {
        match self.broken.get() {
            None => Ok(()),
            Some(why) => Err(UploadError::ReadOnly(why.clone())),
        }
    }

    /// Runs `work` beside everything else; a store that closes waits for it.
    fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut background = lock(&self.background);
        background.retain(|task| !task.is_finished());
        background.push(tokio::spawn(work));
    }

    /// The error of an upload whose task ended without an error of its own.
    fn gone_wrong(&self) -> UploadError {
        let stops = || UploadError::Io(io::Error::other("the server stops"));
        self.writable().err().unwrap_or_else(stops)
    }

    /// Closes the volume to writes after a failed write or flush: nothing is retried, and nothing
    /// else is written (W9).
    fn fail(&self, error: io::Error) -> UploadError {
        let first = self.broken.set(error.to_string()).is_ok();
        // A stop of the server also ends all writes, but the next start has no reason to doubt the
        // disk.
        if first && !medium::is_stop(&error) {
            tracing::error!(%error, "a write or flush failed: the volume takes no more uploads");
            let names = Arc::clone(&self.names);
            // No upload waits for the mark: the disk may hang.
            let marking = tokio::task::spawn_blocking(move || recovery::mark_failed(&names));
            lock(&self.background).push(marking);
        }
        UploadError::Io(error)
    }

    /// The error for a failed write or a failed change of a file. A full file system is not broken:
    /// it refused these bytes and lost none, and deletions must still work. A shortage of
    /// descriptors does not mean a broken disk either.
    fn write_failed(&self, error: io::Error) -> UploadError {
        match error {
            error if fault::is_full(&error) => UploadError::NoSpace,
            error if fault::is_busy(&error) => UploadError::Io(error),
            error => self.fail(error),
        }
    }

    /// The error for a failed change of names: only a disk failure closes the volume.
    fn change_failed(&self, error: UploadError) -> UploadError {
        match error {
            UploadError::Io(error) => self.write_failed(error),
            other => other,
        }
    }

    /// Runs `work` on a thread that may block, once a permit is free.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        // The thread itself returns the permit, because the caller may have stopped waiting.
        let work = move || {
            let done = work();
            drop(turn);
            done
        };
        medium::blocking(work).await
    }

    /// Flushes all of `files` and `directories` in one group.
    async fn sync(
        &self,
        files: &[Arc<OwnedFd>],
        directories: &[Arc<OwnedFd>],
    ) -> Result<(), UploadError> {
        let directories = directories.iter().map(|directory| self.directories.file(directory));
        let group: io::Result<Vec<_>> = files.iter().cloned().map(Ok).chain(directories).collect();
        let group = group.map_err(|error| self.fail(error))?;
        let mut result = Ok(());
        for sync in self.medium.sync_all(&group) {
            let synced = sync.await.map_err(|error| self.fail(error));
            result = result.and(synced);
        }
        result
    }

    /// Waits until quotas can be applied.
    async fn counted(&self) {
        if self.quotas.limits().counts_stored() {
            let mut counted = self.counted.clone();
            // The sender lives as long as the store.
            drop(counted.wait_for(|counted| *counted).await);
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("names", &self.names).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A length as the file system reports it.
fn len_of(stat: &rustix::fs::Stat) -> Bytes {
    Bytes(u64::try_from(stat.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests;
