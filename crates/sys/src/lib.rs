//! System calls of Tactus' data path, and facts about the machine.
//!
//! Promise: this crate makes no decisions. Ports take work and return results. Every refusal of the
//! kernel becomes a value that the caller can report. If there is another way, it is taken and
//! reported. Callers are safe code: each `unsafe` is in the smallest function that can state its
//! contract. Files and sockets of the control side alone are not here; this crate has the calls of
//! the real-time side, and those that safe libraries do not offer.

pub mod clock;
pub mod thread;
pub mod topology;

pub mod memory;
mod timers;
pub mod waker;

pub mod region;

mod netlink;

pub mod activation;
pub mod file;
pub mod sound_device;
pub mod udp_input;

pub mod packets;

pub mod disk;

pub mod tcp;

pub mod probe;
