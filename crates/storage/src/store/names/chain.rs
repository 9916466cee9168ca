//! The directories on the path of a new name whose own names may not be durable yet.
//!
//! Promise: only a few of them are open at a time. The others are opened again to be flushed, and
//! only if they are still the same directories.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{NameFault, Names, failed, open_beneath, path_fault};
use crate::store::fault::UploadError;

/// Directories that stay open until they are flushed: one upload rarely creates more.
const KEPT_OPEN_MAX: usize = 4;

/// Directories on a path, to be marked durable once their names are flushed.
#[derive(Debug, Default)]
pub(in crate::store) struct Chain {
    /// The path of the innermost one.
    path: String,
    /// For each directory, the length of its path within `path`, and its inode.
    pub(super) found: Vec<(usize, u64)>,
    /// The parents that were not kept open, in the same form.
    behind: Vec<(usize, u64)>,
    /// See [`super::DurableDirectories`].
    pub(super) losses: u64,
}

impl Chain {
    pub(super) fn new(path: &str, losses: u64) -> Self {
        let path = path.to_owned();
        Self { path, found: Vec::new(), behind: Vec::new(), losses }
    }

    /// Adds a directory whose name may not be durable; its path ends at `end`.
    pub(super) fn add(&mut self, end: usize, inode: u64) {
        self.found.push((end, inode));
    }

    /// Adds a directory that was created in the innermost one.
    pub(super) fn extend(&mut self, name: &str, inode: u64) {
        if !self.path.is_empty() {
            self.path.push('/');
        }
        self.path.push_str(name);
        self.add(self.path.len(), inode);
    }

    /// Schedules the flush of `above`, whose path ends at `end`: keeps it in `open`, or notes it
    /// for later.
    pub(super) fn flush(
        &mut self,
        above: OwnedFd,
        end: usize,
        open: &mut Vec<Arc<OwnedFd>>,
    ) -> Result<(), UploadError> {
        if open.len() < KEPT_OPEN_MAX {
            open.push(Arc::new(above));
            return Ok(());
        }
        let inode = rustix::fs::fstat(&above).map_err(failed)?.st_ino;
        self.behind.push((end, inode));
        Ok(())
    }

    /// Number of directories that must be opened again and flushed.
    pub(in crate::store) fn behind(&self) -> usize {
        self.behind.len()
    }

    /// The paths of all directories, with their inodes.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, u64)> {
        self.found.iter().map(|(end, inode)| (&self.path[..*end], *inode))
    }
}

impl Names {
    /// Opens some of the directories of `chain` that must be flushed.
    pub(in crate::store) fn open_behind(
        &self,
        chain: &Chain,
        which: Range<usize>,
    ) -> Result<Vec<Arc<OwnedFd>>, UploadError> {
        let open = |(end, inode): &(usize, u64)| {
            let path = &chain.path[..*end];
            let opened = match open_beneath(&self.root, path, OFlags::DIRECTORY) {
                // It was moved, so this name is gone.
                Err(rustix::io::Errno::NOENT) => return Err(NameFault::NoDirectory.into()),
                opened => opened.map_err(path_fault)?,
            };
            match rustix::fs::fstat(&opened).map_err(failed)?.st_ino == *inode {
                true => Ok(Arc::new(opened)),
                false => Err(NameFault::NoDirectory.into()),
            }
        };
        chain.behind[which].iter().map(open).collect()
    }
}
