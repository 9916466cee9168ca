//! Memory without decisions: how threads of Tactus hand things to each other.
//!
//! Values go through single-producer rings ([`spsc`]), bytes through the block arena ([`arena`]),
//! facts through counters ([`counter`]), and a sleeping thread is woken by a token ([`token`]).
//! Here stands all `unsafe` that needs no system call, and all of it runs under loom
//! (`RUSTFLAGS="--cfg loom" cargo test -p tactus-ring --release`). Nothing here allocates after
//! its constructor, waits, or reads a clock.

pub mod counter;

mod sync;

pub mod spsc;
pub mod token;

pub mod arena;
