//! What receivers of datagrams heard while a server was watched.
//!
//! Promise: the time measured begins after the warm-up, when every receiver has had something;
//! standstills of the machine are reported, unless the bench counts them.

use std::fmt;

use anyhow::Result;
use tactus_core::units::Nanos;

use super::{Fixture, RECEIVER_CORE, SERVER_CORE, say};
use crate::arrivals::Trace;
use crate::cpu::{CpuSnapshot, CpuUsage};
use crate::datagrams::Inboxes;
use crate::figures::windows::Span;
use crate::gaps::{Detector, Looks};
use crate::host::Host;
use crate::peers::Server;
use crate::speed::{CoreSpeed, Speed};
use crate::{clock, interrupt};

/// Each window of a run had a gap in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoCleanWindow;

impl std::error::Error for NoCleanWindow {}

impl fmt::Display for NoCleanWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no window without a gap")
    }
}

/// What was heard of a server that was watched for a while.
pub(super) struct Measurement {
    pub(super) measured: Span,
    pub(super) spent: CpuUsage,
    /// When the machine stood still.
    pub(super) gaps: Vec<Span>,
    pub(super) traces: Vec<Trace>,
    /// What the receiver's kernel lost.
    pub(super) dropped: u64,
}

/// Watches `server` from `warm_up` after all receivers have had something on, and ends it.
pub(super) fn listen(
    fixture: &Fixture,
    mut server: Server,
    inboxes: Inboxes,
    warm_up: Nanos,
) -> Result<Measurement> {
    let watch = Watch::start(fixture)?;
    inboxes.wait_until_all_have_some(&mut server)?;
    let from = clock::now() + warm_up;
    let measured = Span { from, to: from + fixture.seconds(20) };
    interrupt::sleep_until(measured.from)?;
    let before = CpuSnapshot::take()?;
    interrupt::sleep_until(measured.to)?;
    let spent = CpuSnapshot::take()?.since(&before, server.process());
    server.check()?;
    let HostInterference { gaps, .. } = Watch::stop(watch, measured)?;
    drop(server);
    let (traces, dropped) = inboxes.stop()?;
    Ok(Measurement { measured, spent, gaps, traces, dropped })
}

/// Both cores, watched for what the host takes of them.
pub(super) struct Watch {
    /// The receiver's.
    detector: Detector,
    /// The server's, if the kernel lets it be seen.
    host: Option<Host>,
    speed: Speed,
}

/// What the host took.
#[derive(Debug, Default)]
pub(super) struct HostInterference {
    /// Stretches in which a core stood still.
    pub(super) gaps: Vec<Span>,
    /// How much of the server's core there was.
    pub(super) core: CoreSpeed,
}

impl Watch {
    pub(super) fn start(fixture: &Fixture) -> Result<Option<Self>> {
        if fixture.options.accept_noise {
            return Ok(None);
        }
        let host = Host::watch(SERVER_CORE);
        if let Err(error) = &host {
            say(&format!("what the host takes of the server's core is not seen: {error:#}"));
        }
        let (detector, speed) =
            (Detector::start(RECEIVER_CORE, Looks::OFTEN)?, Speed::watch(SERVER_CORE)?);
        Ok(Some(Self { detector, host: host.ok(), speed }))
    }

    /// What was seen where it counts.
    pub(super) fn stop(watch: Option<Self>, measured: Span) -> Result<HostInterference> {
        let Some(Self { detector, host, speed }) = watch else {
            return Ok(HostInterference::default());
        };
        let mut gaps = detector.stop()?;
        if let Some(host) = host {
            gaps.extend(host.stop()?);
        }
        Ok(HostInterference { gaps, core: speed.stop(measured)? })
    }
}
