//! Opening a volume: its directories, its lock, and what the last run left.
//!
//! Promise: when it returns, nothing of an unfinished change is left that anybody could see, and no
//! other server writes to this volume. What takes long follows in the background.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Dir, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use tokio::sync::{mpsc, watch};

use super::fault::OpenError;
use super::ledger::Ledger;
use super::medium::{Medium, blocking};
use super::names::{Aside, Names, Own, open_beneath};
use super::sums::{self, ASIDE, Manifests};
use super::{DISCARDS_MAX, Inner, Store, StoreOptions};
use crate::config::RESERVED;

/// What opening a volume found, for the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Files that were no title's and no upload's any more.
    pub strays: usize,
    /// How long it took.
    pub took: Duration,
}

impl Store {
    /// Takes the volume at `root`, and brings it into order.
    ///
    /// # Errors
    /// When it cannot take uploads.
    pub async fn open(
        root: &Path,
        medium: Arc<dyn Medium>,
        options: StoreOptions,
    ) -> Result<(Self, Opened), OpenError> {
        let begun = Instant::now();
        let path = root.to_owned();
        let prepared = tokio::task::spawn_blocking(move || prepare(&path)).await;
        let prepared = prepared.map_err(|error| OpenError::Failed {
            root: root.to_owned(),
            what: "the directory",
            error: error.into(),
        })??;
        let names = Arc::new(prepared);
        let failed = |error| OpenError::Failed { root: root.to_owned(), what: "the stage", error };
        let stage = Arc::clone(&names);
        let strays = blocking(move || clear_stage(&stage)).await.map_err(failed)?;

        let ledger = Ledger::new(options.limits, Arc::clone(&names.root));
        let (discards, queue) = mpsc::channel(DISCARDS_MAX);
        let (counting, counted) = watch::channel(false);
        let inner = Arc::new(Inner {
            names: Arc::clone(&names),
            medium,
            ledger: Arc::clone(&ledger),
            broken: OnceLock::new(),
            counted,
            discards,
            background: Mutex::default(),
        });
        let tasks = [
            tokio::spawn(sweep(Arc::clone(&names), queue)),
            tokio::spawn(super::census::take(names, ledger, counting)),
        ];
        super::lock(&inner.background).extend(tasks);
        Ok((Self { inner }, Opened { strays, took: begun.elapsed() }))
    }
}

const PRIVATE: Mode = Mode::RWXU;

/// Makes and opens what is ours, and takes the lock.
fn prepare(root: &Path) -> Result<Names, OpenError> {
    let failed = |what: &'static str| {
        move |error: Errno| OpenError::Failed { root: root.to_owned(), what, error: error.into() }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(CWD, root, flags, Mode::empty());
    let open = Arc::new(open.map_err(failed("the directory"))?);
    let made = make_directory(&open, RESERVED).map_err(failed(RESERVED))?;
    let top = Arc::new(made);
    match rustix::fs::flock(&top, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse(root.to_owned())),
        Err(errno) => return Err(failed("the lock")(errno)),
    }
    check_attributes(&top, root)?;
    let below = |name: &'static str| make_directory(&top, name).map_err(failed(name));
    let sums = below("sums")?;
    let (uploads, stage, trash) = (below("uploads")?, below("stage")?, below("trash")?);
    for first in 0..=0xff {
        make_directory(&sums, &format!("{first:02x}")).map_err(failed("sums"))?;
    }
    make_directory(&sums, ASIDE).map_err(failed("sums"))?;
    // Their own names must last longer than anything in them.
    for directory in [&sums, &*top, &*open] {
        rustix::fs::fsync(directory).map_err(failed("a directory's flush"))?;
    }
    let own =
        Own { top, uploads: Arc::new(uploads), stage, trash, manifests: Manifests::within(sums) };
    Ok(Names::new(open, own))
}

fn make_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Tries an attribute on a file that is gone at once.
fn check_attributes(top: &Arc<OwnedFd>, root: &Path) -> Result<(), OpenError> {
    let name = format!("probe.{}", std::process::id());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let tried = rustix::fs::openat(top, &name, flags, Mode::RUSR | Mode::WUSR).and_then(|probe| {
        let set = rustix::fs::fsetxattr(&probe, sums::ATTRIBUTE, b"probe", XattrFlags::empty());
        rustix::fs::unlinkat(top, &name, rustix::fs::AtFlags::empty())?;
        set
    });
    match tried {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP) => Err(OpenError::NoAttributes(root.to_owned())),
        Err(errno) => {
            let (root, error) = (root.to_owned(), errno.into());
            Err(OpenError::Failed { root, what: "a file", error })
        }
    }
}

/// The names in one of our directories.
pub(super) fn list(directory: impl AsFd) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            found.push(name.into_owned());
        }
    }
    Ok(found)
}

/// What is on the stage was between two names: what was to be named was not answered, what was
/// replaced is not wanted.
fn clear_stage(names: &Names) -> std::io::Result<usize> {
    let strays = list(&names.own.stage)?;
    if !strays.is_empty() {
        // The swap that put them here must be durable before what it left is taken away.
        rustix::fs::syncfs(&names.root)?;
    }
    for name in &strays {
        names.erase_named(Aside::Stage, name)?;
    }
    Ok(strays.len())
}

/// Unlinks what has been discarded, one after the other: first what the last run has left.
async fn sweep(names: Arc<Names>, mut queue: mpsc::Receiver<(Aside, super::StoreId)>) {
    let trash = Arc::clone(&names);
    let emptied = blocking(move || {
        let left = list(&trash.own.trash)?;
        if !left.is_empty() {
            rustix::fs::syncfs(&trash.root)?;
        }
        for name in left {
            trash.erase_named(Aside::Trash, &name)?;
        }
        Ok(())
    });
    if let Err(error) = emptied.await {
        tracing::warn!(%error, "the trash cannot be emptied");
    }
    while let Some(place) = queue.recv().await {
        let names = Arc::clone(&names);
        if let Err(error) = blocking(move || names.erase(place)).await {
            tracing::warn!(%error, "a deleted title cannot be unlinked; the next start tries again");
        }
    }
}
