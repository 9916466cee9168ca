//! HTTP/1.1: strict requests in, exact streams out (RFC 9110, RFC 9112).
//!
//! Promise: the connections, requests and memory of each client are bounded ([`Limits`]). A request
//! has exactly one interpretation, or it is refused and its connection is closed. The bytes of a
//! title go from the engine to the socket, and those of an upload from the socket to places of the
//! store; none is copied here. There is no TLS and no HTTP/2 here.
//!
//! The path of a request, by file: `accept` (`transport`) → `connection` (`connection_limit`) →
//! `inbox` (`proxy_protocol`, `scan`, `request` and its rules: `fields`, `target`, `host`,
//! `framing`, `chunked`; the client: `forwarded`) → `route` → `title` (`conditional`, `rate`,
//! `multipart`, `seek`) or `listing` → `answer` → `response` (`cors`, `public`). A request that
//! changes something: `change` → `uploads` (`principals`) → `put`, `tus` or `dav`, or `control`,
//! with its body from `incoming`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod percent;
pub mod settings;

mod counters;
mod transport;

mod addresses;

mod fault;
mod fields;
mod proxy_protocol;
mod query;

mod forwarded;

mod chunked;
mod framing;
mod target;

mod host;

mod limits;

mod scan;

mod request;

mod inbox;
mod public;

mod response;

mod cors;

mod internal;

mod keys;

mod locks;

mod cmcd;
mod conditional;
mod multipart;
mod rate;

mod schedule;

mod answer;

mod listing;
mod live;
mod seek;
mod title;

mod incoming;
mod oc;
mod principals;
mod rights;

mod uploads;

mod exchange;

mod if_lists;

mod locking;

pub mod gate;

mod put;

mod dav;
mod tus;

mod control;

mod change;

mod route;

mod connection_limit;

mod connection;

mod accept;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tactus_control::broker::Broker;
use tactus_control::engine::Watchdog;
use tactus_control::recording::Recorder;
use tactus_storage::catalogue::Catalogue;
use tactus_storage::warnings::Throttle;
use tokio::sync::{Semaphore, watch};

pub use control::Control;
pub use counters::{Abuse, Counters};
pub use host::Hosts;
pub use internal::Internal;
pub use limits::Limits;
pub use principals::Principals;
pub use principals::{digest_of, same_token, token_in};
pub use response::Response;
pub use seek::facts;
pub use transport::{Client, Credentials, Listener, Peer, UnixListener};
pub use uploads::Uploads;

use addresses::{AddressRules, Addresses};
use connection::Preamble;
use transport::ClientKey;

/// The served content and its limits, shared by all listeners and connections.
pub struct Site {
    limits: Limits,
    counters: Arc<Counters>,
    store: Option<Store>,
    /// If false, the store serves only changes below `/api/v1`.
    titles: bool,
    internal: Arc<dyn Internal>,
    addresses: Mutex<Addresses>,
    /// Bytes of memory that answers may take, as permits.
    long_answers: Semaphore,
    stop: watch::Sender<bool>,
    warnings: Mutex<Throttle<(&'static str, Option<ClientKey>)>>,
}

/// Each limit that refuses an address is logged once per interval for that address.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Addresses with log lines of their own per interval; the others share one line.
const WARNED_MAX: usize = 64;

/// The source of titles.
#[derive(Clone)]
pub struct Store {
    /// Finds titles.
    pub catalogue: Arc<Catalogue>,
    /// Admits and delivers titles.
    pub broker: Broker,
    /// The limits of rates.
    pub rates: settings::Rate,
    /// Whether directories are listed.
    pub listing: bool,
    /// Uploads and their principals; none if the server takes no uploads.
    pub uploads: Option<Uploads>,
    /// The objects that operators change, with tokens of the principals of `uploads`.
    pub control: Control,
    /// The state of each volume's disk.
    pub watchdog: Watchdog,
    /// Records titles at a reserved rate.
    pub recorder: Option<Recorder>,
}

impl Site {
    /// A site that serves `store`; without a store, it serves only the paths of `internal`.
    pub fn new(
        limits: Limits,
        counters: Arc<Counters>,
        store: Option<Store>,
        internal: Arc<dyn Internal>,
    ) -> Self {
        let addresses = Addresses::new(AddressRules {
            connections_max: limits.connections_per_address_max,
            score_max: limits.abuse_score_max,
            refusal: limits.abuse_refusal,
        });
        let long_answers = Semaphore::new(limits.answers_bytes_max.min(Semaphore::MAX_PERMITS));
        let (addresses, stop) = (Mutex::new(addresses), watch::channel(false).0);
        let warnings = Mutex::new(Throttle::new(WARN_EVERY, WARNED_MAX));
        let titles = true;
        Self { limits, counters, store, titles, internal, addresses, long_answers, stop, warnings }
    }

    /// The same site without titles and uploads, for the addresses of operators.
    #[must_use]
    pub fn without_titles(self) -> Self {
        Self { titles: false, ..self }
    }

    /// Stops gracefully: accepts no new connections or requests, and completes running answers.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    fn stopping(&self) -> StopSignal {
        StopSignal(self.stop.subscribe())
    }

    /// Scores an abuse. A trusted proxy has no score of its own.
    fn abused(&self, client: Client, abuse: Abuse) {
        self.counters.count(abuse);
        if abuse.points() == 0 || client.peer.is_trusted(&self.limits.proxies) {
            return;
        }
        let is_full =
            self.addresses().handle_abuse(Instant::now(), client.peer.unit(), abuse.points());
        if is_full {
            self.warn(connection_limit::SCORE, client);
        }
    }

    /// Logs that `limit` refuses `client`, at most once per interval.
    fn warn(&self, limit: &'static str, client: Client) {
        if let Some(left_out) = self.throttle(limit, Some(client.peer.unit())) {
            tracing::warn!(
                client = %client.peer, limit, left_out,
                "requests from this address are refused"
            );
        }
    }

    /// Logs that `limit` refuses every client.
    fn warn_all(&self, limit: &'static str) {
        if let Some(left_out) = self.throttle(limit, None) {
            tracing::warn!(limit, left_out, "new connections wait or are refused");
        }
    }

    /// Returns the number of suppressed lines if a line may be logged now, else none.
    fn throttle(&self, cause: &'static str, of: Option<ClientKey>) -> Option<u64> {
        let warnings = self.warnings.lock();
        warnings.unwrap_or_else(PoisonError::into_inner).poll(Instant::now(), (cause, of))
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        // A panic of another thread leaves at worst one connection too many in the table.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves `listener` until [`Site::stop`], and then until the last of its connections has ended.
/// Dropping the future ends them at once. One site can serve several listeners.
pub async fn serve(listener: impl Into<Listener>, site: Arc<Site>) {
    accept::serve(listener.into(), site, Preamble::WithRequest).await;
}

/// Like [`serve`], for trusted proxies that begin each connection with the PROXY protocol.
pub async fn serve_proxies(listener: impl Into<Listener>, site: Arc<Site>) {
    accept::serve(listener.into(), site, Preamble::WithProxyHeader).await;
}

/// The signal to stop.
struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    async fn wait(&mut self) {
        // The sender lives in the site, and every waiting task holds the site.
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn is_stopping(&self) -> bool {
        *self.0.borrow()
    }
}
