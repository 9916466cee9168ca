//! Receivers of datagrams, with the kernel's stamps; and the plainest sender.
//!
//! Promise: sockets are emptied long before they are full, by one thread that never waits for one
//! of them; what the kernel dropped all the same is told. Restamping are of the clock of the run.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::time::{ClockId, clock_gettime};
use tactus_core::byte_clock::ByteClock;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_sys::udp_input::{InputOptions, UdpInput};

use crate::arrivals::Trace;
use crate::arrivals::{Arrival, Record};
use crate::clock;
use crate::cpu::RECEIVER;
use crate::netns::Side;
use crate::peers::Server;
use crate::priority;

/// The port of the first stream.
pub const PORT: u16 = 20_000;
/// From one stream's port to the next one's: the port between them is that of RTCP, whose reports
/// are no payload.
const APART: u16 = 2;

/// Where a stream goes whose first one goes to `first`.
pub fn behind(first: SocketAddr, stream: u16) -> SocketAddr {
    SocketAddr::new(first.ip(), first.port() + APART * stream)
}
/// How often each socket is emptied: a stream of 8.8 Mbit/s has 17 datagrams waiting by then.
const SWEEP: Nanos = Nanos::from_millis(20);
/// What a socket holds: a second of 8.8 Mbit/s, as the kernel counts it.
const BUFFER: usize = 8 << 20;
/// How long all streams may take to begin.
const BEGIN_MAX: Nanos = SECOND.times(60);
/// Arrivals that there is memory for: 2,000 streams of 4 Mbit/s for half a minute.
const ROOM: usize = 24_000_000;

/// How they are read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// How often each is emptied.
    pub sweep: Nanos,
    /// Arrivals that there is memory for.
    pub room: usize,
    /// What each datagram has before what counts.
    pub header: u32,
}

impl Default for Reading {
    fn default() -> Self {
        Self { sweep: SWEEP, room: ROOM, header: 0 }
    }
}

/// What came, and how many datagrams the sockets dropped.
type Capture = (Vec<Trace>, u64);

/// A socket for each stream, and the thread that empties them.
pub struct Inboxes {
    stop: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
    streams: usize,
    reader: Option<JoinHandle<Result<Capture>>>,
}

impl Drop for Inboxes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // A run that failed says why itself; what counts is that the ports are free again.
            drop(reader.join());
        }
    }
}

impl Inboxes {
    /// Opens them on `side` of a wire, and reads them on `core`.
    pub fn open(side: Side, streams: usize, core: usize, reading: Reading) -> Result<Self> {
        let (stop, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (seen, count) = (Arc::clone(&stop), Arc::clone(&begun));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let reader = std::thread::Builder::new().name(RECEIVER.into()).spawn(move || {
            side.enter()?;
            priority::pin(core)?;
            // Without it the stamps are the same; only the buffers have to hold more.
            drop(priority::fifo(20));
            let inboxes = (0..streams).map(inbox).collect::<Result<Vec<_>>>()?;
            ready.send(()).context("nobody waits for the receiver")?;
            read(inboxes, reading, &seen, &count)
        })?;
        if is_ready.recv().is_err() {
            return Err(reader.join().map_or_else(
                |_| anyhow!("the receiver panicked"),
                |r| r.err().unwrap_or_else(|| anyhow!("the receiver has ended")),
            ));
        }
        Ok(Self { stop, begun, streams, reader: Some(reader) })
    }

    /// Waits until something has come of each stream.
    pub fn wait_until_all_have_some(&self, server: &mut Server) -> Result<()> {
        let end = clock::now() + BEGIN_MAX;
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            if begun == self.streams {
                return Ok(());
            }
            server.check()?;
            ensure!(
                clock::now() < end,
                "{begun} of {} streams have begun within {BEGIN_MAX}: {}",
                self.streams,
                server.output()
            );
            crate::interrupt::sleep_until(clock::now() + MILLISECOND.times(50))?;
        }
    }

    /// What came, and how many datagrams the sockets dropped.
    pub fn stop(mut self) -> Result<Capture> {
        self.stop.store(true, Ordering::Relaxed);
        let reader = self.reader.take().context("a receiver is stopped once")?;
        reader.join().map_err(|_| anyhow!("the receiver panicked"))?
    }
}

fn inbox(stream: usize) -> Result<UdpInput> {
    let to = behind((Ipv4Addr::UNSPECIFIED, PORT).into(), u16::try_from(stream)?);
    let wanted = InputOptions { to, source: None, interface: None, buffer: BUFFER };
    // What comes as one the kernel would cut at the sender's cost, whose core it does it on.
    Ok(UdpInput::open(&wanted)?.stamped()?.gathered()?)
}

fn read(
    mut inboxes: Vec<UdpInput>,
    reading: Reading,
    stop: &AtomicBool,
    begun: &AtomicUsize,
) -> Result<Capture> {
    // The kernel stamps by the wall clock; over a run both go alike but for what NTP bends, 500 ppm
    // at most, which the fit of each stream takes out but for its drift.
    let wall = || {
        let now = clock_gettime(ClockId::Realtime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let apart = wall() - clock::now().0;
    let mut record = Record::with_room(reading.room);
    let mut has_begun = vec![false; inboxes.len()];
    let mut last = vec![MonoTime(0); inboxes.len()];
    let mut next = clock::now();
    while !stop.load(Ordering::Relaxed) {
        for (stream, inbox) in (0..).zip(&mut inboxes) {
            let mut some = false;
            let mut each = |datagram: tactus_sys::udp_input::Datagram<'_>| {
                some = true;
                if let Some(stamp) = datagram.timestamp {
                    // The wall clock may be set back by a little; the order is that of arrival.
                    let last = &mut last[stream as usize];
                    let at = MonoTime(stamp.0.saturating_sub(apart)).max(*last);
                    *last = at;
                    let bytes = (datagram.bytes.len() as u32).saturating_sub(reading.header);
                    record.push(Arrival { at, stream, bytes });
                }
            };
            while inbox.receive(&mut each).is_ok_and(|count| count == tactus_sys::udp_input::BATCH)
            {
            }
            if some && !std::mem::replace(&mut has_begun[stream as usize], true) {
                begun.fetch_add(1, Ordering::Relaxed);
            }
        }
        next = clock::now().max(next) + reading.sweep;
        clock::sleep_until(next);
    }
    let dropped =
        inboxes.iter().map(|inbox| inbox.dropped().map(u64::from)).sum::<Result<u64, _>>()?;
    ensure!(!record.outgrew_its_room(), "more came than there is memory for");
    Ok((record.traces(inboxes.len()), dropped))
}

/// Where streams go.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Destination {
    /// The first listener; the others have the ports behind it.
    #[arg(long)]
    pub to: SocketAddr,
    /// One stream of so many has a listener, or none at 0; each other one has a group of its own
    /// that nobody has joined.
    #[arg(long)]
    pub every: u16,
}

/// The first of the groups.
const GROUPS: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 1);

impl Destination {
    /// The address of a stream.
    pub fn of(&self, stream: u16) -> SocketAddr {
        match self.every {
            1.. if stream.is_multiple_of(self.every) => behind(self.to, stream / self.every),
            _ => (Ipv4Addr::from_bits(GROUPS.to_bits() + u32::from(stream)), PORT).into(),
        }
    }
}

/// What `pace-threads` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Threads {
    #[command(flatten)]
    destination: Destination,
    /// How many.
    #[arg(long)]
    streams: u16,
    /// Bits per second of each.
    #[arg(long)]
    rate: u64,
}

/// Sends each stream from a thread of its own, which sleeps until each datagram's time: what most
/// programs do.
pub fn pace_threads(options: &Threads) -> Result<()> {
    const PAYLOAD: [u8; 1316] = [0x47; 1316];
    let rate = BitRate(options.rate);
    let gap = rate.time_for(Bytes(PAYLOAD.len() as u64));
    let threads: Vec<JoinHandle<Result<()>>> = (0..options.streams)
        .map(|stream| {
            let to = options.destination.of(stream);
            let clock = ByteClock::new(clock::now() + Nanos(gap.0 * u64::from(stream) / 100), rate);
            std::thread::spawn(move || {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(to)?;
                for number in 0u64.. {
                    clock::sleep_until(clock.due(Bytes(number * PAYLOAD.len() as u64)));
                    socket.send(&PAYLOAD)?;
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a sender panicked"))??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_streams_have_listeners_and_the_others_groups() {
        let to: SocketAddr = "10.0.0.2:20000".parse().unwrap();
        let of = |every, streams: &[u16]| -> Vec<String> {
            let destination = Destination { to, every };
            streams.iter().map(|&stream| destination.of(stream).to_string()).collect()
        };
        assert_eq!(of(1, &[0, 7]), ["10.0.0.2:20000", "10.0.0.2:20014"]);
        assert_eq!(of(0, &[0, 255]), ["239.77.0.1:20000", "239.77.1.0:20000"]);
        assert_eq!(of(15, &[15, 16]), ["10.0.0.2:20002", "239.77.0.17:20000"]);
    }
}
