//! Planned streams, judged as a receiver does: by the sent bytes and their times.

use super::*;
use crate::polyline::Polyline;
use crate::ts::{Continuity, Packet, Pid, RunTimes, pes_times, set_continuity, set_pcr};
use alloc::vec;

const VIDEO: u16 = 0x100;
const SOUND: u16 = 0x101;
const BASE: u64 = Pcr::WRAP.0 - 40_000_000;

/// A packet with a counter and, if wanted, a PCR and a PTS.
fn packet(pid: u16, count: u8, pcr: Option<Pcr>, shown: Option<u64>) -> [u8; ts::PACKET] {
    let mut bytes = [0xaa; ts::PACKET];
    let [high, low] = pid.to_be_bytes();
    bytes[..4].copy_from_slice(&[ts::SYNC, high, low, 0x30 | count & 15]);
    bytes[4..12].copy_from_slice(&[7, 0x10, 0, 0, 0, 0, 0, 0]);
    match pcr {
        Some(pcr) => assert!(set_pcr(&mut bytes, pcr)),
        None => bytes[5] = 0,
    }
    if let Some(shown) = shown {
        bytes[1] |= 0x40;
        bytes[12..26].copy_from_slice(&[0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5, 0x21, 0, 1, 0, 1]);
        assert!(ts::add_to_pes_times(&mut bytes, MediaTime(shown)));
    }
    bytes
}

/// A title of a variable rate: every fifth packet has a PCR, by `line`.
fn title(line: &Polyline, base: u64) -> Vec<u8> {
    let packets = line.len().0 / TS;
    (0..packets)
        .flat_map(|nth| {
            let time = |at: u64| line.ticks(Bytes(at), line.hint(Bytes(at))).0 + base;
            let now = time(nth * TS + ts::PCR_BYTE);
            match nth % 5 {
                0 => packet(VIDEO, (nth / 5) as u8, Some(Pcr::at(MediaTime(now))), None),
                1 => packet(SOUND, (nth / 5 * 2) as u8, None, Some(now / 300 * 300)),
                2 => packet(SOUND, (nth / 5 * 2 + 1) as u8, None, None),
                _ => packet(0x200 + (nth % 5) as u16, (nth / 5) as u8, None, None),
            }
        })
        .collect()
}

/// The received stream.
struct ReceivedStream {
    bytes: Vec<u8>,
    /// The due time of each datagram.
    due: Vec<MonoTime>,
    composed: Composition,
    end: Trace,
}

/// Sends a stream of `title` with all `turns` of it.
fn play(mut cutter: Cutter, title: &[u8], turns: u64) -> ReceivedStream {
    let len = Bytes(title.len() as u64 * turns);
    let (mut bytes, mut due, mut sum) = (vec![], vec![], Composition::default());
    while let Some(message) = cutter.next(Some(len)) {
        let from = message.from.0 as usize % title.len();
        let own = title.iter().cycle().skip(from).take(message.taken.0 as usize);
        // With and without a header in front of each datagram.
        let room = if due.len() % 2 == 0 { rtp::HEADER } else { 0 };
        let mut staged = vec![0; message.bytes.0 as usize + message.datagrams as usize * room];
        if cutter.is_in_place() {
            let places = payloads(&mut staged, room).flatten();
            places.zip(own).for_each(|(place, &byte)| *place = byte);
        } else {
            let begin = staged.len() - message.taken.0 as usize;
            staged[begin..].iter_mut().zip(own).for_each(|(place, &byte)| *place = byte);
        }
        if cutter.changes(&message) {
            let Composition { nulls, late } = cutter.compose(&message, &mut staged, room);
            (sum.nulls, sum.late) = (sum.nulls + nulls, sum.late + late);
        }
        payloads(&mut staged, room).for_each(|payload| bytes.extend_from_slice(payload));
        due.extend((0..message.datagrams).map(|nth| cutter.due(nth)));
        cutter.advance(&message);
    }
    ReceivedStream { bytes, due, composed: sum, end: cutter.trace(len) }
}

/// A line of whole packets.
fn steps() -> impl Strategy<Value = Polyline> {
    proptest::collection::vec((20u64..200, 2_000_000u64..20_000_000), 1..6).prop_map(|steps| {
        let (mut at, mut time) = (0, 0);
        let mut points = vec![(Bytes(0), MediaTime(0))];
        for (packets, ticks) in steps {
            (at, time) = (at + packets * TS, time + ticks);
            points.push((Bytes(at), MediaTime(time)));
        }
        Polyline::through(&points).unwrap()
    })
}

fn restamping() -> Option<Restamping> {
    let clock = Some((Pid(VIDEO), Pcr::at(MediaTime(BASE))));
    Some(Restamping { clock, ..Restamping::default() })
}

fn planned(plan: Plan, rate: u64, turn: usize) -> Cutting {
    let clock = ByteClock::new(MonoTime(1_000), BitRate(rate));
    let (turn, plan) = (Some(Bytes(turn as u64)), Some(Arc::new(plan)));
    let framing = Framing::Rtp(SESSION);
    let gathering = Gathering::of(MILLISECOND, MILLISECOND);
    Cutting { framing, clock, gathering, segments_max: 4, turn, plan }
}

fn packets(bytes: &[u8]) -> impl Iterator<Item = Packet<'_>> + Clone {
    bytes.chunks(ts::PACKET).map(|bytes| Packet::first_of(bytes).expect("whole packets"))
}

/// Continuity counters are continuous.
fn assert_whole(bytes: &[u8]) {
    let mut watch = Continuity::default();
    for (nth, packet) in packets(bytes).enumerate() {
        assert_eq!(watch.handle_packet(&packet), None, "packet {nth}");
    }
}

/// The PCR samples: byte and value.
fn clocks(bytes: &[u8]) -> Vec<(u64, Pcr)> {
    let at = |nth: usize| nth as u64 * TS + ts::PCR_BYTE;
    packets(bytes).enumerate().filter_map(|(nth, packet)| Some((at(nth), packet.pcr()?))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_variable_title_leaves_by_its_clock_over_any_number_of_turns(
        line in steps(), turns in 1u64..5, tables in 0usize..4,
    ) {
        let title = title(&line, BASE);
        let front: Vec<u8> = (0..tables).flat_map(|nth| packet(0, nth as u8, None, None)).collect();
        let plan = Plan {
            front: front.clone().into(),
            line: Some(line.clone()),
            restamping: restamping(),
            ..Plan::default()
        };
        let rate = line.peak(Bytes(0), Bytes(65_536)).0;
        let cutter = Cutter::new(planned(plan, rate, title.len()));
        let begin = cutter.clock().start();
        let heard = play(cutter, &title, turns);
        prop_assert_eq!(heard.bytes.len(), front.len() + title.len() * turns as usize);
        prop_assert_eq!(heard.composed, Composition::default());
        assert_whole(&heard.bytes);
        // The clock is one clock: the line and the turns before.
        for (at, pcr) in clocks(&heard.bytes) {
            let from = Bytes(at - front.len() as u64);
            let law = Pcr::at(MediaTime(BASE)).after(line.ticks(from, 0));
            prop_assert_eq!(pcr, law);
        }
        // Each datagram is due with its first byte.
        for (nth, &due) in heard.due.iter().enumerate() {
            if let Some(from) = (nth as u64 * PAYLOAD.0).checked_sub(front.len() as u64) {
                prop_assert_eq!(due, begin + line.due(Bytes(from), 0));
            }
        }
        prop_assert!(heard.due.is_sorted());
        // Timestamps move with the clock, to one of their ticks.
        let own = packets(&title).map(|packet| pes_times(&packet));
        let all = packets(&heard.bytes[front.len()..]).map(|packet| pes_times(&packet));
        for (nth, (own, heard)) in own.cycle().zip(all).enumerate() {
            let turn = nth as u64 * TS / title.len() as u64;
            let (Some(own), Some(heard)) = (own, heard) else { continue };
            prop_assert_eq!(heard.shown, own.shown.after(MediaTime(line.duration().0 * turn)));
        }
    }

    #[test]
    fn a_stuffed_title_is_one_of_a_constant_rate(
        line in steps(),
        turns in 1u64..4,
        more in 1u64..40,
    ) {
        let title = title(&line, BASE);
        let peak = line.peak(Bytes(0), Bytes(TS)).0;
        let rate = peak + peak * more / 20;
        let plan = Plan { line: Some(line.clone()), restamping: restamping(), ..Plan::default() };
        let cutter = Cutter::new(planned(plan.stuffed(BitRate(rate)), peak, title.len()));
        let begin = cutter.clock().start();
        let heard = play(cutter, &title, turns);
        prop_assert_eq!(heard.composed.late, 0);
        prop_assert!(heard.bytes.len().is_multiple_of(PAYLOAD.0 as usize));
        assert_whole(&heard.bytes);
        for (nth, &due) in heard.due.iter().enumerate() {
            prop_assert_eq!(due, begin + BitRate(rate).time_for(Bytes(nth as u64 * PAYLOAD.0)));
        }
        // The clock is that of its place, to a tick.
        for (at, pcr) in clocks(&heard.bytes) {
            let law = u128::from(at) * 216_000_000 / u128::from(rate);
            prop_assert_eq!(pcr, Pcr::at(MediaTime(BASE)).after(MediaTime(law as u64)));
        }
        // Every packet of the title, in order, none early and none much later.
        let mut from = 0u64;
        for (nth, bytes) in heard.bytes.chunks(ts::PACKET).enumerate() {
            if Packet::first_of(bytes).unwrap().pid() == Pid::NULL {
                continue;
            }
            let own = &title[from as usize % title.len()..][..ts::PACKET];
            prop_assert_eq!(&own[30..], &bytes[30..]);
            let due = begin + line.due(Bytes(from), 0);
            let left = heard.due[nth / 7];
            prop_assert!(left >= due && left.since(due) <= BitRate(rate).time_for(PAYLOAD));
            from += TS;
        }
        prop_assert_eq!(from, title.len() as u64 * turns);
        let nulls = heard.bytes.len() as u64 / TS - from / TS;
        prop_assert_eq!(nulls, u64::from(heard.composed.nulls));
    }

    #[test]
    fn titles_follow_each_other_as_if_they_were_one(
        lines in proptest::collection::vec((steps(), 0u64..Pcr::WRAP.0), 2..5), tables in 0usize..4,
    ) {
        let front: Vec<u8> = (0..tables).flat_map(|nth| packet(0, nth as u8, None, None)).collect();
        let mut before: Option<ReceivedStream> = None;
        let mut all = vec![];
        for (line, base) in lines {
            let title = title(&line, base);
            let rate = line.peak(Bytes(0), Bytes(65_536)).0;
            let clock = Some((Pid(VIDEO), Pcr::at(MediaTime(base))));
            let restamping = Some(Restamping { clock, ..Restamping::default() });
            let plan = Plan {
                front: front.clone().into(),
                line: Some(line),
                restamping,
                ..Plan::default()
            };
            let cutting = planned(plan, rate, title.len());
            let mut cutter = Cutter::new(cutting.clone());
            if let Some(before) = &before {
                let clock = ByteClock::new(before.end.due, BitRate(rate));
                cutter = Cutter::new(Cutting { clock, ..cutting }).following(&before.end);
                prop_assert!(cutter.due(0) == before.end.due);
            }
            let heard = play(cutter, &title, 1);
            // A PCR and its due time stay together over the seam of titles.
            for (at, pcr) in clocks(&heard.bytes) {
                let datagram = at / PAYLOAD.0;
                all.push((heard.due[datagram as usize], pcr));
            }
            let bytes = before.map(|before| before.bytes).unwrap_or_default();
            before = Some(ReceivedStream { bytes: [bytes, heard.bytes.clone()].concat(), ..heard });
        }
        assert_whole(&before.unwrap().bytes);
        for pair in all.windows(2) {
            let (passed, shown) = (pair[1].0.since(pair[0].0).0, pair[1].1.since(pair[0].1).0);
            // A datagram is due with its first byte, at the slowest 200 packets in 20,000,000
            // ticks.
            let within = 20_000_000 / 20 * 7;
            prop_assert!((passed * 27 / 1000).abs_diff(shown) <= within, "{passed} {shown}");
        }
    }
}

#[test]
fn over_a_jump_inside_a_title_its_clock_runs_on() {
    let line =
        Polyline::through(&[(Bytes(0), MediaTime(0)), (Bytes(100 * TS), MediaTime(27_000_000))]);
    let line = line.unwrap();
    let mut bytes = title(&line, BASE);
    // From packet 50 on an hour later.
    let hour = 3600 * 27_000_000;
    let later = title(&line, (BASE + hour) % Pcr::WRAP.0);
    bytes[50 * ts::PACKET..].copy_from_slice(&later[50 * ts::PACKET..]);
    let moved = MediaTime(Pcr::WRAP.0 - hour);
    let runs = [RunTimes { at: 50 * TS, moved }].into();
    let clock = Some((Pid(VIDEO), Pcr::at(MediaTime(BASE))));
    let restamping = Some(Restamping { clock, runs, ..Restamping::default() });
    let plan = Plan { line: Some(line.clone()), restamping, ..Plan::default() };
    let heard = play(Cutter::new(planned(plan, 200_000, bytes.len())), &bytes, 1);
    let whole = title(&line, BASE);
    assert_eq!(heard.bytes, whole);
}

#[test]
fn a_rate_too_low_to_be_stuffed_to_is_told() {
    let line =
        Polyline::through(&[(Bytes(0), MediaTime(0)), (Bytes(1000 * TS), MediaTime(27_000_000))]);
    let line = line.unwrap();
    let title = title(&line, BASE);
    let plan = Plan { line: Some(line), restamping: restamping(), ..Plan::default() };
    let plan = plan.stuffed(BitRate(1_000_000));
    let heard = play(Cutter::new(planned(plan, 1_504_000, title.len())), &title, 1);
    assert!(heard.composed.late > 900, "{:?}", heard.composed);
}

#[test]
fn a_counter_alone_is_kept_where_no_clock_is_known() {
    let line =
        Polyline::through(&[(Bytes(0), MediaTime(0)), (Bytes(101 * TS), MediaTime(27_000_000))]);
    let title = title(&line.unwrap(), BASE);
    let restamping =
        Some(Restamping { turn: Some(MediaTime(27_000_300)), ..Restamping::default() });
    let plan = Plan { restamping, ..Plan::default() };
    let heard = play(Cutter::new(planned(plan, 1_000_000, title.len())), &title, 3);
    assert_whole(&heard.bytes);
    for (nth, (turned, own)) in packets(&heard.bytes).zip(packets(&title).cycle()).enumerate() {
        let (Some(turned), Some(own)) = (turned.pcr(), own.pcr()) else { continue };
        assert_eq!(turned.since(own).0, nth as u64 / 101 * 27_000_300);
    }
    let mut first = heard.bytes[..ts::PACKET].try_into().unwrap();
    set_continuity(&mut first, 0);
    assert_eq!(first, title[..ts::PACKET]);
}

#[test]
fn a_title_whose_times_cannot_be_moved_begins_its_clock_anew_and_says_so() {
    let line =
        Polyline::through(&[(Bytes(0), MediaTime(0)), (Bytes(101 * TS), MediaTime(27_000_000))]);
    let line = line.unwrap();
    let title = title(&line, BASE);
    let restamping = Some(Restamping { turn: Some(MediaTime(0)), ..Restamping::default() });
    let plan = Plan { restamping, line: Some(line), ..Plan::default() };
    let heard = play(Cutter::new(planned(plan, 1_000_000, title.len())), &title, 3);
    assert_whole(&heard.bytes);
    for (nth, (turned, own)) in packets(&heard.bytes).zip(packets(&title).cycle()).enumerate() {
        assert_eq!(turned.pcr(), own.pcr());
        assert_eq!(turned.is_discontinuous(), nth == 101 || nth == 202, "{nth}");
    }
}

/// The first datagrams that have the RTP marker.
fn markers(mut cutter: Cutter, title: &[u8]) -> Vec<u64> {
    let (mut nth, mut marked) = (0, vec![]);
    while let Some(message) = cutter.next(Some(Bytes(title.len() as u64))) {
        let mut staged = title[message.from.0 as usize..][..message.bytes.0 as usize].to_vec();
        if cutter.changes(&message) {
            cutter.compose(&message, &mut staged, 0);
        }
        for own in 0..message.datagrams {
            let header = cutter.header(own).unwrap();
            marked.extend(rtp::Packet::read(&header).unwrap().marker.then_some(nth));
            nth += 1;
        }
        cutter.advance(&message);
    }
    marked
}

#[test]
fn the_first_datagram_and_no_other_has_the_marker_where_the_clock_in_it_is_marked() {
    let line =
        Polyline::through(&[(Bytes(0), MediaTime(0)), (Bytes(101 * TS), MediaTime(27_000_000))]);
    let line = line.unwrap();
    let title = title(&line, BASE);
    let new = |plan: Plan| Cutter::new(planned(plan, 1_000_000, title.len()));
    let known = Plan { restamping: restamping(), line: Some(line), ..Plan::default() };
    let unknown = Plan { restamping: Some(Restamping::default()), ..Plan::default() };
    let plain = Plan { counting: Some(Counting::default()), ..Plan::default() };
    for plan in [&known, &unknown, &plain] {
        assert_eq!(markers(new(plan.clone()), &title), [], "nobody is before it");
    }
    let counting = Some(Counting { jumps: true, ..Counting::default() });
    assert_eq!(markers(new(Plan { counting, ..known.clone() }), &title), [0], "a seek");

    let len = Bytes(title.len() as u64);
    let after = |before: &Plan, plan: &Plan, pause: Nanos| {
        let trace = play(new(before.clone()), &title, 1).end;
        let mut next = new(plan.clone());
        next.clock = ByteClock::new(trace.due + pause, BitRate(1_000_000));
        let next = next.following(&trace);
        let is_clock_marked = plan.restamping.is_some() && next.breaks;
        let mut bytes = title.clone();
        let mut first = next.clone();
        let message = first.next(Some(len)).unwrap();
        bytes.truncate(message.bytes.0 as usize);
        first.compose(&message, &mut bytes, 0);
        let marks = packets(&bytes).filter(|packet| packet.is_discontinuous()).count();
        assert_eq!(marks, usize::from(is_clock_marked));
        markers(next, &title)
    };
    let short = MILLISECOND.times(20);
    assert_eq!(after(&known, &known, Nanos(0)), [], "one clock");
    assert_eq!(after(&known, &known, short), []);
    assert_eq!(after(&known, &known, short + Nanos(1)), [0], "a pause");
    assert_eq!(after(&unknown, &known, Nanos(0)), [0]);
    assert_eq!(after(&known, &unknown, Nanos(0)), [0]);
    assert_eq!(after(&known, &plain, Nanos(0)), [], "what leaves as it is has no mark inside");

    // A turn that restarts its clock within a datagram does not mark it.
    let anew = Restamping { turn: Some(MediaTime(0)), ..Restamping::default() };
    let mut turns = new(Plan { restamping: Some(anew), ..Plan::default() });
    turns.turn = Some(Bytes(5 * TS));
    assert_eq!(markers(turns, &title), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_an_index_knows_makes_a_plan_by_which_a_title_and_any_part_of_it_leaves_on_time(
        line in steps(), from in 0u64..40, hour in any::<bool>(), turns in 1u64..3,
    ) {
        let mut bytes = title(&line, BASE);
        if hour {
            // In its second half the clock is an hour ahead.
            let later = title(&line, (BASE + 3600 * 27_000_000) % Pcr::WRAP.0);
            let half = bytes.len() / ts::PACKET / 2 * ts::PACKET;
            bytes[half..].copy_from_slice(&later[half..]);
        }
        let mut indexer = ts::Indexer::default();
        indexer.add(&bytes);
        let index = indexer.finish().unwrap();
        prop_assume!(index.runs().len() == 1 + usize::from(hour));
        let (first, end) = (from.min(line.len().0 / TS / 4) * TS, bytes.len() as u64);
        let Some((plan, rate)) = Plan::of(&index, first..end, Bytes(65_536)) else {
            return Err(TestCaseError::fail("it lasts"));
        };
        let part = &bytes[first as usize..];
        // A constant rate counts in whole bits per second.
        let slide = if plan.line.is_some() { 0 } else { line.duration().0 / rate.0 + 2 };
        let restamping = plan.restamping.as_ref().unwrap();
        prop_assert!(restamping.runs.len() <= usize::from(hour));
        let cutter = Cutter::new(planned(plan, rate.0, part.len()));
        let begin = cutter.clock().start();
        let heard = play(cutter, part, turns);
        assert_whole(&heard.bytes);
        // One clock, on time: a PCR leaves with its datagram, which is due with its first byte.
        let clocks = clocks(&heard.bytes);
        for pair in clocks.windows(2) {
            prop_assert!(pair[1].1.since(pair[0].1) < MediaTime(27_000_000), "{pair:?}");
        }
        let (_, zero) = clocks[0];
        for &(at, pcr) in &clocks {
            let due = heard.due[(at / PAYLOAD.0) as usize].since(begin).0 * 27 / 1000;
            // The first PCR is in the first packets.
            let shown = pcr.since(zero).0;
            prop_assert!(shown.abs_diff(due) < 2 * 20_000_000 / 20 * 7, "{shown} {due}");
        }
        // In the first turn, up to the jump, PCRs are the title's own, to the index's tolerance
        // there and at the first byte.
        let own = packets(part).enumerate();
        let own = own.take_while(|&(nth, _)| !hour || nth < part.len() / TS as usize / 3);
        for ((nth, own), now) in own.zip(packets(&heard.bytes)) {
            let (Some(own), Some(now)) = (own.pcr(), now.pcr()) else { continue };
            let off = own.since(now).0.min(now.since(own).0);
            prop_assert!(off <= 2 * 13 + 2 + slide, "packet {nth}: {off}");
        }
    }
}

#[test]
fn a_constant_rate_needs_no_line() {
    // 3.76 Mbit/s for three seconds.
    let points = [(Bytes(0), MediaTime(0)), (Bytes(7500 * TS), MediaTime(81_000_000))];
    let bytes = title(&Polyline::through(&points).unwrap(), BASE);
    let mut indexer = ts::Indexer::default();
    indexer.add(&bytes);
    let index = indexer.finish().unwrap();
    let (plan, rate) = Plan::of(&index, 0..bytes.len() as u64, Bytes(65_536)).unwrap();
    assert_eq!((plan.line, rate), (None, BitRate(3_760_000)));
    let restamping = plan.restamping.unwrap();
    let (pid, pcr) = restamping.clock.unwrap();
    assert_eq!((pid, &restamping.runs[..]), (Pid(VIDEO), &[][..]));
    let base = Pcr::at(MediaTime(BASE));
    assert!(pcr.since(base).0.min(base.since(pcr).0) <= 1);
}

#[test]
fn who_joins_behind_some_bytes_gets_the_datagrams_that_would_have_come_then() {
    // At one rate, by an uneven line, and with null packets.
    let points = [(0, 0), (40 * TS, 9_000_000), (700 * TS, 54_000_000), (1000 * TS, 270_000_000)];
    let points = points.map(|(at, time)| (Bytes(at), MediaTime(time)));
    let len = Some(Bytes(1000 * TS));
    for (has_line, stuff) in [(false, None), (true, None), (true, Some(BitRate(8_000_000)))] {
        let line = has_line.then(|| Polyline::through(&points).unwrap());
        let plan = Plan { line, stuff, restamping: restamping(), ..Plan::default() };
        let cutting = Cutting {
            turn: None,
            segments_max: 1,
            gathering: Gathering::NONE,
            ..planned(plan, 4_000_000, 1)
        };
        let mut whole = Cutter::new(cutting.clone());
        while let Some(message) = whole.next(len) {
            let mut joined = Cutter::new(cutting.clone()).behind(whole.taken());
            let mut next = joined.next(len).expect("there is one more");
            if stuff.is_none() {
                assert_eq!(next, message);
            } else if message.taken > Bytes(0) {
                while next.taken == Bytes(0) {
                    joined.advance(&next);
                    next = joined.next(len).expect("the title goes on");
                }
                let apart = message.due.since(next.due).max(next.due.since(message.due));
                assert!(next.from == message.from && apart <= joined.gap(), "{next:?} {message:?}");
            }
            whole.advance(&message);
        }
        assert_eq!(Cutter::new(cutting).behind(Bytes(1000 * TS)).next(len), None);
    }
}
