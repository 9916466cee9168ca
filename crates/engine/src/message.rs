//! Messages between the control side and the engine.
//!
//! Of deliveries the control side says *start* and *stop*; the engine says *finished* (the socket is
//! free again) and *retired* (everything that was reserved is back). Of uploads the control side says
//! *write* and *sync*, and each is answered once. Of link classes it says what they may from now on.

mod delivery;

use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::Plan;
use tactus_core::pacer::Class;
use tactus_core::ports::{BlockRef, DiskFault, FileHandle, Reach};
use tactus_core::stagger::Tick;
use tactus_core::sums::Sums;
use tactus_core::units::{BitRate, Bytes, MonoTime};

pub(crate) use delivery::Content;
pub use delivery::{
    Backpressure, Blocks, Chunks, Connection, Datagrams, Delivery, Extent, Mismatch, Origin,
    Output, Rate, Schedule,
};

/// One running delivery: a place in the delivery table, and the life it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StreamId {
    /// The place in the table.
    pub index: u32,
    /// Counts the lives of the place.
    pub generation: u32,
}

/// One version of one stored object. A replaced or changed file is another title.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct TitleId(pub u64);

/// One disk's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u16);

/// How fast a stream goes.
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

/// A class of the link of datagrams, which streams may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketClass {
    /// The class above it; none: the link.
    pub parent: Option<ClassNumber>,
    /// What it may, on the wire.
    pub class: Class,
}

/// A class that may something else from now on. It stays where it is, with all that it has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassChange {
    /// Which, by its place among the classes of the link.
    pub number: ClassNumber,
    /// What it may, on the wire.
    pub to: Class,
}

/// Asks for a delivery that the ledger has admitted.
#[derive(Debug)]
pub struct Start {
    /// The slot granted in the delivery table.
    pub stream: StreamId,
    /// What it is.
    pub delivery: Delivery,
}

/// A slot has one stream in each of its lives.
impl PartialEq for Start {
    fn eq(&self, other: &Self) -> bool {
        self.stream == other.stream
    }
}

impl Eq for Start {}

/// Asks to keep a whole title in memory, read in the time left over. It does not grow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// The place granted in the delivery table.
    pub stream: StreamId,
    /// What is kept.
    pub origin: Origin,
    /// Its blocks, as reserved in the ledger.
    pub window: u32,
}

/// From the control side to a delivery server.
#[derive(PartialEq, Eq, Debug)]
pub enum Command {
    /// Begin a delivery.
    Start(Start),
    /// Keep a title in memory until it is stopped.
    Hold(Hold),
    /// End a delivery or a hold early; answered by the same reports.
    Stop(StreamId),
    /// Send a message of the control side between two frames of a connection: an answer, or a sender
    /// report in a frame of its own. Each is answered by `Report::Interleaved`, and only then the next
    /// one may be asked for.
    Interleave {
        /// The delivery.
        stream: StreamId,
        /// At least one byte, at most [`INTERLEAVED_MAX`].
        message: Box<[u8]>,
    },
    /// More of a growing title is on stable storage. It can be said later, and must be where fewer than
    /// four places for each stream are free in the ring: those are for what cannot wait.
    Extend {
        /// The delivery. One that has ended does not mind.
        stream: StreamId,
        /// One past the last byte.
        end: Bytes,
        /// There will be no more.
        is_whole: bool,
    },
}

/// Most bytes of an interleaved message: longer than any answer, and a short wait for the next frame.
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
    /// The disk cannot read a block of the title. Nothing of it was sent; what was sent ends before it, or
    /// earlier.
    Unreadable {
        /// Its number, counted in the volume's blocks.
        block: u64,
        /// Why not.
        errno: i32,
    },
    /// This block of the title is not what was stored. Nothing of it was sent.
    Damaged {
        /// Its number, counted in the volume's blocks.
        block: u64,
    },
    /// The control side asked.
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// The socket is the control side's again.
    Finished {
        /// Which delivery.
        stream: StreamId,
        /// How it ended.
        outcome: Outcome,
        /// Bytes of the title that the socket has taken.
        sent: Bytes,
    },
    /// The end of an interleaved message. It comes before the delivery is reported as finished, or after
    /// it has retired if the message came so late.
    Interleaved {
        /// Which delivery.
        stream: StreamId,
        /// The message; nothing is freed on a real-time thread.
        message: Box<[u8]>,
        /// Whether the socket has taken all of it. If not, it has taken nothing, or is of no use any more.
        is_sent: bool,
    },
    /// All of the title is in memory and stays there.
    Held {
        /// Which hold.
        stream: StreamId,
    },
    /// No block, transfer or entry of the stream is left; its file may be closed.
    Retired {
        /// Which delivery.
        stream: StreamId,
        /// What it was given.
        sums: Option<Arc<Sums>>,
        /// What it was given to go by.
        block_list: Option<BlockList>,
        /// What was known of its bytes.
        plan: Option<Arc<Plan>>,
    },
}

/// How soon a write is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteClass {
    /// In the time left over, or in the floor of uploads.
    BestEffort,
    /// A recording's: it is in the sweep of the next cycle, or of a later one before its deadline.
    Paced {
        /// When the place is needed again; three cycles and a place's duration ahead is what the ledger
        /// has promised.
        deadline: MonoTime,
    },
}

/// From the control side to a disk server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntakeRequest {
    /// Write what a place of the write share holds, from its beginning. The place is the engine's
    /// until it is answered.
    Write {
        /// Comes back with the answer.
        token: u32,
        /// The place.
        block: BlockRef,
        /// Open for direct writes until the answer.
        file: FileHandle,
        /// Where in the file, a multiple of the sector.
        offset: Bytes,
        /// Bytes, a multiple of the sector; what lies beyond the end is cut off by whoever knows it.
        len: u32,
        /// How soon.
        class: WriteClass,
        /// Where it lies on the device, as a sweep key; zero where order does not matter.
        position: u64,
    },
    /// Bring everything written to a file so far, and its length, to stable storage. It covers the
    /// writes that have been answered before it was asked for.
    Sync {
        /// Comes back with the answer.
        token: u32,
        /// The file or directory, open until the answer.
        file: FileHandle,
        /// What of it.
        reach: Reach,
    },
}

/// From a disk server to the control side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntakeAnswer {
    /// The device has read the place. Its bytes are durable only after the next flush.
    Written {
        /// Which write.
        token: u32,
        /// Why its bytes may not be in the file.
        result: Result<(), DiskFault>,
    },
    /// A flush has ended.
    Synced {
        /// Which flush.
        token: u32,
        /// A failure is final for everything that was written since the last flush that succeeded.
        result: Result<(), DiskFault>,
    },
}
