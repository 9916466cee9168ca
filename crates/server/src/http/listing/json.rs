//! A listing for programs.

use serde::Serialize;
use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::Nanos;

use crate::calendar::rfc_3339;
use crate::catalogue::{Entry, EntryKind, Listing};

#[derive(Serialize)]
pub(super) struct Document<'a> {
    /// The directory, decoded, with slashes at both ends.
    path: String,
    entries: Vec<Line<'a>>,
    /// Whether these are all.
    complete: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    /// The link, relative to the directory.
    href: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_bits_per_second: Option<u64>,
    /// To the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
}

impl<'a> Document<'a> {
    pub(super) fn new(path: &RequestPath, listing: &'a Listing) -> Self {
        let name = path.name();
        let path = if name.is_empty() { "/".to_owned() } else { format!("/{name}/") };
        Self {
            path,
            entries: listing.entries.iter().map(line).collect(),
            complete: listing.complete,
        }
    }
}

fn line(entry: &Entry) -> Line<'_> {
    let mut href = String::new();
    encode_segment(&entry.name, &mut href);
    let (kind, len, rate, duration) = match entry.kind {
        EntryKind::Directory => {
            href.push('/');
            ("directory", None, None, None)
        }
        EntryKind::Title { len, own_rate, duration } => ("title", Some(len), own_rate, duration),
    };
    let seconds = |duration: Nanos| (duration.0 / 1_000_000) as f64 / 1000.0;
    Line {
        name: &entry.name,
        href,
        kind,
        bytes: len.map(|len| len.0),
        rate_bits_per_second: rate.map(|rate| rate.0),
        duration_seconds: duration.map(seconds),
        modified: entry.modified.map(rfc_3339),
    }
}
