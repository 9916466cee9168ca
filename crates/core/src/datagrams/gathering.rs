//! Groups the datagrams of a stream into messages, and decides when messages leave.
//!
//! Promise: no datagram waits longer than the permitted burst, or a turn. Messages of all streams
//! with one burst leave at the same moments, so that one wake-up serves all of them. Design note:
//! `docs/design/packets.md`, Messages.

use crate::units::{BitRate, Bytes, MonoTime, Nanos};

/// How long the datagrams of a stream wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gathering {
    /// The permitted burst, as time at its rate.
    burst: Nanos,
    /// Messages leave at multiples of this, so no wake-up is needed between them.
    grid: Nanos,
    /// The first datagram of a message is due at most this long before the last.
    within: Nanos,
}

impl Gathering {
    /// Each leaves when it is due.
    pub const NONE: Self = Self { burst: Nanos(0), grid: Nanos(1), within: Nanos(0) };

    /// For a stream with bursts of `burst`, and a sender with turns of `tick`: datagrams of one
    /// turn leave back to back in any case.
    pub fn of(burst: Nanos, tick: Nanos) -> Self {
        match burst.0 / GRID_PART / tick.0 {
            0 | 1 => Self { burst: burst.max(tick), grid: tick, within: burst.max(tick) },
            turns => {
                let grid = tick.times(turns);
                Self { burst, grid, within: burst - grid }
            }
        }
    }

    /// Whether datagrams wait for nothing but the next turn.
    pub(super) const fn is_by_turn(self) -> bool {
        self.within.0 <= self.grid.0
    }

    /// The latest due time of datagrams that leave with one due at `first`.
    pub(super) const fn until(self, first: MonoTime) -> MonoTime {
        match self.is_by_turn() {
            true => self.leaves(first),
            false => MonoTime(first.0 + self.within.0),
        }
    }

    /// The largest number of datagrams of `payload` in a message of a stream of `rate`.
    pub(super) const fn most(self, rate: BitRate, payload: Bytes) -> u64 {
        match self.is_by_turn() {
            // The number of due datagrams differs by one between turns.
            true => rate.bytes_in(self.within).0 / payload.0 + 1,
            false => self.datagrams(rate, payload),
        }
    }

    /// The usual number of datagrams of `payload` in a message of a stream of `rate`.
    pub const fn datagrams(self, rate: BitRate, payload: Bytes) -> u64 {
        let (within, all) = (rate.bytes_in(self.within), rate.bytes_in(self.burst));
        let (by_wait, by_burst) = (within.0 / payload.0 + 1, all.0 / payload.0);
        let most = if by_wait < by_burst { by_wait } else { by_burst };
        if most == 0 { 1 } else { most }
    }

    /// The largest distance of the due times in a message.
    pub const fn within(self) -> Nanos {
        self.within
    }

    /// The interval of the moments at which messages leave.
    pub const fn grid(self) -> Nanos {
        self.grid
    }

    /// When a datagram due at `due` leaves.
    pub const fn leaves(self, due: MonoTime) -> MonoTime {
        MonoTime(due.0.next_multiple_of(self.grid.0))
    }
}

/// This part of a burst reduces the number of wake-ups: with a larger part messages would be
/// shorter and cost more than it saves.
const GRID_PART: u64 = 8;
