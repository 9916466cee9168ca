//! Signals: which of them mean something to a server, and that no other ends it.
//!
//! Promise: from the moment they are taken, SIGHUP and the signals that programs send each other at
//! will end nothing, whether there is a configuration file or not. SIGTERM and SIGINT end the server,
//! as everywhere.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::access;
use crate::reload::Reload;

/// Signals that are taken. Their default would end the program.
pub(super) struct Signals {
    hangups: Signal,
    others: Vec<(&'static str, Signal)>,
}

impl Signals {
    /// Takes them; within a runtime.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub(super) fn take() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("signals cannot be taken");
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

    /// Does what they mean, for as long as the future lives.
    pub(super) async fn heed(self, reload: Option<Reload>) {
        let Self { mut hangups, others } = self;
        for (name, mut signal) in others {
            tokio::spawn(async move {
                while signal.recv().await.is_some() {
                    // A peer that has gone sends it for each write.
                    if name != "SIGPIPE" {
                        tracing::warn!("{name} means nothing here: it is ignored");
                    }
                }
            });
        }
        while hangups.recv().await.is_some() {
            access::reopen();
            match &reload {
                // It is logged.
                Some(reload) => drop(reload.read().await),
                None => tracing::warn!(
                    "SIGHUP: there is no configuration file to read again (--config); nothing changes"
                ),
            }
        }
    }
}
