//! The write protocol with one step left out: a replay of power failures must find the fault.
//!
//! Promise: releases do not contain it. A build with debug assertions leaves the step out when
//! [`ASK`] names it, and logs that.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};

use super::journal::{Record, Replay, WatermarkRecord};
use super::medium::{Flush, Medium, Pending, PendingIo, Reserve, WriteSlot};
use super::names::Names;
use super::sums::{SumsState, UNIT};

/// The environment variable that names the fault.
const ASK: &str = "TACTUS_FAULT";

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DeliberateFault {
    /// Directories are not flushed (W6).
    Folders,
    /// An upload resumes at the length of its file instead of the journal's offset (W8).
    Sizes,
}

fn asked() -> Option<DeliberateFault> {
    match std::env::var(ASK).ok()?.as_str() {
        "folders" => Some(DeliberateFault::Folders),
        "sizes" => Some(DeliberateFault::Sizes),
        other => panic!("{ASK} is folders or sizes, and not {other:?}"),
    }
}

/// `medium`, or a wrapper that leaves the step out.
pub(super) fn medium(medium: Arc<dyn Medium>) -> Arc<dyn Medium> {
    let Some(wrong) = asked() else { return medium };
    tracing::error!("{ASK} is set: this server loses what it has acknowledged");
    Arc::new(FaultyMedium { medium, wrong })
}

/// Sets the offset of every upload to the length of its file, if this fault is selected.
pub(super) fn offsets(names: &Names, mut replayed: Replay) -> Replay {
    if asked() != Some(DeliberateFault::Sizes) {
        return replayed;
    }
    let open = replayed.table.entries().filter(|(_, entry)| entry.named.is_none());
    let longer = open.filter_map(|(&id, entry)| {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(&names.own.uploads, id.to_string(), flags).ok()?;
        let len = super::len_of(&stat).0;
        let mark = SumsState { len, ..entry.mark };
        let units = vec![0; usize::try_from(len / UNIT).ok()?];
        let (prefix, expires) = (entry.prefix, entry.expires);
        Some(WatermarkRecord { id, mark, prefix, from: 0, units, expires })
    });
    for advanced in longer.collect::<Vec<_>>() {
        replayed.table.apply(Record::Advanced(advanced));
    }
    replayed
}

struct FaultyMedium {
    medium: Arc<dyn Medium>,
    wrong: DeliberateFault,
}

impl Medium for FaultyMedium {
    fn slot_size(&self) -> usize {
        self.medium.slot_size()
    }

    fn places_each(&self) -> usize {
        self.medium.places_each()
    }

    fn reserve(&self, what: Reserve) -> Pending<Arc<dyn Medium>> {
        let (reserved, wrong) = (self.medium.reserve(what), self.wrong);
        Box::pin(async move {
            let medium = reserved.await;
            Arc::new(Self { medium, wrong }) as Arc<dyn Medium>
        })
    }

    fn place(&self) -> Pending<Box<dyn WriteSlot>> {
        self.medium.place()
    }

    fn sync(&self, file: &Arc<OwnedFd>, what: Flush) -> PendingIo {
        let is_directory = || {
            let stat = rustix::fs::fstat(file);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        };
        if self.wrong == DeliberateFault::Folders && is_directory() {
            return Box::pin(async { Ok(()) });
        }
        self.medium.sync(file, what)
    }
}
