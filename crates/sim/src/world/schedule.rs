//! Future events of the control side, in order.

use std::cmp::Ordering;

use tactus_core::units::{MonoTime, Nanos};
use tactus_engine::message::StreamId;

/// An event outside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A client starts a title.
    Arrive { client: usize },
    /// A client stops a delivery.
    Leave { stream: StreamId },
    /// A growing title is extended for one of its followers.
    Grow { stream: StreamId, every: Nanos },
    /// The control side reads the engine's reports.
    Reports,
    /// An upload or a recording continues.
    Upload { uploader: usize },
    /// The store reads the answers of a volume's write path.
    Answers { volume: usize },
    /// The control side looks at what is known about the disks.
    FollowDisks,
    /// A local program of a slot does something, if it is still the same one.
    Program { slot: usize, life: u32, act: Act },
    /// The control side reads the file server's reports.
    LocalReports,
    /// A server moves to another core.
    Move,
    /// The balancer looks at the cores.
    Balance,
    /// The checkers check everything.
    LookAround,
}

/// What a local program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// The next program of the slot begins.
    Begin,
    /// It opens or closes a title, or reads.
    Step,
    /// It asks for the next of the moments that are promised to a title.
    Moment { handle: u32 },
    /// It looks for answers.
    Look,
    /// It is killed.
    Kill,
}

/// An event and its time; events of the same time keep the order of planning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    pub(super) at: MonoTime,
    pub(super) number: u64,
    pub(super) event: Event,
}

impl Ord for Due {
    /// The earliest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
