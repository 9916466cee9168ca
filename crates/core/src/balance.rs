//! The balancer: which server of an engine moves to which real-time core, and why.
//!
//! Promise: the ledger has room for every proposed move. Under constant load the proposals end, and
//! no placement comes twice: a move away from a full core leaves the fuller one of its two cores
//! clearly less full, and servers come together only far below what takes them apart. Nothing here
//! knows a thread or a clock.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::mutant;
use crate::units::{MonoTime, Nanos, SECOND};

mod history;

use history::History;
pub use history::SAMPLE;

/// Where a core is in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Its NUMA node.
    pub node: u32,
    /// The number of its physical core: hyper-threads of one have the same.
    pub physical: u32,
    /// The scheduler keeps other programs away from it (`isolcpus`).
    pub is_isolated: bool,
    /// It runs.
    pub is_online: bool,
}

/// A real-time core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Core {
    /// Its promised time per second.
    pub promised: Nanos,
    /// The most that may be promised, without what its servers keep.
    pub limit: Nanos,
    /// Where it is.
    pub position: Position,
}

/// Whether a server may be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mobility {
    /// It may.
    Free,
    /// Only if its core goes offline.
    Stays,
    /// Never.
    Fixed,
}

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// The index of its core.
    pub core: usize,
    /// Thousandths of its core's time that it uses now.
    pub busy: u32,
    /// The highest of them in the last ten seconds.
    pub peak: u32,
    /// Promised time per second of its core.
    pub promised: Nanos,
    /// Time per second that is kept for it.
    pub kept: Nanos,
    /// Whether it may be moved.
    pub mobility: Mobility,
}

/// Why a server is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its core does not run any more.
    Offline,
    /// Its core is busy for this many thousandths of its time.
    Busy(u32),
    /// So many thousandths of what may be promised of its core are promised.
    Promised(u32),
    /// The same, and a request was refused because a core has no time for it.
    Refused(u32),
    /// Another core does its core's work as well, so that its core can sleep.
    Idle,
}

/// A move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The index of the server.
    pub server: usize,
    /// The index of its new core.
    pub to: usize,
    /// Why.
    pub reason: Reason,
}

/// A core is full from here on, in thousandths of its time or of what may be promised. The kernel
/// takes a core away from a real-time thread at 950.
const FULL: u64 = 800;
/// A core that takes over another's servers stays below this: far from [`FULL`], so that servers
/// that came together do not part again for noise.
const PACKED: u64 = 450;
/// A move away from a core that is busy leaves the fuller one of both cores this much less full:
/// more than measured shares vary.
const GAIN_OF_BUSY: u64 = 100;
/// The same for promises, which do not vary by themselves.
const GAIN_OF_PROMISES: u64 = 50;
/// By how much a core must be emptier to be chosen before one of the same NUMA node.
const OTHER_NODE: u64 = 150;
/// By how much a core must be emptier to be chosen before one that is awake already.
const ASLEEP: u64 = 20;
/// This part of the load of its other hyper-threads counts against a core.
const OF_SIBLING: u64 = 3;

/// The load of a core: sums over its servers.
#[derive(Clone, Copy, Default)]
struct Load {
    busy: u64,
    promised: u64,
    servers: u32,
}

impl Load {
    fn with(self, server: &Server, busy: u32) -> Self {
        Self {
            busy: self.busy + u64::from(busy),
            promised: self.promised + server.promised.0 + server.kept.0,
            servers: self.servers + 1,
        }
    }

    fn without(self, server: &Server, busy: u32) -> Self {
        Self {
            busy: self.busy - u64::from(busy),
            promised: self.promised - server.promised.0 - server.kept.0,
            servers: self.servers - 1,
        }
    }

    fn of_promises(&self, capacity: u64) -> u64 {
        (u128::from(self.promised) * 1000 / u128::from(capacity.max(1))) as u64
    }

    /// Thousandths of the time, or of what may be promised, whichever is more.
    fn fullness(&self, capacity: u64) -> u64 {
        mutant!(BusyIgnored, 0, self.busy).max(self.of_promises(capacity))
    }
}

/// The state that a proposal is made for.
struct View<'a> {
    cores: &'a [Core],
    servers: &'a [Server],
    /// What may be promised of each core, with what its servers keep.
    capacities: Vec<u64>,
    loads: Vec<Load>,
    peaks: Vec<Load>,
}

/// What is looked for when no core is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nothing.
    Steady,
    /// Servers may come together on fewer cores.
    Pack,
    /// A request was refused because a core has no time for it: promises are spread.
    Spread,
}

/// The next move, if one pays.
///
/// # Panics
/// If a server has no core.
pub fn propose(cores: &[Core], servers: &[Server], mode: Mode) -> Option<Proposal> {
    let view = View::new(cores, servers);
    let found = view.evacuate().or_else(|| view.relieve());
    found.or_else(|| match mode {
        Mode::Steady => None,
        Mode::Pack => view.pack(),
        Mode::Spread => view.spread(),
    })
}

impl<'a> View<'a> {
    fn new(cores: &'a [Core], servers: &'a [Server]) -> Self {
        let mut loads = alloc::vec![Load::default(); cores.len()];
        let mut peaks = loads.clone();
        let mut capacities: Vec<_> = cores.iter().map(|core| core.limit.0).collect();
        for server in servers {
            let at = server.core;
            loads[at] = loads[at].with(server, server.busy);
            peaks[at] = peaks[at].with(server, server.peak);
            capacities[at] += server.kept.0;
        }
        Self { cores, servers, capacities, loads, peaks }
    }

    /// Whether the ledger has room for `server` on the core `to`, beside `more` that is to come.
    fn fits(&self, server: &Server, to: usize, more: u64) -> bool {
        let core = &self.cores[to];
        let needed = core.promised.0 + server.promised.0 + server.kept.0 + more;
        core.position.is_online && needed <= core.limit.0
    }

    fn fullness(&self, at: usize, load: &Load) -> u64 {
        load.fullness(self.capacities[at])
    }

    /// What speaks against the core `to` for a server of the core `from`.
    fn penalty(&self, from: usize, to: usize) -> u64 {
        let [old, new] = [from, to].map(|at| self.cores[at].position);
        let is_sibling =
            |at: usize| at != to && at != from && self.cores[at].position.physical == new.physical;
        let siblings = (0..self.cores.len()).filter(|&at| is_sibling(at));
        let of_siblings = siblings.map(|at| self.loads[at].busy / OF_SIBLING).sum::<u64>();
        let of_own = if old.physical == new.physical { FULL / OF_SIBLING } else { 0 };
        let of_node = if old.node == new.node { 0 } else { OTHER_NODE };
        let of_sleep = if self.loads[to].servers == 0 { ASLEEP } else { 0 };
        let of_others = u64::from(!new.is_isolated);
        of_siblings + of_own + of_node + of_sleep + of_others
    }

    /// Moves a server away from a core that is offline, the one with the most promises first.
    fn evacuate(&self) -> Option<Proposal> {
        let mut stranded: Vec<_> = self.servers.iter().enumerate().collect();
        stranded.retain(|(_, server)| {
            !self.cores[server.core].position.is_online && server.mobility != Mobility::Fixed
        });
        stranded.sort_by_key(|(at, server)| (Reverse(server.promised + server.kept), *at));
        stranded.into_iter().find_map(|(at, server)| {
            let fitting = (0..self.cores.len()).filter(|&to| self.fits(server, to, 0));
            let cost = |&to: &usize| {
                let load = self.loads[to].with(server, server.busy);
                (self.fullness(to, &load) + self.penalty(server.core, to), to)
            };
            let to = fitting.min_by_key(cost)?;
            Some(Proposal { server: at, to, reason: Reason::Offline })
        })
    }

    /// Moves a server away from a full core, the fullest first.
    fn relieve(&self) -> Option<Proposal> {
        let mut full: Vec<_> = (0..self.cores.len())
            .map(|at| (self.fullness(at, &self.loads[at]), at))
            .filter(|&(fullness, at)| fullness >= FULL && self.cores[at].position.is_online)
            .collect();
        full.sort_by_key(|&(fullness, at)| (Reverse(fullness), at));
        full.into_iter().find_map(|(fullness, from)| self.relieve_core(from, fullness))
    }

    /// Moves a server away from the core that has promised most, if the other one is not full then.
    fn spread(&self) -> Option<Proposal> {
        let promised = |at: usize, load: &Load| load.of_promises(self.capacities[at]);
        let cores = (0..self.cores.len()).filter(|&at| self.cores[at].position.is_online);
        let from = cores.max_by_key(|&at| (promised(at, &self.loads[at]), Reverse(at)))?;
        let most = promised(from, &self.loads[from]);
        let judged = self.moves_from(from).filter_map(|(at, one, to)| {
            let left = promised(from, &self.loads[from].without(one, one.busy));
            let load = self.loads[to].with(one, one.busy);
            let after = left.max(promised(to, &load));
            let pays = after + GAIN_OF_PROMISES <= most && self.fullness(to, &load) < FULL;
            pays.then(|| (after + self.penalty(from, to), at, to))
        });
        let reason = Reason::Refused(most as u32);
        judged.min().map(|(_, server, to)| Proposal { server, to, reason })
    }

    /// The servers that may leave a core, with each core that the ledger lets them go to.
    fn moves_from(&self, from: usize) -> impl Iterator<Item = (usize, &Server, usize)> {
        let here = self.servers.iter().enumerate();
        let here = here.filter(move |(_, one)| one.core == from && one.mobility == Mobility::Free);
        here.flat_map(move |(at, one)| {
            let places = (0..self.cores.len()).filter(move |&to| to != from);
            places.filter(move |&to| self.fits(one, to, 0)).map(move |to| (at, one, to))
        })
    }

    fn relieve_core(&self, from: usize, fullness: u64) -> Option<Proposal> {
        let of_promises = self.loads[from].of_promises(self.capacities[from]);
        let (reason, gain) = if self.loads[from].busy >= of_promises {
            (Reason::Busy(fullness as u32), GAIN_OF_BUSY)
        } else {
            (Reason::Promised(fullness as u32), GAIN_OF_PROMISES)
        };
        let judged = self.moves_from(from).filter_map(|(at, one, to)| {
            let left = self.fullness(from, &self.loads[from].without(one, one.busy));
            let after = left.max(self.fullness(to, &self.loads[to].with(one, one.busy)));
            let pays = after + mutant!(GainForgotten, 0, gain) <= fullness;
            pays.then(|| (after + self.penalty(from, to), at, to))
        });
        judged.min().map(|(_, server, to)| Proposal { server, to, reason })
    }

    /// Begins, or goes on, to empty a core whose servers all have room on others of its NUMA node.
    fn pack(&self) -> Option<Proposal> {
        let awake = |&at: &usize| self.peaks[at].servers > 0 && self.cores[at].position.is_online;
        let mut cores: Vec<_> = (0..self.cores.len()).filter(awake).collect();
        let key = |at: usize| {
            let peak = &self.peaks[at];
            let isolated = self.cores[at].position.is_isolated;
            (self.fullness(at, peak), peak.servers, isolated, Reverse(at))
        };
        cores.sort_by_key(|&at| key(at));
        cores.iter().find_map(|&from| self.empty(from, &cores))
    }

    /// The first move of those that empty the core `from`, if all of them are possible.
    fn empty(&self, from: usize, awake: &[usize]) -> Option<Proposal> {
        let mut here: Vec<_> =
            self.servers.iter().enumerate().filter(|(_, one)| one.core == from).collect();
        if here.iter().any(|(_, one)| one.mobility != Mobility::Free) {
            return None;
        }
        here.sort_by_key(|(at, one)| (Reverse(one.promised + one.kept), Reverse(one.peak), *at));
        let mut loads = self.peaks.clone();
        let mut more = alloc::vec![0; self.cores.len()];
        let mut first = None;
        for (server, one) in here {
            let node = self.cores[from].position.node;
            let takes = |&to: &usize| {
                let filled = self.fullness(to, &loads[to].with(one, one.peak));
                let is_near = self.cores[to].position.node == node;
                let fits = to != from && is_near && self.fits(one, to, more[to]);
                let is_room = filled <= mutant!(PackedFull, 1000, PACKED);
                (fits && is_room).then_some((filled, Reverse(to)))
            };
            let (_, Reverse(to)) = awake.iter().filter_map(takes).max()?;
            first = first.or(Some(Proposal { server, to, reason: Reason::Idle }));
            loads[to] = loads[to].with(one, one.peak);
            more[to] += one.promised.0 + one.kept.0;
        }
        first
    }
}

/// A server at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The index of its core.
    pub core: usize,
    /// Time that it has used since the start.
    pub busy: Nanos,
    /// Promised time per second of its core.
    pub promised: Nanos,
    /// Time per second that is kept for it.
    pub kept: Nanos,
    /// Whether it may be moved.
    pub mobility: Mobility,
}

/// The balancer: what the servers have used in the last ten seconds, and what has moved.
pub struct Balancer {
    servers: Vec<History>,
    looked: MonoTime,
    /// Requests that were refused for lack of a core's time.
    refused: u64,
    /// Since when none was refused, and nothing has moved, except to let a core sleep.
    calm: MonoTime,
}

/// Cores are given back after so much time without another move. A core that was full is not moved
/// to and fro by load that comes and goes faster.
pub const CALM: Nanos = SECOND.times(10);

impl Balancer {
    /// For `servers` servers that have used no time yet.
    pub fn new(servers: usize, now: MonoTime) -> Self {
        let servers = (0..servers).map(|_| History::new()).collect();
        Self { servers, looked: now, refused: 0, calm: now }
    }

    /// Takes a reading of each server, and proposes a move if one pays. `refused`: how many
    /// requests have been refused so far because a core had no time for them. Called about every
    /// [`SAMPLE`]; a call before half of it has passed changes nothing.
    ///
    /// # Panics
    /// If there are other servers than before.
    pub fn look(
        &mut self,
        now: MonoTime,
        cores: &[Core],
        readings: &[Reading],
        refused: u64,
    ) -> Option<Proposal> {
        assert_eq!(readings.len(), self.servers.len(), "each server has a reading");
        let passed = now.since(self.looked);
        if passed < Nanos(SAMPLE.0 / 2) {
            return None;
        }
        self.looked = now;
        let mut servers = Vec::with_capacity(readings.len());
        for (history, reading) in self.servers.iter_mut().zip(readings) {
            if history.take(passed, reading) {
                self.calm = now;
            }
            let Reading { core, promised, kept, mobility, .. } = *reading;
            let mobility = match mobility {
                Mobility::Free if history.rests(now) => Mobility::Stays,
                other => other,
            };
            let (busy, peak) = (history.recent(), history.peak());
            servers.push(Server { core, busy, peak, promised, kept, mobility });
        }
        let is_short = refused != self.refused;
        if is_short {
            (self.refused, self.calm) = (refused, now);
        }
        let is_calm = now.since(self.calm) >= CALM;
        let mode = match (is_short, is_calm) {
            (true, _) => Mode::Spread,
            (false, true) => Mode::Pack,
            (false, false) => Mode::Steady,
        };
        let proposal = propose(cores, &servers, mode)?;
        self.servers[proposal.server].propose(now, proposal.reason);
        Some(proposal)
    }

    /// The last proposal was refused: the server is left alone for a while.
    pub fn refused(&mut self, server: usize, now: MonoTime) {
        self.servers[server].rest(now);
    }

    /// Thousandths of its core's time that a server has used in the last second.
    pub fn share(&self, server: usize) -> u32 {
        self.servers[server].share()
    }
}

#[cfg(test)]
mod tests;
