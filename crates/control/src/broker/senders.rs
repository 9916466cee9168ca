//! The servers that send.
//!
//! Promise: each delivery is admitted on the core that sends it. Of several servers, the one on the
//! core with the most free time, and with the fewest promises there, sends a new delivery at a
//! rate, and the one with the fewest deliveries without a rate sends a new one of these. So
//! deliveries spread over the cores. Only a delivery of datagrams that follows another one is sent
//! by the server of that one.

use std::cmp::Reverse;

use tactus_core::cost::PlannedCost;
use tactus_core::ledger::{Ledger, Rejection};
use tactus_engine::message::StreamId;

/// The servers that send, by their numbers in the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SenderNumbers {
    /// Each link server.
    pub links: Vec<u32>,
    /// Each packet server.
    pub packets: Vec<u32>,
    /// The file server, which copies for local programs.
    pub file: u32,
}

/// The servers that can send a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sender {
    /// Each link server.
    AnyLink,
    /// Each packet server, or that of the stream that the delivery follows.
    Packets {
        /// That stream.
        after: Option<StreamId>,
    },
}

impl Sender {
    /// Their numbers in the ledger, by their index.
    pub(super) fn numbers(self, numbers: &SenderNumbers) -> &[u32] {
        match self {
            Self::AnyLink => &numbers.links,
            Self::Packets { .. } => &numbers.packets,
        }
    }

    /// The cost of the server that is to send, and its index. It is `only`, if that is given.
    /// `without_rate` counts the deliveries without a rate of each link server.
    ///
    /// # Errors
    /// The short resource of the server that was asked first.
    pub(super) fn place(
        self,
        cost: &PlannedCost,
        ledger: &Ledger,
        numbers: &SenderNumbers,
        (only, without_rate): (Option<u16>, &[u32]),
    ) -> Result<(PlannedCost, u16), Rejection> {
        let mut senders: Vec<_> = (0..).zip(self.numbers(numbers).iter().copied()).collect();
        senders.retain(|&(index, _)| only.is_none_or(|only| only == index));
        if cost.is_sent_at_rate() {
            // Servers on one core share deliveries too, so that one of them can take its part to
            // another core.
            let free = |server| ledger.free_time(ledger.core_of(server));
            senders
                .sort_by_key(|&(_, server)| (Reverse(free(server)), ledger.promise_of(server).1));
        } else {
            senders.sort_by_key(|&(index, _)| without_rate[usize::from(index)]);
        }
        let mut first = None;
        for (index, server) in senders {
            let cost = cost.clone().by(server);
            match ledger.check_planned(&cost) {
                Ok(()) => return Ok((cost, index)),
                Err(short) => first = first.or(Some(short)),
            }
        }
        Err(first.expect("an engine has servers that send"))
    }
}
