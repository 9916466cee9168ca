//! What the tests of several crates share: processes, servers, network namespaces, a disk model,
//! small disks.
//!
//! Promise: a process ends with its test, however the test ends. What is missing on the machine
//! fails the test by name. Only tests depend on this crate, and it imports no other crate of the
//! workspace, so that a change in one of them does not build it again.
#![forbid(unsafe_code)]

pub mod ffprobe;
pub mod process;
pub mod programs;
pub mod small_disk;

pub mod namespace;
pub mod server;

/// Text of a disk model, so that no test waits for a measurement or depends on one.
pub const DISK_MODEL: &str = "version = 1\nmeasured = \"never\"\ndevice = \"none\"\n\
                              probes = false\n[model]\n\
                              visit = \"50 us\"\nsweep = \"0 ns\"\nread_mib = \"400 us\"\n\
                              write_mib = \"900 us\"\ndepth = 8\n";

/// `len` bytes of which no two places look alike: xorshift64 of Marsaglia. Another `seed` gives
/// other bytes.
#[must_use]
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
