//! What the control side and the engine tell each other.
//!
//! Of deliveries the control side says *start* and *stop*; the engine says *finished* (the socket is
//! free again) and *retired* (everything that was reserved is back). In between nothing is said. Of
//! uploads it says *write* and *sync*, and hears of each once. Of classes it says what they may from now on.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::{Form, Plan, Session};
use tactus_core::made::Timed;
use tactus_core::pacer::Class;
use tactus_core::ports::{BlockRef, DiskFault, FileHandle, Reach, SocketHandle};
use tactus_core::stagger::Tick;
use tactus_core::sums::Sums;
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos};
use tactus_ring::spsc::Consumer;

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

/// Where a stream goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sink {
    /// Into a connection; the engine's until `Report::Finished`.
    Socket(SocketHandle),
    /// Into a connection as packets of RTP, each in a frame; only at a pace.
    Frames(Frames),
    /// To a reader of our own, through a pair of sockets: one that takes nothing is waited for without end,
    /// and is then owed no more than its burst.
    Reader(SocketHandle),
    /// Into a connection as frames that the control side makes; see [`Frames`] for what becomes of the connection.
    Made(SocketHandle),
    /// Out as datagrams; only at a pace.
    Datagrams(Datagrams),
}

impl Sink {
    /// The socket that it leaves by.
    pub(crate) fn socket(&self) -> SocketHandle {
        match *self {
            Self::Socket(socket) | Self::Reader(socket) | Self::Made(socket) => socket,
            Self::Frames(Frames { socket, .. }) => socket,
            Self::Datagrams(Datagrams { outlet, .. }) => outlet,
        }
    }
}

/// How packets leave in frames of a connection (RFC 2326, section 10.12). Each carries what a datagram would.
///
/// The connection is the engine's for writing until `Report::Finished`, and comes back behind a whole frame:
/// also when the stream is stopped, which then takes as long as the peer needs to take the rest of one. After
/// [`Outcome::PeerGone`], [`Outcome::TooSlow`] and [`Outcome::DiskFailed`] it is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    /// The connection.
    pub socket: SocketHandle,
    /// The channel of the stream's packets.
    pub channel: u8,
    /// What its RTP session begins with.
    pub session: Session,
}

/// How datagrams leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagrams {
    /// Through which socket, which others may share; open until `Report::Finished`.
    pub outlet: SocketHandle,
    /// Whereto.
    pub to: SocketAddr,
    /// What stands in front of each.
    pub form: Form,
    /// How long the first of several may wait for the last of them.
    pub burst: Nanos,
    /// The class of the link that it belongs to; none: the link itself.
    pub class: Option<ClassNumber>,
    /// The stream that it follows: it begins when that one has ended, with the datagram that would have been
    /// due then, in its RTP session. None: it begins at once in its own, as it does when the place of
    /// the one before has been given to another stream meanwhile.
    pub after: Option<StreamId>,
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

/// What is read, and where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The disk that holds the title.
    pub volume: VolumeId,
    /// The title.
    pub title: TitleId,
    /// Its file, open for direct reads until `Report::Retired`.
    pub file: FileHandle,
    /// Where it begins on the device, as a sweep key; zero where order does not matter.
    pub position: u64,
    /// Its length; of a title that grows, what of it is on stable storage.
    pub len: Bytes,
    /// What its bytes must sum up to; none when nobody knows, and as long as it grows. All who read one
    /// title name the same. It comes back with `Report::Retired`, as nothing is freed on a real-time
    /// thread.
    pub sums: Option<Arc<Sums>>,
}

/// Asks for a delivery that the ledger has admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// The place granted in the delivery table.
    pub stream: StreamId,
    /// What is read.
    pub origin: Origin,
    /// First byte to send.
    pub first: Bytes,
    /// One past the last byte to send.
    pub end: Bytes,
    /// Which blocks are sent instead of a range, in which order; `first` is zero then and `end` its length.
    /// Only at a pace, into a connection, and of titles that are whole. It comes back with
    /// [`Report::Retired`].
    pub block_list: Option<BlockList>,
    /// The title grows, and what comes is sent too: the end moves by [`Command::Extend`].
    pub grows: bool,
    /// After the end comes the beginning, until it is stopped.
    pub repeats: bool,
    /// How fast.
    pub pace: Pace,
    /// Most blocks the stream may hold or wait for at once, as reserved in the ledger.
    pub window: u32,
    /// Where it is sent.
    pub sink: Sink,
    /// Of datagrams: what is known of their bytes and times; none when they are the title's at one rate. It
    /// comes back with `Report::Retired`.
    pub plan: Option<Arc<Plan>>,
}

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

/// Asks for a stream of datagrams, or of frames, that the control side makes.
pub struct Make {
    /// The place granted in the delivery table.
    pub stream: StreamId,
    /// Where they go: [`Sink::Datagrams`] or [`Sink::Made`]. What stands in front of each is in it already, and none
    /// waits for another.
    pub sink: Sink,
    /// The rate on the wire that it is guaranteed.
    pub rate: BitRate,
    /// When the first is due at the earliest: what their times count from.
    pub begin: MonoTime,
    /// Where they come from, in order of their times. Whoever fills it keeps its memory until
    /// `Report::Retired`, as nothing is freed on a real-time thread.
    pub ring: Consumer<Timed>,
}

impl fmt::Debug for Make {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Make").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// A place has one stream in each of its lives.
impl PartialEq for Make {
    fn eq(&self, other: &Self) -> bool {
        self.stream == other.stream
    }
}

impl Eq for Make {}

/// From the control side to a delivery server.
#[derive(PartialEq, Eq, Debug)]
pub enum Command {
    /// Begin a delivery.
    Start(Start),
    /// Begin a stream of made datagrams; answered by the same reports.
    Make(Make),
    /// Keep a title in memory until it is stopped.
    Hold(Hold),
    /// End a delivery or a hold early; answered by the same reports.
    Stop(StreamId),
    /// Send the control side's own bytes between two frames of a delivery that goes into [`Sink::Frames`] or [`Sink::Made`]: an
    /// answer, or a sender report in a frame of its own. Each is answered by `Report::Inserted`, and only
    /// then the next one may be asked for.
    Insert {
        /// The delivery.
        stream: StreamId,
        /// At least one byte, at most [`TEXT_MAX`].
        text: Box<[u8]>,
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

/// Most bytes between two frames: what a viewer waits for at most, and longer than any answer.
pub const TEXT_MAX: usize = 4096;

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
    /// What became of a text. It is said before the delivery is reported as finished, or after it has
    /// retired when it was asked for so late.
    Inserted {
        /// Which delivery.
        stream: StreamId,
        /// The text; nothing is freed on a real-time thread.
        text: Box<[u8]>,
        /// Whether the socket has taken all of it. When not, it has taken nothing, or is of no use any more.
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
