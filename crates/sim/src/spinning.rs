//! Worlds with one spinning disk whose cycle follows from its model and the memory, full of viewers
//! of television, some of whom seek.
//!
//! Promise: no stream is ever late, as in all worlds; the tally has the waits for first bytes.

use tactus_core::cost::{DiskLimits, WindowLimits};
use tactus_core::cycle_choice::{ArmVolume, CycleChoice};
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use crate::device::DiskKind;
use crate::run::caught;
use crate::swarm::{ClientKind, ClientSpec, Memory, Swarm, VolumeSpec};
use crate::title::Title;
use crate::verdict::Violation;
use crate::world::{Outcome, World};

/// A world with one 7200 rpm disk.
#[derive(Clone, Debug)]
pub struct Spinning {
    /// The source of all randomness.
    pub seed: u64,
    /// Memory for blocks, in MiB.
    pub memory: u64,
    /// The cycle in seconds, if it is not chosen.
    pub cycle: Option<u64>,
    /// Viewers, which try again when they are refused.
    pub viewers: u64,
    /// Those among them that seek.
    pub zappers: u64,
    /// The seconds in which they arrive.
    pub arrive_within: u64,
    /// Length of the run in seconds.
    pub seconds: u64,
    /// Delivery servers, each on a core of its own.
    pub deliveries: usize,
}

impl Default for Spinning {
    fn default() -> Self {
        Self {
            seed: 1,
            memory: 3072,
            cycle: None,
            viewers: 120,
            zappers: 0,
            arrive_within: 40,
            seconds: 70,
            deliveries: 1,
        }
    }
}

const RATE: BitRate = BitRate(8_800_000);
const BLOCK: Bytes = Bytes(MIB);
const SHARE_THOUSANDTHS: u32 = 900;
/// Time between two seeks of a viewer, on average.
const SEEKS: Nanos = SECOND.times(15);

impl Spinning {
    /// The cycle and its capacity.
    pub fn choice(&self) -> CycleChoice {
        let disk = DiskLimits {
            model: DiskKind::Spinning.model(BLOCK.0 as u32),
            cycle: Nanos(0),
            share_thousandths: SHARE_THOUSANDTHS,
            block: BLOCK,
            blocks: 0,
            ahead: 0,
            windows: WindowLimits::NONE,
            server: 0,
            read_per_mib: Nanos(1),
            deliver_block: Nanos(1),
            per_write: Nanos(1),
            write_path: None,
        };
        let cycle = self.cycle.map(|seconds| SECOND.times(seconds));
        let volume = ArmVolume { disk, start_burst: SECOND, cycle };
        volume.choose(Bytes(self.memory * MIB))
    }

    /// Runs the world.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn run(&self) -> Result<Outcome, Violation> {
        let swarm = self.swarm();
        caught(move || World::new(swarm).run())
    }

    fn swarm(&self) -> Swarm {
        let duration = SECOND.times(self.seconds);
        let length = RATE.bytes_in(duration.times(6));
        let client = |number: u64| {
            // Those that seek come last, when the disk is nearly full.
            let is_zapper = number + self.zappers >= self.viewers;
            let kind = if is_zapper { ClientKind::Zapper } else { ClientKind::Viewer };
            ClientSpec {
                kind,
                burst: RATE.bytes_in(SECOND),
                arrives: Nanos(number * self.arrive_within * SECOND.0 / self.viewers),
                retry: SECOND.times(2),
                ..ClientSpec::viewer(RATE, if is_zapper { SEEKS } else { duration.times(3) })
            }
        };
        Swarm {
            seed: self.seed,
            is_crowded: true,
            duration,
            cores: self.deliveries,
            deliveries: self.deliveries,
            volumes: vec![VolumeSpec {
                kind: DiskKind::Spinning,
                cycle: self.choice().cycle,
                block: BLOCK.0 as u32,
                places: (self.choice().memory.0 / BLOCK.0) as u32,
                best_effort_depth: 4,
                share_thousandths: SHARE_THOUSANDTHS,
                // Without the bytes of an arena, which would take most of the time of a run.
                memory: Memory::PageCache { ahead: 0 },
                write_path: None,
                faults: vec![],
                guess: None,
            }],
            titles: (0..200).map(|number| Title::paced(number, length)).collect(),
            clients: (0..self.viewers).map(client).collect(),
            ..Swarm::quiet(duration)
        }
    }
}
