//! Movies against another reader of the same tables, fragmented and truncated.

use super::*;
use crate::sample;
use shiguredo_mp4::TrackKind;
use shiguredo_mp4::demux::{Input, Mp4FileDemuxer};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// The sample movie.
    fn movie(&self, seconds: u64) -> PathBuf {
        let path = self.0.path().join("movie.mp4");
        sample::write_mp4(&path, SECOND.times(seconds)).expect("a movie");
        path
    }

    /// The movie remuxed by ffmpeg, with the same samples.
    fn remuxed(&self, from: &Path, parameters: &[&str]) -> PathBuf {
        let to = self.0.path().join("remuxed.mp4");
        let made = Command::new("ffmpeg")
            .args(["-v", "error", "-y", "-i"])
            .arg(from)
            .args(["-c", "copy"])
            .args(parameters)
            .arg(&to)
            .status()
            .expect("ffmpeg is missing: install the package ffmpeg");
        assert!(made.success());
        to
    }
}

fn read(path: &Path) -> Movie {
    Movie::read(&File::open(path).expect("a movie")).expect("it can be sent")
}

/// A sample's bytes, whether it is a sync sample, its decoding and presentation times.
type Content = (Vec<u8>, bool, i128, i128);

/// Each sample, track by track.
fn contents(path: &Path, movie: &Movie) -> Vec<Vec<Content>> {
    let file = std::fs::read(path).expect("a movie");
    let of = |track: &Track| {
        let each = track.samples().iter().map(|sample| {
            let bytes = file[sample.at as usize..][..sample.len as usize].to_vec();
            (bytes, sample.is_sync, track.decoded(sample), track.shown(sample))
        });
        each.collect()
    };
    movie.tracks.iter().map(of).collect()
}

#[test]
fn channels_are_those_of_the_configuration() {
    for (config, channels) in [
        (&[0x11, 0x88][..], Some(1)),
        (&[0x11, 0x90], Some(2)),
        (&[0x11, 0xb0], Some(6)),
        (&[0x11, 0xb8], Some(8)),
        // An explicit rate: 48,000.
        (&[0x17, 0x80, 0x5d, 0xc0, 0x08], Some(1)),
        (&[0x17, 0x80, 0x5d, 0xc0, 0x10], Some(2)),
        (&[0x17, 0x80, 0x5d, 0xc0], None),
        (&[0x11, 0x80], None),
        (&[0x11], None),
    ] {
        assert_eq!(codec::aac_channels(config), channels, "{config:02x?}");
    }
}

#[test]
fn samples_are_those_that_a_foreign_reader_finds() {
    let dir = Dir::new();
    let path = dir.movie(10);
    let movie = read(&path);
    let bytes = std::fs::read(&path).unwrap();
    let mut demuxer = Mp4FileDemuxer::new();
    demuxer.handle_input(Input { position: 0, data: &bytes });
    let mut counts = [0, 0];
    while let Some(sample) = demuxer.next_sample().unwrap() {
        let nth = usize::from(sample.track.kind == TrackKind::Audio);
        let own = &movie.tracks[nth].samples()[counts[nth]];
        counts[nth] += 1;
        assert_eq!((own.at, own.len as usize), (sample.data_offset, sample.data_size));
        assert_eq!((own.is_sync, own.decoded), (sample.keyframe, sample.timestamp));
        assert_eq!(i64::from(own.shown_after), sample.composition_time_offset.unwrap_or(0));
    }
    assert_eq!(counts, [movie.tracks[0].samples().len(), movie.tracks[1].samples().len()]);
    assert!(counts[0] > 250 && counts[1] > 400, "{counts:?}");

    let Codec::H264 { profile_level, sets, width: 4 } = &movie.tracks[0].codec else { panic!() };
    assert_eq!(sets[0][1..4], *profile_level, "the parameter set begins with them");
    let Codec::Aac { rate: 48_000, channels, .. } = &movie.tracks[1].codec else { panic!() };
    assert!((1..=2).contains(channels));
    // The first video frame is presented at the movie's beginning, whatever its decoding order.
    let first = movie.tracks[0].samples().iter().map(|sample| movie.tracks[0].shown(sample)).min();
    assert_eq!(first, Some(0));
    let media = movie.tracks[0].media(96);
    assert_eq!((media.kind.as_str(), media.encoding()), ("video", Some("H264/90000")));
    let parameters = media.attribute("fmtp").unwrap();
    assert!(parameters.starts_with("96 packetization-mode=1;profile-level-id="), "{parameters}");
    let media = movie.tracks[1].media(97);
    assert_eq!(media.encoding(), Some(format!("mpeg4-generic/48000/{channels}").as_str()));
    assert!(media.attribute("fmtp").unwrap().contains(";mode=AAC-hbr;sizelength=13;"));
}

#[test]
fn an_index_behind_and_fragments_say_the_same() {
    let dir = Dir::new();
    let path = dir.movie(8);
    let plain = dir.remuxed(&path, &[]);
    let expected = contents(&plain, &read(&plain));
    let first = dir.remuxed(&path, &["-movflags", "+faststart"]);
    assert!(contents(&first, &read(&first)) == expected);
    let cut = dir.remuxed(&path, &["-movflags", "frag_keyframe+empty_moov+default_base_moof"]);
    let fragmented = contents(&cut, &read(&cut));
    for (own, expected) in fragmented.iter().zip(&expected) {
        let bytes = |samples: &[(Vec<u8>, bool, i128, i128)]| {
            samples.iter().map(|each| (each.0.clone(), each.1)).collect::<Vec<_>>()
        };
        assert!(bytes(own) == bytes(expected));
        // The priming samples have no edit here and other times; after them the distances are the
        // same.
        let from = |samples: &[(Vec<u8>, bool, i128, i128)]| {
            samples[1..].iter().map(|each| each.3 - samples[1].3).collect::<Vec<_>>()
        };
        let is_same =
            from(own).iter().zip(from(expected)).all(|(one, other)| one.abs_diff(other) <= 1);
        assert!(is_same && own.len() == expected.len());
    }
    // Samples behind the cut are not waited for.
    let first = dir.remuxed(&path, &["-movflags", "+faststart"]);
    let bytes = std::fs::read(&first).unwrap();
    std::fs::write(&first, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let short = contents(&first, &read(&first));
    assert!(short[0].len() < expected[0].len());
    assert!(short[0][..] == expected[0][..short[0].len()]);
}

#[test]
fn it_begins_at_the_last_video_frame_that_stands_alone_and_with_the_audio_that_is_heard_then() {
    let dir = Dir::new();
    let movie = read(&dir.movie(12));
    let (video_frames, audio) = (&movie.tracks[0], &movie.tracks[1]);
    for wanted in (0..12_500).step_by(170) {
        let wanted = Nanos(wanted * 1_000_000);
        let Begin { at, first, .. } = movie.begin(wanted);
        assert!(at <= wanted && wanted.0 - at.0 < 2_000_000_000 || at.0 == 0, "{at} for {wanted}");
        let video_frame = &video_frames.samples()[first[0] as usize];
        assert!(video_frame.is_sync);
        assert_eq!(video_frames.shown(video_frame).max(0), i128::from(at.0));
        let heard = &audio.samples()[first[1] as usize];
        let lasts = i128::from(audio.lasts(first[1] as usize).0);
        let within = audio.shown(heard)..=audio.shown(heard) + lasts;
        assert!(within.contains(&i128::from(at.0)) || first[1] == 0, "{at}: {within:?}");
    }
}

#[test]
fn at_its_rate_nothing_comes_late_wherever_it_begins() {
    let dir = Dir::new();
    let movie = read(&dir.movie(12));
    let ReadRequirements { rate, ahead } = movie.needs;
    for wanted in [0, 3, 7] {
        let begin = movie.begin(SECOND.times(wanted));
        let sent = |id: &&SampleId| id.sample >= begin.first[id.track as usize];
        let samples: Vec<_> = movie.by_time().iter().filter(sent).collect();
        let from = samples.iter().map(|&&id| movie.sample(id).at).min().unwrap();
        let due = |id: SampleId| movie.tracks[id.track as usize].decoded(movie.sample(id));
        let zero = due(*samples[0]);
        let mut slack = i128::MAX;
        for &&id in &samples {
            let sample = movie.sample(id);
            let came = i128::from(ahead.0) + (due(id) - zero) * i128::from(rate.0) / 8_000_000_000;
            let needed = i128::from(sample.at + u64::from(sample.len) - from);
            assert!(needed <= came, "{needed} of {came} at {}", due(id));
            slack = slack.min(came - needed);
        }
        // The rate is close to the movie's mean, which is nearly constant.
        let mean = movie.tracks.iter().flat_map(Track::samples).map(|each| u64::from(each.len) * 8);
        assert!(rate.0 <= mean.sum::<u64>() * 1_000_000_000 / movie.duration.0 * 2);
    }
}

#[test]
fn r07_fragments_without_times_follow_each_other() {
    let dir = Dir::new();
    let flags = ["-movflags", "frag_keyframe+empty_moov"];
    let path = dir.remuxed(&dir.movie(6), &flags);
    let timed = contents(&path, &read(&path));
    let mut bytes = std::fs::read(&path).unwrap();
    let mut times = 0;
    while let Some(at) = bytes.windows(4).position(|kind| kind == b"tfdt") {
        bytes[at..at + 4].copy_from_slice(b"free");
        times += 1;
    }
    assert!(times > 4);
    std::fs::write(&path, bytes).unwrap();
    assert!(contents(&path, &read(&path)) == timed, "the same samples at the same times");
}

#[test]
fn what_cannot_be_sent_says_why() {
    let dir = Dir::new();
    let path = dir.movie(4);
    let bytes = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        let path = dir.0.path().join("other.mp4");
        std::fs::write(&path, bytes).unwrap();
        Movie::read(&File::open(&path).unwrap()).unwrap_err()
    };
    assert_eq!(refused(b"nothing of the kind"), MovieFault::NotMovie);
    assert!(matches!(refused(&bytes[..200]), MovieFault::Index(_)));
    // The first match is in the list of brands.
    let at = bytes.windows(4).rposition(|kind| kind == b"avc1").unwrap();
    let mut unknown = bytes.clone();
    unknown[at..at + 4].copy_from_slice(b"zzzz");
    let at = bytes.windows(4).position(|kind| kind == b"mp4a").unwrap();
    unknown[at..at + 4].copy_from_slice(b"zzzz");
    assert_eq!(refused(&unknown), MovieFault::NoTrack);
}

#[test]
fn the_least_rate_keeps_every_window() {
    // A burst of 900 bytes after ten quiet seconds: all but one second's worth must come before it.
    let needs: Vec<_> = (0..=10)
        .map(|nth| ByteNeed {
            due: nth * 1_000_000_000,
            to: if nth == 10 { 10_000 } else { nth as u64 },
        })
        .collect();
    let rate = least_rate(&needs).0;
    // 9,991 bytes in the second before it and the one ahead: 39,964 bit/s.
    assert!((39_964..=40_010).contains(&rate), "{rate}");
}
