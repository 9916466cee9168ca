//! Places of clients: a connection that comes directly has one, and a request that a trusted proxy hands on.
//!
//! Promise: a trusted proxy needs none, however many clients it brings; who gets none is answered with
//! the limit by its name and the time to wait, and the log has one line about it in a minute.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Site;
use super::addresses::Welcome;
use super::counters::Abuse;
use super::forwarded::Client;
use super::response::Response;

/// A place in the book of one address, given back when dropped.
pub(super) struct Seat {
    site: Arc<Site>,
    ip: IpAddr,
}

impl Seat {
    /// Takes a place for `client`; none where it needs none.
    ///
    /// # Errors
    /// The answer to a client that gets none.
    pub(super) fn take(site: &Arc<Site>, client: Client) -> Result<Option<Self>, Box<Response>> {
        let limits = &site.limits;
        if limits.proxies.trusts(client.ip) {
            return Ok(None);
        }
        let welcome = site.addresses().handle_connection(Instant::now(), client.ip);
        match welcome {
            Welcome::Yes => Ok(Some(Self { site: Arc::clone(site), ip: client.ip })),
            Welcome::Full => {
                site.counters.count(Abuse::PerIpLimit);
                site.warn("http.connections_per_address_max", client);
                let max = limits.connections_per_address_max;
                let text = format!(
                    "{max} connections or requests of this address are under way, and no more are \
                     served at once (http.connections_per_address_max)"
                );
                Err(Box::new(Response::text(429, text).with("Retry-After", WHEN_FULL)))
            }
            Welcome::Refused(left) => {
                site.counters.count(Abuse::AbuseScore);
                site.warn(SCORE, client);
                Err(Box::new(for_score(left)))
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.site.addresses().left(Instant::now(), self.ip);
    }
}

/// The key that says when an address is refused.
pub(super) const SCORE: &str = "http.abuse_score_max";

/// Seconds. The next request of another page of the same household ends by then.
const WHEN_FULL: &str = "5";

fn for_score(left: Duration) -> Response {
    let seconds = left.as_secs_f64().ceil().max(1.0) as u64;
    let text = format!(
        "too many wrong or broken requests came from this address; ask again in {seconds} s \
         (http.abuse_score_max, http.abuse_refusal)"
    );
    Response::text(429, text).with("Retry-After", seconds.to_string())
}
