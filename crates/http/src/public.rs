//! The public URL of this server, as it occurs in URLs from and for clients.
//!
//! Promise: a path of this server has one meaning, whether a client writes it with the public host
//! and prefix or in the server's own form. A URL of another server never counts as one of this
//! server.

use tactus_core::path::{RequestPath, encode_segment};

use super::request::Request;
use super::settings::PublicUrl;
use super::target::{self, Target};

/// The prefix of paths in answers to `request`.
pub(super) fn prefix<'a>(public: &'a PublicUrl, request: &Request) -> &'a str {
    match request.hop.as_ref().is_none_or(|hop| hop.is_public) {
        true => &public.prefix,
        false => "",
    }
}

/// Whether `authority`, a host with an optional port, is this server, by the request itself, by the
/// forwarding proxy, or by the configuration.
pub(super) fn is_ours(public: &PublicUrl, request: &Request, authority: &[u8]) -> bool {
    let host = request.fields.one("host");
    let forwarded = forwarded_host(request).map(str::as_bytes);
    let public = public.authority().map(str::as_bytes);
    [host, forwarded, public].into_iter().flatten().any(|own| own.eq_ignore_ascii_case(authority))
}

/// Why a URL from a client is not a path of this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UrlError {
    /// It is not a path.
    NoPath,
    /// It belongs to another server.
    Elsewhere,
}

/// The path in `url`: a URL of this server in the client's form, or a path.
pub(super) fn path_of(
    public: &PublicUrl,
    request: &Request,
    url: &[u8],
) -> Result<RequestPath, UrlError> {
    let bad = || UrlError::NoPath;
    let (target, authority) = target::of_url(url).map_err(|_| bad())?;
    if !authority.is_none_or(|authority| is_ours(public, request, authority)) {
        return Err(UrlError::Elsewhere);
    }
    let is_public = authority.is_some_and(|authority| {
        public.authority().is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(authority))
    });
    match target {
        Target::Path { path, query: None } => {
            without_prefix(public, request, path, is_public).ok_or(UrlError::Elsewhere)
        }
        _ => Err(bad()),
    }
}

/// Whether an `Origin` is this server's own.
pub(super) fn is_own_origin(public: &PublicUrl, request: &Request, origin: &[u8]) -> bool {
    let host = ["http://", "https://"].iter().find_map(|s| origin.strip_prefix(s.as_bytes()));
    host.is_some_and(|host| is_ours(public, request, host))
}

/// Converts a public `path` to the server's form by removing the public prefix; none if the host is
/// the public one but the prefix differs.
pub(super) fn without_prefix(
    public: &PublicUrl,
    request: &Request,
    path: RequestPath,
    is_public_host: bool,
) -> Option<RequestPath> {
    let prefix = prefix(public, request);
    if prefix.is_empty() {
        return Some(path);
    }
    let above = RequestPath::parse(prefix.as_bytes()).ok()?;
    let depth = above.segments().count();
    if !above.segments().eq(path.segments().take(depth)) {
        return (!is_public_host).then_some(path);
    }
    let mut rest = String::new();
    for segment in path.segments().skip(depth) {
        rest.push('/');
        encode_segment(segment, &mut rest);
    }
    if path.is_directory() || rest.is_empty() {
        rest.push('/');
    }
    RequestPath::parse(rest.as_bytes()).ok()
}

/// The host that the client requested from a trusted proxy.
fn forwarded_host(request: &Request) -> Option<&str> {
    request.hop.as_ref().and_then(|hop| hop.host.as_deref())
}

/// The URL of this server from the view of the sender of `request`, without a slash at its end.
pub(super) fn base(public: &PublicUrl, request: &Request) -> String {
    let prefix = prefix(public, request);
    if let Some(origin) =
        public.origin.as_ref().filter(|_| request.hop.as_ref().is_none_or(|hop| hop.is_public))
    {
        return format!("{origin}{prefix}");
    }
    let scheme = request.hop.as_ref().and_then(|hop| hop.scheme.as_deref()).unwrap_or("http");
    let own = request.fields.one("host").map(String::from_utf8_lossy).unwrap_or_default();
    let host = forwarded_host(request).filter(|host| is_plain(host)).unwrap_or(&own);
    format!("{scheme}://{host}{prefix}")
}

/// Whether the characters of `host` may stand in a URL as host and port.
fn is_plain(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(plain)
}
