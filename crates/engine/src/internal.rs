//! What the servers tell each other. Each message goes through a ring with one writer and one
//! reader; every ring is as large as the most that the ledger can put into it.

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::cycle::Job;
use tactus_core::datagrams::{Form, Plan};
use tactus_core::ports::{FileHandle, Sum};
use tactus_core::units::{Bytes, MonoTime};
use tactus_ring::arena::Lease;

use crate::message::{Chunks, Outcome, Rate, StreamId, TitleId, VolumeId};

/// From a delivery server to a block server.
pub(crate) enum ToBlock {
    /// Asks for one block of a title.
    Want(Want),
    /// Gives a block back.
    Return(Lease),
    /// Ends a round of wants: what is to be read may be sorted.
    Commit(Round),
    /// The stream of this want has ended. The want is answered all the same.
    Abandon { token: u32, title: TitleId, block: u64 },
}

/// Whose wants have come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Those of one stream, at any time.
    Stream,
    /// Those of all running streams, at the beginning of a cycle.
    Cycle,
}

/// One block of a title, wanted.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    /// Comes back with the answer.
    pub(crate) token: u32,
    pub(crate) title: TitleId,
    pub(crate) block: u64,
    pub(crate) file: FileHandle,
    /// Bytes of the title in this block; only the last block has less than a whole one.
    pub(crate) len: u32,
    /// What they must sum up to.
    pub(crate) sum: Option<Sum>,
    pub(crate) deadline: MonoTime,
    pub(crate) position: u64,
    pub(crate) best_effort: bool,
}

/// The answer to a [`Want`].
pub(crate) enum FromBlock {
    Ready {
        token: u32,
        lease: Lease,
    },
    Failed {
        token: u32,
        errno: i32,
    },
    /// It was abandoned, and has not been read.
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
    /// Nobody waits for the block any more. Its read is answered all the same.
    Drop {
        block: tactus_core::ports::BlockRef,
    },
}

/// From a delivery server to a link server or packet server, whose output is `O`.
pub(crate) enum ToLink<O> {
    Open(Open<O>),
    Pass(Pass),
}

/// What all of them handle alike.
pub(crate) enum Pass {
    /// More bytes of the stream, in order.
    Feed {
        stream: StreamId,
        lease: Lease,
        at: u32,
        len: u32,
        /// Where it lies in the title.
        offset: Bytes,
    },
    /// All of a growing title has been fed, or will be in time: its length is known.
    Settle {
        stream: StreamId,
        len: Bytes,
    },
    /// Bytes between two frames. Answered before the stream is closed.
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

/// What an opened stream sends.
pub(crate) enum OpenContent {
    Blocks(OpenBlocks),
    Chunks(Chunks),
}

/// Blocks whose first bytes are in memory.
pub(crate) struct OpenBlocks {
    pub(crate) volume: VolumeId,
    /// The title's file, and where in it the first byte is; a stream by a block list begins with
    /// its first stop.
    pub(crate) file: FileHandle,
    pub(crate) first: Bytes,
    pub(crate) framing: Form,
    /// `None` for best effort.
    pub(crate) rate: Option<Rate>,
    /// Bytes to send in all; none while the title grows, or when it repeats.
    pub(crate) len: Option<Bytes>,
    /// After how many it begins again; none when it does not.
    pub(crate) turn: Option<Bytes>,
    /// The delivery server has it too, and longer: it is never the last that is dropped here.
    pub(crate) plan: Option<Arc<Plan>>,
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
    },
}
