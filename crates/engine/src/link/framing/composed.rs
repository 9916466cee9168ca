//! Interleaved RTP by a plan: frames are composed, byte for byte as its datagrams would be.
//!
//! Promise: a frame is composed when it is due and all of it is in memory. It is composed again,
//! with the same bytes, until the socket has taken all of it; only then its bytes are released and
//! its counters noted. Frames have no start burst. The argument: `docs/design/packets.md`,
//! "Frames".

use tactus_core::datagrams::Cutter;
use tactus_core::ports::{FilePart, LinkPort};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::packets::{HEAD, head};
use super::parts::Parts;
use super::{Call, CallResult, FRAMES, Limit, Readiness, send_parts};
use crate::egress::Memory;
use crate::link::connection::Connection;
use crate::link::send_queue::SendQueue;
use crate::message::{Outcome, Workspace};

/// Frames offered in one call: a message between them also takes a part.
const TOGETHER: usize = FRAMES - 1;

pub(in crate::link) struct Composed {
    channel: u8,
    /// Its cutter is behind the last frame that has been sent whole.
    workspace: Workspace,
    /// Bytes of the frame behind it that the socket has taken.
    taken: usize,
}

/// One frame of an offer.
#[derive(Clone, Copy)]
struct OfferedFrame {
    head: [u8; HEAD],
    payload: usize,
    /// Bytes of the title in it.
    title: Bytes,
}

impl Composed {
    pub(in crate::link) fn new(channel: u8, workspace: Workspace) -> Self {
        Self { channel, workspace, taken: 0 }
    }

    pub(super) fn is_between(&self) -> bool {
        self.taken == 0
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

    /// The bytes due by `now` at a variable rate; `None` at one rate.
    pub(super) fn allowed(&self, now: MonoTime) -> Option<Bytes> {
        let cutter = self.workspace.cutter();
        (!cutter.is_even()).then(|| cutter.allowed(now))
    }

    /// When the next packet is due, if that is by `until`.
    pub(super) fn next_due(&self, queue: &SendQueue, until: MonoTime) -> Option<MonoTime> {
        self.workspace.cutter().next(queue.len).map(|next| next.due).filter(|&due| due <= until)
    }

    pub(super) fn readiness(&self, queue: &SendQueue, until: MonoTime) -> Readiness {
        let is_due = self.next_due(queue, until).is_some();
        let limit = Limit { time: until, ..Limit::BEGUN };
        Readiness { is_pending: is_due, is_due, starved: None, limit, allowed: Bytes(0) }
    }

    /// After a send: the due bytes that are left are not in memory.
    pub(super) fn gap(&self, queue: &SendQueue, until: MonoTime) -> Nanos {
        self.next_due(queue, until).map_or(Nanos(0), |due| until.since(due))
    }

    /// Offers the begun frame, the message, and the frames that are due by `until`.
    pub(super) fn send<P: LinkPort>(
        &mut self,
        call: &mut Call<'_, P>,
        connection: &mut Connection,
        until: MonoTime,
    ) -> Result<Option<CallResult>, Outcome> {
        let len = call.queue.len;
        let nothing = OfferedFrame { head: [0; HEAD], payload: 0, title: Bytes(0) };
        let mut frames = [nothing; TOGETHER];
        let (mut count, mut staged, mut title) = (0, 0, Bytes(0));
        let mut ahead = self.workspace.cutter().clone();
        while count < TOGETHER {
            let is_begun = count == 0 && self.taken > 0;
            let is_wanted = ahead.next(len).is_some_and(|next| is_begun || next.due <= until);
            if !is_wanted {
                break;
            }
            let Some(next) = compose(call, self.channel, &mut ahead, title, staged)? else { break };
            frames[count] = next;
            (count, staged, title) = (count + 1, staged + next.payload, title + next.title);
        }
        let frames = &frames[..count];
        let message = connection.message();
        let message_at = message.map(|_| usize::from(self.taken > 0));
        let mut parts = Parts::new();
        let mut from = 0;
        for nth in 0..=count {
            if let Some(message) = message.filter(|_| message_at == Some(nth)) {
                parts.add(message);
            }
            let Some(frame) = frames.get(nth) else { break };
            let skip = if nth == 0 { self.taken } else { 0 };
            parts.add(&frame.head[skip.min(HEAD)..]);
            let payload = &call.stage[from..from + frame.payload];
            parts.add(&payload[skip.saturating_sub(HEAD)..]);
            from += frame.payload;
        }
        let offered = parts.bytes();
        if offered == 0 {
            return Ok(None);
        }
        let sent = send_parts(call.port, call.now, &connection.end, parts.as_slice());
        let taken = super::taken_of(offered, sent)?;
        let mut result = CallResult { offered, taken, ..CallResult::default() };
        self.take(frames, message_at, connection, &mut result);
        if taken == offered {
            *self.workspace.cutter_mut() = ahead;
        } else {
            // A frame that is not taken whole is composed again.
            let mut title = Bytes(0);
            for _ in 0..result.packets {
                let cutter = self.workspace.cutter_mut();
                let next = compose(call, self.channel, cutter, title, 0)?;
                title += next.expect("it was composed before").title;
            }
        }
        Ok(Some(result))
    }

    /// Notes the bytes that the socket has taken.
    fn take(
        &mut self,
        frames: &[OfferedFrame],
        message_at: Option<usize>,
        connection: &mut Connection,
        result: &mut CallResult,
    ) {
        let mut left = result.taken;
        for nth in 0..=frames.len() {
            if message_at == Some(nth) {
                let whole = connection.message().map_or(0, <[u8]>::len);
                let own = whole.min(left);
                left -= own;
                result.message = connection.take(own);
                if own < whole {
                    break;
                }
            }
            let Some(frame) = frames.get(nth) else { break };
            let rest = HEAD + frame.payload - self.taken;
            if left < rest {
                self.taken += left;
                break;
            }
            left -= rest;
            self.taken = 0;
            result.packets += 1;
            result.payload += frame.payload as u64;
            result.title += frame.title;
        }
    }
}

/// Composes the next frame of `cutter`, and moves `cutter` behind it. The payload lies in the stage
/// from `at` on. `None` if not all of it is in memory. `before` is the number of title bytes in the
/// frames before it.
fn compose<P: LinkPort>(
    call: &mut Call<'_, P>,
    channel: u8,
    cutter: &mut Cutter,
    before: Bytes,
    at: usize,
) -> Result<Option<OfferedFrame>, Outcome> {
    let message = cutter.next(call.queue.len).expect("there is one more");
    if before + message.taken > call.queue.available {
        return Ok(None);
    }
    let payload = message.bytes.0 as usize;
    let title = message.taken;
    let packets = cutter.packets();
    let begins = at + payload - packets.bare(title).0 as usize;
    // Arrival times and parity lie behind the payload until they are removed; the stage has room.
    copy(call, before.0 as usize, begins, title.0 as usize)?;
    packets.strip_in_place(&mut call.stage[begins..begins + title.0 as usize]);
    let head = head(channel, payload, cutter.header(0));
    let staged = &mut call.stage[at..at + payload];
    if cutter.changes(&message) {
        cutter.compose(&message, staged, 0);
    }
    if cutter.watches() {
        cutter.watch(staged);
    }
    cutter.advance(&message);
    Ok(Some(OfferedFrame { head, payload, title }))
}

/// Copies `len` bytes behind the first `skip` fed ones into the stage from `at` on.
fn copy<P: LinkPort>(
    call: &mut Call<'_, P>,
    mut skip: usize,
    mut at: usize,
    mut len: usize,
) -> Result<(), Outcome> {
    for fed in call.blocks() {
        if len == 0 {
            break;
        }
        let from = skip.min(fed.len as usize);
        skip -= from;
        let here = (fed.len as usize - from).min(len);
        match call.memory() {
            Memory::Arena(view) => {
                let block = &view.bytes(&fed.lease)[fed.at as usize + from..][..here];
                call.stage[at..at + here].copy_from_slice(block);
            }
            Memory::PageCache if here > 0 => {
                let offset = fed.offset + Bytes(from as u64);
                let part = FilePart { file: call.queue.file, offset, len: here as u32 };
                call.read(part, at)?;
            }
            Memory::PageCache => {}
        }
        at += here;
        len -= here;
    }
    assert!(len == 0, "only what was fed is offered");
    Ok(())
}
