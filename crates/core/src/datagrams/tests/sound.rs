//! Sound: whole packets, samples in the order of the network, timestamps of one clock.

use super::*;
use crate::rtp::pcm::{Encoding, PacketTime, PcmFormat};
use alloc::vec;

/// The timestamp of the clock's zero.
const ZERO: u32 = u32::MAX - 100;

fn sound(format: PcmFormat, width: u8) -> Sound {
    Sound { session: Session { timestamp: ZERO, ..SESSION }, format, width }
}

fn cutter_of(sound: Sound, start: u64) -> Cutter {
    let frame = u64::from(sound.width) * u64::from(sound.format.channels);
    let clock = ByteClock::new(MonoTime(start), BitRate(frame * 8 * 48_000));
    let framing = Framing::Sound(sound);
    let plan = Some(Arc::new(Plan::default()));
    let plain = cutting(clock, Nanos(0));
    let gathering = Gathering::of(Nanos(0), Nanos(250_000));
    Cutter::new(Cutting { framing, gathering, plan, ..plain }).at_phase(Phase(0))
}

/// Each packet of a title: when it is due, its header and its payload.
fn packets(cutter: &mut Cutter, title: &[u8]) -> Vec<(MonoTime, rtp::Header, Vec<u8>)> {
    let len = Some(Bytes(title.len() as u64));
    let room = rtp::HEADER;
    let payload = cutter.framing().payload().0 as usize;
    let mut packets = vec![];
    while let Some(message) = cutter.next(len) {
        let mut staged = vec![0xee; message.bytes.0 as usize + message.datagrams as usize * room];
        let at = staged.len() - message.taken.0 as usize;
        let from = message.from.0 as usize;
        staged[at..].copy_from_slice(&title[from..from + message.taken.0 as usize]);
        assert!(cutter.changes(&message) && !cutter.is_in_place() && !cutter.watches());
        cutter.compose(&message, &mut staged, room);
        for (nth, datagram) in (0..message.datagrams).zip(staged.chunks(room + payload)) {
            let packet = rtp::Packet::read(&[&cutter.header(nth).unwrap()[..], &[0]].concat())
                .map(|packet| (packet.sequence, packet.timestamp, packet.payload_type));
            let (sequence, timestamp, payload_type) = packet.unwrap();
            let source = SESSION.source;
            let marker = false;
            let header = rtp::Header { marker, payload_type, sequence, timestamp, source };
            packets.push((cutter.due(nth), header, datagram[room..].to_vec()));
        }
        cutter.advance(&message);
    }
    packets
}

/// The samples of a title as they are sent.
fn swapped(title: &[u8], width: usize, wire: usize) -> Vec<u8> {
    let wide = |sample: &[u8]| {
        let mut bytes: Vec<u8> = sample.iter().rev().copied().collect();
        bytes.resize(wire, 0);
        bytes
    };
    title.chunks(width).flat_map(wide).collect()
}

fn formats() -> impl Strategy<Value = (PcmFormat, u8)> {
    let encoding = prop_oneof![Just(Encoding::L16), Just(Encoding::L24)];
    let time = prop::sample::select(PacketTime::ALL.to_vec());
    (encoding, 1u8..=8, time, 2u8..=3)
        .prop_map(|(encoding, channels, packet_time, width)| {
            (PcmFormat { encoding, channels, packet_time }, width.min(encoding.bytes()))
        })
        .prop_filter("it fits a datagram", |(format, _)| format.payload() <= PAYLOAD)
}

proptest! {
    #[test]
    fn every_sample_leaves_once_in_whole_packets_at_the_time_of_its_number(
        (format, width) in formats(), frames in 1usize..2_000, start in 0u64..1 << 40,
        seed in any::<u8>(),
    ) {
        let sound = sound(format, width);
        let (width, wire) = (usize::from(width), usize::from(format.encoding.bytes()));
        let len = frames * width * usize::from(format.channels);
        let title: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
        let mut cutter = cutter_of(sound, start);
        let sent = packets(&mut cutter, &title);
        let samples = u64::from(format.packet_time.samples());
        prop_assert_eq!(sent.len() as u64, (frames as u64).div_ceil(samples));
        let bytes: Vec<u8> = sent.iter().flat_map(|(.., payload)| payload).copied().collect();
        let expected = swapped(&title, width, wire);
        prop_assert!(bytes.starts_with(&expected));
        prop_assert!(bytes[expected.len()..].iter().all(|&byte| byte == 0), "silence follows");
        let first = crate::rtp::pcm::samples(sent[0].0);
        prop_assert_eq!(first % samples, 0, "packets begin at multiples of their samples");
        for (nth, (due, header, payload)) in (0u64..).zip(&sent) {
            prop_assert_eq!(payload.len() as u64, format.payload().0);
            let number = first + nth * samples;
            prop_assert_eq!(crate::rtp::pcm::samples(*due), number);
            prop_assert_eq!(header.timestamp, ZERO.wrapping_add(number as u32));
            prop_assert_eq!(header.sequence, SESSION.sequence.wrapping_add(nth as u16));
            prop_assert!(due.0 >= start && header.payload_type == SOUND_PAYLOAD_TYPE);
        }
    }

    #[test]
    fn a_title_of_other_samples_continues_the_session_at_the_next_packet(
        frames in 1usize..500, late in 0u64..5_000_000, start in 0u64..1 << 40,
    ) {
        let format =
            PcmFormat { encoding: Encoding::L24, channels: 2, packet_time: PacketTime::Ms1 };
        let mut first = cutter_of(sound(format, 3), start);
        let sent = packets(&mut first, &vec![7; frames * 6]);
        let trace = first.trace(Bytes(frames as u64 * 6));
        let (last, header, _) = &sent[sent.len() - 1];
        prop_assert_eq!(trace.due, *last + MILLISECOND);
        // The next one may come too late.
        let own = sound(format, 2);
        let other = Sound { session: Session { source: 1, sequence: 1, timestamp: 1 }, ..own };
        let mut next = cutter_of(other, (trace.due + Nanos(late)).0).following(&trace);
        prop_assert_eq!(next.framing().payload(), format.payload());
        let sent = packets(&mut next, &[7; 4 * 48]);
        let (due, next, payload) = &sent[0];
        prop_assert_eq!(next.sequence, header.sequence.wrapping_add(1));
        prop_assert_eq!(&payload[..6], &[7, 7, 0, 7, 7, 0]);
        let pause = due.since(*last).0 / MILLISECOND.0;
        prop_assert_eq!(next.timestamp, header.timestamp.wrapping_add(48 * pause as u32));
        prop_assert_eq!(pause, 1 + late.div_ceil(MILLISECOND.0));
    }
}

#[test]
fn a_delay_moves_the_timestamps_with_the_clock_and_no_sample_is_lost() {
    let format = PcmFormat { encoding: Encoding::L16, channels: 1, packet_time: PacketTime::Ms1 };
    let mut cutter = cutter_of(sound(format, 2), 0);
    let title = [1; 2 * 48 * 4];
    let len = Some(Bytes(title.len() as u64));
    let message = cutter.next(len).unwrap();
    cutter.advance(&message);
    cutter.delay(cutter.cycle().whole(Nanos(2_300_000)));
    let message = cutter.next(len).unwrap();
    assert_eq!((message.due, message.from), (MonoTime(4_000_000), Bytes(96)));
    let header = cutter.header(0).unwrap();
    assert_eq!(header[4..8], ZERO.wrapping_add(4 * 48).to_be_bytes());
}

proptest! {
    #[test]
    fn late_packets_are_left_out_and_the_others_keep_their_times(
        sent in 0u64..20, late in 1u64..60_000_000, ready in 0u64..50, more in 0u64..96,
    ) {
        let format =
            PcmFormat { encoding: Encoding::L24, channels: 1, packet_time: PacketTime::Ms1 };
        let mut cutter = cutter_of(sound(format, 2), 0);
        let packet = 2 * 48;
        // The title may end within a packet, and all of its rest may be late.
        let all = Bytes(packet * (sent + ready) + more / 2 * 2);
        let (len, there) = (Some(all), all - Bytes(packet * sent));
        for _ in 0..sent {
            cutter.advance(&cutter.next(len).unwrap());
        }
        let due = cutter.due(0);
        let (sequence, timestamp) = numbers(&cutter);
        let left_out = cutter.leave_out(Nanos(late), there, len);
        let packets = there.0.div_ceil(packet);
        let count = late.div_ceil(MILLISECOND.0).min(packets);
        prop_assert_eq!(left_out, Bytes(count * packet).min(there));
        let now = due + Nanos(late);
        prop_assert_eq!(cutter.due(0), due + MILLISECOND.times(count));
        prop_assert!(cutter.due(0) >= now || count == packets);
        let next = (sequence.wrapping_add(count as u16), timestamp.wrapping_add(48 * count as u32));
        prop_assert_eq!(numbers(&cutter), next);
        // The rest leaves.
        let mut rest = 0;
        while let Some(message) = cutter.next(len) {
            prop_assert_eq!(message.from, cutter.taken());
            cutter.advance(&message);
            rest += u64::from(message.datagrams);
        }
        prop_assert_eq!(rest + count, packets);
        prop_assert_eq!(cutter.taken(), all);
        // Bytes that are no whole packet wait for the others.
        let mut cutter = cutter_of(sound(format, 2), 0);
        prop_assert_eq!(cutter.leave_out(Nanos(late), Bytes(packet - 2), len), Bytes(0));
    }
}

/// The sequence number and the timestamp of the next packet.
fn numbers(cutter: &Cutter) -> (u16, u32) {
    let header = cutter.header(0).unwrap();
    let word = |at: usize| [header[at], header[at + 1]];
    let timestamp = [word(4), word(6)].concat();
    (u16::from_be_bytes(word(2)), u32::from_be_bytes(*timestamp.first_chunk().unwrap()))
}

#[test]
fn a_stream_of_every_size_fits_its_datagram() {
    for (encoding, channels) in [(Encoding::L24, 8), (Encoding::L16, 8)] {
        let format = PcmFormat { encoding, channels, packet_time: PacketTime::Ms1 };
        assert!(format.payload() <= PAYLOAD);
    }
}
