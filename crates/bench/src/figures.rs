//! The figures of merit, computed from what the receiver saw.
//!
//! Promise: each is exactly the definition in `docs/benchmarks.md`; the tests check them against
//! examples worked by hand. They read no clock and no file.

pub mod delay_factor;
pub mod jitter;
pub mod lateness;
pub mod underrun;
pub mod windows;
