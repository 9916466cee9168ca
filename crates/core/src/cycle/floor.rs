//! The floor: disk time that uploads get even when real-time work fills the cycle.
//!
//! Promise: while uploads wait, they are owed a fixed share of each cycle until they have had it. What a
//! cycle could not give is owed in the next ones, up to a bound, so that it cannot crowd out what the
//! ledger has promised: streams are admitted to what is left without the floor.

use crate::units::Nanos;

/// What uploads are owed.
pub(super) struct Floor {
    share: Nanos,
    /// Most that can be owed.
    most: Nanos,
    owed: Nanos,
    /// The last cycle for which something was added.
    cycle: Option<u64>,
}

impl Floor {
    /// At least `share` of each cycle; `piece` is the most that a piece costs.
    pub(super) fn new(share: Nanos, piece: Nanos) -> Self {
        // The end of a cycle cannot always be filled to the last piece, and what is made up later is
        // missing in the ten cycles before: an eighth more is in the margin that is never promised.
        let share = share + Nanos(share.0 / 8);
        // Of a short cycle the share may be less than one piece: then it is saved up.
        let most = share.times(2).max(share + piece);
        Self { share, most, owed: Nanos(0), cycle: None }
    }

    /// Uploads wait in this cycle.
    pub(super) fn note_waiting(&mut self, cycle: u64) {
        if self.cycle != Some(cycle) {
            self.cycle = Some(cycle);
            self.owed = (self.owed + self.share).min(self.most);
        }
    }

    pub(super) fn owed(&self) -> Nanos {
        self.owed
    }

    /// Whether so much is owed that no more can be: the ends of whole cycles have gone by.
    pub(super) fn is_overdue(&self) -> bool {
        self.owed == self.most
    }

    pub(super) fn note_used(&mut self, time: Nanos) {
        self.owed = self.owed.saturating_sub(time);
    }
}
