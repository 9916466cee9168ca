//! What the kernel holds: a fixed table, and tags that name one life of one place.
//!
//! Promise: a completion finds exactly the transfer or flush it belongs to, once; a tag that names
//! none stops the program, because then the kernel has written somewhere we do not know of.

use std::ptr::NonNull;

use tactus_core::ports::Sync;

use crate::disk::progress::Progress;

/// What is in the kernel.
pub(super) enum InFlightOperation {
    Transfer(InFlightTransfer),
    Sync(Sync),
}

/// A transfer in the kernel.
pub(super) struct InFlightTransfer {
    pub(super) progress: Progress,
    /// Where its first byte goes, or comes from.
    pub(super) target: NonNull<u8>,
}

pub(super) struct Table {
    slots: Box<[Slot]>,
    free: Vec<u32>,
}

struct Slot {
    running: Option<InFlightOperation>,
    /// Counts the lives of the slot; the upper half of its tags.
    life: u32,
}

// SAFETY: the targets are addresses in an arena that the owner of the table keeps alive; the table
// itself never follows them.
unsafe impl Send for Table {}

impl Table {
    pub(super) fn new(places: u32) -> Self {
        let slots = (0..places).map(|_| Slot { running: None, life: 0 }).collect();
        Self { slots, free: (0..places).rev().collect() }
    }

    pub(super) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Enters a transfer or a flush and returns its tag.
    pub(super) fn begin(&mut self, running: InFlightOperation) -> u64 {
        let index = self.free.pop().expect("the caller has seen a free place");
        let slot = &mut self.slots[index as usize];
        slot.life = slot.life.wrapping_add(1);
        slot.running = Some(running);
        u64::from(slot.life) << 32 | u64::from(index)
    }

    /// What a tag names.
    pub(super) fn running(&mut self, tag: u64) -> &mut InFlightOperation {
        self.slot(tag).running.as_mut().expect("a tag names what is in flight")
    }

    /// Takes it out; its tag names nothing from now on.
    pub(super) fn end(&mut self, tag: u64) -> InFlightOperation {
        let ended = self.slot(tag).running.take().expect("a tag names what is in flight");
        self.free.push(tag as u32);
        ended
    }

    /// The tag of anything in flight.
    pub(super) fn any(&self) -> Option<u64> {
        let index = self.slots.iter().position(|slot| slot.running.is_some())?;
        Some(u64::from(self.slots[index].life) << 32 | index as u64)
    }

    fn slot(&mut self, tag: u64) -> &mut Slot {
        let slot = &mut self.slots[tag as u32 as usize];
        assert_eq!(u64::from(slot.life), tag >> 32, "a completion from an earlier life");
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::ports::{BlockRef, Direction, FileHandle, SyncScope, Transfer};
    use tactus_core::units::{Bytes, SECTOR};

    fn running(place: u32) -> InFlightOperation {
        let block = BlockRef { place, generation: 1 };
        let len = SECTOR as u32;
        let (direction, file, offset) = (Direction::Read, FileHandle(0), Bytes(0));
        let transfer = Transfer::new(direction, block, file, offset, len);
        InFlightOperation::Transfer(InFlightTransfer {
            progress: Progress::new(transfer),
            target: NonNull::dangling(),
        })
    }

    fn place(running: &InFlightOperation) -> u32 {
        match running {
            InFlightOperation::Transfer(moving) => moving.progress.transfer.block.place,
            InFlightOperation::Sync(sync) => sync.token,
        }
    }

    #[test]
    fn a_tag_finds_what_it_names_once() {
        let mut table = Table::new(2);
        let sync =
            InFlightOperation::Sync(Sync { token: 8, file: FileHandle(0), reach: SyncScope::All });
        let tags = [table.begin(running(7)), table.begin(sync)];
        assert_eq!(table.in_flight(), 2);
        assert_eq!(place(table.running(tags[1])), 8);
        assert_eq!(place(&table.end(tags[0])), 7);
        assert_eq!((table.in_flight(), table.any()), (1, Some(tags[1])));
        let again = table.begin(running(9));
        assert_ne!(again, tags[0], "another life, another tag");
        let stale = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            table.end(tags[0]);
        }));
        assert!(stale.is_err());
    }
}
