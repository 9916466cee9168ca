//! One request, parsed strictly: by httparse, and by further rules here.
//!
//! Promise: a parsed request has one method, one target, one host, and a body of one length; every
//! other request is a [`Fault`]. It parses available bytes without waiting.

use std::ops::Range;

use super::fault::Fault;
use super::fields::Fields;
use super::forwarded::Hop;
use super::framing::{self, Body, Version};
use super::host;
use super::limits::Limits;
use super::scan::HeadEnd;
use super::target::{self, Target};

/// The method of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    Head,
    Options,
    Put,
    Post,
    Patch,
    Delete,
    Move,
    Copy,
    Propfind,
    Proppatch,
    Mkcol,
    Lock,
    Unlock,
    /// A standard method that is not supported here.
    Other,
    /// An unknown method.
    Unknown,
}

/// A request, without its body.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) version: Version,
    pub(super) target: Target,
    pub(super) fields: Fields,
    pub(super) body: Body,
    /// The client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
    /// The client may send another request on this connection.
    pub(super) keeps_alive: bool,
    /// The client, once the connection has evaluated the fields.
    pub(super) hop: Option<Box<Hop>>,
}

/// A head that is not a valid request.
#[derive(Debug)]
pub(super) struct InvalidHead {
    pub(super) fault: Fault,
    /// Its fields, if they could be parsed.
    pub(super) fields: Option<Fields>,
}

impl From<Fault> for InvalidHead {
    fn from(fault: Fault) -> Self {
        Self { fault, fields: None }
    }
}

impl Request {
    /// Parses a head that a [`HeadScan`](super::scan::HeadScan) has found complete.
    pub(super) fn parse(head: Vec<u8>, end: HeadEnd, limits: &Limits) -> Result<Self, InvalidHead> {
        let mut parsed = vec![httparse::EMPTY_HEADER; end.fields];
        let mut line = httparse::Request::new(&mut parsed);
        match line.parse(&head) {
            Ok(httparse::Status::Complete(len)) if len == end.len => {}
            Ok(_) => return Err(Fault::Grammar.into()),
            Err(httparse::Error::TooManyHeaders) => return Err(Fault::ManyFields.into()),
            Err(httparse::Error::Version) => return Err(version_fault(&head).into()),
            Err(_) => return Err(Fault::Grammar.into()),
        }
        let (Some(method), Some(target), Some(version)) = (line.method, line.path, line.version)
        else {
            return Err(Fault::Grammar.into());
        };
        let version = if version == 0 { Version::Http10 } else { Version::Http11 };
        let (method, target) = (method.to_owned(), target.to_owned());

        let place = |part: &[u8]| place_within(&head, part);
        let places = line.headers.iter().map(|f| (place(f.name.as_bytes()), place(f.value)));
        let places = places.collect();
        let fields = Fields::new(head, places);
        match Self::read(&method, &target, version, &fields, limits) {
            Ok(read) => Ok(Self { fields, ..read }),
            Err(fault) => Err(InvalidHead { fault, fields: Some(fields) }),
        }
    }

    /// Parses everything but the fields.
    fn read(
        method: &str,
        target: &str,
        version: Version,
        fields: &Fields,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let (target, authority) = target::parse(method, target.as_bytes())?;
        fields.check()?;
        host::check(version, fields.all("host"), authority, &limits.hosts)?;
        Ok(Self {
            method: Method::of(method),
            version,
            target,
            body: framing::body(version, fields)?,
            expects_continue: framing::expects_continue(version, fields)?,
            keeps_alive: framing::keeps_alive(version, fields),
            fields: Fields::default(),
            hop: None,
        })
    }
}

#[cfg(any(test, feature = "fuzz-targets"))]
impl Request {
    /// A request with these fields, which need not be valid.
    pub(super) fn with(fields: Fields) -> Self {
        let (target, body, hop) = (Target::Server, Body::None, None);
        let (method, version) = (Method::Move, Version::Http11);
        Self {
            method,
            version,
            target,
            fields,
            body,
            expects_continue: false,
            keeps_alive: true,
            hop,
        }
    }

    #[cfg(test)]
    pub(super) fn of(fields: &[(&str, &str)]) -> Self {
        Self::with(Fields::of(fields))
    }
}

impl Method {
    fn of(token: &str) -> Self {
        match token {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "OPTIONS" => Self::Options,
            // RFC 9110 section 9, RFC 5789 and RFC 4918. Methods are case-sensitive.
            "PUT" => Self::Put,
            "POST" => Self::Post,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            "MOVE" => Self::Move,
            "PROPFIND" => Self::Propfind,
            "PROPPATCH" => Self::Proppatch,
            "MKCOL" => Self::Mkcol,
            "COPY" => Self::Copy,
            "LOCK" => Self::Lock,
            "UNLOCK" => Self::Unlock,
            "TRACE" | "CONNECT" => Self::Other,
            _ => Self::Unknown,
        }
    }
}

/// The fault for a line with an invalid version: another version, or none.
fn version_fault(head: &[u8]) -> Fault {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or(head);
    let mut words = line.split(|&byte| byte == b' ').skip(2);
    match (words.next(), words.next()) {
        (Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']), None) => {
            Fault::Version
        }
        _ => Fault::Grammar,
    }
}

/// The position of `part` in `whole`.
fn place_within(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    // The pointer of an empty value may have any address.
    if part.is_empty() {
        return 0..0;
    }
    assert!(start + part.len() <= whole.len(), "a parsed field lies in the head");
    start..start + part.len()
}

#[cfg(test)]
#[path = "request/tests.rs"]
mod tests;
