//! Live inputs: transport streams that come by UDP or RTP, recorded as titles.
//!
//! Promise: what comes is checked, put in order and stored, or dropped and counted, never waited for: the
//! socket's buffer and a queue of known size are all that a stream can fill. A disk that stalls costs an
//! alarm and a counted gap. What has come of a title is one also after a crash, see [`crate::recording`].
//!
//! The way of a packet: `session` (socket) → `reception` (`source`, RTP and transport stream of the core)
//! → `cut` → `titles` → store.

mod cut;
mod source;
mod status;

mod reception;

mod retention;

mod titles;

mod session;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz_targets;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_core::path::RequestPath;
use tactus_engine::message::VolumeId;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use status::{Alarm, Counts, State, Status};

use crate::catalogue::{Catalogue, OpenFault};
use crate::config::Config;
use crate::config::pattern::Pattern;
use crate::config::recording::Recording;
use crate::recording::Recorder;
use crate::store::{Principal, Store};

use session::Session;
use status::StatusCell;

/// All recordings of a server.
#[derive(Clone)]
pub struct Recordings {
    inner: Arc<Inner>,
}

struct Inner {
    catalogue: Arc<Catalogue>,
    /// By the numbers of the volumes; none where nothing is taken.
    volumes: Arc<[Option<Store>]>,
    recorder: Recorder,
    /// Their directories.
    roots: Vec<PathBuf>,
    book: Mutex<BTreeMap<String, Entry>>,
    names: Arc<Names>,
}

/// One recording, running or not.
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

/// Names of titles that are being recorded: two titles of one second must not want the same.
#[derive(Default)]
struct Names(Mutex<HashSet<String>>);

/// Recordings that may be known at once: each has a socket and a queue.
pub const RECORDINGS_MAX: usize = 64;
/// What is being stored at the end is waited for so long, unless the disk hangs.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// Why a recording does not begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// One of this name runs.
    #[error("a recording of this name is running; stop it first, or choose another name")]
    Exists,
    /// There are too many.
    #[error("{RECORDINGS_MAX} recordings are known already; delete one")]
    TooMany,
    /// No volume is mounted there, or it takes nothing.
    #[error("no volume takes uploads at {0}")]
    NoVolume(String),
    /// Another one makes the same titles.
    #[error("the recording {0:?} has the same `to`; give each its own")]
    SameTitles(String),
}

impl Recordings {
    /// None yet; titles go to `volumes`, which are those of `config` and `catalogue` by their numbers.
    #[must_use]
    pub fn new(
        config: &Config,
        catalogue: Arc<Catalogue>,
        volumes: Arc<[Option<Store>]>,
        recorder: Recorder,
    ) -> Self {
        let roots = config.volumes.iter().map(|volume| volume.path.clone()).collect();
        let (book, names) = (Mutex::default(), Arc::default());
        Self { inner: Arc::new(Inner { catalogue, volumes, recorder, roots, book, names }) }
    }

    /// Begins those of `config`, each on its own account. What cannot begin is logged: titles are served all
    /// the same.
    pub fn begin_configured(&self, config: &Config) {
        for recording in &config.recordings {
            let principal = Principal::new(&recording.name);
            if let Err(error) = self.begin(recording.clone(), principal) {
                tracing::error!(recording = recording.name, %error, "it does not begin");
            }
        }
    }

    /// Begins a recording, on the account of `principal`. What its input or its disk refuses later is told
    /// by its status, and tried again.
    ///
    /// # Errors
    /// When it can never work.
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

    /// Begins one again that has been stopped; false when there is none of this name.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub fn begin_again(&self, name: &str) -> Result<bool, BeginError> {
        let known = self.book().get(name).map(|e| (e.recording.clone(), e.principal.clone()));
        let Some((recording, principal)) = known else { return Ok(false) };
        self.begin(recording, principal).map(|()| true)
    }

    /// Ends a recording: its last title is stored. None when there is none of this name; else whether all
    /// is stored already, or still being stored.
    pub async fn stop(&self, name: &str) -> Option<bool> {
        let run = self.book().get_mut(name)?.run.take();
        let Some(mut run) = run else { return Some(true) };
        run.stop.send_replace(true);
        // Not in time: it goes on by itself.
        let ended = tokio::time::timeout(STOP_WAIT, &mut run.task).await.is_ok();
        if !ended && let Some(entry) = self.book().get_mut(name) {
            entry.run.get_or_insert(run);
        }
        Some(ended)
    }

    /// Forgets a recording that does not run.
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

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        self.book().values().map(|entry| entry.board.read()).collect()
    }

    /// One of them.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        self.book().get(name).map(|entry| entry.board.read())
    }

    /// Ends all of them.
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

    /// Where titles of `to` belong.
    fn target(&self, to: &Pattern) -> Result<Target, BeginError> {
        let none = || BeginError::NoVolume(to.to_string());
        // The directory, as the rest has fields in it: a name that could be in it stands for all.
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
        Ok(Target { store, recorder, volume, root, mount })
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

/// A volume, its directory, and what of a title's path is its mount.
#[derive(Clone)]
struct Target {
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
