//! The atomics and cells of this crate: the real ones, or loom's when it explores interleavings.
//! One interface for both, without additions.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};

/// A cell with loom's interface: access by closures, so that loom can watch it.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A value alone on its cache lines. Two lines of 64 bytes, because the prefetcher of x86-64
/// fetches them in pairs; also right for the 128-byte lines of some aarch64.
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);
