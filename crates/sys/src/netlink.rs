//! Queries to the kernel about its network, by rtnetlink(7).
//!
//! Promise: it only queries. Lengths of answers are checked; an answer that does not parse is an
//! error, not a guess. Answers are those of the network namespace in which [`Netlink`] was opened.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    Emitable, ErrorBuffer, ErrorMessage, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NetlinkBuffer, NetlinkMessage, NlasIterator, Parseable,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

/// Limit of the length of a packet; the kernel sends dumps in packets of at most 32 KiB.
const PACKET_MAX: usize = 64 * 1024;
/// Limit of packets of one dump: each holds some ten interfaces, or a hundred of their queues.
const PACKETS_MAX: usize = 1000;

/// The query socket.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    packet: Vec<u8>,
}

/// How many objects a query is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// The one that the query describes.
    One,
    /// All of a kind.
    All,
}

/// How a query ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// All answers were passed on.
    Complete,
    /// The kernel has refused the query.
    Refused(Errno),
}

impl Netlink {
    /// Opens the socket.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        // No protocol is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self { socket, sequence: 0, packet: vec![0; PACKET_MAX] })
    }

    /// Sends a query, and passes the body of every answer on, without its netlink header.
    pub(crate) fn query(
        &mut self,
        question: RouteNetlinkMessage,
        extent: Extent,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<Outcome> {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(question);
        message.header.sequence_number = self.sequence;
        message.header.flags = match extent {
            Extent::One => NLM_F_REQUEST,
            Extent::All => NLM_F_REQUEST | NLM_F_DUMP,
        };
        message.finalize();
        let mut request = vec![0; message.buffer_len()];
        message.serialize(&mut request);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        for _ in 0..PACKETS_MAX {
            let (len, _) =
                rustix::net::recv(&self.socket, &mut self.packet[..], RecvFlags::empty())?;
            if let Some(outcome) = read(&self.packet[..len], self.sequence, extent, &mut each)? {
                return Ok(outcome);
            }
        }
        Err(Errno::MSGSIZE.into())
    }
}

/// Passes on the answers in a packet. `None` if more packets follow.
fn read(
    packet: &[u8],
    sequence: u32,
    extent: Extent,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Option<Outcome>> {
    let mut rest = packet;
    while !rest.is_empty() {
        let message = NetlinkBuffer::new_checked(rest).map_err(malformed)?;
        rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        if message.sequence_number() != sequence {
            continue;
        }
        match message.message_type() {
            NLMSG_DONE => return Ok(Some(Outcome::Complete)),
            NLMSG_ERROR => {
                let body = message.payload();
                let error = ErrorBuffer::new_checked(&body).map_err(malformed)?;
                let error = ErrorMessage::parse(&error).map_err(malformed)?;
                let errno = Errno::from_raw_os_error(error.raw_code().wrapping_neg());
                return Ok(Some(Outcome::Refused(errno)));
            }
            _ => each(message.payload())?,
        }
        if extent == Extent::One {
            return Ok(Some(Outcome::Complete));
        }
    }
    Ok(None)
}

/// The attributes behind the header of an answer.
pub(crate) fn attributes<'a>(body: &'a [u8], header: &impl Emitable) -> NlasIterator<&'a [u8]> {
    NlasIterator::new(body.get(header.buffer_len()..).unwrap_or_default())
}

/// The error of an answer that does not parse.
pub(crate) fn malformed(error: impl std::error::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an answer of rtnetlink: {error}"))
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkHeader;

    use super::*;

    const SEQUENCE: u32 = 7;

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.length = 16 + body.len() as u32;
        header.message_type = kind;
        header.sequence_number = sequence;
        let mut bytes = vec![0; 16];
        header.emit(&mut bytes);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn read_all(packet: &[u8], extent: Extent) -> io::Result<(Option<Outcome>, Vec<Vec<u8>>)> {
        let mut bodies = vec![];
        let outcome = read(packet, SEQUENCE, extent, |body| {
            bodies.push(body.to_vec());
            Ok(())
        })?;
        Ok((outcome, bodies))
    }

    #[test]
    fn answers_of_one_query_are_passed_on_until_its_end() {
        let answer = |sequence, body: &[u8]| message(16, sequence, body);
        let packet = [answer(SEQUENCE, b"first"), answer(6, b"late"), answer(SEQUENCE, b"next")];
        let (outcome, bodies) = read_all(&packet.concat(), Extent::All).unwrap();
        assert_eq!((outcome, bodies), (None, vec![b"first".to_vec(), b"next".to_vec()]));
        let (outcome, bodies) = read_all(&packet.concat(), Extent::One).unwrap();
        assert_eq!((outcome, bodies), (Some(Outcome::Complete), vec![b"first".to_vec()]));
        let end = message(NLMSG_DONE, SEQUENCE, &[0; 4]);
        assert_eq!(read_all(&end, Extent::All).unwrap(), (Some(Outcome::Complete), vec![]));
    }

    #[test]
    fn a_refusal_has_its_number() {
        let refusal = message(NLMSG_ERROR, SEQUENCE, &(-libc::EPERM).to_ne_bytes());
        let (outcome, _) = read_all(&refusal, Extent::All).unwrap();
        assert_eq!(outcome, Some(Outcome::Refused(Errno::PERM)));
    }

    #[test]
    fn a_packet_that_breaks_off_is_an_error() {
        let whole = message(16, SEQUENCE, b"a body of some length");
        for len in 1..16 + b"a body of some length".len() {
            assert!(read_all(&whole[..len], Extent::All).is_err(), "{len}");
        }
        assert!(read_all(&[0; 16], Extent::All).is_err(), "a message without length");
    }
}
