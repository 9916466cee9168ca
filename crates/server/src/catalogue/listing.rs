//! What a directory shows: names, kinds, sizes, times, and rates as far as they are known.
//!
//! Promise: it shows only what can be asked for (no links, no devices, no other mounts, no reserved
//! or unspeakable names) and never more than its bound. Names that begin with a dot are served, but
//! shown only to those who are to see everything. It looks for no rates.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Statx, StatxFlags};
use tactus_core::path::check_name;
use tactus_core::units::{BitRate, Bytes, Nanos, WallTime};

use super::volume::{Fault, Volume, is_reserved};
use super::{FileVersion, media_type};
use crate::media::MediaFacts;

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
    /// When it was made, where the file system tells.
    pub created: Option<WallTime>,
    /// The title's entity tag.
    pub etag: Option<String>,
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
        /// How long it plays, when it is known.
        duration: Option<Nanos>,
    },
}

/// What is to be read of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) entries_max: usize,
    /// Names that begin with a dot, too.
    pub(super) everything: bool,
}

/// Reads the directory behind `handle`; `facts` tells what is known of titles.
pub(super) fn read(
    volume: &Volume,
    handle: OwnedFd,
    reading: Reading,
    facts: impl Fn(&FileVersion) -> Option<MediaFacts>,
) -> Result<Listing, Fault> {
    let mount = status(volume.root(), c"").map_err(Fault::Failed)?.stx_mnt_id;
    let mut entries = Vec::new();
    let mut complete = true;
    for found in Dir::read_from(&handle).map_err(Fault::Failed)? {
        let found = found.map_err(Fault::Failed)?;
        let name = match reading.everything {
            true => can_be_asked_for(found.file_name()),
            false => shown(found.file_name()),
        };
        let Some(name) = name else { continue };
        if entries.len() == reading.entries_max {
            complete = false;
            break;
        }
        // It may be gone again, or not be ours to see: then it is not there.
        let Ok(status) = status(&handle, found.file_name()) else { continue };
        if status.stx_mnt_id != mount {
            continue;
        }
        entries.extend(entry(name, &status, &facts));
    }
    let mut listing = Listing { entries, complete };
    listing.sort();
    Ok(listing)
}

/// What is behind `handle`, which is open and called `name`.
pub(super) fn read_one(handle: &OwnedFd, name: &str) -> Result<Entry, Fault> {
    let status = status(handle, c"").map_err(Fault::Failed)?;
    entry(name.to_owned(), &status, |_| None).ok_or(Fault::NotServed)
}

fn entry(
    name: String,
    status: &Statx,
    facts: impl Fn(&FileVersion) -> Option<MediaFacts>,
) -> Option<Entry> {
    let version = version(status);
    let (kind, etag) = match FileType::from_raw_mode(u32::from(status.stx_mode)) {
        FileType::Directory => (EntryKind::Directory, None),
        FileType::RegularFile => {
            let facts = facts(&version);
            let kind = EntryKind::Title {
                len: version.len,
                own_rate: facts.map(|facts| facts.rate),
                duration: facts.map(|facts| facts.duration),
            };
            (kind, Some(version.etag()))
        }
        _ => return None,
    };
    let known = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::BTIME);
    let created = known.then(|| wall(status.stx_btime.tv_sec, status.stx_btime.tv_nsec));
    Some(Entry { name, kind, modified: Some(version.modified_wall()), created, etag })
}

/// Times from before 1970 are as if from 1970.
fn wall(seconds: i64, nanos: u32) -> WallTime {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    WallTime(seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(nanos)))
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
                created: None,
                etag: None,
            });
        }
        self.sort();
    }

    fn sort(&mut self) {
        self.entries.sort_by(|a, b| (a.rank(), &a.name).cmp(&(b.rank(), &b.name)));
    }
}

impl Entry {
    /// The media type of a title, by its name.
    pub fn media_type(&self) -> &'static str {
        media_type::of(&self.name)
    }

    fn rank(&self) -> u8 {
        u8::from(self.kind != EntryKind::Directory)
    }
}

/// The name of what can be asked for, and is shown to everybody.
pub(super) fn shown(name: &CStr) -> Option<String> {
    can_be_asked_for(name).filter(|name| !name.starts_with('.'))
}

fn can_be_asked_for(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    let not_served = is_reserved(name) || check_name(name).is_err();
    (!not_served).then(|| name.to_owned())
}

fn status(directory: impl AsFd, name: &CStr) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::BTIME;
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
