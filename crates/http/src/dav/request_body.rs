//! The bodies of PROPFIND and PROPPATCH (RFC 4918 sections 14.19 and 14.20).
//!
//! Promise: the result has at most [`PROPERTIES_MAX`] names; the work is bounded as in
//! [`xml`](super::xml).

use std::sync::Arc;

use super::xml::{BadXml, Inner, Name, Xml, escaped};
use crate::locks::Scope;

/// The properties that a client requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PropertyQuery {
    /// All properties, and these.
    All(Vec<Property>),
    /// Only their names.
    Names,
    /// These properties only.
    These(Vec<Property>),
}

impl PropertyQuery {
    /// Whether the request lists a property by name.
    pub(super) fn names(&self, namespace: &str, name: &str) -> bool {
        match self {
            Self::All(named) | Self::These(named) => {
                named.iter().any(|property| property.is(namespace, name))
            }
            Self::Names => false,
        }
    }

    /// Total length of the property names.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::All(named) | Self::These(named) => {
                named.iter().map(|property| property.namespace.len() + property.name.len()).sum()
            }
            Self::Names => 0,
        }
    }
}

/// The name of a property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Property {
    pub(super) namespace: Arc<str>,
    pub(super) name: String,
}

impl Property {
    pub(super) fn is(&self, namespace: &str, name: &str) -> bool {
        *self.namespace == *namespace && self.name == name
    }

    /// Its name, if it is one of WebDAV's own properties.
    pub(super) fn dav(&self) -> Option<&str> {
        (*self.namespace == *DAV).then_some(&self.name)
    }
}

/// Why a body is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BadBody {
    #[error("the body is not UTF-8")]
    NotUtf8,
    #[error("the XML body is not accepted: {0}")]
    Xml(#[from] BadXml),
    #[error("the XML body has no known request in it")]
    Unclear,
    #[error("a request may name at most {PROPERTIES_MAX} properties")]
    Many,
    #[error("the owner of a lock may have at most {OWNER_BYTES_MAX} bytes")]
    LongOwner,
}

pub(super) const DAV: &str = "DAV:";

/// Most names of properties in one request. File managers request a dozen. Each name adds its
/// length to each entry of the answer.
const PROPERTIES_MAX: usize = 64;

/// The properties in the body of a PROPFIND; all for an empty body.
pub(super) fn propfind(body: &[u8]) -> Result<PropertyQuery, BadBody> {
    if body.is_empty() {
        return Ok(PropertyQuery::All(Vec::new()));
    }
    let mut xml = opened(body, "propfind")?;
    let mut asked = None;
    let mut included = Vec::new();
    while let Some(child) = xml.child()? {
        let new = match dav_name(&child) {
            Some("prop") => PropertyQuery::These(properties(&mut xml, Vec::new())?),
            Some("include") => {
                included = properties(&mut xml, included)?;
                continue;
            }
            name => {
                xml.skip()?;
                match name {
                    Some("allprop") => PropertyQuery::All(Vec::new()),
                    Some("propname") => PropertyQuery::Names,
                    // RFC 4918 section 17: unknown elements are ignored.
                    _ => continue,
                }
            }
        };
        if asked.replace(new).is_some() {
            return Err(BadBody::Unclear);
        }
    }
    xml.end()?;
    match asked {
        Some(PropertyQuery::All(_)) => Ok(PropertyQuery::All(included)),
        Some(asked) if included.is_empty() => Ok(asked),
        _ => Err(BadBody::Unclear),
    }
}

/// A property that a PROPPATCH sets or removes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) property: Property,
    /// The text of its new value; none removes it.
    pub(super) value: Option<String>,
}

/// The changes in the body of a PROPPATCH.
pub(super) fn proppatch(body: &[u8]) -> Result<Vec<Change>, BadBody> {
    let mut xml = opened(body, "propertyupdate")?;
    let mut all = Vec::new();
    while let Some(change) = xml.child()? {
        let sets = match dav_name(&change) {
            Some("set") => true,
            Some("remove") => false,
            _ => {
                xml.skip()?;
                continue;
            }
        };
        while let Some(prop) = xml.child()? {
            match dav_name(&prop) {
                Some("prop") => changes(&mut xml, sets, &mut all)?,
                _ => xml.skip()?,
            }
        }
    }
    xml.end()?;
    if all.is_empty() { Err(BadBody::Unclear) } else { Ok(all) }
}

/// The requested lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LockInfo {
    pub(super) scope: Scope,
    /// The element `owner`. It is valid wherever the prefix `D` is bound to `DAV:`.
    pub(super) owner: Option<String>,
}

/// The lock in the body of a LOCK (RFC 4918 section 14.11).
pub(super) fn lockinfo(body: &[u8]) -> Result<LockInfo, BadBody> {
    let mut xml = opened(body, "lockinfo")?;
    let (mut scope, mut writes, mut owner) = (None, false, None);
    while let Some(child) = xml.child()? {
        let twice = match dav_name(&child) {
            Some("lockscope") => {
                let one = only(&mut xml)?;
                let one = match one.as_ref().and_then(dav_name) {
                    Some("exclusive") => Scope::Exclusive,
                    Some("shared") => Scope::Shared,
                    _ => return Err(BadBody::Unclear),
                };
                scope.replace(one).is_some()
            }
            Some("locktype") => {
                let one = only(&mut xml)?;
                if one.as_ref().and_then(dav_name) != Some("write") {
                    return Err(BadBody::Unclear);
                }
                std::mem::replace(&mut writes, true)
            }
            Some("owner") => owner.replace(self::owner(&mut xml)?).is_some(),
            _ => {
                xml.skip()?;
                false
            }
        };
        if twice {
            return Err(BadBody::Unclear);
        }
    }
    xml.end()?;
    match (scope, writes) {
        (Some(scope), true) => Ok(LockInfo { scope, owner }),
        _ => Err(BadBody::Unclear),
    }
}

/// The only child of the open element. Closes the open element.
fn only(xml: &mut Xml<'_>) -> Result<Option<Name>, BadBody> {
    let mut first = None;
    while let Some(name) = xml.child()? {
        xml.skip()?;
        if first.replace(name).is_some() {
            return Err(BadBody::Unclear);
        }
    }
    Ok(first)
}

/// The open element `owner`, with the declarations that it needs elsewhere. It is repeated
/// unchanged, like a dead property (section 14.17). Closes it.
fn owner(xml: &mut Xml<'_>) -> Result<String, BadBody> {
    let Inner { text: inner, mut declared } = xml.inner()?;
    if inner.len() > OWNER_BYTES_MAX || inner.matches("xmlns").count() > OWNER_NAMESPACES_MAX {
        return Err(BadBody::LongOwner);
    }
    // An `owner` without elements needs no declarations, and neither does an unused prefix.
    declared.retain(|(prefix, namespace)| {
        let is_used = prefix.is_empty() || inner.contains(&format!("{prefix}:"));
        inner.contains('<') && is_used && (prefix, &**namespace) != (&"D".to_owned(), DAV)
    });
    let is_free = |name: &String| !declared.iter().any(|(prefix, _)| prefix == name);
    let candidates = std::iter::once("D".to_owned()).chain((0..).map(|n| format!("D{n}")));
    let own = { candidates }.find(is_free).expect("the declared ones end");
    let mut element = format!("<{own}:owner");
    if own != "D" {
        declared.push((own.clone(), DAV.to_owned()));
    }
    for (prefix, namespace) in declared.iter().rev() {
        let colon = if prefix.is_empty() { "" } else { ":" };
        element.push_str(&format!(" xmlns{colon}{prefix}=\"{}\"", escaped(namespace)));
    }
    element.push_str(&format!(">{inner}</{own}:owner>"));
    let is_long = element.len() > OWNER_BYTES_MAX || declared.len() > OWNER_NAMESPACES_MAX;
    if is_long { Err(BadBody::LongOwner) } else { Ok(element) }
}

/// Longest element `owner`, in bytes. Clients write a name or an address of a hundred bytes.
const OWNER_BYTES_MAX: usize = 2048;

/// Most namespaces of an `owner`: a quarter of the limit in scope, because the answer declares
/// others around it.
const OWNER_NAMESPACES_MAX: usize = super::xml::NAMESPACES_MAX / 4;

/// The body as XML, inside its root element, which must have the name `name`.
fn opened<'a>(body: &'a [u8], name: &str) -> Result<Xml<'a>, BadBody> {
    let text = std::str::from_utf8(body).map_err(|_| BadBody::NotUtf8)?;
    let mut xml = Xml::new(text)?;
    match dav_name(&xml.root()?) == Some(name) {
        true => Ok(xml),
        false => Err(BadBody::Unclear),
    }
}

fn dav_name(name: &Name) -> Option<&str> {
    (*name.namespace == *DAV).then_some(&name.local)
}

/// Adds the properties of a `prop` to set or remove, and closes it.
fn changes(xml: &mut Xml<'_>, sets: bool, all: &mut Vec<Change>) -> Result<(), BadBody> {
    while let Some(Name { namespace, local: name }) = xml.child()? {
        if all.len() == PROPERTIES_MAX {
            return Err(BadBody::Many);
        }
        let property = Property { namespace: Arc::from(&*namespace), name };
        let value = xml.text()?;
        all.push(Change { property, value: sets.then_some(value) });
    }
    Ok(())
}

/// Adds the names of a `prop` or an `include`, and closes it.
fn properties(xml: &mut Xml<'_>, mut known: Vec<Property>) -> Result<Vec<Property>, BadBody> {
    while let Some(Name { namespace, local: name }) = xml.child()? {
        if known.len() == PROPERTIES_MAX {
            return Err(BadBody::Many);
        }
        known.push(Property { namespace: Arc::from(&*namespace), name });
        xml.skip()?;
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(namespace: &str, name: &str) -> Property {
        Property { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn what_clients_ask_for_is_understood() {
        assert_eq!(propfind(b""), Ok(PropertyQuery::All(vec![])));
        let all = "<?xml version='1.0'?><propfind xmlns='DAV:'><allprop/></propfind>";
        assert_eq!(propfind(all.as_bytes()), Ok(PropertyQuery::All(vec![])));
        let more =
            "<d:propfind xmlns:d='DAV:'><d:allprop/><d:include><d:a/></d:include></d:propfind>";
        assert_eq!(propfind(more.as_bytes()), Ok(PropertyQuery::All(vec![of(DAV, "a")])));
        let names = "<D:propfind xmlns:D=\"DAV:\"> <D:propname/> <x/> </D:propfind>";
        assert_eq!(propfind(names.as_bytes()), Ok(PropertyQuery::Names));
        let some = "<D:propfind xmlns:D='DAV:' xmlns:o='urn:o'>\n <D:prop><D:getetag/><o:id/>\
                    <plain xmlns=''/></D:prop></D:propfind>";
        let three = vec![of(DAV, "getetag"), of("urn:o", "id"), of("", "plain")];
        assert_eq!(propfind(some.as_bytes()), Ok(PropertyQuery::These(three)));
        let patch = "<a:propertyupdate xmlns:a='DAV:'><a:set><a:prop><x>1</x></a:prop></a:set>\
                     <a:remove><a:prop><a:y/></a:prop></a:remove></a:propertyupdate>";
        let x = Change { property: of("", "x"), value: Some("1".into()) };
        let y = Change { property: of(DAV, "y"), value: None };
        assert_eq!(proppatch(patch.as_bytes()), Ok(vec![x, y]));
    }

    /// Complete bodies from real programs.
    #[test]
    fn s01_the_bodies_of_known_clients_are_understood() {
        let dav = |names: &[&str]| -> Vec<Property> { names.iter().map(|n| of(DAV, n)).collect() };
        for (client, body, names) in [
            (
                "davfs2",
                "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<propfind xmlns=\"DAV:\"><prop>\n\
                 <resourcetype xmlns=\"DAV:\"/>\n<getcontentlength xmlns=\"DAV:\"/>\n\
                 <executable xmlns=\"http://apache.org/dav/props/\"/>\n</prop></propfind>\n",
                [
                    dav(&["resourcetype", "getcontentlength"]),
                    vec![of("http://apache.org/dav/props/", "executable")],
                ]
                .concat(),
            ),
            (
                "GNOME",
                "<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n <D:propfind xmlns:D=\"DAV:\">\n  \
                 <D:prop>\n<D:creationdate/>\n<D:displayname/>\n<D:quota-used-bytes/>\n\
                 </D:prop>\n </D:propfind>",
                dav(&["creationdate", "displayname", "quota-used-bytes"]),
            ),
            (
                "macOS",
                "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:propfind xmlns:D=\"DAV:\">\n\
                 <D:prop>\n<D:getlastmodified/>\n<D:resourcetype/>\n</D:prop>\n</D:propfind>\n",
                dav(&["getlastmodified", "resourcetype"]),
            ),
            (
                "rclone",
                "<?xml version=\"1.0\"?>\n<d:propfind  xmlns:d=\"DAV:\" \
                 xmlns:oc=\"http://owncloud.org/ns\" xmlns:nc=\"http://nextcloud.org/ns\">\n \
                 <d:prop>\n  <d:displayname />\n  <oc:checksums />\n </d:prop>\n</d:propfind>\n",
                vec![of(DAV, "displayname"), of("http://owncloud.org/ns", "checksums")],
            ),
            (
                "litmus",
                "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<propfind xmlns='DAV:'><prop>\n\
                 <nonamespace xmlns='' /><prop0 xmlns='http://example.com/neon/litmus/'/>\n\
                 </prop></propfind>",
                vec![of("", "nonamespace"), of("http://example.com/neon/litmus/", "prop0")],
            ),
        ] {
            assert_eq!(propfind(body.as_bytes()), Ok(PropertyQuery::These(names)), "{client}");
        }
        // Windows sets times; litmus sends values with markup.
        let windows = "<?xml version=\"1.0\" encoding=\"utf-8\" ?><D:propertyupdate \
                       xmlns:D=\"DAV:\" xmlns:Z=\"urn:schemas-microsoft-com:\"><D:set><D:prop>\
                       <Z:Win32CreationTime>Mon, 01 Jan 2024 00:00:00 GMT</Z:Win32CreationTime>\
                       </D:prop></D:set></D:propertyupdate>";
        let time = of("urn:schemas-microsoft-com:", "Win32CreationTime");
        let value = Some("Mon, 01 Jan 2024 00:00:00 GMT".to_owned());
        let time = Change { property: time, value };
        assert_eq!(proppatch(windows.as_bytes()), Ok(vec![time]));
        let litmus = "<?xml version=\"1.0\" encoding=\"utf-8\" ?><propertyupdate xmlns='DAV:'>\
                      <set><prop><p xmlns='u:l'><foo xmlns='http://bar'>a&#x10000;\
                      <b:c xmlns:b='u:b' b:d='e'/></foo></p></prop></set>\
                      <remove><prop><q xmlns='u:l'/></prop></remove></propertyupdate>";
        let set = Change { property: of("u:l", "p"), value: Some("a".to_owned()) };
        let removed = Change { property: of("u:l", "q"), value: None };
        assert_eq!(proppatch(litmus.as_bytes()), Ok(vec![set, removed]));
    }

    #[test]
    fn u21_what_is_no_such_body_is_refused() {
        let bomb = "<!DOCTYPE a [<!ENTITY b 'cc'><!ENTITY d '&b;&b;'>]><a>&d;</a>";
        let outside =
            "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><propfind xmlns='DAV:'><allprop/></propfind>";
        for bad in [
            "x",
            "<a/>",
            "<propfind><allprop/></propfind>",
            "<propfind xmlns='DAV:'/>",
            "<propfind xmlns='DAV:'><allprop/><propname/></propfind>",
            "<propfind xmlns='DAV:'><prop/><include><a/></include></propfind>",
            "<propfind xmlns='DAV:'><prop><a></prop></propfind>",
            "<propfind xmlns='DAV:'><allprop/></propfind><more/>",
            "<D:propfind xmlns:D='DAV:'><D:prop><bar:foo xmlns:bar=''/></D:prop></D:propfind>",
            bomb,
            outside,
        ] {
            assert!(propfind(bad.as_bytes()).is_err(), "{bad}");
            assert!(proppatch(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(propfind(&[0xff]), Err(BadBody::NotUtf8));
        let with = |count: usize| {
            let inner = "<p/>".repeat(count);
            propfind(format!("<propfind xmlns='DAV:'><prop>{inner}</prop></propfind>").as_bytes())
        };
        assert!(with(PROPERTIES_MAX).is_ok());
        assert_eq!(with(PROPERTIES_MAX + 1), Err(BadBody::Many));
        let deep = |open: &str, close: &str| {
            let (open, close) = (open.repeat(900), close.repeat(900));
            propfind(format!("<propfind xmlns='DAV:'>{open}{close}</propfind>").as_bytes())
        };
        assert!(matches!(deep("<a>", "</a>"), Err(BadBody::Xml(_))));
        assert!(matches!(deep("<a xmlns:b='c'>", "</a>"), Err(BadBody::Xml(_))));
    }
}
