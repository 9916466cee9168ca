//! What is counted of RTSP.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why something was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Reason {
    /// No request: a rule of the protocol was broken.
    Malformed,
    /// Too slow to say what it wants.
    Slow,
    /// All connections, or all of one address, are in use.
    Connections,
    /// No name, or not the right password.
    Unknown,
    /// Something that this principal may not.
    Forbidden,
    /// There is no room for the stream.
    Room,
    /// Too many sessions of one address that do not play.
    Waiting,
    /// PLAY and PAUSE too often.
    Often,
    /// To be sent to somebody who did not ask (`destination=`).
    Reflect,
    /// A transport that is not spoken, or ports that are not sent to.
    Transport,
    /// No session of this name, or somebody else's.
    Session,
}

/// Every reason, and how it is called.
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

    /// Requests that were understood.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// RTCP packets that were understood.
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// RTCP packets that were dropped.
    pub fn reports_bad(&self) -> u64 {
        self.reports_bad.load(Ordering::Relaxed)
    }

    /// Sessions that ended since nothing was heard of them.
    pub fn silent_sessions(&self) -> u64 {
        self.silent.load(Ordering::Relaxed)
    }

    /// How often each reason was one.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.iter().map(|&(reason, name)| (name, self.refused_for(reason)))
    }

    /// How often this was the reason.
    pub fn refused_for(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }
}
