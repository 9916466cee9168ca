//! Generated streams: the reading of their title, their needs and their ring.
//!
//! Promise: the memory of the ring lives until the engine has retired the stream.

use std::ops::Range;

use tactus_core::block_list::BlockList;
use tactus_core::generated::TimedDatagram;
use tactus_core::units::{BitRate, Bytes};
use tactus_ring::spsc::{Consumer, Keep, Producer, ring};

/// The bytes of a title for a reader in this process, and their rate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Bytes of the title; for a block list, bytes of the list, from zero on.
    pub range: Range<u64>,
    /// The blocks and their order, if they differ from those of the title.
    pub block_list: Option<BlockList>,
    /// The rate.
    pub rate: BitRate,
    /// Bytes that come at once at the beginning.
    pub burst: Bytes,
}

/// The needs of a generated stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeneratedRate {
    /// The peak rate of its datagrams over a second.
    pub rate: BitRate,
    /// The limit of datagrams in a second.
    pub datagrams: u32,
}

/// The engine's end of a ring of chunks, with the owner of its memory.
pub struct ChunkRing {
    pub(super) ring: Consumer<TimedDatagram>,
    pub(super) keep: Keep<TimedDatagram>,
}

impl ChunkRing {
    /// Makes a ring of `capacity` chunks. Returns the producer and the engine's end.
    pub fn new(capacity: usize) -> (Producer<TimedDatagram>, Self) {
        let (ours, ring) = ring(capacity);
        let keep = ours.keep();
        (ours, Self { ring, keep })
    }
}
