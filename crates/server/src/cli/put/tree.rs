//! The files that `put` sends, and their URLs: the named files, and those of named directories.
//!
//! Promise: every file is sent, or reported with the reason. A link to a directory is never
//! followed, so there are no cycles. Names are percent-encoded once, whatever they contain.

use std::path::{Path, PathBuf};

use tactus_storage::catalogue::is_reserved;

use super::super::client::{Url, escaped};
use super::super::{Failure, console};

/// Files with their URLs, in order.
pub(super) struct Plan {
    pub(super) uploads: Vec<(PathBuf, Url)>,
    /// Number of files that are not sent; each has been reported.
    pub(super) left_out: usize,
    /// A single file was named.
    pub(super) is_one_file: bool,
}

/// Depth of nested directories, which is the limit of the server's paths.
const DEPTH_MAX: usize = 64;

impl Plan {
    /// Lists the files of `named` for upload to `url`, which is a directory if it ends with a
    /// slash.
    ///
    /// # Errors
    /// When a directory would get the name of a file.
    pub(super) fn of(named: &[PathBuf], url: &Url, recursive: bool) -> Result<Self, Failure> {
        let is_one_file = named.len() == 1 && !named[0].is_dir();
        let mut plan = Self { uploads: Vec::new(), left_out: 0, is_one_file };
        for path in named {
            if path.is_dir() {
                if !recursive {
                    plan.leave_out(path, "it is a directory; add --recursive");
                    continue;
                }
                if !url.path.ends_with('/') {
                    return Err(Failure::usage(format!(
                        "{} is a directory: end the URL with a slash",
                        path.display()
                    )));
                }
                // As `cp -r`: the directory itself, but only the contents of `.` and `..`.
                match path.file_name() {
                    Some(name) => plan.add(path, name.to_str(), url, true),
                    None => plan.add_all(path, url, 0),
                }
            } else if url.path.ends_with('/') {
                let name = path.file_name().and_then(|name| name.to_str());
                plan.add(path, name, url, false);
            } else {
                plan.uploads.push((path.clone(), url.clone()));
            }
        }
        Ok(plan)
    }

    fn add(&mut self, path: &Path, name: Option<&str>, into: &Url, is_dir: bool) {
        let Some(name) = name else {
            return self.leave_out(path, "its name is not UTF-8, which names of titles must be");
        };
        if is_reserved(name) {
            return self.leave_out(path, "this name is reserved by the server");
        }
        let mut to = into.clone();
        to.path.push_str(&escaped(name));
        if is_dir {
            to.path.push('/');
            let depth = to.path.matches('/').count();
            self.add_all(path, &to, depth);
        } else {
            self.uploads.push((path.to_owned(), to));
        }
    }

    fn add_all(&mut self, directory: &Path, into: &Url, depth: usize) {
        if depth > DEPTH_MAX {
            return self.leave_out(directory, "its directory is nested too deep");
        }
        let entries = directory.read_dir().and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.leave_out(directory, &error.to_string()),
        };
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type();
            match kind {
                Ok(kind) if kind.is_dir() => self.add(&path, name.to_str(), into, true),
                Ok(kind) if kind.is_symlink() && path.is_dir() => {
                    self.leave_out(&path, "it is a link to a directory");
                }
                Ok(_) if path.is_file() => self.add(&path, name.to_str(), into, false),
                Ok(kind) if kind.is_symlink() => {
                    self.leave_out(&path, "its link target cannot be read");
                }
                Ok(_) => self.leave_out(&path, "it is no regular file"),
                Err(error) => self.leave_out(&path, &error.to_string()),
            }
        }
    }

    fn leave_out(&mut self, path: &Path, why: &str) {
        console::notice(format_args!("tactus: {}: {why}", path.display()));
        self.left_out += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn n13_a_tree_is_sent_with_its_names_and_what_is_not_sent_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("films/größe 1/empty")).unwrap();
        fs::create_dir_all(at("films/.tactus")).unwrap();
        for name in ["a%20b.ts", "größe 1/c#?&+;.ts", ".hidden", "größe 1/\\back.ts"] {
            fs::write(at("films").join(name), name).unwrap();
        }
        symlink("a%20b.ts", at("films/link.ts")).unwrap();
        symlink("..", at("films/circle")).unwrap();
        symlink("nowhere", at("films/dangling")).unwrap();
        let latin = std::ffi::OsStr::from_bytes(b"films/caf\xe9.ts");
        fs::write(dir.path().join(latin), "x").unwrap();
        let url = Url::parse("http://h/x/").unwrap();
        let plan = Plan::of(&[at("films")], &url, true).unwrap();
        let paths: Vec<_> = plan.uploads.iter().map(|(_, to)| to.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "/x/films/.hidden",
                "/x/films/a%2520b.ts",
                "/x/films/gr%C3%B6%C3%9Fe%201/%5Cback.ts",
                "/x/films/gr%C3%B6%C3%9Fe%201/c%23%3F%26%2B%3B.ts",
                "/x/films/link.ts",
            ]
        );
        assert_eq!(plan.left_out, 4, "two links, a reserved name, a name in Latin-1");
        // Only its contents, as `cp -r films/. x/` does.
        let plan = Plan::of(&[at("films/größe 1/..")], &url, true).unwrap();
        assert!(plan.uploads.iter().any(|(_, to)| to.path == "/x/link.ts"));
        let plan = Plan::of(&[at("films"), at("films/a%20b.ts")], &url, false).unwrap();
        assert_eq!((plan.uploads.len(), plan.left_out), (1, 1));
        assert!(Plan::of(&[at("films")], &Url::parse("http://h/x").unwrap(), true).is_err());
    }
}
