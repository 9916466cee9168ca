//! One upload in one go: W1 and W2, then everything else at its end.
//!
//! Promise: what is not finished leaves nothing, neither a file nor a claim: dropping it is enough.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tactus_core::units::MIB;

use super::fault::{UploadError, too_large};
use super::growing::{GrowingStart, GrowingTitle};
use super::id::StoreId;
use super::metadata::TitleMetadata;
use super::names::{Discard, Precondition, PrivateDirectory, TitleName};
use super::publish::{StoredTitle, UnpublishedTitle};
use super::quotas::{Claim, Principal, Purpose};
use super::write_buffer::WriteBuffer;
use super::{Inner, Store};

/// What is to be stored.
#[derive(Clone, Debug)]
pub struct UploadSpec {
    /// The title's path in the volume, decoded, without outer slashes.
    pub path: String,
    /// Its length, when it is known.
    pub len: Option<u64>,
    /// When it may have the name.
    pub precondition: Precondition,
    /// Whose quota it counts against.
    pub principal: Principal,
}

/// A title that is coming in. Dropped, it has never been.
pub struct Upload {
    inner: Arc<Inner>,
    name: TitleName,
    precondition: Precondition,
    declared: Option<u64>,
    claim: Claim,
    write_buffer: WriteBuffer,
    metadata: TitleMetadata,
    /// Who reads it meanwhile.
    growing: Option<GrowingTitle>,
    // After `write_buffer`, so that its handle is the last.
    staged: Staged,
}

/// An upload of unknown length claims so much at a time: seconds of a fast one, and little enough to
/// be found on a nearly full disk.
const STEP: u64 = 64 * MIB;

impl Store {
    /// Reserves quota and space for a title (W1), and makes a file without a name for it (W2).
    ///
    /// # Errors
    /// When it can be known already that the title cannot be stored.
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
        let staged = Staged { inner: Arc::clone(inner), file: kept, id: staged };
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

    /// Room for the next bytes, at least one: fill it from its beginning, then tell with
    /// [`Self::advance`]. Waits for a place, and for nothing else.
    ///
    /// # Errors
    /// When there may be no more bytes, or a write has failed. Then the upload is over.
    pub async fn space(&mut self) -> Result<&mut [u8], UploadError> {
        let room =
            room(&self.inner, &mut self.claim, &mut self.write_buffer, self.declared).await?;
        let Self { inner, write_buffer, .. } = self;
        let space = write_buffer.space().await.map_err(|error| inner.write_failed(error))?;
        let room = space.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(&mut space[..room])
    }

    /// The first `count` bytes of the space have been filled.
    pub fn advance(&mut self, count: usize) {
        self.write_buffer.advance(count);
    }

    /// Takes `bytes` at once.
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

    /// Gives back the place that is being filled. For a client that sends nothing for a moment: else
    /// a few slow ones would hold all places.
    pub fn park(&mut self) {
        self.write_buffer.park();
    }

    /// Metadata of the title from the client; it is as durable as the bytes.
    pub fn describe(&mut self, metadata: TitleMetadata) {
        self.metadata = metadata;
    }

    /// Everything has come: makes a title of it (W3 to W6). When this returns, it may be answered
    /// (W7). Goes on to its end also when nobody waits any more.
    ///
    /// # Errors
    /// When the title is not, or not surely, stored.
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
            let sums = write_buffer.into_sums().finish();
            let announced = match growing {
                Some(growing) => Some(growing.end().await.ok_or_else(|| inner.gone_wrong())?),
                None => None,
            };
            let id = staged.id;
            let unnamed =
                UnpublishedTitle { file, staged: id, sums, name, condition, owner, metadata };
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

/// How many bytes may still come, claiming more when the length is unknown.
pub(super) async fn room(
    inner: &Arc<Inner>,
    claim: &mut Claim,
    // Not shared: what is under way may be looked at by one thread only.
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

/// Claims `best`, or what the quota still has, or at least `enough`.
pub(super) fn claim_more(claim: &mut Claim, best: u64, enough: u64) -> Result<(), UploadError> {
    match claim.grow(best) {
        Err(UploadError::QuotaExceeded(left)) if left > 0 => claim.grow(claim.reserved() + left),
        Err(UploadError::NoSpace) => claim.grow(enough),
        done => done,
    }
}

impl Inner {
    /// Sets the file system's blocks aside for what is claimed, where it can do that.
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

    /// The same without a claim; whether the file system can do that.
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
            // Long from the beginning: writes that make a file longer hold its lock one by one, and on a
            // disk with an arm are a fifth as fast. What is in it nobody learns from its length.
            if super::len_of(&rustix::fs::fstat(&file)?).0 < from + len {
                rustix::fs::ftruncate(&file, from + len)?;
            }
            Ok(true)
        });
        set_aside.await.map_err(|error| self.write_failed(error))
    }
}

/// The file, and its name on the stage where the file system knows no files without one.
struct Staged {
    inner: Arc<Inner>,
    file: Option<Arc<OwnedFd>>,
    id: Option<StoreId>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        // With its last handle go its blocks, which can take long: not on a thread that must not wait.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let file = self.file.take();
            runtime.spawn_blocking(move || drop(file));
        }
        if let Some(id) = self.id {
            // Full: then the next start takes it away.
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
