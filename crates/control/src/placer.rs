//! The placer: moves servers to other cores while they run, and adds and removes cores.
//!
//! Promise: a server moves only to a core that has time for all that is promised of it, and its
//! promises move along. One server moves at a time. A move that fails leaves the server, and its
//! promises, where they were. A server that was moved by command stays there until it is released.
//! When the engine stops, a move under way is given up at once.

mod growth;
mod record;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tactus_core::balance::Mobility;
use tactus_core::units::{Nanos, SECOND};
use tactus_engine::migration::{Migration, MigrationWakers};
use tactus_notation::Auto;
use tactus_sys::clock;
use tactus_sys::disk::DeviceRenewer;
use tactus_sys::waker::{Sleeper, waker};

use crate::broker::Broker;
use crate::core_threads::CoreThreads;
use crate::placement::{CorePlan, Job, ServerName};
use crate::settings::Cores;

use record::Record;

pub use growth::{CoreAddition, CoreRemoval};
pub use record::{MoveCause, MoveTotals, RecentMove, Restraint};

/// Moves the servers of an engine. Clones share them.
#[derive(Clone)]
pub struct Placer(Arc<Shared>);

struct Shared {
    broker: Broker,
    ends: EngineEnds,
    /// The servers of each core, with or without a thread.
    plan: Mutex<Vec<CorePlan>>,
    /// Held while a server moves.
    moving: Mutex<()>,
    record: Mutex<Record>,
}

impl fmt::Debug for Placer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placer").field("placement", &self.placement()).finish()
    }
}

/// Time per second that may be promised of a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreTime {
    /// If its thread is real-time.
    pub(crate) real_time: Nanos,
    /// If not.
    pub(crate) ordinary: Nanos,
}

/// The control side's ends of what moves, and between what.
pub(crate) struct EngineEnds {
    /// In the order of the plan.
    pub(crate) threads: CoreThreads,
    pub(crate) core_time: CoreTime,
    /// Of each server of the ledger, by its number there.
    pub(crate) names: Vec<ServerName>,
    /// Those of them that the engine has not, because nothing is served by them.
    pub(crate) absent: Vec<ServerName>,
    /// Of each volume's disk server.
    pub(crate) renewers: Vec<DeviceRenewer>,
    /// Whether the cores end.
    pub(crate) stopping: Arc<AtomicBool>,
}

/// A core and its servers, for people and programs.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct CoreStatus {
    /// The processor.
    pub cpu: u32,
    /// Whether it is online.
    pub online: bool,
    /// Part of its time that its servers have used in the last second.
    pub busy_ratio: f64,
    /// The servers, as in the configuration.
    pub servers: Vec<String>,
    /// The same servers, with what each uses.
    pub parts: Vec<PartStatus>,
}

/// A server on its core.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct PartStatus {
    /// The server, as in the configuration.
    pub name: String,
    /// Part of the core's time that it has used in the last second.
    pub busy_ratio: f64,
    /// Why it does not move by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stays: Option<Restraint>,
}

/// A server that may move by itself again.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Released {
    /// The server, as in the configuration.
    pub server: String,
    /// The processor of its core.
    pub core: u32,
}

/// What another configuration has changed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reconfigured {
    /// Keys and servers that have changed.
    pub changed: Vec<String>,
    /// Keys that need a restart.
    pub needs_restart: Vec<String>,
    /// Servers that have not moved, and why.
    pub failed: Vec<String>,
}

/// A server that has moved.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Moved {
    /// The server, as in the configuration.
    pub server: String,
    /// The processor of its old core.
    pub from: u32,
    /// The processor of its core now.
    pub core: u32,
    /// Time in which it began nothing, in microseconds; zero if it was there already.
    pub pause_us: u64,
}

/// Why a server did not move.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is no such server.
    #[error("there is no server `{name}`; the servers are {all}")]
    NoServer {
        /// What was asked for.
        name: String,
        /// The servers.
        all: String,
    },
    /// The core has no thread.
    #[error(
        "core {core} has no real-time thread; those on {all} have one, and `tactus place add` \
             starts others"
    )]
    NoCore {
        /// What was asked for.
        core: u32,
        /// The cores.
        all: String,
    },
    /// The engine does not know the processor.
    #[error("the server cannot use processor {core}; it may use {all}")]
    NoProcessor {
        /// What was asked for.
        core: u32,
        /// The processors.
        all: String,
    },
    /// There is no other core for the servers.
    #[error("core {0} is the last one online with a real-time thread; add another one first")]
    LastCore(u32),
    /// The host gives no thread, or not on this processor.
    #[error("no thread: {0}")]
    NoThread(String),
    /// A core has no servers any more, but has to tend what a disk has begun there.
    #[error(
        "core {0} waits for what a disk has begun there; its servers have moved; try again when \
         the disk has answered"
    )]
    Tending(u32),
    /// The promises of the server do not fit there.
    #[error("{0}; free time there first, or move less")]
    NoRoom(String),
    /// Another server moves.
    #[error("another server is moving; try again when it has arrived")]
    Busy,
    /// The kernel refuses it another ring.
    #[error("{server} stays on core {from}: {error}")]
    Refused {
        /// The server.
        server: ServerName,
        /// The processor of its core.
        from: u32,
        /// The kernel's answer.
        error: String,
    },
    /// The cores end.
    #[error("the server is stopping; {0} stays where it is")]
    Stopping(ServerName),
    /// The same, for a core.
    #[error("the server is stopping, and no core is added or removed any more")]
    Ending,
    /// It has not moved yet.
    #[error(
        "{0} waits for what it began at its disk before its last move; it moves as soon as the \
         disk answers, or stays if it never does"
    )]
    Late(ServerName),
}

impl Placer {
    pub(crate) fn new(
        broker: Broker,
        ends: EngineEnds,
        plan: Vec<CorePlan>,
        configured: &Cores,
    ) -> Self {
        let record = Mutex::new(Record::new(configured.clone(), ends.names.len()));
        let (plan, moving) = (Mutex::new(plan), Mutex::default());
        Self(Arc::new(Shared { broker, ends, plan, moving, record }))
    }

    /// Where each server is now, in the order of the cores.
    pub fn placement(&self) -> Vec<CoreStatus> {
        let (plan, record) = (self.0.plan().clone(), self.0.record());
        let part = |name: &ServerName| {
            let number = self.0.ends.names.iter().position(|known| known == name)?;
            Some(PartStatus {
                name: name.to_string(),
                busy_ratio: ratio(record.shares[number]),
                stays: record.restraint(number, *name),
            })
        };
        let running = self.0.ends.threads.running();
        let core = |plan: &CorePlan| {
            let numbers = plan.servers.iter().map(|name| self.0.number_of(*name));
            CoreStatus {
                cpu: plan.cpu,
                online: !record.offline.contains(&plan.cpu),
                busy_ratio: ratio(numbers.map(|number| record.shares[number]).sum()),
                servers: plan.servers.iter().map(ToString::to_string).collect(),
                parts: plan.servers.iter().filter_map(part).collect(),
            }
        };
        running.into_iter().map(|at| core(&plan[at])).collect()
    }

    /// The processors of the cores that have a thread, in the order of the cores.
    pub fn cpus(&self) -> Vec<u32> {
        let threads = &self.0.ends.threads;
        threads.running().into_iter().map(|core| threads.cpu(core)).collect()
    }

    /// The last moves, the newest first.
    pub fn moves(&self) -> Vec<RecentMove> {
        self.0.record().moves()
    }

    /// All moves since the start.
    pub fn totals(&self) -> MoveTotals {
        self.0.record().totals()
    }

    /// Moves the server called `server` to the processor `core`, and waits until it is there. It
    /// stays there until it is released.
    ///
    /// # Errors
    /// Why it did not move, or not yet.
    pub fn place(&self, server: &str, core: u32) -> Result<Moved, PlaceError> {
        let (name, number) = self.named(server)?;
        let moved = self.order(name, core, MoveCause::Command, BY_COMMAND);
        if matches!(moved, Ok(_) | Err(PlaceError::Late(_))) {
            self.0.record().order(number, true);
        }
        moved
    }

    /// Lets a server move by itself again that was moved by command.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn release(&self, server: &str) -> Result<Released, PlaceError> {
        let (name, number) = self.named(server)?;
        self.0.record().order(number, false);
        Ok(Released { server: name.to_string(), core: self.0.core_of(name) })
    }

    /// Applies another configuration: servers move to their places in it, one after another, if it
    /// has other places than the configuration before. Cores that it names get a thread before, and
    /// others lose theirs afterwards.
    pub fn configure(&self, cores: &Cores) -> Reconfigured {
        let before = std::mem::replace(&mut self.0.record().configured, cores.clone());
        let mut done = Reconfigured::default();
        if before.balance != cores.balance {
            done.changed.push("cores.balance".to_owned());
        }
        if before.fixed != cores.fixed {
            done.changed.push("cores.fixed".to_owned());
        }
        if before.placement == cores.placement {
            return done;
        }
        let Auto::Set(plan) = &cores.placement else {
            done.needs_restart.push("cores.placement".to_owned());
            return done;
        };
        let mut named: Vec<_> = plan.iter().flat_map(|core| core.servers.clone()).collect();
        let mut names = self.0.ends.names.clone();
        named.sort_unstable();
        names.sort_unstable();
        if named != names {
            done.needs_restart.push("cores.placement".to_owned());
            return done;
        }
        self.0.record().release_all();
        self.add_cores(plan, &mut done);
        let places = plan.iter().flat_map(|core| core.servers.iter().map(|name| (*name, core.cpu)));
        self.move_all(places.collect(), &mut done);
        self.remove_cores(plan, &mut done);
        done
    }

    /// Moves servers to processors. One that has no room may have it when others have moved.
    fn move_all(&self, mut places: Vec<(ServerName, u32)>, done: &mut Reconfigured) {
        places.retain(|&(name, core)| self.0.core_of(name) != core);
        loop {
            let (before, mut refused) = (places.len(), vec![]);
            places.retain(|&(name, core)| {
                match self.order(name, core, MoveCause::Configuration, BY_CONFIGURATION) {
                    Ok(moved) => {
                        let place = format!("cores.placement: {name} is on core {}", moved.core);
                        done.changed.push(place);
                        false
                    }
                    Err(error) => {
                        let from = self.0.core_of(name);
                        refused.push(format!("{name} stays on core {from}: {error}"));
                        true
                    }
                }
            });
            if places.is_empty() || places.len() == before {
                done.failed.extend(refused);
                return;
            }
        }
    }

    /// The servers, by their numbers in the ledger.
    pub(crate) fn names(&self) -> &[ServerName] {
        &self.0.ends.names
    }

    /// Whether the balancer may move each server.
    pub(crate) fn mobilities(&self) -> Vec<Mobility> {
        let record = self.0.record();
        let names = self.0.ends.names.iter().enumerate();
        names.map(|(number, name)| record.mobility(number, *name)).collect()
    }

    /// Notes how busy each server is, in thousandths of a core's time, and which processors are
    /// offline.
    pub(crate) fn note(&self, shares: Vec<u32>, offline: Vec<u32>) {
        let mut record = self.0.record();
        (record.shares, record.offline) = (shares, offline);
    }

    fn named(&self, server: &str) -> Result<(ServerName, usize), PlaceError> {
        let names = &self.0.ends.names;
        let named = server.parse().ok().and_then(|name: ServerName| {
            let number = names.iter().position(|known| *known == name)?;
            Some((name, number))
        });
        named.ok_or_else(|| PlaceError::NoServer {
            name: server.to_owned(),
            all: listed(names.iter().map(ToString::to_string)),
        })
    }

    /// Moves a server to the processor `core`, and waits until it is there. `reason` is a part of a
    /// sentence.
    pub(crate) fn order(
        &self,
        name: ServerName,
        core: u32,
        cause: MoveCause,
        reason: &str,
    ) -> Result<Moved, PlaceError> {
        let reason = reason.to_owned();
        let work = move |shared: &Shared| shared.place(name, core, cause, &reason);
        let ends = (PlaceError::Late(name), PlaceError::Stopping(name));
        self.carry_out(ends, work, move |shared| shared.settle(name))
    }

    /// Does `work` on a thread of its own, and then `rest`, for which nobody waits. What takes
    /// too long goes on, and is answered with `late`; if the engine stops, with `stopping`.
    fn carry_out<T: Send + 'static>(
        &self,
        (late, stopping): (PlaceError, PlaceError),
        work: impl FnOnce(&Shared) -> Result<T, PlaceError> + Send + 'static,
        rest: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<T, PlaceError> {
        if self.0.is_stopping() {
            return Err(stopping);
        }
        let (tell, told) = sync_channel(1);
        let shared = Arc::clone(&self.0);
        let work = move || {
            // The receiver is gone if it has waited too long.
            drop(tell.send(work(&shared)));
            rest(&shared);
        };
        let thread = std::thread::Builder::new().name("tactus-place".to_owned()).spawn(work);
        thread.map_err(|error| PlaceError::NoThread(error.to_string()))?;
        self.0.await_result(&told, (late, stopping))
    }
}

impl Shared {
    /// Waits for a result, as long as the engine runs.
    fn await_result<T>(
        &self,
        told: &Receiver<Result<T, PlaceError>>,
        (late, stopping): (PlaceError, PlaceError),
    ) -> Result<T, PlaceError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match told.recv_timeout(STOP_LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) if self.is_stopping() => return Err(stopping),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(late);
                }
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.ends.stopping.load(Ordering::Acquire)
    }

    fn place(
        &self,
        name: ServerName,
        core: u32,
        cause: MoveCause,
        reason: &str,
    ) -> Result<Moved, PlaceError> {
        let number = self.number_of(name) as u32;
        let _moving = self.moving.try_lock().map_err(|_| PlaceError::Busy)?;
        let (from, to) = self.ends(name, core)?;
        if from == to {
            let server = name.to_string();
            return Ok(Moved { server, from: core, core, pause_us: 0 });
        }
        let what = format!("{name} on core {core}");
        self.broker
            .move_server(number, to as u32, &what)
            .map_err(|refusal| PlaceError::NoRoom(refusal.message))?;
        self.transfer(name, (from, to), (cause, reason)).inspect_err(|_| {
            self.broker.return_server(number, from as u32);
        })
    }

    /// Moves a server whose promises have moved already.
    fn transfer(
        &self,
        name: ServerName,
        (from, to): (usize, usize),
        (cause, reason): (MoveCause, &str),
    ) -> Result<Moved, PlaceError> {
        let cpus = [from, to].map(|at| self.ends.threads.cpu(at));
        let pause = match self.ends.absent.contains(&name) {
            true => Nanos(0),
            false => self.migrate(name, from, to, cpus[1])?,
        };
        let mut plan = self.plan();
        plan[from].servers.retain(|server| *server != name);
        plan[to].servers.push(name);
        drop(plan);
        let moved = Moved {
            server: name.to_string(),
            from: cpus[0],
            core: cpus[1],
            pause_us: pause.0.div_ceil(1_000),
        };
        tracing::info!(
            "{name} moved from core {} to core {}: {reason}; it began nothing for {} us",
            moved.from,
            moved.core,
            moved.pause_us
        );
        let Moved { server, from, core, pause_us } = moved.clone();
        let (reason, arrived) = (reason.to_owned(), clock::now());
        let recent = RecentMove { server, from, core, pause_us, cause, reason, arrived };
        self.record().note(recent, pause);
        Ok(moved)
    }

    fn number_of(&self, name: ServerName) -> usize {
        self.ends
            .names
            .iter()
            .position(|known| *known == name)
            .expect("it is a server of the engine")
    }

    /// The processor of a server's core.
    fn core_of(&self, name: ServerName) -> u32 {
        let plan = self.plan();
        let core = plan.iter().find(|plan| plan.servers.contains(&name));
        core.expect("each server has a core").cpu
    }

    /// The number of the core on the processor `core`, which has a thread.
    fn running(&self, core: u32) -> Result<usize, PlaceError> {
        let threads = &self.ends.threads;
        let running = threads.running();
        let at = threads.number_of(core).filter(|at| running.contains(at));
        at.ok_or_else(|| {
            let all = listed(running.into_iter().map(|at| threads.cpu(at).to_string()));
            PlaceError::NoCore { core, all }
        })
    }

    /// The numbers of the cores between which `name` is to move.
    fn ends(&self, name: ServerName, core: u32) -> Result<(usize, usize), PlaceError> {
        let to = self.running(core)?;
        let plan = self.plan();
        let from = plan.iter().position(|plan| plan.servers.contains(&name));
        Ok((from.expect("each server has a core"), to))
    }

    /// Moves a server, and answers the time in which it began nothing.
    fn migrate(
        &self,
        name: ServerName,
        from: usize,
        to: usize,
        cpu: u32,
    ) -> Result<Nanos, PlaceError> {
        let refused = |error: String| PlaceError::Refused {
            server: name,
            from: self.ends.threads.cpu(from),
            error,
        };
        let (own, mut sleeper) = waker().map_err(|error| refused(error.to_string()))?;
        let threads = &self.ends.threads;
        if let Some(device) = self.renewer(name) {
            let prepare = || device.prepare(threads.tender(from));
            while !prepare().map_err(|error| refused(error.to_string()))? {
                if self.is_stopping() {
                    return Err(PlaceError::Stopping(name));
                }
                std::thread::sleep(Duration::from_nanos(LOOK.0));
            }
        }
        // From here on nothing is refused: what is prepared is used.
        let wakers = MigrationWakers {
            from: Box::new(threads.waker(from).clone()),
            to: Box::new(threads.waker(to).clone()),
            control: Box::new(own),
        };
        let migration = Migration::new(name, cpu, wakers);
        migration.begin(threads.mailbox(from), threads.mailbox(to));
        let mut given_up = None;
        while !migration.is_left_alone() {
            // Cores that end let go of it. An order that none of them has read stays in its
            // mailbox.
            let until = given_up.or_else(|| self.is_stopping().then(|| clock::now() + SECOND));
            if until.is_some_and(|until| clock::now() >= until) {
                return Err(PlaceError::Stopping(name));
            }
            given_up = until;
            wait(&mut sleeper);
        }
        Ok(migration.pause().unwrap_or_default())
    }

    /// The renewer of a disk server's device.
    fn renewer(&self, name: ServerName) -> Option<&DeviceRenewer> {
        match name.job {
            Job::Disk => self.ends.renewers.get(usize::from(name.index)),
            _ => None,
        }
    }

    /// Closes what a disk server has left at its old core, when that has ended. What takes longer
    /// is closed before the next move.
    fn settle(&self, name: ServerName) {
        let end = clock::now() + SECOND.times(5);
        while self.renewer(name).is_some_and(|device| !device.settle())
            && clock::now() < end
            && !self.is_stopping()
        {
            std::thread::sleep(Duration::from_nanos(LOOK.0));
        }
    }

    fn plan(&self) -> MutexGuard<'_, Vec<CorePlan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait(sleeper: &mut Sleeper) {
    sleeper.wait_until(Some(clock::now() + LOOK));
}

fn ratio(thousandths: u32) -> f64 {
    f64::from(thousandths) / 1000.0
}

fn listed(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

const BY_COMMAND: &str = "by command";
const BY_CONFIGURATION: &str = "the configuration says so";

/// A core drops its part of a migration a moment after it has told of the arrival, and what a disk
/// has begun ends without a wake-up.
const LOOK: Nanos = Nanos(SECOND.0 / 1_000);

/// How often an answer that waits looks whether the engine stops.
const STOP_LOOK: Duration = Duration::from_millis(20);

/// How long an answer waits for a disk that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
