//! Requests that change stored objects, or that have a body: dispatch by method, the sender, and
//! the outcome.
//!
//! Promise: no byte of a body is read before the request's rights are checked. The only socket
//! access is through the body.

use tactus_control::rights::Right;
use tactus_core::path::RequestPath;

use super::counters::Abuse;
use super::fault::Fault;
use super::fields::Fields;
use super::incoming::{BodyEnd, Disconnected, Incoming};
use super::locking::Locking;
use super::put::{self, BodyOutcome};
use super::request::{Method, Request};
use super::response::Response;
use super::target::Target;
use super::transport::Client;
use super::uploads::{ALLOWED, Refusal, Uploads};
use super::{Site, Store, control, dav, rate, tus, uploads};

/// A request that may change something, or that has a body to be read.
pub(super) struct Change<'a> {
    store: &'a Store,
    uploads: Option<&'a Uploads>,
    path: &'a RequestPath,
    query: Option<&'a str>,
}

/// The outcome of a change.
pub(super) enum ChangeOutcome {
    /// The answer, and whether another request can follow on the connection.
    Answer(Response, bool),
    /// The request broke the rules while its body came.
    Fault(Fault),
    /// The client has closed the connection.
    Disconnected,
}

/// The change of `request`; none if it reads only, or if nothing can be changed here.
pub(super) fn wanted<'a>(site: &'a Site, request: &'a Request) -> Option<Change<'a>> {
    let store = site.store.as_ref()?;
    let uploads = store.uploads.as_ref();
    let Target::Path { path, query } = &request.target else { return None };
    if !site.titles && !is_for_operators(request, path) {
        return None;
    }
    let wanted = match request.method {
        Method::Propfind => uploads.is_some() || store.listing,
        _ if uploads.is_none() => false,
        Method::Put | Method::Post | Method::Patch | Method::Delete | Method::Move => true,
        Method::Copy | Method::Mkcol | Method::Proppatch | Method::Lock | Method::Unlock => true,
        // HEAD of an upload needs the right to continue it, and recordings need the right to
        // record. Channels and classes are public at the address of `[admin]`; elsewhere they need
        // the right to change them.
        Method::Head | Method::Get if control::is_status(path) => {
            request.fields.one("authorization").is_some()
        }
        Method::Head | Method::Get => tus::is_here(path) || control::is_recording(path),
        Method::Options | Method::Other | Method::Unknown => false,
    };
    wanted.then_some(Change { store, uploads, path, query: query.as_deref() })
}

/// Whether the admin address accepts it: changes of recordings, channels, classes and the
/// configuration. Reading there needs no token.
fn is_for_operators(request: &Request, path: &RequestPath) -> bool {
    let is_look = matches!(request.method, Method::Get | Method::Head);
    control::is_here(path) && !is_look
}

impl Change<'_> {
    /// Makes the change.
    pub(super) async fn make(
        self,
        site: &Site,
        client: Client,
        request: &Request,
        mut incoming: Incoming<'_>,
    ) -> ChangeOutcome {
        let response = match self.act(site, request, &mut incoming).await {
            Ok(BodyOutcome::Answer(response)) => response,
            Ok(BodyOutcome::BodyEnd(BodyEnd::Fault(fault))) => return ChangeOutcome::Fault(fault),
            Ok(BodyOutcome::BodyEnd(BodyEnd::Disconnected)) => return ChangeOutcome::Disconnected,
            Err(Refusal { response, abuse }) => {
                if let Some(abuse) = abuse {
                    site.abused(client, abuse);
                }
                response
            }
        };
        match incoming.read_over().await {
            Ok(another) => ChangeOutcome::Answer(response, another),
            Err(Disconnected) => ChangeOutcome::Disconnected,
        }
    }

    async fn act(
        &self,
        site: &Site,
        request: &Request,
        incoming: &mut Incoming<'_>,
    ) -> Result<BodyOutcome, Refusal> {
        let Self { store, uploads, path, query } = *self;
        let (limits, public) = (&site.limits, &site.limits.public);
        let asks = request.method == Method::Propfind;
        if !(asks && request.fields.one("authorization").is_none()) {
            uploads::check_same_site(limits, request)?;
        }
        if asks {
            return dav::find(store, public, request, path, incoming).await;
        }
        let uploads = uploads.expect("nothing else is wanted without");
        let caller = uploads.caller(&request.fields)?;
        if tus::is_here(path) {
            let catalogue = &store.catalogue;
            let locking = Locking { uploads, catalogue, public, request, caller: &caller };
            let asked = tus::TusRequest { locking, path, query };
            return tus::answer(asked, incoming).await;
        }
        let control = &store.control;
        if let Some(taken) = control::answer(control, &caller, request, path, incoming).await? {
            return Ok(taken);
        }
        let catalogue = &store.catalogue;
        let locking = Locking { uploads, catalogue, public, request, caller: &caller };
        let response = match request.method {
            Method::Put => {
                let requested = rate::requested(query, &Fields::default())
                    .and_then(|requested| rate::recorded(requested, &store.rates));
                let rate = requested.map_err(|fault| Response::text(400, fault.to_string()))?;
                if let (Some(rate), Some(recorder)) = (rate, &store.recorder) {
                    return put::record(recorder, locking, path, rate, incoming).await;
                }
                return put::put(locking, path, incoming).await;
            }
            Method::Proppatch => {
                caller.check(Right::Replace, path.name())?;
                return dav::set(store, locking, path, incoming).await;
            }
            Method::Mkcol => {
                caller.check(Right::Publish, path.name())?;
                dav::make(locking, path).await?
            }
            Method::Copy => put::duplicate(store, locking, path).await?,
            Method::Delete => {
                caller.check(Right::Delete, path.name())?;
                put::delete(locking, path).await?
            }
            Method::Move => put::relocate(locking, path).await?,
            Method::Lock => return dav::lock(locking, path, incoming).await,
            Method::Unlock => dav::unlock(locking, path)?,
            _ => {
                let text = "this method does not apply to titles; use PUT, DELETE or MOVE; uploads \
                            by tus go to /api/v1/uploads";
                let response = Response::text(405, text).with("Allow", ALLOWED);
                return Err(Refusal { response, abuse: Some(Abuse::BadMethod) });
            }
        };
        Ok(BodyOutcome::Answer(response))
    }
}
