//! One seed: its world is run twice, and a violation is caught.

use std::cell::RefCell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tactus_core::units::Nanos;

use crate::swarm::{Mode, Swarm};
use crate::verdict::{Invariant, Violation};
use crate::world::{Outcome, Tally, World};

/// What to simulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// The source of all randomness.
    pub seed: u64,
    /// The promises; the seed decides if it is not set.
    pub mode: Option<Mode>,
    /// Simulated time; the seed decides if it is not set.
    pub duration: Option<Nanos>,
}

impl Scenario {
    /// A seed without further settings.
    pub const fn of(seed: u64) -> Self {
        Self { seed, mode: None, duration: None }
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(Mode::of(self.seed))
    }

    /// The command that runs this again.
    pub fn command(&self) -> String {
        let mut command = format!("cargo run --release -p tactus-sim -- --seed {}", self.seed);
        if let Some(mode) = self.mode {
            command += &format!(" --mode {}", format!("{mode:?}").to_lowercase());
        }
        if let Some(duration) = self.duration {
            command += &format!(" --duration {}", duration.0 / 1_000_000_000);
        }
        command
    }

    pub(crate) fn swarm(&self) -> Swarm {
        Swarm::draw(self.seed, self.mode(), self.duration)
    }
}

/// Runs a world twice.
///
/// # Errors
/// The first broken invariant.
pub fn run_twice(scenario: Scenario) -> Result<Outcome, Violation> {
    let first = run_once(scenario)?;
    let second = run_once(scenario)?;
    if first == second {
        return Ok(first);
    }
    let detail = format!("{first:?}, and the second time {second:?}");
    Err(Violation { invariant: Invariant::Deterministic, detail })
}

/// Runs a world once.
///
/// # Errors
/// The first broken invariant.
pub fn run_once(scenario: Scenario) -> Result<Outcome, Violation> {
    caught(move || World::new(scenario.swarm()).run())
}

/// The tally of `world`, which has run to this result.
///
/// # Panics
///
/// If it broke a promise; the message names the world.
pub fn tally(world: &impl Debug, result: Result<Outcome, Violation>) -> Tally {
    match result {
        Ok(Outcome { tally, .. }) => tally,
        Err(violation) => panic!("{world:?} broke {violation}"),
    }
}

/// Runs `world`, and converts a panic into its violation: a broken invariant, or an assertion of
/// the engine.
pub(crate) fn caught<T>(world: impl FnOnce() -> T) -> Result<T, Violation> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let inside = PLACE.with_borrow_mut(|place| {
                let inside = place.is_some();
                if inside {
                    *place = info.location().map(ToString::to_string);
                }
                inside
            });
            if !inside {
                others(info);
            }
        }));
    });
    PLACE.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(world));
    let place = PLACE.take().unwrap_or_default();
    result.map_err(|payload| match payload.downcast::<Violation>() {
        Ok(violation) => *violation,
        Err(payload) => {
            let said = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            let detail = format!("{place}: {said}");
            Violation { invariant: Invariant::Assertion, detail }
        }
    })
}

thread_local! {
    /// Where this thread's world stopped; `None` if the thread runs no world.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}
