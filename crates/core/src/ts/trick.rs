//! Trick play: a transport stream of the video frames of another one that need no others, shown faster or
//! backwards; or of all of them, shown slower. The argument: `docs/design/trick-play.md`.
//!
//! Promise: what is built is a multiplex of at most the title's own rate, of which the null packets are left
//! out: each packet has the place in it that its time says, and clocks are exact to a tick. Counters do not
//! break, tables and clocks come often enough (TR 101 290), and each video frame has arrived before it is
//! shown. It reads no file, decodes nothing, and drops audio.

mod scale;
mod tables;

mod mux;

mod choice;

#[cfg(test)]
mod tests;

pub use choice::{Choice, PER_SECOND_MIN, Terms, choose};
pub use mux::{Counts, DuePacket, Multiplex, RATE_MIN};
pub use scale::Scale;
pub use tables::{VideoProgram, video_program_of};
