//! One request and its answer, for the access log.
//!
//! Promise: each request is logged once, however it ends, also if its connection breaks or the
//! server stops. If the access log is off, this costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tactus_control::access::{self, Protocol, Record};
use tactus_control::broker::DeliveryResult;
use tactus_engine::message::Pace;

use super::Site;
use super::fields::Fields;
use super::framing::Body;
use super::principals::Authentication;
use super::query;
use super::request::{Method, Request};
use super::target::Target;
use super::transport::Peer;

/// The record so far; none if the log is off.
pub(super) struct Exchange(Option<Box<OpenRecord>>);

struct OpenRecord {
    record: Record,
    begun: Instant,
    /// Received bytes of the request's content.
    received: AtomicU64,
}

impl Exchange {
    /// Begins a record for a parsed request.
    pub(super) fn of(site: &Site, request: &Request, peer: Peer) -> Self {
        if !access::is_on() {
            return Self(None);
        }
        let method = format!("{:?}", request.method).to_uppercase();
        let (path, query) = match &request.target {
            Target::Path { path, query } => {
                let slash = if path.is_directory() && !path.name().is_empty() { "/" } else { "" };
                (format!("/{}{slash}", path.name()), query.as_deref())
            }
            Target::Server => ("*".to_owned(), None),
            Target::Authority => (String::new(), None),
        };
        let protocol = match request.method {
            Method::Put | Method::Post | Method::Patch | Method::Delete => Protocol::Upload,
            Method::Move | Method::Copy | Method::Mkcol | Method::Proppatch => Protocol::Upload,
            _ => Protocol::Http,
        };
        let rate_asked = query::values(query, "rate").next().flatten();
        let record = Record {
            client: Some(peer.to_string()),
            rate_asked: rate_asked.map(|rate| rate.to_string()),
            principal: principal(site, &request.fields),
            user_agent: request.fields.one("user-agent").map(lossy),
            ..Record::new(protocol, method, path)
        };
        Self::begun(record)
    }

    /// Begins a record for input that is not a valid request.
    pub(super) fn of_fault(peer: Peer) -> Self {
        if !access::is_on() {
            return Self(None);
        }
        Self::begun(Record {
            client: Some(peer.to_string()),
            ..Record::new(Protocol::Http, "-", "-")
        })
    }

    fn begun(record: Record) -> Self {
        Self(Some(Box::new(OpenRecord {
            record,
            begun: Instant::now(),
            received: AtomicU64::new(0),
        })))
    }

    /// The counter for received content; callers count content as it comes.
    pub(super) fn received(&self) -> Option<&AtomicU64> {
        self.0.as_ref().map(|known| &known.received)
    }

    /// Counts content that was read over.
    pub(super) fn read_over(&self, body: Body) {
        if let (Body::Length(len), Some(received)) = (body, self.received()) {
            received.store(len, Ordering::Relaxed);
        }
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.change(|record| record.status = Some(status));
    }

    /// Counts content that was sent from memory.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.change(|record| record.sent_bytes += bytes as u64);
    }

    /// Records the pace of a delivery by the engine.
    pub(super) fn paced(&mut self, pace: Pace) {
        if let Pace::Paced { rate, .. } = pace {
            self.change(|record| record.rate = Some(rate.0));
        }
    }

    /// Records the result of a delivery by the engine.
    pub(super) fn delivered(&mut self, delivered: &DeliveryResult) {
        self.change(|record| {
            record.sent_bytes += delivered.sent;
            if record.rate.is_some() {
                record.lateness = record.lateness.max(Some(delivered.late.lateness));
                let before = record.underruns.unwrap_or(0);
                record.underruns = Some(before + delivered.late.underruns);
            }
            let outcome = delivered.outcome.name();
            record.outcome = (outcome != "complete").then(|| outcome.to_owned());
        });
    }

    fn change(&mut self, change: impl FnOnce(&mut Record)) {
        if let Self(Some(known)) = self {
            change(&mut known.record);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(known) = self.0.take() {
            let OpenRecord { mut record, begun, received } = *known;
            record.received_bytes = received.into_inner();
            record.duration = begun.elapsed();
            access::record(record);
        }
    }
}

/// The principal of the request's token, if it has one.
fn principal(site: &Site, fields: &Fields) -> Option<String> {
    fields.one("authorization")?;
    let uploads = site.store.as_ref()?.uploads.as_ref()?;
    match uploads.principals.who(fields) {
        Authentication::Principal(name, _) => Some(name.to_owned()),
        Authentication::Invalid | Authentication::Anonymous => None,
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
