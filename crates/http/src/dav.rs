//! WebDAV requests beside titles: properties, collections and locks (RFC 4918, class 2).
//!
//! Promise: a client gets no more information than from the page of the directory, unless it has
//! the right to read everything there. An answer lists a whole directory, or is visibly truncated.
//! Its memory is bounded: by the length of bodies ([`XML_BYTES_MAX`]), the number of properties in
//! a request, and the part of a listing that is held while it is sent. Properties are those of the
//! file system; none is stored.

mod xml;

mod request_body;

mod response_body;

mod lock;

use tactus_control::rights::Right;
use tactus_core::path::RequestPath;
use tactus_core::units::WallTime;
use tactus_storage::catalogue::{Detail, Entry, EntryKind, ListingScope, OpenFault, PathInfo};
use tactus_storage::store::{ChangeError, Precondition, Principal, QuotaUsage};

use super::settings::PublicUrl;
use request_body::PropertyQuery;

use super::Store;
use super::answer::{if_down, not_served};
use super::fields::Fields;
use super::framing::Body;
use super::incoming::{BodyEnd, Incoming};
use super::locking::Locking;
use super::locks::Change;
use super::oc;
use super::public;
use super::put::{BodyOutcome, location};
use super::request::Request;
use super::response::Response;
use super::uploads::{ALLOWED, Refusal, not_changed, not_stored, precondition};

pub(super) use lock::{lock, unlock};

/// The longest XML body, in bytes. Clients send less than a thousandth of it.
const XML_BYTES_MAX: u64 = 64 * tactus_core::units::KIB;

/// PROPFIND: the properties of `path` and of its members.
pub(super) async fn find(
    store: &Store,
    public: &PublicUrl,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let fields = &request.fields;
    // A principal with the right to read sees all names.
    let mut principal = None;
    let within = match &store.uploads {
        Some(uploads) if uploads.is_told_who(fields) => {
            let caller = uploads.caller(fields)?;
            principal = Some(caller.principal.clone());
            match caller.rights.has(Right::Read, path.name()) {
                true => Some(ListingScope::All),
                false if uploads.is_closed() => {
                    return Err(caller.lacks(Right::Read, Some(path.name())).into());
                }
                false => store.listing.then_some(ListingScope::Shown),
            }
        }
        Some(uploads) if uploads.is_closed() => {
            uploads.check_reader(fields, path.name())?;
            None
        }
        _ => store.listing.then_some(ListingScope::Shown),
    };
    let deep = match fields.one("depth") {
        Some(b"0") => false,
        Some(b"1") => true,
        // RFC 4918 section 9.1: a missing `Depth` means `infinity`.
        None => return Err(endless().into()),
        Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => return Err(endless().into()),
        Some(_) => {
            return Err(Response::text(
                400,
                "the field Depth must be 0, 1 or \
            infinity",
            )
            .into());
        }
    };
    let body = match body(incoming).await? {
        Ok(body) => body,
        Err(ended) => return Ok(BodyOutcome::BodyEnd(ended)),
    };
    let asked =
        request_body::propfind(&body).map_err(|bad| Response::text(400, bad.to_string()))?;
    if let Some(volume) = store.catalogue.volume_at(path) {
        if_down(&store.watchdog, &store.catalogue, volume)?;
    }
    let detail = match asked.names(oc::NAMESPACE, "checksums") {
        true => Detail::Digests,
        false => Detail::Status,
    };
    let looked = store.catalogue.look(path, within.filter(|_| deep), detail).await;
    let sight = looked.map_err(not_served)?;
    if within.is_none() && sight.own.kind == EntryKind::Directory {
        return Err(not_shown(store, fields));
    }
    // Clients send their token only after a 401.
    if asks_for_room(&asked)
        && fields.one("authorization").is_none()
        && let Some(uploads) = &store.uploads
        && uploads.may_anybody()
        && let Err(refused) = uploads.caller(fields)
    {
        return Err(refused);
    }
    if asked.bytes() > NAMES_BYTES_MAX {
        return Err(Response::text(507, TOO_LONG).into());
    }
    let locks = store.uploads.as_ref().filter(|uploads| uploads.may_anybody()).map(|uploads| {
        let (locks, prefix) = (uploads.locks.clone(), public::prefix(public, request).to_owned());
        response_body::LockView { locks, principal: principal.clone(), prefix }
    });
    let room = match principal {
        Some(principal) if sight.own.kind == EntryKind::Directory && asks_for_room(&asked) => {
            room(store, path, &principal).await
        }
        _ => None,
    };
    let at = format!("{}{}", public::prefix(public, request), location(path));
    let name = path.name().to_owned();
    let answer = response_body::multistatus((at, name), sight, asked, room, locks).await;
    Ok(BodyOutcome::Answer(answer.map_err(not_served)?))
}

fn asks_for_room(asked: &PropertyQuery) -> bool {
    ["quota-available-bytes", "quota-used-bytes"]
        .iter()
        .any(|name| asked.names(request_body::DAV, name))
}

/// How much a principal may store below `path` (RFC 4331); none if nothing can be stored there.
async fn room(store: &Store, path: &RequestPath, principal: &Principal) -> Option<QuotaUsage> {
    let volume = store.catalogue.volume_at(path)?;
    let volumes = &store.uploads.as_ref()?.volumes;
    volumes.get(usize::from(volume.0))?.as_ref()?.room(principal).await.ok()
}

/// Longest property names of a request: they are repeated for each entry of a directory.
const NAMES_BYTES_MAX: usize = 8 * tactus_core::units::KIB as usize;

const TOO_LONG: &str = "the property names are too long: the answer repeats them for each entry";

/// The refusal of a directory whose page is not shown either.
fn not_shown(store: &Store, fields: &Fields) -> Refusal {
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
    Response::new(403, response_body::XML, error)
}

/// PROPPATCH: sets the modification time of a title or directory. Nothing else can be set, and
/// either all changes are made or none (RFC 4918 section 9.2).
pub(super) async fn set(
    store: &Store,
    locking: Locking<'_>,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Locking { uploads, public, request, .. } = locking;
    let permit = locking.permit(path, vec![Change::of(path.name())]).await?;
    let precondition = precondition(&request.fields)?;
    let body = match body(incoming).await? {
        Ok(body) => body,
        Err(ended) => return Ok(BodyOutcome::BodyEnd(ended)),
    };
    let changes =
        request_body::proppatch(&body).map_err(|bad| Response::text(400, bad.to_string()))?;
    if let Some(volume) = store.catalogue.volume_at(path) {
        if_down(&store.watchdog, &store.catalogue, volume)?;
    }
    let looked = store.catalogue.look(path, None, Detail::Digests).await;
    let PathInfo { own, .. } = looked.map_err(not_served)?;
    let mut modified = None;
    let mut possible = Vec::with_capacity(changes.len());
    for change in &changes {
        let effect = effect(change, &own);
        if let Some(Effect::Modified(time)) = effect {
            modified = Some(time);
        }
        possible.push(effect.is_some());
    }
    let all = possible.iter().all(|possible| *possible);
    if all && let Some(modified) = modified {
        let spot = uploads.place(&store.catalogue, path)?;
        let _under_way = permit.begin()?;
        let set = spot.store.set_modified(&spot.path, precondition, modified).await;
        set.map_err(|error| not_changed(&error))?;
    }
    let result = |possible| match (possible, all) {
        (true, true) => response_body::PropertyResult::Set,
        (true, false) => response_body::PropertyResult::Depends,
        (false, _) => response_body::PropertyResult::Refusal,
    };
    let named = changes.into_iter().zip(possible);
    let property_results: Vec<_> =
        named.map(|(change, possible)| (result(possible), change.property)).collect();
    let prefix = public::prefix(public, request);
    Ok(BodyOutcome::Answer(response_body::property_results(prefix, path, &own, &property_results)))
}

/// The effect of changing one property.
enum Effect {
    Modified(WallTime),
    /// Nothing: the property already has this value, or is not stored.
    Nothing,
}

/// The effect of a change; none when it cannot be made.
fn effect(change: &request_body::Change, own: &Entry) -> Option<Effect> {
    let value = change.value.as_deref()?.trim();
    let property = &change.property;
    match (&*property.namespace, property.name.as_str()) {
        (request_body::DAV, "getlastmodified")
        | (response_body::WINDOWS, "Win32LastModifiedTime") => Some(Effect::Modified(date(value)?)),
        // rclone; ownCloud and Nextcloud accept it too.
        (request_body::DAV, "lastmodified") => Some(Effect::Modified(oc::seconds(value)?)),
        // After storing a file, Windows sets all of its properties at once, and treats the refusal
        // of one as a failed copy. The file system keeps none of these.
        (response_body::WINDOWS, "Win32CreationTime" | "Win32LastAccessTime") => {
            date(value).map(|_| Effect::Nothing)
        }
        (response_body::WINDOWS, "Win32FileAttributes") => {
            let is_hex = value.len() <= 8 && u32::from_str_radix(value, 16).is_ok();
            is_hex.then_some(Effect::Nothing)
        }
        // rclone sends its checksums along with a time.
        (oc::NAMESPACE, "checksums") => {
            let known = own.digests.as_ref()?.text();
            let has = |sum: &str| known.split(' ').any(|one| one.eq_ignore_ascii_case(sum));
            (!value.is_empty() && value.split_ascii_whitespace().all(has))
                .then_some(Effect::Nothing)
        }
        _ => None,
    }
}

/// An HTTP date; dates before 1970 become 1970.
fn date(value: &str) -> Option<WallTime> {
    let date = httpdate::parse_http_date(value).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Some(WallTime(u64::try_from(since.as_nanos()).ok()?))
}

/// MKCOL: makes the directory `path`.
pub(super) async fn make(locking: Locking<'_>, path: &RequestPath) -> Result<Response, Refusal> {
    let Locking { uploads, catalogue, request, .. } = locking;
    let permit = locking.permit(path, vec![Change::appearing(path.name())]).await?;
    if !matches!(request.body, Body::None | Body::Length(0)) {
        let text = "MKCOL takes no body; send the request without one";
        return Err(Response::text(415, text).into());
    }
    let there = || {
        let response = Response::text(405, "this name is already in use");
        Refusal::from(response.with("Allow", ALLOWED))
    };
    if path.name().is_empty() || catalogue.holds_mount(path) {
        return Err(there());
    }
    let modified = oc::modified(&request.fields)?;
    // A condition that requires an existing resource fails, because MKCOL needs a free name.
    precondition(&request.fields)?.holds_for(None).map_err(|error| not_stored(&error))?;
    let spot = uploads.new_place(catalogue, path)?;
    let _under_way = permit.begin()?;
    match spot.store.make_directory(&spot.path).await {
        Ok(()) => {
            if let Some(modified) = modified {
                let any = Precondition::Any;
                let set = spot.store.set_modified(&spot.path, any, modified).await;
                set.map_err(|error| not_changed(&error))?;
            }
            let location = format!("{}/", location(path));
            let made = Response::text(201, "made").with("Location", location);
            Ok(oc::accepted(made, modified))
        }
        Err(ChangeError::Exists) => Err(there()),
        Err(error) => Err(not_changed(&error).into()),
    }
}

/// Reads the body into memory, up to the limit.
async fn body(incoming: &mut Incoming<'_>) -> Result<Result<Vec<u8>, BodyEnd>, Refusal> {
    match incoming.whole(XML_BYTES_MAX).await {
        Ok(Some(body)) => Ok(Ok(body)),
        Ok(None) => Err(Response::text(413, "no client needs so much XML").into()),
        Err(ended) => Ok(Err(ended)),
    }
}

/// Fuzz target: any bytes as a body. A valid body can be answered, and the answer is XML.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn understood(bytes: &[u8]) -> bool {
    let (asked, named) = (request_body::propfind(bytes), request_body::proppatch(bytes));
    let wanted = request_body::lockinfo(bytes);
    if let Ok(wanted) = &wanted {
        lock::check(wanted);
    }
    if let Ok(asked) = &asked {
        response_body::check(asked);
    }
    if let Ok(named) = &named {
        assert!(!named.is_empty());
        let named = named.iter().map(|change| change.property.clone());
        response_body::check(&request_body::PropertyQuery::These(named.collect()));
    }
    asked.is_ok() || named.is_ok() || wanted.is_ok()
}

/// Writes the parts of the answer to a PROPFIND with this body, for a directory with entries of
/// these `names`; returns whether the body is valid.
///
/// # Panics
/// When a part is longer than it may be.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check_parts(body: &[u8], names: &[&str]) -> bool {
    let Ok(asked) = request_body::propfind(body) else { return false };
    let is_taken = asked.bytes() <= NAMES_BYTES_MAX;
    if is_taken {
        response_body::check_parts(asked, names);
    }
    is_taken
}
