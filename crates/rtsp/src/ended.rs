//! Notifies RTSP 2.0 clients of the end of a stream, on the connection that requested it, while it
//! exists.
//!
//! Promise: the notification blocks nothing. If the connection does not take it in time, it is
//! dropped: the RTCP BYE has the same meaning.

use tactus_core::rtsp::Status;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::v2::{RtpInfo, StreamEnd};
use tactus_core::units::MediaTime;
use tokio::sync::mpsc;

/// Notifications queued for a connection: more sessions than one client plays at once.
const ENDS_MAX: usize = 16;

/// The target of the end notification of one PLAY.
#[derive(Clone, Debug)]
pub(super) struct EndReporter {
    pub(super) to: mpsc::Sender<StreamEnd>,
    /// The URL as requested.
    pub(super) url: String,
    pub(super) session: SessionId,
    /// The CSeq of the PLAY.
    pub(super) played: u32,
}

/// The end of a PLAY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    /// The whole range was sent.
    pub(super) is_whole: bool,
    pub(super) at: MediaTime,
    /// The scale, if it was not 1.
    pub(super) scale: Option<String>,
    /// Each track with its SSRC and the number of its last packet.
    pub(super) last: Vec<(u32, u32, u16)>,
}

pub(super) fn ends() -> (mpsc::Sender<StreamEnd>, mpsc::Receiver<StreamEnd>) {
    mpsc::channel(ENDS_MAX)
}

impl EndReporter {
    pub(super) fn tell(&self, ending: Ending) {
        let Self { url, session, played, .. } = self;
        let of = |(number, source, sequence)| RtpInfo {
            url: format!("{url}/track{number}"),
            source,
            sequence,
            timestamp: None,
        };
        let end = StreamEnd {
            url: url.clone(),
            session: *session,
            played: *played,
            status: if ending.is_whole { Status::OK } else { Status::INTERNAL },
            at: ending.at,
            scale: ending.scale,
            last: ending.last.into_iter().map(of).collect(),
        };
        if self.to.try_send(end).is_err() {
            tracing::debug!(
                ?session,
                "the end of the stream is not notified: the connection is closed or busy"
            );
        }
    }
}
