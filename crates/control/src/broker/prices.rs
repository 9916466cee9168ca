//! The cost of sending datagrams, as measured on this machine, of sending into a ring, and of reads
//! at moments.

use tactus_core::cost::SendCost;
use tactus_core::datagrams::Gathering;
use tactus_core::units::{BitRate, Bytes, Nanos};

use super::Broker;

/// The cost of sending into the ring of a local client: a copy of data that is not in the cache,
/// and a ring of its doorbell. Measured by `tactus-bench stages`, with programs that sleep between
/// the sends: 4.5 us each, and 191 us (189 to 201) for a MiB.
pub(super) const RING: SendCost = SendCost {
    per_send: Nanos::from_micros(5),
    per_packet: Nanos(0),
    per_mib: Nanos::from_micros(200),
};

/// The cost of a read at a moment: a turn in which it is taken, the time for which the core is
/// awake before the moment, a ring of the doorbell, and a copy. By `tactus-bench stages`, with a
/// program that sleeps meanwhile: 98 us each and 138 us for a MiB.
pub(super) const TIMED: SendCost = SendCost {
    per_send: Nanos::from_micros(100),
    per_packet: Nanos(0),
    per_mib: Nanos::from_micros(140),
};

/// The cost of a block that such a read wants of its disk, beside that of its bytes: turns of the
/// core in which it is wanted, read and copied, each after a sleep. Measured by the same bench:
/// 165 us.
pub(super) const TIMED_BLOCK: Nanos = Nanos::from_micros(170);

/// CPU time that datagrams take of the core that sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramCost {
    /// The first datagram of a message, or a single one.
    pub first: Nanos,
    /// Each further datagram of a message.
    pub further: Nanos,
    /// Limit of datagrams in one message.
    pub together_max: u64,
    /// Interval of the sender's turns: datagrams that are due between two turns leave together in
    /// any case.
    pub tick: Nanos,
}

impl DatagramCost {
    /// The cost if each datagram leaves by itself.
    pub fn each(cost: Nanos) -> Self {
        Self { first: cost, further: cost, together_max: 1, tick: Nanos::from_millis(1) }
    }

    /// CPU time per second of `out` in datagrams of `payload`, if those due within `burst` may
    /// leave as one message.
    pub fn of(&self, out: BitRate, payload: Bytes, burst: Nanos) -> Nanos {
        let datagrams = (out.0 / 8).div_ceil(payload.0);
        let together = Gathering::of(burst, self.tick).datagrams(out, payload);
        let messages = datagrams.div_ceil(together.clamp(1, self.together_max));
        self.first.times(messages) + self.further.times(datagrams - messages)
    }
}

impl Broker {
    /// The current cost of a datagram.
    pub fn datagram_cost(&self) -> DatagramCost {
        self.shared.table().datagram
    }

    /// Sets the cost of datagrams for new streams.
    pub fn count_datagrams_as(&self, cost: DatagramCost) {
        self.shared.table().datagram = cost;
    }
}
