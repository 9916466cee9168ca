//! Outputs of deliveries: the engine's output, and the owner of its socket or ring.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::Ip;
use tactus_core::ports::SocketHandle;
use tactus_core::units::{MIB, Nanos};
use tactus_engine::message::{
    self, Backpressure, Connection, ConnectionEnd, Datagrams, LinkId, PacketServerId, StreamId,
    StreamRing,
};

use super::senders::Sender;

/// The destination of a delivery.
#[derive(Clone, Debug)]
pub struct Output {
    pub(super) engine: message::Output,
    /// Open while the engine sends. It comes back if nothing else holds it. A ring has none.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// The other end, if it has an address.
    pub(super) peer: Option<SocketAddr>,
}

impl Output {
    /// A connection of a client; it must be non-blocking and prepared for the link. The delivery
    /// ends if the client does not take its bytes.
    pub fn connection(socket: impl Into<OwnedFd>) -> Self {
        Self::shared_connection(Arc::new(socket.into()))
    }

    /// As [`Self::connection`]; the caller keeps a handle. Only the engine writes to it until the
    /// delivery has ended.
    pub fn shared_connection(socket: Arc<OwnedFd>) -> Self {
        let peer = rustix::net::getpeername(&socket).ok().flatten();
        let peer = peer.and_then(|peer| peer.try_into().ok());
        let connection = Connection::of(SocketHandle(socket.as_raw_fd()));
        Self { engine: message::Output::Connection(connection), socket: Some(socket), peer }
    }

    /// A connection whose RTP packets carry this channel number (RFC 2326, section 10.12).
    pub fn channel(socket: impl Into<OwnedFd>, channel: u8) -> Self {
        let mut output = Self::connection(socket);
        if let message::Output::Connection(connection) = &mut output.engine {
            connection.channel = channel;
        }
        output
    }

    /// A reader in this process, with backpressure.
    pub fn reader(socket: UnixStream) -> Self {
        let socket = Arc::new(OwnedFd::from(socket));
        let connection = Connection::of(SocketHandle(socket.as_raw_fd()));
        let backpressure = Backpressure::Wait;
        let engine = message::Output::Connection(Connection { backpressure, ..connection });
        Self { engine, socket: Some(socket), peer: None }
    }

    /// The ring of a local client. The delivery ends if the client does not take its bytes.
    #[must_use]
    pub fn ring(ring: Arc<StreamRing>) -> Self {
        let engine = message::Output::Connection(Connection::ring(ring));
        Self { engine, socket: None, peer: None }
    }

    /// Datagrams from `udp` to `to`; datagrams that are due within `burst` may leave together.
    pub fn datagrams(udp: &UdpOutput, to: SocketAddr, burst: Nanos) -> Self {
        Self::datagrams_after(udp, to, burst, None)
    }

    /// As [`Self::datagrams`]. They follow those of another stream without a gap: RTP numbers,
    /// counters and clocks continue. They begin when that stream has ended, with the datagram that
    /// would have been due then. If that stream is no longer known, they begin by themselves; it is
    /// known while its grant is held.
    pub fn datagrams_after(
        udp: &UdpOutput,
        to: SocketAddr,
        burst: Nanos,
        after: Option<StreamId>,
    ) -> Self {
        let socket = Arc::clone(&udp.socket);
        let handle = SocketHandle(socket.as_raw_fd());
        let class = udp.class;
        let datagrams = Datagrams { burst, class, after, ..Datagrams::to(handle, to) };
        let engine = message::Output::Datagrams(datagrams);
        Self { engine, socket: Some(socket), peer: Some(to) }
    }
}

impl Output {
    /// The version of IP to its peer.
    pub fn ip(&self) -> Ip {
        match self.peer {
            Some(SocketAddr::V6(_)) => Ip::V6,
            Some(SocketAddr::V4(_)) | None => Ip::V4,
        }
    }

    /// The same, sent by the server with this index among those that can send it.
    pub(super) fn sent_by(mut self, index: u16) -> Self {
        match &mut self.engine {
            message::Output::Connection(connection) => connection.link = LinkId(index),
            message::Output::Datagrams(datagrams) => datagrams.server = PacketServerId(index),
        }
        self
    }

    /// Its socket, if nothing else holds it.
    pub(super) fn into_socket(self) -> Option<OwnedFd> {
        Arc::into_inner(self.socket?)
    }

    /// The ring that it sends to.
    pub(super) fn shared_ring(&self) -> Option<Arc<StreamRing>> {
        match &self.engine {
            message::Output::Connection(Connection { end: ConnectionEnd::Ring(ring), .. }) => {
                Some(Arc::clone(ring))
            }
            message::Output::Connection(_) | message::Output::Datagrams(_) => None,
        }
    }

    /// The servers that can send to it.
    pub(super) fn sender(&self) -> Sender {
        match &self.engine {
            message::Output::Connection(_) => Sender::AnyLink,
            message::Output::Datagrams(datagrams) => Sender::Packets { after: datagrams.after },
        }
    }

    /// Its class of the link; connections have none.
    pub(super) fn class(&self) -> Option<ClassNumber> {
        match &self.engine {
            message::Output::Datagrams(datagrams) => datagrams.class,
            message::Output::Connection(_) => None,
        }
    }

    /// How long packets may wait to leave together.
    pub(super) fn burst(&self) -> Nanos {
        match &self.engine {
            message::Output::Datagrams(datagrams) => datagrams.burst,
            message::Output::Connection(_) => Nanos(0),
        }
    }
}

/// Size of the socket buffer: 25 ms of 2.5 Gbit/s; ten times the delay that counts as a stall of
/// the link.
pub const UDP_BUFFER: usize = 8 * MIB as usize;
/// With a smaller buffer, few absent receivers fill it: the kernel keeps 208 KiB for each neighbour
/// that it tries to resolve (`unres_qlen_bytes`).
pub const UDP_BUFFER_MIN: usize = 4 * MIB as usize;

/// A datagram socket, shared by its streams, and their class of the link.
#[derive(Debug)]
pub struct UdpOutput {
    socket: Arc<OwnedFd>,
    class: Option<ClassNumber>,
}

impl UdpOutput {
    /// A socket of `class`; of the link itself if `class` is `None`.
    #[must_use]
    pub fn of(socket: OwnedFd, class: Option<ClassNumber>) -> Arc<Self> {
        Arc::new(Self { socket: Arc::new(socket), class })
    }

    /// The same socket, for reports and announcements.
    ///
    /// # Errors
    /// If file descriptors are exhausted.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}
