//! An upload that continues: bytes arrive, and earlier ones are made durable at the same time.
//!
//! Promise: bytes are written and flushed before the journal records them. The next request finds
//! no write under way. An appender that is dropped keeps the bytes of its checkpoints.

use std::sync::Arc;

use tactus_core::units::{Bytes, MIB};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

use super::recording::RecordingUpload;
use super::session::{RequestGeneration, WriterState};
use crate::store::Inner;
use crate::store::fault::{ResumeError, UploadError};
use crate::store::id::StoreId;
use crate::store::journal::{Record, WatermarkRecord};
use crate::store::medium::{Flush, now};
use crate::store::sums::UNIT;
use crate::store::upload::room;
use crate::store::write_buffer::WriteBuffer;

/// Checkpoints happen once in so many bytes, while more arrive. With the bytes that arrive during
/// the two flushes of a checkpoint, a client has to send about 8 MiB again after a crash. Stopping
/// the client during checkpoints would halve its rate.
const CHECKPOINT: u64 = 4 * MIB;

/// An upload that continues. Dropped, it keeps the bytes of its checkpoints.
pub struct Appender {
    /// None only during `drop`.
    pub(super) parts: Option<PendingWrites>,
    pub(super) newest: RequestGeneration,
    pub(super) declared: Option<u64>,
    /// The next checkpoint, once its writes have completed, and where it ends.
    pub(super) wanted: Option<(u64, WatermarkRecord)>,
    pub(super) checkpoints: bool,
    /// The state of a recording, for an upload with a rate.
    pub(super) recording: Option<RecordingUpload>,
}

/// The parts whose work must complete before the next request may write.
pub(super) struct PendingWrites {
    pub(super) inner: Arc<Inner>,
    pub(super) id: StoreId,
    pub(super) writer: OwnedMutexGuard<WriterState>,
    pub(super) write_buffer: WriteBuffer,
    pub(super) begun: JournalPosition,
    pub(super) checkpoint: Option<JoinHandle<Result<(), UploadError>>>,
    /// The allocation of blocks ahead of the bytes. The file must not be cut to its length before
    /// it has ended.
    pub(super) setting_aside: Option<JoinHandle<Result<bool, UploadError>>>,
}

/// The position up to which records were handed to the journal.
#[derive(Clone, Copy)]
pub(super) struct JournalPosition {
    /// In units.
    pub(super) from: usize,
    /// The CRC32C of these units.
    pub(super) prefix: u32,
}

impl Appender {
    /// Bytes so far, durable or not.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u64 {
        self.parts().write_buffer.len()
    }

    pub(super) fn parts(&self) -> &PendingWrites {
        self.parts.as_ref().expect("only the end takes it apart")
    }

    /// Makes nothing durable before [`Self::commit`]: for bytes with a checksum that is known only
    /// at their end.
    pub fn hold_back(&mut self) {
        self.checkpoints = false;
    }

    /// Resolves when a newer request wants to write. Then call [`Self::commit`] at once.
    pub async fn superseded(&mut self) {
        self.newest.over().await;
    }

    /// Memory for the next bytes, at least one, as [`Upload::space`](crate::store::Upload::space).
    ///
    /// # Errors
    /// As there; and when a newer request has taken over. After that error, `commit` still works.
    pub async fn space(&mut self) -> Result<&mut [u8], ResumeError> {
        if self.newest.is_over() {
            return Err(ResumeError::Superseded);
        }
        self.check()?;
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        let PendingWrites { inner, writer, write_buffer, .. } = parts;
        let claim = writer.claim.as_mut().ok_or(ResumeError::NotFound)?;
        let room = room(inner, claim, write_buffer, self.declared).await?;
        tokio::select! {
            biased;
            ready = write_buffer.ready() => ready.map_err(|error| inner.write_failed(error))?,
            () = self.newest.over() => return Err(ResumeError::Superseded),
        }
        let space = write_buffer.space().await.map_err(|error| inner.write_failed(error))?;
        let room = space.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(&mut space[..room])
    }

    /// Records that the first `count` bytes of the space have been filled.
    pub fn advance(&mut self, count: usize) {
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        let Some(end) = parts.write_buffer.advance(count) else { return };
        let done = parts.begun.from as u64 * UNIT;
        let is_time = self.recording.as_mut().is_some_and(RecordingUpload::handed_over);
        let is_due = is_time || end >= done + CHECKPOINT;
        if self.checkpoints && self.wanted.is_none() && is_due {
            self.wanted = Some((end, parts.advanced()));
        }
    }

    /// Claims quota and space for `len` bytes in all, of which fewer may come. A refusal changes
    /// nothing.
    ///
    /// # Errors
    /// When there is no room for so many.
    pub async fn reserve(&mut self, len: u64) -> Result<(), ResumeError> {
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        let PendingWrites { inner, writer, write_buffer, .. } = parts;
        inner.writable()?;
        let claim = writer.claim.as_mut().ok_or(ResumeError::NotFound)?;
        let from = claim.reserved();
        claim.grow(len)?;
        let more = claim.reserved() - from;
        let allocated = inner.allocate(write_buffer.file(), from, more, claim).await;
        if allocated.is_err() {
            claim.shrink(from);
        }
        Ok(allocated?)
    }

    /// Appends `bytes` at once.
    ///
    /// # Errors
    /// As [`Self::space`].
    pub async fn append(&mut self, mut bytes: &[u8]) -> Result<(), ResumeError> {
        while !bytes.is_empty() {
            let space = self.space().await?;
            let count = bytes.len().min(space.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.advance(count);
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Returns the slot that is being filled, as [`Upload::park`](crate::store::Upload::park).
    pub fn park(&mut self) {
        self.parts.as_mut().expect("only the end takes it apart").write_buffer.park();
    }

    /// Whether a newer request wants to write: see [`Self::superseded`].
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.newest.is_over()
    }

    /// Makes all bytes so far durable, and returns the new offset in the journal. More bytes can
    /// follow.
    ///
    /// # Errors
    /// When the bytes are not, or not certainly, durable. Then the appender must not be used again.
    pub async fn sync(&mut self) -> Result<u64, ResumeError> {
        // It covers this checkpoint.
        self.wanted = None;
        Ok(self.parts.as_mut().expect("only the end takes it apart").commit().await?)
    }

    /// Makes all bytes durable, and returns the new offset in the journal. The operation completes
    /// even when the caller stops waiting.
    ///
    /// # Errors
    /// When the bytes are not, or not certainly, durable.
    pub async fn commit(mut self) -> Result<u64, ResumeError> {
        let mut parts = self.parts.take().expect("only the end takes it apart");
        let work = tokio::spawn(async move {
            let result = parts.commit().await;
            parts.rest().await;
            result
        });
        Ok(work.await.map_err(stopped)??)
    }

    /// Begins a checkpoint when its bytes are written, and reports errors of the previous one.
    pub(super) fn check(&mut self) -> Result<(), ResumeError> {
        let parts = self.parts.as_mut().expect("only the end takes it apart");
        if parts.checkpoint.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(ended) = now(parts.checkpointed())
        {
            ended?;
        }
        if parts.checkpoint.is_none()
            && let Some((end, advanced)) = &self.wanted
            && parts.write_buffer.landed(*end)
        {
            parts.checkpoint(advanced.clone());
            self.wanted = None;
        }
        Ok(())
    }
}

impl PendingWrites {
    /// The journal record of all bytes so far.
    pub(super) fn advanced(&self) -> WatermarkRecord {
        let sums = self.write_buffer.sums();
        let (from, units) = (self.begun.from as u64, sums.units_from(self.begun.from).to_vec());
        let (mark, prefix, expires) = (sums.mark(), sums.prefix(), self.inner.expires());
        WatermarkRecord { id: self.id, mark, prefix, from, units, expires }
    }

    /// Makes written bytes durable, while more arrive.
    fn checkpoint(&mut self, advanced: WatermarkRecord) {
        let (inner, file) = (Arc::clone(&self.inner), Arc::clone(self.write_buffer.file()));
        let (begun, announced) = (self.begun, self.writer.announced.clone());
        let (from, end) = (begun.from + advanced.units.len(), Bytes(advanced.mark.len));
        self.begun = JournalPosition { from, prefix: advanced.prefix };
        self.checkpoint = Some(tokio::spawn(async move {
            let synced = inner.medium.sync(&file, Flush::Data).await;
            synced.map_err(|error| inner.fail(error))?;
            for part in advanced.split(begun.prefix) {
                inner.commit(Record::Advanced(part)).await?;
            }
            if let Some(announced) = announced {
                announced.advance(end);
            }
            Ok(())
        }));
    }

    async fn checkpointed(&mut self) -> Result<(), UploadError> {
        // The handle stays in its place until the checkpoint has ended, because the caller may stop
        // waiting and wait again.
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        let ended = checkpoint.await;
        self.checkpoint = None;
        ended.unwrap_or_else(|_| Err(UploadError::Io(std::io::Error::other("the server stops"))))
    }

    async fn commit(&mut self) -> Result<u64, UploadError> {
        self.write_buffer.settle().await.map_err(|error| self.inner.write_failed(error))?;
        self.checkpointed().await?;
        let advanced = self.advanced();
        let len = advanced.mark.len;
        self.checkpoint(advanced);
        self.checkpointed().await?;
        self.writer.tail = Some((len, self.write_buffer.tail().to_vec()));
        Ok(len)
    }

    /// Waits for everything that is under way, so that the next request may write.
    async fn rest(mut self) {
        if let Err(error) = self.write_buffer.land().await {
            self.inner.write_failed(error);
        }
        // An earlier error was reported already, and the next request finds the volume closed.
        self.checkpointed().await.ok();
        if let Some(setting) = self.setting_aside.take() {
            // A failed allocation does not matter any more.
            drop(setting.await);
        }
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(parts.rest());
        }
    }
}

impl std::fmt::Debug for Appender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Appender").field("id", &self.parts().id).finish_non_exhaustive()
    }
}

fn stopped(_: tokio::task::JoinError) -> ResumeError {
    ResumeError::io(std::io::Error::other("the server stops"))
}
