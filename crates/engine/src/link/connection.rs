//! A connection: the socket or ring of a delivery, and the interleaved messages of the control
//! side.
//!
//! Promise: an interleaved message is sent whole, between two frames, or not at all. The connection
//! knows no schedule and no source.

use tactus_core::units::MonoTime;

use crate::message::ConnectionEnd;

/// A socket of the control side, or a ring, lent for writing.
pub(super) struct Connection {
    pub(super) end: ConnectionEnd,
    message: Option<InterleavedMessage>,
    /// The delivery was stopped; only the rest of a frame or message that has begun is still sent.
    closing_since: Option<MonoTime>,
}

/// An interleaved message.
struct InterleavedMessage {
    bytes: Box<[u8]>,
    taken: usize,
}

impl Connection {
    pub(super) fn new(end: ConnectionEnd) -> Self {
        Self { end, message: None, closing_since: None }
    }

    /// Queues a message.
    ///
    /// # Panics
    /// When one is queued already.
    pub(super) fn interleave(&mut self, bytes: Box<[u8]>) {
        assert!(self.message.is_none(), "one message at a time");
        self.message = Some(InterleavedMessage { bytes, taken: 0 });
    }

    /// Starts closing at `now`, unless it did before. Returns when it started.
    pub(super) fn close(&mut self, now: MonoTime) -> MonoTime {
        *self.closing_since.get_or_insert(now)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing_since.is_some()
    }

    pub(super) fn has_message(&self) -> bool {
        self.message.is_some()
    }

    /// Whether the peer has a part of the message, but not all of it.
    pub(super) fn is_in_message(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.taken > 0)
    }

    /// The rest of the message, if it may be sent now. A closing connection starts none.
    pub(super) fn message(&self) -> Option<&[u8]> {
        let message = self.message.as_ref()?;
        let may_send = self.closing_since.is_none() || message.taken > 0;
        may_send.then(|| &message.bytes[message.taken..])
    }

    /// Notes that the socket has taken `bytes` of the message. Returns the message once it is sent
    /// whole.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let message = self.message.as_mut().expect("only a queued message is offered");
        message.taken += bytes;
        if message.taken == message.bytes.len() { self.give_up() } else { None }
    }

    /// Removes the message, which will not be sent.
    pub(super) fn give_up(&mut self) -> Option<Box<[u8]>> {
        self.message.take().map(|message| message.bytes)
    }
}
