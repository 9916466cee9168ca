//! UDP input: receives many datagrams of one address at a time. The socket of a live input.
//!
//! Promise: receiving never waits, and reads at most [`BATCH`] datagrams at once into preallocated
//! memory. The kernel drops and counts datagrams that arrive faster than they are read. Senders are
//! not checked, except that the kernel filters by a joined source.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tactus_core::units::WallTime;

/// Datagrams of one call: 40 KB of transport packets in ordinary frames, 3 ms of 100 Mbit/s.
pub const BATCH: usize = 32;
/// Longest datagram of UDP, with any frame size. Memory is used only for bytes that arrive.
pub const DATAGRAM_MAX: usize = (1 << 16) - 1;
/// Distance between the buffers of two datagrams: the largest that the kernel coalesces into one,
/// and 33 cache lines more, so that the buffers do not share a few cache sets.
const STRIDE: usize = (1 << 16) + 33 * 64;

/// The parameters of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputOptions {
    /// The destination: a local address, a group, or the unspecified address for all local ones.
    pub to: SocketAddr,
    /// The only source of a group (source-specific multicast, RFC 4607).
    pub source: Option<IpAddr>,
    /// The interface by its index: that of the join, or the only one for unicast.
    pub interface: Option<u32>,
    /// Bytes of the kernel's receive buffer; it may be smaller.
    pub buffer: usize,
}

/// One datagram, valid until the next receive.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The payload.
    pub bytes: &'a [u8],
    /// It was longer than [`DATAGRAM_MAX`].
    pub is_cut: bool,
    /// The kernel's receive time, if enabled.
    pub timestamp: Option<WallTime>,
}

/// A receiving socket.
#[derive(Debug)]
pub struct UdpInput {
    socket: OwnedFd,
    memory: Box<[u8]>,
}

impl UdpInput {
    /// Opens, binds and joins.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(wanted: &InputOptions) -> io::Result<Self> {
        let family = if wanted.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        grow(&socket, wanted.buffer);
        if wanted.to.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        let group = wanted.to.ip();
        if group.is_multicast() {
            // Other sockets of this host may receive the same group.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            only_joined(&socket, group)?;
        } else if let Some(interface) = wanted.interface {
            set(&socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &interface)?;
        }
        bind(&socket, &on_link(wanted.to, wanted.interface))?;
        if group.is_multicast() {
            join(&socket, group, wanted.source, wanted.interface.unwrap_or(0))?;
        }
        let memory = vec![0; BATCH * STRIDE].into_boxed_slice();
        Ok(Self { socket, memory })
    }

    /// Enables the kernel's receive timestamps.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn stamped(self) -> io::Result<Self> {
        set(&self.socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
        Ok(self)
    }

    /// Permits the kernel to coalesce datagrams (udp(7), `UDP_GRO`). They are still delivered one
    /// by one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn gathered(self) -> io::Result<Self> {
        set(&self.socket, libc::SOL_UDP, libc::UDP_GRO, &1)?;
        Ok(self)
    }

    /// The bound address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.socket)?.try_into()?)
    }

    /// The size of the receive buffer by the kernel's accounting, which includes its overhead.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// Datagrams that the kernel has dropped for lack of room, modulo 2^32.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn dropped(&self) -> io::Result<u32> {
        /// `SO_MEMINFO`, and the index of the drops in it (linux/sock_diag.h).
        const MEMINFO: i32 = 55;
        const DROPS: usize = 8;
        let mut values = [0u32; DROPS + 1];
        let mut len = size_of_val(&values) as libc::socklen_t;
        // SAFETY: the array is writable for the length that is given, and lives through the call.
        let got = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                MEMINFO,
                values.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if got == 0 { Ok(values[DROPS]) } else { Err(io::Error::last_os_error()) }
    }

    /// Passes the received datagrams, at most [`BATCH`], to `each`. Returns their number, where
    /// coalesced ones count as one. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if there are none; else the kernel's error.
    pub fn receive(&mut self, mut each: impl FnMut(Datagram<'_>)) -> io::Result<usize> {
        let mut names = [const { Address([0; ADDRESS]) }; BATCH];
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        for (part, memory) in parts.iter_mut().zip(self.memory.chunks_exact_mut(STRIDE)) {
            *part = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        }
        let mut controls = [const { Control([0; CONTROL]) }; BATCH];
        let mut heads = [libc::mmsghdr { msg_hdr: EMPTY, msg_len: 0 }; BATCH];
        let tables = parts.iter_mut().zip(&mut names).zip(&mut controls);
        for (head, ((part, name), control)) in heads.iter_mut().zip(tables) {
            head.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
            head.msg_hdr.msg_namelen = ADDRESS as libc::socklen_t;
            head.msg_hdr.msg_iov = part;
            head.msg_hdr.msg_iovlen = 1;
            head.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            head.msg_hdr.msg_controllen = CONTROL;
        }
        // SAFETY: each head names memory of its own that is writable for the length beside it; all
        // of it outlives the call, which does not keep it.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                heads.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let memory = self.memory.chunks_exact(STRIDE);
        let came = heads.iter().zip(&names).zip(&controls).zip(memory);
        for (((head, name), control), memory) in came.take(count) {
            // A datagram without a readable address is dropped.
            let Some(from) = name.read() else { continue };
            let bytes = &memory[..(head.msg_len as usize).min(STRIDE)];
            let is_cut = head.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let Ancillary { timestamp, segment } = control.read(head.msg_hdr.msg_controllen);
            match segment.filter(|&segment| segment < bytes.len()) {
                Some(segment) => {
                    let datagrams = bytes.chunks(segment);
                    datagrams.for_each(|bytes| each(Datagram { from, bytes, is_cut, timestamp }));
                }
                None => each(Datagram { from, bytes, is_cut, timestamp }),
            }
        }
        Ok(count)
    }
}

impl AsFd for UdpInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for UdpInput {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

/// The index of the interface named `name`, or with this index.
///
/// # Errors
/// If there is none.
pub fn interface(name: &str) -> io::Result<u32> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

pub(crate) const ADDRESS: usize = size_of::<libc::sockaddr_storage>();

pub(crate) const EMPTY: libc::msghdr = libc::msghdr {
    msg_name: ptr::null_mut(),
    msg_namelen: 0,
    msg_iov: ptr::null_mut(),
    msg_iovlen: 0,
    msg_control: ptr::null_mut(),
    msg_controllen: 0,
    msg_flags: 0,
};

/// Room for the ancillary data of a datagram (cmsg(3)).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// The timestamp (socket(7), `SO_TIMESTAMPNS`), and the segment size (`UDP_GRO`).
const CONTROL: usize = 2 * CONTROL_HEADER + 16 + 8;
/// A length of eight bytes, a level and a type of four each.
const CONTROL_HEADER: usize = 16;

/// The ancillary data of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Ancillary {
    timestamp: Option<WallTime>,
    segment: Option<usize>,
}

impl Control {
    /// Parses the first `len` bytes.
    fn read(&self, len: usize) -> Ancillary {
        let mut ancillary = Ancillary::default();
        let mut rest = &self.0[..len.min(CONTROL)];
        let word = |bytes: &[u8], at: usize| -> Option<i64> {
            Some(i64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let half = |bytes: &[u8], at: usize| -> Option<i32> {
            Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        while let (Some(len), Some(level), Some(kind)) =
            (word(rest, 0), half(rest, 8), half(rest, 12))
        {
            let Ok(len @ CONTROL_HEADER..) = usize::try_from(len) else { break };
            let body = rest.get(CONTROL_HEADER..len).unwrap_or(&[]);
            match (level, kind) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let (seconds, nanos) = (word(body, 0), word(body, 8));
                    let timestamp = |(seconds, nanos): (i64, i64)| {
                        WallTime(seconds as u64 * 1_000_000_000 + nanos as u64)
                    };
                    ancillary.timestamp = seconds.zip(nanos).map(timestamp);
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let segment = half(body, 0).and_then(|segment| usize::try_from(segment).ok());
                    ancillary.segment = segment.filter(|&segment| segment > 0);
                }
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or(&[]);
        }
        ancillary
    }
}

/// A `sockaddr_storage`, as bytes.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Address(pub(crate) [u8; ADDRESS]);

impl Address {
    /// The kernel's form (ip(7), ipv6(7)): the family in host order, the port in network order.
    fn of(ip: IpAddr) -> Self {
        let mut bytes = [0; ADDRESS];
        let family = match ip {
            IpAddr::V4(ip) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                libc::AF_INET
            }
            IpAddr::V6(ip) => {
                bytes[8..24].copy_from_slice(&ip.octets());
                libc::AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self(bytes)
    }

    pub(crate) fn with_port(to: SocketAddr) -> Self {
        let mut address = Self::of(to.ip());
        address.0[2..4].copy_from_slice(&to.port().to_be_bytes());
        if let SocketAddr::V6(to) = to {
            address.0[24..28].copy_from_slice(&to.scope_id().to_ne_bytes());
        }
        address
    }

    /// The length that the kernel reads.
    pub(crate) const fn len_of(to: SocketAddr) -> usize {
        match to {
            SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
            SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
        }
    }

    fn read(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Ipv4Addr::from(*bytes[4..].first_chunk::<4>()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// Adds the interface to a link-local address (RFC 4007): otherwise the kernel uses the first link.
pub fn on_link(to: SocketAddr, interface: Option<u32>) -> SocketAddr {
    match (to, interface) {
        (SocketAddr::V6(to), Some(scope)) if is_of_link(*to.ip()) => {
            SocketAddr::V6(SocketAddrV6::new(*to.ip(), to.port(), 0, scope))
        }
        (to, _) => to,
    }
}

/// Whether the scope is the link or the interface.
fn is_of_link(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.octets();
    ip.is_unicast_link_local() || (first == 0xff && matches!(second & 0x0f, 1 | 2))
}

/// Enlarges the buffer as far as possible: beyond `net.core.rmem_max` only with a capability.
fn grow(socket: &OwnedFd, bytes: usize) {
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX);
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &wanted).is_err() {
        // `buffer` returns the granted size.
        drop(set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &wanted));
    }
}

/// Excludes groups that other sockets of this host have joined.
fn only_joined(socket: &OwnedFd, group: IpAddr) -> io::Result<()> {
    match group {
        IpAddr::V4(_) => set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0),
        IpAddr::V6(_) => set(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, &0),
    }
}

/// RFC 3678: the calls that are common to both families.
fn join(socket: &OwnedFd, group: IpAddr, source: Option<IpAddr>, interface: u32) -> io::Result<()> {
    #[repr(C)]
    struct Any {
        interface: u32,
        group: Address,
    }
    #[repr(C)]
    struct Specific {
        interface: u32,
        group: Address,
        source: Address,
    }
    /// linux/in.h
    const JOIN_GROUP: i32 = 42;
    const JOIN_SOURCE_GROUP: i32 = 46;
    let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let group = Address::of(group);
    match source {
        None => set(socket, level, JOIN_GROUP, &Any { interface, group }),
        Some(source) => {
            let source = Address::of(source);
            set(socket, level, JOIN_SOURCE_GROUP, &Specific { interface, group, source })
        }
    }
}

pub(crate) fn set<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is readable for its size; the kernel copies it.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, ptr::from_ref(value).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};
    use tactus_core::units::SECOND;

    fn wanted(to: &str) -> InputOptions {
        InputOptions { to: to.parse().unwrap(), source: None, interface: None, buffer: 1 << 20 }
    }

    /// Receives until there are `count` datagrams.
    fn take(inbox: &mut UdpInput, count: usize) -> Vec<(SocketAddr, usize, bool)> {
        let mut came = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while came.len() < count && Instant::now() < end {
            let each = |d: Datagram<'_>| came.push((d.from, d.bytes.len(), d.is_cut));
            match inbox.receive(each) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        came
    }

    #[test]
    fn p01_datagrams_come_with_their_sender_however_long_they_are() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let mut inbox = UdpInput::open(&wanted(any)).unwrap();
            assert!(inbox.buffer().unwrap() > 0);
            let sender = UdpSocket::bind(any).unwrap();
            let to = inbox.address().unwrap();
            // 9,400 bytes are fifty transport packets; the limit of IPv4 is 65,507.
            let lens = [0, 1, 1316, 9400, 65_507];
            for len in lens {
                sender.send_to(&vec![7; len], to).unwrap();
            }
            let from = sender.local_addr().unwrap();
            let expected = lens.map(|len| (from, len, false));
            assert_eq!(take(&mut inbox, lens.len()), expected);
        }
    }

    #[test]
    fn what_comes_in_one_piece_is_told_datagram_by_datagram() {
        let sender = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        set(&sender, libc::SOL_UDP, libc::UDP_SEGMENT, &1316).unwrap();
        let sender = UdpSocket::from(sender);
        for timestamps in [0, 1] {
            let inbox = UdpInput::open(&wanted("127.0.0.1:0")).unwrap().gathered().unwrap();
            let mut inbox = if timestamps == 1 { inbox.stamped().unwrap() } else { inbox };
            let bytes: Vec<u8> = (0..40_000u32).map(|nth| (nth / 1316) as u8).collect();
            sender.send_to(&bytes, inbox.address().unwrap()).unwrap();
            let (mut came, mut stamped) = (vec![], 0);
            let each = |datagram: Datagram<'_>| {
                assert!(datagram.bytes.iter().all(|&byte| usize::from(byte) == came.len()));
                came.push(datagram.bytes.len());
                stamped += usize::from(datagram.timestamp.is_some());
            };
            // On the loopback a datagram has arrived when the send returns.
            assert_eq!(inbox.receive(each).unwrap(), 1);
            assert_eq!(came[..30], [1316; 30]);
            assert_eq!(came[30..], [40_000 - 30 * 1316]);
            assert_eq!(stamped, 31 * timestamps);
        }
    }

    #[test]
    fn timestamps_are_the_kernels_and_only_where_they_were_asked_for() {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            WallTime(since.unwrap().as_nanos() as u64)
        };
        for is_stamped in [true, false] {
            let inbox = UdpInput::open(&wanted("127.0.0.1:0")).unwrap();
            let mut inbox = if is_stamped { inbox.stamped().unwrap() } else { inbox };
            let before = now();
            sender.send_to(b"one", inbox.address().unwrap()).unwrap();
            sender.send_to(b"two", inbox.address().unwrap()).unwrap();
            let mut timestamps = vec![];
            while timestamps.len() < 2 {
                // Received, or about to be.
                drop(inbox.receive(|datagram| timestamps.push(datagram.timestamp)));
            }
            // A kernel that has just enabled timestamps sets them at the read; and the clock may be
            // set.
            let (before, after) = (before.0 - SECOND.0, now().0 + SECOND.0);
            match is_stamped {
                true => {
                    assert!(timestamps.iter().all(|timestamp| {
                        timestamp.is_some_and(|timestamp| (before..=after).contains(&timestamp.0))
                    }))
                }
                false => assert_eq!(timestamps, [None, None]),
            }
        }
    }

    #[test]
    fn what_is_not_read_is_dropped_by_the_kernel_and_counted() {
        let mut inbox =
            UdpInput::open(&InputOptions { buffer: 16 * 1024, ..wanted("127.0.0.1:0") }).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = inbox.address().unwrap();
        for _ in 0..200 {
            sender.send_to(&[7; 1316], to).unwrap();
        }
        let dropped = inbox.dropped().unwrap() as usize;
        assert!(dropped > 100, "{dropped}");
        assert_eq!(take(&mut inbox, 200 - dropped).len(), 200 - dropped);
        assert_eq!(inbox.receive(|_| {}).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// Sends to a group through an interface.
    fn send(from: IpAddr, interface: u32, to: SocketAddr) {
        let sender = UdpSocket::bind((from, 0)).unwrap();
        match from {
            IpAddr::V4(from) => sockopt::set_ip_multicast_if(&sender, &from).unwrap(),
            IpAddr::V6(_) => sockopt::set_ipv6_multicast_if(&sender, interface).unwrap(),
        }
        sender.send_to(b"word", to).unwrap();
    }

    /// `group` on an interface of this host, sent by `source`, one of its addresses.
    fn joined(group: &str, interface: u32, source: IpAddr, wrong: Option<IpAddr>) {
        let any = InputOptions { interface: Some(interface), ..wanted(group) };
        let one = InputOptions { source: Some(source), ..any };
        let other = InputOptions { source: Some(wrong.unwrap_or(NOBODY.into())), ..any };
        let mut inboxes = [any, one, other].map(|wanted| UdpInput::open(&wanted).unwrap());
        for inbox in &inboxes {
            send(source, interface, inbox.address().unwrap());
            if let Some(wrong) = wrong {
                send(wrong, interface, inbox.address().unwrap());
            }
        }
        let wrong = usize::from(wrong.is_some());
        for (inbox, expected) in inboxes.iter_mut().zip([1 + wrong, 1, wrong]) {
            assert_eq!(take(inbox, expected).len(), expected, "{group}");
            assert_eq!(inbox.receive(|_| {}).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }

    const NOBODY: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

    #[test]
    fn groups_are_joined_on_an_interface_from_any_source_or_from_one() {
        let lo = interface("lo").unwrap();
        let [right, wrong] = [1, 2].map(|last| IpAddr::from([127, 0, 0, last]));
        joined("232.1.2.3:0", lo, right, Some(wrong));
        assert!(interface("no-such-link").is_err());
    }

    #[test]
    fn groups_of_ipv6_are_joined_on_an_interface_from_any_source_or_from_one() {
        // Address, index, prefix length, scope (0: global), flags, name.
        let all = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        let routes = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
        let reaches_groups = |name: &str| {
            routes.lines().any(|line| line.starts_with("ff000000") && line.ends_with(name))
        };
        let found = all.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let ip = Ipv6Addr::from(u128::from_str_radix(words.next()?, 16).ok()?);
            let name = words.last()?;
            (!ip.is_unicast_link_local() && reaches_groups(name)).then_some((ip, name))
        });
        let Some((ip, name)) = found else {
            println!(
                "left out: no interface of this host has an IPv6 address and a route for groups"
            );
            return;
        };
        // Interface-local: it never leaves the host.
        joined("[ff11::8000:1]:0", interface(name).unwrap(), ip.into(), None);
    }
}
