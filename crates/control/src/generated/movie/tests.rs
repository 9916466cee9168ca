//! Packets of a movie, reassembled and compared with its samples.

use tactus_core::rtp;
use tactus_core::rtp::LengthPrefixed;
use tactus_core::units::SECOND;
use tactus_media::sample;

use super::*;
use std::fs::File;

const SESSIONS: [Session; 2] = [
    Session { source: 1, sequence: 65_500, timestamp: u32::MAX - 5 },
    Session { source: 2, sequence: 7, timestamp: 1000 },
];

struct Packets {
    part: Part,
    from: u64,
    /// The packets of each output.
    packets: [Vec<TimedDatagram>; 2],
    buffered_max: usize,
}

/// All packets of the sample movie from `wanted` on. Its bytes come in pieces of `piece`.
fn packets(seconds: u64, wanted: Nanos, end: Option<Nanos>, piece: usize) -> (Vec<u8>, Packets) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("movie.mp4");
    sample::write_mp4(&path, SECOND.times(seconds)).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let movie = Arc::new(Movie::read(&File::open(&path).unwrap()).unwrap());
    let begin = movie.begin(wanted);
    let tracks = (0..2).map(|track| TrackStream {
        track,
        payload_type: 96 + track as u8,
        session: SESSIONS[track as usize],
    });
    let part = Part { movie, begin, end, tracks: tracks.collect(), stretch: 1 };
    let from = range(&part).start;
    let source = &bytes[from as usize..range(&part).end as usize];
    let mut streams = MovieStreams::new(part.clone(), from);
    let mut generated = Packets { part, from, packets: [vec![], vec![]], buffered_max: 0 };
    for piece in source.chunks(piece) {
        streams.push(piece);
        generated.buffered_max = generated.buffered_max.max(streams.buffered());
        while let Some((output, timed)) = streams.next() {
            generated.packets[output].push(timed);
        }
    }
    streams.end();
    assert!(streams.next().is_none(), "all has come, and all has left");
    assert_eq!(streams.buffered(), 0);
    (bytes, generated)
}

fn range(part: &Part) -> Range<u64> {
    part.range().expect("there is something to send")
}

#[test]
fn access_units_come_out_as_they_lie_in_the_file_in_order_and_not_before_their_time() {
    for (wanted, piece) in [(0, 100_000), (0, 777), (5, 4096)] {
        let (bytes, generated) = packets(10, SECOND.times(wanted), None, piece);
        let movie = &generated.part.movie;
        let epoch = generated.part.epoch();
        for (output, packets) in generated.packets.iter().enumerate() {
            let track = &movie.tracks[output];
            let first = generated.part.begin.first[output] as usize;
            let mut samples = track.samples()[first..].iter().enumerate();
            let read: Vec<_> =
                packets.iter().map(|timed| rtp::Packet::read(timed.bytes()).unwrap()).collect();
            let mut at = 0;
            for unit in read.split_inclusive(|packet| packet.marker) {
                let (nth, sample) = samples.next().expect("no more than there are");
                let own = &bytes[sample.at as usize..][..sample.len as usize];
                if output == 0 {
                    let expected: Vec<_> =
                        LengthPrefixed::new(own, 4).map(<[u8]>::to_vec).collect();
                    let payloads = unit.iter().map(|packet| packet.payload);
                    assert_eq!(units_of(payloads), expected);
                    let has_sets = unit[0].payload[0] & 0x1f == 24;
                    assert_eq!(has_sets, sample.is_sync, "those who join can begin");
                } else {
                    assert_eq!(unit[0].payload[2..4], ((own.len() as u16) << 3).to_be_bytes());
                    let got: Vec<u8> =
                        unit.iter().flat_map(|packet| &packet.payload[4..]).copied().collect();
                    assert_eq!(got, own);
                }
                let stamp = SESSIONS[output].timestamp.wrapping_add(track.stamp(sample));
                for (within, packet) in unit.iter().enumerate() {
                    assert_eq!(packet.timestamp, stamp);
                    assert_eq!(packet.sequence, SESSIONS[output].sequence.wrapping_add(at as u16));
                    assert_eq!(
                        (packet.source, packet.payload_type),
                        (output as u32 + 1, 96 + output as u8)
                    );
                    // Not before its decoding time, and before that of the next one.
                    let since = i128::from(packets[at].due.0) - (track.decoded(sample) - epoch);
                    let lasts = i128::from(track.lasts(first + nth).0);
                    assert!(since >= 0 && (since < lasts || within == 0), "{since} of {lasts}");
                    at += 1;
                }
            }
            assert_eq!(samples.next(), None, "every sample");
            assert!(packets.iter().all(|timed| timed.bytes().len() <= PACKET_MAX));
            assert!(packets.is_sorted_by_key(|timed| timed.due));
        }
        assert!(generated.buffered_max as u64 <= movie.needs.ahead.0 + piece as u64);
        assert_eq!(
            generated.from,
            generated
                .part
                .begin
                .first
                .iter()
                .zip(&movie.tracks)
                .map(|(&first, track)| track.samples()[first as usize].at)
                .min()
                .unwrap()
        );
    }
}

#[test]
fn the_time_that_is_announced_is_that_of_the_first_picture() {
    let (_, generated) = packets(10, SECOND.times(6), Some(SECOND.times(8)), 10_000);
    let first = rtp::Packet::read(generated.packets[0][0].bytes()).unwrap();
    assert_eq!(first.timestamp, generated.part.timestamp_at_begin(0));
    let audio = rtp::Packet::read(generated.packets[1][0].bytes()).unwrap();
    let before = generated.part.timestamp_at_begin(1).wrapping_sub(audio.timestamp);
    assert!(before <= 1024, "the frame that is heard then: {before}");
    // It ends with what is decoded before the end.
    let last = generated.packets[0].last().unwrap().due;
    let expected = 8_000_000_000 - generated.part.epoch();
    assert!((0..40_000_000).contains(&(expected - i128::from(last.0))), "{last}");
}

#[test]
fn the_time_that_is_announced_is_exact_where_pictures_have_no_whole_nanoseconds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("movie.mp4");
    sample::write_mp4(&path, SECOND.times(30)).unwrap();
    let plain = std::fs::read(&path).unwrap();
    let video = plain.windows(4).position(|four| four == b"vide").expect("a track of video");
    let kind = plain[..video].windows(4).rposition(|four| four == b"mdhd").expect("its header");
    // ISO/IEC 14496-12, section 8.4.2.2: behind the version and two times.
    let at = kind + 8 + if plain[kind + 4] == 0 { 8 } else { 16 };
    let read = |timescale: u32| {
        let mut bytes = plain.clone();
        bytes[at..at + 4].copy_from_slice(&timescale.to_be_bytes());
        std::fs::write(&path, bytes).unwrap();
        Arc::new(Movie::read(&File::open(&path).unwrap()).unwrap())
    };
    let sent = TrackStream { track: 0, payload_type: 96, session: SESSIONS[0] };
    let mut rounded_wrongly = 0;
    // In the first two, video frames at thirds of nanoseconds fall on whole ticks, as at 30000/1001
    // video frames a second.
    for timescale in [90_000, 45_000, 30_000, 12_799] {
        let movie = read(timescale);
        for wanted in 0..30 {
            let begin = movie.begin(Nanos::from_millis(140 * wanted));
            let track = &movie.tracks[0];
            let first = &track.samples()[begin.first[0] as usize];
            let (movie, tracks) = (Arc::clone(&movie), vec![sent]);
            rounded_wrongly +=
                u32::from(i128::from(begin.at.0 * 9 / 100_000) != begin.ticks(90_000));
            let expected = SESSIONS[0].timestamp.wrapping_add(track.stamp(first));
            let part = Part { movie, begin, end: None, tracks, stretch: 1 };
            assert_eq!(part.timestamp_at_begin(0), expected, "{timescale}, {wanted}");
        }
    }
    assert!(rounded_wrongly > 10, "by nanoseconds it would be a tick less: {rounded_wrongly}");
}

#[test]
fn what_is_asked_for_is_enough_for_every_second() {
    let (_, generated) = packets(10, Nanos(0), None, 10_000);
    for (packets, needs) in generated.packets.iter().zip(generated.part.needs()) {
        for second in 0..9 {
            let within = |timed: &&TimedDatagram| timed.due.0 / SECOND.0 == second;
            let (count, bytes) =
                packets.iter().filter(within).fold((0, 0), |(count, bytes), timed| {
                    (count + 1, bytes + timed.bytes().len() as u64)
                });
            assert!(count <= needs.datagrams, "{count} of {needs:?}");
            assert!(bytes * 8 <= needs.rate.0, "{bytes} of {needs:?}");
        }
        let all: u64 = packets.iter().map(|timed| timed.bytes().len() as u64 * 8).sum();
        assert!(needs.rate.0 * 10 < all * 3, "and not three times as much");
    }
}
