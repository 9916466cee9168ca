//! Streams of datagrams that the control side makes: each at its own time, and nobody else's
//! affair.

use std::net::SocketAddr;

use tactus_core::classes::ClassNumber;
use tactus_core::datagrams::Framing;
use tactus_core::generated::TimedDatagram;
use tactus_core::pacer::Class;
use tactus_core::ports::SocketHandle;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{
    Backpressure, Chunks, Command, Connection, Datagrams, Outcome, Output, PacketClass, StreamId,
};
use tactus_ring::spsc::{Keep, Producer, ring};

use crate::fixture::{BOTH, Datagram, Fixture, PLACES, Room, TICK, TITLE, content};
use crate::{BY_THE_CLOCK, RATE, finished, retired};

/// A generated stream and the end of its ring that fills it.
struct GeneratedSession {
    stream: StreamId,
    to: SocketAddr,
    begin: MonoTime,
    ring: Producer<TimedDatagram>,
    _keep: Keep<TimedDatagram>,
}

/// Room of each ring.
const ROOM: usize = 64;

fn make(
    fixture: &mut Fixture,
    fill: impl FnOnce(&mut Producer<TimedDatagram>),
) -> GeneratedSession {
    make_in(fixture, None, fill)
}

fn make_in(
    fixture: &mut Fixture,
    class: Option<ClassNumber>,
    fill: impl FnOnce(&mut Producer<TimedDatagram>),
) -> GeneratedSession {
    let stream = fixture.place();
    let to = SocketAddr::from(([239, 2, 2, stream.index as u8], 5004));
    let begin = fixture.now + MILLISECOND.times(3);
    let (mut ring, other) = ring(ROOM);
    fill(&mut ring);
    let keep = ring.keep();
    let output = Output::Datagrams(Datagrams { class, ..Datagrams::to(SocketHandle(70), to) });
    let chunks = Chunks { ring: other, begin, rate: BitRate(20_000_000), framing: Framing::Plain };
    fixture.send_chunks(stream, chunks, output);
    GeneratedSession { stream, to, begin, ring, _keep: keep }
}

/// Datagram `nth`: of its own length, and at times that are not even.
fn datagram(nth: u64) -> TimedDatagram {
    let len = 100 + nth * 37 % 1300;
    TimedDatagram::new(due(nth), &content(nth as i32, 0, len))
}

fn due(nth: u64) -> Nanos {
    Nanos(nth * 2_345_678 + nth % 3 * 700_000)
}

fn left(fixture: &Fixture, generated: &GeneratedSession) -> Vec<Datagram> {
    let network = fixture.network();
    network.datagrams.iter().filter(|datagram| datagram.to == generated.to).cloned().collect()
}

/// Every datagram so far is the next one, and left in the tick in which it was due, all moved by
/// `moved`.
fn assert_on_time(
    fixture: &Fixture,
    generated: &GeneratedSession,
    first: u64,
    moved: Nanos,
) -> u64 {
    let datagrams = left(fixture, generated);
    for (nth, each) in (0..).zip(&datagrams) {
        assert_eq!(each.bytes, datagram(nth).bytes(), "in order");
        if nth >= first {
            let due = generated.begin + due(nth) + moved;
            assert!(
                each.at >= due && each.at.since(due) < TICK,
                "{nth}: {:?} for {due:?}",
                each.at
            );
        }
    }
    datagrams.len() as u64
}

#[test]
fn each_generated_datagram_leaves_in_the_tick_in_which_it_is_due() {
    let mut fixture = Fixture::new(BOTH[0]);
    let title = fixture.start(3, RATE);
    let mut generated = make(&mut fixture, |_| {});
    let mut next = 0;
    // Filled ahead of time, never more than its room.
    for _ in 0..130 {
        while next < 500 && generated.ring.push(datagram(next)).is_ok() {
            next += 1;
        }
        fixture.pass(MILLISECOND.times(10));
    }
    assert!(generated.ring.push(TimedDatagram::end(due(500))).is_ok());
    fixture.pass(SECOND);
    assert_eq!(assert_on_time(&fixture, &generated, 0, Nanos(0)), 500);
    let bytes = (0..500).map(|nth| datagram(nth).bytes().len() as u64).sum();
    assert_eq!(finished(&fixture, generated.stream), Some((Outcome::Complete, Bytes(bytes))));
    assert!(retired(&fixture, generated.stream));
    let counters = &fixture.control.counters;
    assert_eq!(
        (counters.packets[0].underruns.value(), counters.packets[0].refused.value()),
        (0, 0)
    );
    assert!(counters.packets[0].lateness.snapshot().max() <= TICK.0);
    // Beside it a title is delivered as ever.
    fixture.pass(SECOND.times(9));
    assert_eq!(fixture.received(title), content(3, 0, TITLE.0));
    assert_eq!(counters_of(&fixture), 0);
}

#[test]
fn a_port_that_keeps_the_time_is_told_when_each_generated_datagram_is_due() {
    let mut fixture = Fixture::with_ahead(BOTH[0], MILLISECOND.times(2));
    let generated = make(&mut fixture, |ring| {
        (0..60).for_each(|nth| assert!(ring.push(datagram(nth)).is_ok()));
    });
    fixture.pass(SECOND);
    let sent = left(&fixture, &generated);
    assert_eq!(sent.len(), 60);
    for (nth, each) in (0..).zip(sent) {
        assert_eq!(each.at, generated.begin + due(nth), "{nth}");
    }
}

fn counters_of(fixture: &Fixture) -> u64 {
    fixture.control.counters.links[0].underruns.value()
}

#[test]
fn what_is_not_made_in_time_is_counted_and_moves_its_own_clock_only() {
    let mut fixture = Fixture::new(BOTH[0]);
    let filled = |count: u64| {
        move |ring: &mut Producer<TimedDatagram>| {
            (0..count).for_each(|nth| assert!(ring.push(datagram(nth)).is_ok()));
        }
    };
    let mut late = make(&mut fixture, filled(10));
    let good = make(&mut fixture, filled(40));
    // The tenth is due 25 ms after the beginning; it comes 30 ms after that.
    fixture.pass(MILLISECOND.times(60));
    assert_eq!(left(&fixture, &late).len(), 10);
    let missing = fixture.now;
    (10..30).for_each(|nth| assert!(late.ring.push(datagram(nth)).is_ok()));
    fixture.pass(SECOND);
    let sent = left(&fixture, &late);
    assert_eq!(sent.len(), 30);
    let moved = sent[10].at.since(late.begin + due(10));
    assert!(sent[10].at.since(missing) <= MILLISECOND + TICK, "it is looked for each millisecond");
    // All others keep their distance to it: no burst.
    for nth in 11..30 {
        let due = late.begin + due(nth) + moved;
        let at = sent[nth as usize].at;
        assert!(at + TICK >= due && at.since(due) < TICK, "{nth}");
    }
    assert_eq!(fixture.control.counters.packets[0].underruns.value(), 1);
    let epoch = fixture.control.counters.streams[late.stream.index as usize].epoch.value();
    let delay = epoch - late.begin.0;
    assert!(moved.0.abs_diff(delay) <= TICK.0, "who must tell of it knows: {delay}");
    assert_eq!(assert_on_time(&fixture, &good, 0, Nanos(0)), 40);
}

#[test]
fn a_stop_gives_everything_back_and_the_ring_is_freed_by_who_has_made_it() {
    let mut fixture = Fixture::new(BOTH[0]);
    let mut generated = make(&mut fixture, |_| {});
    let other = make(&mut fixture, |ring| {
        (0..40).for_each(|nth| assert!(ring.push(datagram(nth)).is_ok()));
    });
    (0..50).for_each(|nth| assert!(generated.ring.push(datagram(nth)).is_ok()));
    fixture.pass(MILLISECOND.times(40));
    let before = left(&fixture, &generated).len();
    assert!((5..40).contains(&before), "{before}");
    fixture.command(Command::Stop(generated.stream));
    fixture.pass(SECOND);
    assert_eq!(left(&fixture, &generated).len(), before);
    let (outcome, sent) = finished(&fixture, generated.stream).unwrap();
    assert_eq!(outcome, Outcome::Stopped);
    assert_eq!(sent.0, (0..before as u64).map(|nth| datagram(nth).bytes().len() as u64).sum());
    assert!(retired(&fixture, generated.stream));
    assert_eq!(assert_on_time(&fixture, &other, 0, Nanos(0)), 40);
    // A second stop, for a life that is over, is heard and ignored.
    fixture.command(Command::Stop(generated.stream));
    fixture.pass(SECOND);
    assert_eq!(fixture.reports.len(), 2);
}

#[test]
fn a_full_socket_keeps_generated_datagrams_and_a_refusal_costs_only_them() {
    let mut fixture = Fixture::new(BOTH[0]);
    let generated = make(&mut fixture, |ring| {
        (0..60).for_each(|nth| assert!(ring.push(datagram(nth)).is_ok()));
    });
    fixture.network().takes = Some(7);
    fixture.pass(MILLISECOND.times(40));
    assert_eq!(left(&fixture, &generated).len(), 7);
    fixture.network().takes = None;
    fixture.pass(MILLISECOND.times(30));
    // All that was kept left at once, and what follows is on time.
    let kept = (0..60).find(|&nth| due(nth) > MILLISECOND.times(40)).unwrap();
    let so_far = assert_on_time(&fixture, &generated, kept, Nanos(0));
    assert!((kept..60).contains(&so_far), "{so_far}");
    fixture.network().unreachable.push(generated.to);
    fixture.pass(MILLISECOND.times(20));
    fixture.network().unreachable.clear();
    let refused = fixture.control.counters.packets[0].refused.value();
    assert!((5..15).contains(&refused), "{refused}");
    fixture.pass(SECOND);
    assert_eq!(left(&fixture, &generated).len() as u64, 60 - refused);
    assert_eq!(fixture.control.counters.packets[0].underruns.value(), 0);
}

#[test]
fn a_class_without_room_makes_slower_streams_and_no_burst_when_others_leave() {
    // Two streams, each of a datagram in a millisecond, in a class that has room for one.
    let full = |nth: u64| TimedDatagram::new(MILLISECOND.times(nth), &content(0, nth, 1316));
    let ceiling = BitRate((1316 + 66) * 8 * 1000);
    let class = Class { guaranteed: ceiling, ceiling: Some(ceiling), priority: 0, share: ceiling };
    let classes = vec![PacketClass { parent: None, class }];
    let room = Room { places: PLACES, window: 6 };
    let mut fixture = Fixture::with_classes(BOTH[0], room, classes);
    let mut both = [(); 2].map(|()| (make_in(&mut fixture, Some(ClassNumber(0)), |_| {}), 0u64));
    let pass = |fixture: &mut Fixture, both: &mut [(GeneratedSession, u64)], turns: u64| {
        for _ in 0..turns {
            for (generated, next) in &mut *both {
                while generated.ring.push(full(*next)).is_ok() {
                    *next += 1;
                }
            }
            fixture.pass(MILLISECOND.times(10));
        }
    };
    pass(&mut fixture, &mut both, 500);
    for (generated, _) in &both {
        let latest =
            fixture.control.counters.streams[generated.stream.index as usize].lateness_max.value();
        assert!((200_000_000..=252_000_000).contains(&latest), "{latest}");
        let sent = left(&fixture, generated).len();
        assert!(sent.abs_diff(2500) < 150, "its share of the class: {sent}");
    }
    fixture.command(Command::Stop(both[1].0.stream));
    let before = left(&fixture, &both[0].0).len();
    pass(&mut fixture, &mut both[..1], 100);
    let sent = left(&fixture, &both[0].0).len() - before;
    // What it was late at most, and no more, may come in.
    assert!((990..=1260).contains(&sent), "{sent}");
}

#[test]
fn a_machine_that_stood_still_owes_no_burst() {
    let mut fixture = Fixture::new(BOTH[0]);
    let generated = make(&mut fixture, |ring| {
        (0..60).for_each(|nth| assert!(ring.push(datagram(nth)).is_ok()));
    });
    fixture.pass(MILLISECOND.times(40));
    let before = left(&fixture, &generated).len() as u64;
    fixture.stand_still(MILLISECOND.times(700));
    fixture.pass(MILLISECOND.times(200));
    let sent = left(&fixture, &generated);
    assert_eq!(sent.len(), 60);
    let apart = sent.windows(2).skip(before as usize).map(|pair| pair[1].at.since(pair[0].at));
    assert!(
        apart.into_iter().all(|apart| apart > Nanos(800_000)),
        "what follows keeps its distances"
    );
}

#[test]
fn a_reader_that_pauses_is_waited_for_and_owed_nothing() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let mut start = fixture.start_of(3, BY_THE_CLOCK, 0..TITLE.0);
        let stream = start.stream;
        let connection = Connection::of(SocketHandle(stream.index as i32));
        let backpressure = Backpressure::Wait;
        start.output = Output::Connection(Connection { backpressure, ..connection });
        fixture.network().limits.insert(stream.index as i32, 300_000);
        fixture.begin(start);
        // A connection would be too slow after half a second.
        fixture.pass(SECOND.times(20));
        assert_eq!(finished(&fixture, stream), None);
        assert_eq!(fixture.received(stream).len(), 300_000);
        let before = fixture.disk().reads.len();
        fixture.network().limits.clear();
        fixture.pass(SECOND.times(2));
        let since = fixture.received(stream).len() as u64 - 300_000;
        let expected = RATE / 8 * 2;
        assert!(since.abs_diff(expected) <= RATE / 8 / 50, "two seconds are worth two: {since}");
        assert!(fixture.disk().reads.len() - before <= 10, "the disk too");
        fixture.pass(SECOND.times(10));
        assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert_eq!(counters_of(&fixture), 0);
    }
}
