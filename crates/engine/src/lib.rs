//! The real-time side: servers that talk through rings, and the cores they sit on.
//!
//! A server is a state machine with one job; a core polls the servers placed on it and sleeps until
//! the earliest of their deadlines. Nothing here allocates, locks or waits after start, and nothing
//! here knows a device: disks and links are ports of `tactus_core`, made by `tactus-sys` for the
//! kernel and by the simulator for its world. Modules are listed from the lowest up.
#![forbid(unsafe_code)]

pub mod counters;
pub mod message;
pub mod name;
pub mod server;

mod internal;
mod pool;

pub mod egress;

pub mod block;
pub mod delivery;
pub mod disk;
pub mod file;
pub mod link;

pub mod packets;

pub mod migration;

pub mod assembly;
pub mod cores;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;
