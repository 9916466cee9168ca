//! What of a file is in the page cache.

use tactus_core::kernel_read_ahead::WINDOWS;
use tactus_core::ports::FileHandle;
use tactus_core::units::Bytes;

use crate::memory::PAGE;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Residency {
    cached: u64,
    others: [u64; 4],
}

/// How many pages of a part of a file are in the page cache, or on their way there, or have failed
/// there. None before Linux 6.5, which has no `cachestat`; it looks without reading anything.
pub(super) fn pages_of(file: FileHandle, offset: u64, len: u64) -> Option<u64> {
    let range = Range { offset, len };
    let mut found = Residency::default();
    // SAFETY: both structures live through the call and have the layout of `cachestat_range` and
    // `cachestat`; a wrong descriptor is an error.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.0, &raw const range, &raw mut found, 0_u32) };
    (result == 0).then_some(found.cached)
}

/// Which parts of a file are in the page cache. Without `cachestat`, none counts as cached.
pub(super) struct Residence {
    /// The block itself.
    pub(super) is_in_memory: bool,
    /// The block and the bytes behind it that were asked about.
    pub(super) is_ahead: bool,
}

impl Residence {
    /// Of the `len` bytes at `offset`, and the `ahead` bytes that follow them.
    pub(super) fn of(file: FileHandle, offset: u64, len: u32, ahead: Bytes) -> Self {
        let holds = |len: u64| pages_of(file, offset, len).is_some_and(|n| n >= len.div_ceil(PAGE));
        let len = u64::from(len);
        // Of a title in memory, one look says so.
        let is_ahead = holds(len + ahead.0);
        Self { is_in_memory: is_ahead || holds(len), is_ahead }
    }
}

/// Whether the page cache has the block that follows the windows behind the block at `offset`.
pub(super) fn is_behind(file: FileHandle, offset: Bytes, window: Bytes, len: u32) -> bool {
    let len = u64::from(len);
    let behind = offset.0 + len + WINDOWS * window.0;
    pages_of(file, behind, len).is_some_and(|pages| pages >= len.div_ceil(PAGE))
}

/// The system call's number, the same on every architecture.
const CACHESTAT: libc::c_long = 451;
