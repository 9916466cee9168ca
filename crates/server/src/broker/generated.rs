//! Streams that are generated out of a title: what is read for them, what they need, and their ring.
//!
//! Promise: the memory between the two sides lives until the engine has retired the stream.

use std::ops::Range;

use tactus_core::block_list::BlockList;
use tactus_core::generated::Timed;
use tactus_core::units::{BitRate, Bytes};
use tactus_ring::spsc::{Consumer, Keep, Producer, ring};

/// What is read for a reader of our own, and how fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Bytes of the title; of a block list its own, from zero on.
    pub range: Range<u64>,
    /// Which blocks are read instead, in which order.
    pub block_list: Option<BlockList>,
    /// How fast.
    pub rate: BitRate,
    /// Bytes that come at once at the beginning.
    pub burst: Bytes,
}

/// What a generated stream needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeneratedRate {
    /// Most bits of its datagrams in a second.
    pub rate: BitRate,
    /// Most datagrams in a second.
    pub datagrams: u32,
}

/// The engine's end of a ring of chunks, with what keeps its memory.
pub struct ChunkRing {
    pub(super) ring: Consumer<Timed>,
    pub(super) keep: Keep<Timed>,
}

impl ChunkRing {
    /// A ring of `capacity` chunks, and the end that fills it.
    pub fn new(capacity: usize) -> (Producer<Timed>, Self) {
        let (ours, ring) = ring(capacity);
        let keep = ours.keep();
        (ours, Self { ring, keep })
    }
}
