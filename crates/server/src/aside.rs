//! Processor time of a thread, and what of it does not count.
//!
//! Promise: a door of [`untrusted`](crate::untrusted) can do on its own thread what the server does
//! on another one. It holds no bounds. Compiled for tests and fuzzing only.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    /// Time of this thread that is not counted.
    static ASIDE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Does what another thread does in the server, such as reading a file, for a door whose control
/// thread works with the result. It costs the door no time and no memory.
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

/// All time of this thread that is not counted.
pub(crate) fn aside_time() -> Duration {
    ASIDE.get()
}

/// The processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
