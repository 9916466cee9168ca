//! A listing for programs.

use std::fmt::Write;

use serde::Serialize;
use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::Nanos;
use tactus_storage::catalogue::{Entry, EntryKind};
use tactus_storage::dates::rfc_3339;

use super::{Footer, Format};

/// The document of one directory, or of one page of it.
pub(super) struct Document {
    has_entries: bool,
}

#[derive(Serialize)]
struct EntryLine<'a> {
    name: &'a str,
    /// The link, relative to the directory.
    href: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_bits_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bits_per_second: Option<u64>,
    /// With milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
}

impl Document {
    /// The document and its beginning. The directory is decoded, with slashes at both ends.
    pub(super) fn begin(path: &RequestPath) -> (Self, String) {
        let name = path.name();
        let path = if name.is_empty() { "/".to_owned() } else { format!("/{name}/") };
        let opening = format!("{{\"path\":{},\"entries\":[", serde_json::Value::from(path));
        (Self { has_entries: false }, opening)
    }
}

impl Format for Document {
    fn entry(&mut self, entry: &Entry, out: &mut String) {
        if std::mem::replace(&mut self.has_entries, true) {
            out.push(',');
        }
        let line = serde_json::to_string(&line(entry));
        out.push_str(&line.expect("names and numbers can be written"));
    }

    fn end(&mut self, end: &Footer, out: &mut String) {
        let Footer { unlisted, next } = end;
        let complete = next.is_none();
        write!(out, "],\"complete\":{complete},\"not_listed\":{unlisted}")
            .expect("a string takes everything");
        if let Some(next) = next {
            write!(out, ",\"next\":{}", serde_json::Value::from(next.as_str()))
                .expect("a string takes everything");
        }
        out.push('}');
    }
}

/// The link of an entry, relative to its directory.
pub(super) fn link(entry: &Entry) -> String {
    let mut href = String::new();
    encode_segment(&entry.name, &mut href);
    if entry.kind == EntryKind::Directory {
        href.push('/');
    }
    href
}

fn line(entry: &Entry) -> EntryLine<'_> {
    let (kind, len, rate, peak, duration) = match entry.kind {
        EntryKind::Directory => ("directory", None, None, None, None),
        EntryKind::Title { len, own_rate, peak, duration } => {
            ("title", Some(len), own_rate, peak, duration)
        }
    };
    let seconds = |duration: Nanos| (duration.0 / 1_000_000) as f64 / 1000.0;
    EntryLine {
        name: &entry.name,
        href: link(entry),
        kind,
        bytes: len.map(|len| len.0),
        rate_bits_per_second: rate.map(|rate| rate.0),
        peak_bits_per_second: peak.map(|peak| peak.0),
        duration_seconds: duration.map(seconds),
        modified: entry.modified.map(rfc_3339),
    }
}
