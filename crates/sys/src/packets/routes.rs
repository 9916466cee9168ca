//! Routing queries to the kernel: device, next hop, source, and the hop's link-layer address.
//!
//! Promise: it only queries and keeps nothing. An answer that the kernel does not have is `None`,
//! not a guess. The answers are those of the network namespace in which [`Routes`] was opened.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NlasIterator, Parseable};
use netlink_packet_route::link::{LinkFlags, LinkHeader, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourMessage, NeighbourState as State,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use netlink_packet_route::tc::{TcHandle, TcHeader, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tactus_core::units::Nanos;

use crate::netlink::{Extent, Netlink, attributes, malformed};

/// The query socket.
pub(crate) struct Routes {
    netlink: Netlink,
}

/// A device that carries Ethernet frames and is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
}

/// The next hop of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hop {
    /// The index of the device.
    pub(crate) device: u32,
    /// The destination itself, or a router.
    pub(crate) next: IpAddr,
    /// The source address that the kernel selects by default.
    pub(crate) from: Option<IpAddr>,
    /// Whether this host is a member of the group, as far as the kernel reports it (IPv4 only).
    pub(crate) is_heard_here: bool,
}

/// A queueing discipline of a device (tc(8)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queue {
    /// The index of the device.
    pub(crate) device: u32,
    /// The parent class, or one of [`Queue::ROOT`] and [`Queue::INGRESS`].
    pub(crate) parent: TcHandle,
    pub(crate) kind: QueueKind,
}

impl Queue {
    pub(crate) const ROOT: TcHandle = TcHandle::ROOT;
    pub(crate) const INGRESS: TcHandle = TcHandle::INGRESS;
}

/// The kind of the discipline, as far as needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueKind {
    /// It keeps packets until their time (tc-fq(8)).
    Fair(FairQueue),
    /// One below it for each queue of the device (tc-mq(8)).
    Many,
    /// Another one.
    Other,
}

/// The limits of an `fq`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FairQueue {
    /// Limit of packets over all flows.
    pub(crate) packets: u32,
    /// Limit of packets of one flow.
    pub(crate) of_flow: u32,
    /// Limit of a packet's lead before its time; none before Linux 5.8.
    pub(crate) horizon: Option<Nanos>,
}

// linux/pkt_sched.h
const FAIR_PACKETS: u16 = 1;
const FAIR_OF_FLOW: u16 = 2;
const FAIR_HORIZON: u16 = 14;
/// `RTCF_LOCAL`, of `rtm_flags`.
const LOCAL: u32 = 0x8000_0000;

impl Routes {
    /// Opens the socket.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { netlink: Netlink::open()? })
    }

    /// All devices that can send frames.
    pub(crate) fn devices(&mut self) -> io::Result<Vec<Device>> {
        let mut devices = vec![];
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.netlink.query(question, Extent::All, |body| {
            devices.extend(device(body)?);
            Ok(())
        })?;
        Ok(devices)
    }

    /// The route to `to`, from an address and by an interface if they are given; `None` if `to` is
    /// this host, or unreachable.
    pub(crate) fn hop(
        &mut self,
        to: IpAddr,
        from: Option<IpAddr>,
        interface: Option<u32>,
    ) -> io::Result<Option<Hop>> {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let from = from.filter(|from| !from.is_unspecified());
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(to),
            destination_prefix_length: bits(to),
            source_prefix_length: from.map_or(0, bits),
            ..RouteHeader::default()
        };
        let source = from.map(|from| RouteAttribute::Source(from.into()));
        message.attributes.push(RouteAttribute::Destination(to.into()));
        message.attributes.extend(source);
        message.attributes.extend(interface.map(RouteAttribute::Oif));
        let mut hop = None;
        let question = RouteNetlinkMessage::GetRoute(message);
        self.netlink.query(question, Extent::One, |body| {
            hop = hop_of(&RouteMessage::parse(body).map_err(malformed)?, to, from);
            Ok(())
        })?;
        Ok(hop)
    }

    /// The link-layer address of a neighbour, if the kernel knows it.
    pub(crate) fn neighbour(&mut self, device: u32, next: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let mut message = NeighbourMessage::default();
        (message.header.family, message.header.ifindex) = (family(next), device);
        message.attributes = vec![NeighbourAttribute::Destination(next.into())];
        let mut found = None;
        let question = RouteNetlinkMessage::GetNeighbour(message);
        self.netlink.query(question, Extent::One, |body| {
            found = link_layer_address(&NeighbourMessage::parse(body).map_err(malformed)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// The queueing disciplines of all devices.
    pub(crate) fn queues(&mut self) -> io::Result<Vec<Queue>> {
        let mut queues = vec![];
        let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        self.netlink.query(question, Extent::All, |body| {
            let header = TcHeader::parse(body).map_err(malformed)?;
            let (device, parent) = (header.index.cast_unsigned(), header.parent);
            queues.push(Queue { device, parent, kind: queue_kind(attributes(body, &header))? });
            Ok(())
        })?;
        Ok(queues)
    }
}

/// The device of an answer, if it can send frames.
///
/// Only two attributes are parsed: there are many kinds of them, and new ones with each kernel.
fn device(body: &[u8]) -> io::Result<Option<Device>> {
    let header = LinkHeader::parse(body).map_err(malformed)?;
    let is_fit =
        header.link_layer_type == LinkLayerType::Ether && header.flags.contains(LinkFlags::Up);
    let (mut mac, mut mtu) = (None, 0);
    for attribute in attributes(body, &header) {
        let attribute = attribute.map_err(malformed)?;
        match attribute.kind() {
            libc::IFLA_ADDRESS => mac = attribute.value().try_into().ok(),
            libc::IFLA_MTU => mtu = number(attribute.value()).unwrap_or_default(),
            _ => {}
        }
    }
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let device = mac.map(|mac| Device { index: header.index, mac, mtu });
    Ok(device.filter(|_| is_fit))
}

/// The next hop of an answer, if it leads to another host.
fn hop_of(answer: &RouteMessage, to: IpAddr, from: Option<IpAddr>) -> Option<Hop> {
    if !matches!(answer.header.kind, RouteType::Unicast | RouteType::Multicast) {
        return None;
    }
    let (mut device, mut next, mut preferred) = (None, to, from);
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Gateway(gateway) => next = address(gateway).unwrap_or(next),
            RouteAttribute::PrefSource(source) => preferred = preferred.or(address(source)),
            _ => {}
        }
    }
    let is_heard_here = answer.header.flags.bits() & LOCAL != 0;
    device.map(|device| Hop { device, next, from: preferred, is_heard_here })
}

/// The link-layer address of an answer, in the states in which the kernel itself sends.
fn link_layer_address(answer: &NeighbourMessage) -> Option<[u8; 6]> {
    let is_valid = matches!(
        answer.header.state,
        State::Reachable
            | State::Stale
            | State::Delay
            | State::Probe
            | State::Noarp
            | State::Permanent
    );
    let address = answer.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(address) => address.as_slice().try_into().ok(),
        _ => None,
    });
    address.filter(|_| is_valid)
}

/// The kind of a queueing discipline with these attributes.
fn queue_kind(attributes: NlasIterator<&[u8]>) -> io::Result<QueueKind> {
    let (mut name, mut options) = (vec![], vec![]);
    for attribute in attributes {
        let attribute = attribute.map_err(malformed)?;
        match attribute.kind() {
            libc::TCA_KIND => name = attribute.value().to_vec(),
            libc::TCA_OPTIONS => options = attribute.value().to_vec(),
            _ => {}
        }
    }
    match name.as_slice() {
        b"mq\0" => return Ok(QueueKind::Many),
        b"fq\0" => {}
        _ => return Ok(QueueKind::Other),
    }
    let (mut packets, mut of_flow, mut horizon) = (None, None, None);
    for option in NlasIterator::new(options.as_slice()) {
        let option = option.map_err(malformed)?;
        let value = number(option.value());
        match option.kind() {
            FAIR_PACKETS => packets = value,
            FAIR_OF_FLOW => of_flow = value,
            FAIR_HORIZON => horizon = value,
            _ => {}
        }
    }
    Ok(match (packets, of_flow) {
        (Some(packets), Some(of_flow)) => {
            let horizon = horizon.map(|micros| Nanos::from_micros(micros.into()));
            QueueKind::Fair(FairQueue { packets, of_flow, horizon })
        }
        // Its limits are unknown.
        _ => QueueKind::Other,
    })
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use netlink_packet_core::{DefaultNla, Emitable};

    use super::*;

    #[test]
    fn this_host_is_no_hop_and_the_loopback_no_device() {
        let mut routes = Routes::open().unwrap();
        let lo = crate::udp_input::interface("lo").unwrap();
        assert!(routes.devices().unwrap().iter().all(|device| device.index != lo));
        for here in ["127.0.0.1", "::1"] {
            assert_eq!(routes.hop(here.parse().unwrap(), None, None).unwrap(), None);
        }
    }

    #[test]
    fn of_a_queueing_discipline_is_known_what_it_keeps() {
        let attribute = |kind: u16, value: &[u8]| {
            let attribute = DefaultNla::new(kind, value.to_vec());
            let mut bytes = vec![0; attribute.buffer_len()];
            attribute.emit(&mut bytes);
            bytes
        };
        let queue_kind = |bytes: &[u8]| queue_kind(NlasIterator::new(bytes)).unwrap();
        let number = |kind, value: u32| attribute(kind, &value.to_ne_bytes());
        let fair = |options: &[Vec<u8>]| {
            queue_kind(&[attribute(1, b"fq\0"), attribute(2, &options.concat())].concat())
        };
        let limits = [number(1, 10_000), number(3, 3028), number(2, 100)];
        let mut known = FairQueue { packets: 10_000, of_flow: 100, horizon: None };
        assert_eq!(fair(&limits), QueueKind::Fair(known));
        known.horizon = Some(Nanos::from_millis(10_000));
        let horizon = [&limits[..], &[number(14, 10_000_000)]].concat();
        assert_eq!(fair(&horizon), QueueKind::Fair(known));
        assert_eq!(fair(&limits[..2]), QueueKind::Other, "nobody knows what it throws away");
        assert_eq!(queue_kind(&attribute(1, b"mq\0")), QueueKind::Many);
        assert_eq!(queue_kind(&attribute(1, b"fq_codel\0")), QueueKind::Other);
    }

    #[test]
    fn every_device_that_is_up_has_a_queueing_discipline() {
        let mut routes = Routes::open().unwrap();
        let queues = routes.queues().unwrap();
        for device in routes.devices().unwrap() {
            let is_root =
                |queue: &Queue| (queue.device, queue.parent) == (device.index, Queue::ROOT);
            assert!(queues.iter().any(is_root), "{device:?}: {queues:?}");
        }
    }

    #[test]
    fn nobody_is_the_neighbour_of_the_loopback() {
        let mut routes = Routes::open().unwrap();
        let lo = crate::udp_input::interface("lo").unwrap();
        let nobody = "192.0.2.77".parse().unwrap();
        assert_eq!(routes.neighbour(lo, nobody).unwrap(), None);
    }

    #[test]
    fn a_group_leaves_by_the_interface_that_it_is_sent_by() {
        let mut routes = Routes::open().unwrap();
        let devices = routes.devices().unwrap();
        let Some(device) = devices.first() else {
            println!("skipped: this host has no Ethernet");
            return;
        };
        let group = "239.1.2.3".parse().unwrap();
        // Without an address of its own, the kernel's choice counts, not none.
        let any = Some(Ipv4Addr::UNSPECIFIED.into());
        let Some(hop) = routes.hop(group, any, Some(device.index)).unwrap() else {
            println!("skipped: this host has no route for groups");
            return;
        };
        assert_eq!((hop.device, hop.next), (device.index, group));
        assert!(hop.from.is_none_or(|from| !from.is_unspecified()), "{hop:?}");
    }
}
