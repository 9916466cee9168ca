//! What a recording says of itself.
//!
//! Promise: looking costs the recording nothing; what is told is at most a tick old. An alarm stands as
//! long as its cause, and its beginning and end are logged.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Serialize, Serializer};
use tactus_core::{rtp, ts};

use crate::config::recording::Recording;

/// What goes on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing valid has come yet.
    #[default]
    Waiting,
    /// Something comes and is recorded.
    Recording,
    /// Nothing comes any more.
    Silent,
    /// It has been ended.
    Stopped,
}

/// What somebody should look at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// The input cannot be opened.
    Input,
    /// The input has stopped.
    Silence,
    /// More comes than was reserved.
    Rate,
    /// Nothing is reserved.
    Reserve,
    /// The disk does not take it in time, and there are gaps.
    Stall,
    /// A title is not stored.
    Storage,
}

impl Alarm {
    /// All of them, by their names.
    pub const ALL: [(Self, &str); 6] = [
        (Self::Input, "input"),
        (Self::Silence, "silence"),
        (Self::Rate, "rate"),
        (Self::Reserve, "reserve"),
        (Self::Stall, "stall"),
        (Self::Storage, "storage"),
    ];
}

/// Everything that is counted, since the recording began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Datagrams that came.
    pub datagrams: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Datagrams of other sources, dropped.
    pub src_refused: u64,
    /// Datagrams that the kernel dropped, because they came faster than they are taken.
    pub socket_dropped: u64,
    /// Datagrams longer than any that is taken, dropped.
    pub too_long: u64,
    /// Datagrams of nobody yet that are no transport stream, dropped.
    pub not_ts: u64,
    /// Datagrams that are no RTP, or carry something else, dropped.
    pub rtp_bad: u64,
    /// What has been seen of their RTP.
    pub rtp: rtp::Counts,
    /// What has been seen of their stream.
    pub ts: ts::Counts,
    /// Times that the disk did not take what came, and something was dropped.
    pub write_gaps: u64,
    /// Bytes dropped by that.
    pub write_gap_bytes: u64,
    /// Titles stored.
    pub titles: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Titles that could not be stored.
    pub titles_failed: u64,
    /// Titles that had to go, by `keep`.
    pub titles_removed: u64,
}

/// What is no fault, or has a metric of its own.
const OTHERS: [&str; 7] = [
    "datagrams",
    "received_bytes",
    "packets",
    "skipped_bytes",
    "write_gap_bytes",
    "titles",
    "stored_bytes",
];

impl Counts {
    /// Each with its name, in the order of the way of a packet.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let came = [
            ("datagrams", self.datagrams),
            ("received_bytes", self.received_bytes),
            ("src_refused", self.src_refused),
            ("socket_dropped", self.socket_dropped),
            ("too_long", self.too_long),
            ("not_ts", self.not_ts),
            ("rtp_bad", self.rtp_bad),
        ];
        let went = [
            ("write_gaps", self.write_gaps),
            ("write_gap_bytes", self.write_gap_bytes),
            ("titles", self.titles),
            ("stored_bytes", self.stored_bytes),
            ("titles_failed", self.titles_failed),
            ("titles_removed", self.titles_removed),
        ];
        came.into_iter().chain(self.rtp.named()).chain(self.ts.named()).chain(went)
    }

    /// Dropped datagrams of permitted senders, by reason.
    pub(super) fn dropped(&self) -> [(u64, &'static str); 3] {
        [
            (self.too_long, "were truncated by the kernel"),
            (self.not_ts, "contain no MPEG transport stream"),
            (self.rtp_bad, "are not RTP of payload type 33 (RFC 2250)"),
        ]
    }

    /// Each count but those of received bytes and of titles, with its name.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.named().filter(|(name, _)| !OTHERS.contains(name))
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.named())
    }
}

/// One recording at one moment.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its input, as it was configured.
    pub from: String,
    /// The names of its titles.
    pub to: String,
    /// What goes on.
    pub state: State,
    /// What somebody should look at, with what is known of it.
    pub alarms: BTreeMap<Alarm, String>,
    /// Since when each of these stands.
    #[serde(skip)]
    pub alarmed: BTreeMap<Alarm, Instant>,
    /// Where it listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Who sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What is reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_second: Option<u64>,
    /// What the stream's clock said last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_rate_bits_per_second: Option<u64>,
    /// The title that is coming in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Bytes of it so far; those that wait for the disk included.
    pub title_bytes: u64,
    /// Of these, what a start after a power failure would find; none of a title for which nothing is
    /// reserved.
    pub title_durable_bytes: u64,
    /// The last title that was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_title: Option<String>,
    /// Bytes that the kernel may hold for it.
    pub socket_buffer_bytes: u64,
    /// What has been counted.
    pub counts: Counts,
    /// Breaks of the continuity counters by PID, of the PIDs that have any: the first ones.
    pub gaps_by_pid: BTreeMap<u16, u32>,
}

/// Where a recording writes what it is.
pub(super) struct StatusCell(Mutex<Status>);

impl StatusCell {
    pub(super) fn new(recording: &Recording) -> Self {
        let (name, from) = (recording.name.clone(), recording.from.to_string());
        let to = recording.to.to_string();
        Self(Mutex::new(Status { name, from, to, ..Status::default() }))
    }

    pub(super) fn read(&self) -> Status {
        self.status().clone()
    }

    /// Changes what is told; it must not take long.
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cause of an alarm is there.
    pub(super) fn raise(&self, alarm: Alarm, what: impl Into<String>) {
        let what = what.into();
        let mut status = self.status();
        let before = status.alarms.insert(alarm, what.clone());
        if before.is_none() {
            status.alarmed.insert(alarm, Instant::now());
            tracing::warn!(recording = status.name, "{what}");
        }
    }

    /// The cause of an alarm has gone.
    pub(super) fn clear(&self, alarm: Alarm) {
        let mut status = self.status();
        if status.alarms.remove(&alarm).is_some() {
            status.alarmed.remove(&alarm);
            tracing::info!(recording = status.name, ?alarm, "over");
        }
    }
}
