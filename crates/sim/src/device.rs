//! A simulated disk: takes transfers, answers them when its model says, and watches the engine.
//!
//! Promise: without faults the device obeys the `DiskModel` that it states, so that a deadline
//! missed is the engine's doing. It checks what a kernel cannot: that reads come in the promised
//! order, that no block is written twice, that everything submitted is asked for again, and that
//! what is sent by reference is in memory.

mod faults;
mod model;
mod pages;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::ports::{self, Completion, DiskFault, DiskPort, FilePart, Sync, Synced, Transfer};
use tactus_core::units::{MonoTime, Nanos};
use tactus_ring::arena::{BlockRef, View};

use crate::content::{self, Fidelity, Target};
use crate::dice::Dice;
use crate::title::Title;
use crate::trace::Trace;
use crate::verdict::{Invariant, require};

pub(crate) use faults::{Fault, Trouble};
use model::Mechanics;
pub(crate) use model::{DiskKind, SPAN};
pub(crate) use pages::Pages;
pub(crate) use watch::DiskTerms;
use watch::Watch;

/// A device and everything in its queue.
pub(crate) struct Device {
    mechanics: Mechanics,
    faults: Vec<Fault>,
    blocks: Blocks,
    titles: Arc<[Title]>,
    fidelity: Fidelity,
    dice: Dice,
    pending: Vec<Pending>,
    depth: usize,
    submitted: u64,
    /// Titles of which a transfer has failed or come back short.
    damaged: Vec<bool>,
    watch: Watch,
    trace: Trace,
}

struct Pending {
    done: MonoTime,
    number: u64,
    transfer: Transfer,
    result: Result<u32, DiskFault>,
}

/// Where a device's blocks are.
pub(crate) enum Blocks {
    /// In an arena, into which it writes.
    Arena(View),
    /// In the page cache, which keeps what it has read.
    PageCache(Pages),
}

/// What a device is made of.
pub(crate) struct DeviceParts {
    pub(crate) kind: DiskKind,
    pub(crate) terms: DiskTerms,
    pub(crate) faults: Vec<Fault>,
    pub(crate) blocks: Blocks,
    pub(crate) titles: Arc<[Title]>,
    pub(crate) fidelity: Fidelity,
    pub(crate) dice: Dice,
}

impl Device {
    pub(crate) fn new(parts: DeviceParts) -> Self {
        let depth = (parts.terms.model.depth + parts.terms.best_effort_depth) as usize;
        Self {
            mechanics: Mechanics::new(parts.kind),
            faults: parts.faults,
            watch: Watch::new(parts.terms, parts.blocks.places()),
            damaged: vec![false; parts.titles.len()],
            blocks: parts.blocks,
            titles: parts.titles,
            fidelity: parts.fidelity,
            dice: parts.dice,
            pending: Vec::with_capacity(depth),
            depth,
            submitted: 0,
            trace: Trace::default(),
        }
    }

    fn submit(&mut self, now: MonoTime, transfer: Transfer) {
        let title = self.titles[transfer.file.0 as usize];
        self.watch.check_submit(now, transfer, &title);
        if let Blocks::PageCache(pages) = &mut self.blocks {
            pages.begin(transfer);
        }
        require(self.pending.len() < self.depth, Invariant::BoundedTurn, || {
            format!("more than {} transfers at the device at {now:?}", self.depth)
        });
        let place = title.position + transfer.offset.0;
        let mut service = self.mechanics.serve(now, place, u64::from(transfer.len), &mut self.dice);
        let there = title.len.0.saturating_sub(transfer.offset.0).min(u64::from(transfer.len));
        let mut result = Ok(there as u32);
        // Several such faults at once do not multiply: a disk is at most as slow as the worst.
        let slow = self.faults.iter().filter(|fault| fault.is_on(now)).map(Fault::factor);
        service = self.mechanics.stretch(service, slow.max().unwrap_or(1));
        for fault in self.faults.iter().filter(|fault| fault.is_on(now)) {
            match fault.trouble {
                Trouble::Hang | Trouble::Slow { .. } => {}
                Trouble::Spikes { permille, extra } => {
                    if self.dice.chance(permille) {
                        service.done += extra;
                    }
                }
                Trouble::Errors { permille } => {
                    if self.dice.chance(permille) {
                        result = Err(DiskFault(EIO));
                    }
                }
                Trouble::Short { permille } => {
                    if self.dice.chance(permille) {
                        result = Ok(self.dice.below(there.max(1)) as u32);
                    }
                }
            }
        }
        if result != Ok(there as u32) {
            self.damaged[transfer.file.0 as usize] = true;
        }
        self.submitted += 1;
        let number = self.submitted;
        self.trace.note_all([now.0, transfer.file.0 as u64, transfer.offset.0, service.done.0]);
        self.pending.push(Pending { done: service.done, number, transfer, result });
    }

    fn poll(&mut self, now: MonoTime) -> Option<Completion> {
        if self.faults.iter().any(|fault| fault.trouble == Trouble::Hang && fault.is_on(now)) {
            return None;
        }
        let ended = self.pending.iter().enumerate().filter(|(_, pending)| pending.done <= now);
        let (at, _) = ended.min_by_key(|(_, pending)| (pending.done, pending.number))?;
        let Pending { transfer, result, .. } = self.pending.swap_remove(at);
        if let Ok(bytes) = result {
            self.blocks.fill(transfer, bytes, self.fidelity);
        }
        self.watch.note_completion(transfer, &self.titles[transfer.file.0 as usize]);
        Some(Completion { transfer, result })
    }

    /// Stops the world unless all of `part` is in memory: sent by reference, it waits for no disk.
    pub(crate) fn check_in_memory(&self, now: MonoTime, part: FilePart) {
        let missing = match &self.blocks {
            Blocks::Arena(_) => Some(part.offset),
            Blocks::PageCache(pages) => {
                pages.first_missing(part, self.titles[part.file.0 as usize].len)
            }
        };
        require(missing.is_none(), Invariant::SendsNeverWait, || {
            format!("{part:?} at {now:?} waits for the disk at {missing:?}")
        });
    }

    /// Whether reads of a title have failed.
    pub(crate) fn is_damaged(&self, title: usize) -> bool {
        self.damaged[title]
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.faults.clear();
    }

    /// Until when it is at work on what it has been given.
    pub(crate) fn busy_until(&self) -> MonoTime {
        self.mechanics.busy_until()
    }

    /// Notes that a stream of the volume begins: its reads may come at any time.
    pub(crate) fn note_start(&mut self, now: MonoTime) {
        self.watch.note_start(now);
    }

    /// Everything submitted has been answered.
    pub(crate) fn check_idle(&self) {
        require(self.pending.is_empty(), Invariant::OneCompletionEach, || {
            format!("{} transfers were never asked for again", self.pending.len())
        });
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.hash()
    }
}

impl Blocks {
    fn places(&self) -> u32 {
        match self {
            Self::Arena(view) => view.places(),
            Self::PageCache(pages) => pages.places(),
        }
    }

    /// Puts the first `bytes` of a transfer where they belong.
    fn fill(&mut self, transfer: Transfer, bytes: u32, fidelity: Fidelity) {
        let Transfer { block: ports::BlockRef { place, generation }, file, offset, at, .. } =
            transfer;
        match self {
            Self::Arena(view) => {
                let target = Target { block: BlockRef { place, generation }, at };
                let range = (offset.0, offset.0 + u64::from(bytes));
                content::fill(view, target, file.0 as u64, range, fidelity);
            }
            Self::PageCache(pages) => pages.pin(transfer, bytes),
        }
    }
}

/// The engine's end of a device.
pub(crate) struct DiskEnd(pub(crate) Arc<Mutex<Device>>);

/// Opens a lock that only one thread uses; a broken invariant may have left it poisoned.
pub(crate) fn open<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskPort for DiskEnd {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        open(&self.0).submit(now, transfer);
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {}

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        open(&self.0).poll(now)
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        Err(sync)
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<Synced> {
        None
    }
}

/// When a transfer ends.
#[derive(Clone, Copy)]
struct Service {
    begun: MonoTime,
    done: MonoTime,
}

impl Service {
    fn took(self) -> Nanos {
        self.done.since(self.begun)
    }
}

/// The error number of a read that the device cannot do.
const EIO: i32 = 5;
