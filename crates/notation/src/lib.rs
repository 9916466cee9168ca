//! How people write values: quantities with units, words in place of values, networks, and the
//! messages about mistakes, with line and column.
//!
//! Promise: a text has one meaning or an error that says what to write instead. It knows no key and
//! no table: these belong to the crates whose settings they are.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod error;
pub mod net;
pub mod units;

pub mod value;

pub mod checks;

pub use error::ConfigError;
pub use value::Auto;
