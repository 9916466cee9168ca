//! The ledger: the sum of all promises, and the check of the next one.
//!
//! Promise: the sum of all admitted streams fits each disk's cycle, each arena, the link and the
//! real-time cores, in each second of the time that is planned. A refused request changes nothing;
//! a returned grant leaves no trace. Only the ledger refuses for lack of resources. It uses average
//! needs. Averages suffice because the stream table wants every block at least one block's duration
//! ahead (`docs/design/admission.md`).

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::classes::{ClassChangeError, ClassFull, ClassLimits, ClassNumber, Classes};
use crate::cost::{Cost, Disk, DiskLimits, OutputCost, PlannedCost, SourceCost, WindowLimits};
use crate::disk_model::{DiskModel, MilliVisits, TransferredBytes};
use crate::mutant;
use crate::overload::Need;
use crate::timeline::Timeline;
use crate::units::{BitRate, Bytes, Nanos};

/// All limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Each volume's disk and arena.
    pub disks: Vec<DiskLimits>,
    /// Payload rate of the link available to streams.
    pub link: BitRate,
    /// The part of it available to datagrams and classes, if their interface is slower.
    pub datagrams: Option<BitRate>,
    /// Classes of the link, parents first.
    pub classes: Vec<ClassLimits>,
    /// Time per second of each real-time core available to streams.
    pub cores: Vec<Nanos>,
    /// Slots of the stream table.
    pub streams: u32,
}

/// A resource of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Resource {
    /// Time in a disk's cycle.
    Disk,
    /// Blocks of memory.
    Arena,
    /// Memory for what the kernel reads ahead of streams, if its windows are large.
    ReadAhead,
    /// Places for bytes to write.
    WriteShare,
    /// Rate of the link.
    Link,
    /// Rate of the interface of datagrams, if that is below the link's.
    Datagrams,
    /// The ceiling of a class of the link.
    Class,
    /// Time of a real-time core.
    Cpu,
    /// Slots of the stream table.
    Streams,
}

impl Resource {
    /// Whether each disk has it.
    pub const fn is_of_disk(self) -> bool {
        matches!(self, Self::Disk | Self::Arena | Self::ReadAhead | Self::WriteShare)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Arena => "memory",
            Self::ReadAhead => "read-ahead",
            Self::WriteShare => "write share",
            Self::Link => "link",
            Self::Datagrams => "datagrams",
            Self::Class => "class",
            Self::Cpu => "cpu",
            Self::Streams => "streams",
        })
    }
}

/// Use of one resource: nanoseconds per cycle or second, blocks, bits per second, or places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// The resource.
    pub resource: Resource,
    /// The number of the disk or core, for resources of which there are several.
    pub number: u32,
    /// The promised amount.
    pub used: u64,
    /// The available amount.
    pub limit: u64,
}

/// {resource} has no room: {needed} of {limit} would be promised
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The short resource.
    pub resource: Resource,
    /// The number of the disk or core, for resources of which there are several.
    pub number: u32,
    /// The amount that would be promised.
    pub needed: u64,
    /// The available amount.
    pub limit: u64,
    /// The class, if the resource is a class.
    pub class: Option<ClassNumber>,
}

impl From<ClassFull> for Rejection {
    fn from(full: ClassFull) -> Self {
        let ClassFull { class, needed, ceiling } = full;
        let class = Some(class);
        Self { resource: Resource::Class, number: 0, needed: needed.0, limit: ceiling.0, class }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct DiskUse {
    visits: MilliVisits,
    per_cycle: TransferredBytes,
    blocks: u32,
    windows: u32,
    places: u32,
}

/// The promises that change with time, slot by slot.
struct PlannedSums {
    visits: Vec<Timeline>,
    read: Vec<Timeline>,
    connections: Timeline,
    cores: Vec<Timeline>,
}

/// A server as admission sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerPlace {
    /// Its core.
    pub core: u32,
    /// Time of that core, per second, that is kept for it and never promised.
    pub kept: Nanos,
}

/// The promises of one server, which are a part of those of its core.
struct ServerUse {
    place: ServerPlace,
    time: Nanos,
    planned: Timeline,
}

/// The promises.
pub struct Ledger {
    limits: Limits,
    planned: PlannedSums,
    disks: Vec<DiskUse>,
    /// Rate of the link promised to connections.
    connections: BitRate,
    /// Rate promised to datagrams outside of classes.
    datagrams: BitRate,
    classes: Classes,
    /// Promised time of each core.
    cores: Vec<Nanos>,
    /// Of each core, whether nothing may be promised of it.
    closed: Vec<bool>,
    servers: Vec<ServerUse>,
    streams: u32,
}

/// Places of the write share that recordings leave to uploads: one to fill, one to write.
const UPLOAD_PLACES: u32 = 2;

impl Ledger {
    /// Makes a ledger without promises. Each server has the core of its own number.
    pub fn new(limits: Limits) -> Self {
        let cores = 0..u32::try_from(limits.cores.len()).expect("a machine has fewer cores");
        Self::with_servers(limits, cores.map(|core| ServerPlace { core, kept: Nanos(0) }))
    }

    /// Makes a ledger without promises; `servers` are those that costs name by number.
    pub fn with_servers(limits: Limits, servers: impl IntoIterator<Item = ServerPlace>) -> Self {
        let disks = alloc::vec![DiskUse::default(); limits.disks.len()];
        let classes = Classes::new(limits.classes.clone());
        let (connections, datagrams) = (BitRate(0), BitRate(0));
        let timelines = |count| alloc::vec![Timeline::default(); count];
        let planned = PlannedSums {
            visits: timelines(limits.disks.len()),
            read: timelines(limits.disks.len()),
            connections: Timeline::default(),
            cores: timelines(limits.cores.len()),
        };
        let cores = alloc::vec![Nanos(0); limits.cores.len()];
        let closed = alloc::vec![false; limits.cores.len()];
        let server = |place| ServerUse { place, time: Nanos(0), planned: Timeline::default() };
        let servers = servers.into_iter().map(server).collect();
        let streams = 0;
        Self {
            limits,
            planned,
            disks,
            connections,
            datagrams,
            classes,
            cores,
            closed,
            servers,
            streams,
        }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The classes of the link, and their promised rates.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The disk with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn disk(&self, number: u32) -> Disk<'_> {
        Disk { number, limits: &self.limits.disks[number as usize] }
    }

    /// Promises `cost`, or returns the short resource.
    ///
    /// # Errors
    /// [`Rejection`] names the first resource without room; the ledger is unchanged.
    pub fn admit(&mut self, cost: Cost) -> Result<(), Rejection> {
        self.check(cost)?;
        self.add(cost);
        Ok(())
    }

    /// Promises a cost that changes with time, or returns the short resource.
    ///
    /// # Errors
    /// [`Rejection`] names the first resource without room; the ledger is unchanged.
    pub fn admit_planned(&mut self, cost: &PlannedCost) -> Result<(), Rejection> {
        self.check_planned(cost)?;
        self.restore_planned(cost);
        Ok(())
    }

    /// Whether `cost` would be admitted.
    ///
    /// # Errors
    /// [`Rejection`] names the first resource without room.
    pub fn check_planned(&self, cost: &PlannedCost) -> Result<(), Rejection> {
        self.check_within(cost.lasting, None)?;
        cost.steps
            .iter()
            .try_for_each(|(slots, step)| self.check_within(*step, Some(slots.clone())))
    }

    /// Returns a promise that changes with time.
    ///
    /// # Panics
    /// If more is returned than was promised.
    pub fn release_planned(&mut self, cost: &PlannedCost) {
        self.release(cost.lasting);
        for (slots, step) in cost.steps.iter().skip(mutant!(StepKept, 1, 0)) {
            self.planned.change(&mut self.servers, slots, *step, Timeline::remove);
        }
    }

    /// Promises again what has just been returned, without a check: nothing has been promised in
    /// between, and a limit that has shrunk does not end a promise.
    pub fn restore_planned(&mut self, cost: &PlannedCost) {
        self.add(cost.lasting);
        for (slots, step) in &cost.steps {
            self.planned.change(&mut self.servers, slots, *step, Timeline::add);
        }
    }

    fn add(&mut self, cost: Cost) {
        let Cost { source, output, rows } = cost;
        let disk = &mut self.disks[source.disk as usize];
        disk.visits.0 += source.visits.0;
        disk.per_cycle = disk.per_cycle.plus(source.per_cycle);
        disk.blocks += source.blocks;
        disk.windows += source.windows;
        disk.places += source.places;
        self.connections += output.connections();
        match output.class {
            Some(class) => self.classes.add(class, output.datagrams),
            None => self.datagrams += output.datagrams,
        }
        for (server, time) in cost.cpu() {
            let server = &mut self.servers[server as usize];
            server.time += time;
            self.cores[server.place.core as usize] += time;
        }
        self.streams += rows;
    }

    /// Whether `cost` would be admitted, for any time.
    ///
    /// # Errors
    /// [`Rejection`] names the first resource without room.
    pub fn check(&self, cost: Cost) -> Result<(), Rejection> {
        self.check_within(cost, None)
    }

    /// Checks `cost` against the promises in `slots`; `None`: the highest sums of all slots.
    fn check_within(&self, cost: Cost, slots: Option<Range<u64>>) -> Result<(), Rejection> {
        let Cost { source, output, rows } = cost;
        let limits = &self.limits.disks[source.disk as usize];
        let disk = self.disk_use(source.disk as usize, slots.as_ref());
        let fits = |resource: Resource, needed, limit| {
            if needed <= limit {
                Ok(())
            } else {
                let number = if resource.is_of_disk() { source.disk } else { 0 };
                Err(Rejection { resource, number, needed, limit, class: None })
            }
        };
        if rows > 0 {
            let streams = u64::from(self.streams) + u64::from(rows);
            fits(Resource::Streams, streams, u64::from(self.limits.streams))?;
        }
        if source.per_cycle != TransferredBytes::NOTHING {
            let time = limits.model.moving(
                MilliVisits(disk.visits.0 + source.visits.0),
                disk.per_cycle.plus(source.per_cycle),
            );
            fits(Resource::Disk, time.0, disk_limit(limits).0)?;
        }
        let blocks = u64::from(disk.blocks) + u64::from(source.blocks);
        fits(Resource::Arena, blocks, u64::from(limits.blocks))?;
        let windows = u64::from(disk.windows) + u64::from(source.windows);
        fits(Resource::ReadAhead, windows, u64::from(limits.windows.all))?;
        if source.places > 0 {
            let places = u64::from(disk.places) + u64::from(source.places);
            fits(Resource::WriteShare, places, places_limit(limits))?;
        }
        if output.wire > BitRate(0) {
            // With the rates of all classes, which carry datagrams only.
            let classes = match output.class {
                Some(class) => self.classes.with(class, output.datagrams)?,
                None => self.classes.taken() + output.datagrams,
            };
            let datagrams = self.datagrams + classes;
            let planned = most(&self.planned.connections, slots.as_ref());
            let connections = BitRate(self.connections.0 + planned);
            let link = connections + output.connections() + datagrams;
            fits(Resource::Link, link.0, self.limits.link.0)?;
            let has_datagrams = output.datagrams > BitRate(0);
            if let Some(limit) = self.limits.datagrams.filter(|_| has_datagrams) {
                fits(Resource::Datagrams, datagrams.0, limit.0)?;
            }
        }
        for (server, _) in cost.cpu() {
            let core = self.core_of(server);
            let of_core = cost.cpu().filter(|&(other, _)| self.core_of(other) == core);
            let time = of_core.fold(Nanos(0), |sum, (_, time)| sum + time);
            let planned = most(&self.planned.cores[core as usize], slots.as_ref());
            let (used, limit) = (self.cores[core as usize], self.limit_of(core));
            fits(Resource::Cpu, (used + time).0 + planned, limit.0)
                .map_err(|short| Rejection { number: core, ..short })?;
        }
        Ok(())
    }

    /// The core of a server.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn core_of(&self, server: u32) -> u32 {
        self.servers[server as usize].place.core
    }

    /// The place of a server, and its promised time per second of that core: of promises that
    /// change with time the highest sum.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn promise_of(&self, server: u32) -> (ServerPlace, Nanos) {
        let ServerUse { place, time, planned } = &self.servers[server as usize];
        (*place, *time + Nanos(planned.max_of_all()))
    }

    /// Moves the promises of a server to another core.
    ///
    /// # Errors
    /// The new core has no room for them; nothing has changed.
    ///
    /// # Panics
    /// If there is no such server or core.
    pub fn move_server(&mut self, server: u32, to: u32) -> Result<(), Rejection> {
        let moved = &self.servers[server as usize];
        let ServerPlace { core: from, kept } = moved.place;
        if from == to {
            return Ok(());
        }
        let at = to as usize;
        let mut planned = self.planned.cores[at].clone();
        planned.add_all(&moved.planned);
        let needed = (self.cores[at] + moved.time).0 + planned.max_of_all();
        let limit = self.limit_of(to).saturating_sub(kept).0;
        if needed > limit || self.closed[at] {
            let (resource, class) = (Resource::Cpu, None);
            return Err(Rejection { resource, number: to, needed, limit, class });
        }
        self.return_server(server, to);
        Ok(())
    }

    /// Promises nothing of a core from now on: it gets no server. Returns the time per second that
    /// could be promised of it.
    ///
    /// # Panics
    /// If there is no such core, or it has a server.
    pub fn close_core(&mut self, core: u32) -> Nanos {
        assert!(self.servers.iter().all(|server| server.place.core != core), "no server is there");
        self.closed[core as usize] = true;
        core::mem::take(&mut self.limits.cores[core as usize])
    }

    /// Promises up to `time` per second of a closed core from now on.
    ///
    /// # Panics
    /// If there is no such core, or it is open.
    pub fn open_core(&mut self, core: u32, time: Nanos) {
        assert!(self.closed[core as usize], "a core is opened once");
        self.closed[core as usize] = false;
        self.limits.cores[core as usize] = time;
    }

    /// Whether a core gets servers.
    ///
    /// # Panics
    /// If there is no such core.
    pub fn is_open(&self, core: u32) -> bool {
        !self.closed[core as usize]
    }

    /// The promised time per second of each core, and the most that may be promised; nothing of one
    /// that is closed.
    pub fn of_cores(&self) -> impl Iterator<Item = (Nanos, Nanos)> {
        let planned = self.planned.cores.iter().map(|planned| Nanos(planned.max_of_all()));
        let used = self.cores.iter().zip(planned).map(|(&used, planned)| used + planned);
        used.zip((0..).map(|core| self.limit_of(core)))
    }

    /// The limit of a core in time per second: its budget, less the time that its servers keep for
    /// themselves.
    fn limit_of(&self, core: u32) -> Nanos {
        let there = self.servers.iter().filter(|server| server.place.core == core);
        let kept = there.fold(Nanos(0), |sum, server| sum + server.place.kept);
        self.limits.cores[core as usize].saturating_sub(kept)
    }

    /// Moves the promises of a server back to the core where they were, without a check.
    ///
    /// # Panics
    /// If there is no such server or core.
    pub fn return_server(&mut self, server: u32, to: u32) {
        let moved = &mut self.servers[server as usize];
        let from = moved.place.core;
        if from == to {
            return;
        }
        let (from, at) = (from as usize, to as usize);
        self.planned.cores[at].add_all(&moved.planned);
        self.planned.cores[from].remove_all(&moved.planned);
        self.cores[from] -= moved.time;
        self.cores[at] += moved.time;
        moved.place.core = to;
    }

    /// Returns a promise.
    ///
    /// # Panics
    /// If more is returned than was promised.
    pub fn release(&mut self, cost: Cost) {
        let Cost { source, output, rows } = cost;
        let disk = &mut self.disks[source.disk as usize];
        let was_promised = self.streams >= rows
            && disk.blocks >= source.blocks
            && disk.windows >= source.windows
            && disk.places >= source.places;
        assert!(was_promised, "only what was promised returns");
        disk.visits.0 -= source.visits.0;
        let returned = mutant!(LedgerLeaks, TransferredBytes::NOTHING, source.per_cycle);
        disk.per_cycle = disk.per_cycle.minus(returned);
        disk.blocks -= source.blocks;
        disk.windows -= source.windows;
        disk.places -= source.places;
        self.connections -= output.connections();
        match output.class {
            Some(class) => self.classes.remove(class, output.datagrams),
            None => self.datagrams -= output.datagrams,
        }
        for (server, time) in cost.cpu() {
            let server = &mut self.servers[server as usize];
            server.time -= time;
            self.cores[server.place.core as usize] -= time;
        }
        self.streams -= rows;
    }

    /// Changes the limits of classes, under all current promises.
    ///
    /// # Errors
    /// The promise that could not be kept; nothing has changed.
    ///
    /// # Panics
    /// If the list has other classes than before, or one has another parent.
    pub fn change_classes(&mut self, to: Vec<ClassLimits>) -> Result<(), ClassChangeError> {
        let changed = self.classes.changed(to.clone())?;
        let datagrams = self.datagrams + changed.taken();
        let connections = self.connections.0 + self.planned.connections.max_of_all();
        let (needed, limit) = (BitRate(connections) + datagrams, self.limits.link);
        if needed > limit {
            return Err(ClassChangeError::Link { needed, limit });
        }
        if let Some(limit) = self.limits.datagrams.filter(|&limit| datagrams > limit) {
            return Err(ClassChangeError::Datagrams { needed: datagrams, limit });
        }
        (self.classes, self.limits.classes) = (changed, to);
        Ok(())
    }

    /// Changes the model of a disk, under all current promises. They may then exceed it: nothing
    /// more is admitted, and [`overload`](crate::overload) says what happens to them.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn set_model(&mut self, disk: u32, model: DiskModel) {
        self.limits.disks[disk as usize].model = model;
    }

    /// Time in a disk's cycle, by `model`, of all that is promised except `without`.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn disk_time(&self, disk: u32, model: &DiskModel, without: Need) -> Nanos {
        let DiskUse { visits, mut per_cycle, .. } = self.disk_use(disk as usize, None);
        per_cycle.read = per_cycle.read.saturating_sub(Bytes(without.bytes));
        model.moving(MilliVisits(visits.0.saturating_sub(without.visits)), per_cycle)
    }

    /// Time of a disk's cycle that is promised at most.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn disk_limit(&self, disk: u32) -> Nanos {
        disk_limit(&self.limits.disks[disk as usize])
    }

    /// Number of promised streams.
    pub fn streams(&self) -> u32 {
        self.streams
    }

    /// Time per second of a core that is not promised.
    pub fn free_time(&self, core: u32) -> Nanos {
        let core = core as usize;
        let planned = Nanos(self.planned.cores[core].max_of_all());
        self.limit_of(core as u32).saturating_sub(self.cores[core] + planned)
    }

    /// The number of further streams of this cost that would be admitted, if any of the servers
    /// `senders` may send each.
    pub fn room_for(&self, cost: Cost, senders: &[u32]) -> u32 {
        self.limit_for(cost, senders, &[cost.source.delivery_server]).0
    }

    /// Like [`Self::room_for`], if any of the delivery servers `deliveries` may read ahead for
    /// each, with the resource that refuses the next stream.
    pub fn limit_for(&self, cost: Cost, senders: &[u32], deliveries: &[u32]) -> (u32, Resource) {
        let cores = [senders, deliveries].map(|servers| {
            let mut cores: Vec<_> = servers.iter().map(|&server| self.core_of(server)).collect();
            cores.sort_unstable();
            cores.dedup();
            cores
        });
        let check = |count: u32| self.check_spread(cost, &cores, count);
        let (mut low, mut high) = (0, self.limits.streams + 1);
        while low + 1 < high {
            let middle = low.midpoint(high);
            *(if check(middle).is_ok() { &mut low } else { &mut high }) = middle;
        }
        // If no other resource refuses, the stream table is full.
        (low, check(high).err().unwrap_or(Resource::Streams))
    }

    /// Whether `count` streams of this cost would be admitted, each sent by one of the first cores
    /// and read ahead for by one of the others.
    fn check_spread(
        &self,
        cost: Cost,
        [senders, deliveries]: &[Vec<u32>; 2],
        count: u32,
    ) -> Result<(), Resource> {
        let (sending, delivering) = (cost.output.cpu, cost.source.delivering);
        let source = SourceCost { delivering: Nanos(0), ..cost.source };
        let output = OutputCost { cpu: Nanos(0), ..cost.output };
        let reading = Cost { source, output, ..cost };
        self.check(reading.times(count)).map_err(|short| short.resource)?;
        let left = |&core: &u32| {
            let reads = core == self.core_of(cost.source.server);
            let reading = if reads { cost.source.cpu.times(count.into()) } else { Nanos(0) };
            self.free_time(core).saturating_sub(reading).0
        };
        // What takes no time, as nothing is sent of a recording, needs no core.
        let fit = |cores: &[u32], each: Nanos| {
            let room = |core| left(core).checked_div(each.0).unwrap_or(u64::MAX);
            let all = cores.iter().map(room).fold(0, u64::saturating_add);
            each == Nanos(0) || all >= count.into()
        };
        // The rest is that of cores which do both.
        let others = deliveries.iter().filter(|core| !senders.contains(core));
        let all: u64 = senders.iter().chain(others).map(left).sum();
        let both = (sending + delivering).times(count.into()).0;
        let fits = fit(senders, sending) && fit(deliveries, delivering) && both <= all;
        if fits { Ok(()) } else { Err(Resource::Cpu) }
    }

    /// The promises of a disk in `slots`; `None`: the highest sums of all slots.
    fn disk_use(&self, disk: usize, slots: Option<&Range<u64>>) -> DiskUse {
        let mut promised = self.disks[disk];
        promised.visits.0 += most(&self.planned.visits[disk], slots);
        promised.per_cycle.read += Bytes(most(&self.planned.read[disk], slots));
        promised
    }

    /// The use of every resource. Of promises that change with time the highest sum counts.
    pub fn levels(&self) -> impl Iterator<Item = Level> {
        let disks = self.limits.disks.iter().zip(0u32..);
        let of_disks = disks.flat_map(|(limits, index)| {
            let disk = self.disk_use(index as usize, None);
            let time = limits.model.moving(disk.visits, disk.per_cycle);
            let level = |resource, used, limit| Level { resource, number: index, used, limit };
            let windows = (limits.windows != WindowLimits::NONE).then(|| {
                level(Resource::ReadAhead, u64::from(disk.windows), u64::from(limits.windows.all))
            });
            let write_share = (places_limit(limits) > 0)
                .then(|| level(Resource::WriteShare, u64::from(disk.places), places_limit(limits)));
            let always = [
                level(Resource::Disk, time.0, disk_limit(limits).0),
                level(Resource::Arena, u64::from(disk.blocks), u64::from(limits.blocks)),
            ];
            always.into_iter().chain(windows).chain(write_share)
        });
        let level = |resource, used, limit| Level { resource, number: 0, used, limit };
        let cores = self.of_cores().zip(0u32..).filter(|&(_, number)| self.is_open(number));
        let of_cores = cores.map(|((used, limit), number)| Level {
            resource: Resource::Cpu,
            number,
            used: used.0,
            limit: limit.0,
        });
        let datagrams = self.datagrams + self.classes.taken();
        let slower = self.limits.datagrams;
        let planned = BitRate(self.planned.connections.max_of_all());
        let link = self.connections + planned + datagrams;
        of_disks
            .chain([level(Resource::Link, link.0, self.limits.link.0)])
            .chain(slower.map(|limit| level(Resource::Datagrams, datagrams.0, limit.0)))
            .chain(of_cores)
            .chain([level(
                Resource::Streams,
                u64::from(self.streams),
                u64::from(self.limits.streams),
            )])
    }
}

impl PlannedSums {
    /// Adds a step of a stream to its slots, or removes it.
    fn change(
        &mut self,
        servers: &mut [ServerUse],
        slots: &Range<u64>,
        step: Cost,
        by: fn(&mut Timeline, Range<u64>, u64),
    ) {
        let disk = step.source.disk as usize;
        by(&mut self.visits[disk], slots.clone(), step.source.visits.0);
        by(&mut self.read[disk], slots.clone(), step.source.per_cycle.read.0);
        by(&mut self.connections, slots.clone(), step.output.connections().0);
        for (server, time) in step.cpu() {
            let server = &mut servers[server as usize];
            by(&mut server.planned, slots.clone(), time.0);
            by(&mut self.cores[server.place.core as usize], slots.clone(), time.0);
        }
    }
}

/// The highest sum in `slots`, or in any slot.
fn most(timeline: &Timeline, slots: Option<&Range<u64>>) -> u64 {
    slots.map_or_else(|| timeline.max_of_all(), |slots| timeline.max(slots.clone()))
}

/// Time of a cycle available to streams and recordings.
fn disk_limit(limits: &DiskLimits) -> Nanos {
    let part = |thousandths: u32| {
        Nanos((limits.cycle.0 as u128 * u128::from(thousandths)).div_ceil(1000) as u64)
    };
    // Rounds down, because the part outside of the share rounds up.
    let shared =
        limits.cycle.saturating_sub(part(1000u32.saturating_sub(limits.share_thousandths)));
    let kept = limits.write_path.map_or(Nanos(0), |write_path| {
        limits.model.planned_flush(limits.cycle) + part(write_path.floor_thousandths)
    });
    shared.saturating_sub(kept)
}

/// Places of the write share available to recordings.
fn places_limit(limits: &DiskLimits) -> u64 {
    limits
        .write_path
        .map_or(0, |write_path| u64::from(write_path.places.saturating_sub(UPLOAD_PLACES)))
}

#[cfg(test)]
mod tests;
