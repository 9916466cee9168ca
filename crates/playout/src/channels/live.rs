//! Live listeners of a channel: connections that carry what the channel sends as datagrams.
//!
//! Promise: all listeners of a channel share one reading of its titles; without listeners nothing
//! is read. Each gets the packets of the channel's datagrams at the same intervals, a fixed delay
//! later, and across titles without a break. A listener that does not take its bytes delays no
//! other one. The argument: `docs/design/live-streams.md`.

mod mirror;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tactus_control::broker::{
    Broker, ChunkRing, DeliveryResult, DeliverySpec, Grant, Output, Reading, Refusal, Source,
    Viewer,
};
use tactus_core::datagrams::{Framing, PAYLOAD, Plan};
use tactus_core::generated::TimedDatagram;
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};
use tactus_engine::message::Outcome;
use tactus_ring::spsc::Producer;
use tactus_storage::catalogue::OpenTitle;
use tactus_sys::clock;
use tokio::sync::Notify;

use mirror::Mirror;

/// How much later than its datagrams a channel leaves by connections. Within this time its next
/// title is known, admitted and read.
const DELAY: Nanos = SECOND.times(3);

/// How long before its time a datagram is given to its listeners.
const AHEAD: Nanos = Nanos::from_millis(500);

/// Room in a ring beside what is not due yet, as a factor: titles have different rates.
const ROOM: u64 = 2;

/// How long a listener has for its last bytes after the end of its channel.
const END_WAIT: Duration = Duration::from_secs(2);

/// What a channel sends, and who listens to it.
pub(super) struct Live {
    broker: Broker,
    state: Mutex<State>,
    /// Wakes the mirror.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// What the channel sends, behind what it has sent and the mirror has not.
    parts: VecDeque<Arc<Part>>,
    /// Number of parts so far.
    numbers: u64,
    listeners: Vec<Listener>,
    /// Number of listeners so far.
    ids: u64,
    has_mirror: bool,
    /// The playlist has ended.
    is_finished: bool,
    /// The channel has been removed.
    is_closed: bool,
}

/// What a channel sends of one title.
pub(super) struct Part {
    number: u64,
    title: Arc<OpenTitle>,
    range: Range<u64>,
    plan: Arc<Plan>,
    /// The rate of its clock and of its reading.
    rate: BitRate,
    /// The rate that it leaves with.
    out: BitRate,
    is_endless: bool,
    /// Its slot, which selects the engine's counters.
    slot: u32,
    begun: MonoTime,
    /// Bytes of the title that the channel has sent, over all turns; none before its end.
    sent: OnceLock<u64>,
}

/// A part as the channel begins it.
pub(super) struct PartSpec {
    pub(super) title: Arc<OpenTitle>,
    pub(super) range: Range<u64>,
    pub(super) plan: Arc<Plan>,
    pub(super) rates: [BitRate; 2],
    pub(super) is_endless: bool,
    pub(super) slot: u32,
}

struct Listener {
    id: u64,
    ring: Producer<TimedDatagram>,
    /// The origin of its times.
    begin: MonoTime,
    /// The granted rate.
    rate: BitRate,
    /// Grants of the differences to titles with a higher rate.
    more: Vec<Grant>,
    over: Arc<Notify>,
}

/// Why nobody can listen.
#[derive(Debug)]
pub enum ListenError {
    /// No channel has this name.
    Unknown,
    /// The channel sends sound, which has no transport stream.
    Sound,
    /// The channel sends nothing now; why, if it will send again.
    Silent(Option<String>),
    /// There is no room for another listener.
    Refused(Refusal),
}

impl Live {
    pub(super) fn new(broker: Broker) -> Arc<Self> {
        Arc::new(Self { broker, state: Mutex::default(), changed: Notify::new() })
    }

    /// The channel begins a title.
    pub(super) fn begin(&self, spec: PartSpec) {
        let PartSpec { title, range, plan, rates: [rate, out], is_endless, slot } = spec;
        let mut state = self.state();
        state.numbers += 1;
        let (number, begun, sent) = (state.numbers, clock::now(), OnceLock::new());
        if !state.has_mirror {
            state.parts.clear();
        }
        let part = Part { number, title, range, plan, rate, out, is_endless, slot, begun, sent };
        state.parts.push_back(Arc::new(part));
        state.is_finished = false;
        drop(state);
        self.changed.notify_one();
    }

    /// The title that the channel has begun last ends after `sent` bytes.
    pub(super) fn end_part(&self, sent: u64) {
        if let Some(part) = self.state().parts.back() {
            // A part ends once.
            part.sent.set(sent).ok();
        }
        self.changed.notify_one();
    }

    /// The playlist has ended: listeners get its rest.
    pub(super) fn finish(&self) {
        self.state().is_finished = true;
        self.changed.notify_one();
    }

    /// The channel is removed: listeners end now.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_one();
    }

    /// Number of listeners.
    pub(super) fn listeners(&self) -> usize {
        self.state().listeners.len()
    }

    /// Admits a listener.
    pub(super) fn listen(
        self: &Arc<Self>,
        viewer: &Viewer,
    ) -> Result<AdmittedListener, ListenError> {
        let (part, has_mirror) = {
            let state = self.state();
            let part = state.parts.back().filter(|part| part.sent.get().is_none());
            let part = part.filter(|_| !state.is_closed).ok_or(ListenError::Silent(None))?;
            (Arc::clone(part), state.has_mirror)
        };
        let spec = DeliverySpec::live(&self.broker, &part.title, part.out).within_share(viewer);
        let grant = self.broker.admit(&spec).map_err(ListenError::Refused)?;
        let source = match has_mirror {
            true => None,
            false => Some(self.admit_source(&part, 0).map_err(ListenError::Refused)?),
        };
        let datagrams = part.out.bytes_in(AHEAD.times(ROOM)).0 / PAYLOAD.0;
        let (ours, ring) = ChunkRing::new((datagrams as usize).max(ROOM_MIN));
        Ok(AdmittedListener {
            live: Arc::clone(self),
            part,
            grant,
            source,
            ends: Some((ours, ring)),
        })
    }

    /// Admits the reading of a turn of `part`, from so many bytes behind its beginning on.
    fn admit_source(&self, part: &Part, from: u64) -> Result<Grant, Refusal> {
        self.broker.admit(&DeliverySpec::reader(&self.broker, &part.title, &part.reading(from)))
    }

    /// Adds a listener, and a mirror if there is none.
    fn add(
        self: &Arc<Self>,
        ring: Producer<TimedDatagram>,
        (rate, begin): (BitRate, MonoTime),
        source: Option<Grant>,
    ) -> (u64, Arc<Notify>) {
        let over = Arc::new(Notify::new());
        let mut state = self.state();
        state.ids += 1;
        let id = state.ids;
        let (more, ends) = (vec![], Arc::clone(&over));
        state.listeners.push(Listener { id, ring, begin, rate, more, over: ends });
        if !state.has_mirror {
            state.has_mirror = true;
            tokio::spawn(Mirror::new(Arc::clone(self), source).run());
        }
        (id, over)
    }

    fn remove(&self, id: u64) {
        let gone = self.state().listeners.extract_if(.., |listener| listener.id == id).next();
        // Its grants return outside of the lock.
        drop(gone);
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// The length of one turn.
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// How a turn is read. The surplus lets the mirror catch up after delays.
    fn reading(&self, from: u64) -> Reading {
        let rate = BitRate(self.rate.0 + self.rate.0 / 8);
        let range = self.range.start + from..self.range.end;
        Reading { range, block_list: None, rate, burst: rate.bytes_in(AHEAD) }
    }
}

/// An admitted listener. Dropping it ends its stream.
pub struct AdmittedListener {
    live: Arc<Live>,
    part: Arc<Part>,
    grant: Grant,
    /// The reading of the title, for a new mirror.
    source: Option<Grant>,
    ends: Option<(Producer<TimedDatagram>, ChunkRing)>,
}

impl AdmittedListener {
    /// The reserved rate.
    #[must_use]
    pub fn reserved(&self) -> BitRate {
        self.part.out
    }

    /// Sends the channel into a connection until one of both ends. The socket as in
    /// [`Grant::deliver`]; the outcome is complete if the channel has ended.
    pub async fn deliver(mut self, output: Output, framing: Framing) -> DeliveryResult {
        let (ours, ring) = self.ends.take().expect("it is delivered once");
        let begin = clock::now();
        let source = Source::Chunks { ring, begin, framing };
        let mut running = match self.grant.start_now(&self.part.title, source, output) {
            Ok(running) => running,
            Err(ended) => return ended,
        };
        let (id, over) = self.live.add(ours, (self.part.out, begin), self.source.take());
        let _place = ListenerEntry { live: &self.live, id };
        tokio::select! {
            delivered = running.ended() => return delivered,
            () = over.notified() => {}
        }
        if let Ok(delivered) = tokio::time::timeout(END_WAIT, running.ended()).await {
            return delivered;
        }
        // The end mark did not reach it.
        running.stop();
        match running.ended().await {
            stopped if stopped.outcome == Outcome::Stopped => {
                DeliveryResult { outcome: Outcome::Complete, ..stopped }
            }
            delivered => delivered,
        }
    }
}

/// A listener's place, left when it ends.
struct ListenerEntry<'a> {
    live: &'a Live,
    id: u64,
}

impl Drop for ListenerEntry<'_> {
    fn drop(&mut self) {
        self.live.remove(self.id);
    }
}

/// Minimum capacity of a ring.
const ROOM_MIN: usize = 64;
