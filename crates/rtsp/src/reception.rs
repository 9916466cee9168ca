//! Reception reports (RFC 3550, section 6.4.1): loss, jitter and round-trip time.
//!
//! Promise: they are shown and change nothing else. A block counts only for an SSRC of the session
//! that it arrived for, and only if its values are possible. The memory of a track does not depend
//! on its reports.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tactus_core::rtp::rtcp::{NtpTime, Reception};
use tactus_core::rtsp::session::SessionId;
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_ring::counter::{Histogram, Snapshot};

/// The last reception report of one track.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Receiver {
    /// The track number, from one.
    pub track: u32,
    /// The number of reports.
    pub reports: u64,
    /// The age of the last report.
    pub reported_seconds_ago: f64,
    /// The fraction of packets lost since the report before.
    pub lost_ratio: f64,
    /// All lost packets; negative if more arrived than were sent (duplicates).
    pub lost_packets: i32,
    /// The interarrival jitter (section 6.4.1).
    pub jitter_seconds: f64,
    /// The round-trip time, if the receiver has had a sender report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<f64>,
}

/// The reports of all sessions.
#[derive(Default)]
pub(super) struct Receptions(Mutex<State>);

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Vec<Track>>,
    sums: Sums,
}

/// The sums of all reports; written under the lock only.
#[derive(Default)]
struct Sums {
    lost: Histogram,
    jitter: Histogram,
    round_trip: Histogram,
}

/// The histograms of all reports.
pub struct ReceptionFigures {
    /// Loss since the report before, in millionths.
    pub lost: Snapshot,
    /// In nanoseconds.
    pub jitter: Snapshot,
    /// In nanoseconds.
    pub round_trip: Snapshot,
}

/// One SSRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Track {
    /// The track number, from one.
    pub(super) number: u32,
    pub(super) source: u32,
    /// The RTP clock rate.
    pub(super) clock: u32,
    reports: u64,
    last: Option<ReportBlock>,
}

/// A valid report block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReportBlock {
    at: MonoTime,
    fraction_lost: u8,
    lost: i32,
    jitter: Nanos,
    round_trip: Option<Nanos>,
}

/// Upper bound of jitter and round-trip time; larger values are wrong.
const TIME_MAX: Nanos = SECOND.times(60);
/// Both sides round their times, so a round trip may seem negative by this much.
const ROUNDING: Nanos = Nanos::from_millis(10);

impl Track {
    /// The track with this number, from one.
    pub(super) const fn new(number: u32, source: u32, clock: u32) -> Self {
        Self { number, source, clock, reports: 0, last: None }
    }

    fn receiver(&self, now: MonoTime) -> Option<Receiver> {
        let seconds = |time: Nanos| time.0 as f64 / SECOND.0 as f64;
        let last = self.last?;
        Some(Receiver {
            track: self.number,
            reports: self.reports,
            reported_seconds_ago: seconds(now.since(last.at)),
            lost_ratio: f64::from(last.fraction_lost) / 256.0,
            lost_packets: last.lost,
            jitter_seconds: seconds(last.jitter),
            round_trip_seconds: last.round_trip.map(seconds),
        })
    }
}

impl ReportBlock {
    /// The values of a block that arrives now; `None` if they are impossible.
    fn new(block: &Reception, clock: u32, now: MonoTime, wall: NtpTime) -> Option<Self> {
        // Rounds down.
        let jitter = u128::from(block.jitter) * u128::from(SECOND.0) / u128::from(clock.max(1));
        let jitter = u64::try_from(jitter).ok().map(Nanos).filter(|&jitter| jitter <= TIME_MAX)?;
        let Reception { fraction_lost, lost, .. } = *block;
        Some(Self { at: now, fraction_lost, lost, jitter, round_trip: round_trip(block, wall) })
    }
}

/// The time since the named sender report, less the receiver's delay.
fn round_trip(block: &Reception, wall: NtpTime) -> Option<Nanos> {
    if block.last_report == 0 {
        // The receiver has had no sender report.
        return None;
    }
    let parts = wall.middle().wrapping_sub(block.last_report).wrapping_sub(block.delay);
    // In 65,536ths of a second, modulo 2^16 seconds; rounds down.
    let time = |parts: u32| Nanos((u64::from(parts) * SECOND.0) >> 16);
    match time(parts) {
        trip if trip <= TIME_MAX => Some(trip),
        _ if time(parts.wrapping_neg()) <= ROUNDING => Some(Nanos(0)),
        _ => None,
    }
}

impl Receptions {
    fn known(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts reports of this track from now on.
    pub(super) fn expect(&self, id: SessionId, track: Track) {
        self.known().sessions.entry(id).or_default().push(track);
    }

    /// Forgets a session that is over.
    pub(super) fn forget(&self, id: SessionId) {
        self.known().sessions.remove(&id);
    }

    /// Handles the report blocks of a session's receiver; returns the number of impossible ones.
    pub(super) fn handle(
        &self,
        id: SessionId,
        blocks: &[Reception],
        (now, wall): (MonoTime, NtpTime),
    ) -> usize {
        let mut known = self.known();
        let State { sessions, sums } = &mut *known;
        let Some(tracks) = sessions.get_mut(&id) else { return 0 };
        let mut wrong = 0;
        for block in blocks {
            let track = tracks.iter_mut().find(|track| track.source == block.source);
            // Blocks about other senders are ignored.
            let Some(track) = track else { continue };
            let Some(told) = ReportBlock::new(block, track.clock, now, wall) else {
                wrong += 1;
                continue;
            };
            track.reports += 1;
            track.last = Some(told);
            sums.lost.record(u64::from(told.fraction_lost) * 1_000_000 / 256);
            sums.jitter.record(told.jitter.0);
            if let Some(trip) = told.round_trip {
                sums.round_trip.record(trip.0);
            }
        }
        wrong
    }

    /// The last reports of a session's tracks.
    pub(super) fn of(&self, id: SessionId, now: MonoTime) -> Vec<Receiver> {
        let known = self.known();
        let tracks = known.sessions.get(&id).into_iter().flatten();
        tracks.filter_map(|track| track.receiver(now)).collect()
    }

    /// The sums of all reports.
    pub(super) fn reported(&self) -> ReceptionFigures {
        let known = self.known();
        let Sums { lost, jitter, round_trip } = &known.sums;
        ReceptionFigures {
            lost: lost.snapshot(),
            jitter: jitter.snapshot(),
            round_trip: round_trip.snapshot(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reports;
    use super::*;
    use data_encoding::HEXLOWER;
    use proptest::prelude::*;

    const ID: SessionId = SessionId(1);
    const OWN: u32 = 0x7ac7_0501;
    /// A sender report, and five seconds later.
    const SENT: u32 = 0xfe01_8000;
    const WALL: NtpTime = NtpTime(0xc0de_fe06_8000_0000);
    const NOW: MonoTime = MonoTime(7_000_000_000);

    fn receptions() -> Receptions {
        let receptions = Receptions::default();
        receptions.expect(ID, Track::new(1, OWN, 90_000));
        receptions
    }

    fn block(source: u32) -> Reception {
        Reception {
            source,
            fraction_lost: 64,
            lost: -3,
            highest: 77,
            jitter: 900,
            last_report: SENT,
            delay: 4 << 16 | 0xe000,
        }
    }

    #[test]
    fn the_last_report_is_told_in_seconds() {
        let receptions = receptions();
        assert!(receptions.of(ID, NOW).is_empty());
        assert_eq!(receptions.handle(ID, &[block(5), block(OWN)], (NOW, WALL)), 0);
        let told = receptions.of(ID, NOW + SECOND.times(2));
        let expected = Receiver {
            track: 1,
            reports: 1,
            reported_seconds_ago: 2.0,
            lost_ratio: 0.25,
            lost_packets: -3,
            jitter_seconds: 0.01,
            round_trip_seconds: Some(0.125),
        };
        assert_eq!(told, [expected]);
        let deaf = Reception { last_report: 0, ..block(OWN) };
        receptions.handle(ID, &[deaf], (NOW, WALL));
        let expected = Receiver {
            reports: 2,
            reported_seconds_ago: 0.0,
            round_trip_seconds: None,
            ..expected
        };
        assert_eq!(receptions.of(ID, NOW), [expected]);
        let ReceptionFigures { lost, jitter, round_trip } = receptions.reported();
        assert_eq!((lost.count(), lost.sum()), (2, 500_000));
        assert_eq!((jitter.count(), jitter.sum()), (2, 20_000_000));
        assert_eq!((round_trip.count(), round_trip.sum()), (1, 125_000_000));
        receptions.forget(ID);
        assert_eq!(receptions.handle(ID, &[block(OWN)], (NOW, WALL)), 0);
        assert!(receptions.of(ID, NOW).is_empty());
    }

    /// A report of GStreamer 1.22 (`rtpbin`) about a stream with each twentieth packet left out.
    const OF_GSTREAMER: &str = "81c90007e696b71d7ac705010c00003f00000504000000044b691fc60000e3f2\
        81ca000ce696b71d011c757365723236313132353532313240686f73742d333061353235643506094753747265616d6572000000";

    #[test]
    fn what_a_receiver_of_others_says_is_understood() {
        let bytes = HEXLOWER.decode(OF_GSTREAMER.as_bytes()).expect("it is written so");
        let heard = reports::read(&bytes).expect("it is well formed");
        let receptions = receptions();
        let wall = NtpTime(0x4b6a_04b8 << 16);
        assert_eq!(receptions.handle(ID, &heard.receptions, (NOW, wall)), 0);
        let expected = Receiver {
            track: 1,
            reports: 1,
            reported_seconds_ago: 0.0,
            lost_ratio: 12.0 / 256.0,
            lost_packets: 63,
            // Four ticks.
            jitter_seconds: 44_444e-9,
            round_trip_seconds: Some(256.0 / 65_536.0),
        };
        assert_eq!(receptions.of(ID, NOW), [expected]);
        for len in 0..bytes.len() {
            // If cut between its two packets, it is still a report.
            assert_eq!(reports::read(&bytes[..len]).is_some(), len == 32, "cut to {len}");
        }
    }

    #[test]
    fn what_cannot_be_is_not_told() {
        let receptions = receptions();
        let hour = Reception { jitter: 90_000 * 3600, ..block(OWN) };
        assert_eq!(receptions.handle(ID, &[hour], (NOW, WALL)), 1);
        assert!(receptions.of(ID, NOW).is_empty());
        let trip = |last_report, delay| {
            round_trip(&Reception { last_report, delay, ..block(OWN) }, WALL).map(|trip| trip.0)
        };
        assert_eq!(trip(SENT, 5 << 16), Some(0));
        assert_eq!(trip(SENT, (5 << 16) + 655), Some(0), "rounded on the way");
        assert_eq!(trip(SENT, (5 << 16) + 656), None, "heard before it was sent");
        assert_eq!(trip(SENT.wrapping_sub(55 << 16), 0), Some(60_000_000_000));
        assert_eq!(trip(SENT.wrapping_sub(56 << 16), 0), None);
    }

    proptest! {
        #[test]
        fn whatever_is_reported_times_stay_in_their_bounds(
            blocks in proptest::collection::vec(any::<(bool, u8, i32, u32, u32, u32)>(), 0..31),
            wall: u64,
            clock in 0u32..200_000,
        ) {
            let receptions = Receptions::default();
            receptions.expect(ID, Track::new(1, OWN, clock));
            let blocks: Vec<_> = blocks
                .into_iter()
                .map(|(is_own, fraction_lost, lost, jitter, last_report, delay)| Reception {
                    source: if is_own { OWN } else { !OWN },
                    fraction_lost,
                    lost,
                    highest: 0,
                    jitter,
                    last_report,
                    delay,
                })
                .collect();
            let own = blocks.iter().filter(|block| block.source == OWN).count();
            let wrong = receptions.handle(ID, &blocks, (NOW, NtpTime(wall)));
            let told = receptions.of(ID, NOW);
            prop_assert_eq!(told.iter().map(|one| one.reports).sum::<u64>() as usize + wrong, own);
            for one in told {
                prop_assert!(one.jitter_seconds <= 60.0 && one.lost_ratio < 1.0);
                prop_assert!(
                    one.round_trip_seconds.is_none_or(|trip| (0.0..=60.0).contains(&trip))
                );
            }
        }
    }
}
