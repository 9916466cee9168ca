//! LOCK and UNLOCK (RFC 4918 sections 9.10 and 9.11).
//!
//! Promise: a lock is granted only to a client that may store a title at its path. If nothing is
//! there, LOCK stores an empty title, as durable as any other (section 7.3). An empty title has no
//! incomplete state.

use std::time::Duration;

use tactus_control::rights::Right;
use tactus_core::path::RequestPath;
use tactus_core::units::SECOND;
use tactus_storage::catalogue::{Entry, EntryKind};
use tactus_storage::store::{Precondition, UploadError, UploadSpec};

use super::{body, request_body, response_body};
use crate::fields::Fields;
use crate::incoming::Incoming;
use crate::locking::{Locking, locked};
use crate::locks::{Depth, Lock, LockError, LockRequest, UnlockError};
use crate::public;
use crate::put::{BodyOutcome, location};
use crate::response::Response;
use crate::uploads::{Refusal, not_stored, precondition};

/// LOCK: locks `path`, or extends a lock that covers it.
pub(crate) async fn lock(
    locking: Locking<'_>,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let body = match body(incoming).await? {
        Ok(body) => body,
        Err(ended) => return Ok(BodyOutcome::BodyEnd(ended)),
    };
    let answer = match body.trim_ascii().is_empty() {
        true => refresh(locking, path).await,
        false => grant(locking, path, &body).await,
    };
    answer.map(BodyOutcome::Answer)
}

async fn grant(locking: Locking<'_>, path: &RequestPath, body: &[u8]) -> Result<Response, Refusal> {
    let Locking { uploads, catalogue, request, caller, .. } = locking;
    let fields = &request.fields;
    let info = request_body::lockinfo(body).map_err(|bad| Response::text(400, bad.to_string()))?;
    let depth = match fields.one("depth") {
        None => Depth::Infinity,
        Some(b"0") => Depth::Zero,
        Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => Depth::Infinity,
        Some(_) => {
            return Err(Response::text(
                400,
                "the Depth of a lock must be 0 or \
            infinity",
            )
            .into());
        }
    };
    let (timeout, condition) = (timeout(fields), precondition(fields)?);
    if !(caller.rights.has(Right::Publish, path.name())
        || caller.rights.has(Right::Replace, path.name()))
    {
        return Err(caller.lacks(Right::Publish, Some(path.name())).into());
    }
    let spot = uploads.new_place(catalogue, path)?;
    let own = locking.present(path).await?;
    let version = own.as_ref().map(|own| {
        let modified = own.modified.map_or(0, |time| time.0 / SECOND.0);
        (own.etag.clone(), i64::try_from(modified).unwrap_or(i64::MAX))
    });
    condition.holds_for(version).map_err(|error| not_stored(&error))?;
    let is_directory = own.as_ref().is_some_and(|own| own.kind == EntryKind::Directory);
    let changes = match &own {
        Some(Entry { kind: EntryKind::Directory, .. }) => Vec::new(),
        Some(_) => {
            caller.check(Right::Replace, path.name())?;
            Vec::new()
        }
        None => {
            caller.check(Right::Publish, path.name())?;
            if path.is_directory() || !locking.has_directory(path).await? {
                let text = "a missing directory cannot be locked; create it with MKCOL first";
                return Err(Response::text(409, text).into());
            }
            vec![locking.storing(path).await?]
        }
    };
    locking.permit(path, changes).await?;
    let (principal, scope, owner) = (caller.principal.clone(), info.scope, info.owner);
    let name = path.name().to_owned();
    let lock_request =
        LockRequest { path: name, is_directory, scope, depth, principal, owner, timeout };
    let lock = uploads.locks.lock(lock_request).await.map_err(|error| refused(locking, &error))?;
    if own.is_some() {
        return Ok(granted(locking, 200, &lock));
    }
    // The lock is granted, so no other client can store the title.
    let put = UploadSpec {
        path: spot.path,
        len: Some(0),
        precondition: Precondition::CreateOnly,
        principal: caller.principal.clone(),
    };
    let stored = match spot.store.begin(put).await {
        Ok(upload) => upload.finish().await.map(|_| 201),
        Err(error) => Err(error),
    };
    match stored {
        Ok(status) => Ok(granted(locking, status, &lock).with("Location", location(path))),
        // Another client has stored a title since the start of this request.
        Err(UploadError::Exists) => Ok(granted(locking, 200, &lock)),
        Err(error) => {
            uploads.locks.forget(path.name());
            Err(not_stored(&error).into())
        }
    }
}

/// A LOCK without a body: extends the lock whose token is in `If`.
async fn refresh(locking: Locking<'_>, path: &RequestPath) -> Result<Response, Refusal> {
    let Locking { uploads, request, caller, .. } = locking;
    if request.fields.one("if").is_none() {
        let text = "LOCK needs a body for a new lock, or an If field to refresh one";
        return Err(Response::text(400, text).into());
    }
    let permit = locking.permit(path, Vec::new()).await?;
    let timeout = timeout(&request.fields);
    let (tokens, principal) = (permit.tokens(), &caller.principal);
    match uploads.locks.refresh(path.name(), tokens, principal, timeout) {
        Some(lock) => Ok(told(locking, 200, &lock)),
        None => Err(condition(412, "lock-token-matches-request-uri").into()),
    }
}

/// UNLOCK: releases the lock that `Lock-Token` names. With the right `manage` a client also
/// releases locks of others.
pub(crate) fn unlock(locking: Locking<'_>, path: &RequestPath) -> Result<Response, Refusal> {
    let Locking { uploads, request, caller, .. } = locking;
    let token = request.fields.one("lock-token");
    let token = token.and_then(|token| token.strip_prefix(b"<")?.strip_suffix(b">"));
    let token = token.and_then(|token| std::str::from_utf8(token).ok());
    let text = "write which lock: Lock-Token: <token>";
    let token = token.ok_or_else(|| Response::text(400, text))?;
    let any = caller.rights.has_somewhere(Right::Manage);
    match uploads.locks.unlock(path.name(), token, &caller.principal, any) {
        Ok(()) => Ok(Response::empty(204)),
        Err(UnlockError::Unknown) => Err(condition(409, "lock-token-matches-request-uri").into()),
        Err(UnlockError::NotYours) => {
            let text = "this lock belongs to another principal; the right \"manage\" is needed to \
                release it";
            Err(Response::text(403, text).into())
        }
    }
}

/// The answer for a granted lock.
fn granted(locking: Locking<'_>, status: u16, lock: &Lock) -> Response {
    told(locking, status, lock).with("Lock-Token", format!("<{}>", lock.token))
}

fn told(locking: Locking<'_>, status: u16, lock: &Lock) -> Response {
    let active = response_body::active(lock, prefix(locking), &locking.caller.principal);
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
         <D:prop xmlns:D=\"DAV:\"><D:lockdiscovery>{active}</D:lockdiscovery></D:prop>\n"
    );
    Response::new(status, response_body::XML, xml).with("Cache-Control", "no-store")
}

fn prefix<'a>(locking: Locking<'a>) -> &'a str {
    public::prefix(locking.public, locking.request)
}

/// The answer for a refused lock.
fn refused(locking: Locking<'_>, error: &LockError) -> Response {
    match error {
        LockError::Locked(path) => locked(prefix(locking), path, "no-conflicting-lock"),
        error => Response::text(503, error.to_string()).with("Retry-After", "60"),
    }
}

/// A refusal that names the violated condition (section 16).
fn condition(status: u16, name: &str) -> Response {
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:error xmlns:D=\"DAV:\"><D:{name}/>\
         </D:error>\n"
    );
    Response::new(status, response_body::XML, xml)
}

/// `Timeout` (section 10.7): the first valid time; none for the longest possible one.
fn timeout(fields: &Fields) -> Option<Duration> {
    let mut wanted = fields.list("timeout").filter_map(|one| std::str::from_utf8(one).ok());
    let first = wanted.find_map(|one| match one.split_once('-') {
        None if one.eq_ignore_ascii_case("infinite") => Some(None),
        Some((second, digits)) if second.eq_ignore_ascii_case("second") => {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            // A value above the range of 64 bits means the longest possible time.
            plain.then(|| digits.parse().ok().map(Duration::from_secs))
        }
        _ => None,
    });
    first.flatten()
}

/// A valid body can be repeated as XML.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check(wanted: &request_body::LockInfo) {
    let Some(owner) = &wanted.owner else { return };
    let text = format!("<a xmlns:D=\"DAV:\">{owner}</a>");
    let read = || {
        let mut xml = super::xml::Xml::new(&text)?;
        xml.root()?;
        let name = xml.child()?;
        xml.skip()?;
        let more = xml.child()?;
        xml.end()?;
        Ok::<_, super::xml::BadXml>((name, more))
    };
    let (name, more) = read().unwrap_or_else(|error| panic!("{error}: {text}"));
    let name = name.expect("there is one element");
    assert_eq!((&*name.namespace, &*name.local), (request_body::DAV, "owner"), "{text}");
    assert_eq!(more, None, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::Scope;

    fn lockinfo(body: &str) -> Result<request_body::LockInfo, request_body::BadBody> {
        let info = request_body::lockinfo(body.as_bytes());
        if let Ok(info) = &info {
            check(info);
        }
        info
    }

    /// Bodies from clients: macOS, Windows, then davfs2 and cadaver.
    #[test]
    fn w05_the_locks_that_clients_ask_for_are_understood_and_their_owner_is_told_again() {
        let exclusive =
            "<D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>";
        for (body, scope, owner) in [
            (
                format!(
                    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:lockinfo \
                     xmlns:D=\"DAV:\">\n{exclusive}\
                     <D:owner>\n<D:href>http://www.apple.com/webdav_fs/</D:href>\n</D:owner>\n</D:lockinfo>\n"
                ),
                Scope::Exclusive,
                Some("<D:owner>\n<D:href>http://www.apple.com/webdav_fs/</D:href>\n</D:owner>"),
            ),
            (
                format!(
                    "<?xml version=\"1.0\" encoding=\"utf-8\" ?><D:lockinfo xmlns:D=\"DAV:\">\
                     {exclusive}\
                     <D:owner><D:href>PC\\User</D:href></D:owner></D:lockinfo>"
                ),
                Scope::Exclusive,
                Some("<D:owner><D:href>PC\\User</D:href></D:owner>"),
            ),
            (
                "<lockinfo xmlns='DAV:'>\n <lockscope><exclusive/></lockscope>\n\
                 <locktype><write/></locktype><owner>davfs2/1.6.1 &amp; neon</owner></lockinfo>"
                    .into(),
                Scope::Exclusive,
                Some("<D:owner>davfs2/1.6.1 &amp; neon</D:owner>"),
            ),
            (
                "<lockinfo xmlns='DAV:'><locktype><write/></locktype><lockscope><shared/>\
                 </lockscope></lockinfo>"
                    .into(),
                Scope::Shared,
                None,
            ),
            // Names keep their meaning in the answer.
            (
                format!(
                    "<D:lockinfo xmlns:D='DAV:' xmlns='u:0' xmlns:a='u:&lt;1>' xmlns:b='u:2'>\
                     {exclusive}\
                     <D:owner a:x='1' xmlns:a='u:3'><c/><a:d><![CDATA[<]]></a:d><!-- b -->\
                     </D:owner></D:lockinfo>"
                ),
                Scope::Exclusive,
                Some(
                    "<D:owner xmlns=\"u:0\" xmlns:a=\"u:3\"><c/><a:d><![CDATA[<]]></a:d><!-- b -->\
                     </D:owner>",
                ),
            ),
            (
                "<d:lockinfo xmlns:d='DAV:' xmlns:D='u:x'><d:lockscope><d:exclusive/></d:lockscope>\
                 <d:locktype><d:write/></d:locktype><d:owner><D:y/></d:owner></d:lockinfo>"
                    .into(),
                Scope::Exclusive,
                Some("<D0:owner xmlns:D0=\"DAV:\" xmlns:D=\"u:x\"><D:y/></D0:owner>"),
            ),
            (
                format!("<D:lockinfo xmlns:D='DAV:'>{exclusive}<D:owner/></D:lockinfo>"),
                Scope::Exclusive,
                Some("<D:owner></D:owner>"),
            ),
        ] {
            let info = lockinfo(&body).unwrap_or_else(|bad| panic!("{bad}: {body}"));
            assert_eq!((info.scope, info.owner.as_deref()), (scope, owner), "{body}");
        }
    }

    #[test]
    fn w05_a_lock_is_asked_for_clearly_or_not_at_all() {
        let of = |inner: &str| lockinfo(&format!("<lockinfo xmlns='DAV:'>{inner}</lockinfo>"));
        let (scope, kind) =
            ("<lockscope><exclusive/></lockscope>", "<locktype><write/></locktype>");
        for bad in [
            "".to_owned(),
            scope.to_owned(),
            kind.to_owned(),
            format!("{scope}{scope}{kind}"),
            format!("{scope}{kind}{kind}"),
            format!("{kind}<lockscope><exclusive/><shared/></lockscope>"),
            format!("{kind}<lockscope><mine/></lockscope>"),
            format!("{kind}<lockscope/>"),
            format!("{scope}<locktype><read/></locktype>"),
            format!("{scope}{kind}<owner/><owner/>"),
            format!("{scope}{kind}<owner><a></owner>"),
            format!("{scope}{kind}<owner>&e;</owner>"),
        ] {
            assert!(of(&bad).is_err(), "{bad}");
        }
        let owner = |len: usize| of(&format!("{scope}{kind}<owner>{}</owner>", "x".repeat(len)));
        assert!(owner(2000).is_ok());
        assert_eq!(owner(2048), Err(request_body::BadBody::LongOwner));
        let names = |count: usize| {
            let all: String = (0..count).map(|n| format!("<p{n}:a xmlns:p{n}='u'/>")).collect();
            of(&format!("{scope}{kind}<owner>{all}</owner>"))
        };
        assert!(names(15).is_ok() && names(17) == Err(request_body::BadBody::LongOwner));
    }

    #[test]
    fn w05_times_of_locks_are_read_as_clients_write_them() {
        let of = |value: &str| timeout(&Fields::of(&[("timeout", value)])).map(|t| t.as_secs());
        assert_eq!(of("Second-600"), Some(600));
        assert_eq!(of("Infinite, Second-4100000000"), None);
        assert_eq!(of("Extend-1, second-5, Infinite"), Some(5));
        assert_eq!(of("Second-99999999999999999999"), None);
        for unknown in ["", "600", "Second-", "Second--1", "Second-1.5", "Minute-1"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
        assert_eq!(timeout(&Fields::of(&[])), None);
    }
}
