//! Messages between the control side and the engine.
//!
//! For deliveries the control side sends *start* and *stop*; the engine reports *finished* (the
//! socket is free again) and *retired* (all reservations are free). For uploads the control side
//! sends *write* and *sync*; each is answered once. For link classes it sends their new limits. For
//! local clients it sends *attach*, *open*, *close* and *detach*.

mod ring;

mod delivery;
pub(crate) mod local;

use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::Plan;
use tactus_core::pacer::Class;
use tactus_core::ports::{BlockRef, DiskFault, FileHandle, SyncScope};
use tactus_core::stagger::Tick;
use tactus_core::sums::Sums;
use tactus_core::units::{BitRate, Bytes, MonoTime};

pub(crate) use delivery::Content;
pub use delivery::{
    Backpressure, Blocks, Chunks, Connection, ConnectionEnd, Datagrams, Delivery, Extent, Mismatch,
    Origin, Output, Rate, Schedule, Workspace,
};
pub use local::{ClientId, HANDLES_MAX, LocalClient, LocalCommand, LocalReport};
pub use ring::{EPROTO, StreamRing, ring_layout};

/// A link server, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct LinkId(pub u16);

/// A packet server, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct PacketServerId(pub u16);

/// A delivery server, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct DeliveryServerId(pub u16);

/// One running delivery: its delivery server, a slot of the stream table, and its generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StreamId {
    /// The delivery server that reads ahead for it. The next stream of the slot may have another.
    pub server: DeliveryServerId,
    /// The slot in the table, which all delivery servers share.
    pub index: u32,
    /// Counts the streams of the slot.
    pub generation: u32,
}

/// One version of one stored object. A replaced or changed file is another title.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct TitleId(pub u64);

/// One disk's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u16);

/// The speed of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// By the byte clock, with real-time reads.
    Paced {
        /// Payload bits per second.
        rate: BitRate,
        /// Bytes that are due at once at the start.
        burst: Bytes,
        /// How often it sends.
        tick: Tick,
    },
    /// As fast as the time left by paced streams allows.
    BestEffort,
}

impl Pace {
    /// The rate; `None` for best effort.
    #[must_use]
    pub fn rate(self) -> Option<Rate> {
        match self {
            Self::Paced { rate, burst, tick } => Some(Rate { rate, burst, tick }),
            Self::BestEffort => None,
        }
    }
}

/// A class of the datagram link, which streams may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketClass {
    /// The class above it; none: the link.
    pub parent: Option<ClassNumber>,
    /// Its limits, on the wire.
    pub class: Class,
}

/// New limits of a class. The class keeps its place and its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassChange {
    /// The class, by its place among the classes of the link.
    pub number: ClassNumber,
    /// Its new limits, on the wire.
    pub to: Class,
}

/// Starts a delivery that the ledger has admitted.
#[derive(Debug)]
pub struct Start {
    /// The granted slot of the stream table.
    pub stream: StreamId,
    /// Its source, framing, schedule and output.
    pub delivery: Delivery,
}

/// A slot has one stream in each generation.
impl PartialEq for Start {
    fn eq(&self, other: &Self) -> bool {
        self.stream == other.stream
    }
}

impl Eq for Start {}

/// Keeps a whole title in memory, read in best-effort time. The title does not grow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    /// The granted slot of the stream table.
    pub stream: StreamId,
    /// The title.
    pub origin: Origin,
    /// Number of its blocks, as reserved in the ledger.
    pub window: u32,
}

/// From the control side to a delivery server.
#[derive(PartialEq, Eq, Debug)]
pub enum Command {
    /// Begins a delivery.
    Start(Start),
    /// Keeps a title in memory until it is stopped.
    Pin(Pin),
    /// Ends a delivery or a pin early; the same reports follow.
    Stop(StreamId),
    /// Sends an interleaved message between two frames of a connection: an answer, or a sender
    /// report in a frame of its own. `Report::Interleaved` answers each message; only then the next
    /// one may be sent.
    Interleave {
        /// The delivery.
        stream: StreamId,
        /// At least one byte, at most [`INTERLEAVED_MAX`].
        message: Box<[u8]>,
    },
    /// Reads of the delivery come after those of all others, or no longer: the disk does not keep
    /// up with all that was promised. For a delivery that has ended, the command has no effect.
    Defer {
        /// The delivery.
        stream: StreamId,
        /// Whether it is deferred from now on.
        is_deferred: bool,
    },
    /// More of a growing title is on stable storage. This command may be delayed. It must be if
    /// fewer than six places for each stream are free in the ring: those are for urgent commands.
    Extend {
        /// The delivery. For one that has ended, the command has no effect.
        stream: StreamId,
        /// One past the last byte.
        end: Bytes,
        /// The title does not grow any more.
        is_whole: bool,
    },
}

impl Command {
    /// Its stream, whose delivery server gets it.
    pub fn stream(&self) -> StreamId {
        match self {
            Self::Start(Start { stream, .. })
            | Self::Pin(Pin { stream, .. })
            | Self::Stop(stream)
            | Self::Interleave { stream, .. }
            | Self::Defer { stream, .. }
            | Self::Extend { stream, .. } => *stream,
        }
    }
}

/// Limit of the bytes of an interleaved message: longer than any answer, and a short delay of the
/// next frame.
pub const INTERLEAVED_MAX: usize = 4096;

/// How a delivery ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every byte was handed to the socket.
    Complete,
    /// The connection broke, with this error number.
    PeerGone(i32),
    /// The peer took its bytes too slowly for longer than the bound.
    TooSlow,
    /// The disk failed, with this error number.
    DiskFailed(i32),
    /// The disk cannot read a block of the title. No byte of the block was sent; the sent bytes end
    /// at the block or earlier.
    Unreadable {
        /// Its number, counted in the volume's blocks.
        block: u64,
        /// The error number.
        errno: i32,
    },
    /// This block of the title differs from the stored bytes. No byte of it was sent.
    Damaged {
        /// Its number, counted in the volume's blocks.
        block: u64,
    },
    /// The control side stopped it.
    Stopped,
}

impl Outcome {
    /// The name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::PeerGone(_) => "peer_gone",
            Self::TooSlow => "too_slow",
            Self::DiskFailed(_) => "disk_failed",
            Self::Unreadable { .. } => "unreadable",
            Self::Damaged { .. } => "damaged",
            Self::Stopped => "stopped",
        }
    }
}

/// From a delivery server to the control side.
#[derive(Debug)]
pub enum Report {
    /// The socket belongs to the control side again.
    Finished {
        /// Which delivery.
        stream: StreamId,
        /// How it ended.
        outcome: Outcome,
        /// Bytes of the title that the socket has taken.
        sent: Bytes,
    },
    /// The end of an interleaved message. It comes before the delivery is reported as finished, or
    /// after it has retired if the message came too late.
    Interleaved {
        /// Which delivery.
        stream: StreamId,
        /// The message; nothing is freed on a real-time thread.
        message: Box<[u8]>,
        /// Whether the socket has taken all of it. If not, the socket has taken none of it, or is
        /// unusable.
        is_sent: bool,
    },
    /// The whole title is in memory and stays there.
    Pinned {
        /// Which pin.
        stream: StreamId,
    },
    /// No block, transfer or entry of the stream is left; its file may be closed.
    Retired {
        /// Which delivery.
        stream: StreamId,
        /// Its memory.
        memory: ReturnedMemory,
    },
}

/// Memory of a delivery that comes back to the control side, which frees it.
#[derive(Default, Debug)]
pub struct ReturnedMemory {
    /// Its checksums.
    pub sums: Option<Arc<Sums>>,
    /// Its block list.
    pub block_list: Option<BlockList>,
    /// Its plan.
    pub plan: Option<Arc<Plan>>,
    /// The workspace of its framing.
    pub workspace: Option<Workspace>,
}

/// The urgency of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteClass {
    /// Best effort: in time left over, or in the time reserved for uploads.
    BestEffort,
    /// A write of a recording: it is in the sweep of the next cycle, or of a later one before its
    /// deadline.
    Paced {
        /// When the place is needed again. The ledger promises three cycles and a place's duration
        /// until then.
        deadline: MonoTime,
    },
}

/// From the control side to a disk server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteRequest {
    /// Writes the content of a place of the write share, from its beginning. The place belongs to
    /// the engine until the answer.
    Write {
        /// Comes back with the answer.
        token: u32,
        /// The place.
        block: BlockRef,
        /// Open for direct writes until the answer.
        file: FileHandle,
        /// The offset in the file, a multiple of the sector.
        offset: Bytes,
        /// Bytes, a multiple of the sector; the control side cuts off the bytes beyond the end.
        len: u32,
        /// Its urgency.
        class: WriteClass,
        /// Its position on the device, as a sweep key; zero if order does not matter.
        position: u64,
    },
    /// Brings all written bytes of a file, and its length, to stable storage. It covers the writes
    /// that were answered before the request.
    Sync {
        /// Comes back with the answer.
        token: u32,
        /// The file or directory, open until the answer.
        file: FileHandle,
        /// The part of the file.
        reach: SyncScope,
    },
}

/// From a disk server to the control side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAnswer {
    /// The device has read the place. Its bytes are durable only after the next flush.
    Written {
        /// The token of the write.
        token: u32,
        /// The error, if the bytes may be missing in the file.
        result: Result<(), DiskFault>,
    },
    /// A flush has ended.
    Synced {
        /// The token of the flush.
        token: u32,
        /// A failure is final for everything that was written since the last flush that succeeded.
        result: Result<(), DiskFault>,
    },
}
