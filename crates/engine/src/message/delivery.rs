//! A delivery: a source, a framing, a schedule and an output, put together by value.
//!
//! Promise: parts that do not fit together are refused here, with the reason, before anything
//! begins. The servers handle every delivery that this module makes.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::{Cutter, Cutting, Framing, Ip, Plan};
use tactus_core::generated::TimedDatagram;
use tactus_core::ports::{FileHandle, SocketHandle};
use tactus_core::stagger::Tick;
use tactus_core::sums::Sums;
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos};
use tactus_ring::spsc::Consumer;

use super::ring::StreamRing;
use super::{LinkId, PacketServerId, StreamId, TitleId, VolumeId};

/// One delivery, checked.
#[derive(Debug)]
pub struct Delivery {
    pub(crate) content: Content,
    pub(crate) output: Output,
}

/// The content of a delivery.
#[derive(Debug)]
pub(crate) enum Content {
    /// Blocks of a title, with their framing and schedule, and the workspace of a framing that
    /// needs one.
    Blocks(Blocks, Framing, Schedule, Option<Workspace>),
    /// Framed chunks, each with its time.
    Chunks(Chunks),
}

impl Delivery {
    /// A delivery of blocks.
    ///
    /// # Errors
    /// The parts that do not fit together.
    pub fn of_blocks(
        blocks: Blocks,
        framing: Framing,
        schedule: Schedule,
        output: Output,
    ) -> Result<Self, Mismatch> {
        let is_list = matches!(blocks.extent, Extent::List(_));
        let is_rtp = matches!(framing, Framing::Rtp(_));
        match (&schedule, &output) {
            _ if framing == Framing::Chunked => Err(Mismatch::ChunkedBlocks),
            (_, Output::Connection(_)) if matches!(framing, Framing::Sound(_)) => {
                Err(Mismatch::SoundInConnection)
            }
            (Schedule::BestEffort, Output::Datagrams(_)) => Err(Mismatch::DatagramsWithoutRate),
            (Schedule::BestEffort, _) if is_list => Err(Mismatch::ListWithoutRate),
            (Schedule::BestEffort, _) if is_rtp => Err(Mismatch::RtpWithoutRate),
            (_, Output::Datagrams(_)) if is_list => Err(Mismatch::ListAsDatagrams),
            (Schedule::Plan(_, plan), Output::Connection(_)) if !is_rtp && !plan.is_of_times() => {
                Err(Mismatch::PlanWithoutRtp)
            }
            (_, Output::Connection(Connection { backpressure: Backpressure::Wait, .. }))
                if is_rtp =>
            {
                Err(Mismatch::RtpToReader)
            }
            (_, Output::Connection(Connection { end: ConnectionEnd::Ring(_), .. })) if is_rtp => {
                Err(Mismatch::FramesInRing)
            }
            _ => {
                let cuts_here = is_rtp && matches!(output, Output::Connection(_));
                let workspace = cuts_here.then(Workspace::default);
                Ok(Self { content: Content::Blocks(blocks, framing, schedule, workspace), output })
            }
        }
    }

    /// A delivery of generated chunks.
    ///
    /// # Errors
    /// The parts that do not fit together.
    pub fn of_chunks(chunks: Chunks, output: Output) -> Result<Self, Mismatch> {
        match (chunks.framing, &output) {
            (Framing::Rtp(_) | Framing::Sound(_), _) => Err(Mismatch::ChunksAsRtp),
            (Framing::Chunked, Output::Datagrams(_)) => Err(Mismatch::ChunkedDatagrams),
            (_, Output::Connection(Connection { end: ConnectionEnd::Ring(_), .. })) => {
                Err(Mismatch::FramesInRing)
            }
            (Framing::Plain | Framing::Chunked, _) => {
                Ok(Self { content: Content::Chunks(chunks), output })
            }
        }
    }

    /// Whether it leaves in frames, between which messages can be sent.
    #[must_use]
    pub fn is_framed(&self) -> bool {
        match self.content {
            Content::Blocks(_, framing, ..) => matches!(framing, Framing::Rtp(_)),
            Content::Chunks(_) => true,
        }
    }

    /// Its output.
    #[must_use]
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The blocks that it reads; `None` if it sends generated chunks.
    #[must_use]
    pub fn blocks(&self) -> Option<&Blocks> {
        match &self.content {
            Content::Blocks(blocks, ..) => Some(blocks),
            Content::Chunks(_) => None,
        }
    }

    /// The framing of its blocks; `None` if it sends generated chunks.
    #[must_use]
    pub fn framing(&self) -> Option<Framing> {
        match self.content {
            Content::Blocks(_, framing, ..) => Some(framing),
            Content::Chunks(_) => None,
        }
    }
}

/// Memory for the packetizer of a framing, which few deliveries need and which is larger than all
/// their other state. The control side allocates it and gets it back with
/// [`Report::Retired`](super::Report), as a real-time thread allocates and frees nothing.
#[derive(Default)]
pub struct Workspace(Box<Option<Cutter>>);

impl Workspace {
    /// Begins a stream in it.
    pub(crate) fn begin(mut self, cutting: Cutting) -> Self {
        *self.0 = Some(Cutter::new(cutting));
        self
    }

    pub(crate) fn cutter(&self) -> &Cutter {
        self.0.as_ref().as_ref().expect("its stream has begun")
    }

    pub(crate) fn cutter_mut(&mut self) -> &mut Cutter {
        self.0.as_mut().as_mut().expect("its stream has begun")
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workspace").finish_non_exhaustive()
    }
}

/// Parts of a delivery that do not fit together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// Best effort to a datagram socket.
    #[error("datagrams are sent at a rate, not as best effort")]
    DatagramsWithoutRate,
    /// A block list as best effort.
    #[error("a block list is read at a rate, not as best effort")]
    ListWithoutRate,
    /// RTP as best effort.
    #[error("RTP in a connection is sent at a rate, not as best effort")]
    RtpWithoutRate,
    /// A block list to a datagram socket.
    #[error("a block list is sent into a connection, not as datagrams")]
    ListAsDatagrams,
    /// A plan that changes the plain bytes of a connection.
    #[error("a plan for the plain bytes of a connection tells their times and changes nothing")]
    PlanWithoutRtp,
    /// RTP with a peer that is waited for.
    #[error("a connection that waits for its peer carries plain bytes, not RTP")]
    RtpToReader,
    /// RTP around generated chunks.
    #[error("generated chunks have their RTP headers already")]
    ChunksAsRtp,
    /// HTTP chunks around blocks.
    #[error("bytes of a title have a length and need no HTTP chunks")]
    ChunkedBlocks,
    /// HTTP chunks to a datagram socket.
    #[error("HTTP chunks are sent into a connection, not as datagrams")]
    ChunkedDatagrams,
    /// Frames in a ring of shared memory.
    #[error("a ring of shared memory carries plain bytes, not frames")]
    FramesInRing,
    /// Packets of samples in a connection.
    #[error("sound is sent as datagrams, not into a connection")]
    SoundInConnection,
}

/// The title to read, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The disk that holds the title.
    pub volume: VolumeId,
    /// The title.
    pub title: TitleId,
    /// Its file, open for direct reads until `Report::Retired`.
    pub file: FileHandle,
    /// Its file for sends by reference. Another open file than `file`, because the kernel reads
    /// ahead of an open file only while its reads are in sequence.
    pub sent_file: FileHandle,
    /// Its position on the device, as a sweep key; zero if order does not matter.
    pub position: u64,
    /// Its length; of a title that grows, the part on stable storage.
    pub len: Bytes,
    /// The checksums of its bytes; `None` if they are unknown, and while it grows. All readers of a
    /// title use the same ones. They come back with `Report::Retired`, as a real-time thread frees
    /// nothing.
    pub sums: Option<Arc<Sums>>,
}

/// Blocks of a title as a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// The title.
    pub origin: Origin,
    /// Its bytes and their order.
    pub extent: Extent,
    /// Limit of the blocks that the stream may hold or wait for, as reserved in the ledger.
    pub window: u32,
}

/// Which bytes of a title are sent, in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Extent {
    /// These bytes, once.
    Range(Range<Bytes>),
    /// These bytes, and the growth of the title: [`Command::Extend`](super::Command) moves the end.
    Growing(Range<Bytes>),
    /// These bytes again and again, until the delivery is stopped.
    Repeating(Range<Bytes>),
    /// Blocks in the order of the list. It comes back with [`Report::Retired`](super::Report).
    List(BlockList),
}

impl Extent {
    /// The bytes to send at first; of a list, counted from its own beginning.
    #[must_use]
    pub fn range(&self) -> Range<Bytes> {
        match self {
            Self::Range(range) | Self::Growing(range) | Self::Repeating(range) => range.clone(),
            Self::List(list) => Bytes(0)..list.len(),
        }
    }
}

/// A ring of generated chunks as a source: each is a datagram or a frame, and has its time.
pub struct Chunks {
    /// In order of their times. The producer keeps its memory until `Report::Retired`, as a
    /// real-time thread frees nothing.
    pub ring: Consumer<TimedDatagram>,
    /// The origin of their times: the first chunk is not due before it.
    pub begin: MonoTime,
    /// The guaranteed rate on the wire.
    pub rate: BitRate,
    /// What is put around them.
    pub framing: Framing,
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks").field("begin", &self.begin).finish_non_exhaustive()
    }
}

/// When blocks are sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Bytes at a constant rate.
    ByteClock(Rate),
    /// Bytes or packets at the times of a plan, at most at the rate. The plan comes back with
    /// [`Report::Retired`](super::Report).
    Plan(Rate, Arc<Plan>),
    /// As fast as the time left by paced streams allows.
    BestEffort,
}

/// A constant rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Payload bits per second.
    pub rate: BitRate,
    /// Bytes that are due at once at the start.
    pub burst: Bytes,
    /// How often it sends.
    pub tick: Tick,
}

impl Schedule {
    /// The constant rate, or the highest one of a plan; `None` for best effort.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        match *self {
            Self::ByteClock(rate) | Self::Plan(rate, _) => Some(rate),
            Self::BestEffort => None,
        }
    }

    pub(crate) fn into_plan(self) -> Option<Arc<Plan>> {
        match self {
            Self::Plan(_, plan) => Some(plan),
            Self::ByteClock(_) | Self::BestEffort => None,
        }
    }
}

/// The destination of a delivery.
#[derive(Clone, Debug)]
pub enum Output {
    /// Into a connection.
    Connection(Connection),
    /// To a datagram socket.
    Datagrams(Datagrams),
}

/// A connection: a socket, or the ring of a local client. The engine owns its writing side until
/// `Report::Finished`.
///
/// With RTP, and with chunks, it carries frames (RFC 2326, section 10.12). Then it comes back
/// behind a whole frame, also after a stop: this takes until the peer has taken the rest of the
/// frame. After [`Outcome::PeerGone`], [`Outcome::TooSlow`] and [`Outcome::DiskFailed`] it is
/// unusable.
///
/// [`Outcome::PeerGone`]: super::Outcome::PeerGone
/// [`Outcome::TooSlow`]: super::Outcome::TooSlow
/// [`Outcome::DiskFailed`]: super::Outcome::DiskFailed
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where the bytes go.
    pub end: ConnectionEnd,
    /// The link server that sends.
    pub link: LinkId,
    /// The channel of RTP packets.
    pub channel: u8,
    /// The reaction to a peer that does not take its bytes.
    pub backpressure: Backpressure,
}

/// The server's end of a connection.
#[derive(Clone, Debug)]
pub enum ConnectionEnd {
    /// A socket.
    Socket(SocketHandle),
    /// Memory that a local client shares. The control side holds it until `Report::Retired`, as a
    /// real-time thread frees nothing.
    Ring(Arc<StreamRing>),
}

/// The reaction to a peer that does not take its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backpressure {
    /// The delivery ends after a bound.
    End,
    /// The delivery waits without limit. At most the burst is then overdue.
    Wait,
}

impl Connection {
    /// A connection of a client: the delivery ends if the client does not take its bytes.
    #[must_use]
    pub const fn of(socket: SocketHandle) -> Self {
        Self::to(ConnectionEnd::Socket(socket))
    }

    /// The ring of a local client, for plain bytes: the delivery ends if the client does not take
    /// them.
    #[must_use]
    pub const fn ring(ring: Arc<StreamRing>) -> Self {
        Self::to(ConnectionEnd::Ring(ring))
    }

    const fn to(end: ConnectionEnd) -> Self {
        Self { end, link: LinkId(0), channel: 0, backpressure: Backpressure::End }
    }
}

/// Output parameters of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagrams {
    /// The packet server that sends. It is that of `after`, if there is one.
    pub server: PacketServerId,
    /// The socket, which deliveries may share; open until `Report::Finished`.
    pub socket: SocketHandle,
    /// The destination.
    pub to: SocketAddr,
    /// How long the first datagram of a message may wait for the last one.
    pub burst: Nanos,
    /// The class of the link that it belongs to; `None`: the link itself.
    pub class: Option<ClassNumber>,
    /// The stream that it follows. It begins when that stream has ended, with the datagram that
    /// would have been due then, in the RTP session of that stream. `None`: it begins at once in
    /// its own session. It also does so if the slot of its predecessor has meanwhile been given to
    /// another stream.
    pub after: Option<StreamId>,
}

impl Datagrams {
    /// From `socket` to `to`, each by itself, without a class, in a session of their own.
    pub const fn to(socket: SocketHandle, to: SocketAddr) -> Self {
        let (server, burst) = (PacketServerId(0), Nanos(0));
        Self { server, socket, to, burst, class: None, after: None }
    }

    /// The version of IP that carries them.
    pub(crate) fn ip(&self) -> Ip {
        if self.to.is_ipv4() { Ip::V4 } else { Ip::V6 }
    }
}
