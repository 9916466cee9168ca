//! The probe on whole, cut, joined, inconsistent and random bytes.

use tactus_core::units::SECOND;

use super::super::sample::{Sample, TS_RATE};
use super::*;
use proptest::prelude::*;
use std::io::Write;

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn ts(duration: Nanos) -> Vec<u8> {
    written(&Sample::ts(duration))
}

fn mp4(duration: Nanos) -> Vec<u8> {
    written(&Sample::mp4(duration))
}

fn written(sample: &Sample) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("title");
    sample.write(&path).unwrap();
    std::fs::read(path).unwrap()
}

const STREAM: MediaKind = MediaKind::TransportStream { stride: 188, broken: false };

#[test]
fn a_constant_rate_stream_has_exactly_its_rate_and_duration() {
    for (duration, name) in
        [(Nanos(1_200_000_000), "a.ts"), (SECOND.times(12), "a.ts"), (SECOND.times(12), "noname")]
    {
        let facts = probe(&file(&ts(duration)), name).unwrap();
        assert_eq!(facts.kind, STREAM);
        assert_eq!((facts.rate, facts.peak), (TS_RATE, None));
        assert_eq!((facts.duration, facts.head), (duration, Bytes::ZERO));
    }
}

#[test]
fn arrival_times_and_parity_between_packets_count_as_bytes_of_the_title() {
    let plain = ts(SECOND.times(12));
    for (before, after, stride) in [(4, 0, 192u64), (0, 16, 204)] {
        let framed: Vec<u8> = plain
            .chunks(188)
            .flat_map(|packet| [&vec![9u8; before][..], packet, &vec![9u8; after][..]].concat())
            .collect();
        let facts = probe(&file(&framed), "a.m2ts").unwrap();
        assert_eq!(facts.kind, MediaKind::TransportStream { stride: stride as u16, broken: false });
        assert_eq!(facts.rate, BitRate(2500 * stride * 8));
        assert_eq!(facts.duration, SECOND.times(12));
    }
}

#[test]
fn a_stream_cut_anywhere_keeps_its_rate() {
    let whole = ts(SECOND.times(12));
    for (from, to) in [(1, 0), (5_000, 77), (100_187, 1_000_001), (0, 188)] {
        let facts = probe(&file(&whole[from..whole.len() - to]), "cut.ts").unwrap();
        assert_eq!((facts.kind, facts.rate), (STREAM, TS_RATE));
    }
}

#[test]
fn a_joined_recording_is_said_to_be_broken_and_still_has_a_rate() {
    let one = ts(SECOND.times(6));
    let joined = [&one[..], &one[..]].concat();
    let facts = probe(&file(&joined), "joined.ts").unwrap();
    assert_eq!(facts.kind, MediaKind::TransportStream { stride: 188, broken: true });
    assert_eq!(facts.rate, TS_RATE);
}

/// A transport stream of parts, each of some milliseconds at a rate, with a clock reference each
/// 20 ms or with each other packet.
fn stream_of(parts: &[(u64, u64)]) -> Vec<u8> {
    let (mut bytes, mut begin) = (vec![], 0);
    for &(millis, rate) in parts {
        let packets = millis * rate / 1000 / (188 * 8);
        let every = (rate / 50 / (188 * 8)).max(2);
        for nth in 0..packets {
            let mut packet = [0xff; 188];
            packet[..4].copy_from_slice(&[0x47, 0x01, 0x01, 0x10 | (nth % 16) as u8]);
            if nth.is_multiple_of(every) {
                // The reference is that of its last byte.
                let ticks = begin + (nth * 188 + 11) * 8 * 27_000_000 / rate;
                let (base, extension) = (ticks / 300, ticks % 300);
                let low = (base as u8) << 7 | 0x7e | (extension >> 8) as u8;
                let base = [base >> 25, base >> 17, base >> 9, base >> 1].map(|part| part as u8);
                packet[..6].copy_from_slice(&[0x47, 0x01, 0x00, 0x20, 183, 0x10]);
                packet[6..10].copy_from_slice(&base);
                packet[10..12].copy_from_slice(&[low, extension as u8]);
            }
            bytes.extend(packet);
        }
        begin += millis * 27_000;
    }
    bytes
}

#[test]
fn r01_a_loud_middle_between_quiet_ends_is_no_jump_of_the_clock() {
    for (nth, parts) in [
        // Clock references in a sample of the loud part are less than a video frame apart.
        [(200_000, 100_000), (4_000, 60_000_000), (200_000, 100_000)],
        // No sample lies in the loud part.
        [(600_000, 200_000), (600, 60_000_000), (600_000, 200_000)],
        // The same in a short file.
        [(200_000, 90_000), (700, 40_000_000), (200_000, 90_000)],
        [(200_000, 90_000), (300, 40_000_000), (200_000, 90_000)],
        // Quiet in the middle.
        [(1_000, 80_000_000), (300_000, 100_000), (1_000, 80_000_000)],
    ]
    .iter()
    .enumerate()
    {
        let bytes = stream_of(parts);
        let millis: u64 = parts.iter().map(|part| part.0).sum();
        let mean = bytes.len() as u64 * 8000 / millis;
        let facts = probe(&file(&bytes), "a.ts").unwrap();
        assert_eq!(facts.kind, STREAM, "{nth}: {facts:?}");
        assert!(facts.rate.0.abs_diff(mean) <= mean / 100, "{nth}: {facts:?} for {mean}");
    }
}

#[test]
fn a_loud_middle_hides_no_clock_that_was_set_back() {
    let one = stream_of(&[(150_000, 100_000), (1_500, 60_000_000), (150_000, 100_000)]);
    let joined = [&one[..], &one[..]].concat();
    let facts = probe(&file(&joined), "joined.ts").unwrap();
    assert_eq!(facts.kind, MediaKind::TransportStream { stride: 188, broken: true });
    let mean = one.len() as u64 * 8000 / 301_500;
    assert!(facts.rate.0 >= mean / 2 && facts.rate.0 <= mean * 2, "{facts:?} for {mean}");
}

#[test]
fn a_stream_that_ends_in_rubbish_is_measured_by_its_head() {
    let mut bytes = ts(SECOND.times(12));
    bytes.extend(vec![0; WINDOW as usize + 1]);
    let facts = probe(&file(&bytes), "a.ts").unwrap();
    assert_eq!(facts.kind, MediaKind::TransportStream { stride: 188, broken: true });
    assert_eq!(facts.rate, TS_RATE);
}

#[test]
fn a_movie_has_the_rate_of_its_bytes_over_its_duration() {
    let sample = Sample::mp4(SECOND.times(60));
    let bytes = written(&sample);
    let facts = probe(&file(&bytes), "a.mp4").unwrap();
    assert_eq!((facts.kind, facts.duration), (MediaKind::Movie, sample.duration()));
    assert_eq!(facts.rate, sample.rate());
    let index = u32::from_be_bytes(*bytes[32..].first_chunk().unwrap());
    assert_eq!(facts.head, Bytes(32 + u64::from(index) + 8));
}

#[test]
fn the_index_may_lie_behind_the_media() {
    let bytes = mp4(SECOND.times(10));
    let index_end = 32 + u32::from_be_bytes(*bytes[32..].first_chunk().unwrap()) as usize;
    // Chunk offsets then point too far by the length of the index; the file is that much longer.
    let turned = [&bytes[..32], &bytes[index_end..], &bytes[32..index_end]].concat();
    let facts = probe(&file(&turned), "a.mp4").unwrap();
    assert_eq!(facts.rate, Sample::mp4(SECOND.times(10)).rate());
    assert_eq!(facts.head, Bytes::ZERO);
}

/// A box with its content.
fn boxed(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u32 + 8).to_be_bytes()[..], kind, &body].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// `mvhd` or `mdhd` of version 0.
fn time(timescale: u32, ticks: u32) -> Vec<u8> {
    words(&[0, 0, 0, timescale, ticks, 0, 0])
}

/// A movie of one track: `seconds` samples of one second, sizes as given, all in one chunk.
fn movie(sizes: &[u32]) -> Vec<u8> {
    let count = sizes.len() as u32;
    let ftyp = boxed(b"ftyp", &[b"isom", &words(&[0])]);
    let index = |media_at: u32| {
        let tables = boxed(
            b"stbl",
            &[
                &boxed(b"stts", &[&words(&[0, 1, count, 1000])]),
                &boxed(b"stsc", &[&words(&[0, 1, 1, count, 1])]),
                &boxed(b"stsz", &[&words(&[0, 0, count]), &words(sizes)]),
                &boxed(b"stco", &[&words(&[0, 1, media_at])]),
            ],
        );
        let media = boxed(
            b"mdia",
            &[&boxed(b"mdhd", &[&time(1000, count * 1000)]), &boxed(b"minf", &[&tables])],
        );
        let head = boxed(b"tkhd", &[&words(&[0, 0, 0, 1])]);
        let track = boxed(b"trak", &[&head, &media]);
        boxed(b"moov", &[&boxed(b"mvhd", &[&time(600, count * 600)]), &track])
    };
    let media_at = ftyp.len() + index(0).len() + 8;
    let media = vec![0; sizes.iter().sum::<u32>() as usize];
    [ftyp, index(media_at as u32), boxed(b"mdat", &[&media])].concat()
}

#[test]
fn r06_a_movie_that_gets_busy_states_its_mean_and_its_peak() {
    // Ten quiet seconds, then twenty of 8 Mbit/s, then ten quiet ones.
    let sizes: Vec<u32> =
        (0..40).map(|n| if (10..30).contains(&n) { 1_000_000 } else { 100_000 }).collect();
    let bytes = movie(&sizes);
    let facts = crate::facts(&file(&bytes), "a.mov").unwrap();
    assert_eq!(facts.rate, BitRate((bytes.len() as u64 * 8).div_ceil(40)));
    // Twenty samples within the twenty seconds between their times, and the one that may be held.
    let peak = facts.peak.unwrap().0;
    assert!((7_600_000..=8_000_000).contains(&peak), "{peak}");
    let constant = crate::facts(&file(&movie(&[500_000; 40])), "a.mov").unwrap();
    assert!(constant.peak.is_none_or(|peak| peak.0 <= 4_100_000), "{constant:?}");
}

#[test]
fn a_movie_written_track_after_track_has_its_mean_only() {
    // The first sample is due at once and lies behind everything else.
    let mut sizes = vec![100_000; 40];
    sizes[0] = 3_900_000;
    let facts = probe(&file(&movie(&sizes)), "a.mov").unwrap();
    assert_eq!(facts.peak, None);
}

#[test]
fn a_fragmented_movie_has_a_rate_when_its_index_states_the_duration() {
    let head = |fragments: &[u8]| {
        let index =
            boxed(b"moov", &[&boxed(b"mvhd", &[&time(1000, 0)]), &boxed(b"mvex", &[fragments])]);
        [boxed(b"ftyp", &[b"isom", &words(&[0])]), index, boxed(b"mdat", &[&[0; 100_000]])].concat()
    };
    let stated = head(&boxed(b"mehd", &[&words(&[0, 4000])]));
    let facts = probe(&file(&stated), "a.mp4").unwrap();
    assert_eq!(facts.rate, BitRate(stated.len() as u64 * 2));
    assert!(probe(&file(&head(&[])), "a.mp4").is_none());
}

#[test]
fn what_is_no_media_has_no_rate() {
    for bytes in [
        &b""[..],
        b"G",
        b"hello, world",
        &[0x47; 187],
        &[0; 100_000],
        b"\0\0\0\0moov",
        b"\0\0\0\x08moov",
    ] {
        for name in ["a.ts", "a.mp4", "a.txt", "", "."] {
            assert_eq!(probe(&file(bytes), name), None);
        }
    }
    assert_eq!(probe(&file(&[0x47; 100_000]), "sync.ts"), None, "sync bytes alone have no clock");
    assert_eq!(probe(&File::open("/").unwrap(), "a.ts"), None, "a directory");
}

/// U18: boxes of zero, 64-bit or huge sizes; 2^32 entries; deep nesting.
#[test]
fn u18_boxes_that_lie_have_no_rate_and_cost_no_time() {
    let good = movie(&[1000; 10]);
    let moov = good.windows(4).position(|found| found == b"moov").unwrap() - 4;
    for size in [0u32, 1, 2, 7, 8, 15, 0x7fff_ffff, u32::MAX] {
        for at in (0..good.len().min(600)).step_by(4) {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&size.to_be_bytes());
            if let Some(facts) = probe(&file(&bad), "a.mp4") {
                assert!(facts.rate.0 > 0);
            }
        }
    }
    // A 64-bit size beyond the file, and one that would overflow.
    for size in [u64::MAX, u64::MAX - 8, 1 << 63, 15, 0] {
        let mut bad = good[..moov].to_vec();
        bad.extend([&words(&[1])[..], b"moov", &size.to_be_bytes(), &good[moov + 8..]].concat());
        assert_eq!(probe(&file(&bad), "a.mp4"), None, "size {size:#x}");
    }
    let deep = (0..10_000).fold(Vec::new(), |inner, _| {
        [&(inner.len() as u32 + 8).to_be_bytes()[..], b"moov", &inner].concat()
    });
    assert_eq!(probe(&file(&deep), "a.mp4"), None);
    let many = boxed(b"free", &[]).repeat(100_000);
    assert_eq!(probe(&file(&many), "a.mp4"), None);
}

/// U18: a sparse giant is read in windows, and its index is refused by its size.
#[test]
fn u18_a_huge_file_is_not_read_whole() {
    let sparse = file(&movie(&[1000; 10]));
    sparse.set_len(1 << 36).unwrap();
    let facts = probe(&sparse, "a.mp4");
    // After the media the zeroes are one box to the end of the file; the index is valid.
    assert!(facts.is_some_and(|facts| facts.rate.0 == (1u64 << 39).div_ceil(10)));

    let fat = file(&[&words(&[65 << 20])[..], b"moov"].concat());
    fat.set_len(66 << 20).unwrap();
    assert_eq!(probe(&fat, "a.mp4"), None);

    let stream = file(&ts(SECOND.times(6)));
    stream.set_len(1 << 40).unwrap();
    let facts = probe(&stream, "a.ts").unwrap();
    assert_eq!(facts.kind, MediaKind::TransportStream { stride: 188, broken: true });
}

/// U18: 2^32 samples of one size in a file of a few hundred bytes end at the existing chunks.
#[test]
fn u18_four_billion_samples_without_a_table_end_early() {
    let mut bytes = movie(&[1000; 10]);
    let at = bytes.windows(4).position(|found| found == b"stsz").unwrap() + 8;
    bytes[at..at + 8].copy_from_slice(&words(&[1, u32::MAX]));
    for (kind, word) in [(b"stsc", 3), (b"stts", 2)] {
        let at = bytes.windows(4).position(|found| found == kind).unwrap() + 4 + 4 * word;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    }
    let facts = crate::facts(&file(&bytes), "a.mp4").unwrap();
    assert_eq!(facts.rate.0, (bytes.len() as u64 * 8).div_ceil(10));
}

proptest! {
    #[test]
    fn no_bytes_make_the_probe_panic(
        bytes in
            proptest::collection::vec(prop_oneof![Just(0x47u8), Just(0u8), any::<u8>()], 0..5000),
        name in prop_oneof![Just("a.ts"), Just("a.mp4"), Just("a")],
    ) {
        let _found = probe(&file(&bytes), name);
    }

    #[test]
    fn a_damaged_movie_has_a_sane_rate_or_none(
        hits in proptest::collection::vec((0usize..700, any::<u8>()), 1..20), cut in 0usize..700,
    ) {
        let mut bytes = movie(&[1000, 30_000, 500, 7, 9000]);
        for (at, value) in hits {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - cut);
        if let Some(facts) = probe(&file(&bytes), "a.mp4") {
            prop_assert!(
                facts.rate.0 > 0 && facts.duration > Nanos::ZERO
            );
        }
    }

    #[test]
    fn a_damaged_stream_has_a_sane_rate_or_none(
        hits in proptest::collection::vec((0usize..564_000, any::<u8>()), 1..200),
    ) {
        let mut bytes = ts(SECOND);
        for (at, value) in hits {
            bytes[at] = value;
        }
        if let Some(facts) = probe(&file(&bytes), "a.ts") {
            prop_assert!(facts.rate.0 > 0 && facts.duration > Nanos::ZERO);
        }
    }
}
