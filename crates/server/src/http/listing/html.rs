//! A listing for people: one page, readable by day and by night; without scripts, except that of the
//! upload form where uploads are taken.

use std::fmt::Write;

use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::{Nanos, SECOND};

use super::{SCRIPT, duration};
use crate::calendar::to_the_minute;
use crate::catalogue::{Entry, EntryKind, Listing};

/// The page of `listing`, the content of the directory `path`.
pub(super) fn page(path: &RequestPath, listing: &Listing, takes_uploads: bool) -> String {
    let title = escaped(if path.name().is_empty() { "/" } else { path.name() });
    let mut page = format!("{OPENING}<title>{title}</title>\n{STYLE}<h1>{}</h1>\n", trail(path));
    page.push_str(TABLE);
    if !path.name().is_empty() {
        page.push_str("<tr><td><a href=\"../\">..</a><td><td><td><td>\n");
    }
    for entry in &listing.entries {
        row(entry, &mut page);
    }
    page.push_str("</table>\n");
    if !listing.complete {
        let count = listing.entries.len();
        add(&mut page, format_args!("<p>This shows only {count} entries; there are more.\n"));
    }
    if takes_uploads {
        upload_form(path, &mut page);
    }
    page.push_str("<p><a href=\"?format=json\">as JSON</a>\n");
    page
}

/// Works by the script alone, which reads the directory from the form. Without it nothing is sent
/// (`form-action`), and never in a URL.
fn upload_form(path: &RequestPath, page: &mut String) {
    let slash = if path.name().is_empty() { "" } else { "/" };
    let directory = escaped(&format!("/{}{slash}", path.name()));
    add(
        page,
        format_args!(
            "<form id=upload method=post data-directory=\"{directory}\">\n\
             <label>Upload <input type=file name=files multiple required></label>\n\
             <label>with the token <input type=password name=token required \
             autocomplete=current-password></label>\n\
             <label><input type=checkbox name=replace> replace</label>\n\
             <button name=start>Upload</button>\n</form>\n<ul id=uploads></ul>\n\
             <script src=\"{SCRIPT}\" defer></script>\n"
        ),
    );
}

/// The names along the path, each a link.
fn trail(path: &RequestPath) -> String {
    let mut trail = String::from("<a href=\"/\">tactus</a> /");
    let mut link = String::from("/");
    for segment in path.segments() {
        encode_segment(segment, &mut link);
        link.push('/');
        let (link, name) = (escaped(&link), escaped(segment));
        add(&mut trail, format_args!(" <a href=\"{link}\">{name}</a> /"));
    }
    trail
}

fn row(entry: &Entry, page: &mut String) {
    let mut link = String::new();
    encode_segment(&entry.name, &mut link);
    let slash = if entry.kind == EntryKind::Directory { "/" } else { "" };
    let (size, rate, time) = match entry.kind {
        EntryKind::Directory => Default::default(),
        EntryKind::Title { len, own_rate: None } => (len.to_string(), String::new(), String::new()),
        EntryKind::Title { len, own_rate: Some(rate) } => {
            (len.to_string(), rate.to_string(), clock(duration(len, rate)))
        }
    };
    let modified = entry.modified.map(to_the_minute).unwrap_or_default();
    let (link, name) = (escaped(&link), escaped(&entry.name));
    add(
        page,
        format_args!(
            "<tr><td><a href=\"{link}{slash}\">{name}{slash}</a>\
             <td>{size}<td>{rate}<td>{time}<td>{modified}\n"
        ),
    );
}

/// `1:02:03`, rounded to the second.
fn clock(span: Nanos) -> String {
    let seconds = (span.0 + SECOND.0 / 2) / SECOND.0;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

fn add(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes everything");
}

/// For text and for quoted attributes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

const OPENING: &str = "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n\
    <meta name=viewport content=\"width=device-width\">\n\
    <meta name=color-scheme content=\"light dark\">\n";

const STYLE: &str = "<style>\n\
    body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }\n\
    h1 { font-size: 1.2rem; overflow-wrap: anywhere }\n\
    table { border-collapse: collapse; width: 100% }\n\
    th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; \
    font-variant-numeric: tabular-nums; border-bottom: 1px solid #8884 }\n\
    th:first-child, td:first-child { text-align: left; width: 100%; white-space: normal; \
    overflow-wrap: anywhere }\n\
    th { font-weight: 500; color: GrayText }\n\
    tr:hover td { background: #8882 }\n\
    a { color: LinkText; text-decoration: none }\n\
    a:hover { text-decoration: underline }\n\
    @media (max-width: 40rem) { th:nth-child(n+4), td:nth-child(n+4) { display: none } }\n\
    </style>\n";

const TABLE: &str = "<table>\n<tr><th>Name<th>Size<th>Rate<th>Length<th>Changed (UTC)\n";
