//! A network namespace of its own for a test, with pairs of devices of which each has two ends
//! there.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, socket_with};
use tactus_core::units::{MILLISECOND, SECOND};
use tactus_sys::clock;
use tactus_sys::packets::udp_output::{UdpOptions, open};
use tactus_sys::udp_input::interface;

/// `ip`, with these words.
pub(crate) fn ip(words: &str) {
    run("ip", words);
}

/// `tc`, with these words.
pub(crate) fn tc(words: &str) {
    run("tc", words);
}

fn run(program: &str, words: &str) {
    let status = Command::new(program).args(words.split(' ')).status();
    assert!(status.expect("this test needs iproute2").success(), "{program} {words}");
}

/// A pair: what leaves by `here` comes to `there`. IPv6 is quiet on both, so that only the test
/// sends.
pub(crate) fn pair(here: &str, there: &str) {
    ip(&format!("link add {here} type veth peer name {there}"));
    for end in [here, there] {
        ip(&format!("link set {end} addrgenmode none up"));
    }
}

/// A UDP output for groups that leave by this device.
pub(crate) fn udp_output_by(device: &str) -> OwnedFd {
    let from = "0.0.0.0".parse().unwrap();
    let interface = Some(interface(device).unwrap());
    open(&UdpOptions {
        from,
        interface,
        hops: Some(2),
        dscp: 0,
        heard_here: false,
        buffer: 4 << 20,
    })
    .unwrap()
}

/// All frames that come to a device.
pub(crate) struct Tap {
    socket: OwnedFd,
}

impl Tap {
    pub(crate) fn on(device: &str) -> Self {
        // `ETH_P_ALL` in the order of the network (packet(7)).
        let all = Protocol::from_raw(u32::from(3u16.to_be()).try_into().unwrap());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(all)).unwrap();
        let index = interface(device).unwrap();
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 3u16.to_be(),
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is readable for its length; the kernel copies it.
        let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        // Only this device's from now on.
        let tap = Self { socket };
        tap.datagrams(0);
        tap
    }

    /// First bytes of the datagrams to a port that have come by now, and how long the longest frame
    /// was.
    pub(crate) fn datagrams(&self, port: u16) -> (Vec<u8>, usize) {
        let (mut came, mut longest, mut bytes) = (vec![], 0, [0; 4096]);
        while let Ok((len, _)) = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty())
        {
            longest = longest.max(len);
            // IPv4 without options, IPv6 without headers between.
            let (protocol, udp) = if bytes[12..14] == [8, 0] { (23, 34) } else { (20, 54) };
            let is_udp = len > udp + 8 && bytes[protocol] == 17;
            if is_udp && bytes[udp + 2..udp + 4] == port.to_be_bytes() {
                came.push(bytes[udp + 8]);
            }
        }
        (came, longest)
    }
}

/// Tries until it is so; says what never was when it takes longer than any machine does.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = clock::now() + SECOND.times(60);
    while !is_so() {
        assert!(clock::now() < end, "not so after a minute: {what}");
        clock::sleep_until(clock::now() + MILLISECOND);
    }
}

/// A group at a port.
pub(crate) fn group(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([239, 255, 90, last], port))
}
