//! The control side of the engine: what is admitted, how it is started, and how it is made ready.
//!
//! Modules are listed from the lowest up; each uses only those above it. No protocol is known here.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod api_path;
pub mod placement;
pub mod rights;
pub mod secret;
pub mod socket_file;

mod claim;
pub mod class;

pub mod settings;

mod core_threads;

pub mod access;

pub mod measure;

pub mod broker;

pub mod placer;

pub mod changes;

pub mod local;

pub mod engine;

pub mod generated;
pub mod trick;

pub mod ts_packets;

pub mod indexing;

pub mod pins;

pub mod recording;
