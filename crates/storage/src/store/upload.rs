//! One upload in one request: W1 and W2, then the other steps at its end.
//!
//! Promise: an unfinished upload leaves nothing, neither a file nor a claim: dropping it is enough.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tactus_core::units::MIB;

use super::fault::{UploadError, too_large};
use super::growing::{GrowingStart, GrowingTitle};
use super::id::StoreId;
use super::medium::Flush;
use super::metadata::TitleMetadata;
use super::names::{Discard, OwnNames, Precondition, PrivateDirectory, TitleName};
use super::publish::{StoredTitle, TitleSums, UnpublishedTitle};
use super::quotas::{Claim, Principal, Purpose};
use super::write_buffer::WriteBuffer;
use super::{Inner, Store};

/// The properties of a title to store.
#[derive(Clone, Debug)]
pub struct UploadSpec {
    /// The title's path in the volume, decoded, without outer slashes.
    pub path: String,
    /// Its length, if known.
    pub len: Option<u64>,
    /// The precondition of its name.
    pub precondition: Precondition,
    /// The principal whose quota it counts against.
    pub principal: Principal,
}

/// A title that is being uploaded. Dropping it leaves no trace.
pub struct Upload {
    inner: Arc<Inner>,
    name: TitleName,
    precondition: Precondition,
    declared: Option<u64>,
    claim: Claim,
    write_buffer: WriteBuffer,
    metadata: TitleMetadata,
    /// Shows the title to readers during the upload.
    growing: Option<GrowingTitle>,
    // Declared after `write_buffer`, so that its handle is dropped last.
    staged: StagedFile,
}

/// An upload of unknown length claims this much at a time: seconds of a fast upload, and small
/// enough to be free on a nearly full disk.
const STEP: u64 = 64 * MIB;

impl Store {
    /// Reserves quota and space for a title (W1), and makes a file without a name for it (W2).
    ///
    /// # Errors
    /// When it is certain already that the title cannot be stored.
    pub async fn begin(&self, put: UploadSpec) -> Result<Upload, UploadError> {
        let inner = &self.inner;
        inner.writable()?;
        let name = TitleName::new(&put.path)?;
        inner.counted().await;
        let purpose = Purpose { path: Some(put.path.clone()), id: None };
        let mut claim = inner.quotas.open(&put.principal, purpose)?;
        claim.grow(put.len.unwrap_or(0))?;
        let (this, wanted, condition) = (Arc::clone(inner), name.clone(), put.precondition.clone());
        let made = inner.blocking(move || {
            let seen = this.names.look(&wanted, &condition);
            Ok(seen.and_then(|_| this.names.nameless().map_err(|error| this.write_failed(error))))
        });
        let (file, staged) =
            made.await.map_err(UploadError::Io)?.map_err(|e| inner.change_failed(e))?;
        let file = Arc::new(file);
        let kept = Some(Arc::clone(&file));
        let staged = StagedFile { inner: Arc::clone(inner), file: kept, id: staged };
        let mut write_buffer = WriteBuffer::new(Arc::clone(&inner.medium), Arc::clone(&file));
        let growing = match inner.audience.get().cloned() {
            Some(audience) => {
                let (path, declared) = (put.path.as_str(), put.len);
                let what = GrowingStart { path, declared, rate: None };
                GrowingTitle::begin(inner, audience, &file, what).await?
            }
            None => None,
        };
        if let Some(growing) = &growing {
            write_buffer.tell(growing.landed());
        }
        let inner = Arc::clone(inner);
        let precondition = put.precondition;
        let (declared, metadata) = (put.len, TitleMetadata::default());
        let mut upload = Upload {
            inner,
            name,
            precondition,
            declared,
            claim,
            write_buffer,
            metadata,
            growing,
            staged,
        };
        if let Some(len) = put.len {
            upload.inner.allocate(upload.write_buffer.file(), 0, len, &mut upload.claim).await?;
        }
        Ok(upload)
    }
}

impl Upload {
    /// Bytes so far.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u64 {
        self.write_buffer.len()
    }

    /// Memory for the next bytes, at least one: fill it from its beginning, then call
    /// [`Self::advance`]. Waits for a write slot, and for nothing else.
    ///
    /// # Errors
    /// When no more bytes are permitted, or a write has failed. Then the upload is over.
    pub async fn space(&mut self) -> Result<&mut [u8], UploadError> {
        let room =
            room(&self.inner, &mut self.claim, &mut self.write_buffer, self.declared).await?;
        let Self { inner, write_buffer, .. } = self;
        let space = write_buffer.space().await.map_err(|error| inner.write_failed(error))?;
        let room = space.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(&mut space[..room])
    }

    /// Records that the first `count` bytes of the space have been filled.
    pub fn advance(&mut self, count: usize) {
        self.write_buffer.advance(count);
    }

    /// Appends `bytes` at once.
    ///
    /// # Errors
    /// As [`Self::space`].
    pub async fn append(&mut self, mut bytes: &[u8]) -> Result<(), UploadError> {
        while !bytes.is_empty() {
            let space = self.space().await?;
            let count = bytes.len().min(space.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.advance(count);
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Returns the slot that is being filled. Call it when a client sends nothing for a moment:
    /// otherwise a few slow clients would hold all slots.
    pub fn park(&mut self) {
        self.write_buffer.park();
    }

    /// Makes the bytes so far durable. They still have no name: a title is made of them by
    /// [`Self::finish`] only, and a power failure before it takes them.
    ///
    /// # Errors
    /// When they are not, or not certainly, durable. Then the upload is over.
    pub async fn sync(&mut self) -> Result<(), UploadError> {
        let Self { inner, write_buffer, .. } = self;
        inner.writable()?;
        write_buffer.settle().await.map_err(|error| inner.write_failed(error))?;
        let flush = inner.medium.sync(write_buffer.file(), Flush::Data);
        flush.await.map_err(|error| inner.fail(error))
    }

    /// Sets the client's metadata of the title; it is as durable as the bytes.
    pub fn describe(&mut self, metadata: TitleMetadata) {
        self.metadata = metadata;
    }

    /// Makes a title of the complete upload (W3 to W6). When this returns, the upload may be
    /// acknowledged (W7). The operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When the title is not, or not certainly, stored.
    pub async fn finish(self) -> Result<StoredTitle, UploadError> {
        let got = self.write_buffer.len();
        if let Some(declared) = self.declared.filter(|&declared| declared != got) {
            return Err(UploadError::Incomplete { got, declared });
        }
        let finish = tokio::spawn(async move {
            let Self {
                inner,
                name,
                precondition: condition,
                claim,
                mut write_buffer,
                metadata,
                growing,
                mut staged,
                ..
            } = self;
            write_buffer.settle().await.map_err(|error| inner.write_failed(error))?;
            let (file, owner) = (Arc::clone(write_buffer.file()), claim.principal().clone());
            let sums = TitleSums::Known(write_buffer.into_sums().finish());
            let announced = match growing {
                Some(growing) => Some(growing.end().await.ok_or_else(|| inner.gone_wrong())?),
                None => None,
            };
            let own = OwnNames { staged: staged.id, working: None };
            let unnamed = UnpublishedTitle { file, own, sums, name, condition, owner, metadata };
            let finished = inner.publish(unnamed).await?;
            staged.id = None;
            claim.stored(got);
            if let Some(announced) = announced {
                announced.complete(finished.len);
            }
            Ok(finished)
        });
        let stopped = |_| UploadError::Io(super::medium::stopped());
        finish.await.map_err(stopped)?
    }
}

/// How many more bytes are permitted; claims more when the length is unknown.
pub(super) async fn room(
    inner: &Arc<Inner>,
    claim: &mut Claim,
    // Exclusive, because only one thread may poll the writes under way.
    write_buffer: &mut WriteBuffer,
    declared: Option<u64>,
) -> Result<u64, UploadError> {
    inner.writable()?;
    let len = write_buffer.len();
    let Some(declared) = declared else {
        let title_max = inner.quotas.limits().title_max;
        if len >= title_max.0 {
            return Err(too_large(title_max));
        }
        if len >= claim.reserved() {
            let from = claim.reserved();
            claim_more(
                claim,
                (len + STEP).min(title_max.0),
                write_buffer.reach().min(title_max.0),
            )?;
            let more = claim.reserved() - from;
            inner.allocate(write_buffer.file(), from, more, claim).await?;
        }
        return Ok(claim.reserved() - len);
    };
    match declared - len {
        0 => Err(UploadError::TooLarge(declared)),
        room => Ok(room),
    }
}

/// Claims `best`, or the rest of the quota, but at least `enough`.
pub(super) fn claim_more(claim: &mut Claim, best: u64, enough: u64) -> Result<(), UploadError> {
    match claim.grow(best) {
        Err(UploadError::QuotaExceeded(left)) if left > 0 => claim.grow(claim.reserved() + left),
        Err(UploadError::NoSpace) => claim.grow(enough),
        done => done,
    }
}

impl Inner {
    /// Allocates the claimed blocks, where the file system supports it.
    pub(super) async fn allocate(
        self: &Arc<Self>,
        file: &Arc<OwnedFd>,
        from: u64,
        len: u64,
        claim: &mut Claim,
    ) -> Result<(), UploadError> {
        if len > 0 && self.set_aside(file, from, len).await? {
            claim.allocated();
        }
        Ok(())
    }

    /// The same without a claim; returns whether the file system supports it.
    pub(super) async fn set_aside(
        self: &Arc<Self>,
        file: &Arc<OwnedFd>,
        from: u64,
        len: u64,
    ) -> Result<bool, UploadError> {
        let file = Arc::clone(file);
        let set_aside = self.blocking(move || {
            match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, from, len) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
            // The file has its full length from the beginning: writes that extend a file hold its
            // lock one by one, and are five times slower on a hard disk. The length is not visible
            // to readers.
            if super::len_of(&rustix::fs::fstat(&file)?).0 < from + len {
                rustix::fs::ftruncate(&file, from + len)?;
            }
            Ok(true)
        });
        set_aside.await.map_err(|error| self.write_failed(error))
    }
}

/// The file, and its name on the stage where the file system has no unnamed files.
struct StagedFile {
    inner: Arc<Inner>,
    file: Option<Arc<OwnedFd>>,
    id: Option<StoreId>,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        // Closing the last handle frees the blocks, which can take long: not on a thread that must
        // not block.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let file = self.file.take();
            runtime.spawn_blocking(move || drop(file));
        }
        if let Some(id) = self.id {
            // If the queue is full, the next start removes the file.
            let discard = Discard { place: (PrivateDirectory::Stage, id), is_settled: true };
            self.inner.discards.try_send(discard).ok();
        }
    }
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("name", &self.name).field("len", &self.len()).finish()
    }
}
