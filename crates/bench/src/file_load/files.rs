//! What a client does with its files, by two ways.
//!
//! Promise: each call puts its change on stable storage before it returns.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tactus_client::{Client, WriteOptions};

/// A way to work on files.
pub(super) trait Files {
    /// Makes the file, or replaces it, by writes of `piece` bytes that `fill` makes of their place.
    fn write(
        &self,
        name: &str,
        len: usize,
        piece: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()>;

    /// Reads the file by reads of `piece` bytes.
    fn read(
        &self,
        name: &str,
        len: usize,
        piece: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()>;

    /// Reads each piece, and inverts its first byte.
    fn change(&self, name: &str, len: usize, piece: usize) -> Result<()>;

    /// Reads the pieces at `places`, and changes the first byte of those that say so.
    fn access(&self, name: &str, len: usize, piece: usize, places: &[(usize, bool)]) -> Result<()>;

    /// Adds `more` bytes behind the `len` that the file has.
    fn append(&self, name: &str, len: usize, more: usize) -> Result<()>;

    /// Removes the file.
    fn remove(&self, name: &str) -> Result<()>;
}

/// Titles of a server, by the client library. A title never changes: what Bonnie and PostMark
/// change in place is the next version of the title in mapped memory, published at the end.
pub(super) struct ServedFiles(Client);

impl ServedFiles {
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        Ok(Self(Client::connect(socket)?))
    }
}

impl Files for ServedFiles {
    fn write(
        &self,
        name: &str,
        len: usize,
        piece: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        // Space for a title of unknown length is claimed in large steps, which are not free in a
        // file system in memory.
        let options = WriteOptions { len: Some(len as u64), ..WriteOptions::default() };
        let writer = self.0.create(&path(name), &options)?;
        let mut bytes = vec![0; piece.min(len)];
        for at in (0..len).step_by(piece) {
            let part = &mut bytes[..piece.min(len - at)];
            fill(at, part);
            writer.write_all(part)?;
        }
        Ok(writer.publish()?)
    }

    fn read(
        &self,
        name: &str,
        len: usize,
        piece: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let title = self.0.open(&path(name))?;
        let mut bytes = vec![0; piece.min(len)];
        for at in (0..len).step_by(piece) {
            let part = &mut bytes[..piece.min(len - at)];
            ensure!(title.read_at(at as u64, part)? == part.len(), "the title is shorter");
            take(at, part);
        }
        Ok(())
    }

    fn change(&self, name: &str, len: usize, piece: usize) -> Result<()> {
        let all: Vec<_> = (0..len).step_by(piece).map(|at| (at, true)).collect();
        self.access(name, len, piece, &all)
    }

    fn access(&self, name: &str, len: usize, piece: usize, places: &[(usize, bool)]) -> Result<()> {
        let title = self.0.open(&path(name))?;
        let mut next = self.0.edit_in_memory(&path(name))?;
        let mut bytes = vec![0; piece];
        for &(at, changes) in places {
            ensure!(title.read_at(at as u64, &mut bytes)? == piece, "the title is shorter");
            if changes {
                next.bytes_mut()[at] = !bytes[0];
            }
        }
        Ok(next.publish(len as u64)?)
    }

    fn append(&self, name: &str, len: usize, more: usize) -> Result<()> {
        let mut next = self.0.edit_in_memory(&path(name))?;
        next.grow((len + more) as u64)?;
        next.bytes_mut()[len..len + more].fill(MORE);
        Ok(next.publish((len + more) as u64)?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Ok(self.0.remove(&path(name))?)
    }
}

/// The path of a title.
fn path(name: &str) -> String {
    format!("/{name}.bin")
}

/// Files of the kernel, by `pread` and `pwrite`.
pub(super) struct PlainFiles {
    place: PathBuf,
    directory: File,
}

impl PlainFiles {
    pub(super) fn new(place: &Path) -> Result<Self> {
        let directory = File::open(place).with_context(|| format!("{}", place.display()))?;
        Ok(Self { place: place.to_owned(), directory })
    }

    fn open(&self, name: &str) -> Result<File> {
        Ok(File::options().read(true).write(true).open(self.place.join(name))?)
    }
}

impl Files for PlainFiles {
    fn write(
        &self,
        name: &str,
        len: usize,
        piece: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let file = File::create(self.place.join(name))?;
        let mut bytes = vec![0; piece.min(len)];
        for at in (0..len).step_by(piece) {
            let part = &mut bytes[..piece.min(len - at)];
            fill(at, part);
            file.write_all_at(part, at as u64)?;
        }
        file.sync_all()?;
        Ok(self.directory.sync_all()?)
    }

    fn read(
        &self,
        name: &str,
        len: usize,
        piece: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let file = File::open(self.place.join(name))?;
        let mut bytes = vec![0; piece.min(len)];
        for at in (0..len).step_by(piece) {
            let part = &mut bytes[..piece.min(len - at)];
            file.read_exact_at(part, at as u64)?;
            take(at, part);
        }
        Ok(())
    }

    fn change(&self, name: &str, len: usize, piece: usize) -> Result<()> {
        let all: Vec<_> = (0..len).step_by(piece).map(|at| (at, true)).collect();
        self.access(name, len, piece, &all)
    }

    fn access(
        &self,
        name: &str,
        _len: usize,
        piece: usize,
        places: &[(usize, bool)],
    ) -> Result<()> {
        let file = self.open(name)?;
        let mut bytes = vec![0; piece];
        for &(at, changes) in places {
            file.read_exact_at(&mut bytes, at as u64)?;
            if changes {
                bytes[0] = !bytes[0];
                file.write_all_at(&bytes, at as u64)?;
            }
        }
        Ok(file.sync_all()?)
    }

    fn append(&self, name: &str, len: usize, more: usize) -> Result<()> {
        let file = self.open(name)?;
        file.write_all_at(&vec![MORE; more], len as u64)?;
        Ok(file.sync_all()?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.place.join(name))?;
        Ok(self.directory.sync_all()?)
    }
}

/// The byte that an append repeats.
const MORE: u8 = 0x2b;
