//! The settings of the HTTP server: addresses, limits, proxies in front of it, its public URL,
//! permitted sites, rates of streams, uploads and their principals.
//!
//! Promise: by default, no proxy's statement about a client is trusted, and no page of another site
//! can read anything.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tactus_control::rights::{Readers, Rights};
use tactus_control::settings::{ClientShare, Volume};
use tactus_control::socket_file::UnixSocket;
use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};
use tactus_notation::net::Net;
use tactus_notation::units::Percent;

/// Addresses, and the limits of requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpSettings {
    /// Where to listen.
    pub addresses: Vec<SocketAddr>,
    /// Socket files to listen on.
    pub unix_sockets: Vec<UnixSocket>,
    /// Addresses for proxies that speak the PROXY protocol.
    pub proxy_protocol: Vec<SocketAddr>,
    /// Proxies whose client addresses are trusted.
    pub proxies: Proxies,
    /// The URL by which clients reach this server.
    pub public: PublicUrl,
    /// Names that a request's `Host` may have; empty allows all.
    pub allowed_hosts: Vec<String>,
    /// Sites whose pages may use this server (CORS).
    pub origins: Origins,
    /// What a browser may run of stored pages.
    pub stored_pages: StoredPages,
    /// Whether directories are listed.
    pub listing: bool,
    /// Who may read titles.
    pub readers: Readers,
    /// Most connections at once.
    pub connections_max: u32,
    /// Most connections from one address at once; behind a trusted proxy, most requests of one
    /// client at once.
    pub connections_per_address_max: u32,
    /// Abuse score at which an address is refused; 0: never.
    pub abuse_score_max: u32,
    /// How long an address is refused.
    pub abuse_refusal: Nanos,
    /// Longest request line.
    pub request_line_max: Bytes,
    /// Most header fields.
    pub fields_max: u32,
    /// Most bytes of header fields.
    pub fields_size_max: Bytes,
    /// Most bytes of a body of GET or HEAD, which is read and discarded.
    pub body_max: Bytes,
    /// Most ranges in one request.
    pub ranges_max: u32,
    /// Time for a request's head to arrive, and for a new connection to begin one.
    pub head_timeout: Nanos,
    /// Time that a connection may wait for its next request.
    pub idle_timeout: Nanos,
    /// Time that running deliveries have to end after SIGTERM.
    pub drain_limit: Nanos,
}

/// Rates of streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Rate of a title whose own rate is not known; `None` is a best-effort download.
    pub default: Option<BitRate>,
    /// The slowest permitted rate.
    pub min: BitRate,
    /// What a player may hold of a title of a variable rate, in time of the title.
    pub player_buffer: Nanos,
    /// How many times its own rate a segment of HLS or DASH is sent at.
    pub segment_multiple: u32,
    /// A title that plays for less time is a segment, even if no playlist names it.
    pub segment_max: Nanos,
    /// Streams at their title's own rate.
    pub title: RateClass,
    /// Streams whose request names a rate (`?rate=`).
    pub asked: RateClass,
    /// Streams whose player names a rate (CMCD `rtp`).
    pub cmcd: RateClass,
}

/// The limits of streams whose rate comes from one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateClass {
    /// Added to the rate.
    pub headroom: Percent,
    /// The fastest permitted rate; higher rates are lowered to it.
    pub ceiling: BitRate,
    /// Media time that is sent at once at the start.
    pub start_burst: Nanos,
    /// How often a stream sends.
    pub tick: Tick,
    /// The share of each resource that streams of one client in this class may reserve.
    pub client_share: ClientShare,
}

/// Longest burst of a player's whole buffer. Access points are seldom further apart: the encoder
/// x264 makes one at least each 250 video frames.
const WHOLE_BURST_MAX: Nanos = Nanos(10 * SECOND.0);
/// What VLC fills by default behind the target of a seek, before it shows a picture.
const SEEK_RESERVE: Nanos = SECOND;

impl Rate {
    /// The limits while memory is spare, for the beginning of a title of a variable rate: at once
    /// comes what a player may hold. A player that begins with less relies on what comes
    /// meanwhile. `None` if that is no more than the start burst, or if nothing comes at once.
    pub fn of_whole_buffer(&self) -> Option<Self> {
        self.with_burst(self.player_buffer)
    }

    /// The same for a seek. Its target lies behind an access point, and most players decode from
    /// there and then fill a reserve.
    pub fn of_seek(&self) -> Option<Self> {
        self.with_burst(self.player_buffer + SEEK_RESERVE)
    }

    fn with_burst(&self, start_burst: Nanos) -> Option<Self> {
        let start_burst = start_burst.min(WHOLE_BURST_MAX);
        let is_more = (Nanos(1)..start_burst).contains(&self.title.start_burst);
        is_more.then(|| Self { title: RateClass { start_burst, ..self.title }, ..self.clone() })
    }
}

impl RateClass {
    /// The effective rate of a stream that names `rate`. Rounds down.
    pub fn in_force(&self, rate: BitRate) -> BitRate {
        let extra = self.headroom.of(rate.0);
        BitRate(rate.0.saturating_add(extra)).min(self.ceiling)
    }

    /// Bytes that a stream at `rate` sends at once at its start.
    pub fn burst(&self, rate: BitRate) -> Bytes {
        rate.bytes_in(self.start_burst)
    }
}

impl Default for Rate {
    fn default() -> Self {
        let class = |start_burst, client_share| RateClass {
            headroom: Percent(0),
            ceiling: BitRate(1_000_000_000),
            start_burst,
            tick: Tick::Ms62,
            client_share,
        };
        Self {
            default: None,
            min: BitRate(16_000),
            player_buffer: SECOND.times(2),
            segment_multiple: 5,
            segment_max: SECOND.times(5),
            // A title's own rate is the same for all viewers; a client's `?rate=` can be any.
            title: class(SECOND, ClientShare::All),
            asked: class(Nanos(0), ClientShare::Fair),
            cmcd: class(SECOND, ClientShare::Fair),
        }
    }
}

/// Uploads: principals and limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// All principals; without any, uploads are refused.
    pub principals: Vec<Principal>,
    /// The largest title.
    pub object_max: Bytes,
    /// Most unfinished uploads, of all principals together.
    pub open_max: u32,
    /// Most unfinished uploads of one principal.
    pub open_per_principal_max: u32,
    /// How long a resumable upload is kept without new bytes.
    pub expiry: Nanos,
    /// Most WebDAV write locks, of all principals together.
    pub locks_max: u32,
    /// Most WebDAV write locks of one principal.
    pub locks_per_principal_max: u32,
    /// Longest lifetime of a lock without a refresh.
    pub lock_timeout_max: Nanos,
}

impl Default for Upload {
    fn default() -> Self {
        let day = SECOND.times(86_400);
        Self {
            principals: vec![],
            object_max: Bytes(MIB * MIB),
            open_max: 10_000,
            open_per_principal_max: 100,
            expiry: day,
            locks_max: 4096,
            locks_per_principal_max: 1024,
            lock_timeout_max: SECOND.times(3600),
        }
    }
}

/// A principal, identified by a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// Its name in logs and quotas.
    pub name: String,
    /// Its token.
    pub token: Token,
    /// Bytes of titles that it may store; `None`: limited only by the disk.
    pub quota: Option<Bytes>,
    /// Its rights, and the paths where they hold.
    pub rights: Rights,
}

/// A secret, or its location.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Token {
    /// A file with the secret; surrounding white space does not count.
    File(PathBuf),
    /// The secret's SHA-256.
    Sha256([u8; 32]),
}

/// What uploads start with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadSettings {
    /// Principals and limits.
    pub upload: Upload,
    /// Who may read titles.
    pub readers: Readers,
    /// The disks, in order.
    pub volumes: Vec<Volume>,
    /// The directory for state that must outlast the server; none: nothing is stored.
    pub state: Option<PathBuf>,
    /// Whether the server records titles, which needs the volumes without a principal as well.
    pub records: bool,
}

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
    fn r05_a_seek_has_what_a_player_holds_and_a_reserve_unless_no_burst_is_configured() {
        let of = |start_burst, player_buffer| {
            let mut rate = Rate { player_buffer, ..Rate::default() };
            rate.title.start_burst = start_burst;
            let burst = |whole: Option<Rate>| {
                let whole = whole?;
                assert_eq!(whole.title.tick, rate.title.tick);
                Some(whole.title.start_burst.0 / SECOND.0)
            };
            (burst(rate.of_whole_buffer()), burst(rate.of_seek()))
        };
        let [one, two, ten] = [1, 2, 10].map(|span| SECOND.times(span));
        assert_eq!(of(one, two), (Some(2), Some(3)));
        assert_eq!(of(two, two), (None, Some(3)));
        assert_eq!(of(two, one), (None, None));
        assert_eq!(of(one, ten), (Some(10), Some(10)));
        assert_eq!(of(one, SECOND.times(600)), (Some(10), Some(10)));
        assert_eq!(of(Nanos(0), two), (None, None));
    }

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
