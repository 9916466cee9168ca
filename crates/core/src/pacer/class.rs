//! The state of a class in the pacer: limits, packet and place.

use super::clock::Clock;
use super::line::{KeyQueue, NONE};
use crate::mutant;
use crate::units::{BitRate, Bytes, MonoTime};

/// Priorities among siblings: 0 is served first.
pub const PRIORITIES: usize = 8;

/// The limits of a class. Its rates use the unit of packet sizes: wire bytes, if packets count wire
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Its guarantee, whatever other classes need; zero for none.
    pub guaranteed: BitRate,
    /// Its upper limit; `None` for that of its parent.
    pub ceiling: Option<BitRate>,
    /// Priority of borrowing: siblings with smaller numbers borrow first. Below [`PRIORITIES`].
    pub priority: u8,
    /// Its share of the borrowed rate, relative to siblings of the same priority.
    pub share: BitRate,
}

impl Class {
    /// A class that sends at `rate`. If the targets of all siblings do not fit, it gets its part of
    /// the parent's rate in proportion to the targets.
    pub const fn target(rate: BitRate) -> Self {
        Self { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate }
    }

    /// A stream of `rate` whose packets arrive when they are due: it needs no ceiling.
    pub const fn stream(rate: BitRate) -> Self {
        Self { guaranteed: rate, ceiling: None, priority: 0, share: rate }
    }

    /// A class without a guarantee that borrows the rest, in proportion to `share`.
    pub const fn rest(share: BitRate) -> Self {
        Self { guaranteed: BitRate(0), ceiling: None, priority: PRIORITIES as u8 - 1, share }
    }

    /// # Panics
    /// If the pacer does not support a rate.
    pub(super) fn check(&self) {
        let is_rate = |rate: BitRate| (1..=RATE_MAX.0).contains(&rate.0);
        assert!(self.guaranteed <= RATE_MAX, "at most 1 Tbit/s is guaranteed");
        assert!(self.ceiling.is_none_or(is_rate), "a ceiling is 1 bit/s to 1 Tbit/s");
        assert!(is_rate(self.share), "a share is 1 bit/s to 1 Tbit/s");
        assert!(usize::from(self.priority) < PRIORITIES, "priorities are 0 to 7");
    }
}

/// The highest rate that the pacer supports: ten times the promised rate.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000);

/// One packet, or several segments that leave as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// It does not leave before this time; a time in the past means at once.
    pub due: MonoTime,
    /// The size as the link counts it: with headers, if the link's rate is that of the wire.
    pub bytes: Bytes,
}

/// The place of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueState {
    /// It has no packet.
    Idle,
    /// Its packet is not due yet.
    Waits,
    /// It has a due packet, and its ceiling does not allow it yet.
    Blocked,
    /// In its parent's line of classes below their guarantee; for the link: it may send.
    Owed,
    /// In its parent's line of borrowing classes.
    Lent,
}

/// A class.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) class: Class,
    /// The generation of this slot, to recognise old identifiers; odd while the slot is in use.
    pub(super) life: u32,
    pub(super) parent: u32,
    pub(super) depth: u8,
    pub(super) place: QueueState,
    pub(super) packet: Option<Packet>,
    /// The children, if it has any.
    pub(super) family: u32,
    pub(super) ceiling: Clock,
    pub(super) guarantee: Clock,
    pub(super) share: Clock,
    /// The last turn in which it had a packet to send.
    pub(super) busy: u64,
    /// All bytes sent by it and the classes below it.
    pub(super) sent: Bytes,
}

impl Node {
    pub(super) const FREE: Self = Self {
        class: Class::rest(BitRate(1)),
        life: 0,
        parent: NONE,
        depth: 0,
        place: QueueState::Idle,
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
    /// Number of children in a line.
    pub(super) ready: u32,
    /// The sum of their guarantees.
    pub(super) promised: BitRate,
    pub(super) owed: KeyQueue,
    pub(super) lent: [KeyQueue; PRIORITIES],
    /// The lines of `lent` that are not empty, as bits.
    pub(super) borrowing: u8,
    /// A class in `lent` may have a guarantee that has no effect, because a class above has none.
    pub(super) is_forgone: bool,
}

impl Family {
    pub(super) const EMPTY: Self = Self {
        members: 0,
        ready: 0,
        promised: BitRate(0),
        owed: KeyQueue::EMPTY,
        lent: [KeyQueue::EMPTY; PRIORITIES],
        borrowing: 0,
        is_forgone: false,
    };
}
