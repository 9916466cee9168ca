//! Generated chunks as the content of an HTTP answer: each visit sends one HTTP chunk, whose head
//! is exact whatever the socket takes at a time.

use tactus_core::datagrams::Framing;
use tactus_core::generated::TimedDatagram;
use tactus_core::ports::SocketHandle;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{Chunks, Command, Connection, Outcome, Output, Report, StreamId};
use tactus_ring::spsc::{Keep, Producer, ring};

use crate::fixture::{BOTH, Dice, Fixture, content};
use crate::{RATE, finished, retired};

struct Live {
    stream: StreamId,
    begin: MonoTime,
    ring: Producer<TimedDatagram>,
    _keep: Keep<TimedDatagram>,
}

fn live(fixture: &mut Fixture) -> Live {
    let stream = fixture.place();
    let begin = fixture.now + MILLISECOND.times(3);
    let (ring, other) = ring(64);
    let keep = ring.keep();
    let output = Output::Connection(Connection::of(SocketHandle(stream.index as i32)));
    let rate = BitRate(5_000_000);
    let chunks = Chunks { ring: other, begin, rate, framing: Framing::Chunked };
    fixture.send_chunks(stream, chunks, output);
    Live { stream, begin, ring, _keep: keep }
}

fn due(nth: u64) -> Nanos {
    Nanos(nth * 2_345_678 + nth % 3 * 700_000)
}

/// Of one to seven transport packets.
fn packets(nth: u64) -> Vec<u8> {
    content(nth as i32, 0, 188 * (1 + nth % 7))
}

fn timed(nth: u64) -> TimedDatagram {
    TimedDatagram::new(due(nth), &packets(nth))
}

/// The contents of the whole HTTP chunks in `left`, and the bytes behind the last one.
fn read(mut left: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut chunks = vec![];
    while let Some(end) = left.windows(2).position(|pair| pair == b"\r\n") {
        let head = std::str::from_utf8(&left[..end]).expect("a head");
        assert!(!head.is_empty() && !head.starts_with('0'), "{head:?}");
        let len = usize::from_str_radix(head, 16).expect("a head is a number");
        let Some(behind) = left.get(end + 2..end + 2 + len + 2) else { break };
        assert_eq!(&behind[len..], b"\r\n", "the head is exact");
        chunks.push(&behind[..len]);
        left = &left[end + 2 + len + 2..];
    }
    (chunks, left)
}

#[test]
fn each_visit_sends_what_is_due_as_one_http_chunk() {
    let mut fixture = Fixture::new(BOTH[0]);
    let mut live = live(&mut fixture);
    let mut next = 0;
    for _ in 0..130 {
        while next < 500 && live.ring.push(timed(next)).is_ok() {
            next += 1;
        }
        fixture.pass(MILLISECOND.times(10));
    }
    assert!(live.ring.push(TimedDatagram::end(due(500))).is_ok());
    fixture.pass(SECOND);
    let all: Vec<u8> = (0..500).flat_map(packets).collect();
    let received = fixture.received(live.stream);
    let (chunks, rest) = read(&received);
    assert!(chunks.concat() == all && rest.is_empty());
    let whole = Some((Outcome::Complete, Bytes(all.len() as u64)));
    assert_eq!(finished(&fixture, live.stream), whole);
    assert!(retired(&fixture, live.stream));
    let sends = fixture.sends(live.stream);
    assert_eq!(sends.len(), chunks.len());
    let mut nth = 0;
    for ((at, _), chunk) in sends.into_iter().zip(chunks) {
        let mut left = chunk.len();
        while left > 0 {
            let moment = live.begin + due(nth);
            assert!(at >= moment, "{nth} is early");
            assert!(at.since(moment) <= Tick::Ms10.span(), "{nth}: {at:?} for {moment:?}");
            left -= packets(nth).len();
            nth += 1;
        }
    }
    assert_eq!(nth, 500);
    assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
}

#[test]
fn a_socket_that_is_full_after_any_byte_gets_the_same_bytes_later() {
    let bytes_of = |cut: Option<u64>| {
        let mut fixture = Fixture::new(BOTH[0]);
        let mut live = live(&mut fixture);
        (0..9).for_each(|nth| assert!(live.ring.push(timed(nth)).is_ok()));
        let socket = live.stream.index as i32;
        if let Some(cut) = cut {
            fixture.network().limits.insert(socket, cut);
        }
        fixture.pass(MILLISECOND.times(13));
        fixture.network().limits.remove(&socket);
        fixture.pass(MILLISECOND.times(100));
        assert!(live.ring.push(TimedDatagram::end(due(9))).is_ok());
        fixture.pass(SECOND);
        assert!(retired(&fixture, live.stream));
        let received = fixture.received(live.stream);
        let (chunks, rest) = read(&received);
        assert!(rest.is_empty(), "cut after {cut:?}");
        (chunks[0].len(), chunks.concat())
    };
    let (first, all) = bytes_of(None);
    assert_eq!(all, (0..9).flat_map(packets).collect::<Vec<_>>());
    // Every cut in the head of the first HTTP chunk and around its ends, and some in its content.
    let end = first as u64 + 7;
    for cut in (0..12).chain((12..end - 9).step_by(97)).chain(end - 9..=end + 6) {
        let (begun, bytes) = bytes_of(Some(cut));
        assert!(bytes == all, "cut after {cut}");
        assert!(cut == 0 || begun == first, "what has begun keeps its length: cut after {cut}");
    }
}

#[test]
fn http_chunks_are_whole_and_in_order_whatever_the_socket_takes_and_when_it_is_stopped() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let mut fixture = Fixture::new(BOTH[0]);
        let mut live = live(&mut fixture);
        let other = fixture.start(2, RATE);
        fixture.network().moody.insert(live.stream.index as i32, Dice(seed + 1000));
        let (mut next, mut passed) = (0, 0);
        let stops_after = dice.below(9) * 500;
        while passed < stops_after {
            while live.ring.push(timed(next)).is_ok() {
                next += 1;
            }
            let span = dice.below(100);
            fixture.pass(MILLISECOND.times(span));
            passed += span;
        }
        fixture.command(Command::Stop(live.stream));
        fixture.pass(SECOND.times(2));
        let (outcome, sent) = finished(&fixture, live.stream).expect("it ends");
        assert_eq!(outcome, Outcome::Stopped);
        assert!(retired(&fixture, live.stream));
        let left = (live.ring.capacity() - live.ring.free()) as u64;
        let received = fixture.received(live.stream);
        let (chunks, rest) = read(&received);
        assert!(rest.is_empty(), "it ends behind a whole HTTP chunk");
        let all: Vec<u8> = (0..next - left).flat_map(packets).collect();
        assert!(chunks.concat() == all && sent.0 == all.len() as u64);
        assert!(stops_after < 1000 || chunks.len() > 20, "{}", chunks.len());
        let others = fixture.received(other);
        assert_eq!(others, content(2, 0, others.len() as u64));
    }
}

#[test]
fn a_peer_that_takes_no_more_is_given_up_within_an_http_chunk_and_a_message_is_refused() {
    let mut fixture = Fixture::new(BOTH[0]);
    let mut live = live(&mut fixture);
    (0..40).for_each(|nth| assert!(live.ring.push(timed(nth)).is_ok()));
    fixture.pass(MILLISECOND.times(30));
    let message = b"not content"[..].into();
    fixture.command(Command::Interleave { stream: live.stream, message });
    fixture.pass(MILLISECOND.times(10));
    let is_refused = |report: &Report| matches!(report, Report::Interleaved { is_sent: false, .. });
    assert!(fixture.reports.iter().any(is_refused));
    let came = fixture.received(live.stream);
    assert!(read(&came).1.is_empty());
    // Within the next head.
    fixture.network().limits.insert(live.stream.index as i32, came.len() as u64 + 1);
    fixture.pass(MILLISECOND.times(20));
    fixture.command(Command::Stop(live.stream));
    fixture.pass(SECOND.times(30));
    let outcome = finished(&fixture, live.stream).map(|(outcome, _)| outcome);
    assert_eq!(outcome, Some(Outcome::TooSlow));
    assert!(retired(&fixture, live.stream));
}
