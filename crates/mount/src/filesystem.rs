//! What the kernel asks, answered by the server.
//!
//! Promise: a request waits for names, which take a bounded time, and never for bytes. The kernel
//! keeps what it may keep and nothing else: names and attributes for the times of the options,
//! pages of the version that it has read.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use tactus_client::{Entry, Stat};

use crate::attributes::{BLOCK, Ownership, attributes, nameless};
use crate::connections::Connections;
use crate::directory::DirectoryReader;
use crate::nodes::{Nodes, ROOT};
use crate::open_file::{OpenFile, ServedTitle};
use crate::options::MountOptions;
use crate::pace::Pace;
use crate::pacer::Pacer;

type Result<T> = std::result::Result<T, Errno>;

/// The mounted library.
pub(crate) struct LibraryFilesystem {
    connections: Connections,
    nodes: Nodes,
    /// The path of the mount's directory in the library, without a slash at its end.
    root: String,
    owner: Ownership,
    attributes_for: Duration,
    names_for: Duration,
    /// For paced reads.
    pacer: Option<Pacer>,
    passthrough: AtomicBool,
    /// One file at a time is opened: all handles of a file share their source.
    opening: Mutex<()>,
    files: Mutex<HashMap<u64, Handle>>,
    directories: Mutex<HashMap<u64, Arc<Mutex<DirectoryReader>>>>,
    next_handle: AtomicU64,
}

/// An open handle of a file.
#[derive(Clone)]
struct Handle {
    open: Arc<OpenFile>,
    pace: Option<Arc<Mutex<Pace>>>,
}

impl LibraryFilesystem {
    /// Looks the mount's directory up.
    ///
    /// # Errors
    /// If the server has no such directory, or there is no thread for paced reads.
    pub(crate) fn new(connections: Connections, options: &MountOptions) -> io::Result<Self> {
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
        };
        Ok(Self {
            connections,
            nodes: Nodes::new(stat),
            root,
            owner,
            attributes_for: options.attributes_for,
            names_for: options.names_for,
            pacer: options.paced.then(Pacer::start).transpose()?,
            // The kernel would read without a pace.
            passthrough: AtomicBool::new(options.passthrough && !options.paced),
            opening: Mutex::default(),
            files: Mutex::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
        })
    }

    /// The path of a node in the library.
    fn path(&self, number: u64) -> Result<String> {
        self.nodes.path(number).map(|path| self.in_library(&path)).ok_or(Errno::ESTALE)
    }

    fn path_of(&self, parent: u64, name: &str) -> Result<String> {
        let path = self.nodes.path_of(parent, name).ok_or(Errno::ESTALE)?;
        Ok(self.in_library(&path))
    }

    fn in_library(&self, path: &str) -> String {
        match path {
            "/" if !self.root.is_empty() => self.root.clone(),
            _ => format!("{}{path}", self.root),
        }
    }

    fn stat(&self, path: &str) -> Result<Stat> {
        self.connections.ask(|reader| reader.client().stat(path))
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> Result<(u64, Stat)> {
        // Names of the library are UTF-8.
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let stat = self.stat(&self.path_of(parent, name)?).map_err(|errno| {
            // A name that no title can have.
            if errno.code() == Errno::EINVAL.code() { Errno::ENOENT } else { errno }
        })?;
        let number = self.nodes.enter(parent, name, &stat).ok_or(Errno::ESTALE)?;
        Ok((number, stat))
    }

    /// The facts of a node; `None` if it has lost its name and is still open.
    fn status(&self, number: u64) -> Result<Option<Stat>> {
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
    fn open_file(&self, number: u64, reply: &ReplyOpen) -> Result<Arc<OpenFile>> {
        let path = self.path(number)?;
        let _opening = lock(&self.opening);
        if let Some(open) = self.nodes.open(number) {
            let stat = self.stat(&path)?;
            self.check(number, &stat)?;
            if let Some(ServedTitle { title, reader }) = open.title()
                && (reader.has_ended() || title.stat().version != stat.version)
            {
                open.renew(self.open_title(number, &path)?);
            }
            return Ok(open);
        }
        let open = match self.open_backing(number, &path, reply)? {
            Some(open) => open,
            None => OpenFile::served(self.open_title(number, &path)?),
        };
        let open = Arc::new(open);
        self.nodes.set_open(number, &open);
        Ok(open)
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
    fn check(&self, number: u64, stat: &Stat) -> Result<()> {
        if !self.nodes.is_same(number, stat) {
            return Err(Errno::ESTALE);
        }
        self.nodes.update(number, stat);
        Ok(())
    }

    /// The title of an open file for a read up to `end`: opened once more if it has grown, or if
    /// the server has been started again.
    fn served(&self, number: u64, open: &OpenFile, end: u64) -> Result<ServedTitle> {
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
            Ok(renewed) if renewed.title.stat().file == open.file => {
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

    fn handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls `add` with the entries of an open directory from `offset` on, until it is full.
    fn read_directory(
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
                _ => match reader.entry(place - DOTS, next)? {
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

impl Filesystem for LibraryFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Pages are dropped when length or time have changed.
            InitFlags::FUSE_AUTO_INVAL_DATA,
            // Paced files have no pages in the kernel, and may be mapped all the same.
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            // A kernel without it works as well.
            config.add_capabilities(flag).ok();
        }
        // Requests of up to 1 MiB, the most that the kernel makes.
        config.set_max_write(REQUEST_MAX).ok();
        config.set_max_background(BACKGROUND).ok();
        if *self.passthrough.get_mut() {
            let possible = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
                && config.set_max_stack_depth(1).is_ok();
            *self.passthrough.get_mut() = possible;
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent.0, name) {
            Ok((number, stat)) => reply.entry_with_ttls(
                &self.attributes_for,
                &self.names_for,
                &attributes(number, &stat, &self.owner),
                Generation(0),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.nodes.forget(node.0, count);
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let found = match self.status(node.0) {
            Ok(Some(stat)) => Ok(attributes(node.0, &stat, &self.owner)),
            Ok(None) => {
                let last = self.nodes.stat(node.0).ok_or(Errno::ESTALE);
                last.map(|stat| nameless(node.0, &stat, &self.owner))
            }
            Err(errno) => Err(errno),
        };
        match found {
            Ok(attributes) => reply.attr(&self.attributes_for, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = match self.open_file(node.0, &reply) {
            Ok(open) => open,
            Err(errno) => return reply.error(errno),
        };
        let served = open.title();
        let pace = self.pacer.as_ref().and(served.as_ref()).and_then(|served| {
            let pace = Pace::new(served.title.rate()?, Instant::now())?;
            Some(Arc::new(Mutex::new(pace)))
        });
        let mut flags = FopenFlags::FOPEN_NOFLUSH;
        if pace.is_some() {
            // Each read comes as the program makes it, and nothing is read ahead.
            flags |= FopenFlags::FOPEN_DIRECT_IO;
        } else if let Some(served) = &served
            && self.nodes.keeps_pages(node.0, served.title.stat().version)
        {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        let handle = self.handle();
        let kept = Handle { open: Arc::clone(&open), pace };
        lock(&self.files).insert(handle, kept);
        match open.backing() {
            Some(backing) => reply.opened_passthrough(FileHandle(handle), flags, backing),
            None => reply.opened(FileHandle(handle), flags),
        }
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(Handle { open, pace }) = lock(&self.files).get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let ServedTitle { title, reader } =
            match self.served(node.0, &open, offset.saturating_add(size.into())) {
                Ok(served) => served,
                Err(errno) => return reply.error(errno),
            };
        let len = title.len().saturating_sub(offset).min(size.into());
        if len == 0 {
            return reply.data(&[]);
        }
        let read = move || {
            let answer = move |bytes: Result<&[u8]>| match bytes {
                Ok(bytes) => reply.data(bytes),
                Err(errno) => reply.error(errno),
            };
            reader.read(title, offset, len as usize, Box::new(answer));
        };
        match (&self.pacer, pace) {
            (Some(pacer), Some(pace)) => {
                let due = lock(&pace).due(Instant::now(), len);
                pacer.at(due, Box::new(read));
            }
            _ => read(),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let handle = lock(&self.files).remove(&handle.0);
        // The last one closes the title.
        drop(handle);
        reply.ok();
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.handle();
        lock(&self.directories).insert(handle, Arc::default());
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let read = self.read_directory(node.0, handle, offset, |number, name, next, stat| {
            let kind = attributes(number, stat, &self.owner).kind;
            reply.add(INodeNo(number), next, kind, name)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let ttl = self.attributes_for.min(self.names_for);
        let read = self.read_directory(node.0, handle, offset, |number, name, next, stat| {
            let found = attributes(number, stat, &self.owner);
            let is_full = reply.add(INodeNo(number), next, name, &ttl, &found, Generation(0));
            // The kernel gets to know each name but the dots.
            if !is_full && next > DOTS as u64 {
                self.nodes.enter(node.0, name, stat);
            }
            is_full
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        lock(&self.directories).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let path = self.path(node.0);
        let space =
            path.and_then(|path| self.connections.ask(|reader| reader.client().space(&path)));
        let blocks = |bytes: u64| bytes / u64::from(BLOCK);
        match space {
            Ok(space) => reply.statfs(
                blocks(space.total),
                blocks(space.free),
                blocks(space.available),
                0,
                0,
                BLOCK,
                NAME_MAX as u32,
                BLOCK,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    // What follows needs no server: nothing is written, and the kernel knows better ways.

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn getxattr(
        &self,
        _request: &Request,
        _node: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _request: &Request, _node: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entries of a directory before those of the server: `.` and `..`.
const DOTS: usize = 2;

/// Longest name, as the server has it.
const NAME_MAX: usize = 255;

/// Bytes of a request, at most: what the kernel makes at once (`fs.fuse.max_pages_limit`).
const REQUEST_MAX: u32 = 1 << 20;

/// Reads ahead that the kernel may have under way.
const BACKGROUND: u16 = 64;
