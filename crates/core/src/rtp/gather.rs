//! Frames put together again from their packets: H.264 (RFC 6184), H.265 (RFC 7798), AAC (RFC 3640
//! and RFC 6416).
//!
//! Promise: what comes out are whole units, in the order of the packets; what a lost packet leaves
//! incomplete is left out and counted, and memory is bounded by [`FRAME_MAX`]. Packets must come in
//! their order; it decodes nothing.

mod audio;
mod units;

use alloc::vec::Vec;

use super::Packet;
pub use audio::{Audio, AudioConfig, Layout};
pub use units::{Kind, Units};

/// Longest frame: an intra video frame of 8K is shorter.
pub const FRAME_MAX: usize = 8 << 20;

/// One video frame, or one audio frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// When it is shown, by the clock of its medium.
    pub timestamp: u32,
    /// As a transport stream carries it: units behind start codes, or ADTS.
    pub data: Vec<u8>,
    /// A decoder can begin with it.
    pub begins: bool,
}

/// What puts frames of one medium together.
#[derive(Clone, Debug)]
pub enum Gather {
    /// Video frames.
    VideoFrames(Units),
    /// Audio.
    Audio(Audio),
}

impl Gather {
    /// Takes the next packet; `each` gets the frames that are whole with it.
    pub fn handle(&mut self, packet: &Packet<'_>, each: impl FnMut(Frame)) {
        match self {
            Self::VideoFrames(units) => units.handle(packet, each),
            Self::Audio(audio) => audio.handle(packet, each),
        }
    }

    /// Nothing more comes.
    pub fn handle_end(&mut self, each: impl FnMut(Frame)) {
        if let Self::VideoFrames(units) = self {
            units.handle_end(each);
        }
    }

    /// Units and frames that were left out.
    pub const fn broken(&self) -> u64 {
        match self {
            Self::VideoFrames(units) => units.broken(),
            Self::Audio(audio) => audio.broken(),
        }
    }

    /// Whether they are video frames.
    pub const fn is_video(&self) -> bool {
        matches!(self, Self::VideoFrames(_))
    }
}

/// Whether the packet is the one behind the last.
fn follows(last: &mut Option<u16>, sequence: u16) -> bool {
    let before = last.replace(sequence);
    before.is_none_or(|before| before.wrapping_add(1) == sequence)
}
