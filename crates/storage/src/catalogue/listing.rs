//! Entries of listings: name, kind, size, times, and the rate if it is known. No rate is determined
//! here.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use tactus_core::path::check_name;
use tactus_core::units::{BitRate, Bytes, Nanos, WallTime};
use tactus_media::MediaFacts;

use super::volume::{Fault, is_reserved};
use super::{Detail, Digests, FileVersion, media_type};

/// One line of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name within its directory.
    pub name: String,
    /// Its kind.
    pub kind: EntryKind,
    /// When it last changed; unknown for a mounted volume.
    pub modified: Option<WallTime>,
    /// When it was created, if the file system reports it.
    pub created: Option<WallTime>,
    /// The title's entity tag.
    pub etag: Option<String>,
    /// Which file a title is ([`FileVersion::file`]).
    pub file: Option<u64>,
    /// Whether it is a title that is not complete.
    pub grows: bool,
    /// Its checksums, if known and requested.
    pub digests: Option<Digests>,
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A stored object.
    Title {
        /// Its length.
        len: Bytes,
        /// Its mean rate, when it is known.
        own_rate: Option<BitRate>,
        /// Its highest rate, if its rate is variable and this is known.
        peak: Option<BitRate>,
        /// Its duration, if known.
        duration: Option<Nanos>,
    },
}

/// The entry of the open file `handle` with the name `name`.
pub(super) fn read_one(handle: &OwnedFd, name: &str, detail: Detail) -> Result<Entry, Fault> {
    let status = status(handle, c"").map_err(Fault::Failed)?;
    let mut entry = entry(name.to_owned(), &status, |_| None).ok_or(Fault::NotServed)?;
    if detail == Detail::Digests && entry.kind != EntryKind::Directory {
        entry.digests = Digests::of(handle);
    }
    Ok(entry)
}

pub(super) fn entry(
    name: String,
    status: &Statx,
    facts: impl FnOnce(&FileVersion) -> Option<MediaFacts>,
) -> Option<Entry> {
    let version = version(status);
    let (kind, etag, file) = match FileType::from_raw_mode(u32::from(status.stx_mode)) {
        FileType::Directory => (EntryKind::Directory, None, None),
        FileType::RegularFile => {
            let facts = facts(&version);
            let kind = EntryKind::Title {
                len: version.len,
                own_rate: facts.map(|facts| facts.rate),
                peak: facts.and_then(|facts| facts.peak),
                duration: facts.map(|facts| facts.duration),
            };
            (kind, Some(version.etag()), Some(version.file()))
        }
        _ => return None,
    };
    let known = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::BTIME);
    let created = known.then(|| wall(status.stx_btime.tv_sec, status.stx_btime.tv_nsec));
    let modified = Some(version.modified_wall());
    Some(Entry { name, kind, modified, created, etag, file, grows: false, digests: None })
}

/// Times before 1970 become 1970.
fn wall(seconds: i64, nanos: u32) -> WallTime {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    WallTime(seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(nanos)))
}

impl Entry {
    /// An entry for the mount point of a volume: only its name is known.
    pub(super) fn mounted(name: &str) -> Self {
        let (name, kind) = (name.to_owned(), EntryKind::Directory);
        Self {
            name,
            kind,
            modified: None,
            created: None,
            etag: None,
            file: None,
            grows: false,
            digests: None,
        }
    }

    /// The media type of a title, by its name.
    pub fn media_type(&self) -> &'static str {
        media_type::of(&self.name)
    }
}

/// The name, if it can be requested and is not hidden.
pub(super) fn shown(name: &CStr) -> Option<String> {
    can_be_asked_for(name).filter(|name| !name.starts_with('.'))
}

fn can_be_asked_for(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    let not_served = is_reserved(name) || check_name(name).is_err();
    (!not_served).then(|| name.to_owned())
}

pub(super) fn status(directory: impl AsFd, name: &CStr) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::BTIME;
    rustix::fs::statx(directory, name, flags, mask)
}

pub(super) fn version(status: &Statx) -> FileVersion {
    FileVersion {
        device: rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor),
        inode: status.stx_ino,
        len: Bytes(status.stx_size),
        modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
        changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
    }
}
