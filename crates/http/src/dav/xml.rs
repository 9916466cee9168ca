//! A pull parser for XML from clients, with namespaces resolved (XML 1.0, Namespaces in XML 1.0).
//!
//! Promise: time and memory are linear in the body. Every search per element or attribute is
//! bounded by a constant below. Document type declarations, and with them all custom entities, are
//! refused; nothing is expanded or fetched (RFC 4918 section 20.6). All names in the result are
//! well-formed. Text and attribute values are checked and skipped.

use std::rc::Rc;

use quick_xml::Reader;
use quick_xml::events::{BytesRef, BytesStart, Event};

/// Nesting depth. WebDAV bodies have four levels, property values a few more.
pub(super) const DEPTH_MAX: usize = 32;

/// Elements and attributes of a body: 64 properties need a few each.
pub(super) const NODES_MAX: usize = 2048;

/// Namespaces in scope at once, without `xml`. Clients declare up to three. Each name is looked up
/// in this list, so the product with [`NODES_MAX`] bounds the work.
pub(super) const NAMESPACES_MAX: usize = 64;

/// Attributes of an element. Each is compared with those before it.
pub(super) const ATTRIBUTES_MAX: usize = 64;

/// Longest name, prefix or namespace name, in bytes. An answer repeats the names of the request.
pub(super) const NAME_BYTES_MAX: usize = 1024;

/// Predefined bindings (Namespaces in XML 1.0, section 3).
const XML_NAMESPACE: &str = "http://www.w3.org/XML/1998/namespace";
const XMLNS_NAMESPACE: &str = "http://www.w3.org/2000/xmlns/";

/// An error in the body, and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}, at byte {at}")]
pub(super) struct BadXml {
    at: u64,
    why: &'static str,
}

/// The name of an element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name {
    /// Empty if the name has no namespace.
    pub(super) namespace: Rc<str>,
    pub(super) local: String,
}

/// A document that is being read.
pub(super) struct Xml<'a> {
    whole: &'a str,
    reader: Reader<&'a [u8]>,
    /// The position of the last piece.
    last: u64,
    /// Namespace declarations, the innermost last.
    bindings: Vec<Binding>,
    /// For each open element, the number of bindings outside of it.
    open: Vec<usize>,
    nodes: usize,
    /// The text read so far, if the caller wants text.
    text: Option<String>,
    /// The root element has begun.
    rooted: bool,
    /// The document has begun, so an XML declaration may no longer follow.
    begun: bool,
}

struct Binding {
    /// Empty for the default namespace.
    prefix: String,
    /// Empty when the default namespace is undeclared.
    namespace: Rc<str>,
}

/// The content of an element.
pub(super) struct Inner<'a> {
    pub(super) text: &'a str,
    /// The prefixes that are declared around it, each with its namespace. The text needs them.
    pub(super) declared: Vec<(String, String)>,
}

/// The next item of a document.
enum Piece {
    Start(Name),
    End,
    Over,
}

impl<'a> Xml<'a> {
    /// A parser at the start of `text`.
    pub(super) fn new(text: &'a str) -> Result<Self, BadXml> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if let Some((at, _)) = text.char_indices().find(|(_, c)| !is_char(*c)) {
            return Err(BadXml { at: at as u64, why: "a character that is not allowed in XML" });
        }
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        config.expand_empty_elements = true;
        config.check_comments = true;
        let (whole, last, text) = (text, 0, None);
        let (bindings, open, nodes) = (Vec::new(), Vec::new(), 0);
        Ok(Self { whole, reader, last, bindings, open, nodes, text, rooted: false, begun: false })
    }

    /// Opens the root element.
    pub(super) fn root(&mut self) -> Result<Name, BadXml> {
        match self.piece()? {
            Piece::Start(name) => Ok(name),
            Piece::End | Piece::Over => Err(self.bad("no element")),
        }
    }

    /// Opens the next child of the open element; none when that element ends.
    pub(super) fn child(&mut self) -> Result<Option<Name>, BadXml> {
        match self.piece()? {
            Piece::Start(name) => Ok(Some(name)),
            Piece::End => Ok(None),
            Piece::Over => Err(self.bad("the document ends too early")),
        }
    }

    /// Skips the rest of the open element and closes it.
    pub(super) fn skip(&mut self) -> Result<(), BadXml> {
        let outside = self.open.len().saturating_sub(1);
        while self.open.len() > outside {
            self.child()?;
        }
        Ok(())
    }

    /// The text of the open element and its descendants; closes the element.
    pub(super) fn text(&mut self) -> Result<String, BadXml> {
        self.text = Some(String::new());
        self.skip()?;
        Ok(self.text.take().unwrap_or_default())
    }

    /// The unparsed content of the open element. Closes the element.
    pub(super) fn inner(&mut self) -> Result<Inner<'a>, BadXml> {
        let mut declared: Vec<(String, String)> = Vec::new();
        for Binding { prefix, namespace } in self.bindings.iter().rev() {
            if !declared.iter().any(|(known, _)| known == prefix) {
                declared.push((prefix.clone(), namespace.to_string()));
            }
        }
        let begin = self.reader.buffer_position();
        self.skip()?;
        let (begin, end) = (begin as usize, self.last as usize);
        let text = self.whole.get(begin..end).expect("what is read as a piece is one");
        Ok(Inner { declared, text })
    }

    /// Reads to the end of the document: only comments may follow the root element.
    pub(super) fn end(mut self) -> Result<(), BadXml> {
        match self.piece()? {
            Piece::Over => Ok(()),
            Piece::Start(_) | Piece::End => Err(self.bad("more than one root element")),
        }
    }

    fn piece(&mut self) -> Result<Piece, BadXml> {
        loop {
            self.last = self.reader.buffer_position();
            let event = self.reader.read_event();
            let event = event
                .map_err(|_| BadXml { at: self.reader.error_position(), why: "not well-formed" })?;
            let begun = std::mem::replace(&mut self.begun, true);
            let within = !self.open.is_empty();
            match event {
                Event::Start(start) => return self.start(&start).map(Piece::Start),
                Event::End(_) => {
                    let outside = self
                        .open
                        .pop()
                        .ok_or_else(|| self.bad("an end tag without a start tag"))?;
                    self.bindings.truncate(outside);
                    return Ok(Piece::End);
                }
                Event::Eof if within => return Err(self.bad("the document ends too early")),
                Event::Eof => return Ok(Piece::Over),
                Event::Decl(_) if !begun => {}
                Event::Decl(_) => {
                    return Err(self.bad("an XML declaration that is not at the start"));
                }
                Event::DocType(_) => {
                    return Err(self.bad("a document type declaration, which is not allowed"));
                }
                Event::Comment(_) | Event::PI(_) => {}
                Event::Text(text) if within => self.read(&text.into_inner()),
                Event::Text(text) => {
                    if !text.into_inner().as_bytes().trim_ascii().is_empty() {
                        return Err(self.bad("text outside of the root element"));
                    }
                }
                Event::CData(_) | Event::GeneralRef(_) if !within => {
                    return Err(self.bad("text outside of the root element"));
                }
                Event::CData(data) => self.read(&data.into_inner()),
                // No value that the server uses contains a reference; references are left out of
                // the text.
                Event::GeneralRef(reference) => self.check(&reference)?,
                Event::Empty(_) => unreachable!("empty elements come as a start and an end"),
            }
        }
    }

    fn start(&mut self, start: &BytesStart<'_>) -> Result<Name, BadXml> {
        if self.open.is_empty() && std::mem::replace(&mut self.rooted, true) {
            return Err(self.bad("more than one root element"));
        }
        if self.open.len() == DEPTH_MAX {
            return Err(self.bad("elements that are nested too deep"));
        }
        self.open.push(self.bindings.len());
        self.count()?;
        let mut used: Vec<String> = Vec::new();
        for (index, attribute) in start.attributes().enumerate() {
            self.count()?;
            if index == ATTRIBUTES_MAX {
                return Err(self.bad("an element with too many attributes"));
            }
            let attribute =
                attribute.map_err(|_| self.bad("an attribute that is not well-formed"))?;
            if attribute.value.contains('<') {
                return Err(self.bad("a `<` in the value of an attribute"));
            }
            let value = quick_xml::escape::unescape(&attribute.value);
            let value = value.map_err(|_| self.bad("an unknown entity"))?;
            if !value.chars().all(is_char) {
                return Err(self.bad("a character that is not allowed in XML"));
            }
            let (prefix, local) = self.split(attribute.key.into_inner())?;
            match (prefix, local) {
                ("", "xmlns") => self.bind("", &value)?,
                ("xmlns", prefix) => self.bind(prefix, &value)?,
                ("" | "xml", _) => {}
                (prefix, _) => used.push(prefix.to_owned()),
            }
        }
        let name = start.name().into_inner();
        let (prefix, local) = self.split(name)?;
        let namespace = self.resolve(prefix)?;
        for prefix in used {
            self.resolve(&prefix)?;
        }
        Ok(Name { namespace, local: local.to_owned() })
    }

    fn count(&mut self) -> Result<(), BadXml> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(self.bad("too many elements and attributes"));
        }
        Ok(())
    }

    fn bind(&mut self, prefix: &str, namespace: &str) -> Result<(), BadXml> {
        // Section 3: these two prefixes are predefined and cannot be bound to other namespaces.
        // Section 2.2: only the default namespace can be undeclared.
        let is_xml = prefix == "xml" && namespace == XML_NAMESPACE;
        let reserved = [XML_NAMESPACE, XMLNS_NAMESPACE].contains(&namespace);
        match prefix {
            _ if is_xml => return Ok(()),
            "xml" | "xmlns" => return Err(self.bad("a declaration of a reserved prefix")),
            _ if reserved => return Err(self.bad("a declaration of a reserved namespace")),
            "" => {}
            _ if namespace.is_empty() => return Err(self.bad("a prefix without a namespace")),
            _ => {}
        }
        if namespace.len() > NAME_BYTES_MAX {
            return Err(self.bad("a namespace name that is too long"));
        }
        if self.bindings.len() == NAMESPACES_MAX {
            return Err(self.bad("too many namespaces"));
        }
        let (prefix, namespace) = (prefix.to_owned(), Rc::from(namespace));
        self.bindings.push(Binding { prefix, namespace });
        Ok(())
    }

    fn resolve(&self, prefix: &str) -> Result<Rc<str>, BadXml> {
        if prefix == "xml" {
            return Ok(Rc::from(XML_NAMESPACE));
        }
        match self.bindings.iter().rev().find(|binding| binding.prefix == prefix) {
            Some(binding) => Ok(Rc::clone(&binding.namespace)),
            None if prefix.is_empty() => Ok(Rc::from("")),
            None => Err(self.bad("an undeclared prefix")),
        }
    }

    /// The prefix (empty if there is none) and the local part of a name.
    fn split<'n>(&self, name: &'n str) -> Result<(&'n str, &'n str), BadXml> {
        if name.len() > NAME_BYTES_MAX {
            return Err(self.bad("a name that is too long"));
        }
        let (prefix, local) = match name.split_once(':') {
            Some((prefix, local)) if is_name(prefix) => (prefix, local),
            Some(_) => return Err(self.bad("an invalid name")),
            None => ("", name),
        };
        match is_name(local) {
            true => Ok((prefix, local)),
            false => Err(self.bad("an invalid name")),
        }
    }

    /// A reference must be to a character, or to one of the five predefined entities.
    fn check(&self, reference: &BytesRef<'_>) -> Result<(), BadXml> {
        let known = match reference.resolve_char_ref() {
            Ok(Some(c)) => is_char(c),
            Ok(None) => {
                let entity = reference.clone().into_inner();
                quick_xml::escape::resolve_xml_entity(&entity).is_some()
            }
            Err(_) => false,
        };
        if known { Ok(()) } else { Err(self.bad("an unknown entity")) }
    }

    fn read(&mut self, text: &str) {
        if let Some(wanted) = &mut self.text {
            wanted.push_str(text);
        }
    }

    fn bad(&self, why: &'static str) -> BadXml {
        BadXml { at: self.reader.buffer_position(), why }
    }
}

/// Text in XML. Characters that XML cannot contain, but file names can, are replaced.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", c as u32)),
            c if is_char(c) => escaped.push(c),
            _ => escaped.push(char::REPLACEMENT_CHARACTER),
        }
    }
    escaped
}

/// XML 1.0 section 2.2, production 2.
fn is_char(c: char) -> bool {
    !matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// Namespaces in XML 1.0, production 4: a name without a colon.
fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(is_name_start)
        && chars.all(|c| {
            let inner = matches!(c, '-' | '.' | '\u{b7}' | '\u{300}'..='\u{36f}');
            is_name_start(c) || c.is_ascii_digit() || inner || matches!(c, '\u{203f}'..='\u{2040}')
        })
}

/// XML 1.0 section 2.3, production 4, without the colon.
fn is_name_start(c: char) -> bool {
    matches!(c,
        'A'..='Z' | '_' | 'a'..='z' | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}'
        | '\u{f8}'..='\u{2ff}' | '\u{370}'..='\u{37d}' | '\u{37f}'..='\u{1fff}'
        | '\u{200c}'..='\u{200d}' | '\u{2070}'..='\u{218f}' | '\u{2c00}'..='\u{2fef}'
        | '\u{3001}'..='\u{d7ff}' | '\u{f900}'..='\u{fdcf}' | '\u{fdf0}'..='\u{fffd}'
        | '\u{10000}'..='\u{effff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all elements with their namespaces in braces, and their ends; or the error.
    fn read(text: &str) -> Result<String, BadXml> {
        let mut xml = Xml::new(text)?;
        let root = xml.root()?;
        let mut out = format!("{{{}}}{}", root.namespace, root.local);
        let mut depth = 1;
        while depth > 0 {
            match xml.child()? {
                Some(name) => {
                    out.push_str(&format!(" {{{}}}{}", name.namespace, name.local));
                    depth += 1;
                }
                None => {
                    out.push_str(" /");
                    depth -= 1;
                }
            }
        }
        xml.end()?;
        Ok(out)
    }

    #[test]
    fn names_are_resolved_in_their_scope() {
        let text = "\u{feff}<?xml version='1.0' encoding='utf-8'?><!-- a -->\n<?p x?>\
                    <a xmlns='u:1' xmlns:p='u:2'><b xmlns='u:3'/><p:c p:x='&lt;&#65;'>&amp;t</p:c>\
                    <d xmlns=''><xml:e xml:lang='de'/></d><![CDATA[<x>]]><b/></a ><!-- z -->";
        let all =
            "{u:1}a {u:3}b / {u:2}c / {}d {http://www.w3.org/XML/1998/namespace}e / / {u:1}b / /";
        assert_eq!(read(text).unwrap(), all);
        assert_eq!(read("<größe.1-x xmlns='&#x75;:1'/>").unwrap(), "{u:1}größe.1-x /");
    }

    #[test]
    fn s01_a_body_that_is_not_well_formed_is_refused() {
        for bad in [
            "",
            " ",
            "x",
            "<a",
            "<a>",
            "</a>",
            "<a></b>",
            "<a/><b/>",
            "<a/>x",
            "x<a/>",
            "<a/>&amp;",
            "<1/>",
            "<a:/>",
            "<:a/>",
            "<a:b:c/>",
            "<a:b/>",
            "<a b:c='1'/>",
            "<a b/>",
            "<a b=c/>",
            "<a b='<'/>",
            "<a b='1' b='2'/>",
            "<a b='&x;'/>",
            "<a b='&#0;'/>",
            "<a>&x;</a>",
            "<a>&#xfffe;</a>",
            "<a>&</a>",
            "<a>\u{1}</a>",
            "<a>\u{ffff}</a>",
            "<!DOCTYPE a><a/>",
            "<!doctype a><a/>",
            "<a/><!DOCTYPE a>",
            "<a><?xml version='1.0'?></a>",
            "<!-- -- --><a/>",
            "<a xmlns:b=''/>",
            "<a xmlns:xml='u'/>",
            "<a xmlns:xmlns='u'/>",
            "<![CDATA[x]]><a/>",
            "<a xmlns:b='http://www.w3.org/2000/xmlns/'/>",
            "<a<b/>",
            "< a/>",
            "<a\u{d7}/>",
        ] {
            assert!(read(bad).is_err(), "{bad:?} is {:?}", read(bad));
        }
    }

    #[test]
    fn s01_every_bound_of_a_body_is_kept_exactly() {
        let deep = |n: usize| format!("{}{}", "<a>".repeat(n), "</a>".repeat(n));
        let wide = |n: usize| format!("<a>{}</a>", "<b/>".repeat(n - 1));
        let spaces = |n: usize| -> String {
            let all: String = (0..n).map(|n| format!(" xmlns:p{n}='u:{n}'")).collect();
            let (outer, inner) = all.split_at(all.find(" xmlns:p9=").unwrap());
            format!("<a{outer}><b{inner}/></a>")
        };
        let attributes = |n: usize| -> String {
            let all: String = (0..n).map(|n| format!(" b{n}=''")).collect();
            format!("<a{all}/>")
        };
        let name = |n: usize| format!("<{}/>", "a".repeat(n));
        let namespace = |n: usize| format!("<a xmlns='{}'/>", "u".repeat(n));
        for (of, most) in [
            (&deep as &dyn Fn(usize) -> String, DEPTH_MAX),
            (&wide, NODES_MAX),
            (&spaces, NAMESPACES_MAX),
            (&attributes, ATTRIBUTES_MAX),
            (&name, NAME_BYTES_MAX),
            (&namespace, NAME_BYTES_MAX),
        ] {
            assert!(read(&of(most)).is_ok(), "{:?}", read(&of(most)));
            assert!(read(&of(most + 1)).is_err(), "{} of {most}", of(most + 1));
        }
    }

    #[test]
    fn s01_bindings_out_of_scope_do_not_count() {
        let one = |n: usize| format!("<b xmlns:p{n}='u:{n}'><p{n}:c/></b>");
        let text: String = (0..4 * NAMESPACES_MAX).map(one).collect();
        assert!(read(&format!("<a>{text}</a>")).is_ok());
    }
}
