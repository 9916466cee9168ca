//! Flushes of directories: changes of names in one directory share a flush.
//!
//! Promise: a flush covers every change made before it was requested. All requests for a directory
//! use one open file of it, by which the medium finds a waiting flush that the request can join.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use super::lock;
use super::medium::{Flush, Medium, PendingIo};

/// The directories of one volume that are being flushed.
pub(super) struct DirectoryFlushes {
    medium: Arc<dyn Medium>,
    /// By inode: a volume is on one file system, and an open file keeps its inode.
    open: Mutex<HashMap<u64, Weak<OwnedFd>>>,
}

impl DirectoryFlushes {
    pub(super) fn new(medium: Arc<dyn Medium>) -> Self {
        Self { medium, open: Mutex::default() }
    }

    /// Flushes `directory`. The flush continues when the result is dropped.
    pub(super) fn sync(&self, directory: &Arc<OwnedFd>) -> PendingIo {
        match rustix::fs::fstat(directory) {
            Ok(stat) => self.medium.sync(&self.shared(stat.st_ino, directory), Flush::All),
            Err(errno) => Box::pin(async move { Err(errno.into()) }),
        }
    }

    /// The open file of a directory that is being flushed, or else this one.
    fn shared(&self, inode: u64, directory: &Arc<OwnedFd>) -> Arc<OwnedFd> {
        let mut open = lock(&self.open);
        if let Some(shared) = open.get(&inode).and_then(Weak::upgrade) {
            return shared;
        }
        open.retain(|_, directory| directory.strong_count() > 0);
        open.insert(inode, Arc::downgrade(directory));
        Arc::clone(directory)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::AsRawFd;

    use tokio::sync::watch;

    use super::super::medium::{Pending, Reserve, WriteSlot};
    use super::*;

    /// Notes the files of all flushes, and ends them when a test says so.
    struct ByHand {
        flushed: Mutex<Vec<i32>>,
        is_done: watch::Sender<bool>,
    }

    impl Medium for ByHand {
        fn slot_size(&self) -> usize {
            4096
        }

        fn places_each(&self) -> usize {
            2
        }

        fn place(&self) -> Pending<Box<dyn WriteSlot>> {
            Box::pin(std::future::pending())
        }

        fn reserve(&self, _what: Reserve) -> Pending<Arc<dyn Medium>> {
            Box::pin(std::future::pending())
        }

        fn sync(&self, file: &Arc<OwnedFd>, _what: Flush) -> PendingIo {
            lock(&self.flushed).push(file.as_raw_fd());
            let (file, mut is_done) = (Arc::clone(file), self.is_done.subscribe());
            Box::pin(async move {
                is_done.wait_for(|&is_done| is_done).await.map_err(io::Error::other)?;
                drop(file);
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn requests_for_a_directory_use_one_open_file_while_it_is_being_flushed() {
        let (is_done, _) = watch::channel(false);
        let by_hand = Arc::new(ByHand { flushed: Mutex::default(), is_done });
        let flushes = DirectoryFlushes::new(Arc::clone(&by_hand) as Arc<dyn Medium>);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open =
            |at: usize| Arc::new(OwnedFd::from(std::fs::File::open(folders[at].path()).unwrap()));
        let begun = [0, 1, 0, 0].map(|at| flushes.sync(&open(at)));
        let files = std::mem::take(&mut *lock(&by_hand.flushed));
        assert_eq!(files.len(), 4, "the medium decides which flushes are one");
        assert!(files[2..].iter().all(|&file| file == files[0]) && files[1] != files[0]);
        by_hand.is_done.send_replace(true);
        for flush in begun {
            flush.await.unwrap();
        }
        assert!(lock(&flushes.open).values().all(|directory| directory.strong_count() == 0));
        flushes.sync(&open(1)).await.unwrap();
        assert_eq!(lock(&flushes.open).len(), 1, "nothing is kept of what is done");
    }
}
