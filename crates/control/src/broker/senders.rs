//! The servers that send.
//!
//! Promise: each delivery is admitted on the core that sends it. Of several link servers, the one
//! on the core with the most free time sends a new delivery at a rate, and the one with the fewest
//! deliveries without a rate sends a new one of these. So deliveries spread over the cores.

use std::cmp::Reverse;

use tactus_core::cost::PlannedCost;
use tactus_core::ledger::{Ledger, Rejection};
use tactus_engine::message::LinkId;

/// The servers that send, by their numbers in the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SenderNumbers {
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
    /// Their numbers.
    fn all(self, numbers: &SenderNumbers) -> Vec<(u32, LinkId)> {
        match self {
            Self::AnyLink => numbers.links.iter().copied().zip((0..).map(LinkId)).collect(),
            Self::Packets => vec![(numbers.packets, LinkId(0))],
        }
    }

    /// Their numbers in the ledger.
    pub(super) fn numbers(self, numbers: &SenderNumbers) -> Vec<u32> {
        self.all(numbers).into_iter().map(|(server, _)| server).collect()
    }

    /// The cost of the server that is to send, and its link. `without_rate` counts the deliveries
    /// without a rate of each link server.
    ///
    /// # Errors
    /// The short resource of the server that was asked first.
    pub(super) fn place(
        self,
        cost: &PlannedCost,
        ledger: &Ledger,
        numbers: &SenderNumbers,
        without_rate: &[u32],
    ) -> Result<(PlannedCost, LinkId), Rejection> {
        let mut senders = self.all(numbers);
        if cost.is_sent_at_rate() {
            let free = |server| ledger.free_time(ledger.core_of(server));
            senders.sort_by_key(|&(server, _)| Reverse(free(server)));
        } else {
            senders.sort_by_key(|&(_, link)| without_rate[usize::from(link.0)]);
        }
        let mut first = None;
        for (server, link) in senders {
            let cost = cost.clone().by(server);
            match ledger.check_planned(&cost) {
                Ok(()) => return Ok((cost, link)),
                Err(short) => first = first.or(Some(short)),
            }
        }
        Err(first.expect("an engine has servers that send"))
    }
}
