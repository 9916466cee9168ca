//! Media types by extension, from which players recognise a title. The content is not read.

/// The media type of a title with this name; `application/octet-stream` for an unknown extension.
pub(super) fn of(name: &str) -> &'static str {
    let file = name.rsplit('/').next().unwrap_or(name);
    let Some((stem, extension)) = file.rsplit_once('.') else { return UNKNOWN };
    if stem.is_empty() {
        return UNKNOWN;
    }
    let known = TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(extension));
    known.map_or(UNKNOWN, |&(_, media_type)| media_type)
}

/// Whether titles with this name may have an index, or a consumption that is kept like one.
pub(super) fn is_indexed(name: &str) -> bool {
    const OTHERS: [&str; 8] = [
        "video/matroska",
        "video/matroska-3d",
        "audio/matroska",
        "video/webm",
        "audio/mpeg",
        "audio/flac",
        "audio/ogg",
        "video/ogg",
    ];
    let media_type = of(name);
    media_type == TRANSPORT_STREAM || OTHERS.contains(&media_type)
}

/// MPEG transport streams (RFC 3555).
pub(super) const TRANSPORT_STREAM: &str = "video/mp2t";
const UNKNOWN: &str = "application/octet-stream";

/// The registered names (IANA) where they exist; Matroska by RFC 9559.
const TYPES: &[(&str, &str)] = &[
    ("ts", TRANSPORT_STREAM),
    ("m2ts", TRANSPORT_STREAM),
    ("mts", TRANSPORT_STREAM),
    ("m2t", TRANSPORT_STREAM),
    ("trp", TRANSPORT_STREAM),
    ("tp", TRANSPORT_STREAM),
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("cmfv", "video/mp4"),
    ("m4s", "video/iso.segment"),
    ("mkv", "video/matroska"),
    ("mk3d", "video/matroska-3d"),
    ("webm", "video/webm"),
    ("mov", "video/quicktime"),
    ("mpg", "video/mpeg"),
    ("mpeg", "video/mpeg"),
    ("vob", "video/mpeg"),
    ("mxf", "application/mxf"),
    ("avi", "video/x-msvideo"),
    ("flv", "video/x-flv"),
    ("wmv", "video/x-ms-wmv"),
    ("3gp", "video/3gpp"),
    ("ogv", "video/ogg"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m3u", "audio/mpegurl"),
    ("mpd", "application/dash+xml"),
    ("xspf", "application/xspf+xml"),
    ("sdp", "application/sdp"),
    ("mp3", "audio/mpeg"),
    ("m4a", "audio/mp4"),
    ("m4b", "audio/mp4"),
    ("cmfa", "audio/mp4"),
    ("aac", "audio/aac"),
    ("ac3", "audio/ac3"),
    ("ec3", "audio/eac3"),
    ("ac4", "audio/ac4"),
    ("flac", "audio/flac"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("mka", "audio/matroska"),
    ("wav", "audio/vnd.wave"),
    ("aif", "audio/aiff"),
    ("aiff", "audio/aiff"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("srt", "application/x-subrip"),
    ("ttml", "application/ttml+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("log", "text/plain; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("pdf", "application/pdf"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("png", "image/png"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("svg", "image/svg+xml"),
    ("ico", "image/vnd.microsoft.icon"),
    ("zip", "application/zip"),
    ("gz", "application/gzip"),
    ("zst", "application/zstd"),
    ("tar", "application/x-tar"),
    ("wasm", "application/wasm"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_alone_decides() {
        assert_eq!(of("films/a.m2ts"), "video/mp2t");
        assert_eq!(of("A.MP4"), "video/mp4");
        assert_eq!(of("list.m3u8"), "application/vnd.apple.mpegurl");
        assert_eq!(of("set.mpd"), "application/dash+xml");
        for name in ["noext", ".ts", "films.ts/readme", "x.", "x.unheard-of", ""] {
            assert_eq!(of(name), UNKNOWN, "{name}");
        }
    }

    #[test]
    fn no_extension_is_listed_twice() {
        for (index, (extension, _)) in TYPES.iter().enumerate() {
            assert!(TYPES[..index].iter().all(|(before, _)| before != extension), "{extension}");
        }
    }
}
