//! The program `tactus` as a child process, and what its users do with it.
//!
//! Promise: one test binary for all of it, so that a change in any crate links it once. Each module
//! is a subject. Servers run one at a time (`tactus_testkit::process::turn`), because each pins its
//! cores.

/// The program under test.
const TACTUS: &str = env!("CARGO_BIN_EXE_tactus");

mod clients;
mod judge;
mod media_server;

mod adaptive;
mod classes;
mod cli;
mod conformance;
mod everyday;
mod indexes;
mod live;
mod local;
mod mount;
mod operating;
mod pins;
mod place;
mod players;
mod proxies;
mod rtsp_matrix;
mod rtsp_retina;
mod seeks;
mod sound;
mod uploaders;
mod variable_rates;
mod volumes;
