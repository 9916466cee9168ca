//! Requests from pages of other sites (CORS; the Fetch standard, section 3.2).
//!
//! Promise: without `allowed_origins` no CORS fields are sent, and browsers block such pages.
//! Passwords stored in the browser are never available to other sites (no
//! `Access-Control-Allow-Credentials`): a page must send a token itself.

use super::fields::Fields;
use super::response::Response;
use super::settings::Origins;

/// Fields of an answer that such a page may read, beside those that the standard always allows.
const EXPOSED: &str = "Accept-Ranges, Content-Length, Content-Range, Content-Type, Date, ETag, \
    Location, Lock-Token, Retry-After, Tactus-Rate, Tactus-Start, Tus-Checksum-Algorithm, \
    Tus-Extension, \
    Tus-Max-Size, Tus-Resumable, Tus-Version, Upload-Concat, Upload-Defer-Length, Upload-Expires, \
    Upload-Length, Upload-Metadata, Upload-Offset, WWW-Authenticate";

/// All methods that the server supports.
const METHODS: &str = "GET, HEAD, OPTIONS, PUT, POST, PATCH, DELETE, MOVE, COPY, PROPFIND, \
 PROPPATCH, MKCOL, \
     LOCK, UNLOCK";

/// Fields of players and uploaders, for a browser that does not list the fields of its request.
const FIELDS: &str = "Authorization, CMCD-Object, CMCD-Request, CMCD-Session, CMCD-Status, \
    Content-Type, Depth, Destination, If, If-Match, If-Modified-Since, If-None-Match, If-Range, \
    If-Unmodified-Since, Lock-Token, Overwrite, Range, Timeout, Tus-Resumable, Upload-Checksum, \
    Upload-Concat, \
    Upload-Defer-Length, Upload-Length, Upload-Metadata, Upload-Offset, X-HTTP-Method-Override, \
    X-Requested-With";

/// Longest list of fields that the answer repeats, in bytes.
const ASKED_BYTES_MAX: usize = 2048;

/// Seconds for which browsers cache the answer to a preflight; Chromium's maximum.
const MAX_AGE: &str = "7200";

/// The CORS fields of an answer.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) enum Cors {
    /// None: CORS is off.
    #[default]
    Silent,
    /// Only `Vary: Origin`: this site is not allowed.
    Other,
    /// This site is allowed.
    Allowed(String),
    /// All sites are allowed.
    All,
}

impl Cors {
    /// Decides by the request's fields; none when the request could not be parsed.
    pub(super) fn of(origins: &Origins, fields: Option<&Fields>) -> Self {
        Self::by(origins, fields.and_then(|fields| fields.one("origin")))
    }

    fn by(origins: &Origins, asked: Option<&[u8]>) -> Self {
        match origins {
            Origins::None => Self::Silent,
            Origins::Any => Self::All,
            Origins::List(list) => {
                let known = list.iter().find(|one| asked == Some(one.as_bytes()));
                known.map_or(Self::Other, |one| Self::Allowed(one.clone()))
            }
        }
    }

    /// Decides by the first bytes of a request that is refused before it is parsed, from its
    /// `Origin` line.
    pub(super) fn of_unread(origins: &Origins, bytes: &[u8]) -> Self {
        const NAME: &[u8] = b"origin:";
        let line = bytes.split(|&byte| byte == b'\n').find_map(|line| {
            let (name, value) = line.split_at_checked(NAME.len())?;
            name.eq_ignore_ascii_case(NAME).then(|| value.trim_ascii())
        });
        Self::by(origins, line)
    }

    /// Adds the fields to an answer.
    pub(super) fn put(&self, response: &mut Response) {
        let origin = match self {
            Self::Silent => return,
            Self::Other => "",
            Self::Allowed(origin) => origin,
            Self::All => "*",
        };
        if *self != Self::All {
            response.add("Vary", "Origin");
        }
        if !origin.is_empty() {
            response.add("Access-Control-Allow-Origin", origin);
            response.add("Access-Control-Expose-Headers", EXPOSED);
            response.add("Timing-Allow-Origin", origin);
            // A page with COEP embeds only resources with this field.
            response.add("Cross-Origin-Resource-Policy", "cross-origin");
        }
    }

    /// Completes the answer to a preflight (section 3.2.2).
    pub(super) fn preflight(&self, fields: &Fields, mut response: Response) -> Response {
        let is_allowed = matches!(self, Self::Allowed(_) | Self::All);
        if !is_allowed || fields.one("access-control-request-method").is_none() {
            return response;
        }
        response.add("Access-Control-Allow-Methods", METHODS);
        response.add("Access-Control-Allow-Headers", &asked(fields).unwrap_or(FIELDS.to_owned()));
        response.add("Access-Control-Max-Age", MAX_AGE);
        // https://wicg.github.io/private-network-access: a public page contacts a private server.
        if fields.one("access-control-request-private-network") == Some(b"true") {
            response.add("Access-Control-Allow-Private-Network", "true");
        }
        response.add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers");
        response
    }
}

/// The fields that a page wants to send, if they are valid names. All are allowed: rights come from
/// tokens, not from other fields.
fn asked(fields: &Fields) -> Option<String> {
    let mut names = Vec::new();
    let mut len = 0;
    for name in fields.list("access-control-request-headers") {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        len += name.len() + 2;
        if !name.iter().all(plain) || len > ASKED_BYTES_MAX {
            return None;
        }
        names.push(String::from_utf8_lossy(name));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::framing::Version;
    use crate::response::Persistence;

    fn head(response: &Response) -> String {
        let head = response.head(Version::Http11, Persistence::Keep, SystemTime::UNIX_EPOCH);
        String::from_utf8(head).unwrap()
    }

    fn told(origins: &Origins, fields: &[(&str, &str)]) -> String {
        let fields = Fields::of(fields);
        let cors = Cors::of(origins, Some(&fields));
        let mut response = cors.preflight(&fields, Response::empty(204));
        cors.put(&mut response);
        head(&response)
    }

    #[test]
    fn w01_only_allowed_sites_get_cors_fields() {
        let list =
            Origins::List(vec!["https://app.example".into(), "http://localhost:5173".into()]);
        for (origin, allowed) in [
            ("https://app.example", true),
            ("http://localhost:5173", true),
            ("http://app.example", false),
            ("https://app.example.evil", false),
            ("https://app.example:8443", false),
            ("null", false),
        ] {
            let head = told(&list, &[("origin", origin)]);
            let line = format!("Access-Control-Allow-Origin: {origin}\r\n");
            assert_eq!(head.contains(&line), allowed, "{head}");
            assert_eq!(head.contains("Access-Control-"), allowed, "{head}");
            assert!(head.contains("Vary: Origin\r\n"), "caches must know: {head}");
        }
        assert!(!told(&Origins::None, &[("origin", "https://app.example")]).contains("Access"));
        let all = told(&Origins::Any, &[]);
        assert!(
            all.contains("Access-Control-Allow-Origin: *\r\n") && !all.contains("Vary"),
            "{all}"
        );
        for head in [all, told(&list, &[("origin", "https://app.example")])] {
            assert!(!head.contains("Credentials"), "a browser's own passwords stay out: {head}");
        }
    }

    #[test]
    fn w01_a_preflight_lists_methods_and_fields() {
        let asked = "range,cmcd-request,authorization,tus-resumable,x-odd";
        let fields = [
            ("origin", "https://app.example"),
            ("access-control-request-method", "PATCH"),
            ("access-control-request-headers", asked),
        ];
        let head = told(&Origins::Any, &fields);
        let names = "range, cmcd-request, authorization, tus-resumable, x-odd";
        assert!(head.contains(&format!("Access-Control-Allow-Headers: {names}\r\n")), "{head}");
        for method in ["PATCH", "PROPFIND", "GET"] {
            let line = head.lines().find(|line| line.starts_with("Access-Control-Allow-Methods"));
            assert!(line.is_some_and(|line| line.contains(method)), "{head}");
        }
        assert!(head.contains("Access-Control-Max-Age: 7200\r\n") && !head.contains("Private"));
        let near = [&fields[..2], &[("access-control-request-private-network", "true")]].concat();
        let head = told(&Origins::Any, &near);
        assert!(head.contains("Access-Control-Allow-Private-Network: true\r\n"), "{head}");
        assert!(head.contains("CMCD-Request") && head.contains("Tus-Resumable"), "{head}");
        let odd = [&fields[..2], &[("access-control-request-headers", "a b, c\u{7f}")]].concat();
        assert!(
            told(&Origins::Any, &odd).contains("CMCD-Request"),
            "an invalid list is not repeated"
        );
        // Without `Access-Control-Request-Method`, OPTIONS is answered as usual.
        assert!(!told(&Origins::Any, &fields[..1]).contains("Allow-Methods"));
    }

    #[test]
    fn w01_a_refusal_without_parsing_uses_the_origin_line() {
        let list = Origins::List(vec!["https://app.example".into()]);
        let allowed = Cors::Allowed("https://app.example".into());
        for (bytes, meant) in [
            ("GET / HTTP/1.1\r\nHost: h\r\nOrigin: https://app.example\r\n\r\n", allowed.clone()),
            ("GET / HTTP/1.1\r\norigin:https://app.example", allowed),
            ("GET / HTTP/1.1\r\nOrigin: https://app.example.evil\r\n", Cors::Other),
            ("GET / HTTP/1.1\r\nX-Origin: https://app.example\r\n", Cors::Other),
            ("GET / HTTP/1.1\r\nOrigin: https://app.exam", Cors::Other),
            ("", Cors::Other),
        ] {
            assert_eq!(Cors::of_unread(&list, bytes.as_bytes()), meant, "{bytes}");
        }
        assert_eq!(Cors::of_unread(&Origins::Any, b""), Cors::All);
        assert_eq!(Cors::of_unread(&Origins::None, b"Origin: x\r\n"), Cors::Silent);
    }
}
