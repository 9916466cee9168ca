//! What one client got: its datagrams, one by one, as they came.

use tactus_core::rtp;
use tactus_core::ts::{Continuity, PACKET, Packet, Pid};
use tactus_core::units::MonoTime;

/// What came, and what it amounts to as long as nobody has said where the client sought.
#[derive(Default)]
pub(super) struct View {
    order: Option<Order>,
    counters: Continuity,
    /// In which datagram a PID was seen last, of those that were seen.
    last: Vec<(Pid, u64)>,
    breaks: Vec<Break>,
    malformed: u64,
    datagrams: u64,
    missing: u64,
    late: Offsets,
}

/// The sequence of datagrams, counted on over its wraps.
#[derive(Clone, Copy)]
struct Order {
    next: u64,
    /// The time of the last one, counted on likewise.
    ticks: u64,
}

/// A counter that did not go on: between these two datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Break {
    after: u64,
    at: u64,
}

/// How much later than by its own time stamp each datagram came.
#[derive(Default)]
struct Offsets {
    /// The first datagram's number, and its arrival less time stamp in microseconds.
    first: Option<(u64, i64)>,
    /// Of each number from the first on, from the first's; [`MISSING`] where none came.
    from_first: Vec<i32>,
}

/// No offset.
const MISSING: i32 = i32::MIN;

/// How much later than the earliest since PLAY datagrams came: how many in each tenth of a millisecond, and the
/// latest. Each PLAY has a clock of its own: how long it took to begin is not lateness.
#[derive(Clone, Debug, Default)]
pub struct Late {
    counts: Vec<u64>,
    /// Milliseconds.
    pub max: f64,
}

/// What a client got in the end.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Datagrams that came.
    pub datagrams: u64,
    /// Numbers that are missing, without those that its own socket dropped.
    pub missing: u64,
    /// Datagrams that are no RTP with whole packets.
    pub malformed: u64,
    /// Counters that broke where nobody had sought.
    pub breaks: u64,
    /// How late they were.
    pub late: Late,
}

const TICKS_PER_SECOND: i64 = 90_000;
/// A datagram's bytes, without its header, are seven of these.
const PACKETS: usize = 7;

impl View {
    pub(super) fn take(&mut self, at: MonoTime, datagram: &[u8]) {
        let Ok(packet) = rtp::Packet::read(datagram) else {
            self.malformed += 1;
            return;
        };
        let is_whole = packet.payload.len().is_multiple_of(PACKET)
            && packet.payload.len() <= PACKETS * PACKET
            && packet.payload_type == rtp::MP2T;
        if !is_whole {
            self.malformed += 1;
            return;
        }
        self.datagrams += 1;
        let order = self.order.get_or_insert(Order {
            // Behind one wrap, so that what comes in front of the first is no number below zero.
            next: (1 << 16) + u64::from(packet.sequence),
            ticks: (1 << 32) + u64::from(packet.timestamp),
        });
        let ahead = packet.sequence.wrapping_sub(order.next as u16);
        if ahead > u16::MAX / 2 {
            // Out of order or twice: this network does neither.
            self.malformed += 1;
            return;
        }
        self.missing += u64::from(ahead);
        let number = order.next + u64::from(ahead);
        let passed = packet.timestamp.wrapping_sub(order.ticks as u32) as i32;
        let ticks = order.ticks.saturating_add_signed(i64::from(passed));
        *order = Order { next: number + 1, ticks };
        let offset = (at.0 / 1000) as i64 - ticks as i64 * 1_000_000 / TICKS_PER_SECOND;
        self.late.push(number, offset);
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
        let fault = self.counters.handle_packet(&packet);
        let known = self.last.iter_mut().find(|(known, _)| *known == pid);
        match known {
            Some((_, last)) => {
                if fault.is_some() {
                    self.breaks.push(Break { after: *last, at: number });
                }
                *last = number;
            }
            None => self.last.push((pid, number)),
        }
    }

    /// What it is, when playing began anew at the datagrams with the numbers `begins`, here or elsewhere at
    /// `starts`, and the socket has dropped so many.
    pub(super) fn judge(self, begins: &[u16], starts: &[u16], dropped: u32) -> Seen {
        let is_excused = |broken: &&Break| {
            let span = broken.at - broken.after;
            begins.iter().any(|&begin| {
                let after = u64::from(begin.wrapping_sub(broken.after as u16));
                span >= 1 << 16 || (after > 0 && after <= span)
            })
        };
        // A number that is missing breaks counters, too: it is counted once.
        let breaks = match self.missing {
            0 => self.breaks.iter().filter(|broken| !is_excused(broken)).count() as u64,
            _ => 0,
        };
        Seen {
            datagrams: self.datagrams,
            missing: self.missing.saturating_sub(u64::from(dropped)),
            malformed: self.malformed,
            breaks,
            late: self.late.judge(starts),
        }
    }
}

impl Offsets {
    fn push(&mut self, number: u64, offset: i64) {
        let (from, first) = *self.first.get_or_insert((number, offset));
        self.from_first.resize((number - from) as usize, MISSING);
        let from_first = (offset - first).clamp((MISSING + 1).into(), i32::MAX.into());
        self.from_first.push(from_first as i32);
    }

    fn judge(self, starts: &[u16]) -> Late {
        let mut late = Late::default();
        let Some((first, _)) = self.first else { return late };
        let mut rest = &self.from_first[..];
        let mut number = first;
        for &start in starts {
            // They are told in their order, and none is further on than numbers go round.
            let until = usize::from(start.wrapping_sub(number as u16));
            if until > rest.len() {
                break;
            }
            let (part, behind) = rest.split_at(until);
            late.take(part);
            (rest, number) = (behind, number + until as u64);
        }
        late.take(rest);
        late
    }
}

/// What lateness is counted in.
const STEP_MICROS: i64 = 100;
/// All that is later counts as a second.
const STEPS_MAX: usize = 10_000;

impl Late {
    /// Counts what followed one PLAY.
    fn take(&mut self, offsets: &[i32]) {
        let came = || offsets.iter().copied().filter(|&offset| offset != MISSING);
        let Some(earliest) = came().min() else { return };
        for offset in came() {
            let micros = i64::from(offset) - i64::from(earliest);
            self.max = self.max.max(micros as f64 / 1e3);
            let at = usize::try_from(micros / STEP_MICROS).unwrap_or(0).min(STEPS_MAX);
            if self.counts.len() <= at {
                self.counts.resize(at + 1, 0);
            }
            self.counts[at] += 1;
        }
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

    /// A datagram of one packet.
    fn datagram(sequence: u16, millis: u32, count: u8) -> Vec<u8> {
        let header = rtp::Header {
            marker: false,
            payload_type: rtp::MP2T,
            sequence,
            timestamp: millis.wrapping_mul(90),
            source: 7,
        };
        let mut packet = [0xff; PACKET];
        packet[..4].copy_from_slice(&[0x47, 0x01, 0x00, 0x10 | (count & 15)]);
        [&header.write()[..], &packet].concat()
    }

    fn ms(millis: u64) -> MonoTime {
        MonoTime(millis * 1_000_000)
    }

    #[test]
    fn a_counter_may_break_only_where_playing_began_anew() {
        let mut view = View::default();
        for (number, count) in [(65_534, 3), (65_535, 4), (0, 9), (1, 10)] {
            view.take(ms(5), &datagram(number, 5, count));
        }
        let copy = |view: &View| View { breaks: view.breaks.clone(), ..View::default() };
        assert_eq!(copy(&view).judge(&[0], &[], 0).breaks, 0, "it began anew there");
        assert_eq!(copy(&view).judge(&[65_535], &[], 0).breaks, 1, "and not there");
        assert_eq!(view.judge(&[1], &[], 0).breaks, 1);
    }

    #[test]
    fn what_is_missing_is_counted_but_what_the_receiver_lost_itself() {
        let view = || {
            let mut view = View::default();
            view.take(ms(0), &datagram(9, 0, 0));
            view.take(ms(0), &datagram(12, 0, 3));
            view.take(ms(0), b"no rtp");
            view
        };
        let seen = view().judge(&[], &[], 0);
        assert_eq!((seen.datagrams, seen.missing, seen.malformed), (2, 2, 1));
        assert_eq!(view().judge(&[], &[], 2).missing, 0);
    }

    #[test]
    fn lateness_is_counted_from_the_earliest_by_time_stamps_anew_with_each_play() {
        let came = |starts: &[u16]| {
            let mut view = View::default();
            for (number, (at, stamp)) in (7..).zip([(100, 40), (105, 50), (190, 60), (130, 70)]) {
                view.take(ms(at), &datagram(number, stamp, number as u8));
            }
            view.judge(&[], starts, 0).late
        };
        assert_eq!(came(&[7, 9]).max, 70.0);
        assert_eq!(came(&[7, 8, 9, 10, 11]).max, 0.0);
        let late = came(&[7]);
        assert_eq!(late.max, 75.0);
        assert_eq!([0.25, 0.5, 0.75, 1.0].map(|q| late.quantile(q).round()), [0.0, 5.0, 5.0, 75.0]);
    }
}
