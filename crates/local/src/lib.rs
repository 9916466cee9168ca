//! The door of local clients: a Unix socket where programs of this machine connect, name titles
//! and get the memory that they share with the file server.
//!
//! Promise: the kernel says who connects, the configuration who may. Each client has a thread for
//! its names and one for its doorbell, with ordinary priority. Bytes that it writes are copied here
//! into the store's write share; no byte that it reads passes here. A client that ends leaves
//! nothing behind.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod settings;

mod doorbell;
mod errno;
mod peer;

mod budget;
mod names;
mod open_upload;
mod recording_ring;
mod rings;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

mod changes;
mod growing_memory;

mod fill;
mod memory_upload;
mod recordings;
mod streams;
mod titles;

mod order;
mod working_files;
mod writers;

mod session;

pub mod server;
