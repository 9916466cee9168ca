//! The request for admission: the reads of a delivery, and the cost of sending.
//!
//! Promise: a specification is the sum of the costs of its source and its output. Admission does
//! not depend on kinds of sources or outputs.

use std::sync::Arc;

use tactus_core::classes::ClassNumber;
use tactus_core::cost::{Cost, Order, OutputCost, PacedRead, PlannedCost, TitlePart};
use tactus_core::datagrams::{Framing, Ip, PAYLOAD, Session};
use tactus_core::envelope::{Envelope, Spans};
use tactus_core::generated;
use tactus_core::ledger::Ledger;
use tactus_core::polyline::Polyline;
use tactus_core::rtp::frame;
use tactus_core::stagger::Tick;
use tactus_core::timeline;
use tactus_core::units::{BitRate, Bytes, KIB, Nanos};
use tactus_engine::message::{Rate, TitleId, VolumeId};
use tactus_storage::catalogue::OpenTitle;
use tactus_sys::clock;

use super::generated::{GeneratedRate, Reading};
use super::output::Output;
use super::playbacks::{ViewerId, id_of};
use super::prices;
use super::refusal::in_class;
use super::senders::Sender;
use super::viewer::{Device, Party, Viewer};
use super::{Broker, BrokerRules, is_short};

/// Deliveries of a title, one at a time, for admission.
#[derive(Clone)]
pub struct DeliverySpec<'a> {
    pub(super) title: &'a Arc<OpenTitle>,
    pub(super) needs: ResourceRequest,
    /// The granted rate; `None` for best effort.
    pub(super) rate: Option<Rate>,
    /// Its rates over time, if they are lower at times.
    pub(super) envelope: Option<Envelope>,
    /// It is a short answer if it has no rate.
    pub(super) is_short: bool,
    /// The client whose share it counts for.
    pub(super) viewer: Option<&'a Viewer>,
    /// The title is arbitrary: it does not become hot.
    pub(super) is_of_any_title: bool,
    /// It needs more memory than its rate, and leaves that to others if much is taken.
    pub(super) takes_spare: bool,
    /// The delivery of a session that it may succeed.
    pub(super) session: Option<ViewerId>,
    /// Only for a viewer that seeks in the title and whose room has been kept, or that returns.
    pub(super) is_for_successors: bool,
    /// Its room is kept for the next stream of its viewer when all of it has been sent.
    pub(super) keeps_room: bool,
    /// The subject of the request, for a refusal.
    pub(super) what: String,
}

/// The resources of a delivery.
#[derive(Clone, Copy)]
pub(super) struct ResourceRequest {
    /// The disk that the title lies on.
    pub(super) volume: VolumeId,
    pub(super) read: Read,
    pub(super) output: OutputCost,
    pub(super) sender: Sender,
}

/// The reads of a title.
#[derive(Clone, Copy)]
pub(super) enum Read {
    /// Done by another stream.
    Elsewhere,
    /// At an exact rate. Admission finds out whether the title is pinned.
    Paced(PacedRead, TitlePart),
    /// In best-effort time, for a download or a short answer.
    BestEffort(TitlePart, BestEffortKind),
}

/// A delivery without a rate. Each kind has slots of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BestEffortKind {
    Download,
    ShortAnswer,
}

/// Limit of the bytes that a reader gets at once, if the shortest tick allows it: a third of its
/// kernel buffer, so it may miss two visits.
const PIECE_MAX: Bytes = Bytes(64 * KIB);

/// HTTP chunks of a live stream: one in each of 100 visits in a second, with 8 bytes of its own.
const CHUNK_HEADS: BitRate = BitRate(100 * 8 * 8);

impl<'a> DeliverySpec<'a> {
    fn new(
        title: &'a Arc<OpenTitle>,
        needs: ResourceRequest,
        rate: Option<Rate>,
        len: Bytes,
        what: String,
    ) -> Self {
        let is_short = is_short(rate, len);
        Self {
            title,
            needs,
            rate,
            envelope: None,
            is_short,
            viewer: None,
            is_of_any_title: false,
            takes_spare: false,
            session: None,
            is_for_successors: false,
            keeps_room: needs.without_rate().is_none(),
            what,
        }
    }

    /// `len` bytes of a title into a connection, at a rate or as best effort.
    /// The tick is lengthened or shortened to suit the rate.
    pub fn connection(
        broker: &Broker,
        title: &'a Arc<OpenTitle>,
        rate: Option<Rate>,
        len: Bytes,
    ) -> Self {
        let rate = rate.map(|rate| Rate { tick: Tick::for_rate(rate.rate, rate.tick), ..rate });
        // The length of a growing title is unknown.
        let title_len = if title.following.is_none() { title.len } else { Bytes(u64::MAX) };
        let part = TitlePart { len, title_len };
        let needs = ResourceRequest::of_connection(broker.rules(), title.volume, rate, part);
        let what = match rate {
            Some(Rate { rate, .. }) => format!("a stream of {rate}"),
            None => "a download without a rate".to_owned(),
        };
        Self::new(title, needs, rate, len, what)
    }

    /// The same delivery by the due times of `line`. Admission reserves the rate of each second
    /// instead of the highest rate, which is that of the request.
    #[must_use]
    pub fn by_line(mut self, broker: &Broker, line: &Polyline) -> Self {
        let cycle = broker.cycle_of(self.needs.volume);
        self.envelope = Envelope::of(line, Spans::of(cycle, broker.rules().behind_max));
        self
    }

    /// The same as a short answer without a rate, however long it is.
    #[must_use]
    pub fn short(mut self) -> Self {
        self.is_short = self.rate.is_none();
        self
    }

    /// The same within the share of a client. A short answer without a rate does not count as a
    /// download.
    #[must_use]
    pub fn within_share(mut self, viewer: &'a Viewer) -> Self {
        self.viewer = Some(viewer);
        if let Read::BestEffort(_, without) = &mut self.needs.read
            && self.is_short
        {
            *without = BestEffortKind::ShortAnswer;
        }
        self
    }

    /// The same, but only while half of the memory is free. Another specification has to follow.
    #[must_use]
    pub fn with_spare_memory(mut self) -> Self {
        self.takes_spare = true;
        self
    }

    /// The same, but only for a viewer that seeks in this title and whose room has been kept, or
    /// that returns after its room: a pace below the needs of the content, for when no other has
    /// room.
    #[must_use]
    pub fn for_successors(mut self) -> Self {
        self.is_for_successors = true;
        // Also without a rate: the viewer seeks on.
        self.keeps_room = true;
        self
    }

    /// The same for a part of what a player needs, as a segment or a look at a title: the room is
    /// free when all of it has been sent.
    #[must_use]
    pub fn without_successor(mut self) -> Self {
        self.keeps_room = false;
        self
    }

    /// The same as delivery `nth` of the session with this id. It takes the room that the one
    /// before has [vacated](super::Grant::vacate).
    #[must_use]
    pub fn of_session(mut self, session: u64, nth: u32) -> Self {
        let device = Device::of(&nth.to_le_bytes(), Some(&session.to_le_bytes()));
        // No principal has this name.
        self.session = Some((Party::Principal(String::new()), device));
        self.keeps_room = false;
        self
    }

    /// The viewer and the title, if its streams may succeed each other.
    pub(super) fn playback(&self) -> Option<(ViewerId, TitleId)> {
        let viewer = || self.viewer.and_then(id_of);
        Some((self.session.clone().or_else(viewer)?, self.title.id))
    }

    /// The same for bytes of an arbitrary title of the disk: it does not become hot, and the
    /// delivery does not rely on a hot one.
    #[must_use]
    pub fn of_any_title(mut self) -> Self {
        self.is_of_any_title = true;
        if let Read::Paced(_, part) | Read::BestEffort(part, _) = &mut self.needs.read {
            part.title_len = Bytes(u64::MAX);
        }
        self
    }

    /// `len` bytes of a title into the ring of a local client.
    pub fn ring(broker: &Broker, title: &'a Arc<OpenTitle>, rate: Rate, len: Bytes) -> Self {
        let tick = Tick::for_rate(rate.rate, rate.tick);
        let rate = Rate { tick, ..rate };
        let spec = Self::connection(broker, title, Some(rate), len);
        Self { needs: spec.needs.into_ring(rate.rate, tick), ..spec }
    }

    /// A title for a reader in this process, as described by `reading`.
    pub fn reader(broker: &Broker, title: &'a Arc<OpenTitle>, reading: &Reading) -> Self {
        let Reading { ref range, ref block_list, rate, burst } = *reading;
        let fits = |tick: &Tick| rate.bytes_in(tick.span()) <= PIECE_MAX;
        let tick = [Tick::Ms62, Tick::Ms25].into_iter().find(fits);
        let tick = Tick::for_rate(rate, tick.unwrap_or(Tick::Ms10));
        let order = if block_list.is_some() { Order::Scattered } else { Order::Once };
        let read = PacedRead { rate, tick, burst, order, is_pinned: false };
        let len = Bytes(range.end - range.start);
        let part = TitlePart { len, title_len: title.len };
        let cost = broker.rules().connections[usize::from(title.volume.0)];
        let output = OutputCost::reader(cost, rate, tick);
        let what = format!("a stream of {rate}");
        let rate = Some(Rate { rate, burst, tick });
        let read = Read::Paced(read, part);
        let needs = ResourceRequest { volume: title.volume, read, output, sender: Sender::AnyLink };
        Self::new(title, needs, rate, len, what)
    }

    /// A title as datagrams at `rate`, its peak rate, once or repeatedly after `turn` bytes. The
    /// output has the rate `out`: more than `rate` with stuffing.
    pub fn datagrams(
        broker: &Broker,
        title: &'a Arc<OpenTitle>,
        [rate, out]: [BitRate; 2],
        (framing, output): (Framing, &Output),
        turn: Option<Bytes>,
    ) -> Self {
        let wire = framing.wire_rate(out, output.ip());
        let (payload, burst, class) = (framing.payload(), output.burst(), output.class());
        let output = (payload, burst, class, output.sender());
        Self::packets(broker, title, rate, [out, wire], output, turn)
    }

    /// A title at `rate` as RTP in a connection to a peer that speaks `ip`.
    pub fn interleaved(broker: &Broker, title: &'a Arc<OpenTitle>, rate: BitRate, ip: Ip) -> Self {
        // A segment of TCP carries slightly more than one frame, and its header is longer than that
        // of UDP. The frame header covers the difference.
        let session = Session { source: 0, sequence: 0, timestamp: 0 };
        let wire = Framing::Rtp(session).wire_rate(rate, ip);
        let wire = BitRate(wire.0 + wire.0 * frame::HEAD as u64 / 1316);
        let output = (PAYLOAD, Nanos(0), None, Sender::AnyLink);
        Self::packets(broker, title, rate, [rate, wire], output, None)
    }

    /// A title at `rate` as packets. Their payload has the rate `out`; with headers they have the
    /// rate `wire`.
    fn packets(
        broker: &Broker,
        title: &'a Arc<OpenTitle>,
        rate: BitRate,
        [out, wire]: [BitRate; 2],
        (payload, burst, class, sender): (Bytes, Nanos, Option<ClassNumber>, Sender),
        turn: Option<Bytes>,
    ) -> Self {
        let sending = broker.datagram_cost().of(out, payload, burst);
        let tick = Tick::not_under(burst);
        let order = turn.map_or(Order::Once, Order::Repeating);
        let read = PacedRead { rate, tick, burst: Bytes(0), order, is_pinned: false };
        // A repeating title may need the same block twice at once.
        let part = TitlePart::whole(Bytes(u64::MAX));
        let output = OutputCost::datagrams(wire, sending, class);
        let what = format!("packets of {rate}{}", in_class(class, broker.rules()));
        let rate = Some(Rate { rate, burst: Bytes(0), tick });
        let read = Read::Paced(read, part);
        let needs = ResourceRequest { volume: title.volume, read, output, sender };
        Self::new(title, needs, rate, title.len, what)
    }

    /// A live stream into a connection at `rate`, whose titles another stream reads.
    pub fn live(broker: &Broker, title: &'a Arc<OpenTitle>, rate: BitRate) -> Self {
        let tick = Tick::Ms10;
        let cost = broker.rules().connections[usize::from(title.volume.0)];
        let output = OutputCost::connection(cost, BitRate(rate.0 + CHUNK_HEADS.0), tick);
        let what = format!("a live stream of {rate}");
        let rate = Some(Rate { rate, burst: Bytes(0), tick });
        let (volume, read) = (title.volume, Read::Elsewhere);
        let needs = ResourceRequest { volume, read, output, sender: Sender::AnyLink };
        Self::new(title, needs, rate, title.len, what)
    }

    /// Datagrams or frames that are generated from a title.
    pub fn generated(
        broker: &Broker,
        title: &'a Arc<OpenTitle>,
        needs: GeneratedRate,
        output: &Output,
    ) -> Self {
        let GeneratedRate { rate, datagrams } = needs;
        let class = output.class();
        // A segment of TCP carries slightly more than one frame, which covers its longer header.
        let wire = generated::wire_rate(rate, datagrams, output.ip());
        let sending = broker.datagram_cost().first.times(datagrams.into());
        let cost = OutputCost::datagrams(wire, sending, class);
        let what = format!("a stream of {rate}{}", in_class(class, broker.rules()));
        let rate = Some(Rate { rate: wire, burst: Bytes(0), tick: Tick::Ms10 });
        let (volume, sender) = (title.volume, output.sender());
        let needs = ResourceRequest { volume, read: Read::Elsewhere, output: cost, sender };
        Self::new(title, needs, rate, title.len, what)
    }
}

impl ResourceRequest {
    /// A title that is read once, into a connection.
    pub(super) fn of_connection(
        rules: &BrokerRules,
        volume: VolumeId,
        rate: Option<Rate>,
        part: TitlePart,
    ) -> Self {
        let (read, output) = match rate {
            Some(Rate { rate, burst, tick }) => {
                let reading = PacedRead { rate, tick, burst, order: Order::Once, is_pinned: false };
                let cost = rules.connections[usize::from(volume.0)];
                (Read::Paced(reading, part), OutputCost::connection(cost, rate, tick))
            }
            None => (Read::BestEffort(part, BestEffortKind::Download), OutputCost::NONE),
        };
        Self { volume, read, output, sender: Sender::AnyLink }
    }

    /// The same into the ring of a local client, which does not use the link.
    fn into_ring(self, rate: BitRate, tick: Tick) -> Self {
        Self { output: OutputCost::reader(prices::RING, rate, tick), ..self }
    }

    /// The cost, and the limit of the blocks of the delivery.
    pub(super) fn cost(&self, ledger: &Ledger, is_pinned: bool) -> (Cost, u32) {
        let disk = ledger.disk(u32::from(self.volume.0));
        let source = match self.read {
            Read::Elsewhere => disk.nothing(),
            Read::Paced(reading, part) => disk.paced(&PacedRead { is_pinned, ..reading }, part),
            Read::BestEffort(part, _) => disk.best_effort(part),
        };
        (Cost::stream(source.cost, self.output), source.window)
    }

    /// Whether all of it is due at once, as the index of a movie is, and is more than the small
    /// window of a pinned title holds.
    pub(super) fn is_long_burst(&self, ledger: &Ledger) -> bool {
        let Read::Paced(PacedRead { burst, .. }, part) = self.read else { return false };
        burst >= part.len && self.exceeds_pin(ledger)
    }

    /// Whether it needs more than the small window of a pinned title.
    pub(super) fn exceeds_pin(&self, ledger: &Ledger) -> bool {
        self.cost(ledger, false).1 > self.cost(ledger, true).1
    }

    /// The cost over time of a delivery by `envelope` that begins now, and the limit of its blocks.
    pub(super) fn cost_over_time(
        &self,
        ledger: &Ledger,
        rules: &BrokerRules,
        envelope: Option<&Envelope>,
        is_pinned: bool,
    ) -> (PlannedCost, u32) {
        let (peak, window) = self.cost(ledger, is_pinned);
        // The small window of a pinned title may shorten the burst, and the stream then catches up
        // at its highest rate.
        let is_whole = !is_pinned || !self.exceeds_pin(ledger);
        let envelope = envelope.filter(|_| is_whole);
        let (Some(envelope), Read::Paced(reading, part)) = (envelope, self.read) else {
            return (peak.into(), window);
        };
        let PacedRead { tick, burst, .. } = reading;
        let at = |rate| {
            let paced = Some(Rate { rate, burst, tick });
            let needs = Self::of_connection(rules, self.volume, paced, part);
            let needs = if self.output.uses_link() { needs } else { needs.into_ring(rate, tick) };
            needs.cost(ledger, is_pinned).0
        };
        let begin = timeline::slot_of(clock::now());
        (PlannedCost::following(envelope, begin, peak, at), window)
    }

    /// The kind of a delivery without a rate.
    pub(super) fn without_rate(&self) -> Option<BestEffortKind> {
        match self.read {
            Read::BestEffort(_, kind) => Some(kind),
            Read::Elsewhere | Read::Paced(..) => None,
        }
    }
}
