//! What the placer remembers: which servers stay where they are, how busy they are, and the last
//! moves.

use std::collections::VecDeque;

use serde::Serialize;
use tactus_core::balance::Mobility;
use tactus_core::units::MonoTime;

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

    pub(super) fn note(&mut self, moved: RecentMove) {
        if self.moves.len() == MOVES {
            self.moves.pop_front();
        }
        self.moves.push_back(moved);
    }

    /// The last moves, the newest first.
    pub(super) fn moves(&self) -> Vec<RecentMove> {
        self.moves.iter().rev().cloned().collect()
    }
}
