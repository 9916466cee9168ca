//! The state of an upload that arrives at a rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::units::{BitRate, MIB, Nanos};

use crate::store::fault::UploadError;
use crate::store::medium::Medium;

/// The properties of a recording.
#[derive(Clone)]
pub struct RecordingSpec {
    /// Its rate.
    pub rate: BitRate,
    /// Its reserved write slots.
    pub medium: Arc<dyn Medium>,
}

/// Room is taken this far ahead in media time, and again when half of it is used: a file system
/// that is busy with its journal may need seconds.
const AHEAD: Nanos = Nanos::from_millis(16_000);
/// Least room that is taken ahead, in bytes.
pub(super) const AHEAD_MIN: u64 = 16 * MIB;

/// Least time between two journal records. Each record costs two flushes, which all waiting uploads
/// share.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The additional state of an upload with a rate.
pub(super) struct RecordingUpload {
    /// Bytes for which room is taken ahead.
    pub(super) ahead: u64,
    /// The length up to which the file has room.
    pub(super) room: u64,
    /// Why no more room was granted.
    pub(super) short: Option<UploadError>,
    /// When the last slot was handed over or padded.
    pub(super) handed_over: Instant,
    /// When the last journal record was requested.
    pub(super) told: Instant,
    /// The length in the last requested journal record.
    pub(super) told_len: u64,
    pub(super) looked: Option<Instant>,
    /// The length at the last check, and since when it has not grown.
    pub(super) seen: (u64, Instant),
}

impl RecordingUpload {
    pub(super) fn new(live: &RecordingSpec) -> Self {
        let begun = Instant::now();
        Self {
            ahead: live.rate.bytes_in(AHEAD).0.max(AHEAD_MIN),
            room: 0,
            short: None,
            handed_over: begun,
            told: begun,
            told_len: 0,
            looked: None,
            seen: (0, begun),
        }
    }

    /// Records that a slot was handed over; returns whether a journal record is due.
    pub(super) fn handed_over(&mut self) -> bool {
        self.handed_over = Instant::now();
        self.told.elapsed() >= TOLD_EVERY
    }
}
