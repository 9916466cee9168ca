//! Groups of a track's samples, for searches with a bounded number of steps.
//!
//! Promise: a search visits each group once and the samples of at most [`SCANS_MAX`] groups,
//! whatever the movie's tables contain: with [`SAMPLES_MAX`](super::SAMPLES_MAX) samples that is
//! about a tenth of a millisecond of a thread that also serves other clients.

use std::ops::Range;

use tactus_core::units::Nanos;

use super::{Sample, Track};

/// Samples per group: about the square root of the largest number of samples.
pub(super) const GROUP: usize = 1024;
/// Most groups whose samples one search visits.
const SCANS_MAX: usize = 4;

/// Bounds of consecutive samples. Times are ticks of the movie's time scale.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// Over sync samples: the latest decoding time, and the earliest presentation time.
    entry_decoded_max: Option<i128>,
    entry_shown_min: Option<i128>,
    shown_max: i128,
    decoded: (i128, i128),
    /// The range of the file that they occupy.
    bytes: Range<u64>,
}

impl Group {
    fn of(track: &Track, samples: &[Sample]) -> Self {
        let first = &samples[0];
        let decoded = track.decoded_ticks(first);
        let mut group = Self {
            entry_decoded_max: None,
            entry_shown_min: None,
            shown_max: i128::MIN,
            decoded: (decoded, decoded),
            bytes: bytes_of(first),
        };
        for sample in samples {
            let (decoded, shown) = (track.decoded_ticks(sample), track.shown_ticks(sample));
            if sample.is_sync {
                group.entry_decoded_max = group.entry_decoded_max.max(Some(decoded));
                let least = group.entry_shown_min.map_or(shown, |least| least.min(shown));
                group.entry_shown_min = Some(least);
            }
            group.shown_max = group.shown_max.max(shown);
            let (least, most) = group.decoded;
            group.decoded = (least.min(decoded), most.max(decoded));
            group.bytes = both(group.bytes, bytes_of(sample));
        }
        group
    }
}

impl Track {
    /// Builds the groups; the samples must not change afterwards.
    pub(super) fn group(&mut self) {
        self.groups = self.samples.chunks(GROUP).map(|samples| Group::of(self, samples)).collect();
    }

    /// The last sync sample that is decoded and shown at `wanted` or before; the first sync sample
    /// if there is none.
    pub(super) fn entry(&self, wanted: i128) -> Option<usize> {
        let is_late = |time: i128| self.nanos(time) > wanted;
        let late = self.first(
            |group| group.entry_decoded_max.is_some_and(is_late),
            |sample| sample.is_sync && is_late(self.decoded_ticks(sample)),
        );
        let before = self.last_before(
            late.unwrap_or(self.samples.len()),
            |group| group.entry_shown_min.is_some_and(|time| !is_late(time)),
            |sample| sample.is_sync && !is_late(self.shown_ticks(sample)),
        );
        let any = || self.first(|group| group.entry_shown_min.is_some(), |sample| sample.is_sync);
        before.or_else(any)
    }

    /// The sample before the first that is shown after `at`, or the last one.
    pub(super) fn heard(&self, at: i128) -> usize {
        let next =
            self.first(|group| self.nanos(group.shown_max) > at, |sample| self.shown(sample) > at);
        next.unwrap_or(self.samples.len()).saturating_sub(1)
    }

    /// The range of the file with the samples from `first` on that are decoded before `end`; none
    /// if there are none. If decoding times are not monotonic, so that many groups have samples on
    /// both sides of `end`, the range may be larger.
    pub fn bytes(&self, first: usize, end: Option<Nanos>) -> Option<Range<u64>> {
        let is_before = |time: i128| end.is_none_or(|end| self.nanos(time) < i128::from(end.0));
        let mut scans = 0;
        let mut all: Option<Range<u64>> = None;
        let mut add = |bytes: Range<u64>| {
            all = Some(all.take().map_or(bytes.clone(), |all| both(all, bytes)));
        };
        for (nth, group) in self.groups.iter().enumerate().skip(first / GROUP) {
            step();
            let (from, (earliest, latest)) = (nth * GROUP, group.decoded);
            if !is_before(earliest) {
                continue;
            }
            if from >= first && (is_before(latest) || scans >= SCANS_MAX - 1) {
                add(group.bytes.clone());
                continue;
            }
            scans += 1;
            for sample in
                self.samples[from.max(first)..].iter().take(from + GROUP - from.max(first))
            {
                step();
                if is_before(self.decoded_ticks(sample)) {
                    add(bytes_of(sample));
                }
            }
        }
        all
    }

    /// The first sample that matches, in the first group that may contain one.
    fn first(
        &self,
        has_one: impl Fn(&Group) -> bool,
        is_one: impl Fn(&Sample) -> bool,
    ) -> Option<usize> {
        let nth = self.groups.iter().position(|group| {
            step();
            has_one(group)
        })?;
        self.within(nth * GROUP..self.samples.len().min((nth + 1) * GROUP)).find(|&nth| {
            step();
            is_one(&self.samples[nth])
        })
    }

    /// The last matching sample before `to`: searches the group of `to`, then the last group that
    /// may contain one.
    fn last_before(
        &self,
        to: usize,
        has_one: impl Fn(&Group) -> bool,
        is_one: impl Fn(&Sample) -> bool,
    ) -> Option<usize> {
        let is_one = |nth: &usize| {
            step();
            is_one(&self.samples[*nth])
        };
        let whole = to / GROUP;
        if let Some(found) = self.within(whole * GROUP..to).rfind(is_one) {
            return Some(found);
        }
        let nth = self.groups[..whole].iter().rposition(|group| {
            step();
            has_one(group)
        })?;
        self.within(nth * GROUP..(nth + 1) * GROUP).rfind(is_one)
    }

    fn within(&self, range: Range<usize>) -> Range<usize> {
        debug_assert!(range.end <= self.samples.len() && range.len() <= GROUP);
        range
    }
}

fn bytes_of(sample: &Sample) -> Range<u64> {
    sample.at..sample.at + u64::from(sample.len)
}

fn both(one: Range<u64>, other: Range<u64>) -> Range<u64> {
    one.start.min(other.start)..one.end.max(other.end)
}

/// Counts a visited group or sample.
fn step() {
    #[cfg(test)]
    tests::STEPS.set(tests::STEPS.get() + 1);
}

#[cfg(test)]
pub(super) mod tests;
