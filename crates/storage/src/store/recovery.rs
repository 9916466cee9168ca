//! Opening a volume: its directories, its lock, and the leftovers of the last run.
//!
//! Promise: after opening, no unfinished change is visible, every upload has the journal's offset,
//! and no other server writes to this volume. Longer work follows in the background.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    Access, AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, Stat, XattrFlags,
};
use rustix::io::Errno;
use tactus_media::RESERVED;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::directory_flushes::DirectoryFlushes;
use super::due;
use super::fault::OpenError;
use super::id::StoreId;
use super::journal::{self, CreationRecord, Journal, Record, Table};
use super::late_removals::LateRemovals;
use super::medium::{Medium, blocking};
use super::names::{
    Discard, EraseResult, Names, Precondition, PrivateDirectory, PrivateFiles, QuotaEntry,
    TitleName, list, open_beneath,
};
use super::publish::OPENING_MAX;
use super::quotas::{Principal, Purpose, Quotas};
use super::resume::Sessions;
use super::sums::{self, ASIDE, ATTRIBUTE_UNITS_MAX, DUE, Manifests};
use super::working_file::{self, LeftoverFile};
use super::{DISCARDS_MAX, Inner, Store, StoreOptions, TURNS};

/// The results of opening a volume, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Uploads that can be resumed.
    pub uploads: usize,
    /// Complete uploads that get their names now.
    pub unnamed: usize,
    /// Uploads that were cut to the journal's offset.
    pub cut: usize,
    /// Uploads with fewer bytes than the journal's offset: the disk has lost acknowledged writes.
    pub lost: usize,
    /// Sectors of the journal that were torn or damaged. One or two are normal after a power
    /// failure.
    pub journal_skipped: u64,
    /// Files that programs were writing, and that get their names now.
    pub working: usize,
    /// Files that belonged to no title and no upload.
    pub strays: usize,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uploads, unnamed, cut, lost, journal_skipped, working, strays, took } = self;
        write!(f, "{uploads} open uploads, {cut} of them cut to what was acknowledged, ")?;
        write!(f, "{unnamed} complete ones to be named, {lost} lost, ")?;
        write!(f, "{working} written files to be named, {strays} strays removed, ")?;
        write!(f, "{journal_skipped} sectors of the journal skipped; ready after {took:.0?}")
    }
}

impl Store {
    /// Opens the volume at `root` and repairs it.
    ///
    /// # Errors
    /// When it cannot take uploads.
    pub async fn open(
        root: &Path,
        medium: Arc<dyn Medium>,
        options: StoreOptions,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_and_count(root, medium, options, std::future::ready(())).await
    }

    /// The same; the census begins after `count_after`.
    pub(super) async fn open_and_count(
        root: &Path,
        medium: Arc<dyn Medium>,
        options: StoreOptions,
        count_after: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let begun = Instant::now();
        #[cfg(debug_assertions)]
        let medium = super::deliberate_fault::medium(medium);
        let failed = |what: &'static str| {
            move |error| OpenError::Failed { root: root.to_owned(), what, error }
        };
        let path = root.to_owned();
        let prepared = blocking(move || Ok(prepare(&path))).await;
        let names = Arc::new(prepared.map_err(failed("the directory"))??);
        let this = Arc::clone(&names);
        let left = blocking(move || {
            let (working, other) = working_file::leftovers(&this)?;
            let strays = clear_stage(&this)? + other;
            let replayed = journal::read(&this.own.top)?;
            #[cfg(debug_assertions)]
            let replayed = super::deliberate_fault::offsets(&this, replayed);
            Ok(Leftovers { strays, working, ..Leftovers::sort(&this, replayed)? })
        });
        let left = left.await.map_err(failed("what the last run left"))?;
        let Leftovers { uploads, unnamed, cut, lost, strays, unwanted, skipped, .. } = left;
        let Leftovers { mut table, working, .. } = left;
        let expiry = options.expiry;
        table.keep_at_most(options.limits.uploads_max as usize * FORGET_BEYOND);
        let begin = Journal::begin(Arc::clone(&names), Arc::clone(&medium), table).await;
        let (journal, keeper) = begin.map_err(failed("the journal"))?;
        // Only after the journal has forgotten these uploads: a complete upload without data would
        // be taken for a named one.
        let this = Arc::clone(&names);
        let strays = blocking(move || {
            for name in &unwanted {
                let (from, to, flags) = (&this.own.uploads, &this.own.trash, RenameFlags::empty());
                rustix::fs::renameat_with(from, name, to, name, flags)?;
            }
            Ok(strays + unwanted.len())
        });
        let strays = strays.await.map_err(failed("what no upload has"))?;

        let quotas = Quotas::new(options.limits, Arc::clone(&names.root));
        let sessions = Sessions::default();
        let opened = RecoveryReport {
            uploads: uploads.len(),
            unnamed: unnamed.len(),
            cut,
            lost,
            journal_skipped: skipped,
            working: working.len(),
            strays,
            took: begun.elapsed(),
        };
        for upload in uploads {
            let ResumableUpload { id, path, principal, reserved, on_disk } = upload;
            let purpose = Purpose { path, id: Some(id) };
            sessions.add(id, quotas.restore(&principal, purpose, reserved, on_disk), false);
        }
        let (discards, queue) = mpsc::channel(DISCARDS_MAX);
        let (counting, counted) = watch::channel(false);
        let (due, due_titles) = due::queue();
        let found = due.queue();
        let inner = Arc::new(Inner {
            names: Arc::clone(&names),
            directories: DirectoryFlushes::default(),
            removals: LateRemovals::default(),
            medium,
            quotas: Arc::clone(&quotas),
            journal,
            sessions,
            waiting: Mutex::default(),
            expiry,
            attribute_units: options.attribute_units.min(ATTRIBUTE_UNITS_MAX),
            turns: Arc::new(Semaphore::new(TURNS)),
            opening: Semaphore::new(OPENING_MAX),
            audience: OnceLock::new(),
            named: OnceLock::new(),
            due,
            summed: OnceLock::new(),
            source: OnceLock::new(),
            broken: OnceLock::new(),
            counted,
            discards,
            background: Mutex::default(),
            clock: OnceLock::new(),
        });
        let store = Self { inner };
        let tasks = [
            tokio::spawn(keeper),
            tokio::spawn(sweep(Arc::clone(&names), Arc::clone(&quotas), queue)),
            tokio::spawn(async move {
                count_after.await;
                super::census::take(names, quotas, counting, found).await;
            }),
            tokio::spawn(store.clone().name(unnamed)),
            tokio::spawn(store.clone().name_working_files(working)),
            tokio::spawn(due::make_all(Arc::downgrade(&store.inner), due_titles)),
        ];
        super::lock(&store.inner.background).extend(tasks);
        let clock = tokio::spawn(tell_time(Arc::downgrade(&store.inner)));
        store.inner.clock.set(clock).expect("nobody else sets it");
        Ok((store, opened))
    }

    /// Names the uploads that were complete when the last run ended: their clients may already know
    /// that.
    async fn name(self, unnamed: Vec<(StoreId, Principal)>) {
        for (id, principal) in unnamed {
            if let Err(error) = self.finish(&id, &principal).await {
                tracing::warn!(%error, %id, "a complete upload has no name");
            }
        }
    }
}

/// Finished uploads that are remembered for their clients, as a multiple of the limit of open
/// uploads.
const FORGET_BEYOND: usize = 10;

/// The uploads after comparing the journal with the directory of uploads.
#[derive(Default)]
struct Leftovers {
    table: Table,
    uploads: Vec<ResumableUpload>,
    unnamed: Vec<(StoreId, Principal)>,
    cut: usize,
    lost: usize,
    strays: usize,
    /// Files that programs were writing.
    working: Vec<LeftoverFile>,
    /// Files without an upload.
    unwanted: Vec<String>,
    skipped: u64,
}

/// An upload that continues.
struct ResumableUpload {
    id: StoreId,
    path: Option<String>,
    principal: Principal,
    reserved: u64,
    on_disk: u64,
}

/// What happens to an upload of the last run.
enum Fate {
    /// It continues with this file, or has no file yet.
    Goes(Option<Stat>),
    /// It has its name, and its client may not know. Names that had not been flushed are flushed by
    /// now.
    Named,
    /// It is given up.
    Lost,
}

impl Leftovers {
    fn sort(names: &Names, replayed: journal::Replay) -> std::io::Result<Self> {
        let mut left = Self { skipped: replayed.skipped, ..Self::default() };
        let uploads = &names.own.uploads;
        left.unwanted = list(uploads)?;
        let (mut verdicts, mut kept) = (Vec::new(), HashSet::new());
        for (&id, entry) in replayed.table.entries().filter(|(_, entry)| entry.named.is_none()) {
            let (offset, principal) = (entry.mark.len, entry.created.principal.clone());
            let complete = entry.is_complete() && entry.created.path.is_some();
            let stat = match rustix::fs::statat(uploads, id.to_string(), AtFlags::SYMLINK_NOFOLLOW)
            {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno.into()),
            };
            let fate = match stat {
                // The upload's own name is removed only after the title's name is durable.
                None if complete && offset > 0 => Fate::Named,
                None if offset > 0 => Fate::Lost,
                Some(stat) if super::len_of(&stat).0 < offset => Fate::Lost,
                // The title is visible, hence whole, and may be replaced soon. It is not named
                // again. The census counts it as stored, so it is not counted as an upload.
                Some(stat) if complete && has_its_name(names, &entry.created, &stat)? => {
                    Fate::Named
                }
                // The file is already a title: it must not be cut, whatever the journal says.
                Some(stat) if stat.st_nlink > 1 && !complete => Fate::Lost,
                stat => Fate::Goes(stat),
            };
            match fate {
                Fate::Goes(stat) => {
                    if let Some(stat) = stat {
                        if super::len_of(&stat).0 > offset {
                            cut(names, &id.to_string(), offset)?;
                            left.cut += 1;
                        }
                        kept.insert(id.to_string());
                    }
                    let on_disk =
                        stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
                    let reserved = entry.len.unwrap_or(offset);
                    // The blocks beyond the offset were just freed.
                    let on_disk = on_disk.min(offset);
                    if complete {
                        left.unnamed.push((id, principal.clone()));
                    }
                    let path = entry.created.path.clone();
                    left.uploads.push(ResumableUpload { id, path, principal, reserved, on_disk });
                }
                Fate::Named => verdicts.push(Record::Named { id, etag: String::new() }),
                Fate::Lost => {
                    left.lost += 1;
                    verdicts.push(Record::Gone { id });
                }
            }
        }
        left.unwanted.retain(|name| !kept.contains(name));
        left.table = replayed.table;
        for verdict in verdicts {
            left.table.apply(verdict);
        }
        Ok(left)
    }
}

/// Whether the title at the upload's path is this file. If so, its name is durable afterwards.
fn has_its_name(names: &Names, created: &CreationRecord, data: &Stat) -> std::io::Result<bool> {
    let name = created.path.as_deref().and_then(|path| TitleName::new(path).ok());
    let Some(name) = name.filter(|_| data.st_nlink > 1) else { return Ok(false) };
    let Ok(Some(title)) = names.look(&name, &Precondition::Any) else { return Ok(false) };
    if title.st_ino != data.st_ino {
        return Ok(false);
    }
    names.flush_name(&name).map_err(std::io::Error::other)?;
    Ok(true)
}

/// Cuts off bytes that were never acknowledged.
fn cut(names: &Names, name: &str, offset: u64) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&names.own.uploads, name, flags, Mode::empty())?;
    rustix::fs::ftruncate(file, offset)
}

/// Gives up expired uploads, once a minute.
async fn tell_time(store: std::sync::Weak<Inner>) {
    let mut minutes = tokio::time::interval(Duration::from_secs(60));
    minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        minutes.tick().await;
        let Some(inner) = store.upgrade() else { return };
        if inner.writable().is_err() {
            continue;
        }
        match inner.expire(SystemTime::now()).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "uploads have expired"),
            Err(error) => tracing::warn!(%error, "uploads that have expired cannot be given up"),
        }
    }
}

const PRIVATE: Mode = Mode::RWXU;

/// Makes and opens the server's own directories, and takes the lock.
pub(super) fn prepare(root: &Path) -> Result<Names, OpenError> {
    let failed = |what: &'static str| {
        move |error: Errno| match error {
            Errno::ROFS => OpenError::ReadOnly(root.to_owned()),
            error => OpenError::Failed { root: root.to_owned(), what, error: error.into() },
        }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(CWD, root, flags, Mode::empty());
    let open = Arc::new(open.map_err(failed("the directory"))?);
    let mark = format!("{RESERVED}/{FAILED}");
    if rustix::fs::statat(&*open, mark, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(OpenError::Unchecked(root.to_owned()));
    }
    let made = make_directory(&open, RESERVED).map_err(failed(RESERVED))?;
    let top = Arc::new(made);
    match rustix::fs::flock(&top, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse(root.to_owned())),
        Err(errno) => return Err(failed("the lock")(errno)),
    }
    let own = check_attributes(&top, root)?;
    keep_private(&top, &open, own, root)?;
    let below = |name: &'static str| make_directory(&top, name).map_err(failed(name));
    let sums = below("sums")?;
    let (uploads, stage, trash) = (below("uploads")?, below("stage")?, below("trash")?);
    let working = Arc::new(below("working")?);
    for first in 0..=0xff {
        make_directory(&sums, &format!("{first:02x}")).map_err(failed("sums"))?;
    }
    for name in [ASIDE, DUE] {
        make_directory(&sums, name).map_err(failed("sums"))?;
    }
    // Their own names must be durable before anything is stored in them.
    for directory in [&sums, &*top, &*open] {
        rustix::fs::fsync(directory).map_err(failed("a directory's flush"))?;
    }
    let own = PrivateFiles {
        top,
        uploads: Arc::new(uploads),
        stage,
        trash,
        working,
        manifests: Manifests::within(sums),
    };
    Ok(Names::new(open, own))
}

/// Whether the volume at `root` could accept uploads, as far as that can be checked without
/// changes. A volume that another server uses, and a read-only one, pass.
///
/// # Errors
/// When it cannot accept uploads.
pub fn check(root: &Path) -> Result<(), OpenError> {
    let failed = |what: &'static str, errno: Errno| OpenError::Failed {
        root: root.to_owned(),
        what,
        error: errno.into(),
    };
    let writable =
        |path: &Path, what| match rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) | Err(Errno::ROFS) => Ok(()),
            Err(errno) => Err(failed(what, errno)),
        };
    let own = root.join(RESERVED);
    let mut owner = None;
    let top = match std::fs::symlink_metadata(&own) {
        Ok(about) if about.is_dir() => {
            owner = Some(about.uid());
            own
        }
        Ok(_) => return Err(failed(RESERVED, Errno::NOTDIR)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => root.to_owned(),
        Err(error) => {
            return Err(OpenError::Failed { root: root.to_owned(), what: RESERVED, error });
        }
    };
    writable(&top, "the directory")?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let probe = match rustix::fs::openat(CWD, &top, flags, Mode::RUSR | Mode::WUSR) {
        Ok(probe) => probe,
        // Without support for unnamed files nothing is tried, because a named one would be visible.
        Err(_) => return Ok(()),
    };
    if rustix::fs::fsetxattr(&probe, sums::ATTRIBUTE, b"probe", XattrFlags::empty())
        == Err(Errno::OPNOTSUPP)
    {
        return Err(OpenError::NoAttributes(root.to_owned()));
    }
    let own = rustix::fs::fstat(&probe).map_err(|errno| failed("a file", errno))?.st_uid;
    let of_volume = rustix::fs::stat(root).map_err(|errno| failed("the directory", errno))?.st_uid;
    match owner {
        Some(owner) => check_owner(owner, of_volume, own, root),
        None => Ok(()),
    }
}

/// The file in the server's own directory that marks a volume with a failed write or flush.
const FAILED: &str = "failed";

/// Marks the volume, as far as its disk still permits it: no later start writes to it.
pub(super) fn mark_failed(names: &Names) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let marked = rustix::fs::openat(&names.own.top, FAILED, flags, mode)
        .and_then(rustix::fs::fsync)
        .and_then(|()| rustix::fs::fsync(&names.own.top));
    if let Err(error) = marked {
        tracing::error!(%error, "the volume cannot be marked: check it before the next start");
    }
}

/// Removes the mark of a failed write or flush from the volume at `root` after the operator has
/// checked it: the next start takes uploads again. Returns whether there was a mark.
///
/// # Errors
/// When it cannot be removed.
pub fn clear_failed(root: &Path) -> std::io::Result<bool> {
    match rustix::fs::unlink(root.join(RESERVED).join(FAILED)) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn make_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Checks that no other user decides what the server finds in its own directory after a restart:
/// names of titles, owners, checksums. Root and the owner of the volume do so anyway. `own` is the
/// user that files of this process have there.
fn check_owner(owner: u32, of_volume: u32, own: u32, root: &Path) -> Result<(), OpenError> {
    match [own, of_volume, 0].contains(&owner) {
        true => Ok(()),
        false => Err(OpenError::Foreign { root: root.to_owned(), owner }),
    }
}

/// The same for the open directory `top` of the volume `open`; takes the permission to write there
/// from others.
fn keep_private(top: &OwnedFd, open: &OwnedFd, own: u32, root: &Path) -> Result<(), OpenError> {
    let failed = |errno: Errno| OpenError::Failed {
        root: root.to_owned(),
        what: RESERVED,
        error: errno.into(),
    };
    let stat = rustix::fs::fstat(top).map_err(failed)?;
    check_owner(stat.st_uid, rustix::fs::fstat(open).map_err(failed)?.st_uid, own, root)?;
    let (mode, others) = (Mode::from_raw_mode(stat.st_mode), Mode::WGRP | Mode::WOTH);
    if stat.st_uid == own && mode.intersects(others) {
        rustix::fs::fchmod(top, mode - others).map_err(failed)?;
    }
    Ok(())
}

/// Tests an attribute on a temporary file. Returns the user that files of this process have.
fn check_attributes(top: &Arc<OwnedFd>, root: &Path) -> Result<u32, OpenError> {
    let name = format!("probe.{}", std::process::id());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let tried = rustix::fs::openat(top, &name, flags, Mode::RUSR | Mode::WUSR).and_then(|probe| {
        let set = rustix::fs::fsetxattr(&probe, sums::ATTRIBUTE, b"probe", XattrFlags::empty());
        rustix::fs::unlinkat(top, &name, AtFlags::empty())?;
        set?;
        Ok(rustix::fs::fstat(&probe)?.st_uid)
    });
    match tried {
        Ok(owner) => Ok(owner),
        Err(Errno::OPNOTSUPP) => Err(OpenError::NoAttributes(root.to_owned())),
        Err(Errno::ROFS) => Err(OpenError::ReadOnly(root.to_owned())),
        Err(errno) => {
            let (root, error) = (root.to_owned(), errno.into());
            Err(OpenError::Failed { root, what: "a file", error })
        }
    }
}

/// Removes the files on the stage. They are between two names: a new one was not acknowledged, and
/// a replaced one is not needed.
fn clear_stage(names: &Names) -> std::io::Result<usize> {
    let strays = list(&names.own.stage)?;
    if !strays.is_empty() {
        // The exchange of names that put them here must be durable before they are removed.
        rustix::fs::syncfs(&names.root)?;
    }
    for name in &strays {
        names.erase_named(PrivateDirectory::Stage, name)?;
    }
    Ok(strays.len())
}

/// Unlinks discarded objects one after another, beginning with those of the last run. Directories
/// are taken apart while nothing else waits.
async fn sweep(names: Arc<Names>, quotas: Arc<Quotas>, mut queue: mpsc::Receiver<Discard>) {
    let trash = Arc::clone(&names);
    let emptied = blocking(move || {
        let left = list(&trash.own.trash)?;
        if !left.is_empty() {
            rustix::fs::syncfs(&trash.root)?;
        }
        let mut directories = Vec::new();
        for name in left {
            if let EraseResult::Directory = trash.erase_named(PrivateDirectory::Trash, &name)? {
                directories.push(name);
            }
        }
        Ok(directories)
    });
    let mut directories = Vec::new();
    match emptied.await {
        // The titles in it were not counted.
        Ok(left) => {
            directories.extend(left.iter().filter_map(|name| Some((name.parse().ok()?, false))))
        }
        Err(error) => tracing::warn!(%error, "the trash cannot be emptied"),
    }
    loop {
        let next = match directories.is_empty() {
            true => queue.recv().await.ok_or(TryRecvError::Disconnected),
            false => queue.try_recv(),
        };
        let names = Arc::clone(&names);
        match next {
            Ok(Discard { place, is_settled }) => match blocking(move || names.erase(place)).await {
                // It had other names when it lost this one, and has lost them since.
                Ok(EraseResult::Gone(Some(QuotaEntry { owner, len }))) if !is_settled => {
                    quotas.remove_stored(owner.as_ref(), len);
                }
                Ok(EraseResult::Gone(_)) => {}
                Ok(EraseResult::Directory) => directories.push((place.1, true)),
                Err(error) => tracing::warn!(%error, "{NOT_UNLINKED}"),
            },
            Err(TryRecvError::Empty) => {
                let Some((id, is_counted)) = directories.pop() else { continue };
                match blocking(move || names.dismantle(id)).await {
                    Ok(done) => {
                        for QuotaEntry { owner, len } in done.titles.iter().filter(|_| is_counted) {
                            quotas.remove_stored(owner.as_ref(), *len);
                        }
                        if !done.is_gone {
                            directories.push((id, is_counted));
                        }
                        directories.extend(done.directories.iter().map(|&id| (id, is_counted)));
                    }
                    Err(error) => tracing::warn!(%error, "{NOT_UNLINKED}"),
                }
            }
            // The rest stays in the trash, where the next start finds it.
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

const NOT_UNLINKED: &str = "what was deleted cannot be unlinked; the next start tries again";
