//! UDP outputs: the sockets that datagrams leave by, and the packet port over them.
//!
//! Promise: a send never blocks. Messages of one call leave in order; at a stop, those before it
//! have left and none behind it. The kernel segments messages of several datagrams (`UDP_SEGMENT`)
//! if it can; otherwise they are sent one by one. This port does not pace.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tactus_core::ports::{Batch, BatchProgress, FilePart, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::MonoTime;

use crate::file;
use crate::udp_input::{ADDRESS, Address, EMPTY, on_link, set};

/// Common parameters of all datagrams of a UDP output.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpOptions {
    /// The source address, of the family of the destinations; unspecified for any.
    pub from: IpAddr,
    /// The interface by its number: for groups. A link-local address carries it ([`on_link`]), and
    /// other destinations follow the routes.
    pub interface: Option<u32>,
    /// TTL, or hop limit. `None` leaves it to the kernel, which keeps groups within their link.
    pub hops: Option<u8>,
    /// The traffic class of the network (RFC 2474): six bits.
    pub dscp: u8,
    /// Whether members of a group on this host receive the datagrams, too.
    pub heard_here: bool,
    /// Size of the kernel's send buffer; the kernel may grant less.
    pub buffer: usize,
}

/// Whether `to` is a broadcast address: the limited one, or that of a network of this host (RFC
/// 919).
pub fn is_broadcast(to: IpAddr) -> bool {
    let IpAddr::V4(ip) = to else { return false };
    // The kernel knows the networks: connecting a socket to their broadcast addresses fails without
    // SO_BROADCAST. Nothing is sent.
    let refused = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((ip, DISCARD))
    };
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    ip.is_broadcast() || refused().is_err_and(denied)
}

/// Any port will do.
const DISCARD: u16 = 9;

/// Opens the socket of a UDP output.
///
/// # Errors
/// Errors of the kernel.
pub fn open(options: &UdpOptions) -> io::Result<OwnedFd> {
    let is_v4 = options.from.is_ipv4();
    let family = if is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    grow(&socket, options.buffer);
    let traffic_class = i32::from(options.dscp) << 2;
    let heard_here = i32::from(options.heard_here);
    if is_v4 {
        set(&socket, libc::IPPROTO_IP, libc::IP_TOS, &traffic_class)?;
        set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, &heard_here)?;
        if let Some(hops) = options.hops {
            set(&socket, libc::IPPROTO_IP, libc::IP_TTL, &i32::from(hops))?;
            set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, &i32::from(hops))?;
        }
        if let Some(index) = options.interface {
            let any = libc::in_addr { s_addr: libc::INADDR_ANY };
            let through = libc::ip_mreqn {
                imr_multiaddr: any,
                imr_address: any,
                imr_ifindex: index as libc::c_int,
            };
            set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &through)?;
        }
    } else {
        sockopt::set_ipv6_v6only(&socket, true)?;
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &traffic_class)?;
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, &heard_here)?;
        if let Some(hops) = options.hops {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, &i32::from(hops))?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, &i32::from(hops))?;
        }
        if let Some(index) = options.interface {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &(index as libc::c_int))?;
        }
    }
    bind(&socket, &on_link(SocketAddr::new(options.from, 0), options.interface))?;
    if let (true, Some(index)) = (is_v4, options.interface) {
        let number = socket.as_raw_fd();
        let own = cookie(number).ok_or_else(io::Error::last_os_error)?;
        let mut known = INTERFACES.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes closed sockets, which are not reported.
        known.retain(|&own, &mut (socket, _)| cookie(socket) == Some(own));
        known.insert(own, (number, index));
    }
    Ok(socket)
}

/// The interface of UDP outputs for IPv4 groups, by their cookie, with the descriptor: the kernel
/// accepts the interface but never returns it (`IP_MULTICAST_IF`, ip(7)). Cookies are never reused.
static INTERFACES: Mutex<BTreeMap<u64, (RawFd, u32)>> = Mutex::new(BTreeMap::new());

/// The interface by which the UDP output with this cookie sends IPv4 groups.
pub(crate) fn group_interface(cookie: u64) -> Option<u32> {
    let known = INTERFACES.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(&cookie).map(|&(_, index)| index)
}

/// The kernel's cookie of a socket: a number that is never reused.
pub(crate) fn cookie(socket: RawFd) -> Option<u64> {
    option(socket, libc::SOL_SOCKET, libc::SO_COOKIE, 0)
}

/// Numbers for which any bytes are a valid value.
pub(crate) trait Plain: Copy {}
impl Plain for i32 {}
impl Plain for u64 {}

/// An option of a socket, if it has it.
pub(crate) fn option<T: Plain>(socket: RawFd, level: i32, name: i32, mut value: T) -> Option<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a value of that size, for which any bytes
    // are valid; a wrong descriptor is an error and not a danger.
    let done =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut len) };
    (done == 0).then_some(value)
}

/// The source address of a UDP output's datagrams.
///
/// # Errors
/// Errors of the kernel.
pub fn address(udp_output: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(udp_output)?.try_into()?)
}

/// Sets the class of the host's queueing discipline for a UDP output's datagrams, by its major and
/// minor number (tc-htb(8), `SO_PRIORITY` of socket(7)).
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn set_class(udp_output: &OwnedFd, class: u32) -> io::Result<()> {
    set(udp_output, libc::SOL_SOCKET, libc::SO_PRIORITY, &class)
}

/// As much room as possible: a size above `net.core.wmem_max` needs a capability.
pub(crate) fn grow(socket: &OwnedFd, bytes: usize) {
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX);
    if set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &wanted).is_err() {
        drop(set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &wanted));
    }
}

/// The part of `bytes` that the kernel grants to a UDP output's send buffer. The kernel also counts
/// its own overhead, for which it allows as much again.
///
/// # Errors
/// Errors of the kernel.
pub fn granted(bytes: usize) -> io::Result<usize> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    grow(&socket, bytes);
    let early_queue = option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 0i32);
    let early_queue = early_queue.ok_or_else(io::Error::last_os_error)?;
    Ok(usize::try_from(early_queue / 2).unwrap_or_default())
}

/// Segmentation of messages of several datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cutting {
    /// The kernel, or the device, segments them (`UDP_SEGMENT`).
    Kernel,
    /// They are passed to the kernel one by one.
    Ours,
}

/// The packet port over `sendmmsg`; its handles are file descriptors of UDP outputs.
pub struct UdpLink {
    cutting: Cutting,
    tables: Box<Tables>,
}

/// The descriptions of the messages of a call.
pub(crate) struct Tables {
    heads: [libc::mmsghdr; MESSAGES_MAX],
    parts: [libc::iovec; PARTS_MAX],
    names: [Address; MESSAGES_MAX],
    controls: [Control; MESSAGES_MAX],
}

// SAFETY: the pointers within the tables are written before each call and not read after it;
// between calls they are unused, whichever thread holds the tables.
unsafe impl Send for Tables {}

/// Limit of messages of one call.
pub const MESSAGES_MAX: usize = 64;
/// Limit of parts of one call.
pub const PARTS_MAX: usize = 512;

/// A control message with one number (cmsg(3)): header, at most eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(8))]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    value: [u8; 8],
}

const CONTROL: usize = size_of::<Control>();
const CONTROL_HEADER: usize = 16;
const _: () = assert!(CONTROL == CONTROL_HEADER + 8);
/// linux/udp.h
const UDP_SEGMENT: i32 = 103;

impl Control {
    const NONE: Self = Self { len: 0, level: 0, kind: 0, value: [0; 8] };

    /// The length of a segment (udp(7)): two bytes, plus padding.
    fn segment(segment: u16) -> Self {
        let mut value = [0; 8];
        value[..2].copy_from_slice(&segment.to_ne_bytes());
        Self { len: CONTROL_HEADER + 2, level: libc::IPPROTO_UDP, kind: UDP_SEGMENT, value }
    }

    /// The transmit time (tc-etf(8), tc-fq(8)), in the clock that [`set_time`] has set.
    fn time(time: MonoTime) -> Self {
        let (level, kind) = (libc::SOL_SOCKET, libc::SCM_TXTIME);
        Self { len: CONTROL_HEADER + 8, level, kind, value: time.0.to_ne_bytes() }
    }
}

/// Allows datagrams of this UDP output to carry a transmit time, in monotonic time. Datagrams
/// without one leave at once, as before.
///
/// # Errors
/// Errors of the kernel: `ENOPROTOOPT` before Linux 4.19.
pub(crate) fn set_time(udp_output: SocketHandle) -> io::Result<()> {
    let clock = libc::sock_txtime { clockid: libc::CLOCK_MONOTONIC, flags: 0 };
    let len = size_of::<libc::sock_txtime>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_TXTIME);
    // SAFETY: the value is readable for its size, and copied; a wrong descriptor is an error and
    // not a danger.
    let done =
        unsafe { libc::setsockopt(udp_output.0, level, name, (&raw const clock).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl UdpLink {
    /// Makes the port; tests whether the kernel segments messages.
    pub fn new() -> Self {
        Self::with(if kernel_cuts() { Cutting::Kernel } else { Cutting::Ours })
    }

    /// Makes a port with this segmentation.
    pub fn with(cutting: Cutting) -> Self {
        Self { cutting, tables: Tables::new() }
    }

    /// The segmentation of messages.
    pub fn cutting(&self) -> Cutting {
        self.cutting
    }

    /// Sends messages with their transmit times, one for each or none at all. The UDP output must
    /// have been prepared by [`set_time`].
    pub(crate) fn send_at(
        &mut self,
        udp_output: SocketHandle,
        batch: Batch<'_>,
        times: &[MonoTime],
    ) -> BatchProgress {
        assert!(times.is_empty() || times.len() == batch.messages.len());
        let mut done = 0;
        let mut parts = batch.parts;
        while done < batch.messages.len() {
            let times = times.get(done..).unwrap_or_default();
            let (count, used) = self.tables.describe_timed(&batch.messages[done..], parts, times);
            assert!(count > 0, "a message has at most {PARTS_MAX} parts");
            // SAFETY: `describe` has filled the first `count` heads with pointers to our own
            // tables, which outlive the call, and to parts that the caller lends for longer; the
            // call only reads them, except the lengths in the heads, which are ours.
            let taken = unsafe {
                libc::sendmmsg(
                    udp_output.0,
                    self.tables.heads.as_mut_ptr(),
                    count as libc::c_uint,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            match usize::try_from(taken) {
                Ok(taken) if taken == count => {
                    done += count;
                    parts = &parts[used..];
                }
                // The kernel reports the error of a message only if it is the first.
                Ok(taken) => {
                    let skipped: u32 =
                        batch.messages[done..done + taken].iter().map(|m| u32::from(m.parts)).sum();
                    done += taken;
                    parts = &parts[skipped as usize..];
                }
                Err(_) => {
                    let errno = io::Error::last_os_error().raw_os_error();
                    let stop = stop_for(errno.unwrap_or(libc::EIO));
                    return BatchProgress { messages: done, stop: Some(stop) };
                }
            }
        }
        BatchProgress { messages: done, stop: None }
    }
}

impl Default for UdpLink {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether the kernel accepts a message of two datagrams, sent to this socket itself.
fn kernel_cuts() -> bool {
    let tries = || -> io::Result<bool> {
        let from = Ipv4Addr::LOCALHOST.into();
        let options =
            UdpOptions { from, interface: None, hops: None, dscp: 0, heard_here: true, buffer: 0 };
        let udp_output = open(&options)?;
        let to = address(&udp_output)?;
        let message = Message { to, segment: 2, parts: 1 };
        let batch = Batch { messages: &[message], parts: &[b"word"] };
        let mut link = UdpLink::with(Cutting::Kernel);
        let gone = link.send(MonoTime(0), SocketHandle(udp_output.as_raw_fd()), batch);
        Ok(gone == BatchProgress { messages: 1, stop: None })
    };
    tries().unwrap_or(false)
}

impl PacketPort for UdpLink {
    fn segments_max(&self) -> u32 {
        match self.cutting {
            Cutting::Kernel => tactus_core::datagrams::SEGMENTS_MAX,
            Cutting::Ours => 1,
        }
    }

    fn send(
        &mut self,
        _now: MonoTime,
        udp_output: SocketHandle,
        batch: Batch<'_>,
    ) -> BatchProgress {
        self.send_at(udp_output, batch, &[])
    }

    fn read(&mut self, _now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        file::read_part(part, into)
    }
}

/// The stop for an error of a send.
pub(crate) fn stop_for(errno: i32) -> Stop {
    match errno {
        // The buffer is full, or the device's queue, or a signal came first.
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Stop::Full,
        errno => Stop::Refused(errno),
    }
}

impl Tables {
    pub(crate) fn new() -> Box<Self> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Box::new(Self {
            heads: [libc::mmsghdr { msg_hdr: EMPTY, msg_len: 0 }; MESSAGES_MAX],
            parts: [empty; PARTS_MAX],
            names: [Address([0; ADDRESS]); MESSAGES_MAX],
            controls: [Control::NONE; MESSAGES_MAX],
        })
    }

    /// The description of a message.
    pub(crate) fn head(&self, at: usize) -> *const libc::msghdr {
        &raw const self.heads[at].msg_hdr
    }

    /// Describes as many messages as there is room for. Returns the number of messages and of their
    /// parts.
    pub(crate) fn describe(&mut self, messages: &[Message], parts: &[&[u8]]) -> (usize, usize) {
        self.describe_timed(messages, parts, &[])
    }

    /// The same for messages of one datagram each, with their transmit times; `None` if they leave
    /// at once.
    fn describe_timed(
        &mut self,
        messages: &[Message],
        parts: &[&[u8]],
        times: &[MonoTime],
    ) -> (usize, usize) {
        let (mut count, mut used) = (0, 0);
        for message in messages.iter().take(MESSAGES_MAX) {
            let next = used + usize::from(message.parts);
            let Some(own) = self.parts.get_mut(used..next) else { break };
            let mut len = 0;
            for (vector, part) in own.iter_mut().zip(&parts[used..next]) {
                let iov_base = part.as_ptr().cast_mut().cast();
                *vector = libc::iovec { iov_base, iov_len: part.len() };
                len += part.len();
            }
            self.names[count] = Address::with_port(message.to);
            let head = &mut self.heads[count].msg_hdr;
            head.msg_name = self.names[count].0.as_mut_ptr().cast();
            head.msg_namelen = Address::len_of(message.to) as libc::socklen_t;
            head.msg_iov = own.as_mut_ptr();
            head.msg_iovlen = own.len();
            let is_one = len <= usize::from(message.segment);
            let control = match (is_one, times.get(count)) {
                (true, None) => None,
                (true, Some(&time)) => Some(Control::time(time)),
                (false, None) => Some(Control::segment(message.segment)),
                (false, Some(_)) => unreachable!("each datagram has a time of its own"),
            };
            (head.msg_control, head.msg_controllen) = match control {
                None => (ptr::null_mut(), 0),
                Some(control) => {
                    self.controls[count] = control;
                    ((&raw mut self.controls[count]).cast(), CONTROL)
                }
            };
            (count, used) = (count + 1, next);
        }
        (count, used)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    const NOW: MonoTime = MonoTime(0);
    const LOCAL: [&str; 2] = ["127.0.0.1", "::1"];

    fn options(from: &str) -> UdpOptions {
        let from = from.parse().unwrap();
        UdpOptions {
            from,
            interface: None,
            hops: Some(3),
            dscp: 34,
            heard_here: true,
            buffer: 1 << 20,
        }
    }

    fn receiver(at: &str) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind((at.parse::<IpAddr>().unwrap(), 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn take(socket: &UdpSocket) -> Vec<u8> {
        let mut bytes = [0; 2000];
        let len = socket.recv(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    #[test]
    fn messages_leave_in_order_each_to_its_own_address() {
        for local in LOCAL {
            let udp_output = open(&options(local)).unwrap();
            let ((one, to_one), (other, to_other)) = (receiver(local), receiver(local));
            let message = |to, parts| Message { to, segment: 1500, parts };
            let messages = [message(to_one, 2), message(to_other, 1), message(to_one, 3)];
            let parts: [&[u8]; 6] = [b"he", b"ad", b"other", b"a", b"", b"bc"];
            let batch = Batch { messages: &messages, parts: &parts };
            let gone = UdpLink::new().send(NOW, SocketHandle(udp_output.as_raw_fd()), batch);
            assert_eq!(gone, BatchProgress { messages: 3, stop: None });
            assert_eq!((take(&one), take(&one)), (b"head".to_vec(), b"abc".to_vec()));
            assert_eq!(take(&other), b"other");
        }
    }

    #[test]
    fn the_kernel_cuts_messages_of_several_datagrams_where_it_can() {
        let mut link = UdpLink::new();
        if link.cutting() == Cutting::Ours {
            println!("skipped: this kernel has no UDP_SEGMENT");
            return;
        }
        assert!(link.segments_max() > 1);
        for local in LOCAL {
            let udp_output = open(&options(local)).unwrap();
            let (one, to) = receiver(local);
            let head = [1; 12];
            let body: Vec<u8> = (0..3000u32).map(|at| (at % 251) as u8).collect();
            let chunks: Vec<&[u8]> = body.chunks(1316).collect();
            let parts: Vec<&[u8]> = chunks.iter().flat_map(|chunk| [&head[..], chunk]).collect();
            let messages = [Message { to, segment: 1328, parts: parts.len() as u16 }];
            let batch = Batch { messages: &messages, parts: &parts };
            let gone = link.send(NOW, SocketHandle(udp_output.as_raw_fd()), batch);
            assert_eq!(gone, BatchProgress { messages: 1, stop: None });
            for chunk in chunks {
                assert_eq!(take(&one), [&head[..], chunk].concat());
            }
        }
    }

    #[test]
    fn more_messages_than_one_call_describes_all_leave() {
        let udp_output = open(&options(LOCAL[0])).unwrap();
        let (one, to) = receiver(LOCAL[0]);
        let messages = [Message { to, segment: 8, parts: 5 }; 150];
        let bytes: Vec<[u8; 1]> = (0..750u32).map(|at| [(at / 5) as u8]).collect();
        let parts: Vec<&[u8]> = bytes.iter().map(|byte| &byte[..]).collect();
        let batch = Batch { messages: &messages, parts: &parts };
        let gone = UdpLink::new().send(NOW, SocketHandle(udp_output.as_raw_fd()), batch);
        assert_eq!(gone, BatchProgress { messages: 150, stop: None });
        for nth in 0..150 {
            assert_eq!(take(&one), [nth; 5]);
        }
    }

    /// The layout of cmsg(3): a size, two numbers, and the value behind them.
    #[test]
    fn a_time_is_a_control_message_of_the_socket() {
        let control = Control::time(MonoTime(0x0102_0304_0506_0708));
        assert_eq!((control.len, control.level, control.kind), (24, 1, 61));
        assert_eq!(u64::from_ne_bytes(control.value), 0x0102_0304_0506_0708);
        let mut tables = Tables::new();
        let to = "127.0.0.1:9".parse().unwrap();
        let messages = [Message { to, segment: 8, parts: 1 }; 2];
        let parts: [&[u8]; 2] = [b"one", b"two"];
        let times = [MonoTime(7), MonoTime(8)];
        assert_eq!(tables.describe_timed(&messages, &parts, &times), (2, 2));
        let described = tables.heads[1].msg_hdr;
        assert_eq!((described.msg_controllen, tables.controls[1]), (24, Control::time(times[1])));
        assert_eq!(tables.describe(&messages, &parts), (2, 2));
        assert!(tables.heads[1].msg_hdr.msg_control.is_null(), "a time of an earlier call");
    }

    #[test]
    fn only_a_udp_output_that_was_told_of_it_takes_times() {
        let udp_output = open(&options(LOCAL[0])).unwrap();
        let handle = SocketHandle(udp_output.as_raw_fd());
        let (one, to) = receiver(LOCAL[0]);
        let messages = [Message { to, segment: 8, parts: 1 }];
        let batch = Batch { messages: &messages, parts: &[b"word"] };
        let mut link = UdpLink::with(Cutting::Ours);
        let refused = BatchProgress { messages: 0, stop: Some(Stop::Refused(libc::EINVAL)) };
        assert_eq!(link.send_at(handle, batch, &[MonoTime(1)]), refused);
        set_time(handle).unwrap();
        // The loopback keeps no transmit times.
        assert_eq!(
            link.send_at(handle, batch, &[MonoTime(1)]),
            BatchProgress { messages: 1, stop: None }
        );
        assert_eq!(take(&one), b"word");
        assert!(set_time(SocketHandle(-1)).is_err());
    }

    #[test]
    fn what_is_refused_is_told_and_those_before_it_have_left() {
        let udp_output = open(&options(LOCAL[0])).unwrap();
        let handle = SocketHandle(udp_output.as_raw_fd());
        let (one, to) = receiver(LOCAL[0]);
        // Longer than any datagram.
        let huge = vec![0; 70_000];
        let messages = [1, 1, 1].map(|parts| Message { to, segment: u16::MAX, parts });
        let parts = [&b"first"[..], &huge, b"last"];
        let mut link = UdpLink::with(Cutting::Ours);
        let gone = link.send(NOW, handle, Batch { messages: &messages, parts: &parts });
        assert_eq!(gone.messages, 1);
        assert!(matches!(gone.stop, Some(Stop::Refused(_))), "{gone:?}");
        let rest = Batch { messages: &messages[2..], parts: &parts[2..] };
        assert_eq!(link.send(NOW, handle, rest), BatchProgress { messages: 1, stop: None });
        assert_eq!((take(&one), take(&one)), (b"first".to_vec(), b"last".to_vec()));
        let gone = link.send(NOW, SocketHandle(-1), rest);
        assert_eq!(gone, BatchProgress { messages: 0, stop: Some(Stop::Refused(libc::EBADF)) });
    }

    #[test]
    fn the_interface_of_a_udp_output_that_is_closed_is_forgotten_with_the_next() {
        let lo = crate::udp_input::interface("lo").unwrap();
        let by_lo = || open(&UdpOptions { interface: Some(lo), ..options(LOCAL[0]) }).unwrap();
        let cookies: Vec<u64> = (0..10).map(|_| cookie(by_lo().as_raw_fd()).unwrap()).collect();
        let last = by_lo();
        assert_eq!(group_interface(cookie(last.as_raw_fd()).unwrap()), Some(lo));
        assert!(cookies.into_iter().all(|cookie| group_interface(cookie).is_none()));
    }

    #[test]
    fn what_the_kernel_lets_a_udp_output_hold_is_found_out() {
        let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        // Capabilities belong to a thread.
        let without = std::thread::spawn(move || {
            let mut rights = rustix::thread::capabilities(None).unwrap();
            rights.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
            rustix::thread::set_capabilities(None, rights).unwrap();
            [limit / 2, limit + 4096].map(|wanted| granted(wanted).unwrap())
        });
        assert_eq!(without.join().unwrap(), [limit / 2, limit]);
    }

    #[test]
    fn a_group_is_heard_on_the_interface_that_it_is_sent_by() {
        let lo = crate::udp_input::interface("lo").unwrap();
        for (group, from) in [("239.255.77.2", "127.0.0.1"), ("ff01::77:2", "::1")] {
            let to = SocketAddr::new(group.parse().unwrap(), 0);
            let wanted = crate::udp_input::InputOptions {
                to,
                source: None,
                interface: Some(lo),
                buffer: 1 << 20,
            };
            let Ok(mut inbox) = crate::udp_input::UdpInput::open(&wanted) else {
                println!("skipped: {group} cannot be joined on lo");
                continue;
            };
            let mut to = inbox.address().unwrap();
            to.set_ip(group.parse().unwrap());
            let udp_output = open(&UdpOptions { interface: Some(lo), ..options(from) }).unwrap();
            let messages = [Message { to, segment: 100, parts: 1 }];
            let batch = Batch { messages: &messages, parts: &[b"word"] };
            let gone = UdpLink::new().send(NOW, SocketHandle(udp_output.as_raw_fd()), batch);
            if to.is_ipv6() && gone.stop == Some(Stop::Refused(libc::ENETUNREACH)) {
                println!("left out: the loopback of this host has no route for groups of IPv6");
                continue;
            }
            assert_eq!(gone, BatchProgress { messages: 1, stop: None }, "{group}");
            let came = (0..2000).find_map(|_| {
                let mut came = None;
                let each = |d: crate::udp_input::Datagram<'_>| came = Some(d.bytes.to_vec());
                if inbox.receive(each).is_err() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                came
            });
            assert_eq!(came.as_deref(), Some(&b"word"[..]), "{group}");
        }
    }

    #[test]
    fn a_part_of_a_file_is_read_whole_or_not_at_all() {
        use std::io::Write;
        use tactus_core::ports::FileHandle;
        use tactus_core::units::Bytes;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let handle = FileHandle(file.as_raw_fd());
        let mut link = UdpLink::new();
        let mut into = [0; 4];
        let mut read = |offset| {
            let part = FilePart { file: handle, offset: Bytes(offset), len: 4 };
            (link.read(NOW, part, &mut into), into)
        };
        assert_eq!(read(3), (Ok(()), *b"3456"));
        assert_eq!(read(8).0, Err(libc::ENODATA));
    }
}
