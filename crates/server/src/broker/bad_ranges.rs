//! Places that a disk could not read: remembered for a while, so that nobody asks for them again.
//!
//! Promise: bounded in number and time; what has been replaced is another version, and has no marks.
//! It reads no clock and no disk; the broker does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tactus_core::units::Bytes;
use tactus_engine::message::VolumeId;

/// A disk that cannot read a sector tries for seconds, which are those of all its streams: so one such
/// sector takes at most some per cent of its time. A disk whose cable was loose is asked again after as
/// long.
pub(super) const MARKED_FOR: Duration = Duration::from_secs(600);

/// With more, a disk is dying as a whole, and its oldest marks go.
const MARKS_MAX: usize = 1024;

/// Which version of which title: its entity tag outlives that it is forgotten and found again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Version {
    pub(super) volume: VolumeId,
    pub(super) etag: String,
}

/// A place that could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRange {
    /// The disk.
    pub volume: VolumeId,
    /// The title's file, as it was called then.
    pub file: PathBuf,
    /// Its entity tag.
    pub etag: String,
    /// The bytes of the title that nobody asks for meanwhile.
    pub bytes: Range<u64>,
    /// The error number.
    pub errno: i32,
    /// Since when.
    pub since: Instant,
}

/// All of them, by version and first byte.
#[derive(Default, Debug)]
pub(super) struct BadRanges(BTreeMap<(Version, u64), BadRange>);

impl BadRanges {
    /// Remembers a place.
    pub(super) fn insert(&mut self, place: BadRange) {
        self.0.retain(|_, old| is_fresh(old, place.since));
        let version = Version { volume: place.volume, etag: place.etag.clone() };
        let key = (version, place.bytes.start);
        if self.0.len() >= MARKS_MAX && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, place)| place.since);
            let oldest = oldest.map(|(key, _)| key.clone()).expect("there are many");
            self.0.remove(&oldest);
        }
        self.0.insert(key, place);
    }

    /// The first marked place that `bytes` of a version would come across.
    pub(super) fn within(
        &self,
        now: Instant,
        version: &Version,
        bytes: Range<u64>,
    ) -> Option<&BadRange> {
        // Mostly there is none, and then no key need be made.
        if self.0.is_empty() {
            return None;
        }
        let upto = (version.clone(), bytes.end);
        let places = self.0.range((version.clone(), 0)..upto).map(|(_, place)| place);
        let mut met = places.filter(|place| is_fresh(place, now) && place.bytes.end > bytes.start);
        met.next()
    }

    /// All that are marked.
    pub(super) fn all(&self, now: Instant) -> Vec<BadRange> {
        self.0.values().filter(|place| is_fresh(place, now)).cloned().collect()
    }

    /// Forgets those that are not to be kept.
    pub(super) fn retain(&mut self, keep: impl Fn(&BadRange) -> bool) {
        self.0.retain(|_, place| keep(place));
    }
}

fn is_fresh(place: &BadRange, now: Instant) -> bool {
    now.saturating_duration_since(place.since) < MARKED_FOR
}

/// Whether an error is the place's: a disk that has gone has no bad ranges.
pub(super) fn is_of_a_place(errno: i32) -> bool {
    // What Linux makes of errors of a medium, of a path to it, and of a sum that it keeps itself
    // (`blk_errors` in block/blk-core.c).
    [libc::EIO, libc::ENODATA, libc::EREMOTEIO, libc::EILSEQ].contains(&errno)
}

impl BadRange {
    /// How long it has been marked.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How many bytes nobody asks for.
    #[must_use]
    pub fn len(&self) -> Bytes {
        Bytes(self.bytes.end - self.bytes.start)
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(etag: &str, start: u64, since: Instant) -> BadRange {
        BadRange {
            volume: VolumeId(0),
            file: "/a.ts".into(),
            etag: etag.into(),
            bytes: start..start + 100,
            errno: 5,
            since,
        }
    }

    fn version(etag: &str) -> Version {
        Version { volume: VolumeId(0), etag: etag.into() }
    }

    #[test]
    fn a_stream_comes_across_the_first_place_that_it_would_reach() {
        let now = Instant::now();
        let mut bad_ranges = BadRanges::default();
        for (etag, start) in [("b", 300), ("b", 700), ("a", 0), ("c", 0)] {
            bad_ranges.insert(place(etag, start, now));
        }
        let first =
            |bytes| bad_ranges.within(now, &version("b"), bytes).map(|place| place.bytes.start);
        assert_eq!(first(0..1000), Some(300));
        assert_eq!(first(0..301), Some(300));
        assert_eq!(first(0..300), None);
        assert_eq!(first(399..1000), Some(300));
        assert_eq!(first(400..1000), Some(700));
        assert_eq!(first(800..1000), None);
        assert_eq!(
            bad_ranges.within(now, &version("d"), 0..1000),
            None,
            "a replaced title is another"
        );
    }

    #[test]
    fn a_mark_goes_with_its_time_and_when_there_are_too_many() {
        let begun = Instant::now();
        let mut bad_ranges = BadRanges::default();
        bad_ranges.insert(place("a", 0, begun));
        let almost = begun + MARKED_FOR - Duration::from_secs(1);
        assert!(bad_ranges.within(almost, &version("a"), 0..1).is_some());
        assert!(bad_ranges.within(begun + MARKED_FOR, &version("a"), 0..1).is_none());
        assert_eq!(bad_ranges.all(begun + MARKED_FOR), []);
        for number in 0..2 * MARKS_MAX as u64 {
            bad_ranges.insert(place("b", number * 100, almost + Duration::from_micros(number)));
        }
        assert_eq!(bad_ranges.0.len(), MARKS_MAX);
        let now = almost + Duration::from_secs(1);
        assert!(bad_ranges.within(now, &version("b"), 0..100).is_none(), "the oldest have gone");
        assert!(bad_ranges.within(now, &version("b"), 200_000..200_001).is_some());
    }
}
