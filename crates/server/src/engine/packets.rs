//! The packet link's back end: which one, by what was measured, and what a datagram costs for admission.

use tactus_core::ports::PacketPort;
use tactus_core::units::Nanos;
use tactus_sys::back_end::{self, BackEnd, Chosen};
use tactus_sys::outlet::Cutting;

use crate::config::raw;

/// What was found about sending datagrams.
#[derive(Clone, Debug)]
pub struct PacketFacts {
    /// By what they leave.
    pub back_end: BackEnd,
    /// Who cuts messages of several, where they leave by a socket.
    pub cutting: Cutting,
    /// What was measured of each back end.
    pub candidates: Vec<Measured>,
    /// What admission counts for one datagram.
    pub datagram: Nanos,
}

/// What was measured of a back end.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub back_end: BackEnd,
    /// CPU time of a datagram of its own; or why there is none.
    pub single: Result<Nanos, String>,
    /// CPU time of each of seven in one message.
    pub gathered: Option<Nanos>,
}

pub(super) fn open(
    wanted: raw::BackEnd,
    degraded: &mut Vec<String>,
) -> (Box<dyn PacketPort>, PacketFacts) {
    let wanted = match wanted {
        raw::BackEnd::Auto => None,
        raw::BackEnd::Sendmmsg => Some(BackEnd::Sendmmsg),
        raw::BackEnd::IoUring => Some(BackEnd::IoUring),
        raw::BackEnd::Xdp => Some(BackEnd::Xdp),
    };
    let Chosen { port, back_end, cutting, candidates, refused } = back_end::choose(wanted);
    if let Some((wanted, error)) = refused {
        degraded.push(format!(
            "datagrams leave by {back_end}, not by {wanted}, which cannot be had here: {error}"
        ));
    }
    let candidates: Vec<Measured> = candidates
        .into_iter()
        .map(|candidate| Measured {
            back_end: candidate.back_end,
            single: candidate.single.map_err(|error| error.to_string()),
            gathered: candidate.gathered,
        })
        .collect();
    let own = candidates.iter().find(|candidate| candidate.back_end == back_end);
    let single = own.and_then(|own| own.single.as_ref().ok().copied());
    let datagram = single.map_or(DATAGRAM_UNKNOWN, datagram_cost);
    (port, PacketFacts { back_end, cutting, candidates, datagram })
}

/// Where nothing could be measured: what 500 streams took on a busy virtual machine.
const DATAGRAM_UNKNOWN: Nanos = Nanos::from_micros(4);

/// What a datagram costs the core that sends it, by what it costs in a tight loop on the loopback: there all is in
/// the processor's cache, and nobody has to find out what is due, to look for its bytes, or to wake up. As
/// much again and a half covers those (`docs/benchmarks.md`).
fn datagram_cost(single: Nanos) -> Nanos {
    let bounds = (Nanos::from_micros(1), Nanos::from_micros(20));
    Nanos(single.0 * 5 / 2).clamp(bounds.0, bounds.1)
}
