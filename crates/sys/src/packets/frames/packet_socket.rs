//! A packet socket that only sends: frames with headers that make the kernel calculate their
//! checksums, and segment those of several datagrams (packet(7), `PACKET_VNET_HDR`).
//!
//! Promise: the parts of a message are sent without a copy in this process. A frame of several
//! datagrams stays one frame as far as the device supports it, ideally until its hardware segments
//! it. The device's queueing discipline stays in effect.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use tactus_core::ports::{Batch, Message};

use super::{Device, DeviceRefusal};
use crate::packets::frame::{self, HEADER_MAX, Route};
use crate::packets::udp_output::{MESSAGES_MAX, PARTS_MAX, grow};
use crate::udp_input::set;

/// The socket, bound to a device.
pub(crate) struct PacketSocket {
    socket: OwnedFd,
    gathers: bool,
    tables: Box<Tables>,
}

/// The descriptions of the messages of a call.
struct Tables {
    heads: [libc::mmsghdr; MESSAGES_MAX],
    /// Each message's header, and its parts.
    parts: [libc::iovec; MESSAGES_MAX + PARTS_MAX],
    headers: [Header; MESSAGES_MAX],
}

// SAFETY: the pointers within the tables are written before each call and not read after it;
// between calls they are unused, whichever thread holds the tables.
unsafe impl Send for Tables {}

/// The headers in front of the payload.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    kernel: Orders,
    frame: [u8; HEADER_MAX],
}

/// `struct virtio_net_hdr` (linux/virtio_net.h), in the machine's order.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Orders {
    flags: u8,
    kind: u8,
    header: u16,
    segment: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const _: () = assert!(offset_of!(Header, frame) == size_of::<Orders>());
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`, from Linux 6.2 on.
const CUT_UDP: u8 = 5;
/// Offset of the checksum in the UDP header.
const CHECKSUM: u16 = 6;
/// Size of the kernel's send buffer: 30 ms of 1 Gbit/s.
const BUFFER: usize = 8 << 20;

impl PacketSocket {
    fn open(device: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes numbers only. Without a protocol nothing is received.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nothing else uses it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
        grow(&socket, BUFFER);
        let to = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: i32::try_from(device).map_err(|_| io::ErrorKind::InvalidInput)?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is readable for its size.
        let bound = unsafe {
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const to).cast(), len)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, gathers: true, tables: Tables::new() })
    }
}

impl Device for PacketSocket {
    fn bind(device: u32) -> io::Result<Self> {
        Ok(Self { gathers: kernel_cuts(), ..Self::open(device)? })
    }

    fn send(&mut self, routes: &[Route], batch: Batch<'_>) -> (usize, Option<DeviceRefusal>) {
        let Batch { messages, mut parts } = batch;
        let mut done = 0;
        while done < messages.len() {
            let (routes, messages) = (&routes[done..], &messages[done..]);
            let (count, fits) = self.tables.describe(routes, messages, parts, self.gathers);
            if count == 0 {
                return (done, (!fits).then_some(DeviceRefusal::Fit));
            }
            // SAFETY: `describe` has filled the first `count` heads with pointers to our own
            // tables, which outlive the call, and to parts that the caller lends for longer; the
            // call only reads them, except the lengths in the heads, which are ours.
            let taken = unsafe {
                let heads = self.tables.heads.as_mut_ptr();
                libc::sendmmsg(self.socket.as_raw_fd(), heads, count as u32, libc::MSG_DONTWAIT)
            };
            // The kernel reports the error of a message only if it is the first.
            let Ok(taken) = usize::try_from(taken) else {
                return (done, Some(lack(&io::Error::last_os_error())));
            };
            let own = messages[..taken].iter().map(|message| usize::from(message.parts));
            parts = &parts[own.sum::<usize>()..];
            done += taken;
        }
        (done, None)
    }
}

/// The meaning of a send error.
fn lack(error: &io::Error) -> DeviceRefusal {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => DeviceRefusal::Room,
        Some(libc::ENXIO | libc::ENODEV | libc::EBADF) => DeviceRefusal::Device,
        // Too long; or the device is down, which the UDP output's socket reports with an error that
        // is counted.
        _ => DeviceRefusal::Fit,
    }
}

/// Whether the kernel can segment a frame into datagrams. The test frame has a source address of
/// this host, and is discarded on arrival.
fn kernel_cuts() -> bool {
    let tries = || -> io::Result<bool> {
        let mut socket = PacketSocket::open(crate::udp_input::interface("lo")?)?;
        let from = "127.0.0.1:9".parse().expect("an address");
        let (device, hops, class, mtu) = (0, 1, 0, 1500);
        let route = Route { device, to_mac: [0; 6], from_mac: [0; 6], from, hops, class, mtu };
        let message = Message { to: from, segment: 2, parts: 1 };
        let batch = Batch { messages: &[message], parts: &[b"word"] };
        Ok(socket.send(&[route], batch) == (1, None))
    };
    tries().unwrap_or(false)
}

impl Tables {
    fn new() -> Box<Self> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let head = libc::msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        Box::new(Self {
            heads: [libc::mmsghdr { msg_hdr: head, msg_len: 0 }; MESSAGES_MAX],
            parts: [empty; MESSAGES_MAX + PARTS_MAX],
            headers: [Header { kernel: Orders::default(), frame: [0; HEADER_MAX] }; MESSAGES_MAX],
        })
    }

    /// Describes the first messages. Returns the number that fit, and whether the next one may
    /// leave here at all.
    fn describe(
        &mut self,
        routes: &[Route],
        messages: &[Message],
        mut parts: &[&[u8]],
        gathers: bool,
    ) -> (usize, bool) {
        let (mut count, mut used) = (0, 0);
        for (route, message) in routes.iter().zip(messages).take(MESSAGES_MAX) {
            let (own, behind) = parts.split_at(usize::from(message.parts));
            if used + 1 + own.len() > self.parts.len() {
                return (count, own.len() < self.parts.len());
            }
            let header = &mut self.headers[count];
            let Some(len) = header.write(route, message, own, gathers) else {
                return (count, false);
            };
            let first = used;
            self.parts[used] = libc::iovec {
                iov_base: (&raw mut *header).cast(),
                iov_len: size_of::<Orders>() + len,
            };
            for (place, part) in self.parts[used + 1..].iter_mut().zip(own) {
                *place =
                    libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
            }
            used += 1 + own.len();
            let head = &mut self.heads[count].msg_hdr;
            head.msg_iov = &raw mut self.parts[first];
            head.msg_iovlen = 1 + own.len();
            (count, parts) = (count + 1, behind);
        }
        (count, true)
    }
}

impl Header {
    /// Writes the header of a message. Returns the length of the frame's part of it, or nothing if
    /// the message may not leave as one frame.
    fn write(
        &mut self,
        route: &Route,
        message: &Message,
        parts: &[&[u8]],
        gathers: bool,
    ) -> Option<usize> {
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let one = payload.min(usize::from(message.segment));
        if payload > one && !gathers || !frame::fits(route, message.to, one) {
            return None;
        }
        let udp = frame::write_header(route, message.to, payload, &mut self.frame)?;
        let len = frame::header_len(message.to);
        let cuts = payload > one;
        self.kernel = Orders {
            flags: NEEDS_CHECKSUM,
            kind: if cuts { CUT_UDP } else { 0 },
            header: len as u16,
            segment: if cuts { message.segment } else { 0 },
            checksum_start: udp as u16,
            checksum_offset: CHECKSUM,
        };
        Some(len)
    }
}
