//! Lists of titles in files: M3U, or a path on each line.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use tactus_core::units::MIB;

use crate::catalogue::OpenTitle;
use crate::config::TITLES_MAX;

/// No list is longer.
const LEN_MAX: u64 = 16 * MIB;

/// The titles in a list that is stored under `path`.
///
/// # Errors
/// Why it is none, as a sentence.
pub(super) async fn read(list: &Arc<OpenTitle>, path: &str) -> Result<Vec<String>, String> {
    if list.len.0 > LEN_MAX {
        return Err(format!("the list is longer than {} MiB", LEN_MAX / MIB));
    }
    let (list, path) = (Arc::clone(list), path.to_owned());
    // A disk that hangs keeps it waiting, and millions of lines take their time.
    let read = tokio::task::spawn_blocking(move || {
        let read = || {
            let file = File::from(tactus_sys::file::reopen(&list.file)?);
            let mut text = String::new();
            file.take(LEN_MAX).read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        let text = read().map_err(|error| format!("the list cannot be read: {error}"))?;
        titles(&text, &path)
    });
    read.await.map_err(|_| "the list cannot be read".to_owned())?
}

/// Names without a slash in front are beside the list.
pub(super) fn titles(text: &str, path: &str) -> Result<Vec<String>, String> {
    let beside = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim).zip(1..);
    let mut titles = Vec::new();
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        if line.contains("://") {
            return Err(format!("line {number} of the list is no title of this server: {line}"));
        }
        if titles.len() == TITLES_MAX {
            return Err(format!("the list has more than {TITLES_MAX} titles"));
        }
        titles.push(match line.starts_with('/') {
            true => line.to_owned(),
            false => format!("{beside}{line}"),
        });
    }
    match titles.is_empty() {
        true => Err("the list is empty".into()),
        false => Ok(titles),
    }
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
        let long = "a\n".repeat(TITLES_MAX + 1);
        assert!(titles(&long, "/l").unwrap_err().contains("more than"));
    }
}
