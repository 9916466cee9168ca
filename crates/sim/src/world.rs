//! The world: one clock, which jumps to the next event, around the engine's own servers.
//!
//! An event is a core's turn, or an action of the control side: a client comes or goes, reports are
//! read. Time without events costs nothing.

mod balance;
mod clients;
mod disks;
mod moves;
mod programs;
mod schedule;
mod uploads;

use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tactus_core::balance::Balancer;
use tactus_core::cost::WriteLimits;
use tactus_core::cycle::{Learning, ProbeLimits};
use tactus_core::pacer::Class;
use tactus_core::ports::{FileHandle, Waker};
use tactus_core::sums::Sums;
use tactus_core::units::{BitRate, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::assembly::{
    Control, LearningSetup, PacketSetup, Placement, Setup, VolumeSetup, WritePathSetup, assemble,
};
use tactus_engine::cores::Core;
use tactus_engine::disk::ProbeSetup;
use tactus_engine::egress::Memory;
use tactus_engine::file::PLACES_OF_CLIENT;
use tactus_engine::link::Patience;
use tactus_engine::message::{DeliveryServerId, PacketClass};
use tactus_ring::arena::{ArenaOwner, HeapRegion, arena, elsewhere};

use crate::broker::Broker;
use crate::device::{
    Blocks, Device, DeviceParts, DiskEnd, DiskLimits, Fault, Pages, ProbeEnd, SPAN, Stable, open,
};
use crate::dice::Dice;
use crate::net::{LinkEnd, LinkTurn, Net, PacketEnd, UdpOutputs};
use crate::swarm::{self, GuessSpec, Mode, Swarm, VolumeSpec, WritePathSpec};
use crate::title::Title;
use crate::trace::Trace;
use crate::verdict::{Invariant, require};

use clients::{Client, Live, PinnedTitle};
use disks::LearnedDisk;
use moves::Move;
use programs::Programs;
use schedule::{Due, Event};
use uploads::{Store, Uploader};

/// The most turns in which a link visits the streams of one slot.
const TURNS_OF_SLOT: u64 = 8;

/// Turns a core, and checks that nothing is allocated or freed meanwhile.
fn turn(core: &mut Core, now: MonoTime, clock: impl Fn() -> MonoTime) -> Option<MonoTime> {
    let mut wanted = None;
    let memory = allocation_counter::measure(|| wanted = core.turn_by(now, clock));
    let untouched = memory.count_total == 0 && memory.count_current == 0;
    require(untouched, Invariant::NoAllocation, || format!("{memory:?} at {now:?}"));
    wanted
}

/// A running world.
pub(crate) struct World {
    swarm: Swarm,
    titles: Arc<[Title]>,
    /// Their checksums, once they have been used.
    sums: Vec<Option<Arc<Sums>>>,
    cores: Vec<CoreSlot>,
    placement: Placement,
    control: Control,
    reports_woken: Arc<AtomicBool>,
    devices: Vec<Arc<Mutex<Device>>>,
    net: Arc<Mutex<Net>>,
    udp_outputs: Arc<Mutex<UdpOutputs>>,
    broker: Broker,
    clients: Vec<Client>,
    /// What the control side knows about each disk.
    learned: Vec<LearnedDisk>,
    /// Each volume's store, if it takes uploads.
    stores: Vec<Option<Store>>,
    uploaders: Vec<Uploader>,
    programs: Programs,
    live: Vec<Option<Live>>,
    live_count: u64,
    /// For each title, its pin, and the number of streams that rely on it.
    pinned: Vec<PinnedTitle>,
    /// For each title, when one of its streams was last reported as finished.
    last_finished: Vec<MonoTime>,
    /// Volumes of the deliveries that their delivery servers have not received yet.
    starting: Vec<(usize, DeliveryServerId)>,
    events: BinaryHeap<Due>,
    events_pushed: u64,
    now: MonoTime,
    end: MonoTime,
    dice: Dice,
    trace: Trace,
    tally: Tally,
    /// When faults had ended and the disks had finished their earlier work.
    quiet: Option<MonoTime>,
    /// Underruns counted when everything had to be on time again.
    recovered: Option<u64>,
    /// The server that is on its way to another core.
    moving: Option<Move>,
    dice_of_moves: Dice,
    balancer: Balancer,
}

/// A core, and its next turn.
struct CoreSlot {
    core: Core,
    /// Its scheduled turn.
    wanted: Option<MonoTime>,
    /// Its actual turn, with lateness.
    actual: Option<MonoTime>,
    last: MonoTime,
}

/// Statistics of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Simulated time.
    pub simulated: Nanos,
    /// Deliveries begun.
    pub started: u64,
    /// Requests refused.
    pub refused: u64,
    /// Deliveries that sent their last byte.
    pub completed: u64,
    /// Payload bytes taken by sockets.
    pub bytes: u64,
    /// Sends.
    pub sends: u64,
    /// Turns of cores.
    pub turns: u64,
    /// Datagrams that left.
    pub datagrams: u64,
    /// Sends for which data was missing.
    pub underruns: u64,
    /// Titles that were pinned in memory.
    pub pinned: u64,
    /// Deliveries that used pinned titles.
    pub resident: u64,
    /// Servers that moved to another core.
    pub moves: u64,
    /// The moves among them that the balancer has begun, and the time of the last one.
    pub balanced: u64,
    /// See `balanced`.
    pub last_balanced: Nanos,
    /// Maximum of simultaneous deliveries.
    pub streams_max: u64,
    /// Bytes handed over for writing.
    pub written: u64,
    /// Flushes that were acknowledged.
    pub acks: u64,
    /// Completely uploaded files.
    pub uploads: u64,
    /// The time from the beginning of a file to the acknowledgement of its name, of all files with
    /// a name, and the longest one.
    pub ack_time: Nanos,
    /// See `ack_time`.
    pub ack_max: Nanos,
    /// Uploads that ended by an error of the disk.
    pub uploads_failed: u64,
    /// Recordings begun.
    pub recordings: u64,
    /// Deliveries that followed a growing title.
    pub followers: u64,
    /// Deliveries by a plan.
    pub planned: u64,
    /// Local programs begun, and those of them that were killed while they waited for answers.
    pub programs: u64,
    /// See `programs`.
    pub killed: u64,
    /// Programs that were broken off because of what they had written.
    pub broken_off: u64,
    /// Reads of programs that brought bytes, and those of them at moments that had to be kept.
    pub reads: u64,
    /// See `reads`.
    pub moments: u64,
    /// Requests of programs that were under way while the file server moved.
    pub carried: u64,
    /// Blocks that differed from the stored bytes.
    pub damaged: u64,
    /// Maximum of streams that were deferred at a time.
    pub deferred_max: u64,
    /// Streams that were ended because they stayed deferred.
    pub ended: u64,
    /// Streams that a learned disk admits in all, at the end.
    pub capacity: u64,
    /// Paced deliveries whose first byte was sent, their waits for it in all, and the longest one.
    pub begun: u64,
    /// See `begun`.
    pub waits: Nanos,
    /// See `begun`.
    pub wait_max: Nanos,
    /// The median of the waits, up to a tenth of a second above; the highest one of several runs.
    pub wait_median: Nanos,
}

impl Tally {
    /// Adds the sums of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.simulated += other.simulated;
        self.started += other.started;
        self.refused += other.refused;
        self.completed += other.completed;
        self.bytes += other.bytes;
        self.sends += other.sends;
        self.turns += other.turns;
        self.datagrams += other.datagrams;
        self.underruns += other.underruns;
        self.pinned += other.pinned;
        self.resident += other.resident;
        self.moves += other.moves;
        self.balanced += other.balanced;
        self.last_balanced = self.last_balanced.max(other.last_balanced);
        self.streams_max = self.streams_max.max(other.streams_max);
        self.written += other.written;
        self.acks += other.acks;
        self.uploads += other.uploads;
        self.ack_time += other.ack_time;
        self.ack_max = self.ack_max.max(other.ack_max);
        self.uploads_failed += other.uploads_failed;
        self.recordings += other.recordings;
        self.followers += other.followers;
        self.planned += other.planned;
        self.programs += other.programs;
        self.killed += other.killed;
        self.broken_off += other.broken_off;
        self.reads += other.reads;
        self.moments += other.moments;
        self.carried += other.carried;
        self.damaged += other.damaged;
        self.deferred_max = self.deferred_max.max(other.deferred_max);
        self.ended += other.ended;
        self.capacity = self.capacity.max(other.capacity);
        self.begun += other.begun;
        self.waits += other.waits;
        self.wait_max = self.wait_max.max(other.wait_max);
        self.wait_median = self.wait_median.max(other.wait_median);
    }
}

/// The result of a successful run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The hash of all events.
    pub trace: u64,
    /// Sums.
    pub tally: Tally,
}

struct WakeFlag(Arc<AtomicBool>);

impl Waker for WakeFlag {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl World {
    pub(crate) fn new(swarm: Swarm) -> Self {
        let dice = Dice::new(swarm.seed).fork(9);
        let titles: Arc<[Title]> = swarm.titles.clone().into();
        let placement = place(&swarm, &mut dice.fork(1));
        let dice_of_moves = dice.fork(3);
        let others_fail = swarm.volumes.iter().any(|volume| !volume.faults.is_empty());
        let net = Arc::new(Mutex::new(Net::new(
            swarm.streams,
            swarm.fidelity,
            (others_fail, swarm.grace > Nanos(0)),
        )));
        let udp_outputs = Arc::new(Mutex::new(UdpOutputs::new(
            swarm.udp_outputs.clone(),
            swarm.streams,
            (swarm.fidelity, swarm.segments_max, others_fail),
            &dice.fork(2),
        )));
        let reports_woken = Arc::new(AtomicBool::new(false));
        let (mut volumes, mut devices, mut ledger_limits) = (vec![], vec![], vec![]);
        let (mut shares, mut learned) = (vec![], vec![]);
        for (at, spec) in swarm.volumes.iter().enumerate() {
            let (keeper, blocks, memory) = make_blocks(spec, swarm.programs.len());
            let truth = spec.kind.model(spec.block);
            let model = spec.guess.map_or(truth, |guess| truth.slower_by(guess.ratio));
            learned.push(LearnedDisk::new(spec.guess.map(|_| model)));
            let limits = DiskLimits {
                model: truth,
                cycle: spec.cycle,
                block: spec.block,
                best_effort_depth: spec.best_effort_depth,
                message_delay: message_delay(&swarm),
                obeys: spec.faults.is_empty() && spec.guess.is_none() && swarm.pauses.is_empty(),
                slower: match swarm.mode {
                    Mode::Degradation => spec.faults.iter().map(Fault::factor).max(),
                    _ => None,
                },
                upload_delay: message_delay(&swarm) + swarm.lateness + MILLISECOND,
                write_place: spec.write_path.map_or(0, |write_path| write_path.place),
                floor_thousandths: spec
                    .write_path
                    .map_or(0, |write_path| write_path.floor_thousandths),
            };
            let share = spec.write_path.map(|WritePathSpec { places, place, .. }| {
                arena(Box::new(HeapRegion::new(places as usize * place as usize)), place)
            });
            let woken = Arc::new(AtomicBool::new(false));
            let device = Arc::new(Mutex::new(Device::new(DeviceParts {
                kind: spec.kind,
                limits,
                faults: spec.faults.clone(),
                blocks,
                reads_ahead: spec.memory.ahead() > 0,
                stable: share.as_ref().map(|(_, view)| Stable::new(view.clone())),
                titles: Arc::clone(&titles),
                fidelity: swarm.fidelity,
                dice: dice.fork(100 + at as u64),
            })));
            volumes.push(VolumeSetup {
                port: DiskEnd::new(Arc::clone(&device)),
                keeper,
                memory,
                cycle: spec.cycle,
                model,
                read_ahead: spec.memory.turns(spec.cycle),
                best_effort_depth: spec.best_effort_depth,
                write_path: spec.write_path.map(|write_path| WritePathSetup {
                    places: write_path.places,
                    // Exactly one for each upload.
                    syncs_max: swarm.uploads.iter().filter(|upload| upload.volume == at).count()
                        as u32,
                    floor_thousandths: write_path.floor_thousandths,
                    waker: Box::new(WakeFlag(Arc::clone(&woken))),
                }),
                learning: spec
                    .guess
                    .map(|guess| learning_of(spec, guess, (&device, &reports_woken))),
            });
            shares.push(share.map(|share| (share, woken)));
            ledger_limits.push(tactus_core::cost::DiskLimits {
                model,
                cycle: spec.cycle,
                share_thousandths: spec.share_thousandths,
                block: tactus_core::units::Bytes(u64::from(spec.block)),
                blocks: spec.places,
                ahead: spec.memory.ahead(),
                windows: tactus_core::cost::WindowLimits::NONE,
                server: 0,
                read_per_mib: Nanos(1),
                deliver_block: Nanos(1),
                per_write: Nanos(1),
                write_path: spec.write_path.map(|write_path| WriteLimits {
                    places: write_path.places,
                    place: tactus_core::units::Bytes(u64::from(write_path.place)),
                    floor_thousandths: write_path.floor_thousandths,
                }),
            });
            devices.push(device);
        }
        let programs = Programs::new(&swarm, &dice.fork(4));
        let (cores, mut control) = assemble(Setup {
            volumes,
            links: (0..swarm.links)
                .map(|_| LinkEnd {
                    net: Arc::clone(&net),
                    devices: devices.clone(),
                    titles: Arc::clone(&titles),
                })
                .collect(),
            packets: (0..swarm.packet_servers)
                .map(|_| PacketSetup {
                    port: Box::new(PacketEnd {
                        udp_outputs: Arc::clone(&udp_outputs),
                        devices: devices.clone(),
                        titles: Arc::clone(&titles),
                    }),
                    rate: LINK_RATE,
                    tick: swarm.packet_tick,
                    classes: classes_of(&swarm),
                })
                .collect(),
            local: programs.setup(&devices, &titles),
            streams: swarm.streams,
            patience: Patience { behind_max: swarm.behind_max, ..Patience::default() },
            placement: placement.clone(),
            report_wakers: placement
                .deliveries
                .iter()
                .map(|_| -> Box<dyn Waker> { Box::new(WakeFlag(Arc::clone(&reports_woken))) })
                .collect(),
        });
        open(&net).watch(Arc::clone(&control.counters.streams));
        let counters = &control.counters;
        open(&udp_outputs).watch(counters.packets.clone(), Arc::clone(&counters.streams));
        let write_paths = std::mem::take(&mut control.write_paths);
        let stores = shares.into_iter().zip(write_paths).map(|(share, write_path)| {
            let ((keeper, view), woken) = share?;
            Some(Store::new(keeper, view, write_path?, woken))
        });
        let stores = stores.collect();
        let now = swarm.begin;
        let learns = swarm.volumes.iter().any(|volume| volume.guess.is_some());
        let balancer = Balancer::new(control.counters.servers.len(), now);
        let cores = cores
            .into_iter()
            .map(|core| CoreSlot { core, wanted: Some(now), actual: Some(now), last: now })
            .collect();
        let mut world = Self {
            broker: Broker::new(ledger_limits, (swarm.streams, swarm.deliveries), learns),
            learned,
            clients: swarm
                .clients
                .iter()
                .enumerate()
                .map(|(n, &s)| Client::new(n, s, &dice))
                .collect(),
            stores,
            uploaders: swarm
                .uploads
                .iter()
                .enumerate()
                .map(|(n, &s)| Uploader::new(n, s, &dice))
                .collect(),
            programs,
            live: (0..swarm.streams).map(|_| None).collect(),
            live_count: 0,
            pinned: vec![PinnedTitle::default(); titles.len()],
            last_finished: vec![now; titles.len()],
            starting: vec![],
            end: now + swarm.duration,
            swarm,
            sums: vec![None; titles.len()],
            titles,
            cores,
            placement,
            control,
            reports_woken,
            devices,
            net,
            udp_outputs,
            events: BinaryHeap::new(),
            events_pushed: 0,
            now,
            dice,
            trace: Trace::default(),
            tally: Tally::default(),
            quiet: None,
            recovered: None,
            moving: None,
            dice_of_moves,
            balancer,
        };
        for client in 0..world.clients.len() {
            let at = now + world.clients[client].spec.arrives;
            world.push(at, Event::Arrive { client });
        }
        for uploader in 0..world.swarm.uploads.len() {
            let at = now + world.swarm.uploads[uploader].arrives;
            world.push(at, Event::Upload { uploader });
        }
        world.plan_programs();
        if learns {
            world.push(now + disks::LOOK, Event::FollowDisks);
        }
        if let Some(every) = world.swarm.moves {
            world.push(now + every, Event::Move);
        }
        if world.swarm.work.is_some() {
            world.push(now + balance::SAMPLE, Event::Balance);
        }
        world.push(now + SECOND, Event::LookAround);
        world
    }

    /// Runs until the end, and checks that nothing is left.
    pub(crate) fn run(mut self) -> Outcome {
        self.live_until(self.end);
        self.close();
        let leftover = self.end + DRAIN_MAX;
        self.close_stores();
        self.close_programs();
        while self.is_busy() {
            require(self.now < leftover, Invariant::Progress, || {
                let left = self.live.iter().flatten().next();
                let (uploads, programs) = (self.stores_are_busy(), self.programs.any_attached());
                format!(
                    "{:?} after everything was stopped, there is still {left:?}, uploads: \
                     {uploads}, programs: {programs}",
                    self.now
                )
            });
            self.step();
        }
        self.check_nothing_left();
        self.outcome()
    }

    fn is_busy(&self) -> bool {
        self.live_count > 0 || self.stores_are_busy() || self.programs.any_attached()
    }

    fn live_until(&mut self, end: MonoTime) {
        while self.next_time().is_some_and(|next| next < end) {
            self.step();
        }
        self.now = self.now.max(end);
    }

    /// The time of the next event.
    fn next_time(&self) -> Option<MonoTime> {
        let turn = self.cores.iter().filter_map(|slot| slot.actual).min();
        let event = self.events.peek().map(|due| due.at);
        match (turn, event) {
            (Some(turn), Some(event)) => Some(turn.min(event)),
            (turn, event) => turn.or(event),
        }
    }

    /// Executes the next event.
    fn step(&mut self) {
        let Some(next) = self.next_time() else {
            crate::verdict::broken(
                Invariant::Progress,
                format!("at {:?} nothing will ever happen again", self.now),
            );
        };
        self.now = next.max(self.now);
        if self.events.peek().is_some_and(|due| due.at <= self.now) {
            let due = self.events.pop().expect("it has just been there");
            self.handle(due.event);
            return;
        }
        let slot = self.cores.iter().position(|slot| slot.actual.is_some_and(|at| at <= self.now));
        self.turn_core(slot.expect("a core's turn is what happens next"));
    }

    fn turn_core(&mut self, at: usize) {
        let now = self.now;
        if self.may_sit(at, &self.placement.links) {
            let elapsed = now.since(self.last_turn(at));
            let visits = 2 + elapsed.0 / (10 * MILLISECOND.0);
            let streams = self.live.len() as u64;
            let mut net = open(&self.net);
            net.paused = paused_by(&self.swarm.pauses, now);
            net.turn = LinkTurn {
                wanted: self.cores[at].wanted.unwrap_or(now).min(now),
                sends: 0,
                sends_max: 16 + 4 * streams * visits,
            };
        }
        for place in (0..self.starting.len()).rev() {
            let (volume, server) = self.starting[place];
            if self.may_sit(at, &[self.placement.deliveries[usize::from(server.0)]]) {
                open(&self.devices[volume]).note_start(now);
                self.starting.swap_remove(place);
            }
        }
        self.note_turning(at);
        let (slot, counters) = (&mut self.cores[at], &self.control.counters);
        let wanted = match self.swarm.work {
            None => turn(&mut slot.core, now, || now),
            Some(cost) => {
                let begun = balance::work(counters, cost);
                let clock = || now + balance::work(counters, cost).saturating_sub(begun);
                turn(&mut slot.core, now, clock)
            }
        };
        slot.last = now;
        slot.wanted = wanted;
        self.tally.turns += 1;
        let lasts = self.least_turn();
        let actual = wanted.map(|wanted| {
            let late = match self.swarm.lateness {
                Nanos(0) => Nanos(0),
                // Its thread does not sleep.
                _ if wanted <= now => Nanos(0),
                most => Nanos(self.dice.below(most.0)),
            };
            after_pause(&self.swarm.pauses, (wanted + late).max(now + lasts))
        });
        self.cores[at].actual = actual;
        self.follow_move();
        if self.reports_woken.swap(false, Ordering::Relaxed) {
            let delay = Nanos(self.dice.below(self.swarm.control_delay.0));
            self.push(now + delay, Event::Reports);
        }
        self.hear_programs();
        for volume in 0..self.stores.len() {
            if self.stores[volume].as_ref().is_some_and(Store::take_ring) {
                let delay = Nanos(self.dice.below(self.swarm.control_delay.0));
                self.push(now + delay, Event::Answers { volume });
            }
        }
    }

    /// The least time from one turn of a core to the next.
    fn least_turn(&self) -> Nanos {
        // The file server polls without sleep.
        if self.swarm.programs.is_empty() { Nanos(1) } else { swarm::TURN }
    }

    /// How late a stream of a healthy volume may be visited.
    fn visit_lateness(&self) -> Nanos {
        self.swarm.lateness + self.swarm.grace + self.least_turn().times(TURNS_OF_SLOT)
    }

    /// Wakes the core that a delivery server sits on, as the control side's waker does.
    fn wake(&mut self, server: DeliveryServerId) {
        self.ring_core(self.placement.deliveries[usize::from(server.0)]);
    }

    fn ring_core(&mut self, core: usize) {
        let delay = Nanos(self.dice.below(self.swarm.lateness.0.max(1)));
        let at = after_pause(&self.swarm.pauses, self.now + delay);
        let slot = &mut self.cores[core];
        slot.actual = Some(slot.actual.map_or(at, |actual| actual.min(at)));
        slot.wanted = Some(slot.wanted.map_or(at, |wanted| wanted.min(at)));
    }

    fn push(&mut self, at: MonoTime, event: Event) {
        self.events_pushed += 1;
        self.events.push(Due { at, number: self.events_pushed, event });
    }

    /// Once a second: checks that only show when nothing happens.
    fn look_around(&mut self) {
        let now = self.now;
        {
            let mut net = open(&self.net);
            net.paused = paused_by(&self.swarm.pauses, now);
            net.check_all(now, self.swarm.behind_max);
        }
        open(&self.udp_outputs).check_all(now);
        self.check_progress();
        self.check_move();
        self.check_moments();
        self.check_recovery();
        if now < self.end {
            self.push(now + SECOND, Event::LookAround);
        }
    }

    fn check_recovery(&mut self) {
        if self.swarm.mode != Mode::Liveness {
            return;
        }
        if self.now < self.swarm.quiet_from {
            return;
        }
        let now = self.now;
        let quiet = *self.quiet.get_or_insert_with(|| {
            // Earlier work of a slow disk is still slow.
            let busy = self.devices.iter().map(|device| open(device).busy_until()).max();
            busy.map_or(now, |busy| busy.max(now))
        });
        let longest = self.swarm.volumes.iter().map(|volume| volume.cycle).max();
        let by = quiet + longest.unwrap_or(SECOND).times(5);
        if now < by {
            return;
        }
        let counters = &self.control.counters;
        let underruns = counters.sum_of_links(|link| &link.underruns)
            + counters.sum_of_packet_servers(|packets| &packets.underruns);
        let then = *self.recovered.get_or_insert(underruns);
        require(underruns == then, Invariant::Recovers, || {
            let more = underruns - then;
            format!("{more} underruns by {:?}, though all was well by {by:?}", self.now)
        });
    }

    fn check_nothing_left(&mut self) {
        // A class still reports the last second, and zero in the next one.
        let (times, wait) = if self.swarm.ceiling.is_some() { (2, SECOND) } else { (1, Nanos(1)) };
        for _ in 0..times {
            self.now += wait;
            for at in 0..self.cores.len() {
                self.turn_core(at);
            }
        }
        self.broker.check_empty();
        self.check_stores_empty();
        open(&self.udp_outputs).check_counts(self.now);
        for device in &self.devices {
            open(device).check_idle();
        }
        let counters = &self.control.counters;
        let leased: u64 = counters.blocks.iter().map(|block| block.leased.value()).sum();
        let streams = counters.sum_of_deliveries(|server| &server.streams);
        // Several cores poll for messages for ever; a single one has no reason to wake.
        let learns = self.learned.iter().any(|disk| disk.start.is_some());
        let timers = self.cores.len() == 1 && self.cores[0].wanted.is_some() && !learns;
        let clean = leased == 0 && streams == 0 && !timers;
        require(clean, Invariant::NothingLeft, || {
            format!("{leased} blocks leased, {streams} streams, a timer: {timers}")
        });
    }

    fn outcome(mut self) -> Outcome {
        let counters = &self.control.counters;
        let waits = open(&self.net).first_bytes();
        let tally = Tally {
            begun: waits.count,
            waits: waits.sum,
            wait_max: waits.longest,
            wait_median: waits.median(),
            simulated: self.swarm.duration,
            completed: counters.sum_of_deliveries(|server| &server.completed),
            bytes: counters.sum_of_links(|link| &link.bytes)
                + counters.sum_of_packet_servers(|packets| &packets.bytes),
            sends: counters.sum_of_links(|link| &link.sends)
                + counters.sum_of_packet_servers(|packets| &packets.calls),
            datagrams: counters.sum_of_packet_servers(|packets| &packets.datagrams),
            underruns: counters.sum_of_links(|link| &link.underruns)
                + counters.sum_of_packet_servers(|packets| &packets.underruns),
            damaged: counters.blocks.iter().map(|block| block.damaged.value()).sum(),
            ..self.tally
        };
        self.trace.note(open(&self.net).trace());
        self.trace.note(open(&self.udp_outputs).trace());
        for device in &self.devices {
            self.trace.note(open(device).trace());
        }
        Outcome { trace: self.trace.hash(), tally }
    }
}

/// `at`, or the end of the pause that it lies in.
fn after_pause(pauses: &[(MonoTime, Nanos)], at: MonoTime) -> MonoTime {
    pauses.iter().fold(at, |at, &(from, span)| if from <= at { at.max(from + span) } else { at })
}

/// Sum of all pauses of the machine by `now`, including the whole of a running one.
fn paused_by(pauses: &[(MonoTime, Nanos)], now: MonoTime) -> Nanos {
    pauses.iter().filter(|&&(from, _)| from <= now).map(|&(_, span)| span).sum()
}

/// What is learned about a disk, with probes of any place.
fn learning_of(
    spec: &VolumeSpec,
    guess: GuessSpec,
    (device, woken): (&Arc<Mutex<Device>>, &Arc<AtomicBool>),
) -> LearningSetup {
    let depth = spec.kind.model(spec.block).depth;
    let region = HeapRegion::new(depth as usize * spec.block as usize);
    let (keeper, _) = arena(Box::new(region), spec.block);
    let port = Box::new(ProbeEnd(Arc::clone(device)));
    let GuessSpec { origin, is_direct, .. } = guess;
    let len = tactus_core::units::Bytes(SPAN);
    LearningSetup {
        rules: Learning { origin, is_direct, probe: Some(ProbeLimits { len, block: spec.block }) },
        probe: Some(ProbeSetup { port, keeper, file: FileHandle(0) }),
        waker: Box::new(WakeFlag(Arc::clone(woken))),
    }
}

/// The keeper of a volume's blocks, and the memory for the device and the link. The ledger does not
/// count the places of programs.
fn make_blocks(spec: &VolumeSpec, programs: usize) -> (ArenaOwner, Blocks, Memory) {
    let VolumeSpec { places, block, memory, .. } = *spec;
    let places = places + programs as u32 * PLACES_OF_CLIENT;
    match memory {
        swarm::Memory::Arena => {
            let region = HeapRegion::new(places as usize * block as usize);
            let (keeper, view) = arena(Box::new(region), block);
            (keeper, Blocks::Arena(view.clone()), Memory::Arena(view))
        }
        swarm::Memory::PageCache { .. } => {
            let blocks = Blocks::PageCache(Pages::new(places, block));
            (elsewhere(places, block), blocks, Memory::PageCache)
        }
    }
}

fn place(swarm: &Swarm, dice: &mut Dice) -> Placement {
    let volumes = swarm.volumes.len();
    if !swarm.scattered || swarm.cores == 1 {
        let spread = |servers| (0..servers).map(|server| server % swarm.cores).collect();
        return Placement {
            deliveries: spread(swarm.deliveries),
            links: spread(swarm.links),
            packets: spread(swarm.packet_servers),
            ..Placement::sensible(volumes, swarm.cores)
        };
    }
    let mut any = || dice.below(swarm.cores as u64) as usize;
    Placement {
        cores: swarm.cores,
        disks: (0..volumes).map(|_| any()).collect(),
        blocks: (0..volumes).map(|_| any()).collect(),
        deliveries: (0..swarm.deliveries).map(|_| any()).collect(),
        links: (0..swarm.links).map(|_| any()).collect(),
        packets: (0..swarm.packet_servers).map(|_| any()).collect(),
        file: any(),
    }
}

/// Limit of the time of a message in rings: cores poll once a millisecond, a want passes two rings.
fn message_delay(swarm: &Swarm) -> Nanos {
    match swarm.cores {
        1 => Nanos(0),
        _ => (MILLISECOND + swarm.lateness).times(3),
    }
}

/// The class of the first UDP output's streams, in worlds that have it.
fn classes_of(swarm: &Swarm) -> Vec<PacketClass> {
    let class = |ceiling| PacketClass { parent: None, class: Class::target(ceiling) };
    swarm.ceiling.map(class).into_iter().collect()
}

/// Rate of the datagram link: never the limit here.
const LINK_RATE: BitRate = BitRate(100_000_000_000);

/// Limit of the time after the end until the last stream has returned everything.
const DRAIN_MAX: Nanos = SECOND.times(60);
