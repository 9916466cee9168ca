//! Interleaved RTP at one rate: each packet behind a head, its payload straight from the blocks.
//!
//! Promise: each frame carries the bytes of a datagram, and its progress is known to the byte. The
//! argument: `docs/design/packets.md`, "Frames".

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::PAYLOAD;
use tactus_core::ports::{FilePart, LinkPort};
use tactus_core::rtp::{self, frame};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::parts::Parts;
use super::{Call, CallResult, FRAMES, Limit, Readiness, send_parts};
use crate::egress::Memory;
use crate::link::connection::Connection;
use crate::link::send_queue::SendQueue;
use crate::message::{Outcome, Workspace};

/// Length of the headers in front of a payload.
pub(super) const HEAD: usize = frame::HEAD + rtp::HEADER;

pub(in crate::link) struct Packets {
    channel: u8,
    /// Its cutter is behind the last frame that has been begun.
    workspace: Workspace,
    /// The rest of the begun frame.
    begun: Option<PartialFrame>,
}

#[derive(Clone, Copy)]
struct PartialFrame {
    head: [u8; HEAD],
    payload: usize,
    taken: usize,
}

/// The position up to which whole packets are in memory.
fn whole(queue: &SendQueue) -> Bytes {
    let fed = queue.fed();
    if queue.len == Some(fed) { fed } else { Bytes(fed.0 / PAYLOAD.0 * PAYLOAD.0) }
}

/// The position up to which packets are due: a packet is due with its first byte.
fn due(queue: &SendQueue, allowed: Bytes) -> Bytes {
    let due = Bytes((allowed.0 / PAYLOAD.0 + 1) * PAYLOAD.0);
    match queue.len {
        Some(len) => due.min(len),
        None if queue.is_growing() => due.min(whole(queue)),
        None => due,
    }
}

pub(super) fn gap(queue: &SendQueue, clock: &ByteClock, allowed: Bytes, until: MonoTime) -> Nanos {
    let whole = whole(queue);
    let is_behind = whole < due(queue, allowed) || queue.is_growing() && allowed > whole;
    if is_behind { until.since(clock.due(whole)) } else { Nanos(0) }
}

impl Packets {
    pub(in crate::link) fn new(channel: u8, workspace: Workspace) -> Self {
        Self { channel, workspace, begun: None }
    }

    pub(super) fn is_between(&self) -> bool {
        self.begun.is_none()
    }

    pub(super) fn epoch(&self) -> MonoTime {
        self.workspace.cutter().epoch()
    }

    pub(super) fn keep(&self) {
        self.workspace.cutter().keep();
    }

    pub(super) fn into_workspace(self) -> Workspace {
        self.workspace
    }

    pub(super) fn delay(&mut self, by: Nanos) {
        self.workspace.cutter_mut().delay(by);
    }

    pub(super) fn readiness(
        &self,
        queue: &SendQueue,
        clock: &ByteClock,
        until: MonoTime,
    ) -> Readiness {
        let allowed = clock.allowed(until);
        let due = due(queue, allowed);
        let is_due = due > self.workspace.cutter().taken();
        let limit = Limit::at(due.min(whole(queue)));
        Readiness { is_pending: is_due, is_due, starved: None, limit, allowed }
    }

    pub(super) fn send<P: LinkPort>(
        &mut self,
        call: &mut Call<'_, P>,
        connection: &mut Connection,
        until: Bytes,
    ) -> Result<Option<CallResult>, Outcome> {
        let len = call.queue.len;
        let mut frames = [const { None }; 1 + FRAMES];
        frames[0] = self.begun;
        let due = until.saturating_sub(self.workspace.cutter().taken()).0.div_ceil(PAYLOAD.0);
        for (place, nth) in frames[1..].iter_mut().zip(0..due) {
            *place = self.ahead(nth as u32, len);
        }
        let bytes: usize = frames.iter().flatten().map(PartialFrame::payload_left).sum();
        if matches!(call.memory(), Memory::PageCache) {
            stage(call, bytes)?;
        }
        let mut blocks = call.blocks();
        let mut payload = Payload {
            piece: match call.memory() {
                Memory::Arena(_) => &[],
                Memory::PageCache => &call.stage[..bytes],
            },
        };
        let memory = call.memory();
        let mut next = || match memory {
            Memory::Arena(view) => blocks
                .next()
                .map(|fed| &view.bytes(&fed.lease)[fed.at as usize..][..fed.len as usize]),
            Memory::PageCache => None,
        };
        let mut parts = Parts::new();
        for (nth, frame) in frames.iter().enumerate() {
            if let Some(frame) = frame {
                parts.add(&frame.head[frame.taken.min(HEAD)..]);
                let mut left = frame.payload_left();
                while left > 0 {
                    left -= parts.add(payload.take(left, &mut next));
                }
            }
            // Between two frames, or before the first.
            if let (0, Some(message)) = (nth, connection.message()) {
                parts.add(message);
            }
        }
        let offered = parts.bytes();
        if offered == 0 {
            return Ok(None);
        }
        let sent = send_parts(call.port, call.now, &connection.end, parts.as_slice());
        let taken = super::taken_of(offered, sent)?;
        let mut result = CallResult { offered, taken, ..CallResult::default() };
        self.take(taken, len, connection, &mut result);
        Ok(Some(result))
    }

    /// Notes the bytes that the socket has taken.
    fn take(
        &mut self,
        mut left: usize,
        len: Option<Bytes>,
        connection: &mut Connection,
        result: &mut CallResult,
    ) {
        while left > 0 {
            if let Some(begun) = &mut self.begun {
                let own = begun.left().min(left);
                let before = begun.payload_left();
                begun.taken += own;
                result.title += Bytes((before - begun.payload_left()) as u64);
                left -= own;
                if begun.left() == 0 {
                    result.packets += 1;
                    result.payload += begun.payload as u64;
                    self.begun = None;
                }
            } else if let Some(message) = connection.message() {
                let own = message.len().min(left);
                left -= own;
                result.message = connection.take(own).or(result.message.take());
            } else {
                let next = self.ahead(0, len).expect("what is offered is in the stream");
                let cutter = self.workspace.cutter_mut();
                let packet = cutter.next(len).expect("what is offered is in the stream");
                assert!(packet.bytes.0 as usize == next.payload, "one packet at a time");
                cutter.advance(&packet);
                self.begun = Some(next);
            }
        }
    }

    /// Frame `nth` of the next ones; `None` behind the last one.
    fn ahead(&self, nth: u32, len: Option<Bytes>) -> Option<PartialFrame> {
        let cutter = self.workspace.cutter();
        let at = cutter.taken() + Bytes(PAYLOAD.0 * u64::from(nth));
        let left = len.map_or(PAYLOAD, |len| len.saturating_sub(at));
        let payload = left.min(PAYLOAD).0 as usize;
        let head = head(self.channel, payload, cutter.header(nth));
        (payload > 0).then_some(PartialFrame { head, payload, taken: 0 })
    }
}

/// The head of a frame with `payload` bytes.
pub(super) fn head(channel: u8, payload: usize, rtp: Option<[u8; rtp::HEADER]>) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let (outer, inner) = head.split_at_mut(frame::HEAD);
    outer.copy_from_slice(&frame::head(channel, (rtp::HEADER + payload) as u16));
    inner.copy_from_slice(&rtp.expect("packets in frames are of RTP"));
    head
}

/// Copies the next `bytes` out of the page cache to the beginning of the stage.
fn stage<P: LinkPort>(call: &mut Call<'_, P>, bytes: usize) -> Result<(), Outcome> {
    let mut done = 0;
    for fed in call.blocks() {
        let len = (bytes - done).min(fed.len as usize);
        if len == 0 {
            break;
        }
        let part = FilePart { file: call.queue.file, offset: fed.offset, len: len as u32 };
        call.read(part, done)?;
        done += len;
    }
    assert!(done == bytes, "only what was fed is offered");
    Ok(())
}

impl PartialFrame {
    fn left(&self) -> usize {
        HEAD + self.payload - self.taken
    }

    fn payload_left(&self) -> usize {
        self.left().min(self.payload)
    }
}

/// The bytes of a delivery, piece by piece.
struct Payload<'a> {
    piece: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Up to `most` of them.
    fn take(&mut self, most: usize, next: &mut impl FnMut() -> Option<&'a [u8]>) -> &'a [u8] {
        while self.piece.is_empty() {
            self.piece = next().expect("only what was fed is offered");
        }
        let (own, behind) = self.piece.split_at(most.min(self.piece.len()));
        self.piece = behind;
        own
    }
}
