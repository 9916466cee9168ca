//! Requests and answers (RFC 2326, sections 4 to 7), and the frames between them (section 10.12).
//!
//! Promise: where a message ends is known before it is believed; lines, heads, bodies and the number of
//! fields are bounded; a field that must stand once does. Lines end with CR and LF, no field is continued on the next
//! line, and nothing stands in front of a request.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use super::Status;

/// Longest line, its end not counted (row S01).
pub const LINE_MAX: usize = 4 << 10;
/// Longest head, the empty line included.
pub const HEAD_MAX: usize = 16 << 10;
/// Longest body (rows S03, S17).
pub const BODY_MAX: usize = 64 << 10;
/// Most fields of a head.
pub const FIELDS_MAX: usize = 64;
/// What precedes the payload of a frame.
pub const FRAME_HEAD: usize = 4;

/// What the bytes of a connection begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// More must come before it can be said.
    More,
    /// A frame of binary data with its four bytes in front.
    Frame {
        /// The channel.
        channel: u8,
        /// Bytes in all.
        len: usize,
    },
    /// The head of a request.
    Head {
        /// Bytes, the empty line included.
        len: usize,
    },
}

/// Why what came is no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The rule that it breaks.
    Malformed(&'static str),
    /// The request line is too long.
    UriTooLong,
    /// The body is too long.
    BodyTooLong,
    /// HTTP: a tunnel, or somebody who is lost (row S13).
    Http,
}

impl Fault {
    /// What is answered.
    pub const fn status(self) -> Status {
        match self {
            Self::Malformed(_) => Status::BAD_REQUEST,
            Self::UriTooLong => Status::URI_TOO_LONG,
            Self::BodyTooLong => Status::ENTITY_TOO_LARGE,
            Self::Http => Status::NOT_FOUND,
        }
    }
}

/// What `bytes` begin with.
///
/// # Errors
/// When no message begins so, however it goes on.
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

/// What is asked for.
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
    /// One that is not known here.
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

/// A request, without its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is asked for.
    pub method: Method,
    /// The method as it was written: digests are made of it.
    pub verb: String,
    /// Of what: an absolute `rtsp:` URL, or `*`.
    pub uri: String,
    /// Whether it speaks version 1.0.
    pub is_version_1: bool,
    /// Its number.
    pub cseq: u32,
    /// Bytes of the body behind it.
    pub body: usize,
    fields: Vec<(String, String)>,
}

/// Fields that stand once or not at all.
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
    /// Reads a head as [`piece`] has found it.
    ///
    /// # Errors
    /// The first rule that it breaks.
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
        if version.starts_with("HTTP/") {
            return Err(Fault::Http);
        }
        let number = version.strip_prefix("RTSP/").ok_or(Fault::Malformed("no version"))?;
        let is_number = |text: &str| {
            (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !number.split_once('.').is_some_and(|(a, b)| is_number(a) && is_number(b)) {
            return Err(Fault::Malformed("no version"));
        }
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) =
                line.split_once(':').ok_or(Fault::Malformed("a field without :"))?;
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(Fault::Malformed("a field without a name"));
            }
            if value.chars().any(|c| c.is_control() && c != '\t') {
                return Err(Fault::Malformed("a control character"));
            }
            let name = name.to_ascii_lowercase();
            if SINGLE.contains(&name.as_str()) && fields.iter().any(|(known, _)| *known == name) {
                return Err(Fault::Malformed("a field stands twice"));
            }
            if fields.len() == FIELDS_MAX {
                return Err(Fault::Malformed("too many fields"));
            }
            fields.push((name, String::from(value.trim_matches([' ', '\t']))));
        }
        let mut request = Self {
            method: Method::of(verb),
            verb: verb.into(),
            uri: uri.into(),
            is_version_1: number == "1.0",
            cseq: 0,
            body: 0,
            fields,
        };
        let cseq = request.field("cseq").ok_or(Fault::Malformed("no CSeq"))?;
        request.cseq = whole(cseq).ok_or(Fault::Malformed("no CSeq"))?;
        if let Some(length) = request.field("content-length") {
            let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            if !is_number {
                return Err(Fault::Malformed("no Content-Length"));
            }
            let length = length.parse::<usize>().ok().filter(|&length| length <= BODY_MAX);
            request.body = length.ok_or(Fault::BodyTooLong)?;
        }
        Ok(request)
    }

    /// The value of the first field of this name, which is written small.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).next()
    }

    /// The values of all fields of this name.
    pub fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The session that it names, without parameters.
    pub fn session(&self) -> Option<&str> {
        Some(self.field("session")?.split(';').next().unwrap_or_default().trim())
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// What it says.
    pub status: Status,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    /// One without fields and body.
    pub const fn new(status: Status) -> Self {
        Self { status, fields: Vec::new(), body: Vec::new() }
    }

    /// One that says in a sentence what is wrong.
    pub fn said(status: Status, text: &str) -> Self {
        let mut line = String::from(text);
        line.push_str("\r\n");
        Self::new(status).with("Content-Type", "text/plain; charset=utf-8").body(line.into_bytes())
    }

    /// With a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// With a body.
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

    /// As it is sent, for the request of this number.
    pub fn write(&self, cseq: Option<u32>) -> Vec<u8> {
        let mut text = String::new();
        let mut line = |written: core::fmt::Arguments<'_>| {
            text.write_fmt(written).expect("a string takes what is written");
            text.push_str("\r\n");
        };
        line(format_args!("RTSP/1.0 {} {}", self.status.0, self.status.reason()));
        if let Some(cseq) = cseq {
            line(format_args!("CSeq: {cseq}"));
        }
        line(format_args!("Server: tactus"));
        for (name, value) in &self.fields {
            // What comes from others never ends a line.
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

/// A number of digits only.
pub(super) fn whole(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// What names are made of (RFC 2326, section 15.1).
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Request, Fault> {
        match piece(text.as_bytes())? {
            Piece::Head { len } => Request::parse(&text.as_bytes()[..len]),
            other => panic!("{other:?}"),
        }
    }

    fn malformed(text: &str) -> bool {
        matches!(read(text), Err(Fault::Malformed(_)))
    }

    #[test]
    fn a_request_is_read() {
        let text = "SETUP rtsp://h/a.ts/track1 RTSP/1.0\r\nCSeq: 7\r\nSession:  abc;timeout=60\r\n\
                    Require: x\r\nrequire: y\r\nContent-Length: 3\r\n\r\nabc";
        let request = read(text).unwrap();
        assert_eq!((request.method, request.cseq, request.body), (Method::Setup, 7, 3));
        assert_eq!((request.uri.as_str(), request.is_version_1), ("rtsp://h/a.ts/track1", true));
        assert_eq!(request.session(), Some("abc"));
        assert!(request.fields("require").eq(["x", "y"]));
    }

    #[test]
    fn s01_lines_and_heads_are_bounded() {
        let long = "x".repeat(LINE_MAX);
        let text = alloc::format!("OPTIONS rtsp://h/{long}");
        assert_eq!(piece(text.as_bytes()), Err(Fault::UriTooLong), "before its end has come");
        let text = alloc::format!("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nX: {long}");
        assert_eq!(piece(text.as_bytes()), Err(Fault::Malformed("line too long")));
        let text = alloc::format!("OPTIONS * RTSP/1.0\r\n{}", "X: y\r\n".repeat(HEAD_MAX / 6));
        assert_eq!(piece(text.as_bytes()), Err(Fault::Malformed("head too long")));
        let text = alloc::format!("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n{}\r\n", "X: y\r\n".repeat(64));
        assert!(malformed(&text), "too many fields");
        assert_eq!(Fault::UriTooLong.status(), Status::URI_TOO_LONG);
    }

    #[test]
    fn s02_empty_requests_and_leading_spaces_are_bad() {
        for text in ["\r\n", "\r\n\r\n", " OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n", "\0", "\n"] {
            assert!(matches!(piece(text.as_bytes()), Err(Fault::Malformed(_))), "{text:?}");
        }
        for text in [
            "OPTIONS\r\n\r\n",
            "OPTIONS *\r\n\r\n",
            "OPTIONS  RTSP/1.0\r\nCSeq: 1\r\n\r\n",
            "OPTIONS * RTSP/1.0 \r\nCSeq: 1\r\n\r\n",
            "OPTIONS * RTSP/\r\nCSeq: 1\r\n\r\n",
            "OPTIONS * RTSP/1.0\r\nCSeq\r\n\r\n",
            "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n folded\r\n\r\n",
            "OPTIONS * RTSP/1.0\r\nCSeq: 1\nX: y\r\n\r\n",
        ] {
            assert!(malformed(text), "{text:?}");
        }
        assert_eq!(piece(b"A"), Ok(Piece::More), "short, and not over");
    }

    #[test]
    fn s03_lengths_are_numbers_and_bounded() {
        let with = |length: &str| {
            read(&alloc::format!(
                "ANNOUNCE rtsp://h/a RTSP/1.0\r\nCSeq: 1\r\nContent-Length: {length}\r\n\r\n"
            ))
            .map(|request| request.body)
        };
        assert_eq!(with("65536"), Ok(65536));
        assert_eq!(with("65537"), Err(Fault::BodyTooLong));
        assert_eq!(with("99999999999999999999999"), Err(Fault::BodyTooLong));
        for bad in ["-1", "+1", "", "1 1", "0x1", "1, 1"] {
            assert!(matches!(with(bad), Err(Fault::Malformed(_))), "{bad}");
        }
    }

    #[test]
    fn s04_a_request_has_one_number() {
        for fields in
            ["", "CSeq: \r\n", "CSeq: -1\r\n", "CSeq: 4294967296\r\n", "CSeq: 1\r\ncseq: 1\r\n"]
        {
            assert!(malformed(&alloc::format!("OPTIONS * RTSP/1.0\r\n{fields}\r\n")), "{fields}");
        }
    }

    #[test]
    fn s05_methods_and_versions_that_are_not_known_are_told() {
        let request = read("PLAYX * RTSP/3.0\r\nCSeq: 4294967295\r\n\r\n").unwrap();
        assert_eq!((request.method, request.is_version_1), (Method::Unknown, false));
        assert_eq!(read("options * RTSP/1.0\r\nCSeq: 1\r\n\r\n").unwrap().method, Method::Unknown);
    }

    #[test]
    fn s13_http_is_not_spoken() {
        let text = "GET /a HTTP/1.0\r\nx-sessioncookie: 1\r\n\r\n";
        assert_eq!(read(text), Err(Fault::Http));
        assert_eq!(Fault::Http.status(), Status::NOT_FOUND);
    }

    #[test]
    fn frames_stand_between_requests() {
        assert_eq!(piece(b"$\x01\0\x02ab"), Ok(Piece::Frame { channel: 1, len: 6 }));
        assert_eq!(piece(b"$\xff\xff\xffab"), Ok(Piece::More));
        assert_eq!(piece(b"$"), Ok(Piece::More));
    }

    #[test]
    fn an_answer_is_one_message_whatever_stands_in_it() {
        let reply = Reply::said(Status::NOT_FOUND, "none").with("X", "a\r\nY: b");
        let written = String::from_utf8(reply.write(Some(3))).unwrap();
        assert_eq!(
            written,
            "RTSP/1.0 404 Not Found\r\nCSeq: 3\r\nServer: tactus\r\n\
             Content-Type: text/plain; charset=utf-8\r\nX: aY: b\r\nContent-Length: 6\r\n\r\nnone\r\n"
        );
    }

    proptest! {
        #[test]
        fn s20_any_bytes_are_a_piece_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Piece::Head { len }) = piece(&bytes) {
                prop_assert!(len <= bytes.len());
                drop(Request::parse(&bytes[..len]));
            }
        }

        #[test]
        fn s20_requests_that_are_damaged_never_crash(
            at in 0usize..120, byte: u8, cut in 0usize..130, at2 in 0usize..120, byte2: u8,
        ) {
            let mut bytes = b"SETUP rtsp://host/a.ts/track1 RTSP/1.0\r\nCSeq: 2\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\nSession: a\r\n\r\n".to_vec();
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes[at2 % len] = byte2;
            bytes.truncate(cut);
            if let Ok(Piece::Head { len }) = piece(&bytes)
                && let Ok(request) = Request::parse(&bytes[..len])
            {
                drop(request.field("transport").map(super::super::transport::offers));
            }
        }

        #[test]
        fn what_a_piece_is_does_not_change_when_more_comes(
            cut in 0usize..60, more in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n".to_vec();
            let whole = bytes.len();
            bytes.extend(more);
            let cut = cut.min(whole);
            let early = piece(&bytes[..cut]);
            let expected = if cut < whole { Piece::More } else { Piece::Head { len: whole } };
            prop_assert_eq!(early, Ok(expected));
            prop_assert_eq!(piece(&bytes), Ok(Piece::Head { len: whole }));
        }
    }
}
