//! Media playlists of HLS (RFC 8216). A multivariant playlist names other playlists, which are no
//! segments.

use super::{Playlist, Segment, is_playlist, seconds};

/// Adds the segments in `text` (section 4.3.2).
pub(super) fn read(text: &str, playlist: &mut Playlist) {
    if !text.trim_start_matches('\u{feff}').starts_with("#EXTM3U") {
        return;
    }
    let (mut duration, mut is_part) = (None, false);
    for line in text.lines().map(str::trim) {
        if let Some(value) = line.strip_prefix("#EXTINF:") {
            duration = seconds(value.split(',').next().unwrap_or_default().trim());
        } else if line.starts_with("#EXT-X-BYTERANGE:") {
            is_part = true;
        } else if let Some(attributes) = line.strip_prefix("#EXT-X-MAP:") {
            uri(attributes).inspect(|uri| playlist.add(uri, Segment { duration: None }));
        } else if let Some(attributes) = line.strip_prefix("#EXT-X-PART:") {
            // A partial segment of a live stream; the name may be that of the whole segment.
            let duration = attribute(attributes, "DURATION").and_then(seconds);
            let is_part = attribute(attributes, "BYTERANGE").is_some();
            let duration = duration.filter(|_| !is_part);
            uri(attributes).inspect(|uri| playlist.add(uri, Segment { duration }));
        } else if !line.is_empty() && !line.starts_with('#') {
            let duration = std::mem::take(&mut duration);
            let whole = duration.filter(|_| !std::mem::take(&mut is_part));
            if duration.is_some() && !is_playlist(line.split(['?', '#']).next().unwrap_or(line)) {
                playlist.add(line, Segment { duration: whole });
            }
        }
    }
}

fn uri(attributes: &str) -> Option<&str> {
    attribute(attributes, "URI")
}

/// The value of an attribute (section 4.2), without its quotes.
fn attribute<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = list;
    loop {
        let (key, after) = rest.split_once('=')?;
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => {
                let (value, next) = quoted.split_once('"')?;
                (value, next.strip_prefix(',').unwrap_or(next))
            }
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if key.trim() == name {
            return Some(value);
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Playlist {
        Playlist::read("a.m3u8", text.as_bytes()).unwrap()
    }

    fn millis(playlist: &Playlist, path: &str) -> Option<Option<u64>> {
        playlist.segment(path).map(|segment| segment.duration.map(|it| it.0 / 1_000_000))
    }

    #[test]
    fn r02_segments_have_their_durations_and_initialization_has_none() {
        let playlist = of("#EXTM3U\r\n#EXT-X-VERSION:7\r\n#EXT-X-TARGETDURATION:4\r\n\
             #EXT-X-MAP:URI=\"init.mp4\"\r\n#EXTINF:4.000000,\r\nv/0.m4s\r\n\
             #EXTINF:3.5,Title, with a comma\r\n#EXT-X-PROGRAM-DATE-TIME:2026-01-01T00:00:00Z\r\n\
             v/1.m4s?x=1\r\n#EXT-X-ENDLIST\r\n");
        assert_eq!(millis(&playlist, "init.mp4"), Some(None));
        assert_eq!(millis(&playlist, "v/0.m4s"), Some(Some(4000)));
        assert_eq!(millis(&playlist, "v/1.m4s"), Some(Some(3500)));
        assert_eq!(millis(&playlist, "1.m4s"), None);
    }

    #[test]
    fn r02_a_file_that_is_named_in_parts_is_no_segment_of_its_own_duration() {
        let playlist = of("#EXTM3U\n#EXT-X-MAP:URI=\"film.mp4\",BYTERANGE=\"800@0\"\n\
             #EXTINF:4,\n#EXT-X-BYTERANGE:1000@800\nfilm.mp4\n\
             #EXTINF:4,\n#EXT-X-BYTERANGE:1000\nfilm.mp4\n\
             #EXTINF:2,\nwhole.ts\n");
        assert_eq!(millis(&playlist, "film.mp4"), Some(None));
        assert_eq!(millis(&playlist, "whole.ts"), Some(Some(2000)));
    }

    #[test]
    fn r02_other_playlists_and_other_texts_name_no_segments() {
        let master = of("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=300000\nlow.m3u8\n");
        assert!(master.is_empty());
        assert!(of("#EXTINF:4,\na.ts\n").is_empty(), "no playlist without its first line");
        assert_eq!(Playlist::read("a.m3u", b"#EXTM3U\n#EXTINF:4,\na.ts\n"), None);
        assert!(of("#EXTM3U\n#EXTINF:-1,radio\nhttp://x/y.mp3\n").is_empty());
    }
}
