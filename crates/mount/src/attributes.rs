//! Attributes of files and directories, as the kernel wants them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use tactus_client::Stat;

/// What is the same for all files of a mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Bits that no mode has.
    pub(crate) umask: u16,
    /// The owner may write.
    pub(crate) is_writable: bool,
}

/// The attributes of the node `number`.
pub(crate) fn attributes(number: u64, stat: &Stat, owner: &Ownership) -> FileAttr {
    let modified = time(stat.modified);
    let (kind, mode) = match stat.is_directory {
        true => (FileType::Directory, 0o555),
        false => (FileType::RegularFile, 0o444),
    };
    let mode = if owner.is_writable { mode | 0o200 } else { mode };
    FileAttr {
        ino: INodeNo(number),
        size: stat.len,
        blocks: stat.len.div_ceil(UNIT),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind,
        perm: mode & !owner.umask,
        // Of a directory 1 says that its subdirectories are not counted, as on btrfs: programs
        // that walk a tree rely on any other number.
        nlink: 1,
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

/// The same for a file that has lost its name and is still open.
pub(crate) fn nameless(number: u64, stat: &Stat, owner: &Ownership) -> FileAttr {
    FileAttr { nlink: 0, ..attributes(number, stat, owner) }
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    match nanoseconds {
        0.. => UNIX_EPOCH + distance,
        _ => UNIX_EPOCH - distance,
    }
}

/// Bytes of a block as `st_blocks` counts them.
const UNIT: u64 = 512;
/// What the space of a file system is counted in.
pub(crate) const BLOCK: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_modes_are_those_of_the_title() {
        let owner = Ownership { uid: 5, gid: 6, umask: 0o007, is_writable: false };
        let stat = Stat { len: 513, modified: 1_500_000_000_000_000_001, ..Stat::default() };
        let found = attributes(9, &stat, &owner);
        assert_eq!((found.ino, found.size, found.blocks), (INodeNo(9), 513, 2));
        assert_eq!((found.uid, found.gid, found.perm, found.nlink), (5, 6, 0o440, 1));
        assert_eq!((found.kind, found.atime), (FileType::RegularFile, found.mtime));
        assert_eq!(found.mtime, UNIX_EPOCH + Duration::new(1_500_000_000, 1));
        let directory = Stat { is_directory: true, modified: -1, ..Stat::default() };
        let found = attributes(1, &directory, &owner);
        assert_eq!((found.kind, found.perm), (FileType::Directory, 0o550));
        assert!(found.mtime < UNIX_EPOCH);
        let owner = Ownership { is_writable: true, ..owner };
        assert_eq!(attributes(1, &directory, &owner).perm, 0o750);
        assert_eq!(attributes(9, &stat, &owner).perm, 0o640);
        assert_eq!(nameless(9, &stat, &owner).nlink, 0);
    }
}
