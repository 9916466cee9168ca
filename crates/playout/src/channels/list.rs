//! Lists of titles in files: M3U, or a path on each line.
//!
//! Promise: a path is resolved against the path of its list, as in players (RFC 3986, section 5.2),
//! and none leads above the root. Whether the title exists is not checked here.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use tactus_core::path::resolve;
use tactus_core::units::MIB;
use tactus_storage::catalogue::OpenTitle;

use crate::channel::TITLES_MAX;

/// Upper bound of the size of a list.
const LEN_MAX: u64 = 16 * MIB;

/// The titles in a list that is stored under `path`.
///
/// # Errors
/// Why it is invalid, as a sentence.
pub(super) async fn read(list: &Arc<OpenTitle>, path: &str) -> Result<Vec<String>, String> {
    if list.len.0 > LEN_MAX {
        return Err(format!("the list is longer than {} MiB", LEN_MAX / MIB));
    }
    let (list, path) = (Arc::clone(list), path.to_owned());
    // A hanging disk would block the executor, and millions of lines take long.
    let read = tokio::task::spawn_blocking(move || {
        let read = || {
            let file = File::from(tactus_sys::file::reopen(&list.file)?);
            let mut text = String::new();
            file.take(LEN_MAX).read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        let text = read().map_err(|error| format!("cannot read the list: {error}"))?;
        titles(&text, &path)
    });
    read.await.map_err(|_| "cannot read the list".to_owned())?
}

/// The titles in `text`, a list that is stored under `path`.
pub(super) fn titles(text: &str, path: &str) -> Result<Vec<String>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim).zip(1..);
    let mut titles = Vec::new();
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        if is_elsewhere(line) {
            return Err(format!(
                "line {number} of the list does not name a title of this server: \
                {line}"
            ));
        }
        if titles.len() == TITLES_MAX {
            return Err(format!("the list has more than {TITLES_MAX} titles"));
        }
        titles.push(resolve(path, line));
    }
    match titles.is_empty() {
        true => Err("the list is empty".into()),
        false => Ok(titles),
    }
}

/// Whether a line has a scheme or a host (RFC 3986, sections 3 and 4.2). A colon alone may be part
/// of a file's name.
fn is_elsewhere(line: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    line.starts_with("//") || line.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_players_write_them() {
        let text = "\u{feff}#EXTM3U\r\n#EXTINF:10,One\r\none.ts\r\n\r\n  /films/two.ts  \n";
        assert_eq!(
            titles(text, "/lists/a.m3u8"),
            Ok(vec!["/lists/one.ts".into(), "/films/two.ts".into()])
        );
        assert_eq!(titles("a", "/l.txt"), Ok(vec!["/a".into()]));
        assert!(titles("a\nhttp://x/y", "/l").unwrap_err().contains("line 2"));
        assert!(titles("# nothing\n", "/l").unwrap_err().contains("empty"));
        for elsewhere in ["//host/a.ts", "FILE:///a.ts", "rtsp://h/a"] {
            assert!(titles(elsewhere, "/l").unwrap_err().contains("line 1"), "{elsewhere}");
        }
        let long = "a\n".repeat(TITLES_MAX + 1);
        assert!(titles(&long, "/l").unwrap_err().contains("more than"));
    }

    #[test]
    fn p08_names_of_a_list_are_resolved_against_its_own() {
        let text = "../films/x.ts\n./y.ts\n/films/./z.ts\n../../../top.ts\nsub/../a b.ts\n\
                    %2e%2e/films/%C3%A4.ts\na:1.ts\n";
        let expected = [
            "/films/x.ts",
            "/lists/y.ts",
            "/films/z.ts",
            "/top.ts",
            "/lists/a%20b.ts",
            "/films/%C3%A4.ts",
            "/lists/a:1.ts",
        ];
        assert_eq!(titles(text, "/lists/a.m3u8").unwrap(), expected);
    }
}
