//! What an upload that comes at a rate remembers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_core::units::{BitRate, MIB, Nanos};

use crate::store::fault::UploadError;
use crate::store::medium::Medium;

/// How a title comes that is recorded.
#[derive(Clone)]
pub struct RecordingSpec {
    /// Its rate.
    pub rate: BitRate,
    /// Places of its own.
    pub medium: Arc<dyn Medium>,
}

/// Room is taken for so much media time ahead, and asked for again at the half of it: a file system that
/// is busy with its journal may take seconds.
const AHEAD: Nanos = Nanos::from_millis(16_000);
/// And at least for so much.
pub(super) const AHEAD_MIN: u64 = 16 * MIB;

/// The journal is told at most so often. Each time costs two flushes, shared with all others who wait.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// What an upload at a rate needs besides.
pub(super) struct RecordingUpload {
    /// Bytes for which room is taken before they come.
    pub(super) ahead: u64,
    /// Up to where the file has room.
    pub(super) room: u64,
    /// Why there is no more room.
    pub(super) short: Option<UploadError>,
    /// When the last place was handed over, or rounded off.
    pub(super) handed_over: Instant,
    /// When the journal was last to be told of something.
    pub(super) told: Instant,
    /// How much of it the journal knows, or will.
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

    /// A place has been handed over; whether the journal is to be told.
    pub(super) fn handed_over(&mut self) -> bool {
        self.handed_over = Instant::now();
        self.told.elapsed() >= TOLD_EVERY
    }
}
