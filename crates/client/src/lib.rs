//! Tactus for programs on the same machine: titles through shared memory.
//!
//! Names go through a Unix socket ([`protocol`], [`socket`]), bytes through rings in memory that
//! the server shares with this program ([`memory`]). The layout of the memory and what each side
//! may trust are in `docs/design/local-clients.md`.

pub mod memory;
pub mod protocol;
pub mod socket;
