//! Checks whether locks, and WebDAV's conditions on them, allow a change (RFC 4918 sections 6, 7
//! and 10.4).
//!
//! Promise: the objects under a lock are changed only by a request with its token and from its
//! principal. The locks are checked before the body of a request, for an early refusal, and again
//! before the change. Between the second check and the end of the change, no conflicting lock is
//! granted.

use std::sync::Arc;

use tactus_core::path::{RequestPath, encode_segment};
use tactus_storage::catalogue::{Catalogue, Detail, Entry, EntryKind, OpenFault};
use tactus_storage::store::Principal;

use super::answer::not_served;
use super::if_lists::{self, List, State};
use super::locks::{self, Change, ChangeGuard, Locks};
use super::public;
use super::request::Request;
use super::response::Response;
use super::rights::Caller;
use super::settings::PublicUrl;
use super::uploads::{Refusal, Uploads};

/// A request for a change, with everything that the check of its locks needs.
#[derive(Clone, Copy)]
pub(super) struct Locking<'a> {
    pub(super) uploads: &'a Uploads,
    pub(super) catalogue: &'a Arc<Catalogue>,
    pub(super) public: &'a PublicUrl,
    pub(super) request: &'a Request,
    pub(super) caller: &'a Caller<'a>,
}

/// Changes that the locks allow at the moment.
#[derive(Debug)]
pub(super) struct Permit {
    locks: Locks,
    changes: Vec<Change>,
    tokens: Vec<String>,
    principal: Principal,
    /// The prefix of each path in answers.
    prefix: String,
}

impl Locking<'_> {
    /// Refuses a request that `If` does not allow (412), or whose objects are locked (423). `path`
    /// is the path of the request.
    pub(super) async fn permit(
        &self,
        path: &RequestPath,
        changes: Vec<Change>,
    ) -> Result<Permit, Refusal> {
        let lists = match self.request.fields.one("if") {
            Some(value) => if_lists::lists(value)?,
            None => Vec::new(),
        };
        if !lists.is_empty() && !self.holds(path, &lists).await? {
            let text = "no condition of the If field holds: the lock has expired, or the title \
                has another version";
            return Err(Response::text(412, text).into());
        }
        let permit = Permit {
            locks: self.uploads.locks.clone(),
            changes,
            tokens: if_lists::tokens(&lists),
            principal: self.caller.principal.clone(),
            prefix: public::prefix(self.public, self.request).to_owned(),
        };
        permit.check()?;
        Ok(permit)
    }

    /// The change that stores an object at `path`. If nothing is there yet, the change also adds a
    /// name.
    pub(super) async fn storing(&self, path: &RequestPath) -> Result<Change, Refusal> {
        storing(self.uploads, self.catalogue, path).await
    }

    /// Whether one of the lists is true.
    async fn holds(&self, path: &RequestPath, lists: &[List<'_>]) -> Result<bool, Refusal> {
        for list in lists {
            let about = match list.resource {
                None => Some(path.clone()),
                // The state of a URL of another server is unknown here.
                Some(url) => public::path_of(self.public, self.request, url).ok(),
            };
            if self.all_hold(about.as_ref(), list).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn all_hold(
        &self,
        about: Option<&RequestPath>,
        list: &List<'_>,
    ) -> Result<bool, Refusal> {
        let mut etag = None;
        for condition in &list.conditions {
            let holds = match (&condition.state, about) {
                (_, None) => false,
                (State::Token(token), Some(about)) => self.uploads.locks.has(about.name(), token),
                (State::Tag(tag), Some(about)) => {
                    if etag.is_none() {
                        let looked = self.catalogue.look(about, None, Detail::Status).await;
                        etag = Some(looked.ok().and_then(|sight| sight.own.etag));
                    }
                    etag.as_ref().is_some_and(|etag| etag.as_ref() == Some(tag))
                }
            };
            if holds == condition.not {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The object at `path`; none if nothing is there.
    pub(super) async fn present(&self, path: &RequestPath) -> Result<Option<Entry>, Refusal> {
        Ok(present(self.catalogue, path).await?)
    }

    /// Whether the parent directory of `path` exists.
    pub(super) async fn has_directory(&self, path: &RequestPath) -> Result<bool, Refusal> {
        let above = path_of(locks::above(path.name()))?;
        let own = self.present(&above).await?;
        Ok(own.is_some_and(|own| own.kind == EntryKind::Directory))
    }
}

impl Permit {
    /// Checks the locks again. Conflicting locks wait until the returned guard is dropped.
    pub(super) fn begin(&self) -> Result<ChangeGuard, Response> {
        let begun = self.locks.begin(&self.changes, &self.tokens, &self.principal);
        begun.map_err(|path| locked(&self.prefix, &path, "lock-token-submitted"))
    }

    /// The lock tokens of the request.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Ends the locks at these paths and below them, because the objects are gone.
    pub(super) fn forget(&self, paths: &[&RequestPath]) {
        paths.iter().for_each(|path| self.locks.forget(path.name()));
    }

    fn check(&self) -> Result<(), Response> {
        match self.locks.forbids(&self.changes, &self.tokens, &self.principal) {
            None => Ok(()),
            Some(path) => Err(locked(&self.prefix, &path, "lock-token-submitted")),
        }
    }
}

/// The change that stores an object at `path`, as [`Locking::storing`] has it.
pub(super) async fn storing(
    uploads: &Uploads,
    catalogue: &Arc<Catalogue>,
    path: &RequestPath,
) -> Result<Change, Refusal> {
    let mut change = Change::of(path.name());
    if !uploads.locks.guard_names_above(path.name()) {
        return Ok(change);
    }
    let mut name = path.name();
    while !name.is_empty() && present(catalogue, &path_of(name)?).await?.is_none() {
        name = locks::above(name);
        change.within.push(name.to_owned());
    }
    Ok(change)
}

async fn present(
    catalogue: &Arc<Catalogue>,
    path: &RequestPath,
) -> Result<Option<Entry>, Response> {
    match catalogue.look(path, None, Detail::Status).await {
        Ok(sight) => Ok(Some(sight.own)),
        Err(OpenFault::NotFound) => Ok(None),
        Err(fault) => Err(not_served(fault)),
    }
}

/// 423, with the path of the lock and the violated condition of RFC 4918 section 16.
pub(super) fn locked(prefix: &str, path: &str, condition: &str) -> Response {
    let mut href = String::from(prefix);
    path.split('/').filter(|segment| !segment.is_empty()).for_each(|segment| {
        href.push('/');
        encode_segment(segment, &mut href);
    });
    if href.is_empty() {
        href.push('/');
    }
    let href = href.replace('&', "&amp;");
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
         <D:error xmlns:D=\"DAV:\"><D:{condition}><D:href>{href}</D:href></D:{condition}>\
         <t:message xmlns:t=\"urn:tactus\">this is locked by another client: send the token of \
         the lock, \
         or try again when it has ended</t:message></D:error>\n"
    );
    Response::new(423, "application/xml; charset=utf-8", xml)
}

/// A decoded path as the path of a request.
pub(super) fn path_of(name: &str) -> Result<RequestPath, Response> {
    let mut path = String::new();
    for segment in name.split('/') {
        // The root has an empty path.
        path.push('/');
        encode_segment(segment, &mut path);
    }
    RequestPath::parse(path.as_bytes()).map_err(|fault| Response::text(400, fault.to_string()))
}
