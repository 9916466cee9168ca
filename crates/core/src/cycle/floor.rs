//! The floor: disk time reserved for uploads even when real-time work fills the cycle.
//!
//! Promise: while uploads wait, they are owed a fixed share of each cycle. Time that a cycle could
//! not give is owed in the next ones, up to a bound, so that it cannot displace the promises of the
//! ledger: the ledger admits streams to the time without the floor.

use crate::units::Nanos;

/// The time owed to uploads.
pub(super) struct Floor {
    share: Nanos,
    /// Limit of the time owed.
    most: Nanos,
    owed: Nanos,
    /// The last cycle that was accounted for.
    cycle: Option<u64>,
}

impl Floor {
    /// A floor of at least `share` of each cycle; `piece` is the highest cost of a piece.
    pub(super) fn new(share: Nanos, piece: Nanos) -> Self {
        // The end of a cycle cannot always be filled to the last piece, and time that is made up
        // later is missing in the ten cycles before. The extra eighth comes from the margin that is
        // never promised.
        let share = share + Nanos(share.0 / 8);
        // In a short cycle the share may be less than one piece: then it accumulates.
        let most = share.times(2).max(share + piece);
        Self { share, most, owed: Nanos(0), cycle: None }
    }

    /// Notes that uploads wait in this cycle.
    pub(super) fn note_waiting(&mut self, cycle: u64) {
        if self.cycle != Some(cycle) {
            self.cycle = Some(cycle);
            self.owed = (self.owed + self.share).min(self.most);
        }
    }

    pub(super) fn owed(&self) -> Nanos {
        self.owed
    }

    /// Whether the limit of the time owed is reached: whole cycles passed without it.
    pub(super) fn is_overdue(&self) -> bool {
        self.owed == self.most
    }

    pub(super) fn note_used(&mut self, time: Nanos) {
        self.owed = self.owed.saturating_sub(time);
    }
}
