//! Which device lies below a directory, and what the kernel says of it.
//!
//! Promise: it only reads `/sys` and `/proc`; what cannot be found out is `None`. What the kernel
//! says of a virtual disk may be wrong (`rotational` is often 1 there): times are the truth.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tactus_core::units::{Bytes, KIB};

/// A block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The whole disk's name in `/dev`: `sda`, `nvme0n1`.
    pub name: String,
    /// What the maker calls it.
    pub model: Option<String>,
    /// Size of the whole disk.
    pub size: Bytes,
    /// Whether the kernel takes it for a spinning disk.
    pub rotational: bool,
    /// Whether it is a virtual machine's, where `rotational` means nothing.
    pub is_virtual: bool,
    /// What the kernel reads ahead through the page cache.
    pub read_ahead: Bytes,
    /// The I/O scheduler in force.
    pub scheduler: String,
}

/// The device below the file system at `path`; `None` for file systems without one.
pub fn of(path: &Path) -> Option<Device> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    whole_disk(&node)
}

/// From a partition to its disk; a disk has a `queue`.
fn whole_disk(node: &Path) -> Option<Device> {
    let node = if node.join("queue").is_dir() { node } else { node.parent()? };
    let name = node.file_name()?.to_string_lossy().into_owned();
    let text = |file: &str| Some(fs::read_to_string(node.join(file)).ok()?.trim().to_owned());
    let number = |file: &str| text(file).and_then(|text| text.parse::<u64>().ok());
    Some(Device {
        model: text("device/model").filter(|model| !model.is_empty()),
        size: Bytes(number("size")? * 512),
        rotational: number("queue/rotational")? == 1,
        is_virtual: ["vd", "xvd"].iter().any(|start| name.starts_with(start)),
        read_ahead: Bytes(number("queue/read_ahead_kb").unwrap_or(0) * KIB),
        scheduler: chosen(&text("queue/scheduler").unwrap_or_default()),
        name,
    })
}

/// The kernel's release, like `6.18.44`.
pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// The one in brackets: `none [mq-deadline] bfq`.
pub fn chosen(list: &str) -> String {
    let inside = list.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(list, |(chosen, _)| chosen).trim().to_owned()
}

/// Where the file system of `path` is mounted, and its kind, by `/proc/self/mounts`.
pub fn mount_of(path: &Path) -> Option<(PathBuf, String)> {
    let path = fs::canonicalize(path).ok()?;
    mount_in(&fs::read_to_string("/proc/self/mounts").ok()?, &path)
}

fn mount_in(mounts: &str, path: &Path) -> Option<(PathBuf, String)> {
    let each = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        // The kernel writes blanks in names as octal numbers.
        let at = at.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        path.starts_with(&at).then(|| (PathBuf::from(at), kind.to_owned()))
    });
    // Of equally long ones the later was mounted over the earlier.
    each.max_by_key(|(at, _)| at.as_os_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_below_a_path_is_the_longest_and_the_last() {
        let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /srv xfs rw 0 0\nx /srv/my\\040disk tmpfs rw 0 0\n\
                      /dev/c /srv btrfs rw 0 0\n";
        let at = |path: &str| {
            mount_in(mounts, Path::new(path))
                .map(|(at, kind)| (at.to_string_lossy().into_owned(), kind))
        };
        let expected = |at: &str, kind: &str| Some((at.to_owned(), kind.to_owned()));
        assert_eq!(at("/home/x"), expected("/", "ext4"));
        assert_eq!(at("/srv/films"), expected("/srv", "btrfs"));
        assert_eq!(at("/srv/my disk/a"), expected("/srv/my disk", "tmpfs"));
        assert_eq!(at("/srvx"), expected("/", "ext4"));
    }

    #[test]
    fn the_chosen_scheduler_stands_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] bfq\n"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }

    #[test]
    fn the_disk_below_this_program_has_a_size() {
        // Overlay and memory file systems have none; that is an answer too.
        if let Some(device) = of(Path::new("/")) {
            assert!(device.size > Bytes(0) && !device.name.is_empty());
        }
    }
}
