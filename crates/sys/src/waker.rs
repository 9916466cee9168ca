//! Wakes a sleeping core: an eventfd behind the token of `tactus_ring::token`.
//!
//! Promise: a value that was put into a ring before [`Waker::wake`] can be popped when
//! [`Sleeper::wait_until`] returns. A wake-up costs a system call (4 us with the wake-up) only when
//! the sleeper sleeps; otherwise one atomic exchange. Wake once per batch, not once per value.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use tactus_core::ports;
use tactus_core::units::MonoTime;
use tactus_ring::token::Token;

use crate::clock;
use crate::timers::PeriodicTimers;

/// Wakes the sleeper. Any number of clones, on any thread.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

/// The side of the one thread that sleeps.
pub struct Sleeper {
    shared: Arc<Shared>,
    /// `None` if no file descriptors were left for it.
    timers: Option<PeriodicTimers>,
}

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WakeReason {
    /// The waker was used, before or during the sleep.
    ByWaker,
    /// The time has come, or a signal ended the sleep; read the clock.
    Elapsed,
}

struct Shared {
    token: Token,
    event: OwnedFd,
}

thread_local! {
    /// The waker's side of the sleeper that this thread belongs to.
    static OWN: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Calls `to` with the event that wakes the calling thread, if the thread belongs to a sleeper. The
/// kernel can write this event at the end of a request.
pub(crate) fn with_own_event<R>(to: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
    OWN.with_borrow(|own| own.as_ref().map(|shared| to(shared.event.as_fd())))
}

/// Makes a waker and its sleeper.
///
/// # Errors
/// If file descriptors are exhausted.
pub fn waker() -> io::Result<(Waker, Sleeper)> {
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared { token: Token::new(), event });
    Ok((Waker(Arc::clone(&shared)), Sleeper { shared, timers: PeriodicTimers::new().ok() }))
}

impl Waker {
    /// Wakes the sleeper, or keeps it from falling asleep.
    pub fn wake(&self) {
        if self.0.token.wake() {
            match rustix::io::write(&self.0.event, &1_u64.to_ne_bytes()) {
                // EAGAIN: the count is full, so the sleeper wakes anyway.
                Ok(_) | Err(Errno::AGAIN) => (),
                Err(fault) => panic!("an eventfd always takes a count: {fault}"),
            }
        }
    }
}

impl ports::Waker for Waker {
    fn wake(&self) {
        Self::wake(self);
    }
}

impl Sleeper {
    /// Makes this the sleeper of the calling thread: the ends of the thread's flushes wake it.
    pub fn take_thread(&self) {
        OWN.set(Some(Arc::clone(&self.shared)));
    }

    /// Sleeps until a waker is used or until `due`, whichever comes first. Returns at once if a
    /// waker was used since the last sleep. May return early; never misses a wake-up.
    pub fn wait_until(&mut self, due: Option<MonoTime>) -> WakeReason {
        let shared = &*self.shared;
        if !shared.token.park() {
            return WakeReason::ByWaker;
        }
        let timer = due.zip(self.timers.as_mut()).and_then(|(due, timers)| timers.timer(due));
        let rings = PollFd::from_borrowed_fd(shared.event.as_fd(), PollFlags::IN);
        let mut events = [rings.clone(), rings];
        let (count, span) = match timer {
            Some(timer) => {
                events[1] = PollFd::from_borrowed_fd(timer, PollFlags::IN);
                (2, None)
            }
            None => (1, due.map(|due| clock::timespec(due.since(clock::now()).0))),
        };
        let is_written = match rustix::event::poll(&mut events[..count], span.as_ref()) {
            Ok(_) => !events[0].revents().is_empty(),
            Err(Errno::INTR) => true,
            Err(fault) => panic!("an eventfd can always be waited for: {fault}"),
        };
        let woken = shared.token.unpark();
        // A periodic sleeper saves this read thousands of times a second.
        if !is_written {
            return if woken { WakeReason::ByWaker } else { WakeReason::Elapsed };
        }
        // The waker may not have written yet: the next sleep then ends early, once.
        match rustix::io::read(&shared.event, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => (),
            Err(fault) => panic!("an eventfd can always be read: {fault}"),
        }
        if woken { WakeReason::ByWaker } else { WakeReason::Elapsed }
    }

    /// Another waker for the same sleeper.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::{MILLISECOND, SECOND};

    #[test]
    fn a_wake_before_the_sleep_is_not_lost() {
        let (waker, mut sleeper) = waker().unwrap();
        waker.wake();
        waker.wake();
        assert_eq!(sleeper.wait_until(None), WakeReason::ByWaker);
        let due = clock::now() + MILLISECOND;
        assert_eq!(sleeper.wait_until(Some(due)), WakeReason::Elapsed, "a call is answered once");
        assert!(clock::now() >= due);
    }

    #[test]
    fn every_value_put_before_a_wake_is_found_by_a_sleeper_without_a_timeout() {
        const VALUES: u32 = 20_000;
        let (waker, mut sleeper) = waker().unwrap();
        let (mut producer, mut consumer) = tactus_ring::spsc::ring(4);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..VALUES {
                    while producer.push(value).is_err() {
                        std::thread::yield_now();
                    }
                    waker.wake();
                }
            });
            let mut expected = 0;
            // A lost wake-up would leave the sleeper asleep for ever; the test would not end.
            while expected < VALUES {
                sleeper.wait_until(None);
                for value in consumer.drain() {
                    assert_eq!(value, expected);
                    expected += 1;
                }
            }
        });
    }

    #[test]
    fn a_sleeper_is_woken_long_before_its_time() {
        let (waker, mut sleeper) = waker().unwrap();
        let due = clock::now() + SECOND.times(3600);
        std::thread::scope(|scope| {
            scope.spawn(move || waker.wake());
            assert_eq!(sleeper.wait_until(Some(due)), WakeReason::ByWaker);
        });
    }
}
