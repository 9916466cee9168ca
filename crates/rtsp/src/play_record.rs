//! The access log's record of one PLAY, from its answer to its end or interruption.
//!
//! Promise: a PLAY leaves one record, whichever part of the server notices its end first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tactus_control::access::{self, Protocol, Record};
use tactus_control::broker::Punctuality;
use tactus_core::rtsp::session::SessionId;
use tactus_core::units::BitRate;

/// The facts that are known at the start.
pub(super) struct PlayRecord {
    session: SessionId,
    title: String,
    rate: BitRate,
    since: Instant,
    is_logged: AtomicBool,
}

impl PlayRecord {
    /// Starts the record of `title`.
    pub(super) fn begin(session: SessionId, title: String, rate: BitRate) -> Self {
        Self { session, title, rate, since: Instant::now(), is_logged: AtomicBool::new(false) }
    }

    /// Logs the end; only the first call takes effect.
    pub(super) fn log(&self, outcome: &str, sent: u64, late: Punctuality) {
        if !access::is_on() || self.is_logged.swap(true, Ordering::Relaxed) {
            return;
        }
        access::record(Record {
            name: Some(format!("{:?}", self.session)),
            outcome: Some(outcome.to_owned()),
            sent_bytes: sent,
            duration: self.since.elapsed(),
            rate: Some(self.rate.0),
            lateness: Some(late.lateness),
            underruns: Some(late.underruns),
            ..Record::new(Protocol::Rtsp, "play", &*self.title)
        });
    }
}
