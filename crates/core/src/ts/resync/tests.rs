//! Tests of the resync.

use super::super::packet::tests::packet;
use super::super::sections::crc;
use super::*;
use proptest::prelude::*;

/// Feeds pieces; returns the delivered packets.
fn through(resync: &mut Resync, pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        resync.handle(piece, |packet, _| out.extend(packet));
    }
    out
}

fn stream(packets: u8) -> Vec<u8> {
    (0..packets).flat_map(|count| packet(256, count, None)).collect()
}

/// A packet of `pid` that begins with `section`, after `pointer` bytes.
fn table(pid: u16, count: u8, pointer: u8, section: &[u8]) -> [u8; PACKET] {
    let mut bytes = packet(pid, count, None);
    bytes[1] |= 0x40;
    bytes[4] = pointer;
    let at = 5 + usize::from(pointer);
    let room = PACKET - at.min(PACKET);
    let len = section.len().min(room);
    bytes[PACKET - room..][..len].copy_from_slice(&section[..len]);
    bytes
}

/// The section of a PAT with one program.
fn pat(pmt: u16) -> Vec<u8> {
    let [high, low] = pmt.to_be_bytes();
    let mut section = vec![0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xe0 | high, low];
    let sum = crc(&section);
    section.extend(sum.to_be_bytes());
    section
}

proptest! {
    #[test]
    fn a_whole_stream_goes_through_however_it_is_cut(
        cuts in proptest::collection::vec(1usize..3000, 1..40), packets in 5u8..60,
    ) {
        let bytes = stream(packets);
        let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
        for cut in cuts {
            let (piece, more) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = more;
        }
        pieces.push(rest);
        let mut resync = Resync::default();
        let out = through(&mut resync, &pieces);
        prop_assert!(out == bytes);
        prop_assert_eq!(resync.counts(), Counts { packets: packets.into(), ..Counts::default() });
    }

    #[test]
    fn no_bytes_are_hostile_enough(
        pieces in proptest::collection::vec(
            proptest::collection::vec(
                prop_oneof![3 => Just(SYNC), 1 => Just(0u8), 4 => any::<u8>()],
                0..1500,
            ),
            0..12,
        ),
    ) {
        let mut resync = Resync::default();
        let came: usize = pieces.iter().map(Vec::len).sum();
        let mut out = 0;
        for piece in &pieces {
            resync.handle(piece, |packet, _| {
                assert_eq!(packet[0], SYNC);
                out += PACKET;
            });
            prop_assert!(resync.rest.len() <= LOCK * PACKET);
        }
        let Counts { skipped_bytes, malformed, bad_sections, .. } = resync.counts();
        let dropped = (malformed + bad_sections) * PACKET as u64;
        let all = out as u64 + skipped_bytes + dropped + resync.rest.len() as u64;
        prop_assert_eq!(all, came as u64, "every byte comes out or is counted");
    }

    #[test]
    fn any_tables_end(
        payloads in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 184)),
            0..40,
        ),
    ) {
        let mut resync = Resync::default();
        for (count, (starts, payload)) in payloads.iter().enumerate() {
            let mut bytes = packet(0, count as u8, None);
            bytes[1] |= u8::from(*starts) << 6;
            bytes[4..].copy_from_slice(payload);
            resync.handle(&bytes, |_, _| {});
        }
    }
}

#[test]
fn d04_damage_costs_what_it_hits_and_the_stream_goes_on() {
    let mut bytes = stream(40);
    bytes[7 * PACKET] = 0x48;
    bytes.splice(20 * PACKET + 5..20 * PACKET + 5, [1, 2, 3]);
    let mut resync = Resync::default();
    let out = through(&mut resync, &[&bytes[..10 * PACKET], &bytes[10 * PACKET..]]);
    // Without the unsynced packet; the packet with inserted bytes is delivered unchanged, three
    // bytes are left over.
    assert_eq!(out.len(), 39 * PACKET);
    let counts = resync.counts();
    assert_eq!((counts.sync_losses, counts.skipped_bytes, counts.gaps), (2, 188 + 3, 1));
    assert_eq!(resync.gaps().collect::<Vec<_>>(), [(Pid(256), 1)]);
}

#[test]
fn a_datagram_lost_in_the_middle_of_packets_makes_no_packet_of_two() {
    let bytes = stream(60);
    let pieces: Vec<_> = bytes.chunks(1000).collect();
    let kept = [&pieces[..4], &pieces[5..]].concat();
    let mut resync = Resync::default();
    let out = through(&mut resync, &kept);
    let sent: Vec<_> = bytes.chunks(PACKET).collect();
    assert!(out.chunks(PACKET).all(|packet| sent.contains(&packet)));
    assert!(out.len() >= bytes.len() - 1000 - 2 * PACKET, "{}", out.len());
    assert_eq!(resync.counts().sync_losses, 1);
}

#[test]
fn d04_an_adaptation_field_that_does_not_fit_is_dropped() {
    let mut resync = Resync::default();
    through(&mut resync, &[&stream(6)]);
    let with = |control: u8, len: u8, flags: u8| {
        let mut bytes = packet(257, 0, None);
        bytes[3] = control;
        bytes[4..6].copy_from_slice(&[len, flags]);
        bytes
    };
    for (bytes, kept) in [
        (with(0x20, 183, 0), true),
        (with(0x20, 184, 0), false),
        (with(0x20, 255, 0), false),
        (with(0x30, 182, 0), true),
        (with(0x30, 183, 0), false),
        (with(0x30, 0, 0xff), true),
        // A flagged PCR without room.
        (with(0x30, 5, 0x10), false),
        (with(0x00, 0, 0), false),
    ] {
        let out = through(&mut resync, &[&bytes]);
        assert_eq!(!out.is_empty(), kept, "{:02x?}", &bytes[..6]);
    }
    assert_eq!(resync.counts().malformed, 5);
}

#[test]
fn d04_a_clock_that_jumps_is_counted_and_kept() {
    let mut resync = Resync::default();
    let second = 27_000_000;
    let mut bytes = Vec::new();
    for (nth, ticks) in [0, 1, 2, 50, 51, 3, 4].into_iter().enumerate() {
        bytes.extend(packet(256, nth as u8, Some(Pcr::at(MediaTime(ticks * second / 10)))));
    }
    let out = through(&mut resync, &[&bytes]);
    assert!(out == bytes);
    assert_eq!(resync.counts().clock_jumps, 2, "forwards and back");
    let mut announced = packet(256, 9, Some(Pcr::at(MediaTime(900 * second))));
    announced[5] |= 0x80;
    through(&mut resync, &[&announced]);
    assert_eq!(resync.counts().clock_jumps, 2);
}

#[test]
fn d04_a_section_that_overflows_is_dropped_and_counted() {
    let mut resync = Resync::default();
    let good = table(0, 0, 0, &pat(0x100));
    through(&mut resync, &[&stream(6), &good]);
    assert_eq!(resync.counts().bad_sections, 0);
    let mut damaged = pat(0x100);
    damaged[9] ^= 1;
    for (nth, bad) in [
        // Longer than a table may be; a beginning after the packet's end; a wrong CRC.
        table(0, 1, 0, &[0, 0xbf, 0xff]),
        table(0, 2, 183, &[]),
        table(0, 3, 200, &[]),
        table(0, 4, 0, &damaged),
        // The same in a table that only the PAT announces.
        table(0x100, 1, 0, &[2, 0xb3, 0xfe]),
    ]
    .iter()
    .enumerate()
    {
        // A pointer to just after the packet: no section begins, which is harmless.
        let kept = nth == 1;
        let out = through(&mut resync, &[&bad[..]]);
        assert_eq!(!out.is_empty(), kept, "{nth}");
    }
    assert_eq!(resync.counts().bad_sections, 4);
    let out = through(
        &mut resync,
        &[&table(0, 5, 0, &pat(0x100)), &table(0x200, 0, 0, &[2, 0xbf, 0xff])],
    );
    assert_eq!(out.len(), 2 * PACKET, "PID 0x200 is no table");
}

#[test]
fn a_section_over_several_packets_is_whole_or_nothing() {
    let mut section = vec![0, 0xb0, 0, 0, 1, 0xc1, 0, 0];
    for program in 1..=60u16 {
        section.extend(program.to_be_bytes());
        section.extend((0xe000 | (0x100 + program)).to_be_bytes());
    }
    let len = (section.len() + 4 - 3) as u16;
    section[1..3].copy_from_slice(&(0xb000 | len).to_be_bytes());
    let sum = crc(&section);
    section.extend(sum.to_be_bytes());
    let first = table(0, 0, 0, &section);
    let mut second = packet(0, 1, None);
    second[4..][..section.len() - 183].copy_from_slice(&section[183..]);
    let mut resync = Resync::default();
    let out = through(&mut resync, &[&stream(6), &first, &second]);
    assert_eq!((out.len(), resync.counts().bad_sections), (8 * PACKET, 0));
    // The last program is known by its PMT's PID.
    through(&mut resync, &[&table(0x100 + 60, 0, 0, &[2, 0xbf, 0xff])]);
    assert_eq!(resync.counts().bad_sections, 1);
    // The bytes after the end did not begin there.
    second[3] = 0x13;
    second[180] = 7;
    let mut third = first;
    third[3] = 0x12;
    through(&mut resync, &[&third, &second]);
    assert_eq!(resync.counts().bad_sections, 2);
}

#[test]
fn the_rate_is_that_of_the_clock() {
    let rate = 3_760_000;
    let mut resync = Resync::default();
    let mut bytes = Vec::new();
    for nth in 0..6000u64 {
        let at = nth * PACKET as u64 + PCR_BYTE;
        let pcr = (nth % 10 == 0).then(|| Pcr::at(MediaTime(at * 8 * 27_000_000 / rate)));
        bytes.extend(packet(256, nth as u8, pcr));
    }
    assert_eq!(resync.rate(), None);
    through(&mut resync, &[&bytes]);
    assert_eq!(resync.rate(), Some(BitRate(rate)));
}

#[test]
fn places_to_begin_are_told() {
    let mut resync = Resync::default();
    through(&mut resync, &[&stream(6)]);
    let mut access = packet(256, 6, None);
    access[3] |= 0x20;
    access[4..6].copy_from_slice(&[1, 0x40]);
    let mut marks = Vec::new();
    for bytes in [table(0, 0, 0, &pat(0x100)), access, packet(256, 7, None)] {
        resync.handle(&bytes, |_, mark| marks.push((mark.pat, mark.random_access)));
    }
    assert_eq!(marks, [(true, false), (false, true), (false, false)]);
}
