//! A title that a program builds in memory, as the store sees it: a resumable upload whose bytes
//! come out of that memory.
//!
//! Promise: bytes are copied once, after the program has called them final; checksums and the disk
//! see the copy. A sync is answered when the journal has the bytes: then they outlive the program
//! and the server, until the upload expires. An upload that was never synced leaves nothing.

use std::sync::Arc;
use std::time::Duration;

use tactus_core::units::WallTime;
use tactus_storage::store::{Appender, ResumeError, TitleMetadata};

use crate::changes::Publication;
use crate::errno::{EBADF, EBUSY, EFAULT, EINVAL, EIO, ENOMEM, ETIMEDOUT, Refusal};
use crate::growing_memory::{GrowingMemory, GrowthFault};
use crate::open_upload::OpenUpload;

/// How long a write waits for a slot. As for a body over HTTP.
const SPACE_TIME: Duration = Duration::from_secs(60);

/// A title that is built in memory.
pub(crate) struct MemoryUpload {
    open: Arc<OpenUpload>,
    publication: Publication,
    memory: Arc<GrowingMemory>,
    /// None only after an error, and at the end.
    appender: Option<Appender>,
}

/// Why a request was not carried out.
pub(crate) enum StepFault {
    /// Only this request cannot be.
    Request(Refusal),
    /// The title cannot be completed.
    Title(Refusal),
}

type Step = Result<(), StepFault>;

impl MemoryUpload {
    /// Begins with an upload without bytes, for as many as the memory has.
    pub(crate) async fn begin(
        open: Arc<OpenUpload>,
        publication: Publication,
        memory: Arc<GrowingMemory>,
    ) -> Result<Self, Refusal> {
        let begun = async {
            let mut appender = open.append(0).await?;
            appender.reserve(memory.len()).await?;
            Ok(appender)
        };
        let appender = begun.await.map_err(|error| publication.resume_refusal(&error))?;
        Ok(Self { open, publication, memory, appender: Some(appender) })
    }

    /// Goes on with an upload: its durable bytes are read into the memory, which has none.
    pub(crate) async fn resume(
        open: Arc<OpenUpload>,
        publication: Publication,
        memory: Arc<GrowingMemory>,
    ) -> Result<Self, Refusal> {
        let failed = |error| publication.resume_refusal(&error);
        let appender = open.take_over().await.map_err(failed)?;
        let mut reader = open.read_back().await.map_err(failed)?;
        grow(&memory, reader.len()).await.map_err(growth_refusal)?;
        let mut at = 0;
        while let Some(bytes) = reader.next().await.map_err(failed)? {
            let written = memory.write(at, bytes);
            written.map_err(|error| growth_refusal(GrowthFault::System(error)))?;
            at += bytes.len() as u64;
        }
        Ok(Self { open, publication, memory, appender: Some(appender) })
    }

    /// The number of bytes that are final.
    pub(crate) fn end(&self) -> u64 {
        self.appender.as_ref().map_or(0, Appender::len)
    }

    /// Returns the slot that is being filled.
    pub(crate) fn park(&mut self) {
        if let Some(appender) = &mut self.appender {
            appender.park();
        }
    }

    /// Whether another request continues the upload, over HTTP or by a program. Then call
    /// [`Self::give_way`].
    pub(crate) fn is_superseded(&self) -> bool {
        self.appender.as_ref().is_some_and(Appender::is_superseded)
    }

    /// Resolves when it is so. Then call [`Self::give_way`] at once.
    pub(crate) async fn superseded(&mut self) {
        match &mut self.appender {
            Some(appender) => appender.superseded().await,
            None => std::future::pending().await,
        }
    }

    /// Makes the bytes so far durable, for the request that goes on. Returns why this one cannot.
    pub(crate) async fn give_way(&mut self) -> Refusal {
        // The newer request reads its offset in the journal, whatever the outcome.
        drop(self.commit().await);
        (EBUSY, ResumeError::Superseded.to_string())
    }

    /// Memory, quota and space for `len` bytes.
    pub(crate) async fn grow(&mut self, len: u64) -> Step {
        let refused = |fault| StepFault::Request(growth_refusal(fault));
        self.memory.check(len).map_err(refused)?;
        let Some(appender) = &mut self.appender else { return Err(over()) };
        let reserved = appender.reserve(len).await;
        reserved.map_err(|error| StepFault::Request(self.publication.resume_refusal(&error)))?;
        grow(&self.memory, len).await.map_err(refused)
    }

    /// Appends the bytes up to `end`, which are final.
    pub(crate) async fn write_back(&mut self, end: u64) -> Step {
        let Some(appender) = &mut self.appender else { return Err(over()) };
        let (begin, room) = (appender.len(), self.memory.len());
        if end < begin || end > room {
            let text = format!("bytes up to {end} of {room} cannot be final: {begin} are already");
            return Err(StepFault::Request((EINVAL, text)));
        }
        while appender.len() < end {
            let at = appender.len();
            let Ok(space) = tokio::time::timeout(SPACE_TIME, appender.space()).await else {
                let text = "the disk was busy for a minute and could not take these bytes";
                return Err(StepFault::Title((ETIMEDOUT, text.to_owned())));
            };
            let space = match space {
                Ok(space) => space,
                Err(ResumeError::Superseded) => {
                    return Err(StepFault::Title(self.give_way().await));
                }
                Err(error) => {
                    return Err(StepFault::Title(self.publication.resume_refusal(&error)));
                }
            };
            let count = (end - at).min(space.len() as u64) as usize;
            if let Err(error) = self.memory.read(at, &mut space[..count]) {
                let text = format!("the memory of the title cannot be read: {error}");
                return Err(StepFault::Title((EFAULT, text)));
            }
            appender.advance(count);
            // The thread serves all connections.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Makes all final bytes durable, and known to the journal.
    pub(crate) async fn sync(&mut self) -> Step {
        let Some(appender) = &mut self.appender else { return Err(over()) };
        let synced = appender.sync().await;
        let offset =
            synced.map_err(|error| StepFault::Title(self.publication.resume_refusal(&error)))?;
        if offset > 0 {
            self.open.keep();
        }
        Ok(())
    }

    /// Makes a title of all final bytes.
    pub(crate) async fn publish(mut self, modified: Option<WallTime>) -> Result<(), Refusal> {
        if self.is_superseded() {
            return Err(self.give_way().await);
        }
        let _under_way = self.publication.permit().await?;
        let named = async {
            let len = self.commit().await?;
            self.open.finish(len, TitleMetadata { modified, ..TitleMetadata::default() }).await
        };
        let named = named.await;
        named.map_err(|error| self.publication.resume_refusal(&error))
    }

    async fn commit(&mut self) -> Result<u64, ResumeError> {
        let appender = self.appender.take().ok_or(ResumeError::Superseded)?;
        appender.commit().await
    }
}

/// Has at least `len` bytes of memory.
async fn grow(memory: &Arc<GrowingMemory>, len: u64) -> Result<(), GrowthFault> {
    let memory = Arc::clone(memory);
    let grown = tokio::task::spawn_blocking(move || memory.grow(len)).await;
    grown.unwrap_or_else(|error| Err(GrowthFault::System(error.into())))
}

fn over() -> StepFault {
    StepFault::Title((EBADF, "the title takes no more bytes".to_owned()))
}

/// The refusal of memory.
pub(crate) fn growth_refusal(fault: GrowthFault) -> Refusal {
    match fault {
        GrowthFault::NoRoom(left) => {
            (ENOMEM, format!("{left} are left of [local] titles_max for titles in memory"))
        }
        GrowthFault::System(error) => {
            (error.raw_os_error().map_or(EIO, i32::unsigned_abs), error.to_string())
        }
    }
}
