//! The word that decides whether a sleeper must be woken: the part of a waker without a system
//! call.
//!
//! Promise: the sleeper sees the actions of a waker before [`Token::wake`] before it sleeps again.
//! A waker pays for a wake-up only if the sleeper sleeps or is about to. `sys` adds the eventfd.
//! One thread sleeps; any thread may wake it.
//!
//! ```text
//!            wake             wake: write the eventfd
//!    IDLE ---------> WOKEN <----------------- PARKED
//!      ^               |                         |
//!      +-- park: no ---+-------- unpark ---------+          IDLE -- park: yes --> PARKED
//! ```
//!
//! Each step is a read-modify-write of one word. So every wake-up is either before a `park` or
//! `unpark` in that word's order (and its preceding actions are then visible), or after it (and the
//! word is then WOKEN, and the next `park` refuses). A flag beside the queues would need a second
//! check of each queue between flag and sleep; this does not.

use crate::sync::{AtomicU8, Ordering};

/// Whether the sleeper has been called.
pub struct Token(AtomicU8);

/// The sleeper runs and has not been called.
const IDLE: u8 = 0;
/// The sleeper sleeps, or is about to.
const PARKED: u8 = 1;
/// The sleeper was called after its last check.
const WOKEN: u8 = 2;

impl Token {
    /// A token of a running sleeper.
    pub fn new() -> Self {
        Self(AtomicU8::new(IDLE))
    }

    /// Calls the sleeper. True if it must be woken: then exactly this caller must do it.
    #[must_use]
    pub fn wake(&self) -> bool {
        // SYNC(woken): release here, acquire in `park` and `unpark`.
        self.0.swap(WOKEN, Ordering::AcqRel) == PARKED
    }

    /// Requests to sleep. False if the sleeper was called meanwhile: then it checks its queues
    /// first.
    #[must_use]
    pub fn park(&self) -> bool {
        // SYNC(woken): acquire here and below, release in `wake`.
        let parked =
            self.0.compare_exchange(IDLE, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !parked {
            self.0.swap(IDLE, Ordering::AcqRel);
        }
        parked
    }

    /// Ends a sleep of any cause. Returns whether a waker has woken the sleeper, or is about to.
    pub fn unpark(&self) -> bool {
        // SYNC(woken): acquire here, release in `wake`.
        self.0.swap(IDLE, Ordering::AcqRel) == WOKEN
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_waker_of_a_sleeper_wakes_it() {
        let token = Token::new();
        assert!(!token.wake(), "nobody sleeps");
        assert!(!token.park(), "called before it slept");
        assert!(token.park());
        assert!(token.wake());
        assert!(!token.wake());
        assert!(token.unpark());
        assert!(token.park(), "a call is answered once");
        assert!(!token.unpark(), "it woke by itself");
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
