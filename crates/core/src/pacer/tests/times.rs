//! Times and costs of departures.

use proptest::prelude::*;

use super::*;

/// Turns late by up to three ticks.
fn lateness() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![3 => 0u64..20_000, 1 => 0u64..300_000], 50..200)
}

proptest! {
    #[test]
    fn never_early_and_never_a_whole_packet_late(
        streams in
            prop::collection::vec((1_000u64..400 * MBIT, 64u64..1500, 0u64..50_000_000), 1..40),
        lateness in lateness(),
    ) {
        let mut harness = PacerHarness::new(LIMITS, 100 * GBIT);
        let class = harness.pacer.add(LINK, Class::rest(BitRate(GBIT))).unwrap();
        for (number, &(rate, bytes, start)) in streams.iter().enumerate() {
            let law =
                TrafficPattern::Paced(ByteClock::new(harness.now + Nanos(start), BitRate(rate)));
            let parent = if number % 2 == 0 { LINK } else { class };
            harness.add(parent, Class::stream(BitRate(rate)), law, bytes);
        }
        for late in lateness {
            let sent: Vec<u64> = harness.streams.iter().map(|stream| stream.sent).collect();
            let Some(next) = harness.pacer.poll_timeout() else { break };
            harness.turn(next + Nanos(late));
            let begin = MonoTime((next.0 + late) / TICK.0 * TICK.0);
            for departure in &harness.left {
                prop_assert!(departure.packet.due <= departure.at);
                prop_assert_eq!(departure.at, begin);
            }
            for (stream, sent) in harness.streams.iter().zip(sent) {
                let TrafficPattern::Paced(clock) = stream.law else { unreachable!() };
                if stream.sent > sent {
                    // The last packet that left was due, so all bytes before it were allowed.
                    prop_assert!(clock.allowed(begin).0 >= stream.sent - stream.bytes);
                }
                prop_assert!(clock.due(Bytes(stream.sent)) > begin, "a packet is left");
            }
        }
    }

    #[test]
    fn a_class_at_its_target_is_never_early_or_a_whole_packet_late(
        rate in 1_000u64..10 * GBIT, bytes in 64u64..9000, lateness in lateness(),
    ) {
        let mut harness = PacerHarness::new(LIMITS, 100 * GBIT);
        harness.add(LINK, Class::target(BitRate(rate)), TrafficPattern::Greedy, bytes);
        let law = ByteClock::new(harness.now, BitRate(rate));
        harness.turn(harness.now);
        for late in lateness {
            let next = harness.pacer.poll_timeout().unwrap();
            harness.turn(next + Nanos(late));
            let begin = MonoTime((next.0 + late) / TICK.0 * TICK.0);
            let sent = harness.streams[0].sent;
            prop_assert!(law.due(Bytes(sent)) > begin);
            prop_assert!(law.due(Bytes(sent - bytes)) <= begin);
        }
    }

    #[test]
    fn ceilings_hold_at_every_level_between_any_two_turns(
        ceilings in prop::collection::vec(MBIT..3 * GBIT, 6),
        switches in prop::collection::vec((0usize..12, any::<bool>()), 1..100),
        lateness in lateness(),
    ) {
        let mut harness = PacerHarness::new(LIMITS, 4 * GBIT);
        let class = |rate: u64| Class {
            guaranteed: BitRate(rate / 4),
            ceiling: Some(BitRate(rate)),
            priority: (rate % 3) as u8,
            share: BitRate(rate),
        };
        let parents: Vec<ClassId> = ceilings[..3]
            .iter()
            .map(|&rate| harness.pacer.add(LINK, class(rate)).unwrap())
            .collect();
        for number in 0..12 {
            let class = class(ceilings[3 + number % 3]);
            let place = harness.pacer.add(parents[number % 3], class).unwrap();
            harness.streams.push(Stream {
                class: place,
                law: TrafficPattern::Silent,
                bytes: DATAGRAM,
                sent: 0,
            });
        }
        // Buckets that drain at the ceilings, in bits e9: the largest window is the fullest bucket.
        let mut buckets = [0u128; 16];
        let rates: Vec<u64> = (0..16)
            .map(|at| match at {
                0 => 4 * GBIT,
                1..4 => ceilings[at - 1],
                _ => ceilings[3 + (at - 4) % 3],
            })
            .collect();
        let mut before = MonoTime(harness.now.0 / TICK.0 * TICK.0);
        for (turn, late) in lateness.into_iter().enumerate() {
            let (number, on) = switches[turn % switches.len()];
            harness.silence(number);
            if on {
                harness.wake(number);
            }
            let begin = MonoTime(before.0 + TICK.0);
            harness.turn(begin + Nanos(late));
            let begin = MonoTime((begin.0 + late) / TICK.0 * TICK.0);
            for departure in &harness.left {
                let stream =
                    harness.streams.iter().position(|one| one.class == departure.class).unwrap();
                for at in [0, 1 + stream % 3, 4 + stream] {
                    buckets[at] += u128::from(departure.packet.bytes.0) * 8_000_000_000;
                }
            }
            // Packets of a turn belong to the time since the previous turn.
            for (bucket, rate) in buckets.iter_mut().zip(&rates) {
                *bucket =
                    bucket.saturating_sub(u128::from(begin.since(before).0) * u128::from(*rate));
            }
            for (at, (bucket, rate)) in buckets.iter().zip(&rates).enumerate() {
                let bound = u128::from(JAM_MAX.0) * u128::from(*rate)
                    + u128::from(DATAGRAM) * 8_000_000_000;
                prop_assert!(*bucket <= bound, "class {at}: {bucket} > {bound}");
            }
            before = begin;
        }
    }

    #[test]
    fn whatever_is_changed_nothing_is_left_behind(
        steps in prop::collection::vec((0u8..8, any::<u32>(), any::<u64>()), 1..300),
    ) {
        let mut pacer =
            Pacer::new(Limits { classes: 12, parents: 3, tick: TICK }, BitRate(GBIT), MonoTime(0));
        let mut classes: Vec<ClassId> = vec![];
        let mut parents: Vec<ClassId> = vec![];
        let mut now = MonoTime(0);
        for (what, which, much) in steps {
            let pick =
                |from: &[ClassId]| (!from.is_empty()).then(|| from[which as usize % from.len()]);
            let class = Class {
                guaranteed: BitRate(much % GBIT),
                ceiling: (much % 3 == 0).then_some(BitRate(1 + much % GBIT)),
                priority: (much % 8) as u8,
                share: BitRate(1 + much % GBIT),
            };
            match what {
                0 | 1 => {
                    let parent = pick(&classes).filter(|_| much % 4 != 0).unwrap_or(LINK);
                    if let Ok(id) = pacer.add(parent, class) {
                        classes.push(id);
                        parents.push(parent);
                    }
                }
                2 => {
                    if let Some(gone) = pick(&classes).filter(|id| !parents.contains(id)) {
                        let at = classes.iter().position(|&id| id == gone).unwrap();
                        pacer.remove(gone);
                        classes.remove(at);
                        parents.remove(at);
                        prop_assert_eq!(pacer.class(gone), None);
                    }
                }
                3 => {
                    if let Some(id) = pick(&classes) {
                        pacer.change(now, id, class);
                        prop_assert_eq!(pacer.class(id), Some(class));
                    }
                }
                4 | 5 => {
                    if let Some(id) = pick(&classes)
                        && !parents.contains(&id)
                        && !pacer.has_packet(id)
                    {
                        let due = MonoTime(now.0 + much % 1_000_000_000 * (much % 2));
                        pacer.offer(now, id, Packet { due, bytes: Bytes(1 + much % 9000) });
                    }
                }
                6 => {
                    now += Nanos(much % 2_000_000);
                    while let Some(departure) = pacer.poll_send(now) {
                        prop_assert!(departure.packet.due <= now);
                        prop_assert!(!pacer.has_packet(departure.class));
                    }
                    prop_assert!(pacer.poll_timeout().is_none_or(|next| next > now));
                }
                _ => pacer.set_link(now, BitRate(1 + much % GBIT)),
            }
        }
        for &id in &classes {
            pacer.withdraw(id);
        }
        prop_assert_eq!(pacer.poll_timeout(), None);
        prop_assert_eq!(pacer.poll_send(now + SECOND), None);
        while let Some(at) = classes.iter().rposition(|id| !parents.contains(id)) {
            pacer.remove(classes.remove(at));
            parents.remove(at);
        }
        prop_assert_eq!(pacer.free_nodes.len(), 12);
        prop_assert_eq!(pacer.free_families.len(), 3);
        prop_assert_eq!(pacer.families[0].promised, BitRate(0));
    }
}

#[test]
fn operations_per_packet_and_wake_ups_do_not_grow_with_classes() {
    let cost = |classes: usize, is_crowded: bool| {
        let mut harness = PacerHarness::new(Limits { classes, parents: 1, tick: TICK }, 10 * GBIT);
        // The same 8 Gbit/s, or 16 on the link of 10, cut into more and more classes.
        let rate = (if is_crowded { 16 } else { 8 }) * GBIT / classes as u64;
        for number in 0..classes as u64 {
            if is_crowded {
                harness.greedy(LINK, Class::target(BitRate(rate)));
            } else {
                let start = harness.now + Nanos(number * 1_234_567 % 50_000_000);
                let law = TrafficPattern::Paced(ByteClock::new(start, BitRate(rate)));
                harness.add(LINK, Class::stream(BitRate(rate)), law, DATAGRAM);
            }
        }
        harness.run(Nanos::from_millis(50));
        let before = harness.pacer.work();
        harness.run(Nanos::from_millis(100));
        let after = harness.pacer.work();
        let packets = after.packets - before.packets;
        (packets, (after.steps - before.steps) * 100 / packets, after.turns - before.turns)
    };
    for is_crowded in [false, true] {
        for classes in [10, 100, 1_000, 10_000] {
            let (packets, steps, turns) = cost(classes, is_crowded);
            assert!(packets > 50_000, "{packets}");
            // At most ten moves, an entry, a look at the wheel, a level: the actual number is far
            // lower.
            assert!(steps <= 700, "{classes} classes: {steps} hundredths of a step per packet");
            assert!(turns <= 1_001, "{classes} classes: {turns} turns in 1,000 ticks");
        }
    }
}

#[test]
fn a_pause_of_the_machine_is_not_made_up_for_beyond_its_bound() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    harness.greedy(LINK, Class::target(BitRate(GBIT)));
    harness.run(Nanos::from_millis(100));
    let before = harness.streams[0].sent;
    harness.turn(harness.now + SECOND.times(5));
    let burst = harness.streams[0].sent - before;
    let bound = BitRate(GBIT).bytes_in(STALL_MAX).0 + 2 * DATAGRAM;
    assert!(burst <= bound, "{burst} > {bound}");
    let sent = harness.sent_in(SECOND)[0];
    assert!(sent.abs_diff(GBIT / 8) <= 2 * DATAGRAM, "{sent}");
}

#[test]
fn a_late_turn_moves_no_later_packet() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    let law = TrafficPattern::Paced(ByteClock::new(harness.now, BitRate(4 * MBIT)));
    harness.add(LINK, Class::target(BitRate(4 * MBIT)), law, DATAGRAM);
    let begin = harness.now;
    harness.turn(begin);
    harness.turn(begin + Nanos::from_millis(30));
    // Packet 100 leaves in the tick after its due time, as without the delay.
    let due = ByteClock::new(begin, BitRate(4 * MBIT)).due(Bytes(100 * DATAGRAM));
    harness.run(Nanos(due.0 - 1 - harness.now.0));
    assert_eq!(harness.streams[0].sent, 100 * DATAGRAM);
    harness.run(TICK);
    assert_eq!(harness.streams[0].sent, 101 * DATAGRAM);
}

#[test]
fn an_idle_link_saves_nothing_for_who_comes() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    let number = harness.greedy(LINK, Class::target(BitRate(GBIT)));
    harness.silence(number);
    harness.now += SECOND.times(60);
    harness.wake(number);
    harness.turn(harness.now);
    assert!(harness.streams[number].sent <= BitRate(GBIT).bytes_in(TICK).0 + DATAGRAM);
    let sent = harness.sent_in(Nanos::from_millis(10))[number];
    assert!(sent.abs_diff(GBIT / 800) <= 2 * DATAGRAM, "{sent}");
}
