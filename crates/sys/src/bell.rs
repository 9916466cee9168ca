//! Wakes a sleeping core: an eventfd behind the token of `tactus_ring::token`.
//!
//! Promise: whatever was put into a ring before [`Bell::ring`] is there to be found when
//! [`Sleeper::wait_until`] returns. A ring costs a system call (4 us with the wake-up) only when the
//! sleeper sleeps; otherwise one atomic exchange. Ring once per batch, not once per value.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use tactus_core::units::MonoTime;
use tactus_ring::token::Token;

use crate::beat::Beat;
use crate::clock;

/// The side that calls; any number of them, on any thread.
#[derive(Clone)]
pub struct Bell(Arc<Shared>);

/// The side that sleeps: one thread.
pub struct Sleeper {
    shared: Arc<Shared>,
    /// None where there were no descriptors for it.
    beat: Option<Beat>,
}

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Somebody rang, before or during the sleep.
    Rung,
    /// The time has come, or a signal did: look at the clock.
    Elapsed,
}

struct Shared {
    token: Token,
    event: OwnedFd,
}

/// Makes a bell and its sleeper.
///
/// # Errors
/// When file descriptors are exhausted.
pub fn bell() -> io::Result<(Bell, Sleeper)> {
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared { token: Token::new(), event });
    Ok((Bell(Arc::clone(&shared)), Sleeper { shared, beat: Beat::new().ok() }))
}

impl Bell {
    /// Wakes the sleeper, or keeps it from falling asleep.
    pub fn ring(&self) {
        if self.0.token.ring() {
            match rustix::io::write(&self.0.event, &1_u64.to_ne_bytes()) {
                // EAGAIN: the count is full, so the sleeper wakes anyway.
                Ok(_) | Err(Errno::AGAIN) => (),
                Err(fault) => panic!("an eventfd always takes a count: {fault}"),
            }
        }
    }
}

impl Sleeper {
    /// Sleeps until somebody rings, or until `due`, whichever comes first. Returns at once when
    /// somebody rang since the last sleep. May return early; never sleeps through a ring.
    pub fn wait_until(&mut self, due: Option<MonoTime>) -> Woken {
        let shared = &*self.shared;
        if !shared.token.park() {
            return Woken::Rung;
        }
        let timer = due.zip(self.beat.as_mut()).and_then(|(due, beat)| beat.timer(due));
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
        let rung = shared.token.unpark();
        // Whoever sleeps until a time thousands of times a second asks for no count that is not there.
        if !is_written {
            return if rung { Woken::Rung } else { Woken::Elapsed };
        }
        // The ringer may not have written yet: its count then ends the next sleep early, once.
        match rustix::io::read(&shared.event, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => (),
            Err(fault) => panic!("an eventfd can always be read: {fault}"),
        }
        if rung { Woken::Rung } else { Woken::Elapsed }
    }

    /// Another bell for the same sleeper.
    pub fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::{MILLISECOND, SECOND};

    #[test]
    fn a_ring_before_the_sleep_is_not_lost() {
        let (bell, mut sleeper) = bell().unwrap();
        bell.ring();
        bell.ring();
        assert_eq!(sleeper.wait_until(None), Woken::Rung);
        let due = clock::now() + MILLISECOND;
        assert_eq!(sleeper.wait_until(Some(due)), Woken::Elapsed, "a call is answered once");
        assert!(clock::now() >= due);
    }

    #[test]
    fn every_value_put_before_a_ring_is_found_by_a_sleeper_without_a_timeout() {
        const VALUES: u32 = 20_000;
        let (bell, mut sleeper) = bell().unwrap();
        let (mut producer, mut consumer) = tactus_ring::spsc::ring(4);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..VALUES {
                    while producer.push(value).is_err() {
                        std::thread::yield_now();
                    }
                    bell.ring();
                }
            });
            let mut expected = 0;
            // A lost ring would leave the sleeper asleep for ever; the test would not end.
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
        let (bell, mut sleeper) = bell().unwrap();
        let due = clock::now() + SECOND.times(3600);
        std::thread::scope(|scope| {
            scope.spawn(move || bell.ring());
            assert_eq!(sleeper.wait_until(Some(due)), Woken::Rung);
        });
    }
}
