//! Trick play: a transport stream of another one's I-frames, shown faster or backwards, or of all
//! its frames, shown slower. Design note: `docs/design/trick-play.md`.
//!
//! Promise: the result is a multiplex of at most the title's own rate without its null packets:
//! each packet has the position of its time, and clocks are exact to a tick. Counters are
//! continuous, tables and clocks are frequent enough (TR 101 290), and each video frame arrives
//! before it is presented. It reads no file, decodes nothing, and drops audio.

mod scale;
mod tables;

mod mux;

mod choice;

#[cfg(test)]
mod tests;

pub use choice::{Choice, PER_SECOND_MIN, TrickOptions, choose};
pub use mux::{Counts, DuePacket, Multiplex, RATE_MIN};
pub use scale::Scale;
pub use tables::{VideoProgram, video_program_of};
