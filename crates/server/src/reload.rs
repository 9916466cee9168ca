//! The configuration, read again while streams run.
//!
//! Promise: what may change meanwhile is then as the file says: rates and priorities of classes, and channels; all else that
//! is another thing there is named, and stays. A file with a mistake, or whose classes do not fit what is promised, changes
//! nothing. No stream ends but those of channels that the file ends or sends in another way.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::channels::{Channels, OrderError};
use crate::classes::{ClassError, Classes};
use crate::config::{ConfigError, ConfigFile};

/// Who reads it.
#[derive(Clone)]
pub struct Reload {
    inner: Arc<Inner>,
}

struct Inner {
    classes: Classes,
    channels: Channels,
    /// As it was at the start. One reads at a time.
    started: tokio::sync::Mutex<ConfigFile>,
}

/// What has become of it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Reloaded {
    /// What is another thing now.
    pub changed: Vec<String>,
    /// What would be, after a restart.
    pub needs_restart: Vec<String>,
    /// What could not be done now, and why.
    pub failed: Vec<String>,
}

/// Why nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file has a mistake.
    #[error("nothing is changed: {0}")]
    File(ConfigError),
    /// Its classes do not fit.
    #[error(transparent)]
    Class(ClassError),
    /// A channel of it makes no sense here.
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
    /// Of a server that was `started` with a file, for its `classes` and `channels`.
    pub fn new(started: ConfigFile, classes: Classes, channels: Channels) -> Self {
        let started = tokio::sync::Mutex::new(started);
        Self { inner: Arc::new(Inner { classes, channels, started }) }
    }

    /// Reads the file, and does what it says as far as that can be done now. It is logged, too.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub async fn read(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.inner.read().await;
        match &reloaded {
            Ok(Reloaded { changed, needs_restart, failed }) => {
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
    async fn read(&self) -> Result<Reloaded, ReloadError> {
        let started = self.started.lock().await;
        let path = started.path.clone();
        let file = tokio::task::spawn_blocking(move || ConfigFile::read(&path)).await;
        let file = file.expect("reading a file does not panic").map_err(ReloadError::File)?;
        let needs_restart = started.needs_restart(&file);
        self.channels.check(&file.config.channels).map_err(|error| match error {
            OrderError::Class(_) => ReloadError::Channel(error),
            error => ReloadError::TooMany(error),
        })?;
        // What cannot be changed as a whole comes last.
        let mut changed =
            self.classes.configure(&file.config.classes).map_err(ReloadError::Class)?;
        let channels = self.channels.configure(file.config.channels).await;
        changed.extend(channels.changed);
        Ok(Reloaded { changed, needs_restart, failed: channels.failed })
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}
