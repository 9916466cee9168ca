//! The server of Tactus as a library: everything above the engine that may wait.
//!
//! The binary is thin: it reads the command line and calls in here, and so do the tests. Modules
//! are listed from the lowest up; each uses only those above it.
#![forbid(unsafe_code)]
// They panic when the other end of a pipe is closed; see `cli::console`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod supervisor;

pub mod doctor;

pub mod metrics;

pub mod cli;

#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
