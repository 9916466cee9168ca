//! One disk's cycle: decides which transfer goes to the device next.
//!
//! Promise: within a cycle, real-time transfers come first and in sweep order; when none is left,
//! best-effort work goes on in pieces of at most 128 KiB, and flushes of all files that wait for
//! one, each only if the model says that it ends before the cycle does; then the disk rests. When
//! real-time work fills the cycle, its end still belongs to uploads: their floor, and one flush.
//! The depth at the device is bounded here, because a deep device queue defeats any order. It knows
//! no streams and reads no clock.
//!
//! ```text
//! |-- real-time, sorted --|-- best effort, piece by piece --|- rest -|-- real-time ...
//! |-- real-time, sorted -------------------------|- flush -|- floor -|-- real-time ...
//! cycle begins                                           guard     cycle ends
//! ```

mod best_effort;
mod floor;
mod flush;
mod sweep;

use alloc::vec::Vec;

use crate::disk_model::{DiskModel, MilliVisits};
use crate::mutant;
use crate::ports::{BlockRef, Completion, Direction, DiskFault, Sync, Transfer};
use crate::split::PIECE;
use crate::units::{MonoTime, Nanos};

use best_effort::{BestEffortQueue, Next, moved};
use floor::Floor;
use flush::Flushes;
use sweep::Sweeps;

pub use flush::GROUP_MAX;

/// A block to fill, or to empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// What to move, and where to.
    pub transfer: Transfer,
    /// When the block's first byte is due, or the place is needed again.
    pub deadline: MonoTime,
    /// Place on the device, for the order of the sweep.
    pub position: u64,
}

/// A block that is filled, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Which block.
    pub block: BlockRef,
    /// Bytes in it, or why it is not filled.
    pub result: Result<u32, Unfilled>,
}

/// Why a block is not filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfilled {
    /// The device failed.
    Fault(DiskFault),
    /// Nobody wanted it any more before all of it had been begun.
    Dropped,
}

/// A place of the write share that the device has read, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Which place.
    pub block: BlockRef,
    /// Why its bytes may not be in the file. That they are does not mean that they survive a power
    /// cut.
    pub result: Result<(), DiskFault>,
}

/// The end of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Of a read.
    Filled(Filled),
    /// Of a write.
    Written(Written),
}

/// For whom a transfer goes to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A paced stream or a recording.
    RealTime,
    /// Whoever has no rate, in the time left over.
    BestEffort,
    /// An upload, in the time that is kept for uploads.
    Floor,
}

/// What bounds a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleLimits {
    /// How long one turn of the disk is; divides or is a multiple of one second.
    pub length: Nanos,
    /// What the disk can do.
    pub model: DiskModel,
    /// Best-effort pieces in flight at once. Above the model's depth are only pieces of one run.
    pub best_effort_depth: u32,
    /// Most blocks that may wait: the places of the arena.
    pub jobs_max: usize,
    /// What may be written; nothing on a volume that takes no uploads.
    pub intake: IntakeLimits,
}

impl CycleLimits {
    /// Transfers in flight at once, of all kinds.
    pub fn in_flight_max(&self) -> u32 {
        self.model.in_flight_max(self.best_effort_depth)
    }
}

/// What bounds the uploads of one disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IntakeLimits {
    /// Most writes that may wait: the places of the write share.
    pub jobs_max: usize,
    /// Most files that may wait for a flush.
    pub syncs_max: usize,
    /// Part of each cycle that uploads get if they need it, in thousandths.
    pub floor_thousandths: u32,
}

/// The queues of one disk and the rule between them.
pub struct Cycle {
    limits: CycleLimits,
    sweeps: Sweeps,
    /// Real-time writes that came in this cycle, and are swept in the next, with the reads of
    /// running streams: a sweep for each would cost the arm more ways than were promised.
    arrived: Vec<Arrived>,
    best_effort: BestEffortQueue,
    flushes: Flushes,
    floor: Floor,
    /// The last cycle in which real-time work no longer fitted before the floor.
    yielded: Option<u64>,
    /// Jobs whose transfers are at the device.
    open: Vec<Open>,
    in_flight: u32,
    /// A round of requests has ended since the last sweep began.
    committed: bool,
    /// The last cycle in which the running streams have asked.
    asked: u64,
}

/// A real-time write, and the cycle in which it came.
struct Arrived {
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
    /// Nobody wants it any more.
    is_dropped: bool,
    /// All pieces have been handed out.
    cut: bool,
}

impl Cycle {
    /// Empty queues; all memory is taken now.
    pub fn new(limits: CycleLimits) -> Self {
        let CycleLimits { length, model, intake, .. } = limits;
        let jobs = limits.jobs_max + intake.jobs_max;
        let share = length.0 as u128 * u128::from(intake.floor_thousandths) / 1000;
        let piece = model.moving(MilliVisits(1000), moved(Direction::Write, PIECE));
        let flush = model.planned_flush(length);
        Self {
            limits,
            sweeps: Sweeps::new(model, jobs),
            arrived: Vec::with_capacity(intake.jobs_max),
            best_effort: BestEffortQueue::new(&limits),
            flushes: Flushes::new(intake.syncs_max, flush),
            floor: Floor::new(Nanos(share as u64), piece),
            yielded: None,
            open: Vec::with_capacity(jobs),
            in_flight: 0,
            committed: false,
            asked: 0,
        }
    }

    /// Adds a real-time read; it is considered from the next commit on.
    ///
    /// # Panics
    /// When more jobs wait than the arena has places.
    pub fn add_real_time(&mut self, job: Job) {
        self.sweeps.push(job);
    }

    /// Adds a real-time write; it is considered from the next cycle on.
    ///
    /// # Panics
    /// When more jobs wait than the write share has places.
    pub fn add_recording(&mut self, now: MonoTime, job: Job) {
        assert!(self.arrived.len() < self.limits.intake.jobs_max, "a job has a place");
        self.arrived.push(Arrived { job, cycle: self.cycle_of(now) });
    }

    /// Adds a job that may wait for free time.
    ///
    /// # Panics
    /// When more jobs wait than its arena has places.
    pub fn add_best_effort(&mut self, job: Job) {
        self.best_effort.push(job);
    }

    /// Adds a file that waits for a flush.
    ///
    /// # Panics
    /// When more wait than were agreed on.
    pub fn add_sync(&mut self, sync: Sync) {
        self.flushes.push(sync);
    }

    /// Makes a waiting read as urgent as `deadline`: a paced stream wants the same block by then.
    pub fn promote(&mut self, block: BlockRef, deadline: MonoTime) {
        if self.sweeps.promote(block, deadline) {
            return;
        }
        if let Some(job) = self.best_effort.withdraw(block) {
            // Its first pieces may be at the device: the rest follows in one.
            self.add_real_time(Job { deadline, ..job });
        }
    }

    /// Ends a round of requests: what waits now may be sorted and begun.
    pub fn commit(&mut self) {
        self.committed = true;
    }

    /// Ends the round in which all running streams ask for what they need in the next cycle.
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
        self.flushes.poll()
    }

    /// The next transfer for the device, if one may start at `now`, and whose turn it is.
    pub fn poll_transfer(&mut self, now: MonoTime) -> Option<(Transfer, Turn)> {
        self.take_arrived(now);
        if self.in_flight >= self.limits.model.depth {
            return self.further_piece(now).map(|next| (self.begin_piece(next), Turn::BestEffort));
        }
        if let Some(next) = self.floor_piece(now) {
            return Some((self.begin_piece(next), Turn::Floor));
        }
        if !self.sweeps.is_running() && self.committed {
            self.begin_sweep(now);
            if let Some(next) = self.floor_piece(now) {
                return Some((self.begin_piece(next), Turn::Floor));
            }
        }
        if let Some(job) = self.sweeps.pop() {
            self.best_effort.interrupt();
            self.open_transfer(job.transfer, true);
            return Some((job.transfer, Turn::RealTime));
        }
        if self.sweeps.is_waiting() || self.best_effort.in_flight() >= self.limits.best_effort_depth
        {
            return None;
        }
        let next = self.best_effort.next().filter(|&next| self.fits(now, next));
        // Where the way to another file does not fit any more, the arm can still stay in this one.
        let next =
            next.or_else(|| self.best_effort.further().filter(|&next| self.fits(now, next)))?;
        Some((self.begin_piece(next), Turn::BestEffort))
    }

    /// The next piece of a run for a disk that has as much as the model says it gains from: whoever
    /// looks for completions comes once a millisecond, in which two pieces of a run may have ended.
    fn further_piece(&self, now: MonoTime) -> Option<Next> {
        let is_busy = self.sweeps.is_running() || self.sweeps.is_waiting();
        let is_full = self.in_flight >= self.limits.in_flight_max();
        if is_busy || is_full || self.best_effort.in_flight() < self.in_flight {
            return None;
        }
        self.best_effort.next().filter(|&next| next.goes_on && self.fits(now, next))
    }

    /// Notes the end of a flush.
    pub fn handle_synced(&mut self, now: MonoTime) {
        self.flushes.note_end(now);
    }

    /// Notes the end of a transfer; a job has ended when its last piece has.
    pub fn handle_completion(&mut self, completion: Completion) -> Option<Ended> {
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

    /// Drops what has not been begun of a read that nobody waits for any more. It is answered now,
    /// or by the last of its transfers; `None` also when all of it has been begun.
    pub fn forget(&mut self, block: BlockRef) -> Option<Ended> {
        if !self.sweeps.remove(block) && self.best_effort.withdraw(block).is_none() {
            return None;
        }
        let is_it = |open: &Open| (open.direction, open.block) == (Direction::Read, block);
        let Some(at) = self.open.iter().position(is_it) else {
            return Some(Ended::Filled(Filled { block, result: Err(Unfilled::Dropped) }));
        };
        let open = &mut self.open[at];
        open.cut = true;
        open.is_dropped = true;
        self.end_if_done(at)
    }

    /// The end of an open job whose last transfer has landed.
    fn end_if_done(&mut self, at: usize) -> Option<Ended> {
        if self.open[at].transfers > 0 || !self.open[at].cut {
            return None;
        }
        let Open { direction, block, bytes, fault, is_dropped, .. } = self.open.swap_remove(at);
        Some(match (direction, fault) {
            (Direction::Write, fault) => {
                Ended::Written(Written { block, result: fault.map_or(Ok(()), Err) })
            }
            (Direction::Read, Some(fault)) => {
                Ended::Filled(Filled { block, result: Err(Unfilled::Fault(fault)) })
            }
            (Direction::Read, None) => {
                let result = if is_dropped { Err(Unfilled::Dropped) } else { Ok(bytes) };
                Ended::Filled(Filled { block, result })
            }
        })
    }

    /// Transfers at the device.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether flushes are at the device.
    pub fn is_flushing(&self) -> bool {
        self.flushes.is_under_way()
    }

    /// Whether a block that is due within the cycle that begins at `now` has not been begun: the
    /// cycle before should have done it.
    pub fn is_overdue(&self, now: MonoTime) -> bool {
        let limit = now + self.limits.length;
        self.sweeps.is_due_before(limit)
            || self.arrived.iter().any(|arrived| arrived.job.deadline < limit)
    }

    /// When something may begin that may not at `now`, if nothing is at the device and nothing
    /// comes.
    pub fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        let best_effort = (!self.best_effort.is_empty()).then(|| self.best_effort_from(now));
        let flush = self.flushes.is_waiting().then(|| {
            let rested = self.flushes.rested();
            if rested > now {
                rested.min(self.best_effort_from(now))
            } else {
                self.best_effort_from(now)
            }
        });
        let arrived = (!self.arrived.is_empty()).then(|| self.best_effort_from(now));
        // What is left over when nobody is running is swept after the head.
        let swept = self.sweeps.is_waiting().then(|| self.best_effort_from(now));
        [best_effort, flush, arrived, swept].into_iter().flatten().min()
    }

    /// When the cycle that `now` lies in ends.
    pub fn end_of_cycle(&self, now: MonoTime) -> MonoTime {
        MonoTime((self.cycle_of(now) + 1) * self.limits.length.0)
    }

    /// When work in free time that may not begin at `now` can be looked at again.
    fn best_effort_from(&self, now: MonoTime) -> MonoTime {
        let from = self.end_of_head(now);
        if now < from { from } else { from + self.limits.length }
    }

    fn cycle_of(&self, now: MonoTime) -> u64 {
        now.0 / self.limits.length.0
    }

    /// When the head of the cycle that `now` lies in ends.
    fn end_of_head(&self, now: MonoTime) -> MonoTime {
        let length = self.limits.length;
        MonoTime(self.cycle_of(now) * length.0) + Nanos(HEAD.0.min(length.0 / 10))
    }

    /// Whether what must be read in this cycle is known.
    fn is_asked(&self, now: MonoTime) -> bool {
        self.asked == self.cycle_of(now) || now >= self.end_of_head(now)
    }

    /// Recordings of earlier cycles join the sweep of this one.
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

    /// Takes what waits, most urgent first, as far as the model says that it can be done before the
    /// cycle ends, or uploads have their turn, and sorts it by place. What is left over has later
    /// deadlines and gets the next sweep: so the reads of a new cycle never wait for a long sweep
    /// over what was less urgent. While the running streams have not asked, what was left over is
    /// read one by one.
    fn begin_sweep(&mut self, now: MonoTime) {
        let reserve = self.reserve(now);
        let left = if mutant!(RoundIgnored, true, self.is_asked(now)) {
            self.end_of_cycle(now).since(now + self.flushes.left(now) + reserve)
        } else {
            Nanos(0)
        };
        let is_head = now < self.end_of_head(now);
        self.sweeps.begin(left, is_head || reserve == Nanos(0));
        if self.sweeps.is_waiting() && !self.sweeps.is_running() {
            self.yielded = Some(self.cycle_of(now));
        }
        self.committed = self.sweeps.is_waiting();
    }

    /// The end of the cycle that is kept for uploads that wait, as long as they can still use it.
    fn reserve(&mut self, now: MonoTime) -> Nanos {
        let (cycle, time) = (self.cycle_of(now), self.flushes.time());
        let flush = self.flushes.is_waiting() && !self.flushes.has_begun_in(cycle);
        let flush = flush && now + time <= self.end_of_cycle(now);
        let kept = self.floor_reserve(now) + if flush { time } else { Nanos(0) };
        if kept == Nanos(0) { kept } else { kept + self.slack() }
    }

    fn slack(&self) -> Nanos {
        Nanos(SLACK.0.min(self.limits.length.0 / 25))
    }

    /// The part of it that is for writing.
    fn floor_reserve(&mut self, now: MonoTime) -> Nanos {
        let Some(next) = self.best_effort.next_write() else { return Nanos(0) };
        self.floor.note_waiting(self.cycle_of(now));
        let owed = self.floor.owed();
        // What is owed is saved up until it is a piece.
        let is_usable = owed >= next.cost && self.is_before_the_end(now, next);
        if mutant!(FloorForgotten, false, is_usable) { owed } else { Nanos(0) }
    }

    /// The next piece of an upload, when the time kept for uploads has come.
    fn floor_piece(&mut self, now: MonoTime) -> Option<Next> {
        let reserve = self.floor_reserve(now);
        if reserve == Nanos(0) || now < self.end_of_head(now) {
            return None;
        }
        let nothing_else_fits = self.yielded == Some(self.cycle_of(now));
        let is_near = now + reserve + self.slack() >= self.end_of_cycle(now);
        // A disk that is slower than its model passes over the ends of cycles.
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
            let latest = end.before(time + self.slack());
            self.flushes.note_free(now, self.cycle_of(now), latest);
            let is_turn = now >= self.flushes.rested() && self.best_effort.is_turn_of_writes();
            if is_turn || self.best_effort.is_written() {
                return true;
            }
        }
        let is_time = now + self.reserve(now) >= end || self.yielded == Some(self.cycle_of(now));
        is_time && !self.flushes.has_begun_in(self.cycle_of(now))
    }

    /// Whether a piece may begin in free time.
    fn fits(&self, now: MonoTime, next: Next) -> bool {
        let may = mutant!(UploadsKeptBack, next.piece.direction == Direction::Read, true);
        may && now >= self.end_of_head(now) && self.is_before_the_end(now, next)
    }

    /// Whether a piece, with all of its kind before it, ends within the cycle.
    fn is_before_the_end(&self, now: MonoTime, next: Next) -> bool {
        let done = now + self.flushes.left(now) + self.best_effort.time_of(next);
        let end = match next.piece.direction {
            Direction::Read => mutant!(CycleEndIgnored, MonoTime(u64::MAX), self.end_of_cycle(now)),
            Direction::Write => {
                mutant!(WriteEndIgnored, MonoTime(u64::MAX), self.end_of_cycle(now))
            }
        };
        done <= end
    }

    fn begin_piece(&mut self, next: Next) -> Transfer {
        let taken = self.best_effort.take(next);
        if taken.piece.direction == Direction::Write {
            self.floor.note_used(next.cost);
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

/// The head of a cycle, in which the real-time jobs of the new cycle arrive: a message passes two
/// servers, which look for it every millisecond. Best-effort work that began in it would be in the
/// way of the sweep; at most a tenth of the cycle is given up for that.
const HEAD: Nanos = Nanos::from_millis(5);

/// Who drives the cycle looks once a millisecond whether something has ended, and what is at the
/// device by then ends first: uploads that had exactly their time would come too late.
const SLACK: Nanos = Nanos::from_millis(2);

/// A write that moved less than all of it: `EIO`.
const SHORT_WRITE: DiskFault = DiskFault(5);

#[cfg(test)]
mod tests;
