//! The way of one value from the thread that gives it up to the thread that takes it.
//!
//! Promise: at every time the value has one owner. It is given only after the taker has announced
//! itself, and taken once. Neither thread waits. The way wakes no thread: [`crate::token`] does.
//!
//! ```text
//!    STAYING -- expect: taker --> EXPECTED -- give: giver --> AHEAD -- take: taker --> ARRIVED
//!       ▲                            │
//!       └───── withdraw: taker ──────┘
//! ```
//!
//! GIVING and TAKING are between two of them: the thread that brought the word there owns the
//! place, so any number of threads may call any function.

use crate::sync::{AtomicU8, Ordering, UnsafeCell};

/// A place for one value, and how far the value is.
pub struct HandOver<T> {
    stage: AtomicU8,
    value: UnsafeCell<Option<T>>,
}

/// With the giver; the taker has not announced itself.
const STAYING: u8 = 0;
/// With the giver; the taker looks for it.
const EXPECTED: u8 = 1;
/// The giver puts it into the place.
const GIVING: u8 = 2;
/// In the place.
const AHEAD: u8 = 3;
/// The taker takes it out of the place.
const TAKING: u8 = 4;
/// With the taker.
const ARRIVED: u8 = 5;

// SAFETY: the place is accessed only by the thread that has brought the stage to GIVING or TAKING,
// and the stage leaves each of both once.
unsafe impl<T: Send> Sync for HandOver<T> {}

impl<T: Send> HandOver<T> {
    /// A way on which no value is yet.
    pub fn new() -> Self {
        Self { stage: AtomicU8::new(STAYING), value: UnsafeCell::new(None) }
    }

    /// For the taker: announces that it looks for the value.
    pub fn expect(&self) {
        // SYNC(expected): release here, acquire in `is_expected` and `give`.
        self.step(STAYING, EXPECTED);
    }

    /// For the taker: looks for the value no more, until it announces itself again. Returns whether
    /// the value stays with the giver until then.
    pub fn withdraw(&self) -> bool {
        // Whatever the taker does next, the giver sees at most that it is not expected.
        self.step(EXPECTED, STAYING)
    }

    /// For the giver: whether the taker looks for the value.
    pub fn is_expected(&self) -> bool {
        // SYNC(expected): acquire here, release in `expect`.
        self.stage.load(Ordering::Acquire) == EXPECTED
    }

    /// For the giver: gives the value up.
    ///
    /// # Errors
    /// The value, if the taker does not look for it, or another value was given.
    pub fn give(&self, value: T) -> Result<(), T> {
        if !self.step(EXPECTED, GIVING) {
            return Err(value);
        }
        // SAFETY: only this thread has made the step to GIVING.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
        // SYNC(ahead): release here, acquire in `is_ahead` and `take`.
        self.stage.store(AHEAD, Ordering::Release);
        Ok(())
    }

    /// For the taker: whether [`Self::take`] finds the value.
    pub fn is_ahead(&self) -> bool {
        // SYNC(ahead): acquire here, release in `give`.
        self.stage.load(Ordering::Acquire) == AHEAD
    }

    /// For the taker: the value, once it was given.
    pub fn take(&self) -> Option<T> {
        if !self.step(AHEAD, TAKING) {
            return None;
        }
        // SAFETY: only this thread has made the step to TAKING.
        let value = self.value.with_mut(|place| unsafe { (*place).take() });
        // SYNC(arrived): no other access to the place follows.
        self.stage.store(ARRIVED, Ordering::Release);
        value
    }

    /// Whether this thread has brought the stage from `from` to `to`.
    fn step(&self, from: u8, to: u8) -> bool {
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<T: Send> Default for HandOver<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_given_once_to_a_taker_that_looks_for_it_and_taken_once() {
        let way = HandOver::new();
        assert_eq!((way.give(1), way.is_expected()), (Err(1), false), "nobody looks for it");
        way.expect();
        assert_eq!((way.take(), way.is_expected(), way.is_ahead()), (None, true, false));
        assert_eq!((way.withdraw(), way.withdraw(), way.is_expected()), (true, false, false));
        assert_eq!(way.give(1), Err(1), "the taker does something else");
        way.expect();
        assert_eq!(way.give(2), Ok(()));
        assert!(!way.withdraw() && way.is_ahead(), "too late");
        assert_eq!((way.give(3), way.is_ahead()), (Err(3), true), "a place for one");
        way.expect();
        assert_eq!((way.take(), way.take()), (Some(2), None));
        assert_eq!((way.give(4), way.is_ahead()), (Err(4), false), "a way is gone once");
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
