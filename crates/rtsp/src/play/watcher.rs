//! Follows the PLAY of a movie until it ends.
//!
//! Promise: receivers of each track, including silent ones, get sender reports and a BYE at the
//! end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tactus_control::generated::{End, GeneratedSession, OutputProgress, SessionEnd};
use tactus_control::trick::TrickTimeline;
use tactus_core::rtp::rtcp::{Compound, NtpTime, SenderInfo};
use tactus_core::rtsp::session::SessionId;
use tactus_core::ts::trick::Scale;

use super::super::Server;
use super::super::ended::{EndReporter, Ending};
use super::super::play_record::PlayRecord;
use super::super::ports::Listeners;
use super::super::reports::now_and_wall;
use super::super::transport::{RtpTransport, report_frame};
use super::{Track, ticks};

/// Interval of sender reports (RFC 3550, section 6.2: 5 s on average at least). The first comes
/// early: without it a player cannot synchronise video and audio.
const REPORT_EACH: Duration = Duration::from_secs(5);
const REPORT_FIRST: Duration = Duration::from_millis(50);
/// The last packets are still on their way; BYE must not overtake them.
const GOODBYE_AFTER: Duration = Duration::from_millis(200);

/// Watches a PLAY and sends sender reports.
pub(super) struct Watcher {
    pub(super) server: Weak<Server>,
    pub(super) id: SessionId,
    pub(super) generated: Arc<GeneratedSession>,
    pub(super) record: Arc<PlayRecord>,
    pub(super) reporters: Vec<Reporter>,
    /// The target of the end notification.
    pub(super) reporter: Option<EndReporter>,
    pub(super) course: TrickTimeline,
    /// Each track: number, SSRC and the number of its first packet.
    pub(super) first: Vec<(u32, u32, u16)>,
}

/// The sender of reports of one track.
pub(super) struct Reporter {
    by: Reporting,
    /// The output of the track; `None`: it is silent.
    output: Option<usize>,
    source: u32,
    /// The timestamp of the beginning of all streams, and the clock rate.
    timestamp: u32,
    clock: u32,
    /// Packets and bytes of earlier PLAYs.
    before: (u64, u64),
}

/// The transport of reports.
enum Reporting {
    Datagrams(Listeners),
    Channel(u8),
}

impl Reporter {
    /// The reporter of `track`, sent by `output`; `timestamp` is that of the beginning of all
    /// streams.
    pub(super) fn new(track: &Track, output: Option<usize>, timestamp: u32, clock: u32) -> Self {
        let by = match &track.path {
            RtpTransport::Interleaved(path) => Reporting::Channel(path.channels.1),
            RtpTransport::Udp(path) => Reporting::Datagrams(path.listeners.clone()),
        };
        Self { by, output, source: track.source, timestamp, clock, before: track.before }
    }

    /// The packets sent so far; for a silent track none, from the same beginning.
    fn gone(&self, generated: &GeneratedSession) -> Option<OutputProgress> {
        match self.output {
            Some(nth) => generated.gone(nth),
            None => generated.gone(0).map(|gone| OutputProgress { packets: 0, bytes: 0, ..gone }),
        }
    }

    fn report(&self, gone: OutputProgress) -> Compound {
        let (now, wall) = now_and_wall();
        let info = SenderInfo {
            time: NtpTime::of(wall),
            timestamp: self.timestamp.wrapping_add(ticks(now.since(gone.begin), self.clock)),
            // Both wrap at their width.
            packets: (self.before.0 + gone.packets) as u32,
            octets: (self.before.1 + gone.bytes) as u32,
        };
        Compound::of_sender(self.source, &info, &[]).name(self.source, "tactus")
    }
}

impl Watcher {
    pub(super) async fn run(self) {
        let mut next = REPORT_FIRST;
        let mut last = vec![None; self.reporters.len()];
        let ended = loop {
            tokio::select! {
                ended = self.generated.ended() => break ended,
                () = tokio::time::sleep(next) => {
                    let has_begun = self.generated.begin().is_some();
                    next = if has_begun { REPORT_EACH } else { REPORT_FIRST };
                    self.tell(&mut last);
                }
            }
        };
        let (sent, late) = self.generated.sent();
        self.record.log(ended.why.name(), sent, late);
        let Some(server) = self.server.upgrade() else { return };
        server.sessions().handle_end(self.id);
        if let Some(reporter) = &self.reporter {
            reporter.tell(self.ending(&ended));
        }
        tokio::time::sleep(GOODBYE_AFTER).await;
        let mut in_frames = vec![];
        for (nth, reporter) in self.reporters.iter().enumerate() {
            let Some(gone) = reporter.gone(&self.generated).or(last[nth]) else { continue };
            let packets = reporter.output.map_or(0, |nth| ended.packets[nth]);
            let gone = OutputProgress { packets, ..gone };
            let bytes = reporter.report(gone).bye(reporter.source, "").into_bytes();
            match &reporter.by {
                Reporting::Datagrams(listeners) => listeners.report(&bytes),
                Reporting::Channel(channel) => in_frames.push((*channel, bytes)),
            }
        }
        let session = server.play_session(self.id);
        if let Some(session) = session.filter(|_| !in_frames.is_empty()) {
            session.end(&self.generated, &in_frames).await;
        }
    }

    fn ending(&self, ended: &SessionEnd) -> Ending {
        let is_whole = ended.why == End::Complete;
        let at = match is_whole {
            true => self.course.last,
            false => self.course.position(self.generated.begin(), tactus_sys::clock::now()),
        };
        let scale = self.course.scale;
        let scale = (scale != Scale::PLAY).then(|| scale.to_string());
        let last = self.first.iter().zip(&self.reporters).filter_map(|(first, reporter)| {
            let &(number, source, first) = first;
            let packets = reporter.output.map_or(0, |nth| ended.packets[nth]).checked_sub(1)?;
            // Wraps at its width.
            Some((number, source, first.wrapping_add(packets as u16)))
        });
        Ending { is_whole, at, scale, last: last.collect() }
    }

    fn tell(&self, last: &mut [Option<OutputProgress>]) {
        for (nth, reporter) in self.reporters.iter().enumerate() {
            let Some(gone) = reporter.gone(&self.generated) else { continue };
            last[nth] = Some(gone);
            let bytes = reporter.report(gone).into_bytes();
            match (&reporter.by, self.generated.interleaver()) {
                (Reporting::Datagrams(listeners), _) => listeners.report(&bytes),
                // There is no need to wait for the report to be sent.
                (Reporting::Channel(channel), Some(interleaver)) => {
                    drop(interleaver.send(report_frame(*channel, &bytes)));
                }
                (Reporting::Channel(_), None) => {}
            }
        }
    }
}
