//! The accept loop: the limits on connections, and pauses when files run short.
//!
//! Promise: a listener and an address never exceed their limits of connections. Some open files are
//! reserved for titles and the engine: when files run short, accepting pauses, and the kernel's
//! queue holds further connections. The answer to a refused client names the key of the limit.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit};
use tokio::task::JoinSet;

use super::connection::{Preamble, UnreadInput};
use super::connection_limit::ConnectionPermit;
use super::cors::Cors;
use super::counters::Abuse;
use super::framing::Version;
use super::limits::READ_BYTES;
use super::response::{Persistence, Response};
use super::settings::Origins;
use super::transport::{Client, Listener, Transport};
use super::{Site, connection};

/// Length of the pause when the kernel lacks a resource.
const PAUSE: Duration = Duration::from_millis(50);

/// Refused connections of a listener that are kept open briefly, so that the answer arrives. Beyond
/// this number they are closed at once.
const FAREWELLS_MAX: usize = 64;

/// Serves `listener`, whose connections begin with `begins`. When the site stops, the last
/// connections are completed. Dropping the future ends them at once.
pub(super) async fn serve(listener: Listener, site: Arc<Site>, preamble: Preamble) {
    let (mut connections, mut farewells) = (JoinSet::new(), JoinSet::new());
    let mut stop = site.stopping();
    let descriptors = Descriptors::new(site.limits.descriptors_reserve);
    loop {
        let scarce = descriptors.are_scarce(&site);
        tokio::select! {
            () = stop.wait() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            Some(_) = farewells.join_next(), if !farewells.is_empty() => {}
            accepted = listener.accept(), if !scarce => match accepted {
                Ok((socket, peer)) => {
                    let refused = welcome(&mut connections, &site, socket, peer, preamble);
                    if let Err((socket, response)) = refused {
                        turn_away(&mut farewells, &site, socket, *response);
                    }
                }
                Err(error) => pause_after(&error, &site).await,
            },
            () = tokio::time::sleep(PAUSE), if scarce => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Begins to serve a connection, or returns it with the refusal.
fn welcome(
    connections: &mut JoinSet<()>,
    site: &Arc<Site>,
    socket: Transport,
    peer: Client,
    preamble: Preamble,
) -> Result<(), (Transport, Box<Response>)> {
    if connections.len() >= site.limits.connections_max {
        site.counters.count(Abuse::ConnectionLimit);
        site.warn_all("http.connections_max");
        let text = "the limit of connections is reached (http.connections_max); try again shortly";
        return Err((socket, Box::new(Response::text(503, text).with("Retry-After", "5"))));
    }
    let permit = match ConnectionPermit::take(site, peer) {
        Ok(permit) => permit,
        Err(response) => return Err((socket, response)),
    };
    let open = OpenConnection::new(Arc::clone(site));
    connections.spawn(async move {
        if socket.set_options().is_ok() {
            connection::serve(Arc::clone(&open.0), socket, peer, preamble).await;
        }
        drop((permit, open));
    });
    Ok(())
}

/// Refuses a client. This is best effort: a client that does not read a short answer at once gets
/// no answer.
fn turn_away(farewells: &mut JoinSet<()>, site: &Arc<Site>, socket: Transport, answer: Response) {
    if farewells.len() >= FAREWELLS_MAX {
        let mut request = [0; READ_BYTES];
        let read = socket.try_read(&mut request).unwrap_or(0);
        tell(site, &socket, &request[..read], answer);
        return;
    }
    let site = Arc::clone(site);
    farewells.spawn(async move {
        let mut request = vec![0; READ_BYTES];
        // The CORS fields depend on the request's `Origin`.
        let read = match site.limits.origins {
            Origins::List(_) => {
                let begins = beginning(&socket, &mut request);
                tokio::time::timeout(site.limits.linger_time, begins).await.unwrap_or(0)
            }
            Origins::None | Origins::Any => socket.try_read(&mut request).unwrap_or(0),
        };
        if tell(&site, &socket, &request[..read], answer) {
            connection::linger(socket, &site, UnreadInput::Little).await;
        }
    });
}

/// Waits for the first bytes of a request; none if the client has closed the connection. `readable`
/// may return although there are no bytes.
async fn beginning(socket: &Transport, request: &mut [u8]) -> usize {
    while socket.readable().await.is_ok() {
        match socket.try_read(request) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read.unwrap_or(0),
        }
    }
    0
}

/// Sends the answer to a client whose request begins with `request`; false when the client does not
/// take all of it. Unread request bytes would make the kernel reset the connection and drop the
/// answer.
fn tell(site: &Site, socket: &Transport, request: &[u8], mut answer: Response) -> bool {
    site.counters.answered(answer.status());
    Cors::of_unread(&site.limits.origins, request).put(&mut answer);
    let mut bytes = answer.head(Version::Http11, Persistence::Close, SystemTime::now());
    bytes.extend_from_slice(answer.content());
    socket.try_write(&bytes).is_ok_and(|written| written == bytes.len())
}

/// An open connection, counted until it is dropped.
struct OpenConnection(Arc<Site>);

impl OpenConnection {
    fn new(site: Arc<Site>) -> Self {
        site.counters.connection_opened();
        Self(site)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.counters.connection_closed();
    }
}

/// How many files this process may open.
struct Descriptors {
    for_connections: u64,
}

impl Descriptors {
    fn new(reserve: usize) -> Self {
        let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // With a very low limit, half of the files stay for connections.
        Self { for_connections: all - (reserve as u64).min(all / 2) }
    }

    fn are_scarce(&self, site: &Site) -> bool {
        let scarce = site.counters.connections_open() >= self.for_connections;
        if scarce {
            site.counters.accept_paused();
            site.warn_all("ulimit -n");
        }
        scarce
    }
}

/// Ignores a connection that was closed before it was accepted. Every other error is a temporary
/// lack of a resource.
async fn pause_after(error: &io::Error, site: &Site) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        return;
    }
    site.counters.accept_paused();
    if let Some(left_out) = site.throttle("accept", None) {
        tracing::warn!(%error, left_out, "accepting of connections is paused");
    }
    tokio::time::sleep(PAUSE).await;
}
