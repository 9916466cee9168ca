//! Answers: heads, short contents in memory, and sources of long contents.
//!
//! Promise: every answer states its length or its end, its date, and that its type must not be
//! guessed. The caller encodes names in field values.

use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use super::framing::Version;

/// An answer that fits in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    status: u16,
    fields: Vec<(&'static str, String)>,
    content: Content,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    /// No content, and no length: 204 and 304.
    Never,
    Bytes(Vec<u8>),
    /// Content of this length that is sent elsewhere, or omitted for HEAD.
    Announced(u64),
    /// Content up to the end of the connection (RFC 9112 section 6.3).
    Unbounded,
    /// Content of unknown length that is sent elsewhere, in chunks.
    Streamed,
    /// Content that is generated while it is sent.
    Parts(Parts),
}

/// Generates content part by part, so that it is never in memory as a whole.
pub(super) trait Source: Send {
    /// The next part; none at the end.
    fn next(&mut self) -> NextPart<'_>;
}

/// A part that is being generated.
pub(super) type NextPart<'a> =
    Pin<Box<dyn Future<Output = Option<Result<Vec<u8>, Truncation>>> + Send + 'a>>;

/// Generating the content failed, and the client must see that its content is incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Truncation;

/// A [`Source`], until it is taken.
#[derive(Clone)]
struct Parts(Arc<Mutex<Option<Box<dyn Source>>>>);

impl PartialEq for Parts {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Parts {}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

/// Whether the connection stays open after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Persistence {
    Keep,
    Close,
}

impl Response {
    /// An answer with content of any type.
    pub fn new(status: u16, media_type: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { status, fields: Vec::new(), content: Content::Bytes(content.into()) }
            .with("Content-Type", media_type)
    }

    /// One or more sentences for people.
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.push('\n');
        Self::new(status, "text/plain; charset=utf-8", text)
    }

    /// A value as JSON.
    pub fn json(status: u16, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => Self::new(status, "application/json", json),
            Err(error) => Self::text(500, format!("the answer cannot be written: {error}")),
        }
    }

    /// An answer that never has content: 204 or 304.
    pub(super) fn empty(status: u16) -> Self {
        Self { status, fields: Vec::new(), content: Content::Never }
    }

    /// The head of an answer whose content is sent separately, or not at all.
    pub(super) fn announcing(status: u16, media_type: &str, len: u64) -> Self {
        Self { status, fields: Vec::new(), content: Content::Announced(len) }
            .with("Content-Type", media_type)
    }

    /// The head of an answer whose content ends with the connection.
    pub(super) fn unbounded(status: u16, media_type: &str) -> Self {
        Self { status, fields: Vec::new(), content: Content::Unbounded }
            .with("Content-Type", media_type)
    }

    /// The head of an answer whose content is sent separately in chunks, or, over HTTP/1.0, ends
    /// with the connection.
    pub(super) fn streamed(status: u16, media_type: &str) -> Self {
        Self { status, fields: Vec::new(), content: Content::Streamed }
            .with("Content-Type", media_type)
    }

    /// An answer whose content `source` generates while it is sent.
    pub(super) fn parts(status: u16, media_type: &str, source: Box<dyn Source>) -> Self {
        let content = Content::Parts(Parts(Arc::new(Mutex::new(Some(source)))));
        Self { status, fields: Vec::new(), content }.with("Content-Type", media_type)
    }

    /// Takes the source of the content, if there is one; later calls return none.
    pub(super) fn source(&self) -> Option<Box<dyn Source>> {
        match &self.content {
            Content::Parts(Parts(parts)) => {
                parts.lock().unwrap_or_else(PoisonError::into_inner).take()
            }
            _ => None,
        }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a field to an existing answer.
    pub(super) fn add(&mut self, name: &'static str, value: &str) {
        self.fields.push((name, value.to_owned()));
    }

    /// Puts `prefix` before the paths of this server in the answer.
    pub(super) fn prefix_paths(&mut self, prefix: &str) {
        let fields = self.fields.iter_mut();
        for (_, value) in
            fields.filter(|(name, value)| *name == "Location" && value.starts_with('/'))
        {
            value.insert_str(0, prefix);
        }
    }

    /// Its status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The content, as far as it is in memory.
    pub fn content(&self) -> &[u8] {
        match &self.content {
            Content::Bytes(bytes) => bytes,
            Content::Never | Content::Announced(_) | Content::Unbounded => &[],
            Content::Parts(_) | Content::Streamed => &[],
        }
    }

    /// The head as it goes over the wire.
    pub(super) fn head(
        &self,
        version: Version,
        afterwards: Persistence,
        now: SystemTime,
    ) -> Vec<u8> {
        let mut head = String::with_capacity(HEAD_BYTES_USUAL);
        let reason = reason(self.status);
        // RFC 9112 section 2.3: a server answers with its own version.
        let mut line = |name: &str, value: &str| {
            debug_assert!(!value.contains(['\r', '\n']), "a field value is one line");
            writeln!(head, "{name}{value}\r").expect("a string takes everything");
        };
        line("HTTP/1.1 ", &format!("{} {reason}", self.status));
        line("Date: ", &httpdate::fmt_http_date(now));
        line("Server: ", "tactus");
        line("X-Content-Type-Options: ", "nosniff");
        for (name, value) in &self.fields {
            line(&format!("{name}: "), value);
        }
        match &self.content {
            Content::Never | Content::Unbounded => {}
            Content::Bytes(bytes) => line("Content-Length: ", &bytes.len().to_string()),
            Content::Announced(len) => line("Content-Length: ", &len.to_string()),
            Content::Parts(_) | Content::Streamed if version == Version::Http10 => {}
            Content::Parts(_) | Content::Streamed => line("Transfer-Encoding: ", "chunked"),
        }
        let afterwards = match self.content {
            Content::Unbounded => Persistence::Close,
            // RFC 9112 section 6.1: HTTP/1.0 has no chunks; the content ends with the connection.
            Content::Parts(_) | Content::Streamed if version == Version::Http10 => {
                Persistence::Close
            }
            _ => afterwards,
        };
        match (afterwards, version) {
            (Persistence::Close, _) => line("Connection: ", "close"),
            (Persistence::Keep, Version::Http10) => line("Connection: ", "keep-alive"),
            (Persistence::Keep, Version::Http11) => {}
        }
        line("", "");
        head.into_bytes()
    }
}

/// Most heads are shorter.
const HEAD_BYTES_USUAL: usize = 512;

/// The reason phrases of RFC 9110 section 15, RFC 4918, RFC 6585 and tus 1.0, for the statuses in
/// use.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        423 => "Locked",
        424 => "Failed Dependency",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        460 => "Checksum Mismatch",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_length_date_and_that_types_are_not_guessed() {
        let response = Response::text(404, "nothing here").with("X-A", "b");
        let now = SystemTime::UNIX_EPOCH;
        let head = response.head(Version::Http11, Persistence::Close, now);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "HTTP/1.1 404 Not Found\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: tactus\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Type: text/plain; charset=utf-8\r\n\
             X-A: b\r\nContent-Length: 13\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(response.content(), b"nothing here\n");
    }

    #[test]
    fn an_answer_without_content_has_no_length() {
        let head = Response::empty(304).head(Version::Http11, Persistence::Keep, SystemTime::now());
        let head = String::from_utf8(head).unwrap();
        assert!(!head.contains("Content-Length") && !head.contains("Connection"), "{head}");
        let head = Response::announcing(200, "video/mp4", 7).head(
            Version::Http10,
            Persistence::Keep,
            SystemTime::now(),
        );
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("Content-Length: 7\r\nConnection: keep-alive\r\n\r\n"), "{head}");
    }
}
