//! Configuration: file → raw (what was written) → checked (what it means).
//!
//! Promise: a [`Config`] is complete and consistent: every key has a value, every value lies in its
//! range, and each mistake in a file is reported with line and column. It reads one file and
//! nothing else: no layers, no environment. What only the host can tell (the size of the memory, the
//! speed of the link, the kind of disk) stays [`Auto`] here and is found out at start.

pub mod address;
pub mod error;
pub mod pattern;
pub mod placement;
pub mod rights;
pub mod secret;
pub mod units;

pub mod recording;

pub mod class;

pub mod channel;

pub mod rtsp;

pub mod http;

pub mod raw;

mod written;

mod unix_socket;

mod check;

mod file;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos};

use self::http::{Origins, Proxies, PublicUrl, StoredPages};
use channel::Channel;
pub(crate) use check::TITLES_MAX;
use class::{Class, Classes};
pub use error::ConfigError;
pub use file::{ConfigFile, Key};
use placement::CorePlan;
pub use raw::{AccessForm, LogForm, Sendfile, Unfinished};
use recording::Recording;
pub use rights::Readers;
use rights::Rights;
use rtsp::Rtsp;
use units::Percent;
pub use unix_socket::UnixSocket;

/// A value that the operator has given, or that is found out at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Auto<T> {
    /// Found out at start.
    Auto,
    /// Given.
    Set(T),
}

impl<T> Auto<T> {
    /// The given value, or what `found` says.
    pub fn or_else(self, found: impl FnOnce() -> T) -> T {
        match self {
            Self::Auto => found(),
            Self::Set(value) => value,
        }
    }
}

/// Everything that can be configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Listening, and the limits of requests.
    pub http: Http,
    /// Metrics and status.
    pub admin: Admin,
    /// The disks, at least one once a directory is known.
    pub volumes: Vec<Volume>,
    /// What the server may hold.
    pub memory: Memory,
    /// The network path.
    pub link: Link,
    /// How fast streams go.
    pub rate: Rate,
    /// Share of each real-time core's time that streams may fill.
    pub cpu_budget: Percent,
    /// Which server sits on which core, and with which right.
    pub cores: Cores,
    /// How datagrams leave.
    pub packets: Packets,
    /// The link that is kept full, so that it keeps the time of its datagrams.
    pub gap_frames: Option<GapFrames>,
    /// Deliveries without a rate.
    pub best_effort: BestEffort,
    /// When a client that does not take its bytes is ended.
    pub slow_reader: SlowReader,
    /// Who may put titles here.
    pub upload: Upload,
    /// Live inputs that are recorded from the start.
    pub recordings: Vec<Recording>,
    /// Parts of the link, for what leaves as datagrams.
    pub classes: Classes,
    /// Titles that are sent as datagrams from the start.
    pub channels: Vec<Channel>,
    /// Titles that are asked for by RTSP.
    pub rtsp: Rtsp,
    /// The directory for state that must outlast the server and is in no configuration; none:
    /// nothing is stored.
    pub state: Option<PathBuf>,
    /// Whether problems of the host or the configuration fail the start and the readiness check.
    pub strict: bool,
    /// Contents, form and destination of the logs.
    pub log: Log,
}

/// Contents, form and destination of the logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// The form of the log on standard error.
    pub form: LogForm,
    /// The form of the access log.
    pub access: AccessForm,
    /// Where the access log goes.
    pub access_to: AccessTo,
}

/// Where the access log goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessTo {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, which is opened anew at SIGHUP.
    File(PathBuf),
}

/// Listening, and the limits of requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Http {
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
    /// What stored pages may run in a browser.
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
    /// Most bytes of a body that comes with GET or HEAD; it is read and thrown away.
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

/// Metrics and status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    /// Their own address, if any.
    pub address: Option<SocketAddr>,
    /// Their own socket files.
    pub unix_sockets: Vec<UnixSocket>,
    /// Host names that are accepted there besides this machine's; `*` accepts every name.
    pub allowed_hosts: Vec<String>,
    /// Whether they are served at the addresses of [`Http`] too.
    pub on_http: bool,
}

/// One disk's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// The directory.
    pub path: PathBuf,
    /// Where its files appear: `/`, or `/name/`.
    pub mount: String,
    /// One turn of the disk: divides a second, or is a whole number of them. By default 250 ms on
    /// flash, 4 s on a disk with an arm.
    pub cycle: Auto<Nanos>,
    /// Size of a read. By default 256 KiB on flash, 1 MiB on a disk with an arm.
    pub block: Auto<Bytes>,
    /// Requests in flight; by default what the disk model says.
    pub depth: Auto<u32>,
    /// The file that `tactus measure` has written; by default inside the volume.
    pub model: PathBuf,
    /// Part of each cycle that paced streams may fill.
    pub budget: Percent,
    /// Whether blocks are kept in the page cache and sent by reference, or read directly and copied.
    pub sendfile: Sendfile,
    /// Whether titles may be uploaded to it, changed and deleted.
    pub uploads: bool,
    /// Whether titles can be read while they come in.
    pub unfinished: Unfinished,
    /// Memory for what is on its way to the disk.
    pub write_share: Bytes,
    /// Part of each cycle that uploads get even when streams fill the rest.
    pub upload_floor: Percent,
}

/// What the server may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Memory for blocks, of all volumes together; by default a quarter of what is free, at
    /// most [`ARENA_MAX_AUTO`].
    pub arena: Auto<Bytes>,
    /// Most streams at once.
    pub streams_max: u32,
    /// Whether to try to lock memory.
    pub lock: bool,
}

/// The network path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// What the link carries; by default the speed of the interface.
    pub rate: Auto<BitRate>,
    /// Part of it that paced payload may fill.
    pub budget: Percent,
}

/// How much of a shared resource one client, an address or a principal, may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientShare {
    /// An equal share for each active client, and one for a newcomer.
    Fair,
    /// At most this part.
    Part(Percent),
    /// All of it.
    All,
}

/// Deliveries without a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BestEffort {
    /// Most of them at once.
    pub streams_max: u32,
    /// The share of one client.
    pub client_share: ClientShare,
}

/// How fast streams go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Rate of a title whose own rate is not known; `None` is a best-effort download.
    pub default: Option<BitRate>,
    /// The slowest rate that may be asked for.
    pub min: BitRate,
    /// Streams at their title's own rate.
    pub title: RateClass,
    /// Streams whose request names a rate (`?rate=`).
    pub asked: RateClass,
    /// Streams whose player names a rate (CMCD `rtp`).
    pub cmcd: RateClass,
}

/// The terms of streams whose rate comes from one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateClass {
    /// Added to the rate.
    pub headroom: Percent,
    /// The fastest; higher rates are lowered to it.
    pub ceiling: BitRate,
    /// Media time that is sent at once at the start.
    pub start_burst: Nanos,
    /// How often a stream sends.
    pub tick: Tick,
    /// The share of each resource that streams of one client in this class may reserve.
    pub client_share: ClientShare,
}

impl RateClass {
    /// The rate in force for a stream that names `rate`. Rounds down.
    pub fn in_force(&self, rate: BitRate) -> BitRate {
        let extra = self.headroom.of(rate.0);
        BitRate(rate.0.saturating_add(extra)).min(self.ceiling)
    }

    /// Bytes that a stream at `rate` sends at once at its start.
    pub fn burst(&self, rate: BitRate) -> Bytes {
        rate.bytes_in(self.start_burst)
    }
}

/// Which server sits on which core, and with which right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores {
    /// By default [`placement::default_placement`].
    pub placement: Auto<Vec<CorePlan>>,
    /// Whether to try SCHED_FIFO.
    pub realtime: bool,
    /// Its priority, 1 to 99.
    pub priority: u32,
}

/// How datagrams leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packets {
    /// How finely the link divides time for them.
    pub tick: Nanos,
    /// Which back end; by default the one that was measured to cost the least.
    pub back_end: raw::BackEnd,
}

/// A link that is kept full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GapFrames {
    /// Its device.
    pub device: String,
    /// What it carries, exactly, with all that is on the wire.
    pub rate: BitRate,
    /// What the wire adds to each frame.
    pub overhead: u32,
}

/// When a client that does not take its bytes is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowReader {
    /// Time that a paced stream may be behind its clock.
    pub behind_max: Nanos,
    /// Slowest rate of a download without a rate …
    pub download_rate_min: BitRate,
    /// … over this time.
    pub download_window: Nanos,
}

/// Who may put titles here, and how many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// Everybody who may; nobody: nothing is taken.
    pub principals: Vec<Principal>,
    /// The largest title.
    pub object_max: Bytes,
    /// Most uploads that are not finished, of all together.
    pub open_max: u32,
    /// Most of one principal.
    pub open_per_principal_max: u32,
    /// For how long an upload that can be resumed waits for more.
    pub expiry: Nanos,
    /// Most write locks of WebDAV, of all together.
    pub locks_max: u32,
    /// Most of one principal.
    pub locks_per_principal_max: u32,
    /// For how long one holds without a refresh.
    pub lock_timeout_max: Nanos,
}

/// A principal, identified by a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// In logs and in the books.
    pub name: String,
    /// How it is known.
    pub token: Token,
    /// Bytes of titles that it may have stored; `None` is whatever the disk holds.
    pub quota: Option<Bytes>,
    /// Its rights, and the paths where they hold.
    pub rights: Rights,
}

/// A secret, or where to find it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Token {
    /// A file that holds it; white space around it does not count.
    File(PathBuf),
    /// Its SHA-256.
    Sha256([u8; 32]),
}

/// The most memory that is taken for blocks without being asked.
pub const ARENA_MAX_AUTO: Bytes = Bytes(1024 * MIB);
/// The directory inside a volume that is the server's own and never served.
pub const RESERVED: &str = ".tactus";

/// Whether the server itself answers requests for this path, decoded and without outer slashes, so
/// that a title there is never served. Some of these paths exist only at the address of `[admin]`,
/// unless a key says otherwise.
pub(crate) fn is_api_path(path: &str) -> bool {
    let below = path.strip_prefix("api/v1");
    // A directory that is renamed to `api` may contain a `v1`.
    matches!(path, "api" | "metrics" | "healthz" | "readyz")
        || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The error for such a path.
pub(crate) const API_PATH: &str = "/metrics, /healthz, /readyz and everything below /api/v1/ are \
    the server's own paths, so a title there could not be read; choose another name";

/// The disk model's file inside a volume.
pub const MODEL_FILE: &str = ".tactus/disk-model.toml";

impl Config {
    /// Everything by default, no volume yet.
    pub fn unconfigured() -> Self {
        check::check(raw::Raw::default(), Path::new("."))
            .unwrap_or_else(|mistake| unreachable!("the defaults are right: {}", mistake.message))
    }

    /// Reads and checks `file`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
            file: file.into(),
            place: None,
            message: format!("cannot be read: {error}"),
        })?;
        Self::parse(file, &text)
    }

    /// Checks `text`, the content of `file`. Paths in it are relative to the file.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let base = file.parent().unwrap_or(Path::new(""));
        toml::from_str(text)
            .map_err(error::Mistake::from)
            .and_then(|raw| check::check(raw, base))
            .map_err(|mistake| mistake.in_file(file, text))
    }

    /// Checks `text`, the content of one `[[recording]]`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse_recording(text: &str) -> Result<Recording, ConfigError> {
        toml::from_str(text)
            .map_err(error::Mistake::from)
            .and_then(check::recording)
            .map_err(|mistake| mistake.in_file(Path::new("recording"), text))
    }

    /// The channel that `text` asks for: the keys of `[[channel]]`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse_channel(text: &str) -> Result<Channel, ConfigError> {
        toml::from_str(text)
            .map_err(error::Mistake::from)
            .and_then(check::channel)
            .map_err(|mistake| mistake.in_file(Path::new("channel"), text))
    }

    /// The class that `text` asks for, the keys of `[[class]]`, as it may be among those that are `known`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse_class(text: &str, known: &Classes) -> Result<Class, ConfigError> {
        toml::from_str(text)
            .map_err(error::Mistake::from)
            .and_then(|raw| check::class(raw, known))
            .map_err(|mistake| mistake.in_file(Path::new("class"), text))
    }

    /// Replaces the volumes by one, as on the command line: `tactus serve DIR`.
    pub fn serve_only(&mut self, dir: &Path) {
        self.volumes = vec![check::default_volume(dir.into())];
    }
}

#[cfg(test)]
mod tests;
