//! What the kernel asks, answered by the server.
//!
//! Promise: a request waits for names, which take a bounded time, and for flushes where a program
//! wants one; a read by the server delays no other request. The kernel keeps what it may keep and
//! nothing else: names and attributes for the times of the options, pages of the version that it
//! has read.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use rustix::fs::{FileType, OFlags};
use tactus_client::Stat;

use crate::attributes::{BLOCK, attributes, nameless};
use crate::library::{DOTS, Handle, LibraryFilesystem, NAME_MAX, PacedReads, Result, lock};
use crate::open_file::{Content, OpenFile};
use crate::pace::Pace;
use crate::priority::hurry;
use crate::processes::Processes;
use crate::read_ahead::{PartSource, ReadAhead};
use crate::work;

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
        if self.writing.is_some() {
            // A title that is written anew is not copied first.
            config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC).ok();
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
        self.answer_entry(self.look_up(parent.0, name), reply);
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
        self.answer_attributes(node.0, reply);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let is_emptied = writes && has(flags.0, OFlags::TRUNC);
        let opened = match is_emptied {
            true => self.open_empty(node.0),
            false => self.open_file(node.0, writes, &reply),
        };
        let open = match opened {
            Ok(open) => open,
            // The title was deleted after the kernel's lookup. ESTALE makes the kernel repeat the
            // lookup, so `O_CREAT` creates the file.
            Err(errno) if errno.code() == Errno::ENOENT.code() => {
                return reply.error(Errno::ESTALE);
            }
            Err(errno) => return reply.error(errno),
        };
        let served = open.title();
        let paced = self.pacer.as_ref().and(served.as_ref()).and_then(|served| {
            let rate = served.title.rate()?;
            let pace = Mutex::new(Pace::new(rate, Instant::now())?);
            Some(PacedReads { pace, ahead: ReadAhead::new(rate, &self.read_ahead) })
        });
        let (requested, mut flags) = (flags, FopenFlags::empty());
        if !writes {
            flags |= FopenFlags::FOPEN_NOFLUSH;
        }
        if paced.is_some() {
            // Each read comes as the program makes it, and nothing is read ahead.
            flags |= FopenFlags::FOPEN_DIRECT_IO;
        }
        if open.backing().is_none() {
            flags |= written_directly(requested);
        }
        if paced.is_none()
            && let Some(served) = &served
            && self.nodes.keeps_pages(node.0, served.title.stat().version)
        {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        let writer = writes.then(|| request.pid());
        let handle = self.enter_handle(Arc::clone(&open), paced, writer);
        match open.backing() {
            Some(backing) => reply.opened_passthrough(handle, flags, backing),
            None => reply.opened(handle, flags),
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
        let Some(handle) = self.open_handle(handle) else { return reply.error(Errno::EBADF) };
        let Handle { open, paced, .. } = &*handle;
        let written = match open.content() {
            Some(Content::Work(work)) => Some(work.read_at(offset, size as usize)),
            Some(Content::Written(file)) => Some(work::read_at(&file, offset, size as usize)),
            Some(Content::Failed(errno)) => return reply.error(errno),
            Some(Content::Title(_)) | None => None,
        };
        match written {
            Some(Ok(bytes)) => return reply.data(&bytes),
            Some(Err(error)) => return reply.error(error.into()),
            None => {}
        }
        let served = match self.served(node.0, open, offset.saturating_add(size.into())) {
            Ok(served) => served,
            Err(errno) => return reply.error(errno),
        };
        let len = served.len().saturating_sub(offset).min(size.into());
        if len == 0 {
            return reply.data(&[]);
        }
        let Some((pacer, paced)) = self.pacer.as_ref().zip(paced.as_ref()) else {
            let answer = move |bytes: Result<&[u8]>| answer_read(bytes, reply);
            return served.read(offset, len as usize, Box::new(answer));
        };
        // All threads on the way of a paced read: this one, that of the answers, and the pacer's.
        hurry();
        let due = lock(&paced.pace).due(Instant::now(), len);
        let (later, ahead) = (pacer.downgrade(), Arc::clone(&paced.ahead));
        let answer = move |bytes: Result<&[u8]>| {
            hurry();
            match bytes {
                Ok(bytes) if Instant::now() < due => {
                    let bytes = bytes.to_vec();
                    later.at(due, Box::new(move || reply.data(&bytes)));
                }
                bytes => answer_read(bytes, reply),
            }
        };
        let read = move || ahead.read(&served, offset, len as usize, Box::new(answer));
        pacer.at(due.checked_sub(AHEAD).unwrap_or(due), Box::new(read));
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let handle = lock(&self.files).remove(&handle.0);
        if let Some(handle) = handle {
            self.release_handle(node.0, &handle);
        }
        // The last one has closed the title.
        reply.ok();
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.create_file(parent.0, name).or_else(|errno| {
            let is_there = errno.code() == Errno::EEXIST.code() && !has(flags, OFlags::EXCL);
            if is_there {
                self.open_existing(parent.0, name, has(flags, OFlags::TRUNC))
            } else {
                Err(errno)
            }
        });
        let (number, open, stat) = match created {
            Ok(created) => created,
            Err(errno) => return reply.error(errno),
        };
        let handle = self.enter_handle(open, None, Some(request.pid()));
        let ttl = self.attributes_for.min(self.names_for);
        let found = attributes(number, &stat, &self.owner);
        reply.created(&ttl, &found, Generation(0), handle, written_directly(OpenFlags(flags)));
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        // Titles are regular files.
        let made = match FileType::from_raw_mode(mode) {
            FileType::RegularFile => self.make_file(parent.0, name),
            _ => Err(Errno::EPERM),
        };
        self.answer_entry(made, reply);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(handle) = self.open_handle(handle) else { return reply.error(Errno::EBADF) };
        handle.processes.add(request.pid());
        let len = data.len() as u32;
        // O_DSYNC, which O_SYNC includes: the kernel flushes only what passes its pages.
        let is_durable = has(flags.0, OFlags::DSYNC);
        let mut reply = Some(reply);
        let mut early = || {
            if !is_durable && let Some(reply) = reply.take() {
                reply.written(len);
            }
        };
        let mut done = self.write_at(node.0, &handle, offset, data, &mut early);
        if is_durable {
            done = done.and_then(|()| self.synchronize(&handle));
        }
        match (reply, done) {
            (Some(reply), Ok(())) => reply.written(len),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, _) => {}
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(handle) = self.open_handle(handle) else { return reply.error(Errno::EBADF) };
        let mode = mode.cast_unsigned();
        answer(self.allocate_blocks(node.0, &handle, mode, offset, len), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _read: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _checked: Option<SystemTime>,
        _saved: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // All files have one owner, and modes that the options say: other modes have no effect, as
        // on file systems without any.
        let is_other = uid.is_some_and(|uid| uid != self.owner.uid)
            || gid.is_some_and(|gid| gid != self.owner.gid);
        let set = || {
            if is_other {
                return Err(Errno::EPERM);
            }
            if let Some(len) = size {
                self.set_len(node.0, len)?;
            }
            match modified {
                Some(TimeOrNow::SpecificTime(time)) => self.set_time(node.0, time),
                Some(TimeOrNow::Now) => self.set_time(node.0, SystemTime::now()),
                None => Ok(()),
            }
        };
        match set() {
            Ok(()) => self.answer_attributes(node.0, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.answer_entry(self.make_directory(parent.0, name), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.remove_file(parent.0, name), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.remove_directory(parent.0, name), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer(self.rename_entry((parent.0, name), (new_parent.0, new_name), flags), reply);
    }

    fn flush(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let Some(handle) = self.open_handle(handle) else { return reply.error(Errno::EBADF) };
        answer(self.close(node.0, &handle, request.pid()), reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        let Some(handle) = self.open_handle(handle) else { return reply.error(Errno::EBADF) };
        self.synchronize_then(&handle, move |done| answer(done, reply));
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        answer(self.synchronize_directory(node.0), reply);
    }

    // There are no links of either kind.

    fn symlink(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _target: &Path,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn link(
        &self,
        _request: &Request,
        _node: INodeNo,
        _parent: INodeNo,
        _name: &OsStr,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
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

    // What follows the kernel does in other ways.

    fn copy_file_range(
        &self,
        _request: &Request,
        _from: INodeNo,
        _from_handle: FileHandle,
        _from_offset: u64,
        _to: INodeNo,
        _to_handle: FileHandle,
        _to_offset: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _request: &Request,
        _node: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _request: &Request, _node: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
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

impl LibraryFilesystem {
    fn answer_entry(&self, found: Result<(u64, Stat)>, reply: ReplyEntry) {
        match found {
            Ok((number, stat)) => reply.entry_with_ttls(
                &self.attributes_for,
                &self.names_for,
                &attributes(number, &stat, &self.owner),
                Generation(0),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn answer_attributes(&self, node: u64, reply: ReplyAttr) {
        let found = match self.status(node) {
            Ok(Some(stat)) => Ok(attributes(node, &stat, &self.owner)),
            Ok(None) => {
                let last = self.nodes.stat(node).ok_or(Errno::ESTALE);
                last.map(|stat| nameless(node, &stat, &self.owner))
            }
            Err(errno) => Err(errno),
        };
        match found {
            Ok(attributes) => reply.attr(&self.attributes_for, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    /// One more handle of an open file; `writer` is the thread that opens it for writing.
    fn enter_handle(
        &self,
        open: Arc<OpenFile>,
        paced: Option<PacedReads>,
        writer: Option<u32>,
    ) -> FileHandle {
        let processes = Processes::default();
        if let Some(thread) = writer {
            open.add_writer();
            processes.add(thread);
        }
        let (was_published, is_shared) = (AtomicBool::new(false), AtomicBool::new(false));
        let writes = writer.is_some();
        let handle = Handle { open, paced, writes, processes, was_published, is_shared };
        let number = self.handle();
        lock(&self.files).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    fn open_handle(&self, handle: FileHandle) -> Option<Arc<Handle>> {
        lock(&self.files).get(&handle.0).cloned()
    }
}

/// How the kernel passes the bytes of a handle that cannot read: without pages of its own, which
/// would be one more copy of them.
fn written_directly(flags: OpenFlags) -> FopenFlags {
    match flags.acc_mode() {
        OpenAccMode::O_WRONLY => FopenFlags::FOPEN_DIRECT_IO,
        OpenAccMode::O_RDONLY | OpenAccMode::O_RDWR => FopenFlags::empty(),
    }
}

fn has(flags: i32, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags.cast_unsigned()).contains(flag)
}

fn answer(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_read(bytes: Result<&[u8]>, reply: ReplyData) {
    match bytes {
        Ok(bytes) => reply.data(bytes),
        Err(errno) => reply.error(errno),
    }
}

/// How long before its time a paced read begins: neither the disk nor a busy server moves its
/// answer by less. Longer, and many readers of one file would have more memory.
const AHEAD: Duration = Duration::from_millis(50);

/// Bytes of a request, at most: what the kernel makes at once (`fs.fuse.max_pages_limit`).
const REQUEST_MAX: u32 = 1 << 20;

/// Reads ahead that the kernel may have under way.
const BACKGROUND: u16 = 64;
