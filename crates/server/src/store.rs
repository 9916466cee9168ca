//! The store: how uploads, deletions and renames get onto a volume, and are never lost afterwards.
//!
//! Promise: the write protocol of `docs/design/uploads.md`. What is answered as done is on stable
//! storage under its name; nobody sees a part of it before; what fails leaves nothing. It knows names,
//! lengths and checksums, and no protocol; how bytes get to the device is the [`Medium`]'s.

mod census;
mod change;
#[cfg(debug_assertions)]
mod deliberate_fault;
mod fault;
mod group_commit;
mod growing;
mod id;
mod identity;
mod journal;
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
mod write_buffer;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tactus_core::units::Bytes;
use tactus_engine::message::VolumeId;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

pub use change::Renamed;
pub(crate) use fault::is_busy;
pub use fault::{ChangeError, NameFault, OpenError, ResumeError, UploadError};
pub use id::{InvalidId, StoreId};
pub use identity::{Identity, IdentityMismatch, KnownIdentities};
pub use medium::{
    Extent, Flush, Medium, Pending, PendingIo, PlainMedium, Reserve, WriteSlot, stopped,
};
pub use metadata::TitleMetadata;
pub use names::{Over, Precondition};
pub use publish::StoredTitle;
pub use quotas::{Account, Limits, Principal, Purpose, QuotaUsage, Reservation};
pub use recovery::{RecoveryReport, check, clear_failed};
pub use resume::{Appender, Create, LeftoverUpload, PARTS_MAX, RecordingSpec, Status};
pub use source::{Busy, Reading, Source};
pub use sums::{ATTRIBUTE_UNITS_MAX, Damaged, Manifests, Sums, UNIT};
pub use upload::{Upload, UploadSpec};
pub use verify::{Verdict, VerifyError, verify};

use crate::catalogue::Catalogue;

use group_commit::GroupCommit;
use growing::Announcer;
use journal::Journal;
use names::{Discard, Names};
use quotas::Quotas;
use resume::Sessions;

/// How a volume takes uploads.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// What uploads may take.
    pub limits: Limits,
    /// How long an upload that can be resumed is kept after its last byte.
    pub expiry: Duration,
    /// A title of so many [`UNIT`]s keeps its checksums in an attribute of its file, which costs no flush
    /// of its own; at most [`ATTRIBUTE_UNITS_MAX`].
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

/// One volume that takes uploads. Clones are the same volume.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    names: Arc<Names>,
    medium: Arc<dyn Medium>,
    directories: Arc<GroupCommit>,
    quotas: Arc<Quotas>,
    journal: Journal,
    sessions: Sessions,
    expiry: Duration,
    attribute_units: usize,
    /// Threads that may block for this volume: when its disk hangs, so many hang with it.
    turns: Arc<Semaphore>,
    /// Permits for paths whose directories are opened for flushing.
    opening: Semaphore,
    /// Who may read titles that come in; nobody: nobody.
    audience: OnceLock<Announcer>,
    /// Who is told of titles that have got their names.
    named: OnceLock<Named>,
    /// How what is stored is read; none: at once.
    source: OnceLock<Arc<dyn Source>>,
    /// Why nothing is written any more (W9).
    broken: OnceLock<String>,
    /// Whether what is stored has been counted.
    counted: watch::Receiver<bool>,
    /// What lies aside and is to be unlinked.
    discards: mpsc::Sender<Discard>,
    /// End when the store does.
    background: Mutex<Vec<JoinHandle<()>>>,
    /// Ends only when it is told to.
    clock: OnceLock<JoinHandle<()>>,
}

/// Is told the path of a title within its volume. Must not wait.
type Named = Box<dyn Fn(&str) + Send + Sync>;

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(clock) = self.clock.get() {
            clock.abort();
        }
    }
}

/// Discarded titles that wait to be unlinked; then changes wait for the disk.
const DISCARDS_MAX: usize = 1024;

/// What is under way when a store closes ends sooner, unless the disk hangs.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// As many as look up names for reading.
const TURNS: usize = 64;

impl Store {
    /// The checksums of a title of this volume that is open for reading; none when it has none. May
    /// block.
    ///
    /// # Errors
    /// When it has some that do not fit: then it must not be served.
    pub fn sums_of(&self, title: impl AsFd) -> Result<Option<Arc<Sums>>, Damaged> {
        self.inner.names.own.manifests.sums_of(title)
    }

    /// From now on titles can be found in `catalogue`, where this is volume `volume`, while they come in.
    pub fn show_unfinished(&self, catalogue: Arc<Catalogue>, volume: VolumeId) {
        // Told twice: the first one has it.
        self.inner.audience.set(Announcer { catalogue, volume }).ok();
    }

    /// From now on `told` hears of each title that has got its name, by its path; it must not wait.
    pub fn tell_named(&self, told: impl Fn(&str) + Send + Sync + 'static) {
        // Told twice: the first one hears.
        self.inner.named.set(Box::new(told)).ok();
    }

    /// From now on what has to be read of it is read by `source`.
    pub fn read_by(&self, source: Arc<dyn Source>) {
        // Told twice: the first one has it.
        self.inner.source.set(source).ok();
    }

    /// So many places of its own for a recording, whose writes have deadlines.
    pub async fn reserve(&self, what: Reserve) -> Arc<dyn Medium> {
        self.inner.medium.reserve(what).await
    }

    /// What all principals have stored and reserved.
    #[must_use]
    pub fn usage(&self) -> Account {
        self.inner.quotas.all()
    }

    /// What one principal has.
    #[must_use]
    pub fn usage_of(&self, principal: &Principal) -> Account {
        self.inner.quotas.of(principal)
    }

    /// What a principal has, and for what room is held, the oldest first: one look at both.
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

    /// What uploads may take.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.inner.quotas.limits()
    }

    /// Why nothing is written any more; nothing while all is well.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.inner.broken.get().map(String::as_str)
    }

    /// The place whose size could not be determined, if there is one: uploads with a quota are
    /// refused then.
    #[must_use]
    pub fn uncounted(&self) -> Option<String> {
        self.inner.quotas.uncounted().filter(|_| self.limits().counts_stored())
    }

    /// Refuses all writes from now on, for this reason; unlike after a failed write, the disk is
    /// not marked.
    pub fn refuse(&self, why: &str) {
        // Only the first reason counts.
        if self.inner.broken.set(why.to_owned()).is_ok() {
            tracing::error!("uploads are refused: {why}");
        }
    }

    /// Ends the work in the background and lets the volume go. An upload that is open keeps it:
    /// that is waited for a while, no longer.
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
    /// Whether anything may be written.
    fn writable(&self) -> Result<(), UploadError> {
        match self.broken.get() {
            None => Ok(()),
            Some(why) => Err(UploadError::ReadOnly(why.clone())),
        }
    }

    /// Why something that belongs to an upload has ended without a word of its own.
    fn gone_wrong(&self) -> UploadError {
        let stops = || UploadError::Io(io::Error::other("the server stops"));
        self.writable().err().unwrap_or_else(stops)
    }

    /// A write or flush has failed: it is never tried again, and nothing else is tried either (W9).
    fn fail(&self, error: io::Error) -> UploadError {
        let first = self.broken.set(error.to_string()).is_ok();
        // Nothing more is written then either, but the next start need not doubt the disk.
        if first && !medium::is_stop(&error) {
            tracing::error!(%error, "a write or flush failed: the volume takes no more uploads");
            let names = Arc::clone(&self.names);
            // No upload waits for it: the disk may hang.
            let marking = tokio::task::spawn_blocking(move || recovery::mark_failed(&names));
            lock(&self.background).push(marking);
        }
        UploadError::Io(error)
    }

    /// What a failed write means, or a failed change of a file. A full file system is not a broken
    /// one: it has refused these bytes and lost none, and deletions must go on. Nor is one that
    /// cannot be asked because too many files are open.
    fn write_failed(&self, error: io::Error) -> UploadError {
        match error {
            error if fault::is_full(&error) => UploadError::NoSpace,
            error if fault::is_busy(&error) => UploadError::Io(error),
            error => self.fail(error),
        }
    }

    /// What a failed change of names means: only a failing disk concerns the others.
    fn change_failed(&self, error: UploadError) -> UploadError {
        match error {
            UploadError::Io(error) => self.write_failed(error),
            other => other,
        }
    }

    /// Runs `work` on a thread that may block, when it is its turn.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        // Given back by the thread itself: whoever waited may have gone before.
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
        let files = files.iter().map(|file| self.medium.sync(file, Flush::All));
        let directories = directories.iter().map(|directory| self.directories.sync(directory));
        let begun: Vec<_> = files.chain(directories).collect();
        let mut result = Ok(());
        for sync in begun {
            let synced = sync.await.map_err(|error| self.fail(error));
            result = result.and(synced);
        }
        result
    }

    /// Waits until quotas can be held.
    async fn counted(&self) {
        if self.quotas.limits().counts_stored() {
            let mut counted = self.counted.clone();
            // The one who counts is gone only when the store is.
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

/// A length as the file system has it.
fn len_of(stat: &rustix::fs::Stat) -> Bytes {
    Bytes(u64::try_from(stat.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests;
