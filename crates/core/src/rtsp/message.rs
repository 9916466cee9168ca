//! Requests and answers (RFC 2326, sections 4 to 7; RFC 7826, sections 5 to 8), and the frames
//! between them (section 10.12; section 14).
//!
//! Promise: the end of a message is found before its content is parsed. Lines, heads, bodies and
//! the number of fields are bounded. A single-valued field occurs at most once. Lines end with CR
//! and LF, folded fields are refused, and no bytes precede a request.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use super::{Status, Version};

/// Longest line without its end (row S01).
pub const LINE_MAX: usize = 4 << 10;
/// Longest head, including the empty line.
pub const HEAD_MAX: usize = 16 << 10;
/// Longest body (rows S03, S17).
pub const BODY_MAX: usize = 64 << 10;
/// Most fields of a head.
pub const FIELDS_MAX: usize = 64;
/// What precedes the payload of a frame.
pub const FRAME_HEAD: usize = 4;

/// The kind of the next bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// More bytes are needed.
    More,
    /// An interleaved frame.
    Frame {
        /// The channel.
        channel: u8,
        /// Total length.
        len: usize,
    },
    /// The head of a request, or of a response to one of the server's.
    Head {
        /// Its length, including the empty line.
        len: usize,
    },
}

/// Why the bytes are not a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The broken rule.
    Malformed(&'static str),
    /// The request line is too long.
    UriTooLong,
    /// The body is too long.
    BodyTooLong,
    /// HTTP: a tunnel, or a misdirected client (row S13).
    Http,
}

impl Fault {
    /// The status to answer with.
    pub const fn status(self) -> Status {
        match self {
            Self::Malformed(_) => Status::BAD_REQUEST,
            Self::UriTooLong => Status::URI_TOO_LONG,
            Self::BodyTooLong => Status::ENTITY_TOO_LARGE,
            Self::Http => Status::NOT_FOUND,
        }
    }
}

/// The kind of the first bytes.
///
/// # Errors
/// If no message can begin with these bytes.
pub fn piece(bytes: &[u8]) -> Result<Piece, Fault> {
    match *bytes {
        [] => return Ok(Piece::More),
        [b'$', channel, high, low, ..] => {
            let len = FRAME_HEAD + usize::from(u16::from_be_bytes([high, low]));
            return Ok(if bytes.len() < len { Piece::More } else { Piece::Frame { channel, len } });
        }
        [b'$', ..] => return Ok(Piece::More),
        [first, ..] if !is_token(first) => return Err(Fault::Malformed("no method")),
        _ => {}
    }
    let mut at = 0;
    loop {
        let window = &bytes[at..bytes.len().min(HEAD_MAX)];
        let is_first = at == 0;
        let Some(len) = window.iter().position(|&byte| byte == b'\n') else {
            let too_long = window.len() > LINE_MAX + 1;
            return match (too_long, is_first) {
                (true, true) => Err(Fault::UriTooLong),
                (true, false) => Err(Fault::Malformed("line too long")),
                _ if bytes.len() >= HEAD_MAX => Err(Fault::Malformed("head too long")),
                _ => Ok(Piece::More),
            };
        };
        if len > LINE_MAX + 1 {
            let long = Fault::Malformed("line too long");
            return Err(if is_first { Fault::UriTooLong } else { long });
        }
        if window[..len].last() != Some(&b'\r') {
            return Err(Fault::Malformed("a line without CR"));
        }
        at += len + 1;
        if len == 1 {
            return Ok(Piece::Head { len: at });
        }
    }
}

/// The method of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names are those of the RFC")]
pub enum Method {
    Options,
    Describe,
    Announce,
    Setup,
    Play,
    Pause,
    Record,
    Teardown,
    GetParameter,
    SetParameter,
    /// An unknown method.
    Unknown,
}

impl Method {
    const NAMES: [(&str, Self); 10] = [
        ("OPTIONS", Self::Options),
        ("DESCRIBE", Self::Describe),
        ("ANNOUNCE", Self::Announce),
        ("SETUP", Self::Setup),
        ("PLAY", Self::Play),
        ("PAUSE", Self::Pause),
        ("RECORD", Self::Record),
        ("TEARDOWN", Self::Teardown),
        ("GET_PARAMETER", Self::GetParameter),
        ("SET_PARAMETER", Self::SetParameter),
    ];

    fn of(name: &str) -> Self {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map_or(Self::Unknown, |&(_, method)| method)
    }
}

/// A request without its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The method as written, which digests use.
    pub verb: String,
    /// The target: an absolute `rtsp:` URL, or `*`.
    pub uri: String,
    /// The protocol version.
    pub version: Version,
    /// The CSeq.
    pub cseq: u32,
    /// Bytes of the body after it.
    pub body: usize,
    fields: Vec<(String, String)>,
}

/// Fields that may occur once only.
const SINGLE: [&str; 8] = [
    "cseq",
    "session",
    "transport",
    "range",
    "scale",
    "content-length",
    "authorization",
    "content-type",
];

impl Request {
    /// Parses a head found by [`piece`].
    ///
    /// # Errors
    /// The first broken rule.
    pub fn parse(head: &[u8]) -> Result<Self, Fault> {
        let text = core::str::from_utf8(head).map_err(|_| Fault::Malformed("no UTF-8"))?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut words = first.split(' ');
        let (Some(verb), Some(uri), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Fault::Malformed("the request line has three words"));
        };
        if verb.is_empty() || !verb.bytes().all(is_token) {
            return Err(Fault::Malformed("no method"));
        }
        if uri.is_empty() || !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Fault::Malformed("no URL"));
        }
        if version.get(..5).is_some_and(|name| name.eq_ignore_ascii_case("HTTP/")) {
            return Err(Fault::Http);
        }
        let version = Version::parse(version).ok_or(Fault::Malformed("no version"))?;
        let fields = fields(lines)?;
        let cseq = cseq(&fields)?;
        let body = body(&fields)?;
        let (method, verb, uri) = (Method::of(verb), verb.into(), uri.into());
        Ok(Self { method, verb, uri, version, cseq, body, fields })
    }

    /// Sets the session, which the request named in another way.
    pub fn name_session(&mut self, id: String) {
        self.fields.push(("session".into(), id));
    }

    /// The first value of the field `name` (lower case).
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).next()
    }

    /// All values of this field.
    pub fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        named(&self.fields, name)
    }

    /// The session id without parameters.
    pub fn session(&self) -> Option<&str> {
        Some(self.field("session")?.split(';').next().unwrap_or_default().trim())
    }
}

/// A client's response to a request of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// The CSeq of the request.
    pub cseq: u32,
    /// Bytes of the body after it.
    pub body: usize,
}

impl Answer {
    /// Whether a head found by [`piece`] is a response: methods contain no slash.
    pub fn begins(head: &[u8]) -> bool {
        head.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"RTSP/"))
    }

    /// Parses a head found by [`piece`].
    ///
    /// # Errors
    /// The first broken rule.
    pub fn parse(head: &[u8]) -> Result<Self, Fault> {
        let text = core::str::from_utf8(head).map_err(|_| Fault::Malformed("no UTF-8"))?;
        let mut lines = text.split("\r\n");
        // The reason phrase is ignored.
        let mut words = lines.next().unwrap_or_default().splitn(3, ' ');
        let version = words.next().and_then(Version::parse);
        version.ok_or(Fault::Malformed("no version"))?;
        let code = words.next().filter(|code| code.len() == 3).and_then(whole);
        let code = code.filter(|code| (100..1000).contains(code));
        let status = Status(code.ok_or(Fault::Malformed("no status"))? as u16);
        let fields = fields(lines)?;
        Ok(Self { status, cseq: cseq(&fields)?, body: body(&fields)? })
    }
}

type Fields = Vec<(String, String)>;

fn named<'a>(fields: &'a Fields, name: &str) -> impl Iterator<Item = &'a str> {
    fields.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The fields of a head, with lower-case names.
fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Fields, Fault> {
    let mut fields = Fields::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(Fault::Malformed("a field without :"))?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(Fault::Malformed("a field without a name"));
        }
        if value.chars().any(|c| c.is_control() && c != '\t') {
            return Err(Fault::Malformed("a control character"));
        }
        let name = name.to_ascii_lowercase();
        if SINGLE.contains(&name.as_str()) && named(&fields, &name).next().is_some() {
            return Err(Fault::Malformed("a field stands twice"));
        }
        if fields.len() == FIELDS_MAX {
            return Err(Fault::Malformed("too many fields"));
        }
        fields.push((name, String::from(value.trim_matches([' ', '\t']))));
    }
    Ok(fields)
}

fn cseq(fields: &Fields) -> Result<u32, Fault> {
    named(fields, "cseq").next().and_then(whole).ok_or(Fault::Malformed("no CSeq"))
}

/// Bytes of the body.
fn body(fields: &Fields) -> Result<usize, Fault> {
    let Some(length) = named(fields, "content-length").next() else { return Ok(0) };
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(Fault::Malformed("no Content-Length"));
    }
    let length = length.parse::<usize>().ok().filter(|&length| length <= BODY_MAX);
    length.ok_or(Fault::BodyTooLong)
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The status.
    pub status: Status,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    /// An answer without fields and body.
    pub const fn new(status: Status) -> Self {
        Self { status, fields: Vec::new(), body: Vec::new() }
    }

    /// An answer with a sentence that names the problem.
    pub fn said(status: Status, text: &str) -> Self {
        let mut line = String::from(text);
        line.push_str("\r\n");
        Self::new(status).with("Content-Type", "text/plain; charset=utf-8").body(line.into_bytes())
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Replaces all fields of this name.
    #[must_use]
    pub fn with_only(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.with(name, value)
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The encoded answer to a request with this version and CSeq. An unsupported version is
    /// answered in 1.0.
    pub fn write(&self, version: Version, cseq: Option<u32>) -> Vec<u8> {
        let mut text = String::new();
        let mut line = |written: core::fmt::Arguments<'_>| {
            text.write_fmt(written).expect("a string takes what is written");
            text.push_str("\r\n");
        };
        line(format_args!("{version} {} {}", self.status.0, self.status.reason(version)));
        if let Some(cseq) = cseq {
            line(format_args!("CSeq: {cseq}"));
        }
        line(format_args!("Server: tactus"));
        for (name, value) in &self.fields {
            // Control characters in foreign text cannot end a line.
            let plain: String = value.chars().filter(|c| !c.is_control()).collect();
            line(format_args!("{name}: {plain}"));
        }
        if !self.body.is_empty() {
            line(format_args!("Content-Length: {}", self.body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend(&self.body);
        bytes
    }
}

/// Whether `kind` is the media type of session descriptions (RFC 8866). Media types are
/// case-insensitive.
pub fn is_sdp(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/sdp")
}

/// Whether an `Accept` field admits session descriptions.
pub fn accepts_sdp(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let range = range.split(';').next().unwrap_or_default().trim();
        range == "*/*" || range.eq_ignore_ascii_case("application/*") || is_sdp(range)
    })
}

/// A number of digits only.
pub(super) fn whole(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The characters of tokens (RFC 2326, section 15.1).
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.')
        || matches!(byte, b'^'..=b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests;
