//! Depacketizers: H.264 (RFC 6184), H.265 (RFC 7798), AAC (RFC 3640 and RFC 6416).
//!
//! Promise: complete units come out in packet order. Units that a lost packet leaves incomplete are
//! dropped and counted. Memory is bounded by [`FRAME_MAX`]. Packets must arrive in order; nothing
//! is decoded.

mod audio;
mod units;

use alloc::vec::Vec;

use super::Packet;
pub use audio::{Audio, AudioConfig, Layout};
pub use units::{Kind, Units};

/// Longest frame: an 8K intra frame is shorter.
pub const FRAME_MAX: usize = 8 << 20;

/// One video frame or audio frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The presentation time in ticks of its clock.
    pub timestamp: u32,
    /// The data as in a transport stream: units behind start codes, or ADTS.
    pub data: Vec<u8>,
    /// A decoder can start with it.
    pub begins: bool,
}

/// The depacketizer of one medium.
#[derive(Clone, Debug)]
pub enum Gather {
    /// Video.
    VideoFrames(Units),
    /// Audio.
    Audio(Audio),
}

impl Gather {
    /// Takes the next packet; `each` gets the frames that it completes.
    pub fn handle(&mut self, packet: &Packet<'_>, each: impl FnMut(Frame)) {
        match self {
            Self::VideoFrames(units) => units.handle(packet, each),
            Self::Audio(audio) => audio.handle(packet, each),
        }
    }

    /// Ends the stream.
    pub fn handle_end(&mut self, each: impl FnMut(Frame)) {
        if let Self::VideoFrames(units) = self {
            units.handle_end(each);
        }
    }

    /// Dropped units and frames.
    pub const fn broken(&self) -> u64 {
        match self {
            Self::VideoFrames(units) => units.broken(),
            Self::Audio(audio) => audio.broken(),
        }
    }

    /// Whether it is a video stream.
    pub const fn is_video(&self) -> bool {
        matches!(self, Self::VideoFrames(_))
    }
}

/// Whether the packet follows the last one.
fn follows(last: &mut Option<u16>, sequence: u16) -> bool {
    let before = last.replace(sequence);
    before.is_none_or(|before| before.wrapping_add(1) == sequence)
}
