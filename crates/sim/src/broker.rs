//! The broker of a simulated world: the engine's own ledger, and sums kept beside it.
//!
//! Promise: the ledger's state is compared with the live reservations, by arithmetic that shares no
//! line with the ledger, at every admission, refusal and return.

use std::collections::BTreeMap;
use std::ops::Range;

use tactus_core::cost::{
    Cost, Disk, DiskLimits, Order, OutputCost, PacedRead, PlannedCost, RESIDENT_WINDOW, SendCost,
    Source, TitlePart,
};
use tactus_core::disk_model::DiskModel;
use tactus_core::envelope::{Envelope, Step};
use tactus_core::estimator::Estimate;
use tactus_core::ledger::{Ledger, Level, Limits, Resource};
use tactus_core::overload::{Measures, Overload, Promise};
use tactus_core::stagger::Tick;
use tactus_core::timed::{TimedReads, TimedReserve};
use tactus_core::units::{BitRate, Bytes, MIB, MonoTime, Nanos, SECOND};
use tactus_engine::message::{DeliveryServerId, StreamId};

use crate::verdict::{Invariant, require};

/// The ledger, the slots of the stream table, and the sums.
pub(crate) struct Broker {
    ledger: Ledger,
    free: Vec<u32>,
    generations: Vec<u32>,
    /// Delivery servers, between which all streams are divided.
    delivery_servers: usize,
    /// The promises over time, by slot.
    planned: Vec<Option<PlannedGrant>>,
    sums: Sums,
    /// Disks are learned: what was promised may exceed a model that has become worse.
    learns: bool,
}

/// What is promised over time.
struct PlannedGrant {
    cost: PlannedCost,
    /// The rates, by seconds of the clock.
    seconds: Vec<(Range<u64>, [u64; 2])>,
}

/// The request of a simulated client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// At an exact rate, to a connection.
    Paced { rate: BitRate, tick: Tick, burst: Bytes, is_pinned: bool },
    /// At an exact rate, as datagrams; repeating after `turn` bytes, if it is set.
    Datagrams { rate: BitRate, wire: BitRate, is_pinned: bool, turn: Option<Bytes> },
    /// In best-effort time.
    BestEffort,
    /// A whole title kept in memory.
    Pin,
    /// A recording.
    Record { rate: BitRate },
    /// Reads at moments, of a local program.
    Timed { reads: TimedReads },
}

impl Request {
    fn cost(self, disk: Disk<'_>, part: TitlePart) -> (Cost, u32) {
        let read = |rate, tick, burst, order, is_pinned| {
            disk.paced(&PacedRead { rate, tick, burst, order, is_pinned }, part)
        };
        let (source, output) = match self {
            Self::Record { rate } => {
                let Source { cost, window } = disk.recorded(rate);
                return (Cost::recording(cost), window);
            }
            Self::Timed { reads } => {
                // A turn takes no time of its own in a world.
                let Source { cost, window } = disk.timed(&reads, part.title_len, Nanos(0));
                return (Cost::timed(cost, OutputCost::timed(SEND, &reads)), window);
            }
            Self::Pin => (disk.pinned(part.title_len), OutputCost::NONE),
            Self::BestEffort => (disk.best_effort(part), OutputCost::NONE),
            Self::Paced { rate, tick, burst, is_pinned } => (
                read(rate, tick, burst, Order::Once, is_pinned),
                OutputCost::connection(SEND, rate, tick),
            ),
            Self::Datagrams { rate, wire, is_pinned, turn } => (
                read(
                    rate,
                    Tick::Ms10,
                    Bytes(0),
                    turn.map_or(Order::Once, Order::Repeating),
                    is_pinned,
                ),
                OutputCost::datagrams(wire, Nanos(1), None),
            ),
        };
        (Cost::stream(source.cost, output), source.window)
    }
}

/// The processor is large enough.
const SEND: SendCost = SendCost { per_send: Nanos(1), per_packet: Nanos(0), per_mib: Nanos(1) };

/// A reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) slot: u32,
    pub(crate) volume: usize,
    pub(crate) request: Request,
    part: TitlePart,
    cost: Cost,
    window: u32,
}

/// The sums of all live reservations.
#[derive(Clone, Debug)]
struct Sums {
    /// Visits per cycle, in billionths: whole numbers, so that additions and subtractions cancel
    /// exactly.
    visits: Vec<u128>,
    /// Bytes per cycle, in the 8,000,000,000th parts that rate and cycle give.
    bytes: Vec<u128>,
    blocks: Vec<u64>,
    /// Bytes written per cycle, in the same unit; and places of the write share.
    written: Vec<u128>,
    places: Vec<u64>,
    link: u64,
    streams: u64,
    recordings: u64,
    /// What changes with time, by volume and second of the clock: visits and bytes per cycle, in
    /// the units above.
    disks: BTreeMap<(usize, u64), (u128, u128)>,
    /// The rates of the link, by second.
    links: BTreeMap<u64, u64>,
}

impl Grant {
    /// Blocks that the stream may hold or wait for.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Whether it uses the blocks of a pinned title.
    pub(crate) fn is_resident(&self) -> bool {
        let is_pinned = matches!(
            self.request,
            Request::Paced { is_pinned: true, .. } | Request::Datagrams { is_pinned: true, .. }
        );
        is_pinned && self.window() <= RESIDENT_WINDOW
    }
}

impl Broker {
    pub(crate) fn new(
        disks: Vec<DiskLimits>,
        (streams, delivery_servers): (u32, usize),
        learns: bool,
    ) -> Self {
        let count = disks.len();
        // Link and processor have ample room: here the disks and the memory are the limits.
        let link = BitRate(1 << 50);
        Self {
            ledger: Ledger::new(Limits {
                disks,
                link,
                datagrams: None,
                classes: vec![],
                cores: vec![SECOND.times(1000)],
                streams,
            }),
            free: (0..streams).rev().collect(),
            generations: vec![0; streams as usize],
            delivery_servers,
            planned: (0..streams).map(|_| None).collect(),
            learns,
            sums: Sums {
                visits: vec![0; count],
                bytes: vec![0; count],
                blocks: vec![0; count],
                written: vec![0; count],
                places: vec![0; count],
                link: 0,
                streams: 0,
                recordings: 0,
                disks: BTreeMap::new(),
                links: BTreeMap::new(),
            },
        }
    }

    /// Reserves the resources of a stream, or refuses and changes nothing.
    pub(crate) fn admit(
        &mut self,
        volume: usize,
        request: Request,
        part: TitlePart,
    ) -> Option<Grant> {
        // The slot of a pin that was given up is free only when the engine has retired it.
        if self.free.is_empty() {
            return None;
        }
        let (cost, window) = request.cost(self.ledger.disk(volume as u32), part);
        let before: Vec<Level> = self.ledger.levels().collect();
        if self.ledger.admit(cost).is_err() {
            require(self.ledger.levels().eq(before), Invariant::RefusalChangesNothing, || {
                format!("{request:?} of {part:?} on volume {volume} was refused")
            });
            return None;
        }
        let slot = self.free.pop();
        require(slot.is_some(), Invariant::LedgerIsTheSum, || {
            "the ledger admits more streams than there are places".to_owned()
        });
        let grant = Grant { slot: slot.unwrap_or(0), volume, request, part, cost, window };
        self.add(grant, true);
        self.check(true);
        Some(grant)
    }

    /// Reserves the resources of a stream by `envelope`, which begins in the second `begin` of the
    /// clock, or refuses and changes nothing. The request has the peak rate.
    pub(crate) fn admit_planned(
        &mut self,
        volume: usize,
        request: Request,
        part: TitlePart,
        envelope: &Envelope,
        begin: u64,
    ) -> Option<Grant> {
        let Request::Paced { tick, burst, is_pinned, .. } = request else { return None };
        if self.free.is_empty() {
            return None;
        }
        let disk = self.ledger.disk(volume as u32);
        let (peak, window) = request.cost(disk, part);
        let at = |rate| {
            let request = Request::Paced { rate, tick, burst, is_pinned };
            request.cost(disk, part).0
        };
        let cost = PlannedCost::following(envelope, begin, peak, at);
        let before: Vec<Level> = self.ledger.levels().collect();
        if self.ledger.admit_planned(&cost).is_err() {
            require(self.ledger.levels().eq(before), Invariant::RefusalChangesNothing, || {
                format!("{request:?} of {part:?} by {envelope:?} on volume {volume} was refused")
            });
            return None;
        }
        let slot = self.free.pop();
        require(slot.is_some(), Invariant::LedgerIsTheSum, || {
            "the ledger admits more streams than there are places".to_owned()
        });
        let seconds = envelope.steps().iter().map(|Step { seconds, read, sent }| {
            (begin + seconds.start..begin + seconds.end, [read.0, sent.0])
        });
        let grant = Grant { slot: slot.unwrap_or(0), volume, request, part, cost: peak, window };
        self.planned[grant.slot as usize] = Some(PlannedGrant { cost, seconds: seconds.collect() });
        self.add(grant, true);
        self.check(true);
        Some(grant)
    }

    /// Whether the window of `request` holds its burst as a whole: that of a pinned title is small.
    pub(crate) fn holds_burst(&self, volume: usize, request: Request, part: TitlePart) -> bool {
        let Request::Paced { rate, tick, burst, .. } = request else { return false };
        let disk = self.ledger.disk(volume as u32);
        let without_pin = Request::Paced { rate, tick, burst, is_pinned: false };
        without_pin.cost(disk, part).1 <= request.cost(disk, part).1
    }

    /// The rates of reading and sending that are promised to a grant by seconds of the clock; none
    /// at one rate.
    pub(crate) fn seconds(&self, grant: &Grant) -> &[(Range<u64>, [u64; 2])] {
        let planned = self.planned.get(grant.slot as usize).and_then(Option::as_ref);
        planned.map_or(&[], |planned| &planned.seconds)
    }

    /// Reserves the resources of a recording, which has no slot in the stream table.
    pub(crate) fn admit_recording(&mut self, volume: usize, request: Request) -> Option<Grant> {
        self.admit_without_slot(volume, request, TitlePart::whole(Bytes(0)))
    }

    /// Reserves the resources of reads at moments of a title of `len` bytes, which have no slot
    /// either. With the grant comes what the engine keeps the moments by.
    pub(crate) fn admit_timed(
        &mut self,
        volume: usize,
        reads: TimedReads,
        len: Bytes,
    ) -> Option<(Grant, TimedReserve)> {
        let reserve = self.ledger.disk(volume as u32).reserve(&reads);
        let request = Request::Timed { reads };
        Some((self.admit_without_slot(volume, request, TitlePart::whole(len))?, reserve))
    }

    fn admit_without_slot(
        &mut self,
        volume: usize,
        request: Request,
        part: TitlePart,
    ) -> Option<Grant> {
        let (cost, window) = request.cost(self.ledger.disk(volume as u32), part);
        let before: Vec<Level> = self.ledger.levels().collect();
        if self.ledger.admit(cost).is_err() {
            require(self.ledger.levels().eq(before), Invariant::RefusalChangesNothing, || {
                format!("{request:?} of {part:?} on volume {volume} was refused")
            });
            return None;
        }
        let grant = Grant { slot: u32::MAX, volume, request, part, cost, window };
        self.add(grant, true);
        self.check(true);
        Some(grant)
    }

    /// Changes the model of a disk to what was learned.
    pub(crate) fn set_model(&mut self, volume: usize, model: DiskModel) {
        self.ledger.set_model(volume as u32, model);
    }

    /// Which of `grants`, newest first, must be deferred.
    pub(crate) fn look(
        &self,
        (now, volume): (MonoTime, usize),
        (start, estimate): (&DiskModel, &Estimate),
        grants: &[Grant],
        overload: &mut Overload,
    ) -> Measures {
        let need = |grant: &Grant| PlannedCost::from(grant.cost).disk_need();
        let newest: Vec<_> = grants.iter().map(need).collect();
        let disk = volume as u32;
        let time = |without| self.ledger.disk_time(disk, start, without);
        let cycle = self.ledger.limits().disks[volume].cycle;
        let limit = self.ledger.disk_limit(disk);
        overload.look(now, estimate, &Promise { cycle, limit, newest: &newest, time: &time })
    }

    /// How many streams like this are admitted in all, by the disk.
    pub(crate) fn capacity(&self, volume: usize, request: Request) -> u32 {
        let part = TitlePart::whole(Bytes(u64::MAX / 2));
        let (cost, _) = request.cost(self.ledger.disk(volume as u32), part);
        self.ledger.room_for(cost, &[0]) + self.ledger.streams()
    }

    /// A new generation of the grant's slot.
    pub(crate) fn begin(&mut self, grant: &Grant) -> StreamId {
        let generation = &mut self.generations[grant.slot as usize];
        *generation += 1;
        // Beside each link and packet server, which follow another rule, and another one than that
        // of the slot's stream before.
        let number = (grant.slot / 2).wrapping_add(*generation) as usize;
        let server = DeliveryServerId((number % self.delivery_servers) as u16);
        StreamId { server, index: grant.slot, generation: *generation }
    }

    /// Returns the resources of a grant; its slot may still be in use.
    pub(crate) fn release(&mut self, grant: Grant) {
        self.add(grant, false);
        match self.planned.get_mut(grant.slot as usize).and_then(Option::take) {
            Some(planned) => self.ledger.release_planned(&planned.cost),
            None => self.ledger.release(grant.cost),
        }
        self.check(!self.learns);
    }

    /// Returns a grant's slot.
    pub(crate) fn vacate(&mut self, grant: Grant) {
        self.free.push(grant.slot);
    }

    /// Checks that without live reservations nothing is promised.
    pub(crate) fn check_empty(&self) {
        let used: Vec<Level> = self.ledger.levels().filter(|level| level.used > 0).collect();
        let is_empty = self.sums.streams == 0 && self.sums.disks.is_empty();
        require(used.is_empty() && is_empty, Invariant::LedgerIsTheSum, || {
            format!("all have ended, and still promised: {used:?}")
        });
    }

    fn add(&mut self, grant: Grant, enters: bool) {
        fn change<T: std::ops::AddAssign + std::ops::SubAssign>(enters: bool, sum: &mut T, by: T) {
            if enters { *sum += by } else { *sum -= by }
        }
        let Grant { volume, request, part, window, .. } = grant;
        let sums = &mut self.sums;
        if let Request::Record { rate } = request {
            let limits = &self.ledger.limits().disks[volume];
            let place = limits.write_path.map_or(limits.block, |write_path| write_path.place);
            let bytes = u128::from(rate.0) * u128::from(limits.cycle.0);
            let visits = bytes * 1_000_000_000 / (u128::from(place.0) * BYTE);
            let most = if limits.model.has_arm() { 1_000_000_000 } else { u128::MAX };
            change(enters, &mut sums.visits[volume], visits.min(most));
            change(enters, &mut sums.written[volume], bytes);
            change(enters, &mut sums.places[volume], u64::from(window));
            change(enters, &mut sums.recordings, 1);
            return;
        }
        let DiskLimits { ahead, block, .. } = self.ledger.limits().disks[volume];
        let own = u64::from(window) + u64::from(ahead);
        let title = part.title_len.0.div_ceil(block.0);
        if let Request::Timed { reads } = request {
            // The most that can lie in a cycle, each block of them by itself.
            let cycle = self.ledger.limits().disks[volume].cycle;
            let each = (reads.len.0.div_ceil(block.0) + 1).min(title);
            let most = 1 + (cycle.0 + reads.tolerance.0) / reads.interval.0;
            let visits = u128::from(most * each);
            change(enters, &mut sums.visits[volume], visits * 1_000_000_000);
            change(enters, &mut sums.bytes[volume], visits * u128::from(block.0) * BYTE);
            change(enters, &mut sums.blocks[volume], own.min(title));
            return;
        }
        let blocks = if grant.is_resident() { 0 } else { own.min(title) };
        change(enters, &mut sums.blocks[volume], blocks);
        change(enters, &mut sums.streams, 1);
        if let Some(planned) = &self.planned[grant.slot as usize] {
            let limits = &self.ledger.limits().disks[volume];
            let most = if limits.model.has_arm() { 1_000_000_000 } else { u128::MAX };
            for (second, [read, sent]) in planned
                .seconds
                .iter()
                .flat_map(|(seconds, rates)| seconds.clone().map(move |second| (second, *rates)))
                .filter(|&(_, [read, _])| read > 0)
            {
                let bytes = u128::from(read) * u128::from(limits.cycle.0);
                let visits = bytes * 1_000_000_000 / (u128::from(limits.block.0) * BYTE);
                if !grant.is_resident() {
                    let disk = sums.disks.entry((volume, second)).or_default();
                    change(enters, &mut disk.0, visits.min(most));
                    change(enters, &mut disk.1, bytes);
                }
                let link = sums.links.entry(second).or_default();
                change(enters, link, sent);
            }
            sums.disks.retain(|_, sum| *sum != (0, 0));
            sums.links.retain(|_, sum| *sum != 0);
            return;
        }
        let link = match request {
            Request::Paced { rate, .. } => rate,
            Request::Datagrams { wire, .. } => wire,
            Request::BestEffort | Request::Pin | Request::Record { .. } | Request::Timed { .. } => {
                BitRate(0)
            }
        };
        change(enters, &mut sums.link, link.0);
        if let Request::Paced { rate, .. } | Request::Datagrams { rate, .. } = request
            && !grant.is_resident()
        {
            let limits = &self.ledger.limits().disks[volume];
            let bytes = u128::from(rate.0) * u128::from(limits.cycle.0);
            // A turn is read in whole blocks and a rest.
            let of_turn = match request {
                Request::Datagrams { turn: Some(turn), .. } => {
                    turn.0 / turn.0.div_ceil(limits.block.0)
                }
                _ => limits.block.0,
            };
            let visits = bytes * 1_000_000_000 / (u128::from(of_turn) * BYTE);
            let most = if limits.model.has_arm() { 1_000_000_000 } else { u128::MAX };
            change(enters, &mut sums.visits[volume], visits.min(most));
            change(enters, &mut sums.bytes[volume], bytes);
        }
    }

    /// Compares every level with the sums, and the disks' time with their cycles if all must fit.
    fn check(&self, fits: bool) {
        for level in self.ledger.levels() {
            let disk = level.number as usize;
            let highest = match level.resource {
                Resource::Disk => self.highest(disk),
                _ => (0, 0),
            };
            let sum = match level.resource {
                Resource::Disk => self.disk_time(highest, disk, 0.0),
                Resource::Arena => self.sums.blocks[disk] as f64,
                Resource::WriteShare => self.sums.places[disk] as f64,
                Resource::Link => {
                    let planned = self.sums.links.values().max();
                    (self.sums.link + planned.copied().unwrap_or(0)) as f64
                }
                Resource::Streams => self.sums.streams as f64,
                Resource::Cpu | Resource::Class | Resource::Datagrams | Resource::ReadAhead => {
                    continue;
                }
            };
            // The ledger rounds up: a thousandth of a visit and a few bytes for each stream.
            let most = match level.resource {
                Resource::Disk => {
                    let sums = (2 + self.sums.streams + self.sums.recordings) as f64;
                    // Its root is a whole number of thousandths, and one more.
                    let root = self.ledger.limits().disks[disk].model.sweep.0 as f64 / 1000.0;
                    self.disk_time(highest, disk, sums) + root
                }
                _ => sum,
            };
            let used = level.used as f64;
            let between = sum - 1.0 <= used && used <= most + 1.0;
            require(between, Invariant::LedgerIsTheSum, || {
                format!("{level:?}, but what lives sums up to {sum} to {most}: {:?}", self.sums)
            });
            if !fits && level.resource == Resource::Disk {
                continue;
            }
            // The highest visits and bytes may be those of two seconds. If they do not fit
            // together, each second must.
            let limit = level.limit as f64 + 1.0;
            let is_exact = level.resource == Resource::Disk
                && (sum > limit || self.cycle_left(disk, sum) < 0.0);
            let sum = if is_exact { self.busiest_second(disk) } else { sum };
            let fits = sum <= limit;
            let invariant = match level.resource {
                Resource::Disk => Invariant::AdmittedFitsCycle,
                _ => Invariant::LedgerIsTheSum,
            };
            require(fits, invariant, || format!("{level:?}, but {sum} is needed"));
            if level.resource == Resource::Disk {
                self.check_cycle(disk, sum);
            }
        }
    }

    /// Checks that the admitted work fits the cycle with one flush and the floor of uploads.
    fn check_cycle(&self, disk: usize, sum: f64) {
        let left = self.cycle_left(disk, sum);
        require(sum == 0.0 || left >= 0.0, Invariant::AdmittedFitsCycle, || {
            format!("{sum} ns for streams, {} ns too many for the cycle with uploads", -left)
        });
    }

    /// Nanoseconds of a cycle that are left beside this time of streams, one flush and the floor of
    /// uploads; one more for rounding.
    fn cycle_left(&self, disk: usize, sum: f64) -> f64 {
        let limits = &self.ledger.limits().disks[disk];
        let cycle = limits.cycle.0 as f64;
        let kept = limits.write_path.map_or(0.0, |write_path| {
            let floor = cycle * f64::from(write_path.floor_thousandths) / 1000.0;
            (limits.model.flush.0 as f64).min(cycle / 2.0) + floor
        });
        cycle * f64::from(limits.share_thousandths) / 1000.0 + 1.0 - (sum + kept)
    }

    /// What changes with time on a disk, second by second.
    fn seconds_of(&self, disk: usize) -> impl Iterator<Item = (u128, u128)> {
        self.sums.disks.range((disk, 0)..=(disk, u64::MAX)).map(|(_, sum)| *sum)
    }

    /// The highest visits and the highest bytes of any second.
    fn highest(&self, disk: usize) -> (u128, u128) {
        self.seconds_of(disk).fold((0, 0), |most, sum| (most.0.max(sum.0), most.1.max(sum.1)))
    }

    /// The time of a cycle in the second that needs most.
    fn busiest_second(&self, disk: usize) -> f64 {
        let always = self.disk_time((0, 0), disk, 0.0);
        self.seconds_of(disk).fold(always, |most, sum| most.max(self.disk_time(sum, disk, 0.0)))
    }

    /// Nanoseconds of the disk's cycle for all live reservations at one rate and these visits and
    /// bytes, with this number of rounded sums.
    fn disk_time(&self, planned: (u128, u128), disk: usize, roundings: f64) -> f64 {
        let model = &self.ledger.limits().disks[disk].model;
        let visits = (self.sums.visits[disk] + planned.0) as f64 / 1e9 + roundings / 1000.0;
        let arm = visits * model.visit.0 as f64 + visits.sqrt() * model.sweep.0 as f64;
        let bytes = (self.sums.bytes[disk] + planned.1) as f64 / BYTE as f64 + 2.0 * roundings;
        let written = self.sums.written[disk] as f64 / BYTE as f64;
        let writing = written / MIB as f64 * model.write_mib.0 as f64;
        arm + bytes / MIB as f64 * model.read_mib.0 as f64 + writing
    }
}

/// Bits per second times nanoseconds in a byte.
const BYTE: u128 = 8_000_000_000;
