//! Memory for the arena: huge pages if available, mapped before the first stream.
//!
//! Promise: the pages of a region exist from the start; touching one never waits for the kernel.
//! The region reports its kind of pages, because with small ones each block costs more TLB misses
//! and longer lists for the disk.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tactus_ring::arena::Region;

use crate::memory::memory;

/// Bytes of a huge page on x86-64 and aarch64 with 4 KiB pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// The kind of pages of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Reserved huge pages (`vm.nr_hugepages`): all of it, never swapped.
    Huge,
    /// Ordinary memory; the kernel has made this many bytes of it huge pages.
    Transparent {
        /// Bytes in huge pages at the creation of the region.
        huge: u64,
    },
}

/// A private mapping, populated at once.
pub struct HugeRegion {
    base: NonNull<u8>,
    len: usize,
    pages: Pages,
    locked: Result<(), Errno>,
}

/// Whether to lock a region into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locking {
    /// Request it; [`HugeRegion::locked`] returns whether it was granted.
    Wanted,
    /// Leave it to the kernel.
    NotWanted,
}

impl HugeRegion {
    /// Maps at least `len` bytes, rounded up to whole huge pages. Takes as long as zeroing them.
    ///
    /// # Errors
    /// `ENOMEM` if the machine or the control group has no room; `EINVAL` if `len` is zero.
    pub fn new(len: usize, locking: Locking) -> io::Result<Self> {
        let len = len.checked_next_multiple_of(HUGE_PAGE).filter(|len| *len > 0);
        let len = len.ok_or(Errno::INVAL)?;
        let mut region = match map_reserved(len) {
            Ok(base) => Self { base, len, pages: Pages::Huge, locked: Err(Errno::PERM) },
            // No reserved pages, or not enough, or none of this size.
            Err(_) => Self::new_transparent(len)?,
        };
        if locking == Locking::Wanted {
            // SAFETY: the range is this region's own mapping; locking changes no byte.
            region.locked = unsafe { rustix::mm::mlock(region.base.as_ptr().cast(), len) };
        }
        Ok(region)
    }

    fn new_transparent(len: usize) -> io::Result<Self> {
        // The kernel overcommits memory, and then the out-of-memory killer ends a process.
        if len as u64 > memory().room() {
            return Err(Errno::NOMEM.into());
        }
        let base = map_aligned(len)?;
        // From here on the region owns the mapping: an error below unmaps it.
        let pages = Pages::Transparent { huge: 0 };
        let mut region = Self { base, len, pages, locked: Err(Errno::PERM) };
        let address: *mut c_void = base.as_ptr().cast();
        // Refused where transparent huge pages are compiled out: the count below then says zero.
        // SAFETY: the range is this region's own mapping; the advice changes no byte.
        let _advised = unsafe { rustix::mm::madvise(address, len, Advice::LinuxHugepage) }.is_ok();
        region.populate()?;
        region.pages = Pages::Transparent { huge: huge_bytes(address as usize, len) };
        Ok(region)
    }

    /// Makes the kernel populate every page now. Fails if it cannot.
    fn populate(&mut self) -> io::Result<()> {
        let address: *mut c_void = self.base.as_ptr().cast();
        // SAFETY: the range is this region's own mapping; populating changes no byte.
        match unsafe { rustix::mm::madvise(address, self.len, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Before Linux 5.14: touch each page.
            Err(Errno::INVAL) => {
                for offset in (0..self.len).step_by(4096) {
                    // SAFETY: the offset lies in the mapping.
                    let page = unsafe { self.base.add(offset) };
                    // SAFETY: mapped and writable, and not shared with any other code yet.
                    unsafe { page.write_volatile(0) };
                }
                Ok(())
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// The kind of its pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Whether it is locked into memory; `EPERM` also if locking was not requested.
    pub fn locked(&self) -> Result<(), Errno> {
        self.locked
    }
}

// SAFETY: an anonymous private mapping, zeroed by the kernel, aligned to a huge page, private to
// this value, and unmapped by `drop` only.
unsafe impl Region for HugeRegion {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: it owns its mapping, like a `Box<[u8]>`.
unsafe impl Send for HugeRegion {}
// SAFETY: it hands out an address, never references.
unsafe impl Sync for HugeRegion {}

impl Drop for HugeRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own, and all borrows of it have ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

/// Maps reserved huge pages. The kernel reserves them within the call, so a later touch succeeds.
fn map_reserved(len: usize) -> io::Result<NonNull<u8>> {
    map(len, MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE)
}

/// Maps ordinary memory aligned to a huge page, so that whole huge pages fit: one huge page more is
/// mapped, and the parts outside are unmapped.
fn map_aligned(len: usize) -> io::Result<NonNull<u8>> {
    let padded = len.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
    let mapped = map(padded, MapFlags::empty())?;
    let before = mapped.as_ptr().align_offset(HUGE_PAGE);
    // SAFETY: `before < HUGE_PAGE`, so it lies in the padded mapping.
    let base = unsafe { mapped.add(before) };
    // SAFETY: `before + len <= padded`.
    let end = unsafe { base.add(len) };
    for (rest, rest_len) in [(mapped, before), (end, HUGE_PAGE - before)] {
        if rest_len > 0 {
            // SAFETY: this part of the mapping was just made and is not in use.
            unsafe { rustix::mm::munmap(rest.as_ptr().cast(), rest_len) }?;
        }
    }
    Ok(base)
}

fn map(len: usize, flags: MapFlags) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a free address, so no existing memory changes.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, flags | MapFlags::PRIVATE)
    }?;
    Ok(NonNull::new(mapped.cast()).expect("the kernel maps nothing at address zero"))
}

/// Bytes of a range in transparent huge pages, by `/proc/self/smaps`; zero if unknown.
fn huge_bytes(start: usize, len: usize) -> u64 {
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let mut inside = false;
    let mut huge_kib = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-') {
            let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            // If the kernel has merged the range with a neighbour, the neighbour's pages count too.
            inside = bound(from) < start + len && bound(to) > start;
        } else if inside && first == "AnonHugePages:" {
            huge_kib += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    (huge_kib * 1024).min(len as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_ring::arena::arena;

    #[test]
    fn a_region_is_whole_huge_pages_and_all_of_it_can_be_used() {
        let region = HugeRegion::new(3 * HUGE_PAGE - 5, Locking::NotWanted).unwrap();
        assert_eq!(region.len(), 3 * HUGE_PAGE);
        assert_eq!(region.base().as_ptr().align_offset(HUGE_PAGE), 0);
        let (mut keeper, view) = arena(Box::new(region), HUGE_PAGE as u32);
        let last = std::iter::from_fn(|| keeper.take()).last().unwrap();
        assert_eq!(last.place, 2);
        view.fill(last, HUGE_PAGE as u32 - 1, &[5]);
        keeper.filled(last);
        let lease = keeper.lend(last);
        assert_eq!(view.bytes(&lease)[HUGE_PAGE - 2..], [0, 5], "new memory is zero");
    }

    #[test]
    fn a_region_has_its_pages_before_it_is_used() {
        let region = HugeRegion::new(8 * HUGE_PAGE, Locking::NotWanted).unwrap();
        let mut there = vec![0_u8; region.len() / 4096];
        // SAFETY: the range is mapped, and the list has one byte for each of its pages.
        let asked = unsafe {
            libc::mincore(region.base().as_ptr().cast(), region.len(), there.as_mut_ptr())
        };
        assert_eq!(asked, 0);
        assert!(there.iter().all(|page| page & 1 == 1));
    }

    #[test]
    fn a_region_that_cannot_be_is_refused() {
        assert!(HugeRegion::new(0, Locking::NotWanted).is_err());
        assert!(HugeRegion::new(usize::MAX, Locking::NotWanted).is_err());
        let more_than_there_is = memory().total as usize * 2;
        assert!(HugeRegion::new(more_than_there_is, Locking::NotWanted).is_err());
    }

    #[test]
    fn transparent_huge_pages_are_used_where_the_machine_allows_them() {
        let region = HugeRegion::new_transparent(16 * HUGE_PAGE).unwrap();
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        match region.pages() {
            Pages::Transparent { huge: 0 } if setting.is_ok_and(|it| !it.contains("[never]")) => {
                println!("skipped: no free huge page on this machine");
            }
            Pages::Transparent { huge } => assert!(huge <= region.len() as u64),
            Pages::Huge => panic!("these were not asked for"),
        }
    }
}
