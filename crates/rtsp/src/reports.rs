//! RTCP of sessions: keep-alive and BYE of receivers, and sender reports.
//!
//! Promise: a datagram that is not well-formed to its last byte, or that speaks for another source,
//! is ignored (row S19).

use std::time::SystemTime;

use tactus_core::rtp::rtcp::{self, Compound, NtpTime, Packet, Reception, SenderInfo, Timeline};
use tactus_core::units::{MonoTime, WallTime};

/// The meaning of a receiver's datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// The receiver is alive.
    Alive,
    /// The receiver leaves.
    Bye,
}

/// A parsed RTCP datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ReportDatagram {
    pub(super) report: Report,
    /// Its reception report blocks: as many as fit into a datagram.
    pub(super) receptions: Vec<Reception>,
}

/// Parses a datagram; `None` if it breaks a rule.
pub(super) fn read(bytes: &[u8]) -> Option<ReportDatagram> {
    let (mut who, mut report, mut all) = (None, Report::Alive, vec![]);
    for packet in rtcp::read(bytes).ok()? {
        match packet {
            Packet::Sender { source, receptions, .. } | Packet::Receiver { source, receptions } => {
                if *who.get_or_insert(source) != source {
                    return None;
                }
                all.extend(receptions.iter());
            }
            Packet::Bye { sources, .. } => {
                // BYE of itself only: a receiver cannot speak for others.
                let mut gone = sources.iter().peekable();
                if gone.peek().is_none() || !gone.all(|source| Some(source) == who) {
                    return None;
                }
                report = Report::Bye;
            }
            Packet::Description(_) | Packet::Application { .. } | Packet::Other { .. } => {}
        }
    }
    who.map(|_| ReportDatagram { report, receptions: all })
}

/// The sent part of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SenderState {
    pub(super) source: u32,
    pub(super) timeline: Timeline,
    /// Since the beginning of the session.
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// The CNAME of all sources, which reveals nothing about the machine.
pub(super) const NAME: &str = "tactus";

impl SenderState {
    /// A sender report.
    pub(super) fn report(&self, now: MonoTime, wall: WallTime) -> Compound {
        let info = SenderInfo {
            time: NtpTime::of(wall),
            timestamp: self.timeline.timestamp(now),
            // Both wrap at their width.
            packets: self.packets as u32,
            octets: self.bytes as u32,
        };
        Compound::of_sender(self.source, &info, &[]).name(self.source, NAME)
    }

    /// The last report, with BYE (RFC 3550, section 6.6).
    pub(super) fn goodbye(&self, now: MonoTime, wall: WallTime) -> Compound {
        self.report(now, wall).bye(self.source, "")
    }
}

/// Both clocks, read together.
pub(super) fn now_and_wall() -> (MonoTime, WallTime) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let wall = WallTime(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    (tactus_sys::clock::now(), wall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALIVE: [u8; 8] = [0x80, 201, 0, 1, 0, 0, 0, 7];

    fn report(bytes: &[u8]) -> Option<Report> {
        read(bytes).map(|heard| heard.report)
    }

    fn with(more: &[u8]) -> Option<Report> {
        report(&[&ALIVE, more].concat())
    }

    #[test]
    fn s19_reports_that_break_a_rule_are_nothing() {
        assert_eq!(report(&ALIVE), Some(Report::Alive));
        assert_eq!(with(&[0x81, 203, 0, 1, 0, 0, 0, 7]), Some(Report::Bye));
        assert_eq!(with(&[0x81, 203, 0, 2, 0, 0, 0, 7, 3, 1, 2, 3]), Some(Report::Bye));
        for (bytes, rule) in [
            (&[0x81, 203, 0, 1, 0, 0, 0, 8][..], "BYE for others"),
            (&[0x82, 203, 0, 2, 0, 0, 0, 7, 0, 0, 0, 8], "BYE for others, too"),
            (&[0x80, 203, 0, 0], "BYE for nobody"),
            (&[0x82, 203, 0, 1, 0, 0, 0, 7], "more in it than there are"),
            (&[0x81, 203, 0, 2, 0, 0, 0, 7, 4, 1, 2, 3], "reason past the end"),
            (&[0x81, 203, 0, 2, 0, 0, 0, 7], "length past the end"),
            (&[0x81, 203, 0xff, 0xff, 0, 0, 0, 7], "length far past the end"),
            (&[0x41, 203, 0, 1, 0, 0, 0, 7], "version 1"),
            (&[0xa1, 203, 0, 1, 0, 0, 0, 7, 0x80, 202, 0, 0], "padding before the end"),
            (&[0x81, 203, 0], "cut"),
            (&[0x80, 201, 0, 1, 0, 0, 0, 8], "two that speak"),
        ] {
            assert_eq!(with(bytes), None, "{rule}");
        }
        assert_eq!(read(&[0x81, 203, 0, 1, 0, 0, 0, 7]), None, "no report in front");
        assert_eq!(read(&[0x81, 201, 0, 1, 0, 0, 0, 7]), None, "no block");
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn our_reports_count_from_the_first_packet() {
        let timeline = Timeline { epoch: MonoTime(1_000_000_000), base: u32::MAX };
        let sent = SenderState { source: 7, timeline, packets: 1 << 32 | 5, bytes: 6580 };
        let bytes = sent.goodbye(MonoTime(2_000_000_000), WallTime(0)).into_bytes();
        let packets: Vec<_> = rtcp::read(&bytes).unwrap().collect();
        let Packet::Sender { source: 7, info, .. } = packets[0] else { panic!("{packets:?}") };
        assert_eq!((info.timestamp, info.packets, info.octets), (89_999, 5, 6580));
        assert_eq!(report(&bytes), Some(Report::Bye));
    }

    proptest! {
        #[test]
        fn s19_any_bytes_are_a_report_or_nothing(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            prop_assert!(read(&bytes).is_none() || bytes[0] >> 6 == 2);
            prop_assert!(with(&bytes).is_none() || bytes.is_empty() || bytes[0] >> 6 == 2);
        }
    }
}
