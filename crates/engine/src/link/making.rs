//! Frames that the control side makes, for a connection: each leaves at its own time, whole.
//!
//! Promise: what the socket is given is whole frames and whole texts, one after the other, in whatever pieces it takes
//! them; no frame is begun before it is due; what was not made in time is counted, and moves the clock of its stream
//! only. Nothing is allocated or freed here: the ring's memory is the control side's. The argument:
//! `docs/design/made.md`.

use tactus_core::ports::{LinkPort, Sent};
use tactus_core::stagger::{Slot, Tick};
use tactus_core::units::{MonoTime, Nanos};

use super::LinkServer;
use crate::internal::FromLink;
use crate::link::entry::Entry;
use crate::link::framed::{Attempt, taken_of};
use crate::link::frames::Text;
use crate::link::made::{FRAMES, Made};
use crate::message::{Make, Outcome, Sink, StreamId};

impl<P: LinkPort> LinkServer<P> {
    pub(super) fn make(&mut self, now: MonoTime, make: Make) {
        let Make { stream, sink, rate, begin, ring } = make;
        let Sink::Made(socket) = sink else { unreachable!("datagrams have a server of their own") };
        let index = stream.index;
        self.wake(now);
        let each = rate.bytes_in(MADE_TICK.span());
        let first = self.roster.enter(index, MADE_TICK, each.0, self.slot.max(Slot::at(now)));
        let (text, closing_since, empty_at) = (None, None, None);
        let made = Made { ring, begin, taken: 0, text, empty_at, closing_since };
        self.entries[index as usize] = Entry {
            stream: Some(stream),
            socket: Some(socket),
            made: Some(made),
            first,
            ..Entry::free()
        };
        self.streams[index as usize].rate.set(rate.0);
        self.streams[index as usize].epoch.set(begin.0);
    }

    pub(super) fn visit_made(&mut self, now: MonoTime, slot: Slot, index: u32) {
        let entry = &mut self.entries[index as usize];
        let was_blocked = entry.was_blocked;
        let made = entry.made.as_mut().expect("a made stream is visited");
        if made.closing_since.is_some() {
            return self.close_made(now, index);
        }
        let until = slot.begin();
        let front = made.front();
        match (front, made.empty_at) {
            (None, _) => made.empty_at = Some(until),
            (Some((due, false)), Some(empty_at)) => {
                made.empty_at = None;
                if due <= empty_at {
                    // What was missing is not owed at once.
                    made.begin += until.since(due);
                    let epoch = made.begin.0;
                    let counters = &self.streams[index as usize];
                    counters.epoch.set(epoch);
                    // A peer that takes nothing keeps the ring full until it does: that is no fault of ours.
                    if !was_blocked {
                        self.counters.underruns.add(1);
                        counters.underruns.add(1);
                    }
                    entry.was_blocked = false;
                }
            }
            _ => {}
        }
        let entry = &mut self.entries[index as usize];
        let made = entry.made.as_mut().expect("a made stream is visited");
        let is_quiet = made.due(until) == 0 && made.taken == 0 && made.text.is_none();
        if is_quiet && !front.is_some_and(|(_, is_end)| is_end) {
            return;
        }
        let lateness = now.since(until);
        let second = entry.window.visit(now, entry.sent, was_blocked);
        if let Some(second) = second {
            self.streams[index as usize].second_bytes.set(second.bytes.0);
        }
        self.counters.lateness.record(lateness.0);
        self.streams[index as usize].lateness_max.raise(lateness.0);
        match self.send_made(now, index, until) {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole => {
                let entry = &mut self.entries[index as usize];
                entry.was_blocked = false;
                let made = entry.made.as_mut().expect("a made stream is visited");
                if made.front().is_some_and(|(_, is_end)| is_end) {
                    self.close(index, Outcome::Complete);
                }
            }
            Attempt::Blocked => {
                let patience = self.patience.behind_max;
                let entry = &mut self.entries[index as usize];
                entry.was_blocked = true;
                let made = entry.made.as_mut().expect("a made stream is visited");
                let overdue = made.front().map_or(Nanos(0), |(due, _)| now.since(due));
                if overdue > patience {
                    self.close(index, Outcome::TooSlow);
                }
            }
        }
    }

    /// Sends a text as soon as it can be, which is at once unless the socket is full.
    pub(super) fn insert_made(&mut self, now: MonoTime, stream: StreamId, text: Box<[u8]>) {
        let made = self.entries[stream.index as usize].made.as_mut().expect("a made stream");
        if made.closing_since.is_some() {
            return self.answer(FromLink::Inserted { stream, text, is_sent: false });
        }
        assert!(made.text.is_none(), "one text at a time");
        made.text = Some(Text { bytes: text, taken: 0 });
        // Frames wait for their visit.
        if let Attempt::Ended(outcome) = self.send_made(now, stream.index, MonoTime(0)) {
            self.close(stream.index, outcome);
        }
    }

    /// Ends a stream that has been stopped: now, or when what is begun has been taken.
    pub(super) fn close_made(&mut self, now: MonoTime, index: u32) {
        let made = self.entries[index as usize].made.as_mut().expect("a made stream");
        let since = *made.closing_since.get_or_insert(now);
        match self.send_made(now, index, MonoTime(0)) {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole => self.close(index, Outcome::Stopped),
            Attempt::Blocked if now.since(since) > self.patience.behind_max => {
                self.close(index, Outcome::TooSlow);
            }
            Attempt::Blocked => {}
        }
    }

    /// Sends what is begun, the text, and the frames that are due by `until`.
    fn send_made(&mut self, now: MonoTime, index: u32, until: MonoTime) -> Attempt {
        loop {
            let Some((offered, sent)) = self.offer_made(now, index, until) else {
                return Attempt::Whole;
            };
            let taken = match taken_of(offered, sent) {
                Ok(taken) => taken,
                Err(outcome) => return Attempt::Ended(outcome),
            };
            self.counters.sends.add(1);
            let entry = &mut self.entries[index as usize];
            let (frames, payload, text) = entry.made.as_mut().expect("a made stream").take(taken);
            entry.sent += payload;
            self.counters.bytes.add(payload.0);
            let counters = &self.streams[index as usize];
            counters.bytes.add(payload.0);
            counters.session_packets.add(frames);
            counters.session_bytes.add(payload.0);
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

    /// Offers as much to the socket as one call takes; none when there is nothing.
    fn offer_made(&mut self, now: MonoTime, index: u32, until: MonoTime) -> Option<(usize, Sent)> {
        let entry = &mut self.entries[index as usize];
        let socket = entry.socket.expect("a visited stream has a socket");
        let made = entry.made.as_mut().expect("a made stream");
        made.ring.len();
        let mut parts = [&[][..]; 2 + FRAMES];
        let (mut count, mut frame) = (0, 0);
        if made.taken > 0 {
            let begun = made.ring.peek(0).expect("what is begun is there");
            parts[count] = &begun.bytes()[made.taken..];
            (count, frame) = (count + 1, 1);
        }
        // Between two frames, or before the first.
        if let Some(text) = made.sendable_text() {
            parts[count] = &text.bytes[text.taken..];
            count += 1;
        }
        let due = made.due(until);
        while frame < due {
            parts[count] = made.ring.peek(frame).expect("it is due").bytes();
            (count, frame) = (count + 1, frame + 1);
        }
        let offered = parts[..count].iter().map(|part| part.len()).sum();
        (offered > 0).then(|| (offered, self.port.send(now, socket, &parts[..count])))
    }
}

/// How often made frames are looked after: as often as a stream of packets in frames.
const MADE_TICK: Tick = Tick::Ms10;
