//! The packet server: a link server whose streams leave as datagrams, each at its own time.
//!
//! Promise: no datagram leaves before it is due. All datagrams that are due in a tick leave in one
//! turn. A full UDP output makes its own streams late and loses nothing. A message that the kernel
//! refuses has no other effect on its stream. After a stall of the machine or of a disk, clocks are
//! moved instead of sending a burst. It knows no titles and no disks: it is fed leases in order,
//! and returns each. The argument: `docs/design/packets.md`.

mod ahead;
mod batch;
mod classes;
mod copy;
mod entry;
mod full;
mod generated;
mod pieces;

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Cutter, Cutting, Framing, Gathering, Phase, Places, Plan};
use tactus_core::mutant;
use tactus_core::pacer::{Class, Limits, Pacer, Packet, STALL_MAX};
use tactus_core::ports::{PacketPort, SocketHandle};
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos, SECOND};
use tactus_ring::spsc::Consumer;

use crate::counters::{ClassCounters, PacketCounters, StreamCounters};
use crate::egress::{BlockPart, DeliveryRings, Memory, Second, StreamSet};
use crate::internal::{FromLink, LinkMessage, Open, OpenBlocks, OpenContent, ToLink};
use crate::message::{ClassChange, Datagrams, Outcome, PacketClass, Rate, StreamId};
use crate::packets::batch::{Batch, DueMessage};
use crate::packets::classes::Classes;
use crate::packets::entry::{Entry, FinalState};
use crate::packets::full::FullUdpOutputs;
use crate::packets::pieces::Pieces;
use crate::pool::Pool;
use crate::server::Server;

/// A network path for datagrams and the streams on it.
pub(crate) struct PacketServer {
    port: Box<dyn PacketPort>,
    tick: Nanos,
    /// The time between handing a message to the port and its due time.
    ahead: Nanos,
    /// When the port needs a turn.
    wanted: Option<MonoTime>,
    /// Number of streams.
    open: usize,
    memories: Vec<Memory>,
    rings: DeliveryRings<Datagrams>,
    changes: Consumer<ClassChange>,
    entries: Vec<Option<Entry>>,
    /// Generated streams, by the same slots.
    generated: Vec<Option<generated::Entry>>,
    /// The generated streams whose ring was empty at the last look.
    empty: StreamSet,
    /// Empty except during the next look.
    looked_at: StreamSet,
    fed: Pool<BlockPart>,
    /// Read-ahead of streams whose blocks are in the page cache.
    pieces: Pieces,
    pacer: Pacer,
    /// The streams that leave in the same turns.
    places: Places,
    classes: Classes,
    /// The stream of each class.
    streams_of: Vec<StreamKind>,
    /// The last turn of the pacer whose streams were looked up.
    looked_up: u64,
    /// The last stream of each slot.
    ended: Vec<Option<FinalState>>,
    /// Streams whose predecessor has ended.
    following: Vec<StreamId>,
    batch: Batch,
    full: FullUdpOutputs,
    moved: StreamSet,
    /// Room in each ring of answers that the messages of moved clocks leave free for all others.
    reserved: usize,
    counters: Arc<PacketCounters>,
    streams: Arc<[StreamCounters]>,
}

/// The stream of a class of the pacer, by its slot. A search in the tables of both kinds would
/// touch one more cache line for each message.
#[derive(Clone, Copy)]
enum StreamKind {
    /// A stream of a title.
    Read(u32),
    /// A generated stream.
    Generated(u32),
}

/// The parts of a packet server.
pub(crate) struct PacketParts {
    pub(crate) port: Box<dyn PacketPort>,
    /// The rate of the link, with all headers on the wire.
    pub(crate) rate: BitRate,
    pub(crate) tick: Nanos,
    pub(crate) classes: Vec<PacketClass>,
    pub(crate) memories: Vec<Memory>,
    pub(crate) rings: DeliveryRings<Datagrams>,
    /// Changes of the limits of classes.
    pub(crate) changes: Consumer<ClassChange>,
    /// Limit of leases held at once.
    pub(crate) leases: usize,
    pub(crate) counters: Arc<PacketCounters>,
    pub(crate) class_counters: Arc<[ClassCounters]>,
    pub(crate) streams: Arc<[StreamCounters]>,
}

impl PacketServer {
    pub(crate) fn new(parts: PacketParts) -> Self {
        let streams = parts.streams.len();
        let classes = parts.classes.len();
        let limits = Limits { classes: streams + classes, parents: classes, tick: parts.tick };
        let mut pacer = Pacer::new(limits, parts.rate, MonoTime(0));
        let classes = Classes::new(&mut pacer, &parts.classes, parts.class_counters);
        let is_cached = parts.memories.iter().any(|memory| matches!(memory, Memory::PageCache));
        Self {
            ahead: parts.port.ahead(),
            port: parts.port,
            tick: parts.tick,
            wanted: None,
            open: 0,
            memories: parts.memories,
            rings: parts.rings,
            changes: parts.changes,
            entries: (0..streams).map(|_| None).collect(),
            generated: (0..streams).map(|_| None).collect(),
            empty: StreamSet::new(streams),
            looked_at: StreamSet::new(streams),
            fed: Pool::new(parts.leases),
            pieces: Pieces::new(if is_cached { streams } else { 0 }),
            pacer,
            places: Places::new(parts.rate, parts.tick),
            classes,
            streams_of: vec![StreamKind::Read(0); limits.classes + 1],
            looked_up: 0,
            ended: vec![None; streams],
            following: Vec::with_capacity(streams),
            batch: Batch::new(),
            full: FullUdpOutputs::new(streams),
            moved: StreamSet::new(streams),
            reserved: parts.leases + 2 * streams,
            counters: parts.counters,
            streams: parts.streams,
        }
    }

    /// Applies changes of classes: as many as the ring holds, each a constant amount of work.
    fn take_changes(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(change) = self.changes.pop() {
            any = true;
            self.classes.change(now, now + self.ahead, &mut self.pacer, change);
        }
        any
    }

    fn take_requests(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(request) = self.rings.pop() {
            any = true;
            match request {
                ToLink::Open(open) => self.open(now, open),
                ToLink::Message(LinkMessage::Feed { stream, lease, at, len, offset }) => {
                    self.feed(now, stream, BlockPart { lease, at, len, offset });
                }
                ToLink::Message(LinkMessage::Settle { stream, len }) => {
                    self.settle(now, stream, len)
                }
                ToLink::Message(LinkMessage::Interleave { stream, message }) => {
                    // Datagrams have no place for interleaved messages.
                    self.answer(FromLink::Interleaved { stream, message, is_sent: false });
                }
                ToLink::Message(LinkMessage::Close(stream)) => {
                    if self.find(stream).is_some() || self.find_generated(stream).is_some() {
                        self.close(stream.index, Outcome::Stopped);
                    }
                }
            }
        }
        any
    }

    fn open(&mut self, now: MonoTime, open: Open<Datagrams>) {
        let Open { stream, content, output } = open;
        match content {
            OpenContent::Blocks(blocks) => self.open_blocks(now, stream, &blocks, output),
            OpenContent::Chunks(chunks) => self.make(now, stream, chunks, output),
        }
    }

    fn open_blocks(
        &mut self,
        now: MonoTime,
        stream: StreamId,
        blocks: &OpenBlocks,
        output: Datagrams,
    ) {
        let index = stream.index;
        let Some(Rate { rate, .. }) = blocks.rate else {
            // Datagrams cannot be best effort: `Delivery` refuses such a combination.
            let (outcome, sent) = (Outcome::Stopped, Bytes(0));
            return self.answer(FromLink::Closed { stream, outcome, sent, workspace: None });
        };
        let stuffed = blocks.plan.as_ref().and_then(|plan| plan.stuff);
        let out = stuffed.unwrap_or(blocks.framing.rate_out(rate));
        let class = Class::stream(blocks.framing.wire_rate(out, output.ip()));
        let parent = self.classes.parent_of(&output);
        let class = self.pacer.add(parent, class).expect("there is a class for each stream");
        self.streams_of[class.index as usize] = StreamKind::Read(index);
        let clock = ByteClock::new(now + self.ahead, rate);
        let cutting = (blocks.framing, output.burst, blocks.turn, blocks.plan.clone());
        let cutter = self.cutter(cutting, clock);
        let before = output.after.filter(|&before| self.find(before).is_some());
        let mut entry = Entry::new(stream, blocks, output, class, cutter);
        entry.is_waiting = before.is_some();
        if let Some(before) = before {
            entry_of(&mut self.entries, before.index).next = Some(stream);
        }
        let place = &mut self.entries[index as usize];
        assert!(place.is_none(), "a place is opened when it is free");
        *place = Some(entry);
        self.pieces.clear(index);
        self.open += 1;
        self.streams[index as usize].rate.set(out.0);
        if before.is_none() {
            self.begin(now, index);
        }
    }

    /// Gives a stream its clock: it follows its predecessor, or starts by itself.
    fn begin(&mut self, now: MonoTime, index: u32) {
        let entry = entry_of(&mut self.entries, index);
        let cutting = (entry.framing, entry.output.burst, entry.turn, entry.plan.clone());
        let rate = entry.clock().rate();
        let ended = entry.output.after.and_then(|after| {
            self.ended[after.index as usize].filter(|ended| ended.stream == after)
        });
        if let Some(FinalState { trace, session, .. }) = ended {
            let cutter = self.cutter(cutting, ByteClock::new(trace.due.max(now), rate));
            let phase = self.phase(index, &cutter);
            let entry = entry_of(&mut self.entries, index);
            entry.cutter = match entry.is_sound() {
                true => cutter.at_phase(phase).following(&trace),
                false => cutter.following(&trace).in_step_with(phase),
            };
            entry.session = session;
        } else {
            let begin = entry.plan.as_ref().and_then(|plan| plan.begin).unwrap_or_default();
            let cutter = self.cutter(cutting, ByteClock::new(begin.max(now + self.ahead), rate));
            let phase = self.phase(index, &cutter);
            entry_of(&mut self.entries, index).cutter = cutter.at_phase(phase);
        }
        let entry = entry_of(&mut self.entries, index);
        entry.is_waiting = false;
        let (stream, clock) = (entry.stream, entry.clock());
        let counters = &self.streams[index as usize];
        counters.epoch.set(entry.cutter.epoch().0);
        counters.session_packets.set(entry.session.packets);
        counters.session_bytes.set(entry.session.bytes);
        self.answer(FromLink::Clock { stream, clock });
        self.offer(now, index);
    }

    /// The phase of a stream that begins: that of its place, if it has one. All sound has the phase
    /// of its clock.
    fn phase(&mut self, index: u32, cutter: &Cutter) -> Phase {
        let entry = entry_of(&mut self.entries, index);
        if entry.is_sound() {
            return Phase(0);
        }
        if entry.place.is_none() {
            entry.place = self.places.enter(cutter.cycle(), cutter.grid());
        }
        entry.place.map_or(Phase::spread(index), |place| self.places.phase(place))
    }

    /// Gives the place of an ended stream to its successor, if that has the same cycle and so
    /// continues at the same phase.
    fn leave_place(&mut self, entry: &Entry) {
        let Some(place) = entry.place else { return };
        let cycle = self.places.cycle(place);
        let next = entry.next.and_then(|next| self.find(next));
        match next.filter(|next| next.is_waiting && next.cutter.cycle() == cycle) {
            Some(next) => next.place = Some(place),
            None => self.places.leave(place),
        }
    }

    /// Begins the streams whose predecessors have ended.
    fn begin_following(&mut self, now: MonoTime) -> bool {
        let any = !self.following.is_empty();
        while let Some(stream) = self.following.pop() {
            if self.find(stream).is_some_and(|entry| entry.is_waiting) {
                self.begin(now, stream.index);
            }
        }
        any
    }

    fn cutter(
        &self,
        (framing, burst, turn, plan): (Framing, Nanos, Option<Bytes>, Option<Arc<Plan>>),
        clock: ByteClock,
    ) -> Cutter {
        // A port with transmit times of its own gains nothing from bursts.
        let burst = if self.ahead > Nanos(0) { Nanos(0) } else { burst };
        let gathering = Gathering::of(burst, self.tick);
        let segments_max = self.port.segments_max();
        Cutter::new(Cutting { framing, clock, gathering, segments_max, turn, plan })
    }

    fn feed(&mut self, now: MonoTime, stream: StreamId, fed: BlockPart) {
        if self.find(stream).is_none() {
            // Closed while the lease was on its way.
            self.answer(FromLink::Returned { stream, lease: fed.lease });
            return;
        }
        let entry = entry_of(&mut self.entries, stream.index);
        entry.available += Bytes(u64::from(fed.len));
        self.fed.push_back(&mut entry.fed, fed);
        self.offer(now, stream.index);
    }

    /// Sets the length of a stream, which is known now.
    fn settle(&mut self, now: MonoTime, stream: StreamId, len: Bytes) {
        let Some(entry) = self.find(stream) else { return };
        entry.len = Some(len);
        if entry.is_complete() {
            self.close(stream.index, Outcome::Complete);
        } else {
            self.offer(now, stream.index);
        }
    }

    /// Gives the pacer a stream's next message, if the pacer has none and the message is in memory.
    fn offer(&mut self, now: MonoTime, index: u32) {
        let entry = entry_of(&mut self.entries, index);
        if entry.offered.is_some() || entry.is_waiting {
            return;
        }
        let was_starved = entry.is_starved;
        let Some(mut message) = entry.next() else { return };
        if was_starved && message.due < now {
            if !entry.is_growing() && !entry.is_behind {
                self.counters.underruns.add(1);
                self.streams[index as usize].underruns.add(1);
            }
            let late = now.since(message.due);
            // Missing bytes are delayed or left out, not sent in a burst.
            if entry.leaves_out(late) {
                let bytes = entry.leave_out(now, late);
                self.use_up(index, bytes);
            } else {
                entry.delay(late);
                entry.is_behind = false;
                self.moved.add(index);
            }
            let entry = entry_of(&mut self.entries, index);
            if entry.is_complete() {
                return self.close(index, Outcome::Complete);
            }
            let Some(next) = entry.next() else { return };
            message = next;
        }
        let entry = entry_of(&mut self.entries, index);
        entry.offered = Some(message);
        let packet = Packet { due: entry.cutter.leaves(&message), bytes: entry.wire(&message) };
        self.pacer.offer(now + self.ahead, entry.class, packet);
    }

    /// Sends the messages that are due in this tick.
    fn turn(&mut self, now: MonoTime) -> bool {
        let mut any = self.look_at_full(now);
        loop {
            self.flush(now);
            self.gather(now);
            if self.batch.is_empty() {
                return any;
            }
            any = true;
        }
    }

    fn gather(&mut self, now: MonoTime) {
        self.pacer.turn_to(now + self.ahead);
        self.look_ahead(now);
        while self.batch.has_room() {
            let Some(departure) = self.pacer.poll_send(now + self.ahead) else { return };
            let index = match self.streams_of[departure.class.index as usize] {
                StreamKind::Read(index) | StreamKind::Generated(index) => index,
            };
            if self.full.is_empty() || !self.full.waits(index, self.udp_output_of(index)) {
                self.depart(now, index);
            }
        }
    }

    fn udp_output_of(&self, index: u32) -> SocketHandle {
        let (read, generated) = (&self.entries[index as usize], &self.generated[index as usize]);
        let of_generated = || generated.as_ref().map(|entry| entry.output.socket);
        let udp_output = read.as_ref().map(|entry| entry.output.socket).or_else(of_generated);
        udp_output.expect("who is sent for is open")
    }

    /// Puts the offered message of a stream into the batch, and offers the next one.
    fn depart(&mut self, now: MonoTime, index: u32) {
        let Some(entry) = &mut self.entries[index as usize] else {
            self.gather_generated(now, index);
            return;
        };
        let message = entry.offered.take().expect("the pacer sends what it was offered");
        let lateness = now.since(entry.cutter.leaves(&message));
        if let Some(second) = entry.window.visit(now, message.at, false) {
            self.count_second(now, index, second);
        }
        self.counters.lateness.record(lateness.0);
        self.streams[index as usize].lateness_max.raise(lateness.0);
        let entry = entry_of(&mut self.entries, index);
        self.batch.add(index, entry, message);
        let is_changed = entry.cutter.changes(&message);
        let in_cache = matches!(self.memories[entry.volume], Memory::PageCache);
        let is_copied = is_changed || in_cache || !self.watch(index, &message);
        if !is_copied {
            self.batch.add_headers(entry_of(&mut self.entries, index), &message);
        } else if let Err(errno) = self.copy(now, index, message) {
            self.close(index, Outcome::DiskFailed(errno));
            return;
        }
        entry_of(&mut self.entries, index).cutter.advance(&message);
        if mutant!(StallOwed, false, lateness > STALL_MAX) {
            // Late because of its UDP output, or because of many short stalls that were each too
            // short to move all clocks.
            entry_of(&mut self.entries, index).delay(lateness);
            self.counters.stalled_streams.add(1);
            self.streams[index as usize].count_stall(lateness);
            self.moved.add(index);
        }
        self.offer(now, index);
    }

    /// Notes that a gathered message has left, or was refused.
    fn leave(&mut self, gathered: &DueMessage, was_taken: bool) {
        let (index, message) = (gathered.index, gathered.message);
        if was_taken {
            self.counters.messages.add(1);
            self.counters.datagrams.add(u64::from(message.datagrams));
            self.counters.bytes.add(message.bytes.0);
            let stream = &self.streams[index as usize];
            stream.bytes.add(message.bytes.0);
            if let Some(entry) = &mut self.entries[index as usize] {
                stream.epoch.set(entry.cutter.epoch().0);
                let session = &mut entry.session;
                session.packets += u64::from(message.datagrams);
                session.bytes += message.bytes.0;
                stream.session_packets.set(session.packets);
                stream.session_bytes.set(session.bytes);
            }
        } else {
            self.counters.refused.add(u64::from(message.datagrams));
        }
        if gathered.generated.is_some() {
            self.leave_generated(index, was_taken);
            return;
        }
        self.use_up(index, message.taken);
        if entry_of(&mut self.entries, index).is_complete() {
            self.close(index, Outcome::Complete);
        }
    }

    /// Counts bytes as sent and returns the used leases.
    fn use_up(&mut self, index: u32, bytes: Bytes) {
        let entry = entry_of(&mut self.entries, index);
        entry.sent += bytes;
        entry.available -= bytes;
        let mut left = bytes.0 as u32;
        while let Some(at) = self.fed.front(&entry.fed) {
            let fed = self.fed.get_mut(at);
            let used = fed.len.min(left);
            fed.at += used;
            fed.len -= used;
            left -= used;
            if fed.len > 0 {
                break;
            }
            let fed = self.fed.pop_front(&mut entry.fed).expect("the front is there");
            self.rings.answer(FromLink::Returned { stream: entry.stream, lease: fed.lease });
        }
        assert!(left == 0, "only what was fed is sent");
    }

    fn close(&mut self, index: u32, outcome: Outcome) {
        if let Some(generated) = self.generated[index as usize].take() {
            self.close_generated(index, &generated, outcome);
            return;
        }
        let mut entry = self.entries[index as usize].take().expect("a stream is closed once");
        self.open -= 1;
        let stream = entry.stream;
        entry.cutter.keep();
        mutant!(CancelForgotten, (), self.cancel(index));
        self.pacer.remove(entry.class);
        while let Some(fed) = mutant!(FedKept, None, self.fed.pop_front(&mut entry.fed)) {
            self.answer(FromLink::Returned { stream, lease: fed.lease });
        }
        self.streams[index as usize].clear();
        // A stream that has never begun leaves no state.
        self.ended[index as usize] = (!entry.is_waiting).then(|| FinalState {
            stream,
            trace: entry.cutter.trace(entry.sent),
            session: entry.session,
        });
        self.leave_place(&entry);
        self.following.extend(entry.next);
        let sent = entry.sent;
        // Its plan is dropped before the delivery server may report that it is free.
        drop(entry);
        self.answer(FromLink::Closed { stream, outcome, sent, workspace: None });
    }

    /// Moves all clocks after a stall of the machine.
    fn watch_stall(&mut self, now: MonoTime) {
        let Some(expected) = self.pacer.poll_timeout() else { return };
        let pause = (now + self.ahead).since(expected);
        // If full UDP outputs hold all memory, the pacer is not polled, so a pause is no stall.
        if !self.batch.is_stuck() && pause > STALL_MAX {
            self.pause(now, pause);
        }
    }

    fn pause(&mut self, now: MonoTime, pause: Nanos) {
        self.counters.stalls.add(1);
        self.full.forget_waiting();
        for index in 0..self.entries.len() as u32 {
            if self.generated[index as usize].is_some() {
                self.count_stall(index, pause);
                self.pause_generated(now, index, pause);
            }
            let Some(entry) = &mut self.entries[index as usize] else { continue };
            if entry.is_waiting {
                continue;
            }
            self.count_stall(index, pause);
            let entry = entry_of(&mut self.entries, index);
            entry.delay(pause);
            self.pacer.withdraw(entry.class);
            entry.offered = None;
            self.moved.add(index);
            self.offer(now, index);
        }
    }

    fn count_stall(&self, index: u32, pause: Nanos) {
        self.counters.stalled_streams.add(1);
        self.counters.lateness.record(pause.0);
        self.streams[index as usize].count_stall(pause);
    }

    /// Sends moved clocks to the delivery servers, as far as the rings have room beside the
    /// reserved part.
    fn tell_moved(&mut self) {
        while self.rings.have_room_beside(self.reserved)
            && let Some(index) = self.moved.take()
        {
            if let Some(entry) = &self.entries[index as usize] {
                let (stream, clock) = (entry.stream, entry.clock());
                self.answer(FromLink::Clock { stream, clock });
            }
        }
    }

    fn count_second(&self, now: MonoTime, index: u32, second: Second) {
        let stream = &self.streams[index as usize];
        stream.second_bytes.set(second.bytes.0);
        let entry = self.entries[index as usize].as_ref().expect("who is counted is open");
        let deviation = if entry.cutter.is_even() {
            second.deviation(BitRate(stream.rate.value()))
        } else {
            // At a variable rate: compared with the bytes that were due in this second.
            let end = MonoTime(now.0 / SECOND.0 * SECOND.0);
            let before = entry.cutter.allowed(end.before(SECOND));
            second.deviation_from(entry.cutter.allowed(end).saturating_sub(before))
        };
        stream.deviation.set(deviation);
        self.counters.deviation.record(deviation);
    }

    fn find(&mut self, stream: StreamId) -> Option<&mut Entry> {
        self.entries[stream.index as usize].as_mut().filter(|entry| entry.stream == stream)
    }

    fn answer(&mut self, answer: FromLink) {
        self.rings.answer(answer);
    }
}

fn entry_of(entries: &mut [Option<Entry>], index: u32) -> &mut Entry {
    entries[index as usize].as_mut().expect("who is sent for is open")
}

impl Server for PacketServer {
    fn poll(&mut self, now: MonoTime) -> bool {
        self.watch_stall(now);
        let mut any = self.take_changes(now);
        any |= self.take_requests(now);
        any |= self.begin_following(now);
        any |= self.look_for_generated(now);
        let turns = self.pacer.work().turns;
        any |= self.turn(now);
        any |= self.begin_following(now);
        self.counters.turns.add(self.pacer.work().turns - turns);
        // The pacer decides for the beginning of a tick.
        let until = (now + self.ahead).0 / self.tick.0 * self.tick.0;
        let until = if self.open > 0 { MonoTime(until) } else { MonoTime(0) };
        self.wanted = self.port.turn(now, until);
        self.tell_moved();
        self.classes.tell(now, &self.pacer);
        any
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        let due = self.pacer.poll_timeout().filter(|_| !self.batch.is_stuck());
        let packets = due.map(|at| at.before(self.ahead));
        let look = (!self.empty.is_empty()).then(|| now + generated::LOOK);
        let tell = self.classes.poll_timeout(self.open > 0);
        let full = self.full.again();
        packets.into_iter().chain(self.wanted).chain(look).chain(tell).chain(full).min()
    }
}
