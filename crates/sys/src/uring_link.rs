//! The packet port over io_uring: the messages of a batch as entries of one ring, submitted by one call.
//!
//! Promise: as [`UdpLink`]. Entries are linked, so that behind a message that was not taken none is tried; nothing
//! is left in the ring when a send returns: the sockets are told not to wait, so every entry ends in the call.

use std::io;

use io_uring::{IoUring, opcode, squeue, types};
use tactus_core::ports::{Batch, FilePart, Gone, PacketPort, SocketHandle};
use tactus_core::units::MonoTime;

use crate::outlet::{MESSAGES_MAX, Tables, UdpLink, stop_for};

/// The port; its handles are file descriptors of outlets.
pub struct UringLink {
    ring: IoUring,
    tables: Box<Tables>,
    /// What each message of a call has come to.
    results: [i32; MESSAGES_MAX],
    udp: UdpLink,
}

impl UringLink {
    /// Makes the ring.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or does not let us have it.
    pub fn new() -> io::Result<Self> {
        let entries = MESSAGES_MAX as u32;
        // Without an interrupt of the core that is in the call anyway (5.19).
        let newer = IoUring::builder().setup_coop_taskrun().build(entries);
        let ring = newer.or_else(|_| IoUring::new(entries))?;
        let (tables, results) = (Tables::new(), [0; MESSAGES_MAX]);
        Ok(Self { ring, tables, results, udp: UdpLink::new() })
    }

    /// Submits what the tables describe and waits for the ends, which is no waiting.
    fn submit(&mut self, outlet: SocketHandle, count: usize) -> io::Result<()> {
        for at in 0..count {
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32;
            let entry = opcode::SendMsg::new(types::Fd(outlet.0), self.tables.head(at));
            let mut entry = entry.flags(flags).build().user_data(at as u64);
            if at + 1 < count {
                entry = entry.flags(squeue::Flags::IO_LINK);
            }
            // SAFETY: the entry points to tables of ours and, through them, to parts that the caller lends; both
            // outlive this call, and no entry outlives it.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the ring has room for a whole call");
        }
        self.results = [-libc::ECANCELED; MESSAGES_MAX];
        let mut ended = 0;
        while ended < count {
            match self.ring.submit_and_wait(count - ended) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Nothing has begun that has not ended, or the kernel has none of it.
                Err(error) => return Err(error),
            }
            for completion in self.ring.completion() {
                self.results[completion.user_data() as usize] = completion.result();
                ended += 1;
            }
        }
        Ok(())
    }
}

impl PacketPort for UringLink {
    fn segments_max(&self) -> u32 {
        self.udp.segments_max()
    }

    fn send(&mut self, _now: MonoTime, outlet: SocketHandle, batch: Batch<'_>) -> Gone {
        let Batch { messages, mut parts } = batch;
        let mut done = 0;
        while done < messages.len() {
            let (count, used) = self.tables.describe(&messages[done..], parts);
            assert!(count > 0, "a message has fewer parts than a call");
            self.submit(outlet, count).expect("a ring that was made takes entries");
            let results = &self.results[..count];
            let taken = results.iter().position(|&result| result < 0).unwrap_or(count);
            done += taken;
            if taken < count {
                return Gone { messages: done, stop: Some(stop_for(-results[taken])) };
            }
            parts = &parts[used..];
        }
        Gone { messages: done, stop: None }
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        self.udp.read(now, part, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outlet::{Way, open};
    use std::net::{SocketAddr, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::time::Duration;
    use tactus_core::ports::{Message, Stop};

    #[test]
    fn messages_leave_in_order_and_none_behind_one_that_is_refused() {
        let Ok(mut link) = UringLink::new() else {
            println!("skipped: io_uring cannot be had here");
            return;
        };
        let from = "127.0.0.1".parse().unwrap();
        let buffer = 1 << 20;
        let way = Way { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer };
        let outlet = open(&way).unwrap();
        let handle = SocketHandle(outlet.as_raw_fd());
        let inbox = UdpSocket::bind((from, 0)).unwrap();
        inbox.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let to: SocketAddr = inbox.local_addr().unwrap();
        let huge = vec![0; 70_000];
        // More than one call describes; one of them longer than any datagram.
        let bodies: Vec<Vec<u8>> = (0..150u8).map(|nth| vec![nth; 20]).collect();
        let mut parts: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        parts[100] = &huge;
        let messages = vec![Message { to, segment: u16::MAX, parts: 1 }; 150];
        let batch = Batch { messages: &messages, parts: &parts };
        let gone = link.send(MonoTime(0), handle, batch);
        assert_eq!(gone.messages, 100);
        assert!(matches!(gone.stop, Some(Stop::Refused(_))), "{gone:?}");
        let rest = Batch { messages: &messages[101..], parts: &parts[101..] };
        let gone = link.send(MonoTime(0), handle, rest);
        assert_eq!(gone, Gone { messages: 49, stop: None });
        let mut bytes = [0; 100];
        for nth in (0..150).filter(|&nth| nth != 100) {
            let len = inbox.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], &bodies[nth]);
        }
    }
}
