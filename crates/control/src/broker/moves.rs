//! Servers that move to another core: their promises move along.

use tactus_core::ledger::{Resource, ServerPlace};
use tactus_core::units::Nanos;

use super::Broker;
use super::refusal::{Refusal, Shortage, refusal};

/// The promised time of all cores and servers, per second.
pub(crate) struct Promises {
    /// Of each core, with the most that may be promised.
    pub(crate) cores: Vec<(Nanos, Nanos)>,
    /// Of each server of the ledger, with its place.
    pub(crate) servers: Vec<(ServerPlace, Nanos)>,
}

impl Broker {
    /// What is promised of the cores now, by `servers` servers of the ledger.
    pub(crate) fn promises(&self, servers: usize) -> Promises {
        let ledger = &self.shared.table().ledger;
        let of_cores = ledger.levels().filter(|level| level.resource == Resource::Cpu);
        Promises {
            cores: of_cores.map(|level| (Nanos(level.used), Nanos(level.limit))).collect(),
            servers: (0..).take(servers).map(|number| ledger.promise_of(number)).collect(),
        }
    }

    /// Moves the promises of a server of the ledger to another of its cores. `what` says what moves
    /// where.
    ///
    /// # Errors
    /// The new core has no time for them; nothing has changed.
    pub fn move_server(&self, server: u32, to: u32, what: &str) -> Result<(), Refusal> {
        let moved = self.shared.table().ledger.move_server(server, to);
        moved.map_err(|short| refusal(Shortage::Room(short), None, what, &self.shared.rules))
    }

    /// Moves them back to the core where they were.
    pub fn return_server(&self, server: u32, to: u32) {
        self.shared.table().ledger.return_server(server, to);
    }
}
