//! Checksums that a title gets after its name: computed from the stored bytes, in the background.
//!
//! Promise: from the moment on at which a title has its name, its checksums are either stored or
//! marked as due, and the mark is as durable as the name. A title is read without comparison while
//! the mark is there; the mark becomes the manifest in one step. A start goes on with all marks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tactus_core::units::MIB;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Inner;
use super::fault::UploadError;
use super::id::StoreId;
use super::medium::blocking;
use super::names::{self, Names, open_beneath};
use super::sums::{DUE, Sums, SumsBuilder, due_places, place_of};

/// A title whose checksums are due.
pub(super) struct DueSums {
    /// The name of their manifest.
    id: StoreId,
    file: Arc<OwnedFd>,
    /// How long to pause after each piece: its bytes come from the disk.
    pause: Duration,
    /// When to begin.
    at: Instant,
}

/// The titles whose checksums are due, for those who find more of them.
#[derive(Clone, Debug)]
pub(super) struct DueQueue {
    titles: mpsc::WeakSender<DueSums>,
    /// With the one whose checksums are being made.
    count: Arc<AtomicU64>,
}

/// The queue, as long as its store is open.
#[derive(Debug)]
pub(super) struct DueTitles {
    titles: mpsc::Sender<DueSums>,
    count: Arc<AtomicU64>,
}

/// Titles that wait, each with an open file. When the queue is full, the next title waits.
const WAITING_MAX: usize = 64;

/// Bytes that are read at a time.
const READ_BYTES: usize = MIB as usize;

/// The pause of a title of the last run: 60 MiB a second, which leaves the disk to the streams.
const PACE: Duration = Duration::from_millis(16);

/// The delay of a title that was just written: its answer goes out first. Otherwise the answer
/// would wait for the processor that makes the checksums.
const AFTER_ANSWER: Duration = Duration::from_millis(5);

/// Creates the mark for the checksums `id`. It is durable when the returned directory was flushed.
pub(super) fn mark(manifests: &OwnedFd, id: StoreId) -> io::Result<Arc<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let [place, _] = due_places(id);
    rustix::fs::openat(manifests, place, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(Arc::new(open_beneath(manifests, DUE, OFlags::RDONLY | OFlags::DIRECTORY)?))
}

/// The queue of a store, and the end that makes the checksums.
pub(super) fn queue() -> (DueTitles, mpsc::Receiver<DueSums>) {
    let (titles, waiting) = mpsc::channel(WAITING_MAX);
    (DueTitles { titles, count: Arc::default() }, waiting)
}

impl DueTitles {
    /// Adds a title that has just been written.
    pub(super) async fn add(&self, id: StoreId, file: Arc<OwnedFd>) {
        let at = Instant::now() + AFTER_ANSWER;
        self.queue().push(DueSums { id, file, pause: Duration::ZERO, at }).await;
    }

    /// How many titles there are.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn queue(&self) -> DueQueue {
        DueQueue { titles: self.titles.downgrade(), count: Arc::clone(&self.count) }
    }
}

impl DueQueue {
    /// Adds a title of the last run.
    pub(super) async fn add_old(&self, id: StoreId, file: OwnedFd) {
        self.push(DueSums { id, file: Arc::new(file), pause: PACE, at: Instant::now() }).await;
    }

    async fn push(&self, due: DueSums) {
        let Some(titles) = self.titles.upgrade() else { return };
        self.count.fetch_add(1, Ordering::Relaxed);
        if titles.send(due).await.is_err() {
            // The store ends. The next start finds the mark.
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Makes the checksums of all titles of the queue, until the store ends.
pub(super) async fn make_all(store: Weak<Inner>, mut queue: mpsc::Receiver<DueSums>) {
    while let Some(DueSums { id, file, pause, at }) = queue.recv().await {
        tokio::time::sleep_until(at).await;
        let Some(inner) = store.upgrade() else { return };
        let (names, count) = (Arc::clone(&inner.names), Arc::clone(&inner.due.count));
        drop(inner);
        let (read, ended) = (Arc::clone(&file), store.clone());
        let is_over = move || ended.strong_count() == 0 || !names.own.manifests.is_due(id);
        let sums = blocking(move || sums_of(&read, pause, is_over)).await;
        let Some(inner) = store.upgrade() else { return };
        match sums {
            Ok(None) => {}
            Ok(Some(sums)) => match inner.store_due(id, &sums).await {
                Ok(false) => {}
                Ok(true) => inner.summed.get().into_iter().for_each(|told| told(&file)),
                Err(error) => tracing::warn!(%error, "a title waits for its checksums"),
            },
            Err(error) => tracing::error!(%error, "a title cannot be read for its checksums"),
        }
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The checksums of a file; none if `is_over` before its end.
pub(super) fn sums_of(
    file: impl AsFd,
    pause: Duration,
    is_over: impl Fn() -> bool,
) -> io::Result<Option<Sums>> {
    let mut builder = SumsBuilder::default();
    let (mut memory, mut at) = (vec![0; READ_BYTES], 0);
    while !is_over() {
        match rustix::io::pread(&file, &mut memory, at) {
            Ok(0) => return Ok(Some(builder.finish())),
            Ok(got) => {
                builder.add(&memory[..got]);
                at += got as u64;
                std::thread::sleep(pause);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}

impl Inner {
    /// Writes the manifest `id`, and replaces the mark by it. False if the title is gone.
    async fn store_due(&self, id: StoreId, sums: &Sums) -> Result<bool, UploadError> {
        self.writable()?;
        let names = Arc::clone(&self.names);
        let opened = self.blocking(move || open(&names, id)).await;
        let Some(mark) = opened.map_err(|error| self.write_failed(error))? else {
            return Ok(false);
        };
        let mark = Arc::new(mark);
        // A crash in between leaves a mark with some bytes, which is still a mark.
        self.write_whole(&mark, &sums.encode()).await?;
        self.sync(&[mark], &[]).await?;
        let names = Arc::clone(&self.names);
        let renamed = self.blocking(move || {
            let manifests = names.own.manifests.directory();
            let [from, _] = due_places(id);
            match rustix::fs::renameat(manifests, from, manifests, place_of(id)) {
                // Without a flush: if the mark comes back, the checksums are made again.
                Ok(()) => Ok(true),
                Err(Errno::NOENT) => Ok(false),
                Err(errno) => Err(errno.into()),
            }
        });
        renamed.await.map_err(|error| self.write_failed(error))
    }
}

/// The mark of the checksums `id`; none if there is none any more.
fn open(names: &Names, id: StoreId) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let [place, _] = due_places(id);
    match rustix::fs::openat(names.own.manifests.directory(), place, flags, Mode::empty()) {
        Ok(mark) => Ok(Some(names::past_cache(mark))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
