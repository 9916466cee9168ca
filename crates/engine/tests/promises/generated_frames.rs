//! Streams of frames that the control side makes: whole frames and whole messages, each frame at
//! its own time, whatever the socket takes.

use tactus_core::datagrams::Framing;
use tactus_core::generated::TimedDatagram;
use tactus_core::ports::SocketHandle;
use tactus_core::rtp::{self, frame};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{
    Chunks, Command, Connection, INTERLEAVED_MAX, Outcome, Output, Report, StreamId,
};
use tactus_ring::spsc::{Keep, Producer, ring};

use crate::fixture::{BOTH, Dice, Fixture, content};
use crate::{RATE, finished, retired};

struct GeneratedSession {
    stream: StreamId,
    begin: MonoTime,
    ring: Producer<TimedDatagram>,
    _keep: Keep<TimedDatagram>,
}

const ROOM: usize = 64;
const HEAD: u64 = (frame::HEAD + rtp::HEADER) as u64;

fn make(fixture: &mut Fixture) -> GeneratedSession {
    let stream = fixture.place();
    let begin = fixture.now + MILLISECOND.times(3);
    let (ring, other) = ring(ROOM);
    let keep = ring.keep();
    let output = Output::Connection(Connection::of(SocketHandle(stream.index as i32)));
    let chunks = Chunks { ring: other, begin, rate: BitRate(5_000_000), framing: Framing::Plain };
    fixture.send_chunks(stream, chunks, output);
    GeneratedSession { stream, begin, ring, _keep: keep }
}

fn due(nth: u64) -> Nanos {
    Nanos(nth * 2_345_678 + nth % 3 * 700_000)
}

fn packet(nth: u64) -> TimedDatagram {
    TimedDatagram::new(due(nth), &content(nth as i32, 0, 100 + nth * 37 % 1300))
}

/// Of two channels in turns.
fn framed(nth: u64) -> TimedDatagram {
    packet(nth).framed((nth % 2 * 2) as u8, Nanos(0))
}

/// How many frames and messages have come, each the next one, and how many bytes stand behind the
/// last whole one.
fn read(mut left: &[u8], messages: &[Box<[u8]>]) -> (u64, usize, usize) {
    let (mut frames, mut said) = (0, 0);
    while let Some(&first) = left.first() {
        if first == frame::MARK {
            let Some((channel, bytes)) = frame::read(left) else { break };
            assert_eq!((channel, bytes), ((frames % 2 * 2) as u8, packet(frames).bytes()));
            left = &left[frame::HEAD + bytes.len()..];
            frames += 1;
            continue;
        }
        let message = &messages[said];
        let own = left.len().min(message.len());
        assert_eq!(left[..own], message[..own], "text {said}");
        if own < message.len() {
            break;
        }
        said += 1;
        left = &left[own..];
    }
    (frames, said, left.len())
}

fn inserted(fixture: &Fixture) -> Vec<bool> {
    let of_message = |report: &Report| match report {
        Report::Interleaved { is_sent, .. } => Some(*is_sent),
        _ => None,
    };
    fixture.reports.iter().filter_map(of_message).collect()
}

#[test]
fn each_generated_frame_leaves_in_the_visit_in_which_it_is_due() {
    let mut fixture = Fixture::new(BOTH[0]);
    let mut generated = make(&mut fixture);
    let mut next = 0;
    for _ in 0..130 {
        while next < 500 && generated.ring.push(framed(next)).is_ok() {
            next += 1;
        }
        fixture.pass(MILLISECOND.times(10));
    }
    assert!(generated.ring.push(TimedDatagram::end(due(500))).is_ok());
    fixture.pass(SECOND);
    assert_eq!(read(&fixture.received(generated.stream), &[]), (500, 0, 0));
    let payload = |nth: u64| packet(nth).bytes().len() as u64 - rtp::HEADER as u64;
    let all = (0..500).map(payload).sum();
    assert_eq!(finished(&fixture, generated.stream), Some((Outcome::Complete, Bytes(all))));
    assert!(retired(&fixture, generated.stream));
    let mut nth = 0;
    for (at, bytes) in fixture.sends(generated.stream) {
        let mut left = bytes;
        while left > 0 {
            let moment = generated.begin + due(nth);
            assert!(at >= moment, "{nth} is early");
            assert!(at.since(moment) <= Tick::Ms10.span(), "{nth}: {at:?} for {moment:?}");
            left -= payload(nth) + HEAD;
            nth += 1;
        }
    }
    assert_eq!(nth, 500);
    assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
}

#[test]
fn generated_frames_and_messages_are_whole_and_in_order_whatever_the_socket_takes() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let mut fixture = Fixture::new(BOTH[0]);
        let mut generated = make(&mut fixture);
        let other = fixture.start(2, RATE);
        fixture.network().moody.insert(generated.stream.index as i32, Dice(seed + 1000));
        let (mut next, mut passed) = (0, 0);
        let mut messages: Vec<Box<[u8]>> = vec![];
        let stops_after = dice.below(9) * 500;
        while passed < stops_after {
            while generated.ring.push(framed(next)).is_ok() {
                next += 1;
            }
            if inserted(&fixture).len() == messages.len() {
                let mut message = format!("RTSP/1.0 {} $", messages.len()).into_bytes();
                message.resize(
                    (dice.below(INTERLEAVED_MAX as u64 + 1) as usize).max(message.len()),
                    b'$',
                );
                messages.push(message.into());
                let message = messages.last().unwrap().clone();
                fixture.command(Command::Interleave { stream: generated.stream, message });
            }
            let span = dice.below(100);
            fixture.pass(MILLISECOND.times(span));
            passed += span;
        }
        fixture.command(Command::Stop(generated.stream));
        fixture.pass(SECOND.times(2));
        let (outcome, _) = finished(&fixture, generated.stream).unwrap();
        assert_eq!(outcome, Outcome::Stopped);
        assert!(retired(&fixture, generated.stream));
        let told = inserted(&fixture);
        assert_eq!(told.len(), messages.len());
        let are_sent = told.iter().filter(|&&is_sent| is_sent).count();
        assert!(are_sent + 1 >= messages.len());
        let (frames, said, rest) = read(&fixture.received(generated.stream), &messages);
        assert_eq!((said, rest), (are_sent, 0), "it ends behind a whole frame or text");
        let kept = (generated.ring.capacity() - generated.ring.free()) as u64;
        assert!(stops_after < 1000 || frames > 50, "{frames}");
        assert_eq!(frames, next - kept, "what has not left is still in its ring");
        let others = fixture.received(other);
        assert_eq!(others, content(2, 0, others.len() as u64));
    }
}

#[test]
fn a_frame_that_is_not_made_in_time_moves_what_follows_and_a_stuck_peer_is_given_up() {
    let mut fixture = Fixture::new(BOTH[0]);
    let mut generated = make(&mut fixture);
    (0..10).for_each(|nth| assert!(generated.ring.push(framed(nth)).is_ok()));
    // The tenth is due 25 ms after the beginning; it comes later than that.
    fixture.pass(MILLISECOND.times(90));
    assert_eq!(read(&fixture.received(generated.stream), &[]).0, 10);
    (10..40).for_each(|nth| assert!(generated.ring.push(framed(nth)).is_ok()));
    fixture.pass(MILLISECOND.times(40));
    let so_far = read(&fixture.received(generated.stream), &[]).0;
    assert!((15..32).contains(&so_far), "no burst: {so_far}");
    assert_eq!(fixture.control.counters.links[0].underruns.value(), 1);
    let epoch = fixture.control.counters.streams[generated.stream.index as usize].epoch.value();
    assert!(epoch - generated.begin.0 > 40_000_000, "who must tell of it knows");
    let came = fixture.received(generated.stream).len() as u64;
    fixture.network().limits.insert(generated.stream.index as i32, came + 1);
    fixture.pass(SECOND.times(3));
    let outcome = finished(&fixture, generated.stream).map(|(outcome, _)| outcome);
    assert_eq!(outcome, Some(Outcome::TooSlow));
    assert!(retired(&fixture, generated.stream));
}
