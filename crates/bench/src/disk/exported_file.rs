//! The file system that the kernel sees: one file, and what lies behind it.
//!
//! Promise: every request of the kernel reaches the medium as it came, in the order in which it
//! came, and nothing between them caches; whoever answers, and when, is the medium's affair.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};
use tactus_core::units::{Bytes, MIB};

/// The largest request.
pub(crate) const REQUEST_MAX: u32 = MIB as u32;
/// The unit of a device: its sector.
pub(crate) const BLOCK: usize = 4096;
/// More than any scheduler above lets through.
const BACKGROUND_MAX: u16 = 512;
const FILE_NUMBER: INodeNo = INodeNo(2);
const FOREVER: Duration = Duration::from_secs(3600);

/// What lies behind the file. Offsets and lengths are multiples of [`BLOCK`] when a loop device
/// with sectors of that size lies above.
pub(crate) trait Medium: Send + Sync + 'static {
    /// The length of the file.
    fn size(&self) -> Bytes;
    /// `length` bytes from `at` on are wanted.
    fn read(&self, at: u64, length: u32, reply: ReplyData);
    /// `data`, only lent for this call, go to `at`.
    fn write(&self, at: u64, data: &[u8], reply: ReplyWrite);
    /// The device above was told to flush its cache.
    fn sync(&self, reply: ReplyEmpty);
}

/// One file called `name` in front of a medium.
#[derive(Debug)]
pub(super) struct ExportedFile<M> {
    pub(super) medium: Arc<M>,
    pub(super) name: String,
}

impl<M: Medium> ExportedFile<M> {
    fn attributes(&self, number: INodeNo) -> FileAttr {
        let (kind, size) = match number {
            FILE_NUMBER => (FileType::RegularFile, self.medium.size().0),
            _ => (FileType::Directory, 0),
        };
        FileAttr {
            ino: number,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }
}

impl<M: Medium> Filesystem for ExportedFile<M> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_ASYNC_DIO;
        let refused = |missing| io::Error::other(format!("the kernel's FUSE lacks {missing:?}"));
        config.add_capabilities(wanted).map_err(refused)?;
        let nearest = |value| io::Error::other(format!("only {value} is possible"));
        config.set_max_write(REQUEST_MAX).map_err(nearest)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|value| nearest(value.into()))?;
        config.set_congestion_threshold(BACKGROUND_MAX).map_err(|value| nearest(value.into()))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == self.name.as_str() {
            reply.entry(&FOREVER, &self.attributes(FILE_NUMBER), fuser::Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&FOREVER, &self.attributes(number));
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.medium.read(offset, size, reply);
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.medium.write(offset, data, reply);
    }

    /// The file was closed: no flush of a device.
    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.medium.sync(reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }
}
