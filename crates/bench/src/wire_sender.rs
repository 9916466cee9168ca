//! Senders of a few streams of datagrams onto one wire, for `gap-frames`: by gap frames, by ticks,
//! and by sleeping.
//!
//! Promise: all three send the same datagrams at the same due times to the same addresses; only who
//! keeps the time differs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Result, anyhow};
use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Cycle, PAYLOAD, Phase};
use tactus_core::ports::{Batch, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos};
use tactus_sys::packets::gaps::{GapLink, GapOptions};
use tactus_sys::packets::udp_output::{self, UdpLink, UdpOptions};

use crate::datagrams::behind;
use crate::{clock, priority};

/// Who keeps the time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum TimingMethod {
    /// The link, which is kept full.
    Gaps,
    /// One thread that wakes up every 250 us and sends what is due, as the packet server does.
    Ticks,
    /// A thread for each stream that sleeps until each datagram's time.
    Sleep,
}

/// What `pace-wire` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Who keeps the time.
    #[arg(long)]
    keeper: TimingMethod,
    /// The first stream's address; the others have the ports behind it.
    #[arg(long)]
    to: SocketAddr,
    /// How many.
    #[arg(long)]
    streams: u16,
    /// Bits per second of each.
    #[arg(long)]
    rate: u64,
    /// The device of the wire.
    #[arg(long)]
    device: String,
    /// Its bits per second.
    #[arg(long)]
    wire: u64,
}

const TICK: Nanos = Nanos::from_micros(250);
/// How far the wire is filled.
const AHEAD: Nanos = MILLISECOND.times(2);
const BYTES: [u8; PAYLOAD.0 as usize] = [0x47; PAYLOAD.0 as usize];
/// Most messages of one call.
const BATCH: usize = 64;

/// Sends until it is ended.
pub fn run(options: &Options) -> Result<()> {
    // Without it a thread is later; the report says which it was.
    drop(priority::fifo(20));
    let udp_output = udp_output::open(&UdpOptions {
        from: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        interface: Some(tactus_sys::udp_input::interface(&options.device)?),
        hops: Some(8),
        dscp: 0,
        heard_here: false,
        buffer: 8 << 20,
    })?;
    let begin = clock::now() + MILLISECOND.times(20);
    match options.keeper {
        TimingMethod::Gaps => {
            let rate = BitRate(options.wire);
            // The queueing discipline counts what it is given.
            let gap_options =
                GapOptions { device: options.device.clone(), rate, overhead: 0, ahead: AHEAD };
            let mut port = GapLink::open(&gap_options, options.streams.into(), clock::now())?;
            serve(&mut port, &udp_output, Agenda::new(options, begin))
        }
        TimingMethod::Ticks => serve(&mut UdpLink::new(), &udp_output, Agenda::new(options, begin)),
        TimingMethod::Sleep => sleep(options, &udp_output, begin),
    }
}

/// What is due next, of all streams.
struct Agenda {
    clocks: Vec<ByteClock>,
    due: BinaryHeap<Reverse<(MonoTime, u16, u64)>>,
    to: SocketAddr,
}

impl Agenda {
    fn new(options: &Options, begin: MonoTime) -> Self {
        let clocks: Vec<ByteClock> =
            (0..options.streams).map(|stream| clock_of(options, stream, begin)).collect();
        let first = (0..).zip(&clocks).map(|(at, clock)| Reverse((clock.due(Bytes(0)), at, 0)));
        Self { due: first.collect(), clocks, to: options.to }
    }

    /// The next datagram that is due by then: to whom, and when.
    fn poll(&mut self, until: MonoTime) -> Option<(SocketAddr, MonoTime)> {
        let &Reverse((due, stream, number)) = self.due.peek()?;
        if due > until {
            return None;
        }
        self.due.pop();
        let next = self.clocks[usize::from(stream)].due(Bytes((number + 1) * PAYLOAD.0));
        self.due.push(Reverse((next, stream, number + 1)));
        Some((behind(self.to, stream), due))
    }
}

fn clock_of(options: &Options, stream: u16, begin: MonoTime) -> ByteClock {
    let rate = BitRate(options.rate);
    let begin =
        Cycle { rate, datagrams: 1, payload: PAYLOAD }.begin(Phase::spread(stream.into()), begin);
    ByteClock::new(begin, rate)
}

fn serve(port: &mut impl PacketPort, udp_output: &OwnedFd, mut agenda: Agenda) -> Result<()> {
    let udp_output = SocketHandle(udp_output.as_raw_fd());
    let parts = [&BYTES[..]; BATCH];
    let mut next = clock::now();
    loop {
        let now = clock::now();
        let until = now + port.ahead();
        loop {
            let (mut messages, mut due) = (vec![], vec![]);
            while messages.len() < BATCH
                && let Some((to, at)) = agenda.poll(until)
            {
                messages.push(Message { to, segment: PAYLOAD.0 as u16, parts: 1 });
                due.push(at);
            }
            if messages.is_empty() {
                break;
            }
            let mut done = 0;
            while done < messages.len() {
                let rest =
                    Batch { messages: &messages[done..], parts: &parts[done..messages.len()] };
                let gone = port.send_timed(clock::now(), udp_output, rest, &due[done..]);
                done += gone.messages;
                match gone.stop {
                    Some(Stop::Full) => clock::sleep(TICK),
                    Some(Stop::Refused(errno)) => return Err(anyhow!("error {errno}")),
                    None => {}
                }
            }
        }
        let wanted = port.turn(clock::now(), until);
        next = wanted.unwrap_or_else(|| next.max(now) + TICK);
        clock::sleep_until(next);
    }
}

fn sleep(options: &Options, udp_output: &OwnedFd, begin: MonoTime) -> Result<()> {
    let udp_output = SocketHandle(udp_output.as_raw_fd());
    let send = |stream: u16| -> Result<()> {
        drop(priority::fifo(20));
        let clock = clock_of(options, stream, begin);
        let to = behind(options.to, stream);
        let mut port = UdpLink::new();
        for number in 0u64.. {
            clock::sleep_until(clock.due(Bytes(number * PAYLOAD.0)));
            let messages = [Message { to, segment: PAYLOAD.0 as u16, parts: 1 }];
            let batch = Batch { messages: &messages, parts: &[&BYTES] };
            while port.send(clock::now(), udp_output, batch).stop == Some(Stop::Full) {
                clock::sleep(TICK);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..options.streams).map(|stream| scope.spawn(move || send(stream))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a sender panicked"))?)
    })
}
