//! Proxies in front of the HTTP side, its public URL, and permitted sites.
//!
//! Promise: by default, no proxy's statement about a client is trusted, and no page of another site
//! can read anything.

use std::net::IpAddr;

use tactus_core::path::{RequestPath, encode_segment};

use tactus_notation::net::Net;

/// Proxies whose statements about their clients are trusted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Proxies {
    /// Their addresses.
    pub trusted: Vec<Net>,
    /// Whether every peer of a Unix socket is a trusted proxy.
    pub unix: bool,
    /// The request field that they set.
    pub field: ForwardedField,
}

impl Proxies {
    /// Whether there are no trusted proxies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trusted.is_empty() && !self.unix
    }

    /// Whether `ip` is a trusted proxy.
    #[must_use]
    pub fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.trusted.iter().any(|net| net.contains(ip))
    }
}

/// The field in which trusted proxies name their clients. The other field is ignored, because a
/// proxy forwards it as the client wrote it.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ForwardedField {
    /// `X-Forwarded-For`, with `X-Forwarded-Proto` and `X-Forwarded-Host`.
    #[default]
    #[serde(rename = "X-Forwarded-For")]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// The URL by which clients reach this server, when it differs from the address it listens on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PublicUrl {
    /// `https://tv.example`; none when only the prefix is set.
    pub origin: Option<String>,
    /// The prefix of each path, without a slash at its end: empty, or `/media`.
    pub prefix: String,
}

impl PublicUrl {
    /// Parses `https://tv.example/media/`, or a prefix alone.
    ///
    /// # Errors
    /// The text is invalid; the message shows the valid forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a public URL; write it like \"https://tv.example/media/\", or \
                 only the prefix like \"/media/\""
            )
        };
        let (origin, path) = match text.split_once("://") {
            Some((scheme, rest)) => {
                let end = rest.find('/').unwrap_or(rest.len());
                let (host, path) = rest.split_at(end);
                let scheme = scheme.to_ascii_lowercase();
                if !["http", "https"].contains(&&*scheme) || !is_authority(host) {
                    return Err(wrong());
                }
                (Some(format!("{scheme}://{}", host.to_ascii_lowercase())), path)
            }
            None => (None, text),
        };
        if path.is_empty() && origin.is_some() {
            return Ok(Self { origin, prefix: String::new() });
        }
        let graphic = path.bytes().all(|byte| byte.is_ascii_graphic());
        if !graphic || path.contains(['?', '#']) {
            return Err(wrong());
        }
        let path = RequestPath::parse(path.as_bytes()).map_err(|_| wrong())?;
        let mut prefix = String::new();
        for segment in path.segments() {
            prefix.push('/');
            encode_segment(segment, &mut prefix);
        }
        Ok(Self { origin, prefix })
    }

    /// Its host and port, as in `Host`.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        Some(self.origin.as_deref()?.split_once("://")?.1)
    }

    /// Its host without the port.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        let authority = self.authority()?;
        let end = match authority.find(']') {
            Some(bracket) => bracket + 1,
            None => authority.find(':').unwrap_or(authority.len()),
        };
        Some(&authority[..end])
    }
}

/// A host name or an address, with an optional port.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((ip, rest)) => {
            (ip.parse::<std::net::Ipv6Addr>().is_ok(), rest.strip_prefix(':').or(Some(rest)))
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            (!host.is_empty() && host.bytes().all(plain), port)
        }
    };
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0);
    host && port.is_none_or(is_port)
}

/// Sites whose scripts may use this server (CORS).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Origins {
    /// None.
    #[default]
    None,
    /// All sites.
    Any,
    /// These sites: `https://app.example`.
    List(Vec<String>),
}

/// Parses a site as browsers write it in `Origin`: a scheme, a host, and a port unless it is the
/// scheme's default.
///
/// # Errors
/// The text is invalid; the message shows the valid forms.
pub fn origin(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "{text:?} is not an origin; write scheme and host like \"https://app.example\" or \
             \"http://localhost:5173\", or \"*\" alone for all"
        )
    };
    // RFC 6454: `null` is the origin of pages without a site.
    if text == "null" {
        return Ok(text.into());
    }
    let url = PublicUrl::parse(text.strip_suffix('/').unwrap_or(text)).map_err(|_| wrong())?;
    let origin = url.origin.filter(|_| url.prefix.is_empty()).ok_or_else(wrong)?;
    let usual = if origin.starts_with("https:") { ":443" } else { ":80" };
    Ok(origin.strip_suffix(usual).map_or(origin.clone(), str::to_owned))
}

/// What a browser may run of a stored page (HTML, SVG, XML).
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum StoredPages {
    /// Nothing.
    #[default]
    Sandbox,
    /// Scripts, in an opaque origin: they have the access of other sites.
    Scripts,
    /// Everything, with the access of this server's own pages.
    Trusted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w03_a_public_url_has_a_site_and_a_prefix_or_one_of_them() {
        let of = |text: &str| {
            let url = PublicUrl::parse(text).ok()?;
            Some((url.origin.clone().unwrap_or_default(), url.prefix))
        };
        for (text, origin, prefix) in [
            ("https://tv.example", "https://tv.example", ""),
            ("https://tv.example/", "https://tv.example", ""),
            ("HTTPS://TV.example:8443/media", "https://tv.example:8443", "/media"),
            ("http://[::1]:80/a/b%20c/", "http://[::1]:80", "/a/b%20c"),
            ("/media/", "", "/media"),
            ("/", "", ""),
        ] {
            assert_eq!(of(text), Some((origin.into(), prefix.into())), "{text}");
        }
        for text in [
            "",
            "media",
            "ftp://tv.example",
            "https://",
            "https:///a",
            "https://u@tv.example",
            "https://tv.example/?a",
            "/a#b",
            "/../a",
            "https://tv.example:x",
            "/a b",
            "https://[x]",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        let host = |text: &str| PublicUrl::parse(text).unwrap().host().map(str::to_owned);
        assert_eq!(host("https://tv.example:8443/x").as_deref(), Some("tv.example"));
        assert_eq!(host("http://[::1]:80/").as_deref(), Some("[::1]"));
    }

    #[test]
    fn w01_a_site_is_written_as_browsers_write_it() {
        for (text, meant) in [
            ("https://App.example", "https://app.example"),
            ("https://app.example/", "https://app.example"),
            ("https://app.example:443", "https://app.example"),
            ("http://localhost:5173", "http://localhost:5173"),
            ("null", "null"),
        ] {
            assert_eq!(origin(text).as_deref(), Ok(meant), "{text}");
        }
        for text in ["", "*", "app.example", "https://app.example/x", "/x", "file://"] {
            assert!(origin(text).is_err(), "{text}");
        }
    }
}
