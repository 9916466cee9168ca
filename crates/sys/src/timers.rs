//! Two alternating timers for a thread that sleeps periodically.
//!
//! A timer that is set after the last sleep programs the processor's timer twice: for the new time,
//! and for the next event when it expires. In a virtual machine each costs an exit, 5 to 13 us.
//! Here the second timer is set one period ahead. The interrupt finds it first in line and programs
//! the processor's timer once.
//!
//! Promise: the returned timer becomes readable at the requested time, not before. A timer that was
//! set ahead for a time that is never requested wakes no thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tactus_core::units::{MILLISECOND, MonoTime, Nanos};

use crate::clock;

/// Longest period: with longer ones the gain is too small.
const STEP_MAX: Nanos = MILLISECOND.times(4);

/// The timers.
pub(crate) struct PeriodicTimers {
    timers: [OwnedFd; 2],
    order: Order,
}

/// The times that the timers are set to, and the period.
#[derive(Debug, Default)]
struct Order {
    /// Zero: never.
    set: [MonoTime; 2],
    last: MonoTime,
    step: Nanos,
}

/// The timers to set before a sleep, and the timer that ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sleep {
    timer: usize,
    sets: [Option<(usize, MonoTime)>; 2],
}

impl Order {
    /// The timers of a sleep until `due`; none unless the last two steps have one length.
    fn next(&mut self, due: MonoTime) -> Option<Sleep> {
        let step = due.since(self.last);
        let is_periodic = step == self.step && step > Nanos(0) && step <= STEP_MAX;
        (self.last, self.step) = (due, step);
        if !is_periodic {
            return None;
        }
        let timer = usize::from(self.set[1] == due);
        let mut sets = [None; 2];
        // The nearer first: setting the other then leaves the processor's timer alone.
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

impl PeriodicTimers {
    /// Two timers that are not set.
    ///
    /// # Errors
    /// If file descriptors are exhausted.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = || rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        Ok(Self { timers: [timer()?, timer()?], order: Order::default() })
    }

    /// The timer that becomes readable at `due`; none unless the requested times are periodic.
    pub(crate) fn timer(&mut self, due: MonoTime) -> Option<BorrowedFd<'_>> {
        let Sleep { timer, sets } = self.order.next(due)?;
        for (timer, at) in sets.into_iter().flatten() {
            // Setting a timer also clears its expirations.
            let once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let new = Itimerspec { it_interval: once, it_value: clock::timespec(at.0) };
            let set = rustix::time::timerfd_settime(
                &self.timers[timer],
                TimerfdTimerFlags::ABSTIME,
                &new,
            );
            set.expect("a timerfd accepts any absolute time");
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
            let sleep = order.next(at(nth)).expect("the period continues");
            let timer = usize::from(nth % 2 == 1);
            assert_eq!(sleep, Sleep { timer, sets: [None, Some((1 - timer, at(nth + 1)))] });
        }
    }

    #[test]
    fn a_timer_set_for_a_time_that_is_not_requested_is_set_again() {
        let mut order = Order::default();
        let beat: Vec<_> = (0..4).map(|nth| order.next(at(nth))).collect();
        assert!(beat[3].is_some());
        let off = at(3) + Nanos(1);
        assert_eq!((order.next(off), order.next(at(5)), order.next(at(6))), (None, None, None));
        let again = order.next(at(7)).expect("the period is back");
        assert_eq!(again, Sleep { timer: 0, sets: [Some((0, at(7))), Some((1, at(8)))] });
        assert_eq!(order.next(at(7)), None, "the same time twice is no period");
        let far = [at(8), at(8) + STEP_MAX.times(2), at(8) + STEP_MAX.times(4)];
        assert_eq!(far.map(|due| order.next(due)), [None; 3]);
    }

    #[test]
    fn a_timer_is_readable_at_its_time_and_not_before() {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut timers = PeriodicTimers::new().unwrap();
        let step = MILLISECOND;
        let mut due = clock::now();
        let mut slept = 0;
        while slept < 50 {
            due += step;
            if clock::now() >= due {
                due = clock::now() + step;
            }
            let Some(timer) = timers.timer(due) else {
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
