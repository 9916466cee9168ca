//! Work of other threads, left out of the measured cost of a fuzzing entry point.
//!
//! Promise: an entry point of [`untrusted`](crate::untrusted) can do on its own thread the work
//! that the server does on another one. There are no limits here. Compiled for tests and fuzzing
//! only.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// Time of this thread that is not counted.
    static ASIDE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs `work`, which another thread does in the server, for example reading a file. Its time and
/// memory do not count for the entry point.
///
/// # Panics
/// When `work` does.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let begun = thread_time();
    let mut result = None;
    allocation_counter::opt_out(|| result = Some(work()));
    ASIDE.set(ASIDE.get() + thread_time().saturating_sub(begun));
    result.expect("the work has been done")
}

/// Total time of this thread that is not counted.
pub(crate) fn aside_time() -> Duration {
    ASIDE.get()
}

/// The processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
