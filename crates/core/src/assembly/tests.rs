//! Packets of two media in, transport packets out.

use alloc::vec;

use super::*;
use crate::rtp::gather::{Audio, AudioConfig, Layout, Units};
use crate::rtp::rtcp::{Compound, SenderInfo};
use crate::rtp::{Header, aac, h264};
use crate::ts::{Continuity, PACKET, Pid, pes_times};
use crate::units::MILLISECOND;

const AT: MonoTime = MonoTime(1_000_000_000);

fn track(coding: Coding, payload_type: u8, clock: u32) -> Track {
    Track { control: None, payload_type, clock, coding, is_in_order: false }
}

fn both() -> Vec<Track> {
    let sets: [&[u8]; 2] = [&[0x67, 100, 0, 11], &[0x68, 1, 2]];
    let config = AudioConfig::read(&[0x11, 0x90], 0).unwrap();
    let layout = Layout::Headers { size: 13, index: 3, delta: 3 };
    vec![
        track(Coding::Parts(Gather::VideoFrames(Units::new(Kind::H264, sets))), 96, 90_000),
        track(Coding::Parts(Gather::Audio(Audio::new(config, layout))), 97, 48_000),
    ]
}

/// A sender of one medium.
struct Sender {
    sequence: u16,
    payload_type: u8,
    source: u32,
}

impl Sender {
    fn packet(&mut self, timestamp: u32, marker: bool, payload: &[u8]) -> Vec<u8> {
        let Self { sequence, payload_type, source } = *self;
        self.sequence = sequence.wrapping_add(1);
        let header = Header { marker, payload_type, sequence, timestamp, source };
        [&header.write()[..], payload].concat()
    }

    fn video_frame(&mut self, timestamp: u32, unit: &[u8]) -> Vec<Vec<u8>> {
        let parts: Vec<_> = h264::payloads(unit, 1200).collect();
        let count = parts.len();
        let parts = parts.iter().enumerate().map(|(nth, part)| {
            self.packet(timestamp, nth + 1 == count, &[part.front(), part.bytes].concat())
        });
        parts.collect()
    }

    fn audio(&mut self, timestamp: u32, unit: &[u8]) -> Vec<u8> {
        let (front, mut parts) = aac::payloads(unit, 1200).unwrap();
        let part = parts.next().unwrap();
        self.packet(timestamp, true, &[&front, part].concat())
    }
}

fn report(source: u32, ntp: u64, timestamp: u32) -> Vec<u8> {
    let info = SenderInfo { time: NtpTime(ntp), timestamp, packets: 0, octets: 0 };
    Compound::of_sender(source, &info, &[]).into_bytes()
}

/// What a receiver of the transport stream sees: PES packets of a PID with times and bytes.
fn frames(stream: &[u8], pid: u16) -> Vec<(u64, u64, Vec<u8>)> {
    let mut frames: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    for bytes in stream.as_chunks::<PACKET>().0 {
        let packet = crate::ts::Packet::read(bytes).expect("a sync byte");
        if packet.pid() != Pid(pid) || !packet.has_payload() {
            continue;
        }
        let payload = packet.payload();
        if packet.starts_unit() {
            let times = pes_times(&packet).expect("each has times");
            let skip = 9 + usize::from(payload[8]);
            frames.push((times.shown.ticks(), times.decoded.ticks(), payload[skip..].to_vec()));
        } else {
            frames.last_mut().expect("a beginning").2.extend(payload);
        }
    }
    frames
}

fn has_no_gap(stream: &[u8]) {
    let mut continuity = Continuity::default();
    for bytes in stream.as_chunks::<PACKET>().0 {
        let packet = crate::ts::Packet::read(bytes).expect("a sync byte");
        assert!(packet.is_whole());
        assert_eq!(continuity.handle_packet(&packet), None);
    }
}

#[test]
fn video_and_audio_become_one_stream_with_the_times_of_the_reports() {
    let mut assembly = Assembly::new(&both(), "Evening");
    let mut video = Sender { sequence: 65_530, payload_type: 96, source: 1 };
    let mut audio = Sender { sequence: 9, payload_type: 97, source: 2 };
    // The video's clock wraps; the audio's zero is half a second later.
    let (v0, a0) = (u32::MAX - 10_000, 77);
    assert!(assembly.handle_report(AT, 0, &report(1, 5 << 32, v0)));
    assert!(assembly.handle_report(AT, 1, &report(2, 11 << 31, a0)));
    let order = [0u32, 4, 2, 1, 3];
    let mut out = Vec::new();
    let mut sent = Vec::new();
    for group in 0..10u32 {
        for nth in order {
            let shown = (group * 5 + nth) * 3_600;
            let kind = if nth == 0 { 0x65 } else { 0x41 };
            let unit: Vec<u8> =
                [kind].into_iter().chain((0..5_000).map(|i| (i % 251) as u8)).collect();
            for packet in video.video_frame(v0.wrapping_add(shown), &unit) {
                assert!(assembly.handle_packet(AT, 0, &packet));
            }
            sent.push((shown, unit));
        }
        for nth in 0..9 {
            let timestamp = a0 + (group * 9 + nth) * 1024;
            assert!(assembly.handle_packet(AT, 1, &audio.audio(timestamp, &[7; 300])));
        }
        assembly.poll(AT, &mut out);
    }
    assembly.handle_end(AT, &mut out);
    has_no_gap(&out);
    let services = out.as_chunks::<PACKET>().0.iter().filter(|packet| packet[1..3] == [0x40, 0x11]);
    let services: Vec<_> = services.collect();
    assert_eq!(services.len(), 3, "each second, of two and a half");
    assert!(services.iter().all(|packet| packet.windows(7).any(|seven| seven == b"Evening")));
    let video_frames = frames(&out, 0x100);
    let audio = frames(&out, 0x101);
    assert_eq!((video_frames.len(), audio.len()), (50, 90));
    let zero = BEGIN.unsigned_abs();
    for ((shown, decoded, data), (expected, unit)) in video_frames.iter().zip(&sent) {
        assert_eq!(*shown, zero + u64::from(*expected));
        assert!(decoded <= shown);
        assert!(data.ends_with(unit) && data.starts_with(&[0, 0, 0, 1, 9, 0xf0]));
        // A decoder that begins here has its parameter sets.
        assert_eq!(unit[0] == 0x65, data.windows(4).any(|four| four == [0x67, 100, 0, 11]));
    }
    assert!(video_frames.windows(2).all(|two| two[0].1 < two[1].1));
    assert_eq!(audio[0].0, zero + 45_000, "half a second later");
    assert_eq!(audio[0].2.len(), 307);
    assert_eq!(audio[48].0 - audio[0].0, 48 * 1024 * 90 / 48);
    assert_eq!(assembly.counts(), Counts { packets: 340, frames: 140, ..Counts::default() });
}

#[test]
fn without_reports_media_lie_as_they_came_and_a_silent_one_is_not_waited_for() {
    let mut assembly = Assembly::new(&both(), "Evening");
    let mut audio = Sender { sequence: 9, payload_type: 97, source: 2 };
    let mut out = Vec::new();
    let mut now = AT;
    for nth in 0..300 {
        now += Nanos(1024 * SECOND.0 / 48_000);
        assembly.handle_packet(now, 1, &audio.audio(nth * 1024, &[7; 300]));
        assembly.poll(now, &mut out);
    }
    let came = frames(&out, 0x101).len();
    // The frames of the last second are kept for video frames that may come.
    assert!((240..260).contains(&came), "{came}");
    assembly.handle_end(now, &mut out);
    assert_eq!(frames(&out, 0x101).len(), 300);
    has_no_gap(&out);
}

#[test]
fn what_is_lost_leaves_out_its_frame_and_is_counted() {
    let mut assembly = Assembly::new(&both()[..1], "Evening");
    let mut video = Sender { sequence: 0, payload_type: 96, source: 1 };
    let mut out = Vec::new();
    let mut now = AT;
    for nth in 0..50 {
        for (part, packet) in video.video_frame(nth * 3_600, &[0x65; 3_000]).iter().enumerate() {
            if (nth, part) != (25, 1) {
                assembly.handle_packet(now, 0, packet);
            }
        }
        now += Nanos(40 * MILLISECOND.0);
        assembly.poll(now, &mut out);
    }
    assert!(!assembly.handle_packet(now, 0, b"no packet"));
    let stranger = Sender { sequence: 0, payload_type: 96, source: 3 }.packet(0, true, &[0x65, 1]);
    assert!(!assembly.handle_packet(now, 0, &stranger));
    assembly.handle_end(now, &mut out);
    assert_eq!(frames(&out, 0x100).len(), 49);
    let counts = assembly.counts();
    assert_eq!((counts.lost, counts.broken, counts.refused, counts.frames), (1, 1, 2, 49));
    // The sender gets its report, once.
    assert_eq!(assembly.report(now, 0).map(|told| (told.source, told.lost)), Some((1, 1)));
    assert_eq!((assembly.report(now, 0), assembly.report(now, 1)), (None, None));
}

#[test]
fn a_transport_stream_comes_out_as_it_is() {
    let whole = track(Coding::Whole, 33, 90_000);
    let mut assembly = Assembly::new(&[whole], "Evening");
    let mut sender = Sender { sequence: 3, payload_type: 33, source: 1 };
    let stream: Vec<u8> = (0..70u8)
        .flat_map(|nth| {
            let mut packet = vec![0x47, 1, 0, 0x10 | nth & 15];
            packet.resize(PACKET, nth);
            packet
        })
        .collect();
    let mut out = Vec::new();
    let packets: Vec<_> =
        stream.chunks(7 * PACKET).map(|part| sender.packet(0, false, part)).collect();
    for nth in [0, 2, 1, 3, 4, 5, 7, 6, 8, 9] {
        assembly.handle_packet(AT, 0, &packets[nth]);
        assembly.poll(AT, &mut out);
    }
    assembly.handle_end(AT, &mut out);
    assert!(out == stream, "{} of {}", out.len(), stream.len());
}

proptest::proptest! {
    #[test]
    fn no_packet_is_hostile_enough(
        packets in proptest::collection::vec(
            (0usize..3, 0u16..40, proptest::collection::vec(0u8..=255, 0..60)),
            0..80,
        ),
    ) {
        let mut assembly = Assembly::new(&both(), "Evening");
        let (mut now, mut out) = (AT, Vec::new());
        for (nth, sequence, payload) in packets {
            now += Nanos(50 * MILLISECOND.0);
            let timestamp = payload.first().map_or(0, |byte| u32::from(*byte) << 24);
            let payload_type = 96 + nth as u8;
            let header =
                Header { marker: payload.len() > 30, payload_type, sequence, timestamp, source: 7 };
            assembly.handle_packet(now, nth, &[&header.write()[..], &payload].concat());
            assembly.handle_packet(now, nth, &payload);
            assembly.handle_report(now, nth, &payload);
            assembly.report(now, nth);
            assembly.poll(now, &mut out);
        }
        assembly.handle_end(now, &mut out);
        has_no_gap(&out);
    }
}
