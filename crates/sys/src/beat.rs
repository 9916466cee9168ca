//! Two timers that take turns, for a thread that sleeps to a beat.
//!
//! A sleep that is set when the last one has ended programs the processor's timer twice: for the new time, and
//! for whatever is next when it comes. In a virtual machine each costs an exit, 5 to 13 us. Here the time after the
//! next is set before the next comes: then the interrupt itself finds it first in line, and programs once.
//!
//! Promise: the timer that is given out becomes readable at the time that was asked for, not before; one that was
//! set in advance for a time that nobody asks for wakes nobody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tactus_core::units::{MILLISECOND, MonoTime, Nanos};

use crate::clock;

/// The longest step from one time to the next that is a beat: with longer ones there is little to win.
const STEP_MAX: Nanos = MILLISECOND.times(4);

/// The timers.
pub(crate) struct Beat {
    timers: [OwnedFd; 2],
    order: Order,
}

/// What is set to which time, and what is to be set.
#[derive(Debug, Default)]
struct Order {
    /// Zero: never.
    set: [MonoTime; 2],
    last: MonoTime,
    step: Nanos,
}

/// Timers to be set before a sleep, and the one that ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sleep {
    timer: usize,
    sets: [Option<(usize, MonoTime)>; 2],
}

impl Order {
    /// What to do before a sleep until `due`; nothing when there is no beat.
    fn next(&mut self, due: MonoTime) -> Option<Sleep> {
        let step = due.since(self.last);
        let is_beat = step == self.step && step > Nanos(0) && step <= STEP_MAX;
        (self.last, self.step) = (due, step);
        if !is_beat {
            return None;
        }
        let timer = usize::from(self.set[1] == due);
        let mut sets = [None; 2];
        // The nearer first: the other then changes nothing of what the processor waits for.
        for (place, (timer, at)) in [(timer, due), (1 - timer, due + step)].into_iter().enumerate()
        {
            if self.set[timer] != at {
                self.set[timer] = at;
                sets[place] = Some((timer, at));
            }
        }
        Some(Sleep { timer, sets })
    }
}

impl Beat {
    /// Two timers that are not set.
    ///
    /// # Errors
    /// When file descriptors are exhausted.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = || rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        Ok(Self { timers: [timer()?, timer()?], order: Order::default() })
    }

    /// What becomes readable at `due`, when the times asked for follow a beat.
    pub(crate) fn timer(&mut self, due: MonoTime) -> Option<BorrowedFd<'_>> {
        let Sleep { timer, sets } = self.order.next(due)?;
        for (timer, at) in sets.into_iter().flatten() {
            // Setting a timer also takes back what it has told.
            let once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let new = Itimerspec { it_interval: once, it_value: clock::timespec(at.0) };
            let set = rustix::time::timerfd_settime(
                &self.timers[timer],
                TimerfdTimerFlags::ABSTIME,
                &new,
            );
            set.expect("a timer of ours takes any time");
        }
        Some(self.timers[timer].as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Nanos = Nanos::from_micros(250);
    const BASE: MonoTime = MonoTime(1_000_000_000);

    fn at(nth: u64) -> MonoTime {
        BASE + STEP.times(nth)
    }

    #[test]
    fn a_beat_sets_one_timer_for_each_time() {
        let mut order = Order::default();
        assert_eq!((order.next(at(0)), order.next(at(1))), (None, None));
        let begun = order.next(at(2)).expect("the second step is as long as the first");
        assert_eq!(begun, Sleep { timer: 0, sets: [Some((0, at(2))), Some((1, at(3)))] });
        for nth in 3..20 {
            let sleep = order.next(at(nth)).expect("the beat goes on");
            let timer = usize::from(nth % 2 == 1);
            assert_eq!(sleep, Sleep { timer, sets: [None, Some((1 - timer, at(nth + 1)))] });
        }
    }

    #[test]
    fn what_was_set_for_a_time_that_is_not_asked_for_is_set_anew() {
        let mut order = Order::default();
        let beat: Vec<_> = (0..4).map(|nth| order.next(at(nth))).collect();
        assert!(beat[3].is_some());
        let off = at(3) + Nanos(1);
        assert_eq!((order.next(off), order.next(at(5)), order.next(at(6))), (None, None, None));
        let again = order.next(at(7)).expect("the beat is back");
        assert_eq!(again, Sleep { timer: 0, sets: [Some((0, at(7))), Some((1, at(8)))] });
        assert_eq!(order.next(at(7)), None, "the same time twice is no beat");
        let far = [at(8), at(8) + STEP_MAX.times(2), at(8) + STEP_MAX.times(4)];
        assert_eq!(far.map(|due| order.next(due)), [None; 3]);
    }

    #[test]
    fn a_timer_is_readable_at_its_time_and_not_before() {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut beat = Beat::new().unwrap();
        let step = MILLISECOND;
        let mut due = clock::now();
        let mut slept = 0;
        while slept < 50 {
            due += step;
            if clock::now() >= due {
                due = clock::now() + step;
            }
            let Some(timer) = beat.timer(due) else {
                clock::sleep_until(due);
                continue;
            };
            slept += 1;
            let woken = poll(&mut [PollFd::from_borrowed_fd(timer, PollFlags::IN)], None).unwrap();
            assert_eq!(woken, 1);
            assert!(clock::now() >= due);
        }
    }
}
