//! One disk's cycle: decides which transfer goes to the device next.
//!
//! Promise: within a cycle, real-time transfers come first and in sweep order; when none is left,
//! best-effort work goes on in pieces of at most 128 KiB, each only if the model says that it ends
//! before the cycle does; then the disk rests. The depth at the device is bounded here, because a
//! deep device queue defeats any order. It knows no streams and reads no clock.
//!
//! ```text
//! |-- real-time, sorted --|-- best effort, piece by piece --|- rest -|-- real-time ...
//! cycle begins                                           guard     cycle ends
//! ```

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::disk_model::{DiskModel, MilliVisits};
use crate::mutant;
use crate::ports::{BlockRef, Completion, DiskFault, Transfer};
use crate::splitter::Pieces;
use crate::units::{Bytes, MonoTime, Nanos};

/// A block to fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// What to read, and where to.
    pub transfer: Transfer,
    /// When the block's first byte is due.
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

/// What bounds a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleLimits {
    /// How long one turn of the disk is; divides or is a multiple of one second.
    pub length: Nanos,
    /// What the disk can do.
    pub model: DiskModel,
    /// Best-effort pieces in flight at once.
    pub best_effort_depth: u32,
    /// Most blocks that may wait: the places of the arena.
    pub jobs_max: usize,
}

/// The queues of one disk and the rule between them.
pub struct Cycle {
    limits: CycleLimits,
    /// Real-time jobs that no sweep has taken yet.
    waiting: Vec<Waiting>,
    /// The running sweep, last element first.
    sweep: Vec<Job>,
    best_effort: VecDeque<Job>,
    /// The best-effort job that is being cut.
    cutting: Option<Cutting>,
    /// Jobs whose transfers are at the device.
    open: Vec<Open>,
    in_flight: u32,
    best_effort_in_flight: u32,
    /// A round of requests has ended since the last sweep began.
    committed: bool,
    /// The last cycle in which the running streams have asked.
    asked: u64,
}

struct Waiting {
    job: Job,
    /// It begins where the one before it ends, so the arm stays where it is. Set by `begin_sweep`.
    goes_on: bool,
}

struct Cutting {
    job: Job,
    pieces: Pieces,
}

/// A job with transfers at the device.
struct Open {
    block: BlockRef,
    transfers: u32,
    /// Those of them that are best effort.
    best_effort: u32,
    bytes: u32,
    fault: Option<Unfilled>,
    /// All pieces have been handed out.
    cut: bool,
}

impl Cycle {
    /// Empty queues; all memory is taken now.
    pub fn new(limits: CycleLimits) -> Self {
        let jobs = limits.jobs_max;
        Self {
            limits,
            waiting: Vec::with_capacity(jobs),
            sweep: Vec::with_capacity(jobs),
            best_effort: VecDeque::with_capacity(jobs),
            cutting: None,
            open: Vec::with_capacity(jobs),
            in_flight: 0,
            best_effort_in_flight: 0,
            committed: false,
            asked: 0,
        }
    }

    /// Adds a real-time job; it is considered from the next commit on.
    ///
    /// # Panics
    /// When more jobs wait than the arena has places.
    pub fn add_real_time(&mut self, job: Job) {
        assert!(self.waiting.len() < self.limits.jobs_max, "a job has a place in the arena");
        self.waiting.push(Waiting { job, goes_on: false });
    }

    /// Adds a job that may wait for free time.
    ///
    /// # Panics
    /// When more jobs wait than the arena has places.
    pub fn add_best_effort(&mut self, job: Job) {
        assert!(self.best_effort.len() < self.limits.jobs_max, "a job has a place in the arena");
        self.best_effort.push_back(job);
    }

    /// Makes a waiting job as urgent as `deadline`: a paced stream wants the same block by then.
    pub fn promote(&mut self, block: BlockRef, deadline: MonoTime) {
        let mut waiting = self.waiting.iter_mut().map(|waiting| &mut waiting.job);
        if let Some(job) = waiting.find(|job| job.transfer.block == block) {
            job.deadline = job.deadline.min(deadline);
            return;
        }
        if let Some(cutting) = self.cutting.take_if(|cutting| cutting.job.transfer.block == block)
            && let Some(rest) = cutting.pieces.rest()
            && rest.at > cutting.job.transfer.at
        {
            // Its first pieces are at the device: the rest follows in one.
            let position = cutting.job.position + u64::from(rest.at - cutting.job.transfer.at);
            self.add_real_time(Job { transfer: rest, deadline, position });
            return;
        }
        let at = self.best_effort.iter().position(|job| job.transfer.block == block);
        if let Some(job) = at.and_then(|at| self.best_effort.remove(at)) {
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
        self.asked = now.0 / self.limits.length.0;
    }

    /// The next transfer for the device, if one may start at `now`, and whether it is real-time.
    pub fn poll_transfer(&mut self, now: MonoTime) -> Option<(Transfer, bool)> {
        if self.in_flight >= self.limits.model.depth {
            return None;
        }
        if self.sweep.is_empty() && self.committed {
            self.begin_sweep(now);
        }
        if let Some(job) = self.sweep.pop() {
            self.open_transfer(job.transfer.block, false, true);
            return Some((job.transfer, true));
        }
        self.poll_best_effort(now).map(|piece| (piece, false))
    }

    /// Notes the end of a transfer; the block is filled when its last piece is.
    pub fn handle_completion(&mut self, completion: Completion) -> Option<Filled> {
        let at = self.open_at(completion.transfer.block);
        let open = &mut self.open[at];
        open.transfers -= 1;
        self.in_flight -= 1;
        if open.best_effort > 0 {
            open.best_effort -= 1;
            self.best_effort_in_flight -= 1;
        }
        match completion.result {
            Ok(bytes) => open.bytes += bytes,
            Err(fault) => open.fault = Some(Unfilled::Fault(fault)),
        }
        self.fill_if_done(at)
    }

    /// Drops what has not been begun of a job that nobody waits for any more. It is answered now, or by
    /// the last of its transfers; `None` also when all of it has been begun.
    pub fn forget(&mut self, block: BlockRef) -> Option<Filled> {
        if !self.remove(block) {
            return None;
        }
        let Some(at) = self.open.iter().position(|open| open.block == block) else {
            return Some(Filled { block, result: Err(Unfilled::Dropped) });
        };
        let open = &mut self.open[at];
        open.cut = true;
        open.fault = open.fault.or(Some(Unfilled::Dropped));
        self.fill_if_done(at)
    }

    /// Takes a job, or what is left of it, out of its queue.
    fn remove(&mut self, block: BlockRef) -> bool {
        let is_it = |job: &Job| job.transfer.block == block;
        if let Some(at) = self.waiting.iter().position(|waiting| is_it(&waiting.job)) {
            self.waiting.swap_remove(at);
            return true;
        }
        if let Some(at) = self.sweep.iter().position(is_it) {
            self.sweep.remove(at);
            return true;
        }
        // Until its first piece has been begun, what is being cut is also in the queue.
        let was_cut = self.cutting.take_if(|cutting| is_it(&cutting.job)).is_some();
        let at = self.best_effort.iter().position(is_it);
        at.and_then(|at| self.best_effort.remove(at)).is_some() || was_cut
    }

    /// The answer to an open job whose last transfer has landed.
    fn fill_if_done(&mut self, at: usize) -> Option<Filled> {
        if self.open[at].transfers > 0 || !self.open[at].cut {
            return None;
        }
        let Open { block, bytes, fault, .. } = self.open.swap_remove(at);
        Some(Filled { block, result: fault.map_or(Ok(bytes), Err) })
    }

    /// Transfers at the device.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether a block that is due within the cycle that begins at `now` has not been begun: the
    /// cycle before should have read it.
    pub fn is_overdue(&self, now: MonoTime) -> bool {
        let limit = now + self.limits.length;
        let waiting = self.waiting.iter().map(|waiting| &waiting.job);
        waiting.chain(&self.sweep).any(|job| job.deadline < limit)
    }

    /// Whether best-effort work waits for the next cycle.
    pub fn best_effort_waiting(&self) -> bool {
        self.cutting.is_some() || !self.best_effort.is_empty()
    }

    /// When the cycle that `now` lies in ends.
    pub fn end_of_cycle(&self, now: MonoTime) -> MonoTime {
        MonoTime((now.0 / self.limits.length.0 + 1) * self.limits.length.0)
    }

    /// When best-effort work that may not begin at `now` can be looked at again.
    pub fn best_effort_from(&self, now: MonoTime) -> MonoTime {
        let from = self.end_of_head(now);
        if now < from { from } else { from + self.limits.length }
    }

    /// When the head of the cycle that `now` lies in ends.
    fn end_of_head(&self, now: MonoTime) -> MonoTime {
        let length = self.limits.length;
        MonoTime(now.0 / length.0 * length.0) + Nanos(HEAD.0.min(length.0 / 10))
    }

    /// Takes what waits, most urgent first, as far as the model says that it can be read before the
    /// cycle ends, and sorts it by place. What is left over has later deadlines and gets the next
    /// sweep: so the reads of a new cycle never wait for a long sweep over what was less urgent. While
    /// the running streams have not asked, what was left over is read one by one.
    fn begin_sweep(&mut self, now: MonoTime) {
        let asked = self.asked == now.0 / self.limits.length.0 || now >= self.end_of_head(now);
        let left = if mutant!(RoundIgnored, true, asked) {
            self.end_of_cycle(now).since(now)
        } else {
            Nanos(0)
        };
        let model = self.limits.model;
        self.waiting.sort_unstable_by_key(|waiting| waiting.job.position);
        let mut end = None;
        for waiting in &mut self.waiting {
            waiting.goes_on = end == Some(waiting.job.position);
            end = Some(waiting.job.position + u64::from(waiting.job.transfer.len));
        }
        let mut cost = Cost::default();
        if !self.waiting.iter().all(|waiting| cost.add(waiting) && cost.time(&model) <= left) {
            self.waiting
                .sort_unstable_by_key(|waiting| (waiting.job.deadline, waiting.job.position));
        }
        let mut cost = Cost::default();
        let fits = self.waiting.iter().take_while(|waiting| {
            let first = cost.visits == 0;
            cost.add(waiting) && (first || cost.time(&model) <= left)
        });
        let count = fits.count();
        self.sweep.extend(self.waiting.drain(..count).map(|waiting| waiting.job));
        self.committed = !self.waiting.is_empty();
        // Popped from the back: the lowest place first.
        self.sweep.sort_unstable_by_key(|job| {
            core::cmp::Reverse(mutant!(SweepUnsorted, job.deadline.0 % 997, job.position))
        });
    }

    fn poll_best_effort(&mut self, now: MonoTime) -> Option<Transfer> {
        if self.best_effort_in_flight >= self.limits.best_effort_depth || !self.waiting.is_empty() {
            return None;
        }
        if self.cutting.is_none() {
            let job = *self.best_effort.front()?;
            self.cutting = Some(Cutting { job, pieces: Pieces::of(job.transfer) });
        }
        let piece = self.cutting.as_ref()?.pieces.peek()?;
        let queued = u64::from(self.best_effort_in_flight) + 1;
        let one = self.limits.model.reading(MilliVisits(1000), Bytes(u64::from(piece.len)));
        let end = mutant!(CycleEndIgnored, MonoTime(u64::MAX), self.end_of_cycle(now));
        let head_is_over = self.best_effort_from(now) > self.end_of_cycle(now);
        if !head_is_over || now + one.times(queued) > end {
            return None;
        }
        let cutting = self.cutting.as_mut()?;
        let first = piece.at == cutting.job.transfer.at;
        cutting.pieces.next();
        let done = cutting.pieces.peek().is_none();
        if first {
            self.best_effort.pop_front();
        }
        if done {
            self.cutting = None;
        }
        self.open_transfer(piece.block, true, done);
        Some(piece)
    }

    /// Notes a transfer that goes to the device, and whether it is the last of its block.
    fn open_transfer(&mut self, block: BlockRef, best_effort: bool, last: bool) {
        self.in_flight += 1;
        self.best_effort_in_flight += u32::from(best_effort);
        let known = self.open.iter().position(|open| open.block == block);
        let at = known.unwrap_or_else(|| {
            let (transfers, best_effort, bytes, fault, cut) = (0, 0, 0, None, false);
            self.open.push(Open { block, transfers, best_effort, bytes, fault, cut });
            self.open.len() - 1
        });
        let open = &mut self.open[at];
        open.transfers += 1;
        open.best_effort += u32::from(best_effort);
        open.cut = last;
    }

    fn open_at(&self, block: BlockRef) -> usize {
        let at = self.open.iter().position(|open| open.block == block);
        at.expect("the device only completes what was submitted")
    }
}

/// What a sweep costs so far.
#[derive(Default)]
struct Cost {
    visits: u64,
    bytes: Bytes,
}

impl Cost {
    /// Counts one more job; always true, so that it can stand in a condition.
    fn add(&mut self, waiting: &Waiting) -> bool {
        self.visits += u64::from(self.visits == 0 || !waiting.goes_on);
        self.bytes += Bytes(u64::from(waiting.job.transfer.len));
        true
    }

    fn time(&self, model: &DiskModel) -> Nanos {
        model.reading(MilliVisits(self.visits * 1000), self.bytes)
    }
}

/// The head of a cycle, in which the real-time jobs of the new cycle arrive: a message passes two
/// servers, which look for it every millisecond. Best-effort work that began in it would be in the
/// way of the sweep; at most a tenth of the cycle is given up for that.
const HEAD: Nanos = Nanos::from_millis(5);

#[cfg(test)]
#[path = "cycle/tests.rs"]
mod tests;
