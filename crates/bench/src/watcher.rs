//! A thread that watches something until it is told to stop, and then says what it saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, anyhow};

/// A running one.
#[derive(Debug)]
pub(crate) struct Watcher<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Watcher<T> {
    /// Lets `watch` run until its flag is set.
    pub(crate) fn start(
        name: &'static str,
        watch: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = Builder::new().name(name.into()).spawn(move || watch(&seen))?;
        Ok(Self { stop, thread })
    }

    /// Ends it and returns what it saw.
    pub(crate) fn stop(self) -> Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        let name = self.thread.thread().name().unwrap_or_default().to_owned();
        self.thread.join().map_err(|_| anyhow!("the watch {name:?} panicked"))
    }
}
