//! The emulated disk: a block device with the timing of a real one, the same in every run.
//!
//! Promise: a FUSE daemon in a process of its own exposes one file, a loop device with direct I/O
//! lies above it, and ext4 above that; so every server sees an ordinary block device, and the model
//! alone decides when a request is answered. It says nothing about the cost in CPU: the daemon
//! burns some on the same cores.

pub mod check;
pub mod daemon;
mod device;
mod export;
pub(crate) mod exported_file;
pub(crate) mod loop_device;
mod model;
mod store;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use tactus_core::units::{Bytes, Nanos};

pub use daemon::EmulatedDisk;
pub use export::RequestCounts;
pub use loop_device::remove_leftovers;

/// Which kind of disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
pub enum Profile {
    /// A 7200 rpm disk: one actuator, 150 MB/s on the track, seek and rotation before it.
    Hdd,
    /// A SATA SSD: 500 MB/s, writes ten times dearer, collection pauses of 20 to 100 ms.
    Sata,
    /// An NVMe SSD: 3 GB/s.
    Nvme,
}

/// What a disk is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The timing.
    pub profile: Profile,
    /// The span of addresses.
    pub size: Bytes,
    /// The seed of everything random.
    pub seed: u64,
    /// The device's read-ahead.
    pub read_ahead: Bytes,
    /// The I/O scheduler above it.
    pub queue: Queue,
    /// Where the file system is mounted.
    pub mount: PathBuf,
}

/// The I/O scheduler above a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its name in sysfs.
    pub scheduler: String,
    /// Its own settings that differ from the kernel's, by their names in `queue/iosched`.
    pub tuned: Vec<(String, String)>,
}

impl Queue {
    /// A scheduler as the kernel sets it up.
    pub fn plain(scheduler: &str) -> Self {
        Self { scheduler: scheduler.into(), tuned: Vec::new() }
    }

    /// The same with one more setting of its own.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.tuned.push((key.into(), value.into()));
        self
    }

    /// BFQ as one who wants guarantees sets it: one request at a time at the device, and no guesses
    /// about who is interactive.
    pub fn strict_bfq() -> Self {
        Self::plain("bfq").with("strict_guarantees", "1").with("low_latency", "0")
    }
}

impl std::fmt::Display for Queue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.scheduler)?;
        self.tuned.iter().try_for_each(|(key, value)| write!(out, " {key}={value}"))
    }
}

/// What one sweep of a 7200 rpm disk over `visits` places takes on average, with a transfer of
/// `length` at each; the places lie evenly over `span`, a share of the whole disk.
pub fn sweep(visits: u32, span: f64, length: Bytes) -> Nanos {
    model::Spinning::sweep(visits, span, length)
}

impl Shape {
    /// The usual disk of this profile, mounted at `mount`.
    pub fn usual(profile: Profile, mount: &Path) -> Self {
        Self {
            profile,
            size: Bytes(64 << 30),
            seed: 1,
            read_ahead: Bytes(128 << 10),
            queue: Queue::plain("mq-deadline"),
            mount: mount.to_owned(),
        }
    }
}
