//! Repeats what a channel sends for its listeners: reads its titles once, cuts them as the packet
//! server does, and gives each listener each datagram with its time.
//!
//! Promise: datagrams are those of the channel, in order, also across titles. None is given to a
//! listener after its time: when a title is late, all that follows is later by as much.

use std::sync::Arc;
use std::time::Duration;

use tactus_control::generated;
use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Cutter, Cutting, Framing, Gathering, PAYLOAD, Trace};
use tactus_core::generated::TimedDatagram;
use tactus_core::ts::{Framing as Packets, PACKET};
use tactus_core::units::{BitRate, Bytes, KIB, MIB, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::Extent;
use tactus_sys::clock;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::{AHEAD, DELAY, DeliverySpec, Grant, Listener, Live, Output, Part, Source};

/// The least time from a datagram's departure to the listeners: a visit of the link and some more.
const LEAD: Nanos = MILLISECOND.times(20);

/// From the first listener to its first byte: the title is found on the disk meanwhile.
const START: Nanos = SECOND;

/// A title that begins later than this behind the one before follows a pause.
const PAUSE: Nanos = Nanos::from_millis(500);

/// Bytes that are read ahead, as time at the title's rate, and their limit.
const BUFFERED: Nanos = SECOND.times(2);
const BUFFERED_MAX: u64 = 16 * MIB;

/// Packets of a datagram.
const PACKETS_MAX: usize = PAYLOAD.0 as usize / PACKET;

/// Bytes taken from the socket pair at once.
const PIECE: usize = 64 * KIB as usize;

/// Interval of attempts to be admitted.
const AGAIN: Duration = Duration::from_secs(1);

/// Datagrams before other tasks may run.
const DATAGRAMS_AT_ONCE: u32 = 256;

/// The reading of a channel for its listeners.
pub(super) struct Mirror {
    live: Arc<Live>,
    /// The reading of the first part, which was admitted with the first listener.
    source: Option<Grant>,
    /// Where the part before has ended; none before the first.
    trace: Option<Trace>,
}

/// How a turn has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// At the end of its range.
    Whole,
    /// Before: the channel has left it, it cannot be read, or nobody listens.
    Left,
}

impl Mirror {
    pub(super) fn new(live: Arc<Live>, source: Option<Grant>) -> Self {
        Self { live, source, trace: None }
    }

    pub(super) async fn run(mut self) {
        let mut before = 0;
        while let Some(part) = self.live.next(before).await {
            before = part.number;
            self.live.admit_more(&part);
            self.play(&part).await;
        }
    }

    /// Sends one part in all its turns.
    async fn play(&mut self, part: &Part) {
        let (mut start, mut from, mut before) = match &self.trace {
            None => self.join(part),
            Some(trace) => (follow(trace.due, part.begun + DELAY), 0, 0),
        };
        loop {
            let cutter = Cutter::new(Cutting {
                framing: Framing::Plain,
                clock: ByteClock::new(start, part.rate),
                gathering: Gathering::NONE,
                segments_max: 1,
                turn: None,
                plan: Some(Arc::clone(&part.plan)),
            });
            let mut cutter = match &self.trace {
                Some(trace) => cutter.following(trace),
                None => cutter.behind(Bytes(from)),
            };
            let end = self.turn(part, &mut cutter, from, before).await;
            let trace = cutter.trace(cutter.taken());
            start = trace.due;
            self.trace = Some(trace);
            before += part.len();
            from = 0;
            if end == End::Left || !part.is_endless || part.is_over(before) {
                break;
            }
        }
        self.source = None;
    }

    /// Where a first listener joins a part: the start of the turn, the bytes of it to leave out,
    /// and those of the turns before.
    fn join(&self, part: &Part) -> (MonoTime, u64, u64) {
        let now = clock::now();
        let packets = part.plan.packets;
        let sent = self.live.broker.counters_of(part.slot).map_or(0, |each| each.bytes.value());
        let span = |bytes: u64| match &part.plan.line {
            Some(line) => line.due(Bytes(bytes), 0),
            None => part.rate.time_for(Bytes(bytes)),
        };
        let elapsed = match part.plan.stuff {
            Some(rate) => rate.time_for(Bytes(sent)),
            None => span(packets.framed(Bytes(sent)).0),
        };
        let begun = now.before(elapsed);
        let skipped = (now + START).since(begun + DELAY);
        let turns = if part.is_endless { skipped.0 / span(part.len()).0.max(1) } else { 0 };
        let start = begun + span(part.len()).times(turns);
        let within = (now + START).since(start + DELAY);
        let from = match &part.plan.line {
            Some(line) => line.allowed(within),
            None => part.rate.bytes_in(within),
        };
        let datagram = packets.framed(PAYLOAD).0;
        let from = from.0.min(part.len()) / datagram * datagram;
        (start + DELAY, from, turns * part.len())
    }

    /// Sends one turn of a part, from byte `from` of it on, with `before` bytes in earlier turns.
    async fn turn(&mut self, part: &Part, cutter: &mut Cutter, from: u64, before: u64) -> End {
        let Some(mut reader) = self.read(part, from).await else { return End::Left };
        let mut at_once = 0;
        loop {
            let len = part.sent_of(before);
            let Some(message) = cutter.next(Some(Bytes(len))) else {
                return if len == part.len() { End::Whole } else { End::Left };
            };
            let title = message.taken.0 as usize;
            if reader.buffered() < title && reader.is_over {
                return End::Left;
            }
            let now = clock::now();
            let early = message.due.since(now + self.live.ahead(part));
            if reader.buffered() < title || early > Nanos(0) {
                let wait = if early > Nanos(0) { early } else { SECOND };
                tokio::select! {
                    () = reader.fill(), if reader.has_room() => {}
                    () = tokio::time::sleep(Duration::from_nanos(wait.0)) => {}
                    () = self.live.changed.notified() => {}
                }
                if self.live.is_left() {
                    return End::Left;
                }
                continue;
            }
            if message.due < now + LEAD {
                cutter.delay((now + LEAD + LEAD).since(message.due));
                continue;
            }
            let bytes = message.bytes.0 as usize;
            let mut payload = [0; PACKETS_MAX * Packets::STRIDE_MAX];
            let packets = cutter.packets();
            let begins = bytes - packets.bare(message.taken).0 as usize;
            let raw = &mut payload[begins..begins + title];
            reader.take(raw);
            packets.strip_in_place(raw);
            let payload = &mut payload[..bytes];
            if cutter.changes(&message) {
                cutter.compose(&message, payload, 0);
            }
            if cutter.watches() {
                cutter.watch(payload);
            }
            cutter.advance(&message);
            self.live.give(message.due, payload);
            at_once = (at_once + 1) % DATAGRAMS_AT_ONCE;
            if at_once == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Begins to read a turn, as soon as there is room for it. `None` if nobody listens any more.
    async fn read(&mut self, part: &Part, from: u64) -> Option<Reader> {
        if from == part.len() {
            return None;
        }
        while self.source.is_none() {
            match self.live.admit_source(part, from) {
                Ok(grant) => self.source = Some(grant),
                Err(refusal) => {
                    tracing::debug!(%refusal, "a live stream waits for its title");
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => {}
                        () = self.live.changed.notified() => {}
                    }
                    if self.live.is_left() || part.sent.get().is_some() {
                        return None;
                    }
                }
            }
        }
        let grant = self.source.as_mut()?;
        let (ours, theirs) = generated::pair().ok()?;
        let range = Extent::Range(Bytes(part.range.start + from)..Bytes(part.range.end));
        grant.start(&part.title, Source::of(range), Output::reader(theirs)).await.ok()?;
        let buffer_max = part.rate.bytes_in(BUFFERED).0.clamp(PIECE as u64, BUFFERED_MAX) as usize;
        Some(Reader { socket: ours, bytes: vec![], at: 0, buffer_max, is_over: false })
    }
}

/// When a part begins behind one that ended at `due`, if the channel begins it at `begun`.
fn follow(due: MonoTime, begun: MonoTime) -> MonoTime {
    if begun > due + PAUSE { begun } else { due }
}

impl Part {
    /// How many bytes the channel sends in the turn with so many bytes before it, as far as it is
    /// known.
    fn sent_of(&self, before: u64) -> u64 {
        let sent = self.sent.get().map_or(u64::MAX, |sent| sent.saturating_sub(before));
        sent.min(self.len())
    }

    /// Whether the channel sends no byte behind so many.
    fn is_over(&self, before: u64) -> bool {
        self.sent_of(before) == 0
    }
}

impl Live {
    /// The part behind number `before`, when the channel begins it. `None`, with the end of all
    /// listeners, if there will be none, or if nobody listens.
    async fn next(&self, before: u64) -> Option<Arc<Part>> {
        loop {
            {
                let mut state = self.state();
                while state.parts.len() > 1 && state.parts[0].number <= before {
                    state.parts.pop_front();
                }
                // What has ended before the first listener came is not repeated.
                let next = state.parts.iter().find(|part| part.number > before);
                let next = next.map(Arc::clone).filter(|_| !state.is_closed);
                let is_over = state.is_closed || state.is_finished && next.is_none();
                if is_over || state.listeners.is_empty() {
                    state.has_mirror = false;
                    let ended = std::mem::take(&mut state.listeners);
                    drop(state);
                    ended.into_iter().for_each(Listener::end);
                    return None;
                }
                if next.is_some() {
                    return next;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Whether nobody listens, or the channel has been removed.
    fn is_left(&self) -> bool {
        let state = self.state();
        state.is_closed || state.listeners.is_empty()
    }

    /// How long before its time a datagram of `part` may be given to all listeners.
    fn ahead(&self, part: &Part) -> Nanos {
        let room = self.state().listeners.iter().map(|listener| listener.ring.capacity()).min();
        let room = room.map_or(u64::MAX, |room| room as u64 * PAYLOAD.0 / 2);
        AHEAD.min(part.out.time_for(Bytes(room.min(MIB * KIB))))
    }

    /// Reserves what a title with a higher rate needs. A listener for which there is no room ends.
    fn admit_more(&self, part: &Part) {
        let mut state = self.state();
        let has_room = |listener: &mut Listener| {
            let more = part.out.0.saturating_sub(listener.rate.0);
            if more == 0 {
                return true;
            }
            let rate = BitRate(more);
            match self.broker.admit(&DeliverySpec::live(&self.broker, &part.title, rate)) {
                Ok(grant) => {
                    listener.more.push(grant);
                    listener.rate = part.out;
                    true
                }
                Err(refusal) => {
                    tracing::warn!(%refusal, "a live stream ends: its next title needs more");
                    false
                }
            }
        };
        let ended: Vec<_> = state.listeners.extract_if(.., |each| !has_room(each)).collect();
        drop(state);
        ended.into_iter().for_each(Listener::end);
    }

    /// Gives a datagram to all listeners. Those without room lose it.
    fn give(&self, due: MonoTime, payload: &[u8]) {
        for listener in &mut self.state().listeners {
            // A full ring holds what was due long ago: its listener takes nothing.
            listener.ring.push(TimedDatagram::new(due.since(listener.begin), payload)).ok();
        }
    }
}

impl Listener {
    fn end(mut self) {
        // A full ring has no room for the mark. Then its stream is stopped.
        self.ring.push(TimedDatagram::end(Nanos(0))).ok();
        self.over.notify_one();
    }
}

/// One reading of a title, which its grant keeps going.
struct Reader {
    socket: UnixStream,
    /// What has been read, used up to `at`.
    bytes: Vec<u8>,
    at: usize,
    /// Limit of the bytes in memory.
    buffer_max: usize,
    is_over: bool,
}

impl Reader {
    fn buffered(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn has_room(&self) -> bool {
        !self.is_over && self.buffered() < self.buffer_max
    }

    /// Reads some more. Cancel safe.
    async fn fill(&mut self) {
        if self.at > self.buffer_max / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.reserve(PIECE);
        // It reads as much as there is room for.
        if !matches!(self.socket.read_buf(&mut self.bytes).await, Ok(1..)) {
            self.is_over = true;
        }
    }

    /// Takes the next bytes, which have been read.
    fn take(&mut self, into: &mut [u8]) {
        let end = self.at + into.len();
        into.copy_from_slice(&self.bytes[self.at..end]);
        self.at = end;
    }
}
