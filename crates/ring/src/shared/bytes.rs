//! A range of shared bytes: copied in and out, never trusted.

use std::ptr::NonNull;
use std::sync::Arc;

use super::SharedMemory;

/// A part of a mapping. Its address is looked up once: requests of a microsecond touch dozens of
/// words.
#[derive(Clone)]
pub(super) struct Range {
    memory: Arc<dyn SharedMemory>,
    first: NonNull<u8>,
    len: usize,
}

// SAFETY: the address is one of `memory`, which is `Send` and `Sync`; what lies there is touched as
// this module says, whichever thread does it.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Range {
    /// The bytes of `memory` from `first` on.
    ///
    /// # Panics
    /// If the memory is shorter.
    pub(super) fn of(memory: Arc<dyn SharedMemory>, first: usize) -> Self {
        let len = memory.len().checked_sub(first).expect("the memory has a part for data");
        // SAFETY: in bounds.
        let first = unsafe { memory.base().add(first) };
        Self { memory, first, len }
    }

    #[inline]
    fn has(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// # Panics
    /// If `len` bytes from `at` on do not lie within.
    #[inline]
    pub(super) fn address(&self, at: u64, len: usize) -> *mut u8 {
        assert!(self.has(at, len as u64), "the bytes lie within the data");
        // SAFETY: checked above.
        unsafe { self.first.add(at as usize) }.as_ptr()
    }
}

/// Bytes of a mapping that another process may read and write at any time.
pub struct SharedBytes {
    range: Range,
}

impl SharedBytes {
    /// The bytes of `memory` from `first` on.
    ///
    /// # Panics
    /// If the memory is shorter.
    pub fn new(memory: Arc<dyn SharedMemory>, first: usize) -> Self {
        Self { range: Range::of(memory, first) }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Whether `len` bytes from `at` on lie within.
    pub fn has(&self, at: u64, len: u64) -> bool {
        self.range.has(at, len)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn copy_in(&mut self, at: u64, bytes: &[u8]) {
        let to = self.range.address(at, bytes.len());
        // SAFETY: both ranges are in bounds, and `bytes` is memory of this process, which does not
        // overlap a mapping that only this module touches.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `at` on into `into`.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn copy_out(&self, at: u64, into: &mut [u8]) {
        let from = self.range.address(at, into.len());
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies `len` bytes from `from` on in `other` to `at`.
    ///
    /// # Panics
    /// If they do not lie within, or both are the same memory.
    pub fn copy_from(&mut self, at: u64, other: &Self, from: u64, len: usize) {
        let is_other = !Arc::ptr_eq(&self.range.memory, &other.range.memory);
        assert!(is_other, "two memories never overlap");
        let (to, from) = (self.range.address(at, len), other.range.address(from, len));
        // SAFETY: both ranges are in bounds, of two mappings that do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }

    /// Lets `write` fill `len` bytes from `at` on. It must not rely on what it reads there: the
    /// other process may have changed it.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn fill<R>(&mut self, at: u64, len: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let to = self.range.address(at, len);
        // SAFETY: in bounds, and borrowed mutably in this process. The other process is outside of
        // the language's model, like the kernel; `write` only writes.
        write(unsafe { std::slice::from_raw_parts_mut(to, len) })
    }

    /// The bytes from `at` on, in place.
    ///
    /// # Safety
    /// The other process must not write there while the slice lives: only a side that trusts the
    /// other one may call this.
    ///
    /// # Panics
    /// If they do not lie within.
    pub unsafe fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let from = self.range.address(at, len);
        // SAFETY: in bounds; nobody writes there, as the caller promises.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    /// The bytes from `at` on, in place, to be changed.
    ///
    /// # Safety
    /// As [`Self::bytes`], and in this process no other slice of them lives.
    ///
    /// # Panics
    /// If they do not lie within.
    #[expect(clippy::mut_from_ref, reason = "the caller answers for the range, not for the whole")]
    pub unsafe fn bytes_mut(&self, at: u64, len: usize) -> &mut [u8] {
        let to = self.range.address(at, len);
        // SAFETY: in bounds; nobody else reads or writes there, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(to, len) }
    }
}
