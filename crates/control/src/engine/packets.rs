//! The back end of the packet servers, chosen by measurement, and the cost of a datagram in
//! admission.
//!
//! Promise: if streams are refused because the processor was slow during the measurement at the
//! start, the measurement is repeated, and the cheapest one counts. Admitted streams keep their
//! cost.

use std::sync::Arc;

use tactus_core::ledger::Resource;
use tactus_core::ports::PacketPort;
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_notation::units::exact;
use tactus_sys::packets::back_end::{self, BackEnd, Candidate, ChosenPort, ExpectedUse, Gauge};
use tactus_sys::packets::gaps::{GapCounters, GapOptions};
use tactus_sys::packets::udp_output::{self, Cutting, UdpLink};

use crate::broker::{Broker, DatagramCost, UDP_BUFFER, UDP_BUFFER_MIN};
use crate::engine::watchdog::LOOK;
use crate::settings::{BackEnd as ConfiguredBackEnd, EngineSettings, GapFrames};

/// The properties of sending datagrams.
#[derive(Clone, Debug)]
pub struct PacketFacts {
    /// The back end that sends them.
    pub back_end: BackEnd,
    /// Where messages of several datagrams are cut, if a socket sends them.
    pub cutting: Cutting,
    /// The measurements of each back end.
    pub candidates: Vec<Candidate>,
    /// The initial cost in admission.
    pub datagram: DatagramCost,
    /// The counters of a link that is kept full.
    pub gaps: Option<Arc<GapCounters>>,
}

/// A port for each of `servers` packet servers.
pub(super) fn open(
    settings: &EngineSettings,
    servers: usize,
    degraded: &mut Vec<String>,
) -> (Vec<Box<dyn PacketPort>>, PacketFacts, Watch) {
    let wanted = match settings.packets.back_end {
        ConfiguredBackEnd::Auto => None,
        ConfiguredBackEnd::Sendmmsg => Some(BackEnd::Sendmmsg),
        ConfiguredBackEnd::IoUring => Some(BackEnd::IoUring),
        ConfiguredBackEnd::Txtime => Some(BackEnd::Txtime),
        ConfiguredBackEnd::PacketSocket => Some(BackEnd::PacketSocket),
        ConfiguredBackEnd::Xdp => Some(BackEnd::Xdp),
    };
    let tick = settings.packets.tick;
    // Each stream has one destination.
    let use_of = ExpectedUse { tick, destinations: settings.memory.streams_max as usize };
    let chosen = match &settings.gap_frames {
        Some(gaps) => back_end::choose_gaps(&gap_options(gaps), use_of),
        None => back_end::choose(wanted, use_of),
    };
    let ChosenPort { port, back_end, cutting, candidates, gauge, gaps, refused } = chosen;
    if let Some((wanted, error)) = refused {
        degraded.push(format!(
            "datagrams leave by {back_end}, not by {wanted}, which cannot be had here: {error}"
        ));
    }
    if settings.sends_datagrams {
        degraded.extend(udp_output::granted(UDP_BUFFER).ok().and_then(too_little));
    }
    // The cost of a frame in a ring is not measured: it is lower than that of a datagram on a
    // socket.
    let measured = if gaps.is_some() { BackEnd::Sendmmsg } else { back_end };
    let watch = Watch { gauge, measured, cutting, tick, looks: MeasurementSchedule::default() };
    let datagram = watch.cost().unwrap_or(DatagramCost::each(DATAGRAM_UNKNOWN));
    let mut ports = vec![port];
    for number in 1..servers {
        ports.push(back_end.open(use_of).unwrap_or_else(|error| {
            degraded.push(format!(
                "packets.{number} sends by {}: there is no second port of {back_end}: {error}",
                BackEnd::Sendmmsg
            ));
            Box::new(UdpLink::new())
        }));
    }
    (ports, PacketFacts { back_end, cutting, candidates, datagram, gaps }, watch)
}

/// The effect of an output buffer of this size, if it is too small.
fn too_little(granted: usize) -> Option<String> {
    let held = exact(Bytes(granted as u64));
    (granted < UDP_BUFFER_MIN).then(|| {
        format!(
            "a UDP output of datagrams holds {held} (net.core.wmem_max): a few receivers that are \
             not there hold up all that leave by it, `tactus doctor` says how to change it"
        )
    })
}

/// Repeats the measurement when streams are refused for the cost of datagrams.
pub(super) struct Watch {
    gauge: Gauge,
    /// The back end whose cost counts.
    measured: BackEnd,
    cutting: Cutting,
    tick: Nanos,
    looks: MeasurementSchedule,
}

impl Watch {
    /// Measures for some milliseconds if there is a reason to, and updates the cost in admission.
    pub(super) fn look(&mut self, now: MonoTime, broker: &Broker) {
        if !self.looks.is_due(now, broker.refusals().of(Resource::Cpu)) {
            return;
        }
        self.gauge.round();
        if let Some(cost) = self.cost() {
            broker.count_datagrams_as(cost);
        }
    }

    fn cost(&self) -> Option<DatagramCost> {
        let candidates = self.gauge.candidates();
        let of = |back_end| candidates.iter().find(|it| it.back_end == back_end);
        let own = of(self.measured)?;
        let single = own.single.as_ref().ok().copied()?;
        let gathered = own.gathered.filter(|_| self.cutting == Cutting::Kernel);
        let plain = of(BackEnd::Sendmmsg).and_then(|plain| plain.single.as_ref().ok().copied());
        Some(cost_by(single, gathered, plain.unwrap_or(single), self.tick))
    }
}

/// The schedule of repeated measurements.
#[derive(Default)]
struct MeasurementSchedule {
    /// The count of refused streams at the last check.
    refused: u64,
    /// The earliest time of the next measurement.
    next: MonoTime,
    /// Remaining measurements for the last refusal.
    left: u32,
    /// Measurements so far.
    done: u32,
}

/// Measurements for each refusal: they last until a refused client has tried again.
const LOOKS: u32 = 24;
/// Most measurements: within half a minute, other programs on the processor have paused for a
/// second, or their load is permanent.
const LOOKS_MAX: u32 = 120;

impl MeasurementSchedule {
    /// Whether a measurement is due, with `refused` streams refused so far for lack of CPU; counts
    /// it if so.
    fn is_due(&mut self, now: MonoTime, refused: u64) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + LOOK;
        if refused > self.refused {
            (self.refused, self.left) = (refused, LOOKS);
        }
        let is_due = self.left > 0 && self.done < LOOKS_MAX;
        self.left = self.left.saturating_sub(1);
        self.done += u32::from(is_due);
        is_due
    }
}

fn gap_options(gaps: &GapFrames) -> GapOptions {
    let GapFrames { device, rate, overhead } = gaps.clone();
    GapOptions { device, rate, overhead, ahead: GAPS_AHEAD }
}

/// How far ahead a link is filled: longer than the delays of a real-time thread, and within the 10
/// ms that admission counts on, of which a burst may take 8 ms.
const GAPS_AHEAD: Nanos = Nanos::from_millis(2);

/// Cost without a measurement: the cost of 500 streams on a busy virtual machine.
const DATAGRAM_UNKNOWN: Nanos = Nanos::from_micros(4);
/// Datagrams in one message during the measurement.
const GATHERED: u64 = 7;

/// The cost of datagrams for the sending core, from their cost in a tight loop on the loopback.
/// There all data is in the processor's cache, and nothing has to be scheduled, looked up or woken.
/// The difference is a third of a `plain` datagram on a socket for each message, with as many
/// streams as fill a core, and a tenth of a `plain` one for each further datagram of a message
/// (`docs/benchmarks.md`).
fn cost_by(single: Nanos, gathered: Option<Nanos>, plain: Nanos, tick: Nanos) -> DatagramCost {
    let least = Nanos::from_micros(1);
    let first = (single + Nanos(plain.0 / 3)).clamp(least, Nanos::from_micros(20));
    let Some(gathered) = gathered else { return DatagramCost::each(first) };
    let behind = Nanos(gathered.0 * GATHERED).saturating_sub(single);
    let further = Nanos(behind.0 / (GATHERED - 1) + plain.0 / 10);
    let further = further.clamp(Nanos(least.0 / 5), first);
    DatagramCost { first, further, together_max: tactus_core::datagrams::SEGMENTS_MAX.into(), tick }
}

#[cfg(test)]
mod tests {
    use tactus_core::datagrams::PAYLOAD;
    use tactus_core::units::{BitRate, MILLISECOND, SECOND};

    use super::*;

    #[test]
    fn a_udp_output_that_a_few_dead_receivers_fill_is_told_of() {
        let said = too_little(212_992).unwrap();
        assert!(said.contains("holds 208 KiB (net.core.wmem_max)"), "{said}");
        assert_eq!(too_little(UDP_BUFFER_MIN), None);
    }

    #[test]
    fn it_is_measured_again_for_a_while_after_a_refusal_and_not_for_ever() {
        let mut looks = MeasurementSchedule::default();
        let mut now = MonoTime(SECOND.0);
        let mut seconds = |count: u64, refused: u64| {
            let end = now + SECOND.times(count);
            let mut due = 0;
            while now < end {
                // Requests continue while measurements are reported, too.
                due += u32::from(looks.is_due(now, refused));
                now += MILLISECOND.times(50);
            }
            due
        };
        assert_eq!(seconds(60, 0), 0);
        assert_eq!(seconds(60, 3), LOOKS);
        assert_eq!(seconds(60, 3), 0);
        assert_eq!(seconds(2, 4), 8);
        // Refusals that continue.
        let more: u32 = (5..100).map(|refused| seconds(5, refused)).sum();
        assert_eq!(LOOKS + 8 + more, LOOKS_MAX);
    }

    #[test]
    fn those_that_leave_together_cost_less_and_never_nothing() {
        let micros = Nanos::from_micros;
        let datagrams = |per_second: u64| BitRate(per_second * PAYLOAD.0 * 8);
        let of = |cost: DatagramCost, out, burst| cost.of(out, PAYLOAD, burst);
        let tick = micros(250);
        let alone = cost_by(micros(5), None, micros(9), tick);
        assert_eq!(alone, DatagramCost::each(micros(8)));
        assert_eq!(of(alone, datagrams(380), SECOND), micros(8 * 380));
        // Seven take 14 us: the first 5, the others 1.5 each.
        let gathered = cost_by(micros(5), Some(micros(2)), micros(9), tick);
        assert_eq!((gathered.first, gathered.further), (micros(8), Nanos(2_400)));
        let (half, nothing) = (MILLISECOND.times(500), Nanos::ZERO);
        assert_eq!(of(gathered, datagrams(8), half), micros(2 * 8) + Nanos(6 * 2_400));
        assert_eq!(of(gathered, datagrams(8), nothing), micros(8 * 8));
        assert_eq!(of(gathered, datagrams(0), half), Nanos(0));
        // A flow so fast that four datagrams are due at every turn.
        assert_eq!(of(gathered, datagrams(16_000), nothing), of(gathered, datagrams(16_000), tick));
        assert_eq!(
            of(gathered, datagrams(16_000), nothing),
            of(gathered, datagrams(4), SECOND).times(4_000)
        );
        // A measurement in which further datagrams cost nothing, or more than single ones.
        assert_eq!(cost_by(micros(5), Some(Nanos(1)), micros(1), tick).further, Nanos(200));
        assert_eq!(cost_by(micros(5), Some(micros(9)), micros(9), tick).further, micros(8));
    }
}
