//! Kept titles: the operator pins them in memory, and they stay until the operator releases them.
//!
//! Promise: kept titles have at most three quarters of the arena of their volume, so that streams
//! from the disk always find memory. A title that does not fit is refused with the sizes. Hot
//! titles that no viewer relies on make room for it.

use std::sync::Arc;

use tactus_core::units::Bytes;
use tactus_engine::message::TitleId;
use tactus_storage::catalogue::OpenTitle;

use super::stream_table::{PinFault, StreamTable};
use super::{Broker, BrokerRules, DegradationLevel, KeptTitle};

/// The part of the arena that kept titles may have: numerator, denominator.
const KEPT_OF: (u64, u64) = (3, 4);

/// Why a title is not kept in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeepFault {
    /// It does not fit beside the other kept titles.
    #[error(
        "it does not fit into memory: with the titles that are kept there already it needs \
         {needed} of the {limit} that they may have, three quarters of memory.arena"
    )]
    Limit {
        /// Memory with it.
        needed: Bytes,
        /// Memory that kept titles may have.
        limit: Bytes,
    },
    /// The disk is slower than it was measured, and reads nothing ahead of viewers.
    #[error("the disk is slower than it was measured; it is tried again")]
    SlowDisk,
    /// Streams have the memory at the moment.
    #[error("running streams need the memory now; it is tried again")]
    Busy,
    /// A part of it cannot be read.
    #[error("a part of it cannot be read from the disk")]
    Damaged,
}

impl Broker {
    /// Reads `title` into memory in the time that is left over, and keeps it there until
    /// [`Self::release`]. Does nothing if it is kept already.
    ///
    /// # Errors
    /// When it does not fit, now or at all, or cannot be read.
    pub fn keep(&self, title: &Arc<OpenTitle>) -> Result<(), KeepFault> {
        let mut table = self.shared.table();
        let is_slow = self.shared.level(title.volume) >= DegradationLevel::Ahead;
        if is_slow && table.hot_titles.slot_of(title.id).is_none() {
            return Err(KeepFault::SlowDisk);
        }
        table.keep(title, &self.shared.rules)
    }

    /// No longer keeps a title. As a hot title it stays while it has viewers.
    pub fn release(&self, title: TitleId) {
        self.shared.table().release_kept(title);
    }

    /// Gives up hot titles without viewers whose files were deleted or replaced: no request finds
    /// them again, and an open file keeps its space on the disk. May block.
    pub fn forget_deleted(&self) {
        let unwatched = self.shared.table().unwatched();
        for title in unwatched.iter().filter(|title| title.is_nameless()) {
            self.shared.table().forget_unwatched(title.id);
        }
    }

    /// A title, if it is kept.
    pub fn kept(&self, title: TitleId) -> Option<KeptTitle> {
        self.shared.table().hot_titles.kept(title)
    }
}

impl StreamTable {
    fn keep(&mut self, title: &Arc<OpenTitle>, rules: &BrokerRules) -> Result<(), KeepFault> {
        if self.hot_titles.kept(title.id).is_some() {
            return Ok(());
        }
        let (_, arena) = self.arena(title.volume);
        let limit = arena * KEPT_OF.0 / KEPT_OF.1;
        let needed = self.hot_titles.kept_blocks(title.volume) + u64::from(self.blocks_of(title));
        if needed > limit {
            let block = self.ledger.limits().disks[usize::from(title.volume.0)].block.0;
            let [needed, limit] = [needed, limit].map(|blocks| Bytes(blocks * block));
            return Err(KeepFault::Limit { needed, limit });
        }
        while self.hot_titles.slot_of(title.id).is_none() {
            match self.begin_pin(title, rules) {
                Ok(()) => {}
                Err(PinFault::Damaged) => return Err(KeepFault::Damaged),
                Err(PinFault::Busy) if self.give_up_one(Some(title.id)) => {}
                Err(PinFault::Busy) => return Err(KeepFault::Busy),
            }
        }
        self.hot_titles.set_kept(title.id, true);
        Ok(())
    }

    fn unwatched(&self) -> Vec<Arc<OpenTitle>> {
        let slots = self.hot_titles.unwatched().map(|slot| &self.slots[slot as usize]);
        slots.filter_map(|slot| Some(Arc::clone(&slot.title.as_ref()?.title))).collect()
    }

    fn forget_unwatched(&mut self, title: TitleId) {
        if self.hot_titles.is_unwatched(title) {
            self.give_up(title);
        }
    }

    fn release_kept(&mut self, title: TitleId) {
        if self.hot_titles.set_kept(title, false) {
            self.give_up(title);
        }
    }
}
