//! Which datagrams of a stream leave as one message, and when.
//!
//! Promise: nobody waits for longer than the burst that was allowed, or a turn; messages of all streams of one burst leave at
//! the same moments, so that a wake-up serves all of them. The argument: `docs/design/packets.md`, Messages.

use super::PAYLOAD;
use crate::units::{BitRate, MonoTime, Nanos};

/// How long the datagrams of a stream wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gathering {
    /// What a stream may do at once, as time of its rate.
    burst: Nanos,
    /// Messages leave at multiples of this: nobody has to wake up between them.
    grid: Nanos,
    /// The first of a message is due by so much before the last.
    within: Nanos,
}

impl Gathering {
    /// Each leaves when it is due.
    pub const NONE: Self = Self { burst: Nanos(0), grid: Nanos(1), within: Nanos(0) };

    /// Of a stream that may leave in bursts of `burst`, by a sender whose turns are `tick` apart: what falls due within
    /// a turn leaves back to back in any case.
    pub fn of(burst: Nanos, tick: Nanos) -> Self {
        match burst.0 / GRID_PART / tick.0 {
            0 | 1 => Self { burst: burst.max(tick), grid: tick, within: burst.max(tick) },
            turns => {
                let grid = tick.times(turns);
                Self { burst, grid, within: burst - grid }
            }
        }
    }

    /// Whether datagrams wait for nothing but the next turn, in which all that is due by then leaves.
    pub(super) const fn is_by_turn(self) -> bool {
        self.within.0 <= self.grid.0
    }

    /// When the last may be due of those that leave with one that is due at `first`.
    pub(super) const fn until(self, first: MonoTime) -> MonoTime {
        match self.is_by_turn() {
            true => self.leaves(first),
            false => MonoTime(first.0 + self.within.0),
        }
    }

    /// How many datagrams of a stream of `rate` are one message at most.
    pub(super) const fn most(self, rate: BitRate) -> u64 {
        match self.is_by_turn() {
            // A turn finds now one more, now one less of them due.
            true => rate.bytes_in(self.within).0 / PAYLOAD.0 + 1,
            false => self.datagrams(rate),
        }
    }

    /// How many datagrams of a stream of `rate` one message holds, as a rule.
    pub const fn datagrams(self, rate: BitRate) -> u64 {
        let (within, all) = (rate.bytes_in(self.within), rate.bytes_in(self.burst));
        let (by_wait, by_burst) = (within.0 / PAYLOAD.0 + 1, all.0 / PAYLOAD.0);
        let most = if by_wait < by_burst { by_wait } else { by_burst };
        if most == 0 { 1 } else { most }
    }

    /// How far apart the first and the last of a message are due, at most.
    pub const fn within(self) -> Nanos {
        self.within
    }

    /// How far apart the moments are at which messages leave.
    pub const fn grid(self) -> Nanos {
        self.grid
    }

    /// When what is due at `due` leaves.
    pub const fn leaves(self, due: MonoTime) -> MonoTime {
        MonoTime(due.0.next_multiple_of(self.grid.0))
    }
}

/// This part of a burst is spent on waking up seldomer: with more of it messages would be shorter, and cost more than is saved.
const GRID_PART: u64 = 8;
