//! A copy of the bytes of a message.
//!
//! Promise: the copy equals the bytes of the title, whatever their place: blocks of the arena, the
//! page cache, or both sides of the seam of a repeating title. A copy may be changed; a block is
//! never changed.

use std::iter;

use tactus_core::datagrams::{Message, PAYLOAD, payloads};
use tactus_core::mutant;
use tactus_core::ports::{FilePart, PacketPort};
use tactus_core::ts::PACKET;
use tactus_core::units::{Bytes, MonoTime};

use super::entry::Entry;
use super::pieces::{PIECE, Pieces};
use super::{PacketServer, batch, entry_of};
use crate::egress::Memory;

impl PacketServer {
    /// Notes the continuity counters of the last gathered message, if they are needed. Returns
    /// false if the message must be copied first, as it lies in two blocks.
    pub(super) fn watch(&mut self, index: u32, message: &Message) -> bool {
        let entry = entry_of(&mut self.entries, index);
        let Memory::Arena(view) = &self.memories[entry.volume] else { return false };
        if !entry.cutter.watches() {
            return true;
        }
        let part = batch::parts_of(view, &self.fed, entry, message).find(|part| !part.is_empty());
        let whole = part.and_then(|part| part.get(..message.bytes.0 as usize));
        whole.map(|whole| entry.cutter.watch(whole)).is_some()
    }

    /// Copies the bytes of the last gathered message into the stage, because they come from the
    /// page cache or will be changed. Each datagram's header goes in front of it, so the message is
    /// one part.
    pub(super) fn copy(&mut self, now: MonoTime, index: u32, message: Message) -> Result<(), i32> {
        let entry = entry_of(&mut self.entries, index);
        let room = entry.header();
        let staged = self.batch.stage(room);
        let is_in_place = entry.cutter.is_in_place();
        let packets = entry.cutter.packets();
        let title = staged.len() - packets.bare(message.taken).0 as usize;
        match &self.memories[entry.volume] {
            Memory::Arena(view) => {
                let parts = batch::parts_of(view, &self.fed, entry, &message);
                if is_in_place {
                    fill(payloads(staged, room), parts);
                } else if !packets.is_plain() {
                    let filled = packets.strip(parts, &mut staged[title..]);
                    assert!(title + filled == staged.len(), "only what was fed is offered");
                } else {
                    fill(iter::once(&mut staged[title..]), parts);
                }
            }
            Memory::PageCache => {
                let mut file = File { port: self.port.as_mut(), pieces: &mut self.pieces, entry };
                if packets.is_plain() {
                    file.read(now, index, message.from.0, &mut staged[title..])?;
                } else {
                    // Each packet comes out of the piece that was read for the first of them.
                    let mut from = message.from.0 + packets.lead() as u64;
                    for packet in staged[title..].chunks_mut(PACKET) {
                        file.read(now, index, from, packet)?;
                        from += packets.stride as u64;
                    }
                }
                if is_in_place && room > 0 {
                    spread(staged, room, title);
                }
            }
        }
        let missed = entry.cutter.missed();
        let composed = entry.cutter.compose(&message, staged, room);
        self.counters.stuffed.add(composed.nulls.into());
        self.counters.slots_late.add(composed.late.into());
        self.counters.unstamped.add(entry.cutter.missed() - missed);
        if entry.cutter.watches() {
            payloads(staged, room).for_each(|payload| entry.cutter.watch(payload));
        }
        if room > 0 {
            let datagrams = staged.chunks_mut(usize::from(entry.segment()));
            for (datagram, nth) in datagrams.zip(0..) {
                let header = entry.cutter.header(nth).expect("there is room for it");
                datagram[..room].copy_from_slice(&header);
            }
        }
        Ok(())
    }
}

/// Fills `places` one after the other with the bytes of `parts`.
fn fill<'a, 'b>(
    mut places: impl Iterator<Item = &'a mut [u8]>,
    parts: impl Iterator<Item = &'b [u8]>,
) {
    let Some(mut into) = places.next().filter(|first| !first.is_empty()) else { return };
    for mut part in parts {
        while !part.is_empty() {
            let len = part.len().min(into.len());
            let (here, behind) = into.split_at_mut(len);
            here.copy_from_slice(&part[..len]);
            (into, part) = (behind, &part[len..]);
            if into.is_empty() {
                // Later parts are cold and not needed yet.
                let Some(next) = places.next() else { return };
                into = next;
            }
        }
    }
    panic!("only what was fed is offered");
}

/// Moves adjacent payloads, from `from` on, apart so that each has `room` in front.
fn spread(staged: &mut [u8], room: usize, mut from: usize) {
    let (payload, mut to) = (PAYLOAD.0 as usize, room);
    while to < from {
        let len = payload.min(staged.len() - from);
        staged.copy_within(from..from + len, to);
        (from, to) = (from + len, to + payload + room);
    }
}

/// A title in the page cache.
struct File<'a> {
    port: &'a mut dyn PacketPort,
    pieces: &'a mut Pieces,
    entry: &'a Entry,
}

impl File<'_> {
    /// Fills `into` with the bytes from `at` of the stream on, counted over all turns.
    fn read(
        &mut self,
        now: MonoTime,
        index: u32,
        mut at: u64,
        mut into: &mut [u8],
    ) -> Result<(), i32> {
        let Entry { file, turn, first_byte, sent, available, .. } = *self.entry;
        while !into.is_empty() {
            let filled = self.pieces.from(index, at);
            if !filled.is_empty() {
                let len = filled.len().min(into.len());
                let (own, behind) = into.split_at_mut(len);
                own.copy_from_slice(&filled[..len]);
                (into, at) = (behind, at + len as u64);
                continue;
            }
            let turn = mutant!(SeamIgnored, None, turn).map_or(u64::MAX, |turn| turn.0);
            let here = at % turn;
            let fed = (sent + available).0.saturating_sub(at);
            let most = fed.max(into.len() as u64).min(turn - here);
            let offset = first_byte + Bytes(here);
            if into.len() >= PIECE {
                let len = most.min(into.len() as u64);
                let (own, behind) = into.split_at_mut(len as usize);
                self.port.read(now, FilePart { file, offset, len: len as u32 }, own)?;
                (into, at) = (behind, at + len);
                continue;
            }
            let len = most.min(PIECE as u64);
            let room = self.pieces.room(index, len as usize);
            self.port.read(now, FilePart { file, offset, len: len as u32 }, room)?;
            self.pieces.keep(index, at..at + len);
        }
        Ok(())
    }
}
