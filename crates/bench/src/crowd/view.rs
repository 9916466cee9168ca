//! What one client got: its datagrams, one by one, as they came, held against its title's rate.
//!
//! Promise: a stream that stands still, is slow or begins again elsewhere without saying so is
//! seen, whatever its own time stamps say: bytes are due by the rate of the title, and what has not
//! come when it was asked to stop is late. It judges only when it knows when the client has asked
//! for what.

use std::ops::Range;

use tactus_core::rtp;
use tactus_core::ts::{Continuity, PACKET, Packet, Pid};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::Part;

/// What came, and what it amounts to as long as nobody has said where the client sought.
pub(super) struct View {
    rate: BitRate,
    order: Option<Order>,
    counters: Continuity,
    /// In which datagram a PID was seen last, of those that were seen.
    last: Vec<(Pid, u64)>,
    breaks: Vec<Break>,
    /// Numbers that did not come.
    gaps: Vec<Range<u64>>,
    /// Datagrams whose time stamps do not follow the one before at the rate.
    jumps: Vec<u64>,
    malformed: u64,
    datagrams: u64,
    came: Arrivals,
}

/// The sequence of datagrams, counted on over its wraps.
#[derive(Clone, Copy)]
struct Order {
    next: u64,
    /// The time stamp of the last one.
    ticks: u32,
    /// How many packets it had.
    packets: u8,
}

/// A counter that did not go on: between these two datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Break {
    after: u64,
    at: u64,
    /// The packet says so itself (`discontinuity_indicator`).
    is_marked: bool,
}

/// When each datagram came, and how long it was.
struct Arrivals {
    /// The first one's number and time.
    first: Option<(u64, MonoTime)>,
    /// Of each number from the first on, microseconds since that.
    micros: Vec<u32>,
    /// And its packets; 0 where none came.
    packets: Vec<u8>,
}

/// How much later than the earliest since PLAY datagrams came: how many in each tenth of a
/// millisecond, and the latest. Each PLAY has a clock of its own: how long it took to begin is
/// counted apart.
#[derive(Clone, Debug, Default)]
pub struct LatenessHistogram {
    counts: Vec<u64>,
    /// Milliseconds.
    pub max: f64,
}

/// What a client got in the end.
#[derive(Clone, Debug, Default)]
pub struct ReceptionSummary {
    /// Datagrams that came.
    pub datagrams: u64,
    /// Numbers that are missing, without those that its own socket dropped.
    pub missing: u64,
    /// What its own socket dropped.
    pub dropped: u64,
    /// Datagrams that are no RTP with whole packets.
    pub malformed: u64,
    /// Counters that broke, or were said to, where nobody had sought and nothing was missing.
    pub breaks: u64,
    /// Counters that broke where it had sought, and did not say so.
    pub unmarked: u64,
    /// Time stamps that jumped in the middle of playing.
    pub jumps: u64,
    /// How late they were.
    pub late: LatenessHistogram,
    /// Whole seconds that it watched.
    pub seconds: u64,
    /// Those in which less than [`SHARE_MIN`] of the rate came.
    pub short: u64,
    /// The least share of the rate in a second.
    pub share_min: Option<f64>,
    /// Seconds from the answer to PLAY to the first datagram, of each.
    pub starts: Vec<f32>,
}

/// A receiver holds a quarter of a second: what lacks more of a second's bytes was late.
pub const SHARE_MIN: f64 = 0.75;
/// Where nothing comes for so long after the answer to PLAY, there is no stream.
const START_MAX: Nanos = SECOND.times(2);
const TICKS_PER_SECOND: u64 = 90_000;
/// A millisecond: senders round their stamps.
const JUMP_MIN: u64 = 90;
/// A datagram's bytes, without its header, are at most seven of these.
const PACKETS: usize = 7;

impl View {
    /// Of a stream of `rate`, with room for what comes in `length`, so that its receiver copies
    /// nothing later.
    pub(super) fn new(rate: BitRate, length: Nanos) -> Self {
        let seconds = length.0.div_ceil(SECOND.0);
        let room = (rate.0 * seconds).div_ceil(8 * (PACKETS * PACKET) as u64) as usize;
        let came = Arrivals {
            first: None,
            micros: Vec::with_capacity(room),
            packets: Vec::with_capacity(room),
        };
        Self {
            rate,
            order: None,
            counters: Continuity::default(),
            last: vec![],
            breaks: vec![],
            gaps: vec![],
            jumps: vec![],
            malformed: 0,
            datagrams: 0,
            came,
        }
    }

    pub(super) fn take(&mut self, at: MonoTime, datagram: &[u8]) {
        let Ok(packet) = rtp::Packet::read(datagram) else {
            self.malformed += 1;
            return;
        };
        let packets = packet.payload.len() / PACKET;
        let is_whole = packet.payload.len().is_multiple_of(PACKET)
            && (1..=PACKETS).contains(&packets)
            && packet.payload_type == rtp::MP2T;
        if !is_whole {
            self.malformed += 1;
            return;
        }
        self.datagrams += 1;
        let this = Order { next: 0, ticks: packet.timestamp, packets: packets as u8 };
        // Behind one wrap, so that what comes in front of the first is no number below zero.
        let begin = Order { next: (1 << 16) + u64::from(packet.sequence), packets: 0, ..this };
        let order = *self.order.get_or_insert(begin);
        let ahead = packet.sequence.wrapping_sub(order.next as u16);
        if ahead > u16::MAX / 2 {
            // Out of order or twice: this network does neither.
            self.malformed += 1;
            return;
        }
        let number = order.next + u64::from(ahead);
        if ahead > 0 {
            self.gaps.push(order.next..number);
        }
        let between = u64::from(order.packets) + u64::from(ahead) * PACKETS as u64;
        let due = (span(between, self.rate) * TICKS_PER_SECOND / 1_000_000) as u32;
        let off = packet.timestamp.wrapping_sub(order.ticks).wrapping_sub(due) as i32;
        if u64::from(off.unsigned_abs()) > JUMP_MIN {
            self.jumps.push(number);
        }
        self.order = Some(Order { next: number + 1, ..this });
        self.came.push(number, at, packets as u8);
        for bytes in packet.payload.chunks_exact(PACKET) {
            self.take_packet(number, bytes);
        }
    }

    fn take_packet(&mut self, number: u64, bytes: &[u8]) {
        let Some(packet) = Packet::first_of(bytes) else {
            self.malformed += 1;
            return;
        };
        let pid = packet.pid();
        let is_broken = self.counters.handle_packet(&packet).is_some();
        let is_marked = packet.is_discontinuous();
        let known = self.last.iter_mut().find(|(known, _)| *known == pid);
        match known {
            Some((_, last)) => {
                if is_broken || is_marked {
                    self.breaks.push(Break { after: *last, at: number, is_marked });
                }
                *last = number;
            }
            None => self.last.push((pid, number)),
        }
    }

    /// What it is, when the client has played `parts`, and its socket has dropped so many.
    pub(super) fn judge(self, parts: &[Part], dropped: u32) -> ReceptionSummary {
        let mut seen = ReceptionSummary {
            datagrams: self.datagrams,
            dropped: dropped.into(),
            malformed: self.malformed,
            ..ReceptionSummary::default()
        };
        let Some((first, _)) = self.came.first else { return seen };
        let ranges = self.came.ranges(parts);
        for broken in &self.breaks {
            // The last one of the PID was before, this one is of it or behind.
            let spans = |begin: u64| broken.after < begin && begin <= broken.at;
            let is_sought = ranges
                .iter()
                .zip(parts)
                .any(|(range, part)| part.is_elsewhere && spans(range.start));
            // A number that is missing breaks counters, too: it is counted once.
            let is_lost =
                self.gaps.iter().any(|gap| gap.start < broken.at && broken.after < gap.end);
            match (is_sought, broken.is_marked) {
                _ if is_lost => {}
                (true, true) => {}
                (true, false) => seen.unmarked += 1,
                (false, _) => seen.breaks += 1,
            }
        }
        let is_start = |number: &&u64| ranges.iter().any(|range| range.start == **number);
        seen.jumps = self.jumps.iter().filter(|number| !is_start(number)).count() as u64;
        let before = parts.first().map_or(0, |part| (first as u16).wrapping_sub(part.first));
        // Nothing can have come before the first that was announced.
        let before = if before > u16::MAX / 2 { 0 } else { u64::from(before) };
        let missing = self.gaps.iter().map(|gap| gap.end - gap.start).sum::<u64>() + before;
        seen.missing = missing.saturating_sub(dropped.into());
        for (range, part) in ranges.iter().zip(parts) {
            self.came.judge(range.clone(), part, self.rate, &mut seen);
        }
        seen
    }
}

/// Microseconds that so many packets take.
fn span(packets: u64, rate: BitRate) -> u64 {
    (u128::from(packets) * 8_000_000 * PACKET as u128 / u128::from(rate.0)) as u64
}

impl Arrivals {
    fn push(&mut self, number: u64, at: MonoTime, packets: u8) {
        let (from, first) = *self.first.get_or_insert((number, at));
        let place = (number - from) as usize;
        self.micros.resize(place, 0);
        self.packets.resize(place, 0);
        let micros = u32::try_from(at.0.saturating_sub(first.0) / 1000);
        self.micros.push(micros.expect("no plan is longer"));
        self.packets.push(packets);
    }

    /// The numbers of each part, as far as they came: each begins with the one that was announced.
    fn ranges(&self, parts: &[Part]) -> Vec<Range<u64>> {
        let Some((first, _)) = self.first else { return vec![] };
        let end = first + self.packets.len() as u64;
        let mut number = first;
        // They are told in their order, and none is half as long as numbers take to go round.
        let begins = parts.iter().map(|part| {
            let ahead = part.first.wrapping_sub(number as u16) as i16;
            number = number.saturating_add_signed(ahead.into()).max(number);
            number
        });
        let begins: Vec<u64> = begins.collect();
        let ends = begins.iter().skip(1).copied().chain([u64::MAX]);
        let ranges = begins.iter().zip(ends);
        ranges.map(|(&from, to)| from..to.min(end).max(from)).collect()
    }

    /// What came of one part, by the rate.
    fn judge(&self, range: Range<u64>, part: &Part, rate: BitRate, seen: &mut ReceptionSummary) {
        let Some((from, first)) = self.first else { return };
        let since = |at: MonoTime| at.0 as i64 / 1000 - first.0 as i64 / 1000;
        let mut packets = 0;
        // When each came, and how many packets had come before.
        let mut came = vec![];
        for number in range {
            let place = (number - from) as usize;
            let Some(&own) = self.packets.get(place) else { break };
            if own > 0 {
                came.push((i64::from(self.micros[place]), packets));
            }
            packets += if own > 0 { u64::from(own) } else { PACKETS as u64 };
        }
        let Some(&(begin, _)) = came.first() else {
            let silence = part.until.map_or(Nanos::ZERO, |until| until.since(part.answered));
            if silence > START_MAX {
                seen.late.count(silence.0 as i64 / 1000);
            }
            return;
        };
        seen.starts.push((begin - since(part.answered)).max(0) as f32 / 1e6);
        let offset = |&(at, before): &(i64, u64)| at - span(before, rate) as i64;
        let earliest = came.iter().map(offset).min().expect("there is one");
        came.iter().for_each(|each| seen.late.count(offset(each) - earliest));
        // What had not come when it was asked to stop is as late as that, at least.
        let until = part.until.map(since);
        let next_due = earliest + span(packets, rate) as i64;
        if let Some(behind) = until.map(|until| until - next_due).filter(|&behind| behind > 0) {
            seen.late.count(behind);
        }
        let end = until.unwrap_or_else(|| came.last().expect("there is one").0);
        let seconds = usize::try_from((end - begin) / 1_000_000).unwrap_or(0);
        let mut counts = vec![0; seconds];
        let lengths = came.iter().zip(came.iter().skip(1).map(|next| next.1).chain([packets]));
        for (&(at, before), after) in lengths {
            let second = usize::try_from((at - begin) / 1_000_000).unwrap_or(0);
            if let Some(count) = counts.get_mut(second) {
                *count += after - before;
            }
        }
        for count in counts {
            let share = count as f64 * 8.0 * PACKET as f64 / rate.0 as f64;
            seen.seconds += 1;
            seen.short += u64::from(share < SHARE_MIN);
            seen.share_min = Some(seen.share_min.map_or(share, |least| least.min(share)));
        }
    }
}

/// What lateness is counted in.
const STEP_MICROS: i64 = 100;
/// All that is later counts as a second.
const STEPS_MAX: usize = 10_000;

impl LatenessHistogram {
    /// Counts one that came so many microseconds late.
    fn count(&mut self, micros: i64) {
        self.max = self.max.max(micros as f64 / 1e3);
        let at = usize::try_from(micros / STEP_MICROS).unwrap_or(0).min(STEPS_MAX);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// Adds another stream's.
    pub fn add(&mut self, other: &Self) {
        self.max = self.max.max(other.max);
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }

    /// Milliseconds that the part `q` of all was not later than.
    pub fn quantile(&self, q: f64) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let wanted = (all as f64 * q).ceil() as u64;
        let mut sum = 0;
        let reached = self.counts.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        reached.map_or(f64::NAN, |at| (at + 1) as f64 * STEP_MICROS as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One packet takes a millisecond.
    const RATE: BitRate = BitRate(8 * 188 * 1000);
    const MARKED: u8 = 0x80;

    /// A datagram of one packet with an adaptation field of flags.
    fn marked(sequence: u16, millis: u32, count: u8, flags: u8) -> Vec<u8> {
        let header = rtp::Header {
            marker: false,
            payload_type: rtp::MP2T,
            sequence,
            timestamp: millis.wrapping_mul(90),
            source: 7,
        };
        let mut packet = [0xff; PACKET];
        packet[..6].copy_from_slice(&[0x47, 0x01, 0x00, 0x30 | (count & 15), 1, flags]);
        [&header.write()[..], &packet].concat()
    }

    fn datagram(sequence: u16, millis: u32, count: u8) -> Vec<u8> {
        marked(sequence, millis, count, 0)
    }

    fn ms(millis: u64) -> MonoTime {
        MonoTime(millis * 1_000_000)
    }

    fn view() -> View {
        View::new(RATE, SECOND)
    }

    fn part(first: u16, answered: u64, until: u64) -> Part {
        Part { first, is_elsewhere: true, answered: ms(answered), until: Some(ms(until)) }
    }

    /// Datagrams that come at these milliseconds, one after the other, with time stamps of the
    /// rate.
    fn came(times: impl IntoIterator<Item = u64>) -> View {
        let mut view = view();
        for (number, at) in (0..).zip(times) {
            view.take(ms(at), &datagram(number, number.into(), number as u8));
        }
        view
    }

    #[test]
    fn a_counter_may_break_only_where_playing_began_elsewhere_and_has_to_say_so() {
        let judged = |flags: [u8; 4], parts: &[Part]| {
            let mut view = view();
            for (at, (number, count)) in
                [(65_534, 3), (65_535, 4), (0, 9), (1, 10)].iter().enumerate()
            {
                view.take(ms(5), &marked(*number, at as u32, *count, flags[at]));
            }
            let seen = view.judge(parts, 0);
            (seen.breaks, seen.unmarked)
        };
        let from = |first| part(first, 5, 5);
        assert_eq!(judged([0; 4], &[from(65_534), from(0)]), (0, 1), "it began elsewhere there");
        assert_eq!(judged([0, 0, MARKED, 0], &[from(65_534), from(0)]), (0, 0), "and says so");
        assert_eq!(judged([0; 4], &[from(65_534), from(65_535)]), (1, 0), "and not there");
        assert_eq!(judged([0; 4], &[from(65_534), from(1)]), (1, 0));
        let again = Part { is_elsewhere: false, ..from(0) };
        assert_eq!(judged([0; 4], &[from(65_534), again]), (1, 0), "it only went on there");
        assert_eq!(judged([0, MARKED, MARKED, 0], &[from(65_534), from(0)]), (1, 0), "no cause");
    }

    #[test]
    fn what_is_missing_is_counted_but_what_the_receiver_lost_itself() {
        let view = || {
            let mut view = view();
            view.take(ms(0), &datagram(9, 0, 0));
            view.take(ms(0), &datagram(12, 15, 3));
            view.take(ms(0), b"no rtp");
            view
        };
        let seen = view().judge(&[part(9, 0, 0)], 0);
        assert_eq!((seen.datagrams, seen.missing, seen.malformed), (2, 2, 1));
        assert_eq!(seen.breaks + seen.unmarked + seen.jumps, 0, "it is counted once");
        let seen = view().judge(&[part(9, 0, 0)], 2);
        assert_eq!((seen.missing, seen.dropped), (0, 2));
        assert_eq!(view().judge(&[part(6, 0, 0)], 0).missing, 5, "the first ones too");
    }

    #[test]
    fn a_break_elsewhere_than_the_loss_is_counted_beside_it() {
        let mut view = view();
        for (number, count) in [(0, 0), (2, 2), (3, 3), (4, 9)] {
            view.take(ms(0), &datagram(number, number.into(), count));
        }
        let seen = view.judge(&[part(0, 0, 0)], 0);
        assert_eq!((seen.missing, seen.breaks), (1, 1));
    }

    #[test]
    fn lateness_is_counted_from_the_earliest_by_the_rate_anew_with_each_play() {
        let late = |parts: &[Part]| {
            let times = [100, 101, 182, 113];
            came(times).judge(parts, 0).late
        };
        assert_eq!(late(&[part(0, 90, 104)]).max, 80.0);
        assert_eq!(late(&[part(0, 90, 102), part(2, 102, 103)]).max, 70.0);
        assert_eq!(late(&[0, 1, 2, 3].map(|first| part(first, 90, 91))).max, 0.0);
        let quantiles = [0.25, 0.5, 0.75, 1.0];
        let late = late(&[part(0, 90, 104)]);
        assert_eq!(quantiles.map(|q| late.quantile(q).round()), [0.0, 0.0, 10.0, 80.0]);
    }

    #[test]
    fn a_stream_that_stands_still_until_it_is_asked_to_stop_is_late() {
        let late = |until| came(100..110).judge(&[part(0, 90, until)], 0).late.max;
        assert_eq!([late(110), late(111), late(910)], [0.0, 1.0, 800.0]);
        let silent = [part(0, 90, 110), part(10, 120, 5_120)];
        assert_eq!(came(100..110).judge(&silent, 0).late.max, 5_000.0, "nothing of it came");
        let short = [part(0, 90, 110), part(10, 120, 1_120)];
        assert_eq!(came(100..110).judge(&short, 0).late.max, 0.0, "it had no time to begin");
    }

    #[test]
    fn each_second_has_its_whole_rate_or_is_counted() {
        // Two seconds, and a third with half of its bytes, which come in time: the stream is slow.
        let times = (1_000..3_000).chain((3_000..4_000).step_by(2));
        let seen = came(times).judge(&[part(0, 940, 4_000)], 0);
        assert_eq!((seen.seconds, seen.short, seen.share_min), (3, 1, Some(0.5)));
        assert_eq!(seen.starts, [0.06]);
        assert_eq!(seen.late.max, 500.0);
    }

    #[test]
    fn a_time_stamp_that_jumps_while_it_plays_is_counted() {
        let judged = |first: u16| {
            let mut view = view();
            for (number, stamp) in [(0, 40), (1, 41), (2, 71), (3, 72)] {
                view.take(ms(number.into()), &datagram(number, stamp, number as u8));
            }
            view.judge(&[part(0, 0, 4), part(first, 0, 4)], 0).jumps
        };
        assert_eq!([judged(2), judged(3)], [0, 1]);
    }
}
