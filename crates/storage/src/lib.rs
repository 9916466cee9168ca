//! The volumes: which titles they hold, how uploads become durable, and what is wrong with them.
//!
//! Modules are listed from the lowest up; each uses only those above it. Nothing here knows the
//! ledger, the engine's servers or a protocol.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod dates;
pub mod warnings;

pub mod conditions;

pub mod catalogue;

pub mod store;
