//! Opens titles for reading, only beneath their volume's directory, and finds their positions on
//! the device.
//!
//! Promise: a name cannot lead out of the directory, through a link, into another file system, or
//! to anything but a regular file. Opening never waits for the other end of a pipe. This module
//! changes no byte and keeps no state.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use tactus_core::ports::{FilePart, FilePort};

use crate::thread;

mod extents;
pub use extents::{Extent, extents, first_position};

/// The purpose of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads past the page cache, if the file system supports them.
    Direct,
    /// Reads through the page cache.
    Cached,
    /// A directory: to open files beneath it, or to list it.
    Directory,
}

/// An open file.
#[derive(Debug)]
pub struct OpenedFile {
    /// Open for reading.
    pub file: OwnedFd,
    /// Whether reads bypass the page cache. False for [`Access::Direct`] means that the file system
    /// refuses direct reads: reading works, but its time cannot be bounded and the page cache
    /// fills.
    pub direct: bool,
}

/// Alignment of direct reads of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectAlignment {
    /// Of the memory, in bytes.
    pub memory: u32,
    /// Of offset and length, in bytes.
    pub offset: u32,
}

/// Limit of retries: the kernel requires one if a directory was renamed while a name with `..` was
/// resolved.
const TRIES_MAX: u32 = 8;

/// Opens `path`, relative to `root`, by `openat2` (Linux 5.6). A regular file is opened so that
/// io_uring may wait for it; a file of another kind than wanted is refused.
///
/// # Errors
/// `EXDEV` if the name leads out of `root` or into another file system, `ELOOP` if it meets a link,
/// `EISDIR` or `EINVAL` if it is not a regular file, `ENOTDIR` if it is not a directory, `ENOSYS`
/// on an older kernel; and all errors of opening.
pub fn open_beneath(root: impl AsFd, path: &Path, access: Access) -> io::Result<OpenedFile> {
    let root = root.as_fd();
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let base = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let (file, direct) = match access {
        Access::Directory => {
            return Ok(OpenedFile {
                file: open_at(root, path, base | OFlags::DIRECTORY)?,
                direct: false,
            });
        }
        Access::Cached => (open_at(root, path, base)?, false),
        Access::Direct => match open_at(root, path, base | OFlags::DIRECT) {
            Ok(file) => (file, true),
            Err(Errno::INVAL) => (open_at(root, path, base)?, false),
            Err(refused) => return Err(refused.into()),
        },
    };
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => (),
        FileType::Directory => return Err(Errno::ISDIR.into()),
        _ => return Err(Errno::INVAL.into()),
    }
    // io_uring takes O_NONBLOCK as "do not wait for the device" on file systems without
    // asynchronous reads (FUSE), and would return EAGAIN for ever.
    let kept = if direct { OFlags::DIRECT } else { OFlags::empty() };
    rustix::fs::fcntl_setfl(&file, kept)?;
    Ok(OpenedFile { file, direct })
}

fn open_at(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut tries = 1;
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES_MAX => tries += 1,
            answer => return answer,
        }
    }
}

/// Opens the file of a descriptor again, through the page cache. The new descriptor has its own
/// position, which the kernel's read-ahead uses.
///
/// # Errors
/// `EMFILE` if descriptors are exhausted, `ENOENT` if `/proc` is not mounted.
pub fn reopen(file: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens the file of a descriptor again, like [`reopen`], for sends. If the process owns the file
/// or is privileged, sends do not update its access time, which takes 2 % of a send. The read into
/// memory has updated it already.
///
/// # Errors
/// As [`reopen`].
pub fn reopen_to_send(file: impl AsFd) -> io::Result<OwnedFd> {
    let file = reopen(file)?;
    // Refused to others than the owner and root.
    rustix::fs::fcntl_setfl(&file, OFlags::NOATIME).ok();
    Ok(file)
}

/// Whether a process has the file open for writing, this one included. `file` is open for reading
/// only. Needs the owner of the file, or `CAP_LEASE`. False where the file system has no leases.
///
/// # Errors
/// `EACCES` for a file of another user.
pub fn has_writers(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd().as_raw_fd();
    // The kernel grants a lease for reading only where no process can write (fcntl(2)).
    // SAFETY: numbers only.
    let set = |kind: libc::c_int| unsafe { libc::fcntl(file, libc::F_SETLEASE, kind) };
    if set(libc::F_RDLCK) == 0 {
        // It is the caller's question only: nobody who opens the file later has to wait.
        set(libc::F_UNLCK);
        return Ok(false);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Ok(true),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(false),
        _ => Err(error),
    }
}

/// Has the disk begin to write the changed pages between `offset` and `offset + len` that no write
/// is under way for. Waits for room in the queue of the disk, and for no page. Nothing is durable
/// by that.
///
/// # Errors
/// `EIO` if the disk has refused bytes of the file before, `ESPIPE` for what is no file.
pub fn begin_write_back(file: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let invalid = |_| io::Error::from(Errno::INVAL);
    let (offset, len) = (offset.try_into().map_err(invalid)?, len.try_into().map_err(invalid)?);
    let file = file.as_fd().as_raw_fd();
    // SAFETY: numbers only.
    match unsafe { libc::sync_file_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Files whose bytes the page cache holds, read by copies.
pub struct CachedFiles;

impl FilePort for CachedFiles {
    fn read(&mut self, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        read_part(part, into)
    }

    fn processor(&self) -> u32 {
        thread::processor()
    }
}

/// Copies a part of a file, which the page cache must hold, into memory of the same length.
///
/// # Errors
/// The error number, if the file has lost these bytes.
pub(crate) fn read_part(part: FilePart, into: &mut [u8]) -> Result<(), i32> {
    assert!(part.len as usize == into.len(), "a part is read whole");
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let offset = (part.offset.0 + done as u64) as i64;
        // SAFETY: the slice is writable for its length; a wrong descriptor is an error and not a
        // danger.
        let got = unsafe { libc::pread(part.file.0, rest.as_mut_ptr().cast(), rest.len(), offset) };
        match usize::try_from(got) {
            // The file has become shorter than the title was.
            Ok(0) => return Err(libc::ENODATA),
            Ok(got) => done += got,
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(errno.unwrap_or(libc::EIO)),
            },
        }
    }
    Ok(())
}

/// Raises the limit of open files to `needed`: up to the hard limit, and beyond it with
/// `CAP_SYS_RESOURCE`. Returns the limit in force.
pub fn raise_open_files(needed: u64) -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return limit.current.unwrap_or(u64::MAX);
    }
    let hard = limit.maximum.map(|maximum| maximum.max(needed));
    let candidates = [
        Rlimit { current: Some(needed), maximum: hard },
        Rlimit { current: limit.maximum, maximum: limit.maximum },
    ];
    let granted =
        |candidate: &Rlimit| rustix::process::setrlimit(Resource::Nofile, *candidate).is_ok();
    let found = candidates.into_iter().find(granted).unwrap_or(limit);
    found.current.unwrap_or(u64::MAX)
}

/// Alignment of direct reads of this file; `None` if the kernel (before 6.1) or the file system
/// does not report it.
///
/// # Errors
/// If the query fails.
pub fn direct_alignment(file: impl AsFd) -> io::Result<Option<DirectAlignment>> {
    let facts = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let told = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    // Zero means that this file has no direct reads.
    Ok((told && facts.stx_dio_offset_align > 0).then_some(DirectAlignment {
        memory: facts.stx_dio_mem_align,
        offset: facts.stx_dio_offset_align,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tactus-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("inner")).unwrap();
            fs::write(path.join("inner/title"), "content").unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn errno(opened: io::Result<OpenedFile>) -> i32 {
        opened.expect_err("must be refused").raw_os_error().unwrap()
    }

    #[test]
    fn what_is_sent_does_not_change_the_time_of_the_last_access() {
        let directory = Directory::new("send");
        let title = File::open(directory.0.join("inner/title")).unwrap();
        let flags = |file: &OwnedFd| rustix::fs::fcntl_getfl(file).unwrap();
        assert!(flags(&reopen_to_send(&title).unwrap()).contains(OFlags::NOATIME));
        assert!(!flags(&reopen(&title).unwrap()).contains(OFlags::NOATIME), "others note it");
    }

    #[test]
    fn a_title_beneath_its_directory_opens() {
        let directory = Directory::new("open");
        let root = File::open(&directory.0).unwrap();
        for access in [Access::Direct, Access::Cached] {
            let opened = open_beneath(&root, Path::new("inner/title"), access).unwrap();
            assert!(access == Access::Direct || !opened.direct);
            let flags = rustix::fs::fcntl_getfl(&opened.file).unwrap();
            assert!(!flags.contains(OFlags::NONBLOCK));
            assert_eq!(flags.contains(OFlags::DIRECT), opened.direct);
        }
        let inner = open_beneath(&root, Path::new("inner"), Access::Directory).unwrap().file;
        assert!(open_beneath(&inner, Path::new("title"), Access::Cached).is_ok());
        assert!(open_beneath(&root, Path::new("inner/../inner/title"), Access::Cached).is_ok());
    }

    #[test]
    fn no_name_leads_out_or_through_a_link() {
        let directory = Directory::new("beneath");
        let root = File::open(&directory.0).unwrap();
        symlink("inner/title", directory.0.join("link")).unwrap();
        symlink("inner", directory.0.join("way")).unwrap();
        symlink("/etc", directory.0.join("out")).unwrap();
        let open = |path: &str| errno(open_beneath(&root, Path::new(path), Access::Cached));
        for out in ["/etc/passwd", "../x", "inner/../../x", ".."] {
            assert_eq!(open(out), libc::EXDEV, "{out}");
        }
        for link in ["link", "way/title", "out/passwd"] {
            assert_eq!(open(link), libc::ELOOP, "{link}");
        }
        let proc = File::open("/proc/self").unwrap();
        assert_eq!(errno(open_beneath(&proc, Path::new("cwd"), Access::Directory)), libc::ELOOP);
        let slash = File::open("/").unwrap();
        let other = open_beneath(&slash, Path::new("proc/version"), Access::Cached);
        assert_eq!(errno(other), libc::EXDEV, "another file system");
    }

    #[test]
    fn only_regular_files_are_titles_and_a_pipe_does_not_wait() {
        let directory = Directory::new("kinds");
        let root = File::open(&directory.0).unwrap();
        rustix::fs::mkfifoat(&root, "pipe", Mode::RUSR | Mode::WUSR).unwrap();
        let open = |path: &str, access| errno(open_beneath(&root, Path::new(path), access));
        assert_eq!(open("inner", Access::Cached), libc::EISDIR);
        assert_eq!(open("pipe", Access::Cached), libc::EINVAL);
        assert_eq!(open("pipe", Access::Direct), libc::EINVAL);
        assert_eq!(open("inner/title", Access::Directory), libc::ENOTDIR);
        assert_eq!(open("none", Access::Direct), libc::ENOENT);
        assert_eq!(open("", Access::Cached), libc::ENOENT);
        assert_eq!(open("zero\0byte", Access::Cached), libc::EINVAL);
    }

    #[test]
    fn changed_pages_are_written_early_and_stay() {
        let directory = Directory::new("write-back");
        let file = File::open(directory.0.join("inner/title")).unwrap();
        begin_write_back(&file, 0, 7).unwrap();
        begin_write_back(&file, 1 << 40, 1 << 20).unwrap();
        assert_eq!(fs::read(directory.0.join("inner/title")).unwrap(), b"content");
        let error = begin_write_back(&file, u64::MAX, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert_eq!(begin_write_back(pipe, 0, 1).unwrap_err().raw_os_error(), Some(libc::ESPIPE));
    }

    #[test]
    fn a_file_says_how_direct_reads_are_aligned() {
        let directory = Directory::new("align");
        let root = File::open(&directory.0).unwrap();
        let opened = open_beneath(&root, Path::new("inner/title"), Access::Direct).unwrap();
        match direct_alignment(&opened.file).unwrap() {
            Some(alignment) => {
                assert!(alignment.offset.is_power_of_two() && alignment.memory.is_power_of_two());
                assert!(u64::from(alignment.offset) <= tactus_core::units::SECTOR);
            }
            None => println!("skipped: this file system does not tell"),
        }
    }
}
