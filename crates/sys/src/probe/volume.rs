//! Facts about a volume's directory: its file system, its device, and whether direct reads work.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use tactus_core::units::{Bytes, KIB, SECTOR};

use super::{chosen, line, number};
use crate::file::{Access, DirectAlignment, direct_alignment, open_beneath};

/// What a directory lies on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// The directory, without links.
    pub path: PathBuf,
    /// Type of the file system: `ext4`; empty when unknown.
    pub file_system: String,
    /// Where that is mounted.
    pub mounted_at: PathBuf,
    /// Bytes that the file system has.
    pub size: Bytes,
    /// Bytes that ordinary users may still write.
    pub free: Bytes,
    /// Whether a flush is passed on to the device; a mount option takes that away.
    pub flushes: bool,
    /// Whether direct reads work.
    pub direct: DirectReads,
    /// The block device; `None` for file systems without one, or with several.
    pub device: Option<Device>,
}

/// Whether reads past the page cache work, by trying one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectReads {
    /// They do; with the alignment, where the kernel tells it.
    Work(Option<DirectAlignment>),
    /// They do not, by this error number.
    Refused(i32),
    /// The directory may not be written and holds no file to try with.
    Untried,
}

/// A block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name in `/sys/block`: the disk's, also when the file system lies on a partition.
    pub name: String,
    /// Major and minor number of what the file system lies on.
    pub number: (u32, u32),
    /// What the maker calls it.
    pub model: Option<String>,
    /// It has a head to move. Virtual disks often say so and have none.
    pub rotational: Option<bool>,
    /// Bytes that the page cache reads ahead.
    pub read_ahead: Option<Bytes>,
    /// The kernel's I/O scheduler for it.
    pub scheduler: Option<String>,
    /// Smallest unit that it reads, in bytes.
    pub sector: Option<Bytes>,
    /// What the kernel takes its cache for: `write back` must be flushed, `write through` need not
    /// be.
    pub write_cache: Option<String>,
}

/// Files looked at for one to try direct reads with, in a directory that may not be written.
const CANDIDATES_MAX: usize = 1000;

/// Looks at what `directory` lies on.
///
/// # Errors
/// When it is no directory, or may not be entered.
pub fn volume(directory: &Path) -> io::Result<Volume> {
    let path = directory.canonicalize()?;
    let root = open_directory(&path)?;
    let space = rustix::fs::fstatvfs(&root)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = mount_of(&mounts, &path).unwrap_or_default();
    Ok(Volume {
        device: device_of(&mount, &root),
        direct: try_direct(&root, &path),
        flushes: mount.flushes,
        file_system: mount.file_system,
        mounted_at: mount.at,
        size: Bytes(space.f_blocks.saturating_mul(space.f_frsize)),
        free: Bytes(space.f_bavail.saturating_mul(space.f_frsize)),
        path,
    })
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Tries one direct read: of a file without a name, or else of one that is there.
fn try_direct(root: &OwnedFd, path: &Path) -> DirectReads {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::openat(root, ".", flags | OFlags::DIRECT, Mode::RUSR | Mode::WUSR) {
        Ok(file) => {
            // Two sectors of zeros as a hole: nothing is written to the device.
            let grown = rustix::fs::ftruncate(&file, 2 * SECTOR);
            grown.map_or_else(refused, |()| read_directly(&file))
        }
        // The way in which a file system says that it has no direct reads; the other errors say
        // that it has no nameless files, or that we may not write.
        Err(Errno::INVAL) if rustix::fs::openat(root, ".", flags, Mode::RUSR).is_ok() => {
            DirectReads::Refused(libc::EINVAL)
        }
        Err(_) => try_existing(root, path),
    }
}

fn try_existing(root: &OwnedFd, path: &Path) -> DirectReads {
    let Ok(entries) = fs::read_dir(path) else { return DirectReads::Untried };
    for entry in entries.take(CANDIDATES_MAX).flatten() {
        let name = PathBuf::from(entry.file_name());
        match open_beneath(root, &name, Access::Direct) {
            Ok(opened) if opened.direct => return read_directly(&opened.file),
            Ok(_) => return DirectReads::Refused(libc::EINVAL),
            Err(_) => (),
        }
    }
    DirectReads::Untried
}

fn read_directly(file: &OwnedFd) -> DirectReads {
    let mut memory = vec![0; 2 * SECTOR as usize];
    let from = memory.as_ptr().align_offset(SECTOR as usize);
    match rustix::io::pread(file, &mut memory[from..][..SECTOR as usize], 0) {
        Ok(_) => DirectReads::Work(direct_alignment(file).ok().flatten()),
        Err(errno) => refused(errno),
    }
}

fn refused(errno: Errno) -> DirectReads {
    DirectReads::Refused(errno.raw_os_error())
}

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Mount {
    flushes: bool,
    at: PathBuf,
    number: (u32, u32),
    file_system: String,
    source: String,
}

/// The mount that `path` lies in: the longest mount point that it begins with; of equal ones the
/// last, which hides the others.
fn mount_of(mounts: &str, path: &Path) -> Option<Mount> {
    let mounts = mounts.lines().filter_map(parse_mount);
    mounts.filter(|mount| path.starts_with(&mount.at)).max_by_key(|it| it.at.as_os_str().len())
}

fn parse_mount(line: &str) -> Option<Mount> {
    // "36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda1 rw": optional fields end with
    // "-".
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let (major, minor) = before.next()?.split_once(':')?;
    let at = before.nth(1)?;
    let mut after = after.split(' ');
    let options = after.clone().nth(2).unwrap_or_default();
    Some(Mount {
        flushes: !options.split(',').any(|option| ["nobarrier", "barrier=0"].contains(&option)),
        at: PathBuf::from(std::ffi::OsString::from_vec(unescape(at))),
        number: (major.parse().ok()?, minor.parse().ok()?),
        file_system: after.next()?.to_owned(),
        source: after.next()?.to_owned(),
    })
}

/// Space, tab, newline and backslash are written as three octal digits: `\040`.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if first == b'\\' => {
                bytes.push(code);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// The device of a mount. File systems over several devices have a number of their own (major 0);
/// then the source of the mount may still name one of them.
fn device_of(mount: &Mount, root: &OwnedFd) -> Option<Device> {
    let status = rustix::fs::fstat(root).ok()?;
    let of = |number| (rustix::fs::major(number), rustix::fs::minor(number));
    let named = fs::metadata(&mount.source).ok().map(|source| of(source.rdev()));
    [Some(of(status.st_dev)), Some(mount.number), named].into_iter().flatten().find_map(describe)
}

fn describe(number: (u32, u32)) -> Option<Device> {
    if number.0 == 0 {
        return None;
    }
    let link = format!("/sys/dev/block/{}:{}", number.0, number.1);
    let mut disk = fs::canonicalize(link).ok()?;
    if disk.join("partition").exists() {
        disk.pop();
    }
    let queue = disk.join("queue");
    Some(Device {
        name: disk.file_name()?.to_string_lossy().into_owned(),
        number,
        model: line(disk.join("device/model")),
        rotational: self::number(queue.join("rotational")).map(|value| value != 0),
        read_ahead: self::number(queue.join("read_ahead_kb")).map(|value| Bytes(value * KIB)),
        scheduler: line(queue.join("scheduler"))
            .map(|list| chosen(&list).map_or(list.clone(), str::to_owned)),
        sector: self::number(queue.join("logical_block_size")).map(Bytes),
        write_cache: line(queue.join("write_cache")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
23 22 0:5 / /proc rw - proc proc rw\n\
24 22 8:17 / /srv/my\\040films rw,noatime - xfs /dev/sdb1 rw\n\
25 22 0:40 /sub /srv rw - btrfs /dev/sda2 rw,subvol=/sub\n\
26 25 8:33 / /srv rw - ext4 /dev/sdc1 rw\n\
27 22 8:49 / /fast rw - ext4 /dev/sdd1 rw,nobarrier,stripe=4\n\
a line that is none\n";

    #[test]
    fn a_path_finds_the_mount_that_shows_it() {
        let mount = |path: &str| mount_of(MOUNTS, Path::new(path)).unwrap();
        assert_eq!(mount("/home/x").number, (254, 0));
        let films = mount("/srv/my films/a");
        assert_eq!((films.file_system.as_str(), films.number), ("xfs", (8, 17)));
        assert_eq!(films.at, Path::new("/srv/my films"));
        assert_eq!(mount("/srv/other").source, "/dev/sdc1", "the later one hides the earlier");
        assert_eq!(mount("/srvx").at, Path::new("/"), "whole names count");
        assert!(mount("/srv/other").flushes && !mount("/fast/a").flushes);
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn escapes_are_undone_and_nothing_else() {
        assert_eq!(unescape("a\\040b\\134c\\011"), b"a b\\c\t");
        assert_eq!(unescape("a\\04"), b"a\\04");
        assert_eq!(unescape("100%"), b"100%");
    }

    #[test]
    fn the_build_directory_is_described() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let volume = volume(path).unwrap();
        assert!(volume.path.starts_with(&volume.mounted_at));
        assert!(!volume.file_system.is_empty());
        assert!(volume.size >= volume.free && volume.size.0 > 0);
        if let Some(device) = &volume.device {
            assert!(Path::new("/sys/block").join(&device.name).exists());
        }
    }

    #[test]
    fn direct_reads_are_tried_without_leaving_anything() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let before = volume(directory.path()).unwrap().direct;
        assert!(matches!(before, DirectReads::Work(_)), "{before:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        // As in a directory that may not be written.
        let root = File::open(directory.path()).unwrap().into();
        assert_eq!(try_existing(&root, directory.path()), DirectReads::Untried);
        fs::write(directory.path().join("title"), [0; 5000]).unwrap();
        assert_eq!(try_existing(&root, directory.path()), before);
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        assert!(volume(Path::new("/proc/version")).is_err());
        assert!(volume(Path::new("/nowhere")).is_err());
        assert_eq!(volume(Path::new("/proc")).unwrap().device, None);
    }
}
