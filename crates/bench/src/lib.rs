//! The bench of Tactus: load, receivers, emulated disks, peers and reports.
//!
//! Promise: every bench starts what it needs, measures in interleaved rounds, writes one report and
//! takes everything down again. It needs root and Linux. Definitions and method stand in
//! `docs/benchmarks.md`.
#![forbid(unsafe_code)]

pub mod aligned;
pub mod arrivals;
pub mod clock;
pub mod command;
pub mod interrupt;
pub mod machine;
pub mod priority;
mod random;
pub mod read_ahead;
pub mod search;
pub mod spread;
mod watcher;

pub mod cpu;
pub mod figures;
pub mod gaps;
pub mod host;
pub mod speed;

pub mod report;

pub mod phase;

pub mod classes;

pub mod disk;
pub mod group;
pub mod hogs;
pub mod netns;
pub mod programs;
pub mod receiver;
pub mod titles;
pub mod uploader;

pub mod floors;
pub mod peers;
pub mod run;

pub mod crowd;
pub mod datagrams;
pub mod file_load;
pub mod file_writer;
pub mod pace;
pub mod plain_sender;
pub mod wire_sender;

pub mod benches;

pub mod crash;
pub mod faulty;

pub mod rtsp_check;
