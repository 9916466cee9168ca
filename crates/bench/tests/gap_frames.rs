//! A link that is kept full, on a veth whose wire is a token bucket: what is on it, and where.
//!
//! It needs root, network namespaces and `tc`; what is missing is named.

use std::process::Command;
use std::sync::mpsc;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, socket_with};
use tactus_bench::datagrams::{PORT, behind};
use tactus_bench::netns::{NetworkPath, Wire};
use tactus_bench::peers::Server;
use tactus_core::units::BitRate;

const WIRE: BitRate = BitRate(100_000_000);
const RATE: u64 = 8_800_000;
const STREAMS: usize = 3;
const GROUP: [u8; 4] = [239, 213, 0, 1];
/// Frames that are looked at: half a second.
const FRAMES: usize = 5000;
/// They must fit into what the socket holds, since the kernel throws away what does not: 4 KiB
/// each.
const BUFFER: usize = FRAMES * 4096;

struct Frame {
    len: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pause { quanta: u16 },
    Datagram { stream: usize, payload: usize },
    Other,
}

/// A machine that has no time lets the wire run empty: then it is looked again.
const TRIES: usize = 20;

#[test]
fn the_time_between_datagrams_is_filled_to_the_byte() {
    let is_filled = (0..TRIES).any(|nth| {
        let medians = look_at_the_wire();
        println!("try {nth}: {medians:?} bytes for {RIGHT}");
        medians.iter().all(|median| median.abs_diff(RIGHT) < RIGHT / 50)
    });
    assert!(is_filled);
}

/// What lies between the beginnings of two datagrams of a stream is the time between them, in
/// bytes.
const RIGHT: u64 = 1316 * WIRE.0 / RATE;

/// Sends for a while; the median of these bytes for each stream, of which none is right when too
/// little was filled.
fn look_at_the_wire() -> Vec<u64> {
    let wire = Wire::lay(NetworkPath::default()).expect("network namespaces can be made");
    wire.shape(WIRE).expect("tc limits the wire");
    let (opened, is_open) = mpsc::channel();
    let side = wire.receiver_side();
    let receiver = std::thread::spawn(move || {
        side.enter().expect("the receiver's side can be entered");
        capture(|| opened.send(()).expect("the test waits"))
    });
    is_open.recv().expect("the receiver listens");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tactus-bench"));
    let [a, b, c, d] = GROUP;
    command.args(["pace-wire", "--keeper", "gaps", "--to", &format!("{a}.{b}.{c}.{d}:{PORT}")]);
    command.args(["--streams", &STREAMS.to_string(), "--rate", &RATE.to_string()]);
    command.args(["--device", wire.server_device(), "--wire", &WIRE.0.to_string()]);
    let folder = tempfile::tempdir().expect("a directory for what it says");
    let mut server = Server::start_silent(&command, folder, &wire).expect("the sender starts");
    while !receiver.is_finished() {
        server.check().expect("the sender goes on");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let frames = receiver.join().expect("the receiver gets what it waits for");
    drop(server);

    let pauses = frames.iter().filter(|frame| matches!(frame.kind, Kind::Pause { .. })).count();
    let datagrams = frames.iter().filter(|frame| matches!(frame.kind, Kind::Datagram { .. }));
    let (pauses, datagrams) = (pauses * 2 > FRAMES, datagrams.count() * 10 > FRAMES);
    for frame in &frames {
        match frame.kind {
            Kind::Pause { quanta } => assert_eq!(quanta, 0, "nobody is asked to pause"),
            Kind::Datagram { stream, payload } => assert!(stream < STREAMS && payload == 1316),
            Kind::Other => {}
        }
        assert!((42..=1514).contains(&frame.len));
    }
    let median = |stream| {
        let mut between = distances(&frames, stream);
        between.sort_unstable();
        assert!(between.len() > 20, "{} datagrams of {stream}", between.len());
        between[between.len() / 2]
    };
    if pauses && datagrams { (0..STREAMS).map(median).collect() } else { vec![0] }
}

/// Bytes of the wire from each datagram of a stream to the next.
fn distances(frames: &[Frame], stream: usize) -> Vec<u64> {
    let (mut at, mut last, mut found) = (0, None, vec![]);
    for frame in frames {
        if matches!(frame.kind, Kind::Datagram { stream: own, .. } if own == stream) {
            found.extend(last.map(|last| at - last));
            last = Some(at);
        }
        at += frame.len;
    }
    found
}

/// The frames that come by all devices of this side, from the first datagram on.
fn capture(is_open: impl FnOnce()) -> Vec<Frame> {
    // `ETH_P_ALL` in the order of the network (packet(7)).
    let protocol = Protocol::from_raw(u32::from(3u16.to_be()).try_into().expect("it is not zero"));
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol))
        .expect("raw frames may be received");
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)
        .expect("the buffer may be large");
    is_open();
    let (mut frames, mut bytes) = (vec![], [0; 2048]);
    while frames.len() < FRAMES {
        let (len, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty())
            .expect("frames are received");
        let frame = look(&bytes[..len]);
        if !frames.is_empty() || matches!(frame.kind, Kind::Datagram { .. }) {
            frames.push(frame);
        }
    }
    frames
}

fn look(bytes: &[u8]) -> Frame {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let kind = match word(12) {
        0x8808 if bytes[..6] == [0x01, 0x80, 0xc2, 0, 0, 1] && word(14) == 1 => {
            Kind::Pause { quanta: word(16) }
        }
        0x0800 if bytes[30..34] == GROUP => {
            let to = |stream: &u16| behind((GROUP, PORT).into(), *stream).port() == word(36);
            let stream = (0..STREAMS as u16).find(to).map_or(STREAMS, usize::from);
            Kind::Datagram { stream, payload: bytes.len() - 42 }
        }
        _ => Kind::Other,
    };
    Frame { len: bytes.len() as u64, kind }
}
