//! The simulated path of datagrams: UDP outputs with buffers, their faults, and a check of each
//! message.
//!
//! Every stream has an address of its own, which identifies its messages. The engine owns a
//! stream's address from its start until it is reported as finished; a message to any other address
//! stops the world.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tactus_core::ports::{Batch, BatchProgress, FilePart, Message, PacketPort, SocketHandle, Stop};
use tactus_core::units::{BitRate, MonoTime, Nanos};
use tactus_engine::counters::{PacketCounters, StreamCounters};
use tactus_ring::counter::Counter;

use super::flow::{DatagramPromise, Flow};
use super::{Delivery, DeliveryState};
use crate::content::{self, Fidelity};
use crate::device::{Device, open};
use crate::dice::Dice;
use crate::title::Title;
use crate::trace::Trace;
use crate::verdict::{Invariant, broken, require};

/// A socket that datagrams leave by.
#[derive(Clone, Debug, Default)]
pub(crate) struct UdpOutputSpec {
    pub(crate) faults: Vec<UdpOutputFault>,
}

/// A fault of a UDP output, and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UdpOutputFault {
    pub(crate) from: MonoTime,
    pub(crate) to: MonoTime,
    pub(crate) trouble: UdpOutputTrouble,
}

/// A kind of fault of a UDP output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UdpOutputTrouble {
    /// It takes nothing.
    Still,
    /// Its buffer has this size and drains at this rate.
    Narrow { buffer: u64, rate: BitRate },
    /// This many messages in a thousand cannot be sent: no route, or an interface that is down.
    Refuses { permille: u64 },
}

/// All UDP outputs and the streams that leave by them.
pub(crate) struct UdpOutputs {
    udp_outputs: Vec<UdpOutput>,
    flows: Vec<Option<Flow>>,
    serial: u16,
    fidelity: Fidelity,
    segments_max: u32,
    /// A disk or UDP output has faults: their effects on promised streams are attributed to it.
    others_fail: bool,
    counters: Option<EngineCounters>,
    counts: Counts,
    trace: Trace,
}

/// The engine's own counts: those of each packet server, and of each stream.
type EngineCounters = (Vec<Arc<PacketCounters>>, Arc<[StreamCounters]>);

struct UdpOutput {
    spec: UdpOutputSpec,
    /// Bytes in its buffer, and when that was.
    level: u64,
    at: MonoTime,
    dice: Dice,
}

/// The counts that the engine must have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Counts {
    bytes: u64,
    datagrams: u64,
    messages: u64,
    refused: u64,
}

/// First handle.
const FIRST: i32 = 1 << 20;

impl UdpOutputs {
    pub(crate) fn new(
        specs: Vec<UdpOutputSpec>,
        places: u32,
        (fidelity, segments_max, others_fail): (Fidelity, u32, bool),
        dice: &Dice,
    ) -> Self {
        let udp_output =
            |(number, spec)| UdpOutput { spec, level: 0, at: MonoTime(0), dice: dice.fork(number) };
        Self {
            udp_outputs: (0..).zip(specs).map(udp_output).collect(),
            flows: (0..places).map(|_| None).collect(),
            serial: 0,
            fidelity,
            segments_max,
            others_fail,
            counters: None,
            counts: Counts::default(),
            trace: Trace::default(),
        }
    }

    /// Sets the engine's own counts: those of each packet server, and of each stream.
    pub(crate) fn watch(
        &mut self,
        packets: Vec<Arc<PacketCounters>>,
        streams: Arc<[StreamCounters]>,
    ) {
        self.counters = Some((packets, streams));
    }

    /// Makes an address for the stream at `place`, with one of the UDP outputs.
    pub(crate) fn join(
        &mut self,
        now: MonoTime,
        place: u32,
        (udp_output, is_v6): (usize, bool),
        promise: DatagramPromise,
    ) -> (SocketHandle, SocketAddr) {
        let slot = &mut self.flows[place as usize];
        assert!(slot.is_none(), "a place has one stream");
        self.serial = self.serial.wrapping_add(1);
        *slot = Some(Flow::new(now, self.serial, promise));
        let group = self.serial.to_be_bytes();
        let ip = if is_v6 {
            IpAddr::V6(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, self.serial))
        } else {
            IpAddr::V4(Ipv4Addr::new(239, 1, group[0], group[1]))
        };
        (SocketHandle(FIRST + udp_output as i32), SocketAddr::new(ip, place as u16))
    }

    /// Notes that the stream at `place` is to end: its sends may stop at any time.
    pub(crate) fn release_promise(&mut self, place: u32) {
        if let Some(flow) = &mut self.flows[place as usize] {
            flow.promise.delivery.is_promised = false;
            flow.promise.delivery.grows = false;
        }
    }

    /// Whether the stream at `place` has sent datagrams, or need not.
    pub(crate) fn has_begun(&self, place: u32) -> bool {
        let flow = self.flows[place as usize].as_ref();
        flow.is_none_or(|flow| flow.sent > 0 || !flow.promise.delivery.is_promised)
    }

    /// Takes the address of the stream at `place` back from the engine; `None` if it has none.
    pub(crate) fn leave(&mut self, place: u32) -> Option<DeliveryState> {
        let flow = self.flows[place as usize].take()?;
        Some(DeliveryState { sent: flow.sent(), is_broken: false, ever_blocked: false })
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        for udp_output in &mut self.udp_outputs {
            udp_output.spec.faults.clear();
        }
    }

    /// Checks every stream, including those without recent sends.
    pub(crate) fn check_all(&self, now: MonoTime) {
        for (place, flow) in self.flows.iter().enumerate() {
            let Some(flow) = flow else { continue };
            self.check_underruns(now, place, &flow.promise.delivery);
            flow.check_not_late(now);
        }
    }

    /// Checks that the engine's counts equal the received datagrams.
    pub(crate) fn check_counts(&self, now: MonoTime) {
        let Some((counters, _)) = &self.counters else { return };
        let sum = |counter: fn(&PacketCounters) -> &Counter| -> u64 {
            counters.iter().map(|server| counter(server).value()).sum()
        };
        let said = Counts {
            bytes: sum(|server| &server.bytes),
            datagrams: sum(|server| &server.datagrams),
            messages: sum(|server| &server.messages),
            refused: sum(|server| &server.refused),
        };
        require(said == self.counts, Invariant::CountsAreTrue, || {
            format!("{said:?} at {now:?}, but {:?} came", self.counts)
        });
    }

    fn check_underruns(&self, now: MonoTime, place: usize, delivery: &Delivery) {
        let Some((_, streams)) = &self.counters else { return };
        let underruns = streams[place].underruns.value();
        let must = delivery.is_promised || delivery.grows;
        let invariant =
            if self.others_fail { Invariant::FaultsStayAtHome } else { Invariant::NeverEmpty };
        require(!must || underruns == 0, invariant, || {
            format!("place {place} had {underruns} underruns by {now:?}: {delivery:?}")
        });
    }

    fn send(&mut self, now: MonoTime, handle: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        let number = (handle.0 - FIRST) as usize;
        require(number < self.udp_outputs.len(), Invariant::TrueOutcome, || {
            format!("no UDP output is {handle:?}, at {now:?}")
        });
        require(!batch.messages.is_empty(), Invariant::BoundedTurn, || {
            format!("an empty call at {now:?}")
        });
        let mut parts = batch.parts;
        for (gone, message) in batch.messages.iter().enumerate() {
            let (own, others) = parts.split_at(usize::from(message.parts));
            parts = others;
            if let Err(stop) = self.take(now, number, message, own) {
                return BatchProgress { messages: gone, stop: Some(stop) };
            }
        }
        BatchProgress { messages: batch.messages.len(), stop: None }
    }

    fn take(
        &mut self,
        now: MonoTime,
        number: usize,
        message: &Message,
        parts: &[&[u8]],
    ) -> Result<(), Stop> {
        let place = usize::from(message.to.port());
        let serial = match message.to.ip() {
            IpAddr::V4(ip) => u16::from_be_bytes([ip.octets()[2], ip.octets()[3]]),
            IpAddr::V6(ip) => ip.segments()[7],
        };
        let flow = self.flows.get_mut(place).and_then(Option::as_mut);
        let Some(flow) = flow.filter(|flow| flow.serial == serial) else {
            broken(
                Invariant::TrueOutcome,
                format!("a message to nobody, {}, at {now:?}", message.to),
            );
        };
        if let Some((_, streams)) = &self.counters {
            flow.begin(MonoTime(streams[place].epoch.value()));
        }
        let passed = flow.check(now, message.segment, parts, self.fidelity);
        require(passed.datagrams <= u64::from(self.segments_max), Invariant::BoundedTurn, || {
            format!("{} datagrams in one message at {now:?}", passed.datagrams)
        });
        let taken = self.udp_outputs[number].take(now, passed.payload);
        let stop = match taken {
            Ok(()) => 0,
            Err(Stop::Full) => 1,
            Err(Stop::Refused(_)) => 2,
        };
        self.trace.note_all([now.0, place as u64, passed.payload, stop]);
        if taken == Err(Stop::Full) {
            return taken;
        }
        flow.pass(now, passed);
        if taken.is_ok() {
            self.counts.bytes += passed.payload;
            self.counts.datagrams += passed.datagrams;
            self.counts.messages += 1;
        } else {
            self.counts.refused += passed.datagrams;
        }
        let delivery = flow.promise.delivery;
        self.check_underruns(now, place, &delivery);
        taken
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.hash()
    }
}

impl UdpOutput {
    /// Whether it takes a message.
    fn take(&mut self, now: MonoTime, bytes: u64) -> Result<(), Stop> {
        let faults = self.spec.faults.iter();
        for fault in faults.filter(|fault| fault.from <= now && now < fault.to) {
            match fault.trouble {
                UdpOutputTrouble::Still => return Err(Stop::Full),
                UdpOutputTrouble::Refuses { permille } => {
                    if self.dice.chance(permille) {
                        return Err(Stop::Refused(ENETUNREACH));
                    }
                }
                UdpOutputTrouble::Narrow { buffer, rate } => {
                    let emptied = rate.bytes_in(now.since(self.at)).0;
                    if emptied > 0 {
                        (self.level, self.at) = (self.level.saturating_sub(emptied), now);
                    }
                    // An empty buffer takes any message.
                    if self.level > 0 && self.level + bytes > buffer {
                        return Err(Stop::Full);
                    }
                    self.level += bytes;
                }
            }
        }
        Ok(())
    }
}

/// The engine's end of the path of datagrams.
pub(crate) struct PacketEnd {
    pub(crate) udp_outputs: Arc<Mutex<UdpOutputs>>,
    pub(crate) devices: Vec<Arc<Mutex<Device>>>,
    pub(crate) titles: Arc<[Title]>,
}

impl PacketPort for PacketEnd {
    fn segments_max(&self) -> u32 {
        open(&self.udp_outputs).segments_max
    }

    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        open(&self.udp_outputs).send(now, udp_output, batch)
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        let title = part.file.0 as usize;
        open(&self.devices[self.titles[title].volume]).check_in_memory(now, part);
        require(into.len() == part.len as usize, Invariant::RightBytes, || {
            format!("{part:?} is copied to {} bytes at {now:?}", into.len())
        });
        content::expected(title as u64, part.offset.0, into);
        Ok(())
    }
}

/// The error number of a network that cannot be reached.
const ENETUNREACH: i32 = 101;

/// Time resolutions of links.
pub(crate) const TICKS: [Nanos; 5] = [
    Nanos::from_micros(100),
    Nanos::from_micros(250),
    Nanos::from_micros(500),
    Nanos::from_millis(1),
    Nanos::from_millis(2),
];
