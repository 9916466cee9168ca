//! A link that is kept full, whose device is changed, put down and taken away while it is.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use tactus_core::ports::{Batch, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{BitRate, MILLISECOND, Nanos};
use tactus_sys::clock;
use tactus_sys::packets::gaps::{GapLink, GapOptions};
use tactus_testkit::namespace::is_inside;

use crate::namespace::{Tap, group, ip, pair, udp_output_by, until};

const AHEAD: Nanos = Nanos::from_millis(2);
const PORT: u16 = 5004;

/// One stream by the link that is kept full, one by another.
struct Fixture {
    port: GapLink,
    full: Stream,
    other: Stream,
    longest: usize,
}

struct Stream {
    udp_output: OwnedFd,
    tap: Tap,
    last: u8,
    offered: u64,
    taken: u64,
    arrived: u64,
}

impl Stream {
    fn by(here: &str, there: &str, last: u8) -> Self {
        let (udp_output, tap) = (udp_output_by(here), Tap::on(there));
        Self { udp_output, tap, last, offered: 0, taken: 0, arrived: 0 }
    }

    /// Offers one; whether it was taken, or refused for good.
    fn offer(&mut self, port: &mut GapLink) -> bool {
        let now = clock::now();
        let message = Message { to: group(self.last, PORT), segment: 500, parts: 1 };
        let batch = Batch { messages: &[message], parts: &[&[self.last; 500]] };
        let gone =
            port.send_timed(now, SocketHandle(self.udp_output.as_raw_fd()), batch, &[now + AHEAD]);
        self.taken += gone.messages as u64;
        let is_over = gone.stop != Some(Stop::Full);
        self.offered += u64::from(is_over);
        is_over
    }
}

impl Fixture {
    fn new() -> Self {
        pair("full0", "full1");
        pair("other0", "other1");
        ip("address add 192.0.2.1/24 dev full0");
        ip("address add 198.51.100.1/24 dev other0");
        let device = "full0".to_owned();
        let options = GapOptions { device, rate: BitRate(100_000_000), overhead: 0, ahead: AHEAD };
        let port = GapLink::open(&options, 64, clock::now()).unwrap();
        let (full, other) = (Stream::by("full0", "full1", 1), Stream::by("other0", "other1", 2));
        let mut fixture = Self { port, full, other, longest: 0 };
        until("both ways are known", || {
            let taken =
                [fixture.full.offer(&mut fixture.port), fixture.other.offer(&mut fixture.port)];
            fixture.end_turn();
            taken == [true, true] && fixture.laid() > 0
        });
        fixture
    }

    fn laid(&self) -> u64 {
        self.port.counters().frames.load(Ordering::Relaxed)
    }

    fn refused(&self) -> u64 {
        self.port.counters().refused.load(Ordering::Relaxed)
    }

    fn end_turn(&mut self) {
        let now = clock::now();
        self.port.turn(now, now + AHEAD);
        for stream in [&mut self.full, &mut self.other] {
            let (came, longest) = stream.tap.datagrams(PORT);
            assert!(came.iter().all(|&first| first == stream.last));
            stream.arrived += came.len() as u64;
            self.longest = self.longest.max(longest);
        }
    }

    /// A turn: one of each stream. That by the other device is always taken.
    fn turn(&mut self) {
        let is_over = self.full.offer(&mut self.port);
        let taken = self.other.taken;
        self.other.offer(&mut self.port);
        assert_eq!(self.other.taken, taken + 1, "held up by a device that is not its own");
        self.end_turn();
        assert!(is_over, "what cannot be sent is refused, it does not wait");
    }

    /// Takes turns until more have arrived in frames of the link's own, and what fills the time
    /// between them.
    fn come_back(&mut self, what: &str) {
        const DATAGRAM: usize = 14 + 20 + 8 + 500;
        let (arrived, laid) = (self.full.arrived, self.laid());
        self.longest = 0;
        until(what, || {
            self.turn();
            self.full.arrived > arrived + 20 && self.laid() > laid + 20 && self.longest > DATAGRAM
        });
    }

    /// All that were offered have arrived, or are counted as refused.
    fn settle(&mut self) {
        until("all are accounted for", || {
            self.end_turn();
            let by_socket = self.full.offered - self.full.taken;
            self.full.arrived + by_socket + self.refused() == self.full.offered
                && self.other.arrived == self.other.offered
        });
        assert_eq!(self.other.offered, self.other.taken);
    }
}

#[test]
fn a_link_whose_longest_frame_becomes_shorter_goes_on() {
    if !is_inside("gap_frames::a_link_whose_longest_frame_becomes_shorter_goes_on") {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.come_back("the link is kept full");
    assert_eq!(fixture.longest, 1514);
    ip("link set full0 mtu 1000");
    fixture.come_back("the link is kept full by shorter frames");
    // What was under way as they became shorter has come.
    fixture.come_back("the link is kept full by shorter frames");
    assert_eq!(fixture.longest, 1014);
    // What is longer than that is cut by the kernel, or refused by it; the link goes on for others.
    ip("link set full0 mtu 100");
    (0..50).for_each(|_| fixture.turn());
    ip("link set full0 mtu 1500");
    fixture.come_back("the link is kept full again");
    until("frames are as long as before", || {
        fixture.turn();
        fixture.longest == 1514
    });
}

#[test]
fn a_link_that_is_down_holds_up_nobody_and_comes_back() {
    if !is_inside("gap_frames::a_link_that_is_down_holds_up_nobody_and_comes_back") {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.come_back("the link is kept full");
    ip("link set full0 down");
    let before = fixture.full.arrived;
    // As many turns as would fill the ring with what fills the time, and more.
    for _ in 0..1000 {
        fixture.turn();
        clock::sleep_until(clock::now() + MILLISECOND);
    }
    assert!(fixture.full.arrived <= before + 4, "by a device that is down");
    fixture.settle();
    assert!(fixture.refused() > 0);
    ip("link set full0 up");
    fixture.come_back("the link is kept full again");
    fixture.settle();
}

#[test]
fn a_link_whose_device_is_made_anew_comes_back() {
    if !is_inside("gap_frames::a_link_whose_device_is_made_anew_comes_back") {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.come_back("the link is kept full");
    ip("link delete full0");
    (0..50).for_each(|_| fixture.turn());
    pair("full0", "full1");
    ip("address add 192.0.2.1/24 dev full0");
    fixture.full = Stream::by("full0", "full1", 1);
    until("the new way is known", || fixture.full.offer(&mut fixture.port));
    fixture.come_back("the link is kept full again");
}
