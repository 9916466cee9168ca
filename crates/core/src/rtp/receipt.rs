//! Reception statistics of a source for receiver reports (RFC 3550, section 6.4.1).
//!
//! Promise: losses and jitter follow appendices A.3 and A.8, over numbers extended as in A.1, in
//! any order of packets. A source without packets since the last report is not reported. It counts
//! and holds no packet.

use super::Packet;
use super::rtcp::{NtpTime, Reception};
use crate::units::{MonoTime, SECOND};

/// A larger jump is no loss: the source has restarted (appendix A.1).
const DROPOUT_MAX: u16 = 3000;
/// Up to this far behind the highest number a packet is late, not a restart (appendix A.1).
const MISORDER_MAX: u16 = 100;

/// The statistics of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// The RTP clock rate.
    clock: u32,
    come: Option<SourceState>,
    /// The last sender report: SSRC, its time, and its arrival.
    heard: Option<(u32, NtpTime, MonoTime)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SourceState {
    source: u32,
    /// The first number, and the highest extended number.
    base: u64,
    highest: u64,
    received: u64,
    /// The number after one far out of order: if it arrives, the source has restarted.
    anew: Option<u16>,
    /// Of the last packet: arrival less timestamp, modulo 2^32.
    transit: u32,
    /// In sixteenths of a tick.
    jitter: u64,
    /// Expected and received packets at the last report.
    before: (u64, u64),
    /// A packet arrived since the last report.
    is_new: bool,
}

impl Receipt {
    /// Statistics of a source with this clock rate.
    pub const fn new(clock: u32) -> Self {
        Self { clock, come: None, heard: None }
    }

    /// Takes a packet; all packets must be of one source.
    pub fn handle_packet(&mut self, now: MonoTime, packet: &Packet<'_>) {
        let arrival = u128::from(now.0) * u128::from(self.clock) / u128::from(SECOND.0);
        let transit = (arrival as u32).wrapping_sub(packet.timestamp);
        let sequence = packet.sequence;
        let come = self.come.get_or_insert(SourceState {
            source: packet.source,
            base: u64::from(sequence),
            highest: u64::from(sequence),
            received: 0,
            anew: None,
            transit,
            jitter: 0,
            before: (0, 0),
            is_new: false,
        });
        let ahead = sequence.wrapping_sub(come.highest as u16);
        if ahead < DROPOUT_MAX {
            come.highest += u64::from(ahead);
        } else if ahead <= u16::MAX - MISORDER_MAX {
            if come.anew.replace(sequence.wrapping_add(1)) != Some(sequence) {
                return;
            }
            (come.base, come.highest) = (u64::from(sequence), u64::from(sequence));
            (come.received, come.before) = (0, (0, 0));
        }
        come.anew = None;
        come.received += 1;
        come.is_new = true;
        let off = (transit.wrapping_sub(come.transit) as i32).unsigned_abs();
        come.transit = transit;
        come.jitter = come.jitter + u64::from(off) - ((come.jitter + 8) >> 4);
    }

    /// Takes a sender report.
    pub fn handle_sender(&mut self, now: MonoTime, source: u32, time: NtpTime) {
        self.heard = Some((source, time, now));
    }

    /// The report block; `None` without packets since the last one.
    pub fn report(&mut self, now: MonoTime) -> Option<Reception> {
        let come = self.come.as_mut().filter(|come| come.is_new)?;
        come.is_new = false;
        let expected = come.highest - come.base + 1;
        let lost = |expected: u64, received: u64| expected as i64 - received as i64;
        let (expected_before, received_before) =
            core::mem::replace(&mut come.before, (expected, come.received));
        let since = expected - expected_before;
        // Rounds down. Duplicates may outnumber losses.
        let fraction = match lost(since, come.received - received_before) {
            lost @ 1.. => (lost << 8) / since.max(1) as i64,
            _ => 0,
        };
        let heard = self.heard.filter(|&(source, ..)| source == come.source);
        let delay = |at: MonoTime| (u128::from(now.since(at).0) << 16) / u128::from(SECOND.0);
        Some(Reception {
            source: come.source,
            fraction_lost: u8::try_from(fraction).unwrap_or(u8::MAX),
            // Clamped to 24 bits.
            lost: lost(expected, come.received).clamp(-0x80_0000, 0x7f_ffff) as i32,
            highest: come.highest as u32,
            jitter: u32::try_from(come.jitter >> 4).unwrap_or(u32::MAX),
            last_report: heard.map_or(0, |(_, time, _)| time.middle()),
            delay: heard.map_or(0, |(.., at)| u32::try_from(delay(at)).unwrap_or(u32::MAX)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MILLISECOND;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn packet(sequence: u16, timestamp: u32) -> Packet<'static> {
        Packet { marker: false, payload_type: 33, sequence, timestamp, source: 7, payload: &[] }
    }

    fn at(millis: u64) -> MonoTime {
        MonoTime(millis * MILLISECOND.0)
    }

    #[test]
    fn each_twentieth_packet_that_is_missing_is_twelve_256ths() {
        let mut receipt = Receipt::new(90_000);
        assert_eq!(receipt.report(at(0)), None, "nothing has come");
        receipt.handle_sender(at(1000), 7, NtpTime(0x1234_5678_9abc_def0));
        let first = 65_000u16;
        let mut come = |from: u16, to: u16| {
            for nth in (from..to).filter(|nth| nth % 20 != 10) {
                // Ten milliseconds each, as the timestamps say.
                let packet = packet(first.wrapping_add(nth), u32::from(nth) * 900);
                receipt.handle_packet(at(u64::from(nth) * 10), &packet);
            }
            receipt.report(at(u64::from(to) * 10))
        };
        let one = come(0, 400).expect("something has come");
        assert_eq!((one.source, one.fraction_lost, one.lost), (7, 12, 20));
        assert_eq!((one.highest, one.jitter), (65_399, 0));
        assert_eq!((one.last_report, one.delay), (0x5678_9abc, 3 << 16));
        // The numbers wrap, and earlier losses do not count in the fraction.
        let next = come(400, 800).expect("something has come");
        assert_eq!((next.fraction_lost, next.lost, next.highest), (12, 40, 65_799));
        assert_eq!(come(800, 800), None, "nothing more has come");
    }

    #[test]
    fn what_comes_late_or_twice_is_not_lost_and_what_begins_anew_counts_from_there() {
        let mut receipt = Receipt::new(90_000);
        let mut come = |numbers: &[u16]| {
            numbers.iter().for_each(|&number| receipt.handle_packet(at(0), &packet(number, 0)));
            receipt.report(at(0)).map(|told| (told.fraction_lost, told.lost, told.highest))
        };
        assert_eq!(come(&[10, 12, 11, 13]), Some((0, 0, 13)));
        assert_eq!(come(&[15]), Some((128, 1, 15)));
        assert_eq!(come(&[14, 14]), Some((0, -1, 15)));
        assert_eq!(come(&[30_000]), None, "one wild number is nobody's");
        assert_eq!(come(&[40_000, 40_001, 40_003]), Some((85, 1, 40_003)));
    }

    #[test]
    fn jitter_is_the_mean_by_which_packets_are_off() {
        let mut receipt = Receipt::new(90_000);
        // Each second one is 2 ms late: 180 ticks, less the rounding.
        for nth in 0..1000u16 {
            let now = at(u64::from(nth) * 20 + 2 * u64::from(nth % 2));
            receipt.handle_packet(now, &packet(nth, u32::from(nth) * 1800));
        }
        assert_eq!(receipt.report(at(20_000)).map(|told| told.jitter), Some(179));
        // A report of another SSRC is ignored.
        receipt.handle_sender(at(20_000), 8, NtpTime(u64::MAX));
        receipt.handle_packet(at(20_000), &packet(1000, 20_000));
        assert_eq!(receipt.report(at(20_000)).map(|told| told.last_report), Some(0));
    }

    proptest! {
        #[test]
        fn all_that_is_lost_on_the_way_is_counted_once(
            first: u16,
            comes in proptest::collection::vec(any::<bool>(), 1..600),
            each in 1usize..600,
        ) {
            let mut receipt = Receipt::new(90_000);
            let packets: Vec<_> = comes.iter().enumerate().collect();
            let (mut highest, mut last) = (0, 0);
            for part in packets.chunks(each) {
                for (nth, _) in part.iter().filter(|(nth, comes)| **comes || *nth == 0) {
                    receipt.handle_packet(at(0), &packet(first.wrapping_add(*nth as u16), 0));
                    highest = *nth;
                }
                if let Some(told) = receipt.report(at(0)) {
                    let came = comes[1..=highest].iter().filter(|comes| **comes).count() + 1;
                    prop_assert_eq!(told.lost as usize, highest + 1 - came);
                    prop_assert_eq!(told.highest, u32::from(first) + highest as u32);
                    prop_assert!(told.fraction_lost == 0 || told.lost > last);
                    last = told.lost;
                }
            }
        }

        #[test]
        fn no_packets_are_hostile_enough(
            packets in proptest::collection::vec(any::<(u16, u32, u32, bool)>(), 0..300),
            clock: u32,
        ) {
            let mut receipt = Receipt::new(clock);
            let mut now = MonoTime(0);
            for (sequence, timestamp, after, is_reported) in packets {
                now = MonoTime(now.0 + u64::from(after) * 1000);
                receipt.handle_packet(now, &packet(sequence, timestamp));
                if is_reported {
                    receipt.handle_sender(now, 7, NtpTime(u64::from(timestamp)));
                    receipt.report(now);
                }
            }
        }
    }
}
