//! The places of streams in their cycles: which streams leave in the same turns.
//!
//! Promise: streams of one cycle share turns as long as a turn stays short, so few streams need few
//! wake-ups. When all shared turns are full, further streams are spread evenly. The memory is
//! constant. Design note: `docs/design/packets.md`, Due times.

use super::{PAYLOAD, SEGMENTS_MAX};
use crate::units::{BitRate, Bytes, MonoTime, Nanos, SECOND};

/// The time from one message of a stream to the next: so many datagrams at this rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// The rate of the datagrams' payload.
    pub rate: BitRate,
    /// The number of datagrams in a message.
    pub datagrams: u32,
    /// The payload of each.
    pub payload: Bytes,
}

impl Cycle {
    /// The duration. Rounds up.
    pub fn length(self) -> Nanos {
        self.rate.time_for(self.message())
    }

    /// The shortest time of whole cycles that is at least `span`: a stream that is delayed by it
    /// stays at its phase.
    pub fn whole(self, span: Nanos) -> Nanos {
        let cycles = span.0.div_ceil(self.length().0);
        // Rounded once for all cycles, so one more may be necessary.
        let of = |cycles: u64| self.rate.time_for(Bytes(self.message().0 * cycles));
        of(if of(cycles) < span { cycles + 1 } else { cycles })
    }

    fn message(self) -> Bytes {
        Bytes(self.payload.0 * u64::from(self.datagrams))
    }

    /// The first time from `now` on that is at `phase` of this cycle. The cycles of one rate run
    /// from the clock's zero, whenever their streams are opened.
    pub fn begin(self, phase: Phase, now: MonoTime) -> MonoTime {
        // In billionths of a bit, so that starts hours apart are aligned to the nanosecond.
        let message = u128::from(8 * self.message().0) * u128::from(SECOND.0);
        let own = (message * u128::from(phase.0)) >> 64;
        let rate = u128::from(self.rate.0);
        let passed = u128::from(now.0) * rate % message;
        let wait = (own + message - passed) % message;
        now + Nanos(wait.div_ceil(rate) as u64)
    }
}

/// A position within a cycle, as a part of 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase(pub u64);

impl Phase {
    /// Spreads any number of streams as evenly over a cycle as possible.
    pub fn spread(number: u32) -> Self {
        /// 2^64 divided by the golden ratio.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        Self(u64::from(number).wrapping_mul(GOLDEN))
    }
}

/// The place of a stream, until it [leaves](Places::leave).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    cycle: u8,
    nth: u8,
}

/// The places of all streams of a sender.
#[derive(Debug)]
pub struct Places {
    cycles: [CyclePlaces; CYCLES_MAX],
    /// Datagrams that may leave in one turn before another turn is used.
    shared_max: u32,
}

/// The places of one cycle. They are at least a turn apart, so no turn serves two of them.
#[derive(Clone, Copy, Debug)]
struct CyclePlaces {
    cycle: Cycle,
    count: u8,
    /// The number of streams at each place.
    streams: [u32; PLACES_MAX],
    all: u32,
}

impl Places {
    /// For a link of `rate`, and turns of `tick`.
    pub fn new(rate: BitRate, tick: Nanos) -> Self {
        let unused = CyclePlaces {
            cycle: Cycle { rate: BitRate(1), datagrams: 1, payload: PAYLOAD },
            count: 1,
            streams: [0; PLACES_MAX],
            all: 0,
        };
        // The link carries them within a turn.
        let carried = rate.bytes_in(tick).0 / WIRE.0;
        let shared_max = carried.min(u64::from(SHARED_MAX)) as u32;
        Self { cycles: [unused; CYCLES_MAX], shared_max }
    }

    /// The place of another stream, whose messages leave at multiples of `grid`; none for a cycle
    /// that has no room for two turns, or beside too many other cycles.
    pub fn enter(&mut self, cycle: Cycle, grid: Nanos) -> Option<Place> {
        let count = (cycle.length().0 / grid.0).min(PLACES_MAX as u64) as u8;
        if count < 2 {
            return None;
        }
        let is_own =
            |places: &CyclePlaces| places.all > 0 && places.cycle == cycle && places.count == count;
        let known = self.cycles.iter().position(is_own);
        let at = known.or_else(|| self.cycles.iter().position(|places| places.all == 0))?;
        if known.is_none() {
            self.cycles[at] = CyclePlaces { cycle, count, ..self.cycles[at] };
        }
        // Turns of different cycles coincide at times: together they have the datagrams of one.
        let others = (0..).zip(&self.cycles).filter(|(nth, places)| *nth != at && places.all > 0);
        let in_use = others.count() as u32 + 1;
        let room = self.shared_max / in_use / cycle.datagrams.clamp(1, SEGMENTS_MAX);
        let places = &mut self.cycles[at];
        let cost = |nth: u8| match places.streams[usize::from(nth)] {
            // Distant places first: a long turn delays the next one.
            0 => (1, u32::from(nth.reverse_bits())),
            streams if streams < room => (0, 0),
            streams => (2, streams),
        };
        let nth = (0..count).min_by_key(|&nth| cost(nth))?;
        places.streams[usize::from(nth)] += 1;
        places.all += 1;
        Some(Place { cycle: at as u8, nth })
    }

    /// The phase of a place in its cycle.
    pub fn phase(&self, place: Place) -> Phase {
        let count = u128::from(self.cycles[usize::from(place.cycle)].count);
        Phase(((u128::from(place.nth) << 64) / count) as u64)
    }

    /// The cycle of a place.
    pub fn cycle(&self, place: Place) -> Cycle {
        self.cycles[usize::from(place.cycle)].cycle
    }

    /// Frees the place of a stream.
    pub fn leave(&mut self, place: Place) {
        let places = &mut self.cycles[usize::from(place.cycle)];
        places.streams[usize::from(place.nth)] -= 1;
        places.all -= 1;
    }
}

/// The work of a usual tick of 250 us, at 2 us for a datagram. A wake-up costs as much as ten of
/// them.
const SHARED_MAX: u32 = 128;

/// Beside more cycles than this, a stream shares no turn.
const CYCLES_MAX: usize = 64;

/// A cycle of 64 turns wakes the core in one of 64.
const PLACES_MAX: usize = 64;

/// A whole datagram on the wire.
const WIRE: Bytes = Bytes(PAYLOAD.0 + 66);

#[cfg(test)]
mod tests;
