//! The rings between a server that sends and the delivery servers.
//!
//! Promise: an answer about a stream goes to its delivery server. Every ring has room for all
//! leases and streams: any of the delivery servers may have all of them.

use tactus_core::mutant;
use tactus_ring::spsc::{Consumer, Producer};

use crate::internal::{FromLink, ToLink};

/// The rings from and to each delivery server, by its number.
pub(crate) struct DeliveryRings<O>(Vec<DeliveryEnd<O>>);

/// The rings from and to one delivery server.
pub(crate) struct DeliveryEnd<O> {
    pub(crate) requests: Consumer<ToLink<O>>,
    pub(crate) answers: Producer<FromLink>,
}

impl<O: Send> DeliveryRings<O> {
    pub(crate) fn new(ends: Vec<DeliveryEnd<O>>) -> Self {
        Self(ends)
    }

    /// The next request. Those of one delivery server come in their order.
    pub(crate) fn pop(&mut self) -> Option<ToLink<O>> {
        self.0.iter_mut().find_map(|end| end.requests.pop())
    }

    /// Sends an answer to the delivery server of its stream.
    pub(crate) fn answer(&mut self, answer: FromLink) {
        let server = mutant!(AnswerMisdirected, 0, usize::from(answer.stream().server.0));
        let pushed = self.0[server].answers.push(answer);
        assert!(pushed.is_ok(), "the ring holds an answer for every lease and stream");
    }

    /// Whether more than `reserved` answers have room in each ring.
    pub(crate) fn have_room_beside(&mut self, reserved: usize) -> bool {
        self.0.iter_mut().all(|end| end.answers.free() > reserved)
    }
}
