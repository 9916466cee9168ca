//! The two clocks and the one way to sleep: the only place where the data path asks for the time.

use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};
use tactus_core::units::{MonoTime, SECOND, WallTime};

/// The monotonic clock. It goes on during a suspended thread and never steps; 28 ns (vDSO).
#[inline]
pub fn now() -> MonoTime {
    MonoTime(nanoseconds(rustix::time::clock_gettime(ClockId::Monotonic)))
}

/// The wall clock, which may step. For what people read, never for pacing.
pub fn wall_now() -> WallTime {
    WallTime(nanoseconds(rustix::time::clock_gettime(ClockId::Realtime)))
}

/// Sleeps until the monotonic clock shows `due`; returns at once when it already does.
pub fn sleep_until(due: MonoTime) {
    let request = timespec(due.0);
    loop {
        match rustix::thread::clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &request)
        {
            Ok(()) => return,
            // A signal: the time asked for is absolute, so sleeping on is exact. Each turn costs one
            // signal of somebody else; there is no other bound to give.
            Err(Errno::INTR) => (),
            Err(fault) => panic!("the monotonic clock can always be slept on: {fault}"),
        }
    }
}

/// A span or a point of time as the kernel takes it.
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
    use tactus_core::units::{MILLISECOND, Nanos};

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
    fn the_wall_clock_counts_from_1970() {
        let year_2020 = 1_577_836_800 * SECOND.0;
        assert!(wall_now().0 > year_2020);
    }
}
