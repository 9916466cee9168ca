//! The end of a stream, told to who plays it in RTSP 2.0: by the connection that has asked for it,
//! as long as it is there.
//!
//! Promise: nobody waits for it to be told. What a connection does not take in time is left out:
//! the goodbye in RTCP says the same.

use tactus_core::rtsp::Status;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::v2::{RtpInfo, StreamEnd};
use tactus_core::units::MediaTime;
use tokio::sync::mpsc;

/// Ends that a connection has not told yet: more sessions than one client plays at once.
const ENDS_MAX: usize = 16;

/// Who is to be told of what one PLAY has begun.
#[derive(Clone, Debug)]
pub(super) struct EndReporter {
    pub(super) to: mpsc::Sender<StreamEnd>,
    /// As it was asked for.
    pub(super) url: String,
    pub(super) session: SessionId,
    /// The number of the request.
    pub(super) played: u32,
}

/// How something has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    /// All that was asked for has left.
    pub(super) is_whole: bool,
    pub(super) at: MediaTime,
    /// The pace, where it was not 1.
    pub(super) scale: Option<String>,
    /// By track: who sends it, and the number of its last packet.
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
            tracing::debug!(?session, "nobody is there to be told of its end");
        }
    }
}
