//! Reloads the configuration while streams run.
//!
//! Promise: after a reload, the rates and priorities of classes, and the channels, are as in the
//! file, and servers are on the cores that it names as far as they fit. Every other changed key is
//! named, and keeps its value. A file with a mistake, or with classes that do not fit the
//! reservations, changes nothing. No stream ends except those of channels that the file removes or
//! sends to another output.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tactus_control::class;
use tactus_control::placer::{Placer, Reconfigured};
use tactus_control::settings::Cores;
use tactus_notation::ConfigError;

use crate::channel::Channel;
use crate::channels::{Channels, OrderError};
use crate::classes::{ClassError, Classes};

/// Reloads the configuration file.
#[derive(Clone)]
pub struct Reload {
    inner: Arc<Inner>,
}

struct Inner {
    classes: Classes,
    channels: Channels,
    placer: Placer,
    /// Reads the file. The lock permits one reload at a time.
    reread: tokio::sync::Mutex<Arc<RereadFile>>,
}

/// Reads the file and compares it with the configuration of the start.
type RereadFile = dyn Fn() -> Result<Reread, ConfigError> + Send + Sync;

/// What a reload applies of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reread {
    /// All classes.
    pub classes: class::Classes,
    /// All channels.
    pub channels: Vec<Channel>,
    /// Where servers are.
    pub cores: Cores,
    /// Other keys that have changed since the start.
    pub needs_restart: Vec<String>,
}

/// The result of a reload.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct ReloadResult {
    /// Keys that have changed.
    pub changed: Vec<String>,
    /// Keys that would change at a restart.
    pub needs_restart: Vec<String>,
    /// Changes that failed, and why.
    pub failed: Vec<String>,
}

/// Why a reload has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file has a mistake.
    #[error("nothing is changed: {0}")]
    File(ConfigError),
    /// Its classes do not fit.
    #[error(transparent)]
    Class(ClassError),
    /// A channel in the file is not possible on this server.
    #[error(
        "nothing is changed: {0}; adding or removing classes, and their bursts, needs a \
        restart"
    )]
    Channel(OrderError),
    /// There are too many channels.
    #[error("nothing is changed: {0}")]
    TooMany(OrderError),
}

impl Reload {
    /// For a server that was started with a file, which `reread` reads again, and its `classes`,
    /// `channels` and servers. `reread` may block.
    pub fn new(
        reread: impl Fn() -> Result<Reread, ConfigError> + Send + Sync + 'static,
        classes: Classes,
        channels: Channels,
        placer: Placer,
    ) -> Self {
        let reread = tokio::sync::Mutex::new(Arc::new(reread) as Arc<RereadFile>);
        Self { inner: Arc::new(Inner { classes, channels, placer, reread }) }
    }

    /// Reads the file, applies the possible changes, and logs the result.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub async fn read(&self) -> Result<ReloadResult, ReloadError> {
        let reloaded = self.inner.read().await;
        match &reloaded {
            Ok(ReloadResult { changed, needs_restart, failed }) => {
                tracing::info!(?changed, "the configuration was reloaded");
                for key in needs_restart {
                    tracing::warn!("{key} of the configuration needs a restart");
                }
                for why in failed {
                    tracing::error!("{why}");
                }
            }
            Err(error) => tracing::error!("the configuration was reloaded: {error}"),
        }
        reloaded
    }
}

impl Inner {
    async fn read(&self) -> Result<ReloadResult, ReloadError> {
        let reread = self.reread.lock().await;
        let read = Arc::clone(&reread);
        let file = tokio::task::spawn_blocking(move || read()).await;
        let file = file.expect("reading a file does not panic").map_err(ReloadError::File)?;
        self.channels.check(&file.channels).map_err(|error| match error {
            OrderError::Class(_) => ReloadError::Channel(error),
            error => ReloadError::TooMany(error),
        })?;
        // Changes that can fail by half come last.
        let mut changed = self.classes.configure(&file.classes).map_err(ReloadError::Class)?;
        let channels = self.channels.configure(file.channels).await;
        changed.extend(channels.changed);
        let (placer, mut failed) = (self.placer.clone(), channels.failed);
        // A move may wait for a disk.
        let placed = tokio::task::spawn_blocking(move || placer.configure(&file.cores)).await;
        let placed = placed.unwrap_or_else(|error| Reconfigured {
            failed: vec![format!("the servers stay where they are: {error}")],
            ..Reconfigured::default()
        });
        changed.extend(placed.changed);
        failed.extend(placed.failed);
        let needs_restart = [file.needs_restart, placed.needs_restart].concat();
        Ok(ReloadResult { changed, needs_restart, failed })
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}
