//! Request paths: from the bytes of a request-target to the name of a stored object, or a refusal.
//!
//! Promise: a valid path names one object, with one spelling. It is decoded exactly once: `%2520`
//! is the name `%20`. Paths that would need a repair (dot segments, empty segments, overlong UTF-8,
//! control or direction characters) are refused before the file system is asked, and so are paths
//! that become a dot segment when a program decodes them twice or takes a backslash for a
//! separator. Nothing is opened here; links and reserved names are the catalogue's concern.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Longest name of one object or directory, in bytes: the limit of every Linux file system.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest path, in bytes, decoded or not: `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 4096;

/// A path that is safe to hand to the file system, relative to the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestPath {
    name: String,
    directory: bool,
}

/// Why a path is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathFault {
    /// The path does not begin with a slash.
    Relative,
    /// A character must be percent-encoded.
    Raw,
    /// A percent sign is not followed by two hexadecimal digits.
    BadEscape,
    /// Decoding a segment a second time gives `.` or `..`.
    EscapedTwice,
    /// An escape encodes a slash, or a backslash precedes `.` or `..`.
    Separator,
    /// Two slashes follow each other.
    EmptySegment,
    /// A segment is `.` or `..`.
    DotSegment,
    /// The path is no UTF-8.
    NotUtf8,
    /// A control character, or one that changes the direction of writing.
    Control,
    /// A name or the whole path is too long.
    TooLong,
}

impl RequestPath {
    /// The path of a decoded name, with or without outer slashes.
    ///
    /// # Errors
    /// The first rule that the path breaks.
    pub fn of_name(name: &str) -> Result<Self, PathFault> {
        let mut path = String::from("/");
        for (at, segment) in name.trim_matches('/').split('/').enumerate() {
            if at > 0 {
                path.push('/');
            }
            encode_segment(segment, &mut path);
        }
        Self::parse(path.as_bytes())
    }

    /// Reads the path part of a request-target (without its query), RFC 3986 section 3.3.
    ///
    /// # Errors
    /// The first rule that the path breaks.
    pub fn parse(raw: &[u8]) -> Result<Self, PathFault> {
        if raw.first() != Some(&b'/') {
            return Err(PathFault::Relative);
        }
        if raw.len() > PATH_BYTES_MAX {
            return Err(PathFault::TooLong);
        }
        let decoded = decode_once(raw)?;
        let text = core::str::from_utf8(&decoded).map_err(|_| PathFault::NotUtf8)?;
        let inner = &text[1..];
        if inner.is_empty() {
            return Ok(Self { name: String::new(), directory: true });
        }
        let (name, directory) = match inner.strip_suffix('/') {
            Some(name) => (name, true),
            None => (inner, false),
        };
        for segment in name.split('/') {
            check_name(segment)?;
        }
        Ok(Self { name: String::from(name), directory })
    }

    /// The path relative to the root, without slashes at its ends; empty for the root itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it was written with a slash at its end, as the name of a directory.
    pub fn is_directory(&self) -> bool {
        self.directory
    }

    /// The names along the path, from the root down; none for the root.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.name.split('/').filter(|segment| !segment.is_empty())
    }
}

/// Whether `name` can be one segment of a request path: the rule for listings, too, so that a
/// listing names only what can be asked for.
///
/// # Errors
/// The rule that the name breaks.
pub fn check_name(name: &str) -> Result<(), PathFault> {
    match name {
        "" => return Err(PathFault::EmptySegment),
        "." | ".." => return Err(PathFault::DotSegment),
        _ => {}
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(PathFault::TooLong);
    }
    let is_dots = |part: &[u8]| matches!(part, b"." | b"..");
    if name.contains('/') || name.as_bytes().split(|&byte| byte == b'\\').any(is_dots) {
        return Err(PathFault::Separator);
    }
    if name.chars().any(is_control_or_direction) {
        return Err(PathFault::Control);
    }
    if name.contains('%') {
        let twice = decoded_again(name.as_bytes());
        if twice.split(|byte| b"/\\".contains(byte)).any(is_dots) {
            return Err(PathFault::EscapedTwice);
        }
    }
    Ok(())
}

/// Decodes `name` once more, as a program that decodes twice does.
fn decoded_again(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, tail @ ..] = rest {
        rest = tail;
        let mut byte = *first;
        if byte == b'%'
            && let [high, low, tail @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            (byte, rest) = (high << 4 | low, tail);
        }
        decoded.push(byte);
    }
    decoded
}

/// Writes `name` so that it can stand as one segment of a path in a link.
pub fn encode_segment(name: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in name.as_bytes() {
        // A colon in the first segment of a relative link would read as a scheme: escape it too.
        if is_path_byte(byte) && byte != b':' && byte != b'/' {
            out.push(byte as char);
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)] as char);
            out.push(HEX[usize::from(byte & 15)] as char);
        }
    }
}

/// Resolves `reference` against `base`, the absolute path of the document that contains it (RFC
/// 3986, sections 5.2.3 and 5.2.4). An escaped dot counts as a dot (section 6.2.2.2). `..` at the
/// root stays at the root. Characters that a path may not contain, such as a space, are escaped;
/// the result is not checked further.
pub fn resolve(base: &str, reference: &str) -> String {
    let beside = match reference.starts_with('/') {
        true => "",
        false => &base[..base.rfind('/').unwrap_or(0)],
    };
    let below = reference.strip_prefix('/').unwrap_or(reference);
    let segments = beside.split('/').skip(1).chain(below.split('/'));
    let mut kept: Vec<String> = Vec::new();
    let mut is_directory = false;
    for segment in segments {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        is_directory = matches!(plain.as_str(), "." | "..");
        match plain.as_str() {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(escaped(segment)),
        }
    }
    let mut path = String::new();
    for segment in &kept {
        path.push('/');
        path.push_str(segment);
    }
    if is_directory || path.is_empty() {
        path.push('/');
    }
    path
}

/// Escapes the characters of `text` that a path may not contain: spaces, quotes, brackets and bytes
/// above ASCII.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            ' ' | '"' | '<' | '>' | '[' | ']' | '^' | '`' | '{' | '|' | '}' | '\u{80}'.. => {
                let mut bytes = [0; 4];
                encode_segment(c.encode_utf8(&mut bytes), &mut out);
            }
            _ => out.push(c),
        }
    }
    out
}

fn decode_once(raw: &[u8]) -> Result<Vec<u8>, PathFault> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            if *first < 0x20 || *first == 0x7f {
                return Err(PathFault::Control);
            }
            if !is_path_byte(*first) {
                return Err(PathFault::Raw);
            }
            decoded.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return Err(PathFault::BadEscape) };
        let (Some(high), Some(low)) = (hex(*high), hex(*low)) else {
            return Err(PathFault::BadEscape);
        };
        rest = tail;
        match high << 4 | low {
            b'/' => return Err(PathFault::Separator),
            byte => decoded.push(byte),
        }
    }
    Ok(decoded)
}

/// `pchar` of RFC 3986 without the escape, and the slash.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte)
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

/// C0, DEL, C1, the line and paragraph separators, and the marks, embeddings, overrides and
/// isolates of Unicode's bidirectional algorithm (UAX 9), with which one name can be shown as
/// another.
fn is_control_or_direction(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relative => "the path does not begin with a slash",
            Self::Raw => "the path holds a character that must be percent-encoded",
            Self::BadEscape => "a percent sign in the path is not followed by two hex digits",
            Self::EscapedTwice => "the path becomes a `.` or `..` segment when it is decoded twice",
            Self::Separator => {
                "the path contains an escaped slash, or a backslash before `.` or `..`"
            }
            Self::EmptySegment => "the path holds two slashes in a row",
            Self::DotSegment => "the path holds a `.` or `..` segment",
            Self::NotUtf8 => "the path is no valid UTF-8",
            Self::Control => "the path holds a control or direction character",
            Self::TooLong => "a name is longer than 255 bytes or the path longer than 4096",
        })
    }
}

impl core::error::Error for PathFault {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    fn name(raw: &str) -> Result<String, PathFault> {
        RequestPath::parse(raw.as_bytes()).map(|path| String::from(path.name()))
    }

    #[test]
    fn plain_paths_pass_and_are_decoded_once() {
        assert_eq!(name("/a/b.ts").unwrap(), "a/b.ts");
        assert_eq!(name("/a%20b/%C3%A9.mkv").unwrap(), "a b/é.mkv");
        assert_eq!(name("/100%25").unwrap(), "100%");
        assert_eq!(name("/...").unwrap(), "...");
        assert_eq!(name("/").unwrap(), "");
        let directory = RequestPath::parse(b"/a/b/").unwrap();
        assert!(directory.is_directory());
        assert_eq!(directory.segments().collect::<Vec<_>>(), ["a", "b"]);
        assert!(!RequestPath::parse(b"/a/b").unwrap().is_directory());
    }

    #[test]
    fn a01_what_would_need_a_repair_is_refused() {
        for raw in ["/..", "/a/../b", "/a/..", "/../a", "/.", "/a/./b", "/a/."] {
            assert_eq!(name(raw), Err(PathFault::DotSegment), "{raw}");
        }
        for raw in ["/%2e%2e%2fsecret", "/..%5csecret", "/a%2Fb", "/a%5C..%5Cb", "/a%5C."] {
            assert_eq!(name(raw), Err(PathFault::Separator), "{raw}");
        }
        for raw in ["/%2e%2e/secret", "/a/%2E", "/%2e%2e"] {
            assert_eq!(name(raw), Err(PathFault::DotSegment), "{raw}");
        }
        for raw in ["/%252e%252e/secret", "/%252e", "/.%252E", "/%252e%252e%252fsecret"] {
            assert_eq!(name(raw), Err(PathFault::EscapedTwice), "{raw}");
        }
        for raw in ["/..%255csecret", "/a%252f..%252fb", "/%252e%252e%255Cx"] {
            assert_eq!(name(raw), Err(PathFault::EscapedTwice), "{raw}");
        }
        for raw in ["//", "//a", "/a//b", "/a//"] {
            assert_eq!(name(raw), Err(PathFault::EmptySegment), "{raw}");
        }
        // `/` and `.` in two and three bytes, a surrogate, a bare continuation byte.
        for raw in ["/%c0%af", "/%e0%80%ae", "/%ed%a0%80", "/%80", "/%ff"] {
            assert_eq!(name(raw), Err(PathFault::NotUtf8), "{raw}");
        }
        for raw in ["/%00", "/a%00.ts", "/%0a", "/%7f", "/%c2%85"] {
            assert_eq!(name(raw), Err(PathFault::Control), "{raw}");
        }
        for raw in ["/%", "/%2", "/%zz", "/a%2"] {
            assert_eq!(name(raw), Err(PathFault::BadEscape), "{raw}");
        }
        for raw in ["/é", "/a b", "/a\"b", "/a<b", "/a#b", "/a?b", "/a\\b"] {
            assert_eq!(name(raw), Err(PathFault::Raw), "{raw}");
        }
        for raw in ["", "a", "*"] {
            assert_eq!(name(raw), Err(PathFault::Relative), "{raw}");
        }
    }

    #[test]
    fn w04_a_path_is_decoded_exactly_once() {
        for (raw, decoded) in [
            ("/100%2520.ts", "100%20.ts"),
            ("/a%252Fb", "a%2Fb"),
            ("/http%253A%252F%252Fx.ts", "http%3A%2F%2Fx.ts"),
            ("/%2525", "%25"),
            ("/%25252e", "%252e"),
            ("/a%25", "a%"),
            ("/a%2500", "a%00"),
            ("/a%25zz", "a%zz"),
            ("/a%5Cb.ts", "a\\b.ts"),
            ("/C%3A%5Cx", "C:\\x"),
            ("/%5C", "\\"),
            ("/a%5c%5cb", "a\\\\b"),
            ("/...%5C...", "...\\..."),
            ("/%252e%252e%252e", "%2e%2e%2e"),
            ("/a%252e%252e", "a%2e%2e"),
        ] {
            assert_eq!(name(raw).as_deref(), Ok(decoded), "{raw}");
        }
    }

    #[test]
    fn a05_long_names_and_direction_characters_are_refused() {
        let longest = "n".repeat(NAME_BYTES_MAX);
        assert_eq!(name(&format!("/{longest}")).unwrap(), longest);
        assert_eq!(name(&format!("/{longest}n")), Err(PathFault::TooLong));
        let deep = "/d".repeat(PATH_BYTES_MAX / 2);
        assert!(name(&deep).is_ok());
        assert_eq!(name(&format!("{deep}x")), Err(PathFault::TooLong));
        for bidi in ["\u{202E}", "\u{2066}", "\u{200F}", "\u{061C}", "\u{2028}"] {
            let mut raw = String::from("/");
            encode_segment(&format!("evil{bidi}st.exe"), &mut raw);
            assert_eq!(name(&raw), Err(PathFault::Control), "{raw}");
        }
    }

    #[test]
    fn p08_references_are_resolved_as_rfc_3986_has_it() {
        // Section 5.4, the examples about paths. The base is `/b/c/d;p`.
        for (reference, expected) in [
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            (";x", "/b/c/;x"),
            ("g;x", "/b/c/g;x"),
            (".", "/b/c/"),
            ("./", "/b/c/"),
            ("..", "/b/"),
            ("../", "/b/"),
            ("../g", "/b/g"),
            ("../..", "/"),
            ("../../", "/"),
            ("../../g", "/g"),
            ("../../../g", "/g"),
            ("../../../../g", "/g"),
            ("/./g", "/g"),
            ("/../g", "/g"),
            ("g.", "/b/c/g."),
            (".g", "/b/c/.g"),
            ("g..", "/b/c/g.."),
            ("..g", "/b/c/..g"),
            ("./../g", "/b/g"),
            ("./g/.", "/b/c/g/"),
            ("g/./h", "/b/c/g/h"),
            ("g/../h", "/b/c/h"),
            ("g;x=1/./y", "/b/c/g;x=1/y"),
            ("g;x=1/../y", "/b/c/y"),
            // An escaped dot counts as a dot; an escaped slash is no separator.
            ("%2e%2E/g", "/b/g"),
            (".%2e/%2e/g", "/b/g"),
            ("..%2fg", "/b/c/..%2fg"),
            ("a b/ä.ts", "/b/c/a%20b/%C3%A4.ts"),
            ("100%25.ts", "/b/c/100%25.ts"),
        ] {
            assert_eq!(resolve("/b/c/d;p", reference), expected, "{reference}");
        }
        assert_eq!(resolve("/l.txt", "a"), "/a");
        assert_eq!(resolve("/l.txt", "../../a"), "/a");
        // References with hidden separators are refused, as in a request.
        for bad in ["..%2fsecret", "..\\secret", "a//b"] {
            assert!(RequestPath::parse(resolve("/lists/a.m3u8", bad).as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn p08_no_reference_leads_above_the_root(
            base in "(/[a-c.%2eE]{1,4}){1,4}",
            reference in "(/?(\\.|\\.\\.|%2e|%2E\\.|[a-c ]{1,3}|\\PC{1,3})){0,8}/?",
        ) {
            let path = resolve(&base, &reference);
            prop_assert!(path.starts_with('/'));
            if let Ok(found) = RequestPath::parse(path.as_bytes()) {
                prop_assert!(found.segments().all(|segment| segment != ".." && segment != "."));
            }
            let is_dot = |segment: &str| {
                matches!(segment.replace("%2e", ".").replace("%2E", ".").as_str(), "." | "..")
            };
            prop_assert!(!path.split('/').any(is_dot), "{}", path);
            prop_assert_eq!(resolve("/", &path), path.clone());
        }

        #[test]
        fn every_listed_name_comes_back_from_its_link(text in "\\PC{1,40}") {
            prop_assume!(check_name(&text).is_ok());
            let mut link = String::from("/");
            encode_segment(&text, &mut link);
            prop_assert_eq!(name(&link).unwrap(), text);
        }

        #[test]
        fn w04_every_name_of_signs_comes_back_or_leads_to_dots(
            text in proptest::string::string_regex("[%25eEfFcC./\\\\a]{1,12}").unwrap()
        ) {
            let mut link = String::from("/");
            encode_segment(&text, &mut link);
            match name(&link) {
                Ok(decoded) => prop_assert_eq!(decoded, text),
                Err(_) => {
                    let hides = text.contains(['/', '.']) || text.contains("%2");
                    prop_assert!(hides);
                }
            }
        }

        #[test]
        fn no_input_passes_that_the_file_system_could_read_otherwise(
            raw in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let mut target = alloc::vec![b'/'];
            target.extend(raw);
            if let Ok(path) = RequestPath::parse(&target) {
                for segment in path.segments() {
                    prop_assert!(check_name(segment).is_ok());
                }
                prop_assert!(!path.name().starts_with('/') && !path.name().contains('\0'));
            }
        }
    }
}
