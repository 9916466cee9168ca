//! The servers that send, and their cores.
//!
//! Promise: each delivery is admitted on the core that sends it. Of several link servers, the one
//! on the core with the most free time sends a new delivery at a rate, and the one with the fewest
//! deliveries without a rate sends a new one of these. So deliveries spread over the cores.

use std::cmp::Reverse;

use tactus_core::cost::PlannedCost;
use tactus_core::ledger::{Ledger, Rejection};
use tactus_engine::message::LinkId;

/// The cores of the servers that send, by their numbers in the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SenderCores {
    /// Each link server.
    pub links: Vec<u32>,
    /// The packet server.
    pub packets: u32,
    /// The file server, which copies for local programs.
    pub file: u32,
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

    /// The cost on the core that is to send, and the link server there. `without_rate` counts the
    /// deliveries without a rate of each link server.
    ///
    /// # Errors
    /// The short resource of the server that was asked first.
    pub(super) fn place(
        self,
        cost: &PlannedCost,
        ledger: &Ledger,
        cores: &SenderCores,
        without_rate: &[u32],
    ) -> Result<(PlannedCost, LinkId), Rejection> {
        let mut senders = self.all(cores);
        if cost.is_sent_at_rate() {
            senders.sort_by_key(|&(core, _)| Reverse(ledger.free_time(core)));
        } else {
            senders.sort_by_key(|&(_, link)| without_rate[usize::from(link.0)]);
        }
        let mut first = None;
        for (core, link) in senders {
            let cost = cost.clone().on(core);
            match ledger.check_planned(&cost) {
                Ok(()) => return Ok((cost, link)),
                Err(short) => first = first.or(Some(short)),
            }
        }
        Err(first.expect("an engine has servers that send"))
    }
}
