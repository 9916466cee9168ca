//! Keeps the history while a subject works: every act with the position at its beginning, and at
//! its acknowledgement.
//!
//! Promise: the position of an acknowledgement is read after it was received, so that nothing is
//! counted as acknowledged that was not. May be used by many threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};

use super::content::Version;
use super::disk::LoggingDisk;
use super::history::{History, OperationHandle, Position};
use super::medium::Fault;

/// A history that is being written.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    clock: Mutex<Clock<'a>>,
    history: Mutex<History>,
}

/// What positions count.
#[derive(Debug)]
enum Clock<'a> {
    /// The events of a disk.
    Disk(&'a mut LoggingDisk),
    /// Questions: where only a process dies, order is enough.
    Questions(Position),
}

impl<'a> Recorder<'a> {
    /// Positions are those of `disk`.
    pub(super) fn of_disk(disk: &'a mut LoggingDisk) -> Self {
        Self { clock: Mutex::new(Clock::Disk(disk)), history: Mutex::default() }
    }

    /// Goes on with `history`; positions only say what came before what.
    pub(super) fn of_questions(history: History, from: Position) -> Self {
        Self { clock: Mutex::new(Clock::Questions(from)), history: Mutex::new(history) }
    }

    /// The position now.
    pub(super) fn now(&self) -> Result<Position> {
        match &mut *lock(&self.clock) {
            Clock::Disk(disk) => disk.events(),
            Clock::Questions(count) => {
                *count += 1;
                Ok(*count)
            }
        }
    }

    /// A name will have version `leaves`, or be gone.
    pub(super) fn begin(&self, name: &str, leaves: Option<u64>) -> Result<OperationHandle> {
        let now = self.now()?;
        Ok(lock(&self.history).begin(now, name, leaves))
    }

    /// The version that is called `from` will be called `to`.
    pub(super) fn begin_move(&self, from: &str, to: &str, version: u64) -> Result<OperationHandle> {
        let now = self.now()?;
        Ok(lock(&self.history).begin_move(now, from, to, version))
    }

    /// An upload is asked for whose id is not known yet.
    pub(super) fn ask(&self) -> Result<Position> {
        let now = self.now()?;
        lock(&self.history).ask();
        Ok(now)
    }

    /// It was refused.
    pub(super) fn refused(&self) {
        lock(&self.history).refused();
    }

    /// The upload `id` is there, and ends with its program unless that goes on with it.
    pub(super) fn bind(&self, id: &str) {
        lock(&self.history).bind(id);
    }

    /// What was asked for at `asked` is there, and called `id`.
    pub(super) fn created(
        &self,
        asked: Position,
        id: &str,
        name: &str,
        version: Version,
    ) -> Result<()> {
        let now = self.now()?;
        lock(&self.history).created(asked, now, id, name, version);
        Ok(())
    }

    /// The upload `id` of the title `name` goes on to the offset `to`.
    pub(super) fn begin_step(
        &self,
        id: &str,
        name: &str,
        version: Version,
        to: u64,
    ) -> Result<OperationHandle> {
        let now = self.now()?;
        Ok(lock(&self.history).begin_step(now, id, name, version, to))
    }

    /// A recording of `version` under `name` has come up to `to`.
    pub(super) fn begin_piece(
        &self,
        name: &str,
        version: Version,
        to: u64,
    ) -> Result<OperationHandle> {
        let now = self.now()?;
        Ok(lock(&self.history).begin_piece(now, name, version, to))
    }

    /// It was acknowledged just now.
    pub(super) fn ack(&self, begun: &OperationHandle) -> Result<()> {
        let now = self.now()?;
        lock(&self.history).ack(now, begun);
        Ok(())
    }

    /// Asks the disk for a fault, or for none.
    pub(super) fn fail(&self, fault: Option<Fault>) -> Result<()> {
        match &mut *lock(&self.clock) {
            Clock::Disk(disk) => disk.fail(fault),
            Clock::Questions(_) => bail!("there is no disk that could fail"),
        }
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
