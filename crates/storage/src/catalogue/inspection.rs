//! Finds files of a volume that cannot be served: unreadable files, empty titles, links, and other
//! file systems.
//!
//! Promise: the inspection changes nothing, is paced so that it disturbs no reader, and reports the
//! number of each kind with a few examples. It opens no file.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::volume::is_reserved;
use super::walk::{self, Location, Visitor};
use crate::conditions::{Conditions, Kind};

/// Names in the report of each kind.
const EXAMPLES: usize = 3;
/// Entries that are read without a pause, so that a small volume is inspected quickly.
const AT_ONCE: usize = 2_000;
/// After that, a pause after each batch: a thousand entries per second.
const BATCH: usize = 16;
const REST: Duration = Duration::from_millis(16);

/// The findings of one kind.
#[derive(Default, Debug)]
struct Findings {
    count: u64,
    examples: Vec<String>,
}

/// All findings.
struct Inspection<'a, S, F> {
    unreadable: Findings,
    empty: Findings,
    links: Findings,
    elsewhere: Findings,
    mount: &'a str,
    stop: S,
    handle_title: F,
    seen: usize,
}

/// Inspects everything below `root`, which is mounted at `mount`, and sets `conditions` to the
/// findings. `handle_title` gets the path of each readable file with content, and its status. May
/// block for long. Returns early when `stop` returns true, and then sets nothing.
pub(super) fn inspect(
    root: impl AsFd,
    mount: &str,
    conditions: &Conditions,
    stop: impl Fn() -> bool,
    handle_title: impl FnMut(&str, &Stat),
) {
    let mut inspection = Inspection {
        unreadable: Findings::default(),
        empty: Findings::default(),
        links: Findings::default(),
        elsewhere: Findings::default(),
        mount,
        stop,
        handle_title,
        seen: 0,
    };
    match walk::walk(root, &mut inspection) {
        Ok(walk::WalkEnd::Whole) => {}
        Ok(walk::WalkEnd::Stopped | walk::WalkEnd::Moved) => return,
        Err(errno) => {
            tracing::debug!(mount, %errno, "cannot inspect the volume");
            return;
        }
    }
    let Inspection { unreadable, empty, links, elsewhere, .. } = inspection;
    let unreadable = unreadable.report(
        "files without read permission",
        "let the server read these files and enter their directories",
    );
    conditions.set(Kind::Unreadable, mount, unreadable);
    let empty = empty.report("titles without bytes", "store them again, or delete them");
    conditions.set(Kind::Empty, mount, empty);
    let links = links.report("symbolic links are not followed", "mount or move their targets");
    let elsewhere = elsewhere.report("on another file system", "make a [[volume]] of each");
    let left_out: Vec<_> = [links, elsewhere].into_iter().flatten().collect();
    conditions.set(Kind::LeftOut, mount, Some(left_out.join("; ")).filter(|text| !text.is_empty()));
}

impl Findings {
    fn add(&mut self, mount: &str, place: &Location<'_>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(format!("{mount}{}", place.shown()));
        }
    }

    fn report(self, what: &str, advice: &str) -> Option<String> {
        let Self { count, examples } = self;
        let more = count.saturating_sub(examples.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (count > 0).then(|| format!("{what}: {count} ({}{more}); {advice}", examples.join(", ")))
    }
}

impl<S: Fn() -> bool, F: FnMut(&str, &Stat)> Visitor for Inspection<'_, S, F> {
    fn skips(&mut self, name: &CStr, _: usize) -> bool {
        // Hidden names are left out of the report, because listings do not show them.
        name.to_bytes().starts_with(b".") || name.to_str().is_ok_and(is_reserved)
    }

    fn handle_file(&mut self, directory: &OwnedFd, place: &Location<'_>, stat: &Stat) {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return self.links.add(self.mount, place),
            _ => return,
        }
        let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::accessat(directory, place.name, Access::READ_OK, flags) {
            Err(Errno::ACCESS | Errno::PERM) => self.unreadable.add(self.mount, place),
            _ if stat.st_size == 0 => self.empty.add(self.mount, place),
            // A name that is no text cannot be requested.
            _ => {
                let path = [place.above, place.name.to_bytes()].concat();
                if let Ok(path) = std::str::from_utf8(&path) {
                    (self.handle_title)(path, stat);
                }
            }
        }
    }

    fn handle_directory(&mut self, _: &Location<'_>, _: &Stat) {}

    fn handle_elsewhere(&mut self, place: &Location<'_>) {
        self.elsewhere.add(self.mount, place);
    }

    fn handle_unreadable(&mut self, place: &Location<'_>, _: Option<&Stat>, _: Errno) {
        // `lost+found` belongs to the file system.
        if !matches!(&*place.shown(), "lost+found" | "lost+found/") {
            self.unreadable.add(self.mount, place);
        }
    }

    fn continues(&mut self) -> bool {
        self.seen += 1;
        if self.seen > AT_ONCE && self.seen.is_multiple_of(BATCH) {
            std::thread::sleep(REST);
        }
        !(self.stop)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n13_links_and_empty_titles_are_counted_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("films")).unwrap();
        std::fs::write(path("films/good.ts"), "x").unwrap();
        std::fs::write(path("films/.hidden"), "").unwrap();
        std::os::unix::fs::symlink("good.ts", path("films/link.ts")).unwrap();
        std::os::unix::fs::symlink("/nowhere", path("films/broken")).unwrap();
        let conditions = Conditions::default();
        let look = || {
            let open = std::fs::File::open(dir.path()).unwrap();
            inspect(&open, "/m/", &conditions, || false, |_, _| ());
            conditions.all().into_iter().map(|one| (one.kind, one.message)).collect::<Vec<_>>()
        };
        let found = look();
        assert_eq!((found.len(), found[0].0), (1, Kind::LeftOut), "{found:?}");
        assert!(found[0].1.starts_with("symbolic links are not followed: 2 ("), "{found:?}");
        assert!(found[0].1.contains("/m/films/link.ts"), "{found:?}");
        for name in 0..5 {
            std::fs::write(path(&format!("films/{name}.ts")), "").unwrap();
        }
        let found = look();
        assert_eq!((found.len(), found[0].0), (2, Kind::Empty), "{found:?}");
        assert!(found[0].1.contains("without bytes: 5 (") && found[0].1.contains("2 more"));
        std::fs::remove_dir_all(path("films")).unwrap();
        assert_eq!(look(), [], "resolved findings are no longer reported");
    }
}
