//! Retries of `get` and `put` after a broken connection, or when the server has no room.
//!
//! Promise: retrying ends. Only an attempt that made progress extends the time.

use std::time::{Duration, Instant};

use tactus_core::units::Nanos;

use super::client::{ClientError, Response};
use super::{Failure, console};

/// For how long a command retries.
pub(super) struct Retries {
    wait: Duration,
    quiet: bool,
}

/// Why an attempt failed.
pub(super) enum AttemptError {
    /// It may be retried, after the given time if there is one.
    Temporary(Failure, Option<Duration>),
    /// A retry would not help.
    Failed(Failure),
}

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest `Retry-After` that is obeyed.
const AFTER_MAX: Duration = Duration::from_secs(30);

impl Retries {
    /// Retries for `wait` after the last progress; `quiet` prints no messages.
    pub(super) fn new(wait: Nanos, quiet: bool) -> Self {
        Self { wait: Duration::from_nanos(wait.0), quiet }
    }

    /// Repeats `attempt` until it succeeds, fails for good, or time runs out; `position` measures
    /// its progress.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub(super) fn run(
        &self,
        position: impl Fn() -> u64,
        mut attempt: impl FnMut() -> Result<(), AttemptError>,
    ) -> Result<(), Failure> {
        let mut give_up = Instant::now() + self.wait;
        let (mut best, mut is_told) = (position(), false);
        loop {
            let (failure, after) = match attempt() {
                Ok(()) => return Ok(()),
                Err(AttemptError::Failed(failure)) => return Err(failure),
                Err(AttemptError::Temporary(failure, after)) => (failure, after),
            };
            if position() > best {
                best = position();
                give_up = Instant::now() + self.wait;
                is_told = false;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failure);
            }
            if !is_told && !self.quiet {
                console::notice(format_args!(
                    "tactus: {failure}; retrying for {} s",
                    left.as_secs().max(1)
                ));
                is_told = true;
            }
            std::thread::sleep(after.unwrap_or(PAUSE).clamp(PAUSE, AFTER_MAX).min(left));
        }
    }
}

/// Whether a request with this status may succeed later.
pub(super) fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 429 | 502 | 503 | 504)
}

/// The time that the server asks to wait.
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.field("retry-after")?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

impl AttemptError {
    pub(super) fn failed(message: &str) -> Self {
        Self::Failed(anyhow::anyhow!("{message}").into())
    }
}

impl From<ClientError> for AttemptError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Connect { .. } | ClientError::Broken(_) => {
                Self::Temporary(error.into(), None)
            }
            _ => Self::Failed(error.into()),
        }
    }
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<anyhow::Error> for AttemptError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn broken() -> AttemptError {
        AttemptError::Temporary(Failure::Broken(anyhow::anyhow!("cut")), None)
    }

    #[test]
    fn s09_broken_connections_are_retried_and_refusals_are_not() {
        let count = Cell::new(0);
        let retries = Retries::new(Nanos(60_000_000_000), true);
        let attempt = || {
            count.set(count.get() + 1);
            if count.get() < 3 { Err(broken()) } else { Ok(()) }
        };
        assert!(retries.run(|| count.get(), attempt).is_ok());
        assert_eq!(count.get(), 3);
        let refused = || {
            count.set(count.get() + 1);
            Err(AttemptError::failed("no"))
        };
        assert!(retries.run(|| 0, refused).is_err());
        assert_eq!(count.get(), 4);
    }

    #[test]
    fn s09_without_a_retry_time_the_first_failure_is_final() {
        assert!(Retries::new(Nanos(0), true).run(|| 0, || Err(broken())).is_err());
    }
}
