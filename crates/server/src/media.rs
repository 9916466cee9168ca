//! What Tactus knows of media: the rate at which a title has to leave, and the titles of the demo.
//!
//! Promise: the rate is found from the title's own clock or sample tables, in bounded time and
//! memory whatever the bytes are, and nothing here ever changes a title. It decodes no video frame
//! and no audio.

use tactus_core::units::{BitRate, Bytes, Nanos};

pub mod demo;
pub mod index;
pub mod movie;
pub mod probe;
pub mod sample;

/// What a title's own bytes say of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MediaFacts {
    /// Which container it is.
    pub kind: MediaKind,
    /// The rate at which the title plays without a wait; at least `mean`.
    pub rate: BitRate,
    /// All bytes over the whole duration, rounded up.
    pub mean: BitRate,
    /// How long it plays.
    pub duration: Nanos,
    /// Bytes a player must have before the first byte of media: the index of an MP4 that has it in
    /// front. A start burst should cover it.
    pub head: Bytes,
}

/// The containers whose rate can be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaKind {
    /// An MPEG transport stream.
    TransportStream {
        /// Bytes from packet to packet: 188, 192 (M2TS) or 204 (with parity).
        stride: u16,
        /// The clock jumps, as where two recordings were joined: the rate is that of the ends.
        broken: bool,
    },
    /// An MP4 or QuickTime movie.
    Movie,
}
