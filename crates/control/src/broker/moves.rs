//! Servers that move to another core: their promises move along.

use std::cmp::Reverse;

use tactus_core::ledger::{Ledger, Rejection, ServerPlace};
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
        Promises {
            cores: ledger.of_cores().collect(),
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

    /// Moves the promises of all `servers` of a core to others, each to the one that has the most
    /// time left, and promises nothing of this core from then on. Returns the new cores, and the
    /// time per second that could be promised of this one, for [`Self::open_core`].
    ///
    /// # Errors
    /// The others have no time for one of them, which `name` names; nothing has changed.
    pub(crate) fn empty_core(
        &self,
        (core, others): (u32, &[u32]),
        servers: &[u32],
        name: impl Fn(u32) -> String,
    ) -> Result<(Vec<u32>, Nanos), Refusal> {
        let ledger = &mut self.shared.table().ledger;
        // The largest first: the others fit in between.
        let mut order: Vec<_> = (0..servers.len()).collect();
        order.sort_by_key(|&at| Reverse(ledger.promise_of(servers[at]).1));
        let mut places = vec![core; servers.len()];
        for (nth, &at) in order.iter().enumerate() {
            match move_to_any(ledger, servers[at], others) {
                Ok(to) => places[at] = to,
                Err(short) => {
                    for &at in &order[..nth] {
                        ledger.return_server(servers[at], core);
                    }
                    let what = name(servers[at]);
                    return Err(refusal(Shortage::Room(short), None, &what, &self.shared.rules));
                }
            }
        }
        Ok((places, ledger.close_core(core)))
    }

    /// Promises up to `time` per second of a core that was closed.
    pub(crate) fn open_core(&self, core: u32, time: Nanos) {
        self.shared.table().ledger.open_core(core, time);
    }
}

/// Moves the promises of a server to the one of `cores` with the most time left that has room for
/// them. Returns it.
fn move_to_any(ledger: &mut Ledger, server: u32, cores: &[u32]) -> Result<u32, Rejection> {
    let mut cores = cores.to_vec();
    cores.sort_by_key(|&core| Reverse(ledger.free_time(core)));
    let mut first = None;
    for core in cores {
        // A core with less time may have it in the seconds in which it is needed.
        match ledger.move_server(server, core) {
            Ok(()) => return Ok(core),
            Err(short) => first = first.or(Some(short)),
        }
    }
    Err(first.expect("there is another core"))
}
