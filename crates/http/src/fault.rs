//! Why a request is invalid, and the one place that maps each reason to HTTP.
//!
//! After each of these faults the connection is closed: the end of the invalid request, and with it
//! the start of the next one, is unknown.

use tactus_core::path::PathFault;

use super::counters::Abuse;

/// Why a request is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the request's head did not arrive in time")]
    SlowHead,
    #[error("the request's body did not arrive in time")]
    SlowBody,
    #[error("the request line is too long")]
    LongLine,
    #[error("the request has too many header fields, or they are too long")]
    ManyFields,
    #[error("a line does not end with CR LF")]
    BareLineEnd,
    #[error("a header field is folded over two lines")]
    Folded,
    #[error("the request head contains a control character")]
    Control,
    #[error("the request breaks the grammar of HTTP/1.1")]
    Grammar,
    #[error("this server supports HTTP/1.1 and HTTP/1.0 only")]
    Version,
    #[error("the request has no Host field")]
    NoHost,
    #[error("the request has two Host fields")]
    TwoHosts,
    #[error("the Host field is malformed")]
    BadHost,
    #[error("this server does not serve this host name (http.allowed_hosts)")]
    OtherHost,
    #[error("the length of the body is given twice")]
    TwoLengths,
    #[error("Content-Length must be a plain decimal number")]
    BadLength,
    #[error("Transfer-Encoding must be `chunked` alone")]
    BadCoding,
    #[error("this transfer coding is not supported; use `chunked`")]
    UnknownCoding,
    #[error(
        "two header fields differ only by `_` and `-`, or a field imitates a known one that \
        way"
    )]
    Underscore,
    #[error("a header field that may occur once occurs twice")]
    Repeated,
    #[error("the request target is not a path of this server")]
    BadTarget,
    #[error("{0}")]
    BadPath(PathFault),
    #[error("the chunked body is malformed")]
    BadChunk,
    #[error("the body is too large for a request that takes none")]
    LargeBody,
    #[error("the only supported value of Expect is `100-continue`")]
    Expectation,
    #[error("the field `Forwarded` is not well-formed (RFC 7239)")]
    BadForwarded,
    #[error("the connection does not begin with a PROXY protocol header")]
    NoProxyHeader,
    #[error("this address accepts connections from trusted proxies only (http.trusted_proxies)")]
    NoProxy,
}

impl Fault {
    /// The status of the answer (RFC 9110 section 15.5, RFC 6585).
    pub(super) fn status(self) -> u16 {
        match self {
            Self::SlowHead | Self::SlowBody => 408,
            Self::LongLine => 414,
            Self::ManyFields => 431,
            Self::Version => 505,
            Self::OtherHost => 421,
            Self::UnknownCoding => 501,
            Self::LargeBody => 413,
            Self::Expectation => 417,
            Self::NoProxy => 403,
            _ => 400,
        }
    }

    /// The counter that it increases.
    pub(super) fn abuse(self) -> Abuse {
        match self {
            Self::SlowHead => Abuse::SlowHeader,
            Self::SlowBody => Abuse::SlowBody,
            Self::LongLine => Abuse::LongLine,
            Self::ManyFields => Abuse::ManyFields,
            Self::NoHost | Self::TwoHosts | Self::BadHost | Self::OtherHost => Abuse::BadHost,
            Self::TwoLengths | Self::BadLength | Self::BadCoding | Self::UnknownCoding => {
                Abuse::FramingConflict
            }
            Self::BadChunk => Abuse::BadChunk,
            Self::LargeBody => Abuse::LargeBody,
            Self::BadTarget | Self::BadPath(_) => Abuse::BadPath,
            _ => Abuse::BadRequest,
        }
    }
}
