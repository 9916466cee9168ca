//! RTCP against RFC 3550: round trips, and refusal of any bytes.

use super::*;
use crate::units::MILLISECOND;
use alloc::vec;
use proptest::prelude::*;

fn receptions() -> impl Strategy<Value = Vec<Reception>> {
    let one = (any::<[u32; 5]>(), any::<u8>(), -0x80_0000..=0x7f_ffffi32).prop_map(
        |([source, highest, jitter, last_report, delay], fraction_lost, lost)| Reception {
            source,
            fraction_lost,
            lost,
            highest,
            jitter,
            last_report,
            delay,
        },
    );
    proptest::collection::vec(one, 0..32)
}

fn info() -> impl Strategy<Value = SenderInfo> {
    any::<(u64, [u32; 3])>().prop_map(|(time, [timestamp, packets, octets])| SenderInfo {
        time: NtpTime(time),
        timestamp,
        packets,
        octets,
    })
}

/// A compound packet of everything, and the offsets of its packets.
fn whole() -> Vec<u8> {
    let info = SenderInfo { time: NtpTime(1), timestamp: 2, packets: 3, octets: 4 };
    let app = [0x80, APP, 0, 3, 0, 0, 0, 9, b't', b'e', b's', b't', 1, 2, 3, 4];
    let mut bytes = Compound::of_sender(7, &info, &[]).name(7, "a@b").into_bytes();
    bytes.extend(app);
    bytes.extend([0x80, 207, 0, 0]);
    bytes.extend(&Compound::default().bye(7, "gone").into_bytes());
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        source: u32, info in info(), receptions in receptions(), is_sender: bool,
        name in "[a-z@.]{0,300}", reason in "[ -~]{0,300}",
    ) {
        let begun = match is_sender {
            true => Compound::of_sender(source, &info, &receptions),
            false => Compound::of_receiver(source, &receptions),
        };
        let bytes = begun.name(source, &name).bye(source, &reason).into_bytes();
        let mut packets = read(&bytes).unwrap();
        match packets.next().unwrap() {
            Packet::Sender { source: by, info: said, receptions: of } if is_sender => {
                prop_assert_eq!((by, said), (source, info));
                prop_assert_eq!(of.iter().collect::<Vec<_>>(), receptions);
            }
            Packet::Receiver { source: by, receptions: of } if !is_sender => {
                prop_assert_eq!(by, source);
                prop_assert_eq!(of.iter().collect::<Vec<_>>(), receptions);
            }
            other => prop_assert!(false, "{other:?}"),
        }
        let cut = |text: &str| text.as_bytes()[..text.len().min(255)].to_vec();
        let Some(Packet::Description(chunks)) = packets.next() else { panic!("no description") };
        prop_assert_eq!(chunks.names().collect::<Vec<_>>(), [(source, Some(&cut(&name)[..]))]);
        let Some(Packet::Bye { sources, reason: why }) = packets.next() else { panic!("no bye") };
        prop_assert_eq!(sources.iter().collect::<Vec<_>>(), [source]);
        prop_assert_eq!(why, &cut(&reason)[..]);
        prop_assert!(packets.next().is_none());
    }

    #[test]
    fn no_datagram_is_hostile_enough(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut peer = Peer::default();
        let before = peer;
        match peer.handle(&bytes, 7) {
            Ok(_) => prop_assert!(read(&bytes).is_ok()),
            Err(_) => prop_assert_eq!(peer, before),
        }
    }

    // Random bytes hardly ever pass the first rule; damaged valid bytes do.
    #[test]
    fn a_damaged_datagram_is_refused_or_read_within_it(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in any::<prop::sample::Index>(),
    ) {
        let mut bytes = whole();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(len.index(bytes.len() + 1));
        if let Ok(packets) = read(&bytes) {
            // All parsed data lies within it.
            let told: usize = packets.map(|packet| match packet {
                Packet::Sender { receptions, .. } => 28 + receptions.iter().count() * RECEPTION,
                Packet::Receiver { receptions, .. } => 8 + receptions.iter().count() * RECEPTION,
                Packet::Description(chunks) => 4 + chunks.names().count() * 4,
                Packet::Bye { sources, reason } => 4 + sources.iter().count() * 4 + reason.len(),
                Packet::Application { data, .. } => 12 + data.len(),
                Packet::Other { .. } => 4,
            }).sum();
            prop_assert!(told <= bytes.len());
        }
        Peer::default().handle(&bytes, 7).ok();
    }

    #[test]
    fn reports_come_at_half_to_one_and_a_half_times_and_take_five_percent_at_most(
        rate in 8_000u64..100_000_000, random: u32, is_first: bool, members in 2u32..10_000,
    ) {
        let interval = Interval { members, ..Interval::of_sender(BitRate(rate), is_first) };
        let time = interval.next(random);
        let shortest = if is_first { 2_500 } else { 5_000 };
        prop_assert!(time >= Nanos(MILLISECOND.0 * shortest * 41 / 100));
        let senders = if members >= 4 { 1 } else { members };
        // On average, which is what the middle of `random` gives, times 1.218.
        let mean = interval.next(1 << 31).0 * 121_829 / 100_000 + 1;
        let bits = u128::from(interval.size_mean.0) * 8 * u128::from(senders);
        let share = if members >= 4 { rate / 80 } else { rate / 20 };
        prop_assert!(bits * u128::from(SECOND.0) <= u128::from(mean) * u128::from(share + 1));
        prop_assert!(time.0 <= mean * 3 / 2);
    }

    #[test]
    fn timestamps_and_times_correspond(
        epoch in 0u64..1 << 60, base: u32, after in 0u64..1 << 50, rate in 100_000u64..100_000_000,
    ) {
        let timeline = Timeline { epoch: MonoTime(epoch), base };
        let time = MonoTime(epoch + after);
        let ticks = (u128::from(after) * 9 / 100_000) as u32;
        prop_assert_eq!(timeline.timestamp(time), base.wrapping_add(ticks));
        // It equals the timestamps of the datagrams, at any rate.
        let clock = crate::byte_clock::ByteClock::new(timeline.epoch, BitRate(rate));
        let due = clock.due(Bytes(1316 * 1000));
        let carried = (u128::from(due.since(timeline.epoch).0) * 9 / 100_000) as u32;
        prop_assert_eq!(timeline.timestamp(due), base.wrapping_add(carried));
    }
}

#[test]
fn each_rule_is_told_by_name() {
    let whole = whole();
    assert_eq!(read(&whole).unwrap().count(), 5);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        read(&bytes).map(Iterator::count)
    };
    assert_eq!(read(&[]).map(Iterator::count), Err(RtcpFault::Length));
    assert_eq!(with(&|bytes| bytes.truncate(3)), Err(RtcpFault::Length));
    assert_eq!(with(&|bytes| bytes.truncate(bytes.len() - 1)), Err(RtcpFault::Length));
    assert_eq!(with(&|bytes| bytes.push(0)), Err(RtcpFault::Length));
    assert_eq!(with(&|bytes| bytes[0] = 0x40), Err(RtcpFault::Version));
    assert_eq!(with(&|bytes| bytes[3] = 200), Err(RtcpFault::Length), "words of others");
    assert_eq!(with(&|bytes| bytes[0] |= 1), Err(RtcpFault::Report), "one that is not there");
    assert_eq!(with(&|bytes| bytes[0] |= 0x20), Err(RtcpFault::Padding), "not the last one");
    // SDES begins at 28: header, source, item, its length, its text.
    assert_eq!(with(&|bytes| bytes[28] |= 3), Err(RtcpFault::Description), "three of one");
    assert_eq!(with(&|bytes| bytes[37] = 200), Err(RtcpFault::Description), "a longer name");
    assert_eq!(with(&|bytes| bytes[28] &= 0xf0), Err(RtcpFault::Description), "none of one");
    // APP at 44, the unknown one at 60, the end at 64.
    assert_eq!(with(&|bytes| bytes[65] = APP), Ok(5), "with a name");
    assert_eq!(with(&|bytes| bytes[61] = APP), Err(RtcpFault::Application));
    assert_eq!(with(&|bytes| bytes[64] |= 9), Err(RtcpFault::Sources));
    assert_eq!(with(&|bytes| bytes[72] = 8), Err(RtcpFault::Reason), "past the end");
    assert_eq!(with(&|bytes| bytes[72] = 7), Ok(5), "up to the end");
    assert_eq!(read(&whole[28..]).map(Iterator::count), Err(RtcpFault::First));

    let padded = |padding: &[u8]| {
        let mut bytes = Compound::of_receiver(1, &[]).into_bytes();
        bytes[0] |= 0x20;
        bytes[3] += (padding.len() / 4) as u8;
        bytes.extend(padding);
        read(&bytes).map(Iterator::count)
    };
    assert_eq!(padded(&[0, 0, 0, 4]), Ok(1));
    assert_eq!(padded(&[0, 0, 0, 0]), Err(RtcpFault::Padding));
    assert_eq!(padded(&[0, 0, 0, 3]), Err(RtcpFault::Padding));
    assert_eq!(padded(&[0, 0, 0, 12]), Err(RtcpFault::Padding));
    assert_eq!(padded(&[0, 0, 0, 8]), Err(RtcpFault::Report), "its source is padding");
}

#[test]
fn nobody_ends_anybody_else() {
    let report = |source| Compound::of_receiver(source, &[]);
    let mut peer = Peer::default();
    let about_us = Reception {
        source: 7,
        fraction_lost: 1,
        lost: -1,
        highest: 2,
        jitter: 3,
        last_report: 4,
        delay: 5,
    };
    let first = Compound::of_receiver(1, &[Reception { source: 8, ..about_us }, about_us]);
    let heard = peer.handle(&first.name(1, "x").into_bytes(), 7).unwrap();
    assert_eq!((heard.reception, heard.is_gone), (Some(about_us), false));
    for bytes in [
        report(2).into_bytes(),
        report(1).bye(2, "").into_bytes(),
        report(2).bye(2, "").into_bytes(),
        report(1).name(2, "y").into_bytes(),
    ] {
        assert_eq!(peer.handle(&bytes, 7), Err(RtcpFault::Stranger));
        assert_eq!(peer.source(), Some(1));
    }
    // A BYE without sources ends nothing.
    let mut nobody = report(1).into_bytes();
    nobody.extend([0x80, BYE, 0, 0]);
    assert!(!peer.handle(&nobody, 7).unwrap().is_gone);
    assert!(peer.handle(&report(1).bye(1, "done").into_bytes(), 7).unwrap().is_gone);
}

#[test]
fn times_are_those_of_ntp() {
    // 1970, and the middle of a second in 2026.
    assert_eq!(NtpTime::of(WallTime(0)), NtpTime(2_208_988_800 << 32));
    let time = NtpTime::of(WallTime(1_795_353_600_500_000_000));
    assert_eq!(time.0, (2_208_988_800u64 + 1_795_353_600) << 32 | 1 << 31);
    assert_eq!(time.middle(), ((2_208_988_800u64 + 1_795_353_600) as u32) << 16 | 0x8000);
    let timeline = Timeline { epoch: MonoTime(SECOND.0), base: 5 };
    assert_eq!(timeline.timestamp(MonoTime(0)), 5u32.wrapping_sub(VIDEO_CLOCK));
}

#[test]
fn a_name_is_as_wireshark_expects_it() {
    let bytes = Compound::of_receiver(0x0102_0304, &[]).name(0x0102_0304, "ab").into_bytes();
    let expected = vec![
        0x80, 201, 0, 1, 1, 2, 3, 4, 0x81, 202, 0, 3, 1, 2, 3, 4, 1, 2, b'a', b'b', 0, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
}
