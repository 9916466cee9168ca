//! Transports of connections, and the identity of their clients.
//!
//! Promise: for the rest of HTTP a connection is bytes in both directions, a [`Client`], and a
//! socket that the engine borrows. A new transport is a new variant here. Nothing is parsed here.

mod unix;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tactus_control::broker::Party;
use tactus_sys::tcp::{self, Preparation};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::settings::Proxies;

pub use unix::UnixListener;

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// TCP over IPv4 or IPv6.
    Tcp(TcpListener),
    /// A socket file of this host.
    Unix(UnixListener),
}

impl Listener {
    /// Waits for a connection.
    ///
    /// # Errors
    /// When the kernel cannot accept one.
    pub(super) async fn accept(&self) -> io::Result<(Transport, Client)> {
        match self {
            Self::Tcp(listener) => {
                let (socket, peer) = listener.accept().await?;
                Ok((Transport::Tcp(socket), peer.into()))
            }
            Self::Unix(listener) => {
                let (socket, client) = listener.accept().await?;
                Ok((Transport::Unix(socket), client))
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(super) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The kind of a connection while the engine has its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Tcp,
    Unix,
}

/// Calls the same method on each kind of socket.
macro_rules! each {
    ($transport:expr, $socket:ident => $call:expr) => {
        match $transport {
            Transport::Tcp($socket) => $call,
            Transport::Unix($socket) => $call,
        }
    };
}

impl Transport {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Tcp(_) => Kind::Tcp,
            Self::Unix(_) => Kind::Unix,
        }
    }

    /// Sets the options of a new connection. Answers are written whole, so waiting to fill a packet
    /// would only delay them.
    pub(super) fn set_options(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }

    /// Waits until there may be bytes to read. It may return although there are none.
    pub(super) async fn readable(&self) -> io::Result<()> {
        each!(self, socket => socket.readable().await)
    }

    pub(super) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        each!(self, socket => socket.try_read(into))
    }

    pub(super) fn try_read_buf(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        each!(self, socket => socket.try_read_buf(into))
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        each!(self, socket => socket.try_write(bytes))
    }

    /// Makes closing a reset: for content without a length, only a reset shows the client that
    /// bytes are missing. Unix sockets have no reset, so their clients see an ordinary end.
    pub(super) fn reset_at_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self, Some(Duration::ZERO))?)
    }

    /// Makes closing an ordinary end of the stream again.
    pub(super) fn end_at_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self, None)?)
    }

    /// The socket for the engine, prepared for the link. The kernel holds at most about
    /// `not_sent_max` unsent bytes.
    ///
    /// # Errors
    /// When the kernel refuses an option that the link needs.
    pub(super) fn into_engine(self, not_sent_max: Option<u32>) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(socket) => {
                let socket = socket.into_std()?;
                tcp::prepare(&socket, Preparation { not_sent_max, send_buffer: None })?;
                Ok(socket.into())
            }
            Self::Unix(socket) => {
                // A Unix socket holds bytes until its peer has read them. There is no further
                // buffer.
                if let Some(size) = not_sent_max {
                    sockopt::set_socket_send_buffer_size(&socket, size as usize)?;
                }
                Ok(socket.into_std()?.into())
            }
        }
    }

    /// The connection for a socket that the engine returns.
    ///
    /// # Errors
    /// When the runtime cannot register it.
    pub(super) fn from_engine(kind: Kind, socket: OwnedFd) -> io::Result<Self> {
        match kind {
            Kind::Tcp => TcpStream::from_std(socket.into()).map(Self::Tcp),
            Kind::Unix => UnixStream::from_std(socket.into()).map(Self::Unix),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, socket => socket.as_fd())
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), socket => Pin::new(socket).poll_read(context, into))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), socket => Pin::new(socket).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), socket => Pin::new(socket).poll_flush(context))
    }

    /// Half close: the peer sees the end of the stream and may still send.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), socket => Pin::new(socket).poll_shutdown(context))
    }
}

/// A client, directly connected or behind proxies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Its identity.
    pub peer: Peer,
    /// Its port, if it has an address and the port is known.
    pub port: Option<u16>,
}

/// The identity of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// An address; never an IPv4 address mapped to IPv6.
    Address(IpAddr),
    /// A process of this host, by the kernel's credentials (`SO_PEERCRED`).
    Process(Credentials),
}

/// The credentials of a process when it connected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Credentials {
    /// Its number; 0 outside this server's PID namespace.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// The unit of limits and scores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ClientKey {
    /// An IPv4 address, or an IPv6 network of 64 bits, because a customer can choose the rest of an
    /// IPv6 address.
    Network(IpAddr),
    /// A user of this host, because one user can have any number of processes.
    User(u32),
}

/// Bits of an IPv6 address that name a customer.
const IPV6_NETWORK_BITS: u32 = 64;

impl Client {
    /// A client with an unknown port.
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        Self { peer: Peer::Address(ip.to_canonical()), port: None }
    }
}

impl Peer {
    /// Whether this is a proxy that is trusted to name its clients.
    pub(super) fn is_trusted(self, proxies: &Proxies) -> bool {
        match self {
            Self::Address(ip) => proxies.trusts(ip),
            Self::Process(_) => proxies.unix,
        }
    }

    /// The unit for limits and scores.
    pub(super) fn unit(self) -> ClientKey {
        match self {
            Self::Address(ip) => ClientKey::Network(match ip.to_canonical() {
                IpAddr::V6(v6) => {
                    let bits = v6.to_bits() >> IPV6_NETWORK_BITS << IPV6_NETWORK_BITS;
                    Ipv6Addr::from_bits(bits).into()
                }
                v4 => v4,
            }),
            Self::Process(Credentials { uid, .. }) => ClientKey::User(uid),
        }
    }

    /// The party in whose share its streams count, if it has no principal.
    pub(super) fn party(self) -> Party {
        match self {
            Self::Address(ip) => Party::of(ip),
            Self::Process(Credentials { uid, .. }) => Party::User(uid),
        }
    }
}

impl From<SocketAddr> for Client {
    fn from(address: SocketAddr) -> Self {
        Self { port: Some(address.port()), ..Self::of(address.ip()) }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.peer, self.port) {
            (Peer::Address(ip), Some(port)) => SocketAddr::new(ip, port).fmt(f),
            (peer, _) => peer.fmt(f),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Process(Credentials { pid, uid, .. }) => write!(f, "unix:uid={uid},pid={pid}"),
        }
    }
}
