//! The mounted library: its nodes, the files that are open, and how they are read.
//!
//! Promise: the kernel gets what the server has: names and attributes that are looked up, pages of
//! the version that was opened.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use fuser::{Errno, FileHandle, ReplyOpen};
use tactus_client::{Entry, Stat};

use crate::attributes::Ownership;
use crate::connections::Connections;
use crate::directory::DirectoryReader;
use crate::nodes::{Nodes, ROOT};
use crate::open_file::{OpenFile, ServedTitle};
use crate::options::MountOptions;
use crate::pace::Pace;
use crate::pacer::Pacer;
use crate::processes::Processes;
use crate::read_ahead::{ReadAhead, ReadAheadMemory};
use crate::unpublished::UnpublishedNames;
use crate::wakefulness::Wakefulness;

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The mounted library.
pub(crate) struct LibraryFilesystem {
    pub(crate) connections: Connections,
    /// For what programs change; none if they may not.
    pub(crate) writing: Option<Connections>,
    pub(crate) wakefulness: Arc<Wakefulness>,
    pub(crate) nodes: Nodes,
    pub(crate) unpublished: UnpublishedNames,
    /// Written while a directory is renamed, read while a file gets a path or becomes a title.
    renaming: RwLock<()>,
    /// The path of the mount's directory in the library, without a slash at its end.
    root: String,
    pub(crate) owner: Ownership,
    pub(crate) attributes_for: Duration,
    pub(crate) names_for: Duration,
    /// For paced reads.
    pub(crate) pacer: Option<Pacer>,
    pub(crate) read_ahead: ReadAheadMemory,
    pub(crate) passthrough: AtomicBool,
    /// One file at a time is opened: all handles of a file share their source.
    opening: Mutex<()>,
    pub(crate) files: Mutex<HashMap<u64, Arc<Handle>>>,
    pub(crate) directories: Mutex<HashMap<u64, Arc<Mutex<DirectoryReader>>>>,
    next_handle: AtomicU64,
}

/// An open handle of a file.
pub(crate) struct Handle {
    pub(crate) open: Arc<OpenFile>,
    /// If it is read at the rate of the title.
    pub(crate) paced: Option<PacedReads>,
    /// It can write.
    pub(crate) writes: bool,
    pub(crate) processes: Processes,
    /// A descriptor of it was closed, and what was written became a title.
    pub(crate) was_published: AtomicBool,
    /// It was written after that: a program has it open that is not known.
    pub(crate) is_shared: AtomicBool,
}

/// The reads of a paced handle.
pub(crate) struct PacedReads {
    pub(crate) pace: Mutex<Pace>,
    pub(crate) ahead: Arc<ReadAhead<ServedTitle>>,
}

impl Handle {
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }
}

impl LibraryFilesystem {
    /// Looks the mount's directory up.
    ///
    /// # Errors
    /// If the server has no such directory, or there is no thread for paced reads.
    pub(crate) fn new(
        connections: Connections,
        writing: Option<Connections>,
        options: &MountOptions,
    ) -> io::Result<Self> {
        let root = options.path.trim_end_matches('/').to_owned();
        let path = if root.is_empty() { "/" } else { &root };
        let stat = connections.ask(|reader| reader.client().stat(path));
        let stat = stat.map_err(|errno| io::Error::from_raw_os_error(errno.code()))?;
        if !stat.is_directory {
            return Err(rustix::io::Errno::NOTDIR.into());
        }
        let owner = Ownership {
            uid: options.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
            gid: options.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
            umask: options.umask,
            is_writable: options.writable,
        };
        Ok(Self {
            connections,
            writing,
            wakefulness: Arc::default(),
            nodes: Nodes::new(stat),
            unpublished: UnpublishedNames::default(),
            renaming: RwLock::default(),
            root,
            owner,
            attributes_for: options.attributes_for,
            names_for: options.names_for,
            pacer: options.paced.then(Pacer::start).transpose()?,
            read_ahead: ReadAheadMemory::default(),
            // The kernel would read without a pace.
            passthrough: AtomicBool::new(options.passthrough && !options.paced),
            opening: Mutex::default(),
            files: Mutex::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
        })
    }

    /// The path of a node in the library.
    pub(crate) fn path(&self, number: u64) -> Result<String> {
        self.nodes.path(number).map(|path| self.in_library(&path)).ok_or(Errno::ESTALE)
    }

    pub(crate) fn path_of(&self, parent: u64, name: &str) -> Result<String> {
        let path = self.nodes.path_of(parent, name).ok_or(Errno::ESTALE)?;
        Ok(self.in_library(&path))
    }

    /// While it is held, no directory gets another path. It is taken before the lock of a file.
    pub(crate) fn steady_paths(&self) -> RwLockReadGuard<'_, ()> {
        self.renaming.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for files that get a path or become titles, and keeps others from it.
    pub(crate) fn changing_paths(&self) -> RwLockWriteGuard<'_, ()> {
        self.renaming.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_library(&self, path: &str) -> String {
        match path {
            "/" if !self.root.is_empty() => self.root.clone(),
            _ => format!("{}{path}", self.root),
        }
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Stat> {
        self.connections.ask(|reader| reader.client().stat(path))
    }

    pub(crate) fn look_up(&self, parent: u64, name: &OsStr) -> Result<(u64, Stat)> {
        let name = name_of(name)?;
        if let Some((number, stat)) = self.written(parent, name)
            && self.nodes.refer(number)
        {
            return Ok((number, stat));
        }
        let stat = self.stat(&self.path_of(parent, name)?).map_err(|errno| {
            // A name that no title can have.
            if errno.code() == Errno::EINVAL.code() { Errno::ENOENT } else { errno }
        })?;
        let number = self.nodes.enter(parent, name, &stat).ok_or(Errno::ESTALE)?;
        Ok((number, stat))
    }

    /// The file that is being written under a name.
    pub(crate) fn written(&self, parent: u64, name: &str) -> Option<(u64, Stat)> {
        let number = self.unpublished.find(parent, name)?;
        let work = self.nodes.open(number)?.in_work()?;
        Some((number, work.stat().ok()?))
    }

    /// The facts of a node; `None` if it has lost its name and is still open.
    pub(crate) fn status(&self, number: u64) -> Result<Option<Stat>> {
        if let Some(work) = self.nodes.open(number).and_then(|open| open.in_work()) {
            let stat = work.stat()?;
            self.nodes.update(number, &stat);
            return Ok((!work.is_nameless()).then_some(stat));
        }
        let error = match self.stat(&self.path(number)?) {
            Ok(stat) if self.nodes.is_same(number, &stat) => {
                self.nodes.update(number, &stat);
                return Ok(Some(stat));
            }
            Ok(_) => Errno::ESTALE,
            Err(errno) => errno,
        };
        // Without the server the mount itself can still be looked at, and unmounted.
        if number == ROOT && error.code() == Errno::ENOTCONN.code() {
            return Ok(self.nodes.stat(ROOT));
        }
        let is_nameless = [Errno::ESTALE, Errno::ENOENT].map(Errno::code).contains(&error.code());
        if is_nameless && self.nodes.open(number).is_some() { Ok(None) } else { Err(error) }
    }

    /// Opens a file, or shares its source with those that have it open.
    pub(crate) fn open_file(
        &self,
        number: u64,
        writes: bool,
        reply: &ReplyOpen,
    ) -> Result<Arc<OpenFile>> {
        let path = self.path(number)?;
        let _opening = lock(&self.opening);
        if let Some(open) = self.nodes.open(number) {
            if writes && open.backing().is_some() {
                // The kernel goes on reading this version, and looks the name up again.
                self.nodes.detach(number);
                return Err(Errno::ESTALE);
            }
            if open.in_work().is_some() {
                return Ok(open);
            }
            let stat = self.stat(&path)?;
            self.check(number, &stat)?;
            if let Some(ServedTitle { title, reader }) = open.title()
                && (reader.has_ended() || title.stat().version != stat.version)
            {
                open.renew(self.open_title(number, &path)?);
            }
            return Ok(open);
        }
        let backing = if writes { None } else { self.open_backing(number, &path, reply)? };
        let open = match backing {
            Some(open) => open,
            None => OpenFile::served(self.open_title(number, &path)?),
        };
        let open = Arc::new(open);
        self.nodes.set_open(number, &open);
        Ok(open)
    }

    /// Opens a file for a change without a handle of the kernel.
    pub(crate) fn open_for_change(&self, number: u64) -> Result<Arc<OpenFile>> {
        let path = self.path(number)?;
        let _opening = lock(&self.opening);
        if let Some(open) = self.nodes.open(number) {
            return Ok(open);
        }
        let open = Arc::new(OpenFile::served(self.open_title(number, &path)?));
        self.nodes.set_open(number, &open);
        Ok(open)
    }

    /// While the guard lives, no file is opened.
    pub(crate) fn opening(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening)
    }

    /// The file for the kernel itself; `None` where the file server reads it.
    fn open_backing(&self, number: u64, path: &str, reply: &ReplyOpen) -> Result<Option<OpenFile>> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (file, stat) = match self.connections.ask(|reader| reader.client().open_file(path)) {
            Ok(found) => found,
            Err(errno) if errno.code() == Errno::EOPNOTSUPP.code() => return Ok(None),
            Err(errno) => return Err(errno),
        };
        self.check(number, &stat)?;
        match reply.open_backing(&file) {
            Ok(backing) => Ok(Some(OpenFile::kernel(stat.file, backing))),
            Err(error) => {
                self.passthrough.store(false, Ordering::Relaxed);
                tracing::info!("the kernel passes no reads through ({error}): the server reads");
                Ok(None)
            }
        }
    }

    fn open_title(&self, number: u64, path: &str) -> Result<ServedTitle> {
        let served = self.serve_title(path)?;
        self.check(number, served.title.stat())?;
        Ok(served)
    }

    fn serve_title(&self, path: &str) -> Result<ServedTitle> {
        self.connections.ask(|reader| {
            let title = Arc::new(reader.client().open(path)?);
            Ok(ServedTitle { title, reader: Arc::clone(reader) })
        })
    }

    /// Another file has the name by now: the kernel looks it up again.
    pub(crate) fn check(&self, number: u64, stat: &Stat) -> Result<()> {
        if !self.nodes.is_same(number, stat) {
            return Err(Errno::ESTALE);
        }
        self.nodes.update(number, stat);
        Ok(())
    }

    /// The title of an open file for a read up to `end`: opened once more if it has grown, or if
    /// the server has been started again.
    pub(crate) fn served(&self, number: u64, open: &OpenFile, end: u64) -> Result<ServedTitle> {
        let served = open.title().ok_or(Errno::EIO)?;
        let len = served.title.len();
        let is_over = served.reader.has_ended();
        let known = self.nodes.stat(number);
        let has_grown =
            end > len && (served.title.stat().grows || known.is_some_and(|stat| stat.len > len));
        if !is_over && !has_grown {
            return Ok(served);
        }
        let renewed = self.path(number).and_then(|path| self.serve_title(&path));
        match renewed {
            Ok(renewed) if renewed.title.stat().file == open.file() => {
                self.nodes.update(number, renewed.title.stat());
                open.renew(renewed.clone());
                Ok(renewed)
            }
            // What was opened can still be read.
            _ if !is_over => Ok(served),
            // The version that was opened is gone with the server that had it open.
            Ok(_) => Err(Errno::ESTALE),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls `add` with the entries of an open directory from `offset` on, until it is full.
    pub(crate) fn read_directory(
        &self,
        directory: u64,
        handle: FileHandle,
        offset: u64,
        mut add: impl FnMut(u64, &str, u64, &Stat) -> bool,
    ) -> Result<()> {
        let reader = lock(&self.directories).get(&handle.0).cloned().ok_or(Errno::EBADF)?;
        let mut reader = lock(&reader);
        if offset == 0 {
            reader.rewind();
        }
        let written = self.unpublished.within(directory);
        let written = || {
            let names = written.iter();
            names.filter_map(|known| {
                let (_, stat) = self.written(directory, &known.name)?;
                Some(Entry { name: known.name.to_string(), stat })
            })
        };
        let path = self.path(directory)?;
        let parent = self.nodes.parent(directory).unwrap_or(ROOT);
        let own = Stat { is_directory: true, ..Stat::default() };
        let next = |after: Option<&str>| {
            self.connections.ask(|reader| reader.client().list_part(&path, after))
        };
        for place in usize::try_from(offset).unwrap_or(usize::MAX).. {
            let (number, name, stat) = match place {
                0 => (directory, ".", &own),
                1 => (parent, "..", &own),
                _ => match reader.entry(place - DOTS, next, || written().collect())? {
                    Some(Entry { name, stat }) => {
                        (self.nodes.number(directory, name, stat), name.as_str(), stat)
                    }
                    None => return Ok(()),
                },
            };
            if add(number, name, place as u64 + 1, stat) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// A name of the library: those are UTF-8.
pub(crate) fn name_of(name: &OsStr) -> Result<&str> {
    let name = name.to_str().ok_or(Errno::ENOENT)?;
    if name.len() > NAME_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(name) }
}

pub(crate) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entries of a directory before those of the server: `.` and `..`.
pub(crate) const DOTS: usize = 2;

/// Longest name, as the server has it.
pub(crate) const NAME_MAX: usize = 255;
