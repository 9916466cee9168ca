//! The two clocks and the one way to sleep: the data path reads the time only here.

use rustix::io::Errno;
use rustix::time::{ClockId, DynamicClockId, Timespec};
use tactus_core::units::{MonoTime, Nanos, SECOND, WallTime};

/// The monotonic clock. It continues while a thread is suspended and never steps; 28 ns (vDSO).
#[inline]
pub fn now() -> MonoTime {
    MonoTime(nanoseconds(rustix::time::clock_gettime(ClockId::Monotonic)))
}

/// The wall clock, which may step. For display, never for pacing.
pub fn wall_now() -> WallTime {
    WallTime(nanoseconds(rustix::time::clock_gettime(ClockId::Realtime)))
}

/// Atomic time (TAI) since 1970, as far as the kernel has been told its difference to UTC; without
/// that, UTC. It may step.
pub fn atomic_now() -> WallTime {
    let atomic = rustix::time::clock_gettime_dynamic(DynamicClockId::Tai);
    atomic.map_or_else(|_| wall_now(), |time| WallTime(nanoseconds(time)))
}

/// The time that the machine was suspended since boot. The monotonic clock stands still meanwhile.
pub fn suspended() -> Nanos {
    // The boot-time clock is read last: the difference is never too small.
    let monotonic = now();
    let with_sleep = nanoseconds(rustix::time::clock_gettime(ClockId::Boottime));
    Nanos(with_sleep.saturating_sub(monotonic.0))
}

/// The next moment after `after` at which the local time of day is this, by the system's time zone.
/// A time that daylight saving skips is taken an hour later; of a repeated time it is one of the
/// two.
pub fn next_daily(after: WallTime, seconds_of_day: u32) -> WallTime {
    let now = libc::time_t::try_from(after.0 / SECOND.0).expect("nobody will live to see it");
    let mut day = local(now);
    // Two days cover any change of daylight saving.
    for _ in 0..3 {
        let mut at = libc::tm {
            tm_hour: (seconds_of_day / 3600) as libc::c_int,
            tm_min: (seconds_of_day / 60 % 60) as libc::c_int,
            tm_sec: (seconds_of_day % 60) as libc::c_int,
            tm_isdst: -1,
            ..day
        };
        // SAFETY: the struct is whole, and used by this call alone.
        let then = unsafe { libc::mktime(&raw mut at) };
        if then > now {
            return WallTime(then as u64 * SECOND.0);
        }
        day.tm_mday += 1;
    }
    WallTime(after.0 + 86_400 * SECOND.0)
}

fn local(time: libc::time_t) -> libc::tm {
    // SAFETY: numbers and a pointer that may be null: all zeros are a value of it.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to local values that outlive the call.
    unsafe { libc::localtime_r(&raw const time, &raw mut parts) };
    parts
}

/// Sleeps until the monotonic clock reaches `due`; returns at once if it has passed.
pub fn sleep_until(due: MonoTime) {
    let request = timespec(due.0);
    loop {
        match rustix::thread::clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &request)
        {
            Ok(()) => return,
            // A signal: the time is absolute, so the sleep continues exactly. Each turn costs one
            // signal; the number is not bounded here.
            Err(Errno::INTR) => (),
            Err(fault) => panic!("the monotonic clock can always be slept on: {fault}"),
        }
    }
}

/// A span or a point of time in the kernel's form.
pub(crate) fn timespec(nanoseconds: u64) -> Timespec {
    Timespec { tv_sec: (nanoseconds / SECOND.0) as i64, tv_nsec: (nanoseconds % SECOND.0) as i64 }
}

fn nanoseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).expect("neither clock stands before its start");
    seconds * SECOND.0 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::MILLISECOND;

    #[test]
    fn a_sleep_is_never_short() {
        for span in [Nanos(0), Nanos(1), MILLISECOND] {
            let due = now() + span;
            sleep_until(due);
            assert!(now() >= due);
        }
        sleep_until(MonoTime(0));
    }

    #[test]
    fn a_time_of_the_day_comes_once_a_day() {
        let now = wall_now();
        for seconds in [0, 3_599, 43_200, 86_399] {
            let next = next_daily(now, seconds);
            let behind = next_daily(next, seconds);
            assert!(next > now && next.0 - now.0 <= 25 * 3600 * SECOND.0);
            // 25 hours when clocks are set back.
            let apart = (behind.0 - next.0) / SECOND.0;
            assert!((23 * 3600..=25 * 3600).contains(&apart), "{apart}");
            let just_before = WallTime(next.0 - SECOND.0);
            assert_eq!(next_daily(just_before, seconds), next);
        }
    }

    #[test]
    fn the_wall_clock_counts_from_1970() {
        let year_2020 = 1_577_836_800 * SECOND.0;
        assert!(wall_now().0 > year_2020);
    }
}
