//! A listing for players: M3U with what can be played, in the order of the page.
//!
//! Promise: URLs are whole where the client has said what it calls this server, since players open such a
//! list from a file.

use tactus_core::path::encode_segment;

use super::Page;
use crate::catalogue::{EntryKind, Listing};

/// The playlist of a directory.
pub(super) fn of(page: &Page<'_>, listing: &Listing) -> String {
    let mut base = page.base.unwrap_or_default().to_owned();
    for segment in page.path.segments() {
        base.push('/');
        encode_segment(segment, &mut base);
    }
    let base = if page.base.is_some() { format!("{base}/") } else { String::new() };
    let mut list = String::from("#EXTM3U\n");
    for entry in &listing.entries {
        let EntryKind::Title { duration, .. } = entry.kind else { continue };
        let media_type = entry.media_type();
        if !media_type.starts_with("video/") && !media_type.starts_with("audio/") {
            continue;
        }
        let seconds = duration.map_or(-1, |time| (time.0 / 1_000_000_000) as i64);
        let name: String = entry.name.chars().filter(|c| !c.is_control()).collect();
        list += &format!("#EXTINF:{seconds},{name}\n{base}");
        encode_segment(&entry.name, &mut list);
        list.push('\n');
    }
    list
}
