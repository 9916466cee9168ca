//! A file that programs have open: where its bytes come from.
//!
//! Promise: all handles of a file that are open at the same time use the same source, as the kernel
//! demands: the file itself, behind the kernel's passthrough, or this mount. Behind the mount the
//! source changes when a program begins to write, and when what it has written becomes a title.

use std::fs::File;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackingId, Errno};
use tactus_client::Title;

use crate::read_ahead::PartSource;
use crate::reader::{Answer, Reader};
use crate::work::Work;

/// An open file.
pub(crate) struct OpenFile {
    /// Which file it is ([`tactus_client::Stat::file`]).
    file: AtomicU64,
    source: Source,
    /// Handles that can write.
    writers: AtomicUsize,
    /// Held while writing begins or ends.
    changing: Mutex<()>,
}

enum Source {
    /// The kernel reads the file itself. Kept as long as a handle is open.
    Kernel(BackingId),
    Mount(Mutex<Content>),
}

/// What the mount reads and writes.
#[derive(Clone)]
pub(crate) enum Content {
    /// A title, by the file server.
    Title(ServedTitle),
    /// A file that is being written.
    Work(Arc<Work>),
    /// The file of a title that was written here.
    Written(Arc<File>),
    /// What was written is no title, for this reason.
    Failed(Errno),
}

/// A title as a connection has opened it.
#[derive(Clone)]
pub(crate) struct ServedTitle {
    pub(crate) title: Arc<Title>,
    pub(crate) reader: Arc<Reader>,
}

impl PartSource for ServedTitle {
    fn len(&self) -> u64 {
        self.title.len()
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.title, &other.title)
    }

    fn read(&self, offset: u64, len: usize, answer: Answer) {
        self.reader.read(Arc::clone(&self.title), offset, len, answer);
    }
}

impl OpenFile {
    /// A file that the kernel reads.
    pub(crate) fn kernel(file: u64, backing: BackingId) -> Self {
        Self::new(file, Source::Kernel(backing))
    }

    /// A file that is read by the file server.
    pub(crate) fn served(title: ServedTitle) -> Self {
        let file = title.title.stat().file;
        Self::new(file, Source::Mount(Mutex::new(Content::Title(title))))
    }

    /// A file that is being written.
    pub(crate) fn work(work: Arc<Work>) -> Self {
        Self::new(work.number(), Source::Mount(Mutex::new(Content::Work(work))))
    }

    fn new(file: u64, source: Source) -> Self {
        let (file, writers, changing) = (AtomicU64::new(file), AtomicUsize::new(0), Mutex::new(()));
        Self { file, source, writers, changing }
    }

    /// Which file it is by now.
    pub(crate) fn file(&self) -> u64 {
        self.file.load(Ordering::Relaxed)
    }

    /// What the kernel knows the file by.
    pub(crate) fn backing(&self) -> Option<&BackingId> {
        match &self.source {
            Source::Kernel(backing) => Some(backing),
            Source::Mount(_) => None,
        }
    }

    /// What the mount reads; none if the kernel does.
    pub(crate) fn content(&self) -> Option<Content> {
        match &self.source {
            Source::Kernel(_) => None,
            Source::Mount(content) => Some(lock(content).clone()),
        }
    }

    /// The title, if it is read by the file server.
    pub(crate) fn title(&self) -> Option<ServedTitle> {
        match self.content()? {
            Content::Title(title) => Some(title),
            Content::Work(_) | Content::Written(_) | Content::Failed(_) => None,
        }
    }

    /// The file that is being written, if it is.
    pub(crate) fn in_work(&self) -> Option<Arc<Work>> {
        match self.content()? {
            Content::Work(work) => Some(work),
            Content::Title(_) | Content::Written(_) | Content::Failed(_) => None,
        }
    }

    /// The title has been opened once more: after the server's end, or as it has grown.
    pub(crate) fn renew(&self, title: ServedTitle) {
        if let Source::Mount(known) = &self.source {
            let mut known = lock(known);
            let before = match &mut *known {
                Content::Title(known) => Some(std::mem::replace(known, title)),
                // Somebody has begun to write it.
                Content::Work(_) | Content::Written(_) | Content::Failed(_) => None,
            };
            drop(known);
            // Closing it talks to the server, so the lock is free by now.
            drop(before);
        }
    }

    /// Another source, of another file if writing has begun.
    pub(crate) fn change(&self, content: Content) {
        if let Content::Work(work) = &content {
            self.file.store(work.number(), Ordering::Relaxed);
        }
        if let Source::Mount(known) = &self.source {
            let before = std::mem::replace(&mut *lock(known), content);
            // Closing it talks to the server, so the lock is free by now.
            drop(before);
        }
    }

    /// While the guard lives, nobody else begins or ends to write.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    /// One more handle that can write.
    pub(crate) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::AcqRel);
    }

    /// One less. Returns how many are left.
    pub(crate) fn remove_writer(&self) -> usize {
        self.writers.fetch_sub(1, Ordering::AcqRel) - 1
    }

    pub(crate) fn writers(&self) -> usize {
        self.writers.load(Ordering::Acquire)
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
