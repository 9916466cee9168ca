//! The identity of a version of a file, behind title numbers and entity tags.
//!
//! Promise: two states of the store with different content have different versions, as far as the
//! file system shows. The status-change time is part of the version, because another file can get
//! the modification time and the inode number of a removed file (`cp -p`).

use rustix::fs::Stat;
use tactus_core::units::{Bytes, WallTime};

/// A file at one point in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileVersion {
    /// The file system.
    pub device: u64,
    /// The file within it.
    pub inode: u64,
    /// Its length.
    pub len: Bytes,
    /// When its content changed: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// When its content or its attributes changed.
    pub changed: (i64, u32),
}

impl FileVersion {
    /// Reads the version from a file's status.
    pub fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            len: Bytes(u64::try_from(stat.st_size).unwrap_or(0)),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }

    /// The modification time; times before 1970 become 1970.
    pub fn modified_wall(&self) -> WallTime {
        let seconds = u64::try_from(self.modified.0).unwrap_or(0);
        WallTime(seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(self.modified.1)))
    }

    /// Which file it is a version of, as a digest: no other file that exists at the same time has
    /// the same number, as far as 64 bits can tell them apart. Changes of its content leave it.
    pub fn file(&self) -> u64 {
        let words = [self.device, self.inode];
        fnv_1a(words.iter().flat_map(|word| word.to_le_bytes())) as u64
    }

    /// The strong entity tag (RFC 9110 section 8.8.3), with its quotes. It is a digest, so it
    /// reveals nothing about the file system.
    pub fn etag(&self) -> String {
        let words = [
            self.device,
            self.inode,
            self.len.0,
            self.modified.0 as u64,
            u64::from(self.modified.1),
            self.changed.0 as u64,
            u64::from(self.changed.1),
        ];
        format!("\"{:032x}\"", fnv_1a(words.iter().flat_map(|word| word.to_le_bytes())))
    }
}

/// FNV-1a with 128 bits (RFC 9923). It only distinguishes versions. A collision gives an attacker
/// nothing: the permission to set a file's times includes its content.
fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u128 {
    const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!(fnv_1a([].into_iter()), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv_1a([b'a'].into_iter()), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn every_part_of_a_version_changes_its_tag() {
        let version =
            FileVersion { device: 1, inode: 2, len: Bytes(3), modified: (4, 5), changed: (6, 7) };
        let others = [
            FileVersion { device: 9, ..version },
            FileVersion { inode: 9, ..version },
            FileVersion { len: Bytes(9), ..version },
            FileVersion { modified: (9, 5), ..version },
            FileVersion { modified: (4, 9), ..version },
            FileVersion { changed: (9, 7), ..version },
            FileVersion { changed: (6, 9), ..version },
        ];
        assert!(others.iter().all(|other| other.etag() != version.etag()));
        let files = others.iter().map(|other| other.file() != version.file());
        assert!(files.eq([true, true, false, false, false, false, false]), "only device and inode");
        assert!(version.etag().starts_with('"') && version.etag().ends_with('"'));
    }
}
