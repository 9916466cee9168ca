//! Permits of clients: each direct connection holds one, and so does each request that a trusted
//! proxy forwards.
//!
//! Promise: a trusted proxy itself needs no permit, whatever the number of its clients. The answer
//! to a client without a permit has the limit's key and the time to wait, and the log has one line
//! per minute about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Site;
use super::addresses::AddressVerdict;
use super::counters::Abuse;
use super::response::Response;
use super::transport::{Client, ClientKey};

/// A permit of one address, released when dropped.
pub(super) struct ConnectionPermit {
    site: Arc<Site>,
    unit: ClientKey,
}

impl ConnectionPermit {
    /// Takes a permit for `client`; none if it needs none.
    ///
    /// # Errors
    /// The answer for a client that gets none.
    pub(super) fn take(site: &Arc<Site>, client: Client) -> Result<Option<Self>, Box<Response>> {
        let limits = &site.limits;
        if client.peer.is_trusted(&limits.proxies) {
            return Ok(None);
        }
        let unit = client.peer.unit();
        let welcome = site.addresses().handle_connection(Instant::now(), unit);
        match welcome {
            AddressVerdict::Yes => Ok(Some(Self { site: Arc::clone(site), unit })),
            AddressVerdict::Full => {
                site.counters.count(Abuse::PerIpLimit);
                site.warn("http.connections_per_address_max", client);
                let max = limits.connections_per_address_max;
                let text = format!(
                    "this address has {max} connections or requests, the most that are \
                     served at once (http.connections_per_address_max)"
                );
                Err(Box::new(Response::text(429, text).with("Retry-After", WHEN_FULL)))
            }
            AddressVerdict::Refused(left) => {
                site.counters.count(Abuse::AbuseScore);
                site.warn(SCORE, client);
                Err(Box::new(score_refusal(left)))
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.site.addresses().left(Instant::now(), self.unit);
    }
}

/// The key of the abuse score in messages.
pub(super) const SCORE: &str = "http.abuse_score_max";

/// Seconds until a retry. The next short request of the same address usually ends by then.
const WHEN_FULL: &str = "5";

fn score_refusal(left: Duration) -> Response {
    let seconds = left.as_secs_f64().ceil().max(1.0) as u64;
    let text = format!(
        "too many invalid requests came from this address; try again in {seconds} s \
         (http.abuse_score_max, http.abuse_refusal)"
    );
    Response::text(429, text).with("Retry-After", seconds.to_string())
}
