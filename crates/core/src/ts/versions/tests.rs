//! Joined streams, as a receiver of their sections sees them.

use alloc::vec;
use alloc::vec::Vec;

use super::super::mux::sealed;
use super::super::sections::{Sections, crc, section_packets};
use super::super::{Moment, Restamper};
use super::*;
use crate::units::MediaTime;
use proptest::prelude::*;

const STILL: Moment = Moment { pcr: None, moved: MediaTime(0), beyond: None, breaks: false };

fn pat(version: u8, programs: &[(u16, u16)]) -> Vec<u8> {
    let mut section = vec![0, 0xb0, 0, 0, 1, 0xc1 | version << 1, 0, 0];
    for (number, pid) in programs {
        section.extend(number.to_be_bytes());
        section.extend((0xe000 | pid).to_be_bytes());
    }
    sealed(&section)
}

/// A PMT whose only descriptors hold `info`.
fn pmt(version: u8, number: u16, info: &[u8]) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let mut section = vec![2, 0xb0, 0, high, low, 0xc1 | version << 1, 0, 0, 0xe1, 0];
    let descriptors: Vec<u8> =
        info.chunks(200).flat_map(|info| [&[0x80, info.len() as u8], info].concat()).collect();
    section.extend((0xf000 | descriptors.len() as u16).to_be_bytes());
    section.extend(descriptors);
    section.extend([0x1b, 0xe1, 0, 0xf0, 0]);
    sealed(&section)
}

fn packets(section: &[u8], pid: u16) -> Vec<[u8; PACKET]> {
    let mut bytes = Vec::new();
    section_packets(section, Pid(pid), 0, PACKET, &mut bytes);
    bytes.as_chunks().0.to_vec()
}

/// The versions and contents of received sections.
#[derive(Default)]
struct Receiver {
    sections: Sections,
    came: Vec<(u16, Vec<u8>)>,
}

impl Receiver {
    fn take(&mut self, packet: &[u8; PACKET]) {
        let Self { sections, came } = self;
        let packet = Packet::read(packet).unwrap();
        sections
            .each_section(&packet, |pid, section| came.push((pid.0, section.to_vec())))
            .unwrap();
    }

    /// The versions of the tables of `pid`.
    fn versions(&self, pid: u16) -> Vec<u8> {
        let own = self.came.iter().filter(|(known, _)| *known == pid);
        own.map(|(_, section)| section[5] >> 1 & 0x1f).collect()
    }
}

struct Fixture {
    restamper: Restamper,
    receiver: Receiver,
    counter: u8,
}

impl Fixture {
    fn new() -> Self {
        Self { restamper: Restamper::default(), receiver: Receiver::default(), counter: 0 }
    }

    fn send(&mut self, section: &[u8], pid: u16) {
        for mut packet in packets(section, pid) {
            self.counter = self.counter.wrapping_add(1);
            packet[3] = packet[3] & 0xf0 | self.counter & 0x0f;
            self.restamper.restamp(&mut packet, &STILL);
            self.receiver.take(&packet);
        }
    }

    /// Both tables of a title of one program.
    fn title(&mut self, version: u8, (number, pid): (u16, u16), info: &[u8]) {
        self.send(&pat(version, &[(number, pid)]), 0);
        self.send(&pmt(version, number, info), pid);
    }
}

#[test]
fn p02_each_change_counts_over_the_wrap_and_what_stays_the_same_does_not() {
    let mut fixture = Fixture::new();
    // Forty titles of different programs, all with tables of version 0.
    for nth in 0..40u16 {
        for _ in 0..3 {
            fixture.title(0, (nth + 1, 0x1000), &nth.to_be_bytes());
        }
        fixture.restamper.join(None);
    }
    let expected: Vec<u8> = (0..40u8).flat_map(|nth| [nth % 32; 3]).collect();
    assert_eq!(fixture.receiver.versions(0), expected);
    assert_eq!(fixture.receiver.versions(0x1000), expected);
    // The last title once more, with other versions of its own.
    fixture.title(9, (40, 0x1000), &39u16.to_be_bytes());
    assert_eq!(fixture.receiver.versions(0).last(), Some(&(39 % 32)));
    assert_eq!(fixture.receiver.versions(0x1000).last(), Some(&(39 % 32)));
    assert!(
        fixture.receiver.came.iter().all(|(_, section)| crc(section) == 0 && section[5] & 1 == 1)
    );
}

#[test]
fn p02_two_titles_in_turn_count_each_time_where_they_share_a_pid_or_a_number() {
    for other in [(2, 0x1000), (1, 0x100)] {
        let mut fixture = Fixture::new();
        for _ in 0..4 {
            for (program, info) in [((1, 0x1000), b"a"), (other, b"b")] {
                fixture.title(5, program, info);
                fixture.restamper.join(None);
            }
        }
        let pmts = fixture.receiver.came.iter().filter(|(pid, _)| *pid != 0);
        let versions: Vec<u8> = pmts.map(|(_, section)| section[5] >> 1 & 0x1f).collect();
        assert_eq!(versions, [5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(fixture.receiver.versions(0), [5, 6, 7, 8, 9, 10, 11, 12]);
    }
}

#[test]
fn p02_changes_within_a_title_count_whether_it_says_so_or_not() {
    let mut fixture = Fixture::new();
    fixture.title(3, (1, 0x1000), b"a");
    fixture.title(3, (1, 0x1000), b"b");
    fixture.title(31, (1, 0x1000), b"c");
    fixture.title(0, (1, 0x1000), b"c");
    fixture.restamper.join(None);
    fixture.title(3, (1, 0x1000), b"c");
    fixture.title(4, (1, 0x1000), b"a");
    assert_eq!(fixture.receiver.versions(0x1000), [3, 4, 5, 5, 5, 6]);
    assert_eq!(fixture.receiver.versions(0), [3; 6]);
}

#[test]
fn p02_a_program_that_takes_another_ones_place_within_a_title_counts() {
    let mut fixture = Fixture::new();
    for pid in [0x1001, 0x1000, 0x1001] {
        fixture.restamper.join(None);
        fixture.title(25, (100 + pid, pid), b"a");
    }
    fixture.title(25, (300, 0x1001), b"a");
    fixture.title(25, (300, 0x1001), b"a");
    assert_eq!(fixture.receiver.versions(0x1001), [25, 25, 26, 26]);
    // At the end of the title the tables are as after a join.
    fixture.restamper.join(None);
    fixture.title(25, (100 + 0x1001, 0x1001), b"a");
    assert_eq!(fixture.receiver.versions(0x1001).last(), Some(&27));
}

#[test]
fn p02_what_is_only_announced_has_the_version_that_it_will_have() {
    let mut fixture = Fixture::new();
    fixture.title(0, (1, 0x1000), b"a");
    fixture.restamper.join(None);
    fixture.title(0, (1, 0x1000), b"b");
    let mut next = pmt(1, 1, b"c");
    let end = next.len() - 4;
    next[5] &= !1;
    let sum = crc(&next[..end]);
    next[end..].copy_from_slice(&sum.to_be_bytes());
    fixture.send(&next, 0x1000);
    fixture.title(0, (1, 0x1000), b"b");
    fixture.title(1, (1, 0x1000), b"c");
    assert_eq!(fixture.receiver.versions(0x1000), [0, 1, 2, 1, 2]);
    let currents = fixture.receiver.came.iter().filter(|(pid, _)| *pid == 0x1000);
    assert_eq!(currents.map(|(_, section)| section[5] & 1).collect::<Vec<_>>(), [1, 1, 0, 1, 1]);
    assert!(fixture.receiver.came.iter().all(|(_, section)| crc(section) == 0));
}

#[test]
fn p02_programs_that_share_a_multiplex_count_each_for_itself() {
    let mut fixture = Fixture::new();
    for (third, expected) in [(b"c", 4), (b"c", 4), (b"d", 5)] {
        for _ in 0..2 {
            fixture.send(&pat(0, &[(1, 0x100), (2, 0x100), (3, 0x200)]), 0);
            fixture.send(&pmt(7, 1, b"a"), 0x100);
            fixture.send(&pmt(8, 2, b"b"), 0x100);
            fixture.send(&pmt(4, 3, third), 0x200);
            assert_eq!(fixture.receiver.versions(0x200).last(), Some(&expected));
        }
        fixture.restamper.join(None);
    }
    assert_eq!(fixture.receiver.versions(0x100), [7, 8].repeat(6));
    assert_eq!(fixture.receiver.versions(0), [0; 6]);
}

#[test]
fn p02_each_of_thirty_programs_of_a_multiplex_counts() {
    let mut fixture = Fixture::new();
    let programs: Vec<_> = (0..30u16).map(|nth| (nth + 1, 0x1000 + nth)).collect();
    for title in 0..5u8 {
        for _ in 0..2 {
            fixture.send(&pat(0, &programs), 0);
            for &(number, pid) in &programs {
                // The even ones say the same in all titles.
                let says = if number % 2 == 0 { 0 } else { title };
                fixture.send(&pmt(0, number, &[says]), pid);
            }
        }
        fixture.restamper.join(None);
    }
    assert_eq!(fixture.receiver.versions(0), [0; 10]);
    for (number, pid) in programs {
        let counted = if number % 2 == 0 { [0; 10] } else { [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] };
        assert_eq!(fixture.receiver.versions(pid), counted, "{number}");
    }
}

#[test]
fn p02_a_table_of_several_packets_is_known_by_what_the_index_says_of_it() {
    let (long, other) = ([7; 700], {
        let mut other = [7; 700];
        other[690] = 8;
        other
    });
    let ahead = |info: &[u8]| LongTable::of(Pid(0x1000), &pmt(0, 1, info));
    let mut fixture = Fixture::new();
    for (info, expected) in [(&long, 0), (&long, 0), (&other, 1), (&other, 1), (&long, 2)] {
        fixture.restamper.join(ahead(info));
        for _ in 0..2 {
            fixture.title(0, (1, 0x1000), info);
            assert_eq!(fixture.receiver.versions(0x1000).last(), Some(&expected));
        }
    }
    // Without a hash the version increases, to be safe.
    fixture.restamper.join(None);
    fixture.title(0, (1, 0x1000), &long);
    assert_eq!(fixture.receiver.versions(0x1000).last(), Some(&3));
    assert!(fixture.receiver.came.iter().all(|(_, section)| crc(section) == 0));
    assert_eq!(LongTable::of(Pid(0x1000), &pmt(0, 1, b"short")), None);
}

#[test]
fn p02_what_is_built_between_two_parts_counts_as_well() {
    let mut fixture = Fixture::new();
    fixture.title(7, (1, 0x1000), b"all");
    let mut tables: Vec<_> = fixture.restamper.tables().collect();
    for (info, expected) in [(b"few", 8), (b"few", 8), (b"two", 9)] {
        let mut section = pmt(3, 1, info);
        count_versions(&mut tables, &mut [(Pid(0x1000), &mut section)]);
        assert_eq!((section[5] >> 1 & 0x1f, crc(&section)), (expected, 0));
    }
    let counts: Vec<_> = fixture.restamper.counts().collect();
    fixture.restamper = Restamper::behind(&counts, &tables);
    fixture.restamper.join(None);
    fixture.title(7, (1, 0x1000), b"all");
    assert_eq!(fixture.receiver.versions(0x1000), [7, 10]);
    assert_eq!(fixture.receiver.versions(0), [7, 7]);
}

#[test]
fn p02_a_session_counts_over_seeks_between_programs_and_what_is_built() {
    let mut fixture = Fixture::new();
    let mut versions = vec![];
    for nth in 0..6 {
        let (number, info) = [(1, b"all"), (2, b"all")][nth % 2];
        fixture.title(0, (number, 0x1000), info);
        let mut tables: Vec<_> = fixture.restamper.tables().collect();
        if nth % 2 == 1 {
            // Trick play of the first one has fewer streams.
            let sdt = [0x42, 0xf0, 0, 0, 1, 0xc1, 0, 0, 0, 1, 0xff];
            let [mut pat, mut pmt, mut sdt] =
                [pat(1, &[(1, 0x1000)]), pmt(1, 1, b"few"), sealed(&sdt)];
            let sections: &mut [(Pid, &mut [u8])] =
                &mut [(Pid(0), &mut pat), (Pid(0x1000), &mut pmt), (Pid::SDT, &mut sdt)];
            count_versions(&mut tables, sections);
            assert!([&pat, &pmt, &sdt].iter().all(|section| crc(section) == 0));
            versions.push(pmt[5] >> 1 & 0x1f);
        }
        let counts: Vec<_> = fixture.restamper.counts().collect();
        fixture.restamper = Restamper::behind(&counts, &tables);
        fixture.restamper.join(None);
    }
    assert_eq!(fixture.receiver.versions(0x1000), [0, 1, 3, 4, 6, 7]);
    assert_eq!(versions, [2, 5, 8]);
    assert_eq!(fixture.receiver.versions(0), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn p02_packets_that_come_twice_change_nothing() {
    let mut fixture = Fixture::new();
    fixture.title(0, (1, 0x1000), b"a");
    fixture.restamper.join(None);
    let mut sent = Vec::new();
    for packet in packets(&pmt(0, 1, &[9; 500]), 0x1000) {
        fixture.counter = fixture.counter.wrapping_add(1);
        for _ in 0..2 {
            let mut packet = packet;
            packet[3] = packet[3] & 0xf0 | fixture.counter & 0x0f;
            fixture.restamper.restamp(&mut packet, &STILL);
            sent.push(packet);
        }
    }
    for pair in sent.chunks(2) {
        assert_eq!(pair[0], pair[1]);
        fixture.receiver.take(&pair[0]);
    }
    assert_eq!(fixture.receiver.versions(0x1000), [0, 1]);
    assert_eq!(crc(&fixture.receiver.came.last().unwrap().1), 0);
}

proptest! {
    #[test]
    fn p02_a_version_counts_exactly_what_changes(
        parts in proptest::collection::vec(
            (
                0u8..32,
                1u16..4,
                proptest::collection::vec((any::<bool>(), 0u8..3, 0usize..600), 1..5),
                any::<bool>(),
            ),
            1..30,
        ),
    ) {
        let mut fixture = Fixture::new();
        for (version, number, tables, is_restored) in parts {
            let info = |&(is_odd, fill, len): &(bool, u8, usize)| {
                vec![fill + 10 * u8::from(is_odd); len]
            };
            let all: Vec<Vec<u8>> = tables.iter().map(info).collect();
            fixture.restamper.join(LongTable::of(Pid(0x1000), &pmt(0, number, &all[0])));
            let mut own = version;
            for (nth, info) in all.iter().enumerate() {
                // A table longer than a packet is identified by the title's own version.
                own += u8::from(nth > 0 && all[nth - 1] != *info);
                fixture.title(own % 32, (number, 0x1000), info);
            }
            if is_restored {
                // Another stream of the session continues from the stored counts.
                let counts: Vec<_> = fixture.restamper.counts().collect();
                let tables: Vec<_> = fixture.restamper.tables().collect();
                fixture.restamper = Restamper::behind(&counts, &tables);
            }
        }
        for pid in [0, 0x1000] {
            let own = fixture.receiver.came.iter().filter(|(known, _)| *known == pid);
            let own: Vec<&Vec<u8>> = own.map(|(_, section)| section).collect();
            let hash = |section: &[u8]| {
                let mut hash = section[..section.len() - CRC].to_vec();
                hash[5] = 0;
                hash
            };
            for pair in own.windows(2) {
                let [before, after] = [pair[0], pair[1]].map(|section| section[5] >> 1 & 0x1f);
                let changed = u8::from(hash(pair[0]) != hash(pair[1]));
                prop_assert_eq!(after, (before + changed) % 32);
            }
            prop_assert!(own.iter().all(|section| crc(section) == 0 && section[5] & 1 == 1));
        }
    }

    #[test]
    fn p02_no_packets_are_hostile_enough(
        packets in proptest::collection::vec(
            (
                0usize..5,
                any::<bool>(),
                any::<u8>(),
                proptest::collection::vec(any::<u8>(), 0..184),
                any::<bool>(),
            ),
            0..60,
        ),
    ) {
        let mut restamper = Restamper::default();
        for (pid, starts, flags, body, joins) in packets {
            let pid = [0u16, 0x11, 0x100, 0x101, 0x1ff0][pid] | if starts { 0x4000 } else { 0 };
            let mut packet = [0xff; PACKET];
            let [high, low] = pid.to_be_bytes();
            packet[..4].copy_from_slice(&[super::super::SYNC, high, low, flags]);
            packet[4..][..body.len()].copy_from_slice(&body);
            if joins {
                restamper.join(None);
            }
            restamper.restamp(&mut packet, &STILL);
            restamper.watch(&packet);
        }
        prop_assert!(restamper.tables().count() <= TABLES);
    }
}
