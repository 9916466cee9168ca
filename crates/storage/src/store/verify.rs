//! Reads a title and compares it with its checksums, without a running store.
//!
//! Promise: verification changes nothing, and finds every byte that differs from the stored title
//! or that cannot be read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use tactus_core::units::{Bytes, MIB};

use super::fault::NameFault;
use super::medium::AlignedMemory;
use super::names::{TitleName, open_beneath, past_cache};
use super::sums::{ChecksumFault, Manifests, UNIT};

/// The state of a stored title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All bytes match their checksums.
    Whole(Bytes),
    /// The title has no checksums: it was not uploaded, or is a copy. All of it can be read.
    NoSums,
    /// Some bytes do not match, or cannot be read.
    Damaged {
        /// Where the first damaged unit begins.
        first: Bytes,
        /// How many units of 64 KiB are damaged.
        units: u64,
        /// How many of them the disk cannot read.
        unreadable: u64,
    },
}

/// Why a title cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The name cannot be used.
    #[error(transparent)]
    Name(#[from] NameFault),
    /// No title has the name.
    #[error("no title has this name")]
    NotFound,
    /// Its checksums do not fit the title.
    #[error(transparent)]
    Damaged(#[from] ChecksumFault),
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Verifies the title at `path` of the volume at `root`; reports the bytes read so far to
/// `progress`.
///
/// # Errors
/// When it cannot be verified.
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
    let whole = match &sums {
        Some(sums) => sums.len(),
        None => super::len_of(&rustix::fs::fstat(&title).map_err(io::Error::from)?),
    };
    let (mut first, mut damaged, mut unreadable) = (None, 0, 0);
    let mut read = Units { title: &title, memory: AlignedMemory::new(MIB as usize), at: 0, end: 0 };
    for index in 0..whole.0.div_ceil(UNIT) {
        let offset = index * UNIT;
        let len = UNIT.min(whole.0 - offset);
        let expected = sums.as_ref().map(|sums| sums.table().units()[index as usize]);
        let is_right = match read.unit(offset, len as usize) {
            Ok(unit) => expected.is_none_or(|expected| {
                unit.len() as u64 == len && crc32c::crc32c(unit) == expected
            }),
            Err(_) => {
                unreadable += 1;
                false
            }
        };
        if !is_right {
            first.get_or_insert(Bytes(offset));
            damaged += 1;
        }
        progress(len);
    }
    Ok(match (first, sums) {
        (None, Some(_)) => Verdict::Whole(whole),
        (None, None) => Verdict::NoSums,
        (Some(first), _) => Verdict::Damaged { first, units: damaged, unreadable },
    })
}

/// Units of a title, read many at a time.
struct Units<'a> {
    title: &'a OwnedFd,
    memory: AlignedMemory,
    /// The offset of the memory's content.
    at: u64,
    end: u64,
}

impl Units<'_> {
    fn unit(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        if offset >= self.end {
            let memory = self.memory.bytes();
            let count = match super::medium::read_full(self.title, memory, offset) {
                Ok(count) => count,
                // One bad sector fails the whole read.
                Err(_) => {
                    super::medium::read_full(self.title, &mut memory[..UNIT as usize], offset)?
                }
            };
            (self.at, self.end) = (offset, offset + count as u64);
        }
        let begin = (offset - self.at) as usize;
        let held = (self.end - self.at) as usize;
        Ok(self.memory.bytes().get(begin..held.min(begin + len)).unwrap_or_default())
    }
}
