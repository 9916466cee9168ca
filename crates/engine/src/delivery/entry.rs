//! One row of the stream table.

use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::{Framing, Plan, TitleSchedule};
use tactus_core::kernel_read_ahead::{SETTLED, SHORT};
use tactus_core::mutant;
use tactus_core::ports::FileHandle;
use tactus_core::read_ahead::{self, Piece, ReadAhead};
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_ring::arena::Lease;

use crate::delivery::VolumeLimits;
use crate::message::{
    Blocks, DeliveryServerId, Extent, Origin, Outcome, Output, Pin, Rate, Schedule, StreamId,
    TitleId, VolumeId, Workspace,
};
use crate::pool::List;

/// The phase of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Free,
    /// Its first blocks are being read.
    Priming,
    /// The link sends it.
    Running,
    /// It has ended; blocks and transfers are being returned.
    Draining,
}

/// Whether the kernel may read ahead for a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadsAhead {
    /// From its first block on.
    Always,
    /// Once the stream has its turn.
    NotYet,
    /// It has its turn.
    InTurn,
}

/// A row of the table.
pub(super) struct Entry {
    pub(super) stream: StreamId,
    pub(super) phase: Phase,
    /// The title; meaningless for generated chunks and for a free row.
    pub(super) origin: Origin,
    /// The first byte to send, and one past the last known one.
    pub(super) first: Bytes,
    pub(super) end: Bytes,
    /// The order of the blocks, if it differs from that of the title.
    pub(super) block_list: Option<BlockList>,
    pub(super) repeats: bool,
    pub(super) framing: Framing,
    /// `None` for best effort.
    pub(super) rate: Option<Rate>,
    pub(super) plan: Option<Arc<Plan>>,
    /// The workspace of its framing, while the link does not have it.
    pub(super) workspace: Option<Workspace>,
    /// `None` for a pin, which is not sent.
    pub(super) output: Option<Output>,
    pub(super) read: ReadAhead,
    /// The clock in force, once the link has begun.
    pub(super) clock: Option<ByteClock>,
    /// The link has not received the length yet.
    pub(super) is_open_ended: bool,
    /// Its reads come after those of all others.
    pub(super) is_deferred: bool,
    pub(super) reads_ahead: ReadsAhead,
    /// Wanted blocks that are not at the link yet, in order.
    pub(super) wanted: List,
    /// Blocks at the link.
    pub(super) at_link: u32,
    /// Abandoned wants that the block server has not answered.
    pub(super) waiting: u32,
    /// It sends generated chunks: no blocks are read for it.
    pub(super) is_generated: bool,
    /// The stream that follows it at the link, if that one's first blocks came first.
    pub(super) follower: Option<StreamId>,
    /// For a pin, the number of its blocks in memory.
    pub(super) pinned: Option<u32>,
    /// An interleaved message that waits for the link to begin.
    pub(super) message: Option<Box<[u8]>>,
    /// Interleaved messages at the link.
    pub(super) messages_at_link: u32,
    pub(super) outcome: Option<Outcome>,
    pub(super) link_closed: bool,
    pub(super) finished: bool,
    pub(super) sent: Bytes,
    /// Index of the row in the list of active ones.
    pub(super) active_at: usize,
}

/// A block that a stream wants.
pub(super) struct WantedBlock {
    pub(super) stream: StreamId,
    pub(super) piece: Piece,
    pub(super) lease: Option<Lease>,
    /// The stream has ended: the answer is only counted.
    pub(super) abandoned: bool,
    /// Answered with a failure.
    pub(super) failed: bool,
}

impl WantedBlock {
    pub(super) fn new(stream: StreamId, piece: Piece) -> Self {
        Self { stream, piece, lease: None, abandoned: false, failed: false }
    }
}

impl Entry {
    pub(super) fn free() -> Self {
        Self {
            stream: StreamId { server: DeliveryServerId(0), index: u32::MAX, generation: 0 },
            phase: Phase::Free,
            origin: Origin {
                volume: VolumeId(0),
                title: TitleId(0),
                file: FileHandle(-1),
                sent_file: FileHandle(-1),
                position: 0,
                len: Bytes(1),
                sums: None,
            },
            first: Bytes(0),
            end: Bytes(1),
            block_list: None,
            repeats: false,
            framing: Framing::Plain,
            rate: None,
            plan: None,
            workspace: None,
            output: None,
            read: ReadAhead::new(
                read_ahead::Extent { first: Bytes(0), end: Bytes(1), block: Bytes(1) },
                1,
            ),
            is_open_ended: false,
            is_deferred: false,
            reads_ahead: ReadsAhead::Always,
            clock: None,
            wanted: List::default(),
            at_link: 0,
            waiting: 0,
            is_generated: false,
            follower: None,
            pinned: None,
            message: None,
            messages_at_link: 0,
            outcome: None,
            link_closed: false,
            finished: false,
            sent: Bytes(0),
            active_at: 0,
        }
    }

    /// A stream of blocks of a volume with these limits.
    pub(super) fn of_blocks(stream: StreamId, blocks: Blocks, limits: VolumeLimits) -> Self {
        let Blocks { origin, extent, window } = blocks;
        let is_limited = limits.read_ahead.is_some() && origin.len > SHORT;
        let reads_ahead = if is_limited { ReadsAhead::NotYet } else { ReadsAhead::Always };
        let range = extent.range();
        let bytes = read_ahead::Extent { first: range.start, end: range.end, block: limits.block };
        let read = ReadAhead::new(bytes, window);
        let (read, block_list) = match &extent {
            Extent::Range(_) => (read, None),
            Extent::Growing(_) => (read.growing(), None),
            Extent::Repeating(_) => (read.repeating(), None),
            Extent::List(list) => (ReadAhead::along(list, window), Some(list.clone())),
        };
        Self {
            stream,
            phase: Phase::Priming,
            origin,
            first: range.start,
            end: range.end,
            block_list,
            repeats: matches!(extent, Extent::Repeating(_)),
            read,
            is_open_ended: matches!(extent, Extent::Growing(_)),
            is_deferred: false,
            reads_ahead,
            ..Self::free()
        }
    }

    pub(super) fn of_pin(pin: Pin, limits: VolumeLimits) -> Self {
        let Pin { stream, origin, window } = pin;
        let extent = Extent::Range(Bytes(0)..origin.len);
        let blocks = Blocks { origin, extent, window };
        Self { pinned: Some(0), ..Self::of_blocks(stream, blocks, limits) }
    }

    pub(super) fn of_chunks(stream: StreamId) -> Self {
        Self { stream, is_generated: true, phase: Phase::Running, ..Self::free() }
    }

    /// The same stream with its framing, schedule and output.
    pub(super) fn sent(self, framing: Framing, schedule: Schedule, output: Output) -> Self {
        let rate = schedule.rate();
        Self { framing, rate, plan: schedule.into_plan(), output: Some(output), ..self }
    }

    /// Due times of its bytes, once the link has begun.
    pub(super) fn law(&self) -> Option<TitleSchedule<'_>> {
        let clock = self.clock?;
        Some(TitleSchedule { clock, plan: self.plan.as_deref() })
    }

    /// Whether the stream will probably use the bytes that the kernel reads ahead: it reads in
    /// sequence, and has lasted for a while.
    pub(super) fn is_settled(&self, now: MonoTime) -> bool {
        let is_in_sequence = self.block_list.is_none() && !self.repeats && !self.is_open_ended;
        let lasts = self.clock.is_some_and(|clock| clock.start() + SETTLED <= now);
        is_in_sequence && lasts && self.is_reading() && !self.is_deferred
    }

    pub(super) fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    pub(super) fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Priming | Phase::Running) && !self.is_generated
    }

    /// The rate of the stream, if it may begin now with its first `blocks`, of `bytes`, in memory.
    ///
    /// A paced stream waits for all its wants. Its burst is at most what memory then holds beyond
    /// the bytes of two cycles and a tick, and windows have room for all of it; only streams of
    /// pinned titles have smaller windows. So a block that is not in memory is due two cycles after
    /// the first visit, and is wanted at the beginning of the cycle before that time. If the first
    /// visit comes after the next cycle has begun, the window is still full at that time, and the
    /// cycle after it is early enough.
    pub(super) fn begin(&self, cycle: Nanos, blocks: u32, bytes: Bytes) -> Option<Option<Rate>> {
        if blocks == 0 {
            return None;
        }
        let Some(Rate { rate, burst, tick }) = self.rate else { return Some(None) };
        if blocks < self.read.out() {
            return None;
        }
        let whole = bytes == self.end - self.first;
        let steady = rate.bytes_in(cycle.times(2) + tick.span());
        let steady = mutant!(PrimingTooShort, Bytes(0), steady);
        let burst = if whole { burst } else { burst.min(bytes.saturating_sub(steady)) };
        Some(Some(Rate { rate, burst, tick }))
    }

    /// Whether a connection that is cut in the middle of its bytes becomes unusable.
    pub(super) fn is_framed(&self) -> bool {
        self.is_generated || matches!(self.framing, Framing::Rtp(_))
    }
}
