//! The queueing discipline at each interface's root, by a netlink dump (rtnetlink(7),
//! RTM_GETQDISC).
//!
//! Promise: bytes of the kernel are read with checked lengths; an answer that does not parse is an
//! error, not a guess.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// One at a root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Root {
    pub(super) kind: String,
    /// Packets that it, and what is below it, has thrown away since it was made; counted in 32
    /// bits.
    pub(super) dropped: u32,
}

/// They, by interface index.
pub(super) fn at_roots() -> io::Result<BTreeMap<u32, Root>> {
    // No protocol means the first one: NETLINK_ROUTE.
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, None)?;
    rustix::net::send(&socket, &request(), SendFlags::empty())?;
    let mut roots = BTreeMap::new();
    let mut answer = vec![0; 64 * 1024];
    for _ in 0..ANSWERS_MAX {
        let (len, _) = rustix::net::recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
        if !parse(&answer[..len], &mut roots)? {
            return Ok(roots);
        }
    }
    Err(Errno::MSGSIZE.into())
}

/// Most packets of one dump: each holds some hundred interfaces.
const ANSWERS_MAX: usize = 1000;

const NLMSG_HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const NLM_F_REQUEST_DUMP: u16 = 0x1 | 0x300;
/// `struct tcmsg`: family and padding, interface, handle, parent, info; 4 bytes each.
const TCMSG: usize = 20;
const TC_H_ROOT: u32 = 0xFFFF_FFFF;
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
/// Within that, `struct gnet_stats_queue` (linux/gen_stats.h): length, backlog, drops and others.
const TCA_STATS_QUEUE: u16 = 3;
const DROPS: usize = 8;

fn request() -> Vec<u8> {
    let len = (NLMSG_HEADER + TCMSG) as u32;
    let mut bytes = Vec::with_capacity(len as usize);
    bytes.extend(len.to_ne_bytes());
    bytes.extend(RTM_GETQDISC.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    // Sequence, sender, and an empty `tcmsg`.
    bytes.resize(len as usize, 0);
    bytes
}

/// Reads one packet of the dump. False when it was the last.
fn parse(mut packet: &[u8], roots: &mut BTreeMap<u32, Root>) -> io::Result<bool> {
    let broken = || io::Error::from(Errno::BADMSG);
    while !packet.is_empty() {
        let len = word(packet, 0).ok_or_else(broken)? as usize;
        let kind = half(packet, 4).ok_or_else(broken)?;
        let message = packet.get(NLMSG_HEADER..len).ok_or_else(broken)?;
        match kind {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => {
                let errno = word(message, 0).ok_or_else(broken)? as i32;
                return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
            }
            RTM_NEWQDISC => {
                let interface = word(message, 4).ok_or_else(broken)?;
                let parent = word(message, 12).ok_or_else(broken)?;
                let attributes = message.get(TCMSG..).ok_or_else(broken)?;
                if parent == TC_H_ROOT
                    && let Some(kind) = kind_of(attributes)
                {
                    let dropped = dropped_of(attributes).unwrap_or_default();
                    roots.insert(interface, Root { kind, dropped });
                }
            }
            _ => (),
        }
        packet = packet.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// The attribute TCA_KIND: a name that ends with zero.
fn kind_of(attributes: &[u8]) -> Option<String> {
    let name = attribute(attributes, TCA_KIND)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

fn dropped_of(attributes: &[u8]) -> Option<u32> {
    word(attribute(attribute(attributes, TCA_STATS2)?, TCA_STATS_QUEUE)?, DROPS)
}

/// The first attribute of a kind.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(half(attributes, 0)?);
        let value = attributes.get(4..len)?;
        if half(attributes, 2)? == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((NLMSG_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(NLMSG_HEADER, 0);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn qdisc(interface: u32, parent: u32, name: &str) -> Vec<u8> {
        let mut body = [0, interface, 0, parent, 0].map(u32::to_ne_bytes).concat();
        // Another attribute first: its length is padded.
        body.extend([5_u16, 9].map(u16::to_ne_bytes).concat());
        body.extend([7, 0, 0, 0]);
        body.extend([4 + name.len() as u16 + 1, TCA_KIND].map(u16::to_ne_bytes).concat());
        body.extend(name.as_bytes());
        body.push(0);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(
            [4 + 4 + 20, TCA_STATS2, 4 + 20, TCA_STATS_QUEUE].map(u16::to_ne_bytes).concat(),
        );
        body.extend([1, 2, 70 + interface, 4, 5].map(u32::to_ne_bytes).concat());
        message(RTM_NEWQDISC, &body)
    }

    #[test]
    fn the_root_of_each_interface_is_found_in_a_dump() {
        let mut roots = BTreeMap::new();
        let packet = [qdisc(2, TC_H_ROOT, "mq"), qdisc(2, 1, "fq"), qdisc(3, TC_H_ROOT, "htb")];
        assert!(parse(&packet.concat(), &mut roots).unwrap(), "more is to come");
        assert!(!parse(&message(NLMSG_DONE, &[0; 4]), &mut roots).unwrap());
        let root = |kind: &str, dropped| Root { kind: kind.to_owned(), dropped };
        assert_eq!(roots, BTreeMap::from([(2, root("mq", 72)), (3, root("htb", 73))]));
    }

    #[test]
    fn a_broken_dump_is_an_error_wherever_it_breaks() {
        let refusal = message(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        let error = parse(&refusal, &mut BTreeMap::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let whole = qdisc(2, TC_H_ROOT, "mq");
        for len in 1..whole.len() {
            assert!(parse(&whole[..len], &mut BTreeMap::new()).is_err(), "{len}");
        }
        assert!(parse(&[0; 16], &mut BTreeMap::new()).is_err(), "a message without length");
    }

    #[test]
    fn this_machine_answers() {
        at_roots().unwrap();
    }
}
