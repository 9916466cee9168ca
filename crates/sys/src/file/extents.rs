//! Where a file lies on its device: the sweep's key, by the FIEMAP ioctl
//! (Documentation/filesystems/fiemap.rst in the kernel).
//!
//! Promise: positions are as the file system knows them now; a file that is moved later (by
//! defragmentation) only costs seeks. Positions count from the start of the block device that the
//! file system lies on.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// A run of a file that is contiguous on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Where it begins on the device, in bytes.
    pub position: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Extents asked for in one call; 56 bytes each, on the stack.
const BATCH: usize = 64;

/// Where the file's first byte on the device is; `None` where the file system has no places
/// (network, memory, overlay) or has not chosen one yet.
///
/// # Errors
/// When the file cannot be asked at all.
pub fn first_position(file: impl AsFd) -> io::Result<Option<u64>> {
    Ok(extents(file, 1)?.and_then(|list| list.first().map(|extent| extent.position)))
}

/// The first `limit` extents of a file in the order of its bytes; holes, and data without a place
/// of their own (inline, compressed in part, not yet written), are left out. `None` where the file
/// system has no places.
///
/// # Errors
/// When the file cannot be asked at all.
pub fn extents(file: impl AsFd, limit: usize) -> io::Result<Option<Vec<Extent>>> {
    let file = file.as_fd().as_raw_fd();
    let mut list = Vec::new();
    let mut from = 0;
    while list.len() < limit {
        let mut query = Query::new(from);
        // SAFETY: `Query` is laid out as the kernel's `struct fiemap` with room for `BATCH`
        // extents, as its count says; the kernel writes within it.
        if unsafe { libc::ioctl(file, FS_IOC_FIEMAP, &raw mut query) } != 0 {
            let refused = io::Error::last_os_error();
            let unsupported = [libc::EOPNOTSUPP, libc::ENOTTY, libc::EINVAL, libc::ENOSYS];
            return match refused.raw_os_error() {
                Some(errno) if unsupported.contains(&errno) => Ok(None),
                _ => Err(refused),
            };
        }
        let found = query.found()?;
        for raw in found {
            if raw.flags & NO_PLACE == 0 && list.len() < limit {
                list.push(Extent { offset: raw.logical, position: raw.physical, len: raw.length });
            }
        }
        let Some(last) = found.last().filter(|raw| raw.flags & LAST == 0) else { break };
        let next = last.logical + last.length;
        // Each turn goes on in the file, so the loop ends.
        if next <= from {
            return Err(Errno::IO.into());
        }
        from = next;
    }
    Ok(Some(list))
}

/// `_IOWR('f', 11, struct fiemap)`; the struct's fixed part is 32 bytes.
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
/// FIEMAP_EXTENT_LAST: no more after this one.
const LAST: u32 = 0x1;
/// FIEMAP_EXTENT_UNKNOWN, _DELALLOC, _ENCODED, _NOT_ALIGNED, _DATA_INLINE, _DATA_TAIL: the position
/// is not one that a direct read goes to.
const NO_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400;

/// `struct fiemap` with its extents.
#[repr(C)]
struct Query {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [MaybeUninit<RawExtent>; BATCH],
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const _: () = assert!(size_of::<RawExtent>() == 56);
const _: () = assert!(std::mem::offset_of!(Query, extents) == 32);

impl Query {
    fn new(start: u64) -> Self {
        Self {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [const { MaybeUninit::uninit() }; BATCH],
        }
    }

    /// The extents that the kernel has written.
    fn found(&self) -> io::Result<&[RawExtent]> {
        let written = self.extents.get(..self.mapped_extents as usize).ok_or(Errno::IO)?;
        // SAFETY: the kernel has written as many as it says; the type is plain numbers.
        Ok(unsafe { written.assume_init_ref() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn extents_cover_what_was_written_and_leave_holes_out() {
        let path = std::env::temp_dir().join(format!("tactus-extents-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // More pieces than one call returns, with a hole after each.
        let pieces = BATCH as u64 + 10;
        for piece in 0..pieces {
            file.write_all_at(&[1; 4096], piece * 3 * 4096).unwrap();
        }
        file.sync_all().unwrap();
        let Some(list) = extents(&file, usize::MAX).unwrap() else {
            println!("skipped: this file system has no places");
            return;
        };
        let first = first_position(&file).unwrap();
        assert_eq!(first, list.first().map(|extent| extent.position));
        if first.is_none() {
            println!("skipped: this file system chooses places later");
            return;
        }
        assert_eq!(list.iter().map(|extent| extent.len).sum::<u64>(), pieces * 4096);
        for (piece, extent) in list.iter().enumerate() {
            assert_eq!(extent.offset, piece as u64 * 3 * 4096);
            assert!(extent.position > 0);
        }
        assert_eq!(extents(&file, 5).unwrap().unwrap(), list[..5]);
    }

    #[test]
    fn a_file_without_places_says_so() {
        let version = File::open("/proc/version").unwrap();
        assert_eq!(first_position(&version).unwrap(), None);
    }
}
