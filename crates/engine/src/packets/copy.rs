//! A message's bytes in memory of its own.
//!
//! Promise: what leaves is what the title holds there, wherever that lies: in blocks of the arena, in the page cache, or over the
//! seam of a title that begins again. What is copied may be changed; a block never is.

use tactus_core::datagrams::Message;
use tactus_core::mutant;
use tactus_core::ports::FilePart;
use tactus_core::units::{Bytes, MonoTime};

use super::pieces::PIECE;
use super::{PacketServer, batch, entry_of};
use crate::link::Memory;

impl PacketServer {
    /// Notes the counters of the message that was gathered last, if anybody wants them; false when it has to be copied first, as
    /// it lies in two blocks.
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

    /// Copies the bytes of the message that was gathered last into memory of its own, out of the page cache or because
    /// they are to be changed.
    pub(super) fn copy(
        &mut self,
        now: MonoTime,
        index: u32,
        message: Message,
        is_changed: bool,
    ) -> Result<(), i32> {
        let entry = entry_of(&mut self.entries, index);
        let staged = self.batch.stage();
        let own = (message.bytes - message.taken).0 as usize;
        let mut into = &mut staged[own..];
        if let Memory::Arena(view) = &self.memories[entry.volume] {
            for part in batch::parts_of(view, &self.fed, entry, &message) {
                let len = part.len().min(into.len());
                let (here, behind) = into.split_at_mut(len);
                here.copy_from_slice(&part[..len]);
                into = behind;
                // Where the blocks behind are is cold, and nobody's business yet.
                if into.is_empty() {
                    break;
                }
            }
            assert!(into.is_empty(), "only what was fed is offered");
        }
        let mut at = message.from.0;
        while !into.is_empty() {
            let held = self.pieces.from(index, at);
            if !held.is_empty() {
                let len = held.len().min(into.len());
                let (own, behind) = into.split_at_mut(len);
                own.copy_from_slice(&held[..len]);
                (into, at) = (behind, at + len as u64);
                continue;
            }
            let turn = mutant!(SeamIgnored, None, entry.turn).map_or(u64::MAX, |turn| turn.0);
            let here = at % turn;
            let fed = (entry.sent + entry.available).0.saturating_sub(at);
            let most = fed.max(into.len() as u64).min(turn - here);
            let offset = entry.first_byte + Bytes(here);
            if into.len() >= PIECE {
                let len = most.min(into.len() as u64);
                let (own, behind) = into.split_at_mut(len as usize);
                self.port.read(now, FilePart { file: entry.file, offset, len: len as u32 }, own)?;
                (into, at) = (behind, at + len);
                continue;
            }
            let len = most.min(PIECE as u64);
            let room = self.pieces.room(index, len as usize);
            self.port.read(now, FilePart { file: entry.file, offset, len: len as u32 }, room)?;
            self.pieces.keep(index, at..at + len);
        }
        if is_changed {
            let missed = entry.cutter.missed();
            let composed = entry.cutter.compose(&message, staged);
            self.counters.stuffed.add(composed.nulls.into());
            self.counters.slots_late.add(composed.late.into());
            self.counters.unstamped.add(entry.cutter.missed() - missed);
        }
        if entry.cutter.watches() {
            entry.cutter.watch(staged);
        }
        Ok(())
    }
}
