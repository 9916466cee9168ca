//! One disk's cycle: decides which transfer goes to the device next.
//!
//! Promise: within a cycle, real-time transfers come first and in sweep order. When none is left,
//! best-effort work follows in pieces of at most 128 KiB, then flushes of all waiting files; each
//! starts only if it ends before the cycle does by the model. Then the disk rests. When real-time
//! work fills the cycle, its end still belongs to uploads: their reserved time, and one flush. The
//! depth at the device is bounded here, because a deep device queue defeats any order. The cycle
//! knows no streams and reads no clock.
//!
//! ```text
//! |-- real-time, sorted --|-- best effort, piece by piece --|- rest -|-- real-time ...
//! |-- real-time, sorted -------------------------|- floor -|- flush -|-- real-time ...
//! cycle begins                                           guard     cycle ends
//! ```

mod best_effort;
mod floor;
mod flush;
mod meter;
mod probe;
mod sweep;

mod learning;

use alloc::vec::Vec;

use crate::disk_model::{DiskModel, MilliVisits};
use crate::mutant;
use crate::ports::{BlockRef, Completion, Direction, DiskFault, Sync, Transfer};
use crate::split::PIECE;
use crate::units::{MonoTime, Nanos, SECOND};

use best_effort::{BestEffortQueue, NextPiece, moved};
use floor::Floor;
use flush::Flushes;
use learning::LearningState;
use sweep::Sweeps;

pub use flush::GROUP_MAX;
pub use learning::Learning;
pub use probe::{ProbeLimits, ProbeRead};

/// A block to fill or to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The transfer.
    pub transfer: Transfer,
    /// When the block's first byte is due, or the place is needed again.
    pub deadline: MonoTime,
    /// Position on the device, for the order of the sweep.
    pub position: u64,
}

/// The end of a read of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockReadEnd {
    /// The block.
    pub block: BlockRef,
    /// Number of bytes in it, or the reason of the failure.
    pub result: Result<u32, BlockReadError>,
}

/// Why a block is not filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockReadError {
    /// The device failed.
    Fault(DiskFault),
    /// The read was dropped for lack of waiters before all of it had begun.
    Dropped,
}

/// The end of a write of a place of the write share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockWriteEnd {
    /// The place.
    pub block: BlockRef,
    /// The error, if the bytes may be missing in the file. After success the bytes may still be
    /// lost in a power failure.
    pub result: Result<(), DiskFault>,
}

/// The end of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobEnd {
    /// End of a read.
    Filled(BlockReadEnd),
    /// End of a write.
    Written(BlockWriteEnd),
}

/// The kind of work that a transfer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A paced stream or a recording.
    RealTime,
    /// Work without a rate, in best-effort time.
    BestEffort,
    /// An upload, in the time reserved for uploads.
    Floor,
}

/// The limits of a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleLimits {
    /// Length of a cycle; divides one second or is a multiple of it.
    pub length: Nanos,
    /// Performance of the disk.
    pub model: DiskModel,
    /// Limit of best-effort pieces in flight. Pieces above the model's depth must belong to one
    /// run.
    pub best_effort_depth: u32,
    /// Limit of waiting blocks: the places of the arena.
    pub jobs_max: usize,
    /// Limits of writes; all zero on a volume that takes no uploads.
    pub write_path: WritePathLimits,
    /// What is learned about the disk; `None`: it always keeps its model.
    pub learning: Option<Learning>,
}

/// Limits of the uploads of one disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WritePathLimits {
    /// Limit of waiting writes: the places of the write share.
    pub jobs_max: usize,
    /// Limit of files that wait for a flush.
    pub syncs_max: usize,
    /// Part of each cycle reserved for uploads that need it, in thousandths.
    pub floor_thousandths: u32,
}

/// The queues of one disk and the rule between them.
pub struct Cycle {
    limits: CycleLimits,
    sweeps: Sweeps,
    /// Real-time writes that came in this cycle. They join the sweep of the next cycle, with the
    /// reads of running streams: a sweep for each write would cost the arm more seeks than were
    /// promised.
    arrived: Vec<RealTimeWrite>,
    best_effort: BestEffortQueue,
    flushes: Flushes,
    floor: Floor,
    /// Time of the disk that best-effort writes and flushes have used.
    upload_time: Nanos,
    /// The last cycle in which no further real-time work fitted before the time reserved for
    /// uploads.
    yielded: Option<u64>,
    /// Jobs whose transfers are at the device.
    open: Vec<Open>,
    in_flight: u32,
    /// Those of them that need no device.
    in_memory: u32,
    /// When the first byte of these is due.
    memory_due: MonoTime,
    /// The real-time job begun last, until it is known whether it needs the device.
    begun: Option<Job>,
    /// By the model, the device is busy with the kernel's read-ahead until this time.
    reads_ahead: MonoTime,
    /// A round of requests has ended since the last sweep began.
    committed: bool,
    /// A part of the wants from running streams has come since the last sweep began.
    has_part: bool,
    /// The last cycle whose wants from running streams are complete.
    asked: u64,
    learning: Option<LearningState>,
}

/// A real-time write, and the cycle in which it came.
struct RealTimeWrite {
    job: Job,
    cycle: u64,
}

/// A job with transfers at the device.
struct Open {
    direction: Direction,
    block: BlockRef,
    transfers: u32,
    bytes: u32,
    fault: Option<DiskFault>,
    /// The block has no waiters any more.
    is_dropped: bool,
    /// All pieces have been issued.
    cut: bool,
}

impl Cycle {
    /// Makes empty queues; allocates all memory.
    pub fn new(limits: CycleLimits) -> Self {
        let CycleLimits { length, model, write_path, .. } = limits;
        let jobs = limits.jobs_max + write_path.jobs_max;
        let share = length.0 as u128 * u128::from(write_path.floor_thousandths) / 1000;
        let piece = model.moving(MilliVisits(1000), moved(Direction::Write, PIECE));
        let flush = model.planned_flush(length);
        Self {
            limits,
            sweeps: Sweeps::new(model, jobs),
            arrived: Vec::with_capacity(write_path.jobs_max),
            best_effort: BestEffortQueue::new(&limits),
            flushes: Flushes::new(write_path.syncs_max, flush),
            floor: Floor::new(Nanos(share as u64), piece),
            upload_time: Nanos(0),
            yielded: None,
            open: Vec::with_capacity(jobs),
            in_flight: 0,
            in_memory: 0,
            memory_due: MonoTime(0),
            begun: None,
            reads_ahead: MonoTime(0),
            committed: false,
            has_part: false,
            asked: 0,
            learning: limits.learning.map(|learning| LearningState::new(learning, &limits)),
        }
    }

    /// Adds a real-time read; it takes part from the next commit on.
    ///
    /// # Panics
    /// If more jobs wait than the arena has places.
    pub fn add_real_time(&mut self, job: Job) {
        self.sweeps.push(job);
    }

    /// Adds a real-time write; it takes part from the next cycle on.
    ///
    /// # Panics
    /// If more jobs wait than the write share has places.
    pub fn add_recording(&mut self, now: MonoTime, job: Job) {
        assert!(self.arrived.len() < self.limits.write_path.jobs_max, "a job has a place");
        self.arrived.push(RealTimeWrite { job, cycle: self.cycle_of(now) });
    }

    /// Adds a best-effort job.
    ///
    /// # Panics
    /// If more jobs wait than its arena has places.
    pub fn add_best_effort(&mut self, job: Job) {
        self.best_effort.push(job);
    }

    /// Adds a file that waits for a flush.
    ///
    /// # Panics
    /// If more files wait than `syncs_max`.
    pub fn add_sync(&mut self, sync: Sync) {
        self.flushes.push(sync);
    }

    /// Moves the deadline of a waiting read to `deadline`: a paced stream wants the same block by
    /// then.
    pub fn promote(&mut self, block: BlockRef, deadline: MonoTime) {
        if self.sweeps.promote(block, deadline) {
            return;
        }
        if let Some(job) = self.best_effort.withdraw(block) {
            // Its first pieces may be at the device: the rest follows in one transfer.
            self.add_real_time(Job { deadline, ..job });
        }
    }

    /// Ends a round of requests: the waiting requests may be sorted and begun.
    pub fn commit(&mut self) {
        self.committed = true;
    }

    /// Ends a part of the round of wants of all running streams: it waits for the other parts, but
    /// not longer than the head of the cycle.
    pub fn commit_part(&mut self) {
        self.has_part = true;
    }

    /// Ends the round of wants of all running streams for the next cycle.
    pub fn commit_cycle(&mut self, now: MonoTime) {
        self.committed = true;
        self.asked = self.cycle_of(now);
    }

    /// The next flush for the device, if one may start at `now`.
    pub fn poll_sync(&mut self, now: MonoTime) -> Option<Sync> {
        if self.flushes.is_waiting() && self.may_flush(now) {
            self.flushes.begin(now, self.cycle_of(now));
            self.best_effort.charge_flush(self.flushes.time());
            self.best_effort.interrupt();
        }
        let sync = self.flushes.poll();
        if let Some(learning) = self.learning.as_mut().filter(|_| sync.is_some()) {
            learning.note_flush(now);
        }
        sync
    }

    /// The next transfer for the device, if one may start at `now`, and its kind of work. After a
    /// real-time one, [`Self::note_begun`] must follow.
    pub fn poll_transfer(&mut self, now: MonoTime) -> Option<(Transfer, Turn)> {
        self.take_arrived(now);
        if self.has_part && self.is_asked(now) {
            self.has_part = false;
            self.committed = true;
        }
        if self.in_memory >= IN_MEMORY_MAX {
            return None;
        }
        if self.at_device() >= self.limits.model.depth {
            let next = self.further_piece(now)?;
            return Some((self.begin_piece(now, next), Turn::BestEffort));
        }
        if let Some(next) = self.floor_piece(now) {
            return Some((self.begin_piece(now, next), Turn::Floor));
        }
        if !self.sweeps.is_running() && self.committed {
            self.begin_sweep(now);
            if let Some(next) = self.floor_piece(now) {
                return Some((self.begin_piece(now, next), Turn::Floor));
            }
        }
        self.begin_newcomers(now);
        if let Some(job) = self.sweeps.pop() {
            self.best_effort.interrupt();
            self.begun = Some(job);
            self.open_transfer(job.transfer, true);
            return Some((job.transfer, Turn::RealTime));
        }
        if self.sweeps.is_waiting() || self.best_effort.in_flight() >= self.limits.best_effort_depth
        {
            return None;
        }
        let next = self.next_piece(now).filter(|&next| self.fits(now, next));
        // If a seek to another file does not fit any more, the arm may still continue in this one.
        let next =
            next.or_else(|| self.best_effort.further().filter(|&next| self.fits(now, next)))?;
        Some((self.begin_piece(now, next), Turn::BestEffort))
    }

    /// Notes whether the real-time transfer begun last `needs_device`. One that is in memory takes
    /// no place there, and tells nothing about the device.
    ///
    /// # Panics
    /// If none has begun since the last call.
    pub fn note_begun(&mut self, now: MonoTime, needs_device: bool) {
        let job = self.begun.take().expect("a real-time transfer has begun");
        self.note_work(now);
        if needs_device {
            self.note_real_time(now, &job);
            return;
        }
        // The first byte of a new stream is wanted as soon as possible.
        let due = if job.deadline > now + FAR { now } else { job.deadline };
        self.memory_due = if self.in_memory == 0 { due } else { self.memory_due.min(due) };
        self.in_memory += 1;
    }

    /// How long the ends of transfers may remain unnoticed: not at all if something needs the
    /// device; otherwise half of the time until the first byte is due.
    pub fn patience(&self, now: MonoTime) -> Nanos {
        if self.at_device() > 0 || self.flushes.is_under_way() || self.has_work() {
            return Nanos(0);
        }
        Nanos(self.memory_due.since(now).0 / 2)
    }

    /// The next piece of a run beyond the model's depth. The disk server polls for completions once
    /// a millisecond, in which two pieces of a run may end.
    fn further_piece(&self, now: MonoTime) -> Option<NextPiece> {
        let is_busy = self.sweeps.is_running() || self.sweeps.is_waiting();
        let is_full = self.at_device() >= self.limits.in_flight_max();
        if is_busy || is_full || self.best_effort.in_flight() < self.in_flight {
            return None;
        }
        self.next_piece(now).filter(|&next| next.goes_on && self.fits(now, next))
    }

    /// The piece whose turn it is. A file system flushes in several steps, each of which would wait
    /// for the writes before it: none begins in the time that a group was planned to take.
    fn next_piece(&self, now: MonoTime) -> Option<NextPiece> {
        match self.flushes.left(now) {
            Nanos(0) => self.best_effort.next(),
            _ => self.best_effort.next_read(),
        }
    }

    /// Notes the end of a flush.
    pub fn handle_synced(&mut self, now: MonoTime) {
        self.upload_time += self.flushes.note_end(now).unwrap_or_default();
        self.note_end(now, None);
    }

    /// Notes the end of a transfer; a job ends with its last piece.
    pub fn handle_completion(&mut self, now: MonoTime, completion: Completion) -> Option<JobEnd> {
        let Transfer { direction, len, .. } = completion.transfer;
        self.note_end(now, (direction == Direction::Read).then_some(len));
        self.end_transfer(completion)
    }

    /// Notes the end of a transfer that was in memory, and how long it has `waited` for pages that
    /// the device was still reading. A long wait shows that the device is slow.
    pub fn handle_completion_in_memory(
        &mut self,
        now: MonoTime,
        completion: Completion,
        waited: Nanos,
    ) -> Option<JobEnd> {
        self.in_memory -= 1;
        self.note_waited(now, completion.transfer.len, waited);
        self.end_transfer(completion)
    }

    fn end_transfer(&mut self, completion: Completion) -> Option<JobEnd> {
        let at = self.open_at(completion.transfer);
        let open = &mut self.open[at];
        open.transfers -= 1;
        self.in_flight -= 1;
        self.best_effort.note_end(completion.transfer);
        match completion.result {
            Ok(bytes) if open.direction == Direction::Write && bytes < completion.transfer.len => {
                open.fault = Some(SHORT_WRITE);
            }
            Ok(bytes) => open.bytes += bytes,
            Err(fault) => open.fault = Some(fault),
        }
        self.end_if_done(at)
    }

    /// Drops the unissued rest of a read without waiters. The answer comes now, or with the last of
    /// its transfers; `None` also if all of it has been issued.
    pub fn forget(&mut self, block: BlockRef) -> Option<JobEnd> {
        if !self.sweeps.remove(block) && self.best_effort.withdraw(block).is_none() {
            return None;
        }
        let is_it = |open: &Open| (open.direction, open.block) == (Direction::Read, block);
        let Some(at) = self.open.iter().position(is_it) else {
            return Some(JobEnd::Filled(BlockReadEnd {
                block,
                result: Err(BlockReadError::Dropped),
            }));
        };
        let open = &mut self.open[at];
        open.cut = true;
        open.is_dropped = true;
        self.end_if_done(at)
    }

    /// The end of an open job whose last transfer has landed.
    fn end_if_done(&mut self, at: usize) -> Option<JobEnd> {
        if self.open[at].transfers > 0 || !self.open[at].cut {
            return None;
        }
        let Open { direction, block, bytes, fault, is_dropped, .. } = self.open.swap_remove(at);
        Some(match (direction, fault) {
            (Direction::Write, fault) => {
                JobEnd::Written(BlockWriteEnd { block, result: fault.map_or(Ok(()), Err) })
            }
            (Direction::Read, Some(fault)) => {
                JobEnd::Filled(BlockReadEnd { block, result: Err(BlockReadError::Fault(fault)) })
            }
            (Direction::Read, None) => {
                let result = if is_dropped { Err(BlockReadError::Dropped) } else { Ok(bytes) };
                JobEnd::Filled(BlockReadEnd { block, result })
            }
        })
    }

    /// Time of the disk that uploads have used since the start: of their pieces by the model, and
    /// of their flushes.
    pub fn upload_time(&self) -> Nanos {
        self.upload_time
    }

    /// Transfers that have begun and not ended, including those of a probe.
    pub fn in_flight(&self) -> u32 {
        self.in_flight + self.learning.as_ref().map_or(0, LearningState::in_flight)
    }

    /// Those that need the device.
    pub(super) fn at_device(&self) -> u32 {
        self.in_flight() - self.in_memory
    }

    /// Whether flushes are at the device.
    pub fn is_flushing(&self) -> bool {
        self.flushes.is_under_way()
    }

    /// Whether a block that is due within the cycle that begins at `now` has not been begun: the
    /// previous cycle is missed.
    pub fn is_overdue(&self, now: MonoTime) -> bool {
        let limit = now + self.limits.length;
        self.sweeps.is_due_before(limit)
            || self.arrived.iter().any(|arrived| arrived.job.deadline < limit)
    }

    /// When work may begin that may not begin at `now`, if nothing is at the device and nothing
    /// arrives.
    pub fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        let best_effort = (!self.best_effort.is_empty()).then(|| self.best_effort_from(now));
        let flush = self.flushes.is_waiting().then(|| {
            let first = [self.flushes.rested(), self.reads_ahead, self.flush_place(now)];
            let next = first.into_iter().filter(|&time| time > now).min();
            next.map_or(self.best_effort_from(now), |next| next.min(self.best_effort_from(now)))
        });
        let arrived = (!self.arrived.is_empty()).then(|| self.best_effort_from(now));
        // Without running streams, left-over reads are swept after the head.
        let swept = self.sweeps.is_waiting().then(|| self.best_effort_from(now));
        let probe = self.next_probe().map(|next| next.max(self.probe_from(now)));
        [best_effort, flush, arrived, swept, probe].into_iter().flatten().min()
    }

    /// End of the cycle that contains `now`.
    pub fn end_of_cycle(&self, now: MonoTime) -> MonoTime {
        MonoTime((self.cycle_of(now) + 1) * self.limits.length.0)
    }

    /// When best-effort work that may not begin at `now` should be tried again.
    fn best_effort_from(&self, now: MonoTime) -> MonoTime {
        let from = self.end_of_head(now);
        if now < from { from } else { from + self.limits.length }
    }

    /// When a probe that may not begin at `now` should be tried again.
    fn probe_from(&self, now: MonoTime) -> MonoTime {
        let from = self.best_effort_from(now);
        if now < self.reads_ahead { from.min(self.reads_ahead) } else { from }
    }

    fn cycle_of(&self, now: MonoTime) -> u64 {
        now.0 / self.limits.length.0
    }

    /// End of the head of the cycle that contains `now`.
    fn end_of_head(&self, now: MonoTime) -> MonoTime {
        let length = self.limits.length;
        MonoTime(self.cycle_of(now) * length.0) + Nanos(HEAD.0.min(length.0 / 10))
    }

    /// Whether the wants of this cycle are complete.
    fn is_asked(&self, now: MonoTime) -> bool {
        self.asked == self.cycle_of(now) || now >= self.end_of_head(now)
    }

    /// Moves recordings of earlier cycles into the sweep of this one.
    fn take_arrived(&mut self, now: MonoTime) {
        let cycle = self.cycle_of(now);
        if self.arrived.first().is_none_or(|first| first.cycle == cycle) || !self.is_asked(now) {
            return;
        }
        let count = self.arrived.iter().take_while(|arrived| arrived.cycle < cycle).count();
        for arrived in self.arrived.drain(..count) {
            self.sweeps.push(arrived.job);
        }
        self.committed = true;
    }

    /// Takes waiting jobs, most urgent first, as many as fit by the model before the end of the
    /// cycle or of the time left by uploads, and sorts them by position. Left-over jobs have later
    /// deadlines and join the next sweep, so the reads of a new cycle never wait for a long sweep
    /// over less urgent jobs. Before the wants of the running streams are complete, left-over jobs
    /// are read one by one.
    fn begin_sweep(&mut self, now: MonoTime) {
        let reserve = self.reserve(now);
        let left = if mutant!(RoundIgnored, true, false) {
            self.limits.length
        } else if self.is_asked(now) {
            self.end_of_cycle(now).since(now + self.flushes.left(now) + reserve)
        } else {
            Nanos(0)
        };
        let is_head = now < self.end_of_head(now);
        self.sweeps.begin(now, left, is_head || reserve == Nanos(0));
        if self.sweeps.is_waiting() && !self.sweeps.is_running() {
            self.yielded = Some(self.cycle_of(now));
        }
        self.committed = self.sweeps.is_waiting();
    }

    /// Interrupts the running sweep for the first blocks of new streams. They get the time that by
    /// the model the rest of the sweep and the uploads leave of the cycle, less a margin for errors
    /// of the model.
    fn begin_newcomers(&mut self, now: MonoTime) {
        if !self.committed || !self.is_asked(now) || !self.sweeps.may_interrupt(now) {
            return;
        }
        let left = mutant!(RoundIgnored, self.limits.length, self.end_of_cycle(now).since(now));
        let DiskModel { visit, read_mib, .. } = self.limits.model;
        let flying = (visit + read_mib).times(u64::from(self.in_flight - self.in_memory));
        let kept = self.flushes.left(now) + self.reserve(now) + flying + Nanos(left.0 / MARGIN);
        self.sweeps.interrupt(now, left.saturating_sub(kept));
    }

    /// The end of the cycle that is reserved for waiting uploads, while they can still use it.
    fn reserve(&mut self, now: MonoTime) -> Nanos {
        let kept = self.floor_reserve(now) + self.flush_reserve(now);
        if kept == Nanos(0) { kept } else { kept + self.slack() }
    }

    fn slack(&self) -> Nanos {
        Nanos(SLACK.0.min(self.limits.length.0 / 25))
    }

    /// When the group of flushes begins that has its place in each cycle, at the end.
    fn flush_place(&self, now: MonoTime) -> MonoTime {
        self.end_of_cycle(now).before(self.flushes.time() + self.slack().times(2))
    }

    /// The part of the reserve for a group of flushes. The writes before it need one too: their
    /// flushes are requested when they end.
    fn flush_reserve(&self, now: MonoTime) -> Nanos {
        let time = self.flushes.time();
        let is_expected = self.best_effort.has_writes() && now < self.flush_place(now);
        let is_wanted = self.flushes.is_waiting() || is_expected;
        let is_open = !self.flushes.has_begun_in(self.cycle_of(now));
        let fits = now + time <= self.end_of_cycle(now);
        if is_wanted && is_open && fits { time + self.slack() } else { Nanos(0) }
    }

    /// The part of the reserve for writes.
    fn floor_reserve(&mut self, now: MonoTime) -> Nanos {
        let Some(next) = self.best_effort.next_write() else { return Nanos(0) };
        self.floor.note_waiting(self.cycle_of(now));
        let owed = self.floor.owed();
        // Time owed accumulates until it is enough for a piece.
        let is_usable = owed >= next.cost && self.is_before_the_flush(now, next);
        if mutant!(FloorForgotten, false, is_usable) { owed } else { Nanos(0) }
    }

    /// The next piece of an upload, if the time reserved for uploads has come.
    fn floor_piece(&mut self, now: MonoTime) -> Option<NextPiece> {
        let reserve = self.floor_reserve(now);
        if reserve == Nanos(0) || now < self.end_of_head(now) {
            return None;
        }
        let nothing_else_fits = self.yielded == Some(self.cycle_of(now));
        let is_near = now + reserve + self.slack() >= self.end_of_cycle(now);
        // A disk slower than its model misses the ends of cycles.
        let is_time = is_near || nothing_else_fits || self.floor.is_overdue();
        self.best_effort.next_write().filter(|_| is_time)
    }

    /// Whether a group of flushes may begin.
    fn may_flush(&mut self, now: MonoTime) -> bool {
        let time = self.flushes.time();
        let end = self.end_of_cycle(now);
        if now < self.end_of_head(now) || now + time > end {
            return false;
        }
        if !self.sweeps.is_running() && !self.sweeps.is_waiting() {
            let latest = self.flush_place(now);
            self.flushes.note_free(now, self.cycle_of(now), latest);
            let is_turn = now >= self.flushes.rested() && self.best_effort.is_turn_of_writes();
            // Each step of a flush would wait for what the kernel reads ahead for the streams.
            if now >= self.reads_ahead && (is_turn || self.best_effort.is_written()) {
                return true;
            }
        }
        now >= self.flush_place(now) && !self.flushes.has_begun_in(self.cycle_of(now))
    }

    /// Whether a piece may begin in best-effort time.
    fn fits(&self, now: MonoTime, next: NextPiece) -> bool {
        let may = mutant!(UploadsKeptBack, next.piece.direction == Direction::Read, true);
        may && now >= self.end_of_head(now) && self.is_before_the_end(now, next)
    }

    /// Whether a piece of the floor ends before the place of the flushes.
    fn is_before_the_flush(&self, now: MonoTime, next: NextPiece) -> bool {
        let done = now + self.flushes.left(now) + self.best_effort.time_of(next);
        done + self.flush_reserve(now) <= self.end_of_cycle(now)
    }

    /// Whether a piece, with all of its kind before it, ends within the cycle.
    fn is_before_the_end(&self, now: MonoTime, next: NextPiece) -> bool {
        let done = now + self.flushes.left(now) + self.best_effort.time_of(next);
        let end = match next.piece.direction {
            Direction::Read => mutant!(CycleEndIgnored, MonoTime(u64::MAX), self.end_of_cycle(now)),
            Direction::Write => {
                mutant!(WriteEndIgnored, MonoTime(u64::MAX), self.end_of_cycle(now))
            }
        };
        done <= end
    }

    fn begin_piece(&mut self, now: MonoTime, next: NextPiece) -> Transfer {
        let taken = self.best_effort.take(next);
        if let Some(learning) = &mut self.learning {
            learning.note_piece(now, &taken.piece);
        }
        if taken.piece.direction == Direction::Write {
            self.floor.note_used(next.cost);
            self.upload_time += next.cost;
        }
        self.open_transfer(taken.piece, taken.is_last);
        taken.piece
    }

    /// Notes a transfer that goes to the device, and whether it is the last of its block.
    fn open_transfer(&mut self, transfer: Transfer, last: bool) {
        let Transfer { direction, block, .. } = transfer;
        self.in_flight += 1;
        let known = self.open.iter().position(|open| open.is_of(transfer));
        let at = known.unwrap_or_else(|| {
            self.open.push(Open {
                direction,
                block,
                transfers: 0,
                bytes: 0,
                fault: None,
                is_dropped: false,
                cut: false,
            });
            self.open.len() - 1
        });
        let open = &mut self.open[at];
        open.transfers += 1;
        open.cut = last;
    }

    fn open_at(&self, transfer: Transfer) -> usize {
        let at = self.open.iter().position(|open| open.is_of(transfer));
        at.expect("the device only completes what was submitted")
    }
}

impl Open {
    fn is_of(&self, transfer: Transfer) -> bool {
        (self.direction, self.block) == (transfer.direction, transfer.block)
    }
}

/// Limit of transfers in flight that need no device: as many blocks as a thousand television
/// streams want in fifteen milliseconds.
pub const IN_MEMORY_MAX: u32 = 64;

/// Shorter waits of transfers in memory are those for a processor.
const WAIT_MIN: Nanos = Nanos::from_millis(1);

/// The head of a cycle, in which the real-time jobs of the new cycle arrive: a message passes two
/// servers, which poll every millisecond. Best-effort work that began in the head would delay the
/// sweep. The head is at most a tenth of the cycle.
const HEAD: Nanos = Nanos::from_millis(5);

/// The first blocks of a stream are due this far ahead: later than any block of a running stream,
/// however slow, and in the order in which streams came. A nearer deadline would pass while many
/// streams begin or seek, and their first blocks would then precede the blocks of running streams.
pub const JOIN: Nanos = Nanos(1_000_000 * SECOND.0);

/// Blocks of a deferred stream are due this much later: after the first blocks of new streams.
pub const DEFERRED: Nanos = Nanos(2_000_000 * SECOND.0);

/// The first blocks of new streams, and blocks of deferred ones, are due later than this.
const FAR: Nanos = Nanos(1000 * SECOND.0);

/// New streams leave a 32nd of the cycle's remaining time unused, for errors of the disk model.
const MARGIN: u64 = 32;

/// The disk server polls for completions once a millisecond, and transfers at the device end first:
/// uploads with exactly their time would come too late.
const SLACK: Nanos = Nanos::from_millis(2);

/// A write that moved fewer bytes than requested: `EIO`.
const SHORT_WRITE: DiskFault = DiskFault(5);

#[cfg(test)]
mod tests;
