//! Stagger: the slots of the link's tick that belong to each stream.
//!
//! Promise: a stream is visited at the same moments of each second, and the visits of many streams
//! are spread evenly. All ticks are whole divisions of a second, so a window of one second always
//! holds the same number of visits. Most ticks are whole numbers of slots; between the visits of
//! the others lie one of two neighbouring numbers of slots. One wake-up serves a whole slot, so
//! wake-ups do not grow with the number of streams.

use crate::units::{BitRate, Bytes, KIB, MonoTime, Nanos, SECOND};

/// Slots in a second. 1.25 ms: fine enough to spread thousands of streams, and a common divisor of
/// all ticks that may be asked for.
pub const SLOTS_PER_SECOND: u64 = 800;
/// The length of a slot.
pub const SLOT: Nanos = Nanos(SECOND.0 / SLOTS_PER_SECOND);

/// The send interval of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Tick {
    /// 10 ms: the most even, the most expensive per byte.
    Ms10,
    /// 25 ms
    Ms25,
    /// 50 ms
    Ms50,
    /// 55 or 56.25 ms, eighteen times a second: chosen where a send then is a single packet.
    Ms55,
    /// 62.5 ms: the default of HTTP.
    Ms62,
    /// 100 ms
    Ms100,
    /// 110 or 111.25 ms, nine times a second: chosen where a send then is two packets.
    Ms111,
    /// 125 ms
    Ms125,
    /// 250 ms: one send per flash cycle.
    Ms250,
}

impl Tick {
    /// All ticks, shortest first.
    pub const ALL: [Self; 9] = [
        Self::Ms10,
        Self::Ms25,
        Self::Ms50,
        Self::Ms55,
        Self::Ms62,
        Self::Ms100,
        Self::Ms111,
        Self::Ms125,
        Self::Ms250,
    ];

    /// The ticks that may be asked for: those that are whole numbers of slots.
    pub const EVEN: [Self; 7] =
        [Self::Ms10, Self::Ms25, Self::Ms50, Self::Ms62, Self::Ms100, Self::Ms125, Self::Ms250];

    /// Visits in a second.
    pub const fn per_second(self) -> u64 {
        match self {
            Self::Ms10 => 100,
            Self::Ms25 => 40,
            Self::Ms50 => 20,
            Self::Ms55 => 18,
            Self::Ms62 => 16,
            Self::Ms100 => 10,
            Self::Ms111 => 9,
            Self::Ms125 => 8,
            Self::Ms250 => 4,
        }
    }

    /// Slots from one visit to the next, where there are most.
    pub const fn slots(self) -> u64 {
        SLOTS_PER_SECOND.div_ceil(self.per_second())
    }

    /// The phases that streams may have: slots from one visit to the next, where there are fewest.
    pub const fn phases(self) -> u64 {
        SLOTS_PER_SECOND / self.per_second()
    }

    /// The slots of each second in which the streams of `phase` are visited.
    pub fn visits(self, phase: u64) -> impl Iterator<Item = u64> + Clone {
        (0..self.per_second()).map(move |visit| self.first_of(visit) + phase)
    }

    /// The slot of a second in which the streams of the first phase have their visit number
    /// `visit`.
    const fn first_of(self, visit: u64) -> u64 {
        visit * SLOTS_PER_SECOND / self.per_second()
    }

    /// The longest time from one visit to the next.
    pub const fn span(self) -> Nanos {
        Nanos(self.slots() * SLOT.0)
    }

    /// Of the ticks that may be asked for the shortest that is not shorter than `span`, or the
    /// longest.
    pub fn not_under(span: Nanos) -> Self {
        Self::EVEN.into_iter().find(|tick| tick.span() >= span).unwrap_or(Self::Ms250)
    }

    /// The tick for a stream of `rate` whose class uses `wanted`: longer while a send would be
    /// under 4 KiB, shorter while it would be over 512 KiB, and shorter by up to a half where that
    /// takes fewer packets. A packet costs 5 us whatever its size, so tiny sends waste the link's
    /// core; huge ones do not fit a socket buffer.
    pub fn for_rate(rate: BitRate, wanted: Self) -> Self {
        let bytes = |tick: Self| rate.bytes_in(tick.span());
        let at = |tick: Self| Self::ALL.iter().position(|&t| t == tick).expect("ALL holds each");
        let mut index = at(wanted);
        while index + 1 < Self::ALL.len() && bytes(Self::ALL[index]) < SEND_MIN {
            index += 1;
        }
        while index > 0 && bytes(Self::ALL[index]) > SEND_MAX {
            index -= 1;
        }
        let longest = Self::ALL[index];
        let candidates = Self::ALL[..=index].iter().rev().copied();
        let candidates = candidates.filter(|tick| tick.slots() * 2 >= longest.slots());
        candidates.min_by_key(|tick| tick.cost(rate)).expect("the longest is one of them")
    }

    /// What a second of `rate` costs at this tick, in microseconds beside the cost of its bytes.
    fn cost(self, rate: BitRate) -> u64 {
        let packets = packets(rate.bytes_in(self.span()));
        self.per_second() * (SEND_COST + packets * PACKET_COST)
    }
}

/// The packets in which `bytes` of one send pass through the host's network stack. Network devices
/// cut them into frames.
pub const fn packets(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(PACKET)
}

/// The payload of the largest packet of TCP inside of the host: seven segments of jumbo frames. 45
/// segments of ordinary frames are a little more.
const PACKET: u64 = 7 * 8_948;
/// Microseconds that a call of the kernel and the visit of a stream take.
const SEND_COST: u64 = 3;
/// Microseconds that a packet takes through the stack, with its acknowledgement.
const PACKET_COST: u64 = 5;

const SEND_MIN: Bytes = Bytes(4 * KIB);
const SEND_MAX: Bytes = Bytes(512 * KIB);

/// A slot's number, counted from the start of the monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(pub u64);

impl Slot {
    /// The slot that contains `now`.
    pub const fn at(now: MonoTime) -> Self {
        Self(now.0 / SLOT.0)
    }

    /// When the slot begins.
    pub const fn begin(self) -> MonoTime {
        MonoTime(self.0 * SLOT.0)
    }

    /// The phase whose streams are visited in this slot; none has a phase from `Tick::phases` on.
    pub const fn phase(self, tick: Tick) -> u64 {
        let slot = self.0 % SLOTS_PER_SECOND;
        let visit = ((slot + 1) * tick.per_second() - 1) / SLOTS_PER_SECOND;
        slot - tick.first_of(visit)
    }
}

const _: () = assert!(SLOT.0 * SLOTS_PER_SECOND == SECOND.0);
const _: () = {
    let mut index = 0;
    while index < Tick::EVEN.len() {
        assert!(Tick::EVEN[index].slots() == Tick::EVEN[index].phases());
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_tick_covers_what_may_wait() {
        let tick = |millis| Tick::not_under(Nanos::from_millis(millis));
        assert_eq!(
            [0, 8, 10, 11, 40, 51].map(tick),
            [Tick::Ms10, Tick::Ms10, Tick::Ms10, Tick::Ms25, Tick::Ms50, Tick::Ms62]
        );
        assert_eq!(tick(1000), Tick::Ms250);
    }

    #[test]
    fn ticks_grow_for_slow_streams_and_shrink_for_fast_ones() {
        assert_eq!(Tick::for_rate(BitRate(8_000_000), Tick::Ms62), Tick::Ms62);
        assert_eq!(Tick::for_rate(BitRate(64_000), Tick::Ms62), Tick::Ms250);
        assert_eq!(Tick::for_rate(BitRate(1_000_000_000), Tick::Ms62), Tick::Ms10);
        assert_eq!(Tick::for_rate(BitRate(8_800_000), Tick::Ms250), Tick::Ms250);
    }

    #[test]
    fn a_send_that_is_a_little_larger_than_a_packet_is_made_smaller() {
        let ticks = |rate| [Tick::Ms62, Tick::Ms125].map(|tick| Tick::for_rate(rate, tick));
        // 68,750 bytes at 62.5 ms are two packets, 61,875 at 56.25 ms are one.
        assert_eq!(ticks(BitRate(8_800_000)), [Tick::Ms55, Tick::Ms111]);
        // 56.25 ms of it would be two.
        assert_eq!(ticks(BitRate(9_000_000))[0], Tick::Ms50);
        assert_eq!(ticks(BitRate(4_000_000)), [Tick::Ms62, Tick::Ms125]);
        for rate in (1..160).map(|tenths| BitRate(tenths * 100_000)) {
            for wanted in Tick::ALL {
                let tick = Tick::for_rate(rate, wanted);
                let longest = tick.cost(rate).min(wanted.cost(rate));
                let is_small = rate.bytes_in(wanted.span()) < SEND_MIN;
                assert!(tick.cost(rate) == longest || is_small, "{rate} {wanted:?}");
                assert!(tick <= wanted || is_small, "{rate} {wanted:?}");
            }
        }
    }

    #[test]
    fn a_second_always_holds_the_same_number_of_visits_at_most_a_slot_nearer_than_others() {
        for tick in Tick::ALL {
            for start in [0, 1, 777_777, 123_456_789_012] {
                let first = Slot::at(MonoTime(start));
                let slots = (0..SLOTS_PER_SECOND).map(|ahead| Slot(first.0 + ahead));
                let visits: Vec<_> =
                    slots.filter(|slot| slot.phase(tick) == 3 % tick.phases()).collect();
                assert_eq!(visits.len() as u64, tick.per_second());
                let apart = visits.windows(2).map(|two| two[1].0 - two[0].0);
                assert!(
                    apart.into_iter().all(|slots| [tick.phases(), tick.slots()].contains(&slots))
                );
            }
        }
    }

    #[test]
    fn the_visits_of_a_phase_are_in_its_slots() {
        for tick in Tick::ALL {
            for phase in 0..tick.phases() {
                let slots = (0..SLOTS_PER_SECOND).filter(|&slot| Slot(slot).phase(tick) == phase);
                assert!(slots.eq(tick.visits(phase)), "{tick:?} {phase}");
            }
        }
    }
}
