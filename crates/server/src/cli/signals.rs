//! Signal handling.
//!
//! Promise: once the handlers are installed, SIGHUP, SIGUSR1, SIGUSR2 and SIGPIPE do not end the
//! server, with or without a configuration file. SIGTERM and SIGINT end it.

use anyhow::Context;
use tactus_control::access;
use tactus_playout::reload::Reload;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals with handlers; their default action would end the program.
pub(super) struct Signals {
    hangups: Signal,
    others: Vec<(&'static str, Signal)>,
}

impl Signals {
    /// Installs the handlers; must be called within a runtime.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub(super) fn take() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot install signal handlers");
        let others = [
            ("SIGUSR1", SignalKind::user_defined1()),
            ("SIGUSR2", SignalKind::user_defined2()),
            ("SIGALRM", SignalKind::alarm()),
            ("SIGIO", SignalKind::io()),
            ("SIGPIPE", SignalKind::pipe()),
        ];
        let others = others.into_iter().map(|(name, kind)| Ok((name, take(kind)?)));
        Ok(Self {
            hangups: take(SignalKind::hangup())?,
            others: others.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Acts on signals for as long as the future lives.
    pub(super) async fn watch(self, reload: Option<Reload>) {
        let Self { mut hangups, others } = self;
        for (name, mut signal) in others {
            tokio::spawn(async move {
                while signal.recv().await.is_some() {
                    // Each write to a closed connection raises SIGPIPE.
                    if name != "SIGPIPE" {
                        tracing::warn!("{name} has no effect and is ignored");
                    }
                }
            });
        }
        while hangups.recv().await.is_some() {
            access::reopen();
            match &reload {
                // The reload logs its own result.
                Some(reload) => drop(reload.read().await),
                None => {
                    tracing::warn!("SIGHUP has no effect: the server was started without --config")
                }
            }
        }
    }
}
