//! Why a request is not understood, and what each reason means in HTTP: the one place that maps.
//!
//! After any of these the connection is closed: where a request was not understood, nobody can know
//! where the next one begins.

use tactus_core::path::PathFault;

use super::counters::Abuse;

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the request's head did not arrive in time")]
    SlowHead,
    #[error("the request's body did not arrive in time")]
    SlowBody,
    #[error("the request line is too long")]
    LongLine,
    #[error("the request has too many fields, or too long ones")]
    ManyFields,
    #[error("a line does not end with CR LF")]
    BareLineEnd,
    #[error("a field is folded over two lines")]
    Folded,
    #[error("the head holds a control character")]
    Control,
    #[error("the request breaks the grammar of HTTP/1.1")]
    Grammar,
    #[error("only HTTP/1.1 and HTTP/1.0 are spoken here")]
    Version,
    #[error("the request names no host")]
    NoHost,
    #[error("the request names two hosts")]
    TwoHosts,
    #[error("the host is not well formed")]
    BadHost,
    #[error("this host is not served here")]
    OtherHost,
    #[error("the body's length is given twice")]
    TwoLengths,
    #[error("the body's length is no plain number")]
    BadLength,
    #[error("the body's transfer coding is not `chunked` alone")]
    BadCoding,
    #[error("the body's transfer coding is not known here")]
    UnknownCoding,
    #[error("two fields differ only by `_` and `-`, or one imitates a known field so")]
    Underscore,
    #[error("a field that may stand once stands twice")]
    Repeated,
    #[error("the request's target is not a path of this server")]
    BadTarget,
    #[error("{0}")]
    BadPath(PathFault),
    #[error("the chunked body breaks its format")]
    BadChunk,
    #[error("the request's body is too large: nothing here takes one")]
    LargeBody,
    #[error("the request expects something else than `100-continue`")]
    Expectation,
    #[error("the field `Forwarded` is not well-formed (RFC 7239)")]
    BadForwarded,
    #[error("the connection does not begin with a PROXY protocol header")]
    NoProxyHeader,
    #[error("this address serves trusted proxies only (http.trusted_proxies)")]
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

    /// What it is counted as.
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
