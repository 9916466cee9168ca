//! A title that a program writes in place, through a descriptor of its file.
//!
//! Promise: a working file is no title before [`WorkingFile::finish`]: until then every reader sees
//! the version before it. After [`WorkingFile::sync`] its bytes and its path are durable: if the
//! server or the machine ends, the next start makes a title of it, under the same condition. Before
//! the first sync nothing of it is left. A file that another process can still write is never made
//! a title. The path, the owner and the condition of the title are in a record that no program can
//! reach. The claim of a file lasts as long as a process can write the file.

mod leftovers;
mod writers;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use tactus_core::units::MIB;

pub(super) use leftovers::{LeftoverFile, leftovers};

use super::due::sums_of;
use super::fault::{NameFault, UploadError};
use super::id::StoreId;
use super::journal::{self, CreationRecord, Record};
use super::medium::{Flush, stopped};
use super::metadata::TitleMetadata;
use super::names::{Discard, Names, OwnNames, Precondition, PrivateDirectory, TitleName, link};
use super::publish::{StoredTitle, TitleSums, UnpublishedTitle};
use super::quotas::{Claim, Principal, Purpose};
use super::sums::{self, UNIT};
use super::upload::claim_more;
use super::{Inner, Store, len_of, lock};
use crate::catalogue::Digests;

/// The title that a working file becomes.
#[derive(Clone, Debug)]
pub struct WorkingFileSpec {
    /// Its path in the volume, decoded, without outer slashes.
    pub path: String,
    /// The precondition of its name at the beginning.
    pub first: Precondition,
    /// The precondition of its name at the end.
    pub last: Precondition,
    /// The principal whose quota it counts against.
    pub principal: Principal,
}

/// The descriptors of a working file, each with a file description of its own.
#[derive(Debug)]
pub struct WorkingDescriptors {
    /// For reading and writing. It must be closed before [`WorkingFile::finish`].
    pub write: OwnedFd,
    /// For reading.
    pub read: OwnedFd,
}

/// A working file. Dropping it leaves no trace.
pub struct WorkingFile {
    inner: Arc<Inner>,
    name: TitleName,
    condition: Precondition,
    claim: Option<Claim>,
    /// None only at its end.
    file: Option<Arc<OwnedFd>>,
    /// Its name on the stage where the file system has no unnamed files.
    staged: Option<StoreId>,
    /// Its name among the working files, since the first sync.
    kept: Option<StoreId>,
    /// Nothing is made of it.
    is_nameless: bool,
}

/// A working file claims this much more than it needs at a time.
const STEP: u64 = 64 * MIB;

/// How long a program that has ended may take to close its descriptor.
const CLOSING_TRIES: u32 = 50;
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

impl Store {
    /// Begins to write a title in place: an empty file without a name (W1, W2).
    ///
    /// # Errors
    /// When it is certain already that the title cannot be stored.
    pub async fn work(&self, spec: WorkingFileSpec) -> Result<WorkingFile, UploadError> {
        let inner = &self.inner;
        inner.writable()?;
        let WorkingFileSpec { path, first, last, principal } = spec;
        let name = TitleName::new(&path)?;
        inner.counted().await;
        let claim = inner.quotas.open(&principal, Purpose { path: Some(path), id: None })?;
        let (this, wanted) = (Arc::clone(inner), name.clone());
        let made = inner.blocking(move || {
            let seen = this.names.look(&wanted, &first);
            Ok(seen.and_then(|_| this.names.cached().map_err(|error| this.write_failed(error))))
        });
        let made = made.await.map_err(UploadError::Io)?;
        let (file, staged) = made.map_err(|error| inner.change_failed(error))?;
        Ok(WorkingFile {
            inner: Arc::clone(inner),
            name,
            condition: last,
            claim: Some(claim),
            file: Some(Arc::new(file)),
            staged,
            kept: None,
            is_nameless: false,
        })
    }
}

impl WorkingFile {
    /// Descriptors for the program that writes.
    ///
    /// # Errors
    /// `EMFILE` if descriptors are exhausted.
    pub fn descriptors(&self) -> io::Result<WorkingDescriptors> {
        let file = self.file();
        Ok(WorkingDescriptors {
            write: reopen(file, OFlags::RDWR)?,
            read: reopen(file, OFlags::RDONLY)?,
        })
    }

    /// The number of its file, as of a title's ([`crate::catalogue::FileVersion::file`]).
    ///
    /// # Errors
    /// When the file cannot be looked at.
    pub fn number(&self) -> io::Result<u64> {
        Ok(crate::catalogue::FileVersion::of(&rustix::fs::fstat(self.file())?).file())
    }

    /// Claims quota and space for a length of `len` bytes, or some more. Returns the length that is
    /// permitted from now on.
    ///
    /// # Errors
    /// When there is no room, or the title would be too long.
    pub fn grow(&mut self, len: u64) -> Result<u64, UploadError> {
        self.inner.writable()?;
        let on_disk = rustix::fs::fstat(self.file()).map_or(0, |stat| on_disk(&stat));
        let title_max = self.inner.quotas.limits().title_max.0;
        let claim = self.claim.as_mut().expect("only its end takes the claim");
        if len > claim.reserved() {
            claim.on_disk(on_disk);
            claim_more(claim, len.saturating_add(STEP).min(title_max).max(len), len)?;
            // It was less than needed: this says why.
            claim.grow(len)?;
        }
        Ok(claim.reserved())
    }

    /// Whether the program has kept to the permitted length, and to the blocks that it needs.
    #[must_use]
    pub fn is_within_claim(&self) -> bool {
        is_within(self.file(), self.claim.as_ref().map_or(0, Claim::reserved))
    }

    /// Gives the space of all bytes back, whoever has the file open.
    pub fn clear(&self) {
        if let Err(error) = rustix::fs::ftruncate(self.file(), 0) {
            tracing::warn!(%error, "a file that was written past its claim keeps its bytes");
        }
    }

    /// Makes all bytes durable that were written before, with the path (as W8): from then on the
    /// next start makes a title of them if this run does not.
    ///
    /// # Errors
    /// When they are not, or not certainly, durable.
    pub async fn sync(&mut self) -> Result<(), UploadError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        let file = Arc::clone(self.file());
        if self.kept.is_some() || self.is_nameless {
            let flush = inner.medium.sync(&file, Flush::Data);
            return flush.await.map_err(|error| inner.fail(error));
        }
        let id = self.staged.unwrap_or_else(StoreId::random);
        let record = self.record(id, &self.name, &self.condition);
        // The names come last: with them, the next start takes the bytes for durable ones.
        inner.medium.sync(&file, Flush::All).await.map_err(|error| inner.fail(error))?;
        let this = Arc::clone(&inner);
        let named = inner.blocking(move || {
            let named = name_both(&this.names, &file, id, &record);
            if !matches!(named, Ok(Ok(_))) {
                unlink_record(&this.names, id);
            }
            named
        });
        let record = self.written(named.await)?;
        self.kept = Some(id);
        inner.sync(&[record], &[Arc::clone(&inner.names.own.working)]).await
    }

    /// From now on the title gets the name `path`. Durable when this returns, as far as the bytes
    /// are.
    ///
    /// # Errors
    /// When it cannot have this name.
    pub async fn retarget(&mut self, path: &str, last: Precondition) -> Result<(), UploadError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        let name = TitleName::new(path)?;
        if let Some(id) = self.kept {
            let record = self.record(id, &name, &last);
            let this = Arc::clone(&inner);
            let written = inner.blocking(move || {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let working = &this.names.own.working;
                let own = rustix::fs::openat(working, record_of(id), flags, Mode::empty())?;
                Ok(write_record(&own, &record).map(|()| Arc::new(own)))
            });
            let record = self.written(written.await)?;
            inner.sync(&[record], &[]).await?;
        }
        (self.name, self.condition) = (name, last);
        Ok(())
    }

    /// It loses its name: nothing is made of it, by this run or the next one. Its claim stays as
    /// long as it.
    ///
    /// # Errors
    /// When its name cannot be removed.
    pub async fn forget_name(&mut self) -> Result<(), UploadError> {
        self.is_nameless = true;
        let Some(id) = self.kept.take() else { return Ok(()) };
        let this = Arc::clone(&self.inner);
        let forgotten = self.inner.blocking(move || {
            unlink(&this.names, id);
            unlink_record(&this.names, id);
            this.removals.note();
            Ok(())
        });
        forgotten.await.map_err(UploadError::Io)
    }

    /// Makes a title of it (W3 to W7). A file that another process can still write is copied, and
    /// the copy becomes the title. If this fails after a sync, the next start tries again. The
    /// operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When the title is not, or not certainly, stored.
    pub async fn finish(self) -> Result<StoredTitle, UploadError> {
        let finish = tokio::spawn(self.publish());
        finish.await.map_err(|_| UploadError::Io(stopped()))?
    }

    /// Whether the next start would make a title of it.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    fn file(&self) -> &Arc<OwnedFd> {
        self.file.as_ref().expect("only its end takes the file")
    }

    /// The record of what the next start makes of the file `id`.
    fn record(&self, id: StoreId, name: &TitleName, condition: &Precondition) -> Vec<u8> {
        let claim = self.claim.as_ref().expect("only its end takes the claim");
        let created = CreationRecord {
            id,
            principal: claim.principal().clone(),
            path: Some(name.path().to_owned()),
            precondition: condition.clone(),
            len: None,
            metadata: vec![],
            expires: 0,
        };
        journal::seal(&Record::Created(Box::new(created)))
    }

    /// The file of a record that was written.
    fn written(
        &self,
        written: io::Result<Result<Arc<OwnedFd>, Errno>>,
    ) -> Result<Arc<OwnedFd>, UploadError> {
        match written.map_err(|error| self.inner.write_failed(error))? {
            Ok(record) => Ok(record),
            // Attributes have less room than paths.
            Err(Errno::NOSPC | Errno::RANGE | Errno::TOOBIG) => {
                Err(NameFault::Path(tactus_core::path::PathFault::TooLong).into())
            }
            Err(errno) => Err(self.inner.write_failed(errno.into())),
        }
    }

    async fn publish(mut self) -> Result<StoredTitle, UploadError> {
        let published = self.make_title().await;
        if published.is_err() && self.kept.take().is_some() {
            let path = self.name.path();
            tracing::warn!(path, "its bytes wait in .tactus/working for the next start");
            // They take room until then.
            if let Some((mut claim, file)) = self.claim.take().zip(self.file.take())
                && let Ok(stat) = rustix::fs::fstat(file)
            {
                claim.shrink(len_of(&stat).0);
                claim.on_disk(on_disk(&stat));
                lock(&self.inner.waiting).push(claim);
            }
        }
        published
    }

    async fn make_title(&mut self) -> Result<StoredTitle, UploadError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        let open = self.file.take().expect("only its end takes the file");
        let (this, staged) = (Arc::clone(&inner), self.staged);
        let read = inner.blocking(move || {
            let own = reopen(&open, OFlags::RDONLY)?;
            drop(open);
            owned(&this.names, own, staged)
        });
        let OwnedFile { file, staged, original } =
            read.await.map_err(|error| inner.write_failed(error))?;
        let file = Arc::new(file);
        (self.file, self.staged) = (Some(Arc::clone(&file)), staged);
        if let Some(original) = original {
            self.watch_original(original);
        }
        let stat = rustix::fs::fstat(&file).map_err(|errno| inner.write_failed(errno.into()))?;
        let len = len_of(&stat).0;
        self.grow(len)?;
        // To read a long title takes longer than to flush what was written last.
        let sums = match len.div_ceil(UNIT) <= inner.attribute_units as u64 {
            false => TitleSums::Due(len_of(&stat)),
            true => {
                let file = Arc::clone(&file);
                let sums = inner.blocking(move || sums_of(&file, Duration::ZERO, || false));
                let sums = sums.await.map_err(|error| inner.write_failed(error))?;
                TitleSums::Known(sums.expect("nothing ends it"))
            }
        };
        let claim = self.claim.as_ref().expect("only its end takes the claim");
        let unnamed = UnpublishedTitle {
            file,
            own: OwnNames { staged: self.staged, working: self.kept },
            sums,
            name: self.name.clone(),
            condition: self.condition.clone(),
            owner: claim.principal().clone(),
            metadata: TitleMetadata::default(),
        };
        let finished = inner.publish(unnamed).await?;
        self.staged = None;
        if let Some(claim) = self.claim.take() {
            claim.stored(len);
        }
        if let Some(id) = self.kept.take() {
            unlink(&inner.names, id);
            inner.removals.note();
            // Not before the answer: the title is durable, and a change of names that could make it
            // an old one flushes the removal as well. A failure closes the volume to writes.
            let this = Arc::clone(&inner);
            inner.in_background(async move {
                // Bytes never outlive their record.
                if this.flush_names(vec![]).await.is_ok() {
                    unlink_record(&this.names, id);
                }
            });
        }
        Ok(finished)
    }

    /// Watches the file that a program can still write, and of which a copy becomes the title.
    fn watch_original(&self, file: OwnedFd) {
        let claim = self.claim.as_ref().expect("only its end takes the claim");
        let facts = rustix::fs::fstat(&file).ok();
        let (len, on_disk) = facts.as_ref().map_or((0, 0), |stat| (len_of(stat).0, on_disk(stat)));
        let purpose = Purpose { path: Some(self.name.path().to_owned()), id: None };
        let claim = self.inner.quotas.restore(claim.principal(), purpose, len, on_disk);
        writers::watch(file, claim);
    }
}

/// Names a working file, and its record before it: bytes never have a name without their record.
fn name_both(
    names: &Names,
    file: &OwnedFd,
    id: StoreId,
    record: &[u8],
) -> io::Result<Result<Arc<OwnedFd>, Errno>> {
    let working = &names.own.working;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let own = rustix::fs::openat(working, record_of(id), flags, Mode::RUSR | Mode::WUSR)?;
    if let Err(errno) = write_record(&own, record) {
        return Ok(Err(errno));
    }
    link(file, working, &id.to_string())?;
    Ok(Ok(Arc::new(own)))
}

/// Writes a record to its file, in one step. It is an attribute of an empty file: that needs no
/// block of data, and becomes durable in one group with the name of the file.
fn write_record(file: &OwnedFd, record: &[u8]) -> Result<(), Errno> {
    rustix::fs::fsetxattr(file, RECORD_ATTRIBUTE, record, XattrFlags::empty())
}

/// The attribute of a record's file. No program has a descriptor of that file.
const RECORD_ATTRIBUTE: &str = "user.tactus.record";

/// The name of the record of a working file.
fn record_of(id: StoreId) -> String {
    format!("{id}{RECORD}")
}

/// The end of the name of a record.
const RECORD: &str = ".record";

impl Drop for WorkingFile {
    fn drop(&mut self) {
        if let Some(id) = self.kept {
            unlink(&self.inner.names, id);
            unlink_record(&self.inner.names, id);
            self.inner.removals.note();
        }
        if let Some(file) = self.file.take() {
            writers::release(file, self.claim.take());
        }
        if let Some(id) = self.staged {
            // If the queue is full, the next start removes the file.
            let discard = Discard { place: (PrivateDirectory::Stage, id), is_settled: true };
            self.inner.discards.try_send(discard).ok();
        }
    }
}

impl std::fmt::Debug for WorkingFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkingFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A file that no other process can write.
struct OwnedFile {
    file: OwnedFd,
    staged: Option<StoreId>,
    /// The file that it is a copy of: a process can still write it.
    original: Option<OwnedFd>,
}

/// `file`, if no process has it open for writing; otherwise a copy. Waits for a process that is on
/// its way out.
fn owned(names: &Names, file: OwnedFd, staged: Option<StoreId>) -> io::Result<OwnedFile> {
    for _ in 0..CLOSING_TRIES {
        if !tactus_sys::file::has_writers(&file)? {
            trim(&file)?;
            forget_attributes(&file)?;
            return Ok(OwnedFile { file, staged, original: None });
        }
        std::thread::sleep(CLOSING_PAUSE);
    }
    tracing::warn!("a title is copied, because a process still has its file open for writing");
    let (copy, id) = names.cached()?;
    loop {
        match rustix::fs::copy_file_range(&file, None, &copy, None, COPY_BYTES) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if let Some(staged) = staged {
        rustix::fs::unlinkat(&names.own.stage, staged.to_string(), AtFlags::empty()).ok();
    }
    Ok(OwnedFile { file: reopen(&copy, OFlags::RDONLY)?, staged: id, original: Some(file) })
}

/// Frees the blocks beyond the end of a file, which no quota counts. Its time stays.
fn trim(file: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let len = len_of(&stat).0;
    // The file system's own blocks for it are far fewer.
    if on_disk(&stat) <= len + len / 64 + MIB {
        return Ok(());
    }
    let own = reopen(file, OFlags::RDWR)?;
    rustix::fs::ftruncate(&own, len)?;
    let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
    Ok(rustix::fs::futimens(&own, &Timestamps { last_access: keep, last_modification: modified })?)
}

/// Removes the attributes in which the server keeps facts about titles: a program may have set
/// them.
fn forget_attributes(file: &OwnedFd) -> io::Result<()> {
    for name in [sums::ATTRIBUTE, sums::OWNER_ATTRIBUTE, Digests::ATTRIBUTE] {
        match rustix::fs::fremovexattr(file, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Whether a file keeps to a claim of `reserved` bytes. Its blocks may be more than its bytes: file
/// systems allocate up to three times the length ahead of a program that appends (XFS).
fn is_within(file: impl AsFd, reserved: u64) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        let len = len_of(&stat).0;
        let ahead = len.saturating_mul(3).saturating_add(AHEAD_MIN);
        len <= reserved && on_disk(&stat) <= reserved.saturating_add(ahead)
    })
}

/// Blocks that any file may have ahead of its bytes.
const AHEAD_MIN: u64 = 16 * MIB;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 30;

fn unlink(names: &Names, id: StoreId) {
    let gone = rustix::fs::unlinkat(&names.own.working, id.to_string(), AtFlags::empty());
    if let Err(error) = gone {
        tracing::warn!(%error, "a working file keeps its name until the next start");
    }
}

/// Without its file a record means nothing: if it remains, the next start removes it.
fn unlink_record(names: &Names, id: StoreId) {
    rustix::fs::unlinkat(&names.own.working, record_of(id), AtFlags::empty()).ok();
}

fn reopen(file: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)
}

fn on_disk(stat: &rustix::fs::Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * 512
}
