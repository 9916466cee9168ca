//! Datagrams that a queueing discipline throws away, of which a socket hears nothing.

use std::os::fd::AsRawFd;

use tactus_core::ports::{Batch, BatchProgress, Message, PacketPort, SocketHandle};
use tactus_core::units::MonoTime;
use tactus_sys::packets::udp_output::UdpLink;
use tactus_sys::probe::queues;
use tactus_testkit::namespace::is_inside;

use crate::namespace::{Tap, group, pair, tc, udp_output_by, until};

const PORT: u16 = 5004;
const SENT: u64 = 2000;

#[test]
fn what_a_slow_link_throws_away_is_counted_to_the_datagram() {
    if !is_inside("queues::what_a_slow_link_throws_away_is_counted_to_the_datagram") {
        return;
    }
    pair("slow0", "slow1");
    tc("qdisc add dev slow0 root tbf rate 10mbit burst 5000 limit 100000");
    let (udp_output, tap) = (udp_output_by("slow0"), Tap::on("slow1"));
    let message = Message { to: group(1, PORT), segment: 1316, parts: 1 };
    let mut port = UdpLink::new();
    for _ in 0..SENT {
        let batch = Batch { messages: &[message], parts: &[&[0x47; 1316]] };
        let gone = port.send(MonoTime(0), SocketHandle(udp_output.as_raw_fd()), batch);
        assert_eq!(
            gone,
            BatchProgress { messages: 1, stop: None },
            "the socket says that it was sent"
        );
    }
    let dropped = || {
        let all = queues();
        let own = all.iter().find(|queue| queue.device == "slow0").unwrap();
        assert_eq!(own.discipline, "tbf");
        own.dropped
    };
    assert!(dropped() > SENT / 2, "{} of {SENT}", dropped());
    let mut arrived = 0;
    until("each has arrived or was thrown away", || {
        arrived += tap.datagrams(PORT).0.len() as u64;
        arrived + dropped() == SENT
    });
    assert!(queues().iter().all(|queue| queue.device != "slow1"), "it has none");
}
