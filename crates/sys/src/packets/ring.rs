//! The packet port over io_uring: the messages of a batch as entries of one ring, submitted by one
//! call.
//!
//! Promise: as [`UdpLink`]. Entries are linked, so no message behind a failed one is tried. Nothing
//! stays in the ring when a send returns: the sockets are non-blocking, so every entry ends within
//! the call. If the kernel stops processing a ring, the ring is closed, together with the entries
//! that have not begun; from then on messages leave by `sendmmsg`.

use std::io;

use io_uring::{IoUring, opcode, squeue, types};
use tactus_core::ports::{Batch, BatchProgress, FilePart, PacketPort, SocketHandle};
use tactus_core::units::MonoTime;

use crate::packets::udp_output::{MESSAGES_MAX, Tables, UdpLink, stop_for};

/// The port; its handles are file descriptors of UDP outputs.
pub struct UringLink {
    /// `None` after the ring has been closed.
    ring: Option<IoUring>,
    tables: Box<Tables>,
    /// The result of each message of a call.
    results: [i32; MESSAGES_MAX],
    udp: UdpLink,
}

/// Limit of tries in one call if the kernel lacks a resource (`EAGAIN`, `EBUSY`).
const TRIES: u32 = 4;
/// Limit of waits for completions: they come in the same call, or when the thread next enters the
/// kernel.
const ASKS: u32 = 1000;

impl UringLink {
    /// Makes the ring.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or does not permit it.
    pub fn new() -> io::Result<Self> {
        let entries = MESSAGES_MAX as u32;
        // Without interrupting the core, which is in the call anyway (5.19).
        let newer = IoUring::builder().setup_coop_taskrun().build(entries);
        let ring = newer.or_else(|_| IoUring::new(entries))?;
        let (tables, results) = (Tables::new(), [0; MESSAGES_MAX]);
        Ok(Self { ring: Some(ring), tables, results, udp: UdpLink::new() })
    }

    /// Sends, with `enter` as the kernel call.
    fn send_by(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        batch: Batch<'_>,
        enter: &mut impl Enter,
    ) -> BatchProgress {
        let Batch { messages, mut parts } = batch;
        let mut done = 0;
        while done < messages.len() {
            if self.ring.is_none() {
                let rest = Batch { messages: &messages[done..], parts };
                let BatchProgress { messages, stop } = self.udp.send(now, udp_output, rest);
                return BatchProgress { messages: done + messages, stop };
            }
            let (count, _) = self.tables.describe(&messages[done..], parts);
            assert!(count > 0, "a message has fewer parts than a call");
            let begun = self.submit(udp_output, count, enter);
            let results = &self.results[..begun];
            let taken = results.iter().position(|&result| result < 0).unwrap_or(begun);
            let own = messages[done..done + taken].iter().map(|one| usize::from(one.parts));
            parts = &parts[own.sum()..];
            done += taken;
            if taken < begun {
                return BatchProgress { messages: done, stop: Some(stop_for(-results[taken])) };
            }
        }
        BatchProgress { messages: done, stop: None }
    }

    /// Submits the described messages. Returns the number that the kernel has begun; each of them
    /// has ended. If it is not all, the ring has been closed.
    fn submit(&mut self, udp_output: SocketHandle, count: usize, enter: &mut impl Enter) -> usize {
        let ring = self.ring.as_mut().expect("who submits has looked");
        for at in 0..count {
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32;
            let entry = opcode::SendMsg::new(types::Fd(udp_output.0), self.tables.head(at));
            let mut entry = entry.flags(flags).build().user_data(at as u64);
            if at + 1 < count {
                entry = entry.flags(squeue::Flags::IO_LINK);
            }
            // SAFETY: the entry points to our own tables and, through them, to parts that the
            // caller lends; both outlive this call, and no entry outlives it: the call ends when
            // each entry has ended or was closed with the ring.
            let pushed = unsafe { ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "the ring has room for a whole call");
        }
        self.results = [-libc::ECANCELED; MESSAGES_MAX];
        let (mut ended, mut tries, mut asks) = (0, 0, 0);
        loop {
            for completion in ring.completion() {
                self.results[completion.user_data() as usize] = completion.result();
                ended += 1;
            }
            let left = ring.submission().len();
            let begun = count - left;
            if ended < begun {
                assert!(asks < ASKS, "what has begun ends: its memory is lent to this call only");
                // The wait is repeated whatever the result.
                drop(enter(ring, 0, begun - ended));
                asks += 1;
                continue;
            }
            if left == 0 {
                return begun;
            }
            // The remaining entries are a chain of their own: nothing cancels them.
            let is_over = self.results[..begun].iter().any(|&result| result < 0);
            let goes_on = !is_over
                && tries < TRIES
                && match enter(ring, left, left) {
                    Ok(_) => true,
                    Err(error) => {
                        let passing = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
                        passing.contains(&error.raw_os_error().unwrap_or_default())
                    }
                };
            if !goes_on {
                // Entries that have not begun cannot be removed from a ring. Closing the ring
                // removes them.
                self.ring = None;
                return begun;
            }
            tries += u32::from(ring.submission().len() == left);
        }
    }
}

/// Passes a number of the ring's entries to the kernel, and waits for a number of completions.
trait Enter: FnMut(&mut IoUring, usize, usize) -> io::Result<usize> {}
impl<F: FnMut(&mut IoUring, usize, usize) -> io::Result<usize>> Enter for F {}

fn enter(ring: &mut IoUring, submit: usize, wait: usize) -> io::Result<usize> {
    const GET_EVENTS: u32 = 1;
    let (submit, wait) = (submit as u32, wait as u32);
    // SAFETY: no argument is passed; the entries are as valid as they were when they were pushed.
    unsafe { ring.submitter().enter::<libc::sigset_t>(submit, wait, GET_EVENTS, None) }
}

impl PacketPort for UringLink {
    fn segments_max(&self) -> u32 {
        self.udp.segments_max()
    }

    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        self.send_by(now, udp_output, batch, &mut enter)
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        self.udp.read(now, part, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::udp_output::{UdpOptions, open};
    use std::net::UdpSocket;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;
    use tactus_core::ports::{Message, Stop};

    /// A port, a UDP output, and the receiver of its datagrams.
    fn stage() -> Option<(UringLink, OwnedFd, UdpSocket)> {
        let Ok(link) = UringLink::new() else {
            println!("skipped: io_uring cannot be had here");
            return None;
        };
        let from = "127.0.0.1".parse().unwrap();
        let buffer = 1 << 20;
        let options =
            UdpOptions { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer };
        let inbox = UdpSocket::bind((from, 0)).unwrap();
        inbox.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Some((link, open(&options).unwrap(), inbox))
    }

    fn take(inbox: &UdpSocket) -> Vec<u8> {
        let mut bytes = [0; 100];
        let len = inbox.recv(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    fn short() -> io::Error {
        io::Error::from_raw_os_error(libc::EAGAIN)
    }

    /// Sends 150 messages, one of which may exceed any datagram, with this kernel. Returns whether
    /// the ring stays open.
    fn sends_each_once_by(huge: Option<usize>, mut kernel: impl Enter) -> Option<bool> {
        let (mut link, udp_output, inbox) = stage()?;
        let to = inbox.local_addr().unwrap();
        let bodies: Vec<Vec<u8>> = (0..150u8).map(|nth| vec![nth; 20]).collect();
        let long = vec![0; 70_000];
        let mut parts: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        if let Some(huge) = huge {
            parts[huge] = &long;
        }
        let messages = vec![Message { to, segment: u16::MAX, parts: 1 }; 150];
        let handle = SocketHandle(udp_output.as_raw_fd());
        let mut sent = 0;
        if let Some(huge) = huge {
            let batch = Batch { messages: &messages, parts: &parts };
            let gone = link.send_by(MonoTime(0), handle, batch, &mut kernel);
            assert_eq!(gone.messages, huge);
            assert!(matches!(gone.stop, Some(Stop::Refused(_))), "{gone:?}");
            sent = huge + 1;
        }
        let rest = Batch { messages: &messages[sent..], parts: &parts[sent..] };
        let gone = link.send_by(MonoTime(0), handle, rest, &mut kernel);
        assert_eq!(gone, BatchProgress { messages: 150 - sent, stop: None });
        for body in bodies.iter().enumerate().filter(|(nth, _)| Some(*nth) != huge) {
            assert_eq!(&take(&inbox), body.1, "datagram {}", body.0);
        }
        inbox.set_nonblocking(true).unwrap();
        assert!(inbox.recv(&mut [0; 100]).is_err(), "one was sent twice");
        Some(link.ring.is_some())
    }

    #[test]
    fn a_kernel_that_is_short_of_something_for_a_moment_gets_the_rest_then() {
        // Before anything has begun, and behind 10 of the first 64.
        for first in [0, 10] {
            let mut calls = 0;
            let kept = sends_each_once_by(None, |ring: &mut IoUring, submit, wait| {
                calls += 1;
                match calls {
                    1 if first > 0 => enter(ring, first, first),
                    1 | 2 => Err(short()),
                    _ => enter(ring, submit, wait),
                }
            });
            assert_ne!(kept, Some(false), "it takes entries again");
        }
    }

    #[test]
    fn a_ring_that_the_kernel_goes_on_with_no_more_is_given_up() {
        for error in [libc::EAGAIN, libc::EBUSY, libc::EBADFD] {
            for first in [0, 10] {
                let mut calls = 0;
                let kept = sends_each_once_by(None, |ring: &mut IoUring, submit, _| {
                    calls += 1;
                    match calls {
                        1 if first > 0 => enter(ring, first, first),
                        _ if submit == 0 => enter(ring, 0, 1),
                        _ => Err(io::Error::from_raw_os_error(error)),
                    }
                });
                assert_ne!(kept, Some(true));
            }
        }
    }

    #[test]
    fn nothing_is_begun_behind_a_message_that_was_refused_in_a_chain_that_was_cut() {
        let mut calls = 0;
        let kept = sends_each_once_by(Some(5), |ring: &mut IoUring, submit, wait| {
            calls += 1;
            let some = if calls == 1 { 10 } else { submit };
            enter(ring, some, some.min(wait))
        });
        assert_ne!(kept, Some(true), "those behind them would have been left in it");
    }

    #[test]
    fn messages_leave_in_order_and_none_behind_one_that_is_refused() {
        // More than one call describes; one of them longer than any datagram.
        let kept = sends_each_once_by(Some(100), enter);
        assert_ne!(kept, Some(false));
    }
}
