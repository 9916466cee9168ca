//! What will happen on the control side, in order.

use std::cmp::Ordering;

use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::message::StreamId;

/// Something that happens outside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A client asks for a title.
    Arrive { client: usize },
    /// A client has had enough of a delivery.
    Leave { stream: StreamId },
    /// More of a growing title is there for somebody who follows it.
    Grow { stream: StreamId, every: Nanos },
    /// The control side reads the engine's reports.
    Reports,
    /// Somebody goes on with an upload or a recording.
    Upload { uploader: usize },
    /// The store reads the answers of a volume's intake.
    Answers { volume: usize },
    /// The checkers look at everything.
    LookAround,
}

/// An event and its time; those of one time happen in the order in which they were planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    pub(super) at: MonoTime,
    pub(super) number: u64,
    pub(super) event: Event,
}

impl Ord for Due {
    /// The soonest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
