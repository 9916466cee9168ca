//! A directory that a program reads.
//!
//! Promise: the entries come in parts, as far as the program reads, and each keeps its place while
//! the directory is open, so that a program can go back to it. Rewinding reads the directory anew.

use fuser::Errno;
use tactus_client::Entry;

/// The entries so far.
#[derive(Default)]
pub(crate) struct DirectoryReader {
    entries: Vec<Entry>,
    /// The last name as the server has it.
    last: Option<String>,
    is_whole: bool,
}

impl DirectoryReader {
    /// The program begins again.
    pub(crate) fn rewind(&mut self) {
        *self = Self::default();
    }

    /// The entry at `place`; `None` behind the last one. `next` asks for the part behind a name,
    /// `written` for entries of files that are being written, which the server may not know yet.
    pub(crate) fn entry(
        &mut self,
        place: usize,
        next: impl Fn(Option<&str>) -> Result<(Vec<Entry>, bool), Errno>,
        written: impl Fn() -> Vec<Entry>,
    ) -> Result<Option<&Entry>, Errno> {
        while place >= self.entries.len() && !self.is_whole {
            let (entries, more) = next(self.last.as_deref())?;
            self.is_whole = !more;
            self.last = entries.last().map(|entry| entry.name.clone());
            self.entries.extend(entries.into_iter().map(|mut entry| {
                // The slash behind the name of a directory.
                if entry.stat.is_directory && entry.name.ends_with('/') {
                    entry.name.pop();
                }
                entry
            }));
            if self.is_whole {
                for entry in written() {
                    match self.entries.iter_mut().find(|known| known.name == entry.name) {
                        Some(known) => known.stat = entry.stat,
                        None => self.entries.push(entry),
                    }
                }
            }
        }
        Ok(self.entries.get(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use tactus_client::Stat;

    #[test]
    fn parts_are_read_as_far_as_they_are_needed_and_anew_after_rewinding() {
        let calls = RefCell::new(vec![]);
        let next = |after: Option<&str>| {
            calls.borrow_mut().push(after.map(str::to_owned));
            let entry = |name: &str| {
                let stat = Stat { is_directory: name.ends_with('/'), ..Stat::default() };
                Entry { name: name.to_owned(), stat }
            };
            match after {
                None => Ok((vec![entry("d/")], true)),
                Some("d/") => Ok((vec![entry("a"), entry("b")], true)),
                Some("b") => Ok((vec![entry("c")], false)),
                _ => Err(Errno::EIO),
            }
        };
        let mut directory = DirectoryReader::default();
        let mut name = |place| {
            let entry = directory.entry(place, next, Vec::new).unwrap();
            entry.map(|entry| entry.name.clone())
        };
        assert_eq!(name(0).as_deref(), Some("d"));
        assert_eq!(calls.borrow().len(), 1);
        assert_eq!(name(2).as_deref(), Some("b"));
        assert_eq!((name(1).as_deref(), calls.borrow().len()), (Some("a"), 2));
        assert_eq!((name(3).as_deref(), name(4), name(9)), (Some("c"), None, None));
        assert_eq!(calls.borrow().len(), 3);
        directory.rewind();
        assert_eq!(directory.entry(0, next, Vec::new).unwrap().unwrap().name, "d");
        assert_eq!(calls.borrow().len(), 4);
    }
}
