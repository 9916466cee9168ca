//! The common checks of every request that changes something: principals, rights, volumes.
//!
//! Promise: without a valid token nothing is changed and nothing is revealed about stored objects.
//! A page of another site cannot use a browser's password for a change. It changes nothing itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tactus_control::api_path::{API_PATH, is_api_path};
use tactus_control::broker::{Broker, ScheduledReader};
use tactus_control::changes::ChangeRefusal;
use tactus_control::engine::Watchdog;
use tactus_control::rights::{Readers, Right};
use tactus_control::settings::{UnfinishedTitles, Volume};
use tactus_core::path::RequestPath;
use tactus_engine::message::VolumeId;
use tactus_storage::catalogue::{Catalogue, OpenFault};
use tactus_storage::store::{
    ChangeError, Identity, KnownIdentities, Limits as StoreLimits, Medium, NameFault, OpenError,
    Precondition, Principal, ResumeError, Store, StoreOptions, UploadError, is_busy,
};

use super::answer::{DOWN_FOR, down, if_down};
use super::conditional::{self, WantedTags};
use super::counters::Abuse;
use super::fields::Fields;
use super::limits::Limits;
use super::locks::{LockLimits, Locks};
use super::principals::{Authentication, Principals};
use super::public;
use super::request::Request;
use super::response::Response;
use super::rights::Caller;
use super::settings::{self, Origins, UploadSettings};

/// Uploads of a site.
#[derive(Clone, Debug)]
pub struct Uploads {
    /// The principals.
    pub principals: Arc<Principals>,
    /// The rights to read.
    readers: Readers,
    /// The stores of the volumes, by number; none for a volume that takes no uploads.
    pub volumes: Arc<[Option<Store>]>,
    /// The reason why a writable volume accepts no uploads.
    closed: Arc<[Option<UploadsOff>]>,
    /// The largest title, in bytes.
    pub object_max: u64,
    /// The write locks of WebDAV.
    pub(super) locks: Locks,
    /// The state of each volume's disk.
    watchdog: Watchdog,
}

/// Why a writable volume accepts no uploads.
#[derive(Clone, PartialEq, Eq, Debug)]
enum UploadsOff {
    /// A write failed and the volume has not been verified since, or it is read-only.
    Failed(String),
    /// Another volume is in its place.
    Lost(String),
}

impl UploadsOff {
    /// The reason for the operator.
    fn reason(&self) -> &str {
        let (Self::Failed(reason) | Self::Lost(reason)) = self;
        reason
    }

    /// The reason for clients, without paths of the host.
    fn public_reason(&self) -> &'static str {
        match self {
            Self::Failed(_) => {
                "a write to this volume failed, and it has not been verified since; see the log"
            }
            Self::Lost(_) => "the disk of this volume is not mounted; see the log",
        }
    }
}

/// Stores the identity of the volume at `root`, so that another volume in its place is detected.
fn store_identity(known: &KnownIdentities, root: &Path) {
    let remembered = Identity::made(root).and_then(|own| known.remember(root, own));
    if let Err(error) = remembered {
        let root = root.display();
        tracing::warn!(
            "cannot store the identity of the volume at {root}: {error}; if its disk is not \
             mounted at the next start, uploads go to the disk below it; set XDG_STATE_HOME, or \
             StateDirectory= in the unit"
        );
    }
}

/// A place for a title, or for a directory.
#[derive(Clone, Debug)]
pub(super) struct StorePath<'a> {
    pub(super) store: &'a Store,
    pub(super) volume: VolumeId,
    /// Its path within the volume; the path of a directory ends with a slash.
    pub(super) path: String,
}

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) response: Response,
    pub(super) abuse: Option<Abuse>,
}

impl From<Response> for Refusal {
    fn from(response: Response) -> Self {
        Self { response, abuse: None }
    }
}

/// The methods of a site that allows changes.
pub(super) const ALLOWED: &str =
    "GET, HEAD, OPTIONS, PUT, DELETE, MOVE, COPY, PROPFIND, PROPPATCH, MKCOL, LOCK, UNLOCK";

/// GNOME Files, and the Finder of macOS with the check before its mount.
const MOUNTING_AGENTS: [&str; 3] = ["gvfs/", "WebDAVFS/", "WebDAVLib/"];

/// The challenges of a 401 (RFC 9110 section 11.6.1): programs use the first, browsers the second.
const CHALLENGE: &str = "Bearer realm=\"tactus\", Basic realm=\"tactus\", charset=\"UTF-8\"";

impl Uploads {
    /// Opens the writable volumes of `settings`, if there are principals or recordings that may use
    /// them. Principals may have rights that need no volume. `media` has the write path of each
    /// volume, by number.
    ///
    /// # Errors
    /// When a token cannot be read, or a volume cannot accept uploads.
    pub async fn open(
        settings: &UploadSettings,
        media: &[Option<Arc<dyn Medium>>],
    ) -> anyhow::Result<Option<Self>> {
        let upload = &settings.upload;
        let somebody = !upload.principals.is_empty() || settings.records;
        let is_somewhere = media.iter().any(Option::is_some);
        if !somebody || (!is_somewhere && upload.principals.is_empty()) {
            return Ok(None);
        }
        let principals = Arc::new(Principals::read(&upload.principals)?);
        let quota = |known: &settings::Principal| Some((Principal::new(&known.name), known.quota?));
        let limits = StoreLimits {
            title_max: upload.object_max,
            uploads_max: upload.open_max,
            uploads_per_principal: upload.open_per_principal_max,
            principal_quotas: upload.principals.iter().filter_map(quota).collect(),
            ..StoreLimits::default()
        };
        let options = StoreOptions {
            limits,
            expiry: Duration::from_nanos(upload.expiry.0),
            ..StoreOptions::default()
        };
        let locks = Locks::new(LockLimits {
            locks_max: upload.locks_max as usize,
            per_principal_max: upload.locks_per_principal_max as usize,
            timeout_max: Duration::from_nanos(upload.lock_timeout_max.0),
        });
        let mut volumes = Vec::with_capacity(settings.volumes.len());
        let mut closed = vec![None; settings.volumes.len()];
        let known = settings.state.as_deref().map(KnownIdentities::within);
        for (volume, medium) in settings.volumes.iter().zip(media) {
            let Some(medium) = medium else {
                volumes.push(None);
                continue;
            };
            if let Some(Err(lost)) = known.as_ref().map(|known| known.check(&volume.path)) {
                tracing::error!("{lost}");
                closed[volumes.len()] = Some(UploadsOff::Lost(lost.to_string()));
                volumes.push(None);
                continue;
            }
            let opening = Store::open(&volume.path, Arc::clone(medium), options.clone());
            match opening.await {
                Ok((store, opened)) => {
                    tracing::info!("{} takes uploads: {opened}", volume.path.display());
                    if let Some(known) = &known {
                        store_identity(known, &volume.path);
                    }
                    volumes.push(Some(store));
                }
                // The volume's titles are served nevertheless.
                Err(
                    error @ (OpenError::Unchecked(_)
                    | OpenError::ReadOnly(_)
                    | OpenError::Foreign { .. }),
                ) => {
                    tracing::error!("{error}");
                    closed[volumes.len()] = Some(UploadsOff::Failed(error.to_string()));
                    volumes.push(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Self {
            principals,
            readers: settings.readers,
            volumes: volumes.into(),
            closed: closed.into(),
            object_max: upload.object_max.0,
            locks,
            watchdog: Watchdog::default(),
        }))
    }

    /// The same uploads, which start nothing on a volume whose disk does not answer.
    pub fn with_watchdog(self, watchdog: Watchdog) -> Self {
        Self { watchdog, ..self }
    }

    /// Whether any principal may store titles.
    #[must_use]
    pub fn may_anybody(&self) -> bool {
        let is_somewhere =
            self.volumes.iter().any(Option::is_some) || self.closed.iter().any(Option::is_some);
        is_somewhere && !self.principals.is_empty()
    }

    /// Why a writable volume accepts no uploads; none if it accepts them.
    #[must_use]
    pub fn trouble(&self, index: usize) -> Option<String> {
        if let Some(Some(closed)) = self.closed.get(index) {
            return Some(closed.reason().to_owned());
        }
        let store = self.volumes.get(index)?.as_ref()?;
        store.broken().map(str::to_owned)
    }

    /// How many titles of a volume wait for their checksums.
    #[must_use]
    pub fn checksums_due(&self, index: usize) -> u64 {
        let store = self.volumes.get(index).and_then(Option::as_ref);
        store.map_or(0, Store::checksums_due)
    }

    /// Whether a volume accepts no uploads because another volume was in its place.
    #[must_use]
    pub fn is_lost(&self, index: usize) -> bool {
        matches!(self.closed.get(index), Some(Some(UploadsOff::Lost(_))))
    }

    /// Closes the volumes; callers ensure that no more changes come.
    pub async fn close(self) {
        let volumes: Vec<_> = self.volumes.iter().flatten().cloned().collect();
        drop(self);
        for store in volumes {
            store.close().await;
        }
    }

    /// Makes reads of the volumes best-effort deliveries of the broker, and compares the next reads
    /// of titles that get their checksums.
    pub fn read_by_plan(&self, broker: &Broker, catalogue: &Arc<Catalogue>) {
        for (index, store) in self.volumes.iter().enumerate() {
            let volume = VolumeId(u16::try_from(index).expect("a host has fewer disks"));
            if let Some(store) = store {
                store.read_by(Arc::new(ScheduledReader::new(broker.clone(), catalogue, volume)));
                let catalogue = Arc::clone(catalogue);
                store.tell_summed(move |file| catalogue.forget(file));
            }
        }
    }

    /// Makes uploads visible in `catalogue` as growing titles, where `volumes` says so.
    pub fn show_unfinished(&self, volumes: &[Volume], catalogue: &Arc<Catalogue>) {
        for (index, (volume, store)) in volumes.iter().zip(self.volumes.iter()).enumerate() {
            if let (UnfinishedTitles::Visible, Some(store)) = (volume.unfinished, store) {
                let id = VolumeId(u16::try_from(index).expect("a host has fewer disks"));
                store.show_unfinished(Arc::clone(catalogue), id);
            }
        }
    }

    /// The sender of the request, if its token is valid.
    pub(super) fn caller(&self, fields: &Fields) -> Result<Caller<'_>, Refusal> {
        self.known(fields, "changes need a token")
    }

    /// Whether `fields` have credentials, valid or not.
    pub(super) fn is_told_who(&self, fields: &Fields) -> bool {
        !matches!(self.principals.who(fields), Authentication::Anonymous)
    }

    /// Refuses a file manager that mounts without credentials, so that it asks its user for a
    /// password. Most file managers ask only at that moment. Otherwise a site that anyone may
    /// read would be mounted without a principal, and read-only.
    pub(super) fn check_mounts(&self, fields: &Fields) -> Result<(), Refusal> {
        let agent = fields.one("user-agent").unwrap_or_default();
        let mounts = MOUNTING_AGENTS.iter().any(|name| agent.starts_with(name.as_bytes()));
        match mounts && self.may_anybody() && fields.one("authorization").is_none() {
            false => Ok(()),
            true => self
                .known(
                    fields,
                    "authentication is required; guests use an empty \
                password",
                )
                .map(drop),
        }
    }

    /// Refuses a caller that may not read `path`.
    pub(super) fn check_reader(&self, fields: &Fields, path: &str) -> Result<(), Refusal> {
        if self.readers == Readers::Anyone {
            return Ok(());
        }
        let caller = self.known(fields, "reading needs a token")?;
        Ok(caller.check(Right::Read, path)?)
    }

    /// Whether only principals may read.
    pub(super) fn is_closed(&self) -> bool {
        self.readers == Readers::Principals
    }

    /// The sender of `fields`; without a valid token, a refusal with `text`.
    fn known(&self, fields: &Fields, text: &'static str) -> Result<Caller<'_>, Refusal> {
        let abuse = match self.principals.who(fields) {
            Authentication::Principal(name, rights) => {
                return Ok(Caller { principal: Principal::new(name), rights });
            }
            Authentication::Invalid => Some(Abuse::WrongToken),
            Authentication::Anonymous => None,
        };
        let response = Response::text(401, text).with("WWW-Authenticate", CHALLENGE);
        Err(Refusal { response, abuse })
    }

    /// The place of the title `path`.
    pub(super) fn spot(
        &self,
        catalogue: &Catalogue,
        path: &RequestPath,
    ) -> Result<StorePath<'_>, Refusal> {
        if path.is_directory() {
            let text = "the path of a title must not end with a slash";
            return Err(Response::text(409, text).into());
        }
        self.new_place(catalogue, path)
    }

    /// The place of a new object with the name `path`.
    pub(super) fn new_place(
        &self,
        catalogue: &Catalogue,
        path: &RequestPath,
    ) -> Result<StorePath<'_>, Refusal> {
        if is_api_path(path.name()) {
            return Err(Response::text(403, API_PATH).into());
        }
        self.place(catalogue, path)
    }

    /// The place of the title or the directory `path`; a directory's path keeps the slash at its
    /// end.
    pub(super) fn place(
        &self,
        catalogue: &Catalogue,
        path: &RequestPath,
    ) -> Result<StorePath<'_>, Refusal> {
        let (store, volume, path) =
            self.store_at(catalogue, path).map_err(|refusal| not_begun(&refusal))?;
        Ok(StorePath { store, volume, path })
    }

    /// The store of the title or the directory `path`, its volume, and its path there.
    pub(super) fn store_at(
        &self,
        catalogue: &Catalogue,
        path: &RequestPath,
    ) -> Result<(&Store, VolumeId, String), ChangeRefusal> {
        let slash = if path.is_directory() { "/" } else { "" };
        let (volume, path) = catalogue.spot(path).map_err(|fault| match fault {
            OpenFault::NotFound => ChangeRefusal::NoUploads("this server accepts no uploads"),
            fault => ChangeRefusal::Failed(fault.to_string()),
        })?;
        if let Some(text) = down(&self.watchdog, catalogue, volume) {
            return Err(ChangeRefusal::Down(text));
        }
        let at = usize::from(volume.0);
        if let Some(Some(closed)) = self.closed.get(at) {
            return Err(ChangeRefusal::Closed(closed.public_reason()));
        }
        let store = self.volumes.get(at).and_then(Option::as_ref);
        let store = store.ok_or(ChangeRefusal::NoUploads("this volume accepts no uploads"))?;
        Ok((store, volume, format!("{path}{slash}")))
    }

    /// Refuses a request that would wait for a disk that does not answer.
    pub(super) fn if_down(&self, catalogue: &Catalogue, volume: VolumeId) -> Result<(), Refusal> {
        Ok(if_down(&self.watchdog, catalogue, volume)?)
    }
}

/// Refuses requests that a browser sends for a page of another site, unless that site is allowed,
/// because the browser would add its stored password.
pub(super) fn check_same_site(limits: &Limits, request: &Request) -> Result<(), Response> {
    match is_cross_site(limits, request) {
        false => Ok(()),
        true => {
            let text = "changes from pages of other sites are refused: add the site to \
                http.allowed_origins; behind a proxy that rewrites the host, set http.public_url";
            Err(Response::text(403, text))
        }
    }
}

/// Browsers send `Sec-Fetch-Site` over TLS and to this machine, otherwise `Origin`. Programs send
/// neither.
fn is_cross_site(limits: &Limits, request: &Request) -> bool {
    let fields = &request.fields;
    let origin = fields.one("origin");
    let is_known = match (&limits.origins, origin) {
        (Origins::List(list), Some(origin)) => list.iter().any(|one| one.as_bytes() == origin),
        // A bearer token comes from the page itself; browsers add only passwords.
        (Origins::Any, Some(_)) => fields
            .one("authorization")
            .and_then(|value| value.get(..7))
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer ")),
        _ => false,
    };
    if is_known {
        return false;
    }
    if let Some(site) = fields.one("sec-fetch-site") {
        return site != b"same-origin" && site != b"none";
    }
    origin.is_some_and(|origin| !public::is_own_origin(&limits.public, request, origin))
}

/// Refuses a request that would cover only a part of a collection (RFC 4918 sections 9.6.1 and
/// 9.9.2).
pub(super) fn whole(fields: &Fields) -> Result<(), Response> {
    match fields.one("depth") {
        None => Ok(()),
        Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => Ok(()),
        Some(_) => Err(Response::text(
            400,
            "a directory is moved or deleted as a whole; remove \
            Depth",
        )),
    }
}

/// The condition of a change, by the fields of RFC 9110 section 13.1 in the order of section
/// 13.2.2. A date is ignored beside `If-Match`.
pub(super) fn precondition(fields: &Fields) -> Result<Precondition, Response> {
    let unmodified_since = conditional::unmodified_since(fields);
    let wanted = conditional::if_match(fields);
    Ok(match (wanted, conditional::if_none_match(fields)) {
        (None, None) => match unmodified_since {
            Some(second) => Precondition::UnmodifiedSince(second),
            None => Precondition::Any,
        },
        // `If-Unmodified-Since` adds nothing here, because the title must not exist.
        (None, Some(WantedTags::Any)) => Precondition::CreateOnly,
        (Some(WantedTags::Any), None) => Precondition::Exists,
        (Some(WantedTags::Listed(tags)), None) => Precondition::Match(tags),
        // A contradiction: no tag matches an empty list.
        (Some(_), Some(WantedTags::Any)) => Precondition::Match(Vec::new()),
        // RFC 9110 section 13.1: an invalid condition must not be ignored.
        (_, Some(WantedTags::Listed(tags))) if tags.is_empty() => {
            return Err(Response::text(400, "If-None-Match must be `*` or quoted entity tags"));
        }
        (Some(WantedTags::Listed(mut tags)), Some(WantedTags::Listed(unwanted))) => {
            tags.retain(|tag| !unwanted.contains(tag));
            Precondition::Match(tags)
        }
        (wanted, Some(WantedTags::Listed(tags))) => {
            Precondition::Unless { tags, exists: wanted.is_some(), unmodified_since }
        }
    })
}

/// The answer to a change that is refused before the store is asked.
fn not_begun(refusal: &ChangeRefusal) -> Response {
    let text = refusal.to_string();
    match refusal {
        ChangeRefusal::NoUploads(_) | ChangeRefusal::Reserved(_) | ChangeRefusal::HoldsVolume => {
            Response::text(403, text)
        }
        ChangeRefusal::InUse => Response::text(409, text),
        ChangeRefusal::Locked(_) => Response::text(423, text),
        ChangeRefusal::Closed(_) => Response::text(503, text).with("Retry-After", "60"),
        ChangeRefusal::Down(_) => Response::text(503, text).with("Retry-After", DOWN_FOR),
        ChangeRefusal::Failed(_) => Response::text(500, text),
    }
}

/// The one place that maps failed uploads to HTTP.
pub(super) fn not_stored(error: &UploadError) -> Response {
    let text = error.to_string();
    match error {
        UploadError::Name(fault) => bad_name(*fault),
        UploadError::Exists | UploadError::PreconditionFailed => Response::text(412, text),
        UploadError::TooLarge(_) | UploadError::QuotaExceeded(_) => Response::text(413, text),
        UploadError::Incomplete { .. } => Response::text(400, text),
        UploadError::NoSpace => Response::text(507, text),
        UploadError::TooMany(_) => Response::text(429, text).with("Retry-After", "60"),
        UploadError::ReadOnly(_) | UploadError::Uncounted(_) => {
            Response::text(503, text).with("Retry-After", "60")
        }
        UploadError::Io(error) if is_busy(error) => no_descriptors(),
        UploadError::Io(_) => Response::text(500, text),
    }
}

/// The answer when the process has no file descriptor left.
fn no_descriptors() -> Response {
    let text = "the server has no file descriptors left; try again shortly. The operator can raise \
                the limit (LimitNOFILE in the unit, or ulimit -n)";
    Response::text(503, text).with("Retry-After", "5")
}

/// The same for uploads that can be resumed.
pub(super) fn not_resumed(error: &ResumeError) -> Response {
    let text = error.to_string();
    match error {
        ResumeError::NotFound => Response::text(404, text),
        ResumeError::OffsetMismatch(offset) => {
            Response::text(409, text).with("Upload-Offset", offset.to_string())
        }
        ResumeError::Locked => Response::text(423, text).with("Retry-After", "1"),
        ResumeError::Superseded => Response::text(409, text),
        ResumeError::Finished => Response::text(403, text),
        ResumeError::MetadataTooLarge(_) | ResumeError::LengthKnown | ResumeError::Parts(_) => {
            Response::text(400, text)
        }
        ResumeError::Damaged => Response::text(410, text),
        ResumeError::Busy(_) => Response::text(503, text).with("Retry-After", "5"),
        ResumeError::Upload(error) => not_stored(error),
    }
}

/// The same for deletions and renames.
pub(super) fn not_changed(error: &ChangeError) -> Response {
    let text = error.to_string();
    match error {
        ChangeError::NotFound => Response::text(404, text),
        ChangeError::Name(fault) => bad_name(*fault),
        ChangeError::Exists | ChangeError::PreconditionFailed => Response::text(412, text),
        ChangeError::NoSpace => Response::text(507, text),
        ChangeError::ReadOnly(_) => Response::text(503, text).with("Retry-After", "60"),
        ChangeError::Io(error) if is_busy(error) => no_descriptors(),
        ChangeError::Io(_) => Response::text(500, text),
    }
}

fn bad_name(fault: NameFault) -> Response {
    let status = match fault {
        NameFault::Path(_) => 400,
        NameFault::Reserved | NameFault::Itself => 403,
        NameFault::NoDirectory | NameFault::NoTitle | NameFault::NotEmpty => 409,
    };
    Response::text(status, fault.to_string())
}

#[cfg(test)]
mod tests {
    use tactus_notation::net::Net;

    use super::*;
    use crate::forwarded;
    use crate::scan::HeadScan;
    use crate::settings::PublicUrl;
    use crate::transport::Client;

    /// A request with these fields, from `hop` through a trusted proxy.
    fn other(limits: &Limits, all: &[(&str, &str)]) -> bool {
        let mut head = String::from("PUT /a HTTP/1.1\r\n");
        all.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head += "\r\n";
        let end = HeadScan::default().advance(head.as_bytes(), limits).unwrap().unwrap();
        let mut request = Request::parse(head.into_bytes(), end, limits).unwrap();
        let peer = Client::of("127.0.0.1".parse().unwrap());
        request.hop = forwarded::hop(&limits.proxies, peer, &request.fields).ok().map(Box::new);
        is_cross_site(limits, &request)
    }

    #[test]
    fn c01_pages_of_other_sites_are_told_by_their_browser() {
        let other = |all: &[(&str, &str)]| other(&Limits::default(), all);
        assert!(!other(&[("host", "tv:80")]), "programs");
        assert!(!other(&[("host", "tv:80"), ("origin", "http://TV:80")]));
        assert!(!other(&[
            ("host", "behind"),
            ("origin", "https://tv"),
            ("sec-fetch-site", "same-origin")
        ]));
        for origin in ["http://evil", "http://tv", "null", "tv:80", "http://tv:80.evil", ""] {
            assert!(other(&[("host", "tv:80"), ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(
                other(&[("host", "tv"), ("origin", "http://tv"), ("sec-fetch-site", site)]),
                "{site}"
            );
        }
        let forwarded = [("host", "up"), ("origin", "http://tv"), ("x-forwarded-host", "tv")];
        assert!(other(&forwarded), "an untrusted peer is not believed");
    }

    #[test]
    fn w03_a_page_that_a_proxy_shows_is_of_this_site() {
        let mut limits = Limits::default();
        let origin = |origin| [("host", "127.0.0.1:8080"), ("origin", origin)];
        limits.public = PublicUrl::parse("https://tv.example/media/").unwrap();
        assert!(!other(&limits, &origin("https://tv.example")));
        assert!(other(&limits, &origin("https://evil.example")));
        limits.public = PublicUrl::default();
        limits.proxies.trusted = vec![Net::parse("127.0.0.1").unwrap()];
        let host = ("x-forwarded-host", "tv.example");
        assert!(!other(&limits, &[&origin("https://tv.example")[..], &[host]].concat()));
        assert!(other(&limits, &[&origin("https://evil.example")[..], &[host]].concat()));
    }

    #[test]
    fn w01_pages_of_sites_that_are_allowed_may_change_something() {
        let page =
            [("host", "tv"), ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")];
        let of = |origins: Origins, more: &[(&str, &str)]| {
            other(&Limits { origins, ..Limits::default() }, &[&page[..], more].concat())
        };
        assert!(!of(Origins::List(vec!["https://app.example".into()]), &[]));
        assert!(of(Origins::List(vec!["https://other.example".into()]), &[]));
        // Even if all sites are allowed, a password that the browser adds does not show the user's
        // consent.
        assert!(of(Origins::Any, &[]));
        assert!(of(Origins::Any, &[("authorization", "Basic eDp5")]));
        assert!(!of(Origins::Any, &[("authorization", "Bearer abc")]));
        assert!(of(Origins::None, &[("authorization", "Bearer abc")]));
    }

    #[test]
    fn conditions_are_understood_or_refused() {
        let of = |all: &[(&str, &str)]| precondition(&Fields::of(all)).ok();
        assert_eq!(of(&[]), Some(Precondition::Any));
        assert_eq!(of(&[("if-none-match", "*")]), Some(Precondition::CreateOnly));
        assert_eq!(of(&[("if-match", "*")]), Some(Precondition::Exists));
        let tags = Precondition::Match(vec!["\"a,b\"".into(), "\"c\"".into()]);
        assert_eq!(of(&[("if-match", "\"a,b\", W/\"x\",\"c\"")]), Some(tags));
        assert_eq!(of(&[("if-match", "abc")]), Some(Precondition::Match(vec![])), "never met");
        let date = ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(of(&[date]), Some(Precondition::UnmodifiedSince(784_111_777)));
        assert_eq!(of(&[date, ("if-match", "*")]), Some(Precondition::Exists));
        assert_eq!(of(&[date, ("if-none-match", "*")]), Some(Precondition::CreateOnly));
        for no_date in ["yesterday", "", "784111777", "Sun, 06 Nov 1994 08:49:37 GMT, x"] {
            assert_eq!(of(&[("if-unmodified-since", no_date)]), Some(Precondition::Any));
        }
        let unless = |tag: &str, exists, unmodified_since| {
            Some(Precondition::Unless { tags: vec![tag.into()], exists, unmodified_since })
        };
        assert_eq!(of(&[("if-none-match", "W/\"a\"")]), unless("\"a\"", false, None));
        let unwanted = ("if-none-match", "\"a\"");
        assert_eq!(of(&[unwanted, ("if-match", "*"), date]), unless("\"a\"", true, None));
        assert_eq!(of(&[unwanted, date]), unless("\"a\"", false, Some(784_111_777)));
        let left = Precondition::Match(vec!["\"b\"".into()]);
        assert_eq!(of(&[unwanted, ("if-match", "\"a\", \"b\"")]), Some(left));
        let never = Some(Precondition::Match(vec![]));
        assert_eq!(of(&[("if-none-match", "*"), ("if-match", "\"a\"")]), never);
        assert_eq!(of(&[("if-none-match", "a")]), None, "not understood");
    }

    #[test]
    fn s03_running_out_of_descriptors_is_reported_and_temporary() {
        for errno in [libc::EMFILE, libc::ENFILE] {
            let error = || std::io::Error::from_raw_os_error(errno);
            for answer in [
                not_stored(&UploadError::Io(error())),
                not_changed(&ChangeError::Io(error())),
                not_changed(&UploadError::Io(error()).into()),
                not_resumed(&ResumeError::Upload(UploadError::Io(error()))),
            ] {
                assert_eq!(answer.status(), 503);
                let text = String::from_utf8_lossy(answer.content()).into_owned();
                assert!(
                    text.contains("file descriptors") && text.contains("LimitNOFILE"),
                    "{text}"
                );
            }
        }
        let failed = UploadError::Io(std::io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(not_stored(&failed).status(), 500);
    }
}
