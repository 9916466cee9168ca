//! The gap detector: when did this machine stand still?
//!
//! Promise: a FIFO thread on the receiver's core looks at the clock every 200 us, sleeping in
//! between; a step of more than a millisecond is a gap, and the windows in which it lies do not
//! count. Without SCHED_FIFO it cannot tell a standstill from its own turn, so it then reports that
//! it is blind. The server's core is not watched: there a server's own kernel work, which no
//! priority interrupts, would pass for a standstill and excuse the lateness that it causes.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use tactus_core::units::{MILLISECOND, Nanos};

use crate::clock;
use crate::figures::windows::Span;
use crate::priority;
use crate::watcher::Watcher;

/// A step of the clock longer than this is a gap.
pub const GAP: Nanos = MILLISECOND;
/// Above this share of dropped windows a run is refused.
pub const DROPPED_MAX: f64 = 0.10;

/// Higher than every thread of a server or receiver.
const PRIORITY: u32 = 60;
/// How often it looks: often enough to see every standstill of a millisecond, and not more, since a
/// wake-up takes up to 20 us of the receiver's core on a virtual machine.
const PERIOD: Nanos = Nanos::from_micros(200);

/// A running detector.
#[derive(Debug)]
pub struct Detector(Watcher<Result<Vec<Span>>>);

impl Detector {
    /// Watches `core`.
    pub fn start(core: usize) -> Result<Self> {
        Watcher::start("gaps", move |stop| watch(core, stop)).map(Self)
    }

    /// Ends the watch and returns the gaps.
    pub fn stop(self) -> Result<Vec<Span>> {
        self.0.stop()?
    }
}

fn watch(core: usize, stop: &AtomicBool) -> Result<Vec<Span>> {
    priority::pin(core)?;
    priority::fifo(PRIORITY)?;
    let mut gaps = Vec::new();
    let mut last = clock::now();
    while !stop.load(Ordering::Relaxed) {
        clock::sleep(PERIOD);
        let now = clock::now();
        if now.since(last) > GAP {
            gaps.push(Span { from: last, to: now });
        }
        last = now;
    }
    Ok(gaps)
}
