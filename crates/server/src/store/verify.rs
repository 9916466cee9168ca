//! Reads a title and compares it with its checksums, without a running store.
//!
//! Promise: it changes nothing, and finds every byte that is not what was stored.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use tactus_core::units::{Bytes, MIB};

use super::fault::NameFault;
use super::medium::Memory;
use super::names::{TitleName, open_beneath, past_cache};
use super::sums::{Damaged, Manifests, UNIT};

/// What became of a stored title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All of its bytes are as they came.
    Whole(Bytes),
    /// Nobody has summed it up: it was not uploaded, or is a copy.
    NoSums,
    /// Some of it is not what came.
    Damaged {
        /// Where the first damaged unit begins.
        first: Bytes,
        /// How many units of 64 KiB are damaged.
        units: u64,
    },
}

/// Why a title cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The name cannot be used.
    #[error(transparent)]
    Name(#[from] NameFault),
    /// Nothing has it.
    #[error("nothing is stored under this name")]
    NotFound,
    /// Its checksums do not fit.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Compares the title at `path` of the volume at `root`; tells `progress` how many bytes it has read.
///
/// # Errors
/// When it cannot be compared.
pub fn verify(
    root: &Path,
    path: &str,
    progress: &mut dyn FnMut(u64),
) -> Result<Verdict, VerifyError> {
    TitleName::new(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).map_err(io::Error::from)?;
    let title = match open_beneath(&root, path, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(title) => past_cache(title),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
            return Err(VerifyError::NotFound);
        }
        Err(errno) => return Err(VerifyError::Io(errno.into())),
    };
    let sums = Manifests::of_title(root.as_fd(), title.as_fd())?;
    let Some(sums) = sums else { return Ok(Verdict::NoSums) };
    let (mut first, mut damaged) = (None, 0);
    let mut read = Units { title: &title, memory: Memory::new(MIB as usize), at: 0, end: 0 };
    for (index, &expected) in sums.table().units().iter().enumerate() {
        let offset = index as u64 * UNIT;
        let len = UNIT.min(sums.len().0 - offset);
        let unit = read.unit(offset, len as usize)?;
        if unit.len() as u64 != len || crc32c::crc32c(unit) != expected {
            first.get_or_insert(Bytes(offset));
            damaged += 1;
        }
        progress(len);
    }
    Ok(match first {
        None => Verdict::Whole(sums.len()),
        Some(first) => Verdict::Damaged { first, units: damaged },
    })
}

/// Units of a title, read many at a time.
struct Units<'a> {
    title: &'a OwnedFd,
    memory: Memory,
    /// What the memory holds.
    at: u64,
    end: u64,
}

impl Units<'_> {
    fn unit(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        if offset >= self.end {
            let count = super::medium::read_full(self.title, self.memory.bytes(), offset)?;
            (self.at, self.end) = (offset, offset + count as u64);
        }
        let begin = (offset - self.at) as usize;
        let held = (self.end - self.at) as usize;
        Ok(self.memory.bytes().get(begin..held.min(begin + len)).unwrap_or_default())
    }
}
