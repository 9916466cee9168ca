//! A simulated disk: takes transfers, answers them by its model, and checks the engine.
//!
//! Promise: without faults the device obeys its stated `DiskModel`, so a missed deadline is an
//! error of the engine. It checks what a kernel cannot: reads come in the promised order, no block
//! is written twice, every submitted request is polled, and bytes sent by reference are in memory.

mod faults;
mod model;
mod pages;
mod stable;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::cycle::{GROUP_MAX, IN_MEMORY_MAX};
use tactus_core::ports::{
    self, Completion, Direction, DiskFault, DiskPort, FilePart, Sum, Sync, SyncResult, Transfer,
};
use tactus_core::units::{MonoTime, Nanos};
use tactus_ring::arena::{BlockRef, View};

use crate::content::{self, Fidelity, ReadTarget};
use crate::dice::Dice;
use crate::title::Title;
use crate::trace::Trace;
use crate::verdict::{Invariant, broken, require};

pub(crate) use faults::{Fault, Trouble};
use model::Mechanics;
pub(crate) use model::{DiskKind, SPAN};
pub(crate) use pages::Pages;
pub(crate) use stable::{DIRECTORY, NewFile, Stable};
pub(crate) use watch::DiskLimits;
use watch::{Watch, WrittenFile};

/// A device and everything in its queue.
pub(crate) struct Device {
    mechanics: Mechanics,
    faults: Vec<Fault>,
    blocks: Blocks,
    stable: Option<Stable>,
    syncs: Vec<PendingSync>,
    /// Tokens of flushes that have failed.
    failed_syncs: Vec<u32>,
    titles: Arc<[Title]>,
    fidelity: Fidelity,
    dice: Dice,
    pending: Vec<PendingTransfer>,
    /// Reads of probes.
    probes: Vec<(MonoTime, Transfer)>,
    depth: usize,
    submitted: u64,
    /// The kernel reads ahead of each stream.
    reads_ahead: bool,
    /// It had read what the last transfer asked for.
    in_memory: bool,
    /// Titles with a failed or short transfer.
    damaged: Vec<bool>,
    watch: Watch,
    trace: Trace,
    /// The core that takes a turn, and its time.
    pub(crate) turning: u32,
    /// See `turning`.
    pub(crate) now: MonoTime,
}

struct PendingTransfer {
    done: MonoTime,
    number: u64,
    transfer: Transfer,
    result: Result<u32, DiskFault>,
    in_memory: bool,
    /// This byte of it differs from the stored one.
    flip: Option<u32>,
}

struct PendingSync {
    done: MonoTime,
    sync: Sync,
    result: Result<(), DiskFault>,
}

/// The memory of a device's blocks.
pub(crate) enum Blocks {
    /// In an arena, which the device fills.
    Arena(View),
    /// In the page cache, which keeps the read blocks.
    PageCache(Pages),
}

/// The parts of a device.
pub(crate) struct DeviceParts {
    pub(crate) kind: DiskKind,
    pub(crate) limits: DiskLimits,
    pub(crate) faults: Vec<Fault>,
    pub(crate) blocks: Blocks,
    /// The kernel reads ahead of each stream.
    pub(crate) reads_ahead: bool,
    /// The written files; `None` on a volume without uploads.
    pub(crate) stable: Option<Stable>,
    pub(crate) titles: Arc<[Title]>,
    pub(crate) fidelity: Fidelity,
    pub(crate) dice: Dice,
}

impl Device {
    pub(crate) fn new(parts: DeviceParts) -> Self {
        let depth = parts.limits.model.in_flight_max(parts.limits.best_effort_depth) as usize;
        Self {
            mechanics: Mechanics::new(parts.kind),
            faults: parts.faults,
            watch: Watch::new(
                parts.limits,
                parts.blocks.places(),
                parts.stable.as_ref().map_or(0, Stable::places),
            ),
            stable: parts.stable,
            syncs: Vec::with_capacity(GROUP_MAX),
            failed_syncs: Vec::with_capacity(FAILED_MAX),
            damaged: vec![false; parts.titles.len()],
            blocks: parts.blocks,
            titles: parts.titles,
            fidelity: parts.fidelity,
            dice: parts.dice,
            pending: Vec::with_capacity(depth + IN_MEMORY_MAX as usize),
            probes: Vec::with_capacity(depth),
            depth,
            submitted: 0,
            reads_ahead: parts.reads_ahead,
            in_memory: false,
            trace: Trace::default(),
            turning: 0,
            now: MonoTime(0),
        }
    }

    fn submit(&mut self, now: MonoTime, transfer: Transfer) {
        self.in_memory = self.is_read_ahead(transfer);
        let counted = if self.in_memory { self.pending.len() } else { self.at_device() };
        let most = if self.in_memory { self.depth + IN_MEMORY_MAX as usize } else { self.depth };
        require(counted < most, Invariant::BoundedTurn, || {
            format!("more than {most} transfers at {now:?}")
        });
        let (place, there) = match transfer.direction {
            Direction::Read => self.begin_read(now, transfer),
            Direction::Write => self.begin_write(now, transfer),
        };
        let mut service = if self.in_memory {
            Service { begun: now, done: now + MEMORY }
        } else {
            self.mechanics.serve(now, place, u64::from(transfer.len), &mut self.dice)
        };
        let mut result = Ok(there as u32);
        let mut flip = None;
        if !self.in_memory {
            service = self.delayed(now, service, transfer.len);
        }
        for fault in self.faults.iter().filter(|fault| fault.is_on(now)) {
            match fault.trouble {
                Trouble::Hang
                | Trouble::Slow { .. }
                | Trouble::Limited { .. }
                | Trouble::FlushErrors { .. } => {}
                Trouble::Flips { permille } => {
                    let may = transfer.direction == Direction::Read
                        && self.titles[transfer.file.0 as usize].has_sums;
                    if may && there > 0 && self.dice.chance(permille) {
                        flip = Some(self.dice.below(there) as u32);
                    }
                }
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
        let is_wrong = result != Ok(there as u32) || flip.is_some();
        if is_wrong && transfer.direction == Direction::Read {
            self.damaged[transfer.file.0 as usize] = true;
        }
        self.submitted += 1;
        let number = self.submitted;
        self.trace.note_all([now.0, transfer.file.0 as u64, transfer.offset.0, service.done.0]);
        if let (Some(_), Blocks::PageCache(pages)) = (flip, &mut self.blocks) {
            pages.damage(transfer);
        }
        let (done, in_memory) = (service.done, self.in_memory);
        self.pending.push(PendingTransfer { done, number, transfer, result, in_memory, flip });
    }

    /// The service of a transfer on a disk that is slow or limited at `now`.
    fn delayed(&mut self, now: MonoTime, service: Service, len: u32) -> Service {
        let faults = self.faults.iter().filter(|fault| fault.is_on(now));
        // Simultaneous faults of this kind do not multiply: the worst one counts.
        let slow = faults.clone().map(Fault::factor).max().unwrap_or(1);
        let limit = faults.clone().find_map(Fault::limit);
        let service = self.mechanics.stretch(service, slow);
        match limit {
            Some(limit) => self.mechanics.limit(now, service, u64::from(len), limit),
            None => service,
        }
    }

    /// Of every second title, all but the first block has been read when it is asked for.
    fn is_read_ahead(&self, transfer: Transfer) -> bool {
        let is_read = transfer.direction == Direction::Read;
        let reads_ahead = self.reads_ahead && transfer.reads_ahead;
        reads_ahead && is_read && transfer.file.0 % 2 == 0 && transfer.offset.0 > 0
    }

    fn at_device(&self) -> usize {
        let pending = self.pending.iter().filter(|pending| !pending.in_memory);
        pending.count() + self.probes.len()
    }

    /// Begins a read of a probe: a place that belongs to no title.
    fn submit_probe(&mut self, now: MonoTime, transfer: Transfer) {
        require(self.at_device() < self.depth, Invariant::BoundedTurn, || {
            format!("more than {} transfers at the device at {now:?}", self.depth)
        });
        let (place, len) = (transfer.offset.0, u64::from(transfer.len));
        let service = self.mechanics.serve(now, place, len, &mut self.dice);
        let service = self.delayed(now, service, transfer.len);
        self.trace.note_all([now.0, transfer.offset.0, service.done.0]);
        self.probes.push((service.done, transfer));
    }

    fn poll_probe(&mut self, now: MonoTime) -> Option<Completion> {
        let at = self.probes.iter().position(|&(done, _)| done <= now && !self.hangs(now))?;
        let (_, transfer) = self.probes.swap_remove(at);
        Some(Completion { transfer, result: Ok(transfer.len) })
    }

    /// The position of a write, and its number of bytes.
    fn begin_write(&mut self, now: MonoTime, transfer: Transfer) -> (u64, u64) {
        let stable = self.stable.as_ref();
        let stable = stable.filter(|_| stable::is_written(transfer.file));
        let Some(stable) = stable else {
            broken(Invariant::OneStatePerBlock, format!("{transfer:?} at {now:?} is no upload's"))
        };
        let file = WrittenFile {
            position: stable.position(transfer.file),
            len: stable.len(transfer.file),
            is_recording: stable.is_recording(transfer.file),
        };
        self.watch.check_write(now, transfer, file);
        (file.position + transfer.offset.0, u64::from(transfer.len))
    }

    /// The position of a read, and the number of bytes there.
    fn begin_read(&mut self, now: MonoTime, transfer: Transfer) -> (u64, u64) {
        let title = self.titles[transfer.file.0 as usize];
        self.watch.check_submit(now, transfer, &title);
        if let Blocks::PageCache(pages) = &mut self.blocks {
            pages.begin(transfer);
        }
        let there = title.len.0.saturating_sub(transfer.offset.0).min(u64::from(transfer.len));
        (title.position + transfer.offset.0, there)
    }

    fn submit_sync(&mut self, now: MonoTime, sync: Sync) {
        require(self.syncs.len() < GROUP_MAX, Invariant::BoundedTurn, || {
            format!("more than {GROUP_MAX} flushes at the device at {now:?}")
        });
        self.watch.check_sync(now);
        let most = self.watch.flush_time();
        let done = self.mechanics.flush(now, most, &mut self.dice);
        let mut result = Ok(());
        for fault in self.faults.iter().filter(|fault| fault.is_on(now)) {
            if let Trouble::Errors { permille } | Trouble::FlushErrors { permille } = fault.trouble
                && self.dice.chance(permille)
            {
                result = Err(DiskFault(EIO));
            }
        }
        if let Some(stable) = &mut self.stable {
            stable.flush_begins(sync.file);
        }
        self.trace.note_all([now.0, u64::from(sync.token), done.0]);
        self.syncs.push(PendingSync { done, sync, result });
    }

    fn poll_synced(&mut self, now: MonoTime) -> Option<SyncResult> {
        if self.hangs(now) {
            return None;
        }
        let at = self.syncs.iter().position(|pending| pending.done <= now)?;
        let PendingSync { sync, result, .. } = self.syncs.swap_remove(at);
        if let Some(stable) = &mut self.stable {
            stable.flush_ends(sync.file, result.is_ok());
        }
        if result.is_err() && self.failed_syncs.len() < FAILED_MAX {
            self.failed_syncs.push(sync.token);
        }
        self.watch.note_synced(now);
        Some(SyncResult { sync, result })
    }

    fn hangs(&self, now: MonoTime) -> bool {
        self.faults.iter().any(|fault| fault.trouble == Trouble::Hang && fault.is_on(now))
    }

    /// The written files.
    pub(crate) fn stable(&mut self) -> &mut Stable {
        self.stable.as_mut().expect("the volume takes uploads")
    }

    /// Notes that an upload of this number of bytes is on its way into the engine.
    pub(crate) fn note_upload(&mut self, now: MonoTime, bytes: u64) {
        self.watch.note_upload(now, bytes);
    }

    /// Whether the flush of this token has failed.
    pub(crate) fn has_failed(&self, token: u32) -> bool {
        self.failed_syncs.contains(&token)
    }

    fn poll(&mut self, now: MonoTime) -> Option<Completion> {
        if self.hangs(now) {
            return None;
        }
        let ended = self.pending.iter().enumerate().filter(|(_, pending)| pending.done <= now);
        let (at, _) = ended.min_by_key(|(_, pending)| (pending.done, pending.number))?;
        let PendingTransfer { transfer, mut result, flip, .. } = self.pending.swap_remove(at);
        if transfer.direction == Direction::Write {
            // Any part of a failed write may have been written.
            let bytes = result.unwrap_or_else(|_| self.dice.below(2) as u32 * transfer.len);
            self.stable().write(transfer, bytes);
            let is_recording = self.stable().is_recording(transfer.file);
            self.watch.note_written(now, transfer, is_recording);
            return Some(Completion { transfer, result });
        }
        if let Ok(bytes) = result {
            self.blocks.fill(transfer, bytes, self.fidelity);
            if let Some(flip) = flip {
                self.blocks.flip(transfer, flip);
            }
            if self.compare(now, transfer).is_err() {
                result = Err(DiskFault::DAMAGED);
            }
        }
        self.watch.note_completion(now, transfer, &self.titles[transfer.file.0 as usize]);
        Some(Completion { transfer, result })
    }

    /// The comparison of a port whose bytes no other part sees: compares a whole block with its
    /// expected checksum. By then all of its transfers have been submitted, and their results are
    /// known.
    fn compare(&self, now: MonoTime, transfer: Transfer) -> Result<(), DiskFault> {
        let Some(Sum { len, crc32c }) = transfer.sum else { return Ok(()) };
        let begin = transfer.offset.0 - u64::from(transfer.at);
        let stored = content::sum(transfer.file.0 as u64, (begin, begin + u64::from(len)));
        let Blocks::PageCache(pages) = &self.blocks else {
            broken(Invariant::ComparedBeforeSent, format!("{transfer:?} at {now:?} of an arena"))
        };
        require(stored == crc32c, Invariant::ComparedBeforeSent, || {
            format!("{transfer:?} at {now:?}: {stored:x} was stored")
        });
        if pages.is_damaged(transfer) { Err(DiskFault::DAMAGED) } else { Ok(()) }
    }

    /// Stops the world unless all of `part` is in memory: a send by reference must not wait for a
    /// disk.
    pub(crate) fn check_in_memory(&self, now: MonoTime, part: FilePart) {
        let missing = match &self.blocks {
            Blocks::Arena(_) => Some(part.offset),
            Blocks::PageCache(pages) => {
                let title = &self.titles[part.file.0 as usize];
                require(!pages.any_damaged(part), Invariant::ComparedBeforeSent, || {
                    format!("{part:?} at {now:?} is not what was stored")
                });
                match title.growth {
                    None => pages.first_missing(part, title.len),
                    Some(_) => pages.first_missing_of_growing(part),
                }
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

    /// The end of its submitted work.
    pub(crate) fn busy_until(&self) -> MonoTime {
        self.mechanics.busy_until()
    }

    /// Notes that a stream of the volume begins: its reads may come at any time.
    pub(crate) fn note_start(&mut self, now: MonoTime) {
        self.watch.note_start(now);
    }

    /// Checks that every submitted request has been answered.
    pub(crate) fn check_idle(&self) {
        require(self.syncs.is_empty(), Invariant::OneCompletionEach, || {
            format!("{} flushes were never asked for again", self.syncs.len())
        });
        require(self.pending.is_empty(), Invariant::OneCompletionEach, || {
            format!("{} transfers were never asked for again", self.pending.len())
        });
        require(self.probes.is_empty(), Invariant::OneCompletionEach, || {
            format!("{} probes were never asked for again", self.probes.len())
        });
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.hash()
    }
}

impl Blocks {
    /// Changes one byte of a transfer.
    fn flip(&mut self, transfer: Transfer, at: u32) {
        if let Self::Arena(view) = self {
            let ports::BlockRef { place, generation } = transfer.block;
            let offset = transfer.offset.0 + u64::from(at);
            let mut byte = [0];
            content::expected(transfer.file.0 as u64, offset, &mut byte);
            view.fill(BlockRef { place, generation }, transfer.at + at, &[byte[0] ^ 0x10]);
        }
    }

    fn places(&self) -> u32 {
        match self {
            Self::Arena(view) => view.places(),
            Self::PageCache(pages) => pages.places(),
        }
    }

    /// Puts the first `bytes` of a transfer into their place.
    fn fill(&mut self, transfer: Transfer, bytes: u32, fidelity: Fidelity) {
        let Transfer { block: ports::BlockRef { place, generation }, file, offset, at, .. } =
            transfer;
        match self {
            Self::Arena(view) => {
                let target = ReadTarget { block: BlockRef { place, generation }, at };
                let range = (offset.0, offset.0 + u64::from(bytes));
                content::fill(view, target, file.0 as u64, range, fidelity);
            }
            Self::PageCache(pages) => pages.pin(transfer, bytes),
        }
    }
}

/// The engine's end of a device.
pub(crate) struct DiskEnd {
    device: Arc<Mutex<Device>>,
    /// The core that it is bound to by its first use, until it leaves.
    core: Option<u32>,
}

impl DiskEnd {
    pub(crate) fn new(device: Arc<Mutex<Device>>) -> Self {
        Self { device, core: None }
    }

    /// The device for a submission, as a ring of the kernel checks it.
    fn bound(&mut self) -> MutexGuard<'_, Device> {
        let device = open(&self.device);
        let turning = device.turning;
        let core = *self.core.get_or_insert(turning);
        require(core == turning, Invariant::BoundToItsCore, || {
            format!("core {turning} uses a device that core {core} has")
        });
        device
    }
}

/// Locks a mutex that only one thread uses; a broken invariant may have poisoned it.
pub(crate) fn open<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskPort for DiskEnd {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        self.bound().submit(now, transfer);
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {}

    fn needs_device(&self) -> bool {
        !open(&self.device).in_memory
    }

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        open(&self.device).poll(now)
    }

    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync> {
        self.bound().submit_sync(now, sync);
        Ok(())
    }

    fn poll_synced(&mut self, now: MonoTime) -> Option<SyncResult> {
        open(&self.device).poll_synced(now)
    }

    fn leave(&mut self, cpu: u32) {
        self.core = Some(cpu);
    }
}

/// The engine's end for probes of a device.
pub(crate) struct ProbeEnd(pub(crate) Arc<Mutex<Device>>);

impl DiskPort for ProbeEnd {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        open(&self.0).submit_probe(now, transfer);
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {}

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        open(&self.0).poll_probe(now)
    }

    fn submit_sync(&mut self, _now: MonoTime, sync: Sync) -> Result<(), Sync> {
        Err(sync)
    }

    fn poll_synced(&mut self, _now: MonoTime) -> Option<SyncResult> {
        None
    }
}

/// The time of a read that the kernel has read ahead.
const MEMORY: Nanos = Nanos::from_micros(5);

/// The end of a transfer.
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

/// Limit of failed flushes: in no world more fail before the volume stops taking uploads.
const FAILED_MAX: usize = 4096;

/// The error number of a failed read.
const EIO: i32 = 5;
