//! Repeats a short clip seamlessly: the same packets with continuous clocks and counters.
//!
//! Promise: every turn has the same whole number of packets at one constant rate. Each PCR is its
//! byte's position at that rate, rounded down to a tick. PTS and DTS advance by exactly one period
//! a turn. Continuity counters are continuous. Any turn can be generated on its own. The clip
//! itself must loop (closed group of pictures, whole frames of video and audio in a period).

use super::{
    Continuity, PACKET, PCR_BYTE, Packet, Pcr, Pid, SYNC, add_to_pes_times, set_continuity, set_pcr,
};
use crate::units::{BitRate, Bytes, MediaTime};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Why a clip cannot be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClipFault {
    /// the clip is not a row of whole 188-byte packets
    NotPackets,
    /// the clip's counters break at packet {0}
    Counters(usize),
    /// the clip has no PCR
    NoClock,
    /// the clip's PCR at packet {0} is not its position at the rate, by more than 500 ns
    NotConstant(usize),
    /// the period is not a whole number of packets at the rate, or not of 90 kHz ticks
    Uneven,
    /// the clip has {found} packets, the period has room for {room}
    TooLong {
        /// Packets of the clip.
        found: usize,
        /// Packets of a turn.
        room: usize,
    },
}

/// A repeatable clip.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// One turn: the clip, filled up with null packets.
    clip: Vec<u8>,
    /// By PID: the advance of its counter in a turn, modulo 16.
    counts: Box<[u8]>,
    rate: BitRate,
    period: MediaTime,
    /// The PCR at byte 0 of turn 0.
    start: Pcr,
}

/// TR 101 290 (2.4): a PCR may err by 500 ns, which is 13.5 ticks.
const ERROR_MAX: u64 = 13;

impl Repeat {
    /// Prepares `clip`, which was multiplexed at the constant `rate`, for turns of `period`.
    pub fn new(clip: &[u8], rate: BitRate, period: MediaTime) -> Result<Self, ClipFault> {
        let packets = whole_packets(rate, period)?;
        let found = clip.len() / PACKET;
        if found > packets {
            return Err(ClipFault::TooLong { found, room: packets });
        }
        if found == 0 || !clip.len().is_multiple_of(PACKET) {
            return Err(ClipFault::NotPackets);
        }
        let mut clip = clip.to_vec();
        while clip.len() < packets * PACKET {
            clip.extend(NULL_HEAD);
            clip.resize(clip.len().next_multiple_of(PACKET), 0xff);
        }

        let mut counts = vec![0u8; Pid::COUNT].into_boxed_slice();
        let mut counters = Continuity::default();
        let mut start: Option<Pcr> = None;
        for (nth, bytes) in clip.chunks_exact(PACKET).enumerate() {
            let packet = Packet::first_of(bytes).ok_or(ClipFault::NotPackets)?;
            if counters.handle_packet(&packet).is_some() {
                return Err(ClipFault::Counters(nth));
            }
            let count = &mut counts[usize::from(packet.pid().0)];
            *count = count.wrapping_add(u8::from(packet.has_payload())) & 0x0f;
            if let Some(pcr) = packet.pcr() {
                let offset = ticks_at(nth as u64, rate);
                let law = start.get_or_insert(pcr.before(offset)).after(offset);
                if pcr.since(law).0.min(law.since(pcr).0) > ERROR_MAX {
                    return Err(ClipFault::NotConstant(nth));
                }
            }
        }
        Ok(Self { clip, counts, rate, period, start: start.ok_or(ClipFault::NoClock)? })
    }

    /// Bytes of one turn.
    pub fn turn_len(&self) -> Bytes {
        Bytes(self.clip.len() as u64)
    }

    /// The duration of one turn.
    pub fn period(&self) -> MediaTime {
        self.period
    }

    /// The rate of the multiplex.
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// Writes turn `turn` over `out`.
    ///
    /// # Panics
    /// If `out` does not have the length of a turn.
    pub fn write_turn(&self, turn: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.clip);
        // The clocks wrap after 26.5 hours, so a turn number is reduced by whole wraps.
        let moved = u128::from(turn) * u128::from(self.period.0) % u128::from(Pcr::WRAP.0);
        let moved = MediaTime(moved as u64);
        let packets = (self.clip.len() / PACKET) as u64;
        for (nth, bytes) in out.chunks_exact_mut(PACKET).enumerate() {
            let bytes: &mut [u8; PACKET] = bytes.try_into().expect("chunks are whole packets");
            let Some(packet) = Packet::read(bytes) else { continue };
            let (pid, count) = (packet.pid(), packet.continuity());
            if pid == Pid::NULL {
                continue;
            }
            let step = self.counts[usize::from(pid.0)].wrapping_mul(turn as u8);
            set_continuity(bytes, count.wrapping_add(step));
            // Most packets have neither PCR nor PES header; for them these two do nothing.
            set_pcr(bytes, self.start.after(ticks_at(turn * packets + nth as u64, self.rate)));
            add_to_pes_times(bytes, moved);
        }
    }
}

/// A null packet's header: the rest is 0xff.
const NULL_HEAD: [u8; 4] = [SYNC, 0x1f, 0xff, 0x10];

/// Packets in `period`, if that is a whole number and PTS can advance by it.
fn whole_packets(rate: BitRate, period: MediaTime) -> Result<usize, ClipFault> {
    let bits = u128::from(rate.0) * u128::from(period.0);
    let packet = 27_000_000 * 8 * PACKET as u128;
    if bits == 0 || !bits.is_multiple_of(packet) || !period.0.is_multiple_of(300) {
        return Err(ClipFault::Uneven);
    }
    usize::try_from(bits / packet).map_err(|_| ClipFault::Uneven)
}

/// Ticks from byte 0 to the clock byte of packet `nth`. Rounds down, as the standard's formula
/// does.
fn ticks_at(nth: u64, rate: BitRate) -> MediaTime {
    let byte = u128::from(nth) * PACKET as u128 + u128::from(PCR_BYTE);
    MediaTime((byte * 8 * 27_000_000 / u128::from(rate.0) % u128::from(Pcr::WRAP.0)) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::packet;
    use super::super::{Framing, Pts, pes_times};
    use super::*;
    use proptest::prelude::*;

    const RATE: BitRate = BitRate(3_760_000);
    /// 50 packets at 2500 a second.
    const PERIOD: MediaTime = MediaTime(540_000);

    /// A clip of 47 packets: three PIDs, a clock every tenth packet, one PES header.
    fn clip() -> Vec<u8> {
        let mut counts = [0u8; 3];
        let mut bytes = Vec::new();
        for nth in 0..47u64 {
            let which = (nth % 3) as usize;
            let pcr = (nth % 30 == 0).then(|| Pcr::at(MediaTime(5_000)).after(ticks_at(nth, RATE)));
            let mut packet = packet(256 + which as u16, counts[which], pcr);
            counts[which] += 1;
            if nth == 1 {
                packet[1] |= 0x40;
                packet[4..18].copy_from_slice(&[
                    0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5, 0x21, 0x00, 0x09, 0x10, 0xa1,
                ]);
            }
            bytes.extend(packet);
        }
        bytes
    }

    fn turns(repeat: &Repeat, turns: core::ops::Range<u64>) -> Vec<u8> {
        let len = repeat.turn_len().0 as usize;
        let mut out = vec![0; len * (turns.end - turns.start) as usize];
        for (turn, out) in turns.zip(out.chunks_exact_mut(len)) {
            repeat.write_turn(turn, out);
        }
        out
    }

    #[test]
    fn the_first_turn_is_the_clip_and_its_stuffing() {
        let clip = clip();
        let first = turns(&Repeat::new(&clip, RATE, PERIOD).unwrap(), 0..1);
        assert_eq!(&first[..clip.len()], &clip[..]);
        assert_eq!(first.len(), 50 * PACKET);
        let nulls = Framing::PLAIN.packets(&first[clip.len() - 5 * PACKET..]);
        assert_eq!(nulls.filter(|(_, packet)| packet.pid() == Pid::NULL).count(), 3);
    }

    proptest! {
        #[test]
        fn no_counter_breaks_and_no_clock_errs_from_turn_to_turn(first in 0u64..1 << 40) {
            let repeat = Repeat::new(&clip(), RATE, PERIOD).unwrap();
            let bytes = turns(&repeat, first..first + 40);
            let mut watch = Continuity::default();
            let (mut clock, mut shown): (Option<(u64, Pcr)>, Option<Pts>) = (None, None);
            for (at, packet) in Framing::PLAIN.packets(&bytes) {
                prop_assert_eq!(watch.handle_packet(&packet), None);
                if let Some(pcr) = packet.pcr() {
                    let at = at as u64;
                    if let Some((before, earlier)) = clock {
                        // 10,800 ticks a packet, exactly.
                        prop_assert_eq!(pcr.since(earlier).0, (at - before) / 188 * 10_800);
                    }
                    clock = Some((at, pcr));
                }
                if let Some(times) = pes_times(&packet) {
                    prop_assert!(shown.is_none_or(|before| before.after(PERIOD) == times.shown));
                    shown = Some(times.shown);
                }
            }
            prop_assert!(clock.is_some() && shown.is_some());
        }
    }

    #[test]
    fn a_clip_that_cannot_loop_is_refused_with_the_reason() {
        let good = clip();
        let fault =
            |clip: &[u8], rate, period| Repeat::new(clip, BitRate(rate), MediaTime(period)).err();
        assert_eq!(fault(&good, RATE.0 + 1, PERIOD.0), Some(ClipFault::Uneven));
        assert_eq!(fault(&good, 0, PERIOD.0), Some(ClipFault::Uneven));
        assert_eq!(
            fault(&good, RATE.0, PERIOD.0 / 2),
            Some(ClipFault::TooLong { found: 47, room: 25 })
        );
        assert_eq!(fault(&good[1..], RATE.0, PERIOD.0), Some(ClipFault::NotPackets));
        assert_eq!(fault(&[], RATE.0, PERIOD.0), Some(ClipFault::NotPackets));
        assert_eq!(fault(&good[PACKET..30 * PACKET], RATE.0, PERIOD.0), Some(ClipFault::NoClock));
        assert_eq!(fault(&good, RATE.0 * 2, PERIOD.0), Some(ClipFault::NotConstant(30)));
        let mut lossy = good;
        lossy.drain(5 * PACKET..6 * PACKET);
        assert_eq!(fault(&lossy, RATE.0, PERIOD.0), Some(ClipFault::Counters(7)));
    }
}
