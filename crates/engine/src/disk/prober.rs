//! The prober: reads of a probe, into memory of their own.
//!
//! Promise: it reads when the cycle says, and at no other time; the bytes are not used. It has a
//! device of its own, because the memory of the volume's device belongs to titles.

use tactus_core::cycle::{Cycle, ProbeRead};
use tactus_core::ports::{self, Direction, DiskPort, FileHandle, Transfer};
use tactus_core::units::MonoTime;
use tactus_ring::arena::{ArenaOwner, BlockRef};

use crate::counters::DiskCounters;

/// What probes read with.
pub struct ProbeSetup {
    /// A device that reads past all caches of this host.
    pub port: Box<dyn DiskPort + Send>,
    /// Memory for as many reads as the model's depth.
    pub keeper: ArenaOwner,
    /// The file.
    pub file: FileHandle,
}

/// The reads of probes.
pub(super) struct Prober {
    setup: ProbeSetup,
    flying: Vec<(BlockRef, ProbeRead)>,
}

impl Prober {
    pub(super) fn new(setup: ProbeSetup) -> Self {
        let flying = Vec::with_capacity(setup.keeper.places() as usize);
        Self { setup, flying }
    }

    /// Starts the reads that the cycle allows.
    pub(super) fn start(&mut self, now: MonoTime, cycle: &mut Cycle) -> bool {
        let mut any = false;
        while let Some(read) = cycle.poll_probe(now) {
            let block = self.setup.keeper.take();
            let block = block.expect("there is memory for as many reads as the depth");
            let BlockRef { place, generation } = block;
            let taken = self.setup.port.submit(
                now,
                Transfer::new(
                    Direction::Read,
                    ports::BlockRef { place, generation },
                    self.setup.file,
                    read.offset,
                    read.len,
                ),
            );
            assert!(taken.is_ok(), "the device takes as many reads as the depth");
            self.flying.push((block, read));
            any = true;
        }
        if any {
            self.setup.port.kick(now);
        }
        any
    }

    /// Takes the reads that have ended.
    pub(super) fn take_completions(
        &mut self,
        now: MonoTime,
        cycle: &mut Cycle,
        counters: &DiskCounters,
    ) -> bool {
        let mut any = false;
        while !self.flying.is_empty()
            && let Some(completion) = self.setup.port.poll_completion(now)
        {
            any = true;
            let ports::BlockRef { place, generation } = completion.transfer.block;
            let block = BlockRef { place, generation };
            let at = self.flying.iter().position(|&(flying, _)| flying == block);
            let (block, read) = self.flying.swap_remove(at.expect("each read ends once"));
            self.setup.keeper.emptied(block);
            // The file may have become shorter: what is not read tells nothing.
            let is_read = completion.result == Ok(read.len);
            cycle.handle_probed(now, read, is_read);
            counters.probes.add(1);
            counters.probe_bytes.add(u64::from(completion.result.unwrap_or(0)));
        }
        any
    }

    /// Whether the device may leave its thread.
    pub(super) fn may_leave(&mut self) -> bool {
        self.setup.port.may_leave()
    }

    /// Lets another thread be the next user of the device.
    pub(super) fn leave(&mut self, cpu: u32) {
        self.setup.port.leave(cpu);
    }
}
