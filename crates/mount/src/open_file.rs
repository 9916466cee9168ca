//! A file that programs have open: where its bytes come from.
//!
//! Promise: all handles of a file that are open at the same time use the same source, as the kernel
//! demands: the file itself, behind the kernel's passthrough, or the file server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::BackingId;
use tactus_client::Title;

use crate::reader::Reader;

/// An open file.
pub(crate) struct OpenFile {
    /// Which file it is ([`tactus_client::Stat::file`]).
    pub(crate) file: u64,
    source: Source,
}

enum Source {
    /// The kernel reads the file itself. Kept as long as a handle is open.
    Kernel(BackingId),
    Server(Mutex<ServedTitle>),
}

/// A title as a connection has opened it.
#[derive(Clone)]
pub(crate) struct ServedTitle {
    pub(crate) title: Arc<Title>,
    pub(crate) reader: Arc<Reader>,
}

impl OpenFile {
    /// A file that the kernel reads.
    pub(crate) fn kernel(file: u64, backing: BackingId) -> Self {
        Self { file, source: Source::Kernel(backing) }
    }

    /// A file that is read by the file server.
    pub(crate) fn served(title: ServedTitle) -> Self {
        Self { file: title.title.stat().file, source: Source::Server(Mutex::new(title)) }
    }

    /// What the kernel knows the file by.
    pub(crate) fn backing(&self) -> Option<&BackingId> {
        match &self.source {
            Source::Kernel(backing) => Some(backing),
            Source::Server(_) => None,
        }
    }

    /// The title, unless the kernel reads the file.
    pub(crate) fn title(&self) -> Option<ServedTitle> {
        match &self.source {
            Source::Kernel(_) => None,
            Source::Server(title) => Some(lock(title).clone()),
        }
    }

    /// The title has been opened once more: after the server's end, or as it has grown.
    pub(crate) fn renew(&self, title: ServedTitle) {
        if let Source::Server(known) = &self.source {
            let before = std::mem::replace(&mut *lock(known), title);
            // Closing it talks to the server, so the lock is free by now.
            drop(before);
        }
    }
}

fn lock(title: &Mutex<ServedTitle>) -> MutexGuard<'_, ServedTitle> {
    title.lock().unwrap_or_else(PoisonError::into_inner)
}
