//! Datagrams that a kernel with `fq` keeps until their time. Most kernels of test machines have
//! none: `cargo xtask txtime` boots one that has, with two ends of a wire, `wire0` with `fq` and
//! `wire1`, and sets `TACTUS_FQ`.
//!
//! Nothing here depends on how fast that machine is: what is shown is that nothing arrives before
//! its time although all of it had been given to the kernel before the first was due, and that
//! nothing is lost.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use tactus_core::ports::{Batch, BatchProgress, Message, PacketPort, SocketHandle};
use tactus_core::units::{MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_sys::clock;
use tactus_sys::packets::back_end::{BackEnd, ExpectedUse, choose};
use tactus_sys::packets::txtime::TxtimeLink;
use tactus_sys::packets::udp_output::{UdpLink, UdpOptions, open};
use tactus_sys::udp_input::{InputOptions, UdpInput, interface};

const GROUP: &str = "239.255.88.1";
const TICK: Nanos = MILLISECOND;
/// From one datagram to the next.
const STEP: Nanos = MILLISECOND.times(20);
/// How long all of them are given before the first is due, on a machine that is emulated.
const BEFORE: Nanos = SECOND;

fn is_here() -> bool {
    let is_here = std::env::var_os("TACTUS_FQ").is_some();
    if !is_here {
        println!("skipped: no wire with fq; cargo xtask txtime makes one");
    }
    is_here
}

/// The wire: who sends, who receives, and the address between them.
struct Wire {
    udp_output: OwnedFd,
    inbox: UdpInput,
    to: SocketAddr,
}

impl Wire {
    fn new() -> Self {
        let group: IpAddr = GROUP.parse().unwrap();
        let to = SocketAddr::new(group, 0);
        let there = Some(interface("wire1").unwrap());
        let wanted = InputOptions { to, source: None, interface: there, buffer: 4 << 20 };
        let inbox = UdpInput::open(&wanted).unwrap();
        let to = SocketAddr::new(group, inbox.address().unwrap().port());
        let udp_output = open(&UdpOptions {
            from: "0.0.0.0".parse().unwrap(),
            interface: Some(interface("wire0").unwrap()),
            hops: Some(2),
            dscp: 0,
            heard_here: false,
            buffer: 4 << 20,
        });
        Self { udp_output: udp_output.unwrap(), inbox, to }
    }

    fn by(&self) -> SocketHandle {
        SocketHandle(self.udp_output.as_raw_fd())
    }

    fn give(&self, port: &mut dyn PacketPort, now: MonoTime, due: &[MonoTime]) {
        let messages = vec![Message { to: self.to, segment: 1316, parts: 1 }; due.len()];
        let bodies: Vec<[u8; 1316]> = (0..due.len()).map(|nth| [nth as u8; 1316]).collect();
        let parts: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
        let batch = Batch { messages: &messages, parts: &parts };
        let gone = port.send_timed(now, self.by(), batch, due);
        assert_eq!(gone, BatchProgress { messages: due.len(), stop: None });
    }

    /// Sends what is due at once until that reaches the other end, and the port has learnt the
    /// route.
    fn settle(&mut self, port: &mut dyn PacketPort) {
        let end = clock::now() + SECOND.times(60);
        for nth in 0.. {
            let now = clock::now();
            assert!(now < end, "nothing arrives");
            self.give(port, now, &[now]);
            port.turn(now, now);
            clock::sleep_until(now + MILLISECOND.times(20));
            if !self.receive().is_empty() && nth > 20 {
                break;
            }
        }
        clock::sleep_until(clock::now() + MILLISECOND.times(200));
        self.receive();
    }

    /// What has come: the first byte, and when it was found. Not the kernel's own stamps: on a veth
    /// those are the times that the sender asked for.
    fn receive(&mut self) -> Vec<(u8, MonoTime)> {
        let mut came = vec![];
        while self
            .inbox
            .receive(|one| came.push((one.bytes[0], clock::now())))
            .is_ok_and(|count| count > 0)
        {}
        came
    }

    /// Waits for as many, without sleeping: what comes is found at once.
    fn wait(&mut self, port: &mut dyn PacketPort, count: usize) -> Vec<(u8, MonoTime)> {
        let end = clock::now() + SECOND.times(120);
        let mut came = vec![];
        while came.len() < count {
            let now = clock::now();
            assert!(now < end, "{} of {count} came", came.len());
            port.turn(now, now);
            came.extend(self.receive());
        }
        came
    }
}

fn due_from(first: MonoTime, count: u64) -> Vec<MonoTime> {
    (0..count).map(|nth| first + STEP.times(nth)).collect()
}

fn assert_in_order_and_none_early(came: &[(u8, MonoTime)], due: &[MonoTime]) {
    let order: Vec<u8> = came.iter().map(|&(byte, _)| byte).collect();
    assert_eq!(order, (0..due.len()).map(|nth| nth as u8).collect::<Vec<_>>());
    for (&(nth, at), &due) in came.iter().zip(due) {
        assert!(at >= due, "datagram {nth} is {} early", due.since(at));
    }
    let mut late: Vec<u64> = came.iter().zip(due).map(|(came, &due)| came.1.since(due).0).collect();
    late.sort_unstable();
    println!(
        "late: median {} us, most {} us",
        late[late.len() / 2] / 1000,
        late[late.len() - 1] / 1000
    );
}

#[test]
fn the_kernel_keeps_datagrams_until_their_time() {
    if !is_here() {
        return;
    }
    let mut wire = Wire::new();
    let mut port = TxtimeLink::open(TICK, 64).unwrap();
    wire.settle(&mut port);
    // Given at once; the machine may stand still meanwhile, and then it is given again.
    for attempt in 0.. {
        let due = due_from(clock::now() + BEFORE, 50);
        wire.give(&mut port, clock::now(), &due);
        assert_eq!(port.turn(clock::now(), MonoTime(0)), None, "the kernel has them all");
        let given = clock::now();
        let came = wire.wait(&mut port, due.len());
        assert_in_order_and_none_early(&came, &due);
        if given < due[0] {
            break;
        }
        assert!(attempt < 10, "giving them takes longer than {BEFORE}");
    }
    // The same without times arrives before: it is they that the kernel goes by, and the other end
    // can tell.
    let mut plain = UdpLink::new();
    for attempt in 0.. {
        let due = due_from(clock::now() + BEFORE, 50);
        wire.give(&mut plain, clock::now(), &due);
        let came = wire.wait(&mut plain, due.len());
        if came.iter().zip(&due).all(|(came, &due)| came.1 < due) {
            break;
        }
        assert!(attempt < 10, "the other end cannot tell");
    }
}

/// As the discipline keeps a hundred packets of a flow, and throws away the others.
#[test]
fn more_than_the_kernel_keeps_wait_for_room_and_none_is_lost() {
    if !is_here() {
        return;
    }
    let mut wire = Wire::new();
    let mut port = TxtimeLink::open(TICK, 64).unwrap();
    wire.settle(&mut port);
    let first = clock::now() + BEFORE;
    let due: Vec<MonoTime> = (0..250).map(|nth| first + MILLISECOND.times(2 * nth)).collect();
    wire.give(&mut port, clock::now(), &due);
    let came = wire.wait(&mut port, due.len());
    assert_in_order_and_none_early(&came, &due);
}

#[test]
fn a_host_whose_kernel_keeps_datagrams_until_their_time_sends_by_it() {
    if !is_here() {
        return;
    }
    let chosen = choose(None, ExpectedUse { tick: TICK, destinations: 64 });
    assert_eq!(chosen.back_end, BackEnd::Txtime);
    assert!(chosen.port.ahead() > TICK && chosen.refused.is_none());
    let own = chosen.candidates.iter().find(|it| it.back_end == BackEnd::Txtime).unwrap();
    println!("a datagram costs {} here", own.single.as_ref().unwrap());
}
