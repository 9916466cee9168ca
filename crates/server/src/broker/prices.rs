//! What sending datagrams costs, as the machine has measured it.

use tactus_core::datagrams::{Gathering, PAYLOAD};
use tactus_core::units::{BitRate, Nanos};

use super::Broker;

/// CPU time that datagrams take of the core that sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramCost {
    /// The first of a message, or one alone.
    pub first: Nanos,
    /// Each of those behind it.
    pub further: Nanos,
    /// How many may be one message.
    pub together_max: u64,
    /// How far the sender's turns are apart: what falls due between two leaves together in any case.
    pub tick: Nanos,
}

impl DatagramCost {
    /// Where each leaves by itself.
    pub fn each(cost: Nanos) -> Self {
        Self { first: cost, further: cost, together_max: 1, tick: Nanos::from_millis(1) }
    }

    /// What a second of `out` takes, of which what falls due within `burst` may leave as one message.
    pub fn of(&self, out: BitRate, burst: Nanos) -> Nanos {
        let datagrams = (out.0 / 8).div_ceil(PAYLOAD.0);
        let together = Gathering::of(burst, self.tick).datagrams(out);
        let messages = datagrams.div_ceil(together.clamp(1, self.together_max));
        self.first.times(messages) + self.further.times(datagrams - messages)
    }
}

impl Broker {
    /// What a datagram counts as now.
    pub fn datagram_cost(&self) -> DatagramCost {
        self.shared.table().datagram
    }

    /// Counts datagrams of newcomers as `cost`.
    pub fn count_datagrams_as(&self, cost: DatagramCost) {
        self.shared.table().datagram = cost;
    }
}
