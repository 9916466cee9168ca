//! Compares searches with a scan of all samples, and counts their steps.

use super::super::*;
use super::{GROUP, SCANS_MAX};
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    /// Groups and samples that this thread has visited.
    pub static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// A sample in the tables: ticks since the sample before, whether it is a sync sample, and its
/// presentation offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) after: i64,
    pub(crate) is_sync: bool,
    pub(crate) shown_after: i32,
}

fn track(rows: impl Iterator<Item = Row>, shift: i64) -> Track {
    let codec = Codec::Aac { config: vec![0x11, 0x90], rate: 48_000, channels: 2 };
    let mut decoded = 0u64;
    let samples = (0..).zip(rows).map(|(nth, Row { after, is_sync, shown_after })| {
        decoded = decoded.saturating_add_signed(after);
        Sample { at: nth * 3, len: 2, is_sync, shown_after, decoded }
    });
    let timescale = NonZeroU32::new(1000).unwrap();
    let mut track = Track { shift, ..Track::new(codec, timescale, samples.collect()) };
    track.group();
    track
}

fn entry(track: &Track, wanted: i128) -> Option<usize> {
    let first = track.samples.iter().enumerate().filter(|(_, sample)| sample.is_sync);
    let before = first.clone().take_while(|(_, sample)| track.decoded(sample) <= wanted);
    let before = before.filter(|(_, sample)| track.shown(sample) <= wanted).last();
    before.or(first.clone().next()).map(|(nth, _)| nth)
}

fn heard(track: &Track, at: i128) -> usize {
    let next = track.samples.iter().position(|sample| track.shown(sample) > at);
    next.unwrap_or(track.samples.len()).saturating_sub(1)
}

fn bytes(track: &Track, first: usize, end: Option<Nanos>) -> Option<Range<u64>> {
    let is_before =
        |sample: &&Sample| end.is_none_or(|end| track.decoded(sample) < i128::from(end.0));
    let wanted = track.samples[first..].iter().filter(is_before);
    wanted.map(bytes_of).reduce(both)
}

use super::{both, bytes_of};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn s01_searches_by_groups_find_what_a_look_at_each_sample_finds(
        steps in prop::collection::vec((0i64..50, 0u8..80, -60i32..60), 1..3000),
        shift in -500i64..500,
        positions in prop::collection::vec((0u64..90_000, any::<prop::sample::Index>()), 8),
    ) {
        let rows = steps.iter().map(|&(after, sync, shown_after)| {
            Row { after, is_sync: sync == 0, shown_after }
        });
        let track = track(rows, shift);
        for (wanted, first) in positions {
            let (wanted, first) = (Nanos::from_millis(wanted), first.index(track.samples.len()));
            let time = i128::from(wanted.0);
            prop_assert_eq!(track.entry(time), entry(&track, time));
            prop_assert_eq!(track.heard(time), heard(&track, time));
            prop_assert_eq!(track.bytes(first, None), bytes(&track, first, None));
            prop_assert_eq!(track.bytes(first, Some(wanted)), bytes(&track, first, Some(wanted)));
        }
    }

    #[test]
    fn s01_where_times_go_to_and_fro_no_byte_is_missed(
        steps in prop::collection::vec((-5000i64..5000, any::<bool>(), any::<i32>()), 1..6000),
        end in 0u64..20_000,
    ) {
        let rows = steps.iter().map(|&(after, is_sync, shown_after)| {
            Row { after, is_sync, shown_after }
        });
        let track = track(rows, 0);
        let end = Nanos::from_millis(end);
        let (time, end) = (i128::from(end.0), Some(end));
        prop_assert_eq!(track.entry(time), entry(&track, time));
        let (own, least) = (track.bytes(0, end), bytes(&track, 0, end));
        if let Some(least) = least {
            let own = own.unwrap();
            prop_assert!(own.start <= least.start && least.end <= own.end);
        }
    }
}

/// The largest tables, each an attempt to make a search long. Every search takes fewer steps than a
/// hundredth of the samples.
#[test]
fn s01_no_table_of_a_movie_makes_a_search_long() {
    const MOST: usize = SAMPLES_MAX / GROUP * 4 + (SCANS_MAX + 2) * GROUP;
    const _: () = assert!(MOST < SAMPLES_MAX / 100);
    type Table = fn(usize) -> Row;
    let tables: [(&str, Table); 7] = [
        ("no sync samples", |_| Row { after: 1, is_sync: false, shown_after: 0 }),
        ("sync samples only", |_| Row { after: 1, is_sync: true, shown_after: 0 }),
        ("all decoded at one time", |_| Row { after: 0, is_sync: true, shown_after: 0 }),
        ("one sync sample, the last", |nth| Row {
            after: 1,
            is_sync: nth == SAMPLES_MAX - 1,
            shown_after: 0,
        }),
        ("all shown after the end", |_| Row { after: 1, is_sync: true, shown_after: i32::MAX }),
        ("shown backwards", |nth| Row { after: 1, is_sync: true, shown_after: -2 * nth as i32 }),
        ("to and fro", |nth| Row {
            after: if nth % 2 == 0 { 5_000_000 } else { -5_000_000 },
            is_sync: true,
            shown_after: 0,
        }),
    ];
    for (what, row) in tables {
        let track = track((0..SAMPLES_MAX).map(row), -1);
        let last = SAMPLES_MAX - 1;
        for wanted in [0, 1, 1000, SAMPLES_MAX as u64 / 2, SAMPLES_MAX as u64, u64::MAX / 2_000_000]
        {
            let wanted = Nanos::from_millis(wanted);
            let time = i128::from(wanted.0);
            STEPS.set(0);
            let found = track.entry(time);
            track.heard(time);
            let one = STEPS.replace(0);
            track.bytes(found.unwrap_or(0), Some(wanted));
            track.bytes(last / 2 + 1, Some(wanted));
            track.bytes(0, None);
            let other = STEPS.get();
            assert!(one <= MOST && other <= 2 * MOST, "{what}, {wanted}: {one} and {other} steps");
        }
        assert_eq!(track.entry(0), entry(&track, 0), "{what}");
    }
}
