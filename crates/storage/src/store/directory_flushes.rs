//! Flushes of directories: changes of names in one directory share a flush.
//!
//! Promise: all requests for a directory use one open file of it while one of them is under way. By
//! this file the medium finds a waiting flush that a request can join.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use super::lock;

/// The directories of one volume that are being flushed, by inode: a volume is on one file system,
/// and an open file keeps its inode.
#[derive(Default)]
pub(super) struct DirectoryFlushes(Mutex<HashMap<u64, Weak<OwnedFd>>>);

impl DirectoryFlushes {
    /// The file by which `directory` is flushed: the one of a flush that is under way, or else this
    /// one. The flush keeps it.
    pub(super) fn file(&self, directory: &Arc<OwnedFd>) -> io::Result<Arc<OwnedFd>> {
        let inode = rustix::fs::fstat(directory)?.st_ino;
        let mut open = lock(&self.0);
        if let Some(shared) = open.get(&inode).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        open.retain(|_, directory| directory.strong_count() > 0);
        open.insert(inode, Arc::downgrade(directory));
        Ok(Arc::clone(directory))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn requests_for_a_directory_use_one_open_file_while_it_is_being_flushed() {
        let flushes = DirectoryFlushes::default();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open =
            |at: usize| Arc::new(OwnedFd::from(std::fs::File::open(folders[at].path()).unwrap()));
        let files = [0, 1, 0, 0].map(|at| flushes.file(&open(at)).unwrap());
        let numbers = files.each_ref().map(|file| file.as_raw_fd());
        assert!(numbers[2..].iter().all(|&file| file == numbers[0]) && numbers[1] != numbers[0]);
        drop(files);
        assert!(lock(&flushes.0).values().all(|directory| directory.strong_count() == 0));
        let _other = flushes.file(&open(1)).unwrap();
        assert_eq!(lock(&flushes.0).len(), 1, "nothing is kept of what is done");
    }
}
