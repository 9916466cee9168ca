//! What receivers of datagrams heard while a server was watched.
//!
//! Promise: the time measured begins after the warm-up, when every receiver has had something; stretches in which the
//! machine stood still are told, unless the bench counts them.

use std::fmt;

use anyhow::Result;
use tactus_core::units::Nanos;

use super::{RECEIVER_CORE, Stage};
use crate::arrivals::Trace;
use crate::cpu::{Look, Spent};
use crate::datagrams::Inboxes;
use crate::figures::windows::Span;
use crate::gaps::Detector;
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
    let detector = Detector::start(RECEIVER_CORE)?;
    inboxes.wait_until_all_have_some(&mut server)?;
    let from = clock::now() + warm_up;
    let measured = Span { from, to: from + stage.seconds(20) };
    interrupt::sleep_until(measured.from)?;
    let before = Look::take()?;
    interrupt::sleep_until(measured.to)?;
    let spent = Look::take()?.since(&before, server.process());
    server.check()?;
    let gaps = gaps(stage, detector)?;
    drop(server);
    let (traces, dropped) = inboxes.stop()?;
    Ok(Heard { measured, spent, gaps, traces, dropped })
}

/// What `detector` saw, where it counts.
pub(super) fn gaps(stage: &Stage, detector: Detector) -> Result<Vec<Span>> {
    let gaps = detector.stop()?;
    Ok(if stage.options.accept_noise { vec![] } else { gaps })
}
