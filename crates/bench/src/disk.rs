//! The emulated disk: a block device with the timing of a real one, the same in every run.
//!
//! Promise: a FUSE daemon in a process of its own exposes one file, a loop device with direct I/O
//! lies above it, and ext4 above that; so every server sees an ordinary block device, and the model
//! alone decides when a request is answered. It says nothing about the cost in CPU: the daemon burns
//! some on the same cores.

pub mod check;
pub mod daemon;
mod device;
mod export;
pub(crate) mod face;
mod model;
pub(crate) mod stand;
mod store;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use tactus_core::units::Bytes;

pub use daemon::Emulated;
pub use stand::remove_leftovers;

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
    /// The I/O scheduler above it, by its name in sysfs.
    pub scheduler: String,
    /// Where the file system is mounted.
    pub mount: PathBuf,
}

impl Shape {
    /// The usual disk of this profile, mounted at `mount`.
    pub fn usual(profile: Profile, mount: &Path) -> Self {
        Self {
            profile,
            size: Bytes(64 << 30),
            seed: 1,
            read_ahead: Bytes(128 << 10),
            scheduler: "mq-deadline".into(),
            mount: mount.to_owned(),
        }
    }
}
