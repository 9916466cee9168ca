//! The status of a recording.
//!
//! Promise: reading the status costs the recording nothing, and it is at most one tick old. An
//! alarm is set as long as its cause persists, and its beginning and end are logged.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Serialize, Serializer};
use tactus_core::{rtp, ts};

use crate::recording::Recording;

/// The state of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No valid data has arrived yet.
    #[default]
    Waiting,
    /// Data arrives and is recorded.
    Recording,
    /// The input has stopped.
    Silent,
    /// The recording was stopped.
    Stopped,
}

/// A condition that needs attention.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// The input cannot be opened.
    Input,
    /// The input has stopped.
    Silence,
    /// The stream's rate exceeds the reserved rate.
    Rate,
    /// There is no reservation.
    Reserve,
    /// The disk is too slow, and there are gaps.
    Stall,
    /// A title cannot be stored.
    Storage,
}

impl Alarm {
    /// All alarms, with their names.
    pub const ALL: [(Self, &str); 6] = [
        (Self::Input, "input"),
        (Self::Silence, "silence"),
        (Self::Rate, "rate"),
        (Self::Reserve, "reserve"),
        (Self::Stall, "stall"),
        (Self::Storage, "storage"),
    ];
}

/// All counters since the recording began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Received datagrams.
    pub datagrams: u64,
    /// Received bytes.
    pub received_bytes: u64,
    /// Datagrams of other sources, dropped.
    pub src_refused: u64,
    /// Datagrams that the kernel dropped, because they arrived faster than they were read.
    pub socket_dropped: u64,
    /// Datagrams that exceed the largest accepted size, dropped.
    pub too_long: u64,
    /// Datagrams without a transport stream before a source was accepted, dropped.
    pub not_ts: u64,
    /// Datagrams that are not RTP, or have another payload, dropped.
    pub rtp_bad: u64,
    /// Counters of RTP.
    pub rtp: rtp::Counts,
    /// Counters of the transport stream.
    pub ts: ts::Counts,
    /// Gaps, because the disk did not accept the data in time.
    pub write_gaps: u64,
    /// Bytes lost in these gaps.
    pub write_gap_bytes: u64,
    /// Titles stored.
    pub titles: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Titles that could not be stored.
    pub titles_failed: u64,
    /// Titles deleted by `keep`.
    pub titles_removed: u64,
}

/// Counters that are not faults, or have metrics of their own.
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
    /// Each counter with its name, in the order of a packet's path.
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

    /// Each counter except those of received bytes and of titles, with its name.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.named().filter(|(name, _)| !OTHERS.contains(name))
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.named())
    }
}

/// The status of one recording at one moment.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its input, as configured.
    pub from: String,
    /// The pattern of its titles' names.
    pub to: String,
    /// Its state.
    pub state: State,
    /// The present alarms, each with a description.
    pub alarms: BTreeMap<Alarm, String>,
    /// The beginning of each alarm.
    #[serde(skip)]
    pub alarmed: BTreeMap<Alarm, Instant>,
    /// The address of its socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The address of the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The reserved rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_second: Option<u64>,
    /// The rate that the stream's clock gave last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_rate_bits_per_second: Option<u64>,
    /// The title that is being recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its bytes so far, including those that wait for the disk.
    pub title_bytes: u64,
    /// Of these, the bytes that a start after a power failure would find; zero for a title without
    /// a reservation.
    pub title_durable_bytes: u64,
    /// The last stored title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_title: Option<String>,
    /// Size of the socket buffer in the kernel.
    pub socket_buffer_bytes: u64,
    /// The counters.
    pub counts: Counts,
    /// Continuity errors by PID, of the first PIDs with errors.
    pub gaps_by_pid: BTreeMap<u16, u32>,
}

/// The cell to which a recording writes its status.
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

    /// Locks the status for a change, which must be short.
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets an alarm.
    pub(super) fn raise(&self, alarm: Alarm, what: impl Into<String>) {
        let what = what.into();
        let mut status = self.status();
        let before = status.alarms.insert(alarm, what.clone());
        if before.is_none() {
            status.alarmed.insert(alarm, Instant::now());
            tracing::warn!(recording = status.name, "{what}");
        }
    }

    /// Clears an alarm.
    pub(super) fn clear(&self, alarm: Alarm) {
        let mut status = self.status();
        if status.alarms.remove(&alarm).is_some() {
            status.alarmed.remove(&alarm);
            tracing::info!(recording = status.name, ?alarm, "over");
        }
    }
}
