//! The decisions of Tactus, without memory, devices, threads or clocks.
//!
//! Everything here is a value or a state machine that is handed the time and answers. The real-time
//! servers, the control side and the simulator all decide with this code, so what the simulator
//! proves about it holds in production. Modules are listed from the lowest up.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod mutant;
pub mod units;

mod encoding;

pub mod byte_clock;
pub mod gaps;
pub mod pacer;
pub mod ports;
pub mod stagger;
pub mod sums;

pub mod rtp;
pub mod sdp;
pub mod ts;

pub mod polyline;
pub mod smoothing;
pub mod timeline;

pub mod envelope;

pub mod assembly;
pub mod datagrams;
pub mod generated;

pub mod classes;
pub mod disk_model;

pub mod estimator;

pub mod overload;

pub mod timed;

pub mod block_list;
pub mod cost;
pub mod cycle;
pub mod kernel_read_ahead;
pub mod ledger;
pub mod read_ahead;
pub mod split;

pub mod balance;
pub mod cycle_choice;
pub mod local;

pub mod path;
pub mod range;
pub mod rtsp;
