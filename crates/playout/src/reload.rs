//! Reloads the configuration while streams run.
//!
//! Promise: after a reload, the rates and priorities of classes, and the channels, are as in the
//! file. Every other changed key is named, and keeps its value. A file with a mistake, or with
//! classes that do not fit the reservations, changes nothing. No stream ends except those of
//! channels that the file removes or sends to another output.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tactus_config::ConfigFile;
use tactus_notation::ConfigError;

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
    /// The configuration of the start. The lock permits one reload at a time.
    started: tokio::sync::Mutex<ConfigFile>,
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
    /// For a server that was `started` with a file, and its `classes` and `channels`.
    pub fn new(started: ConfigFile, classes: Classes, channels: Channels) -> Self {
        let started = tokio::sync::Mutex::new(started);
        Self { inner: Arc::new(Inner { classes, channels, started }) }
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
        let started = self.started.lock().await;
        let path = started.path.clone();
        let file = tokio::task::spawn_blocking(move || ConfigFile::read(&path)).await;
        let file = file.expect("reading a file does not panic").map_err(ReloadError::File)?;
        let needs_restart = started.needs_restart(&file);
        self.channels.check(&file.config.channels).map_err(|error| match error {
            OrderError::Class(_) => ReloadError::Channel(error),
            error => ReloadError::TooMany(error),
        })?;
        // Changes that can fail by half come last.
        let mut changed =
            self.classes.configure(&file.config.classes).map_err(ReloadError::Class)?;
        let channels = self.channels.configure(file.config.channels).await;
        changed.extend(channels.changed);
        Ok(ReloadResult { changed, needs_restart, failed: channels.failed })
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}
