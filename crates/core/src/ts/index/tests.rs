//! Whole indexes: of generated titles, of damaged ones, and of arbitrary bytes.

use alloc::vec;

use super::super::mux::sealed;
use super::super::packet::tests::packet;
use super::super::{Framing, Mux, PcrSpan, measure};
use super::*;
use proptest::prelude::*;

const RATE: u64 = 3_760_000;
const VIDEO: u16 = 0x100;
const TABLE: u16 = 0x1000;

fn pat() -> Vec<u8> {
    sealed(&[0, 0xb0, 0, 0, 1, 0xc1, 0, 0, 0, 1, 0xe0 | (TABLE >> 8) as u8, TABLE as u8])
}

fn pmt(version: u8) -> Vec<u8> {
    let [high, low] = VIDEO.to_be_bytes();
    let video = [2, 0xe0 | high, low, 0xf0, 0];
    let audio = [3, 0xe1, 1, 0xf0, 0];
    let version = 0xc1 | version << 1;
    let head = [2, 0xb0, 0, 0, 1, version, 0, 0, 0xe0 | high, low, 0xf0, 0];
    sealed(&[&head[..], &video, &audio].concat())
}

fn law(base: u64, at: u64) -> Pcr {
    let ticks = u128::from(at) * 8 * u128::from(SECOND) / u128::from(RATE);
    Pcr::at(MediaTime(base + ticks as u64))
}

/// A constant-rate title of MPEG-2: tables each 50 packets, a PCR each 10, an I-frame each 100.
fn title(base: u64, packets: u64) -> Vec<u8> {
    let (mut bytes, mut counts) = (Vec::new(), [0u8; 3]);
    for nth in 0..packets {
        let mut count = |which: usize| {
            counts[which] = counts[which].wrapping_add(1);
            counts[which].wrapping_sub(1)
        };
        let mut one = Vec::new();
        match nth % 50 {
            0 => section_packets(&pat(), Pid(0), count(0), 188, &mut one),
            1 => section_packets(&pmt(0), Pid(TABLE), count(1), 188, &mut one),
            place => {
                let pcr = (nth % 10 == 3).then(|| law(base, nth * 188 + PCR_BYTE));
                let mut packet = packet(VIDEO, count(2), pcr);
                if place % 25 == 3 {
                    let kind = if nth % 100 == 3 { 1 << 3 } else { 2 << 3 };
                    video_frame(&mut packet, law(base + SECOND, nth * 188), kind);
                }
                one.extend(packet);
            }
        }
        bytes.extend(one);
    }
    bytes
}

/// A PES packet starts in `packet`: a sequence header and a video frame.
fn video_frame(packet: &mut [u8; PACKET], shown: Pcr, kind: u8) {
    packet[1] |= 0x40;
    let at = if packet[3] & 0x20 == 0 { 4 } else { 12 };
    let bytes = [0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5, 0x21, 0, 1, 0, 1];
    packet[at..at + 14].copy_from_slice(&bytes);
    packet[at + 14..at + 28]
        .copy_from_slice(&[0, 0, 1, 0xb3, 1, 2, 0, 0, 1, 0, 0x12, kind, 0xff, 0xf8]);
    assert!(super::super::add_to_pes_times(packet, shown.ticks()));
}

fn index(bytes: &[u8]) -> Result<Index, IndexFault> {
    let mut indexer = Indexer::default();
    indexer.add(bytes);
    indexer.finish()
}

fn framed(bytes: &[u8], stride: usize) -> Vec<u8> {
    let (before, behind) = match stride {
        192 => (4, 0),
        204 => (0, 16),
        _ => (0, 0),
    };
    let packets = bytes.chunks(PACKET);
    packets.flat_map(|one| [vec![9; before], one.to_vec(), vec![9; behind]].concat()).collect()
}

#[test]
fn a_constant_title_is_known_exactly() {
    let bytes = title(77, 5000);
    let index = index(&bytes).unwrap();
    let Rates { min, mean, max } = index.rates().unwrap();
    assert_eq!(mean, BitRate(RATE));
    assert!(min.0 >= RATE - 8 && max.0 <= RATE + 8, "{min:?} {max:?}");
    assert!(index.is_constant());
    assert_eq!(index.points().len(), 4);
    assert_eq!(index.duration().0, bytes.len() as u64 * 8 * SECOND / RATE - 1);
    for at in (0..bytes.len() as u64).step_by(1711) {
        assert!(index.time_at(at).0.abs_diff(at * 8 * SECOND / RATE) <= 2);
        assert!(index.pcr_at(at).ticks().0.abs_diff(law(77, at).ticks().0) <= 2);
    }
    assert_eq!(index.flaws(), Flaws::default());
    assert_eq!(index.packets(), 5000);
}

#[test]
fn entries_are_where_the_video_frames_begin_and_tables_go_before_them() {
    let bytes = title(77, 5000);
    let index = index(&bytes).unwrap();
    let places: Vec<_> = index.accesses().iter().map(|access| access.at).collect();
    assert_eq!(places, (0..50).map(|nth| (nth * 100 + 3) * 188).collect::<Vec<_>>());
    assert!(index.accesses().iter().all(|access| access.kind == AccessKind::Entry));
    let ends: Vec<_> = index.accesses().iter().map(|access| access.end).collect();
    assert_eq!(ends, places.iter().map(|place| place + 25 * 188).collect::<Vec<_>>());
    // A video frame is presented a second after its bytes; normal play time begins with the first
    // one.
    let third = index.entry_at(MediaTime(SECOND * 13 / 100)).unwrap();
    assert_eq!(third.at, 303 * 188);
    let played = index.played(third).0;
    assert!(played.abs_diff(300 * 188 * 8 * SECOND / RATE) <= 300, "{played}");
    assert_eq!(index.entry_at(MediaTime(0)).unwrap().at, 3 * 188);
    assert_eq!(index.entry_after(MediaTime(1)).unwrap().at, 103 * 188);
    assert_eq!(index.entry_after(MediaTime(1 << 50)), None);
    assert_eq!(index.entry_at(MediaTime(1 << 50)).unwrap().at, 4903 * 188);
    assert_eq!(index.programs()[0].streams.len(), 2);

    // A part with its tables is a title of its own: no continuity error.
    let from = index.start_of(third) as usize;
    let part = [index.tables_before(third), bytes[from..].to_vec()].concat();
    let mut watch = Continuity::default();
    let packets = Framing::PLAIN.packets(&part).map(|(_, packet)| packet);
    for packet in packets {
        assert_eq!(watch.handle_packet(&packet), None);
    }
    let again = super::tests::index(&part).unwrap();
    assert_eq!(again.accesses()[0].at, 2 * 188);
    assert_eq!(again.accesses().len(), index.accesses().len() - 3);
}

#[test]
fn other_framings_are_as_good() {
    for stride in [192, 204] {
        let plain = title(5, 1000);
        let index = index(&framed(&plain, stride)).unwrap();
        assert_eq!(index.stride(), stride);
        assert_eq!(index.packets(), 1000);
        let before = if stride == 192 { 4 } else { 0 };
        let first = index.accesses()[0];
        assert_eq!(
            (first.at, index.start_of(&first)),
            (3 * stride as u64 + before, 3 * stride as u64)
        );
        assert_eq!(index.tables_before(&first).len(), 2 * stride);
    }
}

#[test]
fn where_two_recordings_were_joined_there_are_two_runs() {
    let (one, other) = (title(5, 1000), title(1 << 40, 1000));
    let index = index(&[one.clone(), other].concat()).unwrap();
    let runs = index.runs();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[1].at, one.len() as u64 + 3 * 188 + PCR_BYTE);
    assert!(index.duration().0.abs_diff(2000 * 188 * 8 * SECOND / RATE) <= 8);
    assert!(index.is_constant());
    assert_eq!(index.rates().unwrap().mean, BitRate(RATE));
}

#[test]
fn the_wrap_of_the_clock_is_no_jump() {
    let index = index(&title(Pcr::WRAP.0 - SECOND, 1000)).unwrap();
    assert_eq!(index.runs().len(), 1);
    assert!(index.is_constant());
}

#[test]
fn a_clock_that_has_gone_is_followed_by_another() {
    let mut other = title(1 << 40, 4000);
    for packet in other.chunks_mut(PACKET) {
        if packet[1] & 0x1f == 1 && packet[2] == 0 {
            packet[2] = 7;
        }
    }
    let joined = [title(5, 1000), other].concat();
    let index = index(&joined).unwrap();
    assert_eq!(index.clock(), Pid(0x107));
    assert_eq!(index.runs().len(), 2);
    assert!(index.duration().0.abs_diff(5000 * 188 * 8 * SECOND / RATE) <= 30);
}

#[test]
fn what_is_no_transport_stream_or_has_no_clock_has_no_index() {
    assert_eq!(index(&[]), Err(IndexFault::NotTransport));
    assert_eq!(index(&vec![7; 200_000]), Err(IndexFault::NotTransport));
    assert_eq!(index(&vec![SYNC; 4 * 188]), Err(IndexFault::NotTransport));
    assert_eq!(index(&title(5, 4)), Err(IndexFault::NotTransport));
    let silent: Vec<u8> = (0..100).flat_map(|nth| packet(VIDEO, nth, None)).collect();
    assert_eq!(index(&silent), Err(IndexFault::NoClock));
    let late = [vec![0; REACH as usize + 1], title(5, 1000)].concat();
    assert_eq!(index(&late), Err(IndexFault::NotTransport));
    let soon = [vec![0; REACH as usize], title(5, 1000)].concat();
    assert_eq!(index(&soon).unwrap().flaws().skipped_bytes, REACH);
}

#[test]
fn what_is_cut_off_or_cut_out_costs_no_more() {
    let bytes = title(5, 2000);
    let cut = index(&bytes[..bytes.len() - 100]).unwrap();
    assert_eq!((cut.packets(), cut.flaws().skipped_bytes), (1999, 88));
    let mut hole = bytes.clone();
    hole.drain(700 * 188 + 20..702 * 188 + 90);
    let hole = index(&hole).unwrap();
    assert_eq!(hole.flaws().sync_losses, 1);
    assert!(hole.flaws().gaps >= 1);
    assert_eq!(hole.runs().len(), 1);
    let mut marked = bytes;
    marked[500 * 188 + 1] |= 0x80;
    assert_eq!(index(&marked).unwrap().flaws().marked, 1);
}

proptest! {
    #[test]
    fn however_bytes_are_cut_the_index_is_the_same(
        base in 0u64..Pcr::WRAP.0, stride in prop_oneof![Just(188usize), Just(192), Just(204)],
        cuts in proptest::collection::vec(1usize..3000, 1..100),
        damage in proptest::collection::vec((0usize..110_000, any::<u8>()), 0..30),
        lost in 0usize..400, before in 0usize..3000,
    ) {
        let mut bytes = vec![SYNC; before];
        bytes.extend(framed(&title(base, 500), stride));
        for (at, byte) in damage {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.drain(40_000..40_000 + lost);
        let whole = index(&bytes);
        let mut indexer = Indexer::default();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, then) = rest.split_at(rest.len().min(*cut));
            indexer.add(now);
            rest = then;
        }
        prop_assert_eq!(indexer.len(), bytes.len() as u64);
        prop_assert_eq!(&indexer.finish(), &whole);
        if let Ok(index) = whole {
            prop_assert_eq!(Index::decode(&index.encode()), Some(index));
        }
    }

    #[test]
    fn no_bytes_are_hostile_enough(
        bytes in proptest::collection::vec(prop_oneof![4 => Just(SYNC), 1 => any::<u8>()], 0..8000),
    ) {
        if let Ok(index) = index(&bytes) {
            prop_assert!(index.duration().0 > 0);
            index.rates();
            index.is_constant();
            prop_assert_eq!(Index::decode(&index.encode()), Some(index));
        }
    }

    #[test]
    fn a_damaged_index_is_refused_or_keeps_the_rules(
        at in 0usize..2000, byte: u8, cut in 0usize..2000,
    ) {
        let mut bytes = index(&title(9, 1500)).unwrap().encode();
        let len = bytes.len();
        bytes[at % len] = byte;
        prop_assert!(Index::decode(&bytes[..cut % len]).is_none());
        if let Some(index) = Index::decode(&bytes) {
            let end = index.duration();
            prop_assert!(index.time_at(index.position_at(end)) <= end);
            index.rates();
            index.is_constant();
            for access in index.accesses() {
                prop_assert!(access.at <= access.end && access.end <= index.len());
                prop_assert!(index.start_of(access) <= index.len());
                index.tables_before(access);
                index.pcr_at(access.at);
            }
        }
    }
}

#[test]
fn the_index_says_the_same_rate_as_the_probe() {
    let bytes = title(5, 3000);
    let span = PcrSpan::in_window(&bytes, 0, Framing::PLAIN, None).unwrap();
    let Mux { rate, broken } = measure(&[span]).unwrap();
    assert!(!broken);
    assert_eq!(index(&bytes).unwrap().rates().unwrap().mean, rate);
}

#[test]
fn more_accesses_than_are_kept_are_thinned() {
    let mut indexer = Indexer::default();
    indexer.add(&title(5, 1000));
    indexer.accesses.clear();
    indexer.thinning.seen = 0;
    for at in 0..2 * ACCESSES_MAX as u64 {
        let video_frame = VideoFrame { at, end: OPEN, shown: None, kind: AccessKind::Entry };
        indexer.access(video_frame, LastCounts::default());
        assert!(indexer.accesses.len() < ACCESSES_MAX);
    }
    assert!(indexer.accesses.len() > ACCESSES_MAX / 3);
    assert!(indexer.accesses.windows(2).all(|pair| pair[0].at < pair[1].at));
}

/// A PMT whose PCR PID is `clock`: a PID of its own, or that of audio or video.
fn pmt_by(version: u8, clock: u16) -> Vec<u8> {
    let mut section = pmt(version);
    section.truncate(section.len() - 4);
    section[8..10].copy_from_slice(&(0xe000 | clock).to_be_bytes());
    sealed(&section)
}

/// Packets of [`title`] whose PCRs and PMTs move to PID `clock` at packet `from`. `marks`: the
/// first PCR there has the discontinuity indicator.
fn moved_clock(base: u64, packets: u64, (from, clock): (u64, u16), marks: bool) -> Vec<u8> {
    let mut bytes = title(base, packets);
    let mut count = 0;
    let mut is_marked = !marks;
    for (nth, packet) in (0u64..).zip(bytes.as_chunks_mut::<PACKET>().0) {
        if nth < from {
            continue;
        }
        let read = Packet::read(packet).unwrap();
        if read.pid() == Pid(TABLE) {
            let count = read.continuity();
            let mut other = Vec::new();
            section_packets(&pmt_by(1, clock), Pid(TABLE), count, 188, &mut other);
            packet.copy_from_slice(&other);
        } else if let Some(pcr) = read.pcr().filter(|_| !read.starts_unit()) {
            // The packet moves to that PID, which leaves a gap in the video's continuity counter.
            *packet = super::super::clock_packet(Pid(clock), pcr);
            if !core::mem::replace(&mut is_marked, true) {
                super::super::mark_discontinuous(packet);
            }
            count += 1;
        } else if read.pcr().is_some() {
            packet[5] &= !0x10;
        }
    }
    assert!(count > 0);
    bytes
}

#[test]
fn p03_a_clock_that_a_table_moves_is_the_same_clock() {
    // A PMT is sent each 50 packets: at the position itself or soon after it.
    for (from, marks) in [(2001, false), (2001, true), (1957, false), (2330, true)] {
        let bytes = moved_clock(77, 5000, (from, 0x1ff), marks);
        let (index, plain) = (index(&bytes).unwrap(), index(&title(77, 5000)).unwrap());
        assert_eq!(index.runs().len(), 1, "no jump: {:?}", index.runs());
        let places = |index: &Index| -> Vec<_> {
            index.accesses().iter().map(|access| (access.at, access.kind)).collect()
        };
        assert_eq!(places(&index), places(&plain));
        for (own, other) in index.accesses().iter().zip(plain.accesses()) {
            assert!(own.shown.0.abs_diff(other.shown.0) <= 300, "{own:?} {other:?}");
        }
        for seconds in 0..19 {
            let time = MediaTime(seconds * SECOND / 10);
            let [own, other] = [&index, &plain].map(|index| index.entry_at(time).unwrap().at);
            assert_eq!(own, other, "a seek to {time:?}");
        }
        assert!(index.duration().0.abs_diff(plain.duration().0) <= 30);
        assert_eq!((index.clock(), index.clock_at(0)), (Pid(0x1ff), Pid(VIDEO)));
        assert_eq!(index.clock_at(4000 * 188), Pid(0x1ff));
        let tables = index.tables_at(&index.accesses()[40]).unwrap();
        assert_eq!(tables.pmt, pmt_by(1, 0x1ff));
    }
}

#[test]
fn p03_a_clock_that_says_nothing_for_seconds_has_not_jumped() {
    // 2,500 packets a second.
    let mut bytes = title(77, 30_000);
    for (nth, packet) in (0u64..).zip(bytes.as_chunks_mut::<PACKET>().0) {
        let has_clock = Packet::read(packet).unwrap().pcr().is_some();
        if has_clock && (5_000..20_000).contains(&nth) {
            packet[5] &= !0x10;
        }
    }
    let (gap, plain) = (index(&bytes).unwrap(), index(&title(77, 30_000)).unwrap());
    assert_eq!(gap.runs().len(), 1, "{:?}", gap.runs());
    assert_eq!(gap.accesses().len(), plain.accesses().len());
    for (own, other) in gap.accesses().iter().zip(plain.accesses()) {
        assert!(own.shown.0.abs_diff(other.shown.0) <= 300, "{own:?} {other:?}");
    }
    assert!(gap.duration().0.abs_diff(plain.duration().0) <= 30);
    // A live recording detects the same faults.
    let mut resync = super::super::Resync::default();
    resync.handle(&bytes, |_, _| {});
    assert_eq!(resync.counts().clock_jumps, 0);
}

#[test]
fn p03_a_clock_that_jumps_is_still_one_that_jumps() {
    for jump in [2 * SECOND, 6 * SECOND, 1 << 40] {
        let behind = title(77 + jump + 1000 * 188 * 8 * SECOND / RATE, 2000);
        let joined = [title(77, 1000), behind].concat();
        let index = index(&joined).unwrap();
        assert_eq!(index.runs().len(), 2, "{jump}");
        assert!(!index.runs()[1].announced);
        let mut resync = super::super::Resync::default();
        resync.handle(&joined, |_, _| {});
        assert_eq!(resync.counts().clock_jumps, 1);
    }
}

#[test]
fn p05_scrambled_packets_are_counted() {
    let mut bytes = title(77, 1000);
    for packet in bytes.as_chunks_mut::<PACKET>().0.iter_mut().skip(700).step_by(2).take(50) {
        packet[3] |= 0x80;
    }
    let index = index(&bytes).unwrap();
    assert_eq!(index.flaws().scrambled, 50);
    assert_eq!(Index::decode(&index.encode()).unwrap().flaws().scrambled, 50);
}

/// The encoded index of these points and runs (bytes and ticks).
fn kept(len: u64, points: &[(u64, u64)], runs: &[(u64, u64)]) -> Option<Index> {
    let mut out = Vec::new();
    let mut number = |mut number: u64| {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    };
    [188, len, len / 188, 0x100].into_iter().for_each(&mut number);
    [0; 8].into_iter().for_each(&mut number);
    number(12);
    number(points.len() as u64);
    let mut last = (0, 0);
    for &(at, time) in points {
        number(at - last.0);
        number(time - last.1);
        last = (at, time);
    }
    number(runs.len() as u64);
    last = (0, 0);
    for &(at, time) in runs {
        number(at - last.0);
        number(time - last.1);
        number(0);
        last = (at, time);
    }
    // No access points, tables, programs, decoding times.
    [0; 5].into_iter().for_each(&mut number);
    Index::decode(&out)
}

#[test]
fn s01_a_clock_that_says_centuries_has_rates_all_the_same() {
    // A second in a packet, then a jump over a gibibyte at the same rate: 180 years.
    let (len, end) = (1 << 30, 1 << 57);
    let index = kept(len, &[(0, 0), (188, SECOND), (len, end)], &[(0, 0)]).unwrap();
    assert_eq!(index.duration(), MediaTime(end));
    let rates = index.rates().unwrap();
    assert_eq!(rates.max, BitRate(188 * 8));
    assert!(rates.min < rates.max && !index.is_constant());
}

#[test]
fn s01_constancy_of_many_runs_is_that_of_each() {
    let runs: Vec<_> = (0..4096).map(|nth| (nth * 1000, nth * SECOND)).collect();
    let len = 4096 * 1000;
    // The first and the last sample of each.
    let ends =
        runs.iter().flat_map(|&(at, time)| [(at, time), (at + 999, time + SECOND / 1000 * 999)]);
    let even: Vec<_> = ends.chain([(len, 4096 * SECOND)]).collect();
    let index = kept(len, &even, &runs).unwrap();
    assert!(index.is_constant());
    assert_eq!(index.rates().unwrap().max, BitRate(8000));
    // A sample between them that is on no line.
    let mut bent = even.clone();
    bent.insert(2001, (1_000_300, 1000 * SECOND + SECOND / 2));
    assert!(!kept(len, &bent, &runs).unwrap().is_constant());
}
