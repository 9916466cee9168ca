//! Cores: a pinned thread polls the servers placed on it and sleeps until the earliest deadline.
//!
//! The [`Host`] decides how the thread runs (pinned, real-time, how it sleeps). The simulator turns
//! cores without threads.

use std::sync::Arc;

use tactus_core::units::{MonoTime, Nanos};

use crate::counters::CoreCounters;
use crate::server::Server;

/// The thread that a core runs on.
pub trait Host {
    /// The monotonic clock.
    fn now(&mut self) -> MonoTime;

    /// Sleeps until `until` or a wake-up; for a bounded time when there is no deadline.
    fn sleep(&mut self, until: Option<MonoTime>);

    /// Whether the core should end.
    fn is_stopping(&self) -> bool;
}

/// The servers placed on one core, in the order in which they are polled.
pub struct Core {
    servers: Vec<Box<dyn Server>>,
    /// While streams run anywhere, servers on other cores may send at any time without a wake-up.
    pub(crate) look_at_least_every: Nanos,
    /// When the next turn is due.
    due: Option<MonoTime>,
    counters: Arc<CoreCounters>,
}

impl Core {
    /// Makes a core with these servers.
    pub fn new(servers: Vec<Box<dyn Server>>) -> Self {
        let counters = Arc::default();
        Self { servers, look_at_least_every: Nanos(0), due: None, counters }
    }

    /// The core's counters of its own turns.
    pub fn counters(&self) -> Arc<CoreCounters> {
        Arc::clone(&self.counters)
    }

    /// Adds a server; it is polled after those already here.
    pub fn place(&mut self, server: Box<dyn Server>) {
        self.servers.push(server);
    }

    /// Quiesces all servers. Returns whether they may leave; the core takes turns until then.
    pub fn quiesce(&mut self) -> bool {
        let mut all = true;
        for server in &mut self.servers {
            all &= server.quiesce();
        }
        all
    }

    /// The servers, to be placed on other cores, in the same order.
    pub fn into_servers(self) -> Vec<Box<dyn Server>> {
        self.servers
    }

    /// Whether no server sits here.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Polls every server until none has work left at `now`. Returns the time of the next turn. The
    /// number of rounds is bounded, so the thread always sleeps.
    pub fn turn(&mut self, now: MonoTime) -> Option<MonoTime> {
        self.watch_stall(now);
        for _ in 0..ROUNDS {
            let mut any = false;
            for server in &mut self.servers {
                any |= server.poll(now);
            }
            if !any {
                break;
            }
        }
        let soonest = self.servers.iter().filter_map(|server| server.poll_timeout(now)).min();
        let look = (self.look_at_least_every > Nanos(0)).then(|| now + self.look_at_least_every);
        self.due = match (soonest, look) {
            (Some(soonest), Some(look)) => Some(soonest.min(look)),
            (soonest, look) => soonest.or(look),
        };
        self.counters.due.set(self.due.map_or(0, |due| due.0));
        self.due
    }

    /// Counts a turn that begins long after it was due: another program used the core, the machine
    /// was paused, or the turn before took too long.
    fn watch_stall(&mut self, now: MonoTime) {
        let Some(due) = self.due else { return };
        let late = now.since(due);
        if late > CORE_STALL {
            self.counters.stalls.add(1);
            self.counters.stalled.add(late.0);
            self.counters.longest.raise(late.0);
        }
    }

    /// Turns until the host stops; gives the servers back.
    pub fn run(mut self, host: &mut impl Host) -> Vec<Box<dyn Server>> {
        while !host.is_stopping() {
            let now = host.now();
            let until = self.turn(now);
            host.sleep(until);
        }
        self.servers
    }
}

/// A turn that begins later than this counts as a stall: twice the lateness promised for 99.9 % of
/// all sends.
pub const CORE_STALL: Nanos = Nanos::from_millis(10);

/// A want travels delivery, block, disk, and a filled block disk, block, delivery, link: six rounds
/// pass it on even in the worst order of servers.
const ROUNDS: u32 = 6;
