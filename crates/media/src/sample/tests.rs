//! The seams of the sample titles, checked by own and by other readers.

use tactus_core::ts::{Continuity, Framing, PCR_BYTE, Packet, Pcr, Pid, Pts, pes_times};
use tactus_core::units::SECOND;

use super::*;
use dvb_conformance::{ConformanceMonitor, Indicator};
use proptest::prelude::*;
use shiguredo_mp4::TrackKind;
use shiguredo_mp4::demux::{Input, Mp4FileDemuxer};
use std::time::Duration;

fn bytes(sample: &Sample) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("title");
    sample.write(&path).unwrap();
    assert!(sample.is_at(&path).unwrap());
    fs::read(path).unwrap()
}

/// Ticks of 27 MHz in a millisecond.
const MS: u64 = 27_000;

#[test]
fn the_stream_has_no_break_and_every_clock_is_its_bytes_position() {
    let title = Sample::ts(SECOND.times(30));
    let bytes = bytes(&title);
    assert_eq!(title.duration(), SECOND.times(30));
    assert_eq!(bytes.len(), 30 * 2500 * 188);
    assert_eq!(title.rate(), TS_RATE);

    let mut watch = Continuity::default();
    let (mut first, mut last): (Option<(u64, Pcr)>, Option<Pcr>) = (None, None);
    for (at, packet) in Framing::PLAIN.packets(&bytes) {
        assert_eq!(watch.handle_packet(&packet), None, "byte {at}");
        let Some(pcr) = packet.pcr() else { continue };
        let at = at as u64 + PCR_BYTE;
        let (start, zero) = *first.get_or_insert((at, pcr));
        let due = u128::from(at - start) * 8 * 27_000_000 / u128::from(TS_RATE.0);
        assert_eq!(
            u128::from(pcr.since(zero).0),
            due,
            "the standard allows 500 ns, we err by none"
        );
        // ISO/IEC 13818-1 allows 100 ms; old receivers want 40 ms.
        assert!(last.is_none_or(|last| pcr.since(last).0 <= 40 * MS), "byte {at}");
        last = Some(pcr);
    }
    assert!(first.is_some());
}

/// The arrival time of byte `at`.
fn arrival(bytes: &[u8], at: usize) -> Pcr {
    let (start, pcr) = Framing::PLAIN
        .packets(bytes)
        .find_map(|(at, packet)| Some((at as u64 + PCR_BYTE, packet.pcr()?)))
        .unwrap();
    let zero = pcr.before(MediaTime(start * 8 * 27_000_000 / TS_RATE.0));
    zero.after(MediaTime(at as u64 * 8 * 27_000_000 / TS_RATE.0))
}

#[test]
fn video_and_audio_run_on_over_the_seams_and_arrive_before_they_are_due() {
    let title = bytes(&Sample::ts(SECOND.times(12)));
    let zero = arrival(&title, 0);
    // Video: every frame of 40 ms once. Layer II: units of five frames of 24 ms; the last of a turn
    // is shorter, as ffmpeg made it.
    for (pid, frame_ms, per_turn) in [(Pid(256), 40, 30), (Pid(257), 24, 50)] {
        let mut shown = Vec::new();
        let mut decoded_before: Option<Pts> = None;
        for (at, packet) in Framing::PLAIN.packets(&title).filter(|(_, p)| p.pid() == pid) {
            let Some(times) = pes_times(&packet) else { continue };
            let slack = times.decoded.as_pcr().since(arrival(&title, at)).0;
            assert!(
                slack < 1000 * MS,
                "{pid:?} at byte {at}: decoded before it arrives, or held a second"
            );
            let step = decoded_before.map(|before| times.decoded.as_pcr().since(before.as_pcr()).0);
            assert!(step.is_none_or(|step| step > 0 && step < 300 * MS), "{pid:?}: {step:?}");
            decoded_before = Some(times.decoded);
            shown.push(times.shown.as_pcr().since(zero).0);
        }
        shown.sort_unstable();
        let span = shown.last().unwrap() - shown[0];
        assert!(shown.windows(2).all(|pair| pair[1] > pair[0]), "no frame is shown twice");
        assert!(
            shown.iter().all(|at| (at - shown[0]).is_multiple_of(frame_ms * MS)),
            "one grid for all"
        );
        if pid == Pid(256) {
            assert_eq!(shown.len(), 10 * per_turn);
            assert_eq!(span, (10 * per_turn as u64 - 1) * frame_ms * MS);
        }
    }
}

#[test]
fn layer_ii_frames_fill_every_turn_without_a_gap() {
    let title = bytes(&Sample::ts(SECOND.times(12)));
    let mut audio = Vec::new();
    for (_, packet) in Framing::PLAIN.packets(&title).filter(|(_, p)| p.pid() == Pid(257)) {
        let payload = packet.payload();
        // The PES header: nine bytes and the length in the last of them.
        let skip = if packet.starts_unit() { 9 + usize::from(payload[8]) } else { 0 };
        audio.extend_from_slice(&payload[skip..]);
    }
    // 128 kbit/s at 48 kHz: frames of 384 bytes.
    assert_eq!(audio.len(), 10 * 50 * 384);
    assert!(audio.chunks(384).all(|frame| frame[..2] == [0xff, 0xfd]));
}

#[test]
fn a_newcomer_finds_tables_and_a_whole_video_frame_at_once() {
    let title = bytes(&Sample::ts(SECOND));
    let firsts: Vec<u16> =
        Framing::PLAIN.packets(&title).take(4).map(|(_, packet)| packet.pid().0).collect();
    assert_eq!(firsts, [17, 0, 4096, 256], "SDT, PAT, PMT, then the picture");
    // TR 101 290 (1.3, 1.5): at most 500 ms between tables; ffmpeg writes them every 100 ms.
    for pid in [Pid(0), Pid(4096)] {
        let places: Vec<usize> = Framing::PLAIN
            .packets(&title)
            .filter(|(_, p)| p.pid() == pid)
            .map(|(at, _)| at)
            .collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] <= 188 * 2500 / 8), "{pid:?}");
    }
}

/// TR 101 290, checked by an independent monitor.
#[test]
fn the_stream_raises_no_indicator_of_tr_101_290() {
    let title = bytes(&Sample::ts(SECOND.times(60)));
    let mut monitor = ConformanceMonitor::new();
    let mut raised = Vec::new();
    for (nth, packet) in title.chunks(188).enumerate() {
        let events = monitor.feed(packet, Duration::from_micros(nth as u64 * 400));
        // 3.10: the monitor drains the video buffer at the mean rate of its PID, which null packets
        // keep far below the rate of H.264 level 3.1.
        raised.extend(events.iter().filter(|e| e.indicator != Indicator::DataDelayError).cloned());
    }
    assert_eq!(raised, []);
    assert_eq!(monitor.stats().packets, 60 * 2500);
}

#[test]
fn a_duration_is_rounded_up_to_whole_turns() {
    assert_eq!(Sample::ts(Nanos(0)).duration(), Nanos(1_200_000_000));
    assert_eq!(Sample::ts(Nanos(1_200_000_001)).duration(), Nanos(2_400_000_000));
    assert_eq!(Sample::mp4(SECOND.times(600)).duration(), Nanos(600_960_000_000));
}

#[test]
fn a_name_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing").join("title.ts");
    assert!(write_ts(&path, SECOND).is_err());
    assert!(!path.exists());
    let path = dir.path().join("title.ts");
    fs::create_dir(&path).unwrap();
    assert!(write_ts(&path, SECOND).is_err(), "a directory is not overwritten");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
}

/// Kind, decoding time, presentation offset, sync, bytes.
type Read = (TrackKind, u64, i64, bool, Vec<u8>);

/// The samples of a movie, by an independent demuxer.
fn samples(movie: &[u8]) -> Vec<Read> {
    let mut demuxer = Mp4FileDemuxer::new();
    while let Some(wanted) = demuxer.required_input() {
        let from = wanted.position as usize;
        let to = wanted.size.map_or(movie.len(), |size| from + size);
        demuxer.handle_input(Input { position: wanted.position, data: &movie[from..to] });
    }
    let mut found = Vec::new();
    while let Some(sample) = demuxer.next_sample().unwrap() {
        let from = sample.data_offset as usize;
        found.push((
            sample.track.kind,
            sample.timestamp,
            sample.composition_time_offset.unwrap_or(0),
            sample.keyframe,
            movie[from..from + sample.data_size].to_vec(),
        ));
    }
    found
}

#[test]
fn every_turn_of_the_movie_holds_the_clips_samples_one_period_later() {
    let turns = 5;
    let movie = bytes(&Sample::mp4(MP4_PERIOD.times(turns)));
    let (clip, movie) = (samples(MP4_CLIP), samples(&movie));
    for (kind, per_turn, period) in
        [(TrackKind::Video, 48, 48 * 512), (TrackKind::Audio, 90, 90 * 1024)]
    {
        let clip: Vec<&Read> = clip.iter().filter(|s| s.0 == kind).take(per_turn).collect();
        let movie: Vec<&Read> = movie.iter().filter(|s| s.0 == kind).collect();
        assert_eq!(movie.len(), per_turn * turns as usize);
        for (nth, found) in movie.iter().enumerate() {
            let due = clip[nth % per_turn];
            let moved = period * (nth / per_turn) as u64;
            assert_eq!(found.1, due.1 + moved, "sample {nth}");
            assert_eq!((found.2, found.3), (due.2, due.3), "sample {nth}");
            assert!(found.4 == due.4, "the bytes of sample {nth}");
        }
    }
}

#[test]
fn a_movie_streams_its_index_comes_first_and_chunks_alternate() {
    let sample = Sample::mp4(SECOND.times(60));
    let movie = bytes(&sample);
    assert_eq!(&movie[4..8], b"ftyp");
    assert_eq!(&movie[36..40], b"moov");
    // The bytes that a player must buffer to present second n of both tracks lie together.
    let mut ends = [0usize; 2];
    let mut at = sample.head.len();
    for (kind, due, _, _, bytes) in {
        let mut in_file_order = samples(&movie);
        in_file_order.sort_by_key(|s| {
            (s.1 * if s.0 == TrackKind::Video { 3750 } else { 1000 }, s.0 == TrackKind::Audio)
        });
        in_file_order
    } {
        let (which, scale) = if kind == TrackKind::Video { (0, 12_800) } else { (1, 48_000) };
        ends[which] = (due / scale) as usize;
        assert!(ends[0].abs_diff(ends[1]) <= 1);
        at += bytes.len();
    }
    assert_eq!(at, movie.len(), "samples fill the file, nothing lies idle");
}

#[test]
fn a_movie_beyond_four_gibibytes_gets_wide_offsets() {
    // Ten hours: only the head is made.
    let movie = movie::Movie::new(MP4_CLIP, MP4_PERIOD, 18_750).unwrap();
    assert!(movie.turn.len() as u64 * 18_750 > u64::from(u32::MAX));
    let holds = |kind: &[u8]| movie.head.windows(kind.len()).any(|found| found == kind);
    assert!(holds(b"co64") && !holds(b"stco"));
    let mdat = &movie.head[movie.head.len() - 16..];
    assert_eq!(&mdat[..8], b"\0\0\0\x01mdat");
    assert_eq!(mdat[8..], (movie.turn.len() as u64 * 18_750 + 16).to_be_bytes());
}

#[test]
fn a_clip_that_does_not_fill_its_period_is_refused() {
    let fault =
        |clip: &[u8], period| movie::Movie::new(clip, period, 3).err().map(|f| f.to_string());
    let uneven = "the samples of track 1 of the clip do not fill the period";
    assert_eq!(fault(MP4_CLIP, Nanos(1_900_000_000)).as_deref(), Some(uneven));
    assert_eq!(fault(MP4_CLIP, SECOND.times(4)).as_deref(), Some(uneven));
    assert_eq!(fault(TS_CLIP, MP4_PERIOD).as_deref(), Some("the clip has no ftyp"));
    assert_eq!(fault(&MP4_CLIP[..32], MP4_PERIOD).as_deref(), Some("the clip has no moov"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_turn_of_the_stream_follows_the_one_before(turn in 0u64..200_000) {
        let Turn::Packets(clip) = Sample::ts(SECOND).turn else {
            unreachable!("a stream of packets")
        };
        let len = clip.turn_len().0 as usize;
        let mut two = vec![0; 2 * len];
        clip.write_turn(turn, &mut two[..len]);
        clip.write_turn(turn + 1, &mut two[len..]);
        let mut watch = Continuity::default();
        for (_, packet) in Framing::PLAIN.packets(&two) {
            prop_assert_eq!(watch.handle_packet(&packet), None);
        }
        let pcr = |nth: usize| Packet::first_of(&two[nth * 188..]).and_then(|packet| packet.pcr());
        for nth in 0..len / 188 {
            let (here, there) = (pcr(nth), pcr(nth + len / 188));
            prop_assert_eq!(here.map(|here| here.after(clip.period())), there);
        }
    }
}
