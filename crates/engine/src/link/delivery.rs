//! One delivery at the link: its send queue, framing, clock and output.

use tactus_core::byte_clock::ByteClock;
use tactus_core::ports::SocketHandle;
use tactus_core::stagger::Slot;
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::egress::Window;
use crate::link::connection::Connection;
use crate::link::framing::{Framer, Plain, Readiness};
use crate::link::send_queue::SendQueue;
use crate::message::{ConnectionEnd, StreamId};

/// A slot of the stream table.
pub(super) struct Delivery {
    /// `None` if the slot is free.
    pub(super) stream: Option<StreamId>,
    pub(super) connection: Connection,
    pub(super) framing: Framer,
    pub(super) queue: SendQueue,
    /// The clock of bytes at a rate; `None` for best effort, and for chunks, which have times of
    /// their own.
    pub(super) clock: Option<ByteClock>,
    /// The first slot in which it is visited.
    pub(super) first: Slot,
    /// The bytes that are due at once.
    pub(super) burst: Bytes,
    /// Of a peer with backpressure: its overdue bytes are limited to its burst, for which memory
    /// was reserved. The delivery of another peer that is too slow ends.
    pub(super) waits: bool,
    /// The peer has left bytes untaken, and since then not all due bytes have been sent: the peer
    /// causes the missing bytes.
    pub(super) was_blocked: bool,
    /// The running second.
    pub(super) window: Window,
    /// Best effort: when the running drain window began, and the number of bytes sent by then.
    pub(super) drained: (MonoTime, Bytes),
    /// Best effort: no offer before this slot.
    pub(super) not_before: Slot,
}

impl Delivery {
    pub(super) fn free() -> Self {
        Self {
            stream: None,
            connection: Connection::new(ConnectionEnd::Socket(SocketHandle(-1))),
            framing: Framer::Plain(Plain::AT_ONE_RATE),
            queue: SendQueue::NONE,
            clock: None,
            first: Slot(0),
            burst: Bytes(0),
            waits: false,
            was_blocked: false,
            window: Window::default(),
            drained: (MonoTime(0), Bytes(0)),
            not_before: Slot(0),
        }
    }

    /// Loads what a visit reads into the cache, for callers that read many before using the first.
    /// The number has no meaning.
    pub(super) fn look_up(&self) -> u64 {
        let Self { stream, connection, framing, queue, clock, first, window, .. } = self;
        let stream = stream.map_or(0, |stream| u64::from(stream.index));
        let flags = u64::from(connection.is_closing() ^ connection.has_message());
        let clock = clock.as_ref().map_or(0, |clock| clock.start().0);
        let queue = queue.blocks.look_up() ^ queue.sent.0 ^ queue.available.0;
        stream ^ flags ^ clock ^ queue ^ first.0 ^ window.look_up() ^ framing.look_up()
    }

    /// Whether it is visited on a schedule.
    pub(super) fn is_paced(&self) -> bool {
        self.clock.is_some() || self.framing.is_timed()
    }

    /// Whether every byte has been sent, and no more will come.
    pub(super) fn is_complete(&mut self) -> bool {
        let is_at_end = self.framing.is_at_end();
        is_at_end.unwrap_or(self.queue.len == Some(self.queue.sent)) && self.is_between()
    }

    /// Whether the peer has no partial frame and no partial message.
    fn is_between(&self) -> bool {
        self.framing.is_between() && !self.connection.is_in_message()
    }

    /// The readiness at a visit that is due at `until`.
    pub(super) fn readiness(&mut self, until: MonoTime) -> Readiness {
        let mut readiness = self.framing.readiness(&self.queue, self.clock.as_ref(), until);
        readiness.is_pending |= self.connection.has_message() || !self.is_between();
        readiness
    }

    /// Whether a part of the start burst is to be sent before the first visit. Frames wait for it.
    pub(super) fn has_burst(&self) -> bool {
        self.queue.sent < self.burst && !self.was_blocked && !self.framing.has_frames()
    }

    /// The position up to which the start burst can be sent in `slot`, if that is before the first
    /// visit. The clock has begun by then.
    pub(super) fn burst_ready(&mut self, slot: Slot) -> Option<Bytes> {
        if slot >= self.first || !self.has_burst() {
            return None;
        }
        let ready = self.readiness(slot.begin()).limit.position.min(self.burst);
        (ready > self.queue.sent).then_some(ready)
    }

    /// How far the clock, which allows `allowed`, is ahead of the bytes in memory.
    pub(super) fn gap(&self, allowed: Bytes, until: MonoTime) -> Nanos {
        self.framing.gap(&self.queue, self.clock.as_ref(), allowed, until)
    }

    /// For how long at `now` the peer has not taken the due bytes.
    pub(super) fn overdue(&mut self, now: MonoTime, until: MonoTime) -> Nanos {
        let due = self.framing.oldest_due(&self.queue, self.clock.as_ref(), until);
        due.map_or(Nanos(0), |due| now.since(due))
    }

    /// Moves the schedule by `by`. Returns the origin of the session's times, if it has any.
    pub(super) fn delay(&mut self, by: Nanos) -> Option<MonoTime> {
        self.clock = self.clock.map(|clock| clock.delayed(by));
        self.framing.delay(by)
    }
}

const _: () = assert!(size_of::<Delivery>() <= 320, "each visit reads most of it");
