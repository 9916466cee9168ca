//! The thread of a core: pinned, real-time if the host permits it, asleep until the next deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tactus_core::ports;
use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::cores::{Host, SHORT_SLEEP};
use tactus_sys::disk::uring::Tender;
use tactus_sys::waker::{Sleeper, Waker};
use tactus_sys::{clock, thread};

/// The rights of a core's thread.
pub(crate) struct Rights {
    /// Whether it runs on its processor only.
    pub(crate) is_pinned: bool,
    pub(crate) real_time: bool,
    /// Refusals of the host, with their effects.
    pub(crate) refused: Vec<String>,
}

impl Rights {
    /// Pins the calling thread and makes it real-time with `priority`, as far as the host permits.
    pub(super) fn take(cpu: u32, priority: Option<u8>) -> Self {
        let mut refused = vec![];
        let pinned = thread::pin(cpu);
        let is_pinned = pinned.is_ok();
        if let Err(error) = pinned {
            refused.push(format!("core {cpu} cannot be had for real-time work ({error})"));
        }
        let real_time = match priority.map(thread::run_fifo) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                refused.push(format!(
                    "no real-time priority ({error}): other programs may delay streams, so half as \
                     many are admitted"
                ));
                false
            }
            None => {
                refused.push("real-time priority is switched off by the configuration".to_owned());
                false
            }
        };
        if !real_time && let Err(error) = thread::tighten_timer() {
            refused.push(format!("timers stay 50 us coarse ({error})"));
        }
        Self { is_pinned, real_time, refused }
    }
}

/// A core's thread.
pub(super) struct CoreHost {
    sleeper: Sleeper,
    order: Arc<AtomicU8>,
    /// Rings of disk servers that have left for another core.
    tender: Tender,
}

impl CoreHost {
    /// The host of the calling thread, which runs while `order` is [`RUN`].
    pub(super) fn new(sleeper: Sleeper, order: Arc<AtomicU8>, tender: Tender) -> Self {
        sleeper.take_thread();
        Self { sleeper, order, tender }
    }

    /// What the next thread of the core sleeps with.
    pub(super) fn into_sleeper(self) -> Sleeper {
        self.sleeper
    }
}

impl Host for CoreHost {
    fn now(&mut self) -> MonoTime {
        clock::now()
    }

    fn sleep(&mut self, until: Option<MonoTime>) {
        let has_rings = self.tender.tend();
        let now = clock::now();
        let look = now + if has_rings { TEND } else { IDLE_LOOK };
        let until = until.map_or(look, |until| if has_rings { until.min(look) } else { until });
        if until <= now + SHORT_SLEEP {
            return;
        }
        self.sleeper.wait_until(Some(until));
    }

    fn is_stopping(&self) -> bool {
        self.order.load(Ordering::Acquire) != RUN
    }
}

/// The wakers of all cores: a command may concern any of them.
pub(crate) struct Wakers(pub(crate) Vec<Waker>);

impl ports::Waker for Wakers {
    fn wake(&self) {
        for waker in &self.0 {
            waker.wake();
        }
    }
}

/// The order for a thread that turns its core.
pub(super) const RUN: u8 = 0;

/// How often rings are tended that have left: a fourth of the time in which their server looks for
/// completions.
const TEND: Nanos = Nanos::from_micros(250);

/// A waker wakes a core without work; this only limits the delay after a lost wake-up.
const IDLE_LOOK: Nanos = Nanos::from_millis(200);
