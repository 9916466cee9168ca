//! Packet ports: the paths of datagrams into the kernel.
//!
//! Promise: each port takes messages of one UDP output, and returns the number taken and the reason
//! of a stop. All ports send the same datagrams. Modules are listed from the lowest up: sockets,
//! frames that bypass a part of the kernel, ports with transmit times, and the choice between all
//! of them.

pub mod udp_output;

mod frame;
mod routes;

mod directions;

mod early_queue;
mod frames;

pub mod gaps;
pub mod ring;
pub mod txtime;

pub mod back_end;
