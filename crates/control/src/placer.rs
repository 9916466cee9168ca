//! The placer: moves servers to other cores while they run.
//!
//! Promise: a server moves only to a core that has time for all that is promised of it, and its
//! promises move along. One server moves at a time. A move that fails leaves the server, and its
//! promises, where they were.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tactus_core::ports;
use tactus_core::units::{Nanos, SECOND};
use tactus_engine::migration::{Mailbox, Migration, Passage};
use tactus_sys::waker::{Sleeper, Waker, waker};

use crate::broker::Broker;
use crate::placement::{CorePlan, Job, ServerName};

/// Moves the servers of an engine. Clones share them.
#[derive(Clone)]
pub struct Placer(Arc<Shared>);

struct Shared {
    broker: Broker,
    cores: Vec<CoreEnd>,
    /// Of each server of the ledger, by its number there.
    names: Vec<ServerName>,
    plan: Mutex<Vec<CorePlan>>,
    /// Held while a server moves.
    moving: Mutex<()>,
}

impl fmt::Debug for Placer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placer").field("placement", &self.placement()).finish()
    }
}

/// The control side's end of a core, in the order of the plan.
pub(crate) struct CoreEnd {
    pub(crate) mailbox: Mailbox,
    pub(crate) waker: Waker,
}

/// A core and its servers, for people and programs.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct CoreStatus {
    /// The processor.
    pub cpu: u32,
    /// The servers, as in the configuration.
    pub servers: Vec<String>,
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
    /// The engine has no such core.
    #[error(
        "core {core} has no real-time thread; it was not named in [cores] placement, which has \
         {all}"
    )]
    NoCore {
        /// What was asked for.
        core: u32,
        /// The cores.
        all: String,
    },
    /// The promises of the server do not fit there.
    #[error("{0}; free time there first, or move less")]
    NoRoom(String),
    /// Another server moves.
    #[error("another server is moving; try again when it has arrived")]
    Busy,
    /// The kernel refuses to open its port on the new core.
    #[error("{server} stays on core {from}: {error}")]
    Refused {
        /// The server.
        server: ServerName,
        /// The processor of its core.
        from: u32,
        /// The kernel's answer.
        error: String,
    },
    /// It waits for its disk.
    #[error(
        "{0} waits for what it has begun at its disk; it moves as soon as the disk answers, or \
         stays if it never does"
    )]
    Late(ServerName),
}

impl Placer {
    pub(crate) fn new(
        broker: Broker,
        cores: Vec<CoreEnd>,
        names: Vec<ServerName>,
        plan: Vec<CorePlan>,
    ) -> Self {
        let (plan, moving) = (Mutex::new(plan), Mutex::default());
        Self(Arc::new(Shared { broker, cores, names, plan, moving }))
    }

    /// Where each server is now, in the order of the cores.
    pub fn placement(&self) -> Vec<CoreStatus> {
        let core = |plan: &CorePlan| CoreStatus {
            cpu: plan.cpu,
            servers: plan.servers.iter().map(ToString::to_string).collect(),
        };
        self.0.plan().iter().map(core).collect()
    }

    /// Moves the server called `server` to the processor `core`, and waits until it is there.
    ///
    /// # Errors
    /// Why it did not move, or not yet.
    pub fn place(&self, server: &str, core: u32) -> Result<Moved, PlaceError> {
        let names = &self.0.names;
        let named = server.parse().ok().and_then(|name: ServerName| {
            let number = names.iter().position(|known| *known == name)?;
            Some((name, number))
        });
        let unknown = || PlaceError::NoServer {
            name: server.to_owned(),
            all: listed(names.iter().map(ToString::to_string)),
        };
        let (name, number) = named.ok_or_else(unknown)?;
        let (tell, told) = sync_channel(1);
        let shared = Arc::clone(&self.0);
        let work = move || drop(tell.send(shared.place(name, number as u32, core)));
        let thread = std::thread::Builder::new().name("tactus-place".to_owned()).spawn(work);
        let begun = thread.map_err(|error| PlaceError::Refused {
            server: name,
            from: core,
            error: error.to_string(),
        });
        begun?;
        match told.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(PlaceError::Late(name))
            }
        }
    }
}

impl Shared {
    fn place(&self, name: ServerName, number: u32, core: u32) -> Result<Moved, PlaceError> {
        let _moving = self.moving.try_lock().map_err(|_| PlaceError::Busy)?;
        let (from, to) = self.ends(name, core)?;
        let cpus = [from, to].map(|at| self.plan()[at].cpu);
        let moved = |pause: Nanos| Moved {
            server: name.to_string(),
            from: cpus[0],
            core: cpus[1],
            pause_us: pause.0.div_ceil(1_000),
        };
        if from == to {
            return Ok(moved(Nanos(0)));
        }
        let what = format!("{name} on core {core}");
        self.broker
            .move_server(number, to as u32, &what)
            .map_err(|refusal| PlaceError::NoRoom(refusal.message))?;
        let pause = self.migrate(name, from, to, cpus[1]).inspect_err(|_| {
            self.broker.return_server(number, from as u32);
        })?;
        let mut plan = self.plan();
        plan[from].servers.retain(|server| *server != name);
        plan[to].servers.push(name);
        drop(plan);
        let moved = moved(pause);
        tracing::info!(
            "{name} moved from core {} to core {}; it began nothing for {} us",
            moved.from,
            moved.core,
            moved.pause_us
        );
        Ok(moved)
    }

    /// The numbers of the cores between which `name` is to move.
    fn ends(&self, name: ServerName, core: u32) -> Result<(usize, usize), PlaceError> {
        let plan = self.plan();
        let to = plan.iter().position(|plan| plan.cpu == core).ok_or_else(|| {
            let all = listed(plan.iter().map(|plan| plan.cpu.to_string()));
            PlaceError::NoCore { core, all }
        })?;
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
            from: self.plan()[from].cpu,
            error,
        };
        let (own, mut sleeper) = waker().map_err(|error| refused(error.to_string()))?;
        // Only a device's port is bound to a thread.
        let passage = match name.job {
            Job::Disk => Passage::ByControl,
            _ => Passage::Direct,
        };
        let (old, new) = (&self.cores[from], &self.cores[to]);
        let all = Both(new.waker.clone(), own);
        let mailbox = new.mailbox.clone();
        let migration = Migration::new(name, (mailbox, cpu), passage, Box::new(all));
        migration.begin(&old.mailbox);
        old.waker.wake();
        let mut result = Ok(());
        loop {
            if let Some(mut server) = migration.take() {
                if let Err(errno) = server.resume(cpu) {
                    result = Err(refused(std::io::Error::from_raw_os_error(errno).to_string()));
                    migration.go_on(server, Some(&old.mailbox));
                    old.waker.wake();
                } else {
                    migration.go_on(server, None);
                }
            }
            if migration.is_left_alone() {
                let pause = migration.pause().unwrap_or_default();
                return result.map(|()| pause);
            }
            wait(&mut sleeper);
        }
    }

    fn plan(&self) -> MutexGuard<'_, Vec<CorePlan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The core that a server moves to, and the thread that moves it.
struct Both(Waker, Waker);

impl ports::Waker for Both {
    fn wake(&self) {
        self.0.wake();
        self.1.wake();
    }
}

fn wait(sleeper: &mut Sleeper) {
    sleeper.wait_until(Some(tactus_sys::clock::now() + LOOK));
}

fn listed(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

/// A core drops its part of a migration a moment after it has told of the arrival.
const LOOK: Nanos = Nanos(SECOND.0 / 1_000);

/// How long the answer waits for a server whose disk does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
