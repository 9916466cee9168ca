//! Selects the titles of a recording to delete, oldest first, when it has more than it keeps.
//!
//! Promise: it selects only names that the recording's own pattern could have produced, and the
//! newest title always stays. It reads names and files, and deletes nothing itself. The counter in
//! the names decides the age of titles, if there is one. Modification times are less exact: titles
//! that follow closely, or that a crash has cut off, may finish out of order.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tactus_core::units::{Bytes, Nanos, WallTime};

use crate::pattern::Pattern;
use crate::recording::Keep;

/// A title of a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RecordedTitle {
    /// Its modification time.
    pub(super) time: WallTime,
    /// Its counter.
    pub(super) number: u64,
    /// Its path from the root, without the leading slash.
    pub(super) name: String,
    pub(super) len: Bytes,
}

/// Larger directories are not searched: they belong to other programs, or are a mistake.
const ENTRIES_MAX: usize = 1_000_000;
/// The directories of a pattern cannot be deeper, because a path has a limited length.
const DEPTH_MAX: usize = 64;

/// The titles that `to` has named, oldest first. `root` is the volume's directory, and `mount` the
/// part of the path before it. May block.
pub(super) fn titles(root: &Path, mount: &str, to: &Pattern) -> Vec<RecordedTitle> {
    let mut found = Vec::new();
    let within = to.directory().strip_prefix(mount.trim_end_matches('/')).unwrap_or_default();
    let mut waiting =
        vec![(root.join(within.trim_start_matches('/')), to.directory().to_owned(), 0)];
    let mut entries = 0;
    while let Some((directory, prefix, depth)) = waiting.pop() {
        let Ok(listed) = fs::read_dir(directory) else { continue };
        for entry in listed.flatten() {
            entries += 1;
            // Links are not followed: their targets do not belong to the recording.
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else {
                continue;
            };
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            if kind.is_dir() && depth < DEPTH_MAX && entries < ENTRIES_MAX {
                waiting.push((entry.path(), path, depth + 1));
            } else if kind.is_file()
                && let Some(number) = to.number_in(&path)
                && let Ok(facts) = entry.metadata()
            {
                let nanos = facts.mtime().max(0) as u64 * 1_000_000_000 + facts.mtime_nsec() as u64;
                let (time, len) = (WallTime(nanos), Bytes(facts.len()));
                found.push(RecordedTitle { time, number, name: path, len });
            }
        }
    }
    found.sort_by(|a, b| (a.number, a.time, &a.name).cmp(&(b.number, b.time, &b.name)));
    found
}

/// How many of `titles`, oldest first, must be deleted.
pub(super) fn surplus(titles: &[RecordedTitle], keep: &Keep, now: WallTime) -> usize {
    let is_old = |title: &RecordedTitle| {
        keep.age.is_some_and(|Nanos(age)| now.0.saturating_sub(title.time.0) > age)
    };
    let mut size = titles.iter().fold(0u64, |sum, title| sum.saturating_add(title.len.0));
    let mut gone = 0;
    for (nth, title) in titles.iter().enumerate().take(titles.len().saturating_sub(1)) {
        let too_many = keep.titles.is_some_and(|most| titles.len() - nth > most as usize);
        let too_large = keep.size.is_some_and(|most| size > most.0);
        if !too_many && !too_large && !is_old(title) {
            break;
        }
        size -= title.len.0;
        gone = nth + 1;
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(time: u64, len: u64) -> RecordedTitle {
        RecordedTitle { time: WallTime(time), number: 0, name: time.to_string(), len: Bytes(len) }
    }

    #[test]
    fn the_oldest_go_and_the_youngest_stays() {
        let titles = [stored(1, 100), stored(2, 50), stored(3, 10), stored(4, 10)];
        let gone = |keep: Keep| surplus(&titles, &keep, WallTime(5));
        assert_eq!(gone(Keep::default()), 0);
        assert_eq!(gone(Keep { titles: Some(3), ..Keep::default() }), 1);
        assert_eq!(gone(Keep { size: Some(Bytes(70)), ..Keep::default() }), 1);
        assert_eq!(gone(Keep { size: Some(Bytes(69)), ..Keep::default() }), 2);
        assert_eq!(gone(Keep { size: Some(Bytes(1)), ..Keep::default() }), 3);
        assert_eq!(gone(Keep { age: Some(Nanos(2)), ..Keep::default() }), 2);
        assert_eq!(gone(Keep { age: Some(Nanos(0)), ..Keep::default() }), 3);
        assert_eq!(surplus(&[], &Keep { titles: Some(1), ..Keep::default() }, WallTime(0)), 0);
    }

    #[test]
    fn the_counter_says_which_title_is_older_and_without_one_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let changed = |name: &str, seconds: u64| {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
        };
        // The eighth title was cut to its length after the ninth and the tenth.
        for (name, seconds) in [("0007", 10), ("0008", 40), ("0009", 20), ("0010", 30)] {
            changed(&format!("{name}.ts"), seconds);
            changed(&format!("at-20240101-00{name}.ts"), seconds);
        }
        let names = |to: &str| {
            let found = titles(dir.path(), "", &Pattern::parse(to).unwrap());
            found.into_iter().map(|title| title.name).collect::<Vec<_>>()
        };
        assert_eq!(names("/%n.ts"), ["0007.ts", "0008.ts", "0009.ts", "0010.ts"]);
        let by_time = ["0007", "0009", "0010", "0008"].map(|n| format!("at-20240101-00{n}.ts"));
        assert_eq!(names("/at-%Y%m%d-%H%M%S.ts"), by_time);
    }

    #[test]
    fn only_what_the_pattern_names_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["a/2024/x-0001.ts", "a/2024/x-0002.ts", "a/x-0003.ts", "a/2024/y-0001.ts", "film.ts"]
        {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink("x-0001.ts", dir.path().join("a/2024/x-0009.ts")).unwrap();
        let to = Pattern::parse("/disk/a/%Y/x-%n.ts").unwrap();
        let found = titles(dir.path(), "disk/", &to);
        let mut names: Vec<_> = found.iter().map(|title| (&*title.name, title.number)).collect();
        names.sort_unstable();
        assert_eq!(names, [("disk/a/2024/x-0001.ts", 1), ("disk/a/2024/x-0002.ts", 2)]);
    }
}
