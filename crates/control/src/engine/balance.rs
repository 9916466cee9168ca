//! Measures what each server uses of its core, and moves servers by the balancer's proposals.
//!
//! Promise: the real-time side only counts; everything here runs on the control side, ten times a
//! second, or once with a single core. A move that is refused changes nothing, and is not tried
//! again at once. A core that goes offline loses its servers to others, whatever the configuration
//! says about balancing; the thread of one that comes back is pinned again.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tactus_core::balance::{Balancer, Core, Mobility, Position, Proposal, Reading, Reason, SAMPLE};
use tactus_core::ledger::Resource;
use tactus_core::units::{MonoTime, Nanos, SECOND};
use tactus_engine::counters::ServerCounters;
use tactus_sys::topology::{self, OnlineWatch};
use tactus_sys::waker::Sleeper;
use tactus_sys::{clock, thread};

use crate::broker::Broker;
use crate::core_threads::CoreThreads;
use crate::placement::ServerName;
use crate::placer::{PlaceError, Placer};

/// What the balancer needs.
pub(super) struct BalanceParts {
    pub(super) broker: Broker,
    pub(super) placer: Placer,
    pub(super) servers: Arc<[(ServerName, ServerCounters)]>,
    pub(super) cores: CoreThreads,
    /// Where the kernel describes the processors.
    pub(super) system: PathBuf,
}

/// The balancer with its inputs and outputs.
pub(super) struct Watch {
    parts: BalanceParts,
    balancer: Balancer,
    cpus: Vec<u32>,
    positions: Vec<Position>,
    online: OnlineWatch,
    /// Processors that went offline while their servers found no other place, and were reported.
    reported: Vec<bool>,
    /// When the next proposal is carried out.
    not_before: MonoTime,
}

/// The time between two readings of one core, which has none to share its servers with.
const ALONE: Nanos = SECOND;

impl Watch {
    pub(super) fn new(parts: BalanceParts) -> Self {
        let cpus: Vec<_> = parts.cores.cpus().collect();
        let positions = topology::positions(&parts.system, &cpus);
        let positions = positions.into_iter().map(|position| Position {
            node: position.node,
            physical: position.first_sibling,
            is_isolated: position.is_isolated,
            is_online: true,
        });
        let now = clock::now();
        Self {
            balancer: Balancer::new(parts.placer.names().len(), now),
            positions: positions.collect(),
            online: OnlineWatch::new(&parts.system),
            reported: vec![false; cpus.len()],
            not_before: now,
            cpus,
            parts,
        }
    }

    pub(super) fn start(
        mut self,
        mut sleeper: Sleeper,
        stopping: Arc<AtomicBool>,
    ) -> io::Result<JoinHandle<()>> {
        let body = move || {
            let _vital = thread::AbortOnPanic;
            while !stopping.load(Ordering::Acquire) {
                self.look(clock::now());
                let wait = if self.parts.cores.running().len() > 1 { SAMPLE } else { ALONE };
                sleeper.wait_until(Some(clock::now() + wait));
            }
        };
        std::thread::Builder::new().name("tactus-balance".to_owned()).spawn(body)
    }

    fn look(&mut self, now: MonoTime) {
        let running = self.parts.cores.running();
        if running.len() > 1 {
            self.look_at_processors();
        }
        let (cores, readings) = self.read();
        let refused = self.parts.broker.refusals().of(Resource::Cpu);
        let proposal = self.balancer.look(now, &cores, &readings, refused);
        let shares = (0..readings.len()).map(|server| self.balancer.share(server)).collect();
        let positions = self.cpus.iter().zip(&self.positions);
        let offline = positions.filter(|(_, position)| !position.is_online);
        self.parts.placer.note(shares, offline.map(|(&cpu, _)| cpu).collect());
        if running.len() == 1 || now < self.not_before {
            return;
        }
        match proposal {
            Some(proposal) => self.carry_out(now, proposal, &readings),
            None => self.report_stranded(&readings),
        }
    }

    /// Notices processors that have gone offline or come back.
    fn look_at_processors(&mut self) {
        let online = self.online.online(&self.cpus);
        for (at, is_online) in online.into_iter().enumerate() {
            let (position, cpu) = (&mut self.positions[at], self.cpus[at]);
            if position.is_online == is_online {
                continue;
            }
            position.is_online = is_online;
            self.reported[at] = false;
            let Some(thread) = self.parts.cores.thread(at) else { continue };
            if !is_online {
                tracing::warn!("core {cpu} is offline: its servers move to other cores");
                continue;
            }
            match thread::pin_again(thread, cpu) {
                Ok(()) => tracing::info!("core {cpu} is online again"),
                Err(error) => tracing::warn!(
                    "core {cpu} is online again, but its thread cannot be bound to it: {error}"
                ),
            }
        }
    }

    /// The state of the cores and of the servers.
    fn read(&self) -> (Vec<Core>, Vec<Reading>) {
        let BalanceParts { broker, placer, servers, .. } = &self.parts;
        let names = placer.names();
        let promises = broker.promises(names.len());
        let cores = promises.cores.into_iter().zip(&self.positions).enumerate();
        let cores = cores.map(|(at, ((promised, limit), &position))| {
            // A core without a thread takes no server, like one that is offline.
            let is_online = position.is_online && self.parts.cores.thread(at).is_some();
            Core { promised, limit, position: Position { is_online, ..position } }
        });
        let busy = |name: &ServerName| {
            let counters = servers.iter().find(|(of, _)| of == name);
            counters.map_or(Nanos(0), |(_, counters)| Nanos(counters.busy.value()))
        };
        let servers = names.iter().zip(promises.servers).zip(placer.mobilities());
        let readings = servers.map(|((name, (place, promised)), mobility)| Reading {
            core: place.core as usize,
            busy: busy(name),
            promised,
            kept: place.kept,
            mobility,
        });
        (cores.collect(), readings.collect())
    }

    fn carry_out(&mut self, now: MonoTime, proposal: Proposal, readings: &[Reading]) {
        let Proposal { server, to, reason } = proposal;
        let name = self.parts.placer.names()[server];
        let [from, to] = [readings[server].core, to].map(|at| self.cpus[at]);
        let explained = explained(reason, from, to);
        let Err(error) = self.parts.placer.order(name, to, reason.into(), &explained) else {
            return;
        };
        self.balancer.refused(server, now);
        self.not_before = clock::now() + SECOND;
        match error {
            // Another server moves just now, or the engine stops.
            PlaceError::Busy | PlaceError::Stopping(_) => {}
            error => tracing::warn!("{name} stays on core {from}: {error}"),
        }
    }

    /// Reports once what cannot leave a processor that is offline.
    fn report_stranded(&mut self, readings: &[Reading]) {
        for (at, cpu) in self.cpus.iter().enumerate() {
            if self.positions[at].is_online || self.reported[at] {
                continue;
            }
            let here = readings.iter().zip(self.parts.placer.names());
            let here = here.filter(|(reading, _)| reading.core == at);
            let names: Vec<_> = here
                .map(|(reading, name)| match reading.mobility {
                    Mobility::Fixed => format!("{name} ([cores] fixed names it)"),
                    _ => name.to_string(),
                })
                .collect();
            if !names.is_empty() {
                tracing::error!(
                    "core {cpu} is offline, and its thread runs on any processor with what no \
                     other core has time for: {}; streams may be late until the core is back",
                    names.join(", ")
                );
            }
            self.reported[at] = true;
        }
    }
}

/// The reason as a part of a sentence.
fn explained(reason: Reason, from: u32, to: u32) -> String {
    let percent = |thousandths: u32| (thousandths + 5) / 10;
    match reason {
        Reason::Offline => format!("core {from} is offline"),
        Reason::Busy(share) => {
            format!("core {from} was busy {} % of its time", percent(share).min(100))
        }
        Reason::Promised(share) => {
            format!("{} % of what core {from} may promise was promised", percent(share))
        }
        Reason::Refused(share) => format!(
            "a request was refused for lack of time, and {} % of what core {from} may promise was \
             promised",
            percent(share)
        ),
        Reason::Idle => {
            format!("core {to} has time for the work of both, and core {from} can sleep")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_part_of_a_sentence_with_the_numbers_of_processors() {
        let told = |reason| explained(reason, 4, 7);
        assert_eq!(told(Reason::Busy(916)), "core 4 was busy 92 % of its time");
        assert_eq!(told(Reason::Busy(2000)), "core 4 was busy 100 % of its time");
        assert_eq!(told(Reason::Promised(851)), "85 % of what core 4 may promise was promised");
        assert_eq!(told(Reason::Offline), "core 4 is offline");
        assert_eq!(
            told(Reason::Idle),
            "core 7 has time for the work of both, and core 4 can sleep"
        );
    }
}
