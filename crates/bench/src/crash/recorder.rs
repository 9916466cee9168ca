//! Keeps the history while a subject works: every act with the position at its beginning, and at its
//! acknowledgement.
//!
//! Promise: the position of an acknowledgement is read after it was received, so that nothing is
//! counted as acknowledged that was not. May be used by many threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::content::Version;
use super::disk::LoggingDisk;
use super::history::{Begun, History, Position};
use super::medium::Fault;

/// A history that is being written.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    disk: Mutex<&'a mut LoggingDisk>,
    history: Mutex<History>,
}

impl<'a> Recorder<'a> {
    /// Positions are those of `disk`.
    pub(super) fn of_disk(disk: &'a mut LoggingDisk) -> Self {
        Self { disk: Mutex::new(disk), history: Mutex::default() }
    }

    /// The position now.
    pub(super) fn now(&self) -> Result<Position> {
        lock(&self.disk).events()
    }

    /// A name will have version `leaves`, or be gone.
    pub(super) fn begin(&self, name: &str, leaves: Option<u64>) -> Result<Begun> {
        let now = self.now()?;
        Ok(lock(&self.history).begin(now, name, leaves))
    }

    /// An upload goes on to the offset `to`; with `last` it ends with that.
    pub(super) fn begin_step(
        &self,
        id: &str,
        version: Version,
        to: u64,
        last: bool,
    ) -> Result<Begun> {
        let now = self.now()?;
        Ok(lock(&self.history).begin_step(now, id, version, to, last))
    }

    /// It was acknowledged just now.
    pub(super) fn ack(&self, begun: &Begun) -> Result<()> {
        let now = self.now()?;
        lock(&self.history).ack(now, begun);
        Ok(())
    }

    /// Asks the disk for a fault, or for none.
    pub(super) fn fail(&self, fault: Option<Fault>) -> Result<()> {
        lock(&self.disk).fail(fault)
    }

    /// The history, written.
    pub(super) fn into_history(self) -> History {
        self.history.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panics fails the run; what it had written down is right.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
