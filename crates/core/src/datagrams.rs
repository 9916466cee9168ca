//! Datagrams: how the bytes of a stream are cut into packets, what each carries in front, and when
//! it is due.
//!
//! Promise: every byte is in one datagram, in order; no datagram is due before its first byte is by
//! the byte clock; RTP's numbers follow each other and its timestamps are the due times (RFC 2250,
//! RFC 3550). It knows no addresses, and moves no bytes: that is `composing`'s. The argument:
//! `docs/design/packets.md`.

mod composing;
mod counting;
mod gathering;
mod plan;

use alloc::sync::Arc;
use core::ops::Range;

use crate::byte_clock::ByteClock;
use crate::mutant;
use crate::rtp;
use crate::ts::{self, Pcr, Restamper};
use crate::units::{BitRate, Bytes, MediaTime, MonoTime, Nanos, SECOND};

pub use composing::Composition;
pub use counting::{Counting, FinalCounters};
pub use gathering::Gathering;
pub use plan::{Law, Line, Plan, Restamping};

/// What a whole datagram carries: seven transport packets, as many as fit a frame of Ethernet.
pub const PAYLOAD: Bytes = Bytes(7 * ts::PACKET as u64);

/// Most datagrams that leave as one message. The kernel takes 64 (`UDP_MAX_SEGMENTS`), and 65,507
/// bytes: 49 with RTP.
pub const SEGMENTS_MAX: u32 = 44;

/// What stands in front of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Nothing.
    Udp,
    /// The header of RTP.
    Rtp(Session),
}

/// What an RTP session began with (RFC 3550, section 5.1: at random).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// SSRC.
    pub source: u32,
    /// Of the first packet.
    pub sequence: u16,
    /// Of the first packet.
    pub timestamp: u32,
}

impl Form {
    /// Bytes in front of each payload.
    pub const fn header(self) -> Bytes {
        match self {
            Self::Udp => Bytes(0),
            Self::Rtp(_) => Bytes(rtp::HEADER as u64),
        }
    }

    /// What `payload` bytes in `datagrams` datagrams are on an Ethernet, its preamble and gap
    /// included.
    pub const fn wire(self, payload: Bytes, datagrams: u32, ip: Ip) -> Bytes {
        Bytes(payload.0 + datagrams as u64 * (ip.overhead().0 + self.header().0))
    }

    /// The rate on the wire of a stream whose payload has `rate`. Rounds up.
    pub fn wire_rate(self, rate: BitRate, ip: Ip) -> BitRate {
        let wire = u128::from(self.wire(PAYLOAD, 1, ip).0);
        BitRate((u128::from(rate.0) * wire).div_ceil(u128::from(PAYLOAD.0)) as u64)
    }
}

/// Which protocol carries the datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    /// Four bytes.
    V4,
    /// Sixteen.
    V6,
}

impl Ip {
    /// Ethernet's preamble, header, checksum and gap (38 bytes), IP's header, UDP's.
    const fn overhead(self) -> Bytes {
        match self {
            Self::V4 => Bytes(38 + 20 + 8),
            Self::V6 => Bytes(38 + 40 + 8),
        }
    }
}

/// Some datagrams of one stream that leave together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The first byte, counted over all that leaves from the beginning of the stream.
    pub at: Bytes,
    /// Payload in all.
    pub bytes: Bytes,
    /// The first byte of the title in it, counted from the first that is sent, over all turns.
    pub from: Bytes,
    /// How many bytes of the title are in it; the rest stands in front or is stuffing.
    pub taken: Bytes,
    /// In how many datagrams.
    pub datagrams: u32,
    /// When the last of those is due that leave together as a rule. None leaves before; what is
    /// behind those is late.
    pub due: MonoTime,
}

/// What a stream leaves to the one that follows it, for the same receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    /// When its next datagram would have been due.
    pub due: MonoTime,
    /// What would have stood in front of that one, but for the timestamp, which is still the first
    /// one's.
    pub form: Form,
    /// When the first datagram of the session was due.
    pub epoch: MonoTime,
    restamper: Restamper,
    /// What its clock shows then.
    shows: Option<Pcr>,
}

/// What a stream is cut by.
#[derive(Clone, Debug)]
pub struct Cutting {
    /// What stands in front.
    pub form: Form,
    /// When it begins, and the rate that was reserved.
    pub clock: ByteClock,
    /// How long datagrams wait for each other.
    pub gathering: Gathering,
    /// No more than so many are one message.
    pub segments_max: u32,
    /// After how many bytes the title begins again.
    pub turn: Option<Bytes>,
    /// What is known of the stream.
    pub plan: Option<Arc<Plan>>,
}

/// Cuts one stream.
#[derive(Clone, Debug)]
pub struct Cutter {
    form: Form,
    clock: ByteClock,
    /// When byte 0 was due when the session began: what RTP's time counts from.
    epoch: MonoTime,
    /// Bytes that have left, and how many of them are the title's.
    at: Bytes,
    taken: Bytes,
    /// How many datagrams a message has at most: as a rule, and of one that is late.
    datagrams_max: u32,
    segments_max: u32,
    /// By how many datagrams the first message is shorter, so that those behind it leave when the
    /// place says.
    shorter: u32,
    gathering: Gathering,
    turn: Option<Bytes>,
    plan: Option<Arc<Plan>>,
    /// Where in the line the next byte is.
    hint: usize,
    /// The turn that the restamper is in, and what its clocks are ahead of the title's in it.
    part: u64,
    ahead: MediaTime,
    /// Clocks do not run on from the stream before.
    breaks: bool,
    /// Its first datagram says so too: the clock in it is marked.
    is_marked: bool,
    restamper: Restamper,
    /// What the stream's clock shows at its first byte of the title; none when nobody knows.
    begins: Option<Pcr>,
}

impl Cutter {
    /// A stream from its beginning.
    pub fn new(cutting: Cutting) -> Self {
        let Cutting { form, clock, gathering, segments_max, turn, plan } = cutting;
        let stuffed = plan.as_ref().and_then(|plan| plan.stuff);
        let together = gathering.most(stuffed.unwrap_or(clock.rate()));
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
            form,
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
            hint: 0,
            part: 0,
            ahead: MediaTime(0),
            breaks,
            is_marked,
            restamper,
            begins,
        }
    }

    /// The same from the first moment on at which it is the turn of the stream's place.
    #[must_use]
    pub fn in_turn_of(mut self, place: u32) -> Self {
        let (opened, rate) = (self.clock.start(), self.stuffed().unwrap_or(self.clock.rate()));
        self.delay(begins(place, rate, self.datagrams_max, opened).since(opened));
        self
    }

    /// The same for a stream whose beginning is given, as that of one that follows another is: its
    /// first message is shorter by as many datagrams as it takes for the others to begin when it is
    /// the turn of the place, or less than a datagram before.
    #[must_use]
    pub fn in_step_with(self, place: u32) -> Self {
        let (start, rate) = (self.clock.start(), self.stuffed().unwrap_or(self.clock.rate()));
        let most = self.datagrams_max;
        let wait = begins(place, rate, most, start).since(start);
        let first = (rate.bytes_in(wait).0 / PAYLOAD.0) as u32 % most;
        Self { shorter: (most - first) % most, ..self }
    }

    /// The same, in the session of the stream before it, which has ended: numbers, timestamps,
    /// counters and clocks go on. A clock that nobody has heard of for a while is marked as another
    /// one's, although it shows what has passed.
    #[must_use]
    pub fn following(self, trace: &Trace) -> Self {
        let mut restamper = trace.restamper;
        restamper.join(self.restamping().and_then(|restamping| restamping.ahead));
        let pause = self.clock.start().since(trace.due);
        let begins = match (self.begins, trace.shows) {
            // What has passed meanwhile, and the tables in front, take time of their own.
            (Some(_), Some(shows)) => Some(shows.after(media(pause)).after(self.lead_ticks())),
            (begins, _) => begins,
        };
        let is_paused = pause > PAUSE_UNMARKED_MAX;
        let breaks = self.begins.is_none() || trace.shows.is_none() || is_paused;
        // What leaves as it is has no marks.
        let is_marked = breaks && self.restamping().is_some();
        let (form, epoch) = (trace.form, trace.epoch);
        let next = Self { form, epoch, restamper, begins, breaks, is_marked, ..self };
        let ahead = next.ahead_in(0);
        Self { ahead, ..next }
    }

    /// Where it stands when `sent` of its title have left, which is where a message ends.
    pub fn trace(&self, sent: Bytes) -> Trace {
        // Where counters are kept what was cut has left, or is lost.
        let at = if self.plan.is_some() { self.at } else { sent };
        let form = match self.form {
            Form::Udp => Form::Udp,
            Form::Rtp(session) => {
                // Runs modulo its width.
                let sequence = session.sequence.wrapping_add(at.0.div_ceil(PAYLOAD.0) as u16);
                Form::Rtp(Session { sequence, ..session })
            }
        };
        let (due, epoch) = (self.due_at(at), self.epoch);
        Trace { due, form, epoch, restamper: self.restamper, shows: self.shows(at) }
    }

    /// Reads what cutting the next message reads, for whoever reads that of many streams before the
    /// first is cut: the processor waits for all of it at once then. A number without a meaning.
    pub fn look_up(&self) -> u64 {
        self.clock.start().0 ^ self.epoch.0 ^ self.at.0 ^ self.ahead.0 ^ self.restamper.look_up()
    }

    /// The same of what is behind that.
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

    /// When the first datagram of the session was due.
    pub const fn epoch(&self) -> MonoTime {
        self.epoch
    }

    /// The law in force, as bytes of the title are read by it.
    pub fn clock(&self) -> ByteClock {
        self.clock.delayed(self.lead())
    }

    /// What stands in front.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// How much of the title has been cut, over all turns.
    pub const fn taken(&self) -> Bytes {
        self.taken
    }

    /// Packets whose counters could not be kept.
    pub fn missed(&self) -> u64 {
        self.restamper.missed()
    }

    /// Whether all that leaves has one rate.
    pub fn is_even(&self) -> bool {
        self.stuffed().is_some() || self.line().is_none()
    }

    /// Bytes that are due by `now`, with all that is put between them. Rounds down.
    pub fn allowed(&self, now: MonoTime) -> Bytes {
        if let Some(rate) = self.stuffed() {
            return rate.bytes_in(now.since(self.clock.start()));
        }
        let Some(line) = self.line() else { return self.clock.allowed(now) };
        line.allowed(now.since(self.clock().start())) + self.front()
    }

    /// The next message of a stream whose title has `len` bytes, or of one without an end; none
    /// after the last.
    pub fn next(&self, len: Option<Bytes>) -> Option<Message> {
        self.next_late(len, MonoTime(0))
    }

    /// The same with all that is due by `late` beside what leaves together as a rule: whoever is
    /// late has no time to send messages one by one.
    pub fn next_late(&self, len: Option<Bytes>, late: MonoTime) -> Option<Message> {
        if self.stuffed().is_some() {
            return self.next_stuffed(len, late);
        }
        let end = len.map_or(u64::MAX, |len| len.0 + self.front().0);
        let left = end.saturating_sub(self.at.0);
        if left == 0 {
            return None;
        }
        let limit = left.div_ceil(PAYLOAD.0).min(u64::from(self.segments_max)) as u32;
        let most = limit.min(self.in_step());
        let first = self.due(0);
        // By far the most streams are slow beside a tick.
        let (mut datagrams, due) = if most > 1 { self.together(first, most) } else { (1, first) };
        if late > due {
            datagrams = self.count_by(late, datagrams..limit);
        }
        let bytes = Bytes(left.min(PAYLOAD.0 * u64::from(datagrams)));
        let in_front = self.front().saturating_sub(self.at).min(bytes);
        let (at, from, taken) = (self.at, self.taken, bytes - in_front);
        Some(Message { at, bytes, from, taken, datagrams, due })
    }

    /// How many datagrams the next message has at most, unless it is late: behind one that was,
    /// fewer, so that the stream leaves again when its place says.
    fn in_step(&self) -> u32 {
        if self.gathering.is_by_turn() || self.line().is_some() {
            return self.datagrams_max;
        }
        let most = u64::from(self.datagrams_max);
        (most - (self.at.0 / PAYLOAD.0 + u64::from(self.shorter)) % most) as u32
    }

    /// How many of the next `most` datagrams leave with the one that is due at `first`, and when
    /// the last of them is due.
    fn together(&self, first: MonoTime, most: u32) -> (u32, MonoTime) {
        let until = self.gathering.until(first);
        // Where all have one rate as many as allowed are due within the burst.
        let datagrams = match self.gathering.is_by_turn() || self.line().is_some() {
            true => self.count_by(until, 1..most),
            false => most,
        };
        (datagrams, self.due(mutant!(BurstEarly, 0, datagrams - 1)))
    }

    /// How many of the next datagrams are due by `until`, by which so many as the range begins with
    /// are in any case, and at most its end.
    fn count_by(&self, until: MonoTime, count: Range<u32>) -> u32 {
        if self.line().is_none() {
            return self.due_by(until).clamp(count.start, count.end);
        }
        let mut rest = count.clone();
        rest.find(|&nth| self.due(nth) > until).unwrap_or(count.end)
    }

    /// As [`next_late`](Self::next_late): datagrams are full, and leave at the rate that was asked
    /// for.
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
            taken += Bytes(TS * self.of_title(datagrams, self.taken + taken, len));
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
        len.is_some_and(|len| taken + Bytes(TS) > len) && self.begins_at(nth) >= self.front()
    }

    /// Packets of the title in datagram `nth` of a stuffed stream: those whose time has come when
    /// it leaves.
    fn of_title(&self, nth: u32, taken: Bytes, len: Option<Bytes>) -> u64 {
        let begins = self.begins_at(nth);
        let in_front = self.front().saturating_sub(begins).min(PAYLOAD).0 / TS;
        let mut slots = PAYLOAD.0 / TS - in_front;
        let due = self.due(nth);
        let mut count = 0;
        while slots > 0 {
            let from = taken + Bytes(count * TS);
            if len.is_some_and(|len| from + Bytes(TS) > len) || self.title_due(from) > due {
                break;
            }
            count += 1;
            slots -= 1;
        }
        count
    }

    /// Whether the bytes of a message are other than the title's.
    pub fn changes(&self, message: &Message) -> bool {
        message.taken != message.bytes || self.restamping().is_some()
    }

    /// Whether the counters of what leaves as it is are to be noted.
    pub fn watches(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.restamping.is_none() && plan.counting.is_some())
    }

    /// Notes the counters of the next message, whose bytes are `payload` and not changed.
    pub fn watch(&mut self, payload: &[u8]) {
        for packet in payload.as_chunks().0 {
            self.restamper.watch(packet);
        }
    }

    /// Leaves the counters and the time for the next part of the session, when there may be one.
    pub fn keep(&self) {
        if let Some(counting) = self.plan.as_ref().and_then(|plan| plan.counting.as_ref()) {
            counting.kept.keep(&self.restamper, self.ticks(0));
        }
    }

    /// Whether the payloads of the next message are the title's bytes one after the other: nothing
    /// is put in front of them or between them.
    pub fn is_in_place(&self) -> bool {
        self.stuffed().is_none() && self.at >= self.front()
    }

    /// The header of datagram `nth` of the next message.
    pub fn header(&self, nth: u32) -> Option<[u8; rtp::HEADER]> {
        let Form::Rtp(session) = self.form else { return None };
        let number = self.at.0 / PAYLOAD.0 + mutant!(SequenceByMessage, 0, u64::from(nth));
        let header = rtp::Header {
            // RFC 2250, section 2.1: the clocks of this packet and of the one before it are not to
            // be compared.
            marker: self.is_marked && number == 0,
            payload_type: rtp::MP2T,
            // Both run modulo their width.
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

    /// Goes on behind `message`.
    ///
    /// # Panics
    /// When it is not the next one.
    pub fn advance(&mut self, message: &Message) {
        assert!(message.at == self.at, "messages leave in order");
        self.at += message.bytes;
        self.taken += message.taken;
        if let Some(line) = self.line() {
            let here = line.hint_near(self.taken, self.hint);
            self.hint = here;
        }
    }

    /// Moves everything that is still to come. The first packet of a session has its first
    /// timestamp all the same, as it may have been told to somebody.
    pub fn delay(&mut self, pause: Nanos) {
        if self.at == Bytes(0) && self.epoch == self.clock.due(Bytes(0)) {
            self.epoch += pause;
        }
        self.clock = self.clock.delayed(pause);
    }

    fn line(&self) -> Option<&Line> {
        self.plan.as_ref()?.line.as_ref()
    }

    fn restamping(&self) -> Option<&Restamping> {
        self.plan.as_ref()?.restamping.as_ref()
    }

    fn stuffed(&self) -> Option<BitRate> {
        self.plan.as_ref()?.stuff
    }

    /// Bytes in front.
    fn front(&self) -> Bytes {
        Bytes(self.plan.as_ref().map_or(0, |plan| plan.front.len() as u64))
    }

    /// What they take.
    fn lead(&self) -> Nanos {
        self.stuffed().unwrap_or(self.clock.rate()).time_for(self.front())
    }

    /// The same by the clock inside.
    fn lead_ticks(&self) -> MediaTime {
        ticks(self.front(), self.stuffed().unwrap_or(self.clock.rate()))
    }

    /// From one datagram of a stuffed stream to the next.
    fn gap(&self) -> Nanos {
        self.stuffed().map_or(Nanos(0), |rate| rate.time_for(PAYLOAD))
    }

    fn begins_at(&self, nth: u32) -> Bytes {
        self.at + Bytes(PAYLOAD.0 * u64::from(nth))
    }

    fn due(&self, nth: u32) -> MonoTime {
        self.due_at(self.begins_at(nth))
    }

    /// How many of the next datagrams, all of one rate, are due by `until`, at which the first is.
    fn due_by(&self, until: MonoTime) -> u32 {
        let ahead = self.clock.allowed(until).saturating_sub(self.at);
        (ahead.0 / PAYLOAD.0 + 1).min(u32::MAX.into()) as u32
    }

    /// When a byte is due, counted over all that leaves.
    fn due_at(&self, out: Bytes) -> MonoTime {
        match (self.stuffed(), self.line()) {
            (Some(rate), _) => self.clock.start() + rate.time_for(out),
            (None, Some(_)) if out.0 >= self.front().0 => self.title_due(out - self.front()),
            (None, _) => self.clock.due(out),
        }
    }

    /// When a byte of the title is due.
    fn title_due(&self, from: Bytes) -> MonoTime {
        match self.line() {
            Some(line) => self.clock.start() + self.lead() + line.due(from, self.hint),
            None => self.clock.due(from) + self.lead(),
        }
    }

    /// Ticks of 90 kHz from the beginning to a datagram's due time, modulo 2^32. Rounds down.
    fn ticks(&self, nth: u32) -> u32 {
        let since = self.due(nth).since(self.epoch).0;
        // In two parts, of which neither can be too large.
        (since / 100_000).wrapping_mul(9).wrapping_add(since % 100_000 * 9 / 100_000) as u32
    }
}

/// The payloads of a message, of which each has `room` bytes in front.
pub fn payloads(bytes: &mut [u8], room: usize) -> impl Iterator<Item = &mut [u8]> {
    let step = if room == 0 { bytes.len().max(1) } else { room + PAYLOAD.0 as usize };
    bytes.chunks_mut(step).map(move |datagram| &mut datagram[room..])
}

/// Two clocks may be 100 ms apart without a mark (TR 101 290, 2.3b), of which the title before and
/// the one behind take up to 40 ms each (TS 101 154, 4.1.5.3).
const PAUSE_UNMARKED_MAX: Nanos = Nanos::from_millis(20);

/// Bytes of a transport packet.
const TS: u64 = ts::PACKET as u64;

/// Modulo the clock's wrap.
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

/// When the stream in `place` begins that is opened at `now` and leaves at `rate`, so many
/// datagrams at a time: within a message after it. Streams of one rate then leave spread over the
/// time between two messages as evenly as any number of places can be, whenever each was opened.
pub fn begins(place: u32, rate: BitRate, datagrams: u32, now: MonoTime) -> MonoTime {
    /// 2^64 divided by the golden ratio.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    // In billionths of a bit, so that moments hours apart are in step to the nanosecond.
    let message = u128::from(8 * PAYLOAD.0 * u64::from(datagrams)) * u128::from(SECOND.0);
    let own = (message * u128::from(u64::from(place).wrapping_mul(GOLDEN))) >> 64;
    let rate = u128::from(rate.0);
    let passed = u128::from(now.0) * rate % message;
    let wait = (own + message - passed) % message;
    now + Nanos(wait.div_ceil(rate) as u64)
}

#[cfg(test)]
mod tests;
