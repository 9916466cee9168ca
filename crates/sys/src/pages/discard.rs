//! Takes out of the page cache what no place refers to, on a thread of its own: where somebody else
//! still refers to a page, the kernel asks every core about it and waits for the answers.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::units::Nanos;
use tactus_ring::spsc::{Consumer, Producer, ring};

use super::pin::Unused;
use crate::bell::{Bell, Sleeper, bell};
use crate::clock;

/// Unused parts, and the thread that discards them. It ends soon after the port.
pub(super) struct Discarder {
    unused: Producer<Unused>,
    bell: Bell,
    stop: Arc<AtomicBool>,
}

impl Discarder {
    pub(super) fn start(places: u32) -> io::Result<Self> {
        let (unused, given) = ring(places as usize);
        let (bell, sleeper) = bell()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("tactus-discard".to_owned())
            .spawn(move || run(given, sleeper, &stopped))?;
        Ok(Self { unused, bell, stop })
    }

    /// Takes a part that will not be used again soon. It is looked at within `LOOK`: no wake-up for each.
    pub(super) fn give(&mut self, unused: Unused) {
        // When the thread is far behind, the kernel takes the pages back when it needs them.
        drop(self.unused.push(unused));
    }
}

impl Drop for Discarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

fn run(mut given: Consumer<Unused>, mut sleeper: Sleeper, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        while let Some(unused) = given.pop() {
            discard(&unused);
        }
        sleeper.wait_until(Some(clock::now() + LOOK));
    }
}

fn discard(unused: &Unused) {
    // A folio goes only as a whole, and may have begun in an earlier block; it goes with its last one.
    // What other places refer to stays.
    let from = unused.offset - unused.offset % FOLIO_MAX;
    let len = unused.offset + unused.len - from;
    // SAFETY: takes numbers only. It is advice: a refusal changes nothing.
    unsafe {
        libc::posix_fadvise(
            unused.file.as_raw_fd(),
            from as i64,
            len as i64,
            libc::POSIX_FADV_DONTNEED,
        );
    }
}

/// Largest folio of the page cache on common machines: one huge page.
const FOLIO_MAX: u64 = 2 << 20;
/// How often it looks.
const LOOK: Nanos = Nanos::from_millis(250);
