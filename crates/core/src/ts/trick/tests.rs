//! Multiplexes out of whole titles, checked like a receiver.

use alloc::vec;
use alloc::vec::Vec;

use super::super::packet::tests::packet;
use super::super::sections::{crc, section_packets};
use super::super::{
    Continuity, Index, Indexer, PACKET, PCR_BYTE, Packet, Pcr, Pid, add_to_pes_times, pes_times,
};
use super::*;
use crate::units::{BitRate, MediaTime};
use proptest::prelude::*;

const SECOND: u64 = 27_000_000;
const VIDEO: Pid = Pid(0x100);
const SOUND: Pid = Pid(0x101);
const TABLE: Pid = Pid(0x1000);

/// The parameters of a title: every fourth packet is audio.
#[derive(Clone, Copy, Debug)]
struct TitleShape {
    rate: u64,
    /// Packets from one I-frame to the next, and how many belong to it.
    group: u64,
    key: u64,
    groups: u64,
    stride: usize,
    /// Bytes of the SDT section in each group; `None` without one.
    services: usize,
}

fn ticks(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 8 * u128::from(SECOND) / u128::from(rate)) as u64
}

/// The mark that identifies an I-frame.
fn mark(nth: u64) -> [u8; 4] {
    [0xaa, (nth >> 8) as u8 | 0x40, nth as u8 | 0x40, 0xaa]
}

impl TitleShape {
    fn title(self) -> Vec<u8> {
        let (mut bytes, mut counts) = (Vec::new(), [0u8; 4]);
        let (sdt, mut services) = (sdt(self.services), Vec::new());
        let parts = if self.services == 0 { 0 } else { (sdt.len() + 1).div_ceil(184) as u64 };
        for nth in 0..self.group * self.groups {
            let mut count = |which: usize| {
                counts[which] = counts[which].wrapping_add(1);
                counts[which]
            };
            let clock = |at: u64| Pcr::at(MediaTime(ticks(at, self.rate)));
            let at = nth * PACKET as u64;
            let place = nth % self.group;
            let part = (place / 4).wrapping_sub(1);
            if place == 4 && parts > 0 {
                let last = ((nth / self.group + 1) * parts) as u8 & 0x0f;
                services.clear();
                section_packets(&sdt, Pid::SDT, last, PACKET, &mut services);
            }
            let one = match place {
                0 => section_packet(Pid(0), count(0), &pat()),
                1 => section_packet(TABLE, count(1), &pmt()),
                _ if place.is_multiple_of(4) && part < parts => {
                    services.as_chunks::<PACKET>().0[part as usize]
                }
                _ if place.is_multiple_of(4) => packet(SOUND.0, count(2), None),
                _ => {
                    let pcr = (place % 8 == 2).then(|| clock(at + PCR_BYTE));
                    let mut packet = packet(VIDEO.0, count(3), pcr);
                    let is_key = place == 2;
                    if is_key || place > 2 && (place - 2).is_multiple_of(self.key) {
                        let kind = if is_key { 1 } else { 2 };
                        // A frame has arrived before it is decoded; every other one is missing
                        // where the audio has its place.
                        let frame = ticks(2 * self.key * PACKET as u64, self.rate);
                        let shown = clock(at).after(MediaTime(frame.max(SECOND / 2)));
                        begin(&mut packet, shown, kind, nth / self.group);
                    }
                    packet
                }
            };
            bytes.extend(vec![7; if self.stride == 192 { 4 } else { 0 }]);
            bytes.extend(one);
            bytes.extend(vec![7; if self.stride == 204 { 16 } else { 0 }]);
        }
        bytes
    }
}

fn begin(packet: &mut [u8; PACKET], shown: Pcr, kind: u8, nth: u64) {
    packet[1] |= 0x40;
    let at = if packet[3] & 0x20 == 0 { 4 } else { 12 };
    // Different presentation and decoding times.
    packet[at..at + 19].copy_from_slice(&[
        0, 0, 1, 0xe0, 0, 0, 0x80, 0xc0, 10, 0x31, 0, 1, 0, 1, 0x11, 0, 1, 0, 1,
    ]);
    let video_frame = [0, 0, 1, 0xb3, 1, 2, 0, 0, 1, 0, 0x12, kind << 3, 0xff, 0xf8];
    packet[at + 19..at + 33].copy_from_slice(&video_frame);
    packet[at + 33..at + 37].copy_from_slice(&mark(nth));
    assert!(add_to_pes_times(packet, shown.ticks()));
}

fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut section = bytes.to_vec();
    let [high, low] = (section.len() as u16 - 3 + 4).to_be_bytes();
    (section[1], section[2]) = (section[1] | high, low);
    let sum = crc(&section);
    section.extend(sum.to_be_bytes());
    section
}

fn pat() -> Vec<u8> {
    // Two programs, of which the second is missing.
    sealed(&[0, 0xb0, 0, 0, 9, 0xc1, 0, 0, 0, 1, 0xf0, 0, 0, 2, 0xf1, 0])
}

fn pmt() -> Vec<u8> {
    let head = [2, 0xb0, 0, 0, 1, 0xff, 0, 0, 0xe1, 0, 0xf0, 2, 0x88, 0];
    let audio = [3, 0xe1, 1, 0xf0, 0];
    let video_program = [2, 0xe1, 0, 0xf0, 3, 0x52, 1, 5];
    sealed(&[&head[..], &audio, &video_program].concat())
}

fn sdt(len: usize) -> Vec<u8> {
    let mut section = vec![0x42, 0xf0, 0, 0, 9, 0xc1, 0, 0, 0, 1, 0xff];
    section.resize(len.max(section.len()), 0x20);
    sealed(&section)
}

fn section_packet(pid: Pid, count: u8, section: &[u8]) -> [u8; PACKET] {
    let mut packet = packet(pid.0, count, None);
    packet[1] |= 0x40;
    packet[4] = 0;
    packet[5..5 + section.len()].copy_from_slice(section);
    packet
}

fn index(bytes: &[u8]) -> Index {
    let mut indexer = Indexer::default();
    indexer.add(bytes);
    indexer.finish().expect("it is a title")
}

/// Checks a multiplex as a receiver does; returns the mark and time of its frames, from the clock's
/// beginning.
fn watch(placed: &[DuePacket], make: TitleShape, begin: Pcr) -> Vec<([u8; 4], u64)> {
    let (rate, sdt) = (BitRate(make.rate), sdt(make.services));
    let (mut services, mut services_last): (Vec<u8>, Option<u64>) = (vec![], None);
    let mut counters = Continuity::default();
    let (mut clock_last, mut tables_last): (Option<u64>, [Option<u64>; 2]) = (None, [None; 2]);
    let mut video_frames = vec![];
    let mut due_last = None;
    let mut arrived: Option<(u64, u64)> = None;
    let place = ticks(PACKET as u64, rate.0);
    for DuePacket { due, bytes } in placed {
        let packet = Packet::read(bytes).expect("a packet");
        assert!(packet.is_whole());
        // No two packets at one position: the rate is never exceeded.
        assert!(due_last.is_none_or(|last| due.0 >= last + place), "{due:?} after {due_last:?}");
        due_last = Some(due.0);
        assert_eq!(counters.handle_packet(&packet), None);
        if let Some(pcr) = packet.pcr() {
            let time = pcr.since(begin).0;
            assert!(time.abs_diff(due.0 + ticks(PCR_BYTE, rate.0)) <= 1);
            assert_eq!(packet.is_discontinuous(), clock_last.is_none(), "announced at once");
            assert!(clock_last.is_none_or(|last| time - last <= SECOND / 10));
            clock_last = Some(time);
        }
        match packet.pid() {
            Pid(0) | TABLE => {
                let which = usize::from(packet.pid() == TABLE);
                let section = &packet.payload()[1..];
                let len = usize::from(u16::from_be_bytes([section[1] & 0x0f, section[2]])) + 3;
                assert_eq!(crc(&section[..len]), 0);
                assert!(tables_last[which].is_none_or(|last| due.0 - last <= SECOND / 2));
                tables_last[which] = Some(due.0);
            }
            VIDEO if packet.has_payload() => {
                assert!(clock_last.is_some() && tables_last.iter().all(Option::is_some));
                if let Some(times) = pes_times(&packet) {
                    assert!(arrived.is_none_or(|(last, shown)| last + place <= shown));
                    let shown = times.decoded.as_pcr().since(begin).0;
                    let mut quads = packet.payload().windows(4);
                    let mark = quads.find(|quad| quad[0] == 0xaa && quad[3] == 0xaa);
                    video_frames.push((mark.unwrap().try_into().unwrap(), shown));
                    arrived = Some((due.0, shown));
                } else if let Some((last, _)) = &mut arrived {
                    *last = due.0;
                }
            }
            VIDEO => {}
            Pid::SDT => {
                if packet.starts_unit() {
                    // Not at once, as one may just have been sent, nor too seldom.
                    let earliest = services_last.map_or(0, |last| last + SECOND / 40);
                    assert!((earliest..=earliest.max(SECOND / 10) + SECOND * 2).contains(&due.0));
                    assert!(due.0 >= SECOND / 10 && (services.is_empty() || services == sdt));
                    (services_last, services) = (Some(due.0), vec![]);
                }
                let payload = &packet.payload()[usize::from(packet.starts_unit())..];
                let missing = sdt.len() - services.len();
                services.extend(&payload[..missing.min(payload.len())]);
            }
            other => panic!("{other:?} is neither a picture nor a table"),
        }
    }
    assert!(arrived.is_none_or(|(last, shown)| last + place <= shown));
    let heard = services_last.unwrap_or(0) + 2 * SECOND;
    assert!(make.services == 0 || due_last.is_none_or(|last| last <= heard), "services");
    video_frames
}

fn make() -> impl Strategy<Value = TitleShape> {
    let stride = prop::sample::select(vec![188usize, 192, 204]);
    let services = prop_oneof![Just(0usize), 11usize..200, 11usize..1020];
    (300_000u64..20_000_000, 40u64..200, 5u64..60, 3u64..16, stride, services).prop_map(
        |(rate, group, key, groups, stride, services)| {
            let key = key.min(group / 2);
            TitleShape { rate, group, key, groups, stride, services }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_built_is_what_was_chosen_at_its_time_and_nobody_can_complain(
        make in make(), thousandths in prop::sample::select(
            vec![-16_000i64, -8000, -4000, -2000, -1000, 2000, 4000, 8000, 16_000]),
        from in 0u64..1000, per_second in 2u32..12, clock in 0u64..Pcr::WRAP.0,
    ) {
        let bytes = make.title();
        let index = index(&bytes);
        let rate = BitRate(make.rate);
        let scale = Scale::nearest(thousandths).unwrap();
        let from = MediaTime(index.duration().0 / 1000 * from);
        let options = TrickOptions { scale, from, per_second, rate };
        let chosen = choose(index.accesses(), index.stride(), options);
        prop_assert!(!chosen.is_empty());
        let first = index.accesses().iter().find(|access| access.at == chosen[0].at).unwrap();
        let video_program = video_program_of(&index, first).unwrap();
        prop_assert_eq!((video_program.pid, video_program.pmt_pid), (VIDEO, TABLE));
        let clock = Pcr::at(MediaTime(clock));
        let mut multiplex = Multiplex::new(video_program, rate, clock, Counts::default());
        let packets = |choice: &Choice| (choice.end - choice.at).div_ceil(make.stride as u64);
        let begin = multiplex.preparation(packets(&chosen[0]));
        let mut placed = vec![];
        for choice in &chosen {
            let part = &bytes[choice.at as usize..choice.end as usize];
            let due = MediaTime(begin.0 + choice.due.0);
            prop_assert!(multiplex.video_frame(part, make.stride, due, |one| placed.push(one)));
            prop_assert!(multiplex.now() <= due);
        }
        let video_frames = watch(&placed, make, clock);
        prop_assert_eq!(video_frames.len(), chosen.len());
        for (choice, (found, shown)) in chosen.iter().zip(&video_frames) {
            let nth = choice.at / make.stride as u64 / make.group;
            prop_assert_eq!(*found, mark(nth));
            let due = begin.0 + choice.due.0 + mux::LEAD.0;
            prop_assert!(shown.abs_diff(due) <= 300, "{} instead of {}", shown, due);
        }
        // The exact scale; repetitions come before the next frame.
        let mut own = chosen.clone();
        own.dedup_by_key(|choice| choice.at);
        for choice in &own {
            let distance = choice.shown.0.abs_diff(chosen[0].shown.0);
            prop_assert_eq!(choice.due, scale.shown(MediaTime(distance)));
        }
        for pair in own.windows(2) {
            prop_assert!(pair[1].due.0 - pair[0].due.0 >= SECOND / u64::from(per_second));
            prop_assert_eq!(pair[1].at < pair[0].at, scale.is_reverse());
        }
        // TR 101 290 (2.5) requires 700 ms.
        for pair in chosen.windows(2) {
            let gap = pair[1].due.0 - pair[0].due.0;
            let packets = packets(&pair[0]).max(packets(&pair[1]));
            let room = mux::place_ticks(2 * (packets + 60), rate).0;
            prop_assert!(gap > 0 && (gap <= SECOND * 6 / 10 || gap <= 2 * room), "{}", gap);
        }
        // If there is room and time for more frames, there are more.
        let none_left_out = own.len() == index.accesses().iter().filter(|access| {
            (access.at <= first.at) == scale.is_reverse() || access.at == first.at
        }).count();
        let gap = own.windows(2).map(|pair| pair[1].due.0 - pair[0].due.0).max();
        let group = scale.shown(MediaTime(ticks(make.group * 188, make.rate))).0;
        let needed = mux::place_ticks(make.key + 60, rate).0 + SECOND / u64::from(per_second);
        prop_assert!(none_left_out || gap.is_none_or(|gap| gap <= 3 * needed + 2 * group));
    }

    #[test]
    fn all_video_frames_come_twice_as_slow_and_in_time(make in make(), skip in 0u64..3) {
        let bytes = make.title();
        let index = index(&bytes);
        let first = index.accesses()[skip as usize];
        let rate = BitRate(make.rate);
        let video_program = video_program_of(&index, &first).unwrap();
        let begin = Pcr::at(MediaTime(5));
        let mut multiplex = Multiplex::new(video_program, rate, begin, Counts::default());
        let mut placed = vec![];
        let (mut own, mut marks) = (0, vec![]);
        for (nth, chunk) in (0u64..).zip(bytes[first.at as usize..].chunks(make.stride)) {
            let packet = Packet::first_of(chunk).unwrap();
            let at = first.at + nth * make.stride as u64;
            let passed = MediaTime(index.time_at(at).0 - index.time_at(first.at).0);
            own += usize::from(packet.pid() == VIDEO);
            if let Some(times) = pes_times(&packet).filter(|_| packet.pid() == VIDEO) {
                marks.push(times.decoded.as_pcr().since(index.pcr_at(at)).0 + passed.0);
            }
            multiplex.stretch(&packet, Scale::SLOW, passed, index.pcr_at(at), |one| {
                placed.push(one);
            });
        }
        let video_frames = watch(&placed, make, begin);
        prop_assert_eq!(video_frames.len(), marks.len());
        for ((_, shown), before) in video_frames.iter().zip(marks) {
            let due = 2 * before + mux::LEAD.0;
            prop_assert!(shown.abs_diff(due) <= 900, "{} instead of {}", shown, due);
        }
        let video_program = placed.iter().filter(|one| {
            let packet = Packet::read(&one.bytes).unwrap();
            packet.pid() == VIDEO && packet.has_payload()
        });
        prop_assert_eq!(video_program.count(), own);
    }

    #[test]
    fn any_bytes_are_no_video_frame_or_one(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000), due in 0u64..SECOND,
    ) {
        let title =
            TitleShape { rate: 1_000_000, group: 40, key: 5, groups: 3, stride: 188, services: 0 }
                .title();
        let index = index(&title);
        let video_program = video_program_of(&index, &index.accesses()[0]).unwrap();
        let (clock, counts) = (Pcr::at(MediaTime(0)), Counts::default());
        let mut multiplex = Multiplex::new(video_program, RATE_MIN, clock, counts);
        for chunk in bytes.chunks_mut(PACKET) {
            chunk[0] = 0x47;
            if chunk.len() > 3 {
                chunk[1] = chunk[1] & 0xe0 | 1;
                chunk[2] = 0;
            }
        }
        let mut count = 0;
        let is_one = multiplex.video_frame(&bytes, PACKET, MediaTime(due), |_| count += 1);
        prop_assert!(is_one || count == 0);
    }
}

#[test]
fn the_tables_say_what_is_left_and_keep_descriptors() {
    let make =
        TitleShape { rate: 1_000_000, group: 40, key: 5, groups: 3, stride: 188, services: 100 };
    let index = index(&make.title());
    let video_program = video_program_of(&index, &index.accesses()[0]).unwrap();
    assert_eq!(
        video_program.pat[..video_program.pat.len() - 4],
        [0, 0xb0, 13, 0, 9, 0xc3, 0, 0, 0, 1, 0xf0, 0]
    );
    let head = [2, 0xb0, 23, 0, 1, 0xc1, 0, 0, 0xe1, 0, 0xf0, 2, 0x88, 0];
    let stream = [2, 0xe1, 0, 0xf0, 3, 0x52, 1, 5];
    assert_eq!(video_program.pmt[..video_program.pmt.len() - 4], [&head[..], &stream].concat());
    assert_eq!((crc(&video_program.pat), crc(&video_program.pmt)), (0, 0));
    assert_eq!(video_program.sdt, sdt(100), "as it came");
}
