//! Metadata that a client sends with a title, and how it is stored.
//!
//! Promise: metadata is written before the file is flushed, so it is as durable as the title.

use std::os::fd::OwnedFd;

use rustix::fs::{Timespec, Timestamps};
use rustix::io::Errno;
use tactus_core::units::{SECOND, WallTime};

use crate::catalogue::Digests;

/// Metadata that a client sends with a title.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TitleMetadata {
    /// Its modification time; none: the time of storing.
    pub modified: Option<WallTime>,
    /// Verified checksums of the whole title.
    pub digests: Option<Digests>,
}

impl TitleMetadata {
    /// Writes it to `file`, whose bytes are complete.
    pub(super) fn write(&self, file: &OwnedFd) -> Result<(), Errno> {
        if let Some(modified) = self.modified {
            rustix::fs::futimens(file, &modified_at(modified))?;
        }
        match &self.digests {
            // When other attributes use all the space, the title is stored without checksums.
            Some(digests) => match digests.keep(file) {
                Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => Ok(()),
                kept => kept,
            },
            None => Ok(()),
        }
    }
}

/// Times that change the modification time only.
fn modified_at(modified: WallTime) -> Timestamps {
    let nanos = |nanos| Timespec { tv_sec: 0, tv_nsec: nanos };
    let last_modification = Timespec {
        tv_sec: (modified.0 / SECOND.0) as i64,
        tv_nsec: (modified.0 % SECOND.0) as i64,
    };
    Timestamps { last_access: nanos(rustix::fs::UTIME_OMIT), last_modification }
}
