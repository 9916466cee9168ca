//! A range of shared bytes: copied in and out, never trusted.

use std::sync::Arc;

use super::SharedMemory;

/// Bytes of a mapping that another process may read and write at any time.
pub struct SharedBytes {
    memory: Arc<dyn SharedMemory>,
    first: usize,
    len: usize,
}

impl SharedBytes {
    /// The bytes of `memory` from `first` on.
    ///
    /// # Panics
    /// If the memory is shorter.
    pub fn new(memory: Arc<dyn SharedMemory>, first: usize) -> Self {
        let len = memory.len().checked_sub(first).expect("the memory has a part for data");
        Self { memory, first, len }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `len` bytes from `at` on lie within.
    pub fn has(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn copy_in(&mut self, at: u64, bytes: &[u8]) {
        let to = self.address(at, bytes.len());
        // SAFETY: both ranges are in bounds, and `bytes` is memory of this process, which does not
        // overlap a mapping that only this module touches.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `at` on into `into`.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn copy_out(&self, at: u64, into: &mut [u8]) {
        let from = self.address(at, into.len());
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies `len` bytes from `from` on in `other` to `at`.
    ///
    /// # Panics
    /// If they do not lie within, or both are the same memory.
    pub fn copy_from(&mut self, at: u64, other: &Self, from: u64, len: usize) {
        assert!(!Arc::ptr_eq(&self.memory, &other.memory), "two memories never overlap");
        let (to, from) = (self.address(at, len), other.address(from, len));
        // SAFETY: both ranges are in bounds, of two mappings that do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }

    /// Lets `write` fill `len` bytes from `at` on. It must not rely on what it reads there: the
    /// other process may have changed it.
    ///
    /// # Panics
    /// If they do not lie within.
    pub fn fill<R>(&mut self, at: u64, len: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let to = self.address(at, len);
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
        let from = self.address(at, len);
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
        let to = self.address(at, len);
        // SAFETY: in bounds; nobody else reads or writes there, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(to, len) }
    }

    fn address(&self, at: u64, len: usize) -> *mut u8 {
        assert!(self.has(at, len as u64), "the bytes lie within the data");
        // SAFETY: checked above.
        unsafe { self.memory.base().add(self.first + at as usize) }.as_ptr()
    }
}
