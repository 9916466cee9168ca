//! Counters of the RTSP server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request or connection was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Reason {
    /// A rule of the protocol was broken.
    Malformed,
    /// The request took too long to arrive.
    Slow,
    /// The limit of connections, in total or of one address, was reached.
    Connections,
    /// No name, or a wrong password.
    Unknown,
    /// The principal lacks the right.
    Forbidden,
    /// No room for the stream.
    Room,
    /// Too many sessions of one address that do not play.
    Waiting,
    /// PLAY and PAUSE too often.
    Often,
    /// A destination that is not the requesting address (`destination=`).
    Reflect,
    /// An unsupported transport, or ports that are not permitted.
    Transport,
    /// No session with this name, or a session of another client.
    Session,
}

/// All reasons with their label values.
const REASONS: [(Reason, &str); 11] = [
    (Reason::Malformed, "malformed"),
    (Reason::Slow, "slow"),
    (Reason::Connections, "connections"),
    (Reason::Unknown, "unknown"),
    (Reason::Forbidden, "forbidden"),
    (Reason::Room, "room"),
    (Reason::Waiting, "waiting"),
    (Reason::Often, "often"),
    (Reason::Reflect, "reflect"),
    (Reason::Transport, "transport"),
    (Reason::Session, "session"),
];

/// Sums since the start.
#[derive(Default, Debug)]
pub struct Counters {
    requests: AtomicU64,
    reports: AtomicU64,
    reports_bad: AtomicU64,
    silent: AtomicU64,
    refused: [AtomicU64; REASONS.len()],
}

impl Counters {
    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) {
        self.reports.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn bad_report(&self) {
        self.reports_bad.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn silent(&self) {
        self.silent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Parsed requests.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Parsed RTCP packets.
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Dropped RTCP packets.
    pub fn reports_bad(&self) -> u64 {
        self.reports_bad.load(Ordering::Relaxed)
    }

    /// Sessions that ended by silence.
    pub fn silent_sessions(&self) -> u64 {
        self.silent.load(Ordering::Relaxed)
    }

    /// The count of each reason.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.iter().map(|&(reason, name)| (name, self.refused_for(reason)))
    }

    /// The count of this reason.
    pub fn refused_for(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }
}
