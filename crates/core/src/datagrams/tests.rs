//! Cutting of plain and of planned streams.

use super::*;
use crate::units::{MILLISECOND, SECOND};
use alloc::vec::Vec;
use proptest::prelude::*;

const SESSION: Session = Session { source: 7, sequence: 65_530, timestamp: u32::MAX - 1000 };

fn cutting(clock: ByteClock, burst: Nanos) -> Cutting {
    let framing = Framing::Rtp(SESSION);
    let gathering = Gathering::of(burst, Nanos(1));
    Cutting { framing, clock, gathering, segments_max: SEGMENTS_MAX, turn: None, plan: None }
}

fn cutter(rate: u64, burst: Nanos) -> Cutter {
    let clock = ByteClock::new(MonoTime(1_000_000_007), BitRate(rate));
    Cutter::new(cutting(clock, burst))
}

proptest! {
    #[test]
    fn nobody_waits_for_longer_than_the_burst_or_a_turn(
        burst in 0u64..40_000_000, tick in 50_000u64..2_000_000, due in 0u64..1 << 60,
        rate in 1_000u64..10_000_000_000,
    ) {
        let gathering = Gathering::of(Nanos(burst), Nanos(tick));
        let leaves = gathering.leaves(MonoTime(due)).since(MonoTime(due));
        prop_assert!(gathering.leaves(MonoTime(due)) >= MonoTime(due) && leaves < gathering.grid());
        prop_assert!(gathering.grid().0.is_multiple_of(tick), "it leaves in a turn");
        let most = if gathering.grid().0 > tick { burst } else { burst.max(tick) + tick };
        prop_assert!(gathering.within().0 + gathering.grid().0 <= most);
        // The first of a message waits for the others, and for the moment at which they leave.
        let count = gathering.datagrams(BitRate(rate), PAYLOAD);
        let waits = BitRate(rate).time_for(PAYLOAD).times(count - 1) + gathering.grid();
        prop_assert!(count == 1 || waits <= Nanos(most) + Nanos(count), "{waits:?}");
    }

    #[test]
    fn every_byte_leaves_once_in_order_and_no_datagram_before_it_is_due(
        rate in 1_000u64..100_000_000_000, len in 1u64..400_000, burst in 0u64..8_000_000,
        pauses in prop::collection::vec((0u64..300, 0u64..1_000_000_000), 0..4),
    ) {
        let mut cutter = cutter(rate, Nanos(burst));
        let (mut at, mut before) = (0, MonoTime(0));
        let mut number = 0u64;
        while let Some(message) = cutter.next(Some(Bytes(len))) {
            for &(_, pause) in pauses.iter().filter(|&&(nth, _)| nth == number) {
                cutter.delay(Nanos(pause));
            }
            let message = cutter.next(Some(Bytes(len))).unwrap_or(message);
            prop_assert_eq!(message.at.0, at);
            prop_assert!(u64::from(message.datagrams) == message.bytes.0.div_ceil(PAYLOAD.0));
            // Each is due by then, and waits no longer than the burst.
            let (first, last) = (at, at + PAYLOAD.0 * u64::from(message.datagrams - 1));
            prop_assert!(cutter.clock().due(Bytes(last)) <= message.due);
            let waits = message.due.since(cutter.clock().due(Bytes(first)));
            prop_assert!(message.datagrams == 1 || waits <= Nanos(burst));
            prop_assert!(message.due >= before);
            (at, before) = (at + message.bytes.0, message.due);
            cutter.advance(&message);
            number += 1;
        }
        prop_assert_eq!(at, len);
    }

    #[test]
    fn without_a_burst_a_message_is_what_is_due_in_a_turn_neither_more_nor_less(
        rate in 1_000_000u64..5_000_000_000, tick in 50_000u64..2_000_000, stuffed in any::<bool>(),
        planned in any::<bool>(),
    ) {
        let clock = ByteClock::new(MonoTime(1_000_000_007), BitRate(rate));
        let gathering = Gathering::of(Nanos(0), Nanos(tick));
        let stuff = (stuffed && planned).then_some(BitRate(rate));
        let plan = planned.then(|| Arc::new(Plan { stuff, ..Plan::default() }));
        let plain = cutting(clock, Nanos(0));
        let mut cutter = Cutter::new(Cutting { gathering, plan, segments_max: 44, ..plain });
        let turn = |due: MonoTime| due.0.div_ceil(tick);
        for _ in 0..40 {
            let message = cutter.next(None).expect("it has no end");
            let due = |nth: u64| clock.due(Bytes(message.at.0 + PAYLOAD.0 * nth));
            let count = u64::from(message.datagrams);
            let leaves = turn(message.due);
            prop_assert!((0..count).all(|nth| turn(due(nth)) == leaves), "{message:?}");
            prop_assert!(count == 44 || turn(due(count)) > leaves, "{message:?}");
            cutter.advance(&message);
        }
    }

    #[test]
    fn whoever_is_late_sends_all_that_is_due_and_nothing_else(
        rate in 1_000_000u64..50_000_000, burst in 0u64..20_000_000, packets in 1u64..2_000,
        late in 0u64..200_000_000, stuffed in any::<bool>(), planned in any::<bool>(),
    ) {
        let clock = ByteClock::new(MonoTime(1_000_000_007), BitRate(rate));
        let stuff = (stuffed && planned).then_some(BitRate(rate * 2));
        let plan = planned.then(|| Arc::new(Plan { stuff, ..Plan::default() }));
        let mut cutter = Cutter::new(Cutting { plan, ..cutting(clock, Nanos(burst)) });
        let len = Some(Bytes(packets * TS));
        let mut left = Bytes(0);
        while let Some(usual) = cutter.next(len) {
            let late = usual.due + Nanos(late);
            let message = cutter.next_late(len, late).unwrap();
            prop_assert_eq!(
                (message.at, message.from, message.due),
                (usual.at, usual.from, usual.due)
            );
            let (usual, count) = (usual.datagrams, message.datagrams);
            prop_assert!(usual <= count && count <= SEGMENTS_MAX);
            prop_assert!((usual..count).all(|nth| cutter.due(nth) <= late));
            cutter.advance(&message);
            left += message.taken;
            // The next datagram is not due, unless there is none or no room.
            let next = cutter.next(len);
            prop_assert!(count == SEGMENTS_MAX || next.is_none() || cutter.due(0) > late);
        }
        prop_assert_eq!(Some(left), len);
    }

    #[test]
    fn numbers_follow_each_other_and_timestamps_are_due_times(
        rate in 100_000u64..1_000_000_000, burst in 0u64..4_000_000, pause in 0u64..SECOND.0,
    ) {
        let mut cutter = cutter(rate, Nanos(burst));
        // Before the first datagram.
            cutter.delay(Nanos(pause / 3));
            let mut seen = 0u64;
        for nth in 0..40 {
            if nth == 17 {
                cutter.delay(Nanos(pause));
            }
            let message = cutter.next(None).unwrap();
            for within in 0..message.datagrams {
                let header = cutter.header(within).unwrap();
                let packet = rtp::Packet::read(&header).unwrap();
                prop_assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(seen as u16));
                prop_assert_eq!((packet.payload_type, packet.source), (rtp::MP2T, 7));
                // Due by the formula, in ticks rounded down.
                let paused = if nth >= 17 { pause } else { 0 };
                let due = BitRate(rate).time_for(Bytes(PAYLOAD.0 * seen)).0 + paused;
                let ticks = packet.timestamp.wrapping_sub(SESSION.timestamp);
                prop_assert_eq!(u64::from(ticks), due * 9 / 100_000);
                seen += 1;
            }
            cutter.advance(&message);
        }
    }

    #[test]
    fn what_follows_goes_on_in_numbers_and_time(
        rates in (100_000u64..1_000_000_000, 100_000u64..1_000_000_000), len in 1u64..400_000,
        burst in 0u64..4_000_000,
    ) {
        let mut first = cutter(rates.0, Nanos(burst));
        let mut count = 0u16;
        while let Some(message) = first.next(Some(Bytes(len))) {
            count = count.wrapping_add(message.datagrams as u16);
            first.advance(&message);
        }
        let trace = first.trace(Bytes(len));
        prop_assert_eq!(trace.due, first.clock().due(Bytes(len)));
        let clock = ByteClock::new(trace.due, BitRate(rates.1));
        let next = Cutter::new(cutting(clock, Nanos(0))).following(&trace);
        let packet = next.header(0).unwrap();
        let packet = rtp::Packet::read(&packet).unwrap();
        prop_assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(count));
        let since = BitRate(rates.0).time_for(Bytes(len)).0;
        let ticks = packet.timestamp.wrapping_sub(SESSION.timestamp);
        prop_assert_eq!(u64::from(ticks), since * 9 / 100_000);
    }

    #[test]
    fn what_follows_leaves_when_its_place_says_however_long_the_one_before_was(
        rate in 100_000u64..100_000_000, burst in 0u64..40_000_000, place in 0u32..5000,
        start in 0u64..1 << 60, stuffed in any::<bool>(),
    ) {
        let rate = BitRate(rate);
        let plan = stuffed.then(|| Arc::new(Plan { stuff: Some(rate), ..Plan::default() }));
        let clock = ByteClock::new(MonoTime(start), rate);
        let cutting = Cutting { plan, ..cutting(clock, Nanos(burst)) };
        let mut cutter = Cutter::new(cutting).in_step_with(Phase::spread(place));
        let most = cutter.datagrams_max;
        for nth in 0..4 {
            let message = cutter.next(None).unwrap();
            prop_assert!(message.datagrams == most || nth == 0 && message.datagrams < most);
            if nth > 0 {
                let first = cutter.due(0);
                let wait = cutter.cycle().begin(Phase::spread(place), first).since(first);
                prop_assert!(wait <= rate.time_for(PAYLOAD) + Nanos(1), "{wait:?}");
            }
            cutter.advance(&message);
        }
    }

    #[test]
    fn streams_of_one_rate_are_spread_over_a_message_whenever_they_were_opened(
        count in 1u32..3000, rate in 50_000u64..100_000_000, datagrams in 1u32..9,
        first in 0u64..1 << 60, apart in 0u64..50_000_000,
    ) {
        let message = Bytes(PAYLOAD.0 * u64::from(datagrams));
        let bits = u128::from(8 * message.0) * u128::from(SECOND.0);
        let cycle = Cycle { rate: BitRate(rate), datagrams, payload: PAYLOAD };
        let mut phases = Vec::new();
        for place in 0..count {
            let opened = MonoTime(first + u64::from(place) * apart);
            let begins = cycle.begin(Phase::spread(place), opened);
            prop_assert!(begins >= opened, "early");
            prop_assert!(begins.since(opened) <= BitRate(rate).time_for(message), "late");
            phases.push(u128::from(begins.0) * u128::from(rate) % bits);
        }
        phases.sort_unstable();
        // To the nanosecond, no gap is longer than three places would leave on average (Steinhaus:
        // of the three lengths that occur the longest is below 2.7 of the mean).
        let last = phases[0] + bits;
        let ends = phases.iter().skip(1).chain([&last]);
        let widest = phases.iter().zip(ends).map(|(from, to)| to - from).max().unwrap();
        prop_assert!(
            widest <= bits * 3 / u128::from(count) + 2 * u128::from(rate),
            "{widest} of {bits}"
        );
    }
}

#[test]
fn behind_a_late_message_a_stream_leaves_again_when_its_place_says() {
    let rate = 20_000_000;
    let stuffed = Plan { stuff: Some(BitRate(rate)), ..Plan::default() };
    for plan in [None, Some(Arc::new(stuffed))] {
        let clock = ByteClock::new(MonoTime(0), BitRate(rate));
        let mut cutter = Cutter::new(Cutting { plan, ..cutting(clock, MILLISECOND.times(4)) });
        let late = clock.due(Bytes(8 * PAYLOAD.0));
        let counts = [late, MonoTime(0), MonoTime(0)].map(|late| {
            let message = cutter.next_late(None, late).unwrap();
            cutter.advance(&message);
            message.datagrams
        });
        assert_eq!(counts, [9, 5, 7]);
    }
}

#[test]
fn messages_hold_what_is_due_within_the_burst() {
    let count = |rate, burst| cutter(rate, burst).next(None).map(|message| message.datagrams);
    // Values from the field: 4 Mbit/s and 1 ms, 20 Mbit/s and 4 ms, a link of 10 Gbit/s.
    assert_eq!(count(4_000_000, MILLISECOND), Some(1));
    assert_eq!(count(20_000_000, MILLISECOND.times(4)), Some(7));
    assert_eq!(count(10_000_000_000, MILLISECOND), Some(SEGMENTS_MAX));
    assert_eq!(count(10_000_000_000, Nanos(0)), Some(1));
}

#[test]
fn the_wire_carries_what_the_payload_does_not_show() {
    assert_eq!(Framing::Plain.wire(PAYLOAD, 1, Ip::V4), Bytes(1382));
    let rtp = Framing::Rtp(SESSION);
    assert_eq!(rtp.wire(Bytes(2 * PAYLOAD.0), 2, Ip::V6), Bytes(2 * (1316 + 12 + 86)));
    // 4 Mbit/s need 4.2 of a link that is counted with all overhead.
    assert_eq!(Framing::Plain.wire_rate(BitRate(4_000_000), Ip::V4), BitRate(4_200_608));
}

mod framed;
mod planned;
mod sound;
