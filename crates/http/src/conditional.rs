//! Conditional requests (RFC 9110 section 13): whether a title is sent, and whether a range
//! applies.
//!
//! Promise: the fields are evaluated in the order of section 13.2.2. A range applies only if it
//! certainly belongs to the version that the client has. Dates are whole seconds.

use std::time::{Duration, SystemTime};

use super::fields::Fields;

/// The validators of the current version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validators<'a> {
    /// A strong entity tag, with quotes.
    pub(super) etag: &'a str,
    /// The modification time, rounded down to whole seconds.
    pub(super) modified: SystemTime,
}

/// The result of the preconditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Send,
    /// 304: the client has this version.
    NotModified,
    /// 412: the client requested another version.
    Failed,
}

/// Evaluates the preconditions of a GET or HEAD.
pub(super) fn verdict(fields: &Fields, current: Validators<'_>) -> Verdict {
    let date = |name| fields.one(name).and_then(http_date);
    let matches = if fields.one("if-match").is_some() {
        any_tag(fields, "if-match", |tag| tag == current.etag.as_bytes())
    } else {
        date("if-unmodified-since").is_none_or(|date| current.modified <= date)
    };
    if !matches {
        return Verdict::Failed;
    }
    let changed = if fields.one("if-none-match").is_some() {
        // Weak comparison (section 8.8.3.2).
        !any_tag(fields, "if-none-match", |tag| {
            tag.strip_prefix(b"W/").unwrap_or(tag) == current.etag.as_bytes()
        })
    } else {
        date("if-modified-since").is_none_or(|date| current.modified > date)
    };
    if changed { Verdict::Send } else { Verdict::NotModified }
}

/// Whether a `Range` applies, by `If-Range` (section 13.1.5).
pub(super) fn range_counts(fields: &Fields, current: Validators<'_>, now: SystemTime) -> bool {
    let Some(value) = fields.one("if-range") else { return true };
    // A weak tag begins with W and never matches here, because section 13.1.5 requires strong
    // comparison.
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        return value == current.etag.as_bytes();
    }
    // A date is a strong validator only after the end of its second (section 8.8.2.2).
    let is_over = now.duration_since(current.modified).is_ok_and(|age| age >= STRONG_AGE);
    is_over && http_date(value) == Some(current.modified)
}

/// A file can change twice within the second of its date. After this time it no longer can.
const STRONG_AGE: Duration = Duration::from_secs(2);

/// Entity tags that are a condition of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WantedTags {
    /// `*`: any version.
    Any,
    Listed(Vec<String>),
}

/// The tags of `If-Match`, if present: strong ones, because weak ones match nothing (section
/// 13.1.1).
pub(super) fn if_match(fields: &Fields) -> Option<WantedTags> {
    wanted(fields, "if-match", |tag| tag.starts_with(b"\"").then_some(tag))
}

/// The tags of `If-None-Match`, if present, without `W/`: the comparison is weak (section 13.1.2).
pub(super) fn if_none_match(fields: &Fields) -> Option<WantedTags> {
    wanted(fields, "if-none-match", |tag| Some(tag.strip_prefix(b"W/").unwrap_or(tag)))
}

fn wanted(
    fields: &Fields,
    name: &str,
    compared: impl Fn(&[u8]) -> Option<&[u8]>,
) -> Option<WantedTags> {
    fields.one(name)?;
    if fields.all(name).any(|list| list == b"*") {
        return Some(WantedTags::Any);
    }
    let compared = fields.all(name).flat_map(tags).filter_map(compared);
    let compared = compared.map(|tag| String::from_utf8_lossy(tag).into_owned());
    Some(WantedTags::Listed(compared.collect()))
}

/// Whether any element of a list of tags is `*` or satisfies `fits`. An invalid element satisfies
/// nothing.
fn any_tag(fields: &Fields, name: &str, fits: impl Fn(&[u8]) -> bool) -> bool {
    fields.all(name).any(|list| list == b"*" || tags(list).any(&fits))
}

/// The entity tags of a list. A tag may contain commas, so it is read from quote to quote.
fn tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = list;
    std::iter::from_fn(move || {
        while let [b',' | b' ' | b'\t', tail @ ..] = rest {
            rest = tail;
        }
        let opening = if rest.starts_with(b"W/") { 2 } else { 0 };
        if rest.get(opening) != Some(&b'"') {
            return None;
        }
        let length = rest[opening + 1..].iter().position(|&byte| byte == b'"')?;
        let (tag, tail) = rest.split_at(opening + length + 2);
        rest = tail;
        Some(tag)
    })
}

/// The time of `If-Unmodified-Since` for a change, in seconds since 1970. None if the field is
/// ignored: beside `If-Match`, or if its date is invalid (section 13.1.4).
pub(super) fn unmodified_since(fields: &Fields) -> Option<i64> {
    if fields.one("if-match").is_some() {
        return None;
    }
    let date = http_date(fields.one("if-unmodified-since")?)?;
    let second = date.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(second).ok()
}

/// A date of section 5.6.7, in any of its three formats.
fn http_date(value: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "\"abc\"";
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn modified() -> SystemTime {
        httpdate::parse_http_date(DATE).unwrap()
    }

    fn fields(all: &[(&str, &str)]) -> Fields {
        let mut head = Vec::new();
        let mut add = |text: &str| {
            head.extend(text.as_bytes());
            head.len() - text.len()..head.len()
        };
        let places = all.iter().map(|(name, value)| (add(name), add(value))).collect();
        Fields::new(head, places)
    }

    fn verdict(all: &[(&str, &str)]) -> Verdict {
        super::verdict(&fields(all), Validators { etag: TAG, modified: modified() })
    }

    fn range_counts(value: &str) -> bool {
        let now = modified() + Duration::from_secs(10);
        let current = Validators { etag: TAG, modified: modified() };
        super::range_counts(&fields(&[("If-Range", value)]), current, now)
    }

    #[test]
    fn if_match_compares_strongly() {
        for value in [TAG, "\"x\", \"abc\"", "*", "\"a,b\",\"abc\""] {
            assert_eq!(verdict(&[("If-Match", value)]), Verdict::Send, "{value}");
        }
        for value in ["\"x\"", "W/\"abc\"", "abc", "", "\"abc", "\"x,\"abc\"\""] {
            assert_eq!(verdict(&[("If-Match", value)]), Verdict::Failed, "{value}");
        }
        let two = [("If-Match", "\"x\""), ("If-Match", TAG)];
        assert_eq!(verdict(&two), Verdict::Send, "several fields are one list");
    }

    #[test]
    fn if_none_match_compares_weakly() {
        for value in [TAG, "W/\"abc\"", "*", "\"x\", W/\"abc\""] {
            assert_eq!(verdict(&[("If-None-Match", value)]), Verdict::NotModified, "{value}");
        }
        for value in ["\"x\"", "abc", ""] {
            assert_eq!(verdict(&[("If-None-Match", value)]), Verdict::Send, "{value}");
        }
    }

    #[test]
    fn dates_count_by_the_second() {
        assert_eq!(verdict(&[("If-Modified-Since", DATE)]), Verdict::NotModified);
        assert_eq!(verdict(&[("If-Modified-Since", LATER)]), Verdict::NotModified);
        assert_eq!(verdict(&[("If-Modified-Since", EARLIER)]), Verdict::Send);
        assert_eq!(verdict(&[("If-Unmodified-Since", DATE)]), Verdict::Send);
        assert_eq!(verdict(&[("If-Unmodified-Since", EARLIER)]), Verdict::Failed);
        assert_eq!(verdict(&[("If-Modified-Since", "yesterday")]), Verdict::Send);
        assert_eq!(verdict(&[("If-Unmodified-Since", "yesterday")]), Verdict::Send);
        let rfc_850 = "Sunday, 06-Nov-94 08:49:37 GMT";
        assert_eq!(verdict(&[("If-Modified-Since", rfc_850)]), Verdict::NotModified);
    }

    #[test]
    fn tags_go_before_dates_and_failure_before_not_modified() {
        let all = [("If-Match", TAG), ("If-Unmodified-Since", EARLIER)];
        assert_eq!(verdict(&all), Verdict::Send);
        let all = [("If-None-Match", "\"x\""), ("If-Modified-Since", DATE)];
        assert_eq!(verdict(&all), Verdict::Send);
        let all = [("If-None-Match", TAG), ("If-Match", "\"x\"")];
        assert_eq!(verdict(&all), Verdict::Failed);
    }

    #[test]
    fn r04_a_range_counts_only_for_the_same_version() {
        assert!(range_counts(TAG) && range_counts(DATE));
        for value in ["W/\"abc\"", "\"x\"", EARLIER, LATER, "abc", "", "\"abc\", \"x\"", "*"] {
            assert!(!range_counts(value), "{value}");
        }
        let current = Validators { etag: TAG, modified: modified() };
        let soon = modified() + Duration::from_secs(1);
        let dated = fields(&[("If-Range", DATE)]);
        assert!(!super::range_counts(&dated, current, soon), "the file may change again");
        assert!(super::range_counts(&Fields::default(), current, soon));
    }
}
