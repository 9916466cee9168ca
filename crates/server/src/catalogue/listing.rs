//! What a directory shows: names, kinds, sizes, times, and rates as far as they are known.
//!
//! Promise: it shows only what can be asked for (no links, no devices, no other mounts, no reserved
//! or unspeakable names) and never more than its bound. Names that begin with a dot are served, but
//! not shown. It looks for no rates.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Statx, StatxFlags};
use tactus_core::path::check_name;
use tactus_core::units::{BitRate, Bytes, WallTime};

use super::FileVersion;
use super::volume::{Fault, Volume, is_reserved};

/// A directory at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Directories first, then by name.
    pub entries: Vec<Entry>,
    /// Whether these are all; false when the bound was reached.
    pub complete: bool,
}

/// One line of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name within its directory.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
    /// When it last changed; unknown for a mounted volume.
    pub modified: Option<WallTime>,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A stored object.
    Title {
        /// Its length.
        len: Bytes,
        /// The rate that it needs to play, when it is known.
        own_rate: Option<BitRate>,
    },
}

/// Reads the directory behind `handle`; `rate` tells the rates that are known.
pub(super) fn read(
    volume: &Volume,
    handle: OwnedFd,
    entries_max: usize,
    rate: impl Fn(&FileVersion) -> Option<BitRate>,
) -> Result<Listing, Fault> {
    let mount = status(volume.root(), c"").map_err(Fault::Failed)?.stx_mnt_id;
    let mut entries = Vec::new();
    let mut complete = true;
    for found in Dir::read_from(&handle).map_err(Fault::Failed)? {
        let found = found.map_err(Fault::Failed)?;
        let Some(name) = shown(found.file_name()) else { continue };
        if entries.len() == entries_max {
            complete = false;
            break;
        }
        // It may be gone again, or not be ours to see: then it is not there.
        let Ok(status) = status(&handle, found.file_name()) else { continue };
        if status.stx_mnt_id != mount {
            continue;
        }
        let version = version(&status);
        let kind = match FileType::from_raw_mode(u32::from(status.stx_mode)) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => {
                EntryKind::Title { len: version.len, own_rate: rate(&version) }
            }
            _ => continue,
        };
        entries.push(Entry { name, kind, modified: Some(version.modified_wall()) });
    }
    let mut listing = Listing { entries, complete };
    listing.sort();
    Ok(listing)
}

impl Listing {
    /// Adds the volumes that are mounted here; a mount hides what has its name.
    pub(super) fn add_directories<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            self.entries.retain(|entry| entry.name != name);
            self.entries.push(Entry {
                name: name.to_owned(),
                kind: EntryKind::Directory,
                modified: None,
            });
        }
        self.sort();
    }

    fn sort(&mut self) {
        self.entries.sort_by(|a, b| (a.rank(), &a.name).cmp(&(b.rank(), &b.name)));
    }
}

impl Entry {
    fn rank(&self) -> u8 {
        u8::from(self.kind != EntryKind::Directory)
    }
}

fn shown(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    let hidden = name.starts_with('.') || is_reserved(name) || check_name(name).is_err();
    (!hidden).then(|| name.to_owned())
}

fn status(directory: impl AsFd, name: &CStr) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    rustix::fs::statx(directory, name, flags, mask)
}

fn version(status: &Statx) -> FileVersion {
    FileVersion {
        device: rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor),
        inode: status.stx_ino,
        len: Bytes(status.stx_size),
        modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
        changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
    }
}
