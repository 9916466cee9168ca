//! SIGINT, SIGTERM and SIGHUP: a run ends at its next step, and everything it made is taken down.
//!
//! Promise: no signal but SIGKILL leaves a mount, a loop device, a namespace or a process behind.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tactus_core::units::{MonoTime, Nanos};

use crate::clock;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
const PAUSE: Nanos = Nanos::from_millis(50);

/// From now on a signal only asks.
pub fn listen() -> Result<()> {
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    Ok(())
}

/// Whether a signal has asked to end.
pub fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// Fails once a signal has asked to end.
pub fn check() -> Result<()> {
    if asked() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps until `at`, or fails as soon as a signal asks to end.
pub fn sleep_until(at: MonoTime) -> Result<()> {
    loop {
        check()?;
        let left = at.since(clock::now());
        if left == Nanos::ZERO {
            return Ok(());
        }
        clock::sleep(left.min(PAUSE));
    }
}
