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
use tactus_control::settings::{
    BestEffort, Cores, EngineSettings, GapFrames, Link, Memory, Packets, SlowReader, Volume,
};
use tactus_control::socket_file::UnixSocket;
use tactus_http::settings::{HttpSettings, Rate, Upload, UploadSettings};
use tactus_local::settings::LocalSettings;
use tactus_notation::ConfigError;
use tactus_notation::error::Mistake;
use tactus_notation::units::Percent;
use tactus_playout::channel::Channel;
use tactus_playout::channels::ChannelSettings;
use tactus_playout::recording::Recording;
use tactus_rtsp::settings::{Recorders, RtspSettings};

pub use file::{ConfigFile, Key};
pub use raw::LogForm;

/// The whole configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Addresses, and the limits of requests.
    pub http: HttpSettings,
    /// Metrics and status.
    pub admin: Admin,
    /// The disks; at least one unless the command line gives a directory.
    pub volumes: Vec<Volume>,
    /// Limits of memory and streams.
    pub memory: Memory,
    /// Paths of the titles and directories that are kept in memory.
    pub pinned: Vec<String>,
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
    /// Where programs of this machine connect, if they may.
    pub local: Option<LocalSettings>,
    /// Channels that are sent from the start.
    pub channels: Vec<Channel>,
    /// The RTSP server.
    pub rtsp: RtspSettings,
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

/// Metrics and status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    /// Their own address, if any.
    pub address: Option<SocketAddr>,
    /// Their own socket files.
    pub unix_sockets: Vec<UnixSocket>,
    /// Host names that are accepted there besides this machine's; `*` accepts every name.
    pub allowed_hosts: Vec<String>,
    /// Whether they are also served at the addresses of HTTP.
    pub on_http: bool,
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

    /// The settings of uploads.
    #[must_use]
    pub fn upload_settings(&self) -> UploadSettings {
        UploadSettings {
            upload: self.upload.clone(),
            readers: self.http.readers,
            volumes: self.volumes.clone(),
            state: self.state.clone(),
            records: !self.recordings.is_empty()
                || self.rtsp.recorders != Recorders::Nobody
                || self.local.as_ref().is_some_and(|local| local.writing.is_some()),
        }
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
            local_clients: self.local.as_ref().map_or(0, |local| local.clients),
        }
    }
}

#[cfg(test)]
mod tests;
