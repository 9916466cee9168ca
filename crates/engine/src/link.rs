//! The link server: sends each stream's bytes when the byte clock says so.
//!
//! Promise: no byte leaves before it is due. A peer that does not take its bytes delays no other
//! stream and is ended after a bound. After a stall of the machine or of a disk, the clocks are
//! moved instead of sending a burst. It knows no titles and no disks: it is fed leases in order,
//! and returns each.

mod connection;
mod schedule;
mod send_queue;

mod framing;

mod delivery;

mod best_effort;

mod ahead;

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::mutant;
use tactus_core::ports::LinkPort;
use tactus_core::stagger::{SLOT, Slot, Tick};
use tactus_core::units::{BitRate, Bytes, KIB, MonoTime, Nanos, SECOND};

use crate::counters::{LinkCounters, StreamCounters};
use crate::egress::{BlockPart, DeliveryRings, Memory, StreamSet};
use crate::internal::{FromLink, LinkMessage, Open, OpenBlocks, OpenContent, ToLink};
use crate::link::best_effort::BestEffort;
use crate::link::connection::Connection;
use crate::link::delivery::Delivery;
use crate::link::framing::{Call, CallResult, Framer, Limit, StarvedStream};
use crate::link::schedule::{SLOT_LOAD, Schedule};
use crate::link::send_queue::SendQueue;
use crate::message::{self, Backpressure, Chunks, Outcome, Rate, StreamId};
use crate::pool::Pool;
use crate::server::Server;

/// The limits for slow peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A paced stream ends when its oldest unsent byte is overdue by this much.
    pub behind_max: Nanos,
    /// A best-effort stream ends when it takes fewer bytes than `drain_min` in this time.
    pub drain_window: Nanos,
    /// See `drain_window`.
    pub drain_min: Bytes,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            behind_max: SECOND.times(10),
            drain_window: SECOND.times(60),
            drain_min: Bytes(4 * KIB * 60),
        }
    }
}

/// A network path and the streams on it.
pub struct LinkServer<P> {
    port: P,
    memories: Vec<Memory>,
    rings: DeliveryRings<message::Connection>,
    deliveries: Vec<Delivery>,
    fed: Pool<BlockPart>,
    schedule: Schedule,
    best_effort: BestEffort,
    moved: StreamSet,
    /// Streams with a part of their start burst in memory, before their first visit.
    bursts: StreamSet,
    /// Room in each ring of answers that the messages of moved clocks leave free for all others.
    reserved: usize,
    /// Buffer for packets whose bytes lie in the page cache.
    stage: Vec<u8>,
    patience: Patience,
    /// The last slot whose streams have been visited, or are being visited.
    slot: Slot,
    /// When its visits began.
    since: MonoTime,
    counters: Arc<LinkCounters>,
    streams: Arc<[StreamCounters]>,
}

/// The parts of a link server, besides its port.
pub(crate) struct LinkParts {
    /// The memory of each volume's blocks.
    pub(crate) memories: Vec<Memory>,
    pub(crate) rings: DeliveryRings<message::Connection>,
    pub(crate) patience: Patience,
    /// Limit of leases held at once.
    pub(crate) leases: usize,
    pub(crate) counters: Arc<LinkCounters>,
    pub(crate) streams: Arc<[StreamCounters]>,
}

impl<P: LinkPort> LinkServer<P> {
    pub(crate) fn new(port: P, parts: LinkParts) -> Self {
        let streams = parts.streams.len();
        Self {
            port,
            memories: parts.memories,
            rings: parts.rings,
            deliveries: (0..streams).map(|_| Delivery::free()).collect(),
            fed: Pool::new(parts.leases),
            schedule: Schedule::new(streams),
            best_effort: BestEffort::new(streams),
            moved: StreamSet::new(streams),
            bursts: StreamSet::new(streams),
            reserved: parts.leases + 2 * streams,
            stage: vec![0; framing::STAGE],
            patience: parts.patience,
            slot: Slot(0),
            since: MonoTime(0),
            counters: parts.counters,
            streams: parts.streams,
        }
    }

    /// Restarts the schedule of an idle link: a link without deliveries to visit has not stalled.
    fn wake(&mut self, now: MonoTime) {
        if self.schedule.next_visit(self.slot).is_none() {
            self.slot = self.slot.max(Slot::at(now));
        }
    }

    /// Puts a paced delivery on the schedule. Returns the first slot in which it is visited.
    fn enter(&mut self, now: MonoTime, stream: StreamId, rate: BitRate, tick: Tick) -> Slot {
        self.streams[stream.index as usize].rate.set(rate.0);
        let each = rate.bytes_in(tick.span());
        self.schedule.enter(stream.index, tick, each.0, self.slot.max(Slot::at(now)))
    }

    fn open(&mut self, now: MonoTime, open: Open<message::Connection>) {
        self.wake(now);
        let Open { stream, content, output } = open;
        match content {
            OpenContent::Blocks(blocks) => self.open_blocks(now, stream, blocks, output),
            OpenContent::Chunks(chunks) => self.open_chunks(now, stream, chunks, output),
        }
    }

    fn open_blocks(
        &mut self,
        now: MonoTime,
        stream: StreamId,
        blocks: OpenBlocks,
        output: message::Connection,
    ) {
        let queue = SendQueue {
            volume: usize::from(blocks.volume.0),
            file: blocks.file,
            len: blocks.len,
            repeats: blocks.turn.is_some(),
            ..SendQueue::NONE
        };
        let delivery = Delivery {
            stream: Some(stream),
            connection: Connection::new(output.end),
            queue,
            drained: (now, Bytes(0)),
            ..Delivery::free()
        };
        let Some(Rate { rate, burst, tick }) = blocks.rate else {
            self.deliveries[stream.index as usize] = delivery;
            self.best_effort.enter(stream.index);
            return;
        };
        let first = self.enter(now, stream, rate, tick);
        // One tick's bytes are allowed at the first visit, as at those after it.
        let law = ByteClock::new(first.begin().before(tick.span()), rate);
        let clock = law.with_burst(burst);
        self.deliveries[stream.index as usize] = Delivery {
            // Bytes sent in advance have the timestamps of their own due time.
            framing: Framer::of_blocks(blocks, output.channel, law),
            clock: Some(clock),
            first,
            burst,
            waits: output.backpressure == Backpressure::Wait,
            ..delivery
        };
        self.answer(FromLink::Clock { stream, clock });
    }

    fn open_chunks(
        &mut self,
        now: MonoTime,
        stream: StreamId,
        chunks: Chunks,
        output: message::Connection,
    ) {
        let (begin, first) = (chunks.begin, self.enter(now, stream, chunks.rate, CHUNK_TICK));
        self.deliveries[stream.index as usize] = Delivery {
            stream: Some(stream),
            connection: Connection::new(output.end),
            framing: Framer::of_chunks(chunks),
            first,
            ..Delivery::free()
        };
        self.streams[stream.index as usize].epoch.set(begin.0);
    }

    fn feed(&mut self, stream: StreamId, fed: BlockPart) {
        let delivery = &mut self.deliveries[stream.index as usize];
        if delivery.stream != Some(stream) {
            // Closed while the lease was on its way.
            self.answer(FromLink::Returned { stream, lease: fed.lease });
            return;
        }
        delivery.queue.available += Bytes(u64::from(fed.len));
        self.fed.push_back(&mut delivery.queue.blocks, fed);
        if delivery.has_burst() {
            self.bursts.add(stream.index);
        }
    }

    /// Sends start bursts, without waiting for the first visit: a player needs it to begin, and
    /// some ask for several parts of a title, one after the other, before they do. Of a crowd's it
    /// sends a few in each poll, so that no visit is late by them. True if more are to be sent.
    fn send_bursts(&mut self, now: MonoTime) -> bool {
        let slot = self.slot.max(Slot::at(now));
        for _ in 0..BURSTS_PER_POLL {
            let Some(index) = self.bursts.take() else { break };
            let delivery = &mut self.deliveries[index as usize];
            let ready = delivery.stream.and_then(|_| delivery.burst_ready(slot));
            let Some(ready) = ready else { continue };
            match self.send(now, index, Limit::at(ready)) {
                Attempt::Ended(outcome) => self.close(index, outcome),
                Attempt::Whole if self.deliveries[index as usize].is_complete() => {
                    self.close(index, Outcome::Complete);
                }
                Attempt::Whole => {}
                // The visits offer the rest.
                Attempt::Blocked => self.deliveries[index as usize].was_blocked = true,
            }
        }
        !self.bursts.is_empty()
    }

    /// Sets the length of a stream, which is known now.
    fn settle(&mut self, stream: StreamId, len: Bytes) {
        let delivery = &mut self.deliveries[stream.index as usize];
        if delivery.stream != Some(stream) {
            return;
        }
        delivery.queue.len = Some(len);
        if delivery.is_complete() {
            self.close(stream.index, Outcome::Complete);
        }
    }

    /// Sends a message between two frames as soon as possible: at once, unless the socket is full.
    fn interleave(&mut self, now: MonoTime, stream: StreamId, message: Box<[u8]>) {
        let delivery = &mut self.deliveries[stream.index as usize];
        let is_open = delivery.stream == Some(stream)
            && delivery.framing.carries_messages()
            && !delivery.connection.is_closing();
        if !is_open {
            return self.answer(FromLink::Interleaved { stream, message, is_sent: false });
        }
        delivery.connection.interleave(message);
        // New frames wait for their visit.
        if let Attempt::Ended(outcome) = self.send(now, stream.index, Limit::BEGUN) {
            self.close(stream.index, outcome);
        }
    }

    /// Ends a stopped delivery, at once or behind the frame in progress.
    fn stop(&mut self, now: MonoTime, index: u32) {
        let delivery = &mut self.deliveries[index as usize];
        if !delivery.framing.has_frames() {
            return self.close(index, Outcome::Stopped);
        }
        let since = delivery.connection.close(now);
        match self.send(now, index, Limit::BEGUN) {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole => self.close(index, Outcome::Stopped),
            Attempt::Blocked if now.since(since) > self.patience.behind_max => {
                self.close(index, Outcome::TooSlow);
            }
            Attempt::Blocked => {}
        }
    }

    /// Visits the streams of all slots up to `current`. It stops after a load of [`SLOT_LOAD`], so
    /// that the other servers of the core are polled before the next streams. Late slots are
    /// visited without such a stop. Returns whether any stream was visited.
    fn visit_due(&mut self, now: MonoTime, current: Slot) -> bool {
        let mut left = SLOT_LOAD;
        let mut visits = 0;
        loop {
            let is_late = Slot::at(self.since) > self.slot;
            while left > 0 {
                if visits % ahead::TOGETHER == 0 {
                    self.read_ahead();
                }
                let Some((index, load)) = self.schedule.next() else { break };
                self.visit(now, index);
                visits += 1;
                if !is_late {
                    left = left.saturating_sub(load);
                }
            }
            let next = self.schedule.next_visit(self.slot).filter(|&slot| slot <= current);
            let Some(slot) = next.filter(|_| left > 0) else { return visits > 0 };
            self.schedule.begin(slot);
            (self.slot, self.since) = (slot, now);
        }
    }

    /// Sends the due bytes of one delivery, of any source, framing and schedule.
    fn visit(&mut self, now: MonoTime, index: u32) {
        let slot = self.slot;
        let delivery = &mut self.deliveries[index as usize];
        if slot < delivery.first {
            return;
        }
        if delivery.connection.is_closing() {
            return self.stop(now, index);
        }
        let until = slot.begin();
        let readiness = delivery.readiness(until);
        if let Some(StarvedStream { begin }) = readiness.starved {
            self.streams[index as usize].epoch.set(begin.0);
            self.note_underrun(index);
            self.deliveries[index as usize].was_blocked = false;
        }
        if !readiness.is_pending {
            return self.wait_for_growth(index, readiness.allowed, until);
        }
        if readiness.is_due {
            self.note_visit(index, until);
        }
        let attempt = self.send(now, index, readiness.limit);
        let delivery = &mut self.deliveries[index as usize];
        match attempt {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole if delivery.is_complete() => self.close(index, Outcome::Complete),
            Attempt::Whole => self.move_past_gap(index, readiness.allowed, until),
            Attempt::Blocked => self.wait_for_peer(now, until, index),
        }
    }

    /// No byte is due. A delivery that has reached the end of a growing title waits there with its
    /// clock. A peer that takes nothing keeps the window full, which looks the same; in this case
    /// the clock goes on.
    fn wait_for_growth(&mut self, index: u32, allowed: Bytes, until: MonoTime) {
        let delivery = &self.deliveries[index as usize];
        if delivery.queue.is_growing() && !delivery.was_blocked {
            let gap = delivery.gap(allowed, until);
            if gap > Nanos(0) {
                self.move_clock(index, gap);
            }
        }
    }

    /// Moves the clock by the time of the bytes that were due but not in memory. The stream does
    /// not catch up: that would need more reads of a late disk than were admitted.
    fn move_past_gap(&mut self, index: u32, allowed: Bytes, until: MonoTime) {
        let delivery = &mut self.deliveries[index as usize];
        let gap = delivery.gap(allowed, until);
        if gap == Nanos(0) {
            delivery.was_blocked = false;
            return;
        }
        if delivery.queue.is_growing() {
            delivery.was_blocked = false;
        } else {
            self.note_underrun(index);
        }
        self.move_clock(index, gap);
    }

    /// Handles a peer that has not taken all offered bytes.
    fn wait_for_peer(&mut self, now: MonoTime, until: MonoTime, index: u32) {
        let delivery = &mut self.deliveries[index as usize];
        delivery.was_blocked = true;
        if let (true, Some(clock)) = (delivery.waits, delivery.clock) {
            let burst = delivery.burst;
            let forgotten = delivery.framing.owed(&delivery.queue, &clock, burst, until);
            if forgotten > Nanos(0) {
                self.move_clock(index, forgotten);
            }
        } else if delivery.overdue(now, until) > self.patience.behind_max {
            self.close(index, Outcome::TooSlow);
        }
    }

    /// Counts a late source, unless the peer was late.
    fn note_underrun(&mut self, index: u32) {
        if !self.deliveries[index as usize].was_blocked {
            self.counters.underruns.add(1);
            self.streams[index as usize].underruns.add(1);
        }
    }

    /// Counts a visit that sends new bytes, at the time when the visits of its slot began: of two
    /// seconds, all of them count for the same.
    fn note_visit(&mut self, index: u32, until: MonoTime) {
        let now = self.since;
        let lateness = now.since(until);
        let delivery = &mut self.deliveries[index as usize];
        let second = delivery.window.visit(now, delivery.queue.sent, delivery.was_blocked);
        let stream = &self.streams[index as usize];
        if let Some(second) = second {
            stream.second_bytes.set(second.bytes.0);
            if let Some(clock) = delivery.clock
                && !second.was_blocked
            {
                // The last visit of that second.
                let end = until.before(self.schedule.tick(index).span());
                let deviation = match delivery.framing.due_in_second(&clock, end) {
                    Some(due) => second.deviation_from(due),
                    None => second.deviation(BitRate(stream.rate.value())),
                };
                stream.deviation.set(deviation);
                self.counters.deviation.record(deviation);
            }
        }
        self.counters.lateness.record(lateness.0);
        stream.lateness_max.raise(lateness.0);
    }

    fn move_clock(&mut self, index: u32, by: Nanos) {
        let by = mutant!(DebtKept, Nanos(0), by);
        match self.deliveries[index as usize].delay(by) {
            Some(begin) => self.streams[index as usize].epoch.set(begin.0),
            None => self.moved.add(index),
        }
    }

    /// Sends moved clocks to the delivery servers, as far as the rings have room beside the
    /// reserved part.
    fn tell_moved(&mut self) {
        while self.rings.have_room_beside(self.reserved)
            && let Some(index) = self.moved.take()
        {
            let delivery = &self.deliveries[index as usize];
            if let (Some(stream), Some(clock)) = (delivery.stream, delivery.clock) {
                self.answer(FromLink::Clock { stream, clock });
            }
        }
    }

    /// Sends the begun frame, the message, and the bytes within `limit`.
    fn send(&mut self, now: MonoTime, index: u32, limit: Limit) -> Attempt {
        loop {
            let Delivery { framing, connection, queue, .. } = &mut self.deliveries[index as usize];
            let mut call = Call {
                port: &mut self.port,
                now,
                queue,
                memories: &self.memories,
                fed: &self.fed,
                stage: &mut self.stage,
            };
            let result = match framing.send(&mut call, connection, limit) {
                Ok(Some(result)) => result,
                Ok(None) => return Attempt::Whole,
                Err(outcome) => return Attempt::Ended(outcome),
            };
            self.counters.sends.add(1);
            let is_blocked = result.taken < result.offered;
            self.note_result(index, result);
            if is_blocked {
                self.counters.blocked.add(1);
                return Attempt::Blocked;
            }
        }
    }

    /// Counts the bytes that a call has sent, and returns the used leases.
    fn note_result(&mut self, index: u32, result: CallResult) {
        let delivery = &mut self.deliveries[index as usize];
        let sent = result.title + result.generated;
        delivery.queue.sent += sent;
        let stream = &self.streams[index as usize];
        self.counters.bytes.add(sent.0);
        stream.bytes.add(sent.0);
        if result.packets > 0 {
            stream.session_packets.add(result.packets);
            stream.session_bytes.add(result.payload);
            if let Some(epoch) = delivery.framing.epoch() {
                stream.epoch.set(epoch.0);
            }
        }
        if result.title > Bytes(0) {
            self.use_up(index, result.title);
        }
        if let Some(message) = result.message {
            let stream = self.deliveries[index as usize].stream.expect("an open stream sends");
            self.answer(FromLink::Interleaved { stream, message, is_sent: true });
        }
    }

    fn use_up(&mut self, index: u32, sent: Bytes) {
        let Delivery { stream, queue, .. } = &mut self.deliveries[index as usize];
        queue.available -= sent;
        let mut left = sent.0 as u32;
        while let Some(at) = self.fed.front(&queue.blocks) {
            let fed = self.fed.get_mut(at);
            let used = fed.len.min(left);
            fed.at += used;
            fed.len -= used;
            fed.offset += Bytes(u64::from(used));
            left -= used;
            if fed.len > mutant!(LeaseEarly, fed.at, 0) {
                break;
            }
            let fed = self.fed.pop_front(&mut queue.blocks).expect("the front is there");
            let stream = stream.expect("an open stream sends");
            self.rings.answer(FromLink::Returned { stream, lease: fed.lease });
        }
        assert!(left == 0, "only what was fed is sent");
    }

    fn close(&mut self, index: u32, outcome: Outcome) {
        let place = &mut self.deliveries[index as usize];
        let mut delivery = std::mem::replace(place, Delivery::free());
        let stream = delivery.stream.expect("a stream is closed once");
        while let Some(fed) = self.fed.pop_front(&mut delivery.queue.blocks) {
            let back = FromLink::Returned { stream, lease: fed.lease };
            mutant!(LeaseLost, (), self.rings.answer(back));
        }
        delivery.framing.keep();
        if delivery.is_paced() {
            self.schedule.leave(index);
        } else {
            self.best_effort.leave(index);
        }
        if let Some(message) = delivery.connection.give_up() {
            self.answer(FromLink::Interleaved { stream, message, is_sent: false });
        }
        // Now, not when the slot is opened again: until then it belongs to a stream that begins.
        self.streams[index as usize].clear();
        let (sent, workspace) = (delivery.queue.sent, delivery.framing.into_workspace());
        // The control side holds a ring longer.
        drop(delivery.connection);
        self.answer(FromLink::Closed { stream, outcome, sent, workspace });
    }

    fn take_requests(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(request) = self.rings.pop() {
            any = true;
            match request {
                ToLink::Open(open) => self.open(now, open),
                ToLink::Message(LinkMessage::Feed { stream, lease, at, len, offset }) => {
                    self.feed(stream, BlockPart { lease, at, len, offset });
                }
                ToLink::Message(LinkMessage::Settle { stream, len }) => self.settle(stream, len),
                ToLink::Message(LinkMessage::Interleave { stream, message }) => {
                    self.interleave(now, stream, message);
                }
                ToLink::Message(LinkMessage::Close(stream)) => {
                    if self.deliveries[stream.index as usize].stream == Some(stream) {
                        self.stop(now, stream.index);
                    }
                }
            }
        }
        any
    }

    /// Moves all clocks after a stall of the machine of more than a tick: the bytes that became due
    /// meanwhile are sent at the streams' rates, not in one burst.
    fn watch_stall(&mut self, now: MonoTime) {
        let Some(expected) = self.schedule.next_visit(self.slot) else { return };
        let stall = now.since(expected.begin());
        if stall <= STALL {
            return;
        }
        self.counters.stalls.add(1);
        // Whole slots, so that every stream keeps its phase.
        let pause = SLOT.times(stall.0 / SLOT.0);
        for index in 0..self.deliveries.len() as u32 {
            if self.deliveries[index as usize].is_paced() {
                self.counters.stalled_streams.add(1);
                self.counters.lateness.record(pause.0);
                self.streams[index as usize].count_stall(pause);
                self.move_clock(index, pause);
            }
        }
        self.slot = Slot(self.slot.0 + pause.0 / SLOT.0);
    }

    fn answer(&mut self, answer: FromLink) {
        self.rings.answer(answer);
    }
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The socket has taken everything.
    Whole,
    Blocked,
    Ended(Outcome),
}

impl<P: LinkPort + Send> Server for LinkServer<P> {
    fn poll(&mut self, now: MonoTime) -> bool {
        let mut any = self.take_requests(now);
        let current = Slot::at(now);
        if current > self.slot || self.schedule.is_visiting() {
            self.watch_stall(now);
            any |= self.visit_due(now, current);
            if self.schedule.is_visiting() {
                return true;
            }
            self.slot = self.slot.max(current);
            any |= self.serve_best_effort(now);
            self.tell_moved();
        }
        // Last: visits have their time, and a burst has none.
        self.send_bursts(now) || any
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        if self.schedule.is_visiting() {
            return Some(now);
        }
        if !self.best_effort.is_empty() {
            return Some(Slot(self.slot.0 + 1).begin());
        }
        self.schedule.next_visit(self.slot).map(Slot::begin)
    }
}

/// A pause of the machine that is longer than the longest tick is a stall.
const STALL: Nanos = Tick::Ms250.span();

/// A burst is sent as far as it is in memory. A block of 256 KiB takes a tenth of a millisecond.
const BURSTS_PER_POLL: u32 = 4;

/// Visit interval of generated chunks: the same as for a stream of packets in frames.
const CHUNK_TICK: Tick = Tick::Ms10;
