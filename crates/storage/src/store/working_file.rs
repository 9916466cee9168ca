//! A title that a program writes in place, through a descriptor of its file.
//!
//! Promise: a working file is no title before [`WorkingFile::finish`]: until then every reader sees
//! the version before it. After [`WorkingFile::sync`] its bytes and its path are durable: if the
//! server or the machine ends, the next start makes a title of it. Before the first sync nothing of
//! it is left. A file that another process can still write is never made a title.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use tactus_core::units::MIB;

use super::due::sums_of;
use super::fault::{NameFault, UploadError};
use super::id::StoreId;
use super::medium::{Flush, stopped};
use super::metadata::TitleMetadata;
use super::names::{
    self, Discard, Names, Precondition, PrivateDirectory, TitleName, link, owner_of,
};
use super::publish::{StoredTitle, TitleSums, UnpublishedTitle};
use super::quotas::{Claim, Principal, Purpose};
use super::sums::{self, UNIT};
use super::upload::claim_more;
use super::{Inner, Store, len_of};

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
}

/// A working file of the last run.
pub(super) struct LeftoverFile {
    id: StoreId,
    path: String,
    principal: Principal,
    file: OwnedFd,
    len: u64,
    on_disk: u64,
}

/// The attribute that holds the path of a working file. It stays on the title, where it has no
/// meaning: only files in the directory of working files are looked at.
const PATH_ATTRIBUTE: &str = "user.tactus.path";

/// Room for the longest path.
const PATH_ROOM: usize = tactus_core::path::PATH_BYTES_MAX + 1;

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
        })
    }

    /// Makes titles of the working files of the last run: their bytes were acknowledged.
    pub(super) async fn name_working_files(self, files: Vec<LeftoverFile>) {
        for LeftoverFile { id, path, principal, file, len, on_disk } in files {
            let Ok(name) = TitleName::new(&path) else { continue };
            self.inner.counted().await;
            let purpose = Purpose { path: Some(path.clone()), id: None };
            let claim = self.inner.quotas.restore(&principal, purpose, len, on_disk);
            let left = WorkingFile {
                inner: Arc::clone(&self.inner),
                name,
                condition: Precondition::Any,
                claim: Some(claim),
                file: Some(Arc::new(file)),
                staged: None,
                kept: Some(id),
            };
            match left.finish().await {
                Ok(_) => tracing::info!(path, "a title that was being written has its name"),
                Err(error) => {
                    tracing::warn!(%error, path, "a title that was being written has no name");
                }
            }
        }
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

    /// Whether the program has kept to the permitted length.
    #[must_use]
    pub fn is_within_claim(&self) -> bool {
        let reserved = self.claim.as_ref().map_or(0, Claim::reserved);
        rustix::fs::fstat(self.file()).is_ok_and(|stat| len_of(&stat).0 <= reserved)
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
        if self.kept.is_some() {
            let flush = inner.medium.sync(&file, Flush::Data);
            return flush.await.map_err(|error| inner.fail(error));
        }
        self.describe(&self.name).await?;
        // The name comes last: with it, the next start takes the bytes for durable ones.
        inner.medium.sync(&file, Flush::All).await.map_err(|error| inner.fail(error))?;
        let (this, id) = (Arc::clone(&inner), StoreId::random());
        let linked = move || Ok(link(&file, &this.names.own.working, &id.to_string())?);
        inner.blocking(linked).await.map_err(|error| inner.write_failed(error))?;
        self.kept = Some(id);
        inner.sync(&[], &[Arc::clone(&inner.names.own.working)]).await
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
        if self.kept.is_some() {
            self.describe(&name).await?;
            let flush = inner.medium.sync(self.file(), Flush::All);
            flush.await.map_err(|error| inner.fail(error))?;
        }
        (self.name, self.condition) = (name, last);
        Ok(())
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

    /// Writes the owner and `name` into the attributes of the file.
    async fn describe(&self, name: &TitleName) -> Result<(), UploadError> {
        let (file, path) = (Arc::clone(self.file()), name.path().to_owned());
        let owner = self.claim.as_ref().map(|claim| claim.principal().clone());
        let described = self.inner.blocking(move || {
            let set = |attribute: &str, value: &str| {
                rustix::fs::fsetxattr(&file, attribute, value.as_bytes(), XattrFlags::empty())
            };
            if let Some(owner) = owner.filter(|owner| !owner.name().is_empty()) {
                set(sums::OWNER_ATTRIBUTE, owner.name())?;
            }
            Ok(set(PATH_ATTRIBUTE, &path))
        });
        match described.await.map_err(|error| self.inner.write_failed(error))? {
            Ok(()) => Ok(()),
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
            tracing::warn!(path = self.name.path(), "its bytes wait for the next start");
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
        let (file, staged) = read.await.map_err(|error| inner.write_failed(error))?;
        let file = Arc::new(file);
        (self.file, self.staged) = (Some(Arc::clone(&file)), staged);
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
        let claim = self.claim.take().expect("only its end takes the claim");
        let unnamed = UnpublishedTitle {
            file,
            staged: self.staged,
            sums,
            name: self.name.clone(),
            condition: self.condition.clone(),
            owner: claim.principal().clone(),
            metadata: TitleMetadata::default(),
        };
        let finished = inner.publish(unnamed).await?;
        self.staged = None;
        claim.stored(len);
        if let Some(id) = self.kept.take() {
            // Durable before the answer: otherwise these bytes could come back over newer ones.
            unlink(&inner.names, id);
            inner.sync(&[], &[Arc::clone(&inner.names.own.working)]).await?;
        }
        Ok(finished)
    }
}

impl Drop for WorkingFile {
    fn drop(&mut self) {
        if let Some(id) = self.kept {
            unlink(&self.inner.names, id);
        }
        // Closing the last handle frees the blocks, which can take long.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let file = self.file.take();
            runtime.spawn_blocking(move || drop(file));
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

/// The working files of the last run, and how many files were none. Files without a path were never
/// acknowledged, and those with another name are titles already.
pub(super) fn leftovers(names: &Names) -> io::Result<(Vec<LeftoverFile>, usize)> {
    let (mut left, mut strays) = (vec![], 0);
    for name in names::list(&*names.own.working)? {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&names.own.working, &name, flags, Mode::empty());
        let found = opened.ok().zip(name.parse().ok()).and_then(|(file, id)| leftover(file, id));
        match found {
            Some((file, 1)) => left.push(file),
            found => {
                if let Some(name) = found.and_then(|(file, _)| TitleName::new(&file.path).ok()) {
                    // Without a directory there is nothing to flush.
                    names.flush_name(&name).ok();
                }
                rustix::fs::unlinkat(&names.own.working, &name, AtFlags::empty())?;
                strays += 1;
            }
        }
    }
    Ok((left, strays))
}

/// A working file and the number of its names.
fn leftover(file: OwnedFd, id: StoreId) -> Option<(LeftoverFile, u64)> {
    let mut value = [0; PATH_ROOM];
    let path = sums::attribute(&file, PATH_ATTRIBUTE, &mut value).ok()??;
    let path = std::str::from_utf8(path).ok()?.to_owned();
    let principal = owner_of(&file).ok()?.unwrap_or_else(|| Principal::new(""));
    let stat = rustix::fs::fstat(&file).ok()?;
    let (len, on_disk) = (len_of(&stat).0, on_disk(&stat));
    #[allow(clippy::useless_conversion, reason = "its type depends on the processor")]
    let names = u64::from(stat.st_nlink);
    Some((LeftoverFile { id, path, principal, file, len, on_disk }, names))
}

/// `file`, if no process has it open for writing; otherwise a copy. Waits for a process that is on
/// its way out.
fn owned(
    names: &Names,
    file: OwnedFd,
    staged: Option<StoreId>,
) -> io::Result<(OwnedFd, Option<StoreId>)> {
    for _ in 0..CLOSING_TRIES {
        if !tactus_sys::file::has_writers(&file)? {
            return Ok((file, staged));
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
    let own = reopen(&copy, OFlags::RDONLY)?;
    Ok((own, id))
}

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 30;

fn unlink(names: &Names, id: StoreId) {
    let gone = rustix::fs::unlinkat(&names.own.working, id.to_string(), AtFlags::empty());
    if let Err(error) = gone {
        tracing::warn!(%error, "a working file keeps its name until the next start");
    }
}

fn reopen(file: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)
}

fn on_disk(stat: &rustix::fs::Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * 512
}
