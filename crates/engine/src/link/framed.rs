//! Streams of frames: packets of RTP in a connection, and other bytes between them.
//!
//! Promise: what the socket is given is whole frames and whole texts, one after the other, in whatever pieces
//! it takes them; none is begun before it is due, or before all of it is in memory; a stream that is stopped ends
//! behind a whole frame. The argument: `docs/design/packets.md`, "Frames".

use tactus_core::datagrams::PAYLOAD;
use tactus_core::ports::{FileHandle, FilePart, LinkPort, Sent};
use tactus_core::stagger::Slot;
use tactus_core::units::{Bytes, MonoTime};

use super::LinkServer;
use crate::feeding::{Fed, Memory};
use crate::internal::FromLink;
use crate::link::entry::Entry;
use crate::link::frames::{Begun, Frames, HEAD, Text};
use crate::message::{Outcome, StreamId};

/// Frames offered in one call: 42 KB, which is 10 ms of 33 Mbit/s.
pub(super) const FRAMES: usize = 32;
/// Each is a head and a piece of a block; what does not fit waits for the next call.
pub(super) const PARTS: usize = 2 * FRAMES;
/// Payloads offered in one call: those frames and what is left of one more.
pub(super) const STAGE: usize = (1 + FRAMES) * PAYLOAD.0 as usize;

/// What became of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The socket has taken everything.
    Whole,
    Blocked,
    Ended(Outcome),
}

impl Entry {
    /// Up to where whole frames are in memory.
    fn whole(&self) -> Bytes {
        let fed = self.sent + self.available;
        if self.len == Some(fed) { fed } else { Bytes(fed.0 / PAYLOAD.0 * PAYLOAD.0) }
    }

    fn frames(&mut self) -> &mut Frames {
        self.frames.as_mut().expect("only streams of frames come here")
    }

    /// Notes that the socket has taken `taken` bytes. Gives how many of them are of the stream, and the
    /// text that has been taken whole.
    fn take_frames(&mut self, taken: usize) -> (Bytes, Option<Box<[u8]>>) {
        let len = self.len;
        let frames = self.frames();
        let (mut left, mut payload, mut text_sent) = (taken, 0, None);
        while left > 0 {
            if let Some(begun) = &mut frames.begun {
                let own = begun.left().min(left);
                let before = begun.payload_left();
                begun.taken += own;
                payload += before - begun.payload_left();
                left -= own;
                if begun.left() == 0 {
                    frames.begun = None;
                }
            } else if let Some(text) = &mut frames.text {
                let own = (text.bytes.len() - text.taken).min(left);
                text.taken += own;
                left -= own;
                if text.taken == text.bytes.len() {
                    text_sent = frames.give_up();
                }
            } else {
                frames.begun = Some(Begun::next(frames.channel, &mut frames.cutter, len));
            }
        }
        (Bytes(payload as u64), text_sent)
    }
}

/// How many of the bytes that were offered a socket has taken; how the stream ends when it takes no more.
pub(super) fn taken_of(offered: usize, sent: Sent) -> Result<usize, Outcome> {
    let taken = match sent {
        Sent::Some(taken) => taken as usize,
        Sent::Blocked => 0,
        Sent::Broken(errno) => return Err(Outcome::PeerGone(errno)),
        Sent::Lost(errno) => return Err(Outcome::DiskFailed(errno)),
    };
    assert!(taken <= offered, "a socket takes no more than it was offered");
    Ok(taken)
}

impl<P: LinkPort> LinkServer<P> {
    pub(super) fn visit_frames(&mut self, now: MonoTime, slot: Slot, index: u32) {
        let entry = &mut self.entries[index as usize];
        let clock = entry.clock.expect("the roster holds only paced streams");
        let (len, sent, was_blocked, whole) =
            (entry.len, entry.sent, entry.was_blocked, entry.whole());
        let frames = entry.frames();
        if frames.closing_since.is_some() {
            return self.close_frames(now, index);
        }
        if frames.is_planned {
            return self.visit_planned(now, slot, index);
        }
        let allowed = clock.allowed(slot.begin());
        // Those frames are due whose first byte is.
        let due = Bytes((allowed.0 / PAYLOAD.0 + 1) * PAYLOAD.0);
        let is_growing = len.is_none() && !frames.repeats;
        let due = match len {
            None if is_growing => due.min(whole),
            None => due,
            Some(len) => due.min(len),
        };
        let begun = frames.cutter.taken();
        if due <= begun && frames.is_between() && frames.text.is_none() {
            if is_growing && allowed > whole && !was_blocked {
                self.move_clock(index, slot.begin().since(clock.due(whole)));
            }
            return;
        }
        let ready = due.min(whole);
        if due > begun {
            if let Some(second) = entry.window.visit(now, sent, was_blocked) {
                self.count_second(index, second);
            }
            let lateness = now.since(slot.begin());
            self.counters.lateness.record(lateness.0);
            self.streams[index as usize].lateness_max.raise(lateness.0);
        }
        if ready < due && !was_blocked {
            self.counters.underruns.add(1);
            self.streams[index as usize].underruns.add(1);
        }
        let attempt = self.send_frames(now, index, ready);
        let entry = &mut self.entries[index as usize];
        match attempt {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole if entry.is_complete() => self.close(index, Outcome::Complete),
            Attempt::Whole => {
                entry.was_blocked &= ready < due;
                let is_behind = ready < due || is_growing && allowed > whole;
                if is_behind && !was_blocked {
                    self.move_clock(index, slot.begin().since(clock.due(whole)));
                }
            }
            Attempt::Blocked => {
                entry.was_blocked = true;
                let overdue = now.since(clock.due(entry.sent + Bytes(1)));
                if overdue > self.patience.behind_max {
                    self.close(index, Outcome::TooSlow);
                }
            }
        }
    }

    /// Sends a text as soon as it can be, which is at once unless the socket is full.
    pub(super) fn insert(&mut self, now: MonoTime, stream: StreamId, text: Box<[u8]>) {
        let entry = &mut self.entries[stream.index as usize];
        if entry.stream == Some(stream) && entry.made.is_some() {
            return self.insert_made(now, stream, text);
        }
        let is_open = entry.stream == Some(stream)
            && entry.frames.as_ref().is_some_and(|frames| frames.closing_since.is_none());
        if !is_open {
            return self.answer(FromLink::Inserted { stream, text, is_sent: false });
        }
        let frames = entry.frames();
        assert!(frames.text.is_none(), "one text at a time");
        frames.text = Some(Text { bytes: text, taken: 0 });
        if let Attempt::Ended(outcome) = self.send_begun(now, stream.index) {
            self.close(stream.index, outcome);
        }
    }

    /// Ends a stream that has been stopped: now, or when what is begun has been taken.
    pub(super) fn close_frames(&mut self, now: MonoTime, index: u32) {
        let frames = self.entries[index as usize].frames();
        let since = *frames.closing_since.get_or_insert(now);
        match self.send_begun(now, index) {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole => self.close(index, Outcome::Stopped),
            Attempt::Blocked if now.since(since) > self.patience.behind_max => {
                self.close(index, Outcome::TooSlow);
            }
            Attempt::Blocked => {}
        }
    }

    /// Sends what is begun, and the text.
    fn send_begun(&mut self, now: MonoTime, index: u32) -> Attempt {
        let frames = self.entries[index as usize].frames();
        let begun = frames.cutter.taken();
        match frames.is_planned {
            true => self.send_planned(now, index, None),
            false => self.send_frames(now, index, begun),
        }
    }

    /// Sends what is begun, the text, and the frames that begin before `until`.
    fn send_frames(&mut self, now: MonoTime, index: u32, until: Bytes) -> Attempt {
        loop {
            let (offered, sent) = match self.offer_frames(now, index, until) {
                Ok(Some(offer)) => offer,
                Ok(None) => return Attempt::Whole,
                Err(errno) => return Attempt::Ended(Outcome::DiskFailed(errno)),
            };
            let taken = match taken_of(offered, sent) {
                Ok(taken) => taken,
                Err(outcome) => return Attempt::Ended(outcome),
            };
            self.counters.sends.add(1);
            let (payload, text) = self.entries[index as usize].take_frames(taken);
            if payload > Bytes(0) {
                self.use_up(index, payload);
                let entry = &mut self.entries[index as usize];
                let (sent, epoch) = (entry.sent, entry.frames().cutter.epoch());
                let counters = &self.streams[index as usize];
                counters.epoch.set(epoch.0);
                counters.session_packets.set(sent.0.div_ceil(PAYLOAD.0));
                counters.session_bytes.set(sent.0);
            }
            if let Some(text) = text {
                let stream = self.entries[index as usize].stream.expect("an open stream sends");
                self.answer(FromLink::Inserted { stream, text, is_sent: true });
            }
            if taken < offered {
                self.counters.blocked.add(1);
                return Attempt::Blocked;
            }
        }
    }

    /// Offers as much to the socket as one call takes; none when there is nothing. Fails when the page cache
    /// has not got the bytes any more.
    fn offer_frames(
        &mut self,
        now: MonoTime,
        index: u32,
        until: Bytes,
    ) -> Result<Option<(usize, Sent)>, i32> {
        let entry = &self.entries[index as usize];
        let frames = entry.frames.as_ref().expect("only streams of frames come here");
        let cutter = &frames.cutter;
        let mut offered = [const { None }; 1 + FRAMES];
        offered[0] = frames.begun;
        let due = until.saturating_sub(cutter.taken()).0.div_ceil(PAYLOAD.0);
        for (place, nth) in offered[1..].iter_mut().zip(0..due) {
            *place = Begun::ahead(frames.channel, cutter, nth as u32, entry.len);
        }
        let bytes = offered.iter().flatten().map(Begun::payload_left).sum();
        let staged = match &self.memories[entry.volume] {
            Memory::Arena(_) => None,
            Memory::PageCache => {
                let staged = &mut self.stage[..bytes];
                copy(&mut self.port, now, entry.file, self.fed.iter(&entry.fed), staged)?;
                Some(&staged[..])
            }
        };
        let mut fed = self.fed.iter(&entry.fed);
        let mut source = Source { piece: staged.unwrap_or_default() };
        let mut next = || match &self.memories[entry.volume] {
            Memory::Arena(view) => {
                fed.next().map(|fed| &view.bytes(&fed.lease)[fed.at as usize..][..fed.len as usize])
            }
            Memory::PageCache => None,
        };
        let mut parts = Parts { parts: [&[]; PARTS], count: 0, bytes: 0 };
        for (nth, frame) in offered.iter().enumerate() {
            if let Some(frame) = frame {
                parts.add(&frame.head[frame.taken.min(HEAD)..]);
                let mut left = frame.payload_left();
                while left > 0 {
                    left -= parts.add(source.take(left, &mut next));
                }
            }
            // Between two frames, or before the first.
            if let (0, Some(text)) = (nth, frames.text()) {
                parts.add(&text.bytes[text.taken..]);
            }
        }
        if parts.bytes == 0 {
            return Ok(None);
        }
        let socket = entry.socket.expect("a visited stream has a socket");
        Ok(Some((parts.bytes, self.port.send(now, socket, &parts.parts[..parts.count]))))
    }
}

/// Copies what a stream sends next out of the page cache.
fn copy<'a>(
    port: &mut impl LinkPort,
    now: MonoTime,
    file: FileHandle,
    fed: impl Iterator<Item = &'a Fed>,
    mut into: &mut [u8],
) -> Result<(), i32> {
    for fed in fed {
        let len = into.len().min(fed.len as usize);
        if len == 0 {
            break;
        }
        let (own, behind) = into.split_at_mut(len);
        port.read(now, FilePart { file, offset: fed.offset, len: len as u32 }, own)?;
        into = behind;
    }
    assert!(into.is_empty(), "only what was fed is offered");
    Ok(())
}

/// The bytes of a stream, piece by piece.
struct Source<'a> {
    piece: &'a [u8],
}

impl<'a> Source<'a> {
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

/// What one call is given.
pub(super) struct Parts<'a> {
    pub(super) parts: [&'a [u8]; PARTS],
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl<'a> Parts<'a> {
    /// Adds a part if there is room, and none is missing before it; says how long it is.
    pub(super) fn add(&mut self, part: &'a [u8]) -> usize {
        if let Some(place) = self.parts.get_mut(self.count).filter(|_| !part.is_empty()) {
            *place = part;
            self.count += 1;
            self.bytes += part.len();
        }
        part.len()
    }
}
