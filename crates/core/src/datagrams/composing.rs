//! Composes the payloads of a message: title bytes with the front and stuffing, and continuous
//! clocks and counters.
//!
//! Promise: title packets keep their order, and each packet lies in the payload of its datagram.
//! PCRs and continuity counters continue over turns of the title and from the stream before, or are
//! marked as discontinuous. Due times are not decided here. Design note: `docs/design/packets.md`,
//! Plans.

use super::{Cutter, Message, PAYLOAD, TS, payloads, ticks, wrapped};
use crate::ts::{self, Moment, NULL_PACKET, Pcr, SYNC};
use crate::units::{Bytes, MediaTime, MonoTime};

/// The insertions in a message.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Composition {
    /// Null packets.
    pub nulls: u32,
    /// Title packets that leave a whole datagram or more after their time.
    pub late: u32,
}

/// The source of a packet.
#[derive(Clone, Copy)]
enum Slot {
    /// The front, at this byte.
    Front(usize),
    /// The next packet of the title.
    Title,
    Null,
}

impl Cutter {
    /// Composes the payloads of the next message in `bytes`, with `room` bytes in front of each for
    /// the header. Title bytes are at their places already if [nothing moves
    /// them](Self::is_in_place), else together at the end, without arrival times and parity. A
    /// packet of such a title that does not begin with a sync byte becomes a null packet: behind
    /// damage the packets are elsewhere.
    ///
    /// # Panics
    /// If it is not the next one, or `bytes` has another length.
    pub fn compose(&mut self, message: &Message, bytes: &mut [u8], room: usize) -> Composition {
        let rooms = u64::from(message.datagrams) * room as u64;
        assert!(message.at == self.at && bytes.len() as u64 == message.bytes.0 + rooms);
        let mut composed = Composition::default();
        if let Some(sound) = self.sound() {
            sound.compose(message.taken, bytes, room);
            return composed;
        }
        if self.is_in_place() {
            let mut title = self.taken;
            for payload in payloads(bytes, room) {
                self.restamp_title(title, payload);
                title += Bytes(payload.len() as u64);
            }
            return composed;
        }
        let (stuffed, front) = (self.stuffed().is_some(), self.front());
        let mut from = bytes.len() - self.packets.bare(message.taken).0 as usize;
        let mut title = self.taken;
        let end = self.taken + message.taken;
        let mut at = 0;
        for nth in 0..message.datagrams {
            let mut own = if stuffed { self.of_title(nth, title, Some(end)) } else { u64::MAX };
            let due = if stuffed { self.due(nth) } else { MonoTime(0) };
            let datagram = (at + PAYLOAD.0 as usize).min(message.bytes.0 as usize);
            while at < datagram {
                let len = (TS as usize).min(datagram - at);
                let out = self.at + Bytes(at as u64);
                let slot = match out < front {
                    true => Slot::Front(out.0 as usize),
                    false if own > 0 && title < end => Slot::Title,
                    false => Slot::Null,
                };
                let place = at + room * (nth as usize + 1);
                match slot {
                    Slot::Front(front) => {
                        let plan = self.plan.as_ref().expect("what stands in front is in the plan");
                        bytes[place..place + len].copy_from_slice(&plan.front[front..front + len]);
                    }
                    Slot::Title => {
                        // Without insertions they are at their places already.
                        if from != place {
                            bytes.copy_within(from..from + len, place);
                        }
                        if !self.packets.is_plain() && bytes[place] != SYNC {
                            bytes[place..place + len].copy_from_slice(&NULL_PACKET[..len]);
                        }
                        own -= 1;
                        from += len;
                        if stuffed && self.title_due(title) + self.gap() < due {
                            composed.late += 1;
                        }
                    }
                    Slot::Null => {
                        bytes[place..place + len].copy_from_slice(&NULL_PACKET[..len]);
                        composed.nulls += 1;
                    }
                }
                if let Some(packet) = bytes[place..place + len].first_chunk_mut() {
                    self.restamp(slot, title, out, packet);
                }
                if matches!(slot, Slot::Title) {
                    title += self.packets.framed(Bytes(len as u64));
                }
                at += len;
            }
        }
        composed
    }

    /// Restamps title packets at their final places, which begin at `title` in the title.
    fn restamp_title(&mut self, mut title: Bytes, bytes: &mut [u8]) {
        if self.restamping().is_none() {
            return;
        }
        let ahead = self.at - self.taken;
        let turn_ends = |this: &Self| this.turn.map_or(u64::MAX, |turn| (this.part + 1) * turn.0);
        let mut end = turn_ends(self);
        for packet in bytes.as_chunks_mut().0 {
            if title.0 >= end || !self.restamper.restamp_plain(packet) {
                self.restamp(Slot::Title, title, title + ahead, packet);
                end = turn_ends(self);
            }
            title += Bytes(TS);
        }
    }

    /// Restamps one packet; `title` is the position of the next packet in the title.
    fn restamp(&mut self, slot: Slot, title: Bytes, out: Bytes, packet: &mut [u8; ts::PACKET]) {
        let Some(restamping) = self.plan.as_ref().and_then(|plan| plan.restamping.as_ref()) else {
            return;
        };
        let moment = match slot {
            Slot::Null => return,
            Slot::Front(_) => {
                // If the title's clock is marked, the front has a marked PCR.
                let clock = restamping.clock.filter(|_| packet[3] & 0x20 != 0);
                let shown = |(pid, _)| Some((pid, self.shows(out + Bytes(ts::PCR_BYTE))?));
                let pcr = clock.and_then(shown);
                Moment { pcr, moved: MediaTime(0), beyond: None, breaks: self.breaks }
            }
            Slot::Title => {
                let (part, within) = self.turn_of(title);
                if part != self.part {
                    self.restamper.join(restamping.ahead);
                    (self.part, self.ahead) = (part, self.ahead_in(part));
                    // A title whose clock cannot be moved restarts it in each turn.
                    self.breaks = restamping.turn == Some(MediaTime(0));
                }
                // Few packets have a PCR.
                let may_have_clock = packet[3] & 0x20 != 0 || !restamping.runs.is_empty();
                let pcr = restamping
                    .clock
                    .filter(|_| may_have_clock)
                    .and_then(|(pid, _)| Some((pid, self.shows(out + Bytes(ts::PCR_BYTE))?)));
                if restamping.runs.is_empty() {
                    let moved = self.ahead;
                    let moment = Moment { pcr, moved, beyond: None, breaks: self.breaks };
                    return self.restamper.restamp(packet, &moment);
                }
                let behind = restamping.runs.partition_point(|run| run.at <= within);
                let moved = |nth: usize| {
                    let run =
                        nth.checked_sub(1).map_or(MediaTime(0), |nth| restamping.runs[nth].moved);
                    Pcr::at(self.ahead).after(run).ticks()
                };
                // The nearer of the two neighbouring jumps counts.
                let beyond = match (behind.checked_sub(1), restamping.runs.get(behind)) {
                    (None, None) => None,
                    (Some(last), Some(next))
                        if within - restamping.runs[last].at > next.at - within =>
                    {
                        Some(moved(behind + 1))
                    }
                    (Some(last), _) => Some(moved(last)),
                    (None, Some(_)) => Some(moved(behind + 1)),
                };
                Moment { pcr, moved: moved(behind), beyond, breaks: self.breaks }
            }
        };
        self.restamper.restamp(packet, &moment);
    }

    /// The turn of a title byte and the offset in it: usually the restamper's turn.
    fn turn_of(&self, title: Bytes) -> (u64, u64) {
        let Some(turn) = self.turn else { return (0, title.0) };
        match title.0.checked_sub(self.part * turn.0) {
            Some(within) if within < turn.0 => (self.part, within),
            _ => (title.0 / turn.0, title.0 % turn.0),
        }
    }

    /// The offset of the stream's clock from the title's in a turn, modulo the wrap.
    pub(super) fn ahead_in(&self, part: u64) -> MediaTime {
        let Some(restamping) = self.restamping() else { return MediaTime(0) };
        let turned = match (restamping.turn, self.turn) {
            (Some(turn), _) => wrapped(u128::from(turn.0) * u128::from(part)),
            (None, Some(turn)) => self.span(Bytes(turn.0 * part)),
            (None, None) => MediaTime(0),
        };
        match (restamping.clock, self.begins) {
            (Some((_, own)), Some(begins)) => Pcr::at(turned).after(begins.since(own)).ticks(),
            _ => turned,
        }
    }

    /// The PCR value at a byte, counted over everything sent: the title's PCR at its first byte
    /// plus the elapsed time.
    pub(super) fn shows(&self, out: Bytes) -> Option<Pcr> {
        // The clock is only moved if bytes are not paced by it.
        let begins = self
            .begins
            .filter(|_| self.restamping().is_some_and(|restamping| restamping.turn.is_none()))?;
        let front = self.front();
        Some(match self.stuffed() {
            Some(rate) => begins.before(self.lead_ticks()).after(ticks(out, rate)),
            None if out < front => {
                let passed = ticks(self.packets.framed(out), self.clock.rate());
                begins.before(self.lead_ticks()).after(passed)
            }
            None => begins.after(self.span(self.packets.framed(out - front))),
        })
    }

    /// The time until byte `from` of the title, by its clock.
    fn span(&self, from: Bytes) -> MediaTime {
        match self.line() {
            Some(line) => wrapped(u128::from(line.ticks(from, self.hint).0)),
            None => ticks(from, self.clock.rate()),
        }
    }
}
