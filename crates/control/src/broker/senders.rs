//! The servers that send, and their cores.
//!
//! Promise: each delivery is admitted on the core that sends it. Of several link servers, the one
//! on the core with the most free time sends a new delivery, so deliveries spread over the cores.

use std::cmp::Reverse;

use tactus_core::cost::Cost;
use tactus_core::ledger::{Ledger, Rejection};
use tactus_engine::message::LinkId;

/// The cores of the servers that send, by their numbers in the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SenderCores {
    /// Each link server.
    pub links: Vec<u32>,
    /// The packet server.
    pub packets: u32,
}

/// The servers that can send a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sender {
    /// Each link server.
    AnyLink,
    /// The packet server.
    Packets,
}

impl Sender {
    /// Their cores; one core may be there several times.
    fn all(self, cores: &SenderCores) -> Vec<(u32, LinkId)> {
        match self {
            Self::AnyLink => cores.links.iter().copied().zip((0..).map(LinkId)).collect(),
            Self::Packets => vec![(cores.packets, LinkId(0))],
        }
    }

    /// The different cores.
    pub(super) fn cores(self, cores: &SenderCores) -> Vec<u32> {
        let mut all: Vec<_> = self.all(cores).into_iter().map(|(core, _)| core).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The cost on the core that is to send, and the link server there.
    ///
    /// # Errors
    /// The short resource, with the core that has the most free time.
    pub(super) fn place(
        self,
        cost: Cost,
        ledger: &Ledger,
        cores: &SenderCores,
    ) -> Result<(Cost, LinkId), Rejection> {
        let mut senders = self.all(cores);
        senders.sort_by_key(|&(core, _)| Reverse(ledger.free_time(core)));
        let mut first = None;
        for (core, link) in senders {
            let cost = cost.on(core);
            match ledger.check(cost) {
                Ok(()) => return Ok((cost, link)),
                Err(short) => first = first.or(Some(short)),
            }
        }
        Err(first.expect("an engine has servers that send"))
    }
}
