//! The simulator: disks, links, clients and faults around the engine's own servers.
//!
//! A world is drawn from a seed, runs at full speed, and stops at the first broken invariant. Its
//! servers are those of production; only the ports are simulated. The method and its limits:
//! `docs/design/simulation.md`. Modules are listed from the lowest up.
#![forbid(unsafe_code)]

mod dice;
mod trace;
mod verdict;

mod title;

mod plan;

mod content;

mod device;
mod net;

mod broker;
mod swarm;

mod world;

pub mod run;

pub mod packets;

pub mod balancing;
pub mod learning;
pub mod small_uploads;
pub mod spinning;

pub mod campaign;
#[cfg(feature = "mutants")]
pub mod hunt;
pub mod speed;

pub mod large;

pub mod command;

pub use swarm::Mode;
pub use verdict::{Invariant, Violation};
pub use world::{Outcome, Tally};
