//! Streams of generated datagrams.
//!
//! Promise: they leave like those of titles: in order, none before it is due, by the same pacer and
//! in the same batches. A datagram that is not generated in time is counted, and moves the clock of
//! its stream only; so does a class without room. A datagram stays in its ring until it has left.
//! This module allocates and frees nothing: the ring's memory belongs to the control side.

use tactus_core::datagrams::{Framing, Message};
use tactus_core::generated::TimedDatagram;
use tactus_core::pacer::{Class, ClassId, Packet, STALL_MAX};
use tactus_core::rtp;
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_ring::spsc::Consumer;

use super::{PacketServer, StreamKind};
use crate::egress::Window;
use crate::internal::FromLink;
use crate::message::{Chunks, Datagrams, Outcome, StreamId};

/// Interval at which an empty ring is polled. Streams are fed far ahead, so only a late one waits
/// for this.
pub(super) const LOOK: Nanos = Nanos::from_millis(1);

/// A generated stream that is sent.
pub(super) struct Entry {
    stream: StreamId,
    pub(super) output: Datagrams,
    class: ClassId,
    ring: Consumer<TimedDatagram>,
    /// The origin of the times; it moves when a datagram is late.
    begin: MonoTime,
    /// The number of datagrams that have left, and of the next ones that are gathered.
    gone: u64,
    gathered: u64,
    /// When the datagram of the pacer is due.
    offered: Option<MonoTime>,
    /// The ring was empty at the time of the offer.
    is_starved: bool,
    sent: Bytes,
    /// The running second.
    window: Window,
}

impl Entry {
    /// The number of the next datagram to be gathered.
    pub(super) fn next(&self) -> u64 {
        self.gone + self.gathered
    }

    /// A gathered datagram, or the next one.
    ///
    /// # Panics
    /// If it has left, or was never seen.
    pub(super) fn datagram(&self, number: u64) -> &TimedDatagram {
        let nth = number - self.gone;
        self.ring.peek(nth as usize).expect("what is gathered stays in its ring")
    }

    fn wire(&self, bytes: usize) -> Bytes {
        Framing::Plain.wire(Bytes(bytes as u64), 1, self.output.ip())
    }
}

impl PacketServer {
    pub(super) fn make(
        &mut self,
        now: MonoTime,
        stream: StreamId,
        chunks: Chunks,
        output: Datagrams,
    ) {
        let Chunks { ring, begin, rate, .. } = chunks;
        let class = self.pacer.add(self.classes.parent_of(&output), Class::stream(rate));
        let class = class.expect("there is a class for each stream");
        self.streams_of[class.index as usize] = StreamKind::Generated(stream.index);
        let place = &mut self.generated[stream.index as usize];
        assert!(place.is_none(), "a place is opened when it is free");
        *place = Some(Entry {
            stream,
            output,
            class,
            ring,
            // A datagram that was due before it could be sent is not late.
            begin: begin.max(now),
            gone: 0,
            gathered: 0,
            offered: None,
            is_starved: false,
            sent: Bytes(0),
            window: Window::default(),
        });
        self.open += 1;
        let counters = &self.streams[stream.index as usize];
        counters.rate.set(rate.0);
        counters.epoch.set(begin.max(now).0);
        self.offer_generated(now, stream.index);
    }

    pub(super) fn find_generated(&self, stream: StreamId) -> Option<&Entry> {
        self.generated[stream.index as usize].as_ref().filter(|entry| entry.stream == stream)
    }

    /// Polls the empty rings.
    pub(super) fn look_for_generated(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        std::mem::swap(&mut self.empty, &mut self.looked_at);
        while let Some(index) = self.looked_at.take() {
            if self.generated[index as usize].is_some() {
                any |= self.offer_generated(now, index);
            }
        }
        any
    }

    /// Gives the pacer a stream's next datagram, if it has none. Returns whether it has one now.
    fn offer_generated(&mut self, now: MonoTime, index: u32) -> bool {
        let entry = self.generated[index as usize].as_mut().expect("it is open");
        if entry.offered.is_some() {
            return false;
        }
        entry.ring.len();
        let Some(next) = entry.ring.peek(entry.gathered as usize) else {
            entry.is_starved = true;
            self.empty.add(index);
            return false;
        };
        let mut due = entry.begin + next.due;
        if next.is_end() {
            if entry.gathered == 0 {
                self.close(index, Outcome::Complete);
            }
            return true;
        }
        let wire = entry.wire(next.bytes().len());
        if std::mem::take(&mut entry.is_starved) && due < now {
            // Missing datagrams are delayed, not sent in a burst.
            let late = now.since(due);
            entry.begin += late;
            due = now;
            self.counters.underruns.add(1);
            self.streams[index as usize].underruns.add(1);
            self.streams[index as usize].epoch.set(entry.begin.0);
        }
        entry.offered = Some(due);
        self.pacer.offer(now + self.ahead, entry.class, Packet { due, bytes: wire });
        true
    }

    pub(super) fn gather_generated(&mut self, now: MonoTime, index: u32) {
        let entry = self.generated[index as usize].as_mut().expect("who is sent for is open");
        let due = entry.offered.take().expect("the pacer sends what it was offered");
        if let Some(second) = entry.window.visit(now, entry.sent, false) {
            self.streams[index as usize].second_bytes.set(second.bytes.0);
        }
        let lateness = now.since(due);
        self.counters.lateness.record(lateness.0);
        self.streams[index as usize].lateness_max.raise(lateness.0);
        let bytes = Bytes(entry.datagram(entry.next()).bytes().len() as u64);
        let (at, from) = (entry.sent, entry.sent);
        let message = Message { at, bytes, from, taken: bytes, datagrams: 1, due };
        self.batch.add_generated(index, entry, message);
        entry.gathered += 1;
        if lateness > STALL_MAX {
            // As for titles: late because of its class, or of many short stalls that were each too
            // short to move all clocks.
            entry.begin += lateness;
            self.counters.stalled_streams.add(1);
            self.streams[index as usize].count_stall(lateness);
            self.streams[index as usize].epoch.set(entry.begin.0);
        }
        self.offer_generated(now, index);
    }

    /// Notes that the first gathered datagram of a stream has left, or was refused.
    pub(super) fn leave_generated(&mut self, index: u32, was_taken: bool) {
        let entry = self.generated[index as usize].as_mut().expect("what has gathered is open");
        let bytes = entry.datagram(entry.gone).bytes().len() as u64;
        entry.sent += Bytes(bytes);
        if was_taken {
            let counters = &self.streams[index as usize];
            counters.session_packets.add(1);
            // The RTP header does not count as payload.
            counters.session_bytes.add(bytes.saturating_sub(rtp::HEADER as u64));
        }
        entry.ring.discard();
        entry.gone += 1;
        entry.gathered -= 1;
        let is_over = entry.gathered == 0 && entry.ring.peek(0).is_some_and(|next| next.is_end());
        if is_over {
            self.close(index, Outcome::Complete);
        }
    }

    pub(super) fn close_generated(&mut self, index: u32, entry: &Entry, outcome: Outcome) {
        self.open -= 1;
        self.cancel(index);
        self.pacer.remove(entry.class);
        self.streams[index as usize].clear();
        let (stream, sent) = (entry.stream, entry.sent);
        self.answer(FromLink::Closed { stream, outcome, sent, workspace: None });
    }

    /// Delays the unsent datagrams of the generated stream in this slot, if any.
    pub(super) fn pause_generated(&mut self, now: MonoTime, index: u32, pause: Nanos) {
        let Some(entry) = &mut self.generated[index as usize] else { return };
        entry.begin += pause;
        self.pacer.withdraw(entry.class);
        entry.offered = None;
        self.streams[index as usize].epoch.set(entry.begin.0);
        self.offer_generated(now, index);
    }
}
