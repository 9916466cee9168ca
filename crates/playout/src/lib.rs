//! What the server sends and records on its own account: channels and live inputs.
//!
//! Modules are listed from the lowest up; each uses only those above it. Clients of a protocol are
//! not known here.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod pattern;

pub mod recording;

pub mod channel;

pub mod ingest;

pub mod channels;

pub mod classes;

pub mod reload;
