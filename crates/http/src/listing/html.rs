//! A listing for browsers: one page with a light and a dark style. Without scripts it is a plain
//! list of links; with them it sorts, filters, plays and uploads.
//!
//! Promise: a name is always text, never markup or script; scripts and styles are the server's own
//! files. All links are relative, so that the page works below any prefix.

use std::fmt::Write;

use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::{BitRate, Nanos, SECOND};
use tactus_storage::catalogue::{Entry, EntryKind};
use tactus_storage::dates::to_the_minute;

use super::{Footer, Format, Page};

/// The rows of the page.
pub(super) struct Rows;

impl Format for Rows {
    fn entry(&mut self, entry: &Entry, page: &mut String) {
        row(entry, page);
    }

    fn end(&mut self, end: &Footer, page: &mut String) {
        page.push_str("</tbody></table>\n");
        match end.unlisted {
            0 => {}
            1 => page.push_str(
                "<p>One name cannot be shown, as no URL path can express it; see the log.\n",
            ),
            many => {
                add(
                    page,
                    format_args!(
                        "<p>{many} names cannot be shown, as no URL path can express them; \
                         see the log.\n"
                    ),
                );
            }
        }
        page.push_str(CLOSING);
    }
}

/// The page up to its first row.
pub(super) fn opening(page: &Page) -> String {
    let (path, up) = (&page.path, up(&page.path));
    let assets = format!("{up}{}", super::ASSETS.trim_start_matches('/'));
    let title = match (path.segments().last(), page.host.as_deref()) {
        (Some(name), Some(host)) => format!("{name} – {host}"),
        (Some(name), None) => name.to_owned(),
        (None, Some(host)) => format!("{host} – Tactus"),
        (None, None) => "Tactus".to_owned(),
    };
    let mut text = format!(
        "{OPENING}<title>{}</title>\n<link rel=stylesheet href=\"{assets}page.css\">\n\
         <script src=\"{assets}page.js\" defer></script>\n",
        escaped(&title)
    );
    if page.takes_uploads {
        add(&mut text, format_args!("<script src=\"{assets}upload.js\" defer></script>\n"));
    }
    add(&mut text, format_args!("<h1>{}</h1>\n", trail(path)));
    if page.takes_uploads {
        upload_form(path, &mut text);
    }
    text.push_str(TOOLS);
    text.push_str(TABLE);
    if !path.name().is_empty() {
        text.push_str("<tr data-up=1><td><a href=\"../\">..</a><td><td><td><td>\n");
    }
    text
}

/// Works only with the script, which reads the directory from the form. Without the script nothing
/// is sent (`form-action`), and never in a URL.
fn upload_form(path: &RequestPath, page: &mut String) {
    let slash = if path.name().is_empty() { "" } else { "/" };
    let directory = escaped(&format!("/{}{slash}", path.name()));
    add(
        page,
        format_args!(
            "<form id=upload method=post data-directory=\"{directory}\" hidden>\n\
             <label>Upload <input type=file name=files multiple required></label>\n\
             <span class=hint>or drop files anywhere</span>\n\
             <input name=username autocomplete=username value=token hidden>\n\
             <label>Token <input type=password name=token required size=14 \
             autocomplete=current-password></label>\n\
             <label><input type=checkbox name=replace> replace</label>\n\
             <button name=start class=primary>Upload</button>\n</form>\n\
             <ul id=uploads aria-label=Uploads></ul>\n"
        ),
    );
}

/// The link from a directory to the root.
fn up(path: &RequestPath) -> String {
    match path.segments().count() {
        0 => "./".to_owned(),
        depth => "../".repeat(depth),
    }
}

/// The names along the path, each a link.
fn trail(path: &RequestPath) -> String {
    let mut trail = format!("<a href=\"{}\">tactus</a> /", up(path));
    let depth = path.segments().count();
    for (nth, segment) in path.segments().enumerate() {
        let link = match depth - nth - 1 {
            0 => "./".to_owned(),
            above => "../".repeat(above),
        };
        let name = escaped(segment);
        add(&mut trail, format_args!(" <a href=\"{link}\">{name}</a> /"));
    }
    trail
}

/// Each figure appears twice: readable, and exact (bytes, bit/s, ms, seconds since 1970) for
/// sorting.
fn row(entry: &Entry, page: &mut String) {
    let mut link = String::new();
    encode_segment(&entry.name, &mut link);
    let slash = if entry.kind == EntryKind::Directory { "/" } else { "" };
    let cell = |shown: String, exact: u64| format!("<td data-v={exact}>{shown}");
    let none = || "<td>".to_owned();
    let (size, rate, time) = match entry.kind {
        EntryKind::Directory => (none(), none(), none()),
        EntryKind::Title { len, own_rate, peak, duration } => (
            cell(format!("{len:.1}"), len.0),
            own_rate.map_or_else(none, |rate| cell(shown_rate(rate, peak), rate.0)),
            duration.map_or_else(none, |time| cell(clock(time), time.0 / 1_000_000)),
        ),
    };
    let modified = entry
        .modified
        .map_or_else(none, |modified| cell(to_the_minute(modified), modified.0 / 1_000_000_000));
    let plays = match entry.kind {
        EntryKind::Directory => None,
        EntryKind::Title { .. } => player(entry.media_type()),
    };
    let plays = plays.map_or_else(String::new, |by| format!(" data-play={by}"));
    let (link, name) = (escaped(&link), escaped(&entry.name));
    add(
        page,
        format_args!(
            "<tr{plays}><td><a href=\"{link}{slash}\">{name}{slash}</a>\
             {size}{rate}{time}{modified}\n"
        ),
    );
}

/// The mean rate, and the peak where it is higher.
fn shown_rate(mean: BitRate, peak: Option<BitRate>) -> String {
    match peak.filter(|&peak| peak > mean) {
        Some(peak) => format!("{mean:.2}, peak {peak:.2}"),
        None => format!("{mean:.2}"),
    }
}

/// The method by which the script plays a media type, if browsers may support it.
fn player(media_type: &str) -> Option<&'static str> {
    match media_type {
        "video/mp2t" => Some("ts"),
        "application/vnd.apple.mpegurl" => Some("hls"),
        "video/mp4" | "video/webm" | "video/quicktime" | "video/ogg" | "video/matroska" => {
            Some("file")
        }
        _ if media_type.starts_with("audio/") && media_type != "audio/mpegurl" => Some("file"),
        _ => None,
    }
}

/// The page for a 404 in a browser, with links back.
pub(super) fn nothing(path: &RequestPath, host: Option<&str>, said: &str) -> String {
    // The path may be that of a title, whose relative links begin in the directory above.
    let depth = path.segments().count().saturating_sub(usize::from(!path.is_directory()));
    let up = match depth {
        0 => "./".to_owned(),
        depth => "../".repeat(depth),
    };
    let assets = format!("{up}{}", super::ASSETS.trim_start_matches('/'));
    let above = if path.is_directory() { "../" } else { "./" };
    format!(
        "{OPENING}<title>Not found – {}</title>\n<link rel=stylesheet href=\"{assets}page.css\">\n\
         <h1>Not found</h1>\n<p>{}: <b>/{}</b>\n\
         <p><a href=\"{above}\">The directory above</a> · <a href=\"{up}\">The top</a>\n",
        escaped(host.unwrap_or("Tactus")),
        escaped(said),
        escaped(path.name()),
    )
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

/// Escapes text for content and for quoted attributes.
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

/// Hidden without the script.
const TOOLS: &str = "<div id=tools hidden><label for=filter>Filter</label> \
    <input id=filter type=search autocomplete=off spellcheck=false aria-keyshortcuts=\"/\"> \
    <span id=count role=status></span></div>\n<p id=said role=status></p>\n";

const TABLE: &str = "<table>\n<thead><tr><th scope=col>Name<th scope=col>Size<th scope=col>Rate\
    <th scope=col>Length<th scope=col>Changed (UTC)</thead>\n<tbody>\n";

const CLOSING: &str = "<footer><a href=\"?format=m3u\">as a playlist (m3u)</a> \
    <a href=\"?format=json\">as JSON</a></footer>\n\
    <dialog id=player aria-labelledby=playing><h2 id=playing></h2>\
    <video controls playsinline preload=none></video>\
    <div class=row><a class=list href=\"\">Open in a player (m3u)</a> \
    <output role=status></output> <button type=button>Close</button></div></dialog>\n";
