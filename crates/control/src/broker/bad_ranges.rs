//! Bad ranges: unreadable places of a disk, kept for a while so that they are not read again.
//!
//! Promise: limited in number and time. A replaced title is another version, without bad ranges.
//! This module reads no clock and no disk; the broker does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tactus_core::units::Bytes;
use tactus_engine::message::VolumeId;

/// A disk retries an unreadable sector for seconds, which delays all its streams. With this time,
/// one such sector takes at most some per cent of the disk's time. A disk with a loose cable is
/// tried again after the same time.
pub(super) const MARKED_FOR: Duration = Duration::from_secs(600);

/// Limit of bad ranges. With more, the whole disk is failing, and the oldest ones are removed.
const MARKS_MAX: usize = 1024;

/// A version of a title. Its entity tag stays the same if the title is removed and found again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Version {
    pub(super) volume: VolumeId,
    pub(super) etag: String,
}

/// A range that could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRange {
    /// The disk.
    pub volume: VolumeId,
    /// The title's file, by its name at that time.
    pub file: PathBuf,
    /// Its entity tag.
    pub etag: String,
    /// The bytes of the title that are not read meanwhile.
    pub bytes: Range<u64>,
    /// The error number.
    pub errno: i32,
    /// When the read failed.
    pub since: Instant,
}

/// All bad ranges, by version and first byte.
#[derive(Default, Debug)]
pub(super) struct BadRanges(BTreeMap<(Version, u64), BadRange>);

impl BadRanges {
    /// Adds a range.
    pub(super) fn insert(&mut self, range: BadRange) {
        self.0.retain(|_, old| is_fresh(old, range.since));
        let version = Version { volume: range.volume, etag: range.etag.clone() };
        let key = (version, range.bytes.start);
        if self.0.len() >= MARKS_MAX && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, range)| range.since);
            let oldest = oldest.map(|(key, _)| key.clone()).expect("there are many");
            self.0.remove(&oldest);
        }
        self.0.insert(key, range);
    }

    /// The first bad range that overlaps `bytes` of a version.
    pub(super) fn within(
        &self,
        now: Instant,
        version: &Version,
        bytes: Range<u64>,
    ) -> Option<&BadRange> {
        // Usually the list is empty, and no key is needed.
        if self.0.is_empty() {
            return None;
        }
        let upto = (version.clone(), bytes.end);
        let ranges = self.0.range((version.clone(), 0)..upto).map(|(_, range)| range);
        let mut met = ranges.filter(|range| is_fresh(range, now) && range.bytes.end > bytes.start);
        met.next()
    }

    /// All bad ranges.
    pub(super) fn all(&self, now: Instant) -> Vec<BadRange> {
        self.0.values().filter(|range| is_fresh(range, now)).cloned().collect()
    }

    /// Removes the ranges for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(&BadRange) -> bool) {
        self.0.retain(|_, range| keep(range));
    }
}

fn is_fresh(range: &BadRange, now: Instant) -> bool {
    now.saturating_duration_since(range.since) < MARKED_FOR
}

/// Whether an error concerns a place. A disk that has gone has no bad ranges.
pub(super) fn is_of_a_place(errno: i32) -> bool {
    // The error numbers of Linux for errors of a medium, of a path to it, and of a checksum of the
    // kernel's own (`blk_errors` in block/blk-core.c).
    [libc::EIO, libc::ENODATA, libc::EREMOTEIO, libc::EILSEQ].contains(&errno)
}

impl BadRange {
    /// The time since the read failed.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The number of bytes that are not read.
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

    fn range(etag: &str, start: u64, since: Instant) -> BadRange {
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
            bad_ranges.insert(range(etag, start, now));
        }
        let first =
            |bytes| bad_ranges.within(now, &version("b"), bytes).map(|range| range.bytes.start);
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
        bad_ranges.insert(range("a", 0, begun));
        let almost = begun + MARKED_FOR - Duration::from_secs(1);
        assert!(bad_ranges.within(almost, &version("a"), 0..1).is_some());
        assert!(bad_ranges.within(begun + MARKED_FOR, &version("a"), 0..1).is_none());
        assert_eq!(bad_ranges.all(begun + MARKED_FOR), []);
        for number in 0..2 * MARKS_MAX as u64 {
            bad_ranges.insert(range("b", number * 100, almost + Duration::from_micros(number)));
        }
        assert_eq!(bad_ranges.0.len(), MARKS_MAX);
        let now = almost + Duration::from_secs(1);
        assert!(bad_ranges.within(now, &version("b"), 0..100).is_none(), "the oldest have gone");
        assert!(bad_ranges.within(now, &version("b"), 200_000..200_001).is_some());
    }
}
