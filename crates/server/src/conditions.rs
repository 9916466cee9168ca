//! Conditions: what of the server is not as it should be, at this moment.
//!
//! Promise: a condition stands as long as its cause, under one name and one subject, and is logged once
//! when it begins and once when it ends. Looking at them waits for nothing. Status, readiness and metrics
//! are views of this list; it judges nothing but how grave each kind is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// What is not as it should be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A volume's directory cannot be opened, or another one is there.
    VolumeMissing,
    /// A volume that is to take uploads takes none.
    UploadsRefused,
    /// A volume's file system is read-only, and the volume is to take uploads.
    ReadOnly,
    /// A part of a volume cannot be counted: uploads with a quota are refused.
    QuotaUnknown,
    /// Titles or directories cannot be read.
    Unreadable,
    /// Titles have no bytes.
    Empty,
    /// Names that cannot be asked for: symbolic links, other file systems, names that are no text.
    LeftOut,
}

/// How grave a condition is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it was made, and perhaps not as it was meant.
    Notice,
    /// Some titles cannot be served as they should.
    Warning,
    /// A part of the server does not do what it is configured to do.
    Fault,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::VolumeMissing,
        Self::UploadsRefused,
        Self::ReadOnly,
        Self::QuotaUnknown,
        Self::Unreadable,
        Self::Empty,
        Self::LeftOut,
    ];

    /// How it is called in status, metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::VolumeMissing => "volume_missing",
            Self::UploadsRefused => "uploads_refused",
            Self::ReadOnly => "read_only",
            Self::QuotaUnknown => "quota_unknown",
            Self::Unreadable => "unreadable",
            Self::Empty => "empty",
            Self::LeftOut => "left_out",
        }
    }

    /// How grave it is.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::VolumeMissing | Self::UploadsRefused | Self::ReadOnly | Self::QuotaUnknown => {
                Severity::Fault
            }
            Self::Unreadable | Self::Empty => Severity::Warning,
            Self::LeftOut => Severity::Notice,
        }
    }
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Condition {
    /// What kind of thing.
    pub kind: Kind,
    /// How grave it is.
    pub severity: Severity,
    /// Of what: a volume's mount, or a title's path.
    pub subject: String,
    /// What is wrong and what to do, for people.
    pub message: String,
    /// Since when.
    pub seconds: u64,
}

/// What stands now. Clones are the same list.
#[derive(Clone, Default, Debug)]
pub struct Conditions(Arc<Mutex<Standing>>);

/// By kind and subject.
type Standing = BTreeMap<(Kind, String), (String, Instant)>;

/// Conditions that stand at once. More would not be read; there are a few for each volume.
const CONDITIONS_MAX: usize = 1024;

impl Conditions {
    /// From now on `subject` is in this condition. Whether it was not before.
    pub fn raise(&self, kind: Kind, subject: &str, message: impl Into<String>) -> bool {
        let (key, message) = ((kind, subject.to_owned()), message.into());
        let mut standing = self.standing();
        if let Some((known, _)) = standing.get_mut(&key) {
            *known = message;
            return false;
        }
        if standing.len() >= CONDITIONS_MAX {
            return false;
        }
        standing.insert(key, (message.clone(), Instant::now()));
        drop(standing);
        let kind = kind.name();
        tracing::warn!(condition = kind, subject, "{message}");
        true
    }

    /// From now on it is not.
    pub fn clear(&self, kind: Kind, subject: &str) {
        if self.standing().remove(&(kind, subject.to_owned())).is_some() {
            tracing::info!(condition = kind.name(), subject, "it has ended");
        }
    }

    /// It is, with the message, or is not.
    pub fn set(&self, kind: Kind, subject: &str, message: Option<String>) {
        match message {
            Some(message) => drop(self.raise(kind, subject, message)),
            None => self.clear(kind, subject),
        }
    }

    /// All that stand, the gravest first.
    #[must_use]
    pub fn all(&self) -> Vec<Condition> {
        let standing = self.standing();
        let one = |((kind, subject), (message, since)): (&(Kind, String), &(String, Instant))| {
            Condition {
                kind: *kind,
                severity: kind.severity(),
                subject: subject.clone(),
                message: message.clone(),
                seconds: since.elapsed().as_secs(),
            }
        };
        let mut all: Vec<_> = standing.iter().map(one).collect();
        all.sort_by_key(|condition| std::cmp::Reverse(condition.severity));
        all
    }

    /// How grave the gravest is; none stands: nothing.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.standing().keys().map(|(kind, _)| kind.severity()).max()
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
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
        assert!(!conditions.raise(Kind::ReadOnly, "/", "still read-only"), "it is told once");
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
