//! Frames: a datagram with all headers that the kernel would have added.
//!
//! Promise: the output is a whole Ethernet frame (RFC 894, RFC 2464) of IPv4 (RFC 791) or IPv6 (RFC
//! 8200) and UDP (RFC 768) with correct checksums, or nothing if it does not fit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The route of datagrams of one UDP output to one destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// Index of the port's device.
    pub(crate) device: u8,
    pub(crate) to_mac: Mac,
    pub(crate) from_mac: Mac,
    /// The source, of the family of the destination.
    pub(crate) from: SocketAddr,
    /// TTL, or hop limit.
    pub(crate) hops: u8,
    /// TOS, or traffic class.
    pub(crate) class: u8,
    /// The longest IP packet.
    pub(crate) mtu: u16,
}

pub(crate) type Mac = [u8; 6];

const ETHERNET: usize = 14;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// The IP packet must not be fragmented, like the kernel's own UDP.
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// The side that sums the payload for UDP's checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Checksum {
    /// The checksum is complete when the frame is written.
    Ours,
    /// The device, or the kernel in its place: the field holds the sum of the pseudo header alone.
    Device,
}

/// A frame that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) len: usize,
    /// Offset of UDP's header.
    pub(crate) udp: usize,
}

/// Length of the longest headers: Ethernet, IPv6, UDP.
pub(crate) const HEADER_MAX: usize = ETHERNET + 40 + UDP;

/// Writes a datagram with `payload` bytes, which `copy` fills in.
pub(crate) fn write(
    route: &Route,
    to: SocketAddr,
    payload: usize,
    checksum: Checksum,
    into: &mut [u8],
    copy: impl FnOnce(&mut [u8]),
) -> Option<Frame> {
    if !fits(route, to, payload) {
        return None;
    }
    let header = header_len(to);
    let (head, body) = into.get_mut(..header + payload)?.split_at_mut(header);
    copy(body);
    let at = write_header(route, to, payload, head)?;
    if checksum == Checksum::Ours {
        let udp = &mut head[at..];
        // The field holds the sum of the pseudo header, which is part of the checksum.
        let check = match fold(sum(udp) + sum(body)) {
            // A zero checksum is sent as its other form, because zero means that there is none.
            0 => 0xffff,
            check => check,
        };
        udp[6..8].copy_from_slice(&check.to_ne_bytes());
    }
    Some(Frame { len: header + payload, udp: at })
}

/// Whether a datagram of `payload` bytes may leave by this route.
pub(crate) fn fits(route: &Route, to: SocketAddr, payload: usize) -> bool {
    header_len(to) - ETHERNET + payload <= usize::from(route.mtu)
}

/// Number of bytes in front of a payload.
pub(crate) fn header_len(to: SocketAddr) -> usize {
    ETHERNET + if to.is_ipv4() { 20 } else { 40 } + UDP
}

/// Writes the headers of `payload` bytes, with the checksum as [`Checksum::Device`]. Returns the
/// offset of UDP's header.
pub(crate) fn write_header(
    route: &Route,
    to: SocketAddr,
    payload: usize,
    into: &mut [u8],
) -> Option<usize> {
    let header = header_len(to);
    let head = into.get_mut(..header)?;
    let kind = if to.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
    head[..6].copy_from_slice(&route.to_mac);
    head[6..12].copy_from_slice(&route.from_mac);
    head[12..14].copy_from_slice(&kind);
    let at = header - UDP;
    let (head, udp) = head.split_at_mut(at);
    let head = &mut head[ETHERNET..];
    let udp_len = u16::try_from(UDP + payload).ok()?;
    let pseudo = match (route.from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            write_v4(head, route, from, to, udp_len.checked_add(20)?);
            sum(&head[12..20])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            write_v6(head, route, from, to, udp_len);
            sum(&head[8..40])
        }
        _ => return None,
    };
    udp[0..2].copy_from_slice(&route.from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let pseudo = pseudo + sum(&[0, PROTOCOL_UDP, udp[4], udp[5]]);
    udp[6..8].copy_from_slice(&(!fold(pseudo)).to_ne_bytes());
    Some(at)
}

fn write_v4(head: &mut [u8], route: &Route, from: Ipv4Addr, to: Ipv4Addr, len: u16) {
    head[0] = 0x45;
    head[1] = route.class;
    head[2..4].copy_from_slice(&len.to_be_bytes());
    head[4..6].fill(0);
    head[6..8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
    head[8] = route.hops;
    head[9] = PROTOCOL_UDP;
    head[10..12].fill(0);
    head[12..16].copy_from_slice(&from.octets());
    head[16..20].copy_from_slice(&to.octets());
    let check = fold(sum(head));
    head[10..12].copy_from_slice(&check.to_ne_bytes());
}

fn write_v6(head: &mut [u8], route: &Route, from: Ipv6Addr, to: Ipv6Addr, udp_len: u16) {
    let first = 6 << 28 | u32::from(route.class) << 20;
    head[0..4].copy_from_slice(&first.to_be_bytes());
    head[4..6].copy_from_slice(&udp_len.to_be_bytes());
    head[6] = PROTOCOL_UDP;
    head[7] = route.hops;
    head[8..24].copy_from_slice(&from.octets());
    head[24..40].copy_from_slice(&to.octets());
}

/// The Ethernet address of a group (RFC 1112, section 6.4; RFC 2464, section 7); `None` for other
/// addresses.
pub(crate) fn mac_of_group(group: IpAddr) -> Option<Mac> {
    match group {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) if group.is_multicast() => {
            let [.., a, b, c, d] = group.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

/// The sum of the words of `bytes` in the machine's order (RFC 1071, sections 1 and 2 B). An odd
/// byte is the first of a word.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let whole: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_ne_bytes(last))
}

/// The checksum for this `sum`.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(from: &str) -> Route {
        Route {
            device: 0,
            to_mac: [2, 0, 0, 0, 0, 2],
            from_mac: [2, 0, 0, 0, 0, 1],
            from: from.parse().unwrap(),
            hops: 7,
            class: 0x88,
            mtu: 1500,
        }
    }

    /// RFC 1071's sum, word by word as the RFC has it.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn what_a_receiver_adds_up_comes_out_as_it_must() {
        for (from, to) in
            [("10.0.0.1:5000", "239.1.2.3:6000"), ("[fe80::1]:5000", "[ff02::1:2]:6000")]
        {
            let to: SocketAddr = to.parse().unwrap();
            for len in [0usize, 1, 2, 3, 11, 188, 1316, 1327, 1328, 1400] {
                let body: Vec<u8> = (0..len).map(|at| (at * 37 + len) as u8).collect();
                let mut frame = [0xee; 2048];
                let copy = |into: &mut [u8]| into.copy_from_slice(&body);
                let written =
                    write(&route(from), to, len, Checksum::Ours, &mut frame, copy).unwrap();
                let ip = if to.is_ipv4() { 20 } else { 40 };
                let whole = 14 + ip + 8 + len;
                assert_eq!(written, Frame { len: whole, udp: 14 + ip });
                assert_eq!(frame[14 + ip + 8..whole], body);
                let addresses = if to.is_ipv4() { &frame[26..34] } else { &frame[22..54] };
                let mut pseudo = addresses.to_vec();
                pseudo.extend([0, 17]);
                pseudo.extend((8 + len as u16).to_be_bytes());
                pseudo.extend(&frame[14 + ip..whole]);
                assert_eq!(plain(&pseudo), 0xffff, "{to}, {len} bytes");
                // The device's part: sums from the header on, and writes the complement.
                let mut left = [0; 2048];
                let given =
                    write(&route(from), to, len, Checksum::Device, &mut left, copy).unwrap();
                assert_eq!(given, written);
                let at = given.udp + 6;
                let check = match !plain(&left[given.udp..whole]) {
                    0 => 0xffff,
                    check => check,
                };
                left[at..at + 2].copy_from_slice(&check.to_be_bytes());
                assert_eq!(left[..whole], frame[..whole], "{to}, {len} bytes");
                if to.is_ipv4() {
                    assert_eq!(plain(&frame[14..34]), 0xffff);
                    assert_eq!((frame[15], frame[22], &frame[12..14]), (0x88, 7, &[8, 0][..]));
                } else {
                    assert_eq!((frame[14], frame[15], frame[21]), (0x68, 0x80, 7));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let to = "10.0.0.2:1".parse().unwrap();
        let mut frame = [0; 2048];
        let mut len = |from, payload, room: usize| {
            write(&route(from), to, payload, Checksum::Ours, &mut frame[..room], |_| ())
                .map(|frame| frame.len)
        };
        assert_eq!(len("10.0.0.1:1", 1473, 2048), None);
        assert_eq!(len("10.0.0.1:1", 1472, 2048), Some(1514));
        assert_eq!(len("10.0.0.1:1", 100, 100), None);
        assert_eq!(len("[::1]:1", 100, 2048), None);
    }

    #[test]
    fn groups_have_addresses_on_the_wire_and_others_none() {
        let mac = |text: &str| mac_of_group(text.parse().unwrap());
        assert_eq!(mac("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(mac("ff15::8:0:1234:5678"), Some([0x33, 0x33, 0x12, 0x34, 0x56, 0x78]));
        assert_eq!((mac("10.0.0.1"), mac("fe80::1")), (None, None));
    }
}
