//! A class as the pacer keeps it: what it may, what it has, and where it stands.

use super::clock::Clock;
use super::line::{Line, NONE};
use crate::mutant;
use crate::units::{BitRate, Bytes, MonoTime};

/// Priorities among siblings: 0 is served first.
pub const PRIORITIES: usize = 8;

/// What a class may. Its rates are of what packets are counted in: of wire bytes, if those are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// What it gets whatever others ask for; zero for nothing.
    pub guaranteed: BitRate,
    /// What it never exceeds; `None` for what its parent may.
    pub ceiling: Option<BitRate>,
    /// Which of its siblings borrow before it: those of smaller numbers, below [`PRIORITIES`].
    pub priority: u8,
    /// Its part of what is lent, in proportion to its siblings' of the same priority.
    pub share: BitRate,
}

impl Class {
    /// A class that sends at `rate` or, when all targets together do not fit, at its part of the
    /// parent's in proportion to the targets.
    pub const fn target(rate: BitRate) -> Self {
        Self { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate }
    }

    /// A stream of `rate` whose packets come when they are due: it needs no ceiling.
    pub const fn stream(rate: BitRate) -> Self {
        Self { guaranteed: rate, ceiling: None, priority: 0, share: rate }
    }

    /// A class without a promise that takes what is left, in proportion to `share`.
    pub const fn rest(share: BitRate) -> Self {
        Self { guaranteed: BitRate(0), ceiling: None, priority: PRIORITIES as u8 - 1, share }
    }

    /// # Panics
    /// When a rate is not one that the pacer keeps.
    pub(super) fn check(&self) {
        let is_rate = |rate: BitRate| (1..=RATE_MAX.0).contains(&rate.0);
        assert!(self.guaranteed <= RATE_MAX, "at most 1 Tbit/s is guaranteed");
        assert!(self.ceiling.is_none_or(is_rate), "a ceiling is 1 bit/s to 1 Tbit/s");
        assert!(is_rate(self.share), "a share is 1 bit/s to 1 Tbit/s");
        assert!(usize::from(self.priority) < PRIORITIES, "priorities are 0 to 7");
    }
}

/// The fastest that a pacer keeps: ten times what is promised.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000);

/// One packet, or several segments that leave as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Before this it does not leave; a time that has passed means at once.
    pub due: MonoTime,
    /// As the link counts them: with headers, if the link's rate is that of the wire.
    pub bytes: Bytes,
}

/// Where a class is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// It has nothing to send.
    Idle,
    /// Its packet is not due yet.
    Waits,
    /// It has something to send, and its ceiling's clock does not allow it yet.
    Blocked,
    /// In its parent's line of those that are owed a packet; the link: it may send.
    Owed,
    /// In its parent's line of those that borrow.
    Lent,
}

/// A class.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) class: Class,
    /// The life of this place, so that an old name is recognised; odd while it is in use.
    pub(super) life: u32,
    pub(super) parent: u32,
    pub(super) depth: u8,
    pub(super) place: Place,
    pub(super) packet: Option<Packet>,
    /// The children, for those that have any.
    pub(super) family: u32,
    pub(super) ceiling: Clock,
    pub(super) guarantee: Clock,
    pub(super) share: Clock,
    /// The last turn in which it had something to send.
    pub(super) busy: u64,
    /// All that it has sent, and those below it.
    pub(super) sent: Bytes,
}

impl Node {
    pub(super) const FREE: Self = Self {
        class: Class::rest(BitRate(1)),
        life: 0,
        parent: NONE,
        depth: 0,
        place: Place::Idle,
        packet: None,
        family: NONE,
        ceiling: Clock::at(MonoTime(0)),
        guarantee: Clock::at(MonoTime(0)),
        share: Clock::at(MonoTime(0)),
        busy: 0,
        sent: Bytes(0),
    };

    /// When its ceiling allows the next packet.
    pub(super) fn allowed(&self) -> MonoTime {
        match self.class.ceiling {
            Some(_) => mutant!(CeilingIgnored, MonoTime(0), self.ceiling.due()),
            None => MonoTime(0),
        }
    }
}

/// The children of a class.
#[derive(Clone, Debug)]
pub(super) struct Family {
    pub(super) members: u32,
    /// How many of them stand in a line.
    pub(super) ready: u32,
    /// The sum of their guarantees.
    pub(super) promised: BitRate,
    pub(super) owed: Line,
    pub(super) lent: [Line; PRIORITIES],
    /// Which of `lent` are not empty, as bits.
    pub(super) borrowing: u8,
    /// Somebody in `lent` may be guaranteed something that counts for nothing, as a class above is not.
    pub(super) is_forgone: bool,
}

impl Family {
    pub(super) const EMPTY: Self = Self {
        members: 0,
        ready: 0,
        promised: BitRate(0),
        owed: Line::EMPTY,
        lent: [Line::EMPTY; PRIORITIES],
        borrowing: 0,
        is_forgone: false,
    };
}
