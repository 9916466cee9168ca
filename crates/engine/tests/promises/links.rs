//! Several link servers: each sends its own deliveries, as one would send them all.

use tactus_core::ports::SocketHandle;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, Nanos, SECOND};
use tactus_engine::message::{Command, Connection, LinkId, Outcome, Output, Rate, StreamId};

use crate::fixture::{BOTH, CYCLE, Fixture, LINKS, Room, TITLE, content};
use crate::{BY_THE_CLOCK, finished, retired};

/// Starts a delivery of title 3 by a link server.
fn start(fixture: &mut Fixture, link: u16) -> StreamId {
    let mut parts = fixture.start_of(3, BY_THE_CLOCK, 0..TITLE.0);
    let socket = SocketHandle(parts.stream.index as i32);
    parts.output = Output::Connection(Connection { link: LinkId(link), ..Connection::of(socket) });
    fixture.begin(parts)
}

#[test]
fn each_link_server_sends_its_own_deliveries_at_their_rates() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams: Vec<_> = (0..4).map(|nth| start(&mut fixture, nth % LINKS)).collect();
        fixture.pass(SECOND.times(11));
        let bytes = |stream| -> Vec<u64> {
            fixture.sends(stream).iter().map(|&(_, bytes)| bytes).collect()
        };
        for &stream in &streams {
            assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
            assert_eq!(bytes(stream), bytes(streams[0]), "the link makes no difference");
        }
        for link in &fixture.control.counters.links {
            assert_eq!(link.bytes.value(), 2 * TITLE.0);
            assert_eq!(link.underruns.value(), 0);
        }
    }
}

#[test]
fn a_slot_is_used_by_one_link_server_after_another() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let first = start(&mut fixture, 0);
        fixture.pass(SECOND);
        fixture.command(Command::Stop(first));
        fixture.pass(SECOND);
        assert!(retired(&fixture, first));
        let mut parts = fixture.start_of(3, BY_THE_CLOCK, 0..TITLE.0);
        let socket = SocketHandle(parts.stream.index as i32);
        parts.stream = StreamId { generation: first.generation + 1, ..first };
        let connection = Connection { link: LinkId(1), ..Connection::of(socket) };
        parts.output = Output::Connection(connection);
        let second = fixture.begin(parts);
        fixture.pass(SECOND.times(11));
        assert_eq!(finished(&fixture, second), Some((Outcome::Complete, TITLE)));
        let links = &fixture.control.counters.links;
        assert!(links[0].bytes.value() < TITLE.0 && links[1].bytes.value() == TITLE.0);
        assert_eq!(fixture.control.counters.streams[first.index as usize].bytes.value(), 0);
        assert_eq!(links[1].underruns.value(), 0);
    }
}

#[test]
fn the_other_servers_have_their_polls_between_the_visits_of_a_large_slot() {
    const STREAMS: u64 = 10;
    const EACH: u64 = 262_144;
    // What a link server sends in one poll, as long as its slot is not late.
    const LOAD: u64 = 2 * 1024 * 1024;
    for memory in BOTH {
        let mut fixture = Fixture::with(memory, Room { places: 128, window: 12 });
        let rate = BitRate(EACH * 8 * Tick::Ms250.per_second());
        let pace = Some(Rate { rate, burst: Bytes(0), tick: Tick::Ms250 });
        let streams: Vec<_> =
            (0..STREAMS).map(|title| fixture.start_with(title as i32, pace)).collect();
        fixture.pass(SECOND);
        let (visit, _) = fixture.sends(streams[0])[0];
        let visit = visit + Tick::Ms250.span().times(5);
        fixture.pass(visit.since(fixture.now).saturating_sub(CYCLE));
        // The disk server looks for the end of a transfer in each of its polls.
        fixture.disk().holds = true;
        fixture.pass(visit.since(fixture.now) + Nanos(1));
        assert!(fixture.at_the_device() > 0);
        let network = fixture.network();
        let sends = network.sends.iter().zip(&network.looks_before);
        let sends: Vec<_> = sends.filter(|((at, ..), _)| *at == visit).collect();
        let polls: Vec<u64> = sends
            .chunk_by(|(_, looks), (_, after)| looks == after)
            .map(|poll| poll.iter().map(|((.., bytes), _)| bytes).sum())
            .collect();
        assert_eq!(polls.iter().sum::<u64>(), STREAMS * EACH, "one slot visits all streams");
        assert!(polls.iter().all(|&bytes| bytes < LOAD + EACH), "{polls:?}");
    }
}
