//! Chosen video frames, reassembled and compared with the samples of the file.

use tactus_core::datagrams::Session;
use tactus_core::rtp::{self, LengthPrefixed};
use tactus_core::units::{Bytes, SECOND};
use tactus_media::sample;

use super::*;
use proptest::prelude::*;
use std::fs::File;
use std::sync::OnceLock;

const SESSION: Session = Session { source: 5, sequence: 65_530, timestamp: u32::MAX - 90_000 };
const TICKS: u64 = 27_000_000;

/// Forty seconds: bytes and index.
fn movie() -> &'static (Vec<u8>, Arc<Movie>) {
    static MOVIE: OnceLock<(Vec<u8>, Arc<Movie>)> = OnceLock::new();
    MOVIE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("movie.mp4");
        sample::write_mp4(&path, SECOND.times(40)).unwrap();
        let movie = Movie::read(&File::open(&path).unwrap()).unwrap();
        (std::fs::read(&path).unwrap(), Arc::new(movie))
    })
}

fn scales() -> impl Strategy<Value = Scale> {
    let all = vec![-16_000i64, -8000, -4000, -2000, -1000, 2000, 4000, 8000, 16_000];
    prop::sample::select(all).prop_map(|thousandths| Scale::nearest(thousandths).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_chosen_is_shown_at_the_scale_and_can_be_sent_in_time(
        scale in scales(), from in 0u64..50, per_second in 2u32..9, kilobits in 50u64..4000,
    ) {
        let (_, movie) = movie();
        let track = &movie.tracks[0];
        let rate = BitRate(kilobits * 1000);
        let options = TrickOptions { scale, from: MediaTime(from * TICKS), per_second, rate };
        let chosen = choose(track, options);
        let (first, _) = chosen[0];
        let begin = movie.begin(Nanos(from * SECOND.0)).first[0] as usize;
        prop_assert_eq!(first, begin);
        for (nth, choice) in &chosen {
            let sample = &track.samples()[*nth];
            prop_assert!(sample.is_sync);
            prop_assert_eq!(
                (choice.at, choice.end - choice.at),
                (sample.at, u64::from(sample.len))
            );
            let distance = choice.shown.0.abs_diff(chosen[0].1.shown.0);
            prop_assert_eq!(choice.due, scale.shown(MediaTime(distance)));
        }
        for pair in chosen.windows(2) {
            prop_assert_eq!(pair[1].0 < pair[0].0, scale.is_reverse());
            let gap = pair[1].1.due.0 - pair[0].1.due.0;
            prop_assert!(gap >= TICKS / u64::from(per_second));
            prop_assert!(gap >= to_send(track, &track.samples()[pair[1].0], rate).0);
            // No video frame is left out if there is time for it.
            let between = match scale.is_reverse() {
                true => pair[1].0 + 1..pair[0].0,
                false => pair[0].0 + 1..pair[1].0,
            };
            for nth in between.filter(|&nth| track.samples()[nth].is_sync) {
                let sample = &track.samples()[nth];
                let shown = media_time(Nanos(track.shown(sample) as u64));
                let gap = scale.shown(MediaTime(shown.0.abs_diff(pair[0].1.shown.0))).0;
                let needed = to_send(track, sample, rate).0.max(TICKS / u64::from(per_second));
                // Each of the two rounds to a tick.
                prop_assert!(gap <= needed + 2);
            }
        }
    }

    #[test]
    fn pictures_come_out_as_they_lie_in_the_file_and_have_been_sent_when_they_are_shown(
        scale in scales(), from in 0u64..40, per_second in 2u32..9, block in 1u64..300,
        piece in 1usize..70_000,
    ) {
        let (bytes, movie) = movie();
        let track = &movie.tracks[0];
        let needs = needs(track, track.samples_per_second.max(2 * per_second));
        let options =
            TrickOptions { scale, from: MediaTime(from * TICKS), per_second, rate: needs.rate };
        let (samples, choices): (Vec<_>, Vec<_>) = choose(track, options).into_iter().unzip();
        let plan = Plan::new(choices.clone(), Bytes(block * 1024), Bytes(bytes.len() as u64));
        let (buffer_max, block) = (plan.buffer_max.0 as usize, plan.block.0 as usize);
        let read: Vec<u8> = plan
            .stops
            .iter()
            .flat_map(|&stop| &bytes[stop as usize * block..][..plan.len_of(stop) as usize])
            .copied()
            .collect();
        let after = to_send(track, &track.samples()[samples[0]], needs.rate);
        let mut video_frames = AccessPointPacketizer {
            movie: Arc::clone(movie),
            sent: TrackStream { track: 0, payload_type: 96, session: SESSION },
            sequence: SESSION.sequence,
            rate: needs.rate,
            after,
            samples: samples.clone().into(),
            gather: Gather::new(plan),
            packets: None,
        };
        let mut packets = vec![];
        for piece in read.chunks(piece) {
            video_frames.push(piece);
            while let Some((output, timed)) = video_frames.next() {
                prop_assert_eq!(output, 0);
                packets.push(timed);
            }
            prop_assert!(video_frames.buffered() <= buffer_max + piece.len());
        }
        video_frames.end();
        prop_assert!(video_frames.next().is_none() && video_frames.buffered() == 0);
        prop_assert!(packets.is_sorted_by_key(|timed| timed.due));
        let all =
            packets.iter().map(|timed| (timed.due, rtp::Packet::read(timed.bytes()).unwrap()));
        let all: Vec<_> = all.collect();
        for (nth, (_, packet)) in all.iter().enumerate() {
            prop_assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(nth as u16));
        }
        let units: Vec<_> = all.split_inclusive(|(_, packet)| packet.marker).collect();
        prop_assert_eq!(units.len(), choices.len());
        for ((unit, choice), &nth) in units.iter().zip(&choices).zip(&samples) {
            let sample = &track.samples()[nth];
            let own = &bytes[sample.at as usize..][..sample.len as usize];
            let stamp = SESSION.timestamp.wrapping_add((choice.due.0 / 300) as u32);
            prop_assert!(unit.iter().all(|(_, packet)| packet.timestamp == stamp));
            // Parameter sets in front, then the sample of the file.
            prop_assert_eq!(unit[0].1.payload[0] & 0x1f, 24);
            let payloads = unit.iter().map(|(_, packet)| packet.payload);
            let came = crate::generated::movie::units_of(payloads);
            let expected: Vec<_> = LengthPrefixed::new(own, 4).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(came, expected);
            let shown = after.0 + choice.due.0;
            prop_assert!(unit.iter().all(|(due, _)| due.0 < nanos(MediaTime(shown)).0));
        }
        // The promise to the link.
        for (nth, (begin, _)) in all.iter().enumerate() {
            let within = all[nth..].iter().take_while(|(due, _)| due.0 < begin.0 + SECOND.0);
            let (count, bytes) = within.fold((0, 0), |(count, bytes), (_, packet)| {
                (count + 1, bytes + packet.payload.len() + rtp::HEADER)
            });
            prop_assert!(count <= needs.datagrams, "{} of {:?}", count, needs);
            prop_assert!(bytes as u64 * 8 <= needs.rate.0 + 8 * 1400, "{} of {:?}", bytes, needs);
        }
    }
}

#[test]
fn a_picture_of_an_open_group_begins_a_sequence_of_its_own() {
    let of = |kinds: [u8; 4]| -> Vec<u8> {
        kinds.iter().flat_map(|kind| [0, 0, 0, 3, kind << 1 | 1, 1, 0xff]).collect()
    };
    let mut bytes = of([32, 21, 39, 21]);
    cut_off(&mut bytes, 4);
    assert_eq!(bytes, of([32, 18, 39, 18]));
    // A sample without a whole unit is left unchanged.
    let mut bytes = vec![0, 0, 0, 9, 42, 1];
    cut_off(&mut bytes, 4);
    assert_eq!(bytes, [0, 0, 0, 9, 42, 1]);
}
