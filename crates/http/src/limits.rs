//! All limits of the HTTP side, with the reason for each value. All can be lowered.

use std::time::Duration;

use tactus_core::units::{KIB, MIB, SECOND};

use super::host::Hosts;
use super::settings::{HttpSettings, Origins, Proxies, PublicUrl, StoredPages};

/// Limits on the resources of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of one listener. One more gets 503 and is closed.
    pub connections_max: usize,
    /// Connections of one address (an IPv6 network of 64 bits counts as one), or its requests
    /// through a trusted proxy. One more gets 429.
    pub connections_per_address_max: usize,
    /// Open files that are reserved for titles, logs and the engine; below this number accepting
    /// pauses.
    pub descriptors_reserve: usize,
    /// Time from the first wait for a request to the end of its head.
    pub head_time: Duration,
    /// Time for which a kept connection may be silent.
    pub keep_alive_time: Duration,
    /// Longest request line, in bytes.
    pub request_line_max: usize,
    /// Longest header section, in bytes.
    pub fields_bytes_max: usize,
    /// Most fields in a request.
    pub fields_max: usize,
    /// Most ranges of one request.
    pub ranges_max: usize,
    /// Longest unused request body that is read and discarded, in bytes.
    pub body_bytes_max: u64,
    /// A request body must bring `body_bytes_min` in every span of this length.
    pub body_time: Duration,
    /// See `body_time`.
    pub body_bytes_min: u64,
    /// Time for a client to take a short answer.
    pub answer_time: Duration,
    /// Memory for answers that are generated here (listings, metrics), for all connections
    /// together.
    pub answers_bytes_max: usize,
    /// Time for which a closed connection is still read, so that the answer arrives.
    pub linger_time: Duration,
    /// Most bytes that are discarded in that time.
    pub linger_bytes_max: u64,
    /// Longest time for which the rest of a refused body is read.
    pub linger_body_time: Duration,
    /// Most bytes of such a body that are discarded.
    pub linger_body_bytes_max: u64,
    /// Silence after which such a body counts as ended.
    pub linger_body_silence: Duration,
    /// Abuse score at which an address is refused; one point is forgiven per second. Zero: never.
    pub abuse_score_max: u32,
    /// Duration of a refusal.
    pub abuse_refusal: Duration,
    /// Proxies that are trusted to name their clients.
    pub proxies: Proxies,
    /// The URL by which clients reach this server.
    pub public: PublicUrl,
    /// Sites whose pages may use this server.
    pub origins: Origins,
    /// The rights of stored pages in a browser.
    pub stored_pages: StoredPages,
    /// Accepted host names.
    pub hosts: Hosts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            connections_per_address_max: CONNECTIONS_PER_ADDRESS_MAX,
            descriptors_reserve: DESCRIPTORS_RESERVE,
            head_time: HEAD_TIME,
            keep_alive_time: KEEP_ALIVE_TIME,
            request_line_max: REQUEST_LINE_MAX,
            fields_bytes_max: FIELDS_BYTES_MAX,
            fields_max: FIELDS_MAX,
            ranges_max: tactus_core::range::RANGES_MAX,
            body_bytes_max: BODY_BYTES_MAX,
            body_time: BODY_TIME,
            body_bytes_min: BODY_BYTES_MIN,
            answer_time: ANSWER_TIME,
            answers_bytes_max: ANSWERS_BYTES_MAX,
            linger_time: LINGER_TIME,
            linger_bytes_max: LINGER_BYTES_MAX,
            linger_body_time: LINGER_BODY_TIME,
            linger_body_bytes_max: LINGER_BODY_BYTES_MAX,
            linger_body_silence: LINGER_BODY_SILENCE,
            abuse_score_max: ABUSE_SCORE_MAX,
            abuse_refusal: ABUSE_REFUSAL,
            proxies: Proxies::default(),
            public: PublicUrl::default(),
            origins: Origins::default(),
            stored_pages: StoredPages::default(),
            hosts: Hosts::Any,
        }
    }
}

impl From<&HttpSettings> for Limits {
    fn from(http: &HttpSettings) -> Self {
        Self {
            connections_max: http.connections_max as usize,
            connections_per_address_max: http.connections_per_address_max as usize,
            head_time: Duration::from_nanos(http.head_timeout.0),
            keep_alive_time: Duration::from_nanos(http.idle_timeout.0),
            request_line_max: http.request_line_max.0 as usize,
            fields_bytes_max: http.fields_size_max.0 as usize,
            fields_max: http.fields_max as usize,
            ranges_max: http.ranges_max as usize,
            body_bytes_max: http.body_max.0,
            abuse_score_max: http.abuse_score_max,
            abuse_refusal: Duration::from_nanos(http.abuse_refusal.0),
            proxies: http.proxies.clone(),
            public: http.public.clone(),
            origins: http.origins.clone(),
            stored_pages: http.stored_pages,
            hosts: match &http.allowed_hosts[..] {
                [] => Hosts::Any,
                names => Hosts::Named(names.to_vec()),
            },
            ..Self::default()
        }
    }
}

/// Ten thousand idle connections take about 40 MB.
const CONNECTIONS_MAX: usize = 10_000;
/// A household with a player on every screen needs a tenth of this.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 100;
/// Twice the remembered titles: those in the catalogue, and those that streams hold after eviction.
const DESCRIPTORS_RESERVE: usize = 2 * tactus_storage::catalogue::KNOWN_TITLES_MAX;
/// A head fits into one or two packets; ten seconds suffice for two lost ones on the worst path.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Longer than a segment of adaptive streaming, shorter than the timeout of most middle boxes.
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(60);
/// RFC 9112 section 3 recommends at least 8,000.
const REQUEST_LINE_MAX: usize = 8 * KIB as usize;
/// Four times what browsers with many cookies send.
const FIELDS_BYTES_MAX: usize = 32 * KIB as usize;
/// Browsers send about twenty.
const FIELDS_MAX: usize = 100;
/// No served request needs a body. Bodies up to this length are read over, to keep the connection.
const BODY_BYTES_MAX: u64 = 64 * KIB;
/// With `BODY_BYTES_MIN`: 1 KiB/s, a tenth of the slowest modem that plays anything.
const BODY_TIME: Duration = Duration::from_secs(30);
/// See `BODY_TIME`.
const BODY_BYTES_MIN: u64 = 30 * KIB;
/// A listing of 10,000 entries is about 2 MB: half a minute is 0.5 Mbit/s.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Thirty of the longest listings, or three hundred pages of metrics.
const ANSWERS_BYTES_MAX: usize = 64 * MIB as usize;
/// One round trip of the longest path is below a second.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// The usual window: bytes that a client may have sent before it has read the answer.
const LINGER_BYTES_MAX: u64 = 256 * KIB;
/// Clients of the library neon (cadaver, davfs2) send all of a body before they read the answer.
/// The value is nginx's.
const LINGER_BODY_TIME: Duration = Duration::from_secs(30);
/// As many bytes as arrive at 70 Mbit/s in that time. Clients with longer bodies should use
/// `Expect`.
const LINGER_BODY_BYTES_MAX: u64 = 256 * MIB;
/// The value of nginx.
const LINGER_BODY_SILENCE: Duration = Duration::from_secs(5);
/// Ten slow heads or five framing attacks.
const ABUSE_SCORE_MAX: u32 = 100;
/// Long enough to slow an attack down, short enough to forgive a broken client.
const ABUSE_REFUSAL: Duration = Duration::from_secs(60);

/// The size of one read, and of a fresh buffer.
pub(super) const READ_BYTES: usize = 4 * KIB as usize;

/// The size of one read of discarded bytes.
pub(super) const DISCARD_BYTES: usize = 64 * KIB as usize;

// Promise H01: a connection that has not finished its head holds at most 64 KiB.
const _: () = assert!(REQUEST_LINE_MAX + FIELDS_BYTES_MAX + READ_BYTES <= 64 * KIB as usize);
const _: () = assert!(HEAD_TIME.as_nanos() as u64 == 10 * SECOND.0);
