//! PUT, DELETE and MOVE of titles (RFC 9110 section 9.3, RFC 4918 section 9.9).
//!
//! Promise: every possible refusal comes before the body. The body goes from the socket directly
//! into places of the store. 201 and 204 are sent only after the store has made the title durable.

use std::sync::Arc;
use std::time::Duration;

use tactus_control::recording::{Begin, BeginError, Recorder, Recording};
use tactus_control::rights::Right;
use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::{BitRate, SECOND};
use tactus_storage::catalogue::{Catalogue, Digests, PathObject};
use tactus_storage::store::{
    Busy, ChangeError, NameFault, Precondition, ReplacePolicy, ResumeError, StoredTitle,
    TitleMetadata, Upload, UploadError, UploadSpec,
};
use tokio::io::AsyncReadExt;

use super::Store;
use super::answer::{not_served, refused, unreadable};
use super::fields::Fields;
use super::framing::Body;
use super::incoming::{BodyEnd, Incoming, ReadEnd};
use super::locking::Locking;
use super::locks::Change;
use super::oc;
use super::public::{self, UrlError};
use super::request::Request;
use super::response::Response;
use super::settings::PublicUrl;
use super::uploads::{Refusal, not_changed, not_resumed, not_stored, precondition, whole};

/// The receiver of a body's bytes.
pub(super) trait BodySink {
    type Error;

    /// Returns memory for at least one byte.
    async fn space(&mut self) -> Result<&mut [u8], Self::Error>;

    /// Marks `count` bytes of the memory as filled.
    fn advance(&mut self, count: usize);

    /// Gives the memory back while the client is silent.
    fn park(&mut self);

    /// Resolves when the receiver needs no more bytes.
    async fn unwanted(&mut self) -> Self::Error {
        std::future::pending().await
    }
}

/// Why a body was not received completely.
#[derive(Debug)]
pub(super) enum BodyError<E> {
    /// The client's side failed.
    Client(BodyEnd),
    /// The receiver failed.
    BodySink(E),
    /// There was no memory for too long.
    NoSpace,
}

/// Moves a body from the socket to `sink`; calls `seen` with each byte once.
pub(super) async fn take<S: BodySink>(
    incoming: &mut Incoming<'_>,
    sink: &mut S,
    mut seen: impl FnMut(&[u8]),
) -> Result<(), BodyError<S::Error>> {
    loop {
        let more = tokio::select! {
            biased;
            more = incoming.more() => more.map_err(BodyError::Client)?,
            error = sink.unwanted() => return Err(BodyError::BodySink(error)),
        };
        if !more {
            return Ok(());
        }
        // A disk that hangs must not block its clients.
        let space = tokio::time::timeout(SPACE_TIME, sink.space()).await;
        let space = space.map_err(|_| BodyError::NoSpace)?.map_err(BodyError::BodySink)?;
        let (filled, pause) = incoming.fill(space).await;
        seen(&space[..filled]);
        sink.advance(filled);
        match pause {
            ReadEnd::Full => {}
            ReadEnd::Silence => sink.park(),
            ReadEnd::BodyEnd(ended) => return Err(BodyError::Client(ended)),
        }
    }
}

/// How long a body waits for memory: many times as long as the slowest disk takes for everything
/// that may wait.
const SPACE_TIME: Duration = Duration::from_secs(60);

/// The answer if no memory became free within [`SPACE_TIME`].
pub(super) fn no_space() -> Response {
    let text = "the disk was busy for a minute and could not take this request; try again later";
    Response::text(503, text).with("Retry-After", "60")
}

impl BodySink for Upload {
    type Error = UploadError;

    async fn space(&mut self) -> Result<&mut [u8], UploadError> {
        Self::space(self).await
    }

    fn advance(&mut self, count: usize) {
        Self::advance(self, count);
    }

    fn park(&mut self) {
        Self::park(self);
    }
}

/// The outcome of a request with a title.
pub(super) enum BodyOutcome {
    /// The request has an answer.
    Answer(Response),
    /// The body ended early.
    BodyEnd(BodyEnd),
}

/// PUT: stores the body as the title `path`.
pub(super) async fn put(
    locking: Locking<'_>,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Locking { uploads, catalogue, request, caller, .. } = locking;
    let fields = &request.fields;
    representation(fields)?;
    if request.body == Body::None && fields.one("content-length").is_none() {
        let text = "the length of the body is missing: send Content-Length, or send the body \
            chunked";
        return Err(Response::text(411, text).into());
    }
    let condition = caller.condition(path.name(), precondition(fields)?)?;
    let permit = locking.permit(path, vec![locking.storing(path).await?]).await?;
    let mut said = oc::said(fields)?;
    let not_stored = |error: &UploadError| {
        caller
            .refusal_by_rights(&condition, path.name(), error)
            .unwrap_or_else(|| not_stored(error))
    };
    let spot = uploads.spot(catalogue, path)?;
    let len = incoming.announced();
    let (precondition, principal) = (condition.precondition.clone(), caller.principal.clone());
    let put = UploadSpec { path: spot.path, len, precondition, principal };
    let mut upload = spot.store.begin(put).await.map_err(|error| not_stored(&error))?;
    match take(incoming, &mut upload, |bytes| said.add(bytes)).await {
        Ok(()) => {}
        Err(BodyError::Client(ended)) => return Ok(BodyOutcome::BodyEnd(ended)),
        Err(BodyError::BodySink(error)) => return Err(not_stored(&error).into()),
        Err(BodyError::NoSpace) => return Err(no_space().into()),
    }
    let described = said.end()?;
    let modified = described.modified;
    upload.describe(described);
    let _under_way = permit.begin()?;
    let finished = upload.finish().await.map_err(|error| not_stored(&error))?;
    Ok(BodyOutcome::Answer(oc::accepted(stored(&finished, path), modified)))
}

/// PUT with a rate: records the body as the title `path`, at that rate. If the body ends early, the
/// received bytes become a title.
pub(super) async fn record(
    recorder: &Recorder,
    locking: Locking<'_>,
    path: &RequestPath,
    rate: BitRate,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Locking { uploads, catalogue, request, caller, .. } = locking;
    let spot = uploads.spot(catalogue, path)?;
    let fields = &request.fields;
    representation(fields)?;
    if request.body != Body::Chunked {
        let text = "an upload with a rate must be chunked; send it chunked, or without a rate";
        return Err(Response::text(400, text).into());
    }
    let condition = caller.condition(path.name(), precondition(fields)?)?;
    let permit = locking.permit(path, vec![locking.storing(path).await?]).await?;
    // It becomes a title in every case, so no lock may be granted in between.
    let _under_way = permit.begin()?;
    let not_resumed = |error: &ResumeError| match error {
        ResumeError::Upload(narrow) => caller
            .refusal_by_rights(&condition, path.name(), narrow)
            .unwrap_or_else(|| super::uploads::not_resumed(error)),
        error => super::uploads::not_resumed(error),
    };
    let (precondition, principal) = (condition.precondition.clone(), caller.principal.clone());
    let begin = Begin { volume: spot.volume, path: spot.path, rate, precondition, principal };
    let mut recording = recorder.begin(begin).await.map_err(|error| match &error {
        BeginError::Store(error) => not_resumed(error),
        error => not_begun(error),
    })?;
    let taken = take(incoming, &mut recording, |_| {}).await;
    if let Err(BodyError::NoSpace) = taken {
        // The disk hangs, and finishing the recording would hang too.
        drop(recording);
        return Err(no_space().into());
    }
    let finished = recording.finish().await;
    match taken {
        Ok(()) => {}
        Err(BodyError::Client(ended)) => return Ok(BodyOutcome::BodyEnd(ended)),
        Err(BodyError::BodySink(error)) => return Err(not_resumed(&error).into()),
        Err(BodyError::NoSpace) => return Err(no_space().into()),
    }
    match finished.map_err(|error| not_resumed(&error))? {
        Some(finished) => Ok(BodyOutcome::Answer(stored(&finished, path))),
        None => Err(Response::text(400, "the recording received no data").into()),
    }
}

/// The answer for a recording that cannot begin.
fn not_begun(error: &BeginError) -> Response {
    match error {
        BeginError::Refused(refusal) => refused(refusal),
        BeginError::NotHere => Response::text(403, error.to_string()),
        BeginError::Stalled => Response::text(503, error.to_string()).with("Retry-After", "60"),
        BeginError::Store(error) => not_resumed(error),
    }
}

impl BodySink for Recording {
    type Error = ResumeError;

    async fn space(&mut self) -> Result<&mut [u8], ResumeError> {
        Self::space(self).await
    }

    fn advance(&mut self, count: usize) {
        Self::advance(self, count);
    }

    /// Its places belong to it alone, and the bytes in them are written in time.
    fn park(&mut self) {}

    async fn unwanted(&mut self) -> ResumeError {
        self.tend().await
    }
}

/// The answer after a title is stored.
fn stored(finished: &StoredTitle, path: &RequestPath) -> Response {
    let response = match finished.created {
        true => Response::text(201, "stored").with("Location", location(path)),
        false => Response::empty(204),
    };
    response.with("ETag", finished.etag.clone())
}

/// Refuses a body that cannot be stored unchanged.
fn representation(fields: &Fields) -> Result<(), Response> {
    // RFC 9110 section 14.5: a part must not be stored as the whole.
    if fields.one("content-range").is_some() {
        return Err(Response::text(400, "PUT stores a whole title; use tus to upload parts"));
    }
    let codings = fields.list("content-encoding");
    if codings.filter(|coding| !coding.eq_ignore_ascii_case(b"identity")).count() > 0 {
        return Err(Response::text(
            415,
            "bodies are stored unchanged; send the body without Content-Encoding",
        ));
    }
    Ok(())
}

/// DELETE: removes the title or the directory `path`.
pub(super) async fn delete(locking: Locking<'_>, path: &RequestPath) -> Result<Response, Refusal> {
    let Locking { uploads, catalogue, request, .. } = locking;
    let fields = &request.fields;
    let permit = locking.permit(path, vec![Change::vanishing(path.name())]).await?;
    whole(fields)?;
    let precondition = precondition(fields)?;
    let spot = uploads.place(catalogue, path)?;
    stands_alone(catalogue, path)?;
    let _under_way = permit.begin()?;
    let deleted = spot.store.remove(&spot.path, precondition).await;
    deleted.map_err(|error| not_changed(&error))?;
    permit.forget(&[path]);
    Ok(Response::empty(204))
}

/// MOVE: gives the title or the directory `path` another name on the same volume.
pub(super) async fn relocate(
    locking: Locking<'_>,
    path: &RequestPath,
) -> Result<Response, Refusal> {
    let Locking { uploads, catalogue, public, request, caller } = locking;
    let fields = &request.fields;
    whole(fields)?;
    let source = precondition(fields)?;
    // RFC 4918 section 10.6: the default of `Overwrite` is to replace. But a directory is replaced
    // only by an explicit `Overwrite: T`.
    let over = match fields.one("overwrite") {
        None => ReplacePolicy::Titles,
        Some(b"T" | b"t") => ReplacePolicy::Everything,
        Some(b"F" | b"f") => ReplacePolicy::Nothing,
        Some(_) => return Err(Response::text(400, "Overwrite is T or F").into()),
    };
    let modified = oc::modified(fields)?;
    let to = destination(public, request)?;
    caller.check(Right::Delete, path.name())?;
    caller.check(Right::Publish, to.name())?;
    // As with COPY: a title that the caller may not read must not move to a path that it may read.
    if uploads.is_closed() && caller.rights.has(Right::Read, to.name()) {
        caller.check(Right::Read, path.name())?;
    }
    // Replacing a title needs the right to replace; moving a directory away needs the right to
    // delete.
    let replaces = caller.rights.has(Right::Replace, to.name());
    let may = match (replaces, caller.rights.has(Right::Delete, to.name())) {
        (false, _) => ReplacePolicy::Nothing,
        (true, false) if over == ReplacePolicy::Everything => ReplacePolicy::Titles,
        (true, _) => over,
    };
    let (from, new) = (uploads.place(catalogue, path)?, uploads.new_place(catalogue, &to)?);
    if !std::ptr::eq(from.store, new.store) {
        let text = "the destination is on another volume; upload the title there instead";
        return Err(Response::text(502, text).into());
    }
    let target = Change { below: true, ..locking.storing(&to).await? };
    let permit = locking.permit(path, vec![Change::vanishing(path.name()), target]).await?;
    stands_alone(catalogue, path)?;
    stands_alone(catalogue, &to)?;
    let _under_way = permit.begin()?;
    let renamed = from.store.rename(&from.path, source, &new.path, may).await;
    let mut renamed = renamed.map_err(|error| match error {
        ChangeError::Exists if may != over => caller.lacks(Right::Replace, Some(to.name())),
        ChangeError::Name(NameFault::NoTitle) if may != over => {
            caller.lacks(Right::Delete, Some(to.name()))
        }
        error => not_changed(&error),
    })?;
    // RFC 4918 section 7.7: locks do not move. The locks of a replaced object end.
    if path.name() != to.name() {
        permit.forget(&[path, &to]);
    }
    if let Some(modified) = modified {
        let set = from.store.set_modified(&new.path, Precondition::Any, modified).await;
        renamed.etag = set.map_err(|error| not_changed(&error))?.etag;
    }
    let response = match renamed.created {
        true => Response::text(201, "moved").with("Location", location(&to)),
        false => Response::empty(204),
    };
    let response = match renamed.etag {
        Some(etag) => response.with("ETag", etag),
        None => response,
    };
    Ok(oc::accepted(response, modified))
}

/// COPY: stores the content of the title `path` under another name, on this volume or another. The
/// read is a best-effort delivery. The bytes are compared with the title's checksums and stored
/// like any upload.
pub(super) async fn duplicate(
    store: &Store,
    locking: Locking<'_>,
    path: &RequestPath,
) -> Result<Response, Refusal> {
    let Locking { uploads, catalogue, public, request, caller } = locking;
    let fields = &request.fields;
    let source = precondition(fields)?;
    let target = match fields.one("overwrite") {
        None | Some(b"T" | b"t") => Precondition::Any,
        Some(b"F" | b"f") => Precondition::CreateOnly,
        Some(_) => return Err(Response::text(400, "Overwrite is T or F").into()),
    };
    let modified = oc::modified(fields)?;
    let to = destination(public, request)?;
    if to.name() == path.name() {
        return Err(Response::text(
            403,
            "the source and the destination of COPY are the \
            same",
        )
        .into());
    }
    if uploads.is_closed() {
        caller.check(Right::Read, path.name())?;
    }
    let condition = caller.condition(to.name(), target)?;
    let permit = locking.permit(path, vec![locking.storing(&to).await?]).await?;
    let not_stored = |error: &UploadError| {
        caller.refusal_by_rights(&condition, to.name(), error).unwrap_or_else(|| not_stored(error))
    };
    if let Some(volume) = catalogue.volume_at(path) {
        uploads.if_down(catalogue, volume)?;
    }
    let title = match catalogue.find(path).await.map_err(not_served)? {
        PathObject::Title(title) if title.following.is_none() => title,
        PathObject::Title(_) => {
            return Err(Response::text(
                409,
                "the title is still being \
            uploaded",
            )
            .into());
        }
        PathObject::Directory(_) => {
            let text = "COPY does not copy directories; copy each title";
            return Err(Response::text(403, text).into());
        }
    };
    let modified_at = i64::try_from(title.modified.0 / SECOND.0).unwrap_or(i64::MAX);
    let version = (Some(title.etag.clone()), modified_at);
    source.holds_for(Some(version)).map_err(|error| not_stored(&error))?;
    let spot = uploads.spot(catalogue, &to)?;
    // RFC 4918 section 9.8.5: unlike PUT, COPY does not make directories.
    if !locking.has_directory(&to).await? {
        return Err(Response::text(409, "the directory of the destination does not exist").into());
    }
    let mut left = title.len.0;
    let readable = store.broker.readable(&title, &(0..left));
    if readable < left {
        return Err(unreadable(readable).into());
    }
    let (precondition, principal) = (condition.precondition.clone(), caller.principal.clone());
    let put = UploadSpec { path: spot.path, len: Some(left), precondition, principal };
    let mut upload = spot.store.begin(put).await.map_err(|error| not_stored(&error))?;
    // The checksums verified for the source hold for its copy.
    let read = Arc::clone(&title);
    let digests = tokio::task::spawn_blocking(move || Digests::of(&read.file)).await;
    upload.describe(TitleMetadata { modified, digests: digests.ok().flatten() });
    if left > 0 {
        let busy = |busy: Busy| Response::text(503, busy.to_string()).with("Retry-After", "5");
        let mut from = store.broker.read(title).map_err(busy)?;
        while left > 0 {
            let space = tokio::time::timeout(SPACE_TIME, upload.space()).await;
            let space = space.map_err(|_| no_space())?.map_err(|error| not_stored(&error))?;
            let most = space.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match from.read(&mut space[..most]).await {
                Ok(count @ 1..) => {
                    upload.advance(count);
                    left -= count as u64;
                }
                Ok(0) | Err(_) => {
                    let text = "the title could not be read to its end; see the server's log";
                    return Err(Response::text(500, text).into());
                }
            }
        }
    }
    let _under_way = permit.begin()?;
    let finished = upload.finish().await.map_err(|error| not_stored(&error))?;
    Ok(oc::accepted(stored(&finished, &to), modified))
}

/// Refuses a change that would remove or move other volumes.
fn stands_alone(catalogue: &Catalogue, path: &RequestPath) -> Result<(), Response> {
    match catalogue.holds_volumes(path) {
        false => Ok(()),
        true => Err(Response::text(403, "another volume is mounted below this directory")),
    }
}

/// `Destination` (RFC 4918 section 10.3): a URL of this server as the client reaches it, or a path.
fn destination(public: &PublicUrl, request: &Request) -> Result<RequestPath, Response> {
    let value = request.fields.one("destination");
    let value = value.ok_or_else(|| Response::text(400, "the field Destination is missing"))?;
    public::path_of(public, request, value).map_err(|fault| match fault {
        UrlError::NoPath => Response::text(400, "the destination is not a path of this server"),
        UrlError::Elsewhere => {
            let text = "the destination is on another server; behind a proxy that hides the host, \
                        or takes a prefix away, set http.public_url";
            Response::text(502, text)
        }
    })
}

/// The URL path of a title.
pub(super) fn location(path: &RequestPath) -> String {
    let mut location = String::new();
    for segment in path.segments() {
        location.push('/');
        encode_segment(segment, &mut location);
    }
    location
}

/// Fuzz target: as [`understood`](super::tus::understood), for a title.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn understood(request: &Request) -> bool {
    let fields = &request.fields;
    let to = destination(&PublicUrl::default(), request);
    if let Ok(path) = &to {
        assert!(!path.segments().any(|segment| matches!(segment, "." | "..")), "{path:?}");
    }
    precondition(fields).is_ok() && representation(fields).is_ok() && to.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(public: &PublicUrl, fields: &[(&str, &str)]) -> Result<String, u16> {
        let request = Request::of(fields);
        destination(public, &request).map(|path| path.name().to_owned()).map_err(|r| r.status())
    }

    #[test]
    fn a_destination_is_a_path_here() {
        let of = |to: &str| of(&PublicUrl::default(), &[("host", "tv:80"), ("destination", to)]);
        assert_eq!(of("/a/b%20c.ts"), Ok("a/b c.ts".into()));
        assert_eq!(of("http://TV:80/a"), Ok("a".into()));
        assert_eq!(of("https://tv:80/a"), Ok("a".into()));
        for other in ["http://evil/a", "https://tv/a", "http://tv/a"] {
            assert_eq!(of(other), Err(502), "{other}");
        }
        for bad in ["a", "", "/../a", "/a?x", "ftp://tv:80/a", "https://tv:80", "*"] {
            assert_eq!(of(bad), Err(400), "{bad}");
        }
        assert_eq!(
            super::destination(&PublicUrl::default(), &Request::of(&[])).unwrap_err().status(),
            400
        );
    }

    #[test]
    fn w03_a_destination_loses_the_public_host_and_prefix() {
        let public = PublicUrl::parse("https://tv.example/media/").unwrap();
        let to = |to: &str| of(&public, &[("host", "127.0.0.1:8080"), ("destination", to)]);
        assert_eq!(to("https://tv.example/media/a/b%20c.ts"), Ok("a/b c.ts".into()));
        assert_eq!(to("https://TV.example/media/films/"), Ok("films".into()));
        assert_eq!(to("/media/a.ts"), Ok("a.ts".into()));
        assert_eq!(to("/other/a.ts"), Ok("other/a.ts".into()));
        assert_eq!(to("https://tv.example/other/a.ts"), Err(502), "outside of the prefix");
        assert_eq!(to("https://evil.example/media/a.ts"), Err(502));
        let prefix = PublicUrl::parse("/media").unwrap();
        let by_host = [("host", "tv"), ("destination", "http://tv/media/a.ts")];
        assert_eq!(of(&prefix, &by_host), Ok("a.ts".into()));
    }

    #[test]
    fn u04_u05_only_whole_titles_as_they_are() {
        let of =
            |name, value| representation(&Fields::of(&[(name, value)])).map_err(|r| r.status());
        assert_eq!(of("content-encoding", "gzip"), Err(415));
        assert_eq!(of("content-encoding", "identity, br"), Err(415));
        assert_eq!(of("content-encoding", "Identity"), Ok(()));
        assert_eq!(of("content-range", "bytes 0-1/2"), Err(400));
        assert_eq!(of("content-type", "video/mp2t"), Ok(()));
    }
}
