//! The names of one volume: everything beneath its root, and the server's own files there.
//!
//! Promise: every name is reached beneath the root, through no link and on one file system, checked
//! by the kernel at the moment of use (`openat2`). Changing a name is one step for every reader.
//! Nothing here flushes: callers get the directories whose flush makes the change durable.

mod chain;
mod directories;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tactus_media::index;

pub(super) use chain::Chain;

use super::fault::{NameFault, UploadError};
use super::id::StoreId;
use super::quotas::Principal;
use super::sums::{self, Manifests};
use crate::catalogue::{FileVersion, is_reserved};

/// The precondition of a title's name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Precondition {
    /// An existing title is replaced.
    #[default]
    Any,
    /// The name must be free (`If-None-Match: *`).
    CreateOnly,
    /// A title must have the name (`If-Match: *`).
    Exists,
    /// The existing title must have one of these strong entity tags, quotes included (`If-Match`).
    Match(Vec<String>),
    /// The existing title was not modified after this second since 1970 (`If-Unmodified-Since`, RFC
    /// 9110 section 13.1.4); a free name passes.
    UnmodifiedSince(i64),
    /// No existing title has one of these entity tags (`If-None-Match` with tags, RFC 9110 section
    /// 13.1.2).
    Unless {
        /// The tags without `W/`: the comparison is weak.
        tags: Vec<String>,
        /// A title must exist.
        exists: bool,
        /// As in [`Self::UnmodifiedSince`].
        unmodified_since: Option<i64>,
    },
}

impl Precondition {
    fn check(&self, present: Option<&Stat>) -> Result<(), UploadError> {
        let version = present.map(|stat| (Some(FileVersion::of(stat).etag()), stat.st_mtime));
        self.holds_for(version).map_err(|error| match error {
            UploadError::PreconditionFailed if *self == Self::CreateOnly => UploadError::Exists,
            error => error,
        })
    }

    /// Checks the condition against the existing object: its entity tag if it is a title, and its
    /// modification time in seconds since 1970.
    ///
    /// # Errors
    /// `PreconditionFailed` when it does not.
    pub fn holds_for(&self, present: Option<(Option<String>, i64)>) -> Result<(), UploadError> {
        // Both are whole seconds, as is the date in the answer.
        let is_unmodified =
            |second: i64| present.as_ref().is_none_or(|(_, modified)| *modified <= second);
        let has_one_of =
            |tags: &[String]| matches!(&present, Some((Some(tag), _)) if tags.contains(tag));
        let held = match self {
            Self::Any => true,
            Self::CreateOnly => present.is_none(),
            Self::Exists => present.is_some(),
            Self::Match(tags) => has_one_of(tags),
            Self::UnmodifiedSince(second) => is_unmodified(*second),
            Self::Unless { tags, exists, unmodified_since } => {
                !has_one_of(tags)
                    && (present.is_some() || !exists)
                    && unmodified_since.is_none_or(is_unmodified)
            }
        };
        if held { Ok(()) } else { Err(UploadError::PreconditionFailed) }
    }

    /// The entity tags in it.
    pub(super) fn tags(&self) -> &[String] {
        match self {
            Self::Match(tags) | Self::Unless { tags, .. } => tags,
            Self::Any | Self::CreateOnly | Self::Exists | Self::UnmodifiedSince(_) => &[],
        }
    }
}

/// What a new name may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplacePolicy {
    /// Nothing: the name must be free.
    Nothing,
    /// A title, by another title.
    Titles,
    /// A title, or a directory with its contents.
    Everything,
}

/// A checked path of a title or a directory; a path that ends with a slash names a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AnyName {
    name: TitleName,
    directory: bool,
}

impl AnyName {
    pub(super) fn new(path: &str) -> Result<Self, NameFault> {
        let bare = path.strip_suffix('/');
        let name = TitleName::new(bare.unwrap_or(path))?;
        Ok(Self { name, directory: bare.is_some() })
    }

    /// Whether `other` is the same path, or lies beneath it.
    fn holds(&self, other: &Self) -> bool {
        let rest = other.name.0.strip_prefix(&self.name.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The object with this name in its directory `parent`.
    fn sight(&self, parent: &OwnedFd) -> Result<Option<NamedItem>, UploadError> {
        let (_, last) = self.name.split();
        let thing = thing_in(parent, last)?;
        // `/film.ts/` is not the title `/film.ts`: one object has one name.
        Ok(thing.filter(|thing| matches!(thing, NamedItem::Directory(_)) || !self.directory))
    }
}

/// An object that has a name.
#[derive(Clone, Copy)]
enum NamedItem {
    Title(Stat),
    Directory(Stat),
}

impl NamedItem {
    fn inode(&self) -> u64 {
        let (Self::Title(stat) | Self::Directory(stat)) = self;
        stat.st_ino
    }

    /// A directory has a modification time, but no version for an entity tag.
    fn check(&self, condition: &Precondition) -> Result<(), UploadError> {
        match self {
            Self::Title(stat) => condition.check(Some(stat)),
            Self::Directory(stat) => condition.holds_for(Some((None, stat.st_mtime))),
        }
    }
}

/// A checked path of a title, relative to the volume's root.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct TitleName(String);

impl TitleName {
    pub(super) fn new(path: &str) -> Result<Self, NameFault> {
        for segment in path.split('/') {
            tactus_core::path::check_name(segment).map_err(NameFault::Path)?;
            if is_reserved(segment) {
                return Err(NameFault::Reserved);
            }
        }
        if path.len() >= tactus_core::path::PATH_BYTES_MAX {
            return Err(NameFault::Path(tactus_core::path::PathFault::TooLong));
        }
        Ok(Self(path.to_owned()))
    }

    pub(super) fn path(&self) -> &str {
        &self.0
    }

    /// Its directory, empty for the root, and its name there.
    fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }
}

/// The server's own directories.
#[derive(Debug)]
pub(super) struct PrivateFiles {
    pub(super) top: Arc<OwnedFd>,
    /// Data of resumable uploads.
    pub(super) uploads: Arc<OwnedFd>,
    /// Temporary names of files that wait for their final names.
    pub(super) stage: OwnedFd,
    /// Files and directories that wait to be unlinked.
    pub(super) trash: OwnedFd,
    /// Files that programs write in place, and whose bytes are durable.
    pub(super) working: Arc<OwnedFd>,
    pub(super) manifests: Manifests,
}

#[derive(Debug)]
pub(super) struct Names {
    pub(super) root: Arc<OwnedFd>,
    pub(super) own: PrivateFiles,
    /// One change at a time: a check still holds when the name changes.
    changing: Mutex<()>,
    /// Directories whose own names are durable.
    durable: Mutex<DurableDirectories>,
}

/// Directories whose own names are durable, with their inodes.
#[derive(Default, Debug)]
struct DurableDirectories {
    known: HashMap<String, u64>,
    /// How often directories have lost their names. An earlier result may concern a directory that
    /// is gone and whose inode was reused.
    losses: u64,
}

/// Directories that are remembered; forgotten ones cost one more flush, which does no harm.
const DURABLE_MAX: usize = 4096;

/// A completed change of names, and the flushes that make it durable.
#[derive(Debug)]
pub(super) struct NameChange {
    /// The title's entity tag under its new name; a directory has none.
    pub(super) etag: Option<String>,
    /// Whether the name was free before.
    pub(super) created: bool,
    /// The directories to be flushed.
    pub(super) flush: Vec<Arc<OwnedFd>>,
    /// The replaced version, which has no name any more.
    pub(super) replaced: Option<RemovedName>,
    /// The path's directories, to be marked durable after their flush.
    pub(super) chain: Chain,
}

/// An object that lost its name and lies in the trash or on the stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RemovedName {
    /// The quota entry of a title without another name. The contents of a directory count until it
    /// is taken apart.
    pub(super) counted: Option<QuotaEntry>,
    pub(super) place: (PrivateDirectory, StoreId),
}

/// An object to unlink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Discard {
    pub(super) place: (PrivateDirectory, StoreId),
    /// The quotas no longer count the title's bytes, or never did.
    pub(super) is_settled: bool,
}

/// The bytes of a title and the principal whose quota they count against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QuotaEntry {
    pub(super) owner: Option<Principal>,
    pub(super) len: u64,
}

/// The names that a file has in the server's own directories before it is a title.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct OwnNames {
    /// On the stage, where the file system has no unnamed files.
    pub(super) staged: Option<StoreId>,
    /// Among the working files.
    pub(super) working: Option<StoreId>,
}

/// A directory of files that clients cannot name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PrivateDirectory {
    Stage,
    Trash,
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Tries of one opening, when it races with renames.
const TRIES_MAX: usize = 8;

impl Names {
    pub(super) fn new(root: Arc<OwnedFd>, own: PrivateFiles) -> Self {
        Self { root, own, changing: Mutex::default(), durable: Mutex::default() }
    }

    pub(super) fn aside(&self, aside: PrivateDirectory) -> &OwnedFd {
        match aside {
            PrivateDirectory::Stage => &self.own.stage,
            PrivateDirectory::Trash => &self.own.trash,
        }
    }

    /// The existing title with this name; an error if the precondition does not hold, or if the
    /// name belongs to another object.
    pub(super) fn look(
        &self,
        name: &TitleName,
        condition: &Precondition,
    ) -> Result<Option<Stat>, UploadError> {
        let (parent, last) = name.split();
        let present = match open_beneath(&self.root, parent, OFlags::DIRECTORY | OFlags::PATH) {
            Ok(parent) => title_in(&parent, last)?,
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(path_fault(errno)),
        };
        condition.check(present.as_ref())?;
        Ok(present)
    }

    /// Gives `file` its final name (W5); before, it has no name or those of `own`.
    pub(super) fn publish(
        &self,
        file: &OwnedFd,
        own: OwnNames,
        name: &TitleName,
        condition: &Precondition,
    ) -> Result<NameChange, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, chain, mut flush) = self.parents(name, MissingDirectories::Make)?;
        let (_, last) = name.split();
        let present = title_in(&parent, last)?;
        let inode = rustix::fs::fstat(file).map_err(failed)?.st_ino;
        let mut replaced = None;
        match present {
            // The file got its name before a crash, and the client had no answer.
            Some(stat) if stat.st_ino == inode => {}
            present => {
                condition.check(present.as_ref())?;
                match link(file, &parent, last) {
                    Err(Errno::EXIST) if *condition == Precondition::CreateOnly => {
                        return Err(UploadError::Exists);
                    }
                    Err(Errno::EXIST) => replaced = self.replace(file, own, &parent, last)?,
                    done => done.map_err(failed)?,
                }
            }
        }
        flush.insert(0, Arc::new(parent));
        // The title is named now: nothing after this may report that it is not.
        let other = replaced.as_ref().map(|replaced| replaced.place);
        if let Some(id) = own.staged.filter(|id| other != Some((PrivateDirectory::Stage, *id))) {
            // The next start removes files that remain on the stage.
            rustix::fs::unlinkat(&self.own.stage, id.to_string(), AtFlags::empty()).ok();
        }
        // Read last: each change of a file's names changes its version.
        let etag = Some(FileVersion::of(&rustix::fs::fstat(file).map_err(failed)?).etag());
        Ok(NameChange { etag, created: present.is_none(), flush, replaced, chain })
    }

    /// Replaces the existing title by `file`. The older version goes to the stage, so that its
    /// blocks are not freed inside the rename.
    fn replace(
        &self,
        file: &OwnedFd,
        own: OwnNames,
        parent: &OwnedFd,
        last: &str,
    ) -> Result<Option<RemovedName>, UploadError> {
        // Under its own number a file is on the stage before it is a title, and never afterwards.
        let id = own.staged.or(own.working).unwrap_or_else(StoreId::random);
        let staged = id.to_string();
        let discarded = discarded(parent, last, (PrivateDirectory::Stage, id))?;
        if own.staged.is_none() {
            link(file, &self.own.stage, &staged).map_err(failed)?;
        }
        let swap = RenameFlags::EXCHANGE;
        match rustix::fs::renameat_with(&self.own.stage, &staged, parent, last, swap) {
            Ok(()) => Ok(Some(discarded)),
            // The old title is gone, or the file system cannot exchange names.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let kept = self.keep_in_trash(parent, last)?;
                rustix::fs::renameat(&self.own.stage, &staged, parent, last).map_err(failed)?;
                Ok(kept)
            }
            Err(errno) => {
                rustix::fs::unlinkat(&self.own.stage, &staged, AtFlags::empty()).ok();
                Err(failed(errno))
            }
        }
    }

    /// Removes the name (W10).
    pub(super) fn discard(
        &self,
        name: &TitleName,
        condition: &Precondition,
    ) -> Result<Option<NameChange>, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (parent, last) = name.split();
        let parent = match open_beneath(&self.root, parent, OFlags::DIRECTORY) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(path_fault(errno)),
        };
        let Some(present) = title_in(&parent, last)? else { return Ok(None) };
        condition.check(Some(&present))?;
        let id = StoreId::random();
        let replaced = discarded(&parent, last, (PrivateDirectory::Trash, id))?;
        match rustix::fs::renameat(&parent, last, &self.own.trash, id.to_string()) {
            Err(Errno::NOENT) => return Ok(None),
            done => done.map_err(failed)?,
        }
        Ok(Some(NameChange {
            etag: None,
            created: false,
            flush: vec![Arc::new(parent)],
            replaced: Some(replaced),
            chain: Chain::default(),
        }))
    }

    /// Opens the directory at `path`; none when it does not exist.
    fn existing_directory(&self, path: &str) -> Result<Option<OwnedFd>, UploadError> {
        match open_beneath(&self.root, path, OFlags::DIRECTORY) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(path_fault(errno)),
        }
    }

    /// Renames `from` to `to`; none when `from` does not exist.
    pub(super) fn rename(
        &self,
        from: &AnyName,
        source: &Precondition,
        to: &AnyName,
        over: ReplacePolicy,
    ) -> Result<Option<NameChange>, UploadError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (old_parent, old_last) = from.name.split();
        let Some(old_parent) = self.existing_directory(old_parent)? else { return Ok(None) };
        let Some(moved) = from.sight(&old_parent)? else { return Ok(None) };
        moved.check(source)?;
        let is_title = matches!(moved, NamedItem::Title(_));
        if !is_title && (from.holds(to) || to.holds(from)) {
            return Err(NameFault::Itself.into());
        }
        let (_, last) = to.name.split();
        if is_title && to.directory && over != ReplacePolicy::Everything {
            return Err(NameFault::NoTitle.into());
        }
        // RFC 4918 section 9.9.4: unlike an upload, a move creates no directory.
        if !is_title {
            self.check_depth(&old_parent, old_last, from, to)?;
        }
        let (parent, chain, mut flush) = self.parents(&to.name, MissingDirectories::Refuse)?;
        let present = thing_in(&parent, last)?;
        match (over, &present) {
            (_, None) | (ReplacePolicy::Everything, _) => {}
            (ReplacePolicy::Titles, Some(NamedItem::Title(_))) if is_title => {}
            (ReplacePolicy::Titles, _) => return Err(NameFault::NoTitle.into()),
            (ReplacePolicy::Nothing, _) => return Err(UploadError::Exists),
        }
        let mut replaced = None;
        match &present {
            // To its own name, or to another link of the same file: the kernel would do nothing
            // either.
            Some(present) if present.inode() == moved.inode() => {}
            Some(NamedItem::Title(_)) if is_title => {
                replaced = self.keep_in_trash(&parent, last)?;
                let flags = RenameFlags::empty();
                match rustix::fs::renameat_with(&old_parent, old_last, &parent, last, flags) {
                    Err(Errno::NOENT) => return Ok(None),
                    done => done.map_err(failed)?,
                }
            }
            Some(other) => {
                if to.holds(from) {
                    return Err(NameFault::Itself.into());
                }
                replaced = self.swap_away(&old_parent, old_last, &parent, last, other)?;
            }
            None => {
                let flags = RenameFlags::NOREPLACE;
                match rustix::fs::renameat_with(&old_parent, old_last, &parent, last, flags) {
                    Err(Errno::NOENT) => return Ok(None),
                    Err(Errno::EXIST) => return Err(UploadError::Exists),
                    done => done.map_err(failed)?,
                }
            }
        }
        let swept = present.is_some_and(|present| matches!(present, NamedItem::Directory(_)));
        if !is_title || swept {
            self.forget_durable();
        }
        let renamed = thing_in(&parent, last)?;
        if let (NamedItem::Title(before), Some(NamedItem::Title(after))) = (&moved, &renamed) {
            index::carry(&self.root, before, after);
        }
        let etag = match renamed.unwrap_or(moved) {
            NamedItem::Title(stat) => Some(FileVersion::of(&stat).etag()),
            NamedItem::Directory(_) => None,
        };
        flush.insert(0, Arc::new(parent));
        flush.push(Arc::new(old_parent));
        Ok(Some(NameChange { etag, created: present.is_none(), flush, replaced, chain }))
    }

    /// Gives an object that loses its name another name in the trash: the rename over it is one
    /// step, and its blocks are freed later.
    fn keep_in_trash(
        &self,
        parent: &OwnedFd,
        last: &str,
    ) -> Result<Option<RemovedName>, UploadError> {
        let id = StoreId::random();
        let discarded = match discarded(parent, last, (PrivateDirectory::Trash, id)) {
            Err(UploadError::Name(NameFault::NoDirectory)) => return Ok(None),
            found => found?,
        };
        let flags = AtFlags::empty();
        match rustix::fs::linkat(parent, last, &self.own.trash, id.to_string(), flags) {
            Ok(()) => Ok(Some(discarded)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Opens the name's directory, creating missing directories if allowed. Also returns the
    /// directories above it that must be flushed to make its own name durable: the first few are
    /// open, the others are in the chain.
    fn parents(
        &self,
        name: &TitleName,
        missing: MissingDirectories,
    ) -> Result<(OwnedFd, Chain, Vec<Arc<OwnedFd>>), UploadError> {
        let (path, _) = name.split();
        let mut directory = open_beneath(&self.root, "", OFlags::DIRECTORY).map_err(failed)?;
        let losses = self.durable().losses;
        let (mut chain, mut flush) = (Chain::new(path, losses), Vec::new());
        for (at, segment) in segments(path) {
            let below = match open_beneath(&directory, segment, OFlags::DIRECTORY) {
                Err(Errno::NOENT) if missing == MissingDirectories::Make => {
                    match rustix::fs::mkdirat(&directory, segment, DIRECTORY_MODE) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(failed(errno)),
                    }
                    open_beneath(&directory, segment, OFlags::DIRECTORY).map_err(path_fault)?
                }
                opened => opened.map_err(path_fault)?,
            };
            let inode = rustix::fs::fstat(&below).map_err(failed)?.st_ino;
            let above = std::mem::replace(&mut directory, below);
            let end = at + segment.len();
            if self.durable().known.get(&path[..end]) != Some(&inode) {
                chain.add(end, inode);
                chain.flush(above, at.saturating_sub(1), &mut flush)?;
            }
        }
        Ok((directory, chain, flush))
    }

    /// Makes a name durable; no name changes meanwhile.
    pub(super) fn flush_name(&self, name: &TitleName) -> Result<(), UploadError> {
        let (parent, chain, mut above) = self.parents(name, MissingDirectories::Refuse)?;
        above.push(Arc::new(parent));
        for directory in &above {
            rustix::fs::fsync(directory).map_err(failed)?;
        }
        for nth in 0..chain.behind() {
            for directory in self.open_behind(&chain, nth..nth + 1)? {
                rustix::fs::fsync(directory).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Marks the names of these directories as durable.
    pub(super) fn remember(&self, chain: &Chain) {
        let mut durable = self.durable();
        if durable.losses != chain.losses {
            return;
        }
        if durable.known.len() + chain.found.len() > DURABLE_MAX {
            durable.known.clear();
        }
        durable.known.extend(chain.paths().map(|(path, inode)| (path.to_owned(), inode)));
    }

    /// Records that a directory has lost its name.
    fn forget_durable(&self) {
        let mut durable = self.durable();
        durable.known.clear();
        durable.losses += 1;
    }

    fn durable(&self) -> MutexGuard<'_, DurableDirectories> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a file without a name. On file systems without unnamed files it gets a name on the
    /// stage, which the next start removes.
    pub(super) fn nameless(&self) -> io::Result<(OwnedFd, Option<StoreId>)> {
        self.cached().map(|(file, staged)| (past_cache(file), staged))
    }

    /// The same, for reads and writes through the page cache.
    pub(super) fn cached(&self) -> io::Result<(OwnedFd, Option<StoreId>)> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.own.top, ".", flags, FILE_MODE) {
            Ok(file) => Ok((file, None)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let id = StoreId::random();
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&self.own.stage, id.to_string(), flags, FILE_MODE)?;
                Ok((file, Some(id)))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Unlinks a discarded object: a title at once, with its checksums, unless it still has another
    /// name as a title. A directory is left for [`Self::dismantle`].
    pub(super) fn erase(
        &self,
        (aside, id): (PrivateDirectory, StoreId),
    ) -> io::Result<EraseResult> {
        self.erase_named(aside, &id.to_string())
    }

    pub(super) fn erase_named(
        &self,
        aside: PrivateDirectory,
        name: &str,
    ) -> io::Result<EraseResult> {
        self.erase_in(self.aside(aside), name)
    }

    fn erase_in(
        &self,
        directory: &OwnedFd,
        name: impl rustix::path::Arg + Copy,
    ) -> io::Result<EraseResult> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut counted = None;
        match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(file) => {
                let stat = rustix::fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    return Ok(EraseResult::Directory);
                }
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    counted = is_last_name(&stat).then(|| counted_of(&file, &stat)).transpose()?;
                }
                // The checksums go first: without the title nothing refers to them.
                if stat.st_nlink <= 1
                    && let Ok(Some(mark)) = sums::SumsAttribute::read(&file)
                    && let Some(id) = mark.id().filter(|_| mark.inode == stat.st_ino)
                {
                    self.own.manifests.remove(id)?;
                }
                if stat.st_nlink <= 1 {
                    index::forget(&self.root, stat.st_ino);
                }
            }
            Err(Errno::NOENT) => return Ok(EraseResult::Gone(None)),
            // A link or a socket from another program: only its name is removed.
            Err(Errno::LOOP | Errno::NXIO) => {}
            Err(errno) => return Err(errno.into()),
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(EraseResult::Gone(counted)),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The result of unlinking a discarded object.
pub(super) enum EraseResult {
    /// It is gone; for a title, the quota entry to release.
    Gone(Option<QuotaEntry>),
    /// It is a directory, and still exists.
    Directory,
}

/// Whether missing directories of a path are created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingDirectories {
    Make,
    Refuse,
}

/// Other programs of the host can read titles; the umask applies.
pub(super) const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Selects direct I/O where the file system supports it.
pub(super) fn past_cache(file: OwnedFd) -> OwnedFd {
    if let Ok(flags) = rustix::fs::fcntl_getfl(&file) {
        // File systems without direct I/O refuse this and use the page cache.
        rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT).ok();
    }
    file
}

/// The segments of a path, each with its begin.
fn segments(path: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    path.split('/').filter(|segment| !segment.is_empty()).map(move |segment| {
        let begin = at;
        at += segment.len() + 1;
        (begin, segment)
    })
}

/// The names in one of the server's own directories.
pub(super) fn list(directory: impl AsFd) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            found.push(name.into_owned());
        }
    }
    Ok(found)
}

pub(super) fn open_beneath(
    directory: impl AsFd,
    path: &str,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let flags = flags | OFlags::CLOEXEC;
    for _ in 0..TRIES_MAX {
        match rustix::fs::openat2(directory.as_fd(), path, flags, Mode::empty(), BENEATH) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// The title with this name in `parent`.
fn title_in(parent: &OwnedFd, last: &str) -> Result<Option<Stat>, UploadError> {
    match rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            Ok(Some(stat))
        }
        Ok(_) => Err(NameFault::NoTitle.into()),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(path_fault(errno)),
    }
}

/// The title or the directory with this name in `parent`.
fn thing_in(parent: &OwnedFd, last: &str) -> Result<Option<NamedItem>, UploadError> {
    match rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(NamedItem::Title(stat))),
            FileType::Directory => Ok(Some(NamedItem::Directory(stat))),
            _ => Err(NameFault::NoTitle.into()),
        },
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(path_fault(errno)),
    }
}

/// Adds a hard link to an open file.
pub(super) fn link(file: &OwnedFd, parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, own, parent, name, AtFlags::SYMLINK_FOLLOW) {
        // Without /proc; since Linux 6.10 the process that opened the file may do this.
        Err(Errno::NOENT) => rustix::fs::linkat(file, "", parent, name, AtFlags::EMPTY_PATH),
        done => done,
    }
}

/// Describes an object that will lose its name and go to `place`. Found before the change, so that
/// nothing can fail between the change and its report.
fn discarded(
    parent: &OwnedFd,
    last: &str,
    place: (PrivateDirectory, StoreId),
) -> Result<RemovedName, UploadError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, last, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let counted = is_last_name(&stat).then(|| counted_of(&file, &stat)).transpose();
    Ok(RemovedName { counted: counted.map_err(failed)?, place })
}

/// Whether a file is about to lose its last name. It counts once, however many hard links it has.
fn is_last_name(stat: &Stat) -> bool {
    stat.st_nlink <= 1
}

fn counted_of(file: &OwnedFd, stat: &Stat) -> Result<QuotaEntry, Errno> {
    Ok(QuotaEntry { owner: owner_of(file)?, len: super::len_of(stat).0 })
}

/// The principal whose quota a title counts against.
pub(super) fn owner_of(file: impl AsFd) -> Result<Option<Principal>, Errno> {
    let mut value = [0; Principal::BYTES_MAX + 1];
    let value = sums::attribute(file, sums::OWNER_ATTRIBUTE, &mut value)?;
    Ok(value.and_then(|value| std::str::from_utf8(value).ok()).map(Principal::new))
}

/// The error for a failed walk along a path.
fn path_fault(errno: Errno) -> UploadError {
    match errno {
        Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS | Errno::PERM => {
            NameFault::NoDirectory.into()
        }
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => {
            NameFault::Path(tactus_core::path::PathFault::TooLong).into()
        }
        errno => failed(errno),
    }
}

pub(super) fn failed(errno: Errno) -> UploadError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::MLINK => UploadError::NoSpace,
        // A directory was removed while its name was being used.
        Errno::NOENT => NameFault::NoDirectory.into(),
        errno => UploadError::Io(errno.into()),
    }
}
