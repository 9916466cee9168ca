//! The pacer's promises, each by its name, against independent sums.

mod shares;
mod times;

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::byte_clock::ByteClock;
use crate::units::SECOND;

const MBIT: u64 = 1_000_000;
const GBIT: u64 = 1_000 * MBIT;
const TICK: Nanos = Nanos(100_000);
/// Seven packets of a transport stream.
const DATAGRAM: u64 = 1316;

const LIMITS: Limits = Limits { classes: 64, parents: 16, tick: TICK };

/// When a stream's packets are due.
#[derive(Clone, Copy)]
enum TrafficPattern {
    /// At once, always.
    Greedy,
    /// By a byte clock.
    Paced(ByteClock),
    /// It has no packet.
    Silent,
}

struct Stream {
    class: ClassId,
    law: TrafficPattern,
    bytes: u64,
    sent: u64,
}

/// A pacer with streams that offer their next packet when one has left.
struct PacerHarness {
    pacer: Pacer,
    streams: Vec<Stream>,
    now: MonoTime,
    /// All departures of the last turn.
    left: Vec<Departure>,
}

impl PacerHarness {
    fn new(limits: Limits, link: u64) -> Self {
        let now = MonoTime(SECOND.0);
        Self { pacer: Pacer::new(limits, BitRate(link), now), streams: vec![], now, left: vec![] }
    }

    /// Adds a stream; returns its number.
    fn add(&mut self, parent: ClassId, class: Class, law: TrafficPattern, bytes: u64) -> usize {
        let class = self.pacer.add(parent, class).unwrap();
        self.streams.push(Stream { class, law, bytes, sent: 0 });
        self.offer(self.streams.len() - 1);
        self.streams.len() - 1
    }

    fn greedy(&mut self, parent: ClassId, class: Class) -> usize {
        self.add(parent, class, TrafficPattern::Greedy, DATAGRAM)
    }

    fn offer(&mut self, number: usize) {
        let stream = &self.streams[number];
        let due = match stream.law {
            TrafficPattern::Greedy => MonoTime(0),
            TrafficPattern::Paced(clock) => clock.due(Bytes(stream.sent)),
            TrafficPattern::Silent => return,
        };
        self.pacer.offer(self.now, stream.class, Packet { due, bytes: Bytes(stream.bytes) });
    }

    fn silence(&mut self, number: usize) {
        self.streams[number].law = TrafficPattern::Silent;
        self.pacer.withdraw(self.streams[number].class);
    }

    fn wake(&mut self, number: usize) {
        self.streams[number].law = TrafficPattern::Greedy;
        self.offer(number);
    }

    /// A turn at `now`.
    fn turn(&mut self, now: MonoTime) {
        self.now = now;
        self.left.clear();
        while let Some(departure) = self.pacer.poll_send(now) {
            self.left.push(departure);
            let is_its = |stream: &Stream| stream.class == departure.class;
            let number = match self.streams.get(departure.class.index as usize - 1) {
                Some(stream) if is_its(stream) => departure.class.index as usize - 1,
                _ => self.streams.iter().position(is_its).unwrap(),
            };
            self.streams[number].sent += departure.packet.bytes.0;
            self.offer(number);
        }
    }

    /// Turns at the ticks of `poll_timeout`, for `span`.
    fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(next) = self.pacer.poll_timeout().filter(|&next| next <= end) {
            self.turn(next);
        }
        self.turn(end);
    }

    /// The bytes that each stream sends in `span`.
    fn sent_in(&mut self, span: Nanos) -> Vec<u64> {
        let before: Vec<u64> = self.streams.iter().map(|stream| stream.sent).collect();
        self.run(span);
        self.streams.iter().zip(before).map(|(stream, before)| stream.sent - before).collect()
    }
}
