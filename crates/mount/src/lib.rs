//! The mount: the library of a running server as a directory of this machine.
//!
//! Promise: a program that knows only files reads titles as files. It sees every change that comes
//! by another door, at the latest when the time of the attributes is over, and at once when it
//! opens a title; what it has open stays the version that it has opened. A slow read delays no
//! other one, and a server that has gone is an error number, never a wait without end.
//!
//! It is a local client like any other: rights, places and limits are those of `[local]`. How
//! requests travel and what the kernel keeps is in `docs/design/mount.md`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod attributes;
mod file_writer;
mod habit;
mod pace;
mod priority;
mod processes;
mod trial;
mod wakefulness;

pub mod options;
mod reader;

mod read_ahead;

mod connections;
mod pacer;

mod work;

mod open_file;

mod nodes;
mod unpublished;

mod directory;

mod library;

mod writing;

mod changes;

mod filesystem;

mod mounting;

pub use mounting::{mount, prepare};
pub use options::{MountOptions, OptionError};
