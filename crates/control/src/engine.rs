//! The engine's start: from the configuration and the host to running cores.
//!
//! It opens each volume's device, takes all memory, sets the ledger's limits, places the servers
//! and starts the pinned threads. A refusal of the host (real-time rights, huge pages, locked
//! memory, io_uring) is not an error: the engine starts with less, promises less, and reports it.

mod balance;
mod degradation;
mod learning;
mod limits;
pub mod packets;
mod stalls;
mod volume;
mod watchdog;
mod write_path;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tactus_core::ledger::Ledger;
use tactus_core::ports::{self, PacketPort};
use tactus_core::units::BitRate;
use tactus_engine::assembly::{
    self, Control, Counters, Local, LocalSetup, PacketSetup, Placement, Setup,
};
use tactus_engine::cores::Core;
use tactus_engine::link::Patience;
use tactus_engine::message::{LocalReport, PacketClass, Report};
use tactus_notation::Auto;
use tactus_ring::spsc::Consumer;
use tactus_sys::disk::pages::FillerRights;
use tactus_sys::file::CachedFiles;
use tactus_sys::memory;
use tactus_sys::probe::{self, Machine};
use tactus_sys::tcp::TcpLink;
use tactus_sys::thread::{self, AbortOnPanic};
use tactus_sys::waker::{self, Sleeper, Waker};

use crate::broker::{Broker, BrokerParts, BrokerRules, Degradations, ServerNumbers};
use crate::claim::{self, Claim, ClaimedPlan};
use crate::core_threads::{CoreThreads, Wakers};
use crate::engine::balance::BalanceParts;
use crate::engine::volume::WritePathHost;
use crate::engine::watchdog::Watch;
use crate::local::{LocalClients, OWN_CLIENTS};
use crate::placement::{self, CorePlan, Job, ServerCounts, ServerName};
use crate::placer::{CoreTime, EngineEnds, Placer};
use crate::settings::EngineSettings;

pub use crate::engine::learning::{LearnedModel, ModelSource, learned};
pub use crate::engine::limits::{
    BlockMemory, FLASH_BLOCK, READ_AHEAD_MAX, VolumeFacts, block_memory,
};
pub use crate::engine::packets::PacketFacts;
pub use crate::engine::stalls::{OngoingStall, Stall, Stalls, Summary as StallSummary};
pub use crate::engine::volume::open_files;
pub use crate::engine::watchdog::Watchdog;
pub use crate::engine::write_path::{WritePath, WritePathLevels};

/// A running engine. Dropping it stops the cores.
pub struct Engine {
    /// Admits and starts deliveries.
    pub broker: Broker,
    /// The servers' counters.
    pub counters: Counters,
    /// Local clients, if there may be any.
    pub local: Option<LocalClients>,
    /// Each volume's write path; none for a volume without uploads.
    pub write_paths: Vec<Option<WritePath>>,
    /// Whether each volume's disk answers.
    pub watchdog: Watchdog,
    /// The degradation of each volume whose disk is too slow.
    pub degradations: Degradations,
    /// The properties of each volume.
    pub volumes: Vec<VolumeFacts>,
    /// Stalls of real-time cores.
    pub stalls: Stalls,
    /// Moves servers to other cores.
    pub placer: Placer,
    /// The placement of servers on cores at the start.
    pub placement: Vec<CorePlan>,
    /// The processor of each core, in the order of their counters: those of the placement, then
    /// those that may get a real-time thread later.
    pub cpus: Vec<u32>,
    /// How datagrams are sent, and their cost.
    pub packets: PacketFacts,
    /// Refusals of the host as text, each with its effect.
    pub degraded: Vec<String>,
    stopping: Arc<AtomicBool>,
    cores: CoreThreads,
    report_waker: Waker,
    balance_waker: Waker,
    write_path_waker: Waker,
    threads: Vec<JoinHandle<()>>,
}

/// Starts the engine for `settings`, whose volumes are in order.
///
/// # Errors
/// When a volume cannot be opened, there is no memory for one block of each, or the placement does
/// not give each server one core.
pub fn start(settings: &EngineSettings) -> io::Result<Engine> {
    let cpus = thread::allowed_cores()?;
    let count = u16::try_from(settings.volumes.len()).expect("a host has fewer disks");
    let claimed = match &settings.cores.placement {
        Auto::Set(plan) => {
            let plan = placement::complete(plan.clone(), count);
            claim::of_plan(plan.map_err(|mistake| {
                let text = format!("[cores] placement: {mistake}");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?)
        }
        Auto::Auto => claim::of_default(&cpus, count, settings.packet_servers_max()),
    };
    claimed.log_avoided();
    let mut degraded: Vec<_> = claimed.notes().into_iter().collect();
    let machine = probe::machine();
    if settings.memory.lock && !lock_memory(&machine) {
        degraded.push(
            "the program's memory is not locked: when memory is short it may be swapped out, and \
             streams are late"
                .to_owned(),
        );
    }
    let ClaimedPlan { plan, claims, .. } = claimed;
    let mut facts = limits::volumes(settings, machine.memory)?;
    let server_counts = ServerCounts::of(&plan, count);
    let all_cores = all_cores_of(&plan, &cpus);
    let placement = placement_of(&plan, all_cores.len(), server_counts);
    let (report_waker, sleeper) = waker::waker()?;
    let (write_path_waker, write_path_sleeper) = waker::waker()?;
    let control_cores = placement::control_cpus(&cpus, &plan);
    let host = WritePathHost { waker: &write_path_waker, cores: &control_cores };
    let (mut setups, mut shares, mut renewers) = (vec![], vec![], vec![]);
    for (volume, &core) in facts.iter_mut().zip(&placement.disks) {
        let rights = FillerRights {
            core: Some(plan[core].cpu),
            // The core's own thread has the higher priority.
            priority: (settings.cores.realtime && settings.cores.priority > 1)
                .then(|| settings.cores.priority as u8 - 1),
        };
        let setup = volume::open(settings, volume, rights, &mut degraded)?;
        let (setup, of_probes) = volume::with_learning(setup, volume, &report_waker);
        let (setup, share) = volume::with_uploads(setup, settings, volume, &host, &mut degraded)?;
        renewers.push(setup.port.renewer().with(&of_probes));
        setups.push(setup);
        shares.push(share);
    }
    let (ports, packets, gauge) =
        packets::open(settings, usize::from(server_counts.packets), &mut degraded);
    let rates = limits::link_rates(settings, packets.gaps.is_some());
    let link = TcpLink::new(setups.iter().map(|setup| setup.port.held()));
    let setup = Setup {
        volumes: setups,
        links: placement.links.iter().map(|_| link.clone()).collect(),
        packets: packet_setups(settings, ports, rates.datagrams),
        local: (settings.local_clients > 0).then(|| LocalSetup {
            clients: settings.local_clients + OWN_CLIENTS,
            port: Box::new(CachedFiles),
            waker: Box::new(Wakers(vec![report_waker.clone()])),
        }),
        streams: settings.memory.streams_max,
        patience: Patience {
            behind_max: settings.slow_reader.behind_max,
            drain_window: settings.slow_reader.download_window,
            drain_min: settings
                .slow_reader
                .download_rate_min
                .bytes_in(settings.slow_reader.download_window),
        },
        placement: placement.clone(),
        report_wakers: placement
            .deliveries
            .iter()
            .map(|_| -> Box<dyn ports::Waker> { Box::new(Wakers(vec![report_waker.clone()])) })
            .collect(),
    };
    let (cores, control) = assembly::assemble(setup);
    let Control { commands, reports, write_paths: ends, local, classes, counters } = control;

    let stopping = Arc::new(AtomicBool::new(false));
    let (cores, fifo) = start_cores(cores, (&all_cores, &plan), claims, settings, &mut degraded)?;
    let names = server_counts.servers();
    let places = limits::places_of(settings, &names, &placement);
    let limits = limits::of(settings, &facts, &names, all_cores.len(), rates, fifo);
    let mut ledger = Ledger::with_servers(limits, places);
    limits::check_classes(&ledger)?;
    for core in plan.len()..all_cores.len() {
        ledger.close_core(core as u32);
    }
    let rules = BrokerRules {
        downloads_max: limits::downloads_max(settings, &facts),
        download_share: settings.best_effort.client_share,
        retry_after: limits::RETRY_AFTER,
        start_burst: settings.start_burst,
        behind_max: settings.slow_reader.behind_max,
        datagram: packets.datagram,
        sendfile: facts.iter().map(VolumeFacts::sendfile).collect(),
        connections: facts.iter().map(VolumeFacts::connection_cost).collect(),
        classes: settings.classes.0.iter().map(|class| class.name.clone()).collect(),
        servers: ServerNumbers {
            deliveries: limits::numbers_of(&names, Job::Delivery),
            links: limits::numbers_of(&names, Job::Link),
            packets: limits::numbers_of(&names, Job::Packets),
            file: limits::number_of(&names, Job::File, 0),
        },
        cpus: cores.cpus().collect(),
    };
    let all = Wakers(cores.wakers());
    let degradation = degradation::Watch::new(&counters.disks, &facts, tactus_sys::clock::now());
    let degradations = degradation.degradations();
    let broker = Broker::new(BrokerParts {
        ledger,
        commands,
        class_changes: Some(classes),
        waker: Box::new(all),
        rules,
        counters: Arc::clone(&counters.streams),
        degradations: degradations.clone(),
    });
    let (local, local_reports) = local
        .map(|Local { commands, reports }| {
            let waker = Box::new(Wakers(cores.wakers()));
            (LocalClients::new(commands, settings.local_clients + OWN_CLIENTS, waker), reports)
        })
        .unzip();
    let mut threads = vec![];
    let has = |name: &ServerName| counters.servers.iter().any(|(of, _)| of == name);
    let absent = names.iter().copied().filter(|name| !has(name)).collect();
    let core_time = CoreTime {
        real_time: limits::core_time(settings, true),
        ordinary: limits::core_time(settings, false),
    };
    let engine_ends = EngineEnds {
        threads: cores.clone(),
        core_time,
        names,
        absent,
        renewers,
        stopping: Arc::clone(&stopping),
    };
    let placer = Placer::new(broker.clone(), engine_ends, all_cores, &settings.cores);
    let (balance_waker, balance_sleeper) = waker::waker()?;
    let balancing = balance::Watch::new(BalanceParts {
        broker: broker.clone(),
        placer: placer.clone(),
        servers: Arc::clone(&counters.servers),
        cores: cores.clone(),
        system: settings.cores.system.clone(),
    });
    threads.push(balancing.start(balance_sleeper, Arc::clone(&stopping))?);
    let watch = Watch::new(&counters.disks, &facts, tactus_sys::clock::now());
    let watchdog = watch.watchdog();
    let stop = Arc::clone(&stopping);
    let stalling = stalls::Watch::new(cores.clone(), &counters, tactus_sys::clock::now());
    let stalls = stalling.stalls();
    let learning = learning::Watch::new(
        &counters.disks,
        &facts,
        degradations.clone(),
        tactus_sys::clock::now(),
    );
    let watches = Watches { watchdog: watch, degradation, learning, gauge, stalls: stalling };
    let all_reports =
        Reports { broker: broker.clone(), reports, local: local.clone().zip(local_reports) };
    threads.push(start_reports(all_reports, watches, sleeper, stop)?);
    let (mut write_paths, mut answering) = (vec![], vec![]);
    for pair in shares.into_iter().zip(ends) {
        let (Some(share), Some(end)) = pair else {
            write_paths.push(None);
            continue;
        };
        let write_path = WritePath::new(share, end.requests, Wakers(cores.wakers()));
        answering.push((write_path.clone(), end.answers));
        write_paths.push(Some(write_path));
    }
    if !answering.is_empty() {
        threads.push(write_path::start_answers(
            answering,
            write_path_sleeper,
            Arc::clone(&stopping),
        )?);
    }
    Ok(Engine {
        broker,
        counters,
        local,
        write_paths,
        watchdog,
        degradations,
        stalls,
        volumes: facts,
        placer,
        placement: plan,
        cpus: cores.cpus().collect(),
        packets,
        degraded,
        stopping,
        cores,
        report_waker,
        balance_waker,
        write_path_waker,
        threads,
    })
}

/// Locks the program's memory, unless locked memory has a limit: later requests for memory would
/// fail there.
fn lock_memory(machine: &Machine) -> bool {
    machine.lockable.soft.is_none() && memory::lock_process().is_ok()
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.cores.end();
        for waker in [&self.report_waker, &self.balance_waker, &self.write_path_waker] {
            waker.wake();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine ended with a panic");
            }
        }
    }
}

/// Checks that the link of `settings` can carry the guaranteed rates of its classes.
///
/// # Errors
/// When it cannot.
pub fn check_classes(settings: &EngineSettings) -> io::Result<()> {
    let rates = limits::link_rates(settings, settings.gap_frames.is_some());
    limits::check_classes(&Ledger::new(limits::of(settings, &[], &[], 1, rates, true)))
}

/// The parts of each packet server; the first one has all classes.
fn packet_setups(
    settings: &EngineSettings,
    ports: Vec<Box<dyn PacketPort>>,
    rate: BitRate,
) -> Vec<PacketSetup> {
    let classes = settings.classes.0.iter();
    let classes = classes.map(|class| PacketClass { parent: class.parent, class: class.paced() });
    let mut classes: Vec<_> = classes.collect();
    let tick = settings.packets.tick;
    let setup = |port| PacketSetup { port, rate, tick, classes: std::mem::take(&mut classes) };
    ports.into_iter().map(setup).collect()
}

/// Cores that an engine has without being told to: each takes a few file descriptors.
const CORES_MAX: usize = 64;

/// The cores of the plan, and then one for each other processor that may get a real-time thread
/// while the engine runs.
fn all_cores_of(plan: &[CorePlan], cpus: &[u32]) -> Vec<CorePlan> {
    let others = cpus.iter().filter(|&&cpu| plan.iter().all(|core| core.cpu != cpu));
    let others = others.map(|&cpu| CorePlan { cpu, servers: vec![] });
    let others = others.take(CORES_MAX.saturating_sub(plan.len()));
    plan.iter().cloned().chain(others).collect()
}

/// The engine numbers its cores in the order of the plan.
fn placement_of(plan: &[CorePlan], cores: usize, counts: ServerCounts) -> Placement {
    let core_of = |job: Job, index: usize| {
        let sits = |core: &CorePlan| {
            core.servers.iter().any(|name| name.job == job && usize::from(name.index) == index)
        };
        plan.iter().position(sits)
    };
    let place = |job, index| core_of(job, index).or_else(|| core_of(job, 0)).unwrap_or(0);
    let places = |job, count: u16| (0..usize::from(count)).map(|index| place(job, index)).collect();
    Placement {
        cores,
        disks: places(Job::Disk, counts.volumes),
        blocks: places(Job::Block, counts.volumes),
        deliveries: places(Job::Delivery, counts.deliveries),
        links: places(Job::Link, counts.links),
        packets: places(Job::Packets, counts.packets),
        file: place(Job::File, 0),
    }
}

/// Starts the threads of the cores of `plan`, the first of `all_cores`. Returns all cores, and
/// whether these threads are real-time.
fn start_cores(
    cores: Vec<Core>,
    (all_cores, plan): (&[CorePlan], &[CorePlan]),
    mut claims: Vec<Claim>,
    settings: &EngineSettings,
    degraded: &mut Vec<String>,
) -> io::Result<(CoreThreads, bool)> {
    let priority = settings.cores.realtime.then_some(settings.cores.priority as u8);
    let threads = CoreThreads::new(cores, all_cores.iter().map(|core| core.cpu), priority)?;
    let mut real_time = true;
    for (at, core) in plan.iter().enumerate() {
        let claim = claims.iter().position(|claim| claim.cpu == core.cpu);
        let rights = threads.start(at, claim.map(|claim| claims.swap_remove(claim)))?;
        real_time &= rights.real_time;
        degraded.extend(rights.refused);
    }
    degraded.sort();
    degraded.dedup();
    Ok((threads, real_time))
}

/// Checked a few times per second.
struct Watches {
    watchdog: Watch,
    degradation: degradation::Watch,
    learning: learning::Watch,
    gauge: packets::Watch,
    stalls: stalls::Watch,
}

/// What the engine reports, and to whom.
struct Reports {
    broker: Broker,
    reports: Vec<Consumer<Report>>,
    local: Option<(LocalClients, Consumer<LocalReport>)>,
}

impl Reports {
    fn handle(&mut self) {
        for reports in &mut self.reports {
            self.broker.handle_reports(reports);
        }
        if let Some((clients, reports)) = &mut self.local {
            while let Some(report) = reports.pop() {
                clients.handle(report);
            }
        }
    }
}

fn start_reports(
    mut reports: Reports,
    mut watches: Watches,
    mut sleeper: Sleeper,
    stopping: Arc<AtomicBool>,
) -> io::Result<JoinHandle<()>> {
    let body = move || {
        let _vital = AbortOnPanic;
        let mut next = tactus_sys::clock::now();
        while !stopping.load(Ordering::Acquire) {
            reports.handle();
            let now = tactus_sys::clock::now();
            // The disk servers wake this thread when they know something new.
            watches.learning.look(now, &reports.broker);
            if now >= next {
                next = now + watchdog::LOOK;
                watches.watchdog.look(now);
                watches.degradation.look(now, &reports.broker);
                watches.gauge.look(now, &reports.broker);
                watches.stalls.look(now);
            }
            sleeper.wait_until(Some(next));
        }
    };
    std::thread::Builder::new().name("tactus-reports".to_owned()).spawn(body)
}
