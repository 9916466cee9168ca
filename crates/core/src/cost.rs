//! Costs: the resources of a stream, a pinned title or a recording.
//!
//! Promise: the builder of a delivery adds the cost of its source to the cost of its output. The
//! ledger sums costs and knows neither sources nor outputs.
//! All divisions round against the stream (`docs/design/admission.md`).

use alloc::vec::Vec;
use core::ops::Range;

use crate::classes::ClassNumber;
use crate::disk_model::{DiskModel, MilliVisits, TransferredBytes};
use crate::envelope::Envelope;
use crate::mutant;
use crate::overload::Need;
use crate::stagger::{Tick, packets};
use crate::timed::{COPYING, TimedReads, TimedReserve};
use crate::units::{BitRate, Bytes, Nanos, SECOND};

/// One disk as admission sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskLimits {
    /// Performance of the disk.
    pub model: DiskModel,
    /// Its cycle.
    pub cycle: Nanos,
    /// Share of the cycle for streams and uploads, in thousandths. The rest is for best-effort work
    /// and covers the errors of the model.
    pub share_thousandths: u32,
    /// Size of a block.
    pub block: Bytes,
    /// Blocks of the arena.
    pub blocks: u32,
    /// Blocks that the kernel reads ahead of each stream, in addition to those that the stream
    /// wants.
    pub ahead: u32,
    /// The large windows of the kernel's read-ahead, which have memory of their own.
    pub windows: WindowLimits,
    /// The server that reads it, by its number in the [ledger](crate::ledger).
    pub server: u32,
    /// Time of a core for each MiB that is read.
    pub read_per_mib: Nanos,
    /// Time of a core for each block that a delivery server asks for and passes on.
    pub deliver_block: Nanos,
    /// Time of a core for each place that is written.
    pub per_write: Nanos,
    /// The reservation for uploads. `None`: the volume takes no uploads.
    pub write_path: Option<WriteLimits>,
}

/// Memory for large windows of the kernel's [read-ahead](crate::kernel_read_ahead), in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowLimits {
    /// The windows of one stream, unless its title is shorter.
    pub each: u32,
    /// Those of all streams.
    pub all: u32,
}

impl WindowLimits {
    /// There are none.
    pub const NONE: Self = Self { each: 0, all: 0 };
}

/// The uploads of one disk as admission sees them. One flush of the model is reserved for them in
/// each cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteLimits {
    /// Places of the write share.
    pub places: u32,
    /// Size of a place.
    pub place: Bytes,
    /// Part of each cycle reserved for uploads even if streams fill the rest, in thousandths.
    pub floor_thousandths: u32,
}

/// The part of a title that a stream delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TitlePart {
    /// Bytes that it delivers in all.
    pub len: Bytes,
    /// Length of the title; the kernel's read-ahead ends there.
    pub title_len: Bytes,
}

impl TitlePart {
    /// All of a title.
    pub const fn whole(title_len: Bytes) -> Self {
        Self { len: title_len, title_len }
    }
}

/// How a title is read at an exact rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacedRead {
    /// Payload rate.
    pub rate: BitRate,
    /// How often it is sent.
    pub tick: Tick,
    /// Bytes that are sent at once at the start, in addition to those of the first tick.
    pub burst: Bytes,
    /// Contiguity of its bytes.
    pub order: Order,
    /// The title is pinned in memory: the stream needs no disk and shares its blocks.
    pub is_pinned: bool,
}

/// Contiguity of the bytes of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// In the order of the title, once.
    Once,
    /// In the order of the title, repeating after this number of bytes.
    Repeating(Bytes),
    /// By a block list: each block is a separate visit for an arm.
    Scattered,
}

/// The part of a cost that belongs to a disk, its memory and the server that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SourceCost {
    pub(crate) disk: u32,
    pub(crate) visits: MilliVisits,
    pub(crate) per_cycle: TransferredBytes,
    pub(crate) blocks: u32,
    /// Blocks in large windows of the kernel's read-ahead.
    pub(crate) windows: u32,
    /// Places of the write share.
    pub(crate) places: u32,
    /// CPU time of this server, which reads, per second.
    pub(crate) server: u32,
    pub(crate) cpu: Nanos,
    /// CPU time of this delivery server, per second.
    pub(crate) delivery_server: u32,
    pub(crate) delivering: Nanos,
}

/// The cost of a source, and the limit of its blocks in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The cost.
    pub cost: SourceCost,
    /// Blocks that the stream may hold or wait for; for a recording, places of the write share.
    pub window: u32,
}

/// The cost of sending to a connection, in time of a real-time core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendCost {
    /// Each send, whatever its size.
    pub per_send: Nanos,
    /// Each [packet](crate::stagger::packets) of a send.
    pub per_packet: Nanos,
    /// Each MiB, in addition to the cost of reading it.
    pub per_mib: Nanos,
}

impl SendCost {
    /// A send of a single packet, beside its bytes.
    pub fn of_small_send(self) -> Nanos {
        self.per_send + self.per_packet
    }
}

/// The part of a cost that belongs to the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OutputCost {
    /// Rate on the wire in all; zero if the output stays on the host.
    pub(crate) wire: BitRate,
    /// The part of it that is datagrams.
    pub(crate) datagrams: BitRate,
    /// The class of the datagrams; `None`: the link itself.
    pub(crate) class: Option<ClassNumber>,
    /// CPU time of this server, which sends, per second.
    pub(crate) server: u32,
    pub(crate) cpu: Nanos,
}

impl OutputCost {
    /// The cost of a title that is only pinned, and of best-effort bytes.
    pub const NONE: Self =
        Self { wire: BitRate(0), datagrams: BitRate(0), class: None, server: 0, cpu: Nanos(0) };

    /// The cost of a connection at `rate` with one send for each tick.
    pub fn connection(cost: SendCost, rate: BitRate, tick: Tick) -> Self {
        Self { wire: rate, ..Self::reader(cost, rate, tick) }
    }

    /// The cost of a connection to a program on this host, which does not use the link.
    pub fn reader(cost: SendCost, rate: BitRate, tick: Tick) -> Self {
        let packets = packets(rate.bytes_in(tick.span()));
        let send = cost.per_send + cost.per_packet.times(packets);
        Self { cpu: per_mib(cost.per_mib, rate) + send.times(tick.per_second()), ..Self::NONE }
    }

    /// The cost of reads at moments that are copied for a program on this host.
    pub fn timed(cost: SendCost, reads: &TimedReads) -> Self {
        let per_second = SECOND.0.div_ceil(reads.interval.0);
        let copying = per_mib(cost.per_mib, bit_rate(reads.len, per_second));
        Self { cpu: copying + cost.of_small_send().times(per_second), ..Self::NONE }
    }

    /// The cost of datagrams, or of frames with the same cost: `wire` with all headers, and
    /// `sending` time of a core per second.
    pub const fn datagrams(wire: BitRate, sending: Nanos, class: Option<ClassNumber>) -> Self {
        Self { wire, datagrams: wire, class, server: 0, cpu: sending }
    }

    /// Whether it leaves the host.
    pub const fn uses_link(&self) -> bool {
        self.wire.0 > 0
    }

    /// The same if this server sends; the first one otherwise.
    #[must_use]
    pub(crate) const fn by(self, server: u32) -> Self {
        Self { server, ..self }
    }

    /// The part of it that is not datagrams.
    pub(crate) fn connections(&self) -> BitRate {
        BitRate(self.wire.0 - self.datagrams.0)
    }
}

/// The cost of one stream, pinned title or recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    pub(crate) source: SourceCost,
    pub(crate) output: OutputCost,
    /// Slots of the stream table.
    pub(crate) rows: u32,
}

impl Cost {
    /// The cost of a source with an output; it takes a slot of the stream table.
    pub const fn stream(source: SourceCost, output: OutputCost) -> Self {
        Self { source, output, rows: 1 }
    }

    /// The cost of reads at moments; they take no slot of the stream table.
    pub const fn timed(source: SourceCost, output: OutputCost) -> Self {
        Self { source, output, rows: 0 }
    }

    /// The cost of a source without a slot of the stream table.
    pub const fn recording(source: SourceCost) -> Self {
        Self { source, output: OutputCost::NONE, rows: 0 }
    }

    /// The same if this server sends.
    #[must_use]
    pub const fn by(self, server: u32) -> Self {
        Self { output: self.output.by(server), ..self }
    }

    /// The same if this delivery server reads ahead for it.
    #[must_use]
    pub const fn read_ahead_by(self, delivery_server: u32) -> Self {
        Self { source: SourceCost { delivery_server, ..self.source }, ..self }
    }

    /// The part that is needed as long as the stream lasts, whatever its rate.
    #[must_use]
    pub(crate) const fn lasting(self) -> Self {
        let Self { source, output, rows } = self;
        let source = SourceCost {
            visits: MilliVisits(0),
            per_cycle: TransferredBytes::NOTHING,
            cpu: Nanos(0),
            delivering: Nanos(0),
            ..source
        };
        Self { source, output: OutputCost { server: output.server, ..OutputCost::NONE }, rows }
    }

    /// The part that follows the rate.
    #[must_use]
    pub(crate) const fn following(self) -> Self {
        let source = SourceCost { blocks: 0, windows: 0, places: 0, ..self.source };
        Self { source, output: self.output, rows: 0 }
    }

    /// Whether sending takes time of a core that is reserved.
    pub const fn is_sent_at_rate(&self) -> bool {
        self.output.cpu.0 > 0
    }

    /// Time per second of each server that it needs; of one server perhaps several times.
    pub(crate) fn cpu(&self) -> impl Iterator<Item = (u32, Nanos)> + use<> {
        let Self { source, output, .. } = *self;
        let reading = (source.server, source.cpu);
        let delivering = (source.delivery_server, source.delivering);
        let sending = (output.server, output.cpu);
        [reading, delivering, sending].into_iter().filter(|&(_, time)| time > Nanos(0))
    }

    /// The cost of `count` of them.
    pub(crate) fn times(&self, count: u32) -> Self {
        let Self { source, output, rows } = *self;
        let times = u64::from(count);
        let bytes = |bytes: Bytes| Bytes(bytes.0.saturating_mul(times));
        let TransferredBytes { read, written } = source.per_cycle;
        Self {
            source: SourceCost {
                visits: MilliVisits(source.visits.0 * times),
                per_cycle: TransferredBytes { read: bytes(read), written: bytes(written) },
                blocks: source.blocks.saturating_mul(count),
                windows: source.windows.saturating_mul(count),
                places: source.places.saturating_mul(count),
                cpu: source.cpu.times(times),
                delivering: source.delivering.times(times),
                ..source
            },
            output: OutputCost {
                wire: BitRate(output.wire.0.saturating_mul(times)),
                datagrams: BitRate(output.datagrams.0.saturating_mul(times)),
                cpu: output.cpu.times(times),
                ..output
            },
            rows: rows.saturating_mul(count),
        }
    }
}

/// The cost of a delivery over time: what lasts, and what each span of time needs besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedCost {
    pub(crate) lasting: Cost,
    /// Slots of time, and the cost in each of them; none at one rate.
    pub(crate) steps: Vec<(Range<u64>, Cost)>,
}

impl From<Cost> for PlannedCost {
    /// The same cost at any time.
    fn from(lasting: Cost) -> Self {
        Self { lasting, steps: Vec::new() }
    }
}

impl PlannedCost {
    /// A stream whose rate follows its content and that begins in slot `begin`. `peak` is its cost
    /// if it always had its highest rate, and `at` the cost at another rate. It is not of
    /// datagrams.
    pub fn following(
        envelope: &Envelope,
        begin: u64,
        peak: Cost,
        at: impl Fn(BitRate) -> Cost,
    ) -> Self {
        let steps = envelope.steps().iter().filter(|step| step.read > BitRate(0)).map(|step| {
            let Range { start, end } = step.seconds;
            let Cost { output, .. } = at(step.sent);
            (begin + start..begin + end, Cost { output, ..at(step.read) }.following())
        });
        let steps = steps.skip(mutant!(StepForgotten, 1, 0)).collect();
        Self { lasting: peak.lasting(), steps }
    }

    /// The most visits and bytes of its disk in a cycle.
    pub fn disk_need(&self) -> Need {
        let of = |cost: &Cost| Need {
            visits: cost.source.visits.0,
            bytes: cost.source.per_cycle.read.0,
        };
        let steps = self.steps.iter().map(|(_, cost)| of(cost));
        let most = steps.fold(Need::default(), |most, need| Need {
            visits: most.visits.max(need.visits),
            bytes: most.bytes.max(need.bytes),
        });
        of(&self.lasting).plus(most)
    }

    /// Whether sending takes time of a core that is reserved.
    pub fn is_sent_at_rate(&self) -> bool {
        let mut all = self.steps.iter().map(|(_, cost)| cost).chain([&self.lasting]);
        all.any(Cost::is_sent_at_rate)
    }

    /// The same if this server sends and this delivery server reads ahead.
    #[must_use]
    pub fn by(mut self, server: u32, delivery_server: u32) -> Self {
        let by = |cost: Cost| cost.by(server).read_ahead_by(delivery_server);
        self.lasting = by(self.lasting);
        for (_, cost) in &mut self.steps {
            *cost = by(*cost);
        }
        self
    }
}

/// Limit of the blocks that a stream of a pinned title leases at once. Faster streams, over 25
/// Mbit/s with blocks of 256 KiB, are admitted as if their title were not pinned.
pub const RESIDENT_WINDOW: u32 = 8;

/// Best-effort streams hold this many blocks: one being sent, one being read, one in reserve.
pub const BEST_EFFORT_BLOCKS: u32 = 3;

/// A disk with its number, for the costs of reading and writing.
#[derive(Clone, Copy, Debug)]
pub struct Disk<'a> {
    /// Its number.
    pub number: u32,
    /// Its limits.
    pub limits: &'a DiskLimits,
}

impl Disk<'_> {
    /// The source without any blocks.
    pub fn nothing(&self) -> Source {
        let cost =
            SourceCost { disk: self.number, server: self.limits.server, ..SourceCost::default() };
        Source { cost, window: 0 }
    }

    /// A whole title pinned in memory.
    pub fn pinned(&self, title_len: Bytes) -> Source {
        self.of_memory(blocks_of(title_len, self.limits.block), title_len)
    }

    /// Best-effort reads: memory, but no disk time.
    pub fn best_effort(&self, part: TitlePart) -> Source {
        self.of_memory(BEST_EFFORT_BLOCKS.min(self.touched(part)), part.title_len)
    }

    /// Reads at an exact rate.
    pub fn paced(&self, reading: &PacedRead, part: TitlePart) -> Source {
        let Self { limits, .. } = *self;
        let PacedRead { rate, tick, burst, order, is_pinned } = *reading;
        let pieces = match order {
            Order::Repeating(turn) => Some(pieces_of_turns(rate, tick, turn, limits)),
            Order::Once | Order::Scattered => None,
        };
        let steady = window(rate, tick, Bytes(0), limits).min(self.touched(part));
        let needed =
            pieces.unwrap_or_else(|| window(rate, tick, burst, limits).min(self.touched(part)));
        let cpu = per_mib(limits.read_per_mib, rate);
        let blocks_per_second = rate.bytes_in(SECOND).0.div_ceil(limits.block.0);
        let delivering = limits.deliver_block.times(blocks_per_second);
        // A burst needs no memory of its own here: the limit of leases bounds its length.
        if is_pinned && steady.max(pieces.unwrap_or(0)) <= RESIDENT_WINDOW {
            let window = needed.min(RESIDENT_WINDOW);
            let cost = SourceCost { cpu, delivering, ..self.nothing().cost };
            return Source { cost, window };
        }
        let read = rate.bytes_in(limits.cycle) + Bytes(1);
        let visits = match order {
            Order::Once => visits(read, limits.block, &limits.model),
            Order::Repeating(turn) => {
                visits(read, bytes_of_piece(turn, limits.block), &limits.model)
            }
            Order::Scattered => {
                let blocks = (u128::from(read.0) * 1000).div_ceil(u128::from(limits.block.0));
                MilliVisits(blocks as u64)
            }
        };
        let memory = self.of_memory(needed, part.title_len);
        let per_cycle = TransferredBytes { read, ..TransferredBytes::NOTHING };
        // Only a stream that reads in sequence has turns.
        let windows = match order {
            Order::Once => limits.windows.each.min(blocks_of(part.title_len, limits.block)),
            Order::Repeating(_) | Order::Scattered => 0,
        };
        let cost = SourceCost { visits, per_cycle, windows, cpu, delivering, ..memory.cost };
        Source { cost, ..memory }
    }

    /// Reads at moments, of a title of `title_len` bytes. They come anywhere in the title, and as
    /// many in one cycle as their tolerance allows: the disk is promised for the most that can be,
    /// not for the mean. The window is the number of reads under way. Each block takes `turns` of
    /// the core that reads, beside the time for its bytes: no other block is near.
    pub fn timed(&self, reads: &TimedReads, title_len: Bytes, turns: Nanos) -> Source {
        let Self { limits, .. } = *self;
        let each = self.touched(TitlePart { len: reads.len, title_len });
        let reserve = self.reserve(reads);
        let most = |span| u32::try_from(reads.most_in(span)).unwrap_or(u32::MAX / 4);
        // A read has one block at a time.
        let memory = self.of_memory(most(reserve.ahead.times(each.into())), title_len);
        let blocks = u64::from(most(limits.cycle)) * u64::from(each);
        let read = Bytes(blocks.saturating_mul(limits.block.0));
        let per_second = SECOND.0.div_ceil(reads.interval.0).saturating_mul(each.into());
        let cost = SourceCost {
            visits: MilliVisits(blocks * 1000),
            per_cycle: TransferredBytes { read, ..TransferredBytes::NOTHING },
            cpu: per_mib(limits.read_per_mib, bit_rate(limits.block, per_second))
                + turns.times(per_second),
            ..memory.cost
        };
        Source { cost, ..memory }
    }

    /// Reads at moments, of a title whose bytes are in memory that is counted elsewhere.
    pub fn timed_in_memory(&self, reads: &TimedReads) -> Source {
        let window = u32::try_from(reads.most_in(COPYING)).unwrap_or(u32::MAX);
        Source { window, ..self.nothing() }
    }

    /// The room for reads at moments.
    pub fn reserve(&self, reads: &TimedReads) -> TimedReserve {
        let DiskLimits { cycle, block, .. } = *self.limits;
        TimedReserve { reads: *reads, ahead: cycle.times(2) + COPYING, block }
    }

    /// Writes in real time, from places of the write share.
    pub fn recorded(&self, rate: BitRate) -> Source {
        let Self { number: disk, limits } = *self;
        let written = rate.bytes_in(limits.cycle) + Bytes(1);
        let place = limits.write_path.map_or(limits.block, |write_path| write_path.place);
        let places = record_places(rate, place, limits.cycle);
        let per_second = rate.bytes_in(SECOND).0.div_ceil(place.0);
        let cost = SourceCost {
            disk,
            server: limits.server,
            visits: visits(written, place, &limits.model),
            per_cycle: TransferredBytes { written, ..TransferredBytes::NOTHING },
            places,
            // A real-time core does not touch its bytes, it only passes them on.
            cpu: limits.per_write.times(per_second),
            ..SourceCost::default()
        };
        Source { cost, window: places }
    }

    fn of_memory(&self, window: u32, title_len: Bytes) -> Source {
        // The kernel does not read beyond the end of the title.
        let title = blocks_of(title_len, self.limits.block);
        let blocks = window.saturating_add(self.limits.ahead).min(title);
        Source { cost: SourceCost { blocks, ..self.nothing().cost }, window }
    }

    /// Blocks that the delivered bytes touch: the first and the last may be used in part.
    fn touched(&self, part: TitlePart) -> u32 {
        let title = blocks_of(part.title_len, self.limits.block);
        (blocks_of(part.len, self.limits.block) + 1).min(title)
    }
}

/// Limit of the blocks of a paced stream: the bytes of two cycles and of the current tick, its
/// start burst, and one block at each end that is only partly needed.
fn window(rate: BitRate, tick: Tick, burst: Bytes, limits: &DiskLimits) -> u32 {
    let steady = rate.bytes_in(limits.cycle.times(2) + tick.span());
    blocks_of(Bytes(steady.0.saturating_add(burst.0)), limits.block) + 2
}

/// As [`window`], for a stream that repeats after `turn` bytes. Where turns meet, the last block of
/// one and the first of the next are only partly needed; a turn shorter than a block is a piece by
/// itself.
fn pieces_of_turns(rate: BitRate, tick: Tick, turn: Bytes, limits: &DiskLimits) -> u32 {
    let held = rate.bytes_in(limits.cycle.times(2) + tick.span());
    let stretches = blocks_of(held, turn).saturating_add(1);
    let each = blocks_of(turn, limits.block).saturating_add(1);
    let of_stretches = stretches.saturating_mul(each);
    blocks_of(held, limits.block).saturating_add(stretches.saturating_mul(2)).min(of_stretches)
}

/// Average of useful bytes in a block of a repeating title. Rounds down.
fn bytes_of_piece(turn: Bytes, block: Bytes) -> Bytes {
    Bytes((turn.0 / u64::from(blocks_of(turn, block))).clamp(1, block.0))
}

/// Time per second for `rate` at `cost` for each MiB.
fn per_mib(cost: Nanos, rate: BitRate) -> Nanos {
    let moving = u128::from(cost.0) * u128::from(rate.bytes_in(SECOND).0);
    Nanos((moving >> 20) as u64)
}

/// The rate of `each` bytes so many times a second.
fn bit_rate(each: Bytes, per_second: u64) -> BitRate {
    BitRate(each.0.saturating_mul(8).saturating_mul(per_second))
}

fn blocks_of(bytes: Bytes, block: Bytes) -> u32 {
    u32::try_from(bytes.0.div_ceil(block.0)).unwrap_or(u32::MAX - 2)
}

/// Disk visits per cycle for this number of bytes. A stream slower than a block per cycle visits
/// the disk only in some cycles. A faster one reads adjacent blocks, which is one visit for an arm.
fn visits(per_cycle: Bytes, block: Bytes, model: &DiskModel) -> MilliVisits {
    let visits = (per_cycle.0 as u128 * 1000).div_ceil(block.0 as u128);
    MilliVisits(if model.has_arm() {
        mutant!(VisitsForgotten, 0, visits.min(1000) as u64)
    } else {
        visits as u64
    })
}

/// Limit of the places of a recording. A place is filled for a place's duration, waits for the next
/// cycle, is written two cycles and a place's duration later at the latest, and returns when the
/// control side polls.
fn record_places(rate: BitRate, place: Bytes, cycle: Nanos) -> u32 {
    blocks_of(rate.bytes_in(cycle.times(3) + COME_BACK), place) + 3
}

/// Bound of the time until the control side handles a completed write: it runs on ordinary threads,
/// and a fast recording soon needs its places again.
const COME_BACK: Nanos = Nanos::from_millis(50);

#[cfg(test)]
mod tests;
