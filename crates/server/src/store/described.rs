//! What a client says of a title besides its bytes, and how it is kept beside them.
//!
//! Promise: it is written before the file is flushed, so it is as durable as the title.

use std::os::fd::OwnedFd;

use rustix::fs::{Timespec, Timestamps};
use rustix::io::Errno;
use tactus_core::units::{SECOND, WallTime};

use crate::catalogue::Digests;

/// What a client says of a title besides its bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Described {
    /// When it was modified; none: when it was stored.
    pub modified: Option<WallTime>,
    /// Checksums of the whole, which have been verified.
    pub digests: Option<Digests>,
}

impl Described {
    /// Writes it beside the bytes of `file`, which have all come.
    pub(super) fn write(&self, file: &OwnedFd) -> Result<(), Errno> {
        if let Some(modified) = self.modified {
            rustix::fs::futimens(file, &modified_at(modified))?;
        }
        match &self.digests {
            // Where other attributes take all the room there is, the title goes without.
            Some(digests) => match digests.keep(file) {
                Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => Ok(()),
                kept => kept,
            },
            None => Ok(()),
        }
    }
}

/// This modification time, and no other time changed.
fn modified_at(modified: WallTime) -> Timestamps {
    let nanos = |nanos| Timespec { tv_sec: 0, tv_nsec: nanos };
    let last_modification = Timespec {
        tv_sec: (modified.0 / SECOND.0) as i64,
        tv_nsec: (modified.0 % SECOND.0) as i64,
    };
    Timestamps { last_access: nanos(rustix::fs::UTIME_OMIT), last_modification }
}
