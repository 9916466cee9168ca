//! Datagrams: how the bytes of a stream are cut into packets, what each carries in front, and when it is
//! due.
//!
//! Promise: every byte is in one datagram, in order; no datagram is due before its first byte is by the
//! byte clock; RTP's numbers follow each other and its timestamps are the due times (RFC 2250, RFC 3550).
//! It knows no addresses and moves no bytes. The argument: `docs/design/packets.md`.

use crate::byte_clock::ByteClock;
use crate::rtp;
use crate::ts;
use crate::units::{BitRate, Bytes, MonoTime, Nanos};

/// What a whole datagram carries: seven transport packets, as many as fit a frame of Ethernet.
pub const PAYLOAD: Bytes = Bytes(7 * ts::PACKET as u64);

/// Most datagrams that leave as one message. The kernel takes 64 (`UDP_MAX_SEGMENTS`), and 65,507 bytes:
/// 49 with RTP.
pub const SEGMENTS_MAX: u32 = 44;

/// What stands in front of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Nothing.
    Udp,
    /// The header of RTP.
    Rtp(Session),
}

/// What an RTP session began with (RFC 3550, section 5.1: at random).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// SSRC.
    pub source: u32,
    /// Of the first packet.
    pub sequence: u16,
    /// Of the first packet.
    pub timestamp: u32,
}

impl Form {
    /// Bytes in front of each payload.
    pub const fn header(self) -> Bytes {
        match self {
            Self::Udp => Bytes(0),
            Self::Rtp(_) => Bytes(rtp::HEADER as u64),
        }
    }

    /// What `payload` bytes in `datagrams` datagrams are on an Ethernet, its preamble and gap included.
    pub const fn wire(self, payload: Bytes, datagrams: u32, ip: Ip) -> Bytes {
        Bytes(payload.0 + datagrams as u64 * (ip.overhead().0 + self.header().0))
    }

    /// The rate on the wire of a stream whose payload has `rate`. Rounds up.
    pub fn wire_rate(self, rate: BitRate, ip: Ip) -> BitRate {
        let wire = u128::from(self.wire(PAYLOAD, 1, ip).0);
        BitRate((u128::from(rate.0) * wire).div_ceil(u128::from(PAYLOAD.0)) as u64)
    }
}

/// Which protocol carries the datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    /// Four bytes.
    V4,
    /// Sixteen.
    V6,
}

impl Ip {
    /// Ethernet's preamble, header, checksum and gap (38 bytes), IP's header, UDP's.
    const fn overhead(self) -> Bytes {
        match self {
            Self::V4 => Bytes(38 + 20 + 8),
            Self::V6 => Bytes(38 + 40 + 8),
        }
    }
}

/// Some datagrams of one stream that leave together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The first byte, counted from the beginning of the stream.
    pub at: Bytes,
    /// Payload in all.
    pub bytes: Bytes,
    /// In how many datagrams.
    pub datagrams: u32,
    /// When they may leave: when the last of them is due.
    pub due: MonoTime,
}

/// What a stream leaves to the one that follows it, for the same receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    /// When its next datagram would have been due.
    pub due: MonoTime,
    /// What would have stood in front of that one, but for the timestamp, which is still the first one's.
    pub form: Form,
    /// When the first datagram of the session was due.
    pub epoch: MonoTime,
}

/// Cuts one stream.
#[derive(Clone, Copy, Debug)]
pub struct Cutter {
    form: Form,
    clock: ByteClock,
    /// When byte 0 was due when the stream began: what RTP's time counts from.
    epoch: MonoTime,
    at: Bytes,
    datagrams_max: u32,
}

impl Cutter {
    /// A stream by `clock`, in messages of as many datagrams as are due within `burst`, and at most
    /// `segments_max`.
    pub fn new(form: Form, clock: ByteClock, burst: Nanos, segments_max: u32) -> Self {
        let within = clock.rate().bytes_in(burst).0 / PAYLOAD.0;
        let most = u64::from(segments_max.clamp(1, SEGMENTS_MAX));
        let datagrams_max = within.clamp(1, most) as u32;
        Self { form, clock, epoch: clock.due(Bytes(0)), at: Bytes(0), datagrams_max }
    }

    /// The same, in the session of the stream before it: numbers and timestamps go on.
    #[must_use]
    pub fn following(self, trace: &Trace) -> Self {
        Self { form: trace.form, epoch: trace.epoch, ..self }
    }

    /// Where it stands when `sent` of it have left, which is where a message ends.
    pub fn trace(&self, sent: Bytes) -> Trace {
        let form = match self.form {
            Form::Udp => Form::Udp,
            Form::Rtp(session) => {
                // Runs modulo its width.
                let sequence = session.sequence.wrapping_add(sent.0.div_ceil(PAYLOAD.0) as u16);
                Form::Rtp(Session { sequence, ..session })
            }
        };
        Trace { due: self.clock.due(sent), form, epoch: self.epoch }
    }

    /// When the first datagram of the session was due.
    pub const fn epoch(&self) -> MonoTime {
        self.epoch
    }

    /// The law in force.
    pub const fn clock(&self) -> &ByteClock {
        &self.clock
    }

    /// What stands in front.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Where the next message begins.
    pub const fn at(&self) -> Bytes {
        self.at
    }

    /// The next message of a stream of `len` bytes, or of one without an end; none after the last.
    pub fn next(&self, len: Option<Bytes>) -> Option<Message> {
        let whole = PAYLOAD.0 * u64::from(self.datagrams_max);
        let bytes = len.map_or(whole, |len| whole.min(len.saturating_sub(self.at).0));
        if bytes == 0 {
            return None;
        }
        let datagrams = bytes.div_ceil(PAYLOAD.0) as u32;
        let due = self.due(datagrams - 1);
        Some(Message { at: self.at, bytes: Bytes(bytes), datagrams, due })
    }

    /// The header of datagram `nth` of the next message.
    pub fn header(&self, nth: u32) -> Option<[u8; rtp::HEADER]> {
        let Form::Rtp(session) = self.form else { return None };
        let number = self.at.0 / PAYLOAD.0 + u64::from(nth);
        let header = rtp::Header {
            marker: false,
            payload_type: rtp::MP2T,
            // Both run modulo their width.
            sequence: session.sequence.wrapping_add(number as u16),
            timestamp: session.timestamp.wrapping_add(self.ticks(nth)),
            source: session.source,
        };
        Some(header.write())
    }

    /// Goes on behind `message`.
    ///
    /// # Panics
    /// When it is not the next one.
    pub fn advance(&mut self, message: &Message) {
        assert!(message.at == self.at, "messages leave in order");
        self.at += message.bytes;
    }

    /// Moves everything that is still to come.
    pub fn delay(&mut self, pause: Nanos) {
        self.clock = self.clock.delayed(pause);
    }

    fn due(&self, nth: u32) -> MonoTime {
        self.clock.due(self.at + Bytes(PAYLOAD.0 * u64::from(nth)))
    }

    /// Ticks of 90 kHz from the beginning to a datagram's due time, modulo 2^32. Rounds down.
    fn ticks(&self, nth: u32) -> u32 {
        let since = self.due(nth).since(self.epoch);
        (u128::from(since.0) * 9 / 100_000) as u32
    }
}

/// The time after `now` at which the stream in `place` begins, whose datagrams are `gap` apart: places are
/// spread over the gap as evenly as any number of them can be.
pub fn phase(place: u32, gap: Nanos) -> Nanos {
    /// 2^64 divided by the golden ratio.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let part = u64::from(place).wrapping_mul(GOLDEN);
    Nanos(((u128::from(gap.0) * u128::from(part)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{MILLISECOND, SECOND};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const SESSION: Session = Session { source: 7, sequence: 65_530, timestamp: u32::MAX - 1000 };

    fn cutter(rate: u64, burst: Nanos) -> Cutter {
        let clock = ByteClock::new(MonoTime(1_000_000_007), BitRate(rate));
        Cutter::new(Form::Rtp(SESSION), clock, burst, SEGMENTS_MAX)
    }

    proptest! {
        #[test]
        fn every_byte_leaves_once_in_order_and_no_datagram_before_it_is_due(
            rate in 1_000u64..100_000_000_000, len in 1u64..400_000, burst in 0u64..8_000_000,
            pauses in prop::collection::vec((0u64..300, 0u64..1_000_000_000), 0..4),
        ) {
            let mut cutter = cutter(rate, Nanos(burst));
            let (mut at, mut before) = (0, MonoTime(0));
            let mut number = 0u64;
            while let Some(message) = cutter.next(Some(Bytes(len))) {
                for &(_, pause) in pauses.iter().filter(|&&(nth, _)| nth == number) {
                    cutter.delay(Nanos(pause));
                }
                let message = cutter.next(Some(Bytes(len))).unwrap_or(message);
                prop_assert_eq!(message.at.0, at);
                prop_assert!(u64::from(message.datagrams) == message.bytes.0.div_ceil(PAYLOAD.0));
                // Each of them is due by then, and waits for no longer than the burst.
                let (first, last) = (at, at + PAYLOAD.0 * u64::from(message.datagrams - 1));
                prop_assert!(cutter.clock().due(Bytes(last)) <= message.due);
                let waits = message.due.since(cutter.clock().due(Bytes(first)));
                prop_assert!(message.datagrams == 1 || waits <= Nanos(burst));
                prop_assert!(message.due >= before);
                (at, before) = (at + message.bytes.0, message.due);
                cutter.advance(&message);
                number += 1;
            }
            prop_assert_eq!(at, len);
        }

        #[test]
        fn numbers_follow_each_other_and_timestamps_are_due_times(
            rate in 100_000u64..1_000_000_000, burst in 0u64..4_000_000, pause in 0u64..SECOND.0,
        ) {
            let mut cutter = cutter(rate, Nanos(burst));
            let mut seen = 0u64;
            for nth in 0..40 {
                if nth == 17 {
                    cutter.delay(Nanos(pause));
                }
                let message = cutter.next(None).unwrap();
                for within in 0..message.datagrams {
                    let header = cutter.header(within).unwrap();
                    let packet = rtp::Packet::read(&header).unwrap();
                    prop_assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(seen as u16));
                    prop_assert_eq!((packet.payload_type, packet.source), (rtp::MP2T, 7));
                    // Due by the law itself, in ticks rounded down.
                    let paused = if nth >= 17 { pause } else { 0 };
                    let due = BitRate(rate).time_for(Bytes(PAYLOAD.0 * seen)).0 + paused;
                    let ticks = packet.timestamp.wrapping_sub(SESSION.timestamp);
                    prop_assert_eq!(u64::from(ticks), due * 9 / 100_000);
                    seen += 1;
                }
                cutter.advance(&message);
            }
        }

        #[test]
        fn what_follows_goes_on_in_numbers_and_time(
            rates in (100_000u64..1_000_000_000, 100_000u64..1_000_000_000), len in 1u64..400_000,
            burst in 0u64..4_000_000,
        ) {
            let mut first = cutter(rates.0, Nanos(burst));
            let mut count = 0u16;
            while let Some(message) = first.next(Some(Bytes(len))) {
                count = count.wrapping_add(message.datagrams as u16);
                first.advance(&message);
            }
            let trace = first.trace(Bytes(len));
            prop_assert_eq!(trace.due, first.clock().due(Bytes(len)));
            let clock = ByteClock::new(trace.due, BitRate(rates.1));
            let next = Cutter::new(Form::Udp, clock, Nanos(0), 1).following(&trace);
            let packet = next.header(0).unwrap();
            let packet = rtp::Packet::read(&packet).unwrap();
            prop_assert_eq!(packet.sequence, SESSION.sequence.wrapping_add(count));
            let since = BitRate(rates.0).time_for(Bytes(len)).0;
            let ticks = packet.timestamp.wrapping_sub(SESSION.timestamp);
            prop_assert_eq!(u64::from(ticks), since * 9 / 100_000);
        }

        #[test]
        fn places_are_spread_over_a_gap(count in 1u32..3000, gap in 10_000u64..10_000_000) {
            let mut phases: Vec<u64> = (0..count).map(|place| phase(place, Nanos(gap)).0).collect();
            phases.sort_unstable();
            prop_assert!(phases.iter().all(|&phase| phase < gap));
            // No stretch is emptier than three places on average would leave it (Steinhaus: of the three
            // lengths that occur the longest is below 2.7 of the mean).
            let last = phases[0] + gap;
            let ends = phases.iter().skip(1).chain([&last]);
            let widest = phases.iter().zip(ends).map(|(from, to)| to - from).max().unwrap();
            prop_assert!(widest <= gap * 3 / u64::from(count) + 2, "{widest} of {gap} for {count}");
        }
    }

    #[test]
    fn messages_hold_what_is_due_within_the_burst() {
        let count = |rate, burst| cutter(rate, burst).next(None).map(|message| message.datagrams);
        // measures of the field: 4 Mbit/s and 1 ms, 20 Mbit/s and 4 ms, a link of 10 Gbit/s.
        assert_eq!(count(4_000_000, MILLISECOND), Some(1));
        assert_eq!(count(20_000_000, MILLISECOND.times(4)), Some(7));
        assert_eq!(count(10_000_000_000, MILLISECOND), Some(SEGMENTS_MAX));
        assert_eq!(count(10_000_000_000, Nanos(0)), Some(1));
    }

    #[test]
    fn the_wire_carries_what_the_payload_does_not_show() {
        assert_eq!(Form::Udp.wire(PAYLOAD, 1, Ip::V4), Bytes(1382));
        let rtp = Form::Rtp(SESSION);
        assert_eq!(rtp.wire(Bytes(2 * PAYLOAD.0), 2, Ip::V6), Bytes(2 * (1316 + 12 + 86)));
        // 4 Mbit/s need 4.2 of a link that is counted with all that is on it.
        assert_eq!(Form::Udp.wire_rate(BitRate(4_000_000), Ip::V4), BitRate(4_200_608));
    }
}
