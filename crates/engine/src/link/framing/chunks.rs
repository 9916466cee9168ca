//! Generated chunks: each leaves at its own time, whole.
//!
//! Promise: progress is known to the byte; a chunk stays in its ring until the socket has taken all
//! of it. This module allocates and frees nothing: the ring's memory belongs to the control side.
//! The argument: `docs/design/generated.md`.

use std::ops::Range;

use tactus_core::generated::TimedDatagram;
use tactus_core::ports::LinkPort;
use tactus_core::rtp::{self, frame};
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_ring::spsc::Consumer;

use super::parts::Parts;
use super::{Call, CallResult, FRAMES, Limit, Readiness, StarvedStream};
use crate::link::connection::Connection;
use crate::message::Outcome;

/// Headers of a frame, which do not count as payload.
const HEAD: usize = frame::HEAD + rtp::HEADER;

pub(in crate::link) struct Chunks {
    ring: Consumer<TimedDatagram>,
    /// The origin of the times; it moves when a chunk is late.
    begin: MonoTime,
    /// Bytes of the front chunk that the socket has taken.
    taken: usize,
    /// The last visit that found no chunk: a chunk that was due by then is late.
    empty_at: Option<MonoTime>,
}

impl Chunks {
    pub(in crate::link) fn new(ring: Consumer<TimedDatagram>, begin: MonoTime) -> Self {
        Self { ring, begin, taken: 0, empty_at: None }
    }

    /// When the front chunk is due, and whether it is the end mark.
    fn front(&mut self) -> Option<(MonoTime, bool)> {
        self.ring.len();
        let next = self.ring.peek(0)?;
        Some((self.begin + next.due, next.is_end()))
    }

    pub(in crate::link) fn is_at_end(&mut self) -> bool {
        self.front().is_some_and(|(_, is_end)| is_end)
    }

    pub(super) fn front_due(&mut self) -> Option<MonoTime> {
        self.front().map(|(due, _)| due)
    }

    pub(super) fn is_between(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn delay(&mut self, by: Nanos) -> MonoTime {
        self.begin += by;
        self.begin
    }

    pub(super) fn readiness(&mut self, until: MonoTime) -> Readiness {
        let front = self.front();
        let mut starved = None;
        match (front, self.empty_at) {
            (None, _) => self.empty_at = Some(until),
            (Some((due, false)), Some(empty_at)) => {
                self.empty_at = None;
                if due <= empty_at {
                    // Missing chunks are delayed, not sent in a burst.
                    let begin = self.delay(until.since(due));
                    starved = Some(StarvedStream { begin });
                }
            }
            _ => {}
        }
        let is_at_end = front.is_some_and(|(_, is_end)| is_end);
        let is_due = self.due(until) > 0 || is_at_end;
        let limit = Limit { time: until, ..Limit::BEGUN };
        Readiness { is_pending: is_due, is_due, starved, limit, allowed: Bytes(0) }
    }

    /// The number of chunks that may be begun by `until`, including the begun one.
    fn due(&self, until: MonoTime) -> usize {
        let is_due = |nth: &usize| {
            let next = self.ring.peek(*nth);
            next.is_some_and(|next| !next.is_end() && self.begin + next.due <= until)
        };
        (0..FRAMES).take_while(is_due).count()
    }

    pub(super) fn send<P: LinkPort>(
        &mut self,
        call: &mut Call<'_, P>,
        connection: &mut Connection,
        until: MonoTime,
    ) -> Result<Option<CallResult>, Outcome> {
        let due = self.due_bytes(until);
        let begun = match self.taken {
            0 => 0,
            taken => self.ring.peek(0).expect("what is begun is there").bytes().len() - taken,
        };
        let mut parts = Parts::new();
        self.offer(0..begun, &mut parts);
        // Between two chunks, or before the first.
        if let Some(message) = connection.message() {
            parts.add(message);
        }
        self.offer(begun..due, &mut parts);
        let offered = parts.bytes();
        if offered == 0 {
            return Ok(None);
        }
        let taken = call.send(&connection.end, &parts)?;
        let mut result = CallResult { offered, taken, ..CallResult::default() };
        // Without frames, the chunks are transport packets.
        let head = self.ring.peek(0).map_or(0, head_of);
        let mut left = taken;
        if self.taken > 0 {
            left -= self.take_front(left, head, &mut result);
        }
        if left > 0
            && let Some(message) = connection.message()
        {
            let own = message.len().min(left);
            left -= own;
            result.message = connection.take(own);
        }
        self.take(left, head, &mut result);
        Ok(Some(result))
    }

    /// The bytes that may be sent by `until`.
    pub(super) fn due_bytes(&mut self, until: MonoTime) -> usize {
        self.ring.len();
        let due = 0..self.due(until);
        let all = due.map(|nth| self.ring.peek(nth).expect("it is due").bytes().len());
        all.sum::<usize>().saturating_sub(self.taken)
    }

    /// Offers these of the unsent bytes; the range begins and ends with a chunk.
    pub(super) fn offer<'a>(&'a self, bytes: Range<usize>, parts: &mut Parts<'a>) {
        let (mut at, mut nth, mut skip) = (0, 0, self.taken);
        while at < bytes.end {
            let chunk = self.ring.peek(nth).expect("only what is there is offered").bytes();
            let left = &chunk[skip..];
            if at >= bytes.start {
                parts.add(left);
            }
            at += left.len();
            (nth, skip) = (nth + 1, 0);
        }
    }

    /// Notes that the socket has taken the next `left` bytes, of chunks with `head` bytes of
    /// headers.
    pub(super) fn take(&mut self, mut left: usize, head: usize, result: &mut CallResult) {
        while left > 0 {
            left -= self.take_front(left, head, result);
        }
    }

    /// Notes that the socket has taken up to `most` bytes of the front chunk. Returns how many.
    fn take_front(&mut self, most: usize, head: usize, result: &mut CallResult) -> usize {
        let len = self.ring.peek(0).expect("what was offered is there").bytes().len();
        let own = (len - self.taken).min(most);
        self.taken += own;
        if self.taken == len {
            self.taken = 0;
            self.ring.discard();
            result.packets += 1;
            result.payload += len.saturating_sub(head) as u64;
            result.generated = Bytes(result.payload);
        }
        own
    }
}

/// Bytes of the headers of a chunk that is sent as it is: of a frame, or none.
fn head_of(chunk: &TimedDatagram) -> usize {
    if chunk.bytes().first() == Some(&frame::MARK) { HEAD } else { 0 }
}
