//! Conditions: the current problems of the server.
//!
//! Promise: a condition lasts as long as its cause, under one kind and one subject, and is logged
//! once when it begins and once when it ends. Reading the list never blocks. Status, readiness and
//! metrics are views of it and of the alarms of live inputs. The severity follows from the kind
//! alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// A kind of problem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A volume's directory cannot be opened, or holds another volume.
    VolumeMissing,
    /// A writable volume accepts no uploads.
    UploadsRefused,
    /// The file system of a writable volume is read-only.
    ReadOnly,
    /// A part of a volume cannot be read, so uploads with a quota are refused.
    QuotaUnknown,
    /// Titles or directories cannot be read.
    Unreadable,
    /// Titles have no bytes.
    Empty,
    /// A live input is silent, exceeds its reservation, or cannot be stored.
    LiveInput,
    /// A title that is pinned in memory is not there.
    NotPinned,
    /// Streams leave uploads less of the disk than they need.
    UploadsWait,
    /// Files that cannot be requested: symbolic links, other file systems, names that are not valid
    /// UTF-8.
    LeftOut,
}

/// The severity of a condition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Works as configured, but possibly not as intended.
    Notice,
    /// Some titles cannot be served, or not fully.
    Warning,
    /// A part of the server does not work as configured.
    Fault,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::VolumeMissing,
        Self::UploadsRefused,
        Self::ReadOnly,
        Self::QuotaUnknown,
        Self::Unreadable,
        Self::Empty,
        Self::LiveInput,
        Self::NotPinned,
        Self::UploadsWait,
        Self::LeftOut,
    ];

    /// Its name in status, metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::VolumeMissing => "volume_missing",
            Self::UploadsRefused => "uploads_refused",
            Self::ReadOnly => "read_only",
            Self::QuotaUnknown => "quota_unknown",
            Self::Unreadable => "unreadable",
            Self::Empty => "empty",
            Self::LiveInput => "live_input",
            Self::NotPinned => "not_pinned",
            Self::UploadsWait => "uploads_wait",
            Self::LeftOut => "left_out",
        }
    }

    /// Its severity.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::VolumeMissing | Self::UploadsRefused | Self::ReadOnly | Self::QuotaUnknown => {
                Severity::Fault
            }
            Self::Unreadable | Self::Empty | Self::LiveInput | Self::NotPinned => Severity::Warning,
            Self::UploadsWait | Self::LeftOut => Severity::Notice,
        }
    }
}

/// A current problem.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Condition {
    /// Its kind.
    pub kind: Kind,
    /// Its severity.
    pub severity: Severity,
    /// The subject: a volume's mount, a title's path, or a recording.
    pub subject: String,
    /// The problem and its remedy.
    pub message: String,
    /// Its age.
    pub seconds: u64,
}

/// The list of current conditions. Clones share it.
#[derive(Clone, Default, Debug)]
pub struct Conditions(Arc<Mutex<Entries>>);

/// Messages and start times by kind and subject.
type Entries = BTreeMap<(Kind, String), (String, Instant)>;

/// Most conditions at once: more would not help an operator. A volume has a few.
const CONDITIONS_MAX: usize = 1024;

impl Conditions {
    /// Begins or updates a condition of `subject`; returns whether it is new.
    pub fn raise(&self, kind: Kind, subject: &str, message: impl Into<String>) -> bool {
        let (key, message) = ((kind, subject.to_owned()), message.into());
        let mut entries = self.entries();
        if let Some((known, _)) = entries.get_mut(&key) {
            *known = message;
            return false;
        }
        if entries.len() >= CONDITIONS_MAX {
            return false;
        }
        entries.insert(key, (message.clone(), Instant::now()));
        drop(entries);
        let kind = kind.name();
        tracing::warn!(condition = kind, subject, "{message}");
        true
    }

    /// Ends a condition.
    pub fn clear(&self, kind: Kind, subject: &str) {
        if self.entries().remove(&(kind, subject.to_owned())).is_some() {
            tracing::info!(condition = kind.name(), subject, "the condition has ended");
        }
    }

    /// Begins or updates a condition with `message`; ends it if there is no message.
    pub fn set(&self, kind: Kind, subject: &str, message: Option<String>) {
        match message {
            Some(message) => drop(self.raise(kind, subject, message)),
            None => self.clear(kind, subject),
        }
    }

    /// All conditions, the most severe first.
    #[must_use]
    pub fn all(&self) -> Vec<Condition> {
        let entries = self.entries();
        let one = |((kind, subject), (message, since)): (&(Kind, String), &(String, Instant))| {
            Condition {
                kind: *kind,
                severity: kind.severity(),
                subject: subject.clone(),
                message: message.clone(),
                seconds: since.elapsed().as_secs(),
            }
        };
        let mut all: Vec<_> = entries.iter().map(one).collect();
        all.sort_by_key(|condition| std::cmp::Reverse(condition.severity));
        all
    }

    /// The highest severity; none without conditions.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.entries().keys().map(|(kind, _)| kind.severity()).max()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n08_a_condition_stands_as_long_as_its_cause_and_the_gravest_is_first() {
        let conditions = Conditions::default();
        assert_eq!((conditions.all(), conditions.worst()), (vec![], None));
        assert!(conditions.raise(Kind::LeftOut, "/", "3 symbolic links"));
        assert!(conditions.raise(Kind::ReadOnly, "/", "read-only"));
        assert!(!conditions.raise(Kind::ReadOnly, "/", "still read-only"), "an update is not new");
        let all = conditions.all();
        let kinds: Vec<_> = all.iter().map(|condition| condition.kind).collect();
        assert_eq!(kinds, [Kind::ReadOnly, Kind::LeftOut]);
        assert_eq!(all[0].message, "still read-only");
        assert_eq!(conditions.worst(), Some(Severity::Fault));
        conditions.set(Kind::ReadOnly, "/", None);
        assert_eq!(conditions.worst(), Some(Severity::Notice));
        for at in 0..2 * CONDITIONS_MAX {
            conditions.raise(Kind::Empty, &at.to_string(), "empty");
        }
        assert_eq!(conditions.all().len(), CONDITIONS_MAX, "the list is bounded");
        let json = serde_json::to_value(&conditions.all()[0]).unwrap();
        assert_eq!((&json["kind"], &json["severity"]), (&"empty".into(), &"warning".into()));
    }
}
