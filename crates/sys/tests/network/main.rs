//! What the ports do where the kernel's network is in the way: devices that go down or change,
//! disciplines that drop, addresses that mean one link only. Each test has a network namespace of
//! its own.
//!
//! It needs `unshare`, `ip` and `tc`, and the right to make namespaces; what is missing is named.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod gap_frames;
mod namespace;
mod one_link;
mod queues;
