//! Media: the rate of a title, its index, and the sample titles.
//!
//! Promise: the rate comes from the title's own clock or sample tables, in bounded time and memory
//! for any bytes. Titles are never changed. No video or audio is decoded.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use tactus_core::units::{BitRate, Bytes, Nanos};

pub mod index;
pub mod playlist;

mod ebml;
mod stairs;

pub mod wave;

pub mod scan;

pub mod probe;

pub mod consumption;
pub mod movie;

pub mod demo;
pub mod sample;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

/// The properties of a title, from its own bytes. The extension of `name` only sets the search
/// range of a transport stream. May block.
#[must_use]
pub fn facts(file: &std::fs::File, name: &str) -> Option<MediaFacts> {
    let facts = probe::probe(file, name).or_else(|| consumption::facts_of_fragments(file))?;
    let peak = match facts.kind {
        MediaKind::Movie => consumption::of_movie(file).as_ref().and_then(consumption::peak),
        _ => None,
    };
    Some(MediaFacts { peak, ..facts })
}

/// The server's own directory inside a volume, which is never served.
pub const RESERVED: &str = ".tactus";

/// The properties found in a title's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MediaFacts {
    /// The container.
    pub kind: MediaKind,
    /// The size over the duration, rounded up; exact if it is constant.
    pub rate: BitRate,
    /// The highest rate for a player that holds two seconds and begins after one, of a title of a
    /// variable rate; none if it is not known without reading the title.
    pub peak: Option<BitRate>,
    /// The duration.
    pub duration: Nanos,
    /// Bytes that a player needs before the first media byte: the index of an MP4 that has it in
    /// front. A start burst should cover them.
    pub head: Bytes,
}

/// The containers with a known rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaKind {
    /// An MPEG transport stream.
    TransportStream {
        /// Bytes from packet to packet: 188, 192 (M2TS) or 204 (with parity).
        stride: u16,
        /// The clock jumps, as in joined recordings: the rate is that of the two ends.
        broken: bool,
    },
    /// An MP4 or QuickTime movie.
    Movie,
    /// Matroska or WebM.
    Matroska,
    /// MPEG audio.
    Mp3 {
        /// Whether all frames have one rate.
        is_constant: bool,
    },
    /// FLAC.
    Flac,
    /// Ogg.
    Ogg,
    /// WAVE.
    Wave,
}
