//! Answers of several statuses (RFC 4918 section 13): what is known of each thing, and what is not.
//!
//! Promise: it is XML whatever things are called; and it is whole, or there is none.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::WallTime;

use super::ask::{Asked, DAV, Property};
use crate::calendar::rfc_3339;
use crate::catalogue::{Entry, EntryKind, Sight};
use crate::http::put::location;
use crate::http::response::Response;

/// The type of all these answers.
pub(super) const XML: &str = "application/xml; charset=utf-8";

/// The longest answer: ten thousand titles with long names, and a few hundred bytes about each.
pub(in crate::http) const ANSWER_BYTES_MAX: usize = 16 << 20;

/// All that can be known of a thing.
const KNOWN: [&str; 7] = [
    "resourcetype",
    "displayname",
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "getlastmodified",
    "creationdate",
];

/// The answer to a PROPFIND, with `prefix` before each path; none when it would be longer than one may be,
/// or not tell everything.
pub(super) fn multistatus(
    prefix: &str,
    path: &RequestPath,
    sight: &Sight,
    asked: &Asked,
) -> Option<Response> {
    let mut xml = String::from(OPENING);
    let own = format!("{prefix}{}", location(path));
    let (slash, _) = slash_and_type(&sight.own);
    response(&format!("{own}{slash}"), &sight.own, asked, &mut xml);
    let listing = sight.below.iter();
    for entry in listing.clone().flat_map(|listing| &listing.entries) {
        let mut href = format!("{own}/");
        encode_segment(&entry.name, &mut href);
        href.push_str(slash_and_type(entry).0);
        response(&href, entry, asked, &mut xml);
        if xml.len() > ANSWER_BYTES_MAX {
            return None;
        }
    }
    xml.push_str("</D:multistatus>\n");
    let complete = listing.clone().all(|listing| listing.complete);
    complete.then(|| Response::new(207, XML, xml).with("Cache-Control", "no-cache"))
}

/// The answer to a PROPPATCH: nothing can be set (RFC 4918 section 9.2.1).
pub(super) fn refusals(
    prefix: &str,
    path: &RequestPath,
    own: &Entry,
    named: &[Property],
) -> Response {
    let mut xml = String::from(OPENING);
    let (slash, _) = slash_and_type(own);
    add(&mut xml, format_args!("<D:response><D:href>{prefix}{}{slash}</D:href>", location(path)));
    xml.push_str("<D:propstat><D:prop>");
    named.iter().for_each(|property| empty(property, &mut xml));
    xml.push_str("</D:prop><D:status>HTTP/1.1 403 Forbidden</D:status></D:propstat></D:response>");
    xml.push_str("</D:multistatus>\n");
    Response::new(207, XML, xml)
}

const OPENING: &str =
    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n";

fn slash_and_type(entry: &Entry) -> (&'static str, &'static str) {
    match entry.kind {
        EntryKind::Directory => ("/", "<D:collection/>"),
        EntryKind::Title { .. } => ("", ""),
    }
}

/// What there is to say about one thing.
fn response(href: &str, entry: &Entry, asked: &Asked, xml: &mut String) {
    // A link is ASCII and holds nothing that would have to be escaped but this.
    let href = if href.is_empty() { "/".to_owned() } else { href.replace('&', "&amp;") };
    add(xml, format_args!("<D:response><D:href>{href}</D:href>"));
    let all = KNOWN.iter().filter_map(|name| Some((*name, value(entry, name)?)));
    let (named, is_all) = match asked {
        Asked::Names => {
            let names: String = all.map(|(name, _)| format!("<D:{name}/>")).collect();
            found(&names, xml);
            xml.push_str("</D:response>\n");
            return;
        }
        Asked::All(more) => (more, true),
        Asked::These(named) => (named, false),
    };
    let (mut there, mut missing) = (String::new(), String::new());
    if is_all {
        all.for_each(|(name, value)| element(name, &value, &mut there));
    }
    for property in named {
        match property.dav().and_then(|name| Some((name, value(entry, name)?))) {
            Some(_) if is_all => {}
            Some((name, value)) => element(name, &value, &mut there),
            None => empty(property, &mut missing),
        }
    }
    if !there.is_empty() || missing.is_empty() {
        found(&there, xml);
    }
    if !missing.is_empty() {
        add(xml, format_args!("<D:propstat><D:prop>{missing}</D:prop>"));
        xml.push_str("<D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>");
    }
    xml.push_str("</D:response>\n");
}

fn found(properties: &str, xml: &mut String) {
    add(xml, format_args!("<D:propstat><D:prop>{properties}</D:prop>"));
    xml.push_str("<D:status>HTTP/1.1 200 OK</D:status></D:propstat>");
}

/// The value of a property as XML; none when the thing has no such property.
fn value(entry: &Entry, name: &str) -> Option<String> {
    let title = match entry.kind {
        EntryKind::Title { len, .. } => Some(len),
        EntryKind::Directory => None,
    };
    match name {
        "resourcetype" => Some(slash_and_type(entry).1.to_owned()),
        "displayname" => Some(escaped(&entry.name)),
        "getcontentlength" => title.map(|len| len.0.to_string()),
        "getcontenttype" => title.map(|_| entry.media_type().to_owned()),
        "getetag" => entry.etag.as_deref().map(escaped),
        "getlastmodified" => entry.modified.map(http_date),
        "creationdate" => entry.created.map(rfc_3339),
        _ => None,
    }
}

fn http_date(time: WallTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_nanos(time.0))
}

fn element(name: &str, value: &str, xml: &mut String) {
    add(xml, format_args!("<D:{name}>{value}</D:{name}>"));
}

/// A property without its value. Its name has come as the name of an element, so it can be one.
fn empty(property: &Property, xml: &mut String) {
    let Property { namespace, name } = property;
    match &**namespace {
        DAV => add(xml, format_args!("<D:{name}/>")),
        "" => add(xml, format_args!("<{name}/>")),
        // This prefix is bound once and for all, and can be bound to nothing else.
        "http://www.w3.org/XML/1998/namespace" => add(xml, format_args!("<xml:{name}/>")),
        other => add(xml, format_args!("<x:{name} xmlns:x=\"{}\"/>", escaped(other))),
    }
}

/// Text that XML can hold: some characters that files may have in their names, it cannot.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => add(&mut escaped, format_args!("&#{};", c as u32)),
            '\0'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

fn add(xml: &mut String, text: std::fmt::Arguments<'_>) {
    xml.write_fmt(text).expect("a string takes everything");
}

/// An answer to `asked` is XML, and names each property once for each thing.
#[cfg(any(test, fuzzing))]
pub(super) fn check(asked: &Asked) {
    use tactus_core::units::Bytes;
    let own = Entry {
        name: "a&b<c>\u{fffe}\"'.ts".to_owned(),
        kind: EntryKind::Title { len: Bytes(5), own_rate: None, duration: None },
        modified: Some(WallTime(784_111_777_000_000_000)),
        created: None,
        etag: Some("\"abc\"".to_owned()),
    };
    let path = RequestPath::parse(b"/d&/a%26b.ts").expect("it is one");
    let sight = Sight { own, below: None };
    let answer = multistatus("", &path, &sight, asked).expect("it is short");
    let text = std::str::from_utf8(answer.content()).expect("it is text");
    let named = named(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    match asked {
        Asked::These(these) => assert_eq!(named, these.len(), "{text}"),
        Asked::Names => assert_eq!(named, 6, "{text}"),
        Asked::All(more) => assert!((6..=6 + more.len()).contains(&named), "{text}"),
    }
}

/// How many properties an answer about one thing names, with a value or without.
#[cfg(any(test, fuzzing))]
fn named(text: &str) -> Result<usize, super::xml::BadXml> {
    let mut xml = super::xml::Xml::new(text)?;
    let mut named = 0;
    xml.root()?;
    while xml.child()?.is_some() {
        while let Some(status) = xml.child()? {
            if status.local != "propstat" {
                xml.skip()?;
                continue;
            }
            while let Some(prop) = xml.child()? {
                if prop.local != "prop" {
                    xml.skip()?;
                    continue;
                }
                while xml.child()?.is_some() {
                    named += 1;
                    xml.skip()?;
                }
            }
        }
    }
    xml.end()?;
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Listing;
    use tactus_core::units::Bytes;

    fn directory(name: &str) -> Entry {
        let (name, kind) = (name.to_owned(), EntryKind::Directory);
        Entry { name, kind, modified: None, created: Some(WallTime(0)), etag: None }
    }

    fn told(path: &str, sight: &Sight, asked: &Asked) -> Option<String> {
        let path = RequestPath::parse(path.as_bytes()).unwrap();
        let answer = multistatus("", &path, sight, asked)?;
        assert_eq!(answer.status(), 207);
        Some(String::from_utf8(answer.content().to_vec()).unwrap())
    }

    #[test]
    fn what_is_asked_for_is_told_or_said_to_be_missing() {
        let sight = Sight { own: directory("films"), below: None };
        let of = |namespace: &str, name: &str| Property {
            namespace: namespace.into(),
            name: name.into(),
        };
        let asked = Asked::These(vec![
            of(DAV, "resourcetype"),
            of(DAV, "getcontentlength"),
            of("urn:<x>", "y"),
            of("", "z"),
        ]);
        assert_eq!(
            told("/a%20b/films", &sight, &asked).unwrap(),
            format!(
                "{OPENING}<D:response><D:href>/a%20b/films/</D:href><D:propstat><D:prop>\
                 <D:resourcetype><D:collection/></D:resourcetype></D:prop>\
                 <D:status>HTTP/1.1 200 OK</D:status></D:propstat><D:propstat><D:prop>\
                 <D:getcontentlength/><x:y xmlns:x=\"urn:&lt;x&gt;\"/><z/></D:prop>\
                 <D:status>HTTP/1.1 404 Not Found</D:status></D:propstat></D:response>\n\
                 </D:multistatus>\n"
            )
        );
        let path = RequestPath::parse(b"/a%20b/").unwrap();
        let below = Listing { entries: vec![directory("c")], complete: true };
        let sight = Sight { own: directory("a b"), below: Some(below) };
        let answer = multistatus("/media", &path, &sight, &Asked::Names).unwrap();
        let text = String::from_utf8(answer.content().to_vec()).unwrap();
        for href in ["<D:href>/media/a%20b/</D:href>", "<D:href>/media/a%20b/c/</D:href>"] {
            assert!(text.contains(href), "{text}");
        }
        let names = told("/", &Sight { own: directory(""), below: None }, &Asked::Names).unwrap();
        assert!(names.contains("<D:href>/</D:href>") && names.contains("<D:creationdate/>"));
    }

    #[test]
    fn u23_half_a_listing_is_none() {
        let title = |name: String| Entry {
            name,
            kind: EntryKind::Title { len: Bytes(1), own_rate: None, duration: None },
            ..directory("")
        };
        let sight = |count: usize, complete| Sight {
            own: directory("d"),
            below: Some(Listing {
                entries: (0..count).map(|n| title(format!("{n}{}", "ü".repeat(120)))).collect(),
                complete,
            }),
        };
        let all = Asked::All(vec![]);
        assert!(told("/d/", &sight(10, true), &all).unwrap().matches("<D:response>").count() == 11);
        assert_eq!(told("/d/", &sight(10, false), &all), None);
        let long = |n| Property { namespace: "n".repeat(900).into(), name: format!("p{n}") };
        let asked = Asked::These((0..64).map(long).collect());
        assert!(told("/d/", &sight(200, true), &asked).is_some());
        assert_eq!(told("/d/", &sight(400, true), &asked), None);
    }
}
