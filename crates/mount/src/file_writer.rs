//! Writes to the file of a title: by the page cache, or past it.
//!
//! Promise: the file has the same bytes either way. What the file system does not take past its
//! page cache is written by it.
//!
//! A write that a flush follows at once waits for the disk in any case. Past the page cache it is
//! one transfer out of this memory, and the kernel has no pages to allocate, mark and look for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Writes by one descriptor, whose file description nothing else uses.
pub(crate) struct FileWriter {
    /// False when the file system has refused a write past its page cache.
    may_pass: bool,
    /// Whether the descriptor writes past the page cache now.
    passes: bool,
    /// Memory that begins at a page somewhere; empty before the first use.
    memory: Vec<u8>,
}

impl Default for FileWriter {
    fn default() -> Self {
        Self { may_pass: true, passes: false, memory: Vec::new() }
    }
}

impl FileWriter {
    /// Whether `len` bytes at `offset` can go past the page cache.
    pub(crate) fn can_pass(&self, offset: u64, len: usize) -> bool {
        let is_whole = (offset | len as u64).is_multiple_of(PAGE as u64);
        self.may_pass && is_whole && (1..=PASSED_MAX).contains(&len)
    }

    /// Writes all of `bytes` by the page cache.
    pub(crate) fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.pass(file, false)?;
        file.write_all_at(bytes, offset)
    }

    /// Writes all of `bytes`, for which [`Self::can_pass`], past the page cache.
    pub(crate) fn write_past(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.try_past(file, bytes, offset).is_ok() {
            return Ok(());
        }
        // Whatever the reason: what the page cache does not take either is the error.
        self.may_pass = false;
        self.memory = Vec::new();
        self.write(file, bytes, offset)
    }

    fn try_past(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.pass(file, true)?;
        if self.memory.is_empty() {
            self.memory = vec![0; PASSED_MAX + PAGE];
        }
        let start = self.memory.as_ptr().align_offset(PAGE);
        let copy = &mut self.memory[start..][..bytes.len()];
        copy.copy_from_slice(bytes);
        file.write_all_at(copy, offset)
    }

    fn pass(&mut self, file: &File, passes: bool) -> io::Result<()> {
        if self.passes != passes {
            let mut flags = fcntl_getfl(file)?;
            flags.set(OFlags::DIRECT, passes);
            fcntl_setfl(file, flags)?;
            self.passes = passes;
        }
        Ok(())
    }
}

/// Offsets, lengths and memory are multiples of this: as much as any disk requires, and a block of
/// nearly all file systems.
const PAGE: usize = 4096;

/// Of more bytes than these, the copy to the disk takes longer than the calls.
const PASSED_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use std::env::temp_dir;

    use super::*;

    fn passes(file: &File) -> bool {
        fcntl_getfl(file).unwrap().contains(OFlags::DIRECT)
    }

    #[test]
    fn bytes_are_the_same_by_either_way_in_any_order() {
        // The directory for temporary files may be memory, which has only one of the ways.
        for place in [std::env::current_dir().unwrap(), temp_dir()] {
            let path = place.join(format!("tactus-file-writer-{}", std::process::id()));
            let file = File::options().write(true).create(true).truncate(true).open(&path).unwrap();
            let reader = File::open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let mut writer = FileWriter::default();
            let mut expected = vec![];
            for turn in 0..60_usize {
                let (page, pages) = (turn * 29 % 80, 1 + turn * 7 % 64);
                let (offset, len) = match turn % 3 {
                    0 => (page * PAGE + turn, pages * 4000 + turn),
                    _ => (page * PAGE, pages * PAGE),
                };
                let bytes: Vec<u8> = (0..len).map(|at| (at ^ at >> 8 ^ turn) as u8).collect();
                if turn % 3 == 1 {
                    writer.write_past(&file, &bytes, offset as u64).unwrap();
                } else {
                    writer.write(&file, &bytes, offset as u64).unwrap();
                    assert!(!passes(&file));
                }
                expected.resize(expected.len().max(offset + len), 0);
                expected[offset..][..len].copy_from_slice(&bytes);
                let mut found = vec![0; expected.len()];
                reader.read_exact_at(&mut found, 0).unwrap();
                assert!(found == expected, "{turn}");
                assert_eq!(reader.metadata().unwrap().len(), expected.len() as u64);
            }
        }
    }

    #[test]
    fn only_whole_pages_go_past_the_cache_and_not_after_a_refusal() {
        let mut writer = FileWriter::default();
        assert!(writer.can_pass(0, 4096) && writer.can_pass(8192, PASSED_MAX));
        for (offset, len) in [(0, 0), (1, 4096), (0, 4095), (4096, PASSED_MAX + PAGE)] {
            assert!(!writer.can_pass(offset, len), "{len} at {offset}");
        }
        // A pipe has no offsets: it refuses both ways, and the error is that of the second.
        let (_reader, pipe) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let refused = writer.write_past(&pipe, &[0; 4096], 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::SPIPE.raw_os_error()));
        assert!(!writer.can_pass(0, 4096) && !passes(&pipe));
    }
}
