//! A listing for players: an M3U playlist of all titles that can be played, in the order of the
//! page.
//!
//! Promise: URLs are absolute if the request names the host, because players open the list from a
//! file.

use tactus_core::path::encode_segment;
use tactus_storage::catalogue::{Entry, EntryKind};

use super::{Footer, Format, Page};

/// The playlist of a directory.
pub(super) struct List {
    /// The URL before each name.
    base: String,
}

impl List {
    /// The playlist and its beginning.
    pub(super) fn begin(page: &Page) -> (Self, String) {
        let mut base = String::new();
        if let Some(server) = &page.base {
            base.push_str(server);
            for segment in page.path.segments() {
                base.push('/');
                encode_segment(segment, &mut base);
            }
            base.push('/');
        }
        (Self { base }, String::from("#EXTM3U\n"))
    }
}

impl Format for List {
    fn entry(&mut self, entry: &Entry, list: &mut String) {
        let EntryKind::Title { duration, .. } = entry.kind else { return };
        let media_type = entry.media_type();
        if !media_type.starts_with("video/") && !media_type.starts_with("audio/") {
            return;
        }
        let seconds = duration.map_or(-1, |time| (time.0 / 1_000_000_000) as i64);
        let name: String = entry.name.chars().filter(|c| !c.is_control()).collect();
        *list += &format!("#EXTINF:{seconds},{name}\n{}", self.base);
        encode_segment(&entry.name, list);
        list.push('\n');
    }

    fn end(&mut self, _: &Footer, _: &mut String) {}
}
