//! RTSP 1.0 (RFC 2326) and 2.0 (RFC 7826): messages, header fields and session states.
//!
//! Promise: a message is parsed as in the RFC or refused with a status, within its limits. Whatever
//! the order of requests, a session is in one state, belongs to one client and ends after a silence
//! of [`session::SILENCE_MAX`]. Sockets, clocks and titles are the caller's.

pub mod message;
pub mod session;
pub mod span;
pub mod transport;
pub mod v2;

use core::fmt;

/// The status code of an answer (RFC 2326, section 7.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Status(pub u16);

#[expect(missing_docs, reason = "the names are those of the RFC")]
impl Status {
    pub const OK: Self = Self(200);
    pub const BAD_REQUEST: Self = Self(400);
    pub const UNAUTHORIZED: Self = Self(401);
    pub const FORBIDDEN: Self = Self(403);
    pub const NOT_FOUND: Self = Self(404);
    pub const NOT_ALLOWED: Self = Self(405);
    pub const CONFLICT: Self = Self(409);
    pub const ENTITY_TOO_LARGE: Self = Self(413);
    pub const URI_TOO_LONG: Self = Self(414);
    pub const UNSUPPORTED_MEDIA: Self = Self(415);
    pub const PARAMETER_NOT_UNDERSTOOD: Self = Self(451);
    pub const NOT_ENOUGH_BANDWIDTH: Self = Self(453);
    pub const SESSION_NOT_FOUND: Self = Self(454);
    pub const NOT_IN_THIS_STATE: Self = Self(455);
    pub const NOT_VALID_FOR_RESOURCE: Self = Self(456);
    pub const INVALID_RANGE: Self = Self(457);
    pub const AGGREGATE_NOT_ALLOWED: Self = Self(459);
    pub const ONLY_AGGREGATE: Self = Self(460);
    pub const UNSUPPORTED_TRANSPORT: Self = Self(461);
    pub const DESTINATION_PROHIBITED: Self = Self(463);
    pub const INTERNAL: Self = Self(500);
    pub const NOT_IMPLEMENTED: Self = Self(501);
    pub const UNAVAILABLE: Self = Self(503);
    pub const VERSION: Self = Self(505);
    pub const OPTION: Self = Self(551);
}

impl Status {
    /// The reason phrase.
    pub const fn reason(self, version: Version) -> &'static str {
        if matches!(version, Version::Two)
            && let Some(reason) = self.reason_of_two()
        {
            return reason;
        }
        match self.0 {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            413 => "Request Entity Too Large",
            414 => "Request-URI Too Large",
            415 => "Unsupported Media Type",
            451 => "Parameter Not Understood",
            453 => "Not Enough Bandwidth",
            454 => "Session Not Found",
            455 => "Method Not Valid in This State",
            457 => "Invalid Range",
            459 => "Aggregate operation not allowed",
            460 => "Only aggregate operation allowed",
            461 => "Unsupported transport",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "RTSP Version not supported",
            551 => "Option not supported",
            _ => "Internal Server Error",
        }
    }

    /// Reason phrases of RFC 7826 (section 17) that differ from RFC 2326.
    const fn reason_of_two(self) -> Option<&'static str> {
        Some(match self.0 {
            406 => "Not Acceptable",
            413 => "Request Message Body Too Large",
            414 => "Request-URI Too Long",
            456 => "Header Field Not Valid for Resource",
            459 => "Aggregate Operation Not Allowed",
            460 => "Only Aggregate Operation Allowed",
            461 => "Unsupported Transport",
            463 => "Destination Prohibited",
            505 => "RTSP Version Not Supported",
            551 => "Option Not Supported",
            _ => return None,
        })
    }
}

/// The protocol version of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    /// 1.0 (RFC 2326).
    One,
    /// 2.0 (RFC 7826).
    Two,
    /// An unsupported version.
    Other,
}

impl Version {
    /// Parses `RTSP/2.0`, in letters of any case. `None`: not an RTSP version.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, number) = text.split_once('/')?;
        name.eq_ignore_ascii_case("RTSP").then_some(())?;
        let (major, minor) = number.split_once('.')?;
        let is_number = |text: &str| {
            (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        (is_number(major) && is_number(minor)).then_some(match (major, minor) {
            ("1", "0") => Self::One,
            ("2", "0") => Self::Two,
            _ => Self::Other,
        })
    }
}

/// The version of the answer: 1.0 for an unsupported one.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One | Self::Other => "RTSP/1.0",
            Self::Two => "RTSP/2.0",
        })
    }
}
