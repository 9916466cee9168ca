//! The real-time side: servers that talk through rings, and the cores they sit on.
#![forbid(unsafe_code)]

pub mod message;
