//! Hogs: threads that never rest, at the priority that every program has.
//!
//! Promise: they burn the core that they were given until they are dropped, and no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;

use crate::priority;

/// Some of them.
#[derive(Debug)]
pub struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hogs {
    /// Lets `count` of them loose on `core`.
    pub fn start(core: usize, count: usize) -> Result<Self> {
        let mut hogs = Self { stop: Arc::default(), threads: vec![] };
        for _ in 0..count {
            let stop = Arc::clone(&hogs.stop);
            hogs.threads.push(std::thread::Builder::new().name("hog".into()).spawn(move || {
                // Unpinned, a hog is none of this core; it then burns nothing.
                if priority::pin(core).is_ok() {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            })?);
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has no way to panic.
            drop(thread.join());
        }
    }
}
