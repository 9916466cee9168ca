//! What receivers of datagrams heard while a server was watched.
//!
//! Promise: the time measured begins after the warm-up, when every receiver has had something; stretches in which the
//! machine stood still are told, unless the bench counts them.

use std::fmt;

use anyhow::Result;
use tactus_core::units::Nanos;

use super::{RECEIVER_CORE, SERVER_CORE, Stage, say};
use crate::arrivals::Trace;
use crate::cpu::{Look, Spent};
use crate::datagrams::Inboxes;
use crate::figures::windows::Span;
use crate::gaps::Detector;
use crate::host::Host;
use crate::peers::Server;
use crate::{clock, interrupt};

/// Each window of a run had a gap in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoodStill;

impl std::error::Error for StoodStill {}

impl fmt::Display for StoodStill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no window without a gap")
    }
}

/// What was heard of a server that was watched for a while.
pub(super) struct Heard {
    pub(super) measured: Span,
    pub(super) spent: Spent,
    /// When the machine stood still.
    pub(super) gaps: Vec<Span>,
    pub(super) traces: Vec<Trace>,
    /// What the receiver's kernel lost.
    pub(super) dropped: u64,
}

/// Watches `server` from `warm_up` after all receivers have had something on, and ends it.
pub(super) fn listen(
    stage: &Stage,
    mut server: Server,
    inboxes: Inboxes,
    warm_up: Nanos,
) -> Result<Heard> {
    let watch = Watch::start(stage)?;
    inboxes.wait_until_all_have_some(&mut server)?;
    let from = clock::now() + warm_up;
    let measured = Span { from, to: from + stage.seconds(20) };
    interrupt::sleep_until(measured.from)?;
    let before = Look::take()?;
    interrupt::sleep_until(measured.to)?;
    let spent = Look::take()?.since(&before, server.process());
    server.check()?;
    let gaps = Watch::stop(watch)?;
    drop(server);
    let (traces, dropped) = inboxes.stop()?;
    Ok(Heard { measured, spent, gaps, traces, dropped })
}

/// Both cores, watched for stretches in which they stood still.
pub(super) struct Watch {
    /// The receiver's.
    detector: Detector,
    /// The server's, if the kernel lets it be seen.
    host: Option<Host>,
}

impl Watch {
    pub(super) fn start(stage: &Stage) -> Result<Option<Self>> {
        if stage.options.accept_noise {
            return Ok(None);
        }
        let host = Host::watch(SERVER_CORE);
        if let Err(error) = &host {
            say(&format!("what the host takes of the server's core is not seen: {error:#}"));
        }
        Ok(Some(Self { detector: Detector::start(RECEIVER_CORE)?, host: host.ok() }))
    }

    /// When one of them stood still, where it counts.
    pub(super) fn stop(watch: Option<Self>) -> Result<Vec<Span>> {
        let Some(Self { detector, host }) = watch else { return Ok(vec![]) };
        let mut gaps = detector.stop()?;
        if let Some(host) = host {
            gaps.extend(host.stop()?);
        }
        Ok(gaps)
    }
}
