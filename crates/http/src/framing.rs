//! The length of a request's body (RFC 9112 section 6), and whether the connection persists.
//!
//! Promise: a body has one length in one interpretation, or the request is refused. No two programs
//! in a chain can see different requests in the same bytes (request smuggling).

use super::fault::Fault;
use super::fields::Fields;

/// The version of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// The body after the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    None,
    /// This many bytes, at least one.
    Length(u64),
    Chunked,
}

/// The body that `fields` announce.
pub(super) fn body(version: Version, fields: &Fields) -> Result<Body, Fault> {
    let mut lengths = fields.all("content-length");
    let mut codings = fields.all("transfer-encoding");
    match (lengths.next(), codings.next()) {
        (Some(_), Some(_)) => Err(Fault::TwoLengths),
        (None, None) => Ok(Body::None),
        // RFC 9112 section 6.3 allows equal lengths; refusing them is simpler and safer.
        (Some(_), None) if lengths.next().is_some() => Err(Fault::TwoLengths),
        (Some(length), None) => match plain_number(length) {
            Some(0) => Ok(Body::None),
            Some(length) => Ok(Body::Length(length)),
            None => Err(Fault::BadLength),
        },
        (None, Some(_)) if codings.next().is_some() => Err(Fault::BadCoding),
        (None, Some(_)) if version == Version::Http10 => Err(Fault::BadCoding),
        (None, Some(coding)) => chunked(coding),
    }
}

/// Whether the connection may carry another request afterwards (RFC 9112 section 9.3).
pub(super) fn keeps_alive(version: Version, fields: &Fields) -> bool {
    let says = |word: &[u8]| fields.list("connection").any(|o| o.eq_ignore_ascii_case(word));
    match version {
        Version::Http11 => !says(b"close"),
        Version::Http10 => says(b"keep-alive") && !says(b"close"),
    }
}

/// Whether the client waits for `100 Continue` before it sends its body.
pub(super) fn expects_continue(version: Version, fields: &Fields) -> Result<bool, Fault> {
    match fields.one("expect") {
        // RFC 9110 section 10.1.1: `Expect` from an HTTP/1.0 client is ignored.
        _ if version == Version::Http10 => Ok(false),
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
        Some(_) => Err(Fault::Expectation),
    }
}

fn chunked(coding: &[u8]) -> Result<Body, Fault> {
    if coding.eq_ignore_ascii_case(b"chunked") {
        return Ok(Body::Chunked);
    }
    let known = |word: &[u8]| {
        let word = word.trim_ascii();
        word.is_empty()
            || [&b"chunked"[..], b"identity"].iter().any(|k| word.eq_ignore_ascii_case(k))
    };
    let all_known = coding.split(|&byte| byte == b',').all(known);
    Err(if all_known { Fault::BadCoding } else { Fault::UnknownCoding })
}

/// A decimal number of digits only, within 64 bits.
fn plain_number(digits: &[u8]) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| all_digits)?.parse().ok()
}
