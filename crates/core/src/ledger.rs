//! The ledger: what has been promised, and whether one more promise can be kept.
//!
//! Promise: the sum of all admitted streams fits each disk's cycle, each arena, the link and the
//! real-time cores; a refused request changes nothing; a returned grant leaves no trace. It is the
//! only place that refuses. It knows average needs; that averages are enough follows from the
//! delivery table, which reads every block at least one block's duration ahead
//! (`docs/design/admission.md`).

use alloc::vec::Vec;
use core::fmt;

use crate::classes::{ClassNumber, ClassTerms, Classes, Full, Unkept};
use crate::disk_model::{DiskModel, MilliVisits, Moved};
use crate::mutant;
use crate::stagger::Tick;
use crate::units::{BitRate, Bytes, Nanos, SECOND};

/// One disk as the ledger sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskTerms {
    /// What the disk can do.
    pub model: DiskModel,
    /// Its cycle.
    pub cycle: Nanos,
    /// Part of the cycle that streams may fill, in thousandths, before what is kept for uploads; the rest
    /// is for best-effort work and the margin for what the model does not know.
    pub share_thousandths: u32,
    /// Size of a block.
    pub block: Bytes,
    /// Places for blocks.
    pub blocks: u32,
    /// Blocks that the kernel reads ahead of each stream, beside those that the stream asks for.
    pub ahead: u32,
    /// What sending from it costs.
    pub cost: SendCost,
    /// What is kept for uploads; none on a volume that takes none.
    pub intake: Option<IntakeTerms>,
}

/// The uploads of one disk as the ledger sees them. One flush of the model is kept for them in each
/// cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntakeTerms {
    /// Places of the write share.
    pub places: u32,
    /// Size of one.
    pub place: Bytes,
    /// Part of each cycle that uploads get even when streams fill the rest, in thousandths.
    pub floor_thousandths: u32,
}

/// What a stream costs the real-time core that sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendCost {
    /// Each send, whatever its size.
    pub per_send: Nanos,
    /// Each MiB read and sent.
    pub per_mib: Nanos,
    /// Each MiB read, where sending counts otherwise.
    pub read_per_mib: Nanos,
}

/// All limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Each volume's disk and arena.
    pub disks: Vec<DiskTerms>,
    /// Payload rate of the link that streams may fill.
    pub link: BitRate,
    /// Of it, what datagrams and classes may fill, where they leave by something slower.
    pub datagrams: Option<BitRate>,
    /// Classes of the link, parents first.
    pub classes: Vec<ClassTerms>,
    /// Real-time cores' time in each second that streams may fill.
    pub cpu: Nanos,
    /// Places of the delivery table.
    pub streams: u32,
}

/// How a stream wants to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// At an exact rate.
    Paced {
        /// Payload rate.
        rate: BitRate,
        /// How often it sends.
        tick: Tick,
        /// Bytes that are sent at once at the start, beside those of the first tick.
        burst: Bytes,
    },
    /// At an exact rate, of a title that is held in memory: needs no disk and shares its blocks.
    Resident {
        /// Payload rate.
        rate: BitRate,
        /// How often it sends.
        tick: Tick,
        /// As above, as far as its leases go.
        burst: Bytes,
    },
    /// At an exact rate, out as datagrams.
    Datagrams {
        /// Payload rate.
        rate: BitRate,
        /// Rate of what is on the wire.
        wire: BitRate,
        /// Time of the cores that sending them takes in each second, besides what reading costs.
        sending: Nanos,
        /// No datagram waits longer for those that leave with it.
        tick: Tick,
        /// Of a title that is held in memory.
        is_held: bool,
        /// After how many bytes it begins again, where it does.
        turn: Option<Bytes>,
        /// The class of the link that it belongs to.
        class: Option<ClassNumber>,
    },
    /// At an exact rate, to a reader of our own: by no link.
    Reader {
        /// Payload rate.
        rate: BitRate,
        /// How often it sends.
        tick: Tick,
        /// Bytes that are sent at once at the start.
        burst: Bytes,
        /// Of a title that is held in memory.
        is_held: bool,
        /// By an itinerary: each of its blocks is a way of its own for an arm.
        is_scattered: bool,
    },
    /// Datagrams that we make ourselves: by no disk.
    Made {
        /// Rate of what is on the wire.
        wire: BitRate,
        /// Time of the cores that sending them takes in each second.
        sending: Nanos,
        /// The class of the link that they belong to.
        class: Option<ClassNumber>,
    },
    /// In the time left over: needs memory and a place, no rate.
    BestEffort,
    /// A whole title kept in memory.
    Hold,
    /// A recording: real-time writes at a rate, from places of the write share.
    Record {
        /// Payload rate.
        rate: BitRate,
    },
}

/// How much of a title a stream delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Bytes that it delivers in all.
    pub len: Bytes,
    /// Bytes of the title; none is read beyond them.
    pub title_len: Bytes,
}

impl Share {
    /// All of a title.
    pub const fn whole(title_len: Bytes) -> Self {
        Self { len: title_len, title_len }
    }
}

/// What one stream has been promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    disk: u32,
    visits: MilliVisits,
    per_cycle: Moved,
    blocks: u32,
    /// Places of the write share.
    places: u32,
    link: BitRate,
    /// It leaves as datagrams.
    is_datagrams: bool,
    /// Of the link's classes.
    class: Option<ClassNumber>,
    cpu: Nanos,
    window: u32,
    /// Places in the delivery table.
    streams: u32,
}

impl Demand {
    /// Blocks that the stream may hold or wait for at once; of a recording, places of the write share.
    pub const fn window(&self) -> u32 {
        self.window
    }
}

/// What a machine can run out of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Resource {
    /// Time in a disk's cycle.
    Disk,
    /// Blocks of memory.
    Arena,
    /// Places for what is to be written.
    WriteShare,
    /// Rate of the link.
    Link,
    /// Rate of what datagrams leave by, where that is less than the link's.
    Datagrams,
    /// The ceiling of a class of the link.
    Class,
    /// Time of the real-time cores.
    Cpu,
    /// Places in the delivery table.
    Streams,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Arena => "memory",
            Self::WriteShare => "write share",
            Self::Link => "link",
            Self::Datagrams => "datagrams",
            Self::Class => "class",
            Self::Cpu => "cpu",
            Self::Streams => "streams",
        })
    }
}

/// How full one resource is: nanoseconds per cycle or second, blocks, bits per second, or places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// Which resource.
    pub resource: Resource,
    /// Which disk, for the resources that each disk has.
    pub disk: u32,
    /// Promised.
    pub used: u64,
    /// There is.
    pub limit: u64,
}

/// {resource} has no room: {needed} of {limit} would be promised
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// What is short.
    pub resource: Resource,
    /// What would be used.
    pub needed: u64,
    /// What there is.
    pub limit: u64,
    /// Which class, when it is one.
    pub class: Option<ClassNumber>,
}

impl From<Full> for Short {
    fn from(full: Full) -> Self {
        let Full { class, needed, ceiling } = full;
        let class = Some(class);
        Self { resource: Resource::Class, needed: needed.0, limit: ceiling.0, class }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct DiskUse {
    visits: MilliVisits,
    per_cycle: Moved,
    blocks: u32,
    places: u32,
}

/// The promises.
pub struct Ledger {
    terms: Terms,
    disks: Vec<DiskUse>,
    /// Of the link, by connections.
    connections: BitRate,
    /// And as datagrams, without what classes take.
    datagrams: BitRate,
    classes: Classes,
    cpu: Nanos,
    streams: u32,
}

/// Most blocks that a stream of a held title has leased at once. Faster streams, over 25 Mbit/s with
/// blocks of 256 KiB, are admitted as if their title were not held.
pub const RESIDENT_WINDOW: u32 = 8;

/// Best-effort streams hold this many blocks: one being sent, one being read, one in reserve.
const BEST_EFFORT_BLOCKS: u32 = 3;

/// Places of the write share that recordings leave to uploads: one being filled, one being written.
const UPLOAD_PLACES: u32 = 2;

impl Ledger {
    /// Nothing promised yet.
    pub fn new(terms: Terms) -> Self {
        let disks = alloc::vec![DiskUse::default(); terms.disks.len()];
        let classes = Classes::new(terms.classes.clone());
        let (connections, datagrams) = (BitRate(0), BitRate(0));
        Self { terms, disks, connections, datagrams, classes, cpu: Nanos(0), streams: 0 }
    }

    /// The limits.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The classes of the link, and what they are asked for.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// What a stream from `disk` needs, whether or not there is room for it.
    pub fn demand(&self, disk: u32, wish: Wish, share: Share) -> Demand {
        let terms = &self.terms.disks[disk as usize];
        let title = blocks_of(share.title_len, terms.block);
        // What is delivered may begin and end within a block.
        let whole = (blocks_of(share.len, terms.block) + 1).min(title);
        // Nor does the kernel read beyond the end of the title.
        let with_ahead = |window: u32| window.saturating_add(terms.ahead).min(title);
        let stream = Demand { disk, streams: 1, ..Demand::default() };
        let of_memory = |window| Demand { blocks: with_ahead(window), window, ..stream };
        match wish {
            Wish::BestEffort => of_memory(BEST_EFFORT_BLOCKS.min(whole)),
            Wish::Hold => of_memory(title),
            Wish::Resident { rate, tick, burst } => {
                let paced = self.demand(disk, Wish::Paced { rate, tick, burst }, share);
                if window(rate, tick, Bytes(0), terms).min(whole) > RESIDENT_WINDOW {
                    return paced;
                }
                let window = paced.window.min(RESIDENT_WINDOW);
                let per_cycle = Moved::NOTHING;
                Demand { visits: MilliVisits(0), per_cycle, blocks: 0, window, ..paced }
            }
            Wish::Paced { rate, tick, burst } => {
                let read = rate.bytes_in(terms.cycle) + Bytes(1);
                let sends = SECOND.0.div_ceil(tick.span().0);
                let moving = per_mib(terms.cost.per_mib, rate);
                let window = window(rate, tick, burst, terms).min(whole);
                Demand {
                    visits: visits(read, terms.block, &terms.model),
                    per_cycle: Moved { read, ..Moved::NOTHING },
                    blocks: with_ahead(window),
                    window,
                    link: rate,
                    cpu: moving + terms.cost.per_send.times(sends),
                    ..stream
                }
            }
            Wish::Datagrams { rate, wire, sending, tick, is_held, turn, class } => {
                let burst = Bytes(0);
                let pieces = turn.map(|turn| pieces_of_turns(rate, tick, turn, terms));
                let is_held = is_held && pieces.is_none_or(|pieces| pieces <= RESIDENT_WINDOW);
                let paced = match is_held {
                    true => Wish::Resident { rate, tick, burst },
                    false => Wish::Paced { rate, tick, burst },
                };
                let paced = self.demand(disk, paced, share);
                let cpu = per_mib(terms.cost.read_per_mib, rate) + sending;
                let once = Demand { link: wire, is_datagrams: true, class, cpu, ..paced };
                let Some((turn, window)) = turn.zip(pieces) else { return once };
                if is_held {
                    return Demand { window, ..once };
                }
                let read = once.per_cycle.read;
                let visits = visits(read, bytes_of_piece(turn, terms.block), &terms.model);
                Demand { visits, blocks: with_ahead(window), window, ..once }
            }
            Wish::Reader { rate, tick, burst, is_held, is_scattered } => {
                let paced = match is_held {
                    true => Wish::Resident { rate, tick, burst },
                    false => Wish::Paced { rate, tick, burst },
                };
                let paced = self.demand(disk, paced, share);
                let blocks = (u128::from(paced.per_cycle.read.0) * 1000)
                    .div_ceil(u128::from(terms.block.0)) as u64;
                let visits = if is_scattered { MilliVisits(blocks) } else { paced.visits };
                Demand { link: BitRate(0), visits, ..paced }
            }
            Wish::Made { wire, sending, class } => {
                Demand { link: wire, is_datagrams: true, class, cpu: sending, ..stream }
            }
            Wish::Record { rate } => {
                let written = rate.bytes_in(terms.cycle) + Bytes(1);
                let place = terms.intake.map_or(terms.block, |intake| intake.place);
                let places = record_places(rate, place, terms.cycle);
                let per_second = rate.bytes_in(SECOND).0.div_ceil(place.0);
                Demand {
                    disk,
                    visits: visits(written, place, &terms.model),
                    per_cycle: Moved { written, ..Moved::NOTHING },
                    places,
                    window: places,
                    // Its bytes are not touched by a real-time core, only handed on.
                    cpu: terms.cost.per_send.times(per_second),
                    ..Demand::default()
                }
            }
        }
    }

    /// Promises `demand`, or says what is short.
    ///
    /// # Errors
    /// [`Short`] names the first resource without room; the ledger is unchanged.
    pub fn admit(&mut self, demand: Demand) -> Result<(), Short> {
        self.check(demand)?;
        let disk = &mut self.disks[demand.disk as usize];
        disk.visits.0 += demand.visits.0;
        disk.per_cycle = disk.per_cycle.plus(demand.per_cycle);
        disk.blocks += demand.blocks;
        disk.places += demand.places;
        match demand.class {
            Some(class) => self.classes.add(class, demand.link),
            None if demand.is_datagrams => self.datagrams += demand.link,
            None => self.connections += demand.link,
        }
        self.cpu += demand.cpu;
        self.streams += demand.streams;
        Ok(())
    }

    /// Whether `demand` would be admitted.
    ///
    /// # Errors
    /// [`Short`] names the first resource without room.
    pub fn check(&self, demand: Demand) -> Result<(), Short> {
        let terms = &self.terms.disks[demand.disk as usize];
        let disk = self.disks[demand.disk as usize];
        let fits = |resource, needed, limit| {
            if needed <= limit {
                Ok(())
            } else {
                Err(Short { resource, needed, limit, class: None })
            }
        };
        if demand.streams > 0 {
            let streams = u64::from(self.streams) + u64::from(demand.streams);
            fits(Resource::Streams, streams, u64::from(self.terms.streams))?;
        }
        if demand.per_cycle != Moved::NOTHING {
            let time = terms.model.moving(
                MilliVisits(disk.visits.0 + demand.visits.0),
                disk.per_cycle.plus(demand.per_cycle),
            );
            fits(Resource::Disk, time.0, disk_limit(terms).0)?;
        }
        let blocks = u64::from(disk.blocks) + u64::from(demand.blocks);
        fits(Resource::Arena, blocks, u64::from(terms.blocks))?;
        if demand.places > 0 {
            let places = u64::from(disk.places) + u64::from(demand.places);
            fits(Resource::WriteShare, places, places_limit(terms))?;
        }
        if demand.link > BitRate(0) {
            // With all that classes take, which send nothing but datagrams.
            let more = match demand.class {
                Some(class) => self.classes.with(class, demand.link)?,
                None => self.classes.taken() + demand.link,
            };
            let link = self.connections + self.datagrams + more;
            fits(Resource::Link, link.0, self.terms.link.0)?;
            if let Some(limit) = self.terms.datagrams.filter(|_| demand.is_datagrams) {
                fits(Resource::Datagrams, (self.datagrams + more).0, limit.0)?;
            }
        }
        if demand.cpu > Nanos(0) {
            fits(Resource::Cpu, (self.cpu + demand.cpu).0, self.terms.cpu.0)?;
        }
        Ok(())
    }

    /// Takes a promise back.
    ///
    /// # Panics
    /// When more is returned than was promised.
    pub fn release(&mut self, demand: Demand) {
        let disk = &mut self.disks[demand.disk as usize];
        let was_promised = self.streams >= demand.streams
            && disk.blocks >= demand.blocks
            && disk.places >= demand.places;
        assert!(was_promised, "only what was promised returns");
        disk.visits.0 -= demand.visits.0;
        let returned = mutant!(LedgerLeaks, Moved::NOTHING, demand.per_cycle);
        disk.per_cycle = disk.per_cycle.minus(returned);
        disk.blocks -= demand.blocks;
        disk.places -= demand.places;
        match demand.class {
            Some(class) => self.classes.remove(class, demand.link),
            None if demand.is_datagrams => self.datagrams -= demand.link,
            None => self.connections -= demand.link,
        }
        self.cpu -= demand.cpu;
        self.streams -= demand.streams;
    }

    /// Changes what classes may, under all that is promised.
    ///
    /// # Errors
    /// What could not be kept any more; nothing has changed.
    ///
    /// # Panics
    /// When there are others than before, or one has another parent.
    pub fn change_classes(&mut self, to: Vec<ClassTerms>) -> Result<(), Unkept> {
        let changed = self.classes.changed(to.clone())?;
        let datagrams = self.datagrams + changed.taken();
        let (needed, limit) = (self.connections + datagrams, self.terms.link);
        if needed > limit {
            return Err(Unkept::Link { needed, limit });
        }
        if let Some(limit) = self.terms.datagrams.filter(|&limit| datagrams > limit) {
            return Err(Unkept::Datagrams { needed: datagrams, limit });
        }
        (self.classes, self.terms.classes) = (changed, to);
        Ok(())
    }

    /// Streams promised.
    pub fn streams(&self) -> u32 {
        self.streams
    }

    /// How many more streams like `wish` from `disk` would be admitted.
    pub fn room_for(&self, disk: u32, wish: Wish) -> u32 {
        self.limit_for(disk, wish).0
    }

    /// Like [`Self::room_for`], with the resource that refuses the next stream.
    pub fn limit_for(&self, disk: u32, wish: Wish) -> (u32, Resource) {
        let demand = self.demand(disk, wish, Share::whole(Bytes(u64::MAX / 2)));
        let check = |count: u32| {
            let times = u64::from(count);
            let Moved { read, written } = demand.per_cycle;
            let all = Demand {
                visits: MilliVisits(demand.visits.0 * times),
                per_cycle: Moved {
                    read: Bytes(read.0.saturating_mul(times)),
                    written: Bytes(written.0.saturating_mul(times)),
                },
                blocks: demand.blocks.saturating_mul(count),
                places: demand.places.saturating_mul(count),
                streams: demand.streams.saturating_mul(count),
                link: BitRate(demand.link.0.saturating_mul(times)),
                cpu: demand.cpu.times(times),
                ..demand
            };
            self.check(all)
        };
        let (mut low, mut high) = (0, self.terms.streams + 1);
        while low + 1 < high {
            let middle = low.midpoint(high);
            *(if check(middle).is_ok() { &mut low } else { &mut high }) = middle;
        }
        // If no other resource refuses, the stream table is full.
        (low, check(high).err().map_or(Resource::Streams, |short| short.resource))
    }

    /// How full everything is.
    pub fn levels(&self) -> impl Iterator<Item = Level> {
        let disks = self.terms.disks.iter().zip(&self.disks).zip(0u32..);
        let of_disks = disks.flat_map(|((terms, disk), index)| {
            let time = terms.model.moving(disk.visits, disk.per_cycle);
            let level = |resource, used, limit| Level { resource, disk: index, used, limit };
            let write_share = (places_limit(terms) > 0)
                .then(|| level(Resource::WriteShare, u64::from(disk.places), places_limit(terms)));
            let always = [
                level(Resource::Disk, time.0, disk_limit(terms).0),
                level(Resource::Arena, u64::from(disk.blocks), u64::from(terms.blocks)),
            ];
            always.into_iter().chain(write_share)
        });
        let level = |resource, used, limit| Level { resource, disk: 0, used, limit };
        let datagrams = self.datagrams + self.classes.taken();
        let slower = self.terms.datagrams;
        let link = self.connections + datagrams;
        of_disks
            .chain([level(Resource::Link, link.0, self.terms.link.0)])
            .chain(slower.map(|limit| level(Resource::Datagrams, datagrams.0, limit.0)))
            .chain([
                level(Resource::Cpu, self.cpu.0, self.terms.cpu.0),
                level(Resource::Streams, u64::from(self.streams), u64::from(self.terms.streams)),
            ])
    }
}

/// Blocks that a paced stream holds at most: the bytes of two cycles and of the tick that is being
/// sent, its start burst, and one block at each end that is only partly needed.
fn window(rate: BitRate, tick: Tick, burst: Bytes, terms: &DiskTerms) -> u32 {
    let steady = rate.bytes_in(terms.cycle.times(2) + tick.span());
    blocks_of(Bytes(steady.0.saturating_add(burst.0)), terms.block) + 2
}

/// As [`window`], of a stream that begins again after `turn` bytes: where turns meet, the last block of one and
/// the first of the next are only partly needed, and a turn that is shorter than a block is a piece by
/// itself.
fn pieces_of_turns(rate: BitRate, tick: Tick, turn: Bytes, terms: &DiskTerms) -> u32 {
    let held = rate.bytes_in(terms.cycle.times(2) + tick.span());
    let stretches = blocks_of(held, turn).saturating_add(1);
    let each = blocks_of(turn, terms.block).saturating_add(1);
    let of_stretches = stretches.saturating_mul(each);
    blocks_of(held, terms.block).saturating_add(stretches.saturating_mul(2)).min(of_stretches)
}

/// What a block of a title that repeats brings on average. Rounds down.
fn bytes_of_piece(turn: Bytes, block: Bytes) -> Bytes {
    Bytes((turn.0 / u64::from(blocks_of(turn, block))).clamp(1, block.0))
}

/// What a second of `rate` costs at so much for each MiB.
fn per_mib(cost: Nanos, rate: BitRate) -> Nanos {
    let moving = u128::from(cost.0) * u128::from(rate.bytes_in(SECOND).0);
    Nanos((moving >> 20) as u64)
}

fn blocks_of(bytes: Bytes, block: Bytes) -> u32 {
    u32::try_from(bytes.0.div_ceil(block.0)).unwrap_or(u32::MAX - 2)
}

/// Visits in each cycle for so many bytes. A stream slower than a block per cycle visits the disk only
/// in some cycles; a faster one finds its blocks one after the other, which is one way for an arm.
fn visits(per_cycle: Bytes, block: Bytes, model: &DiskModel) -> MilliVisits {
    let visits = (per_cycle.0 as u128 * 1000).div_ceil(block.0 as u128);
    MilliVisits(if model.has_arm() {
        mutant!(VisitsForgotten, 0, visits.min(1000) as u64)
    } else {
        visits as u64
    })
}

/// Places that a recording fills or waits for at most. A place is filled for a place's duration, then
/// waits for the next cycle, is written two cycles and a place's duration later at the latest, and comes
/// back when the control side looks.
fn record_places(rate: BitRate, place: Bytes, cycle: Nanos) -> u32 {
    blocks_of(rate.bytes_in(cycle.times(3) + COME_BACK), place) + 3
}

/// How long the control side may take to hear that a place has been written: it runs on ordinary
/// threads, and a fast recording needs its places soon again.
const COME_BACK: Nanos = Nanos::from_millis(50);

/// Time of a cycle that streams and recordings may fill.
fn disk_limit(terms: &DiskTerms) -> Nanos {
    let part = |thousandths: u32| {
        Nanos((terms.cycle.0 as u128 * u128::from(thousandths)).div_ceil(1000) as u64)
    };
    // Rounds down: the rest of what is not shared rounds up.
    let shared = terms.cycle.saturating_sub(part(1000u32.saturating_sub(terms.share_thousandths)));
    let kept = terms.intake.map_or(Nanos(0), |intake| {
        terms.model.planned_flush(terms.cycle) + part(intake.floor_thousandths)
    });
    shared.saturating_sub(kept)
}

/// Places of the write share that recordings may have.
fn places_limit(terms: &DiskTerms) -> u64 {
    terms.intake.map_or(0, |intake| u64::from(intake.places.saturating_sub(UPLOAD_PLACES)))
}

#[cfg(test)]
mod tests;
