//! The doorbell: a socket by which one side wakes the other.
//!
//! Promise: nothing here waits except `wait`. Bytes on the doorbell have no meaning beyond their
//! arrival; its end means that the other side has gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Whether the other side still has its end of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// It is connected, as far as is known.
    Connected,
    /// It has gone.
    Gone,
}

/// Wakes the other side.
pub fn ring(doorbell: impl AsFd) -> Peer {
    match send(doorbell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // A full socket has bytes enough to wake the other side.
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Peer::Connected,
        Err(_) => Peer::Gone,
    }
}

/// Takes the bytes that have arrived.
pub fn drain(doorbell: impl AsFd) -> Peer {
    let mut bytes = [0; 64];
    for _ in 0..DRAIN_MAX {
        match recv(&doorbell, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Peer::Gone,
            // Fewer than asked for: that was all.
            Ok((got, _)) if got < bytes.len() => return Peer::Connected,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Peer::Connected,
            Err(_) => return Peer::Gone,
        }
    }
    Peer::Connected
}

/// Waits until the doorbell has bytes, one of the sockets has ended, a signal has come or `timeout`
/// is over. `None` waits without limit.
///
/// # Errors
/// What the kernel says.
pub(crate) fn wait(
    doorbell: BorrowedFd<'_>,
    socket: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> io::Result<Peer> {
    let mut both = [
        PollFd::from_borrowed_fd(doorbell, PollFlags::IN),
        // Only the end of the connection wakes this call; `ask` reads the replies.
        PollFd::from_borrowed_fd(socket, PollFlags::RDHUP),
    ];
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(&mut both, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let ends = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
    let has_ended = both.iter().any(|socket| socket.revents().intersects(ends));
    Ok(if has_ended { Peer::Gone } else { Peer::Connected })
}

/// Reads of 64 bytes at once at most: one byte comes for each sleep.
const DRAIN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_ring_is_seen_once_and_a_full_doorbell_does_not_wait() {
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(drain(&other), Peer::Connected, "nothing has come");
        assert_eq!(ring(&one), Peer::Connected);
        assert_eq!(wait(other.as_fd(), other.as_fd(), None).unwrap(), Peer::Connected);
        assert_eq!(drain(&other), Peer::Connected);
        let over = Some(Duration::ZERO);
        assert_eq!(wait(other.as_fd(), other.as_fd(), over).unwrap(), Peer::Connected);
        for _ in 0..100_000 {
            assert_eq!(ring(&one), Peer::Connected);
        }
    }

    #[test]
    fn the_end_of_the_other_side_is_seen_in_each_way() {
        let (one, other) = UnixStream::pair().unwrap();
        let (socket, rest) = UnixStream::pair().unwrap();
        drop(rest);
        assert_eq!(wait(other.as_fd(), socket.as_fd(), None).unwrap(), Peer::Gone);
        drop(one);
        assert_eq!(wait(other.as_fd(), other.as_fd(), None).unwrap(), Peer::Gone);
        assert_eq!(drain(&other), Peer::Gone);
        assert_eq!(ring(&other), Peer::Gone);
    }
}
