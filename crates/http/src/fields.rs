//! The fields of a request, as received.

use std::ops::Range;

use super::fault::Fault;

/// Names and values, in the order of the request.
#[derive(Debug, Default)]
pub(super) struct Fields {
    head: Vec<u8>,
    places: Vec<(Range<usize>, Range<usize>)>,
}

/// Fields that the server understands; no other name may imitate one of these.
const KNOWN: &[&str] = &[
    "accept",
    "authorization",
    "cmcd-object",
    "cmcd-request",
    "cmcd-session",
    "cmcd-status",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "depth",
    "destination",
    "expect",
    "forwarded",
    "host",
    "if",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "lock-token",
    "origin",
    "overwrite",
    "range",
    "sec-fetch-site",
    "timeout",
    "transfer-encoding",
    "tus-resumable",
    "upload-checksum",
    "upload-concat",
    "upload-defer-length",
    "upload-length",
    "upload-metadata",
    "upload-offset",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-http-method-override",
];

/// The known fields whose value is no list (RFC 9110 section 5.3). Fields that frame the body or
/// name the host have their own rules and are not here.
const SINGLE: &[&str] = &[
    "authorization",
    "content-range",
    "content-type",
    "depth",
    "destination",
    "expect",
    "if",
    "if-modified-since",
    "if-range",
    "if-unmodified-since",
    "lock-token",
    "origin",
    "overwrite",
    "range",
    "sec-fetch-site",
    "tus-resumable",
    "upload-checksum",
    "upload-concat",
    "upload-defer-length",
    "upload-length",
    "upload-metadata",
    "upload-offset",
    "x-http-method-override",
];

impl Fields {
    /// Stores `head`, and the positions of its fields.
    pub(super) fn new(head: Vec<u8>, places: Vec<(Range<usize>, Range<usize>)>) -> Self {
        Self { head, places }
    }

    /// Fields for a test.
    #[cfg(test)]
    pub(super) fn of(all: &[(&str, &str)]) -> Self {
        let (mut head, mut places) = (Vec::new(), Vec::new());
        let mut add = |text: &str| {
            let start = head.len();
            head.extend(text.bytes());
            start..head.len()
        };
        for (name, value) in all {
            places.push((add(name), add(value)));
        }
        Self { head, places }
    }

    /// Refuses names that other programs could confuse with each other, and repeated singles.
    pub(super) fn check(&self) -> Result<(), Fault> {
        for (name, _) in self.iter() {
            if name.contains(&b'_') && self.has_twin(name) {
                return Err(Fault::Underscore);
            }
        }
        match SINGLE.iter().any(|name| self.all(name).nth(1).is_some()) {
            true => Err(Fault::Repeated),
            false => Ok(()),
        }
    }

    /// The values of every field of this name.
    pub(super) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The value of a field that occurs at most once.
    pub(super) fn one(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// The trimmed elements of a list that may be spread over several fields (RFC 9110 section
    /// 5.6.1).
    pub(super) fn list<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.all(name)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|element| !element.is_empty())
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.places
            .iter()
            .map(|(name, value)| (&self.head[name.clone()], self.head[value.clone()].trim_ascii()))
    }

    /// Whether another field of the request, or a known one, differs only by `-` for `_`.
    fn has_twin(&self, name: &[u8]) -> bool {
        KNOWN.iter().any(|known| same_but_for_dashes(name, known.as_bytes()))
            || self.iter().any(|(other, _)| {
                !other.eq_ignore_ascii_case(name) && same_but_for_dashes(name, other)
            })
    }
}

fn same_but_for_dashes(a: &[u8], b: &[u8]) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| plain(a) == plain(b))
}
