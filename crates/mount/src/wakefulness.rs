//! Threads that poll for a moment before they sleep: for the next request, or the end of a flush.
//!
//! Promise: one thread at a time waits for the next request in this way, for a tenth of
//! a millisecond at most, and one for the end of a flush, for half of one; after each look it
//! yields its processor to all others. Nothing is lost when it gives up: it only sleeps then.
//!
//! A program and the thread that answers it wait for each other in turns. A processor that has
//! nothing to do meanwhile sleeps; in a virtual machine it needs 30 to 50 us to wake up, which is
//! as long as a part of what the disk does for a short write.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Of one mount.
#[derive(Default)]
pub(crate) struct Wakefulness {
    /// The kernel's queue of requests; unset: none is waited for.
    requests: OnceLock<OwnedFd>,
    awaits_request: AtomicBool,
    awaits_flush: AtomicBool,
}

impl Wakefulness {
    /// Requests will come by `channel`.
    pub(crate) fn watch(&self, channel: impl AsFd) -> io::Result<()> {
        // Only the first one counts.
        self.requests.set(channel.as_fd().try_clone_to_owned()?).ok();
        Ok(())
    }

    /// Returns when there is a request, or soon. The caller takes it then.
    pub(crate) fn await_request(&self) {
        let Some(requests) = self.requests.get() else { return };
        await_that(&self.awaits_request, REQUEST, || {
            let mut polled = [PollFd::new(requests, PollFlags::IN)];
            // An error is for the thread that reads.
            poll(&mut polled, Some(&NOW)) != Ok(0)
        });
    }

    /// Returns when `is_over`, or soon: the end of a flush. Keeps a processor of the program awake.
    pub(crate) fn await_flush(&self, is_over: impl Fn() -> bool) {
        await_that(&self.awaits_flush, FLUSH, is_over);
    }
}

/// Waits until `holds`, for `most` at most, unless another thread does so already.
fn await_that(is_taken: &AtomicBool, most: Duration, holds: impl Fn() -> bool) {
    if is_taken.swap(true, Ordering::Acquire) {
        return;
    }
    let begun = Instant::now();
    while !holds() && begun.elapsed() < most {
        yield_now();
    }
    is_taken.store(false, Ordering::Release);
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A program that flushes and writes in turns has written again in this time.
const REQUEST: Duration = Duration::from_micros(100);

/// A flush of a disk for which it matters is over by then.
const FLUSH: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_request_is_seen_and_nothing_is_waited_for_that_does_not_come() {
        let wakefulness = Wakefulness::default();
        // Without a channel there is nothing to wait for.
        wakefulness.await_request();
        let (reader, mut writer) = std::io::pipe().unwrap();
        wakefulness.watch(&reader).unwrap();
        wakefulness.await_request();
        let begun = Instant::now();
        writer.write_all(b"request").unwrap();
        while begun.elapsed() < Duration::from_millis(5) {
            wakefulness.await_request();
        }
        assert!(!wakefulness.awaits_request.load(Ordering::Acquire));
        // The end of the queue is seen as well.
        drop((reader, writer));
        wakefulness.await_request();
        wakefulness.await_flush(|| false);
        // Another thread does not wait beside the first one.
        wakefulness.await_flush(|| {
            let looks = std::cell::Cell::new(0);
            wakefulness.await_flush(|| {
                looks.set(looks.get() + 1);
                true
            });
            assert_eq!(looks.get(), 0);
            true
        });
        assert!(!wakefulness.awaits_flush.load(Ordering::Acquire));
    }
}
