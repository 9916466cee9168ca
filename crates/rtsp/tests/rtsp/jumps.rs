//! What a receiver finds where a session goes on elsewhere in its title.

use std::collections::HashMap;

use tactus_core::ts::{Framing, PACKET, Pid};
use tactus_media::sample::TS_RATE;

/// A PCR may be so far from its byte's time: 500 ns, in ticks of 27 MHz, rounded down.
const ERROR_MAX: f64 = 13.0;

/// Counters follow each other from `before` into `part`, which begins with the mark of another
/// clock: one mark, in the first packet of the clock, before any other time of it; and each PCR is
/// the time of its byte.
pub(crate) fn is_marked(before: &[u8], part: &[u8]) {
    let mut counters: HashMap<u16, u8> = HashMap::new();
    for (at, packet) in Framing::PLAIN.packets(&[before, part].concat()) {
        if packet.pid() == Pid::NULL {
            continue;
        }
        let count = packet.continuity();
        let last = counters.insert(packet.pid().0, count);
        let due = last.map(|last| last.wrapping_add(u8::from(packet.has_payload())) & 0x0f);
        assert!(
            due.is_none_or(|due| due == count),
            "byte {at} {:?}: {last:?} {count}",
            packet.pid()
        );
    }
    let clocks = || {
        Framing::PLAIN.packets(part).filter_map(|(at, packet)| Some((at, packet, packet.pcr()?)))
    };
    let (first, packet, begin) = clocks().next().expect("it has a clock");
    assert!(
        packet.is_discontinuous() && !packet.has_payload() && first < 7 * PACKET,
        "byte {first}"
    );
    let marks = Framing::PLAIN.packets(part).filter(|(_, packet)| packet.is_discontinuous());
    assert_eq!(marks.count(), 1, "a jump is told once");
    let times = Framing::PLAIN
        .packets(part)
        .find(|(_, packet)| tactus_core::ts::pes_times(packet).is_some());
    assert!(
        times.is_none_or(|(at, _)| at > first),
        "nothing is of the new clock before it is marked"
    );
    let mut stamps = 0;
    for (at, _, pcr) in clocks() {
        let due = (at - first) as f64 * 8.0 * 27e6 / TS_RATE.0 as f64;
        let off = pcr.since(begin).0 as f64 - due;
        assert!(off.abs() <= ERROR_MAX, "packet at {at}: {off} ticks");
        stamps += 1;
    }
    assert!(stamps > 3, "{stamps} stamps");
}

/// Whether packets are those of the title but for counters and clocks.
pub(crate) fn are_of(title: &[u8], part: &[u8]) -> bool {
    let own = |packet: &[u8]| -> Vec<u8> {
        let mut packet = packet.to_vec();
        packet[3] &= 0xf0;
        if packet[3] & 0x20 != 0 && packet[4] >= 7 && packet[5] & 0x10 != 0 {
            packet[6..12].fill(0);
        }
        packet
    };
    let packets: Vec<_> = part.chunks(PACKET).map(own).collect();
    let begins = title.chunks(PACKET).map(own).collect::<Vec<_>>();
    begins.windows(packets.len()).any(|window| window == packets)
}
