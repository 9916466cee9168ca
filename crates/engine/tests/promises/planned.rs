//! Streams of datagrams with a plan: a transport stream leaves by its own clock, whole, over turns
//! and titles.

use std::net::SocketAddr;
use std::sync::Arc;

use tactus_core::datagrams::{
    Counting, FinalCounters, Framing, PAYLOAD, Plan, Restamping, Session,
};
use tactus_core::polyline::Polyline;
use tactus_core::ports::SocketHandle;
use tactus_core::rtp;
use tactus_core::stagger::Tick;
use tactus_core::ts::{Continuity, PACKET, PCR_BYTE, Packet, Pcr, Pid, set_pcr};
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MediaTime, MonoTime, SECOND};
use tactus_engine::message::{Command, Connection, Datagrams, Outcome, Output, Rate, StreamId};

use crate::fixture::{BOTH, Dice, Fixture, TICK};
use crate::{finished, frames, retired};

const SESSION: Session = Session { source: 0x5eed, sequence: 65_000, timestamp: u32::MAX - 7 };
const TS: u64 = PACKET as u64;
const CLOCK: u16 = 0x100;
/// Near the wrap.
const BASE: Pcr = Pcr::at(MediaTime(Pcr::WRAP.0 - 27_000_000));

/// A second of 1.5 Mbit/s, and one of half as much.
fn line() -> Polyline {
    let second = 27_000_000;
    let points = [(0, 0), (1000, second), (1500, 2 * second)];
    let points: Vec<_> =
        points.iter().map(|&(packets, ticks)| (Bytes(packets * TS), MediaTime(ticks))).collect();
    Polyline::through(&points).expect("it ascends")
}

/// A title by that line: counters of a prime number of packets fit no turn.
fn title(base: Pcr) -> Vec<u8> {
    let line = line();
    let mut counts = [0u8; 3];
    let packets = (0..line.len().0 / TS).map(|nth| {
        let pid = [0, 1, 0, 2, 2, 0, 1][nth as usize % 7];
        let mut bytes = [nth as u8; PACKET];
        let count = counts[pid] & 15;
        counts[pid] = counts[pid].wrapping_add(1);
        bytes[..6].copy_from_slice(&[0x47, 1, pid as u8, 0x30 | count, 7, 0]);
        if pid == 0 {
            bytes[5] = 0x10;
            let ticks = line.ticks(Bytes(nth * TS + PCR_BYTE), 0);
            assert!(set_pcr(&mut bytes, base.after(ticks)));
        }
        bytes
    });
    packets.collect::<Vec<_>>().concat()
}

fn plan(base: Pcr) -> Plan {
    let clock = Some((Pid(CLOCK), base));
    let restamping = Some(Restamping { clock, ..Restamping::default() });
    Plan { line: Some(line()), restamping, ..Plan::default() }
}

fn to(stream: u32) -> SocketAddr {
    SocketAddr::from(([239, 1, 1, stream as u8], 5004))
}

struct StreamSpec {
    title: i32,
    plan: Plan,
    repeats: bool,
    after: Option<StreamId>,
}

fn start(fixture: &mut Fixture, spec: StreamSpec) -> StreamId {
    let rate = line().peak(Bytes(0), Bytes(u64::from(crate::fixture::BLOCK)));
    let pace = Some(Rate { rate, burst: Bytes(0), tick: Tick::Ms10 });
    let mut start = fixture.start_of(spec.title, pace, 0..line().len().0);
    start.origin.len = line().len();
    let stream = start.stream;
    start.framing = Framing::Rtp(SESSION);
    let output = Datagrams::to(SocketHandle(70), to(stream.index));
    start.output = Output::Datagrams(Datagrams { after: spec.after, ..output });
    start.plan = Some(Arc::new(spec.plan));
    if spec.repeats {
        start = start.repeating();
    }
    fixture.begin(start);
    stream
}

/// What has left for some streams, in order: when, and the payload; numbers run on.
fn heard(fixture: &Fixture, streams: &[StreamId]) -> Vec<(MonoTime, Vec<u8>)> {
    let network = fixture.network();
    let own = network
        .datagrams
        .iter()
        .filter(|datagram| streams.iter().any(|stream| to(stream.index) == datagram.to));
    let mut heard = vec![];
    for (nth, datagram) in own.enumerate() {
        let packet = rtp::Packet::read(&datagram.bytes).expect("RTP");
        assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(nth as u16));
        heard.push((datagram.at, packet.payload.to_vec()));
    }
    heard
}

/// Counters do not break; answers where the clock's stamps are and what they show.
fn read(bytes: &[u8]) -> Vec<(u64, Pcr)> {
    let mut watch = Continuity::default();
    let mut clocks = vec![];
    for (nth, bytes) in bytes.chunks(PACKET).enumerate() {
        let packet = Packet::first_of(bytes).expect("whole packets");
        assert_eq!(watch.handle_packet(&packet), None, "packet {nth}");
        clocks.extend(packet.pcr().map(|pcr| (nth as u64 * TS + PCR_BYTE, pcr)));
    }
    clocks
}

/// The packets that say that their clock is another one.
fn marks(bytes: &[u8]) -> Vec<u64> {
    let packets = bytes.chunks(PACKET).filter_map(Packet::first_of).zip(0..);
    packets.filter(|(packet, _)| packet.is_discontinuous()).map(|(_, nth)| nth).collect()
}

fn fixture(memory: crate::fixture::Memory) -> Fixture {
    let fixture = Fixture::new(memory);
    let mut disk = fixture.disk();
    disk.contents.insert(1, title(BASE));
    disk.contents.insert(2, title(Pcr::at(MediaTime(5))));
    drop(disk);
    fixture
}

#[test]
fn a_variable_title_that_repeats_leaves_by_one_clock_without_a_break() {
    for memory in BOTH {
        let mut fixture = fixture(memory);
        let spec = StreamSpec { title: 1, plan: plan(BASE), repeats: true, after: None };
        let stream = start(&mut fixture, spec);
        fixture.pass(SECOND.times(13));
        let heard = heard(&fixture, &[stream]);
        let bytes: Vec<u8> = heard.iter().flat_map(|(_, payload)| payload).copied().collect();
        assert!(bytes.len() as u64 > line().len().0 * 6);
        for (at, pcr) in read(&bytes) {
            assert_eq!(pcr, BASE.after(line().ticks(Bytes(at), 0)));
        }
        let begin = heard[0].0.before(TICK);
        for (nth, (at, _)) in heard.iter().enumerate() {
            let due = begin + line().due(Bytes(nth as u64 * PAYLOAD.0), 0);
            assert!(*at >= due && at.since(due) <= TICK.times(2), "{nth}");
        }
        let counters = &fixture.control.counters.packets[0];
        assert_eq!((counters.underruns.value(), counters.unstamped.value()), (0, 0));
        // Each second against what was due in it: a datagram more or less.
        let off = counters.deviation.snapshot();
        assert!(off.count() > 8 && off.quantile(1.0) < 30_000, "{}", off.quantile(1.0));
        fixture.command(Command::Stop(stream));
        fixture.pass(SECOND);
        assert!(retired(&fixture, stream));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn in_frames_it_is_byte_for_byte_what_datagrams_carry_whatever_the_socket_takes() {
    for memory in BOTH {
        for seed in 0..4 {
            println!("seed {seed}");
            let mut fixture = fixture(memory);
            let mut table = [0xff; PACKET];
            table[..4].copy_from_slice(&[0x47, 0x40, 0, 0x10]);
            let kept = Arc::new(FinalCounters::default());
            let counting = Counting {
                before: [].into(),
                tables: [].into(),
                jumps: false,
                kept: Arc::clone(&kept),
            };
            let plan = Plan { counting: Some(counting), ..plan(BASE).with_front(&table) };
            let datagrams = Plan { counting: None, ..plan.clone() };
            let spec = StreamSpec { title: 1, plan: datagrams, repeats: true, after: None };
            let by_datagrams = start(&mut fixture, spec);
            let rate = line().peak(Bytes(0), Bytes(u64::from(crate::fixture::BLOCK)));
            let pace = Some(Rate { rate, burst: Bytes(0), tick: Tick::Ms10 });
            let mut spec = fixture.start_of(1, pace, 0..line().len().0);
            spec.origin.len = line().len();
            let in_frames = spec.stream;
            let socket = SocketHandle(in_frames.index as i32);
            let channel = frames::CHANNEL;
            spec.framing = Framing::Rtp(SESSION);
            spec.output = Output::Connection(Connection { channel, ..Connection::of(socket) });
            spec.plan = Some(Arc::new(plan));
            fixture.begin(spec.repeating());
            if seed > 0 {
                fixture.network().moody.insert(in_frames.index as i32, Dice(seed));
            }
            fixture.pass(SECOND.times(7));
            for stream in [by_datagrams, in_frames] {
                fixture.command(Command::Stop(stream));
            }
            fixture.pass(SECOND);
            let heard = heard(&fixture, &[by_datagrams]);
            let heard: Vec<u8> = heard.iter().flat_map(|(_, payload)| payload).copied().collect();
            let came = frames::read(&fixture.received(in_frames), &[]);
            assert_eq!(came.rest, 0);
            let both = came.payload.len().min(heard.len());
            assert!(both as u64 > line().len().0 * 2 && came.payload[..both] == heard[..both]);
            read(&came.payload);
            // What has left is known to whoever goes on.
            let last = |pid: u16| {
                let mut packets = came.payload.chunks(PACKET).filter_map(Packet::first_of);
                packets.rfind(|packet| packet.pid() == Pid(pid)).map(|last| last.continuity())
            };
            let counts = kept.counts();
            assert_eq!(counts.len(), 4);
            assert!(counts.iter().all(|count| last(count.pid.0) == Some(count.last)), "{counts:?}");
            assert!(retired(&fixture, in_frames));
            assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
        }
    }
}

#[test]
fn stuffed_it_leaves_at_a_constant_rate_and_so_does_its_clock() {
    for memory in BOTH {
        let mut fixture = fixture(memory);
        let rate = BitRate(2_000_000);
        let spec =
            StreamSpec { title: 1, plan: plan(BASE).stuffed(rate), repeats: true, after: None };
        let stream = start(&mut fixture, spec);
        fixture.pass(SECOND.times(9));
        let heard = heard(&fixture, &[stream]);
        let bytes: Vec<u8> = heard.iter().flat_map(|(_, payload)| payload).copied().collect();
        for (at, pcr) in read(&bytes) {
            let law = at * 216_000_000 / rate.0;
            assert_eq!(pcr, BASE.after(MediaTime(law)));
        }
        let begin = heard[0].0.before(TICK);
        for (nth, (at, payload)) in heard.iter().enumerate() {
            assert_eq!(payload.len() as u64, PAYLOAD.0);
            let due = begin + rate.time_for(Bytes(nth as u64 * PAYLOAD.0));
            assert!(*at >= due && at.since(due) <= TICK.times(2), "{nth}");
        }
        let is_null = |bytes: &&[u8]| Packet::first_of(bytes).is_some_and(|p| p.pid() == Pid::NULL);
        let nulls = bytes.chunks(PACKET).filter(is_null).count();
        let counters = &fixture.control.counters.packets[0];
        assert_eq!(counters.stuffed.value(), nulls as u64);
        // Of 2 Mbit/s 44 % are the title's.
        assert!((nulls * PACKET * 100 / bytes.len()).abs_diff(44) < 5, "{nulls}");
        assert_eq!((counters.underruns.value(), counters.slots_late.value()), (0, 0));
        assert_eq!(counters.deviation.snapshot().quantile(1.0) / 10_000, 0);
    }
}

#[test]
fn a_title_follows_another_one_as_if_both_were_one() {
    for memory in BOTH {
        for is_stopped in [false, true] {
            let mut fixture = fixture(memory);
            let spec =
                |title, base, after| StreamSpec { title, plan: plan(base), repeats: false, after };
            let one = start(&mut fixture, spec(1, BASE, None));
            fixture.pass(MILLISECOND.times(500));
            let other_base = Pcr::at(MediaTime(5));
            let tables: Vec<u8> = (0..2u8)
                .flat_map(|count| {
                    let mut bytes = [0xff; PACKET];
                    bytes[..4].copy_from_slice(&[0x47, 0, 0, 0x10 | count]);
                    bytes
                })
                .collect();
            let mut next = spec(2, other_base, Some(one));
            next.plan = next.plan.with_front(&tables);
            let two = start(&mut fixture, next);
            fixture.pass(MILLISECOND.times(500));
            assert!(heard(&fixture, &[two]).is_empty(), "it waits");
            if is_stopped {
                fixture.command(Command::Stop(one));
            }
            fixture.pass(SECOND.times(5));
            let outcome = if is_stopped { Outcome::Stopped } else { Outcome::Complete };
            assert_eq!(finished(&fixture, one).map(|(outcome, _)| outcome), Some(outcome));
            assert_eq!(finished(&fixture, two), Some((Outcome::Complete, line().len())));
            let heard = heard(&fixture, &[one, two]);
            let bytes: Vec<u8> = heard.iter().flat_map(|(_, payload)| payload).copied().collect();
            let clocks = read(&bytes);
            assert_eq!(marks(&bytes), [], "nothing jumps");
            // No stamp is further from the one before than in the title itself: 7 packets at most
            // there.
            for pair in clocks.windows(2) {
                let apart = pair[1].1.since(pair[0].1);
                assert!(apart.0 > 0 && apart.0 < 54_000 * 6, "{pair:?}");
            }
            // Nor is any datagram: seven packets at the slower rate, or less where one is short.
            let slow = BitRate(752_000).time_for(PAYLOAD);
            for pair in heard.windows(2) {
                assert!(pair[1].0.since(pair[0].0) <= slow + TICK.times(2));
            }
            assert!(retired(&fixture, one) && retired(&fixture, two));
            assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
        }
    }
}

#[test]
fn who_follows_a_stream_that_has_ended_goes_on_at_once() {
    let mut fixture = fixture(BOTH[0]);
    let spec = |title, after| StreamSpec { title, plan: plan(BASE), repeats: false, after };
    let one = start(&mut fixture, spec(1, None));
    fixture.pass(SECOND.times(4));
    assert!(retired(&fixture, one));
    let two = start(&mut fixture, spec(1, Some(one)));
    fixture.pass(SECOND.times(3));
    assert_eq!(finished(&fixture, two), Some((Outcome::Complete, line().len())));
    let heard = heard(&fixture, &[one, two]);
    let bytes: Vec<u8> = heard.iter().flat_map(|(_, payload)| payload).copied().collect();
    let clocks = read(&bytes);
    // The pause is in its clock, which is one clock still.
    let (first, last) = (clocks[0], clocks[clocks.len() - 1]);
    let passed = heard[heard.len() - 1].0.since(heard[0].0).0 * 27 / 1000;
    assert!(last.1.since(first.1).0.abs_diff(passed) < 27_000_000 / 50);
    // Receivers are told of it (TR 101 290, 2.3b): where its first clock is, and nowhere else.
    let behind = clocks.partition_point(|(at, _)| *at < line().len().0);
    assert_eq!(marks(&bytes), [(clocks[behind].0 - PCR_BYTE) / TS]);
}

#[test]
fn what_leaves_as_it_is_leaves_its_counters_to_who_follows_and_a_clock_that_nobody_knew_is_marked()
{
    for memory in BOTH {
        let mut fixture = fixture(memory);
        // As a title that was to be sent once and alone.
        let counting = Some(Counting::default());
        let plan = |restamping| Plan { restamping, counting: counting.clone(), ..plan(BASE) };
        let one = StreamSpec { title: 1, plan: plan(None), repeats: false, after: None };
        let one = start(&mut fixture, one);
        fixture.pass(SECOND);
        let two = self::plan(BASE);
        let two = start(
            &mut fixture,
            StreamSpec { title: 1, plan: two, repeats: false, after: Some(one) },
        );
        fixture.pass(MILLISECOND.times(500));
        fixture.command(Command::Stop(one));
        fixture.pass(SECOND.times(3));
        let first: usize = heard(&fixture, &[one]).iter().map(|(_, payload)| payload.len()).sum();
        let both: Vec<u8> =
            heard(&fixture, &[one, two]).into_iter().flat_map(|(_, payload)| payload).collect();
        assert!(first > 0 && both[..first] == title(BASE)[..first], "nothing of it is changed");
        let clocks = read(&both);
        let behind = clocks.partition_point(|(at, _)| *at < first as u64);
        assert_eq!(marks(&both), [(clocks[behind].0 - PCR_BYTE) / TS]);
        // The mark excuses no counter.
        let mut unmarked = both;
        for packet in unmarked.chunks_mut(PACKET).filter(|packet| packet[3] & 0x20 != 0) {
            packet[5] &= 0x7f;
        }
        read(&unmarked);
    }
}

#[test]
fn tables_in_front_leave_first_and_only_once() {
    for memory in BOTH {
        let mut fixture = fixture(memory);
        let mut table = [0xff; PACKET];
        table[..4].copy_from_slice(&[0x47, 0, 0, 0x17]);
        let plan = Plan { restamping: None, ..plan(BASE) }.with_front(&table);
        let stream =
            start(&mut fixture, StreamSpec { title: 1, plan, repeats: false, after: None });
        fixture.pass(SECOND.times(4));
        let bytes: Vec<u8> =
            heard(&fixture, &[stream]).into_iter().flat_map(|(_, payload)| payload).collect();
        assert!(bytes == [&table[..], &title(BASE)].concat(), "and nothing is changed");
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, line().len())));
        assert!(retired(&fixture, stream));
    }
}
