//! Playlists of HLS (RFC 8216) and DASH (ISO/IEC 23009-1): which files they name, and how long each
//! of them plays.
//!
//! Promise: any bytes are read in time and memory linear in their length, up to `ENTRIES_MAX`
//! names. What cannot be understood is left out. Names of other servers are compared by their last
//! part.

mod dash;
mod hls;
mod template;

use std::collections::HashMap;

use tactus_core::units::Nanos;

use template::Template;

/// Longest playlist that is read: a day of segments of two seconds with long names.
pub const PLAYLIST_MAX: u64 = 4 << 20;
/// Most names of one playlist.
const ENTRIES_MAX: usize = 50_000;
/// Most templates of one playlist; each representation may have two.
const TEMPLATES_MAX: usize = 64;
/// Longest name, and the longest path on Linux.
const NAME_MAX: usize = 4096;

/// A file of a playlist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// How long the file plays; `None` if the playlist names parts of it, or does not say it.
    pub duration: Option<Nanos>,
}

/// The files that a playlist names.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Playlist {
    names: HashMap<String, Segment>,
    templates: Vec<(Template, Segment)>,
}

impl Playlist {
    /// The playlist in `text`; its kind follows from the extension of `name`. `None` if this is no
    /// extension of a playlist.
    #[must_use]
    pub fn read(name: &str, text: &[u8]) -> Option<Self> {
        let kind = kind_of(name)?;
        let text = String::from_utf8_lossy(&text[..text.len().min(PLAYLIST_MAX as usize)]);
        let mut playlist = Self::default();
        match kind {
            Kind::Hls => hls::read(&text, &mut playlist),
            Kind::Dash => dash::read(&text, &mut playlist),
        }
        Some(playlist)
    }

    /// The file with this path relative to the playlist, if the playlist names it.
    #[must_use]
    pub fn segment(&self, path: &str) -> Option<Segment> {
        let by_name = self.names.get(path).copied();
        by_name.or_else(|| {
            let fits = self.templates.iter().find(|(template, _)| template.fits(path));
            fits.map(|&(_, segment)| segment)
        })
    }

    /// The number of templates, which take longer to compare than names.
    #[must_use]
    pub fn templates(&self) -> usize {
        self.templates.len()
    }

    /// Whether it names no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.templates.is_empty()
    }

    /// The memory of its names, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let names = self.names.keys().map(|name| name.len() + 64).sum::<usize>();
        names + self.templates.len() * 512
    }

    fn add(&mut self, reference: &str, segment: Segment) {
        let path = relative(reference).and_then(|path| decoded(&path));
        let Some(path) = path.filter(|_| self.names.len() < ENTRIES_MAX) else {
            return;
        };
        // A file that is named twice has parts.
        self.names
            .entry(path)
            .and_modify(|known| {
                if *known != segment {
                    known.duration = None;
                }
            })
            .or_insert(segment);
    }

    fn add_template(&mut self, reference: &str, segment: Segment) {
        if self.templates.len() >= TEMPLATES_MAX {
            return;
        }
        let template = relative(reference).and_then(|path| Template::parse(&path));
        self.templates.extend(template.map(|template| (template, segment)));
    }
}

/// Whether a file with this name is a playlist.
#[must_use]
pub fn is_playlist(name: &str) -> bool {
    kind_of(name).is_some()
}

enum Kind {
    Hls,
    Dash,
}

fn kind_of(name: &str) -> Option<Kind> {
    let (_, extension) = name.rsplit_once('.')?;
    match extension {
        _ if extension.eq_ignore_ascii_case("m3u8") => Some(Kind::Hls),
        _ if extension.eq_ignore_ascii_case("mpd") => Some(Kind::Dash),
        _ => None,
    }
}

/// The path of a reference, relative to its playlist: without query and fragment, `.` and `..`.
/// `None` if it leads above the playlist's directory. Of a reference with a host or from the root
/// only the last part is known to lie beside the playlist.
fn relative(reference: &str) -> Option<String> {
    let reference = reference.trim();
    if reference.is_empty() || reference.len() > NAME_MAX {
        return None;
    }
    let path = reference.split(['?', '#']).next().unwrap_or_default();
    let is_absolute = path.starts_with('/') || path.contains("://");
    let path = if is_absolute { path.rsplit('/').next().unwrap_or_default() } else { path };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// `text` without percent-encoding. A sign that is no encoding stands for itself.
fn decoded(text: &str) -> Option<String> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%')
            .then(|| Some(digit(*bytes.get(at + 1)?)? * 16 + digit(*bytes.get(at + 2)?)?))
            .flatten();
        plain.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8(plain).ok()
}

/// A number of seconds with a fraction, as `4.004`, rounded down to nanoseconds; `None` for zero.
fn seconds(text: &str) -> Option<Nanos> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let fraction = &fraction[..fraction.len().min(9)];
    let nanos = format!("{fraction:0<9}").parse::<u64>().ok()?;
    let all = whole.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    (all > 0).then_some(Nanos(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r02_references_are_paths_relative_to_their_playlist() {
        for (reference, path) in [
            ("a.ts", Some("a.ts")),
            ("./v0/a%20b.ts?token=1#x", Some("v0/a b.ts")),
            ("v0/../v1/a.ts", Some("v1/a.ts")),
            ("../a.ts", None),
            ("https://cdn.example/x/a.ts?y", Some("a.ts")),
            ("/hls/a.ts", Some("a.ts")),
            ("100%.ts", Some("100%.ts")),
            ("", None),
            ("%ff", None),
        ] {
            let found = relative(reference).and_then(|path| decoded(&path));
            assert_eq!(found.as_deref(), path, "{reference}");
        }
    }

    #[test]
    fn r02_durations_are_exact_decimals() {
        for (text, nanos) in [
            ("4", Some(4_000_000_000)),
            ("4.004", Some(4_004_000_000)),
            ("0.0000000019", Some(1)),
            (".5", Some(500_000_000)),
            ("0", None),
            ("-1", None),
            ("1e3", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(seconds(text).map(|it| it.0), nanos, "{text}");
        }
    }
}
