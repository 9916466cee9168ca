//! Transports of packets: destination, ports or channels, and the Transport header.
//!
//! Promise: packets go to the requesting client only, unless the configuration permits another
//! address (rows S08 to S10), for every kind of title. Resources of a transport are released when
//! it is dropped.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tactus_control::broker::{Broker, DeliverySpec, Output, UdpOutput};
use tactus_core::datagrams::{Framing, Ip, Session};
use tactus_core::rtp::frame;
use tactus_core::rtsp::Status;
use tactus_core::rtsp::message::Reply;
use tactus_core::rtsp::transport::{Ends, Lower, Offer, Ports};
use tactus_core::units::Nanos;
use tactus_storage::warnings;
use tactus_sys::packets::udp_output::is_broadcast;
use tactus_sys::tcp::Preparation;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::connection_limit::network;
use super::describe::TsTitle;
use super::groups::{Group, NoGroup};
use super::ports::{Listeners, Pair};
use super::settings::Principal;
use super::{Reason, Server};

/// The transport of one stream.
pub(super) struct StreamTransport {
    pub(super) path: RtpTransport,
    pub(super) to: SocketAddr,
    /// The Transport header of the answer, without the SSRC.
    pub(super) transport: String,
}

/// How packets travel.
pub(super) enum RtpTransport {
    Udp(UdpTransport),
    Interleaved(InterleavedTransport),
}

pub(super) struct UdpTransport {
    pub(super) udp_output: Arc<UdpOutput>,
    pub(super) to: SocketAddr,
    pub(super) burst: Nanos,
    /// The destination of sender reports.
    pub(super) listeners: Listeners,
    /// The multicast group, held while packets may be sent.
    pub(super) _group: Option<Group>,
}

pub(super) struct InterleavedTransport {
    /// The connection; this is its only writer.
    writer: TcpStream,
    peer: SocketAddr,
    /// The channels of RTP and of RTCP.
    pub(super) channels: (u8, u8),
    /// The connection cannot be used any more.
    pub(super) is_broken: bool,
}

/// The client of a SETUP.
pub(super) struct Requester<'a> {
    pub(super) server: &'a Arc<Server>,
    pub(super) socket: &'a TcpStream,
    pub(super) peer: SocketAddr,
    /// The server's address.
    pub(super) own: IpAddr,
    pub(super) principal: Option<&'a Principal>,
}

/// The current use of the connection.
pub(super) enum ConnectionUse<'a> {
    Nothing,
    /// Another session.
    Another,
    /// Other tracks of this session, on these channels.
    Channels(&'a [(u8, u8)]),
}

/// Unsent bytes in the kernel of a connection that carries frames: 50 ms of 20 Mbit/s.
const NOT_SENT_MAX: u32 = 128 << 10;
/// Time for the client to read a message.
const SAY_MAX: Duration = Duration::from_secs(10);

fn none(text: &str) -> Reply {
    Reply::said(Status::UNSUPPORTED_TRANSPORT, text)
}

pub(super) fn failed(error: &io::Error) -> Reply {
    if let Some(left_out) = warnings::poll("rtsp ports", "") {
        tracing::warn!(%error, left_out, "no free ports are left for RTP");
    }
    Reply::said(Status::INTERNAL, "cannot open ports for RTP")
}

impl Requester<'_> {
    /// The first offered transport that is permitted.
    ///
    /// # Errors
    /// If no offer is permitted.
    pub(super) fn choose(
        &self,
        offers: &[Offer],
        carries: &ConnectionUse<'_>,
    ) -> Result<(StreamTransport, Offer), Reply> {
        let mut worst = Reply::new(Status::UNSUPPORTED_TRANSPORT);
        for offer in offers {
            let transport = match offer.lower {
                _ if offer.records => Err(none("recording over RTSP is off")),
                Lower::Interleaved(channels) => self.by_frames(channels, carries),
                Lower::Unicast(ports) => self.by_datagrams(ports, offer),
                Lower::Multicast(port) => self.to_group(port, offer),
            };
            match transport {
                Ok(transport) => return Ok((transport, *offer)),
                Err(reply) => worst = reply,
            }
        }
        self.server.counters.refuse(Reason::Transport);
        Err(worst)
    }

    fn by_frames(
        &self,
        wanted: Option<(u8, u8)>,
        carries: &ConnectionUse<'_>,
    ) -> Result<StreamTransport, Reply> {
        let used = match carries {
            ConnectionUse::Nothing => &[][..],
            ConnectionUse::Another => {
                return Err(none("this connection already carries another session"));
            }
            ConnectionUse::Channels(used) => used,
        };
        let is_free = |one: u8| used.iter().all(|&(rtp, rtcp)| one != rtp && one != rtcp);
        let pairs = (0..u8::MAX).step_by(2).map(|rtp| (rtp, rtp + 1));
        let free = |&(rtp, rtcp): &(u8, u8)| is_free(rtp) && is_free(rtcp);
        let channels = wanted.or_else(|| pairs.clone().find(free)).filter(free);
        let channels = channels.ok_or_else(|| {
            none(
                "these interleaved channels already carry \
            another track",
            )
        })?;
        let preparation = Preparation { not_sent_max: Some(NOT_SENT_MAX), send_buffer: None };
        let writer = tactus_sys::tcp::prepare(self.socket, preparation)
            .and_then(|_| self.socket.as_fd().try_clone_to_owned())
            .and_then(|socket| TcpStream::from_std(socket.into()))
            .map_err(|error| failed(&error))?;
        let transport = format!("RTP/AVP/TCP;unicast;interleaved={}-{}", channels.0, channels.1);
        let path = RtpTransport::Interleaved(InterleavedTransport {
            writer,
            peer: self.peer,
            channels,
            is_broken: false,
        });
        Ok(StreamTransport { path, to: self.peer, transport })
    }

    fn by_datagrams(&self, ports: Ports, offer: &Offer) -> Result<StreamTransport, Reply> {
        let server = self.server;
        let mut to = self.peer;
        if let Some(other) = offer.destination.filter(|other| *other != self.peer.ip()) {
            if !may_be_sent_to(other, self.own, self.principal) {
                server.counters.refuse(Reason::Reflect);
                let peer = network(self.peer.ip()).to_string();
                if let Some(left_out) = warnings::poll("rtsp destination", &peer) {
                    tracing::warn!(
                        peer = %self.peer, destination = %other, left_out,
                        "this destination address is not permitted; see [rtsp] destinations"
                    );
                }
                let text = "packets are sent to the address of the request only; see [rtsp] \
                    destinations";
                return Err(Reply::said(offer.form.prohibited(), text));
            }
            to = SocketAddr::new(other, 0);
        }
        if to.is_ipv4() != self.own.is_ipv4() {
            return Err(none(
                "the destination must use the same protocol (IPv4 or IPv6) as the \
                connection",
            ));
        }
        let pair = server.pair(self.own).map_err(|error| failed(&error))?;
        let server_ports = pair.ports;
        // Row S10: not to the server itself.
        if to.ip() == self.own && ports.meets(server_ports) {
            return Err(none("these ports belong to the server"));
        }
        to.set_port(ports.rtp);
        let mut from = to;
        from.set_port(ports.rtcp());
        if pair.is_full(from) {
            return Err(none(
                "the limit of sessions for these ports is reached; choose other \
                ports",
            ));
        }
        let ends = Ends { to: to.ip(), client: ports, from: pair.address, server: server_ports };
        let transport = offer.form.unicast(ends);
        let (udp_output, burst) = (Arc::clone(&pair.udp_output), server.settings.burst);
        let listeners = Listeners::One(pair, from);
        let path =
            RtpTransport::Udp(UdpTransport { udp_output, to, burst, listeners, _group: None });
        Ok(StreamTransport { path, to, transport })
    }

    fn to_group(&self, port: Option<Ports>, offer: &Offer) -> Result<StreamTransport, Reply> {
        let server = self.server;
        let hops = offer.ttl.unwrap_or(server.settings.hops);
        if hops == 0 || hops > server.settings.hops {
            return Err(none("the TTL must be between 1 and [rtsp] hops"));
        }
        let port = port.map_or(server.settings.group_port, |port| port.rtp);
        if port != server.settings.group_port {
            return Err(none("multicast groups use another port on this server"));
        }
        let group = server.groups.take(offer.destination, self.own.is_ipv4());
        let group = group.map_err(|why| match why {
            NoGroup::NotOurs => none("this multicast group is not one of the server's"),
            NoGroup::InUse => {
                server.counters.refuse(Reason::Room);
                Reply::said(Status::NOT_ENOUGH_BANDWIDTH, "no multicast group is free")
            }
        })?;
        // Reports use the same socket, with the same TTL and interface as the packets.
        let opened = server.pairs.for_group(group.address, hops).and_then(|udp_output| {
            let socket = UdpSocket::from(udp_output.try_clone()?);
            Ok((udp_output, Arc::new(socket)))
        });
        let (udp_output, socket) = opened.map_err(|error| failed(&error))?;
        let to = SocketAddr::new(group.address, port);
        let ports = Ports { rtp: port };
        let transport = offer.form.multicast(group.address, ports, hops);
        let burst = server.settings.burst;
        let listeners = Listeners::Group(socket, SocketAddr::new(group.address, ports.rtcp()));
        let _group = Some(group);
        let path = RtpTransport::Udp(UdpTransport { udp_output, to, burst, listeners, _group });
        Ok(StreamTransport { path, to, transport })
    }
}

impl RtpTransport {
    /// The output of a delivery that uses this transport.
    pub(super) fn output(&self) -> io::Result<Output> {
        match self {
            Self::Udp(path) => Ok(path.output()),
            Self::Interleaved(path) => path.output(),
        }
    }

    /// The channel of the packets in a connection.
    pub(super) fn channel(&self) -> Option<u8> {
        match self {
            Self::Udp(_) => None,
            Self::Interleaved(path) => Some(path.channels.0),
        }
    }

    /// What admission is asked for to send a ts_title by this transport.
    pub(super) fn spec<'a>(
        &self,
        broker: &Broker,
        ts_title: &'a TsTitle,
        session: Session,
    ) -> DeliverySpec<'a> {
        let (title, rate) = (&ts_title.title, ts_title.rate);
        match self {
            Self::Udp(path) => {
                let packets = (Framing::Rtp(session), &path.output());
                DeliverySpec::datagrams(broker, title, [rate, rate], packets, None)
            }
            Self::Interleaved(path) => DeliverySpec::interleaved(broker, title, rate, path.ip()),
        }
    }

    /// Where reports come to, and from where.
    pub(super) fn reports(&self) -> Option<(Arc<Pair>, SocketAddr)> {
        match self {
            Self::Udp(path) => path.listeners.receiver(),
            Self::Interleaved(_) => None,
        }
    }
}

impl UdpTransport {
    /// The socket and destination as an output.
    pub(super) fn output(&self) -> Output {
        Output::datagrams(&self.udp_output, self.to, self.burst)
    }
}

impl InterleavedTransport {
    /// Writes to the connection while no frames are sent.
    pub(super) async fn say(&mut self, text: &[u8]) {
        if self.is_broken {
            return;
        }
        let said = tokio::time::timeout(SAY_MAX, self.writer.write_all(text)).await;
        self.is_broken = !matches!(said, Ok(Ok(())));
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        self.writer.as_fd().try_clone_to_owned()
    }

    /// The connection as an output, whose RTP packets carry its channel.
    pub(super) fn output(&self) -> io::Result<Output> {
        Ok(Output::channel(self.socket()?, self.channels.0))
    }

    pub(super) fn ip(&self) -> Ip {
        if self.peer.is_ipv4() { Ip::V4 } else { Ip::V6 }
    }
}

/// A report in its own frame (RFC 2326, section 10.12).
pub(super) fn report_frame(channel: u8, bytes: &[u8]) -> Box<[u8]> {
    let len = u16::try_from(bytes.len()).expect("reports are short");
    [&frame::head(channel, len)[..], bytes].concat().into()
}

/// Rows S08 and S10: another address needs permission by the configuration; some addresses are
/// never permitted.
fn may_be_sent_to(other: IpAddr, own: IpAddr, principal: Option<&Principal>) -> bool {
    let never =
        other == own || other.is_unspecified() || other.is_multicast() || other.is_loopback();
    let is_named =
        || principal.is_some_and(|one| one.destinations.iter().any(|net| net.contains(other)));
    !never && is_named() && !is_broadcast(other)
}

#[cfg(test)]
mod tests {
    use tactus_control::rights::Paths;
    use tactus_notation::net::Net;

    use super::*;

    #[test]
    fn s08_s10_nobody_is_sent_to_who_did_not_ask() {
        let wide = |text: &str| vec![Net::parse(text).unwrap()];
        let anna = |destinations| {
            let (name, password) = ("anna".into(), "".into());
            Principal { name, password, destinations, records: false, paths: Paths::everywhere() }
        };
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let may = |to: &str, who: Option<&Principal>| may_be_sent_to(to.parse().unwrap(), own, who);
        let (named, all) = (anna(wide("10.1.0.0/16")), anna(wide("0.0.0.0/0")));
        assert!(!may("10.1.0.7", None) && !may("10.1.0.7", Some(&anna(vec![]))));
        assert!(may("10.1.0.7", Some(&named)) && !may("10.2.0.7", Some(&named)));
        for never in ["10.0.0.1", "0.0.0.0", "255.255.255.255", "239.1.1.1", "127.0.0.1"] {
            assert!(!may(never, Some(&all)), "{never}");
        }
    }
}
