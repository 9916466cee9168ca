//! Several delivery servers: each reads ahead for its own streams, as one would for them all.

use std::collections::BTreeSet;

use tactus_core::disk_model::Ratio;
use tactus_core::kernel_read_ahead::{SETTLED, TurnLimits};
use tactus_core::ports::SocketHandle;
use tactus_core::units::{Bytes, MIB, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::cores::Core;
use tactus_engine::message::{
    Command, Connection, DeliveryServerId, LinkId, Outcome, Output, Pin, StreamId,
};
use tactus_engine::name::{Job, ServerName};

use crate::fixture::{BLOCK, BOTH, CYCLE, DELIVERIES, Fixture, Parts, Room, TITLE, content};
use crate::{BY_THE_CLOCK, finished, retired};

/// A delivery of a title with a delivery server and a link server.
fn parts(fixture: &mut Fixture, title: i32, server: u16, link: u16) -> Parts {
    let mut parts = fixture.start_of(title, BY_THE_CLOCK, 0..TITLE.0);
    parts.stream.server = DeliveryServerId(server);
    let socket = SocketHandle(parts.stream.index as i32);
    parts.output = Output::Connection(Connection { link: LinkId(link), ..Connection::of(socket) });
    parts
}

fn start(fixture: &mut Fixture, title: i32, server: u16, link: u16) -> StreamId {
    let parts = parts(fixture, title, server, link);
    fixture.begin(parts)
}

#[test]
fn each_delivery_server_reads_ahead_for_its_own_streams_at_any_link_server() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let pairs = [(0, 0), (1, 0), (0, 1), (1, 1)];
        let streams = pairs.map(|(server, link)| start(&mut fixture, 3, server, link));
        fixture.pass(SECOND.times(11));
        for stream in streams {
            assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
            assert_eq!(fixture.sends(stream).len(), fixture.sends(streams[0]).len());
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
        }
        for server in &fixture.control.counters.deliveries {
            assert_eq!((server.completed.value(), server.streams.value()), (2, 0));
        }
        for link in &fixture.control.counters.links {
            assert_eq!((link.bytes.value(), link.underruns.value()), (2 * TITLE.0, 0));
        }
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
        // All four began at once: a block is read once for the streams of both servers.
        assert_eq!(fixture.disk().reads.len() as u64, TITLE.0 / u64::from(BLOCK));
    }
}

#[test]
fn streams_of_both_delivery_servers_lose_and_repeat_nothing_while_all_servers_move() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams: Vec<_> = (1..5u16)
            .map(|title| {
                (title, start(&mut fixture, title.into(), title % DELIVERIES, title / 2 % 2))
            })
            .collect();
        // The windows are full at first.
        fixture.pass(SECOND);
        for _ in 0..20 {
            // Around the beginning of cycles, when both ask.
            fixture.pass(CYCLE + Nanos::from_micros(50));
            fixture.hand_over();
        }
        fixture.pass(SECOND.times(12));
        for (title, stream) in streams {
            assert_eq!(fixture.received(stream), content(title.into(), 0, TITLE.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
        }
        let counters = &fixture.control.counters;
        assert_eq!(counters.sum_of_links(|link| &link.underruns), 0);
        assert_eq!(counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn the_kernel_reads_ahead_for_one_settled_stream_after_the_other() {
    for memory in BOTH {
        // Each of the two servers has a turn in two cycles, and two streams.
        let turns = TurnLimits {
            windows: Nanos(CYCLE.0 / 3),
            read_mib: MILLISECOND,
            expected: Ratio::ONE,
            share_thousandths: 1000,
            cycle: CYCLE,
            window: Bytes(MIB),
            streams: 4,
            servers: 1,
        };
        let mut fixture = Fixture::with_turns(memory, turns);
        let streams = [1, 2, 3].map(|title| {
            let mut parts = parts(&mut fixture, title, 0, 0);
            parts.origin.len = Bytes(8 * MIB);
            (title, fixture.begin(parts))
        });
        let segment = start(&mut fixture, 4, 0, 0);
        let ahead = |fixture: &mut Fixture| {
            BTreeSet::from_iter(std::mem::take(&mut fixture.disk().reads_ahead))
        };
        fixture.pass(SETTLED - CYCLE);
        assert_eq!(ahead(&mut fixture), [4].into(), "a short title is read ahead at once");
        fixture.command(Command::Stop(segment));
        fixture.pass(CYCLE.times(8));
        let first = ahead(&mut fixture);
        assert_eq!(first.len(), 2, "{first:?}");
        fixture.pass(SECOND);
        assert_eq!(ahead(&mut fixture), first, "memory suffices for two");
        let (_, ended) = streams.into_iter().find(|stream| first.contains(&stream.0)).unwrap();
        fixture.command(Command::Stop(ended));
        fixture.pass(SECOND);
        let later = ahead(&mut fixture);
        assert!(later.len() == 2 && later != first, "{later:?}");
    }
}

#[test]
fn a_slot_is_used_by_one_delivery_server_after_another() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let first = start(&mut fixture, 3, 0, 0);
        fixture.pass(SECOND);
        fixture.command(Command::Stop(first));
        fixture.pass(SECOND);
        assert!(retired(&fixture, first));
        let mut parts = parts(&mut fixture, 3, 1, 0);
        parts.stream.index = first.index;
        parts.stream.generation = first.generation + 1;
        let second = fixture.begin(parts);
        // A late stop of the first means nothing to the second.
        fixture.command(Command::Stop(first));
        fixture.pass(SECOND.times(11));
        assert_eq!(finished(&fixture, second), Some((Outcome::Complete, TITLE)));
        assert!(retired(&fixture, second));
        let servers = &fixture.control.counters.deliveries;
        assert_eq!([0, 1].map(|at| servers[at].started.value()), [1, 1]);
    }
}

/// One sweep for both: several would cost the arm of a disk more seeks than were promised.
#[test]
fn the_reads_of_a_cycle_wait_for_both_delivery_servers_but_not_for_one_that_stands_still() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams = [0, 1].map(|server| start(&mut fixture, 3 + i32::from(server), server, 0));
        fixture.pass(SECOND);
        let mut other = Core::default();
        let name = ServerName { job: Job::Delivery, index: 1 };
        let migration = fixture.begin_migration(name, &other);
        for _ in 0..2 {
            fixture.turn();
            other.turn(fixture.now);
        }
        assert!(migration.is_left_alone() && other.names().eq([name]));
        // Both cores, to the end of the cycle.
        let pass_cycle = |fixture: &mut Fixture, other: &mut Core| {
            let next = MonoTime((fixture.now.0 / CYCLE.0 + 1) * CYCLE.0);
            while fixture.now + MILLISECOND < next {
                fixture.now += MILLISECOND;
                other.turn(fixture.now);
                fixture.turn();
            }
            fixture.now = next;
            fixture.turn();
            assert_eq!(fixture.at_the_device(), 0, "the other one has not asked");
            next
        };
        let mut together = 0;
        for _ in 0..20 {
            let begin = pass_cycle(&mut fixture, &mut other);
            fixture.now = begin + MILLISECOND;
            other.turn(fixture.now);
            fixture.turn();
            together += fixture.at_the_device();
        }
        let mut alone = 0;
        for _ in 0..20 {
            let begin = pass_cycle(&mut fixture, &mut other);
            fixture.now = begin + MILLISECOND.times(4);
            fixture.turn();
            assert_eq!(fixture.at_the_device(), 0, "the other one may still ask");
            fixture.now = begin + MILLISECOND.times(5);
            fixture.turn();
            alone += fixture.at_the_device();
        }
        assert!(together > 0 && alone > 0, "{together} {alone}");
        for _ in 0..120 {
            pass_cycle(&mut fixture, &mut other);
        }
        for (title, stream) in [3, 4].into_iter().zip(streams) {
            assert_eq!(fixture.received(stream), content(title, 0, TITLE.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        }
        let counters = &fixture.control.counters;
        assert_eq!(counters.sum_of_links(|link| &link.underruns), 0);
    }
}

/// The memory of a title that is given up is promised at once. The first delivery server is polled
/// before the second, whose blocks are not back by then.
#[test]
fn a_stream_waits_for_memory_that_another_delivery_server_gives_up() {
    for memory in BOTH {
        let blocks = (TITLE.0 / u64::from(BLOCK)) as u32;
        let mut fixture = Fixture::with(memory, Room { places: blocks + 2, window: 6 });
        let mut pinned = fixture.start_of(1, None, 0..TITLE.0);
        pinned.stream.server = DeliveryServerId(1);
        let pin = pinned.stream;
        fixture.command(Command::Pin(Pin { stream: pin, origin: pinned.origin, window: blocks }));
        fixture.pass(SECOND);
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), u64::from(blocks));
        let next = parts(&mut fixture, 3, 0, 0);
        let stream = next.stream;
        fixture.push(Command::Stop(pin));
        fixture.push(next.start());
        fixture.pass(SECOND.times(11));
        assert!(retired(&fixture, pin));
        assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
    }
}

#[test]
fn a_want_that_waits_for_memory_is_given_up_with_its_stream() {
    for memory in BOTH {
        let blocks = (TITLE.0 / u64::from(BLOCK)) as u32;
        let mut fixture = Fixture::with(memory, Room { places: blocks, window: 6 });
        let mut pinned = fixture.start_of(1, None, 0..TITLE.0);
        pinned.stream.server = DeliveryServerId(1);
        let pin = pinned.stream;
        fixture.command(Command::Pin(Pin { stream: pin, origin: pinned.origin, window: blocks }));
        fixture.pass(SECOND);
        let next = parts(&mut fixture, 3, 0, 0);
        let stream = next.stream;
        fixture.command(next.start());
        fixture.command(Command::Stop(stream));
        assert!(retired(&fixture, stream), "nothing of it is under way");
        fixture.command(Command::Stop(pin));
        assert!(retired(&fixture, pin));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}
