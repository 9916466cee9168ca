//! Removed names of working files that a power failure may bring back, until their directory is
//! flushed.
//!
//! Promise: a removal counts as durable only when a flush that was requested after it has ended
//! well. Every change of names flushes the pending removals before its answer. Otherwise the next
//! start could replace a newer title by the bytes of an old working file.

use std::sync::atomic::{AtomicU64, Ordering};

/// The removals of one volume.
pub(super) struct LateRemovals {
    made: AtomicU64,
    /// So many of them, the first ones, are durable.
    durable: AtomicU64,
}

impl Default for LateRemovals {
    /// Those of the last run may not be durable: they count as one.
    fn default() -> Self {
        Self { made: AtomicU64::new(1), durable: AtomicU64::new(0) }
    }
}

impl LateRemovals {
    /// Notes that a name was removed.
    pub(super) fn note(&self) {
        self.made.fetch_add(1, Ordering::Release);
    }

    /// How many a flush covers that is requested now; none if all are durable.
    pub(super) fn pending(&self) -> Option<u64> {
        let made = self.made.load(Ordering::Acquire);
        (self.durable.load(Ordering::Acquire) < made).then_some(made)
    }

    /// Notes the end of a flush that has covered so many.
    pub(super) fn note_flush(&self, covered: u64) {
        self.durable.fetch_max(covered, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_pending_until_a_flush_that_began_after_it_has_ended() {
        let removals = LateRemovals::default();
        let first = removals.pending().expect("those of the last run");
        removals.note_flush(first);
        assert_eq!(removals.pending(), None);
        removals.note();
        let early = removals.pending().unwrap();
        removals.note();
        removals.note_flush(early);
        let late = removals.pending().expect("the flush began before the second");
        removals.note_flush(late);
        // An older flush that ends last changes nothing.
        removals.note_flush(early);
        assert_eq!(removals.pending(), None);
    }
}
