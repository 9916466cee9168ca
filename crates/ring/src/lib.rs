//! Memory shared between the threads of Tactus, without decisions.
//!
//! Values go through single-producer rings ([`spsc`]), bytes through the block arena ([`arena`]),
//! facts through counters ([`counter`]), a server that moves by a [`hand_over`], and a token
//! ([`token`]) wakes a sleeping thread. Messages to and from other processes go through [`shared`].
//! This crate has all `unsafe` code that needs no system call, and all of it runs under loom
//! (`RUSTFLAGS="--cfg loom" cargo test -p tactus-ring --release`). Nothing here allocates after its
//! constructor, waits, or reads a clock.

pub mod counter;

mod sync;

pub mod hand_over;
pub mod spsc;
pub mod token;

pub mod arena;

pub mod shared;
