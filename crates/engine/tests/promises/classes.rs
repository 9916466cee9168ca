//! Classes of the link of datagrams: guarantees, ceilings, and what is shared in proportion.

use std::net::SocketAddr;

use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::{Framing, Ip};
use tactus_core::pacer::Class;
use tactus_core::ports::SocketHandle;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{
    ClassChange, Command, Datagrams, Output, PacketClass, Rate, StreamId,
};

use crate::fixture::{BOTH, Fixture, Memory, Room, TITLE};

/// Enough for two cycles of the fastest.
const ROOM: Room = Room { places: 200, window: 24 };

/// A rate of so many Mbit/s on the wire.
fn wire(rate: u64) -> BitRate {
    Framing::Plain.wire_rate(BitRate(rate * 1_000_000), Ip::V4)
}

fn to(number: u32) -> SocketAddr {
    SocketAddr::from(([239, 1, 1, number as u8], 5004))
}

/// Begins a stream of `rate` Mbit/s that does not end.
fn start(fixture: &mut Fixture, rate: u64, class: u16) -> StreamId {
    let rate = BitRate(rate * 1_000_000);
    let pace = Some(Rate { rate, burst: Bytes(0), tick: Tick::Ms10 });
    let mut start = fixture.start_of(3, pace, 0..TITLE.0);
    let stream = start.stream;
    let output = Datagrams::to(SocketHandle(70), to(stream.index));
    start.output = Output::Datagrams(Datagrams { class: Some(ClassNumber(class)), ..output });
    fixture.begin(start.repeating());
    stream
}

/// How many bytes of each stream have left in the second that begins at `from`.
fn sent(fixture: &Fixture, streams: &[StreamId], from: MonoTime) -> Vec<u64> {
    let network = fixture.network();
    let of = |stream: &StreamId| {
        let own = network.datagrams.iter().filter(|each| each.to == to(stream.index));
        let within = own.filter(|each| (from..from + SECOND).contains(&each.at));
        within.map(|each| each.bytes.len() as u64).sum()
    };
    streams.iter().map(of).collect()
}

/// Within a hundredth.
fn assert_about(sent: u64, expected: u64, what: &str) {
    assert!(sent.abs_diff(expected) * 100 <= expected, "{what}: {sent} bytes, not {expected}");
}

#[test]
fn streams_share_the_ceiling_of_an_over_subscribed_class_in_proportion_to_their_rates() {
    for memory in BOTH {
        let ceiling = wire(100);
        let class =
            Class { guaranteed: ceiling, ceiling: Some(ceiling), priority: 0, share: ceiling };
        let classes = vec![PacketClass { parent: None, class }];
        let mut fixture = Fixture::with_classes(memory, ROOM, classes);
        let rates = [40, 40, 40, 20, 20];
        let mut streams = vec![];
        // As many as there are share it, whoever joined when.
        for &rate in &rates {
            streams.push(start(&mut fixture, rate, 0));
            fixture.pass(SECOND);
            let from = fixture.now;
            fixture.pass(SECOND);
            let here = &rates[..streams.len()];
            let asked: u64 = here.iter().sum();
            let sent = sent(&fixture, &streams, from);
            for (sent, &rate) in sent.iter().zip(here) {
                let expected = rate * 1_000_000 / 8 * 100 / asked.max(100);
                assert_about(*sent, expected, &format!("{rate} of {asked} Mbit/s"));
            }
        }
        let counters = &fixture.control.counters;
        assert_eq!(counters.packets[0].underruns.value(), 0);
        let class = &counters.classes[0];
        assert_about(class.second_bytes.value(), ceiling.bytes_in(SECOND).0, "a second of all");
        assert!(class.bytes.value() > class.second_bytes.value());
        // It has its ceiling guaranteed, so it borrows a packet at most that is at the border of
        // seconds.
        let (all, borrowed) = (class.bytes.value(), class.borrowed.value());
        assert!(borrowed * 100 <= all, "{borrowed} of {all}");
    }
}

#[test]
fn what_has_grown_in_a_late_turn_waits_for_its_class_as_it_is_through_turns_that_are_less_late() {
    for memory in BOTH {
        let ceiling = wire(40);
        let class =
            Class { guaranteed: ceiling, ceiling: Some(ceiling), priority: 0, share: ceiling };
        let classes = vec![PacketClass { parent: None, class }];
        let mut fixture = Fixture::with_classes(memory, ROOM, classes);
        let streams = [40; 8].map(|rate| start(&mut fixture, rate, 0));
        for late in [60, 3, 20, 2, 40, 1, 5].into_iter().cycle().take(70) {
            fixture.pass(MILLISECOND);
            fixture.stand_still(MILLISECOND.times(late));
        }
        fixture.pass(SECOND);
        let from = fixture.now;
        fixture.pass(SECOND);
        let all: u64 = sent(&fixture, &streams, from).iter().sum();
        assert_about(all, 40_000_000 / 8, "what the class has");
    }
}

#[test]
fn a_class_has_its_guarantee_and_lends_what_it_does_not_use() {
    let all = wire(100);
    let house = Class { guaranteed: all, ceiling: Some(all), priority: 0, share: all };
    let gold = Class { guaranteed: wire(60), ceiling: None, priority: 0, share: wire(60) };
    let rest = Class { guaranteed: BitRate(0), ceiling: None, priority: 1, share: wire(1) };
    let house = PacketClass { parent: None, class: house };
    let below = |class| PacketClass { parent: Some(ClassNumber(0)), class };
    let mut fixture = Fixture::with_classes(BOTH[0], ROOM, vec![house, below(gold), below(rest)]);
    let streams =
        [(40, 1), (20, 1), (40, 2), (40, 2)].map(|(rate, class)| start(&mut fixture, rate, class));
    fixture.pass(SECOND);
    let from = fixture.now;
    fixture.pass(SECOND);
    let each = sent(&fixture, &streams, from);
    for (sent, expected) in each.iter().zip([40, 20, 20, 20]) {
        assert_about(*sent, expected * 125_000, "beside what is guaranteed");
    }
    fixture.pass(SECOND);
    let second = |at: usize| {
        let class = &fixture.control.counters.classes[at];
        (class.second_bytes.value(), class.second_borrowed.value())
    };
    let (sent_gold, borrowed) = second(1);
    assert_about(sent_gold, wire(60).bytes_in(SECOND).0, "the guaranteed class");
    assert!(borrowed * 100 <= sent_gold, "what is within a guarantee is not lent: {borrowed}");
    let (sent_rest, borrowed) = second(2);
    assert_about(sent_rest, wire(40).bytes_in(SECOND).0, "the class without a guarantee");
    assert_eq!(borrowed, sent_rest);
    // What is not used is there for the others.
    fixture.command(Command::Stop(streams[0]));
    fixture.command(Command::Stop(streams[1]));
    fixture.pass(SECOND);
    let from = fixture.now;
    fixture.pass(SECOND);
    let each = sent(&fixture, &streams[2..], from);
    for sent in each {
        assert_about(sent, 40 * 125_000, "what was lent");
    }
}

/// What a class has, which `to` is to be from now on.
fn change(fixture: &mut Fixture, classes: &[(u16, Class)]) {
    let changes: Vec<_> =
        classes.iter().map(|&(at, to)| ClassChange { number: ClassNumber(at), to }).collect();
    fixture.change(&changes);
}

#[test]
fn a_class_that_changes_has_its_new_rates_at_once_and_moves_no_datagram_of_another() {
    let exactly = |rate| {
        let rate = wire(rate);
        Class { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate }
    };
    // Each datagram of the class that stays as it is: when it left, and what it was.
    let run = |memory: Memory, steps: &[(u64, Class)]| {
        let classes = [60, 70].map(|rate| PacketClass { parent: None, class: exactly(rate) });
        let mut fixture = Fixture::with_classes(memory, ROOM, classes.to_vec());
        let own = [40, 40].map(|rate| start(&mut fixture, rate, 0));
        let others = [40, 20, 7].map(|rate| start(&mut fixture, rate, 1));
        // In the midst of a second, of a cycle and of a tick.
        fixture.pass(Nanos::from_micros(1_234_567));
        for &(expected, to) in steps {
            change(&mut fixture, &[(0, to)]);
            let from = fixture.now;
            fixture.pass(SECOND);
            let all: u64 = sent(&fixture, &own, from).iter().sum();
            assert_about(all, expected * 125_000, "the class that changes");
            fixture.pass(Nanos::from_micros(345_678));
        }
        assert_eq!(fixture.control.counters.packets[0].underruns.value(), 0);
        let network = fixture.network();
        let left = network.datagrams.iter();
        let of_others = left.filter(|each| others.iter().any(|other| each.to == to(other.index)));
        let left: Vec<_> = of_others.map(|each| (each.at, each.to, each.bytes.clone())).collect();
        left
    };
    for memory in BOTH {
        let stays = run(memory, &[(60, exactly(60)); 4]);
        let lower = Class { priority: 7, ..exactly(30) };
        let alone = Class { guaranteed: BitRate(0), ..exactly(50) };
        let changes =
            run(memory, &[(30, lower), (50, alone), (70, exactly(70)), (60, exactly(60))]);
        assert!(stays.len() > 20_000 && stays == changes, "in {memory:?}");
    }
}

#[test]
fn guarantees_and_priorities_that_change_are_kept_from_then_on() {
    let all = wire(100);
    let house = Class { guaranteed: all, ceiling: Some(all), priority: 0, share: all };
    let below = |guaranteed, priority| {
        let guaranteed = if guaranteed > 0 { wire(guaranteed) } else { BitRate(0) };
        Class { guaranteed, ceiling: None, priority, share: wire(10) }
    };
    let parent = Some(ClassNumber(0));
    let classes = vec![
        PacketClass { parent: None, class: house },
        PacketClass { parent, class: below(60, 0) },
        PacketClass { parent, class: below(0, 1) },
    ];
    let mut fixture = Fixture::with_classes(BOTH[0], ROOM, classes);
    let gold = [40, 40].map(|rate| start(&mut fixture, rate, 1));
    let rest = [40, 40].map(|rate| start(&mut fixture, rate, 2));
    fixture.pass(SECOND);
    let gets = |fixture: &mut Fixture, expected: [u64; 2]| {
        let from = fixture.now;
        fixture.pass(SECOND);
        for (streams, expected) in [gold, rest].iter().zip(expected) {
            let sent: u64 = sent(fixture, streams, from).iter().sum();
            assert_about(sent, expected * 125_000, &format!("of {expected} Mbit/s"));
        }
    };
    gets(&mut fixture, [80, 20]);
    // Both at once, as one may have what the other gives up.
    change(&mut fixture, &[(1, below(30, 0)), (2, below(50, 1))]);
    gets(&mut fixture, [50, 50]);
    change(&mut fixture, &[(1, below(30, 1)), (2, below(50, 0))]);
    gets(&mut fixture, [30, 70]);
    // The seconds of the counters are told by what was guaranteed in them.
    fixture.pass(SECOND.times(2));
    let borrowed = |at: usize| fixture.control.counters.classes[at].second_borrowed.value();
    assert!(borrowed(1) * 100 <= wire(30).bytes_in(SECOND).0, "{}", borrowed(1));
    assert_about(borrowed(2), wire(20).bytes_in(SECOND).0, "beyond the guarantee");
}
