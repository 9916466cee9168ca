//! The files that a kernel boots with: an archive in the form of cpio, "newc" (Linux'
//! buffer-format.rst).

use std::collections::BTreeSet;

/// It, as far as it has been written.
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), names: BTreeSet::new() }
    }

    /// A file, and the folders above it; one that is there already is left as it is.
    pub(super) fn add(&mut self, name: &str, content: &[u8], may_run: bool) {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.add_folder(folder);
        }
        if self.names.insert(name.to_owned()) {
            self.entry(name, if may_run { PROGRAM } else { FILE }, content);
        }
    }

    /// A folder, and those above it.
    pub(super) fn add_folder(&mut self, name: &str) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.add_folder(above);
        }
        if self.names.insert(name.to_owned()) {
            self.entry(name, FOLDER, &[]);
        }
    }

    /// The whole of it.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = self.names.len() as u32;
        // Inode, mode, owner, group, links, time, length, four numbers of devices, length of the
        // name, no sum.
        let (len, name_len) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [number, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_before_their_files() {
        let mut archive = Archive::new();
        archive.add("lib/x/one", b"12345", true);
        archive.add("lib/x/one", b"again", true);
        archive.add("lib/two", b"", false);
        let bytes = archive.end();
        assert!(bytes.len().is_multiple_of(4));
        let (mut at, mut names) = (0, vec![]);
        while at < bytes.len() {
            let field = |nth: usize| {
                let digits = &bytes[at + 6 + 8 * nth..][..8];
                usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (len, name_len) = (field(6), field(11));
            let name = std::str::from_utf8(&bytes[at + 110..at + 110 + name_len - 1]).unwrap();
            names.push((name.to_owned(), field(1) as u32));
            let content = (at + 110 + name_len).next_multiple_of(4);
            if name == "lib/x/one" {
                assert_eq!(&bytes[content..content + len], b"12345");
            }
            at = (content + len).next_multiple_of(4);
        }
        let expected = [
            ("lib", FOLDER),
            ("lib/x", FOLDER),
            ("lib/x/one", PROGRAM),
            ("lib/two", FILE),
            ("TRAILER!!!", 0),
        ];
        assert_eq!(names, expected.map(|(name, mode)| (name.to_owned(), mode)));
    }
}
