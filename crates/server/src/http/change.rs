//! Requests that change what is stored: which one it is, who sends it, what became of it.
//!
//! Promise: nothing of a request's body is read before the request may change something. It knows no
//! socket but the body's.

use std::net::IpAddr;

use tactus_core::path::RequestPath;

use super::counters::Abuse;
use super::fault::Fault;
use super::fields::Fields;
use super::incoming::{Ended, Gone, Incoming};
use super::put::{self, Taken};
use super::request::{Method, Request};
use super::response::Response;
use super::target::Target;
use super::uploads::{Refused, Uploads};
use super::{Site, Store, rate, recordings, tus};

/// A request that may change something.
pub(super) struct Change<'a> {
    store: &'a Store,
    uploads: &'a Uploads,
    path: &'a RequestPath,
    query: Option<&'a str>,
}

/// What became of one.
pub(super) enum Done {
    /// It is to be answered; whether another request can follow.
    Answer(Response, bool),
    /// It broke the rules on its way.
    Fault(Fault),
    /// The client has gone.
    Gone,
}

/// What `request` may change; none when it only asks, or nothing can be changed here.
pub(super) fn wanted<'a>(site: &'a Site, request: &'a Request) -> Option<Change<'a>> {
    let store = site.store.as_ref()?;
    let uploads = store.uploads.as_ref()?;
    let Target::Path { path, query } = &request.target else { return None };
    let changes = match request.method {
        Method::Put | Method::Post | Method::Patch | Method::Delete | Method::Move => true,
        // HEAD of an upload is for those who may go on with it; what is recorded is for those who may record.
        Method::Head | Method::Get => tus::is_here(path) || recordings::is_here(path),
        Method::Options | Method::Other | Method::Unknown => false,
    };
    changes.then_some(Change { store, uploads, path, query: query.as_deref() })
}

/// The methods that change something, for `Allow`.
pub(super) const ALLOWED: &str = "GET, HEAD, OPTIONS, PUT, DELETE, MOVE";

impl Change<'_> {
    /// Does what is asked for.
    pub(super) async fn make(
        self,
        site: &Site,
        peer: IpAddr,
        request: &Request,
        mut incoming: Incoming<'_>,
    ) -> Done {
        let response = match self.act(request, &mut incoming).await {
            Ok(Taken::Answer(response)) => response,
            Ok(Taken::Ended(Ended::Fault(fault))) => return Done::Fault(fault),
            Ok(Taken::Ended(Ended::Gone)) => return Done::Gone,
            Err(Refused { response, abuse }) => {
                if let Some(abuse) = abuse {
                    site.abused(peer, abuse);
                }
                response
            }
        };
        match incoming.read_over().await {
            Ok(another) => Done::Answer(response, another),
            Err(Gone) => Done::Gone,
        }
    }

    async fn act(&self, request: &Request, incoming: &mut Incoming<'_>) -> Result<Taken, Refused> {
        let Self { store, uploads, path, query } = *self;
        let principal = uploads.principal(&request.fields)?;
        if tus::is_here(path) {
            let catalogue = &store.catalogue;
            let asked = tus::Asked { uploads, catalogue, principal, request, path, query };
            return tus::answer(asked, incoming).await;
        }
        if recordings::is_here(path) {
            return recordings::answer(uploads, principal, request, path, incoming).await;
        }
        let catalogue = &store.catalogue;
        let response = match request.method {
            Method::Put => {
                let wish = rate::wish(query, &Fields::default())
                    .and_then(|wish| rate::recorded(wish, &store.rates));
                let rate = wish.map_err(|fault| Response::text(400, fault.to_string()))?;
                if let (Some(rate), Some(recorder)) = (rate, &store.recorder) {
                    let spot = uploads.spot(catalogue, path)?;
                    let source = put::Source { request, path, principal };
                    return put::record(recorder, spot, source, rate, incoming).await;
                }
                return put::put(uploads, catalogue, principal, request, path, incoming).await;
            }
            Method::Delete => put::delete(uploads, catalogue, request, path).await?,
            Method::Move => put::relocate(uploads, catalogue, request, path).await?,
            _ => {
                let text = "a title is put, deleted or moved; uploads by tus go to /api/v1/uploads";
                let response = Response::text(405, text).with("Allow", ALLOWED);
                return Err(Refused { response, abuse: Some(Abuse::BadMethod) });
            }
        };
        Ok(Taken::Answer(response))
    }
}
