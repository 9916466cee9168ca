//! Frames of a stream with a plan: what leaves is composed, byte for byte what its datagrams would be.
//!
//! Promise: a frame is composed when it is due and all of it is in memory, and again, the same, until the socket has taken
//! all of it; only then are its bytes given back and its counters noted. Whoever sends in frames heeds no start burst here.

use tactus_core::datagrams::Cutter;
use tactus_core::ports::{FileHandle, FilePart, LinkPort, Sent};
use tactus_core::rtp::{self, frame};
use tactus_core::stagger::Slot;
use tactus_core::units::{Bytes, MonoTime};

use super::LinkServer;
use crate::feeding::{Fed, Memory};
use crate::internal::FromLink;
use crate::link::entry::Entry;
use crate::link::framed::{Attempt, FRAMES, PARTS, Parts, taken_of};
use crate::link::frames::HEAD;
use crate::message::Outcome;

/// Frames offered in one call: a text between them takes a part, too.
const TOGETHER: usize = FRAMES - 1;

/// Where a stream's bytes are.
struct Supply<'a, F> {
    memory: &'a Memory,
    file: FileHandle,
    /// What it has been fed, from the first byte that has not left.
    fed: F,
    available: Bytes,
    len: Option<Bytes>,
}

/// One frame as it is offered.
#[derive(Clone, Copy)]
struct Composed {
    head: [u8; HEAD],
    payload: usize,
    /// Bytes of the title in it.
    own: Bytes,
}

/// What the socket has taken.
#[derive(Clone, Copy, Default)]
struct Taken {
    frames: usize,
    payload: usize,
    own: Bytes,
    /// Of the frame behind them.
    partial: usize,
    is_text: bool,
}

impl<P: LinkPort> LinkServer<P> {
    pub(super) fn visit_planned(&mut self, now: MonoTime, slot: Slot, index: u32) {
        let until = slot.begin();
        let entry = &mut self.entries[index as usize];
        let (len, sent, was_blocked) = (entry.len, entry.sent, entry.was_blocked);
        let frames = entry.frames.as_ref().expect("only streams of frames come here");
        let is_due = frames.cutter.next(len).is_some_and(|next| next.due <= until);
        if !is_due && frames.is_between() && frames.text.is_none() {
            return;
        }
        if is_due {
            if let Some(second) = entry.window.visit(now, sent, was_blocked) {
                self.count_second(index, second);
            }
            let lateness = now.since(until);
            self.counters.lateness.record(lateness.0);
            self.streams[index as usize].lateness_max.raise(lateness.0);
        }
        let attempt = self.send_planned(now, index, Some(until));
        let entry = &mut self.entries[index as usize];
        let frames = entry.frames.as_ref().expect("it has not been closed");
        let next = frames.cutter.next(len).filter(|next| next.due <= until);
        let is_growing = len.is_none() && !frames.repeats;
        match attempt {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole if entry.is_complete() => {
                self.close(index, Outcome::Complete);
            }
            Attempt::Whole => {
                entry.was_blocked &= next.is_some();
                let Some(next) = next.filter(|_| !was_blocked) else { return };
                if !is_growing {
                    self.counters.underruns.add(1);
                    self.streams[index as usize].underruns.add(1);
                }
                self.move_clock(index, until.since(next.due));
            }
            Attempt::Blocked => {
                entry.was_blocked = true;
                let overdue = next.map(|next| now.since(next.due));
                if overdue.is_some_and(|overdue| overdue > self.patience.behind_max) {
                    self.close(index, Outcome::TooSlow);
                }
            }
        }
    }

    /// Sends what is begun, the text, and the frames that are due by `until`.
    pub(super) fn send_planned(
        &mut self,
        now: MonoTime,
        index: u32,
        until: Option<MonoTime>,
    ) -> Attempt {
        loop {
            let (offered, sent, taken) = match self.offer_planned(now, index, until) {
                Ok(Some(offer)) => offer,
                Ok(None) => return Attempt::Whole,
                Err(errno) => return Attempt::Ended(Outcome::DiskFailed(errno)),
            };
            let count = match taken_of(offered, sent) {
                Ok(count) => count,
                Err(outcome) => return Attempt::Ended(outcome),
            };
            self.counters.sends.add(1);
            self.note_planned(index, taken);
            if count < offered {
                self.counters.blocked.add(1);
                return Attempt::Blocked;
            }
        }
    }

    fn note_planned(&mut self, index: u32, taken: Taken) {
        let entry = &mut self.entries[index as usize];
        let stream = entry.stream.expect("an open stream sends");
        let frames = entry.frames.as_mut().expect("it has not been closed");
        if taken.frames > 0 {
            frames.left.0 += taken.frames as u64;
            frames.left.1 += taken.payload as u64;
            let counters = &self.streams[index as usize];
            counters.epoch.set(frames.cutter.epoch().0);
            counters.session_packets.set(frames.left.0);
            counters.session_bytes.set(frames.left.1);
        }
        let text = if taken.is_text { frames.give_up() } else { None };
        if taken.own > Bytes(0) {
            self.use_up(index, taken.own);
        }
        if let Some(text) = text {
            self.answer(FromLink::Inserted { stream, text, is_sent: true });
        }
    }

    /// Offers as much to the socket as one call takes, and goes on behind what it takes; none when there is nothing. Fails
    /// when the page cache has not got the bytes any more.
    fn offer_planned(
        &mut self,
        now: MonoTime,
        index: u32,
        until: Option<MonoTime>,
    ) -> Result<Option<(usize, Sent, Taken)>, i32> {
        let Entry { frames, file, volume, fed, available, len, socket, .. } =
            &mut self.entries[index as usize];
        let frames = frames.as_mut().expect("only streams of frames come here");
        let (memory, pool) = (&self.memories[*volume], &self.fed);
        let supply = Supply {
            memory,
            file: *file,
            fed: || pool.iter(fed),
            available: *available,
            len: *len,
        };
        let nothing = Composed { head: [0; HEAD], payload: 0, own: Bytes(0) };
        let mut composed = [nothing; TOGETHER];
        let (mut count, mut staged, mut own) = (0, 0, Bytes(0));
        let mut ahead = frames.cutter.clone();
        while count < TOGETHER {
            let due = ahead.next(*len).map(|next| next.due);
            let is_begun = count == 0 && frames.taken > 0;
            let is_wanted =
                due.is_some_and(|due| is_begun || until.is_some_and(|until| due <= until));
            if !is_wanted {
                break;
            }
            let stage = &mut self.stage[staged..];
            let next =
                supply.compose(&mut self.port, now, frames.channel, &mut ahead, own, stage)?;
            let Some(next) = next else { break };
            composed[count] = next;
            (count, staged, own) = (count + 1, staged + next.payload, own + next.own);
        }
        let text = frames.text();
        let (text_at, text_left) = match text {
            Some(text) => (usize::from(frames.taken > 0), text.bytes.len() - text.taken),
            None => (usize::MAX, 0),
        };
        let mut parts = Parts { parts: [&[]; PARTS], count: 0, bytes: 0 };
        let mut from = 0;
        for nth in 0..=count {
            if let Some(text) = text.filter(|_| nth == text_at) {
                parts.add(&text.bytes[text.taken..]);
            }
            let Some(frame) = composed[..count].get(nth) else { break };
            let skip = if nth == 0 { frames.taken } else { 0 };
            parts.add(&frame.head[skip.min(HEAD)..]);
            let payload = &self.stage[from..from + frame.payload];
            parts.add(&payload[skip.saturating_sub(HEAD)..]);
            from += frame.payload;
        }
        if parts.bytes == 0 {
            return Ok(None);
        }
        let socket = socket.expect("a visited stream has a socket");
        let offered = parts.bytes;
        let sent = self.port.send(now, socket, &parts.parts[..parts.count]);
        let mut left = match sent {
            Sent::Some(count) => count as usize,
            _ => 0,
        };
        assert!(left <= offered, "a socket takes no more than it was offered");
        let mut taken = Taken { partial: frames.taken, ..Taken::default() };
        let is_all = left == offered;
        for nth in 0..=count {
            if nth == text_at {
                let here = text_left.min(left);
                left -= here;
                taken.is_text = here == text_left;
                if let Some(text) = &mut frames.text {
                    text.taken += here;
                }
                if !taken.is_text {
                    break;
                }
            }
            let Some(frame) = composed[..count].get(nth) else { break };
            let rest = HEAD + frame.payload - taken.partial;
            if left < rest {
                taken.partial += left;
                break;
            }
            left -= rest;
            taken.frames += 1;
            taken.payload += frame.payload;
            taken.own += frame.own;
            taken.partial = 0;
        }
        frames.taken = taken.partial;
        if is_all {
            frames.cutter = ahead;
        } else {
            // What was not taken whole is composed again.
            let mut own = Bytes(0);
            for _ in 0..taken.frames {
                let cutter = &mut frames.cutter;
                let stage = &mut self.stage[..];
                let next =
                    supply.compose(&mut self.port, now, frames.channel, cutter, own, stage)?;
                own += next.expect("it was composed before").own;
            }
        }
        Ok(Some((offered, sent, taken)))
    }
}

impl<'a, F: Fn() -> I, I: Iterator<Item = &'a Fed>> Supply<'a, F> {
    /// Makes the next frame of `cutter`, which goes on behind it, with its payload at the beginning of `stage`; none when not
    /// all of it is in memory. `own` bytes of the title are in frames before it.
    fn compose(
        &self,
        port: &mut impl LinkPort,
        now: MonoTime,
        channel: u8,
        cutter: &mut Cutter,
        own: Bytes,
        stage: &mut [u8],
    ) -> Result<Option<Composed>, i32> {
        let message = cutter.next(self.len).expect("there is one more");
        if own + message.taken > self.available {
            return Ok(None);
        }
        let payload = message.bytes.0 as usize;
        let staged = &mut stage[..payload];
        let front = payload - message.taken.0 as usize;
        self.copy(port, now, own.0 as usize, &mut staged[front..])?;
        let mut head = [0; HEAD];
        let (outer, inner) = head.split_at_mut(frame::HEAD);
        outer.copy_from_slice(&frame::head(channel, (rtp::HEADER + payload) as u16));
        inner.copy_from_slice(&cutter.header(0).expect("packets in frames are of RTP"));
        if cutter.changes(&message) {
            cutter.compose(&message, staged, 0);
        }
        if cutter.watches() {
            cutter.watch(staged);
        }
        cutter.advance(&message);
        Ok(Some(Composed { head, payload, own: message.taken }))
    }

    /// Copies what comes behind the first `skip` bytes.
    fn copy(
        &self,
        port: &mut impl LinkPort,
        now: MonoTime,
        mut skip: usize,
        mut into: &mut [u8],
    ) -> Result<(), i32> {
        for fed in (self.fed)() {
            let from = skip.min(fed.len as usize);
            skip -= from;
            let len = (fed.len as usize - from).min(into.len());
            if into.is_empty() {
                break;
            }
            let (here, behind) = into.split_at_mut(len);
            match self.memory {
                Memory::Arena(view) => {
                    let at = fed.at as usize + from;
                    here.copy_from_slice(&view.bytes(&fed.lease)[at..at + len]);
                }
                Memory::PageCache if len > 0 => {
                    let offset = fed.offset + Bytes(from as u64);
                    port.read(now, FilePart { file: self.file, offset, len: len as u32 }, here)?;
                }
                Memory::PageCache => {}
            }
            into = behind;
        }
        assert!(into.is_empty(), "only what was fed is offered");
        Ok(())
    }
}
