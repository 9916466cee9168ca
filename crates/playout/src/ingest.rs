//! Live inputs: transport streams over UDP or RTP, recorded as titles.
//!
//! Promise: received packets are checked, put in order and stored, or dropped and counted; the
//! input never waits. A stream can fill only the socket's buffer and a queue of known size. A disk
//! that stalls causes an alarm and a counted gap. The stored bytes of a title are a title also
//! after a crash, see [`tactus_control::recording`].
//!
//! The path of a packet: `session` (socket) → `reception` (`source`, RTP and transport stream of
//! the core) → `cut` → `titles` → store.

mod cut;
mod source;
mod status;

mod reception;

mod retention;

mod titles;

mod session;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_control::recording::Recorder;
use tactus_core::path::RequestPath;
use tactus_engine::message::VolumeId;
use tactus_storage::catalogue::{Catalogue, OpenFault};
use tactus_storage::store::{Principal, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pattern::Pattern;
use crate::recording::Recording;

pub use status::{Alarm, Counts, State, Status};

use session::Session;
use status::StatusCell;

/// All recordings of a server.
#[derive(Clone)]
pub struct Recordings {
    inner: Arc<Inner>,
}

struct Inner {
    catalogue: Arc<Catalogue>,
    /// By volume number; none for a volume that takes no uploads.
    volumes: Arc<[Option<Store>]>,
    recorder: Recorder,
    /// The directories of the volumes.
    roots: Vec<PathBuf>,
    book: Mutex<BTreeMap<String, Entry>>,
    names: Arc<Names>,
}

/// One recording, running or stopped.
struct Entry {
    recording: Recording,
    principal: Principal,
    board: Arc<StatusCell>,
    run: Option<Run>,
}

struct Run {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Names of titles that are being recorded: two titles that begin in one second must not get the
/// same name.
#[derive(Default)]
struct Names(Mutex<HashSet<String>>);

/// Upper bound of the recordings of a server: each has a socket and a queue.
pub const RECORDINGS_MAX: usize = 64;
/// Upper bound of the wait for the last title; only a disk that hangs needs longer.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// Why a recording does not begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// A recording with this name is running.
    #[error("a recording of this name is running; stop it first, or choose another name")]
    Exists,
    /// The limit of recordings is reached.
    #[error("{RECORDINGS_MAX} recordings are known already; delete one")]
    TooMany,
    /// No volume is mounted there, or it takes no uploads.
    #[error("no volume takes uploads at {0}")]
    NoVolume(String),
    /// Another recording has the same title pattern.
    #[error("the recording {0:?} has the same `to`; give each its own")]
    SameTitles(String),
}

impl Recordings {
    /// Without recordings yet; titles go to `volumes`, whose directories are `roots`, both by the
    /// volume numbers of `catalogue`.
    #[must_use]
    pub fn new(
        roots: Vec<PathBuf>,
        catalogue: Arc<Catalogue>,
        volumes: Arc<[Option<Store>]>,
        recorder: Recorder,
    ) -> Self {
        let (book, names) = (Mutex::default(), Arc::default());
        Self { inner: Arc::new(Inner { catalogue, volumes, recorder, roots, book, names }) }
    }

    /// Begins the `configured` recordings, each with its own principal. A recording that cannot
    /// begin is logged; the server serves titles all the same.
    pub fn begin_configured(&self, configured: &[Recording]) {
        for recording in configured {
            let principal = Principal::new(&recording.name);
            if let Err(error) = self.begin(recording.clone(), principal) {
                tracing::error!(recording = recording.name, %error, "it does not begin");
            }
        }
    }

    /// Begins a recording on the account of `principal`. Later failures of its input or its disk
    /// appear in its status, and are retried.
    ///
    /// # Errors
    /// When the recording can never work.
    pub fn begin(&self, recording: Recording, principal: Principal) -> Result<(), BeginError> {
        let target = self.target(&recording.to)?;
        let mut book = self.book();
        if let Some((name, _)) = book
            .iter()
            .find(|(name, known)| **name != recording.name && known.recording.to == recording.to)
        {
            return Err(BeginError::SameTitles(name.clone()));
        }
        match book.get(&recording.name) {
            Some(known) if known.runs() => return Err(BeginError::Exists),
            None if book.len() >= RECORDINGS_MAX => return Err(BeginError::TooMany),
            _ => {}
        }
        let board = Arc::new(StatusCell::new(&recording));
        let (stop, stopping) = watch::channel(false);
        let session = Session {
            recording: recording.clone(),
            principal: principal.clone(),
            target,
            board: Arc::clone(&board),
            names: Arc::clone(&self.inner.names),
        };
        let task = tokio::spawn(session.run(stopping));
        let run = Some(Run { stop, task });
        book.insert(recording.name.clone(), Entry { recording, principal, board, run });
        Ok(())
    }

    /// Begins a stopped recording again; false when no recording has this name.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub fn begin_again(&self, name: &str) -> Result<bool, BeginError> {
        let known = self.book().get(name).map(|e| (e.recording.clone(), e.principal.clone()));
        let Some((recording, principal)) = known else { return Ok(false) };
        self.begin(recording, principal).map(|()| true)
    }

    /// Stops a recording and stores its last title. None when no recording has this name; otherwise
    /// whether everything is stored already, or is still being stored.
    pub async fn stop(&self, name: &str) -> Option<bool> {
        let run = self.book().get_mut(name)?.run.take();
        let Some(mut run) = run else { return Some(true) };
        run.stop.send_replace(true);
        // After the timeout the task continues in the background.
        let ended = tokio::time::timeout(STOP_WAIT, &mut run.task).await.is_ok();
        if !ended && let Some(entry) = self.book().get_mut(name) {
            entry.run.get_or_insert(run);
        }
        Some(ended)
    }

    /// Removes a stopped recording.
    pub fn forget(&self, name: &str) {
        let mut book = self.book();
        if book.get(name).is_some_and(|entry| !entry.runs()) {
            book.remove(name);
        }
    }

    /// The configuration of a recording.
    #[must_use]
    pub fn configured(&self, name: &str) -> Option<Recording> {
        self.book().get(name).map(|entry| entry.recording.clone())
    }

    /// The status of all recordings, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        self.book().values().map(|entry| entry.board.read()).collect()
    }

    /// The status of one recording.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        self.book().get(name).map(|entry| entry.board.read())
    }

    /// Stops all recordings.
    pub async fn close(&self) {
        let names: Vec<String> = self.book().keys().cloned().collect();
        let stopping = names.iter().map(|name| {
            let (this, name) = (self.clone(), name.clone());
            tokio::spawn(async move { this.stop(&name).await })
        });
        let stopping: Vec<_> = stopping.collect();
        for (stop, name) in stopping.into_iter().zip(names) {
            if !matches!(stop.await, Ok(Some(true))) {
                tracing::warn!(recording = name, "its last title is still being stored");
            }
        }
    }

    /// The volume and mount for the titles of `to`.
    fn target(&self, to: &Pattern) -> Result<RecordingVolume, BeginError> {
        let none = || BeginError::NoVolume(to.to_string());
        // Only the directory is known, because the rest has fields: any name in it finds the mount.
        let inside = format!("{}/x", to.directory());
        let url = Pattern::url(inside.trim_start_matches('/'));
        let path = RequestPath::parse(url.as_bytes()).map_err(|_| none())?;
        let (volume, within) = self.inner.catalogue.spot(&path).map_err(|fault: OpenFault| {
            tracing::debug!(%to, %fault, "no place for a recording");
            none()
        })?;
        let at = usize::from(volume.0);
        let store = self.inner.volumes.get(at).cloned().flatten().ok_or_else(none)?;
        let root = self.inner.roots.get(at).cloned().ok_or_else(none)?;
        let inside = inside.trim_start_matches('/');
        let mount = inside[..inside.len() - within.len()].to_owned();
        let recorder = self.inner.recorder.clone();
        Ok(RecordingVolume { store, recorder, volume, root, mount })
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.inner.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn runs(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.task.is_finished())
    }
}

/// A volume, its directory, and the part of a title's path that is its mount.
#[derive(Clone)]
struct RecordingVolume {
    store: Store,
    recorder: Recorder,
    volume: VolumeId,
    root: PathBuf,
    mount: String,
}

impl Names {
    fn claim(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned())
    }

    fn release(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

impl std::fmt::Debug for Recordings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.book().keys()).finish()
    }
}
