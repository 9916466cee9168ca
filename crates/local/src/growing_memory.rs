//! The memory of a title that a program builds: a memory file which the program maps for writing.
//!
//! Promise: the file grows and never shrinks, and all pages of its length are there before the
//! program is told of them. The server does not map it: it reads the file by calls, which give
//! bytes or an error, never a signal, whatever the program does to the file. Dropped, its pages
//! are free even if the program keeps its mapping.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use tactus_client::memory;
use tactus_core::local::layout;
use tactus_core::units::Bytes;

use crate::budget::{MemoryBudget, MemoryShare};

/// Where the title begins in the file. The pages before it are used to fill the memory with an
/// older version only.
pub(crate) const FIRST: u64 = layout::DATA as u64;

/// The longest memory that is offered, for the address space of the program.
const LIMIT_MAX: u64 = 1 << 40;

pub(crate) struct GrowingMemory {
    file: OwnedFd,
    share: Mutex<MemoryShare>,
    limit: u64,
}

/// Why it does not grow.
#[derive(Debug)]
pub(crate) enum GrowthFault {
    /// So much is left of the limit.
    NoRoom(Bytes),
    /// The kernel refuses.
    System(io::Error),
}

impl GrowingMemory {
    /// Memory without bytes.
    pub(crate) fn new(budget: &MemoryBudget) -> Result<Self, GrowthFault> {
        let file = memory::create_growing().map_err(GrowthFault::System)?;
        let (share, limit) = (Mutex::new(budget.share()), budget.limit().0.min(LIMIT_MAX));
        Ok(Self { file, share, limit })
    }

    /// The longest that it can become.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.share().len()
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Whether it could have `len` bytes now.
    pub(crate) fn check(&self, len: u64) -> Result<(), GrowthFault> {
        let share = self.share();
        let left = share.left().0.min(self.limit - share.len());
        match len.saturating_sub(share.len()) {
            more if more > left => Err(GrowthFault::NoRoom(Bytes(left))),
            _ => Ok(()),
        }
    }

    /// Has at least `len` bytes from now on, new ones zero. May block. After an error it has as
    /// many as before.
    pub(crate) fn grow(&self, len: u64) -> Result<(), GrowthFault> {
        let mut share = self.share();
        let before = share.len();
        if len <= before {
            return Ok(());
        }
        if len > self.limit {
            return Err(GrowthFault::NoRoom(Bytes(self.limit - before)));
        }
        share.resize(len).map_err(GrowthFault::NoRoom)?;
        let grown = allocate(&self.file, FIRST + before, len - before);
        if let Err(errno) = grown {
            share.resize(before).expect("a share can become smaller");
            return Err(GrowthFault::System(errno.into()));
        }
        Ok(())
    }

    /// Copies the bytes from `at` on. They are those of one moment or another, if the program
    /// changes them meanwhile.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let place = FIRST + at + done as u64;
            match rustix::io::pread(&self.file, &mut into[done..], place) {
                Ok(0) => return Err(Errno::FAULT.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Fills the bytes from `at` on, which are there.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.file, &bytes[done..], FIRST + at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// A descriptor for the program.
    pub(crate) fn writable(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn share(&self) -> MutexGuard<'_, MemoryShare> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the pages: without them the program would get a signal if there are none left later.
fn allocate(file: &OwnedFd, from: u64, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), from, len) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

impl Drop for GrowingMemory {
    fn drop(&mut self) {
        // The program may keep its mapping, and may have made the file longer by itself.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(&self.file, flags, 0, i64::MAX as u64) {
            tracing::error!("the memory of a title cannot be taken back: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_within_the_limit_and_gives_its_pages_back() {
        let budget = MemoryBudget::new(Bytes(100_000));
        let memory = GrowingMemory::new(&budget).unwrap();
        memory.grow(60_000).unwrap();
        memory.grow(1).unwrap();
        assert_eq!(memory.len(), 60_000);
        let other = GrowingMemory::new(&budget).unwrap();
        assert!(matches!(other.grow(50_000), Err(GrowthFault::NoRoom(Bytes(40_000)))));
        assert!(matches!(memory.grow(100_001), Err(GrowthFault::NoRoom(Bytes(40_000)))));
        assert!(matches!(memory.grow(u64::MAX), Err(GrowthFault::NoRoom(_))));
        let theirs = memory.writable().unwrap();
        rustix::io::pwrite(&theirs, b"hello", FIRST + 59_995).unwrap();
        let mut bytes = [1; 6];
        memory.read(59_994, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0hello");
        assert_eq!(rustix::fs::ftruncate(&theirs, 0), Err(Errno::PERM), "it cannot be cut");
        drop(memory);
        assert_eq!(rustix::fs::fstat(&theirs).unwrap().st_blocks, 0);
        other.grow(100_000).unwrap();
    }

    #[test]
    fn what_a_program_does_to_the_file_is_zeros_or_an_error() {
        let budget = MemoryBudget::new(Bytes(100_000));
        let memory = GrowingMemory::new(&budget).unwrap();
        memory.grow(10_000).unwrap();
        let theirs = memory.writable().unwrap();
        rustix::io::pwrite(&theirs, &[7; 10_000], FIRST).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&theirs, flags, FIRST, 4096).unwrap();
        let mut bytes = [1; 5000];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..] == [7; 904]);
        assert!(memory.read(9_000, &mut bytes).is_err(), "beyond the end");
    }
}
