//! The simulated network: sockets with buffers, receivers of several kinds, and a check of each
//! byte.
//!
//! A receiver gets the bytes of its socket in order, so bytes and times are checked when the socket
//! takes them; bytes offered by reference must be in memory. A socket belongs to one delivery, from
//! its start until it is reported as finished. A use before or after that stops the world.

mod byte_clock;
mod receiver;

mod flow;

mod udp_outputs;

use std::fmt;
use std::sync::{Arc, Mutex};

use tactus_core::ports::{FilePart, LinkPort, SendResult, SocketHandle};
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_engine::counters::StreamCounters;

use crate::content::{self, Fidelity};
use crate::device::{Device, open};
use crate::plan::PlanPromise;
use crate::title::Title;
use crate::trace::Trace;
use crate::verdict::{Invariant, require};

use byte_clock::ByteClockCheck;
pub(crate) use byte_clock::PacedPromise;
pub(crate) use flow::DatagramPromise;
pub(crate) use receiver::{Receiver, Temper};
pub(crate) use udp_outputs::{
    PacketEnd, TICKS, UdpOutputFault, UdpOutputSpec, UdpOutputTrouble, UdpOutputs,
};

/// All sockets, and the state of the running turn.
pub(crate) struct Net {
    sockets: Vec<Option<Socket>>,
    serial: i32,
    fidelity: Fidelity,
    /// The scheduled time of the link core's turn, and its number of sends since.
    pub(crate) turn: LinkTurn,
    /// Another disk has faults: their effects on streams of a healthy disk are attributed to it.
    others_fail: bool,
    /// Streams may be late within their promise.
    has_grace: bool,
    /// Sum of all pauses of the machine.
    pub(crate) paused: Nanos,
    counters: Option<Arc<[StreamCounters]>>,
    first_bytes: FirstBytes,
    trace: Trace,
}

/// The turn of the link's core that is running.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LinkTurn {
    /// Its scheduled time: no slot before that is visited for the first time.
    pub(crate) wanted: MonoTime,
    pub(crate) sends: u64,
    pub(crate) sends_max: u64,
}

/// One socket and the delivery that it is for.
struct Socket {
    serial: i32,
    delivery: Delivery,
    receiver: Receiver,
    connected: MonoTime,
    sent: u64,
    check: Option<ByteClockCheck>,
    /// When the peer last left offered bytes untaken, if it still does.
    blocked_since: Option<MonoTime>,
    ever_blocked: bool,
}

/// The expected bytes of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) title: u64,
    pub(crate) first: Bytes,
    pub(crate) end: Bytes,
    pub(crate) paced: Option<PacedPromise>,
    /// The volume and the machine keep their promises, so the engine must keep its own.
    pub(crate) is_promised: bool,
    /// The growth of its title is not predictable, but available bytes must come without underruns.
    pub(crate) grows: bool,
}

/// The received part of a delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveryState {
    pub(crate) sent: Bytes,
    pub(crate) is_broken: bool,
    pub(crate) ever_blocked: bool,
}

/// Handles count in steps of this, so that place and serial can be separated.
const PLACES: i32 = 1 << 17;

/// The waits of paced deliveries for their first bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstBytes {
    pub(crate) sum: Nanos,
    pub(crate) count: u64,
    pub(crate) longest: Nanos,
    /// The number of waits in each step of [`WAIT_STEP`]; longer ones are in the last.
    steps: [u32; WAIT_STEPS],
}

const WAIT_STEP: Nanos = Nanos::from_millis(100);
const WAIT_STEPS: usize = 600;

impl Default for FirstBytes {
    fn default() -> Self {
        let steps = [0; WAIT_STEPS];
        Self { sum: Nanos(0), count: 0, longest: Nanos(0), steps }
    }
}

impl FirstBytes {
    fn note(&mut self, wait: Nanos) {
        self.sum += wait;
        self.count += 1;
        self.longest = self.longest.max(wait);
        let step = (wait.0 / WAIT_STEP.0) as usize;
        self.steps[step.min(WAIT_STEPS - 1)] += 1;
    }

    /// The median, rounded up to a whole step.
    pub(crate) fn median(&self) -> Nanos {
        let mut before = 0;
        let is_half = |&count: &u32| {
            before += u64::from(count);
            before * 2 >= self.count
        };
        let step = self.steps.iter().position(is_half);
        WAIT_STEP.times(step.map_or(0, |step| step as u64 + 1))
    }
}

impl Net {
    pub(crate) fn new(
        places: u32,
        fidelity: Fidelity,
        (others_fail, has_grace): (bool, bool),
    ) -> Self {
        assert!(places < PLACES as u32);
        Self {
            sockets: (0..places).map(|_| None).collect(),
            serial: 0,
            fidelity,
            turn: LinkTurn::default(),
            others_fail,
            has_grace,
            paused: Nanos(0),
            counters: None,
            first_bytes: FirstBytes::default(),
            trace: Trace::default(),
        }
    }

    /// The waits for first bytes so far.
    pub(crate) fn first_bytes(&self) -> FirstBytes {
        self.first_bytes
    }

    /// Sets the engine's own count of each slot's underruns.
    pub(crate) fn watch(&mut self, counters: Arc<[StreamCounters]>) {
        self.counters = Some(counters);
    }

    /// Makes a socket for the delivery at `place`.
    pub(crate) fn connect(
        &mut self,
        now: MonoTime,
        place: u32,
        (delivery, plan): (Delivery, Option<PlanPromise>),
        receiver: Receiver,
    ) -> SocketHandle {
        let slot = &mut self.sockets[place as usize];
        assert!(slot.is_none(), "a place has one socket");
        self.serial = (self.serial + 1) % (i32::MAX / PLACES);
        let len = delivery.end - delivery.first;
        let check = delivery.paced.map(|paced| ByteClockCheck::new(paced, plan, len));
        *slot = Some(Socket {
            serial: self.serial,
            delivery,
            receiver: receiver.connected(now),
            connected: now,
            sent: 0,
            check,
            blocked_since: None,
            ever_blocked: false,
        });
        SocketHandle(self.serial * PLACES + place as i32)
    }

    /// Notes that the delivery at `place` is to end: its sends may stop at any time.
    pub(crate) fn release_promise(&mut self, place: u32) {
        if let Some(socket) = &mut self.sockets[place as usize] {
            socket.delivery.is_promised = false;
            socket.delivery.grows = false;
        }
    }

    /// Whether the delivery at `place` has sent bytes, or need not.
    pub(crate) fn has_begun(&self, place: u32) -> bool {
        let promised = |socket: &&Socket| socket.check.is_some() && socket.delivery.is_promised;
        self.sockets[place as usize].as_ref().filter(promised).is_none_or(|socket| socket.sent > 0)
    }

    /// Takes the socket at `place` back from the engine.
    pub(crate) fn disconnect(&mut self, now: MonoTime, place: u32) -> DeliveryState {
        let slot = self.sockets[place as usize].take();
        let mut socket = slot.expect("a delivery finishes once");
        DeliveryState {
            sent: Bytes(socket.sent),
            is_broken: socket.receiver.is_broken(now),
            ever_blocked: socket.ever_blocked,
        }
    }

    /// Checks every stream, including those without recent sends.
    pub(crate) fn check_all(&self, now: MonoTime, behind_max: Nanos) {
        for (place, socket) in self.sockets.iter().enumerate() {
            let Some(socket) = socket else { continue };
            let Some(check) = &socket.check else { continue };
            if socket.delivery.grows && !socket.ever_blocked {
                self.check_underruns(now, place);
            }
            if socket.delivery.is_promised && !socket.ever_blocked {
                self.check_underruns(now, place);
                check.check_not_late(now, socket.sent, self.paused, &socket.delivery);
            }
            if let Some(since) = socket.blocked_since {
                let bound = behind_max + self.paused + check.paced().tick.times(3);
                require(now.since(since) <= bound, Invariant::SlowPeersEnd, || {
                    format!("the peer at place {place} takes nothing since {since:?}, now {now:?}")
                });
            }
        }
    }

    fn check_underruns(&self, now: MonoTime, place: usize) {
        let Some(counters) = &self.counters else { return };
        let underruns = counters[place].underruns.value();
        let invariant =
            if self.others_fail { Invariant::FaultsStayAtHome } else { Invariant::NeverEmpty };
        require(underruns == 0 || self.has_grace, invariant, || {
            let delivery = self.sockets[place].as_ref().map(|socket| socket.delivery);
            format!("place {place} had {underruns} underruns by {now:?}: {delivery:?}")
        });
    }

    fn send(&mut self, now: MonoTime, handle: SocketHandle, offer: Offer<'_>) -> SendResult {
        let (place, serial) = ((handle.0 % PLACES) as usize, handle.0 / PLACES);
        self.turn.sends += 1;
        let LinkTurn { sends, sends_max, wanted } = self.turn;
        require(sends <= sends_max, Invariant::BoundedTurn, || {
            format!("{sends} sends in one turn at {now:?}")
        });
        let owner = self.sockets.get_mut(place).and_then(Option::as_mut);
        let Some(socket) = owner.filter(|socket| socket.serial == serial) else {
            crate::verdict::broken(
                Invariant::TrueOutcome,
                format!("a socket was used that is not the engine's: {handle:?} at {now:?}"),
            );
        };
        let offered = offer.len();
        require(offered > 0, Invariant::BoundedTurn, || format!("an empty send at {now:?}"));
        socket.check_offer(now, offer);
        if socket.receiver.is_broken(now) {
            // The engine knows it now, and sends nothing any more: a stream whose peer has gone
            // cannot be late.
            self.release_promise(place as u32);
            return SendResult::Broken(EPIPE);
        }
        let taken = socket.receiver.take(now, offered);
        if taken < offered {
            socket.ever_blocked = true;
            if taken > 0 {
                socket.blocked_since = None;
            }
            socket.blocked_since.get_or_insert(now);
        } else {
            socket.blocked_since = None;
        }
        self.trace.note_all([now.0, handle.0 as u64, taken]);
        if taken == 0 {
            return SendResult::Blocked;
        }
        if let Offer::ByCopy(parts) = offer {
            socket.check_bytes(now, parts, taken, self.fidelity);
        }
        // A peer that leaves bytes untaken keeps the window full, and later bytes are late.
        let is_promised = socket.delivery.is_promised || socket.delivery.grows;
        let promised = is_promised && !socket.ever_blocked;
        socket.check_times(now, wanted, self.paused, taken);
        if socket.sent == 0 && socket.check.is_some() {
            self.first_bytes.note(now.since(socket.connected));
        }
        socket.sent += taken;
        if promised {
            self.check_underruns(now, place);
        }
        SendResult::Some(taken as u32)
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.hash()
    }
}

impl Socket {
    /// Checks an offer: it lies in the delivery; by reference it must name exactly the next bytes.
    fn check_offer(&self, now: MonoTime, offer: Offer<'_>) {
        let Delivery { title, first, end, .. } = self.delivery;
        let at = first.0 + self.sent;
        let is_next = match offer {
            Offer::ByCopy(_) => true,
            Offer::ByReference(part) => part.file.0 as u64 == title && part.offset.0 == at,
        };
        require(is_next && at + offer.len() <= end.0, Invariant::RightBytes, || {
            format!("{at} is next at {now:?}, but offered is {offer:?}: {:?}", self.delivery)
        });
    }

    fn check_bytes(&self, now: MonoTime, parts: &[&[u8]], taken: u64, fidelity: Fidelity) {
        let Delivery { title, first, .. } = self.delivery;
        let mut at = first.0 + self.sent;
        let mut left = taken;
        for part in parts {
            let part = &part[..left.min(part.len() as u64) as usize];
            if let Err(wrong) = content::check(title, at, part, fidelity) {
                crate::verdict::broken(
                    Invariant::RightBytes,
                    format!("byte {wrong} of {:?} is another's at {now:?}", self.delivery),
                );
            }
            at += part.len() as u64;
            left -= part.len() as u64;
        }
    }

    fn check_times(&mut self, now: MonoTime, wanted: MonoTime, paused: Nanos, taken: u64) {
        let Some(check) = &mut self.check else { return };
        check.check_send(now, wanted, paused, self.sent, taken, &self.delivery, self.ever_blocked);
    }
}

/// An offer to a socket.
#[derive(Clone, Copy)]
enum Offer<'a> {
    ByCopy(&'a [&'a [u8]]),
    ByReference(FilePart),
}

impl Offer<'_> {
    fn len(self) -> u64 {
        match self {
            Self::ByCopy(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Self::ByReference(part) => u64::from(part.len),
        }
    }
}

impl fmt::Debug for Offer<'_> {
    /// Where bytes stand says little, and they are many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByCopy(parts) => write!(f, "{} bytes in {} parts", self.len(), parts.len()),
            Self::ByReference(part) => part.fmt(f),
        }
    }
}

/// The engine's end of the network.
pub(crate) struct LinkEnd {
    pub(crate) net: Arc<Mutex<Net>>,
    pub(crate) devices: Vec<Arc<Mutex<Device>>>,
    pub(crate) titles: Arc<[Title]>,
}

impl LinkPort for LinkEnd {
    fn send(&mut self, now: MonoTime, socket: SocketHandle, parts: &[&[u8]]) -> SendResult {
        open(&self.net).send(now, socket, Offer::ByCopy(parts))
    }

    fn send_file(&mut self, now: MonoTime, socket: SocketHandle, part: FilePart) -> SendResult {
        let volume = self.titles[part.file.0 as usize].volume;
        open(&self.devices[volume]).check_in_memory(now, part);
        open(&self.net).send(now, socket, Offer::ByReference(part))
    }

    fn read(&mut self, _now: MonoTime, _part: FilePart, _into: &mut [u8]) -> Result<(), i32> {
        unreachable!("only frames are copied, and no client of these worlds takes any")
    }
}

/// The error number of a connection that is gone.
const EPIPE: i32 = 32;
