//! The word that decides whether a sleeper must be woken: the part of a waker that needs no system call.
//!
//! Promise: what a waker did before [`Token::wake`] is seen by the sleeper before it sleeps again,
//! and a waker pays for a wake-up only when the sleeper sleeps or is about to. `sys` adds the
//! eventfd. One thread sleeps; any thread may wake it.
//!
//! ```text
//!            wake             wake: write the eventfd
//!    IDLE ---------> WOKEN <----------------- PARKED
//!      ^               |                         |
//!      +-- park: no ---+-------- unpark ---------+          IDLE -- park: yes --> PARKED
//! ```
//!
//! Each step is a read-modify-write of one word, so every wake-up is either before a `park` or `unpark`
//! in that word's order (and then what preceded it is visible after it), or after it (and then the
//! word says WOKEN, and the next `park` refuses). A flag beside the queues would need a second look
//! at each queue between flag and sleep; this does not.

use crate::sync::{AtomicU8, Ordering};

/// Whether the sleeper was called.
pub struct Token(AtomicU8);

/// The sleeper is at work and has not been called.
const IDLE: u8 = 0;
/// The sleeper sleeps, or is on its way.
const PARKED: u8 = 1;
/// The sleeper was called since it last looked.
const WOKEN: u8 = 2;

impl Token {
    /// A token for a sleeper that is at work.
    pub fn new() -> Self {
        Self(AtomicU8::new(IDLE))
    }

    /// Calls the sleeper. True when it must be woken: then exactly this caller must do it.
    #[must_use]
    pub fn wake(&self) -> bool {
        // SYNC(woken): release here, acquire in `park` and `unpark`.
        self.0.swap(WOKEN, Ordering::AcqRel) == PARKED
    }

    /// Asks to sleep. False when the sleeper was called meanwhile: then it looks around first.
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

    /// Ends a sleep, whatever ended it. Returns whether a waker has woken it, or is about to.
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
