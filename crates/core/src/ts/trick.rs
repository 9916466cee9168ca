//! Trick play: a transport stream of the pictures of another one that need no others, shown faster or
//! backwards; or of all of them, shown slower. The argument: `docs/design/trick-play.md`.
//!
//! Promise: what is built is a multiplex of at most the title's own rate, of which the null packets are left
//! out: each packet has the place in it that its time says, and clocks are exact to a tick. Counters do not
//! break, tables and clocks come often enough (TR 101 290), and each picture has arrived before it is
//! shown. It reads no file, decodes nothing, and drops sound.

mod scale;
mod tables;

mod mux;

mod choice;

#[cfg(test)]
mod tests;

pub use choice::{Choice, PER_SECOND_MIN, Terms, choose};
pub use mux::{Counts, Multiplex, Placed, RATE_MIN};
pub use scale::Scale;
pub use tables::{Film, film_of};
