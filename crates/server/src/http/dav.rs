//! What WebDAV clients ask and change beside titles: properties and collections (RFC 4918, class 1).
//!
//! Promise: nobody learns more by it than by the page of a directory, except who may change everything
//! there anyway; an answer names all that is in a directory, or is none. Its memory is bounded: by the
//! bodies that are read ([`XML_BYTES_MAX`]), the properties that one may name, the entries of a listing
//! and the bytes of an answer. Properties are the file system's; none is stored, and nothing is locked.

mod xml;

mod ask;

mod tell;

use tactus_core::path::RequestPath;

use super::Store;
use super::answer::{if_down, not_served};
use super::fields::Fields;
use super::framing::Body;
use super::incoming::{Ended, Incoming};
use super::public;
use super::put::{Taken, location};
use super::request::Request;
use super::response::Response;
use super::uploads::{ALLOWED, Refused, Uploads, not_changed, unlocked};
use crate::catalogue::{EntryKind, OpenFault, Sight, Within};
use crate::config::http::PublicUrl;
use crate::config::rights::Right;
use crate::store::ChangeError;

/// The longest body of XML that is read. Clients send less than a thousandth.
const XML_BYTES_MAX: u64 = 64 * tactus_core::units::KIB;

/// PROPFIND: what `path` is, and what is in it.
pub(super) async fn find(
    store: &Store,
    public: &PublicUrl,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<Taken, Refused> {
    let fields = &request.fields;
    // Who has the right to read sees all that is there.
    let within = match &store.uploads {
        Some(uploads) if fields.one("authorization").is_some() => {
            let caller = uploads.caller(fields)?;
            match caller.rights.has(Right::Read, path.name()) {
                true => Some(Within::Everything),
                false if uploads.is_closed() => {
                    return Err(caller.lacks(Right::Read, Some(path.name())).into());
                }
                false => store.listing.then_some(Within::Shown),
            }
        }
        Some(uploads) if uploads.is_closed() => {
            uploads.check_reader(fields, path.name())?;
            None
        }
        _ => store.listing.then_some(Within::Shown),
    };
    let deep = match fields.one("depth") {
        Some(b"0") => false,
        Some(b"1") => true,
        // RFC 4918 section 9.1: this is what it means to say nothing.
        None => return Err(endless().into()),
        Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => return Err(endless().into()),
        Some(_) => return Err(Response::text(400, "Depth is 0, 1 or infinity").into()),
    };
    let body = match body(incoming).await? {
        Ok(body) => body,
        Err(ended) => return Ok(Taken::Ended(ended)),
    };
    let asked = ask::propfind(&body).map_err(|bad| Response::text(400, bad.to_string()))?;
    if let Some(volume) = store.catalogue.volume_at(path) {
        if_down(&store.pulse, &store.catalogue, volume)?;
    }
    let looked = store.catalogue.look(path, within.filter(|_| deep)).await;
    let sight = looked.map_err(not_served)?;
    if within.is_none() && sight.own.kind == EntryKind::Directory {
        return Err(not_shown(store, fields));
    }
    let prefix = public::prefix(public, request);
    let Some(answer) = tell::multistatus(prefix, path, &sight, &asked) else {
        return Err(Response::text(507, TOO_MANY).into());
    };
    Ok(Taken::Answer(answer))
}

/// A client that believed half a listing would delete the other half somewhere else.
const TOO_MANY: &str = "there is more in this directory than one answer can name";

/// The refusal of a directory whose page is not shown either.
fn not_shown(store: &Store, fields: &Fields) -> Refused {
    match &store.uploads {
        Some(uploads) => match uploads.caller(fields) {
            Err(refused) => refused,
            Ok(_) => not_served(OpenFault::NotFound).into(),
        },
        None => not_served(OpenFault::NotFound).into(),
    }
}

/// RFC 4918 section 9.1.1: whole trees at once are not listed.
fn endless() -> Response {
    let error = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
                 <D:error xmlns:D=\"DAV:\"><D:propfind-finite-depth/></D:error>\n";
    Response::new(403, tell::XML, error)
}

/// PROPPATCH: no property of a title or a directory can be set, and each is told so.
pub(super) async fn set(
    store: &Store,
    public: &PublicUrl,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<Taken, Refused> {
    unlocked(&request.fields)?;
    let body = match body(incoming).await? {
        Ok(body) => body,
        Err(ended) => return Ok(Taken::Ended(ended)),
    };
    let named = ask::proppatch(&body).map_err(|bad| Response::text(400, bad.to_string()))?;
    if let Some(volume) = store.catalogue.volume_at(path) {
        if_down(&store.pulse, &store.catalogue, volume)?;
    }
    let Sight { own, .. } = store.catalogue.look(path, None).await.map_err(not_served)?;
    let prefix = public::prefix(public, request);
    Ok(Taken::Answer(tell::refusals(prefix, path, &own, &named)))
}

/// MKCOL: makes the directory `path`.
pub(super) async fn make(
    uploads: &Uploads,
    store: &Store,
    request: &Request,
    path: &RequestPath,
) -> Result<Response, Refused> {
    unlocked(&request.fields)?;
    if !matches!(request.body, Body::None | Body::Length(0)) {
        let text = "a directory is made without a body";
        return Err(Response::text(415, text).into());
    }
    let there = || {
        let response = Response::text(405, "something has this name already");
        Refused::from(response.with("Allow", ALLOWED))
    };
    if path.name().is_empty() || store.catalogue.holds_mount(path) {
        return Err(there());
    }
    let spot = uploads.place(&store.catalogue, path)?;
    match spot.store.make_directory(&spot.path).await {
        Ok(()) => {
            let location = format!("{}/", location(path));
            Ok(Response::text(201, "made").with("Location", location))
        }
        Err(ChangeError::Exists) => Err(there()),
        Err(error) => Err(not_changed(&error).into()),
    }
}

/// Reads the body into memory, as far as one may be.
async fn body(incoming: &mut Incoming<'_>) -> Result<Result<Vec<u8>, Ended>, Refused> {
    match incoming.whole(XML_BYTES_MAX).await {
        Ok(Some(body)) => Ok(Ok(body)),
        Ok(None) => Err(Response::text(413, "no client needs so much XML").into()),
        Err(ended) => Ok(Err(ended)),
    }
}

/// Any bytes as a body: what is understood can be answered, and the answer is XML.
#[cfg(any(test, fuzzing))]
pub(super) fn understood(bytes: &[u8]) -> bool {
    let (asked, named) = (ask::propfind(bytes), ask::proppatch(bytes));
    if let Ok(asked) = &asked {
        tell::check(asked);
    }
    if let Ok(named) = &named {
        assert!(!named.is_empty());
        tell::check(&ask::Asked::These(named.clone()));
    }
    asked.is_ok() || named.is_ok()
}
