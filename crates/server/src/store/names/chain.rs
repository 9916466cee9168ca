//! The directories on the path of something that gets a name, as far as their own names may not be durable.
//!
//! Promise: however many there are, few of them are open at a time: the others are opened again when they
//! are to be flushed, and flushed only while they are the ones that were seen.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{NameFault, Names, failed, open_beneath, path_fault};
use crate::store::fault::UploadError;

/// Directories that stay open from the moment they are seen until they are flushed: more are hardly made by
/// one upload.
const KEPT_OPEN_MAX: usize = 4;

/// Directories on a path, to be remembered when their own names are durable.
#[derive(Debug, Default)]
pub(in crate::store) struct Chain {
    /// Of the innermost one.
    path: String,
    /// Where the path of each ends in `path`, and its inode.
    pub(super) found: Vec<(usize, u64)>,
    /// The directories that those are in, from where on none was kept open: in the same form.
    behind: Vec<(usize, u64)>,
    /// See [`super::Durable`].
    pub(super) losses: u64,
}

impl Chain {
    pub(super) fn new(path: &str, losses: u64) -> Self {
        let path = path.to_owned();
        Self { path, found: Vec::new(), behind: Vec::new(), losses }
    }

    /// One whose name may not be durable: its path ends at `end`.
    pub(super) fn add(&mut self, end: usize, inode: u64) {
        self.found.push((end, inode));
    }

    /// One that was made in the innermost one.
    pub(super) fn extend(&mut self, name: &str, inode: u64) {
        if !self.path.is_empty() {
            self.path.push('/');
        }
        self.path.push_str(name);
        self.add(self.path.len(), inode);
    }

    /// The directory `above` it, whose path ends at `end`, is to be flushed: into `open`, or to be opened
    /// later.
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

    /// How many directories are to be opened again and flushed.
    pub(in crate::store) fn behind(&self) -> usize {
        self.behind.len()
    }

    /// The paths of all that were found, with their inodes.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, u64)> {
        self.found.iter().map(|(end, inode)| (&self.path[..*end], *inode))
    }
}

impl Names {
    /// Opens some of the directories of `chain` that are to be flushed.
    pub(in crate::store) fn open_behind(
        &self,
        chain: &Chain,
        which: Range<usize>,
    ) -> Result<Vec<Arc<OwnedFd>>, UploadError> {
        let open = |(end, inode): &(usize, u64)| {
            let path = &chain.path[..*end];
            let opened = match open_beneath(&self.root, path, OFlags::DIRECTORY) {
                // Somebody has moved it, and it is not there under this name.
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
