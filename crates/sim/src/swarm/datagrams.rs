//! Worlds in which some deliveries leave as datagrams: their clients, their UDP outputs, and the
//! faults of the UDP outputs.

use tactus_core::datagrams::{PAYLOAD, SEGMENTS_MAX};
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos, SECOND};

use super::{ClientKind, ClientSpec, DatagramSpec, Mode};
use crate::dice::Dice;
use crate::net::{TICKS, UdpOutputFault, UdpOutputSpec, UdpOutputTrouble};

/// The label of its dice. It keeps the worlds of earlier seeds unchanged.
pub(super) const LABEL: u64 = 4747;

/// The inputs of the draw.
pub(super) struct DatagramLimits {
    pub(super) mode: Mode,
    pub(super) begin: MonoTime,
    pub(super) duration: Nanos,
    /// The end of all faults.
    pub(super) quiet_from: MonoTime,
    pub(super) every_byte: bool,
    pub(super) dice: Dice,
}

/// The UDP outputs of datagrams.
pub(super) struct UdpSpec {
    pub(super) udp_outputs: Vec<UdpOutputSpec>,
    pub(super) tick: Nanos,
    pub(super) segments_max: u32,
    /// The ceiling of the first UDP output's streams.
    pub(super) ceiling: Option<BitRate>,
}

/// Approximate limit of the datagrams of a world: more would only take time.
const MOST: u64 = 30_000;

/// Limit of clients with datagrams.
const CLIENTS: usize = 48;

/// Changes some of the clients of about every fourth world.
pub(super) fn draw(limits: DatagramLimits, clients: &mut [ClientSpec]) -> UdpSpec {
    let DatagramLimits { mode, begin, duration, quiet_from, every_byte, mut dice } = limits;
    let tick = dice.pick(&TICKS);
    let segments_max = dice.pick(&[1, 4, SEGMENTS_MAX]);
    let none = UdpSpec { udp_outputs: vec![], tick, segments_max, ceiling: None };
    if !dice.chance(WORLDS) {
        return none;
    }
    let share = dice.pick(&[100, 400, 1000]);
    let may =
        |client: &&mut ClientSpec| matches!(client.kind, ClientKind::Viewer | ClientKind::Zapper);
    let mut chosen: Vec<_> = clients.iter_mut().filter(may).collect();
    chosen.retain(|_| dice.chance(share));
    chosen.truncate(CLIENTS);
    if chosen.is_empty() {
        return none;
    }
    let seconds = duration.0.div_ceil(SECOND.0);
    let fair = MOST * PAYLOAD.0 * 8 / seconds / chosen.len() as u64;
    let count = dice.between(1, 3);
    let (rtp, v6, bursts, repeats) =
        (dice.below(1001), dice.below(1001), dice.below(1001), dice.below(1001));
    for client in chosen {
        let most = client.rate.0.min(fair).max(64_000);
        client.rate = BitRate(dice.spread(most.div_ceil(8).max(64_000), most));
        client.burst = Bytes(0);
        let burst = Nanos::from_micros(dice.spread(200, 8_000));
        client.datagrams = Some(DatagramSpec {
            udp_output: dice.below(count) as usize,
            is_rtp: dice.chance(rtp),
            is_v6: dice.chance(v6),
            burst: if dice.chance(bursts) { burst } else { Nanos(0) },
            repeats: dice.chance(repeats),
        });
    }
    // One is occasionally fast: its messages have the maximum length.
    if !every_byte && dice.chance(200) {
        let mut fast = clients.iter_mut().filter(|client| client.datagrams.is_some());
        if let Some(ClientSpec { rate, datagrams: Some(datagrams), .. }) = fast.next() {
            *rate = BitRate(dice.spread(20_000_000, 400_000_000));
            datagrams.burst = Nanos::from_millis(dice.between(1, 8));
        }
    }
    let udp_output = |number| {
        let mut dice = dice.fork(number);
        let has_faults = matches!(mode, Mode::Safety | Mode::Liveness) && dice.chance(600);
        let until = quiet_from.since(begin);
        let faults = if has_faults { draw_faults(&mut dice, begin, until) } else { vec![] };
        UdpOutputSpec { faults }
    };
    let ceiling = draw_ceiling(&mut dice.fork(CEILING), clients);
    UdpSpec { udp_outputs: (0..count).map(udp_output).collect(), ceiling, ..none }
}

/// The need of the first UDP output's streams, or slightly more, in every third world with
/// datagrams: a stream that falls behind there catches up slowly or never.
fn draw_ceiling(dice: &mut Dice, clients: &[ClientSpec]) -> Option<BitRate> {
    let wire = |client: &ClientSpec| {
        let first = client.datagrams.is_some_and(|datagrams| datagrams.udp_output == 0);
        first.then(|| wire_max(client.rate).0)
    };
    let needed: u64 = clients.iter().filter_map(wire).sum();
    let has_class = needed > 0 && dice.chance(333);
    has_class.then(|| BitRate(needed / 1000 * dice.pick(&[1000, 1010, 1200])))
}

/// Upper bound of the rate on the wire, with packets and RTP.
pub(crate) fn wire_max(rate: BitRate) -> BitRate {
    BitRate(rate.0 + rate.0 / 13)
}

/// The label of the dice of the ceiling.
const CEILING: u64 = 4748;

/// One world in four has datagrams.
const WORLDS: u64 = 250;

fn draw_faults(dice: &mut Dice, begin: MonoTime, until: Nanos) -> Vec<UdpOutputFault> {
    let count = dice.spread(1, 6);
    let fault = |_| {
        let from = begin + Nanos(dice.below(until.0.max(1)));
        let span = Nanos(dice.spread(1_000_000, 5 * SECOND.0));
        let trouble = match dice.below(3) {
            0 => UdpOutputTrouble::Still,
            1 => UdpOutputTrouble::Refuses { permille: dice.spread(1, 1000) },
            _ => UdpOutputTrouble::Narrow {
                buffer: dice.spread(2_000, 400_000),
                rate: BitRate(dice.spread(100_000, 50_000_000)),
            },
        };
        UdpOutputFault { from, to: (from + span).min(begin + until), trouble }
    };
    (0..count).map(fault).collect()
}
