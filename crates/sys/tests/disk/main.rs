//! The disk ports on the real kernel: what they read is what the file holds, and memory comes back
//! only when the kernel is done with it.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod fixture;
mod ports;
mod refused;
mod stress;
mod writes;
