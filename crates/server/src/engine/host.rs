//! The thread under a core: pinned, real-time when the host allows it, asleep until the next deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::ports;
use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::cores::Host;
use tactus_sys::bell::{Bell, Sleeper};
use tactus_sys::{clock, thread};

/// What a core's thread was allowed.
pub(super) struct Rights {
    pub(super) real_time: bool,
    /// What the host refused, with what it costs.
    pub(super) refused: Vec<String>,
}

impl Rights {
    /// Pins the calling thread and makes it real-time with `priority`, as far as the host allows.
    pub(super) fn take(cpu: u32, priority: Option<u8>) -> Self {
        let mut refused = vec![];
        if let Err(error) = thread::pin(cpu) {
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
        Self { real_time, refused }
    }
}

/// Held by a thread that nothing works without: its panic ends the program. A server that still
/// answers but delivers nothing would be worse than one that is started again.
pub(super) struct Vital;

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The panic has been reported by the hook; nothing else is to be saved.
            std::process::abort();
        }
    }
}

/// A core's thread.
pub(super) struct CoreHost {
    sleeper: Sleeper,
    stopping: Arc<AtomicBool>,
}

impl CoreHost {
    pub(super) fn new(sleeper: Sleeper, stopping: Arc<AtomicBool>) -> Self {
        Self { sleeper, stopping }
    }
}

impl Host for CoreHost {
    fn now(&mut self) -> MonoTime {
        clock::now()
    }

    fn sleep(&mut self, until: Option<MonoTime>) {
        let until = until.unwrap_or_else(|| clock::now() + IDLE_LOOK);
        self.sleeper.wait_until(Some(until));
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// The bells of all cores: a command may concern any of them.
pub(super) struct Bells(pub(super) Vec<Bell>);

impl ports::Bell for Bells {
    fn ring(&self) {
        for bell in &self.0 {
            bell.ring();
        }
    }
}

/// A core without work is woken by its bell; this only bounds what a lost wake-up could cost.
const IDLE_LOOK: Nanos = Nanos::from_millis(200);

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Says to the process that this test starts that it shall panic.
    const PANICS: &str = "TACTUS_TEST_PANICS";

    #[test]
    fn a_panic_of_a_vital_thread_ends_the_program() {
        if std::env::var_os(PANICS).is_some() {
            let vital = std::thread::spawn(|| {
                let _vital = Vital;
                panic!("as a broken invariant would");
            });
            drop(vital.join());
            return;
        }
        let test = "engine::host::tests::a_panic_of_a_vital_thread_ends_the_program";
        let program = std::env::current_exe().expect("the test's own path");
        let done = Command::new(program).args(["--exact", test]).env(PANICS, "1").output();
        let status = done.expect("the test starts itself").status;
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
    }
}
