//! Configuration: file → raw (as written) → checked (its meaning).
//!
//! Promise: a [`Config`] is complete and consistent. Every key has a value, every value lies in its
//! range, and each mistake in a file is reported with line and column. It reads one file and
//! nothing else: no layers, no environment. Values that depend on the host (the size of the memory,
//! the speed of the link, the kind of disk) stay [`Auto`](tactus_notation::Auto) here and are
//! determined at start.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod address;

pub mod rtsp;

pub mod http;

pub mod raw;

mod unix_socket;

mod check;

mod file;

#[cfg(any(test, feature = "fuzz-targets"))]
pub mod fuzz_targets;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tactus_control::access::{AccessForm, AccessTo};
use tactus_control::class::Classes;
use tactus_control::rights::{Readers, Rights};
use tactus_control::settings::{
    BestEffort, ClientShare, Cores, EngineSettings, GapFrames, Link, Memory, Packets, SlowReader,
    Volume,
};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_notation::ConfigError;
use tactus_notation::error::Mistake;
use tactus_notation::units::Percent;
use tactus_playout::channel::Channel;
use tactus_playout::channels::ChannelSettings;
use tactus_playout::recording::Recording;

use self::http::{Origins, Proxies, PublicUrl, StoredPages};
pub use file::{ConfigFile, Key};
pub use raw::LogForm;
use rtsp::Rtsp;
pub use unix_socket::UnixSocket;

/// The whole configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Addresses, and the limits of requests.
    pub http: Http,
    /// Metrics and status.
    pub admin: Admin,
    /// The disks; at least one unless the command line gives a directory.
    pub volumes: Vec<Volume>,
    /// Limits of memory and streams.
    pub memory: Memory,
    /// The network path.
    pub link: Link,
    /// Rates of streams.
    pub rate: Rate,
    /// Share of each real-time core's time that streams may fill.
    pub cpu_budget: Percent,
    /// Placement of servers on cores, and their priority.
    pub cores: Cores,
    /// How datagrams are sent.
    pub packets: Packets,
    /// The link that is kept full with gap frames, which time its datagrams exactly.
    pub gap_frames: Option<GapFrames>,
    /// Deliveries without a rate.
    pub best_effort: BestEffort,
    /// When the connection of a slow client is ended.
    pub slow_reader: SlowReader,
    /// Uploads and their principals.
    pub upload: Upload,
    /// Live inputs that are recorded from the start.
    pub recordings: Vec<Recording>,
    /// Classes of the link, for datagrams.
    pub classes: Classes,
    /// Channels that are sent from the start.
    pub channels: Vec<Channel>,
    /// The RTSP server.
    pub rtsp: Rtsp,
    /// The directory for state that must outlast the server and is not configuration; none: nothing
    /// is stored.
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

/// Addresses, and the limits of requests.
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

/// Metrics and status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    /// Their own address, if any.
    pub address: Option<SocketAddr>,
    /// Their own socket files.
    pub unix_sockets: Vec<UnixSocket>,
    /// Host names that are accepted there besides this machine's; `*` accepts every name.
    pub allowed_hosts: Vec<String>,
    /// Whether they are also served at the addresses of [`Http`].
    pub on_http: bool,
}

/// Rates of streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Rate of a title whose own rate is not known; `None` is a best-effort download.
    pub default: Option<BitRate>,
    /// The slowest permitted rate.
    pub min: BitRate,
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

impl Config {
    /// The default configuration, without a volume.
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
            .map_err(Mistake::from)
            .and_then(|raw| check::check(raw, base))
            .map_err(|mistake| mistake.in_file(file, text))
    }

    /// Replaces the volumes by the one of the command line: `tactus serve DIR`.
    pub fn serve_only(&mut self, dir: &Path) {
        self.volumes = vec![Volume::new(check::absolute(dir))];
    }

    /// The settings of the channels.
    #[must_use]
    pub fn channel_settings(&self) -> ChannelSettings {
        let writable = self.volumes.iter().find(|volume| volume.uploads);
        ChannelSettings {
            channels: self.channels.clone(),
            classes: self.classes.clone(),
            volume: writable.map(|volume| volume.path.clone()),
        }
    }

    /// The settings of the engine.
    #[must_use]
    pub fn engine(&self) -> EngineSettings {
        EngineSettings {
            volumes: self.volumes.clone(),
            memory: self.memory.clone(),
            link: self.link.clone(),
            cpu_budget: self.cpu_budget,
            cores: self.cores.clone(),
            packets: self.packets,
            gap_frames: self.gap_frames.clone(),
            best_effort: self.best_effort,
            slow_reader: self.slow_reader,
            classes: self.classes.clone(),
            start_burst: self.rate.title.start_burst,
            connections_max: self.http.connections_max,
            sends_datagrams: !self.channels.is_empty() || !self.rtsp.addresses.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests;
