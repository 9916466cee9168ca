//! The choice of the cycle of a disk with an arm, and of the memory for its blocks.
//!
//! Promise: the chosen cycle admits the most streams of a typical rate that the disk's model and
//! the given memory allow, and the shortest of several such cycles is taken. More memory never
//! means fewer streams, and the memory that is taken never exceeds the given one. The ledger counts
//! the streams, so it later admits as many as this choice states. The arithmetic is in
//! `docs/design/disk-cycle.md`.

use alloc::vec;

use crate::cost::{Cost, DiskLimits, Order, OutputCost, PacedRead, TitlePart};
use crate::ledger::{Ledger, Limits};
use crate::stagger::Tick;
use crate::units::{BitRate, Bytes, Nanos, SECOND};

/// The volume for which a cycle is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmVolume {
    /// The disk, without its cycle and its memory: those two fields have no meaning here.
    pub disk: DiskLimits,
    /// Media time that is sent at once at the start of a stream.
    pub start_burst: Nanos,
    /// The cycle of the configuration, if it has one.
    pub cycle: Option<Nanos>,
}

/// The cycle of a volume, its memory, and the streams that both admit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleChoice {
    /// Length of the cycle.
    pub cycle: Nanos,
    /// Memory with which it admits all streams that the disk can serve, as far as it is given.
    pub memory: Bytes,
    /// Streams of the typical rate that it admits.
    pub streams: u32,
}

impl ArmVolume {
    /// Chooses within `memory`.
    pub fn choose(&self, memory: Bytes) -> CycleChoice {
        let longest = match self.disk.write_path {
            Some(_) => CYCLE_MAX_OF_UPLOADS,
            None => CYCLE_MAX,
        };
        let candidates = (1..=longest).map(|seconds| SECOND.times(seconds));
        let counted = candidates.map(|cycle| (self.streams(TYPICAL, cycle, memory), cycle));
        // Of equal ones, the shortest: a sample of the disk, and an answer to an upload, take a
        // cycle.
        let best = counted.max_by_key(|&(streams, cycle)| (streams, core::cmp::Reverse(cycle)));
        let cycle = self.cycle.unwrap_or_else(|| best.map_or(SECOND, |(_, cycle)| cycle));
        let (needed, streams) = (self.needed(cycle), self.streams(TYPICAL, cycle, memory));
        CycleChoice { cycle, memory: needed.min(memory), streams }
    }

    /// Streams of `rate` that are admitted with this cycle and memory.
    pub fn streams(&self, rate: BitRate, cycle: Nanos, memory: Bytes) -> u32 {
        let ledger = self.ledger(cycle, memory);
        ledger.room_for(self.cost(&ledger, rate), &[0])
    }

    /// Memory for all streams of the typical rate that the disk can serve, and an eighth of it for
    /// downloads and pinned titles.
    fn needed(&self, cycle: Nanos) -> Bytes {
        let ledger = self.ledger(cycle, Bytes(u64::MAX));
        let cost = self.cost(&ledger, TYPICAL);
        let streams = ledger.room_for(cost, &[0]);
        let blocks = u64::from(streams) * u64::from(cost.source.blocks);
        Bytes(blocks.div_ceil(8) * 9 * self.disk.block.0)
    }

    /// A ledger in which only the disk and its memory are limits.
    fn ledger(&self, cycle: Nanos, memory: Bytes) -> Ledger {
        let blocks = u32::try_from(memory.0 / self.disk.block.0).unwrap_or(u32::MAX);
        let disk = DiskLimits { cycle, blocks, server: 0, ..self.disk };
        Ledger::new(Limits {
            disks: vec![disk],
            link: BitRate(u64::MAX),
            datagrams: None,
            classes: vec![],
            cores: vec![Nanos(u64::MAX)],
            streams: STREAMS_MAX,
        })
    }

    fn cost(&self, ledger: &Ledger, rate: BitRate) -> Cost {
        let reading = PacedRead {
            rate,
            tick: Tick::Ms250,
            burst: rate.bytes_in(self.start_burst),
            order: Order::Once,
            is_pinned: false,
        };
        let source = ledger.disk(0).paced(&reading, TitlePart::whole(Bytes(u64::MAX / 2)));
        Cost::stream(source.cost, OutputCost::NONE)
    }
}

/// Television in high definition. The best cycle depends little on the rate: the memory of a stream
/// and its time of the disk both grow with its bytes in a cycle.
const TYPICAL: BitRate = BitRate(8_800_000);

/// The longest cycle, in seconds. From 8 s to 10 s a disk of 150 MB/s gains 2 %, and the memory and
/// the time in which the server notices a slow disk grow by a quarter.
const CYCLE_MAX: u64 = 10;

/// The same with uploads: on a full disk an upload is acknowledged once in a cycle, and a recording
/// needs the write share of three cycles.
const CYCLE_MAX_OF_UPLOADS: u64 = 4;

/// More streams than a disk with an arm can serve.
const STREAMS_MAX: u32 = 100_000;

#[cfg(test)]
mod tests;
