//! A walk through a whole directory tree, by descriptors.
//!
//! Promise: it reaches any depth and any length of path with three open files and without
//! recursion. It stays within the directory and its file system, and follows no link. The visitor
//! gets a report of everything that cannot be read.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// The callbacks of a walk.
pub(crate) trait Visitor {
    /// Whether a name, and everything below it, is skipped. Called for every name.
    fn skips(&mut self, name: &CStr, depth: usize) -> bool;

    /// A file in `directory` that is no directory.
    fn handle_file(&mut self, directory: &OwnedFd, path: &Location<'_>, stat: &Stat);

    /// A directory before its entries are read; `path` is its own.
    fn handle_directory(&mut self, path: &Location<'_>, stat: &Stat);

    /// A directory on another file system, which is not entered.
    fn handle_elsewhere(&mut self, _path: &Location<'_>) {}

    /// A file whose status cannot be read, or a directory that cannot be read.
    fn handle_unreadable(&mut self, path: &Location<'_>, stat: Option<&Stat>, errno: Errno);

    /// Whether the walk continues; called after each entry.
    fn continues(&mut self) -> bool {
        true
    }
}

/// The location of a file.
pub(crate) struct Location<'a> {
    /// The path of its directory from the top, with a slash after each name.
    pub(crate) above: &'a [u8],
    /// Its name; empty for the top.
    pub(crate) name: &'a CStr,
}

impl Location<'_> {
    /// Length of its path in bytes.
    pub(crate) fn len(&self) -> usize {
        self.above.len() + self.name.to_bytes().len()
    }

    /// Its path, for display.
    pub(crate) fn shown(&self) -> String {
        let path = [self.above, self.name.to_bytes()].concat();
        String::from_utf8_lossy(&path).into_owned()
    }
}

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WalkEnd {
    /// Everything was visited.
    Whole,
    /// The visitor has stopped it.
    Stopped,
    /// A directory of the walk was moved meanwhile, so files may have been missed.
    Moved,
}

/// A directory on the way down.
struct Level {
    identity: (u64, u64),
    /// Its directories that are still to be visited, each with its status.
    left: Vec<(CString, Stat)>,
    /// Bytes of the path with its slash.
    path: usize,
}

const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Walks through everything below `top`.
///
/// # Errors
/// When `top` cannot be opened, or too many files are open.
pub(crate) fn walk(top: impl AsFd, visitor: &mut impl Visitor) -> Result<WalkEnd, Errno> {
    let mut path = Vec::new();
    let mut current = open(top.as_fd(), c".")?;
    let Some(first) = look(&current, &path, 0, visitor)? else { return Ok(WalkEnd::Stopped) };
    let mut levels = vec![first];
    while let Some(level) = levels.last_mut() {
        path.truncate(level.path);
        if let Some((name, stat)) = level.left.pop() {
            let place = Location { above: &path, name: &name };
            let below = match open(current.as_fd(), &name) {
                Ok(below) => below,
                // Removed, or replaced by a link.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(Errno::XDEV) => {
                    visitor.handle_elsewhere(&place);
                    continue;
                }
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
                Err(errno) => {
                    visitor.handle_unreadable(&place, Some(&stat), errno);
                    continue;
                }
            };
            visitor.handle_directory(&place, &stat);
            path.extend_from_slice(name.to_bytes());
            path.push(b'/');
            let depth = levels.len();
            let Some(next) = look(&below, &path, depth, visitor)? else {
                return Ok(WalkEnd::Stopped);
            };
            levels.push(next);
            current = below;
            continue;
        }
        levels.pop();
        let Some(above) = levels.last() else { break };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = rustix::fs::openat(&current, c"..", flags, Mode::empty())?;
        if identity(&rustix::fs::fstat(&up)?) != above.identity {
            return Ok(WalkEnd::Moved);
        }
        current = up;
    }
    Ok(WalkEnd::Whole)
}

/// Reads one directory; none when the visitor stops the walk.
fn look(
    directory: &OwnedFd,
    path: &[u8],
    depth: usize,
    visitor: &mut impl Visitor,
) -> Result<Option<Level>, Errno> {
    let own = rustix::fs::fstat(directory)?;
    let mut level = Level { identity: identity(&own), left: Vec::new(), path: path.len() };
    let unread = |visitor: &mut _, errno| {
        Visitor::handle_unreadable(
            visitor,
            &Location { above: path, name: c"" },
            Some(&own),
            errno,
        );
    };
    let entries = match Dir::read_from(directory) {
        Ok(entries) => entries,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
        Err(errno) => {
            unread(visitor, errno);
            return Ok(Some(level));
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(errno) => {
                unread(visitor, errno);
                break;
            }
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || visitor.skips(name, depth) {
            continue;
        }
        let place = Location { above: path, name };
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                level.left.push((name.to_owned(), stat));
            }
            Ok(stat) => visitor.handle_file(directory, &place, &stat),
            Err(Errno::NOENT) => {}
            Err(errno) => visitor.handle_unreadable(&place, None, errno),
        }
        if !visitor.continues() {
            return Ok(None);
        }
    }
    Ok(Some(level))
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Opens a directory directly in `above`.
fn open(above: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for _ in 0..TRIES_MAX {
        match rustix::fs::openat2(above.as_fd(), name, flags, Mode::empty(), INSIDE) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// Attempts to open a directory, when renames race with it.
const TRIES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct WalkCounts {
        files: Vec<usize>,
        directories: usize,
        deepest: usize,
        most: usize,
    }

    impl Visitor for WalkCounts {
        fn skips(&mut self, name: &CStr, depth: usize) -> bool {
            self.deepest = self.deepest.max(depth);
            name == c"not"
        }

        fn handle_file(&mut self, _: &OwnedFd, path: &Location<'_>, _: &Stat) {
            self.files.push(path.len());
        }

        fn handle_directory(&mut self, _: &Location<'_>, _: &Stat) {
            self.directories += 1;
        }

        fn handle_unreadable(&mut self, path: &Location<'_>, _: Option<&Stat>, errno: Errno) {
            panic!("{}: {errno}", path.shown());
        }

        fn continues(&mut self) -> bool {
            let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            self.most = self.most.max(open);
            true
        }
    }

    /// Creates nested directories by descriptors: no path is that long.
    fn dig(top: &std::path::Path, depth: usize) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = rustix::fs::open(top, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, c"d", flags, Mode::empty()).unwrap();
        }
        let new = OFlags::WRONLY | OFlags::CREATE;
        rustix::fs::openat(&at, c"file", new, Mode::RUSR).unwrap();
    }

    #[test]
    fn s02_a_walk_reaches_every_depth_and_leaves_neither_directory_nor_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir_all(top.join("wide/not/seen")).unwrap();
        std::os::unix::fs::symlink("/", top.join("link")).unwrap();
        dig(&top, 3000);
        for name in 0..20 {
            std::fs::write(top.join(format!("wide/{name}")), "x").unwrap();
        }
        let open = std::fs::File::open(&top).unwrap();
        let mut seen = WalkCounts::default();
        assert_eq!(walk(&open, &mut seen), Ok(WalkEnd::Whole));
        // The files, and the link itself.
        assert_eq!((seen.files.len(), seen.directories, seen.deepest), (22, 3001, 3000));
        assert_eq!(seen.files.iter().max(), Some(&(2 * 3000 + 4)));
        // `rm` works by descriptors too.
        std::process::Command::new("rm").arg("-r").arg(&top).status().unwrap();
    }
}
