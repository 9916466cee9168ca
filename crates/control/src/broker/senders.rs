//! The servers of a delivery: the one that sends, and the one that reads ahead.
//!
//! Promise: each delivery is admitted on the cores of its servers. Of several servers of a kind,
//! the one on the core with the most free time, and with the fewest promises there, gets a new
//! delivery at a rate. One without a rate is sent by the server with the fewest of these, and read
//! ahead for by the one with the fewest rows. So deliveries spread over the cores. Only a delivery
//! of datagrams that follows another one has the servers of that one, which know it.

use std::cmp::Reverse;

use tactus_core::cost::PlannedCost;
use tactus_core::ledger::{Ledger, Rejection};
use tactus_engine::message::{DeliveryServerId, StreamId};

/// The servers of deliveries, by their numbers in the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerNumbers {
    /// Each delivery server.
    pub deliveries: Vec<u32>,
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

/// The servers of one delivery.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Servers {
    /// The index of the one that sends.
    pub(super) sender: u16,
    /// The one that reads ahead.
    pub(super) delivery: DeliveryServerId,
}

/// The deliveries that servers have, by their index.
#[derive(Default)]
pub(super) struct Load {
    /// Without a rate, of each link server.
    pub(super) without_rate: Vec<u32>,
    /// Rows of the stream table, of each delivery server.
    pub(super) rows: Vec<u32>,
}

impl Load {
    pub(super) fn new(numbers: &ServerNumbers) -> Self {
        let [without_rate, rows] =
            [&numbers.links, &numbers.deliveries].map(|servers| vec![0; servers.len()]);
        Self { without_rate, rows }
    }

    /// The delivery server with the fewest rows.
    pub(super) fn fewest_rows(&self) -> DeliveryServerId {
        let fewest = (0..).zip(&self.rows).min_by_key(|&(_, rows)| rows);
        DeliveryServerId(fewest.expect("an engine has a delivery server").0)
    }
}

impl Sender {
    /// Their numbers in the ledger, by their index.
    pub(super) fn numbers(self, numbers: &ServerNumbers) -> &[u32] {
        match self {
            Self::AnyLink => &numbers.links,
            Self::Packets { .. } => &numbers.packets,
        }
    }

    /// The cost of the servers of a delivery, and these servers. They are `only`, if those are
    /// given.
    ///
    /// # Errors
    /// The short resource of the servers that were asked first.
    pub(super) fn place(
        self,
        cost: &PlannedCost,
        ledger: &Ledger,
        numbers: &ServerNumbers,
        (only, load): (Option<Servers>, &Load),
    ) -> Result<(PlannedCost, Servers), Rejection> {
        let mut senders: Vec<_> = (0..).zip(self.numbers(numbers).iter().copied()).collect();
        let mut deliveries: Vec<_> = (0..).zip(numbers.deliveries.iter().copied()).collect();
        senders.retain(|&(index, _)| only.is_none_or(|only| only.sender == index));
        deliveries.retain(|&(index, _)| only.is_none_or(|only| only.delivery.0 == index));
        if cost.is_sent_at_rate() {
            // Servers on one core share deliveries too, so that one of them can take its part to
            // another core.
            let order = |&(_, server): &(u16, u32)| {
                let free = ledger.free_time(ledger.core_of(server));
                (Reverse(free), ledger.promise_of(server).1)
            };
            senders.sort_by_key(order);
            // Where no core has more time and no server fewer promises, one has fewer rows.
            deliveries.sort_by_key(|one| (order(one), load.rows[usize::from(one.0)]));
        } else {
            senders.sort_by_key(|&(index, _)| load.without_rate[usize::from(index)]);
            deliveries.sort_by_key(|&(index, _)| load.rows[usize::from(index)]);
        }
        let mut first = None;
        for &(sender, sends) in &senders {
            for &(delivery, reads_ahead) in &deliveries {
                let cost = cost.clone().by(sends, reads_ahead);
                match ledger.check_planned(&cost) {
                    Ok(()) => {
                        let delivery = DeliveryServerId(delivery);
                        return Ok((cost, Servers { sender, delivery }));
                    }
                    Err(short) => first = first.or(Some(short)),
                }
            }
        }
        Err(first.expect("an engine has servers that send and read ahead"))
    }
}
