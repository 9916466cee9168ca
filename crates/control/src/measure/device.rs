//! The disk below a directory, as far as the measurement needs it.
//!
//! Promise: it only reads. The kernel's statements about a virtual disk may be wrong (`rotational`
//! is often 1 there): only measured times are reliable.

use std::path::Path;

use tactus_core::units::Bytes;
use tactus_sys::probe;

/// A block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The whole disk's name in `/dev`: `sda`, `nvme0n1`.
    pub name: String,
    /// The manufacturer's name for it.
    pub model: Option<String>,
    /// Size of the whole disk; zero when unknown.
    pub size: Bytes,
    /// Whether the kernel reports a spinning disk.
    pub rotational: bool,
    /// Whether it belongs to a virtual machine, where `rotational` means nothing.
    pub is_virtual: bool,
}

/// The disk below the file system at `path`; `None` for file systems without one.
pub fn of(path: &Path) -> Option<Disk> {
    let device = probe::volume(path).ok()?.device?;
    let sectors = std::fs::read_to_string(format!("/sys/block/{}/size", device.name));
    // The kernel counts in 512 bytes here, whatever the disk's own sector.
    let size = sectors.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0) * 512;
    Some(Disk {
        size: Bytes(size),
        rotational: device.rotational == Some(true),
        is_virtual: ["vd", "xvd"].iter().any(|start| device.name.starts_with(start)),
        model: device.model,
        name: device.name,
    })
}

/// The kernel's release, like `6.18.44`.
pub fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
