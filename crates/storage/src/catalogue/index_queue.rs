//! The titles that are to be indexed in the background, and the progress: transport streams, and
//! titles of other containers whose frames have no table (Matroska, MP3, FLAC, Ogg).
//!
//! Promise: requested titles come first, then the others in their order. A title that was not
//! requested yields to one that is, and is then the first of the others. A title is queued once.
//! The memory is bounded: a title beyond [`WAITING_MAX`] is found again by the next inspection of
//! its volume.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tactus_core::units::Bytes;
use tactus_engine::message::{TitleId, VolumeId};
use tokio::sync::{Notify, watch};

use super::FileVersion;

/// A title that is to be indexed in the background.
#[derive(Clone, Debug)]
pub struct Unindexed {
    /// Its disk.
    pub volume: VolumeId,
    /// Its name there.
    pub name: String,
    /// The version that was requested, if it was.
    pub title: Option<TitleId>,
}

/// What became of a queued title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexOutcome {
    /// It has an index.
    Made,
    /// It had one, was removed, or is indexed when it is requested.
    NotNeeded,
    /// This version can have no index, or none that can be stored.
    Never(FileVersion),
    /// There was no room, or a read has failed.
    Failed,
}

/// How far the work is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IndexProgress {
    /// Titles that want an index, with the current one.
    pub wanted: usize,
    /// Indexes made in the background since the start.
    pub made: u64,
    /// Titles that can have none: no transport streams, and of no other container whose frames
    /// have no table; or those whose volume keeps none.
    pub without: u64,
    /// Titles that could not be read, or had no room.
    pub failed: u64,
    /// The title whose index is being made.
    pub current: Option<CurrentIndex>,
}

/// The title whose index is being made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CurrentIndex {
    /// Its disk.
    pub volume: VolumeId,
    /// Its name there.
    pub name: String,
    /// Bytes read.
    pub read: Bytes,
    /// Its length.
    pub len: Bytes,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct IndexQueue {
    inner: Mutex<Inner>,
    wake: Notify,
    /// Changes when the work on a title has ended.
    ends: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Inner {
    requested: VecDeque<Unindexed>,
    others: VecDeque<Unindexed>,
    /// The names of both.
    names: HashSet<(VolumeId, String)>,
    progress: IndexProgress,
    /// Versions that are not tried again.
    never: HashSet<FileVersion>,
}

/// Titles that may wait: 10 MB of names.
const WAITING_MAX: usize = 65_536;
/// Versions without an index that are remembered: 5 MB.
const NEVER_MAX: usize = 65_536;

impl IndexQueue {
    /// Queues a title, once. A requested one is moved before all that were not.
    pub(super) fn push(&self, title: Unindexed) {
        let mut inner = self.lock();
        let key = (title.volume, title.name.clone());
        if inner.names.contains(&key) {
            let is_same = |one: &Unindexed| one.volume == title.volume && one.name == title.name;
            // One that waits as requested stays.
            if title.title.is_some()
                && let Some(at) = inner.others.iter().position(is_same)
            {
                inner.others.remove(at);
                inner.requested.push_back(title);
            }
            return;
        }
        if inner.names.len() >= WAITING_MAX {
            return;
        }
        inner.names.insert(key);
        match title.title {
            Some(_) => inner.requested.push_back(title),
            None => inner.others.push_back(title),
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// The next title; waits for one. There is one caller. It may be queued again while it is
    /// read, as its content may change.
    pub(super) async fn next(&self) -> Unindexed {
        loop {
            let woken = self.wake.notified();
            let next = {
                let mut inner = self.lock();
                inner.requested.pop_front().or_else(|| inner.others.pop_front())
            };
            if let Some(next) = next {
                self.lock().names.remove(&(next.volume, next.name.clone()));
                self.handle_read(&next, Bytes(0), Bytes(0));
                return next;
            }
            woken.await;
        }
    }

    /// Whether `current`, the current title, is to be interrupted: it was not requested, and
    /// another title is.
    pub(super) fn is_outranked(&self, current: &Unindexed) -> bool {
        let inner = self.lock();
        let is_same = |one: &Unindexed| one.volume == current.volume && one.name == current.name;
        current.title.is_none()
            && !inner.requested.is_empty()
            && !inner.requested.iter().any(is_same)
    }

    /// Queues the current title again, before all others that were not requested.
    pub(super) fn handle_interruption(&self, title: Unindexed) {
        let mut inner = self.lock();
        inner.progress.current = None;
        if inner.names.insert((title.volume, title.name.clone())) {
            inner.others.push_front(title);
        }
    }

    /// The current title and how many of its bytes have been read.
    pub(super) fn handle_read(&self, title: &Unindexed, read: Bytes, len: Bytes) {
        let (volume, name) = (title.volume, title.name.clone());
        self.lock().progress.current = Some(CurrentIndex { volume, name, read, len });
    }

    /// Ends the work on the current title.
    pub(super) fn handle_end(&self, outcome: IndexOutcome) {
        self.lock().progress.current = None;
        self.count(outcome);
    }

    /// Counts the work on a title.
    pub(super) fn count(&self, outcome: IndexOutcome) {
        let mut inner = self.lock();
        match outcome {
            IndexOutcome::Made => inner.progress.made += 1,
            IndexOutcome::NotNeeded => {}
            IndexOutcome::Failed => inner.progress.failed += 1,
            IndexOutcome::Never(version) => {
                if inner.never.len() >= NEVER_MAX {
                    inner.never.clear();
                }
                inner.never.insert(version);
                inner.progress.without += 1;
            }
        }
        drop(inner);
        self.ends.send_replace(());
    }

    /// Changes when the work on any title has ended.
    pub(super) fn ends(&self) -> watch::Receiver<()> {
        self.ends.subscribe()
    }

    pub(super) fn is_never(&self, version: &FileVersion) -> bool {
        self.lock().never.contains(version)
    }

    pub(super) fn progress(&self) -> IndexProgress {
        let inner = self.lock();
        let wanted = inner.names.len() + usize::from(inner.progress.current.is_some());
        IndexProgress { wanted, ..inner.progress.clone() }
    }

    /// Each change is atomic, so the queue stays valid after a panic of another thread.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(name: &str, requested: Option<u64>) -> Unindexed {
        Unindexed { volume: VolumeId(0), name: name.to_owned(), title: requested.map(TitleId) }
    }

    #[tokio::test]
    async fn r12_each_title_is_queued_once_and_requested_ones_come_first() {
        let queue = IndexQueue::default();
        for (name, requested) in [("a", None), ("b", None), ("a", None), ("c", Some(1))] {
            queue.push(title(name, requested));
        }
        queue.push(title("b", Some(2)));
        assert_eq!(queue.progress().wanted, 3);
        for (name, outcome) in
            [("c", IndexOutcome::Made), ("b", IndexOutcome::Failed), ("a", IndexOutcome::NotNeeded)]
        {
            let next = queue.next().await;
            assert_eq!(next.name, name);
            queue.handle_read(&next, Bytes(1), Bytes(2));
            let current = queue.progress().current.expect("it is read");
            assert_eq!((current.name.as_str(), current.read), (name, Bytes(1)));
            queue.handle_end(outcome);
        }
        let IndexProgress { wanted, made, failed, current, .. } = queue.progress();
        assert_eq!((wanted, made, failed, current), (0, 1, 1, None));
        queue.push(title("a", None));
        let next = queue.next().await;
        queue.push(title("a", None));
        assert_eq!((next.name.as_str(), queue.progress().wanted), ("a", 2), "it changes meanwhile");
    }

    #[tokio::test]
    async fn r12_a_title_that_was_not_requested_yields_to_one_that_is_and_is_next() {
        let queue = IndexQueue::default();
        for name in ["a", "b"] {
            queue.push(title(name, None));
        }
        let first = queue.next().await;
        assert!(!queue.is_outranked(&first), "nothing is requested");
        queue.push(title("c", Some(1)));
        assert!(queue.is_outranked(&first));
        assert!(!queue.is_outranked(&title("d", Some(2))), "a requested title goes on");
        queue.handle_interruption(first);
        assert_eq!(queue.progress().wanted, 3);
        for name in ["c", "a", "b"] {
            assert_eq!(queue.next().await.name, name);
            queue.handle_end(IndexOutcome::Made);
        }
        let current = title("a", None);
        for (name, id) in [("a", 3), ("c", 4)] {
            queue.push(title(name, Some(id)));
        }
        assert!(!queue.is_outranked(&current), "it is requested itself by now");
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = IndexQueue::default();
        for nth in 0..WAITING_MAX + 10 {
            queue.push(title(&nth.to_string(), None));
        }
        assert_eq!(queue.progress().wanted, WAITING_MAX);
    }
}
