//! The access log's record of one PLAY: from its answer to its end, or to what interrupted it.
//!
//! Promise: a PLAY leaves one record, whoever notices its end first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tactus_core::rtsp::session::SessionId;
use tactus_core::units::BitRate;

use crate::access::{self, Protocol, Record};
use crate::broker::Punctuality;

/// What is known of it when it begins.
pub(super) struct PlayRecord {
    session: SessionId,
    title: String,
    rate: BitRate,
    since: Instant,
    is_logged: AtomicBool,
}

impl PlayRecord {
    /// `title` begins to be played now.
    pub(super) fn begin(session: SessionId, title: String, rate: BitRate) -> Self {
        Self { session, title, rate, since: Instant::now(), is_logged: AtomicBool::new(false) }
    }

    /// It has ended like this; only the first call is logged.
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
