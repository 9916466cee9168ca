//! Streams that leave in frames of a connection: whole frames, whole messages between them,
//! whatever the socket takes at a time.

use std::sync::Arc;

use tactus_core::datagrams::{Framing, PAYLOAD, Plan, Session};
use tactus_core::ports::SocketHandle;
use tactus_core::rtp::{self, frame};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, Nanos, SECOND};
use tactus_engine::message::{
    Command, Connection, Extent, INTERLEAVED_MAX, Outcome, Output, Rate, Report, StreamId,
};

use crate::fixture::{BLOCK, BOTH, CYCLE, Dice, Fixture, Memory, Parts, TITLE, content};
use crate::{BY_THE_CLOCK, RATE, finished, retired};

const SESSION: Session = Session { source: 0x5eed, sequence: 65_000, timestamp: u32::MAX - 7 };
pub(super) const CHANNEL: u8 = 4;
const FRAME: u64 = frame::HEAD as u64 + rtp::HEADER as u64 + PAYLOAD.0;

/// Of the title, the last one shorter than the others.
const IN_FRAMES: u64 = TITLE.0 + TITLE.0.div_ceil(PAYLOAD.0) * (frame::HEAD + rtp::HEADER) as u64;

fn in_frames(fixture: &mut Fixture, title: i32) -> Parts {
    let mut start = fixture.start_of(title, BY_THE_CLOCK, 0..TITLE.0);
    let socket = SocketHandle(start.stream.index as i32);
    start.framing = Framing::Rtp(SESSION);
    start.output = Output::Connection(Connection { channel: CHANNEL, ..Connection::of(socket) });
    start
}

fn start(fixture: &mut Fixture, title: i32) -> StreamId {
    let start = in_frames(fixture, title);
    let stream = start.stream;
    fixture.begin(start);
    stream
}

fn message(number: u64, len: usize) -> Box<[u8]> {
    let mut message = format!("RTSP/1.0 {number} $").into_bytes();
    // A message may hold anything, also what looks like a frame.
    message.resize(len.max(message.len()), b'$');
    message.into()
}

fn insert(fixture: &mut Fixture, stream: StreamId, message: &[u8]) {
    fixture.command(Command::Interleave { stream, message: message.into() });
}

/// What was said of each message.
fn inserted(fixture: &Fixture) -> Vec<(StreamId, Vec<u8>, bool)> {
    let of_message = |report: &Report| match report {
        Report::Interleaved { stream, message, is_sent } => {
            Some((*stream, message.to_vec(), *is_sent))
        }
        _ => None,
    };
    fixture.reports.iter().filter_map(of_message).collect()
}

pub(super) struct ReceivedFrames {
    pub(super) payload: Vec<u8>,
    /// RTP's numbers and times, after the session's.
    packets: Vec<(u16, u32)>,
    messages: usize,
    /// What follows the last whole frame or message.
    pub(super) rest: usize,
}

/// Reads what has come: frames, and each of `messages` once, in order.
pub(super) fn read(bytes: &[u8], messages: &[Box<[u8]>]) -> ReceivedFrames {
    let mut received = ReceivedFrames { payload: vec![], packets: vec![], messages: 0, rest: 0 };
    let mut left = bytes;
    while let Some(&first) = left.first() {
        if first != frame::MARK {
            let message = &messages[received.messages];
            let own = left.len().min(message.len());
            assert_eq!(left[..own], message[..own], "message {}", received.messages);
            if own < message.len() {
                break;
            }
            received.messages += 1;
            left = &left[own..];
            continue;
        }
        let Some((channel, packet)) = frame::read(left) else { break };
        assert_eq!(channel, CHANNEL);
        left = &left[frame::HEAD + packet.len()..];
        let packet = rtp::Packet::read(packet).expect("a packet in each frame");
        assert_eq!((packet.source, packet.payload_type), (SESSION.source, rtp::MP2T));
        let sequence = packet.sequence.wrapping_sub(SESSION.sequence);
        assert_eq!(sequence, received.packets.len() as u16);
        received.packets.push((sequence, packet.timestamp.wrapping_sub(SESSION.timestamp)));
        received.payload.extend(packet.payload);
    }
    received.rest = left.len();
    received
}

/// When frame `nth` is due after the first.
fn due(nth: u64) -> Nanos {
    BitRate(RATE).time_for(Bytes(PAYLOAD.0 * nth))
}

#[test]
fn a_title_arrives_in_frames_each_in_the_visit_in_which_it_is_due() {
    for memory in BOTH {
        for plan in [None, Some(Arc::new(Plan::default()))] {
            let mut fixture = Fixture::new(memory);
            let spec = Parts { plan, ..in_frames(&mut fixture, 3) };
            let stream = spec.stream;
            fixture.begin(spec);
            fixture.pass(SECOND.times(11));
            let received = read(&fixture.received(stream), &[]);
            assert!(received.payload == content(3, 0, TITLE.0) && received.rest == 0);
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
            for (nth, &(_, time)) in received.packets.iter().enumerate() {
                assert_eq!(u64::from(time), due(nth as u64).0 * 9 / 100_000);
            }
            // The clock began one tick before the first visit.
            let sends = fixture.sends(stream);
            let begin = sends[0].0.before(Tick::Ms10.span());
            let mut frames = 0;
            for &(at, bytes) in &sends {
                assert_eq!(at.since(begin).0 % Tick::Ms10.span().0, 0);
                assert!(frames * FRAME + bytes == IN_FRAMES || bytes % FRAME == 0);
                frames += bytes.div_ceil(FRAME);
                assert!(due(frames - 1) <= at.since(begin), "none is early");
                let is_last = frames == TITLE.0.div_ceil(PAYLOAD.0);
                assert!(is_last || due(frames) > at.since(begin), "none is late");
            }
            let counters = &fixture.control.counters;
            assert_eq!(counters.links[0].underruns.value(), 0);
            assert_eq!(counters.links[0].bytes.value(), TITLE.0);
            assert_eq!(counters.blocks[0].leased.value(), 0);
        }
    }
}

#[test]
fn messages_and_frames_are_whole_and_in_order_whatever_the_socket_takes() {
    for memory in BOTH {
        for seed in 0..12 {
            println!("seed {seed}");
            let mut dice = Dice(seed);
            let mut fixture = Fixture::new(memory);
            // Composed or sent as they lie in memory.
            let plan = (seed % 2 == 1).then(|| Arc::new(Plan::default()));
            let spec = Parts { plan, ..in_frames(&mut fixture, 1) };
            let stream = spec.stream;
            fixture.begin(spec);
            let other = fixture.start(2, RATE);
            fixture.network().moody.insert(stream.index as i32, Dice(seed + 1000));
            let mut messages = vec![];
            let stops_after = dice.below(9) * 1000;
            let mut passed = 0;
            while passed < stops_after {
                if inserted(&fixture).len() == messages.len() {
                    messages.push(message(
                        messages.len() as u64,
                        dice.below(INTERLEAVED_MAX as u64 + 1) as usize,
                    ));
                    insert(&mut fixture, stream, messages.last().unwrap());
                }
                let span = dice.below(400);
                fixture.pass(MILLISECOND.times(span));
                passed += span;
            }
            fixture.command(Command::Stop(stream));
            fixture.pass(SECOND.times(2));
            let (outcome, sent) = finished(&fixture, stream).unwrap();
            assert_eq!(outcome, Outcome::Stopped);
            assert!(retired(&fixture, stream));
            let told = inserted(&fixture);
            assert_eq!(told.len(), messages.len());
            let are_sent = told.iter().filter(|&&(_, _, is_sent)| is_sent).count();
            assert!(are_sent + 1 >= messages.len());
            assert!(told.iter().zip(&messages).all(|(told, message)| told.1[..] == message[..]));
            let received = read(&fixture.received(stream), &messages);
            assert_eq!((received.rest, received.messages), (0, are_sent));
            assert_eq!(received.payload, content(1, 0, sent.0));
            assert!(stops_after < 2000 || sent.0 > RATE / 8);
            let others = fixture.received(other);
            assert_eq!(others, content(2, 0, others.len() as u64));
            assert!(others.len() as u64 >= RATE / 8 * (stops_after + 1500) / 1000);
            fixture.command(Command::Stop(other));
            fixture.pass(SECOND);
            assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
        }
    }
}

#[test]
fn a_stopped_stream_ends_behind_the_frame_or_message_that_is_begun() {
    for memory in BOTH {
        for half in [1, 3, 4, 10, 16, 17, FRAME - 1] {
            for is_message in [false, true] {
                let mut fixture = Fixture::new(memory);
                let stream = start(&mut fixture, 1);
                let limit = 5 * FRAME + half;
                fixture.network().limits.insert(stream.index as i32, limit);
                let messages = [message(0, FRAME as usize)];
                if is_message {
                    // Five frames have come, and what is due next is held back.
                    fixture.network().limits.insert(stream.index as i32, 5 * FRAME);
                    fixture.pass(MILLISECOND.times(200));
                    insert(&mut fixture, stream, &messages[0]);
                    fixture.network().limits.insert(stream.index as i32, limit);
                }
                fixture.pass(MILLISECOND.times(200));
                fixture.command(Command::Stop(stream));
                fixture.pass(MILLISECOND.times(100));
                assert_eq!(finished(&fixture, stream), None, "the connection is not free yet");
                fixture.network().limits.clear();
                fixture.pass(MILLISECOND.times(10));
                let frames = if is_message { 5 } else { 6 };
                let sent = Bytes(PAYLOAD.0 * frames);
                assert_eq!(finished(&fixture, stream), Some((Outcome::Stopped, sent)));
                assert!(retired(&fixture, stream));
                fixture.pass(SECOND);
                let received = read(&fixture.received(stream), &messages);
                assert_eq!(received.payload, content(1, 0, sent.0));
                assert_eq!((received.rest, received.messages), (0, usize::from(is_message)));
                assert_eq!(fixture.received(stream).len() as u64, 6 * FRAME);
            }
        }
    }
}

#[test]
fn a_connection_that_is_stuck_in_a_frame_is_given_up() {
    for memory in BOTH {
        for is_stopped in [false, true] {
            let mut fixture = Fixture::new(memory);
            let (stream, other) = (start(&mut fixture, 1), start(&mut fixture, 2));
            fixture.network().limits.insert(stream.index as i32, 5 * FRAME + 100);
            fixture.pass(MILLISECOND.times(200));
            insert(&mut fixture, stream, b"RTSP/1.0 200 OK");
            if is_stopped {
                fixture.command(Command::Stop(stream));
            }
            fixture.pass(MILLISECOND.times(300));
            assert_eq!(finished(&fixture, stream), None);
            fixture.pass(MILLISECOND.times(500));
            let sent = Bytes(5 * PAYLOAD.0 + 84);
            assert_eq!(finished(&fixture, stream), Some((Outcome::TooSlow, sent)));
            assert!(retired(&fixture, stream));
            // Its message is told of before its end.
            let (told, _, is_sent) = inserted(&fixture).pop().unwrap();
            assert!(told == stream && !is_sent);
            let at = |report: &dyn Fn(&Report) -> bool| fixture.reports.iter().position(report);
            let of_message = at(&|report| matches!(report, Report::Interleaved { .. }));
            assert!(of_message < at(&|report| matches!(report, Report::Finished { .. })));
            let others = fixture.received(other);
            assert!(read(&others, &[]).packets.len() as u64 >= RATE / 8 / PAYLOAD.0 * 9 / 10);
        }
    }
}

#[test]
fn a_message_goes_before_the_first_frame_or_comes_back() {
    for memory in BOTH {
        // While the first blocks are read.
        let mut fixture = Fixture::new(memory);
        fixture.disk().holds = true;
        let streams = [start(&mut fixture, 1), start(&mut fixture, 2)];
        let messages = [message(1, 100)];
        for stream in streams {
            insert(&mut fixture, stream, &messages[0]);
        }
        fixture.pass(CYCLE);
        fixture.command(Command::Stop(streams[1]));
        fixture.disk().holds = false;
        fixture.pass(SECOND);
        assert!(fixture.received(streams[0]).starts_with(&messages[0]));
        assert_eq!(read(&fixture.received(streams[0]), &messages).messages, 1);
        let told = inserted(&fixture);
        assert!(told.contains(&(streams[0], messages[0].to_vec(), true)));
        assert!(told.contains(&(streams[1], messages[0].to_vec(), false)));
        // When it is too late.
        fixture.command(Command::Stop(streams[0]));
        insert(&mut fixture, streams[0], b"late");
        fixture.pass(SECOND);
        assert_eq!(inserted(&fixture).pop(), Some((streams[0], b"late".to_vec(), false)));
        // A connection that is gone.
        let broken = start(&mut fixture, 1);
        fixture.pass(SECOND);
        fixture.network().broken.push(broken.index as i32);
        insert(&mut fixture, broken, b"gone");
        fixture.pass(SECOND);
        assert_eq!(inserted(&fixture).pop(), Some((broken, b"gone".to_vec(), false)));
        assert!(matches!(finished(&fixture, broken), Some((Outcome::PeerGone(104), _))));
        for stream in [streams[0], streams[1], broken] {
            assert!(retired(&fixture, stream));
        }
    }
}

#[test]
fn frames_of_a_title_that_repeats_go_on_over_its_end() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let spec = in_frames(&mut fixture, 2).repeating();
        let stream = spec.stream;
        fixture.begin(spec);
        fixture.pass(SECOND.times(25));
        let received = read(&fixture.received(stream), &[]);
        assert!(received.payload.len() as u64 > TITLE.0 * 2);
        let mut turns = received.payload.chunks(TITLE.0 as usize);
        assert!(turns.all(|turn| content(2, 0, turn.len() as u64) == turn));
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
        fixture.command(Command::Stop(stream));
        fixture.pass(SECOND);
        assert!(retired(&fixture, stream));
    }
}

#[test]
fn frames_of_a_growing_title_wait_at_its_end_and_are_never_late() {
    let whole = Bytes(u64::from(BLOCK) * 33 / 2);
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let mut len = Bytes(1);
        let extent = Extent::Growing(Bytes(0)..len);
        let mut spec = Parts { extent, ..in_frames(&mut fixture, 1) };
        spec.origin.len = len;
        let stream = spec.stream;
        fixture.begin(spec);
        while len < whole {
            fixture.pass(Nanos::from_millis(250));
            len = Bytes((len.0 + RATE / 8 / 16).min(whole.0));
            fixture.command(Command::Extend { stream, end: len, is_whole: len == whole });
        }
        fixture.pass(SECOND.times(2));
        let received = read(&fixture.received(stream), &[]);
        assert_eq!(received.payload, content(1, 0, whole.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, whole)));
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn what_was_missing_for_frames_is_not_owed_at_once_and_their_timestamps_say_so() {
    for memory in BOTH {
        for is_disk in [true, false] {
            let mut fixture = Fixture::new(memory);
            let stream = start(&mut fixture, 1);
            fixture.pass(SECOND);
            if is_disk {
                fixture.disk().holds = true;
                fixture.pass(SECOND.times(2));
                fixture.disk().holds = false;
            } else {
                fixture.stand_still(SECOND.times(2));
            }
            fixture.pass(SECOND.times(2));
            let received = read(&fixture.received(stream), &[]);
            assert_eq!(received.payload, content(1, 0, received.payload.len() as u64));
            let times: Vec<_> = received.packets.iter().map(|&(_, time)| u64::from(time)).collect();
            let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
            let gap = due(1).0 * 9 / 100_000;
            let long: Vec<_> = gaps.filter(|&each| each > gap + 1).collect();
            assert_eq!(long.len(), 1, "{long:?}");
            assert!((90_000..190_000).contains(&long[0]), "{long:?}");
            let link = &fixture.control.counters.links[0];
            assert_eq!(link.underruns.value() > 0, is_disk);
            assert_eq!(link.stalls.value(), u64::from(!is_disk));
            // No more at once than its rate.
            let sends = fixture.sends(stream);
            assert!(sends.iter().all(|&(_, bytes)| bytes <= 3 * FRAME), "{sends:?}");
        }
    }
}

#[test]
fn a_burst_at_the_start_has_the_timestamps_of_its_own_time() {
    let burst = Bytes(3 * u64::from(BLOCK));
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let mut spec = in_frames(&mut fixture, 1);
        spec.rate = Some(Rate { rate: BitRate(RATE), burst, tick: Tick::Ms10 });
        let stream = spec.stream;
        fixture.begin(spec);
        fixture.pass(SECOND.times(11));
        let received = read(&fixture.received(stream), &[]);
        assert_eq!(received.payload, content(1, 0, TITLE.0));
        for (nth, &(_, time)) in received.packets.iter().enumerate() {
            assert_eq!(u64::from(time), due(nth as u64).0 * 9 / 100_000);
        }
        let sends = fixture.sends(stream);
        let at_once: u64 =
            sends.iter().filter(|each| each.0 == sends[0].0).map(|each| each.1).sum();
        assert_eq!(at_once, ((burst.0 + RATE / 800) / PAYLOAD.0 + 1) * FRAME);
    }
}

#[test]
fn a_file_that_has_become_shorter_ends_its_frames_as_failed() {
    let mut fixture = Fixture::new(Memory::PageCache);
    let (stream, other) = (start(&mut fixture, 1), start(&mut fixture, 2));
    fixture.pass(SECOND);
    fixture.network().lost.insert(1, 61);
    fixture.pass(SECOND.times(11));
    assert!(matches!(finished(&fixture, stream), Some((Outcome::DiskFailed(61), _))));
    assert_eq!(finished(&fixture, other), Some((Outcome::Complete, TITLE)));
    assert!(retired(&fixture, stream));
}
