//! Counters of the HTTP side, by name; one counter per kind of abuse.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

macro_rules! abuses {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:literal $points:literal,)+) => {
        /// A kind of abuse, or of behaviour that only broken or hostile clients show.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Abuse {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl Abuse {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Its name in metrics and logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// The points that it adds to the score of an address. Zero for behaviour that an
            /// honest client can show.
            pub fn points(self) -> u32 {
                match self { $(Self::$kind => $points,)+ }
            }
        }
    };
}

abuses! {
    /// A connection sent no byte within the time for a head.
    IdleNew "idle_new" 1,
    /// A head did not end within its time.
    SlowHeader "slow_header" 10,
    /// A body came too slowly.
    SlowBody "slow_body" 10,
    /// A client took its bytes too slowly.
    SlowReader "slow_reader" 0,
    /// The length of a body was given twice, or was ambiguous.
    FramingConflict "framing_conflict" 20,
    /// A chunked body broke its format.
    BadChunk "bad_chunk" 20,
    /// A request broke the grammar.
    BadRequest "bad_request" 5,
    /// A request line was too long.
    LongLine "long_line" 5,
    /// A request had too many fields, or too long ones.
    ManyFields "many_fields" 5,
    /// A request had no host, two hosts, or one that is not served.
    BadHost "bad_host" 1,
    /// A request had a method that is not served.
    BadMethod "bad_method" 0,
    /// A request had a body that is too large.
    LargeBody "large_body" 1,
    /// A token was invalid.
    WrongToken "wrong_token" 5,
    /// A path was invalid, and only a repair could make it valid.
    BadPath "bad_path" 1,
    /// A range field requested too many or no bytes.
    BadRange "bad_range" 0,
    /// An address had all its connections.
    PerIpLimit "per_ip_limit" 0,
    /// An address was refused for its score.
    AbuseScore "abuse_score" 0,
    /// The listener had all its connections.
    ConnectionLimit "connection_limit" 0,
}

/// Counters that any thread may increase and read.
#[derive(Debug, Default)]
pub struct Counters {
    abuses: [AtomicU64; Abuse::ALL.len()],
    /// Answers by the first digit of their status, 2 to 5.
    answers: [AtomicU64; 4],
    connections: AtomicU64,
    connections_open: AtomicI64,
    accept_pauses: AtomicU64,
    requests: AtomicU64,
}

impl Counters {
    /// How often `abuse` was seen.
    pub fn abuse(&self, abuse: Abuse) -> u64 {
        self.abuses[abuse as usize].load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn connections_open(&self) -> u64 {
        self.connections_open.load(Ordering::Relaxed).max(0) as u64
    }

    /// Every kind of abuse with its count.
    pub fn abuses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Abuse::ALL.iter().map(|&abuse| (abuse.name(), self.abuse(abuse)))
    }

    /// Answers sent so far, by the class of their status.
    pub fn answers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let classes = ["2xx", "3xx", "4xx", "5xx"];
        classes.into_iter().zip(self.answers.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// All other counters, by name.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("connections", read(&self.connections)),
            ("accept_pauses", read(&self.accept_pauses)),
            ("requests", read(&self.requests)),
        ]
        .into_iter()
    }

    pub(super) fn count(&self, abuse: Abuse) {
        self.abuses[abuse as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.connections_open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connection_closed(&self) {
        self.connections_open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn accept_paused(&self) {
        self.accept_pauses.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn requested(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self, status: u16) {
        if let Some(class) = self.answers.get(usize::from(status / 100).wrapping_sub(2)) {
            class.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_abuse_has_its_own_name_and_count() {
        let counters = Counters::default();
        for (index, &abuse) in Abuse::ALL.iter().enumerate() {
            assert_eq!(abuse as usize, index);
            counters.count(abuse);
            assert_eq!(counters.abuse(abuse), 1);
        }
        let names: std::collections::HashSet<_> = counters.abuses().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Abuse::ALL.len());
    }

    #[test]
    fn answers_are_counted_by_class() {
        let counters = Counters::default();
        for status in [206, 304, 400, 404, 503, 100, 999] {
            counters.answered(status);
        }
        let answers: Vec<_> = counters.answers().collect();
        assert_eq!(answers, [("2xx", 1), ("3xx", 1), ("4xx", 2), ("5xx", 1)]);
    }
}
