//! Multi-status answers (RFC 4918 section 13): the known properties of each resource, and the
//! missing ones.
//!
//! Promise: it is well-formed XML whatever the names are, and it is complete or visibly truncated.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::units::WallTime;
use tactus_storage::catalogue::{Entry, EntryKind, OpenFault, PathInfo};
use tactus_storage::dates::rfc_3339;
use tactus_storage::store::{Principal, QuotaUsage};

use super::request_body::{DAV, Property, PropertyQuery};
use super::xml::escaped;
use crate::listing::{self, Footer, Format};
use crate::locks::{Depth, Lock, Locks, Scope};
use crate::oc;
use crate::put::location;
use crate::response::Response;

/// The media type of all these answers.
pub(super) const XML: &str = "application/xml; charset=utf-8";

/// All known properties.
const KNOWN: [&str; 9] = [
    "resourcetype",
    "displayname",
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "getlastmodified",
    "creationdate",
    "supportedlock",
    "lockdiscovery",
];

/// The locks that a client may see.
#[derive(Clone)]
pub(super) struct LockView {
    pub(super) locks: Locks,
    /// The principal of the request; without one, no lock is shown.
    pub(super) principal: Option<Principal>,
    /// The prefix of each path in the answer.
    pub(super) prefix: String,
}

impl LockView {
    /// The value of `lockdiscovery` (RFC 4918 section 15.8) of `path`.
    fn discovery(&self, path: &str) -> String {
        let Some(principal) = &self.principal else { return String::new() };
        let all = self.locks.covering(path);
        all.iter().map(|lock| active(lock, &self.prefix, principal)).collect()
    }
}

/// One lock (section 14.1). Its token is shown only to its own principal.
pub(super) fn active(lock: &Lock, prefix: &str, principal: &Principal) -> String {
    let request = &lock.request;
    let scope = match request.scope {
        Scope::Exclusive => "exclusive",
        Scope::Shared => "shared",
    };
    let depth = match request.depth {
        Depth::Zero => "0",
        Depth::Infinity => "infinity",
    };
    let mut root = String::from(prefix);
    request.path.split('/').filter(|segment| !segment.is_empty()).for_each(|segment| {
        root.push('/');
        encode_segment(segment, &mut root);
    });
    if request.is_directory {
        root.push('/');
    }
    let token = match request.principal == *principal {
        true => format!("<D:locktoken><D:href>{}</D:href></D:locktoken>", lock.token),
        false => String::new(),
    };
    format!(
        "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/></D:lockscope>\
         <D:depth>{depth}</D:depth>{}<D:timeout>Second-{}</D:timeout>{token}\
         <D:lockroot><D:href>{}</D:href></D:lockroot></D:activelock>",
        request.owner.as_deref().unwrap_or_default(),
        lock.seconds_left(),
        written(&root),
    )
}

/// The supported locks (section 15.10).
const SUPPORTED: &str = "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope>\
                         <D:locktype><D:write/></D:locktype></D:lockentry>\
                         <D:lockentry><D:lockscope><D:shared/></D:lockscope>\
                         <D:locktype><D:write/></D:locktype></D:lockentry>";

/// The answer to a PROPFIND: the requested properties of a resource and of its members. `at` is its
/// path in the client's form, without a slash at its end, `name` its decoded path. `locks` is none
/// where nothing can be locked.
pub(super) async fn multistatus(
    (at, name): (String, String),
    sight: PathInfo,
    asked: PropertyQuery,
    room: Option<QuotaUsage>,
    locks: Option<LockView>,
) -> Result<Response, OpenFault> {
    let mut told = Multistatus { at, name, asked, room, locks };
    let mut xml = String::from(OPENING);
    told.own(&sight.own, &mut xml);
    let answer = match sight.below {
        Some(walk) => listing::whole(207, XML, walk, xml, Box::new(told)).await?,
        None => {
            told.end(&Footer::default(), &mut xml);
            Response::new(207, XML, xml)
        }
    };
    Ok(answer.with("Cache-Control", "no-cache"))
}

/// The resource that the answer describes.
struct Multistatus {
    /// Its path, without a slash at its end.
    at: String,
    /// Its decoded path, without outer slashes.
    name: String,
    asked: PropertyQuery,
    /// How much can be stored in the directory.
    room: Option<QuotaUsage>,
    locks: Option<LockView>,
}

impl Multistatus {
    fn own(&self, own: &Entry, xml: &mut String) {
        let href = format!("{}{}", self.at, slash_and_type(own).0);
        self.response(&href, (own, &self.name), self.room, xml);
    }
}

impl Format for Multistatus {
    fn entry(&mut self, entry: &Entry, xml: &mut String) {
        let mut href = format!("{}/", self.at);
        encode_segment(&entry.name, &mut href);
        href.push_str(slash_and_type(entry).0);
        let path = match self.name.as_str() {
            "" => entry.name.clone(),
            above => format!("{above}/{}", entry.name),
        };
        self.response(&href, (entry, &path), None, xml);
    }

    fn end(&mut self, end: &Footer, xml: &mut String) {
        if end.unlisted > 0 {
            add(
                xml,
                format_args!(
                    "<D:responsedescription>{} names are not listed, as no URL path can express \
                     them</D:responsedescription>\n",
                    end.unlisted
                ),
            );
        }
        xml.push_str("</D:multistatus>\n");
    }
}

/// The result of a PROPPATCH for one property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PropertyResult {
    /// Set, like all others.
    Set,
    /// Not set, because another one failed.
    Depends,
    /// Not set: it is read-only.
    Refusal,
}

impl PropertyResult {
    fn status(self) -> &'static str {
        match self {
            Self::Set => "200 OK",
            Self::Depends => "424 Failed Dependency",
            Self::Refusal => "403 Forbidden",
        }
    }
}

/// The answer to a PROPPATCH (RFC 4918 section 9.2.1): all properties are set, or none.
pub(super) fn property_results(
    prefix: &str,
    path: &RequestPath,
    own: &Entry,
    property_results: &[(PropertyResult, Property)],
) -> Response {
    let mut xml = String::from(OPENING);
    let (slash, _) = slash_and_type(own);
    let href = format!("{prefix}{}{slash}", location(path));
    add(&mut xml, format_args!("<D:response><D:href>{}</D:href>", written(&href)));
    for result in [PropertyResult::Set, PropertyResult::Depends, PropertyResult::Refusal] {
        let mut of_this = property_results.iter().filter(|(of, _)| *of == result).peekable();
        if of_this.peek().is_some() {
            xml.push_str("<D:propstat><D:prop>");
            of_this.for_each(|(_, property)| empty(property, &mut xml));
            let status = result.status();
            add(&mut xml, format_args!("</D:prop><D:status>HTTP/1.1 {status}</D:status>"));
            xml.push_str("</D:propstat>");
        }
    }
    xml.push_str("</D:response></D:multistatus>\n");
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

impl Multistatus {
    /// The properties of one resource at its path.
    fn response(
        &self,
        href: &str,
        (entry, path): (&Entry, &str),
        room: Option<QuotaUsage>,
        xml: &mut String,
    ) {
        add(xml, format_args!("<D:response><D:href>{}</D:href>", written(href)));
        let value = |name: &str| value(entry, name).or_else(|| self.of_locks(path, name));
        let all = KNOWN.iter().filter_map(|name| Some((*name, value(name)?)));
        let (named, is_all) = match &self.asked {
            PropertyQuery::Names => {
                let names: String = all.map(|(name, _)| format!("<D:{name}/>")).collect();
                found(&names, xml);
                xml.push_str("</D:response>\n");
                return;
            }
            PropertyQuery::All(more) => (more, true),
            PropertyQuery::These(named) => (named, false),
        };
        let (mut there, mut missing) = (String::new(), String::new());
        if is_all {
            all.for_each(|(name, value)| element(name, &value, &mut there));
        }
        for property in named {
            match property.dav().and_then(|name| Some((name, value(name)?))) {
                Some(_) if is_all => continue,
                Some((name, value)) => {
                    element(name, &value, &mut there);
                    continue;
                }
                None => {}
            }
            match other(entry, property, room) {
                Some(element) => there.push_str(&element),
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

    /// The value of a property about locks.
    fn of_locks(&self, path: &str, name: &str) -> Option<String> {
        let locks = self.locks.as_ref()?;
        match name {
            "supportedlock" => Some(SUPPORTED.to_owned()),
            "lockdiscovery" => Some(locks.discovery(path)),
            _ => None,
        }
    }
}

fn found(properties: &str, xml: &mut String) {
    add(xml, format_args!("<D:propstat><D:prop>{properties}</D:prop>"));
    xml.push_str("<D:status>HTTP/1.1 200 OK</D:status></D:propstat>");
}

/// The value of a property as XML; none if the resource has no such property.
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

/// A link within XML. It is ASCII, and only `&` needs escaping.
fn written(href: &str) -> String {
    if href.is_empty() { "/".to_owned() } else { href.replace('&', "&amp;") }
}

/// An element for a property that is sent only if the request names it.
fn other(entry: &Entry, property: &Property, room: Option<QuotaUsage>) -> Option<String> {
    let Property { namespace, name } = property;
    match (&**namespace, name.as_str()) {
        // RFC 4331 section 3: not included in allprop, because of its cost.
        (DAV, "quota-available-bytes") => Some(format!("<D:{name}>{}</D:{name}>", room?.available)),
        (DAV, "quota-used-bytes") => Some(format!("<D:{name}>{}</D:{name}>", room?.used)),
        (oc::NAMESPACE, "checksums") => {
            let text = entry.digests.as_ref()?.text();
            Some(format!(
                "<oc:checksums xmlns:oc=\"{namespace}\">\
                 <oc:checksum>{text}</oc:checksum></oc:checksums>"
            ))
        }
        (WINDOWS, "Win32LastModifiedTime") => {
            let modified = http_date(entry.modified?);
            Some(format!("<x:{name} xmlns:x=\"{namespace}\">{modified}</x:{name}>"))
        }
        _ => None,
    }
}

/// The namespace of the properties that Windows sets.
pub(super) const WINDOWS: &str = "urn:schemas-microsoft-com:";

fn http_date(time: WallTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_nanos(time.0))
}

fn element(name: &str, value: &str, xml: &mut String) {
    add(xml, format_args!("<D:{name}>{value}</D:{name}>"));
}

/// A property without its value. Its name was an element's name in the request, so it is valid XML.
fn empty(property: &Property, xml: &mut String) {
    let Property { namespace, name } = property;
    match &**namespace {
        DAV => add(xml, format_args!("<D:{name}/>")),
        "" => add(xml, format_args!("<{name}/>")),
        // This prefix is predefined, and cannot be bound to another namespace.
        "http://www.w3.org/XML/1998/namespace" => add(xml, format_args!("<xml:{name}/>")),
        other => add(xml, format_args!("<x:{name} xmlns:x=\"{}\"/>", escaped(other))),
    }
}

fn add(xml: &mut String, text: std::fmt::Arguments<'_>) {
    xml.write_fmt(text).expect("a string takes everything");
}

/// Checks that an answer to `asked` is XML, and names each property once for each resource.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check(asked: &PropertyQuery) {
    use tactus_core::units::Bytes;
    let own = Entry {
        name: "a&b<c>\u{fffe}\"'.ts".to_owned(),
        kind: EntryKind::Title { len: Bytes(5), own_rate: None, peak: None, duration: None },
        modified: Some(WallTime(784_111_777_000_000_000)),
        created: None,
        etag: Some("\"abc\"".to_owned()),
        file: None,
        grows: false,
        digests: None,
    };
    let path = RequestPath::parse(b"/d&/a%26b.ts").expect("it is one");
    let (at, name) = (location(&path), path.name().to_owned());
    let mut told = Multistatus { at, name, asked: asked.clone(), room: None, locks: None };
    let mut text = String::from(OPENING);
    told.own(&own, &mut text);
    told.end(&Footer::default(), &mut text);
    let named = named(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    match asked {
        PropertyQuery::These(these) => assert_eq!(named, these.len(), "{text}"),
        PropertyQuery::Names => assert_eq!(named, 6, "{text}"),
        PropertyQuery::All(more) => assert!((6..=6 + more.len()).contains(&named), "{text}"),
    }
}

/// Writes the properties in `asked` of a directory with entries of these `names`, in parts.
///
/// # Panics
/// When a part is longer than its limit.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn check_parts(asked: PropertyQuery, names: &[&str]) {
    let room = Some(QuotaUsage { available: u64::MAX, used: u64::MAX });
    let (at, name) = ("/a%20b".to_owned(), "a b".to_owned());
    let mut told = Multistatus { at, name, asked, room, locks: None };
    listing::check_parts(names, &mut told);
}

/// The number of properties in an answer about one resource, found or not.
#[cfg(any(test, feature = "fuzz-targets"))]
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

    fn directory(name: &str) -> Entry {
        let (name, kind) = (name.to_owned(), EntryKind::Directory);
        Entry {
            name,
            kind,
            modified: None,
            created: Some(WallTime(0)),
            etag: None,
            file: None,
            grows: false,
            digests: None,
        }
    }

    fn told(path: &str, own: &Entry, asked: &PropertyQuery) -> String {
        let path = RequestPath::parse(path.as_bytes()).unwrap();
        let (at, name) = (location(&path), path.name().to_owned());
        let mut told = Multistatus { at, name, asked: asked.clone(), room: None, locks: None };
        let mut text = String::from(OPENING);
        told.own(own, &mut text);
        told.end(&Footer::default(), &mut text);
        text
    }

    #[test]
    fn what_is_asked_for_is_told_or_said_to_be_missing() {
        let of = |namespace: &str, name: &str| Property {
            namespace: namespace.into(),
            name: name.into(),
        };
        let asked = PropertyQuery::These(vec![
            of(DAV, "resourcetype"),
            of(DAV, "getcontentlength"),
            of("urn:<x>", "y"),
            of("", "z"),
        ]);
        assert_eq!(
            told("/a%20b/films", &directory("films"), &asked),
            format!(
                "{OPENING}<D:response><D:href>/a%20b/films/</D:href><D:propstat><D:prop>\
                 <D:resourcetype><D:collection/></D:resourcetype></D:prop>\
                 <D:status>HTTP/1.1 200 OK</D:status></D:propstat><D:propstat><D:prop>\
                 <D:getcontentlength/><x:y xmlns:x=\"urn:&lt;x&gt;\"/><z/></D:prop>\
                 <D:status>HTTP/1.1 404 Not Found</D:status></D:propstat></D:response>\n\
                 </D:multistatus>\n"
            )
        );
        let (at, name) = ("/media/a%20b".to_owned(), "a b".to_owned());
        let mut told_in =
            Multistatus { at, name, asked: PropertyQuery::Names, room: None, locks: None };
        let mut text = String::new();
        told_in.own(&directory("a b"), &mut text);
        told_in.entry(&directory("c"), &mut text);
        for href in ["<D:href>/media/a%20b/</D:href>", "<D:href>/media/a%20b/c/</D:href>"] {
            assert!(text.contains(href), "{text}");
        }
        let names = told("/", &directory(""), &PropertyQuery::Names);
        assert!(names.contains("<D:href>/</D:href>") && names.contains("<D:creationdate/>"));
    }
}
