//! Packet ports: the ways by which datagrams leave.
//!
//! Promise: each takes messages of one outlet and says how many it took and why it stopped; whichever is chosen, what leaves is
//! the same. Modules are listed from the lowest up: sockets, frames that go past a part of the kernel, ports that are given
//! datagrams before they are due, and the choice between all of them.

pub mod outlet;

mod frame;
mod routes;

mod directions;

mod frames;
mod held;

pub mod gaps;
pub mod ring;
pub mod txtime;

pub mod back_end;
