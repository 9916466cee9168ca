//! One volume: opens objects beneath its root only.
//!
//! Promise: at the moment of opening, the kernel itself refuses every way out of the volume
//! (`openat2`: no `..` above the root, no link, no other mount), so no race can lead outside.
//! Opening never blocks: a FIFO or a device is opened without waiting, recognised and closed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tactus_engine::message::VolumeId;
use tokio::sync::Semaphore;

use super::{FileVersion, OpenFault, path_below};

/// Names with this prefix are reserved for the server: unfinished uploads, manifests, trash.
pub(super) const RESERVED_PREFIX: &str = ".tactus";

/// Attempts to open a name when the kernel finds that a rename raced with the lookup.
const TRIES_MAX: usize = 8;

/// Whether a name is reserved for the server. Case does not matter, because the file system may
/// fold it.
pub fn is_reserved(name: &str) -> bool {
    name.get(..RESERVED_PREFIX.len()).is_some_and(|head| head.eq_ignore_ascii_case(RESERVED_PREFIX))
}

/// One disk's directory.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) id: VolumeId,
    /// Its mount, without outer slashes; empty for the root.
    pub(super) mount: String,
    /// Its directory on the host.
    path: PathBuf,
    /// The open directory; replaced when another file system is mounted there.
    root: RwLock<Arc<OwnedFd>>,
    /// For looking up names.
    pub(super) lookups: BlockingLimit,
    /// For finding rates. A probe reads the disk beside the plan, so few may run.
    pub(super) probes: BlockingLimit,
    /// For reading directories, for the same reason.
    pub(super) listings: BlockingLimit,
}

/// A limit on concurrent blocking work on one volume. If a disk hangs, only this many threads hang
/// with it, and other disks keep theirs.
#[derive(Debug)]
pub(super) struct BlockingLimit(Arc<Semaphore>);

impl BlockingLimit {
    fn new(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// Runs `work` on a thread that may block, when a permit is free.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, OpenFault> {
        let turn = tokio::time::timeout(TURN_WAIT, Arc::clone(&self.0).acquire_owned());
        let Ok(Ok(turn)) = turn.await else { return Err(OpenFault::Busy) };
        let work = move || {
            let done = work();
            // The thread itself releases the permit, because the waiting caller may have gone
            // before.
            drop(turn);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| OpenFault::Failed(0))
    }
}

const LOOKUPS_AT_ONCE: usize = 64;
const PROBES_AT_ONCE: usize = 4;
const LISTINGS_AT_ONCE: usize = 2;

/// Upper bound of the wait for a permit. It is longer than many lookups with cold caches take on a
/// spinning disk; after it the disk counts as hanging.
const TURN_WAIT: Duration = Duration::from_secs(10);

/// Whether the thread may wait for the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitPolicy {
    /// Use only names that the kernel has in memory (`RESOLVE_CACHED`).
    Never,
    AsNeeded,
}

/// An object that may be served.
pub(super) enum OpenObject {
    File { file: OwnedFd, version: FileVersion },
    Directory { handle: OwnedFd },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    NotServed,
    /// It exists, but the server lacks the permission to read it.
    Denied,
    /// The names are not in memory; repeat the call on a thread that may wait.
    WouldWait,
    OutOfHandles,
    Failed(Errno),
}

impl Volume {
    pub(super) fn open(id: VolumeId, mount: &str, root: &Path) -> io::Result<Self> {
        let path = root.to_owned();
        let root = open_root(&path)?;
        Ok(Self {
            id,
            mount: mount.to_owned(),
            path,
            root: RwLock::new(Arc::new(root)),
            lookups: BlockingLimit::new(LOOKUPS_AT_ONCE),
            probes: BlockingLimit::new(PROBES_AT_ONCE),
            listings: BlockingLimit::new(LISTINGS_AT_ONCE),
        })
    }

    /// The first name on the way from the directory `path` to this volume, if it is mounted below.
    pub(super) fn below(&self, path: &str) -> Option<&str> {
        let rest = path_below(&self.mount, path)?;
        rest.split('/').next().filter(|name| !name.is_empty())
    }

    /// The prefix of its paths: `/`, or `/name/`.
    pub(super) fn shown_mount(&self) -> String {
        if self.mount.is_empty() { "/".to_owned() } else { format!("/{}/", self.mount) }
    }

    pub(super) fn root(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.root.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the directory again if it differs from the open one and `may` allows it; returns
    /// whether it did.
    pub(super) fn reopen(&self, may: impl FnOnce() -> bool) -> io::Result<bool> {
        let (old, new) = (rustix::fs::fstat(self.root())?, open_root(&self.path)?);
        let now = rustix::fs::fstat(&new)?;
        if (old.st_dev, old.st_ino) == (now.st_dev, now.st_ino) || !may() {
            return Ok(false);
        }
        *self.root.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(true)
    }

    /// Opens `name`, a checked path relative to the root; the root itself if it is empty.
    pub(super) fn open_beneath(&self, name: &str, wait: WaitPolicy) -> Result<OpenObject, Fault> {
        let handle = self.open_raw(name, wait)?;
        let stat = rustix::fs::fstat(&handle).map_err(Fault::Failed)?;
        match file_type(&stat) {
            FileType::RegularFile => {
                Ok(OpenObject::File { version: FileVersion::of(&stat), file: handle })
            }
            FileType::Directory => Ok(OpenObject::Directory { handle }),
            _ => Err(Fault::NotServed),
        }
    }

    fn open_raw(&self, name: &str, wait: WaitPolicy) -> Result<OwnedFd, Fault> {
        // NOCTTY and NONBLOCK: opening a terminal, FIFO or device must have no effect on the
        // server.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let resolve = match wait {
            WaitPolicy::Never => beneath | ResolveFlags::CACHED,
            WaitPolicy::AsNeeded => beneath,
        };
        let path = if name.is_empty() { "." } else { name };
        let root = self.root();
        for _ in 0..TRIES_MAX {
            match rustix::fs::openat2(&*root, path, flags, Mode::empty(), resolve) {
                Ok(handle) => return Ok(handle),
                Err(Errno::AGAIN) if wait == WaitPolicy::Never => return Err(Fault::WouldWait),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(fault(errno)),
            }
        }
        Err(Fault::Failed(Errno::AGAIN))
    }
}

fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Sets the handle to direct reads if its file system supports them, and returns whether it does.
/// In both cases `O_NONBLOCK` is cleared: with it, io_uring would fail a read that has to wait.
pub(super) fn read_past_cache(file: &OwnedFd) -> Result<bool, Fault> {
    if rustix::fs::fcntl_setfl(file, OFlags::DIRECT).is_ok() {
        return Ok(true);
    }
    rustix::fs::fcntl_setfl(file, OFlags::empty()).map_err(Fault::Failed)?;
    Ok(false)
}

/// Where the file begins on its device; zero if its file system does not report it.
pub(super) fn sweep_key(file: &OwnedFd) -> u64 {
    tactus_sys::file::first_position(file).ok().flatten().unwrap_or(0)
}

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Converts a failed opening into a fault for clients. A missing permission, a lack of handles and
/// a failing file system differ from "not found". Nothing is revealed about files outside of the
/// volume.
fn fault(errno: Errno) -> Fault {
    match errno {
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::XDEV
        | Errno::NXIO
        | Errno::NODEV
        | Errno::NAMETOOLONG
        | Errno::INVAL
        | Errno::ILSEQ
        | Errno::OPNOTSUPP
        | Errno::BUSY
        | Errno::TXTBSY => Fault::NotServed,
        Errno::ACCESS | Errno::PERM => Fault::Denied,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Fault::OutOfHandles,
        errno => Fault::Failed(errno),
    }
}
