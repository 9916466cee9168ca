//! Whether a directory contains another one.
//!
//! Promise: locations on file systems are compared, not names, so symbolic links and bind mounts
//! are resolved. A file system that is mounted inside a directory is not part of it: a volume does
//! not cross file systems.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

/// The location of a directory: its file system, and its path within it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Location {
    device: String,
    path: PathBuf,
}

/// The indexes of two `directories` of which the first contains the second or is the same.
pub(super) fn nested(directories: &[&Path]) -> Option<(usize, usize)> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places: Vec<_> = directories.iter().map(|path| place(path, &mounts)).collect();
    let within = |outer: &Location, inner: &Location| {
        outer.device == inner.device && inner.path.starts_with(&outer.path)
    };
    for (one, first) in places.iter().enumerate() {
        for (other, second) in places.iter().enumerate().skip(one + 1) {
            let (Some(first), Some(second)) = (first, second) else { continue };
            if within(first, second) {
                return Some((one, other));
            }
            if within(second, first) {
                return Some((other, one));
            }
        }
    }
    None
}

/// The location of `directory`, by the mount table `mounts` (proc_pid_mountinfo(5)).
fn place(directory: &Path, mounts: &str) -> Option<Location> {
    let open = File::open(directory).ok()?;
    let about = rustix::fs::statx(&open, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    let real = std::fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).ok()?;
    let id = about.stx_mnt_id.to_string();
    let mount = mounts.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let mut fields = mount.split(' ').skip(2);
    let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
    let below = real.strip_prefix(unescaped(point)).ok()?;
    Some(Location { device: device.to_owned(), path: Path::new(&unescaped(root)).join(below) })
}

/// A path of the mount table, which writes spaces and other characters as octal escapes.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s06_a_directory_inside_another_is_found_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["media/films/new", "media2", "other"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        std::os::unix::fs::symlink(path("media/films"), path("link")).unwrap();
        std::os::unix::fs::symlink(dir.path(), path("other/up")).unwrap();
        let found = |names: &[&str]| {
            let paths: Vec<_> = names.iter().map(|name| path(name)).collect();
            nested(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>())
        };
        assert_eq!(found(&["media", "media/films"]), Some((0, 1)));
        assert_eq!(found(&["media/films/new", "other", "media"]), Some((2, 0)));
        assert_eq!(found(&["media", "link"]), Some((0, 1)));
        assert_eq!(found(&["media", "other/up/media/films/new"]), Some((0, 1)));
        assert_eq!(found(&["media", "media/../media/"]), Some((0, 1)), "twice the same");
        assert_eq!(found(&["media", "media2", "other"]), None);
        assert_eq!(found(&["link", "media2"]), None);
    }

    #[test]
    fn names_of_the_table_of_mounts_are_read_as_they_are_written() {
        assert_eq!(unescaped(r"/a\040b\134c"), "/a b\\c");
        assert_eq!(unescaped(r"/a\x"), r"/a\x");
    }
}
