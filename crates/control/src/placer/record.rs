//! What the placer remembers: which servers stay where they are, how busy they are, and the last
//! moves.

use std::collections::VecDeque;

use serde::Serialize;
use tactus_core::balance::{Mobility, Reason};
use tactus_core::units::{MonoTime, Nanos};

use crate::placement::ServerName;
use crate::settings::Cores;

/// Moves that are shown.
const MOVES: usize = 16;

/// Of each server, by its number in the ledger.
pub(super) struct Record {
    /// Where the configuration that was applied last places them, and which it forbids to move.
    pub(super) configured: Cores,
    /// Those that were put where they are by command.
    ordered: Vec<bool>,
    /// Thousandths of a core's time in the last second.
    pub(super) shares: Vec<u32>,
    /// Processors that are offline.
    pub(super) offline: Vec<u32>,
    moves: VecDeque<RecentMove>,
    totals: MoveTotals,
}

/// The cause of a move.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum MoveCause {
    /// A command.
    Command,
    /// Another configuration.
    Configuration,
    /// The balancer: the processor of its core is offline.
    Offline,
    /// The balancer: its core was busy.
    Busy,
    /// The balancer: most of what its core may promise was promised.
    Promised,
    /// The balancer: a request was refused for lack of a core's time.
    Refused,
    /// The balancer: its core can sleep.
    Idle,
}

impl MoveCause {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Command,
        Self::Configuration,
        Self::Offline,
        Self::Busy,
        Self::Promised,
        Self::Refused,
        Self::Idle,
    ];

    /// The name in status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Configuration => "configuration",
            Self::Offline => "offline",
            Self::Busy => "busy",
            Self::Promised => "promised",
            Self::Refused => "refused",
            Self::Idle => "idle",
        }
    }
}

impl From<Reason> for MoveCause {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Offline => Self::Offline,
            Reason::Busy(_) => Self::Busy,
            Reason::Promised(_) => Self::Promised,
            Reason::Refused(_) => Self::Refused,
            Reason::Idle => Self::Idle,
        }
    }
}

/// The moves since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MoveTotals {
    moves: [u64; MoveCause::ALL.len()],
    /// The pauses of all of them: time in which a server began nothing.
    pub paused: Nanos,
}

impl MoveTotals {
    /// Moves by their cause.
    pub fn by_cause(&self) -> impl Iterator<Item = (MoveCause, u64)> + use<> {
        MoveCause::ALL.into_iter().zip(self.moves)
    }
}

/// A move that was done, for people and programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecentMove {
    /// The server, as in the configuration.
    pub server: String,
    /// The processor of its old core.
    pub from: u32,
    /// The processor of its new core.
    pub core: u32,
    /// Time in which it began nothing, in microseconds.
    pub pause_us: u64,
    /// Its cause.
    pub cause: MoveCause,
    /// Why, as part of a sentence.
    pub reason: String,
    /// When it arrived.
    pub arrived: MonoTime,
}

/// Why the balancer does not move a server.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Restraint {
    /// It was put where it is by command.
    Command,
    /// `[cores] fixed` names it.
    Fixed,
}

impl Record {
    pub(super) fn new(configured: Cores, servers: usize) -> Self {
        Self {
            configured,
            ordered: vec![false; servers],
            shares: vec![0; servers],
            offline: vec![],
            moves: VecDeque::with_capacity(MOVES),
            totals: MoveTotals::default(),
        }
    }

    /// A server stays where it is, or not any more.
    pub(super) fn order(&mut self, number: usize, stays: bool) {
        self.ordered[number] = stays;
    }

    /// No server stays where it is by command.
    pub(super) fn release_all(&mut self) {
        self.ordered.fill(false);
    }

    pub(super) fn restraint(&self, number: usize, name: ServerName) -> Option<Restraint> {
        if self.configured.fixed.contains(&name) {
            return Some(Restraint::Fixed);
        }
        self.ordered[number].then_some(Restraint::Command)
    }

    /// The same for the balancer.
    pub(super) fn mobility(&self, number: usize, name: ServerName) -> Mobility {
        match self.restraint(number, name) {
            Some(Restraint::Fixed) => Mobility::Fixed,
            Some(Restraint::Command) => Mobility::Stays,
            None if self.configured.balance => Mobility::Free,
            None => Mobility::Stays,
        }
    }

    /// Notes a move with its pause.
    pub(super) fn note(&mut self, moved: RecentMove, pause: Nanos) {
        self.totals.moves[moved.cause as usize] += 1;
        self.totals.paused += pause;
        if self.moves.len() == MOVES {
            self.moves.pop_front();
        }
        self.moves.push_back(moved);
    }

    /// The last moves, the newest first.
    pub(super) fn moves(&self) -> Vec<RecentMove> {
        self.moves.iter().rev().cloned().collect()
    }

    /// All moves since the start.
    pub(super) fn totals(&self) -> MoveTotals {
        self.totals
    }
}
