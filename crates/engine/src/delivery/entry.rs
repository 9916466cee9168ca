//! One row of the delivery table.

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::Law;
use tactus_core::mutant;
use tactus_core::ports::{FileHandle, SocketHandle};
use tactus_core::read_ahead::{Extent, Piece, ReadAhead};
use tactus_core::units::{Bytes, Nanos};
use tactus_ring::arena::Lease;

use crate::message::{Hold, Origin, Outcome, Pace, Sink, Start, StreamId, TitleId, VolumeId};
use crate::pool::List;

/// Where a stream stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Free,
    /// Its first blocks are being read.
    Priming,
    /// The link sends it.
    Running,
    /// It has ended; blocks and transfers are on their way back.
    Draining,
}

/// A row of the table.
pub(super) struct Entry {
    pub(super) start: Start,
    pub(super) phase: Phase,
    pub(super) read: ReadAhead,
    /// The law in force, once the link has begun.
    pub(super) clock: Option<ByteClock>,
    /// The link does not know yet how long it will be.
    pub(super) is_open_ended: bool,
    /// Blocks asked for and not yet at the link, in order.
    pub(super) wanted: List,
    /// Blocks at the link.
    pub(super) at_link: u32,
    /// Abandoned wants that the block server has not answered.
    pub(super) waiting: u32,
    /// The control side makes what it sends: nothing is read for it.
    pub(super) is_made: bool,
    /// Who is to follow it at the link, and was read first.
    pub(super) follower: Option<StreamId>,
    /// For a hold, how many of its blocks are in memory.
    pub(super) held: Option<u32>,
    /// A text that waits for the link to begin.
    pub(super) text: Option<Box<[u8]>>,
    /// Texts at the link.
    pub(super) texts_at_link: u32,
    pub(super) outcome: Option<Outcome>,
    pub(super) link_closed: bool,
    pub(super) finished: bool,
    pub(super) sent: Bytes,
    /// Where the row stands in the list of active ones.
    pub(super) active_at: usize,
}

/// A block that a stream has asked for.
pub(super) struct Wanted {
    pub(super) stream: StreamId,
    pub(super) piece: Piece,
    pub(super) lease: Option<Lease>,
    /// The stream has ended: the answer is only counted.
    pub(super) abandoned: bool,
    /// Answered with a failure.
    pub(super) failed: bool,
}

impl Wanted {
    pub(super) fn new(stream: StreamId, piece: Piece) -> Self {
        Self { stream, piece, lease: None, abandoned: false, failed: false }
    }
}

impl Entry {
    pub(super) fn free() -> Self {
        let nobody = Start {
            stream: StreamId { index: u32::MAX, generation: 0 },
            origin: Origin {
                volume: VolumeId(0),
                title: TitleId(0),
                file: FileHandle(-1),
                position: 0,
                len: Bytes(1),
                sums: None,
            },
            first: Bytes(0),
            end: Bytes(1),
            block_list: None,
            grows: false,
            repeats: false,
            pace: Pace::BestEffort,
            window: 1,
            sink: NOWHERE,
            plan: None,
        };
        Self { phase: Phase::Free, ..Self::new(nobody, Bytes(1), 0) }
    }

    pub(super) fn new(start: Start, block: Bytes, active_at: usize) -> Self {
        let extent = Extent { first: start.first, end: start.end, block };
        let read = match &start.block_list {
            Some(block_list) => ReadAhead::along(block_list, start.window),
            None => ReadAhead::new(extent, start.window),
        };
        let is_open_ended = start.grows;
        let read = if start.repeats { read.repeating() } else { read };
        Self {
            start,
            phase: Phase::Priming,
            read: if is_open_ended { read.growing() } else { read },
            is_open_ended,
            clock: None,
            wanted: List::default(),
            at_link: 0,
            waiting: 0,
            is_made: false,
            follower: None,
            held: None,
            text: None,
            texts_at_link: 0,
            outcome: None,
            link_closed: false,
            finished: false,
            sent: Bytes(0),
            active_at,
        }
    }

    pub(super) fn of_hold(hold: Hold, block: Bytes, active_at: usize) -> Self {
        let start = Start {
            stream: hold.stream,
            first: Bytes(0),
            end: hold.origin.len,
            block_list: None,
            origin: hold.origin,
            grows: false,
            repeats: false,
            pace: Pace::BestEffort,
            window: hold.window,
            sink: NOWHERE,
            plan: None,
        };
        Self { held: Some(0), ..Self::new(start, block, active_at) }
    }

    /// When its bytes are due, once the link has begun.
    pub(super) fn law(&self) -> Option<Law<'_>> {
        let clock = self.clock?;
        Some(Law { clock, plan: self.start.plan.as_deref() })
    }

    pub(super) fn of_made(stream: StreamId, sink: Sink, active_at: usize) -> Self {
        let start = Start { stream, sink, ..Self::free().start };
        let is_made = true;
        Self { is_made, phase: Phase::Running, ..Self::new(start, Bytes(1), active_at) }
    }

    pub(super) fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    pub(super) fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Priming | Phase::Running) && !self.is_made
    }

    /// How the stream is sent, if it may begin now with its first `blocks`, of `bytes`, in memory.
    ///
    /// A paced stream waits for everything that it has asked for. Its burst is at most what memory then
    /// holds beyond the bytes of two cycles and a tick, and windows are made for all of it; only streams
    /// of held titles have smaller ones. So whatever is not in memory is due two cycles after
    /// the first visit, and is asked for at the beginning of the cycle before: when the first
    /// visit comes after the next cycle has begun, the window is still full at that time, and the
    /// one after is soon enough.
    pub(super) fn pace_to_begin(&self, cycle: Nanos, blocks: u32, bytes: Bytes) -> Option<Pace> {
        let Pace::Paced { rate, burst, tick } = self.start.pace else {
            return (blocks > 0).then_some(self.start.pace);
        };
        if blocks < self.read.out() || blocks == 0 {
            return None;
        }
        let whole = bytes == self.start.end - self.start.first;
        let steady = rate.bytes_in(cycle.times(2) + tick.span());
        let steady = mutant!(PrimingTooShort, Bytes(0), steady);
        let burst = if whole { burst } else { burst.min(bytes.saturating_sub(steady)) };
        Some(Pace::Paced { rate, burst, tick })
    }
}

/// Where nothing is sent.
const NOWHERE: Sink = Sink::Socket(SocketHandle(-1));
