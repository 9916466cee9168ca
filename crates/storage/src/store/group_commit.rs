//! Group commit for directories: changes share a flush. While a directory is being flushed, all
//! later requests join one further flush.
//!
//! Promise: a flush covers every change made before it was requested. The flush goes to the device
//! once, and each request that joined gets its result.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use tokio::sync::{self, watch};

use super::lock;
use super::medium::{Flush, Medium, PendingIo, stopped};

/// The directories of one volume that are being flushed.
pub(super) struct GroupCommit {
    medium: Arc<dyn Medium>,
    /// By inode: a volume is on one file system.
    lines: Mutex<HashMap<u64, FlushQueue>>,
}

/// The flushes of one directory.
#[derive(Default)]
struct FlushQueue {
    /// Locked by the flush that is under way.
    turn: Arc<sync::Mutex<()>>,
    /// The flush that has not begun; further requests join it.
    next: Option<watch::Receiver<Option<Answer>>>,
}

/// An error carries its number if it came from the kernel.
type Answer = Result<(), Option<i32>>;

impl GroupCommit {
    pub(super) fn new(medium: Arc<dyn Medium>) -> Self {
        Self { medium, lines: Mutex::default() }
    }

    /// Flushes `directory`. The flush continues when the result is dropped.
    pub(super) fn sync(self: &Arc<Self>, directory: &Arc<OwnedFd>) -> PendingIo {
        let inode = match rustix::fs::fstat(directory) {
            Ok(stat) => stat.st_ino,
            Err(errno) => return Box::pin(async move { Err(errno.into()) }),
        };
        let mut answer = self.join(inode, directory);
        Box::pin(async move {
            let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| *answer);
            match answer {
                Some(Ok(())) => Ok(()),
                Some(Err(Some(errno))) => Err(io::Error::from_raw_os_error(errno)),
                Some(Err(None)) | None => Err(stopped()),
            }
        })
    }

    fn join(
        self: &Arc<Self>,
        inode: u64,
        directory: &Arc<OwnedFd>,
    ) -> watch::Receiver<Option<Answer>> {
        let mut lines = lock(&self.lines);
        let line = lines.entry(inode).or_default();
        if let Some(next) = &line.next {
            return next.clone();
        }
        let (tell, told) = watch::channel(None);
        line.next = Some(told.clone());
        let (this, turn) = (Arc::clone(self), Arc::clone(&line.turn));
        let directory = Arc::clone(directory);
        tokio::spawn(async move {
            let turn = turn.lock_owned().await;
            // The flush begins now: it may not cover changes of later requests.
            if let Some(line) = lock(&this.lines).get_mut(&inode) {
                line.next = None;
            }
            let synced = this.medium.sync(&directory, Flush::All).await;
            tell.send_replace(Some(synced.map_err(|error| error.raw_os_error())));
            drop(turn);
            let mut lines = lock(&this.lines);
            let is_idle = |line: &FlushQueue| Arc::strong_count(&line.turn) == 1;
            if lines.get(&inode).is_some_and(is_idle) {
                lines.remove(&inode);
            }
        });
        told
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::super::medium::{Pending, Reserve, WriteSlot};
    use super::*;

    /// Flushes when a test permits it; the second flush fails.
    struct ByHand {
        let_go: Semaphore,
        asked: AtomicUsize,
    }

    impl Medium for Arc<ByHand> {
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

        fn sync(&self, _file: &Arc<OwnedFd>, _what: Flush) -> PendingIo {
            let (this, turn) = (Arc::clone(self), self.asked.fetch_add(1, Ordering::Relaxed));
            Box::pin(async move {
                this.let_go.acquire().await.unwrap().forget();
                if turn == 1 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
            })
        }
    }

    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_comes_during_a_flush_shares_the_next_and_its_answer() {
        let by_hand = Arc::new(ByHand { let_go: Semaphore::new(0), asked: AtomicUsize::new(0) });
        let group_commit = Arc::new(GroupCommit::new(Arc::new(Arc::clone(&by_hand))));
        let folder = tempfile::tempdir().unwrap();
        let open = || Arc::new(OwnedFd::from(std::fs::File::open(folder.path()).unwrap()));
        let first = group_commit.sync(&open());
        settle().await;
        let (second, third) = (group_commit.sync(&open()), group_commit.sync(&open()));
        settle().await;
        assert_eq!(by_hand.asked.load(Ordering::Relaxed), 1, "one at a time");
        by_hand.let_go.add_permits(1);
        first.await.unwrap();
        settle().await;
        let late = group_commit.sync(&open());
        by_hand.let_go.add_permits(2);
        for shared in [second, third] {
            assert_eq!(shared.await.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        late.await.unwrap();
        settle().await;
        assert_eq!(by_hand.asked.load(Ordering::Relaxed), 3, "late came during the second");
        assert!(lock(&group_commit.lines).is_empty(), "nothing is kept of what is done");
    }
}
