//! Scratch data on a volume: a file without a name.
//!
//! Promise: however the program ends, the kernel frees the space. The file takes at most a tenth of
//! the free space.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};
use tactus_core::units::{Bytes, MIB};

use super::rig::{self, Load, Order, Timing};

/// An unnamed file, open for direct I/O, full of data.
pub(super) struct Scratch {
    pub(super) file: File,
    pub(super) size: Bytes,
}

/// Writes go in pieces of this size, one after another.
pub(super) const PIECE: u64 = MIB;

impl Scratch {
    /// Makes an unnamed file of at most `wanted` bytes on the volume of `dir` and fills it piece by
    /// piece; also returns the time of the writes.
    pub(super) fn fill(
        dir: &Path,
        wanted: Bytes,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<(Self, Timing)> {
        let size = Bytes(wanted.0.min(free(dir)?.0 / 10) / PIECE * PIECE);
        if size < SIZE_MIN {
            let message = format!("{} has too little free space to measure", dir.display());
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        let file = nameless(dir)?;
        // Contiguous as far as the file system can; without support for reservations, the writes
        // allocate.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size.0) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        let mut timing = Timing::default();
        // Steps of an eighth, to show progress.
        let step = (size.0 / 8).next_multiple_of(PIECE).max(PIECE);
        for start in (0..size.0).step_by(step as usize) {
            let len = step.min(size.0 - start);
            let offsets = (start..start + len).step_by(PIECE as usize).collect();
            let load = Load::writes(&file, offsets, PIECE, 2);
            timing.extend(rig::run(&load, None)?);
            progress(len);
        }
        rustix::fs::fdatasync(&file)?;
        Ok((Self { file, size }, timing))
    }

    /// `count` offsets of reads of `len` bytes, over the whole file.
    pub(super) fn offsets(&self, order: Order, len: u64, count: usize, seed: u64) -> Vec<u64> {
        rig::offsets(order, self.size, len, count, seed)
    }
}

/// A new file of `len` bytes in the form of the store's: with its blocks and its length from the
/// beginning, and without data.
pub(super) fn fresh(dir: &Path, len: Bytes) -> io::Result<File> {
    let file = nameless(dir)?;
    match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len.0) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    file.set_len(len.0)?;
    Ok(file)
}

/// Smaller reads come from the disk's own cache.
const SIZE_MIN: Bytes = Bytes(16 * MIB);

fn nameless(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = OFlags::DIRECT | OFlags::TMPFILE;
    match options.custom_flags(flags.bits() as i32).open(dir) {
        Err(error) if is_unknown(&error) => {}
        done => return done,
    }
    // A file system without unnamed files: the name is removed at once.
    let own = dir.join(tactus_media::RESERVED);
    std::fs::create_dir_all(&own)?;
    let path = own.join(format!("measure.{}", std::process::id()));
    options.create_new(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn is_unknown(error: &io::Error) -> bool {
    let codes = [rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::ISDIR, rustix::io::Errno::NOENT];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

fn free(dir: &Path) -> io::Result<Bytes> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
}
