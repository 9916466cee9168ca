//! The bodies of PROPFIND and PROPPATCH (RFC 4918 sections 14.19 and 14.20).
//!
//! Promise: what comes out are names, at most [`PROPERTIES_MAX`]; a document type is refused, so nothing
//! is expanded and nothing fetched (RFC 4918 section 20.6).

use roxmltree::{Document, Node, ParsingOptions};

/// Which properties a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// All that there are, and these.
    All(Vec<Property>),
    /// Only their names.
    Names,
    /// These.
    These(Vec<Property>),
}

/// The name of a property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Property {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Property {
    /// Its name when it is one of WebDAV's own.
    pub(super) fn dav(&self) -> Option<&str> {
        (self.namespace == DAV).then_some(&self.name)
    }
}

/// Why a body is not understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BadBody {
    #[error("the body is no UTF-8")]
    NotUtf8,
    #[error("the body is no XML that is taken here: {0}")]
    Xml(String),
    #[error("the body does not say what is wanted")]
    Unclear,
    #[error("at most {PROPERTIES_MAX} properties can be named at once")]
    Many,
}

pub(super) const DAV: &str = "DAV:";

/// Names of properties in one request: file managers ask for a dozen. Each costs its length for each
/// entry of the answer.
const PROPERTIES_MAX: usize = 64;

/// Elements, attributes and texts of one body: four for each property, and as many spaces around them.
const NODES_MAX: u32 = 1024;

/// What the body of a PROPFIND asks for; an empty one for everything.
pub(super) fn propfind(body: &[u8]) -> Result<Asked, BadBody> {
    if body.is_empty() {
        return Ok(Asked::All(Vec::new()));
    }
    let text = std::str::from_utf8(body).map_err(|_| BadBody::NotUtf8)?;
    let document = parse(text)?;
    let root = named(document.root_element(), "propfind").ok_or(BadBody::Unclear)?;
    let mut asked = None;
    let mut included = Vec::new();
    for child in elements(root) {
        let new = match dav_name(child) {
            Some("prop") => Asked::These(properties(child)?),
            Some("allprop") => Asked::All(Vec::new()),
            Some("propname") => Asked::Names,
            Some("include") => {
                included.extend(properties(child)?);
                continue;
            }
            // RFC 4918 section 17: what is not known is passed over.
            _ => continue,
        };
        if asked.replace(new).is_some() {
            return Err(BadBody::Unclear);
        }
    }
    match asked {
        Some(Asked::All(_)) => Ok(Asked::All(at_most(included)?)),
        Some(asked) if included.is_empty() => Ok(asked),
        _ => Err(BadBody::Unclear),
    }
}

/// What the body of a PROPPATCH would set or remove.
pub(super) fn proppatch(body: &[u8]) -> Result<Vec<Property>, BadBody> {
    let text = std::str::from_utf8(body).map_err(|_| BadBody::NotUtf8)?;
    let document = parse(text)?;
    let root = named(document.root_element(), "propertyupdate").ok_or(BadBody::Unclear)?;
    let mut all = Vec::new();
    for change in elements(root).filter(|node| matches!(dav_name(*node), Some("set" | "remove"))) {
        for prop in elements(change).filter(|node| dav_name(*node) == Some("prop")) {
            all.extend(properties(prop)?);
            if all.len() > PROPERTIES_MAX {
                return Err(BadBody::Many);
            }
        }
    }
    if all.is_empty() { Err(BadBody::Unclear) } else { Ok(all) }
}

fn parse(text: &str) -> Result<Document<'_>, BadBody> {
    let options =
        ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options);
    let document = document.map_err(|error| BadBody::Xml(error.to_string()))?;
    // Namespaces in XML 1.0, section 2.2: a prefix is not taken back. The parser lets it pass.
    let no_name = |node: Node<'_, '_>| {
        node.namespaces().any(|space| space.name().is_some() && space.uri().is_empty())
    };
    match document.descendants().any(no_name) {
        true => Err(BadBody::Xml("a prefix without a namespace".to_owned())),
        false => Ok(document),
    }
}

fn elements<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(Node::is_element)
}

fn dav_name<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    (node.tag_name().namespace() == Some(DAV)).then(|| node.tag_name().name())
}

fn named<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    (dav_name(node) == Some(name)).then_some(node)
}

/// The names below a `prop` or an `include`.
fn properties(node: Node<'_, '_>) -> Result<Vec<Property>, BadBody> {
    let property = |node: Node<'_, '_>| Property {
        namespace: node.tag_name().namespace().unwrap_or_default().to_owned(),
        name: node.tag_name().name().to_owned(),
    };
    at_most(elements(node).map(property).collect())
}

fn at_most(properties: Vec<Property>) -> Result<Vec<Property>, BadBody> {
    if properties.len() > PROPERTIES_MAX { Err(BadBody::Many) } else { Ok(properties) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(namespace: &str, name: &str) -> Property {
        Property { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn what_clients_ask_for_is_understood() {
        assert_eq!(propfind(b""), Ok(Asked::All(vec![])));
        let all = "<?xml version='1.0'?><propfind xmlns='DAV:'><allprop/></propfind>";
        assert_eq!(propfind(all.as_bytes()), Ok(Asked::All(vec![])));
        let more =
            "<d:propfind xmlns:d='DAV:'><d:allprop/><d:include><d:a/></d:include></d:propfind>";
        assert_eq!(propfind(more.as_bytes()), Ok(Asked::All(vec![of(DAV, "a")])));
        let names = "<D:propfind xmlns:D=\"DAV:\"> <D:propname/> <x/> </D:propfind>";
        assert_eq!(propfind(names.as_bytes()), Ok(Asked::Names));
        let some = "<D:propfind xmlns:D='DAV:' xmlns:o='urn:o'>\n <D:prop><D:getetag/><o:id/>\
                    <plain xmlns=''/></D:prop></D:propfind>";
        let three = vec![of(DAV, "getetag"), of("urn:o", "id"), of("", "plain")];
        assert_eq!(propfind(some.as_bytes()), Ok(Asked::These(three)));
        let patch = "<a:propertyupdate xmlns:a='DAV:'><a:set><a:prop><x>1</x></a:prop></a:set>\
                     <a:remove><a:prop><a:y/></a:prop></a:remove></a:propertyupdate>";
        assert_eq!(proppatch(patch.as_bytes()), Ok(vec![of("", "x"), of(DAV, "y")]));
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
        let deep = format!("{}{}", "<a>".repeat(10_000), "</a>".repeat(10_000));
        assert!(matches!(propfind(deep.as_bytes()), Err(BadBody::Xml(_))));
    }
}
