//! What programs change: which of them may, in whose name, and under which conditions.
//!
//! Promise: the rights are checked before each change, against the path after a single decoding.
//! The store and its locks are those of all protocols. An answered change is durable.

use std::sync::Arc;

use tactus_client::protocol::Replace;
use tactus_control::changes::{
    ChangeGate, ChangeGuard, ChangeKind, ChangeRefusal, PathChange, StorePlace,
};
use tactus_control::recording::{Begin, BeginError, Recorder, Recording};
use tactus_control::rights::{Right, Rights};
use tactus_core::ledger::Resource;
use tactus_core::path::RequestPath;
use tactus_core::units::{BitRate, WallTime};
use tactus_engine::message::VolumeId;
use tactus_storage::store::{
    ChangeError, Create, Precondition, Principal, ReplacePolicy, ResumeError, StoreId,
    TitleMetadata, Upload, UploadError, UploadSpec, WorkingFile, WorkingFileSpec,
};

use crate::errno::{
    EACCES, EALREADY, EBADMSG, EBUSY, EINVAL, EISDIR, ENOENT, ENOSPC, EROFS, ESTALE, Refusal,
    not_begun, not_changed, not_stored, other_volume,
};
use crate::names::path_of;
use crate::open_upload::OpenUpload;
use crate::settings::WriteSettings;

/// The way of programs to the store.
pub(crate) struct Changes {
    /// None if no volume takes uploads.
    gate: Option<Arc<dyn ChangeGate>>,
    principal: Principal,
    rights: Rights,
}

/// What becomes of an upload at its end.
pub(crate) struct Publication {
    changes: Arc<Changes>,
    path: RequestPath,
    /// The right without which the precondition is narrower than requested.
    lacks: Option<Right>,
    /// It replaces one version of the title, and no other.
    has_version: bool,
}

impl Changes {
    pub(crate) fn new(settings: &WriteSettings, gate: Option<Arc<dyn ChangeGate>>) -> Self {
        let principal = Principal::new(&settings.principal);
        Self { gate, principal, rights: settings.rights.clone() }
    }

    /// Begins to store a title.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        text: &str,
        len: Option<u64>,
        replace: Replace,
    ) -> Result<(Upload, Publication), Refusal> {
        let (place, precondition, publication) = self.prepare(text, replace).await?;
        let principal = self.principal.clone();
        let put = UploadSpec { path: place.path, len, precondition, principal };
        let begun = place.store.begin(put).await;
        let upload = begun.map_err(|error| publication.refusal(&error))?;
        Ok((upload, publication))
    }

    /// Begins a resumable upload of a title; of the next version of the one with the entity tag
    /// `over`, if there is one.
    pub(crate) async fn create(
        self: &Arc<Self>,
        text: &str,
        replace: Replace,
        over: Option<String>,
    ) -> Result<(OpenUpload, Publication), Refusal> {
        let (place, mut precondition, mut publication) = self.prepare(text, replace).await?;
        publication.has_version = over.is_some();
        if let Some(etag) = over {
            precondition = Precondition::Match(vec![etag]);
        }
        let principal = self.principal.clone();
        let create = Create {
            path: Some(place.path),
            len: None,
            precondition,
            principal: principal.clone(),
            metadata: vec![],
        };
        let created = place.store.create(create).await;
        let id = created.map_err(|error| publication.resume_refusal(&error))?;
        Ok((OpenUpload::new(place.store, id, principal), publication))
    }

    /// An upload of this title which an earlier program has begun.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        text: &str,
        upload: &str,
    ) -> Result<(OpenUpload, Publication), Refusal> {
        let (place, _, mut publication) = self.prepare(text, Replace::Titles).await?;
        let none = || (ENOENT, format!("there is no upload {upload} of {text}"));
        let id = upload.parse::<StoreId>().map_err(|_| none())?;
        let principal = self.principal.clone();
        let status = match place.store.status(&id, &principal) {
            Err(ResumeError::NotFound) => Err(none()),
            status => status.map_err(|error| publication.resume_refusal(&error)),
        }?;
        if status.path.as_deref() != Some(&place.path) {
            return Err(none());
        }
        publication.has_version = matches!(status.precondition, Precondition::Match(_));
        Ok((OpenUpload::of_earlier(place.store, id, principal), publication))
    }

    /// The number of the volume of a path.
    pub(crate) fn volume_of(&self, text: &str) -> Result<u16, Refusal> {
        Ok(self.place(&path_of(text)?)?.volume)
    }

    /// Begins to write a title in place. While the guard lives, nobody locks it.
    pub(crate) async fn work(
        self: &Arc<Self>,
        text: &str,
        replace: Replace,
    ) -> Result<(WorkingFile, Target), Refusal> {
        let (place, first, publication, guard) = self.target(text, replace).await?;
        // What has appeared meanwhile is replaced, as by a rename.
        let (last, _) = self.condition(&publication.path, Replace::Titles)?;
        let principal = self.principal.clone();
        let spec = WorkingFileSpec { path: place.path, first, last, principal };
        let begun = place.store.work(spec).await;
        let file = begun.map_err(|error| publication.refusal(&error))?;
        Ok((file, Target { publication, volume: place.volume, _under_way: guard }))
    }

    /// Has a working file become a title of another name.
    pub(crate) async fn retarget(
        self: &Arc<Self>,
        file: &mut WorkingFile,
        volume: u16,
        text: &str,
    ) -> Result<Target, Refusal> {
        let (place, last, publication, guard) = self.target(text, Replace::Titles).await?;
        if place.volume != volume {
            return Err(other_volume());
        }
        let retargeted = file.retarget(&place.path, last).await;
        retargeted.map_err(|error| publication.refusal(&error))?;
        Ok(Target { publication, volume: place.volume, _under_way: guard })
    }

    /// Checks what forbids to store a title.
    async fn prepare(
        self: &Arc<Self>,
        text: &str,
        replace: Replace,
    ) -> Result<(StorePlace, Precondition, Publication), Refusal> {
        // Refused now rather than after all bytes. The lock may come later all the same.
        let (place, precondition, publication, _) = self.target(text, replace).await?;
        Ok((place, precondition, publication))
    }

    /// Where a title is stored, and under which condition.
    async fn target(
        self: &Arc<Self>,
        text: &str,
        replace: Replace,
    ) -> Result<(StorePlace, Precondition, Publication, ChangeGuard), Refusal> {
        if text.ends_with('/') {
            return Err((EISDIR, "the path of a title must not end with a slash".to_owned()));
        }
        let path = path_of(text)?;
        let (precondition, lacks) = self.condition(&path, replace)?;
        let place = self.place(&path)?;
        let guard = self.permit(&[(&path, ChangeKind::Store)]).await?;
        let changes = Arc::clone(self);
        let publication = Publication { changes, path, lacks, has_version: false };
        Ok((place, precondition, publication, guard))
    }

    /// Begins to record a title. Returns what forbids locks on it as well.
    pub(crate) async fn record(
        self: &Arc<Self>,
        recorder: &Recorder,
        text: &str,
        rate: BitRate,
        replace: Replace,
    ) -> Result<(Recording, Publication, ChangeGuard), Refusal> {
        // It becomes a title in every case, so no lock may be granted in between.
        let (place, precondition, publication, under_way) = self.target(text, replace).await?;
        let (volume, principal) = (VolumeId(place.volume), self.principal.clone());
        let begin = Begin { volume, path: place.path, rate, precondition, principal };
        let begun = recorder.begin(begin).await;
        let recording = begun.map_err(|error| match &error {
            BeginError::Refused(refusal) => {
                let is_memory = refusal.resource == Resource::WriteShare;
                let errno = if is_memory { ENOSPC } else { EBUSY };
                (errno, format!("{}; try again in {:?}", refusal.message, refusal.retry_after))
            }
            BeginError::NotHere => (EROFS, error.to_string()),
            BeginError::Stalled => (EBUSY, error.to_string()),
            BeginError::Store(error) => publication.resume_refusal(error),
        })?;
        Ok((recording, publication, under_way))
    }

    /// Removes a title.
    pub(crate) async fn remove(&self, text: &str) -> Result<(), Refusal> {
        let path = path_of(text)?;
        self.check(Right::Delete, &path)?;
        let place = self.place(&path)?;
        let _under_way = self.permit(&[(&path, ChangeKind::Vanish)]).await?;
        let removed = place.store.delete(&place.path, Precondition::Any).await;
        removed.map_err(|error| not_changed(&error))?;
        self.forget(&path);
        Ok(())
    }

    /// Removes an empty directory.
    pub(crate) async fn remove_directory(&self, text: &str) -> Result<(), Refusal> {
        let path = path_of(text)?;
        self.check(Right::Delete, &path)?;
        let place = self.place(&path)?;
        let _under_way = self.permit(&[(&path, ChangeKind::Vanish)]).await?;
        let removed = place.store.remove_empty_directory(&place.path).await;
        removed.map_err(|error| not_changed(&error))?;
        self.forget(&path);
        Ok(())
    }

    /// Makes a directory.
    pub(crate) async fn make_directory(&self, text: &str) -> Result<(), Refusal> {
        let path = path_of(text)?;
        self.check(Right::Publish, &path)?;
        let _under_way = self.permit(&[(&path, ChangeKind::Make)]).await?;
        let place = self.place(&path)?;
        place.store.make_directory(&place.path).await.map_err(|error| not_changed(&error))
    }

    /// Gives a title or a directory another name.
    pub(crate) async fn rename(
        &self,
        from: &str,
        to: &str,
        replace: Replace,
    ) -> Result<(), Refusal> {
        let (from, to) = (path_of(from)?, path_of(to)?);
        self.check(Right::Delete, &from)?;
        self.check(Right::Publish, &to)?;
        let replaces = self.rights.has(Right::Replace, to.name());
        let over = match (replace, replaces) {
            (Replace::Nothing, _) | (Replace::Titles, false) => ReplacePolicy::Nothing,
            (Replace::Titles, true) => ReplacePolicy::Titles,
            (Replace::Existing, _) => {
                let text = "a new name replaces nothing, or a title if there is one";
                return Err((EINVAL, text.to_owned()));
            }
        };
        let (old, new) = (self.place(&from)?, self.place(&to)?);
        if old.volume != new.volume {
            return Err(other_volume());
        }
        let changes = [(&from, ChangeKind::Vanish), (&to, ChangeKind::Replace)];
        let _under_way = self.permit(&changes).await?;
        let renamed = old.store.rename(&old.path, Precondition::Any, &new.path, over).await;
        renamed.map_err(|error| match error {
            ChangeError::Exists if replace == Replace::Titles && !replaces => {
                self.lacks(Right::Replace, &to)
            }
            error => not_changed(&error),
        })?;
        if from != to {
            self.forget(&from);
            self.forget(&to);
        }
        Ok(())
    }

    /// Sets the time of a title or a directory.
    pub(crate) async fn set_modified(&self, text: &str, modified: i64) -> Result<(), Refusal> {
        let path = path_of(text)?;
        let modified = u64::try_from(modified).map(WallTime);
        let modified = modified.map_err(|_| (EINVAL, "the time is before 1970".to_owned()))?;
        self.check(Right::Replace, &path)?;
        let place = self.place(&path)?;
        let _under_way = self.permit(&[(&path, ChangeKind::Set)]).await?;
        let set = place.store.set_modified(&place.path, Precondition::Any, modified).await;
        set.map(drop).map_err(|error| not_changed(&error))
    }

    /// The condition under which a title may be stored, narrowed to the rights; and the right whose
    /// lack has narrowed it.
    fn condition(
        &self,
        path: &RequestPath,
        replace: Replace,
    ) -> Result<(Precondition, Option<Right>), Refusal> {
        let publishes = self.rights.has(Right::Publish, path.name());
        let replaces = self.rights.has(Right::Replace, path.name());
        Ok(match (replace, publishes, replaces) {
            (Replace::Nothing, true, _) => (Precondition::CreateOnly, None),
            (Replace::Titles, true, true) => (Precondition::Any, None),
            (Replace::Titles, true, false) => (Precondition::CreateOnly, Some(Right::Replace)),
            (Replace::Titles, false, true) => (Precondition::Exists, Some(Right::Publish)),
            (Replace::Existing, _, true) => (Precondition::Exists, None),
            (Replace::Existing, _, false) => return Err(self.lacks(Right::Replace, path)),
            (_, false, _) => return Err(self.lacks(Right::Publish, path)),
        })
    }

    fn check(&self, right: Right, path: &RequestPath) -> Result<(), Refusal> {
        match self.rights.has(right, path.name()) {
            true => Ok(()),
            false => Err(self.lacks(right, path)),
        }
    }

    fn lacks(&self, right: Right, path: &RequestPath) -> Refusal {
        let (name, right) = (self.principal.name(), right.name());
        let text = format!(
            "the principal {name:?} has no right {right:?} at /{}; see [local] principal",
            path.name()
        );
        (EACCES, text)
    }

    fn gate(&self) -> Result<&Arc<dyn ChangeGate>, Refusal> {
        let none = ChangeRefusal::NoUploads("no volume of this server accepts uploads");
        self.gate.as_ref().ok_or_else(|| not_begun(&none))
    }

    fn place(&self, path: &RequestPath) -> Result<StorePlace, Refusal> {
        self.gate()?.place(path).map_err(|refusal| not_begun(&refusal))
    }

    async fn permit(&self, changes: &[(&RequestPath, ChangeKind)]) -> Result<ChangeGuard, Refusal> {
        let change = |&(path, kind): &(&RequestPath, _)| PathChange { path: path.clone(), kind };
        let changes = changes.iter().map(change).collect();
        let begun = self.gate()?.begin(&self.principal, changes).await;
        begun.map_err(|refusal| not_begun(&refusal))
    }

    fn forget(&self, path: &RequestPath) {
        if let Some(gate) = &self.gate {
            gate.forget(path);
        }
    }
}

/// What a working file becomes.
pub(crate) struct Target {
    pub(crate) publication: Publication,
    pub(crate) volume: u16,
    /// No lock of another client.
    _under_way: ChangeGuard,
}

impl Publication {
    /// Makes a title of a complete upload.
    pub(crate) async fn publish(
        &self,
        mut upload: Upload,
        modified: Option<WallTime>,
    ) -> Result<(), Refusal> {
        let _under_way = self.permit().await?;
        upload.describe(TitleMetadata { modified, ..TitleMetadata::default() });
        let finished = upload.finish().await;
        finished.map(drop).map_err(|error| self.refusal(&error))
    }

    /// Begins to give the title its name.
    pub(crate) async fn permit(&self) -> Result<ChangeGuard, Refusal> {
        self.changes.permit(&[(&self.path, ChangeKind::Store)]).await
    }

    /// The refusal of the upload: by the rights, if it failed only because they have narrowed its
    /// precondition.
    pub(crate) fn refusal(&self, error: &UploadError) -> Refusal {
        match (self.lacks, error) {
            (Some(right @ Right::Replace), UploadError::Exists)
            | (Some(right @ Right::Publish), UploadError::PreconditionFailed) => {
                self.changes.lacks(right, &self.path)
            }
            (_, UploadError::PreconditionFailed) if self.has_version => {
                let text = "the title is another version than the one that was opened";
                (ESTALE, text.to_owned())
            }
            _ => not_stored(error),
        }
    }

    /// The refusal of a resumable upload.
    pub(crate) fn resume_refusal(&self, error: &ResumeError) -> Refusal {
        let errno = match error {
            ResumeError::Upload(error) => return self.refusal(error),
            ResumeError::Locked | ResumeError::Superseded | ResumeError::Busy(_) => EBUSY,
            ResumeError::NotFound => ENOENT,
            ResumeError::Damaged => EBADMSG,
            ResumeError::Finished => EALREADY,
            ResumeError::OffsetMismatch(_)
            | ResumeError::LengthKnown
            | ResumeError::MetadataTooLarge(_)
            | ResumeError::Parts(_) => EINVAL,
        };
        (errno, error.to_string())
    }
}
