//! One delivery at the link: what it is fed, how it is framed, when it is due, where it goes.

use tactus_core::byte_clock::ByteClock;
use tactus_core::ports::SocketHandle;
use tactus_core::stagger::Slot;
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::feeding::Window;
use crate::link::connection::Connection;
use crate::link::feed::Feed;
use crate::link::framing::{Demand, Framing};
use crate::message::StreamId;

/// A slot of the link's table.
pub(super) struct Delivery {
    /// None when the slot is free.
    pub(super) stream: Option<StreamId>,
    pub(super) connection: Connection,
    pub(super) framing: Framing,
    pub(super) feed: Feed,
    /// Of bytes at a rate; none for best effort, and for chunks, which have times of their own.
    pub(super) clock: Option<ByteClock>,
    /// The first slot in which it is visited.
    pub(super) first: Slot,
    /// A peer that is waited for without end is owed at most this much: its burst, which memory was
    /// reserved for. None: the peer is ended when it is too slow.
    pub(super) owed_max: Option<Bytes>,
    /// The peer has left something untaken, and since then not all that was due has been sent: what
    /// is missing is the peer's doing.
    pub(super) was_blocked: bool,
    /// The running second.
    pub(super) window: Window,
    /// Best effort: when the running drain window began, and what had been sent by then.
    pub(super) drained: (MonoTime, Bytes),
    /// Best effort: not offered anything before this slot.
    pub(super) not_before: Slot,
}

impl Delivery {
    pub(super) fn free() -> Self {
        Self {
            stream: None,
            connection: Connection::new(SocketHandle(-1)),
            framing: Framing::Plain,
            feed: Feed::NONE,
            clock: None,
            first: Slot(0),
            owed_max: None,
            was_blocked: false,
            window: Window::default(),
            drained: (MonoTime(0), Bytes(0)),
            not_before: Slot(0),
        }
    }

    /// Whether it is visited on a schedule.
    pub(super) fn is_paced(&self) -> bool {
        self.clock.is_some() || matches!(self.framing, Framing::Chunks(_))
    }

    /// Whether every byte has been sent, and there will be no more.
    pub(super) fn is_complete(&mut self) -> bool {
        if let Framing::Chunks(chunks) = &mut self.framing {
            return chunks.is_at_end();
        }
        self.feed.len == Some(self.feed.sent) && self.is_between()
    }

    /// Whether the peer has every frame and every message whole, or nothing of it.
    fn is_between(&self) -> bool {
        self.framing.is_between() && !self.connection.is_in_message()
    }

    /// What is to be sent at a visit that is due at `until`.
    pub(super) fn demand(&mut self, until: MonoTime) -> Demand {
        let mut demand = self.framing.demand(&self.feed, self.clock.as_ref(), until);
        demand.is_pending |= self.connection.has_message() || !self.is_between();
        demand
    }

    /// How far the clock is ahead of what memory holds.
    pub(super) fn gap(&self, until: MonoTime) -> Nanos {
        self.framing.gap(&self.feed, self.clock.as_ref(), until)
    }

    /// For how long at `now` the peer has not taken what is due.
    pub(super) fn overdue(&mut self, now: MonoTime, until: MonoTime) -> Nanos {
        let due = self.framing.oldest_due(&self.feed, self.clock.as_ref(), until);
        due.map_or(Nanos(0), |due| now.since(due))
    }

    /// Moves the schedule by `by`. Returns the time from which the session's times count, if it has
    /// any.
    pub(super) fn delay(&mut self, by: Nanos) -> Option<MonoTime> {
        self.clock = self.clock.map(|clock| clock.delayed(by));
        self.framing.delay(by)
    }
}
