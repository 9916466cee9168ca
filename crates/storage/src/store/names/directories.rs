//! Directories: making one, removing one with its contents, and taking a removed one apart.
//!
//! Promise: for every reader a directory disappears in one step, with everything beneath it. Its
//! contents lie in the trash, however deep it is and whenever the server ends. No walk has to begin
//! before the answer, and none has to end.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use rustix::fs::{AtFlags, Dir, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use tactus_core::path::{PATH_BYTES_MAX, PathFault};
use tactus_core::units::WallTime;

use super::{
    AnyName, Chain, DIRECTORY_MODE, EraseResult, MissingDirectories, NameChange, NamedItem, Names,
    Precondition, PrivateDirectory, QuotaEntry, RemovedName, discarded, failed, open_beneath,
    path_fault,
};
use crate::catalogue::walk::{self, Location, Visitor};
use crate::catalogue::{Digests, FileVersion};
use crate::store::fault::{NameFault, UploadError};
use crate::store::id::StoreId;
use crate::store::metadata::TitleMetadata;

/// The result of one step of taking a directory apart.
#[derive(Default)]
pub(in crate::store) struct RemovalStep {
    /// Titles that were removed.
    pub(in crate::store) titles: Vec<QuotaEntry>,
    /// Subdirectories that were moved into the trash beside it.
    pub(in crate::store) directories: Vec<StoreId>,
    /// Whether the directory is gone.
    pub(in crate::store) is_gone: bool,
}

/// The longest path below a directory.
#[derive(Default)]
struct LongestPath {
    bytes: usize,
    entries: usize,
}

/// Entries that are read before a move: half a second of work, in which no other name changes. The
/// depth of a larger tree is not checked; the census counts files at any depth.
const LOOKED_AT_MAX: usize = 100_000;

impl LongestPath {
    fn record(&mut self, place: &Location<'_>) {
        self.bytes = self.bytes.max(place.len());
        self.entries += 1;
    }
}

impl Visitor for LongestPath {
    fn skips(&mut self, _: &CStr, _: usize) -> bool {
        false
    }

    fn handle_file(&mut self, _: &OwnedFd, place: &Location<'_>, _: &Stat) {
        self.record(place);
    }

    fn handle_directory(&mut self, place: &Location<'_>, _: &Stat) {
        self.record(place);
    }

    fn handle_unreadable(&mut self, place: &Location<'_>, _: Option<&Stat>, _: Errno) {
        self.record(place);
    }

    fn continues(&mut self) -> bool {
        self.entries < LOOKED_AT_MAX
    }
}

/// Entries of one step: some tens of milliseconds on a hard disk, so that a title that is deleted
/// meanwhile does not wait for a directory of thousands.
const ENTRIES_PER_STEP: usize = 64;

impl Names {
    /// Makes a directory in an existing one.
    pub(in crate::store) fn make_directory(
        &self,
        name: &AnyName,
    ) -> Result<NameChange, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, mut chain, mut flush) =
            self.parents(&name.name, MissingDirectories::Refuse)?;
        let (_, last) = name.name.split();
        match rustix::fs::mkdirat(&parent, last, DIRECTORY_MODE) {
            Err(Errno::EXIST) => return Err(UploadError::Exists),
            made => made.map_err(failed)?,
        }
        let made = open_beneath(&parent, last, OFlags::DIRECTORY).map_err(path_fault)?;
        let inode = rustix::fs::fstat(&made).map_err(failed)?.st_ino;
        chain.extend(last, inode);
        flush.insert(0, Arc::new(parent));
        Ok(NameChange { etag: None, created: true, flush, replaced: None, chain })
    }

    /// Sets a modification time; returns none when the name is free.
    pub(in crate::store) fn set_modified(
        &self,
        name: &AnyName,
        condition: &Precondition,
        modified: WallTime,
    ) -> Result<Option<NameChange>, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, last) = name.name.split();
        let Some(parent) = self.existing_directory(parent)? else { return Ok(None) };
        let Some(present) = name.sight(&parent)? else { return Ok(None) };
        present.check(condition)?;
        let file = match open_beneath(&parent, last, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(path_fault(errno)),
        };
        // The checksums hold for the same bytes, but are bound to the time.
        let digests = Digests::of(&file);
        let metadata = TitleMetadata { modified: Some(modified), digests };
        metadata.write(&file).map_err(failed)?;
        let etag = match present {
            NamedItem::Title(_) => {
                Some(FileVersion::of(&rustix::fs::fstat(&file).map_err(failed)?).etag())
            }
            NamedItem::Directory(_) => None,
        };
        let (flush, chain) = (vec![Arc::new(file)], Chain::default());
        Ok(Some(NameChange { etag, created: false, flush, replaced: None, chain }))
    }

    /// Removes the title with this name, or the directory with its contents (W10); none when the
    /// name is free.
    pub(in crate::store) fn remove(
        &self,
        name: &AnyName,
        condition: &Precondition,
    ) -> Result<Option<NameChange>, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, last) = name.name.split();
        let Some(parent) = self.existing_directory(parent)? else { return Ok(None) };
        let Some(present) = name.sight(&parent)? else { return Ok(None) };
        present.check(condition)?;
        let Some(replaced) = self.bring_to_trash(&parent, last, &present)? else { return Ok(None) };
        let flush = vec![Arc::new(parent)];
        let (replaced, chain) = (Some(replaced), Chain::default());
        Ok(Some(NameChange { etag: None, created: false, flush, replaced, chain }))
    }

    /// Removes an empty directory; none when there is none. The kernel looks whether it is empty,
    /// in the same step.
    pub(in crate::store) fn remove_empty_directory(
        &self,
        name: &AnyName,
    ) -> Result<Option<NameChange>, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, last) = name.name.split();
        let Some(parent) = self.existing_directory(parent)? else { return Ok(None) };
        match rustix::fs::unlinkat(&parent, last, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Err(NameFault::NotEmpty.into()),
            removed => removed.map_err(path_fault)?,
        }
        self.forget_durable();
        let (flush, chain) = (vec![Arc::new(parent)], Chain::default());
        Ok(Some(NameChange { etag: None, created: false, flush, replaced: None, chain }))
    }

    /// Refuses a move that would make a path below the directory longer than requests allow.
    pub(super) fn check_depth(
        &self,
        parent: &OwnedFd,
        last: &str,
        from: &AnyName,
        to: &AnyName,
    ) -> Result<(), UploadError> {
        // Paths do not become longer.
        if to.name.path().len() <= from.name.path().len() {
            return Ok(());
        }
        let directory = open_beneath(parent, last, OFlags::RDONLY | OFlags::DIRECTORY);
        let directory = match directory {
            Ok(directory) => directory,
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut longest = LongestPath::default();
        walk::walk(&directory, &mut longest).map_err(failed)?;
        match to.name.path().len() + 1 + longest.bytes < PATH_BYTES_MAX {
            true => Ok(()),
            false => Err(NameFault::Path(PathFault::TooLong).into()),
        }
    }

    /// Moves the object with this name into the trash; none when it is gone.
    fn bring_to_trash(
        &self,
        parent: &OwnedFd,
        last: &str,
        present: &NamedItem,
    ) -> Result<Option<RemovedName>, UploadError> {
        let id = StoreId::random();
        let place = (PrivateDirectory::Trash, id);
        let gone = match present {
            NamedItem::Title(_) => discarded(parent, last, place)?,
            NamedItem::Directory(_) => RemovedName { counted: None, place },
        };
        match rustix::fs::renameat(parent, last, &self.own.trash, id.to_string()) {
            Err(Errno::NOENT) => return Ok(None),
            done => done.map_err(failed)?,
        }
        if matches!(present, NamedItem::Directory(_)) {
            self.forget_durable();
        }
        Ok(Some(gone))
    }

    /// Gives an object the name of `present`, which goes to the trash; one of the two is a
    /// directory. First they exchange names: at every power failure both exist.
    pub(super) fn swap_away(
        &self,
        old_parent: &OwnedFd,
        old_last: &str,
        parent: &OwnedFd,
        last: &str,
        present: &NamedItem,
    ) -> Result<Option<RemovedName>, UploadError> {
        let swap = RenameFlags::EXCHANGE;
        match rustix::fs::renameat_with(old_parent, old_last, parent, last, swap) {
            Ok(()) => self.bring_to_trash(old_parent, old_last, present),
            // The file system cannot exchange names, or the object is gone.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let replaced = self.bring_to_trash(parent, last, present)?;
                let flags = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(old_parent, old_last, parent, last, flags)
                    .map_err(failed)?;
                Ok(replaced)
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Takes a directory in the trash apart, one step. Its subdirectories are moved beside it: no
    /// path gets too long, and the depth needs no memory.
    pub(in crate::store) fn dismantle(&self, id: StoreId) -> io::Result<RemovalStep> {
        let (trash, name) = (&self.own.trash, id.to_string());
        let mut done = RemovalStep::default();
        let directory = match open_beneath(trash, &name, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(RemovalStep { is_gone: true, ..done }),
            Err(errno) => return Err(errno.into()),
        };
        let mut count = 0;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let entry = entry.file_name();
            if matches!(entry.to_bytes(), b"." | b"..") {
                continue;
            }
            if count == ENTRIES_PER_STEP {
                return Ok(done);
            }
            count += 1;
            match self.erase_in(&directory, entry)? {
                EraseResult::Gone(counted) => done.titles.extend(counted),
                EraseResult::Directory => {
                    let id = StoreId::random();
                    rustix::fs::renameat(&directory, entry, trash, id.to_string())?;
                    done.directories.push(id);
                }
            }
        }
        match rustix::fs::unlinkat(trash, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        done.is_gone = true;
        Ok(done)
    }
}
