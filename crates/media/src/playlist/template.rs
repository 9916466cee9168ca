//! Templates of segment names in DASH (ISO/IEC 23009-1, section 5.3.9.4.4).
//!
//! Promise: a comparison takes at most the template's length times the path's, both of which are
//! bounded.

use super::decoded;

/// Longest template, and longest path that is compared with one.
const LEN_MAX: usize = 512;

/// A name with identifiers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    Byte(u8),
    /// At least one digit.
    Digits,
    /// At least one byte of a name.
    Any,
}

impl Template {
    /// `None` for a name with an unknown identifier.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > LEN_MAX {
            return None;
        }
        let mut pieces = Vec::new();
        let mut parts = text.split('$');
        let literal = |text: &str| Some(decoded(text)?.into_bytes().into_iter().map(Piece::Byte));
        pieces.extend(literal(parts.next()?)?);
        while let Some(identifier) = parts.next() {
            // A `$` at the end has no partner.
            let after = parts.next()?;
            let name = identifier.split('%').next().unwrap_or_default();
            pieces.push(match name {
                "" => Piece::Byte(b'$'),
                "RepresentationID" => Piece::Any,
                "Number" | "Time" | "Bandwidth" | "SubNumber" => Piece::Digits,
                _ => return None,
            });
            pieces.extend(literal(after)?);
        }
        Some(Self(pieces))
    }

    /// Whether `path` is one of its names.
    pub(super) fn fits(&self, path: &str) -> bool {
        if path.len() > LEN_MAX {
            return false;
        }
        // after[n]: the pieces so far fit the first n bytes.
        let path = path.as_bytes();
        let mut after = vec![false; path.len() + 1];
        after[0] = true;
        for piece in &self.0 {
            let before = after.clone();
            if !before.contains(&true) {
                return false;
            }
            after[0] = false;
            for (at, &byte) in path.iter().enumerate() {
                after[at + 1] = match piece {
                    Piece::Byte(own) => before[at] && byte == *own,
                    Piece::Digits => (before[at] || after[at]) && byte.is_ascii_digit(),
                    Piece::Any => (before[at] || after[at]) && byte != b'/',
                };
            }
        }
        after[path.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r02_a_template_fits_its_own_names_only() {
        let template = Template::parse("v$RepresentationID$/chunk-$Number%05d$.m4s").unwrap();
        for (path, fits) in [
            ("v0/chunk-00001.m4s", true),
            ("vhigh/chunk-123456.m4s", true),
            ("v/chunk-00001.m4s", false),
            ("v0/chunk-.m4s", false),
            ("v0/chunk-1.m4s.part", false),
            ("v0/x/chunk-1.m4s", false),
            ("", false),
        ] {
            assert_eq!(template.fits(path), fits, "{path}");
        }
        assert!(Template::parse("a%20$$b$Time$").unwrap().fits("a $b17"));
        assert_eq!(Template::parse("a$Unknown$"), None);
        assert_eq!(Template::parse("a$"), None);
    }
}
