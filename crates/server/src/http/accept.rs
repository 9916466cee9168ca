//! The accept loop: who gets a connection, and when nobody does.
//!
//! Promise: a listener never has more connections than its bound, an address never more than its
//! share, and open files are left for titles and the engine: when they get scarce, accepting pauses
//! and the kernel's queue holds the others. Whoever is refused is closed at once.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::addresses::Welcome;
use super::counters::Abuse;
use super::{Site, connection};

/// How long accepting pauses when the kernel is out of something.
const PAUSE: Duration = Duration::from_millis(50);

/// What one connection too many is told. It is short, so the socket takes it at once or not at all.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nServer: tactus\r\nRetry-After: 5\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 29\r\nConnection: close\r\n\r\n\
    all connections are in use.\r\n";

/// Serves `listener` until the site stops, and then until its last connection has ended. Dropping
/// the future ends them at once.
pub(super) async fn serve(listener: TcpListener, site: Arc<Site>) {
    let mut connections = JoinSet::new();
    let mut stop = site.stopping();
    let descriptors = Descriptors::new(site.limits.descriptors_reserve);
    loop {
        let scarce = descriptors.are_scarce(&site);
        tokio::select! {
            () = stop.wait() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if !scarce => match accepted {
                Ok((socket, peer)) => {
                    let peer = peer.ip().to_canonical();
                    welcome(&mut connections, &site, socket, peer);
                }
                Err(error) => pause_after(&error, &site).await,
            },
            () = tokio::time::sleep(PAUSE), if scarce => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn welcome(connections: &mut JoinSet<()>, site: &Arc<Site>, socket: TcpStream, peer: IpAddr) {
    if connections.len() >= site.limits.connections_max {
        site.counters.count(Abuse::ConnectionLimit);
        // Best effort: a client that cannot be told is closed without a word.
        drop(socket.try_write(FULL));
        return;
    }
    match site.addresses().handle_connection(Instant::now(), peer) {
        Welcome::Yes => {}
        Welcome::Full => return site.counters.count(Abuse::PerIpLimit),
        Welcome::Refused => return site.counters.count(Abuse::AbuseScore),
    }
    let seat = Seat::take(Arc::clone(site), peer);
    connections.spawn(async move {
        // Answers are written whole; waiting to fill a packet would only delay them.
        if socket.set_nodelay(true).is_ok() {
            connection::serve(Arc::clone(&seat.site), socket, peer).await;
        }
        drop(seat);
    });
}

/// A connection's place in the books, returned however it ends.
struct Seat {
    site: Arc<Site>,
    peer: IpAddr,
}

impl Seat {
    fn take(site: Arc<Site>, peer: IpAddr) -> Self {
        site.counters.connection_opened();
        Self { site, peer }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.site.counters.connection_closed();
        self.site.addresses().left(Instant::now(), self.peer);
    }
}

/// How many files this process may open.
struct Descriptors {
    for_connections: u64,
}

impl Descriptors {
    fn new(reserve: usize) -> Self {
        let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // With a very low limit, half of it is all that can be kept.
        Self { for_connections: all - (reserve as u64).min(all / 2) }
    }

    fn are_scarce(&self, site: &Site) -> bool {
        let scarce = site.counters.connections_open() >= self.for_connections;
        if scarce {
            site.counters.accept_paused();
        }
        scarce
    }
}

/// A connection that was gone before it was accepted is nothing; everything else is a lack of
/// something, and passes.
async fn pause_after(error: &io::Error, site: &Site) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        return;
    }
    site.counters.accept_paused();
    tracing::warn!(%error, "accepting connections pauses");
    tokio::time::sleep(PAUSE).await;
}
