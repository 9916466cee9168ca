//! Cores that get a real-time thread while streams run, and cores that lose theirs.
//!
//! Promise: nothing is promised of a core before its thread runs on its processor. A core loses its
//! thread when its servers have moved to other cores with all that is promised of them, and when
//! nothing is left there that only this thread can end. If they do not fit there, it stays, and
//! nothing has changed.

use serde::Serialize;
use tactus_core::units::SECOND;
use tactus_sys::clock;
use tactus_sys::disk::DeviceRenewer;

use super::{LOOK, MoveCause, Moved, PlaceError, Placer, Reconfigured, Shared, listed};
use crate::claim::Claim;
use crate::placement::CorePlan;

/// A core that has got a thread.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct CoreAddition {
    /// Its processor.
    pub core: u32,
    /// Whether its thread is real-time. If not, half as much is promised of it.
    pub real_time: bool,
    /// Whether it had one before.
    pub was_there: bool,
}

/// A core that has no thread any more.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct CoreRemoval {
    /// Its processor.
    pub core: u32,
    /// Where its servers have gone.
    pub moved: Vec<Moved>,
}

impl Placer {
    /// Starts a real-time thread on the processor `core`. Servers move there by command or by
    /// themselves.
    ///
    /// # Errors
    /// Why it has none.
    pub fn add_core(&self, core: u32) -> Result<CoreAddition, PlaceError> {
        let late = PlaceError::NoThread("it does not begin; try again".to_owned());
        self.carry_out((late, PlaceError::Ending), move |shared| shared.add_core(core), |_| ())
    }

    /// Moves all servers of the core on the processor `core` to others, and ends its thread.
    ///
    /// # Errors
    /// Why it has its thread still.
    pub fn remove_core(&self, core: u32) -> Result<CoreRemoval, PlaceError> {
        self.remove(core, MoveCause::Command, format!("core {core} is removed by command"))
    }

    fn remove(
        &self,
        core: u32,
        cause: MoveCause,
        reason: String,
    ) -> Result<CoreRemoval, PlaceError> {
        let work = move |shared: &Shared| shared.remove_core(core, (cause, &reason));
        self.carry_out((PlaceError::Tending(core), PlaceError::Ending), work, |_| ())
    }

    /// Starts threads on the processors of `plan` that have none.
    pub(super) fn add_cores(&self, plan: &[CorePlan], done: &mut Reconfigured) {
        for core in plan {
            match self.add_core(core.cpu) {
                Ok(added) if added.was_there => (),
                Ok(_) => done
                    .changed
                    .push(format!("cores.placement: core {} has a real-time thread", core.cpu)),
                Err(error) => done.failed.push(format!("core {}: {error}", core.cpu)),
            }
        }
    }

    /// Ends the threads on processors that `plan` does not name.
    pub(super) fn remove_cores(&self, plan: &[CorePlan], done: &mut Reconfigured) {
        let unnamed = |cpu: &u32| plan.iter().all(|core| core.cpu != *cpu);
        for cpu in self.cpus().into_iter().filter(unnamed) {
            let reason = format!("the configuration does not name core {cpu}");
            match self.remove(cpu, MoveCause::Configuration, reason) {
                Ok(_) => done
                    .changed
                    .push(format!("cores.placement: core {cpu} has no real-time thread any more")),
                Err(error) => done.failed.push(format!("core {cpu}: {error}")),
            }
        }
    }
}

impl Shared {
    fn add_core(&self, cpu: u32) -> Result<CoreAddition, PlaceError> {
        let _moving = self.moving.try_lock().map_err(|_| PlaceError::Busy)?;
        let threads = &self.ends.threads;
        let at = threads.number_of(cpu).ok_or_else(|| {
            let all = listed(threads.cpus().map(|cpu| cpu.to_string()));
            PlaceError::NoProcessor { core: cpu, all }
        })?;
        if let Some(real_time) = threads.is_real_time(at) {
            return Ok(CoreAddition { core: cpu, real_time, was_there: true });
        }
        let claim = Claim::take(cpu);
        if let Err(error) = &claim {
            tracing::warn!("core {cpu} may be used by another Tactus server as well: {error}");
        }
        let rights = threads.start(at, claim.ok());
        let rights = rights.map_err(|error| PlaceError::NoThread(error.to_string()))?;
        if !rights.is_pinned {
            threads.park(at);
            return Err(PlaceError::NoThread(rights.refused.join("; ")));
        }
        let real_time = rights.real_time;
        let time = self.ends.core_time;
        let time = if real_time { time.real_time } else { time.ordinary };
        self.broker.open_core(at as u32, time);
        tracing::info!("core {cpu} has a real-time thread");
        rights.refused.iter().for_each(|refused| tracing::warn!("core {cpu}: {refused}"));
        Ok(CoreAddition { core: cpu, real_time, was_there: false })
    }

    fn remove_core(
        &self,
        cpu: u32,
        (cause, reason): (MoveCause, &str),
    ) -> Result<CoreRemoval, PlaceError> {
        let _moving = self.moving.try_lock().map_err(|_| PlaceError::Busy)?;
        let at = self.running(cpu)?;
        let mut others = self.ends.threads.running();
        let offline = self.record().offline.clone();
        others.retain(|&other| other != at && !offline.contains(&self.ends.threads.cpu(other)));
        let others: Vec<_> = others.into_iter().map(|other| other as u32).collect();
        if others.is_empty() {
            return Err(PlaceError::LastCore(cpu));
        }
        let names = self.plan()[at].servers.clone();
        let numbers: Vec<_> = names.iter().map(|&name| self.number_of(name) as u32).collect();
        let what = |number: u32| {
            format!("{} of core {cpu} on another core", self.ends.names[number as usize])
        };
        let emptied = self.broker.empty_core((at as u32, &others), &numbers, what);
        let (places, time) = emptied.map_err(|refusal| PlaceError::NoRoom(refusal.message))?;
        let to = places.into_iter().map(|to| to as usize);
        let mut moved = vec![];
        for (nth, (name, to)) in names.iter().zip(to).enumerate() {
            let one = self.transfer(*name, (at, to), (cause, reason)).inspect_err(|_| {
                // What has moved stays where it is now.
                self.broker.open_core(at as u32, time);
                numbers[nth..].iter().for_each(|&it| self.broker.return_server(it, at as u32));
            });
            moved.push(one?);
        }
        if !self.settle_all() {
            self.broker.open_core(at as u32, time);
            return Err(PlaceError::Tending(cpu));
        }
        self.ends.threads.park(at);
        tracing::info!("core {cpu} has no real-time thread any more: {reason}");
        Ok(CoreRemoval { core: cpu, moved })
    }

    /// Waits until all rings that servers have left at their old cores are closed; not for a disk
    /// that does not answer.
    fn settle_all(&self) -> bool {
        let end = clock::now() + SECOND.times(4);
        while !self.ends.renewers.iter().all(DeviceRenewer::settle) {
            if clock::now() >= end || self.is_stopping() {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_nanos(LOOK.0));
        }
        true
    }
}
