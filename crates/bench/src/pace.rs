//! Senders that the benches of pace start as processes of their own: what the kernel's disciplines
//! are fed by, and the pacer by itself.
//!
//! Promise: each is as good as it can be made for what it stands for. It sends until it is killed.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Result, ensure};
use tactus_core::datagrams::{Framing, Ip, PAYLOAD};
use tactus_core::pacer::{Class, ClassId, LINK, Limits, Pacer, Packet};
use tactus_core::ports::{Batch, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};
use tactus_sys::packets::udp_output::{self, UdpLink, UdpOptions};

use crate::clock;
use crate::datagrams::{Destination, behind};

const BODY: [u8; PAYLOAD.0 as usize] = [0x47; PAYLOAD.0 as usize];
/// Most datagrams of one call.
const BATCH: usize = 64;
/// What a socket holds: a second of 30 Mbit/s, as the kernel counts it.
const BUFFER: usize = 8 << 20;

/// What `pace-bursts` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Bursts {
    #[command(flatten)]
    destination: Destination,
    /// How many.
    #[arg(long)]
    streams: u16,
    /// Bits per second of each.
    #[arg(long)]
    rate: u64,
    /// How often each is given what it sends until the next time, in milliseconds.
    #[arg(long, default_value_t = 250)]
    period: u64,
}

/// The number of the class of a stream, below the major number 1: the first is the discipline's
/// default.
pub fn class_of(stream: u16) -> u32 {
    u32::from(stream) + 2
}

/// Hands each stream's datagrams of a period to the kernel at once, each stream by a socket of its
/// own whose datagrams are of the class of the stream: what a server does that leaves the pace to
/// HTB.
pub fn bursts(options: &Bursts) -> Result<()> {
    let mut port = UdpLink::new();
    let udp_outputs = (0..options.streams)
        .map(|stream| {
            let socket = udp_output(BUFFER)?;
            udp_output::set_class(&socket, 1 << 16 | class_of(stream))?;
            Ok(socket)
        })
        .collect::<Result<Vec<OwnedFd>>>()?;
    let start = clock::now();
    let period = Nanos::from_millis(options.period);
    let datagrams = |periods: u64| {
        let bytes = BitRate(options.rate).bytes_in(period.times(periods)).0;
        bytes / PAYLOAD.0
    };
    for turn in 0u64.. {
        clock::sleep_until(start + period.times(turn));
        let count = (datagrams(turn + 1) - datagrams(turn)) as usize;
        for (stream, socket) in (0..).zip(&udp_outputs) {
            let to = options.destination.of(stream);
            send(&mut port, socket, to, count)?;
        }
    }
    Ok(())
}

/// What `pace-flood` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Flood {
    /// The destination.
    #[arg(long)]
    to: SocketAddr,
}

/// Keeps one socket full, so that the kernel's discipline alone decides when datagrams leave.
pub fn flood(options: &Flood) -> Result<()> {
    // What the queue holds is what the socket may: half a millisecond of 10 Gbit/s and more of
    // less.
    let socket = udp_output(1 << 20)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    let socket = std::net::UdpSocket::from(socket);
    socket.connect(options.to)?;
    loop {
        socket.send(&BODY)?;
    }
}

/// What `pace-flows` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Flows {
    /// The first flow's address; the others have the ports behind it.
    #[arg(long)]
    to: SocketAddr,
    /// What each wants, in bits per second of its payload.
    #[arg(long, value_delimiter = ',')]
    targets: Vec<u64>,
    /// What the link carries of them.
    #[arg(long)]
    link: u64,
    /// Seconds between one that joins and the next.
    #[arg(long)]
    joins: u64,
}

/// Flows through the pacer, which join one after the other and always have something to send; ticks
/// as the server's.
pub fn flows(options: &Flows) -> Result<()> {
    const TICK: Nanos = Nanos::from_micros(250);
    ensure!(!options.targets.is_empty(), "there is a flow");
    let mut port = UdpLink::new();
    let socket = udp_output(BUFFER)?;
    let wire = |rate: u64| Framing::Plain.wire_rate(BitRate(rate), Ip::V4);
    let start = clock::now();
    let limits = Limits { classes: options.targets.len(), parents: 0, tick: TICK };
    let mut pacer = Pacer::new(limits, wire(options.link), start);
    let mut joined: Vec<ClassId> = vec![];
    // Due long ago: there is always something to send.
    let packet = Packet { due: MonoTime(0), bytes: Framing::Plain.wire(PAYLOAD, 1, Ip::V4) };
    loop {
        let now = clock::now();
        while joined.len() < options.targets.len()
            && now >= start + SECOND.times(options.joins * joined.len() as u64)
        {
            let target = options.targets[joined.len()];
            let class = pacer.add(LINK, Class::target(wire(target)))?;
            pacer.offer(now, class, packet);
            joined.push(class);
        }
        while let Some(departure) = pacer.poll_send(now) {
            let flow = joined.iter().position(|class| *class == departure.class);
            let to = behind(options.to, flow.map_or(0, |flow| flow as u16));
            send(&mut port, &socket, to, 1)?;
            pacer.offer(now, departure.class, packet);
        }
        let next = pacer.poll_timeout().unwrap_or(now + TICK);
        clock::sleep_until(next.min(now + SECOND));
    }
}

fn udp_output(buffer: usize) -> Result<OwnedFd> {
    let from = Ipv4Addr::UNSPECIFIED.into();
    let options =
        UdpOptions { from, interface: None, hops: None, dscp: 0, heard_here: false, buffer };
    Ok(udp_output::open(&options)?)
}

/// Sends `count` datagrams; what the socket has no room for is sent when it has.
fn send(port: &mut UdpLink, socket: &OwnedFd, to: SocketAddr, count: usize) -> Result<()> {
    let messages = [Message { to, segment: BODY.len() as u16, parts: 1 }; BATCH];
    let parts = [&BODY[..]; BATCH];
    let mut left = count;
    while left > 0 {
        let now = left.min(BATCH);
        let batch = Batch { messages: &messages[..now], parts: &parts[..now] };
        let gone = port.send(clock::now(), SocketHandle(socket.as_raw_fd()), batch);
        left -= gone.messages;
        match gone.stop {
            None => {}
            Some(Stop::Full) => clock::sleep(Nanos::from_millis(1)),
            Some(Stop::Refused(errno)) => {
                return Err(std::io::Error::from_raw_os_error(errno).into());
            }
        }
    }
    Ok(())
}
