//! Devices without servers: the system calls of Tactus' data path, and the facts about the machine.
//!
//! Promise: nothing here decides. Ports take work and give it back done; every refusal of the
//! kernel becomes a value that the caller can report, and where there is another way it is taken
//! and named. Callers stay safe: each `unsafe` stands in the smallest function that can state its
//! contract. The control side's own files and sockets are not here: only what the real-time side
//! touches, and what safe libraries do not offer.

pub mod clock;
pub mod thread;

pub mod memory;
mod timers;
pub mod waker;

pub mod region;

pub mod activation;
pub mod file;
pub mod tcp;
pub mod udp_input;

pub mod packets;

pub mod disk;

pub mod probe;
