//! Messages between the servers. Each message goes through a ring with one writer and one reader.
//! Every ring has room for the most that the ledger can put into it.

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::cycle::Job;
use tactus_core::datagrams::{Framing, Plan};
use tactus_core::ports::{FileHandle, Sum};
use tactus_core::units::{Bytes, MonoTime};
use tactus_ring::arena::Lease;

use crate::message::{Chunks, Outcome, Rate, StreamId, TitleId, VolumeId, Workspace};

/// From a delivery server to a block server.
pub(crate) enum ToBlock {
    /// Wants one block of a title.
    Want(BlockRequest),
    /// Returns a block.
    Return(Lease),
    /// Ends a round of wants: the reads may be sorted.
    Commit(RoundEnd),
    /// The stream of this want has ended. The want is still answered.
    Abandon { token: u32, title: TitleId, block: u64 },
}

/// The end of a round of wants of one server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    /// Of one stream, at any time.
    Stream,
    /// Of all running streams of a delivery server, at the beginning of a cycle. A server with such
    /// streams ends a round in each cycle, also without a want.
    Cycle {
        /// The number of the cycle.
        cycle: u64,
        /// The server has streams that may want something at the beginning of the next cycle.
        asks_again: bool,
    },
}

/// The origin of the reads that a disk may sort now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// One stream, at any time.
    Stream,
    /// Running streams, at the beginning of a cycle. Those of other delivery servers follow.
    Part,
    /// All running streams, at the beginning of a cycle.
    Cycle,
}

/// One block of a title, wanted.
#[derive(Clone, Copy)]
pub(crate) struct BlockRequest {
    /// Comes back with the answer.
    pub(crate) token: u32,
    pub(crate) title: TitleId,
    pub(crate) block: u64,
    pub(crate) file: FileHandle,
    /// Bytes of the title in this block; only the last block has less than a whole one.
    pub(crate) len: u32,
    /// Their expected checksum.
    pub(crate) sum: Option<Sum>,
    pub(crate) deadline: MonoTime,
    pub(crate) position: u64,
    pub(crate) best_effort: bool,
    /// No sole lease: other streams are to find the block.
    pub(crate) is_shared: bool,
    /// The kernel may read ahead in the file.
    pub(crate) reads_ahead: bool,
    /// Bytes of the title behind the block.
    pub(crate) rest: Bytes,
}

/// The answer to a [`BlockRequest`].
pub(crate) enum FromBlock {
    Ready {
        token: u32,
        lease: Lease,
    },
    Failed {
        token: u32,
        errno: i32,
    },
    /// The want was abandoned, and the block has not been read.
    Dropped {
        token: u32,
    },
}

/// From a block server to its disk server.
pub(crate) enum ToDisk {
    Read {
        job: Job,
        best_effort: bool,
    },
    Promote {
        block: tactus_core::ports::BlockRef,
        deadline: MonoTime,
    },
    Commit(Round),
    /// The block has no waiters any more. Its read is still answered.
    Drop {
        block: tactus_core::ports::BlockRef,
    },
}

/// From a delivery server to a link server or packet server, whose output is `O`.
pub(crate) enum ToLink<O> {
    Open(Open<O>),
    Message(LinkMessage),
}

/// Messages that all links handle alike.
pub(crate) enum LinkMessage {
    /// More bytes of the stream, in order.
    Feed {
        stream: StreamId,
        lease: Lease,
        at: u32,
        len: u32,
        /// Its offset in the title.
        offset: Bytes,
    },
    /// All of a growing title has been fed, or will be in time: its length is known.
    Settle {
        stream: StreamId,
        len: Bytes,
    },
    /// An interleaved message. Answered before the stream is closed.
    Interleave {
        stream: StreamId,
        message: Box<[u8]>,
    },
    Close(StreamId),
}

/// A stream that can begin.
pub(crate) struct Open<O> {
    pub(crate) stream: StreamId,
    pub(crate) content: OpenContent,
    pub(crate) output: O,
}

/// The content of an opened stream.
pub(crate) enum OpenContent {
    Blocks(OpenBlocks),
    Chunks(Chunks),
}

/// Blocks whose first bytes are in memory.
pub(crate) struct OpenBlocks {
    pub(crate) volume: VolumeId,
    /// The title's file, and the offset of the first byte in it; a stream by a block list begins
    /// with its first block.
    pub(crate) file: FileHandle,
    pub(crate) first: Bytes,
    pub(crate) framing: Framing,
    /// `None` for best effort.
    pub(crate) rate: Option<Rate>,
    /// Bytes to send in all; `None` while the title grows, or if it repeats.
    pub(crate) len: Option<Bytes>,
    /// Number of bytes after which it begins again; `None` if it does not repeat.
    pub(crate) turn: Option<Bytes>,
    /// The delivery server also holds it, and longer: the last reference is never dropped here.
    pub(crate) plan: Option<Arc<Plan>>,
    /// For a framing that needs one. Comes back when the stream is closed.
    pub(crate) workspace: Option<Workspace>,
}

/// From a link server to a delivery server.
pub(crate) enum FromLink {
    /// The byte clock now in force.
    Clock {
        stream: StreamId,
        clock: ByteClock,
    },
    Returned {
        stream: StreamId,
        lease: Lease,
    },
    Interleaved {
        stream: StreamId,
        message: Box<[u8]>,
        is_sent: bool,
    },
    Closed {
        stream: StreamId,
        outcome: Outcome,
        sent: Bytes,
        workspace: Option<Workspace>,
    },
}

impl FromLink {
    /// Its stream, whose delivery server gets it.
    pub(crate) fn stream(&self) -> StreamId {
        match self {
            Self::Clock { stream, .. }
            | Self::Returned { stream, .. }
            | Self::Interleaved { stream, .. }
            | Self::Closed { stream, .. } => *stream,
        }
    }
}
