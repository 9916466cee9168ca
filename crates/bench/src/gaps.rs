//! The gap detector: when did this machine stand still?
//!
//! Promise: a FIFO thread on the receiver's core looks at the clock every 200 us, sleeping in
//! between; a step of more than a millisecond is a gap, and the windows in which it lies do not
//! count. Without SCHED_FIFO it cannot tell a standstill from its own turn, so it then reports that
//! it is blind. The server's core is not watched: there a server's own kernel work, which no
//! priority interrupts, would pass for a standstill and excuse the lateness that it causes.
//!
//! If a server may use the receiver's core, each look interrupts the server or the receiver. The
//! detector then looks less often, and shorter standstills count against the server.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use tactus_core::units::{MILLISECOND, Nanos};

use crate::clock;
use crate::figures::windows::Span;
use crate::priority;
use crate::watcher::Watcher;

/// How often a detector looks, and the step of the clock from which on there is a gap.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    period: Nanos,
    /// A step longer than this is a gap.
    pub gap: Nanos,
}

impl Looks {
    /// Often enough to see every standstill of a millisecond, and not more, since a wake-up takes
    /// up to 20 us of the receiver's core on a virtual machine.
    pub const OFTEN: Self = Self { period: Nanos::from_micros(200), gap: MILLISECOND };
    /// For a core that a server uses too. Looks every 200 us interrupted the server 290 times a
    /// second, and took 6 % of its time.
    pub const SELDOM: Self = Self { period: MILLISECOND.times(20), gap: MILLISECOND.times(40) };
}

/// Above this share of dropped windows a run is refused.
pub const DROPPED_MAX: f64 = 0.10;

/// Higher than every thread of a server or receiver.
const PRIORITY: u32 = 60;

/// A running detector.
#[derive(Debug)]
pub struct Detector(Watcher<Result<Vec<Span>>>);

impl Detector {
    /// Watches `core`.
    pub fn start(core: usize, looks: Looks) -> Result<Self> {
        Watcher::start("gaps", move |stop| watch(core, looks, stop)).map(Self)
    }

    /// Ends the watch and returns the gaps.
    pub fn stop(self) -> Result<Vec<Span>> {
        self.0.stop()?
    }
}

fn watch(core: usize, looks: Looks, stop: &AtomicBool) -> Result<Vec<Span>> {
    priority::pin(core)?;
    priority::fifo(PRIORITY)?;
    let mut gaps = Vec::new();
    let mut last = clock::now();
    while !stop.load(Ordering::Relaxed) {
        clock::sleep(looks.period);
        let now = clock::now();
        if now.since(last) > looks.gap {
            gaps.push(Span { from: last, to: now });
        }
        last = now;
    }
    Ok(gaps)
}
