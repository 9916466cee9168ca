//! Another look at what the kernel could not read: page by page.
//!
//! The page cache reads ahead in folios of up to 2 MiB, and what a disk cannot read spoils the
//! whole folio: megabytes before and after one bad sector cannot be read either, for as long as the
//! kernel reads them as it did.

use std::time::Duration;

use tactus_core::ports::FileHandle;

use super::discard::{FOLIO_MAX, discard};
use super::resident::pages_of;
use crate::memory::PAGE;

/// While it lives, the kernel reads this open file by single pages, and nothing in advance.
/// Afterwards the kernel reads ahead as far as the device says.
pub(super) struct RandomAccess(FileHandle);

impl RandomAccess {
    pub(super) fn begin(file: FileHandle) -> Self {
        advise(file, Advice::Random);
        Self(file)
    }

    /// Has the kernel forget the folios that `offset..end` may be part of, but for what is referred
    /// to. Whoever else waits for the same folio refers to it too, for a moment.
    pub(super) fn forget(&self, offset: i64, end: i64) {
        let (offset, end) = (offset as u64, end as u64);
        let (from, to) = (offset - offset % FOLIO_MAX, end.next_multiple_of(FOLIO_MAX));
        for _ in 0..TRIES {
            discard(self.0.0, from, to);
            if pages_of(self.0, offset, PAGE).is_none_or(|pages| pages == 0) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for RandomAccess {
    fn drop(&mut self) {
        advise(self.0, Advice::Normal);
    }
}

/// How far the kernel reads ahead of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Advice {
    Random = libc::POSIX_FADV_RANDOM as isize,
    Normal = libc::POSIX_FADV_NORMAL as isize,
    /// Twice as far as the device says.
    Sequential = libc::POSIX_FADV_SEQUENTIAL as isize,
}

/// Sets how far the kernel reads ahead of this open file.
pub(super) fn advise(file: FileHandle, advice: Advice) {
    // SAFETY: takes numbers only. It is advice: a refusal changes nothing.
    unsafe { libc::posix_fadvise(file.0, 0, 0, advice as i32) };
}

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);
