//! The right of threads to the processor, for reads that are answered at their time.

use std::cell::Cell;
use std::num::NonZeroU64;

/// Has the calling thread run before all ordinary ones from now on. Without the right to it, only
/// its timers are exact, and its work is later by the time that other programs have the processor.
pub(crate) fn hurry() {
    thread_local! {
        static IS_DONE: Cell<bool> = const { Cell::new(false) };
    }
    if IS_DONE.replace(true) {
        return;
    }
    if let Err(error) = tactus_sys::thread::run_fifo(PRIORITY) {
        tracing::debug!("paced reads have an ordinary priority: {error}");
        // Never refused: it is the thread's own.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
    }
}

/// The lowest one of real-time threads: behind those of a server on this machine.
const PRIORITY: u8 = 1;
