//! Routing queries to the kernel: device, next hop, source, and the hop's link-layer address.
//!
//! Promise: it only queries and keeps nothing. An answer that the kernel does not have is `None`,
//! not a guess. It uses rtnetlink (rtnetlink(7)), so the answers are those of the network namespace
//! in which [`Routes`] was opened.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use tactus_core::units::Nanos;

/// The query socket.
pub(crate) struct Routes {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
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
    pub(crate) parent: u32,
    pub(crate) kind: QueueKind,
}

impl Queue {
    pub(crate) const ROOT: u32 = 0xffff_ffff;
    pub(crate) const INGRESS: u32 = 0xffff_fff1;
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

/// Limit of the length of an answer; the kernel sends dumps in pieces of at most this.
const ANSWER_MAX: usize = 32 * 1024;
/// Limit of pieces of one dump: 100 devices of 2 KB each come in seven.
const PIECES_MAX: usize = 64;

const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;
const QUEUE_HEADER: usize = 20;

// linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/neighbour.h
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
const NEW_QUEUE: u16 = 36;
const GET_QUEUE: u16 = 38;
const QUEUE_KIND: u16 = 1;
const QUEUE_OPTIONS: u16 = 2;
// linux/pkt_sched.h
const FAIR_PACKETS: u16 = 1;
const FAIR_OF_FLOW: u16 = 2;
const FAIR_HORIZON: u16 = 14;
const LINK_ADDRESS: u16 = 1;
const LINK_MTU: u16 = 4;
const ROUTE_TO: u16 = 1;
const ROUTE_FROM: u16 = 2;
const ROUTE_DEVICE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_PREFERRED: u16 = 7;
const NEIGHBOUR_TO: u16 = 1;
const NEIGHBOUR_ADDRESS: u16 = 2;
/// A route to another host, of the kinds in `rtm_type`.
const UNICAST: u8 = 1;
const MULTICAST: u8 = 5;
/// Reachable, stale, delayed, probed, needs none, permanent: states in which the kernel itself
/// sends.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// `RTCF_LOCAL`, of `rtm_flags`.
const LOCAL: u32 = 0x8000_0000;
const UP: u32 = 1;
const ETHERNET: u16 = 1;

impl Routes {
    /// Opens the socket.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        // No protocol is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; ANSWER_MAX] })
    }

    /// All devices that can send frames.
    pub(crate) fn devices(&mut self) -> io::Result<Vec<Device>> {
        let mut devices = vec![];
        self.ask(GET_LINK, DUMP, &[0; LINK_HEADER], &[], |kind, body| {
            let Some((head, rest)) = body.split_at_checked(LINK_HEADER) else { return };
            let is_fit = kind == NEW_LINK && word(head, 2) == ETHERNET && long(head, 8) & UP != 0;
            if !is_fit {
                return;
            }
            let (mut mac, mut mtu) = (None, 0);
            attributes(rest, |kind, value| match kind {
                LINK_ADDRESS => mac = value.try_into().ok(),
                LINK_MTU if value.len() == 4 => mtu = long(value, 0),
                _ => {}
            });
            if let Some(mac) = mac {
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                devices.push(Device { index: long(head, 4), mac, mtu });
            }
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
        let mut head = [0; ROUTE_HEADER];
        head[0] = family(to);
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        head[1] = bits(to);
        let mut wanted = vec![(ROUTE_TO, octets(to))];
        let from = from.filter(|from| !from.is_unspecified());
        if let Some(from) = from {
            head[2] = bits(from);
            wanted.push((ROUTE_FROM, octets(from)));
        }
        if let Some(interface) = interface {
            wanted.push((ROUTE_DEVICE, interface.to_ne_bytes().to_vec()));
        }
        let mut hop = None;
        self.ask(GET_ROUTE, 0, &head, &wanted, |kind, body| {
            let Some((head, rest)) = body.split_at_checked(ROUTE_HEADER) else { return };
            if kind != NEW_ROUTE || !matches!(head[7], UNICAST | MULTICAST) {
                return;
            }
            let (mut device, mut next, mut preferred) = (None, to, from);
            attributes(rest, |kind, value| match kind {
                ROUTE_DEVICE if value.len() == 4 => device = Some(long(value, 0)),
                ROUTE_GATEWAY => next = address(value).unwrap_or(next),
                ROUTE_PREFERRED => preferred = preferred.or(address(value)),
                _ => {}
            });
            let is_heard_here = long(head, 8) & LOCAL != 0;
            hop = device.map(|device| Hop { device, next, from: preferred, is_heard_here });
        })?;
        Ok(hop)
    }

    /// The link-layer address of a neighbour, if the kernel knows it.
    pub(crate) fn neighbour(&mut self, device: u32, next: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let mut head = [0; NEIGHBOUR_HEADER];
        head[0] = family(next);
        head[4..8].copy_from_slice(&device.to_ne_bytes());
        let mut found = None;
        let wanted = [(NEIGHBOUR_TO, octets(next))];
        self.ask(GET_NEIGHBOUR, 0, &head, &wanted, |kind, body| {
            let Some((head, rest)) = body.split_at_checked(NEIGHBOUR_HEADER) else { return };
            if kind == NEW_NEIGHBOUR && word(head, 8) & VALID != 0 {
                attributes(rest, |kind, value| {
                    if kind == NEIGHBOUR_ADDRESS {
                        found = value.try_into().ok();
                    }
                });
            }
        })?;
        Ok(found)
    }

    /// The queueing disciplines of all devices.
    pub(crate) fn queues(&mut self) -> io::Result<Vec<Queue>> {
        let mut queues = vec![];
        self.ask(GET_QUEUE, DUMP, &[0; QUEUE_HEADER], &[], |kind, body| {
            let Some((head, rest)) = body.split_at_checked(QUEUE_HEADER) else { return };
            if kind == NEW_QUEUE {
                let (device, parent) = (long(head, 4), long(head, 12));
                queues.push(Queue { device, parent, kind: queue_kind(rest) });
            }
        })?;
        Ok(queues)
    }

    /// Sends a query, and passes every answer on. A refusal of the kernel is no answer.
    fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        head: &[u8],
        wanted: &[(u16, Vec<u8>)],
        mut each: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        self.sequence += 1;
        let mut request = vec![0; HEADER];
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        request.extend(head);
        for (kind, value) in wanted {
            let len = 4 + value.len() as u16;
            request.extend(len.to_ne_bytes());
            request.extend(kind.to_ne_bytes());
            request.extend(value);
            request.resize(request.len().next_multiple_of(4), 0);
        }
        let len = request.len() as u32;
        request[..4].copy_from_slice(&len.to_ne_bytes());
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        for _ in 0..PIECES_MAX {
            let (got, _) =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            let mut rest = &self.buffer[..got];
            while rest.len() >= HEADER {
                let len = long(rest, 0) as usize;
                if len < HEADER || len > rest.len() {
                    break;
                }
                let (kind, sequence) = (word(rest, 4), long(rest, 8));
                if sequence == self.sequence {
                    if matches!(kind, ERROR | DONE) {
                        return Ok(());
                    }
                    each(kind, &rest[HEADER..len]);
                    if flags & DUMP == 0 {
                        return Ok(());
                    }
                }
                rest = &rest[len.next_multiple_of(4).min(rest.len())..];
            }
        }
        Ok(())
    }
}

/// The attributes of a queueing discipline.
fn queue_kind(body: &[u8]) -> QueueKind {
    let (mut name, mut options): (&[u8], &[u8]) = (&[], &[]);
    attributes(body, |kind, value| match kind {
        QUEUE_KIND => name = value,
        QUEUE_OPTIONS => options = value,
        _ => {}
    });
    match name {
        b"mq\0" => return QueueKind::Many,
        b"fq\0" => {}
        _ => return QueueKind::Other,
    }
    let (mut packets, mut of_flow, mut horizon) = (None, None, None);
    attributes(options, |kind, value| {
        let number = value.try_into().ok().map(u32::from_ne_bytes);
        match kind {
            FAIR_PACKETS => packets = number,
            FAIR_OF_FLOW => of_flow = number,
            FAIR_HORIZON => horizon = number,
            _ => {}
        }
    });
    match (packets, of_flow) {
        (Some(packets), Some(of_flow)) => {
            let horizon = horizon.map(|micros| Nanos::from_micros(micros.into()));
            QueueKind::Fair(FairQueue { packets, of_flow, horizon })
        }
        // Its limits are unknown.
        _ => QueueKind::Other,
    }
}

fn attributes<'a>(mut rest: &'a [u8], mut each: impl FnMut(u16, &'a [u8])) {
    while rest.len() >= 4 {
        let (len, kind) = (usize::from(word(rest, 0)), word(rest, 2));
        if len < 4 || len > rest.len() {
            return;
        }
        each(kind, &rest[4..len]);
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
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
            let mut bytes = [4 + value.len() as u16, kind].map(u16::to_ne_bytes).concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
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
