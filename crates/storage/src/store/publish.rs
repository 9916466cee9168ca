//! Publishes a complete upload as a title: W3 to W6.
//!
//! Promise: checksums, or the mark that they are due, are durable before the name, and the name is
//! durable before the answer. A failure before the name leaves no trace, and one after it closes
//! the volume to writes.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use tactus_core::units::Bytes;

use super::Inner;
use super::due;
use super::fault::{UploadError, is_busy};
use super::id::StoreId;
use super::metadata::TitleMetadata;
use super::names::{
    self, Chain, Discard, NameChange, OwnNames, Precondition, QuotaEntry, TitleName,
};
use super::quotas::Principal;
use super::sums::{self, Sums, SumsAttribute, SumsLocation};
use super::write_buffer::WriteBuffer;

/// A durably stored title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTitle {
    /// Its strong entity tag, quotes included: the same tag that a GET returns.
    pub etag: String,
    /// Whether the name was free before.
    pub created: bool,
    /// Its length.
    pub len: Bytes,
}

/// A complete upload before its name: all writes to `file` have completed, nothing has been
/// flushed.
pub(super) struct UnpublishedTitle {
    pub(super) file: Arc<OwnedFd>,
    pub(super) own: OwnNames,
    pub(super) sums: TitleSums,
    pub(super) name: TitleName,
    pub(super) condition: Precondition,
    pub(super) owner: Principal,
    pub(super) metadata: TitleMetadata,
}

/// The checksums with which a title gets its name.
pub(super) enum TitleSums {
    /// Those of all its bytes.
    Known(Sums),
    /// They are made in the background, for a title of this length.
    Due(Bytes),
}

impl TitleSums {
    fn len(&self) -> Bytes {
        match self {
            Self::Known(sums) => sums.len(),
            Self::Due(len) => *len,
        }
    }
}

/// Where a title's checksums are stored.
enum SumsPlacement {
    /// In an attribute of the title: as durable as the title.
    Here,
    Apart(Manifest),
    /// Nowhere yet: the manifest will have this name. The mark lies in `directory`.
    Due {
        id: StoreId,
        directory: Arc<OwnedFd>,
    },
}

/// The manifest file with a title's checksums.
struct Manifest {
    id: StoreId,
    file: Arc<OwnedFd>,
    directory: Arc<OwnedFd>,
    is_written: bool,
}

/// Directories of one path that are open at a time.
const OPENED_AT_ONCE: usize = 16;

/// Paths of one volume whose directories are opened at a time: with [`OPENED_AT_ONCE`], 64
/// descriptors.
pub(super) const OPENING_MAX: usize = 4;

/// Ten seconds: a longer shortage needs the operator.
const SHORTAGE_TRIES_MAX: u32 = 100;
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

impl Manifest {
    fn open(sums: &OwnedFd, id: StoreId, flags: OFlags, is_written: bool) -> std::io::Result<Self> {
        let place = sums::place_of(id);
        let file = rustix::fs::openat(sums, &place, flags, Mode::RUSR | Mode::WUSR)?;
        let (directory, _) = place.split_once('/').expect("a manifest lies in a directory");
        let directory = Arc::new(names::open_beneath(sums, directory, OFlags::DIRECTORY)?);
        Ok(Self { id, file: Arc::new(names::past_cache(file)), directory, is_written })
    }
}

impl Inner {
    /// Makes a title of `unnamed`. Must run to its end: callers give it a task of its own.
    pub(super) async fn publish(
        self: &Arc<Self>,
        unnamed: UnpublishedTitle,
    ) -> Result<StoredTitle, UploadError> {
        self.writable()?;
        let UnpublishedTitle { file, own, sums, name, condition, owner, metadata } = unnamed;
        let len = sums.len();
        let known = match &sums {
            TitleSums::Known(sums) => self.known(&file, sums).await,
            TitleSums::Due(_) => None,
        };
        let marked = match known {
            Some(marked) => marked,
            None => self.mark(&file, &sums, owner, metadata).await?,
        };
        // One group of flushes. A manifest has its name before its bytes are durable, but no reader
        // finds it earlier: the attribute that refers to it needs the title's name.
        let (mut files, mut folders, mut made) = (vec![Arc::clone(&file)], Vec::new(), None);
        match &marked {
            SumsPlacement::Here => {}
            SumsPlacement::Apart(manifest) => {
                files.push(Arc::clone(&manifest.file));
                folders.push(Arc::clone(&manifest.directory));
                made = Some(manifest.id).filter(|_| !manifest.is_written);
            }
            SumsPlacement::Due { id, directory } => {
                folders.push(Arc::clone(directory));
                made = Some(*id);
            }
        }
        let path = name.path().to_owned();
        let named = async {
            if let (SumsPlacement::Apart(manifest), TitleSums::Known(sums)) = (&marked, &sums)
                && !manifest.is_written
            {
                self.write_whole(&manifest.file, &sums.encode()).await?;
            }
            self.sync(&files, &folders).await?;
            let (this, file) = (Arc::clone(self), Arc::clone(&file));
            let named = move || Ok(this.names.publish(&file, own, &name, &condition));
            self.blocking(named)
                .await
                .map_err(UploadError::Io)
                .and_then(|named| named)
                .map_err(|error| self.change_failed(error))
        };
        let changed = match named.await {
            Ok(changed) => changed,
            Err(error) => {
                // An earlier manifest may have a name already.
                if let Some(id) = made {
                    let this = Arc::clone(self);
                    // Nothing refers to it; if it remains, the census finds it.
                    drop(self.blocking(move || this.names.own.manifests.remove(id)).await);
                }
                return Err(error);
            }
        };
        let etag = changed.etag.clone().expect("a title has a tag");
        let finished = StoredTitle { etag, created: changed.created, len };
        self.settle(changed).await?;
        if let SumsPlacement::Due { id, .. } = marked {
            self.due.add(id, file).await;
        }
        if let Some(told) = self.named.get() {
            told(&path);
        }
        Ok(finished)
    }

    /// Makes a change of names durable, and discards the replaced object.
    pub(super) async fn settle(self: &Arc<Self>, changed: NameChange) -> Result<(), UploadError> {
        let NameChange { flush, chain, replaced, .. } = changed;
        self.flush_names(flush).await?;
        let chain = Arc::new(chain);
        let mut at = 0;
        while at < chain.behind() {
            let few = at..chain.behind().min(at + OPENED_AT_ONCE);
            at = few.end;
            let turn = self.opening.acquire().await.expect("the semaphore is never closed");
            let directories = self.opened(&chain, few).await?;
            self.sync(&[], &directories).await?;
            drop((directories, turn));
        }
        self.names.remember(&chain);
        if let Some(replaced) = replaced {
            if let Some(QuotaEntry { owner, len }) = &replaced.counted {
                self.quotas.remove_stored(owner.as_ref(), *len);
            }
            // The queue is closed only when the store ends; then the next start unlinks the object.
            let is_settled = replaced.counted.is_some();
            self.discards.send(Discard { place: replaced.place, is_settled }).await.ok();
        }
        Ok(())
    }

    /// Flushes `directories`, and removed names of working files.
    pub(super) async fn flush_names(
        &self,
        mut directories: Vec<Arc<OwnedFd>>,
    ) -> Result<(), UploadError> {
        let removals = self.removals.pending();
        directories.extend(removals.map(|_| Arc::clone(&self.names.own.working)));
        self.sync(&[], &directories).await?;
        if let Some(covered) = removals {
            self.removals.note_flush(covered);
        }
        Ok(())
    }

    /// Opens a few directories of `chain`. The title already has its name, so a shortage of
    /// descriptors is waited out.
    async fn opened(
        self: &Arc<Self>,
        chain: &Arc<Chain>,
        few: Range<usize>,
    ) -> Result<Vec<Arc<OwnedFd>>, UploadError> {
        for _ in 0..SHORTAGE_TRIES_MAX {
            let (this, chain, few) = (Arc::clone(self), Arc::clone(chain), few.clone());
            let opened = self.blocking(move || Ok(this.names.open_behind(&chain, few)));
            match opened.await.map_err(UploadError::Io)? {
                Err(UploadError::Io(error)) if is_busy(&error) => {
                    tokio::time::sleep(SHORTAGE_PAUSE).await;
                }
                opened => return opened.map_err(|error| self.change_failed(error)),
            }
        }
        Err(UploadError::Io(Errno::MFILE.into()))
    }

    /// Where the file already has these same checksums: the upload was being named when the last
    /// run ended. Its name may be visible, so the file must not change.
    async fn known(self: &Arc<Self>, file: &Arc<OwnedFd>, sums: &Sums) -> Option<SumsPlacement> {
        let (this, file, sums) = (Arc::clone(self), Arc::clone(file), sums.clone());
        let known = self.blocking(move || {
            let manifests = &this.names.own.manifests;
            let Ok(Some(mark)) = SumsAttribute::read(&file) else { return Ok(None) };
            match (manifests.sums_of(&file), mark.location) {
                (Ok(Some(known)), SumsLocation::Here(_)) if *known == sums => {
                    Ok(Some(SumsPlacement::Here))
                }
                (Ok(Some(known)), SumsLocation::Apart(id)) if *known == sums => {
                    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                    let manifest = Manifest::open(manifests.directory(), id, flags, true)?;
                    Ok(Some(SumsPlacement::Apart(manifest)))
                }
                _ => Ok(None),
            }
        });
        // Unreadable checksums are written again.
        known.await.ok().flatten()
    }

    /// Cuts the file to its length and writes its attributes: its checksums, or a reference to
    /// their manifest.
    async fn mark(
        self: &Arc<Self>,
        file: &Arc<OwnedFd>,
        sums: &TitleSums,
        owner: Principal,
        metadata: TitleMetadata,
    ) -> Result<SumsPlacement, UploadError> {
        let (this, file, len) = (Arc::clone(self), Arc::clone(file), sums.len());
        let (is_due, here) = match sums {
            TitleSums::Known(sums) if sums.table().units().len() <= self.attribute_units => {
                (false, Some(SumsLocation::Here(sums.clone())))
            }
            TitleSums::Known(_) => (false, None),
            TitleSums::Due(_) => (true, None),
        };
        let made = self.blocking(move || {
            let stat = rustix::fs::fstat(&file)?;
            let inode = stat.st_ino;
            // A working file has its length, and the time of its last write.
            if rustix::fs::fcntl_getfl(&file)?.contains(OFlags::RDWR) {
                // This also frees the blocks that were reserved beyond the end.
                rustix::fs::ftruncate(&file, len.0)?;
            }
            if !owner.name().is_empty() {
                let (name, flags) = (sums::OWNER_ATTRIBUTE, XattrFlags::empty());
                rustix::fs::fsetxattr(&file, name, owner.name().as_bytes(), flags)?;
            }
            // Where other attributes use all the space, the checksums go into a manifest.
            if let Some(location) = here
                && (SumsAttribute { inode, location }).write(&file).is_ok()
            {
                metadata.write(&file)?;
                return Ok(SumsPlacement::Here);
            }
            let id = StoreId::random();
            let manifests = this.names.own.manifests.directory();
            let placement = match is_due {
                // A new mark also for a file that has one from the last run: the census may remove
                // that one.
                true => SumsPlacement::Due { id, directory: due::mark(manifests, id)? },
                false => {
                    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    SumsPlacement::Apart(Manifest::open(manifests, id, flags, false)?)
                }
            };
            SumsAttribute { inode, location: SumsLocation::Apart(id) }.write(&file)?;
            metadata.write(&file)?;
            Ok(placement)
        });
        made.await.map_err(|error| self.write_failed(error))
    }

    /// Writes one of the store's own files from begin to end, and cuts it to its length.
    pub(super) async fn write_whole(
        &self,
        file: &Arc<OwnedFd>,
        content: &[u8],
    ) -> Result<(), UploadError> {
        let mut write_buffer = WriteBuffer::new(Arc::clone(&self.medium), Arc::clone(file));
        let mut rest = content;
        let written = async {
            while !rest.is_empty() {
                let space = write_buffer.space().await?;
                let count = rest.len().min(space.len());
                space[..count].copy_from_slice(&rest[..count]);
                write_buffer.advance(count);
                rest = &rest[count..];
            }
            write_buffer.settle().await?;
            let (file, len) = (Arc::clone(file), content.len() as u64);
            self.blocking(move || Ok(rustix::fs::ftruncate(&file, len)?)).await
        };
        written.await.map_err(|error| self.write_failed(error))
    }
}
