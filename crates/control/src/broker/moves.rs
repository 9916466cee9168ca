//! Servers that move to another core: their promises move along.

use super::Broker;
use super::refusal::{Refusal, Shortage, refusal};

impl Broker {
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
