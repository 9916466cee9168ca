//! Resumable uploads (W8).
//!
//! Promise: the reported offset comes from the journal, and every byte below it is durable and
//! right, whatever happens. One request writes at a time: a newer request ends an older one, which
//! gets time to make its bytes durable. An upload is named only when all of it is durable, and its
//! name is durable before any client learns of it.

mod appender;
mod live;
mod reading;
mod recording;
mod session;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use tactus_core::units::{BitRate, Bytes, SECTOR};

use super::fault::{ResumeError, UploadError};
use super::growing::GrowingStart;
use super::id::StoreId;
use super::journal::{CreationRecord, Entry, Record};
use super::medium::{AlignedMemory, read_full};
use super::metadata::TitleMetadata;
use super::names::{self, FILE_MODE, OwnNames, Precondition, TitleName};
use super::publish::{StoredTitle, TitleSums, UnpublishedTitle};
use super::quotas::{Claim, Principal, Purpose};
use super::sums::{Sums, SumsBuilder, UNIT};
use super::write_buffer::WriteBuffer;
use super::{Inner, Store};

use appender::{JournalPosition, PendingWrites};
use recording::RecordingUpload;
use session::{Session, WriterState};

pub use appender::Appender;
pub use live::LeftoverUpload;
pub use reading::UploadReader;
pub use recording::RecordingSpec;
pub(super) use session::Sessions;

/// A new upload.
#[derive(Clone, Debug)]
pub struct Create {
    /// The title's path in the volume, decoded, without outer slashes; none for a part of a later
    /// concatenation.
    pub path: Option<String>,
    /// Its length, if known.
    pub len: Option<u64>,
    /// The precondition of its name.
    pub precondition: Precondition,
    /// Its owner; no other principal can find it.
    pub principal: Principal,
    /// The protocol's metadata, stored unchanged.
    pub metadata: Vec<u8>,
}

/// The state of an upload in the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The path of the title; none for a part.
    pub path: Option<String>,
    /// The precondition of its name.
    pub precondition: Precondition,
    /// Bytes that are durable.
    pub offset: u64,
    /// Its length, if known.
    pub len: Option<u64>,
    /// The protocol's metadata, unchanged.
    pub metadata: Vec<u8>,
    /// When it expires.
    pub expires: SystemTime,
    /// Whether it has its name. An upload with all its bytes and no name that is not a part must be
    /// finished before a client learns its offset: the client would take it for stored.
    pub finished: bool,
}

/// Upper bound of the parts of a concatenation.
pub const PARTS_MAX: usize = 1000;

/// Bytes of metadata, and of entity tags in a precondition: a record must fit into a write slot.
const METADATA_MAX: usize = 8 * 1024;
const TAGS_MAX: usize = 4 * 1024;

impl Store {
    /// Begins a resumable upload. When this returns, it survives a crash.
    ///
    /// # Errors
    /// When it is certain already that the title cannot be stored.
    pub async fn create(&self, create: Create) -> Result<StoreId, ResumeError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        let name = create.path.as_deref().map(TitleName::new).transpose();
        let name = name.map_err(UploadError::Name)?;
        if create.metadata.len() > METADATA_MAX {
            return Err(ResumeError::MetadataTooLarge(METADATA_MAX));
        }
        let tags = create.precondition.tags();
        if tags.iter().map(|tag| tag.len() + 4).sum::<usize>() > TAGS_MAX {
            return Err(UploadError::PreconditionFailed.into());
        }
        inner.counted().await;
        let id = StoreId::random();
        let purpose = Purpose { path: create.path.clone(), id: Some(id) };
        let mut claim = inner.quotas.open(&create.principal, purpose)?;
        claim.grow(create.len.unwrap_or(0))?;
        let work = tokio::spawn(async move { inner.create(id, create, name, claim).await });
        work.await.map_err(stopped)?
    }

    /// The durable state of an upload.
    ///
    /// # Errors
    /// When this principal has no such upload.
    pub fn status(&self, id: &StoreId, principal: &Principal) -> Result<Status, ResumeError> {
        self.inner.journal.look(|table| {
            let entry = owned(table.find(id), principal)?;
            Ok(Status {
                path: entry.created.path.clone(),
                precondition: entry.created.precondition.clone(),
                offset: entry.offset(),
                len: entry.len,
                metadata: entry.created.metadata.clone(),
                expires: point(entry.expires),
                finished: entry.named.is_some(),
            })
        })
    }

    /// Declares the length of an upload that began without one.
    ///
    /// # Errors
    /// When it has another length already, more bytes than that, or no room for the length.
    pub async fn declare(
        &self,
        id: &StoreId,
        principal: &Principal,
        len: u64,
    ) -> Result<(), ResumeError> {
        let inner = Arc::clone(&self.inner);
        let (id, principal) = (*id, principal.clone());
        let (session, _) = inner.open_session(&id, &principal)?;
        let work = tokio::spawn(async move {
            let (mut writer, _) = session.take_over().await?;
            let entry = inner.entry(&id, &principal)?;
            match entry.len {
                Some(known) if known == len => return Ok(()),
                Some(_) => return Err(ResumeError::LengthKnown),
                None if len < entry.mark.len => return Err(UploadError::TooLarge(len).into()),
                None => {}
            }
            let claim = writer.claim.as_mut().ok_or(ResumeError::NotFound)?;
            claim.grow(len)?;
            claim.shrink(len);
            writer.set_aside = false;
            inner.commit(Record::Length { id, len }).await?;
            Ok(())
        });
        work.await.map_err(stopped)?
    }

    /// Continues an upload at `offset`, which must be its durable length. An older request that
    /// writes to it has to end.
    ///
    /// # Errors
    /// When this principal has no such upload, its offset differs, or it cannot be written now.
    pub async fn append(
        &self,
        id: &StoreId,
        principal: &Principal,
        offset: u64,
    ) -> Result<Appender, ResumeError> {
        self.append_as(id, principal, offset, None).await
    }

    async fn append_as(
        &self,
        id: &StoreId,
        principal: &Principal,
        offset: u64,
        live: Option<&RecordingSpec>,
    ) -> Result<Appender, ResumeError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        let (session, entry) = inner.open_session(id, principal)?;
        // Checked before an older request is ended.
        if entry.offset() > offset {
            return Err(ResumeError::OffsetMismatch(entry.offset()));
        }
        let (mut writer, newest) = session.take_over().await?;
        let entry = inner.entry(id, principal)?;
        if entry.named.is_some() {
            return Err(ResumeError::Finished);
        }
        if entry.mark.len != offset {
            return Err(ResumeError::OffsetMismatch(entry.mark.len));
        }
        let file = inner.data(*id, true).await?;
        let tail = match writer.tail.take() {
            Some((at, tail)) if at == offset => tail,
            _ => inner.reread(&file, &entry).await?,
        };
        if !writer.set_aside {
            if let (Some(len), Some(claim)) = (entry.len, writer.claim.as_mut()) {
                inner.allocate(&file, offset, len - offset, claim).await?;
            }
            writer.set_aside = true;
        }
        let rate = live.map(|live| live.rate);
        inner.show(&mut writer, &entry, rate, &file).await?;
        let sums = SumsBuilder::after(entry.mark, entry.prefix);
        let begun = JournalPosition { from: sums.ended(), prefix: sums.prefix() };
        let medium = live.map_or(&inner.medium, |live| &live.medium);
        let write_buffer = WriteBuffer::after(Arc::clone(medium), file, sums, tail);
        let (checkpoint, setting_aside) = (None, None);
        let parts = PendingWrites {
            inner,
            id: *id,
            writer,
            write_buffer,
            begun,
            checkpoint,
            setting_aside,
        };
        let (checkpoints, wanted, declared) = (true, None, entry.len);
        let recording = live.map(RecordingUpload::new);
        Ok(Appender { parts: Some(parts), newest, declared, wanted, checkpoints, recording })
    }

    /// Gives a complete upload its name (W3 to W6). A repeated call returns the same answer. The
    /// operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When the title is not, or not certainly, stored. The upload stays until it expires.
    pub async fn finish(
        &self,
        id: &StoreId,
        principal: &Principal,
    ) -> Result<StoredTitle, ResumeError> {
        self.finish_as(id, principal, TitleMetadata::default()).await
    }

    /// The same, with the client's metadata of the title.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub async fn finish_as(
        &self,
        id: &StoreId,
        principal: &Principal,
        metadata: TitleMetadata,
    ) -> Result<StoredTitle, ResumeError> {
        let inner = Arc::clone(&self.inner);
        let (id, principal) = (*id, principal.clone());
        let work = tokio::spawn(async move { inner.finish(id, &principal, metadata).await });
        work.await.map_err(stopped)?
    }

    /// Gives an upload up, or forgets a finished one.
    ///
    /// # Errors
    /// When this principal has no such upload, or its writer does not end.
    pub async fn terminate(&self, id: &StoreId, principal: &Principal) -> Result<(), ResumeError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        inner.entry(id, principal)?;
        let id = *id;
        tokio::spawn(async move { inner.terminate(id).await }).await.map_err(stopped)?
    }

    /// Gives up uploads that have expired at `now` and are not being written. The store itself does
    /// this once a minute.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub async fn expire(&self, now: SystemTime) -> Result<usize, ResumeError> {
        self.inner.expire(now).await
    }

    /// Joins complete parts, in this order, to one title. Bytes are copied; the parts stay until
    /// they expire or are terminated. Returns the identifier of the whole, for later requests.
    ///
    /// # Errors
    /// When the parts do not fit together, do not all belong to this principal, or the title is not
    /// stored.
    pub async fn concat(
        &self,
        parts: &[StoreId],
        whole: Create,
    ) -> Result<(StoreId, StoredTitle), ResumeError> {
        if parts.is_empty() || parts.len() > PARTS_MAX {
            return Err(ResumeError::Parts("a title is joined from 1 to 1000 parts"));
        }
        let principal = whole.principal.clone();
        let mut entries = Vec::with_capacity(parts.len());
        for (at, id) in parts.iter().enumerate() {
            let entry = self.inner.entry(id, &principal)?;
            if parts[..at].contains(id) {
                return Err(ResumeError::Parts("a part may occur only once in a joined upload"));
            }
            if entry.created.path.is_some() {
                return Err(ResumeError::Parts("only uploads that began as parts can be joined"));
            }
            if !entry.is_complete() {
                return Err(ResumeError::Parts("a part is not complete"));
            }
            entries.push(entry);
        }
        let sizes = entries.iter().map(|entry| entry.mark.len);
        let len = sizes.fold(0_u64, |sum, len| sum.saturating_add(len));
        let id = self.create(Create { len: Some(len), ..whole }).await?;
        let joined = async {
            let mut appender = self.append(&id, &principal, 0).await?;
            for entry in &entries {
                self.copy(entry, &mut appender).await?;
            }
            appender.commit().await?;
            self.finish(&id, &principal).await
        };
        match joined.await {
            Ok(finished) => Ok((id, finished)),
            Err(error) => {
                // Otherwise its remains would stay until they expire.
                if let Err(error) = self.terminate(&id, &principal).await {
                    tracing::warn!(%error, %id, "a joined upload cannot be given up");
                }
                Err(error)
            }
        }
    }

    /// Copies a part.
    async fn copy(&self, entry: &Entry, appender: &mut Appender) -> Result<(), ResumeError> {
        let mut reader = UploadReader::new(&self.inner, entry).await?;
        while let Some(bytes) = reader.next().await? {
            appender.append(bytes).await?;
        }
        Ok(())
    }
}

impl Inner {
    async fn create(
        self: Arc<Self>,
        id: StoreId,
        create: Create,
        name: Option<TitleName>,
        mut claim: Claim,
    ) -> Result<StoreId, ResumeError> {
        let Create { path, len, precondition, principal, metadata } = create;
        if let Some(name) = name {
            let (this, condition) = (Arc::clone(&self), precondition.clone());
            let seen = self.blocking(move || Ok(this.names.look(&name, &condition)));
            let seen = seen.await.map_err(ResumeError::io)?;
            seen.map_err(|error| self.change_failed(error))?;
        }
        let file = self.data(id, true).await?;
        let stored = async {
            self.allocate(&file, 0, len.unwrap_or(0), &mut claim).await?;
            // The data file's name must be durable together with its bytes: one flush for both.
            let uploads = Arc::clone(&self.names.own.uploads);
            self.sync(&[Arc::clone(&file)], &[uploads]).await?;
            self.sessions.add(id, claim, true);
            let expires = self.expires();
            let created =
                CreationRecord { id, principal, path, precondition, len, metadata, expires };
            self.commit(Record::Created(Box::new(created))).await
        };
        match stored.await {
            Ok(()) => Ok(id),
            Err(error) => {
                self.sessions.remove(&id);
                self.drop_data(id).await;
                Err(error.into())
            }
        }
    }

    async fn finish(
        self: Arc<Self>,
        id: StoreId,
        principal: &Principal,
        metadata: TitleMetadata,
    ) -> Result<StoredTitle, ResumeError> {
        let entry = self.entry(&id, principal)?;
        if let Some(finished) = finished(&entry) {
            return Ok(finished);
        }
        // The census must be complete: otherwise it could count a title that is named at the same
        // time twice.
        self.counted().await;
        let session = self.sessions.find(&id).ok_or(ResumeError::NotFound)?;
        let mut writer = session.wait().await?;
        let entry = self.entry(&id, principal)?;
        if let Some(finished) = finished(&entry) {
            return Ok(finished);
        }
        let Some(path) = &entry.created.path else {
            return Err(ResumeError::Parts("a part has no name of its own"));
        };
        if !entry.is_complete() {
            let (got, declared) = (entry.mark.len, entry.len.unwrap_or(u64::MAX));
            return Err(UploadError::Incomplete { got, declared }.into());
        }
        let file = self.data(id, entry.mark.len == 0).await?;
        let unnamed = UnpublishedTitle {
            file: Arc::clone(&file),
            own: OwnNames::default(),
            sums: TitleSums::Known(Sums::of(entry.units, entry.mark)),
            name: TitleName::new(path).map_err(UploadError::Name)?,
            condition: entry.created.precondition.clone(),
            owner: principal.clone(),
            metadata,
        };
        let mut finished = self.publish(unnamed).await?;
        if let Some(announced) = writer.announced.take() {
            announced.complete(finished.len);
        }
        // Only after the title's name is durable: a complete upload without data counts as named.
        self.drop_data(id).await;
        let stat = rustix::fs::fstat(&file).map_err(|errno| ResumeError::io(errno.into()))?;
        finished.etag = crate::catalogue::FileVersion::of(&stat).etag();
        self.commit(Record::Named { id, etag: finished.etag.clone() }).await?;
        if let Some(claim) = writer.claim.take() {
            claim.stored(entry.mark.len);
        }
        self.sessions.remove(&id);
        Ok(finished)
    }

    async fn terminate(self: Arc<Self>, id: StoreId) -> Result<(), ResumeError> {
        let session = self.sessions.find(&id);
        let mut writer = match &session {
            Some(session) => Some(session.take_over().await?.0),
            None => None,
        };
        self.commit(Record::Gone { id }).await?;
        self.drop_data(id).await;
        if let Some(writer) = &mut writer {
            writer.claim = None;
            writer.announced = None;
        }
        self.sessions.remove(&id);
        Ok(())
    }

    pub(super) async fn expire(self: &Arc<Self>, now: SystemTime) -> Result<usize, ResumeError> {
        let now = seconds(now);
        let over = |(id, entry): (&StoreId, &Entry)| (entry.expires <= now).then_some(*id);
        let over = self.journal.look(|table| table.entries().filter_map(over).collect::<Vec<_>>());
        let mut count = 0;
        for id in over {
            let idle = match self.sessions.find(&id) {
                Some(session) => session.turn.try_lock().is_ok(),
                None => true,
            };
            if idle {
                Arc::clone(self).terminate(id).await?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// When an upload with the present activity expires.
    fn expires(&self) -> u64 {
        seconds(SystemTime::now() + self.expiry)
    }

    async fn commit(&self, record: Record) -> Result<(), UploadError> {
        self.writable()?;
        self.journal.commit(record).await.map_err(|error| self.fail(error))
    }

    fn entry(&self, id: &StoreId, principal: &Principal) -> Result<Entry, ResumeError> {
        self.journal.look(|table| owned(table.find(id), principal).cloned())
    }

    fn open_session(
        &self,
        id: &StoreId,
        principal: &Principal,
    ) -> Result<(Arc<Session>, Entry), ResumeError> {
        let entry = self.entry(id, principal)?;
        if entry.named.is_some() {
            return Err(ResumeError::Finished);
        }
        let session = self.sessions.find(id).ok_or(ResumeError::NotFound)?;
        Ok((session, entry))
    }

    /// Opens an upload's data file, and creates it when it `may_begin`.
    async fn data(
        self: &Arc<Self>,
        id: StoreId,
        may_begin: bool,
    ) -> Result<Arc<OwnedFd>, ResumeError> {
        let this = Arc::clone(self);
        let opened = self.blocking(move || {
            let mut flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if may_begin {
                flags |= OFlags::CREATE;
            }
            let name = id.to_string();
            Ok(rustix::fs::openat(&this.names.own.uploads, name, flags, FILE_MODE))
        });
        match opened.await.map_err(ResumeError::io)? {
            Ok(file) => Ok(Arc::new(names::past_cache(file))),
            Err(Errno::NOENT) => Err(ResumeError::Damaged),
            Err(errno) => Err(self.write_failed(errno.into()).into()),
        }
    }

    /// Makes an upload readable up to its journal offset, if titles are shown during uploads.
    async fn show(
        &self,
        writer: &mut WriterState,
        entry: &Entry,
        rate: Option<BitRate>,
        file: &Arc<OwnedFd>,
    ) -> Result<(), ResumeError> {
        let (Some(audience), Some(path)) = (self.audience.get(), &entry.created.path) else {
            return Ok(());
        };
        if writer.announced.is_none() {
            let what = GrowingStart { path, declared: entry.len, rate };
            let announced = self.announce(audience, file, what).await.map_err(ResumeError::io)?;
            writer.announced = announced.map(Arc::new);
        }
        if let Some(announced) = &writer.announced {
            announced.advance(Bytes(entry.mark.len));
        }
        Ok(())
    }

    /// Removes the upload's own name for its data.
    async fn drop_data(self: &Arc<Self>, id: StoreId) {
        let this = Arc::clone(self);
        let dropped = self.blocking(move || {
            match rustix::fs::unlinkat(&this.names.own.uploads, id.to_string(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        });
        if let Err(error) = dropped.await {
            // The next start finds a file without an upload.
            tracing::warn!(%error, %id, "an upload's data cannot be unlinked");
        }
    }

    /// Reads the bytes since the last whole sector from the disk, because memory no longer has
    /// them. Reads the whole unit, to compare it with its checksum.
    async fn reread(
        self: &Arc<Self>,
        file: &Arc<OwnedFd>,
        entry: &Entry,
    ) -> Result<Vec<u8>, ResumeError> {
        let mark = entry.mark;
        if mark.len.is_multiple_of(SECTOR) {
            return Ok(Vec::new());
        }
        let file = Arc::clone(file);
        let read = self.blocking(move || {
            let begin = mark.len - mark.len % UNIT;
            let mut memory = AlignedMemory::new(UNIT as usize);
            let count = read_full(&file, memory.bytes(), begin)?;
            Ok(memory.bytes()[..count.min((mark.len - begin) as usize)].to_vec())
        });
        let unit = read.await.map_err(ResumeError::io)?;
        if unit.len() as u64 != mark.len % UNIT || crc32c::crc32c(&unit) != mark.partial {
            return Err(ResumeError::Damaged);
        }
        Ok(unit[unit.len() - (mark.len % SECTOR) as usize..].to_vec())
    }
}

fn owned<'a>(entry: Option<&'a Entry>, principal: &Principal) -> Result<&'a Entry, ResumeError> {
    entry.filter(|entry| entry.created.principal == *principal).ok_or(ResumeError::NotFound)
}

fn finished(entry: &Entry) -> Option<StoredTitle> {
    let etag = entry.named.clone()?;
    let len = tactus_core::units::Bytes(entry.len.unwrap_or_default());
    Some(StoredTitle { etag, created: false, len })
}

/// The inverse of `seconds`; an unrepresentable time counts as passed.
fn point(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn stopped(_: tokio::task::JoinError) -> ResumeError {
    ResumeError::io(super::medium::stopped())
}
