//! Cuts the bytes of a stream into datagrams: their payloads, headers and due times.
//!
//! Promise: every byte is in one datagram, in order. No datagram is due before its first byte is
//! due by the byte clock. RTP sequence numbers are consecutive, and timestamps are the due times
//! (RFC 2250, RFC 3550). It knows no addresses and copies no bytes; `composing` does. Design note:
//! `docs/design/packets.md`.

mod composing;
mod counting;
mod gathering;
mod places;
mod plan;
mod sound;

use alloc::sync::Arc;
use core::ops::Range;

use crate::byte_clock::ByteClock;
use crate::mutant;
use crate::polyline::Polyline;
use crate::rtp;
use crate::ts::{self, Pcr, Restamper};
use crate::units::{BitRate, Bytes, MediaTime, MonoTime, Nanos};

pub use composing::Composition;
pub use counting::{Counting, FinalCounters};
pub use gathering::Gathering;
pub use places::{Cycle, Phase, Place, Places};
pub use plan::{Plan, Restamping, TitleSchedule};
pub use sound::{PAYLOAD_TYPE as SOUND_PAYLOAD_TYPE, Sound};

/// The payload of a full datagram: seven transport packets, as many as fit an Ethernet frame.
pub const PAYLOAD: Bytes = Bytes(7 * ts::PACKET as u64);

/// Upper bound of datagrams in a message. The kernel takes 64 (`UDP_MAX_SEGMENTS`), and 65,507
/// bytes: 49 with RTP.
pub const SEGMENTS_MAX: u32 = 44;

/// What is put around the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Nothing: the bytes as they are.
    Plain,
    /// The header of RTP.
    Rtp(Session),
    /// Chunks of HTTP/1.1 (RFC 9112, section 7.1), in a connection.
    Chunked,
    /// Packets of uncompressed sound, as datagrams.
    Sound(Sound),
}

/// The initial values of an RTP session (RFC 3550, section 5.1: random).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// SSRC.
    pub source: u32,
    /// The sequence number of the first packet.
    pub sequence: u16,
    /// The timestamp of the first packet.
    pub timestamp: u32,
}

impl Framing {
    /// Bytes of the header.
    pub const fn header(self) -> Bytes {
        match self {
            // The head of an HTTP chunk is around many datagrams.
            Self::Plain | Self::Chunked => Bytes(0),
            Self::Rtp(_) | Self::Sound(_) => Bytes(rtp::HEADER as u64),
        }
    }

    /// Bytes of the payload of a full datagram.
    pub const fn payload(self) -> Bytes {
        match self {
            Self::Plain | Self::Rtp(_) | Self::Chunked => PAYLOAD,
            Self::Sound(sound) => sound.format.payload(),
        }
    }

    /// The rate of the payloads of a title of `rate`, without a plan.
    pub const fn rate_out(self, rate: BitRate) -> BitRate {
        match self {
            Self::Plain | Self::Rtp(_) | Self::Chunked => rate,
            Self::Sound(sound) => sound.out_rate(rate),
        }
    }

    /// The same for a title whose samples have another width, in the session of `before`.
    fn following(self, before: Self) -> Self {
        match (self, before) {
            (Self::Sound(own), Self::Sound(before)) => {
                Self::Sound(Sound { session: before.session, ..own })
            }
            _ => before,
        }
    }

    /// The size on an Ethernet of `payload` bytes in `datagrams` datagrams, with preamble and gap.
    pub const fn wire(self, payload: Bytes, datagrams: u32, ip: Ip) -> Bytes {
        Bytes(payload.0 + datagrams as u64 * (ip.overhead().0 + self.header().0))
    }

    /// The rate on the wire of a stream with a payload of `rate`. Rounds up.
    pub fn wire_rate(self, rate: BitRate, ip: Ip) -> BitRate {
        let payload = self.payload();
        let wire = u128::from(self.wire(payload, 1, ip).0);
        BitRate((u128::from(rate.0) * wire).div_ceil(u128::from(payload.0)) as u64)
    }
}

/// The IP version of the datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Ip {
    /// Ethernet preamble, header, checksum and gap (38 bytes), IP header, UDP header.
    const fn overhead(self) -> Bytes {
        match self {
            Self::V4 => Bytes(38 + 20 + 8),
            Self::V6 => Bytes(38 + 40 + 8),
        }
    }
}

/// Datagrams of one stream that leave together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The offset of the first byte in everything that the stream sends.
    pub at: Bytes,
    /// All payload bytes.
    pub bytes: Bytes,
    /// The offset of the first title byte in the sent range, counted over all turns.
    pub from: Bytes,
    /// The number of title bytes, with arrival times and parity, which do not leave. The other
    /// bytes of the message are the front or stuffing.
    pub taken: Bytes,
    /// The number of datagrams.
    pub datagrams: u32,
    /// The due time of the last datagram that regularly leaves with the first. The message leaves
    /// then; further datagrams are late.
    pub due: MonoTime,
}

/// The state that a stream leaves to its successor with the same receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The due time of its next datagram.
    pub due: MonoTime,
    /// The header of that datagram, except that the timestamp is still the first one's.
    pub framing: Framing,
    /// The due time of the first datagram of the session.
    pub epoch: MonoTime,
    restamper: Restamper,
    /// The PCR value then.
    shows: Option<Pcr>,
}

/// The parameters of a cutter.
#[derive(Clone, Debug)]
pub struct Cutting {
    /// The framing.
    pub framing: Framing,
    /// Its start and the reserved rate.
    pub clock: ByteClock,
    /// How long datagrams wait for each other.
    pub gathering: Gathering,
    /// Upper bound of datagrams in a message.
    pub segments_max: u32,
    /// The length after which the title repeats.
    pub turn: Option<Bytes>,
    /// The plan of the stream.
    pub plan: Option<Arc<Plan>>,
}

/// Cuts one stream.
#[derive(Clone, Debug)]
pub struct Cutter {
    framing: Framing,
    clock: ByteClock,
    /// The due time of byte 0 at the start of the session, from which RTP time counts.
    epoch: MonoTime,
    /// Sent bytes, and the title bytes among them.
    at: Bytes,
    taken: Bytes,
    /// The largest number of datagrams in a message, and in a late one.
    datagrams_max: u32,
    segments_max: u32,
    /// The first message is shorter by this many datagrams, so that later ones leave in the turn of
    /// the place.
    shorter: u32,
    gathering: Gathering,
    turn: Option<Bytes>,
    plan: Option<Arc<Plan>>,
    /// The framing of the title's packets.
    packets: ts::Framing,
    /// The segment of the next byte in the line.
    hint: usize,
    /// The turn of the restamper, and the offset of its clocks from the title's.
    part: u64,
    ahead: MediaTime,
    /// Clocks are not continuous with the stream before.
    breaks: bool,
    /// The first datagram is marked, too: its clock is discontinuous.
    is_marked: bool,
    restamper: Restamper,
    /// The PCR at the first title byte; `None` if it is unknown.
    begins: Option<Pcr>,
}

impl Cutter {
    /// A stream from its beginning.
    pub fn new(cutting: Cutting) -> Self {
        let Cutting { framing, clock, gathering, segments_max, turn, plan } = cutting;
        let stuffed = plan.as_ref().and_then(|plan| plan.stuff);
        let packets = plan.as_ref().map_or(ts::Framing::PLAIN, |plan| plan.packets);
        let rate_out = framing.rate_out(bare_rate(clock.rate(), packets));
        let together = gathering.most(stuffed.unwrap_or(rate_out), framing.payload());
        let segments_max = segments_max.clamp(1, SEGMENTS_MAX);
        let datagrams_max = together.clamp(1, segments_max.into()) as u32;
        let restamping = plan.as_ref().and_then(|plan| plan.restamping.as_ref());
        let counting = plan.as_ref().and_then(|plan| plan.counting.as_ref());
        let ahead = restamping.and_then(|restamping| restamping.ahead);
        let restamper =
            counting.map_or_else(Restamper::default, |counting| counting.restamper(ahead));
        let breaks = counting.is_some_and(|counting| counting.jumps);
        let begins = restamping.and_then(|restamping| restamping.clock).map(|(_, pcr)| pcr);
        let is_marked = breaks && restamping.is_some();
        Self {
            framing,
            clock,
            epoch: clock.due(Bytes(0)),
            at: Bytes(0),
            taken: Bytes(0),
            datagrams_max,
            segments_max,
            shorter: 0,
            gathering,
            turn,
            plan,
            packets,
            hint: 0,
            part: 0,
            ahead: MediaTime(0),
            breaks,
            is_marked,
            restamper,
            begins,
        }
    }

    /// The same, starting at the first time at this phase of its cycle.
    #[must_use]
    pub fn at_phase(mut self, phase: Phase) -> Self {
        let opened = self.clock.start();
        self.delay(self.cycle().begin(phase, opened).since(opened));
        self
    }

    /// The same for a stream with a given start, such as a successor: its first message is shorter
    /// by as many datagrams as make the others leave at this phase, or less than a datagram before.
    #[must_use]
    pub fn in_step_with(self, phase: Phase) -> Self {
        let start = self.clock.start();
        let wait = self.cycle().begin(phase, start).since(start);
        let most = self.datagrams_max;
        let first = (self.leaving_rate().bytes_in(wait).0 / self.payload()) as u32 % most;
        Self { shorter: (most - first) % most, ..self }
    }

    /// The time from one message to the next.
    pub fn cycle(&self) -> Cycle {
        let (rate, payload) = (self.leaving_rate(), self.framing.payload());
        // Packets of sound are at the times of its clock, each for itself.
        let datagrams = if self.sound().is_some() { 1 } else { self.datagrams_max };
        Cycle { rate, datagrams, payload }
    }

    /// The interval of the moments at which messages leave.
    pub fn grid(&self) -> Nanos {
        self.gathering.grid()
    }

    /// The same in the session of an ended predecessor: numbers, timestamps, counters and clocks
    /// continue. After a pause the clock is marked as discontinuous, although it shows the elapsed
    /// time.
    #[must_use]
    pub fn following(self, trace: &Trace) -> Self {
        let mut restamper = trace.restamper;
        restamper.join(self.restamping().and_then(|restamping| restamping.ahead));
        let pause = self.clock.start().since(trace.due);
        let begins = match (self.begins, trace.shows) {
            // The pause and the tables in front take time of their own.
            (Some(_), Some(shows)) => Some(shows.after(media(pause)).after(self.lead_ticks())),
            (begins, _) => begins,
        };
        let is_paused = pause > PAUSE_UNMARKED_MAX;
        let breaks = self.begins.is_none() || trace.shows.is_none() || is_paused;
        // Unchanged bytes have no marks.
        let is_marked = breaks && self.restamping().is_some();
        let (framing, epoch) = (self.framing.following(trace.framing), trace.epoch);
        let next = Self { framing, epoch, restamper, begins, breaks, is_marked, ..self };
        let ahead = next.ahead_in(0);
        Self { ahead, ..next }
    }

    /// The same without the first `title` bytes of its title, which end with a packet. Later
    /// datagrams are the same, and due at the same times.
    #[must_use]
    pub fn behind(mut self, title: Bytes) -> Self {
        let passed = |rate: BitRate| rate.bytes_in(self.title_due(title).since(self.clock.start()));
        self.at = match self.stuffed() {
            Some(rate) => Bytes(passed(rate).0 / PAYLOAD.0 * PAYLOAD.0),
            None => self.front() + self.bare(title),
        };
        self.taken = title;
        self.hint = self.line().map_or(0, |line| line.hint(title));
        self
    }

    /// The state after `sent` bytes of its title, at the end of a message.
    pub fn trace(&self, sent: Bytes) -> Trace {
        // With a plan, cut bytes count as sent, even if they were lost.
        let at = if self.plan.is_some() { self.at } else { sent };
        let next = |session: Session| {
            // Wraps at its width.
            let sequence = session.sequence.wrapping_add(at.0.div_ceil(self.payload()) as u16);
            Session { sequence, ..session }
        };
        let framing = match self.framing {
            framing @ (Framing::Plain | Framing::Chunked) => framing,
            Framing::Rtp(session) => Framing::Rtp(next(session)),
            Framing::Sound(sound) => {
                Framing::Sound(Sound { session: next(sound.session), ..sound })
            }
        };
        let (due, epoch) = (self.due_at(at), self.epoch);
        Trace { due, framing, epoch, restamper: self.restamper, shows: self.shows(at) }
    }

    /// Reads the memory that cutting the next message reads. The caller does this for many streams
    /// before it cuts the first, so that their cache misses overlap. The returned number has no
    /// meaning.
    pub fn look_up(&self) -> u64 {
        self.clock.start().0 ^ self.epoch.0 ^ self.at.0 ^ self.ahead.0 ^ self.restamper.look_up()
    }

    /// The same for the memory behind it.
    pub fn look_up_plan(&self) -> u64 {
        let Some(plan) = &self.plan else { return 0 };
        let restamping = plan.restamping.as_ref().map_or(0, |restamping| restamping.runs.len());
        let (line, stuff) = (plan.line.is_some(), plan.stuff.map_or(0, |rate| rate.0));
        (plan.front.len() ^ restamping) as u64 ^ stuff ^ u64::from(line ^ plan.counting.is_some())
    }

    /// When `message` leaves: all of it is due by then.
    pub const fn leaves(&self, message: &Message) -> MonoTime {
        self.gathering.leaves(message.due)
    }

    /// The due time of the first datagram of the session.
    pub const fn epoch(&self) -> MonoTime {
        self.epoch
    }

    /// The clock in force, by which title bytes are read.
    pub fn clock(&self) -> ByteClock {
        self.clock.delayed(self.lead())
    }

    /// The framing.
    pub const fn framing(&self) -> Framing {
        self.framing
    }

    /// The cut part of the title, over all turns.
    pub const fn taken(&self) -> Bytes {
        self.taken
    }

    /// Packets whose counters could not be tracked.
    pub fn missed(&self) -> u64 {
        self.restamper.missed()
    }

    /// Whether the stream leaves at the constant rate of its title, or a stuffed one.
    pub fn is_even(&self) -> bool {
        self.stuffed().is_some() || self.line().is_none() && self.packets.is_plain()
    }

    /// The framing of the title's packets.
    pub fn packets(&self) -> ts::Framing {
        self.packets
    }

    /// The bytes of datagrams due by `now`, including inserted ones. Rounds down.
    pub fn allowed(&self, now: MonoTime) -> Bytes {
        if let Some(rate) = self.stuffed() {
            return rate.bytes_in(now.since(self.clock.start()));
        }
        let Some(line) = self.line() else { return self.bare(self.clock.allowed(now)) };
        self.packets.bare(line.allowed(now.since(self.clock().start()))) + self.front()
    }

    /// The next message of a stream whose title has `len` bytes, or that has no end; `None` after
    /// the last.
    pub fn next(&self, len: Option<Bytes>) -> Option<Message> {
        self.next_late(len, MonoTime(0))
    }

    /// The same, with all datagrams that are due by `late`: a late sender has no time to send
    /// messages one by one.
    pub fn next_late(&self, len: Option<Bytes>, late: MonoTime) -> Option<Message> {
        if self.stuffed().is_some() {
            return self.next_stuffed(len, late);
        }
        let end = len.map_or(u64::MAX, |len| (self.bare(len) + self.front()).0);
        let left = end.saturating_sub(self.at.0);
        if left == 0 {
            return None;
        }
        let payload = self.payload();
        let limit = left.div_ceil(payload).min(u64::from(self.segments_max)) as u32;
        let most = limit.min(self.in_step());
        let first = self.due(0);
        // Most streams are slow compared with a tick.
        let (mut datagrams, due) = if most > 1 { self.together(first, most) } else { (1, first) };
        if late > due {
            datagrams = self.count_by(late, datagrams..limit);
        }
        let full = payload * u64::from(datagrams);
        // Sound leaves in whole packets.
        let bytes = Bytes(if self.sound().is_some() { full } else { left.min(full) });
        let in_front = self.front().saturating_sub(self.at).min(bytes);
        let (at, from) = (self.at, self.taken);
        let taken = match len {
            // The rest, with all that is between packets.
            Some(len) if bytes.0 >= left => len - from,
            _ => self.framed(bytes - in_front),
        };
        Some(Message { at, bytes, from, taken, datagrams, due })
    }

    /// The largest number of datagrams in the next message. After a late message it is smaller, so
    /// that the stream gets back into the turn of its place.
    fn in_step(&self) -> u32 {
        if self.gathering.is_by_turn() || self.line().is_some() {
            return self.datagrams_max;
        }
        let most = u64::from(self.datagrams_max);
        (most - (self.at.0 / self.payload() + u64::from(self.shorter)) % most) as u32
    }

    /// How many of the next `most` datagrams leave with the one due at `first`, and the due time of
    /// the last of them.
    fn together(&self, first: MonoTime, most: u32) -> (u32, MonoTime) {
        let until = self.gathering.until(first);
        // At a constant rate as many as are permitted are due within the burst.
        let datagrams = match self.gathering.is_by_turn() || self.line().is_some() {
            true => self.count_by(until, 1..most),
            false => most,
        };
        (datagrams, self.due(mutant!(BurstEarly, 0, datagrams - 1)))
    }

    /// How many of the next datagrams are due by `until`, at least the start and at most the end of
    /// the range.
    fn count_by(&self, until: MonoTime, count: Range<u32>) -> u32 {
        if self.line().is_none() {
            return self.due_by(until).clamp(count.start, count.end);
        }
        let mut rest = count.clone();
        rest.find(|&nth| self.due(nth) > until).unwrap_or(count.end)
    }

    /// As [`next_late`](Self::next_late): datagrams are full and leave at the requested rate.
    fn next_stuffed(&self, len: Option<Bytes>, late: MonoTime) -> Option<Message> {
        let mut taken = Bytes(0);
        let (mut datagrams, mut due) = (0, MonoTime(0));
        let turn = self.gathering.is_by_turn().then(|| self.gathering.until(self.due(0)));
        let most = self.in_step();
        while datagrams < self.segments_max && !self.is_over(self.taken + taken, datagrams, len) {
            let own = self.due(datagrams);
            let is_in_turn = turn.is_none_or(|turn| own <= turn);
            if datagrams < most && is_in_turn {
                due = own;
            } else if own > late {
                break;
            }
            let unit = self.unit().0;
            taken += Bytes(unit * self.of_title(datagrams, self.taken + taken, len));
            datagrams += 1;
        }
        if datagrams == 0 {
            return None;
        }
        let (at, from) = (self.at, self.taken);
        let bytes = Bytes(PAYLOAD.0 * u64::from(datagrams));
        Some(Message { at, bytes, from, taken, datagrams, due })
    }

    /// Whether nothing is left before datagram `nth` of a stuffed stream.
    fn is_over(&self, taken: Bytes, nth: u32, len: Option<Bytes>) -> bool {
        len.is_some_and(|len| taken + self.unit() > len) && self.begins_at(nth) >= self.front()
    }

    /// The title packets in datagram `nth` of a stuffed stream: those that are due when it leaves.
    fn of_title(&self, nth: u32, taken: Bytes, len: Option<Bytes>) -> u64 {
        let begins = self.begins_at(nth);
        let in_front = self.front().saturating_sub(begins).min(PAYLOAD).0 / TS;
        let mut slots = PAYLOAD.0 / TS - in_front;
        let due = self.due(nth);
        let mut count = 0;
        while slots > 0 {
            let from = taken + Bytes(count * self.unit().0);
            if len.is_some_and(|len| from + self.unit() > len) || self.title_due(from) > due {
                break;
            }
            count += 1;
            slots -= 1;
        }
        count
    }

    /// Whether the bytes of a message differ from the title's.
    pub fn changes(&self, message: &Message) -> bool {
        message.taken != message.bytes
            || self.restamping().is_some()
            || !self.packets.is_plain()
            || self.sound().is_some()
    }

    /// Whether the counters of unchanged bytes are tracked.
    pub fn watches(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.restamping.is_none() && plan.counting.is_some())
    }

    /// Tracks the counters of the next message, whose unchanged bytes are `payload`.
    pub fn watch(&mut self, payload: &[u8]) {
        for packet in payload.as_chunks().0 {
            self.restamper.watch(packet);
        }
    }

    /// Publishes the counters and the time for the next part of the session, if there may be one.
    pub fn keep(&self) {
        if let Some(counting) = self.plan.as_ref().and_then(|plan| plan.counting.as_ref()) {
            counting.kept.keep(&self.restamper, self.ticks(0));
        }
    }

    /// Whether the payloads of the next message are consecutive title bytes without insertions.
    pub fn is_in_place(&self) -> bool {
        self.stuffed().is_none()
            && self.at >= self.front()
            && self.packets.is_plain()
            && self.sound().is_none()
    }

    /// The header of datagram `nth` of the next message.
    pub fn header(&self, nth: u32) -> Option<[u8; rtp::HEADER]> {
        let number = self.at.0 / self.payload() + mutant!(SequenceByMessage, 0, u64::from(nth));
        let session = match self.framing {
            Framing::Plain | Framing::Chunked => return None,
            Framing::Rtp(session) => session,
            Framing::Sound(sound) => return Some(sound.header(number, self.due(nth)).write()),
        };
        let header = rtp::Header {
            // RFC 2250, section 2.1: the clock is discontinuous with the packet before.
            marker: self.is_marked && number == 0,
            payload_type: rtp::MP2T,
            // Both wrap at their width.
            sequence: session.sequence.wrapping_add(number as u16),
            timestamp: session.timestamp.wrapping_add(self.ticks(mutant!(
                TimestampOfMessage,
                0,
                nth
            ))),
            source: session.source,
        };
        Some(header.write())
    }

    /// Moves on to the position after `message`.
    ///
    /// # Panics
    /// If it is not the next one.
    pub fn advance(&mut self, message: &Message) {
        assert!(message.at == self.at, "messages leave in order");
        self.at += message.bytes;
        self.taken += message.taken;
        if let Some(line) = self.line() {
            let here = line.hint_near(self.taken, self.hint);
            self.hint = here;
        }
    }

    /// Leaves out the packets of sound that are due for so long, as far as the `ready` next bytes
    /// of a title of `len` hold them. Returns the bytes of the title that do not leave.
    pub fn leave_out(&mut self, late: Nanos, ready: Bytes, len: Option<Bytes>) -> Bytes {
        let packet = self.framed(self.framing.payload());
        let is_last = len == Some(self.taken + ready);
        let there = if is_last { ready.0.div_ceil(packet.0) } else { ready.0 / packet.0 };
        let count = late.0.div_ceil(self.cycle().length().0).min(there);
        let title = Bytes(packet.0 * count).min(ready);
        self.at += Bytes(self.payload() * count);
        self.taken += title;
        title
    }

    /// Delays all further datagrams. The first packet of a session keeps its timestamp, since it
    /// may have been announced.
    pub fn delay(&mut self, pause: Nanos) {
        if self.at == Bytes(0) && self.epoch == self.clock.due(Bytes(0)) {
            self.epoch += pause;
        }
        self.clock = self.clock.delayed(pause);
    }

    fn line(&self) -> Option<&Polyline> {
        self.plan.as_ref()?.line.as_ref()
    }

    fn restamping(&self) -> Option<&Restamping> {
        self.plan.as_ref()?.restamping.as_ref()
    }

    fn stuffed(&self) -> Option<BitRate> {
        self.plan.as_ref()?.stuff
    }

    /// Bytes in front of the title.
    fn front(&self) -> Bytes {
        Bytes(self.plan.as_ref().map_or(0, |plan| plan.front.len() as u64))
    }

    /// Their duration.
    fn lead(&self) -> Nanos {
        match self.stuffed() {
            Some(rate) => rate.time_for(self.front()),
            None => self.clock.rate().time_for(self.framed(self.front())),
        }
    }

    /// Their duration in PCR ticks.
    fn lead_ticks(&self) -> MediaTime {
        match self.stuffed() {
            Some(rate) => ticks(self.front(), rate),
            None => ticks(self.packets.framed(self.front()), self.clock.rate()),
        }
    }

    /// The rate of the bytes in datagrams. Rounds down.
    fn leaving_rate(&self) -> BitRate {
        let bare = bare_rate(self.clock.rate(), self.packets);
        self.stuffed().unwrap_or(self.framing.rate_out(bare))
    }

    /// The sound that it sends, if it does.
    fn sound(&self) -> Option<Sound> {
        match self.framing {
            Framing::Plain | Framing::Rtp(_) | Framing::Chunked => None,
            Framing::Sound(sound) => Some(sound),
        }
    }

    /// Bytes of the payload of a full datagram.
    fn payload(&self) -> u64 {
        self.framing.payload().0
    }

    /// The bytes that leave of so many bytes of the title.
    fn bare(&self, title: Bytes) -> Bytes {
        self.sound().map_or(self.packets.bare(title), |sound| sound.out(title))
    }

    /// The bytes of the title in so many that leave.
    fn framed(&self, out: Bytes) -> Bytes {
        self.sound().map_or(self.packets.framed(out), |sound| sound.title(out))
    }

    /// The bytes of the title for each packet.
    fn unit(&self) -> Bytes {
        Bytes(self.packets.stride as u64)
    }

    /// The interval of datagrams in a stuffed stream.
    fn gap(&self) -> Nanos {
        self.stuffed().map_or(Nanos(0), |rate| rate.time_for(PAYLOAD))
    }

    fn begins_at(&self, nth: u32) -> Bytes {
        self.at + Bytes(self.payload() * u64::from(nth))
    }

    fn due(&self, nth: u32) -> MonoTime {
        self.due_at(self.begins_at(nth))
    }

    /// How many of the next datagrams, at a constant rate, are due by `until`; the first one is.
    fn due_by(&self, until: MonoTime) -> u32 {
        let ahead = self.bare(self.clock.allowed(until)).saturating_sub(self.at);
        (ahead.0 / self.payload() + 1).min(u32::MAX.into()) as u32
    }

    /// The due time of a byte, counted over everything sent.
    fn due_at(&self, out: Bytes) -> MonoTime {
        match (self.stuffed(), self.line()) {
            (Some(rate), _) => self.clock.start() + rate.time_for(out),
            (None, Some(_)) if out.0 >= self.front().0 => {
                self.title_due(self.packets.framed(out - self.front()))
            }
            (None, _) => self.clock.due(self.framed(out)),
        }
    }

    /// The due time of a title byte.
    fn title_due(&self, from: Bytes) -> MonoTime {
        match self.line() {
            Some(line) => self.clock.start() + self.lead() + line.due(from, self.hint),
            None => self.clock.due(from) + self.lead(),
        }
    }

    /// Ticks of 90 kHz from the beginning to a datagram's due time, modulo 2^32. Rounds down.
    fn ticks(&self, nth: u32) -> u32 {
        let since = self.due(nth).since(self.epoch).0;
        // In two parts that cannot overflow.
        (since / 100_000).wrapping_mul(9).wrapping_add(since % 100_000 * 9 / 100_000) as u32
    }
}

/// The payloads of a message of transport packets, each with `room` bytes in front.
pub fn payloads(bytes: &mut [u8], room: usize) -> impl Iterator<Item = &mut [u8]> {
    let step = if room == 0 { bytes.len().max(1) } else { room + PAYLOAD.0 as usize };
    bytes.chunks_mut(step).map(move |datagram| &mut datagram[room..])
}

/// Two PCRs may be 100 ms apart without a discontinuity mark (TR 101 290, 2.3b). The titles before
/// and after take up to 40 ms each (TS 101 154, 4.1.5.3).
const PAUSE_UNMARKED_MAX: Nanos = Nanos::from_millis(20);

/// Bytes of a transport packet.
const TS: u64 = ts::PACKET as u64;

/// The rate of the packets of a title of `rate`. Rounds down.
fn bare_rate(rate: BitRate, packets: ts::Framing) -> BitRate {
    if packets.is_plain() {
        return rate;
    }
    let bare = u128::from(rate.0) * u128::from(TS) / packets.stride as u128;
    BitRate((bare as u64).max(1))
}

/// Modulo the wrap of the PCR.
fn wrapped(ticks: u128) -> MediaTime {
    MediaTime((ticks % u128::from(Pcr::WRAP.0)) as u64)
}

/// Ticks of 27 MHz in which so many bytes leave. Rounds down.
fn ticks(bytes: Bytes, rate: BitRate) -> MediaTime {
    wrapped(u128::from(bytes.0) * 216_000_000 / u128::from(rate.0))
}

/// Rounds down.
fn media(span: Nanos) -> MediaTime {
    wrapped(u128::from(span.0) * 27 / 1000)
}

#[cfg(test)]
mod tests;
