//! The balancer: as the server's, by the work that ports count instead of a clock.

use tactus_core::balance::{Core, Mobility, Position, Proposal, Reading};
use tactus_core::units::{Nanos, SECOND};
use tactus_engine::assembly::Counters;
use tactus_engine::counters::ServerCounters;
use tactus_engine::name::ServerName;

use super::World;
use super::schedule::Event;

pub(super) use tactus_core::balance::SAMPLE;

/// The time that all sends, reads and requests so far have cost, at `cost` each.
pub(super) fn work(counters: &Counters, cost: Nanos) -> Nanos {
    let of_links: u64 = counters.links.iter().map(|link| link.sends.value()).sum();
    let of_disks: u64 =
        counters.disks.iter().map(|disk| disk.transfers.value() + disk.writes.value()).sum();
    let of_blocks: u64 = counters.blocks.iter().map(|block| block.misses.value()).sum();
    let of_packets = counters.sum_of_packet_servers(|server| &server.messages);
    let of_programs = counters.file.requests.value();
    cost.times(of_links + of_disks + of_blocks + of_packets + of_programs)
}

impl World {
    /// Looks at the cores, and begins a move if one pays. The promises of a world have no limit.
    pub(super) fn balance(&mut self) {
        let now = self.now;
        if now < self.end {
            self.push(now + SAMPLE, Event::Balance);
        }
        if self.moving.is_some() {
            return;
        }
        let position = |at| Position { node: 0, physical: at, is_isolated: false, is_online: true };
        let core = |at| Core { promised: Nanos(0), limit: SECOND, position: position(at) };
        let cores: Vec<_> = (0..self.cores.len() as u32).map(core).collect();
        let servers = &self.control.counters.servers;
        let reading = |(name, counters): &(ServerName, ServerCounters)| {
            let core = self.cores.iter().position(|slot| slot.core.names().any(|one| one == *name));
            Reading {
                core: core.expect("a server that does not move is on a core"),
                busy: Nanos(counters.busy.value()),
                promised: Nanos(0),
                kept: Nanos(0),
                mobility: Mobility::Free,
            }
        };
        let readings: Vec<_> = servers.iter().map(reading).collect();
        let Some(Proposal { server, to, .. }) = self.balancer.look(now, &cores, &readings, 0)
        else {
            return;
        };
        let name = servers[server].0;
        self.tally.balanced += 1;
        self.tally.last_balanced = now.since(self.swarm.begin);
        self.begin_move(name, readings[server].core, to);
    }
}
