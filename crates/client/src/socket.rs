//! A connection by packets on a Unix socket, which can carry descriptors.
//!
//! Promise: a packet arrives whole or is an error; descriptors that nobody wants are closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::MESSAGE_MAX;

/// Sends one message, with descriptors.
///
/// # Errors
/// What the kernel says; `EMSGSIZE` for a message that is too long.
pub fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > MESSAGE_MAX {
        return Err(Errno::MSGSIZE.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)
    })?;
    if sent == text.len() { Ok(()) } else { Err(Errno::MSGSIZE.into()) }
}

/// A message and the descriptors that came with it.
pub type Packet<T> = (T, Vec<OwnedFd>);

/// Receives one message; `None` if the other side has closed the connection.
///
/// # Errors
/// What the kernel says; `EMSGSIZE` for a message that is too long, `EBADMSG` for one that is none.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<Packet<T>>> {
    let mut text = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        let into = &mut [IoSliceMut::new(&mut text)];
        recvmsg(&socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = vec![];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&text[..got.bytes]).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, descriptors)))
}

/// Descriptors of one message at most.
const DESCRIPTORS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::protocol::{Reply, Request};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn messages_arrive_with_their_descriptors_and_the_end_is_seen() {
        let (one, other) = pair();
        let hello = Request::Hello { version: 1, data: 5 };
        send(&one, &hello, &[]).unwrap();
        send(&one, &Reply::Closed, &[one.as_fd(), other.as_fd()]).unwrap();
        let (message, descriptors) = receive::<Request>(&other).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (hello, 0));
        let (message, descriptors) = receive::<Reply>(&other).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (Reply::Closed, 2));
        drop((one, descriptors));
        assert!(receive::<Request>(&other).unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (one, other) = pair();
        for text in ["", "{", "{}", "[1]", r#"{"open":{}}"#, r#"{"open":{"title":1}}"#] {
            let text = format!("{text} ");
            rustix::io::write(&one, text.as_bytes()).unwrap();
            let error = receive::<Request>(&other).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::BADMSG.raw_os_error()), "{text}");
        }
        rustix::io::write(&one, &vec![b' '; MESSAGE_MAX + 1]).unwrap();
        let error = receive::<Request>(&other).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MSGSIZE.raw_os_error()));
    }
}
