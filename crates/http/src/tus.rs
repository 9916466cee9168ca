//! tus 1.0: resumable uploads under `/api/v1/uploads`.
//!
//! Promise: the offset in answers is the journal's. Bytes that came before an interruption are
//! kept, unless their checksum was announced and not verified. An upload belongs to one principal;
//! for all others it does not exist.

mod account;
mod fields;
mod metadata;

use std::time::SystemTime;

use tactus_core::path::RequestPath;
use tactus_engine::message::VolumeId;
use tactus_storage::store::{
    Appender, Create, Precondition, ResumeError, Status, Store, StoreId, StoredTitle,
};

use super::framing::Body;
use super::incoming::{BodyEnd, Incoming};
use super::locking::{Locking, Permit, path_of};
use super::public;
use super::put::{BodyError, BodyOutcome, BodySink, no_space, take};
use super::request::Method;
use super::response::Response;
use super::rights::StoreCondition;
use super::uploads::{Refusal, StorePath, Uploads, not_resumed, precondition};

use fields::{Checksum, Concat, FieldError, UPLOADS, VERSION};

/// The supported extensions of tus.
const EXTENSIONS: &str = "creation,creation-with-upload,creation-defer-length,expiration,checksum,\
                          termination,concatenation";

/// Methods at the place where uploads are created.
const ALLOWED_ABOVE: &str = "OPTIONS, GET, POST";
/// Methods of a single upload.
const ALLOWED_BELOW: &str = "OPTIONS, HEAD, PATCH, DELETE";

/// Longest list of parts that is stored to be repeated, in bytes. It fits into the store's record
/// together with the metadata.
const CONCAT_KEPT_MAX: usize = 3 * 1024;

/// Whether a path belongs to an upload, or is the place where uploads are created.
pub(super) fn is_here(path: &RequestPath) -> bool {
    below(path).is_some()
}

/// The part of `path` below the place of all uploads.
fn below(path: &RequestPath) -> Option<&str> {
    let rest = path.name().strip_prefix(&UPLOADS[1..])?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// The answer to OPTIONS, independent of the path.
pub(super) fn options(uploads: &Uploads) -> Response {
    Response::empty(204)
        .with("Allow", "OPTIONS, POST, HEAD, PATCH, DELETE")
        .with("Tus-Resumable", VERSION)
        .with("Tus-Version", VERSION)
        .with("Tus-Extension", EXTENSIONS)
        .with("Tus-Checksum-Algorithm", fields::ALGORITHMS)
        .with("Tus-Max-Size", uploads.object_max.to_string())
}

/// A request for uploads.
pub(super) struct TusRequest<'a> {
    pub(super) locking: Locking<'a>,
    pub(super) path: &'a RequestPath,
    pub(super) query: Option<&'a str>,
}

/// Handles a request.
pub(super) async fn answer(
    asked: TusRequest<'_>,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let done = asked.act(incoming).await;
    let told = |response: Response| response.with("Tus-Resumable", VERSION);
    match done {
        Ok(BodyOutcome::Answer(response)) => Ok(BodyOutcome::Answer(told(response))),
        Ok(ended) => Ok(ended),
        Err(Refusal { response, abuse }) => Err(Refusal { response: told(response), abuse }),
    }
}

/// The target of a new upload.
struct NewUpload<'a> {
    spot: StorePath<'a>,
    /// The stored part of its fields.
    kept: StoredFields,
    /// Its title's path from the root; none for a partial upload.
    at: Option<String>,
}

/// An existing upload.
struct ExistingUpload<'a> {
    volume: VolumeId,
    store: &'a Store,
    id: StoreId,
    status: Status,
}

impl TusRequest<'_> {
    async fn act(&self, incoming: &mut Incoming<'_>) -> Result<BodyOutcome, Refusal> {
        let fields = &self.locking.request.fields;
        let name = below(self.path).unwrap_or_default();
        if name.is_empty() && self.locking.request.method == Method::Get {
            // This is no part of tus, so the request needs no version of it.
            let response = account::told(
                self.locking.uploads,
                self.locking.catalogue,
                &self.locking.caller.principal,
            );
            return Ok(BodyOutcome::Answer(response));
        }
        fields::version(fields)?;
        match (name, self.method()?) {
            ("", Method::Post) => match fields::concat(fields, &|path| self.own(path))? {
                Concat::Final(parts) => self.concat(&parts).await.map(BodyOutcome::Answer),
                concat => self.create(concat == Concat::Partial, incoming).await,
            },
            ("", _) => Err(Response::text(
                405,
                "use POST to create an upload and GET to list \
                uploads",
            )
            .with("Allow", ALLOWED_ABOVE)
            .into()),
            (_, Method::Head) => self.tell(self.find(name)?).await.map(BodyOutcome::Answer),
            (_, Method::Patch) => self.append(self.find_up(name)?, incoming).await,
            (_, Method::Delete) => {
                let ExistingUpload { store, id, .. } = self.find_up(name)?;
                store.terminate(&id, &self.locking.caller.principal).await?;
                Ok(BodyOutcome::Answer(Response::empty(204)))
            }
            _ => Err(Response::text(
                405,
                "use HEAD to query an upload, PATCH to append and DELETE \
                to remove it",
            )
            .with("Allow", ALLOWED_BELOW)
            .into()),
        }
    }

    /// Converts `path` to the server's form: clients name parts by URLs with the public prefix.
    fn own(&self, path: RequestPath) -> RequestPath {
        let own =
            public::without_prefix(self.locking.public, self.locking.request, path.clone(), false);
        own.unwrap_or(path)
    }

    /// The method. Some clients can only send it in a field. Only the protocol's own methods are
    /// accepted there.
    fn method(&self) -> Result<Method, FieldError> {
        const NAME: &str = "X-HTTP-Method-Override";
        match (self.locking.request.method, self.locking.request.fields.one(NAME)) {
            (Method::Post, Some(b"PATCH")) => Ok(Method::Patch),
            (Method::Post, Some(b"DELETE")) => Ok(Method::Delete),
            (Method::Post, Some(b"POST")) => Ok(Method::Post),
            (_, Some(_)) => Err(FieldError::Field(NAME)),
            (method, None) => Ok(method),
        }
    }

    fn find(&self, name: &str) -> Result<ExistingUpload<'_>, Refusal> {
        let id = name.parse::<StoreId>().map_err(|_| not_resumed(&ResumeError::NotFound))?;
        for (volume, store) in self.locking.uploads.volumes.iter().enumerate() {
            let Some(store) = store else { continue };
            match store.status(&id, &self.locking.caller.principal) {
                Ok(status) => {
                    let volume = VolumeId(volume as u16);
                    return Ok(ExistingUpload { volume, store, id, status });
                }
                Err(ResumeError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ResumeError::NotFound.into())
    }

    /// As [`Self::find`], for requests that need the disk.
    fn find_up(&self, name: &str) -> Result<ExistingUpload<'_>, Refusal> {
        let known = self.find(name)?;
        self.locking.uploads.if_down(self.locking.catalogue, known.volume)?;
        Ok(known)
    }

    async fn create(
        &self,
        partial: bool,
        incoming: &mut Incoming<'_>,
    ) -> Result<BodyOutcome, Refusal> {
        let fields = &self.locking.request.fields;
        let len = fields::declared(fields)?;
        let brings = self.locking.request.body != Body::None;
        let sum = fields::checksum(fields)?;
        if brings {
            fields::media_type(fields)?;
            fits(incoming, 0, len)?;
        }
        let NewUpload { spot, kept, at } = self.target(partial)?;
        let condition = match &at {
            Some(at) => self.locking.caller.condition(at, precondition(fields)?)?,
            None => {
                self.locking.caller.check_stores()?;
                StoreCondition::unrestricted(precondition(fields)?)
            }
        };
        let permit = self.permit(at.as_deref()).await?;
        let refused = |error| self.not_stored(&condition, at.as_deref(), error);
        let create = Create {
            path: (!partial).then_some(spot.path),
            len,
            precondition: condition.precondition.clone(),
            principal: self.locking.caller.principal.clone(),
            metadata: kept.write(),
        };
        let id = spot.store.create(create).await.map_err(refused)?;
        let mut offset = 0;
        if brings {
            let appender = spot.store.append(&id, &self.locking.caller.principal, 0).await?;
            match self.receive(appender, sum, incoming).await? {
                BodyResult::All(len) => offset = len,
                // The client has no URL of the upload, so it cannot continue it.
                BodyResult::BodyError(ended) => {
                    spot.store.terminate(&id, &self.locking.caller.principal).await?;
                    return Ok(BodyOutcome::BodyEnd(ended));
                }
            }
        }
        let mut response =
            Response::text(201, "created").with("Location", format!("{UPLOADS}/{id}"));
        if brings {
            response = response.with("Upload-Offset", offset.to_string());
        }
        let response = match len == Some(offset) && !partial {
            true => {
                let _under_way = permit.as_ref().map(Permit::begin).transpose()?;
                let done = spot.store.finish(&id, &self.locking.caller.principal).await;
                finished(response, &done.map_err(refused)?)
            }
            false => expiring(response, &spot.store.status(&id, &self.locking.caller.principal)?),
        };
        Ok(BodyOutcome::Answer(response))
    }

    /// The target of a new upload, and the stored part of its fields.
    fn target(&self, partial: bool) -> Result<NewUpload<'_>, Refusal> {
        let fields = &self.locking.request.fields;
        let bad = |wrong: metadata::MetadataError| Response::text(400, wrong.to_string());
        let metadata = metadata::metadata(fields).map_err(bad)?;
        let concat = fields.one("upload-concat").map(|v| String::from_utf8_lossy(v).into_owned());
        let concat = concat.map(|value| match value.len() <= CONCAT_KEPT_MAX {
            true => value,
            false => "final".to_owned(),
        });
        let target = metadata.target(self.query);
        let at = target.as_ref().ok().map(|path| path.name().to_owned());
        let spot = match target {
            // A part may go to the same places as the whole; without metadata it goes to the first
            // volume.
            Err(metadata::MetadataError::Nowhere) if partial => {
                let mut volumes = (0..).zip(self.locking.uploads.volumes.iter());
                let first = volumes.find_map(|(at, store)| Some((VolumeId(at), store.as_ref()?)));
                let (volume, store) = first.ok_or_else(|| Response::text(403, "no volume"))?;
                StorePath { store, volume, path: String::new() }
            }
            target => self.locking.uploads.spot(self.locking.catalogue, &target.map_err(bad)?)?,
        };
        let kept = StoredFields { metadata: metadata.raw, concat };
        Ok(NewUpload { spot, kept, at: at.filter(|_| !partial) })
    }

    async fn concat(&self, names: &[String]) -> Result<Response, Refusal> {
        let fields = &self.locking.request.fields;
        if fields::length(fields)?.is_some() || self.locking.request.body != Body::None {
            let text = "a final upload must not declare a length or send a body";
            return Err(Response::text(400, text).into());
        }
        let NewUpload { spot, kept, at } = self.target(false)?;
        let at = at.expect("a final upload needs a path");
        let condition = self.locking.caller.condition(&at, precondition(fields)?)?;
        let permit = self.permit(Some(&at)).await?;
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let ExistingUpload { store, id, .. } = self.find(name)?;
            if !std::ptr::eq(store, spot.store) {
                let text = "the parts and the final upload are on different volumes; set ?path= \
                            for the parts too";
                return Err(Response::text(400, text).into());
            }
            parts.push(id);
        }
        let whole = Create {
            path: Some(spot.path),
            len: None,
            precondition: condition.precondition.clone(),
            principal: self.locking.caller.principal.clone(),
            metadata: kept.write(),
        };
        let _under_way = permit.as_ref().map(Permit::begin).transpose()?;
        let done = spot.store.concat(&parts, whole).await;
        let (id, done) = done.map_err(|error| self.not_stored(&condition, Some(&at), error))?;
        let response = Response::text(201, "stored").with("Location", format!("{UPLOADS}/{id}"));
        Ok(finished(response, &done))
    }

    /// Checks that locks allow a title at the path `at`; none if the upload gets no name.
    async fn permit(&self, at: Option<&str>) -> Result<Option<Permit>, Refusal> {
        let Some(at) = at else { return Ok(None) };
        let path = path_of(at)?;
        let change = self.locking.storing(&path).await?;
        self.locking.permit(&path, vec![change]).await.map(Some)
    }

    /// The path from the root of `path` in a volume.
    fn path_of(&self, volume: VolumeId, path: &str) -> String {
        match self.locking.catalogue.mount_of(volume) {
            "" => path.to_owned(),
            mount => format!("{mount}/{path}"),
        }
    }

    /// The answer when an upload to `at` is not stored under `condition`.
    fn not_stored(
        &self,
        condition: &StoreCondition,
        at: Option<&str>,
        error: ResumeError,
    ) -> Refusal {
        let refusal_by_rights = match (&error, at) {
            (ResumeError::Upload(error), Some(at)) => {
                self.locking.caller.refusal_by_rights(condition, at, error)
            }
            _ => None,
        };
        refusal_by_rights.map_or_else(|| error.into(), Refusal::from)
    }

    async fn tell(&self, known: ExistingUpload<'_>) -> Result<Response, Refusal> {
        let ExistingUpload { store, id, mut status, volume } = known;
        let complete = status.len == Some(status.offset);
        if complete && !status.finished && status.path.is_some() {
            // A crash or a lock came between its last byte and its name.
            let at = status.path.as_ref().map(|path| self.path_of(volume, path));
            let permit = self.permit(at.as_deref()).await?;
            let _under_way = permit.as_ref().map(Permit::begin).transpose()?;
            store.finish(&id, &self.locking.caller.principal).await?;
            status = store.status(&id, &self.locking.caller.principal)?;
        }
        let mut response = Response::announcing(200, "text/plain; charset=utf-8", 0)
            .with("Cache-Control", "no-store")
            .with("Upload-Offset", status.offset.to_string());
        response = match status.len {
            Some(len) => response.with("Upload-Length", len.to_string()),
            None => response.with("Upload-Defer-Length", "1"),
        };
        let kept = StoredFields::read(&status.metadata);
        if !kept.metadata.is_empty() {
            response = response.with("Upload-Metadata", kept.metadata);
        }
        if let Some(concat) = kept.concat {
            response = response.with("Upload-Concat", concat);
        }
        Ok(if status.finished { response } else { expiring(response, &status) })
    }

    async fn append(
        &self,
        known: ExistingUpload<'_>,
        incoming: &mut Incoming<'_>,
    ) -> Result<BodyOutcome, Refusal> {
        let ExistingUpload { store, id, mut status, volume } = known;
        let at = status.path.as_ref().map(|path| self.path_of(volume, path));
        let condition = match &at {
            Some(at) => self.locking.caller.condition(at, status.precondition.clone())?,
            None => {
                self.locking.caller.check_stores()?;
                StoreCondition::unrestricted(status.precondition.clone())
            }
        };
        if condition.precondition != status.precondition {
            let text =
                "the rights of this token have changed since the upload began; start a new upload";
            return Err(Response::text(403, text).into());
        }
        // The original precondition is not stored, so a refusal is attributed to the missing right.
        let condition = match &at {
            Some(at) => self.locking.caller.condition(at, Precondition::Any)?,
            None => condition,
        };
        let permit = self.permit(at.as_deref()).await?;
        let (fields, principal) = (&self.locking.request.fields, &self.locking.caller.principal);
        let offset = fields::offset(fields)?;
        fields::media_type(fields)?;
        let sum = fields::checksum(fields)?;
        if let Some(len) = fields::length(fields)? {
            store.declare(&id, principal, len).await?;
            status = store.status(&id, principal)?;
        }
        let appender = store.append(&id, principal, offset).await?;
        fits(incoming, offset, status.len)?;
        let offset = match self.receive(appender, sum, incoming).await? {
            BodyResult::All(offset) => offset,
            BodyResult::BodyError(ended) => return Ok(BodyOutcome::BodyEnd(ended)),
        };
        let response = Response::empty(204).with("Upload-Offset", offset.to_string());
        let response = match status.len == Some(offset) && status.path.is_some() {
            true => {
                let _under_way = permit.as_ref().map(Permit::begin).transpose()?;
                let done = store.finish(&id, principal).await;
                let done =
                    done.map_err(|error| self.not_stored(&condition, at.as_deref(), error))?;
                finished(response, &done)
            }
            false => expiring(response, &store.status(&id, principal)?),
        };
        Ok(BodyOutcome::Answer(response))
    }

    /// Receives a body, and makes its kept bytes durable.
    async fn receive(
        &self,
        mut appender: Appender,
        mut sum: Option<Checksum>,
        incoming: &mut Incoming<'_>,
    ) -> Result<BodyResult, Refusal> {
        if sum.is_some() {
            appender.hold_back();
        }
        let seen = |bytes: &[u8]| {
            if let Some(sum) = &mut sum {
                sum.add(bytes);
            }
        };
        let taken = take(incoming, &mut appender, seen).await;
        match (taken, sum) {
            (Ok(()), Some(sum)) if !sum.matches() => {
                let text = "the checksum does not match; the data of this request was discarded";
                Err(Response::text(460, text).into())
            }
            (Ok(()), _) => Ok(BodyResult::All(appender.commit().await?)),
            // It is unknown whether these bytes are correct.
            (Err(BodyError::Client(ended)), Some(_)) => Ok(BodyResult::BodyError(ended)),
            (Err(BodyError::BodySink(error)), Some(_)) => Err(error.into()),
            (Err(BodyError::NoSpace), _) => Err(no_space().into()),
            (Err(BodyError::Client(ended)), None) => {
                appender.commit().await?;
                Ok(BodyResult::BodyError(ended))
            }
            (Err(BodyError::BodySink(error)), None) => {
                if keeps(&error) {
                    appender.commit().await?;
                }
                Err(error.into())
            }
        }
    }
}

/// The outcome of a body.
enum BodyResult {
    /// Its bytes are durable, up to this offset of the upload.
    All(u64),
    BodyError(BodyEnd),
}

/// Whether the bytes before an error stay valid.
fn keeps(error: &ResumeError) -> bool {
    use tactus_storage::store::UploadError::{NoSpace, QuotaExceeded, TooLarge};
    matches!(
        error,
        ResumeError::Superseded | ResumeError::Upload(TooLarge(_) | QuotaExceeded(_) | NoSpace)
    )
}

impl BodySink for Appender {
    type Error = ResumeError;

    async fn space(&mut self) -> Result<&mut [u8], ResumeError> {
        Self::space(self).await
    }

    fn advance(&mut self, count: usize) {
        Self::advance(self, count);
    }

    fn park(&mut self) {
        Self::park(self);
    }

    async fn unwanted(&mut self) -> ResumeError {
        self.superseded().await;
        ResumeError::Superseded
    }
}

/// Checks that a body of known length fits at `offset`.
fn fits(incoming: &Incoming<'_>, offset: u64, len: Option<u64>) -> Result<(), Refusal> {
    let (Some(announced), Some(len)) = (incoming.announced(), len) else { return Ok(()) };
    match offset.checked_add(announced).is_some_and(|end| end <= len) {
        true => Ok(()),
        false => Err(Response::text(413, "the body is longer than the rest of the upload").into()),
    }
}

fn finished(response: Response, finished: &StoredTitle) -> Response {
    response.with("ETag", finished.etag.clone())
}

fn expiring(response: Response, status: &Status) -> Response {
    let expires = status.expires.max(SystemTime::UNIX_EPOCH);
    response.with("Upload-Expires", httpdate::fmt_http_date(expires))
}

/// The fields that answers repeat as received: one line each.
#[derive(Clone, PartialEq, Eq, Debug)]
struct StoredFields {
    metadata: String,
    concat: Option<String>,
}

impl StoredFields {
    fn write(&self) -> Vec<u8> {
        let concat = self.concat.as_deref().unwrap_or_default();
        format!("{}\n{concat}", self.metadata).into_bytes()
    }

    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (metadata, concat) = text.split_once('\n').unwrap_or((&text, ""));
        // A field value has one line, so control characters are removed.
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
        Self { metadata: plain(metadata), concat: Some(plain(concat)).filter(|c| !c.is_empty()) }
    }
}

impl From<ResumeError> for Refusal {
    fn from(error: ResumeError) -> Self {
        not_resumed(&error).into()
    }
}

impl From<FieldError> for Refusal {
    fn from(wrong: FieldError) -> Self {
        wrong.response().into()
    }
}

/// Fuzz target: the fields of an upload; whether they are valid.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn understood(all: &super::fields::Fields, query: Option<&str>) -> bool {
    let numbers = [fields::length(all), fields::declared(all), fields::offset(all).map(Some)];
    for number in numbers.into_iter().flatten().flatten() {
        assert!(i64::try_from(number).is_ok(), "{number}");
    }
    if let Ok(Some(mut sum)) = fields::checksum(all) {
        sum.add(b"hello");
        std::hint::black_box(sum.matches());
    }
    let parts = fields::concat(all, &|path| path);
    if let Ok(Concat::Final(parts)) = &parts {
        assert!((1..=fields::PARTS_MAX).contains(&parts.len()));
    }
    let Ok(metadata) = metadata::metadata(all) else { return false };
    let kept = StoredFields { metadata: metadata.raw.clone(), concat: None };
    assert_eq!(StoredFields::read(&kept.write()), kept, "it comes back as it was");
    let Ok(path) = metadata.target(query) else { return false };
    assert!(!path.name().is_empty() && !path.is_directory(), "{path:?}");
    parts.is_ok() && fields::version(all).is_ok() && precondition(all).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back() {
        for concat in [None, Some("partial".to_owned())] {
            let kept = StoredFields { metadata: "filename QQ==,x".into(), concat };
            assert_eq!(StoredFields::read(&kept.write()), kept);
        }
        let none = StoredFields { metadata: String::new(), concat: None };
        assert_eq!(StoredFields::read(b""), none);
        assert_eq!(StoredFields::read(&none.write()), none);
    }

    #[test]
    fn uploads_have_one_place() {
        let below = |path: &str| {
            super::below(&RequestPath::parse(path.as_bytes()).unwrap()).map(str::to_owned)
        };
        assert_eq!(below("/api/v1/uploads"), Some(String::new()));
        assert_eq!(below("/api/v1/uploads/"), Some(String::new()));
        assert_eq!(below("/api/v1/uploads/x"), Some("x".into()));
        assert_eq!(below("/api/v1/uploadsx"), None);
        assert_eq!(below("/films/api/v1/uploads"), None);
    }
}
