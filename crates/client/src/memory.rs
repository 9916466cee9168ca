//! The memory that a client and the server share: a sealed memory file, mapped by both.
//!
//! Promise: the file never shrinks, so a mapped page never disappears under the other side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use tactus_ring::shared::SharedMemory;

/// A mapping of a memory file that grows: of more bytes than the file has.
pub struct GrowingMapping {
    mapping: Mapping,
}

/// A mapping of a memory file.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

/// Makes a memory file of `len` zero bytes, and seals its length.
///
/// # Errors
/// What the kernel says.
pub fn create(len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("tactus-client", flags)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Makes an empty memory file for a title that a program builds. It can grow and cannot shrink.
///
/// # Errors
/// What the kernel says.
pub fn create_growing() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("tactus-title", flags)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fcntl_add_seals(&file, GROWING_SEALS)?;
    Ok(file)
}

/// Makes an empty memory file for a title, whose length its owner may change at any time.
///
/// # Errors
/// What the kernel says.
pub fn create_title() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("tactus-title", flags)?;
    // Other users cannot open it for writing by their descriptor.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::RGRP | Mode::ROTH)?;
    Ok(file)
}

/// Seals the content of a memory file against everybody but the mappings that exist.
///
/// # Errors
/// What the kernel says.
pub fn seal_content(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

impl Mapping {
    /// Maps `len` bytes of a memory file of this process for reading and writing.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of_own(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of a title's memory file for reading only.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of_title(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(file, len, ProtFlags::READ)
    }

    /// Maps all of a sealed memory file for reading and writing.
    ///
    /// # Errors
    /// `EINVAL` if its length is not sealed or is not `len`, otherwise what the kernel says.
    pub fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(file)?;
        let is_whole = rustix::fs::fstat(file)?.st_size as u64 == len as u64;
        if !sealed.contains(SEALS) || !is_whole {
            return Err(Errno::INVAL.into());
        }
        Self::of_own(file, len)
    }

    fn map(file: BorrowedFd<'_>, len: usize, access: ProtFlags) -> io::Result<Self> {
        Self::map_as(file, len, access, MapFlags::SHARED | MapFlags::POPULATE)
    }

    fn map_as(
        file: BorrowedFd<'_>,
        len: usize,
        access: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        // SAFETY: the kernel chooses a free address, so no existing memory changes.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file.as_fd(), 0) }?;
        let base = NonNull::new(mapped.cast()).expect("the kernel maps nothing at address zero");
        Ok(Self { base, len })
    }
}

impl GrowingMapping {
    /// Maps `len` bytes of `file` for reading and writing. The file may have fewer, and may grow;
    /// it cannot shrink.
    ///
    /// # Errors
    /// `EINVAL` if its length is not sealed against shrinking, otherwise what the kernel says.
    pub fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        if !rustix::fs::fcntl_get_seals(file)?.contains(GROWING_SEALS) {
            return Err(Errno::INVAL.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        Ok(Self { mapping: Mapping::map_as(file, len, access, flags)? })
    }

    /// The bytes from `first` on.
    ///
    /// # Safety
    /// The file has `first + len` bytes, and nobody writes to these while the slice lives.
    ///
    /// # Panics
    /// If so many are not mapped.
    #[must_use]
    pub unsafe fn bytes(&self, first: usize, len: usize) -> &[u8] {
        let from = self.address(first, len);
        // SAFETY: mapped, and there, as the caller promises.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    /// The bytes from `first` on, to be changed.
    ///
    /// # Safety
    /// As [`Self::bytes`].
    ///
    /// # Panics
    /// If so many are not mapped.
    pub unsafe fn bytes_mut(&mut self, first: usize, len: usize) -> &mut [u8] {
        let from = self.address(first, len);
        // SAFETY: mapped, and there, as the caller promises; borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(from, len) }
    }

    fn address(&self, first: usize, len: usize) -> *mut u8 {
        let end = first.checked_add(len).expect("a range of memory");
        assert!(end <= self.mapping.len, "the bytes are mapped");
        // SAFETY: in bounds of the mapping.
        unsafe { self.mapping.base.add(first) }.as_ptr()
    }
}

// SAFETY: its own mapping, aligned to a page by the kernel, of a file that cannot shrink; unmapped
// by `drop` only.
unsafe impl SharedMemory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: it owns its mapping, and hands out an address, never references.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and all borrows of it have ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
const GROWING_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_bytes_and_nobody_can_take_them_away() {
        let file = create(8192).unwrap();
        let (one, other) = (map(&file, 8192).unwrap(), map(&file, 8192).unwrap());
        let last = |mapping: &Mapping| mapping.base().as_ptr().wrapping_add(8191);
        // SAFETY: in bounds of a mapping that only this test touches.
        unsafe { last(&one).write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { last(&other).read_volatile() }, 7);
        assert_eq!(rustix::fs::ftruncate(&file, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 16384), Err(Errno::PERM));
    }

    #[test]
    fn a_file_that_could_shrink_or_has_another_length_is_not_mapped() {
        let file = create(8192).unwrap();
        assert!(map(&file, 4096).is_err());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        assert!(map(&open, 8192).is_err());
    }

    fn map(file: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::new(file.as_fd(), len)
    }
}
