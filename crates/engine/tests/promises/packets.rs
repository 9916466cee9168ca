//! Streams that leave as datagrams: each at its own time, whatever becomes of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use tactus_core::datagrams::{Framing, Gathering, PAYLOAD, Session};
use tactus_core::ports::SocketHandle;
use tactus_core::rtp;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{Command, Datagrams, Outcome, Output, Rate, StreamId};

use crate::fixture::{BOTH, CYCLE, Datagram, Fixture, Room, TICK, TITLE, content};
use crate::{RATE, finished, retired};

const SESSION: Session = Session { source: 0x5eed, sequence: 65_000, timestamp: u32::MAX - 7 };
const PACED: Option<Rate> = Some(Rate { rate: BitRate(RATE), burst: Bytes(0), tick: Tick::Ms10 });

/// Two UDP outputs, and an address for each stream.
fn output(number: u32, burst: Nanos) -> Datagrams {
    let to = SocketAddr::from(([239, 1, 1, number as u8], 5004));
    Datagrams { burst, ..Datagrams::to(SocketHandle(70 + number as i32 % 2), to) }
}

struct StreamSpec {
    title: i32,
    pace: Option<Rate>,
    framing: Framing,
    burst: Nanos,
    repeats: bool,
}

impl StreamSpec {
    fn rtp(title: i32) -> Self {
        let framing = Framing::Rtp(SESSION);
        Self { title, pace: PACED, framing, burst: Nanos(0), repeats: false }
    }
}

fn start(fixture: &mut Fixture, spec: StreamSpec) -> StreamId {
    let mut start = fixture.start_of(spec.title, spec.pace, 0..TITLE.0);
    let stream = start.stream;
    start.framing = spec.framing;
    start.output = Output::Datagrams(output(stream.index, spec.burst));
    if spec.repeats {
        start = start.repeating();
    }
    fixture.begin(start);
    stream
}

/// What has left for a stream.
fn left(fixture: &Fixture, stream: StreamId) -> Vec<Datagram> {
    let to = output(stream.index, Nanos(0)).to;
    let network = fixture.network();
    network.datagrams.iter().filter(|datagram| datagram.to == to).cloned().collect()
}

fn payload(datagrams: &[Datagram]) -> Vec<u8> {
    datagrams.iter().flat_map(|datagram| &datagram.bytes[rtp::HEADER..]).copied().collect()
}

/// When datagram `nth` of a stream of [`RATE`] is due after the first.
fn due(nth: usize) -> Nanos {
    BitRate(RATE).time_for(Bytes(PAYLOAD.0 * nth as u64))
}

/// The first tick at or after a time.
fn tick_of(time: MonoTime) -> MonoTime {
    MonoTime(time.0.div_ceil(TICK.0) * TICK.0)
}

/// How late each datagram left after the first, at the earliest moment that the first can have been
/// due.
fn lateness(datagrams: &[Datagram]) -> Vec<u64> {
    let begin = datagrams[0].at.before(TICK);
    (0..).zip(datagrams).map(|(nth, each)| each.at.since(begin + due(nth)).0).collect()
}

#[test]
fn each_datagram_leaves_in_the_tick_in_which_it_is_due() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = start(&mut fixture, StreamSpec::rtp(3));
        fixture.pass(SECOND.times(11));
        let datagrams = left(&fixture, stream);
        assert_eq!(payload(&datagrams), content(3, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert!(retired(&fixture, stream));
        // The first was due within the tick before it left: that leaves one law for all others.
        let possible = (0..TICK.0).map(|ago| datagrams[0].at.before(Nanos(ago)));
        let fits = |begin: &MonoTime| {
            (0..).zip(&datagrams).all(|(nth, each)| each.at == tick_of(*begin + due(nth)))
        };
        assert!(possible.into_iter().any(|begin| fits(&begin)));
        for (nth, each) in datagrams.iter().enumerate() {
            let packet = rtp::Packet::read(&each.bytes).unwrap();
            assert_eq!((packet.source, packet.payload_type), (SESSION.source, rtp::MP2T));
            assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(nth as u16));
            let ticks = packet.timestamp.wrapping_sub(SESSION.timestamp);
            assert_eq!(u64::from(ticks), due(nth).0 * 9 / 100_000);
        }
        let counters = &fixture.control.counters;
        assert_eq!(counters.packets[0].underruns.value(), 0);
        assert_eq!(counters.packets[0].datagrams.value(), datagrams.len() as u64);
        assert_eq!(counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn a_port_that_keeps_the_time_is_told_when_each_datagram_is_due() {
    for memory in BOTH {
        let ahead = MILLISECOND.times(2);
        let mut fixture = Fixture::with_ahead(memory, ahead);
        // It takes them one by one, whatever burst is allowed.
        let streams = [Nanos(0), MILLISECOND.times(16)]
            .map(|burst| start(&mut fixture, StreamSpec { burst, ..StreamSpec::rtp(3) }));
        fixture.pass(SECOND.times(11));
        for stream in streams {
            let datagrams = left(&fixture, stream);
            assert_eq!(payload(&datagrams), content(3, 0, TITLE.0));
            // Exactly, and not by ticks.
            let apart =
                (0..).zip(&datagrams).map(|(nth, each)| each.at.since(datagrams[0].at) == due(nth));
            assert!(apart.into_iter().all(|is_exact| is_exact));
        }
        let counters = &fixture.control.counters.packets[0];
        assert_eq!((counters.underruns.value(), counters.stalls.value()), (0, 0));
    }
}

/// Begins `spec` behind another stream, to the same receivers.
fn start_after(fixture: &mut Fixture, spec: StreamSpec, before: StreamId) -> StreamId {
    let mut start = fixture.start_of(spec.title, spec.pace, 0..TITLE.0);
    let stream = start.stream;
    let output = output(before.index, spec.burst);
    start.framing = spec.framing;
    start.output = Output::Datagrams(Datagrams { after: Some(before), ..output });
    fixture.begin(start);
    stream
}

/// What has left is one RTP session, of packets this far apart.
fn assert_one_session(datagrams: &[Datagram]) {
    for (nth, each) in datagrams.iter().enumerate() {
        let packet = rtp::Packet::read(&each.bytes).expect("RTP");
        assert_eq!(packet.source, SESSION.source);
        assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(nth as u16), "{nth}");
        // Each leaves in the tick of its timestamp, whatever has moved its clock.
        let ticks = packet.timestamp.wrapping_sub(SESSION.timestamp);
        let since = each.at.since(datagrams[0].at);
        let due = Nanos(u64::from(ticks) * 100_000 / 9);
        assert!(since.0.abs_diff(due.0) <= 2 * TICK.0, "{nth}: {since} and {due}");
    }
}

#[test]
fn a_stream_follows_another_without_a_gap_in_its_session() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let first = start(&mut fixture, StreamSpec::rtp(3));
        fixture.pass(SECOND.times(5));
        // Its own session is not used.
        let framing = Framing::Rtp(Session { source: 9, sequence: 9, timestamp: 9 });
        let second = start_after(&mut fixture, StreamSpec { framing, ..StreamSpec::rtp(4) }, first);
        fixture.pass(SECOND);
        let counters = std::sync::Arc::clone(&fixture.control.counters.streams);
        let count = |stream: StreamId| counters[stream.index as usize].session_packets.value();
        assert_eq!((count(second), counters[second.index as usize].epoch.value()), (0, 0));
        fixture.pass(SECOND.times(8));
        let per_title = TITLE.0.div_ceil(PAYLOAD.0);
        assert!(count(second) > per_title, "those of the stream before are counted");
        fixture.pass(SECOND.times(9));
        let datagrams = left(&fixture, first);
        let both = [content(3, 0, TITLE.0), content(4, 0, TITLE.0)].concat();
        assert_eq!(payload(&datagrams), both);
        assert_one_session(&datagrams);
        // The second one's first is due when the first one's next would have been.
        let at = per_title as usize;
        let all = BitRate(RATE).time_for(TITLE);
        let since = datagrams[at].at.since(datagrams[0].at);
        assert!(since.0.abs_diff(all.0) <= 2 * TICK.0);
        assert_eq!(finished(&fixture, second), Some((Outcome::Complete, TITLE)));
        assert!(retired(&fixture, first) && retired(&fixture, second));
        let counters = &fixture.control.counters;
        assert_eq!(counters.packets[0].underruns.value(), 0);
        assert_eq!(counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn who_is_read_before_whom_it_follows_waits_for_it() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        fixture.disk().late = vec![3];
        let first = start(&mut fixture, StreamSpec::rtp(3));
        let second = start_after(&mut fixture, StreamSpec::rtp(4), first);
        fixture.pass(SECOND);
        assert!(left(&fixture, first).is_empty());
        fixture.disk().late.clear();
        fixture.pass(SECOND.times(24));
        let datagrams = left(&fixture, first);
        let both = [content(3, 0, TITLE.0), content(4, 0, TITLE.0)].concat();
        assert!(payload(&datagrams) == both);
        assert_one_session(&datagrams);
        assert!(retired(&fixture, first) && retired(&fixture, second));

        // For what can never be read nobody waits.
        fixture.network().datagrams.clear();
        fixture.disk().late = vec![5];
        let first = start(&mut fixture, StreamSpec::rtp(5));
        let second = start_after(&mut fixture, StreamSpec::rtp(6), first);
        fixture.pass(SECOND);
        fixture.disk().failing.insert(5, 5);
        fixture.disk().late.clear();
        fixture.pass(SECOND.times(12));
        let datagrams = left(&fixture, first);
        assert!(payload(&datagrams) == content(6, 0, TITLE.0));
        assert_one_session(&datagrams);
        assert!(retired(&fixture, first) && retired(&fixture, second));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn who_is_skipped_makes_way_at_once_and_who_comes_late_goes_on_in_the_session() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let first = start(&mut fixture, StreamSpec::rtp(3));
        fixture.pass(SECOND.times(3));
        let second = start_after(&mut fixture, StreamSpec::rtp(4), first);
        fixture.pass(SECOND.times(2));
        // Somebody has changed his mind: what waits goes, and leaves no trace.
        fixture.command(Command::Stop(second));
        let third = start_after(&mut fixture, StreamSpec::rtp(2), first);
        fixture.pass(SECOND.times(2));
        assert!(retired(&fixture, second));
        fixture.command(Command::Stop(first));
        fixture.pass(SECOND.times(2));
        let datagrams = left(&fixture, first);
        assert_one_session(&datagrams);
        let sent = finished(&fixture, first).unwrap().1;
        let payload = payload(&datagrams);
        let (own, next) = payload.split_at(sent.0 as usize);
        assert_eq!(own, content(3, 0, sent.0));
        assert!(!next.is_empty());
        assert_eq!(next, content(2, 0, next.len() as u64));
        let at = sent.0.div_ceil(PAYLOAD.0) as usize;
        let gap = datagrams[at].at.since(datagrams[at - 1].at);
        assert!(gap <= due(1) + TICK.times(2), "{gap}");

        // A third one that begins when nobody is there any more: later, but in the session.
        fixture.command(Command::Stop(third));
        fixture.pass(SECOND);
        let before = left(&fixture, first).len();
        let fourth = start_after(&mut fixture, StreamSpec::rtp(1), third);
        let fourth_to = output(third.index, Nanos(0)).to;
        fixture.pass(SECOND.times(2));
        let network = fixture.network();
        let late: Vec<_> =
            network.datagrams.iter().filter(|each| each.to == fourth_to).cloned().collect();
        let packet = rtp::Packet::read(&late[0].bytes).unwrap();
        assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(before as u16));
        drop(network);
        fixture.command(Command::Stop(fourth));
        fixture.pass(SECOND);
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

/// The number of turns in which datagrams have left since then.
fn turns_since(fixture: &Fixture, from: MonoTime) -> u64 {
    let network = fixture.network();
    let turns = network.datagrams.iter().map(|each| each.at).filter(|&at| at > from);
    turns.collect::<BTreeSet<_>>().len() as u64
}

#[test]
fn few_streams_of_one_rate_leave_in_the_same_turns() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let mut streams: Vec<_> = (0..4).map(|_| start(&mut fixture, StreamSpec::rtp(1))).collect();
        fixture.pass(SECOND);
        streams.extend((0..4).map(|_| start(&mut fixture, StreamSpec::rtp(1))));
        fixture.pass(SECOND);
        let from = fixture.now;
        fixture.pass(SECOND.times(4));
        // One turn for the datagrams of all streams.
        let turns = turns_since(&fixture, from);
        assert!(turns <= 4 * RATE / 8 / PAYLOAD.0 + 1, "{turns}");
        for stream in streams {
            let datagrams = left(&fixture, stream);
            assert!(lateness(&datagrams).iter().all(|&late| late <= 2 * TICK.0));
            assert_eq!(payload(&datagrams), content(1, 0, payload(&datagrams).len() as u64));
        }
        let blocks = &fixture.control.counters.blocks[0];
        assert!(blocks.hits.value() >= 6 * blocks.misses.value(), "eight streams, one reading");
    }
}

#[test]
fn streams_that_one_turn_has_no_room_for_leave_in_turns_of_their_own() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let burst = MILLISECOND.times(16);
        let spec = || StreamSpec { burst, ..StreamSpec::rtp(1) };
        let streams: Vec<_> = (0..8).map(|_| start(&mut fixture, spec())).collect();
        fixture.pass(SECOND.times(4));
        // 100 us of 1 Gbit/s are nine datagrams, so three messages of three. They leave each 15 ms,
        // at multiples of 2 ms.
        let mut turns = BTreeMap::<_, usize>::new();
        for datagram in streams.iter().flat_map(|&each| left(&fixture, each)) {
            *turns.entry(datagram.at).or_default() += 1;
        }
        assert_eq!(turns.values().max(), Some(&9));
        let cycles = SECOND.times(4).0 / due(3).0;
        assert!(turns.len() as u64 <= 3 * cycles, "{} turns", turns.len());
    }
}

#[test]
fn a_stall_of_the_machine_leaves_the_streams_in_the_same_turns() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams: Vec<_> = (0..4).map(|_| start(&mut fixture, StreamSpec::rtp(1))).collect();
        fixture.pass(SECOND);
        fixture.stand_still(MILLISECOND.times(1234));
        fixture.pass(SECOND);
        let late = start(&mut fixture, StreamSpec::rtp(1));
        fixture.pass(SECOND);
        let from = fixture.now;
        fixture.pass(SECOND.times(2));
        let turns = turns_since(&fixture, from);
        assert_eq!(fixture.control.counters.packets[0].stalls.value(), 1);
        assert!(turns <= 2 * RATE / 8 / PAYLOAD.0 + 1, "{turns}");
        assert!(streams.into_iter().chain([late]).all(|each| !left(&fixture, each).is_empty()));
    }
}

#[test]
fn a_successor_of_the_same_rate_stays_in_the_turns_of_its_predecessor() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let others: Vec<_> = (0..3).map(|_| start(&mut fixture, StreamSpec::rtp(1))).collect();
        let first = start(&mut fixture, StreamSpec::rtp(3));
        fixture.pass(SECOND.times(2));
        let second = start_after(&mut fixture, StreamSpec::rtp(2), first);
        fixture.pass(SECOND);
        fixture.command(Command::Stop(first));
        fixture.pass(SECOND);
        let from = fixture.now;
        fixture.pass(SECOND.times(2));
        let turns = turns_since(&fixture, from);
        assert!(turns <= 2 * RATE / 8 / PAYLOAD.0 + 1, "{turns}");
        // It leaves its place at its end, like the others: the next stream shares a turn again.
        for stream in others.into_iter().chain([second]) {
            fixture.command(Command::Stop(stream));
        }
        fixture.pass(SECOND);
        let again: Vec<_> = (0..9).map(|_| start(&mut fixture, StreamSpec::rtp(1))).collect();
        fixture.pass(SECOND);
        let from = fixture.now;
        fixture.pass(SECOND.times(2));
        let turns = turns_since(&fixture, from);
        assert!(turns <= 2 * RATE / 8 / PAYLOAD.0 + 1, "{turns}");
        assert!(again.into_iter().all(|each| !left(&fixture, each).is_empty()));
    }
}

#[test]
fn a_title_that_repeats_goes_on_without_a_gap_until_it_is_stopped() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = start(&mut fixture, StreamSpec { repeats: true, ..StreamSpec::rtp(2) });
        fixture.pass(SECOND.times(25));
        let datagrams = left(&fixture, stream);
        let bytes = payload(&datagrams);
        assert!(bytes.len() as u64 > TITLE.0 * 2);
        assert!(
            bytes.chunks(TITLE.0 as usize).all(|turn| content(2, 0, turn.len() as u64) == turn)
        );
        assert!(lateness(&datagrams).iter().all(|&late| late <= 2 * TICK.0));
        assert_eq!(fixture.control.counters.packets[0].underruns.value(), 0);
        assert_eq!(finished(&fixture, stream), None);
        fixture.command(Command::Stop(stream));
        fixture.pass(SECOND);
        assert_eq!(finished(&fixture, stream), Some((Outcome::Stopped, Bytes(bytes.len() as u64))));
        assert!(retired(&fixture, stream));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn a_full_socket_makes_late_and_loses_nothing() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams =
            [start(&mut fixture, StreamSpec::rtp(1)), start(&mut fixture, StreamSpec::rtp(2))];
        fixture.pass(SECOND);
        fixture.network().takes = Some(3);
        fixture.pass(MILLISECOND.times(40));
        fixture.network().takes = None;
        fixture.pass(SECOND);
        for (stream, title) in streams.into_iter().zip([1, 2]) {
            let datagrams = left(&fixture, stream);
            assert_eq!(payload(&datagrams), content(title, 0, payload(&datagrams).len() as u64));
            let late = lateness(&datagrams);
            let latest = *late.iter().max().unwrap();
            assert!((25_000_000..41_000_000).contains(&latest), "{latest}");
            // Nobody after it.
            let over = late.iter().rposition(|&late| late > 2 * TICK.0).unwrap();
            assert!(over < late.len() - 100);
        }
        assert_eq!(fixture.control.counters.packets[0].stalls.value(), 0);
    }
}

/// What left in the second after a pause of the link or the machine.
fn assert_one_second_without_a_burst(after: &[Datagram]) {
    assert!(after.len().abs_diff((RATE / 8 / PAYLOAD.0) as usize) < 5, "{}", after.len());
    let gaps: Vec<_> = after.windows(2).map(|pair| pair[1].at.since(pair[0].at).0).collect();
    // What was gathered when the link stopped leaves at once; its gap to the next is anything up to
    // a whole one.
    assert!(gaps[1..].iter().all(|gap| gap.abs_diff(due(1).0) <= TICK.0), "{gaps:?}");
}

#[test]
fn after_a_long_pause_of_the_link_or_the_machine_nothing_comes_in_one_burst() {
    for memory in BOTH {
        for is_link in [true, false] {
            let mut fixture = Fixture::new(memory);
            let stream = start(&mut fixture, StreamSpec::rtp(1));
            fixture.pass(SECOND);
            let before = left(&fixture, stream).len();
            if is_link {
                fixture.network().takes = Some(0);
                fixture.pass(SECOND.times(2));
                fixture.network().takes = None;
            } else {
                fixture.stand_still(SECOND.times(2));
            }
            fixture.pass(SECOND);
            let datagrams = left(&fixture, stream);
            assert_eq!(payload(&datagrams), content(1, 0, payload(&datagrams).len() as u64));
            assert_one_second_without_a_burst(&datagrams[before..]);
            assert_eq!(fixture.control.counters.packets[0].stalls.value(), 1);
            assert_eq!(fixture.control.counters.packets[0].underruns.value(), 0);
        }
    }
}

#[test]
fn a_turn_that_comes_late_sends_all_that_is_due_of_a_stream_as_one_message() {
    for memory in BOTH {
        for burst in [Nanos(0), MILLISECOND.times(16)] {
            let mut fixture = Fixture::new(memory);
            let stream = start(&mut fixture, StreamSpec { burst, ..StreamSpec::rtp(1) });
            fixture.pass(SECOND);
            let messages = fixture.control.counters.packets[0].messages.value();
            let before = left(&fixture, stream).len();
            fixture.stand_still(MILLISECOND.times(60));
            assert_eq!(fixture.control.counters.packets[0].messages.value(), messages + 1);
            let datagrams = left(&fixture, stream);
            // A gap is 5.02 ms, and what waits for a message waits for three of them.
            assert!(
                (10..=13).contains(&(datagrams.len() - before)),
                "{}",
                datagrams.len() - before
            );
            let latest =
                fixture.control.counters.streams[stream.index as usize].lateness_max.value();
            assert!((40_000_000..=60_000_000).contains(&latest), "nothing is hidden: {latest}");
            fixture.pass(SECOND.times(10));
            let datagrams = left(&fixture, stream);
            assert_eq!(payload(&datagrams), content(1, 0, TITLE.0));
            let begin = datagrams[0].at;
            for (nth, each) in datagrams.iter().enumerate() {
                // The first one waited for its message, and for a tick.
                assert!(each.at + burst + TICK >= begin + due(nth), "{nth} is early");
                let is_late = each.at > begin + due(nth) + burst.max(TICK) + TICK;
                assert!(!is_late || (before..before + 13).contains(&nth), "{nth} is late");
            }
            assert_eq!(fixture.control.counters.packets[0].stalls.value(), 0);
        }
    }
}

#[test]
fn what_the_kernel_refuses_is_counted_and_the_stream_goes_on() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let [gone, other] =
            [start(&mut fixture, StreamSpec::rtp(1)), start(&mut fixture, StreamSpec::rtp(2))];
        fixture.pass(SECOND);
        let before = left(&fixture, gone).len();
        fixture.network().unreachable.push(output(gone.index, Nanos(0)).to);
        fixture.pass(SECOND);
        fixture.network().unreachable.clear();
        fixture.pass(SECOND);
        let datagrams = left(&fixture, gone);
        let lost = fixture.control.counters.packets[0].refused.value();
        assert!(lost.abs_diff(RATE / 8 / PAYLOAD.0) <= 1, "a second of them");
        // Those after the gap are those of their time.
        let next = rtp::Packet::read(&datagrams[before].bytes).unwrap().sequence;
        assert_eq!(u64::from(next.wrapping_sub(SESSION.sequence)), before as u64 + lost);
        let others = left(&fixture, other);
        assert_eq!(payload(&others), content(2, 0, payload(&others).len() as u64));
        assert!(lateness(&others).iter().all(|&late| late <= 2 * TICK.0));
    }
}

#[test]
fn what_a_slow_disk_has_not_brought_is_an_underrun_and_not_owed_at_once() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = start(&mut fixture, StreamSpec::rtp(1));
        fixture.pass(SECOND);
        fixture.disk().holds = true;
        fixture.pass(SECOND.times(2));
        fixture.disk().holds = false;
        fixture.pass(SECOND.times(2));
        let datagrams = left(&fixture, stream);
        assert_eq!(payload(&datagrams), content(1, 0, payload(&datagrams).len() as u64));
        let gaps: Vec<_> =
            datagrams.windows(2).map(|pair| pair[1].at.since(pair[0].at).0).collect();
        let long = gaps.iter().filter(|&&gap| gap > due(1).0 + TICK.0).count();
        assert_eq!(long, 1, "one gap");
        // Anything closer than a gap would be a burst.
        assert!(gaps.iter().all(|&gap| gap + TICK.0 >= due(1).0));
        assert_eq!(fixture.control.counters.packets[0].underruns.value(), 1);
    }
}

#[test]
fn a_burst_that_is_allowed_leaves_as_one_message_when_its_last_datagram_is_due() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        // A gap is 5.02 ms.
        let burst = MILLISECOND.times(16);
        let stream = start(&mut fixture, StreamSpec { burst, ..StreamSpec::rtp(1) });
        let plain = start(
            &mut fixture,
            StreamSpec { framing: Framing::Plain, burst, ..StreamSpec::rtp(1) },
        );
        fixture.pass(SECOND.times(11));
        let datagrams = left(&fixture, stream);
        assert_eq!(payload(&datagrams), content(1, 0, TITLE.0));
        let plainly: Vec<u8> = left(&fixture, plain).into_iter().flat_map(|d| d.bytes).collect();
        assert_eq!(plainly, content(1, 0, TITLE.0));
        let messages: Vec<_> = datagrams.chunk_by(|one, next| one.at == next.at).collect();
        assert!(messages[..messages.len() - 1].iter().all(|message| message.len() == 3));
        // They leave at multiples of the grid, so the first may have waited for its whole length.
        let grid = Gathering::of(burst, TICK).grid();
        let last_due = |nth: usize| due(nth * 3 + messages[nth].len() - 1);
        let earliest = (0..messages.len()).map(|nth| messages[nth][0].at.before(last_due(nth)));
        let begin = earliest.min().expect("there are messages");
        for (nth, message) in messages.iter().enumerate() {
            let late = message[0].at.since(begin + last_due(nth));
            assert!(late <= grid + TICK.times(2), "message {nth}: {late}");
            let first = message[0].at.since(begin + due(nth * 3));
            assert!(first <= burst + TICK.times(2), "message {nth}: its first waits for {first}");
        }
    }
}

#[test]
fn a_stream_that_is_stopped_while_its_socket_is_full_gives_everything_back() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let [stopped, other] =
            [start(&mut fixture, StreamSpec::rtp(1)), start(&mut fixture, StreamSpec::rtp(2))];
        fixture.pass(SECOND);
        fixture.network().takes = Some(0);
        fixture.pass(MILLISECOND.times(20));
        fixture.command(Command::Stop(stopped));
        fixture.network().takes = None;
        fixture.pass(SECOND.times(11));
        assert!(retired(&fixture, stopped));
        assert!(matches!(finished(&fixture, stopped), Some((Outcome::Stopped, _))));
        let others = left(&fixture, other);
        assert_eq!(payload(&others), content(2, 0, TITLE.0));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

/// What was gathered when the link stopped is withdrawn, and the pause is seen to all the same.
#[test]
fn who_is_stopped_while_the_link_stands_still_leaves_nobody_a_burst() {
    for memory in BOTH {
        for gathered in 0..2 {
            let mut fixture = Fixture::new(memory);
            let streams =
                [start(&mut fixture, StreamSpec::rtp(1)), start(&mut fixture, StreamSpec::rtp(2))];
            let (stopped, other) = (streams[gathered], streams[1 - gathered]);
            fixture.pass(SECOND);
            let before = left(&fixture, other).len();
            fixture.network().takes = Some(0);
            fixture.pass(SECOND.times(2));
            fixture.command(Command::Stop(stopped));
            fixture.network().takes = None;
            fixture.pass(SECOND);
            let datagrams = left(&fixture, other);
            let (title, sent) = (2 - gathered as i32, payload(&datagrams));
            assert_eq!(sent, content(title, 0, sent.len() as u64));
            assert_one_second_without_a_burst(&datagrams[before..]);
            // Each has a UDP output of its own, which stood still.
            assert_eq!(fixture.control.counters.packets[0].stalls.value(), 2);
        }
    }
}

/// Begins a stream that leaves by a UDP output of its own.
fn start_alone(fixture: &mut Fixture, title: i32) -> StreamId {
    let spec = StreamSpec::rtp(title);
    let mut start = fixture.start_of(spec.title, spec.pace, 0..TITLE.0);
    let stream = start.stream;
    let output = output(stream.index, spec.burst);
    let socket = SocketHandle(100 + stream.index as i32);
    start.framing = spec.framing;
    start.output = Output::Datagrams(Datagrams { socket, ..output });
    fixture.begin(start);
    stream
}

#[test]
fn a_udp_output_that_takes_nothing_makes_its_own_streams_late_and_nobody_else() {
    for memory in BOTH {
        for still in [40, 2000] {
            let mut fixture = Fixture::new(memory);
            let streams = [1, 2, 3, 4].map(|title| start(&mut fixture, StreamSpec::rtp(title)));
            fixture.pass(SECOND);
            fixture.network().still = vec![70];
            fixture.pass(MILLISECOND.times(still));
            fixture.network().still.clear();
            fixture.pass(SECOND.times(14));
            for (stream, title) in streams.into_iter().zip(1..) {
                let datagrams = left(&fixture, stream);
                assert_eq!(payload(&datagrams), content(title, 0, TITLE.0), "nothing is lost");
                let latest = lateness(&datagrams).into_iter().max().expect("some have left");
                let is_late = (still - 6) * 1_000_000 < latest && latest < (still + 1) * 1_000_000;
                let own = datagrams[0].udp_output == 70;
                assert!(if own { is_late } else { latest <= 2 * TICK.0 }, "{latest}");
                let second = datagrams.iter().filter(|each| {
                    let since = each.at.since(datagrams[0].at + SECOND + MILLISECOND.times(still));
                    Nanos(0) < since && since < SECOND
                });
                let most = RATE / 8 / PAYLOAD.0 + if still > 250 { 3 } else { 12 };
                assert!(second.count() as u64 <= most, "what it was late comes in, up to 250 ms");
            }
            let stalls = fixture.control.counters.packets[0].stalls.value();
            assert_eq!(stalls, u64::from(still > 250));
            assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
        }
    }
}

#[test]
fn where_udp_outputs_become_full_one_after_the_other_all_wait_in_the_end_and_nothing_is_lost() {
    for memory in BOTH {
        let mut fixture = Fixture::with(memory, Room { places: 128, window: 6 });
        let streams: Vec<_> = (1..=13).map(|title| start_alone(&mut fixture, title)).collect();
        let good = streams[12];
        fixture.pass(SECOND);
        // Far enough apart for each to have messages in a batch of its own.
        for stream in &streams[..12] {
            fixture.network().still.push(100 + stream.index as i32);
            fixture.pass(MILLISECOND.times(8));
        }
        let before = left(&fixture, good).len();
        fixture.pass(MILLISECOND.times(100));
        assert_eq!(left(&fixture, good).len(), before, "there is no memory for another batch");
        fixture.network().still.clear();
        fixture.pass(SECOND.times(12));
        for (stream, title) in streams.iter().zip(1..) {
            let datagrams = left(&fixture, *stream);
            assert_eq!(payload(&datagrams), content(title, 0, TITLE.0));
            let on_time = lateness(&datagrams).into_iter().take_while(|&late| late <= 2 * TICK.0);
            // Eight others have become full before it was its turn to wait.
            assert!(*stream != good || on_time.count() > (before - 10).min(200 + 8));
        }
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn connections_and_datagrams_share_blocks_and_do_not_disturb_each_other() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let socket = fixture.start(1, RATE);
        let stream = start(&mut fixture, StreamSpec::rtp(1));
        fixture.disk().failing.insert(2, 5);
        let fails = start(&mut fixture, StreamSpec::rtp(2));
        fixture.pass(CYCLE.times(120));
        assert_eq!(fixture.received(socket), content(1, 0, TITLE.0));
        assert_eq!(payload(&left(&fixture, stream)), content(1, 0, TITLE.0));
        assert!(matches!(
            finished(&fixture, fails),
            Some((Outcome::Unreadable { errno: 5, .. }, _))
        ));
        let blocks = TITLE.0 / u64::from(crate::fixture::BLOCK);
        let read = fixture.disk().reads.iter().filter(|&&(title, _)| title == 1).count();
        assert_eq!(read as u64, blocks, "each block is read once");
        for each in [socket, stream, fails] {
            assert!(retired(&fixture, each));
        }
    }
}
