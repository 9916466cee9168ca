//! The doorbell of a client: a pair of sockets, one byte for each ring.
//!
//! Promise: ringing never waits, whatever the client does with its end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, socketpair,
};
use tactus_core::ports::Waker;

/// The server's end.
#[derive(Clone)]
pub(crate) struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// A doorbell, and the client's end.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Self(Arc::new(own)), theirs))
    }

    /// Calls `rung` for each ring of the client, until the doorbell ends.
    pub(crate) fn listen(&self, rung: impl Fn()) {
        let mut bytes = [0_u8; 64];
        loop {
            match rustix::net::recv(&*self.0, &mut bytes, RecvFlags::empty()) {
                Ok((_, 0)) => return,
                Ok(_) => rung(),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Ends [`Self::listen`], and tells the client.
    pub(crate) fn end(&self) {
        // Refused only if the client has gone.
        rustix::net::shutdown(&*self.0, Shutdown::Both).ok();
    }
}

impl Waker for Doorbell {
    fn wake(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A full socket wakes the client as well, and one without a client needs no ring.
        rustix::net::send(&*self.0, &[1], flags).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn each_ring_is_heard_and_the_end_as_well() {
        let (bell, theirs) = Doorbell::new().unwrap();
        let rings = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let listening = scope.spawn(|| {
                bell.listen(|| {
                    rings.fetch_add(1, Ordering::Relaxed);
                })
            });
            rustix::io::write(&theirs, &[1]).unwrap();
            while rings.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            bell.end();
            listening.join().unwrap();
        });
        assert_eq!(rustix::io::read(&theirs, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn ringing_never_waits_however_full_the_socket_is() {
        let (bell, theirs) = Doorbell::new().unwrap();
        // The client shares its own end only: no flag of it reaches the server's.
        for _ in 0..100_000 {
            bell.wake();
        }
        drop(theirs);
        bell.wake();
    }
}
