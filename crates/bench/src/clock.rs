//! The monotonic clock of this machine, and sleeping on it.
//!
//! Promise: all stamps of a run come from this one clock, in every thread and network namespace.

use rustix::thread::{ClockId as SleepClock, clock_nanosleep_absolute};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tactus_core::units::{MonoTime, Nanos};

/// Now.
pub fn now() -> MonoTime {
    let now = clock_gettime(ClockId::Monotonic);
    MonoTime(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Sleeps until `at`; returns at once when that has passed.
pub fn sleep_until(at: MonoTime) {
    let until =
        Timespec { tv_sec: (at.0 / 1_000_000_000) as i64, tv_nsec: (at.0 % 1_000_000_000) as i64 };
    // An interrupted sleep starts again; any other error means that the instant has passed.
    while clock_nanosleep_absolute(SleepClock::Monotonic, &until) == Err(rustix::io::Errno::INTR) {}
}

/// Sleeps for `span`.
pub fn sleep(span: Nanos) {
    sleep_until(now() + span);
}
