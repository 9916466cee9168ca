//! Addresses of which each link has its own (RFC 4007).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use tactus_core::ports::{Batch, Message, SocketHandle};
use tactus_core::units::MILLISECOND;
use tactus_sys::clock;
use tactus_sys::packets::back_end::{BackEnd, ExpectedUse, choose};
use tactus_sys::packets::udp_output::{UdpOptions, open};
use tactus_sys::udp_input::{interface, on_link};
use tactus_testkit::namespace::is_inside;

use crate::namespace::{Tap, ip, pair, until};

const PORT: u16 = 5004;

#[test]
fn an_address_of_one_link_is_reached_by_the_link_that_is_named() {
    if !is_inside("one_link::an_address_of_one_link_is_reached_by_the_link_that_is_named") {
        return;
    }
    let ends = [("near0", "near1"), ("far0", "far1")];
    for (here, there) in ends {
        pair(here, there);
        ip(&format!("address add fe80::1/64 dev {here} nodad"));
        ip(&format!("neighbour add fe80::2 lladdr 02:00:00:00:00:01 dev {here}"));
    }
    let taps = ends.map(|(_, there)| Tap::on(there));
    let to = SocketAddr::new("fe80::2".parse().unwrap(), PORT);
    let from: [IpAddr; 2] = ["::", "fe80::1"].map(|from| from.parse().unwrap());
    for back_end in [BackEnd::Sendmmsg, BackEnd::IoUring, BackEnd::PacketSocket] {
        let mut port =
            choose(Some(back_end), ExpectedUse { tick: MILLISECOND, destinations: 64 }).port;
        for (from, (here, tap)) in from.iter().flat_map(|from| {
            ends.iter().zip(&taps).map(move |(&(here, _), tap)| (*from, (here, tap)))
        }) {
            let interface = Some(interface(here).unwrap());
            let options =
                UdpOptions { from, interface, hops: None, dscp: 0, heard_here: false, buffer: 0 };
            let udp_output = open(&options).unwrap();
            let to = on_link(to, interface);
            let message = Message { to, segment: 9, parts: 1 };
            let batch = Batch { messages: &[message], parts: &[&[7; 9]] };
            // Until it might be sent as a frame, past the socket.
            let mut came = 0;
            until("they arrive", || {
                let gone = port.send(clock::now(), SocketHandle(udp_output.as_raw_fd()), batch);
                assert_eq!(gone.messages, 1, "{gone:?} from {from} by {here}");
                port.turn(clock::now(), clock::now());
                came += tap.datagrams(PORT).0.len();
                came > 20
            });
            let elsewhere: usize = taps.iter().map(|tap| tap.datagrams(PORT).0.len()).sum();
            assert_eq!(elsewhere, 0, "from {from} by {here}");
        }
    }
}
