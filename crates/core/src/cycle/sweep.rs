//! Sweeps: the selection and the order of waiting real-time transfers.
//!
//! Promise: the most urgent jobs go first, as many as fit the given time by the model. Within a
//! sweep the order is that of positions; on a disk without an arm, that of deadlines. The first
//! blocks of new streams interrupt a sweep of an arm if by the model all of it still ends in the
//! given time. This module does not decide when a sweep may begin.

use alloc::vec::Vec;

use super::best_effort::moved;
use super::{FAR, JOIN, Job};
use crate::disk_model::{DiskModel, MilliVisits, TransferredBytes};
use crate::mutant;
use crate::ports::{BlockRef, Direction};
use crate::units::{MonoTime, Nanos};

/// The waiting jobs, and the running sweep.
pub(super) struct Sweeps {
    model: DiskModel,
    /// Jobs outside of any sweep.
    waiting: Vec<QueuedJob>,
    /// The running sweep, last element first.
    sweep: Vec<QueuedJob>,
    /// Cost of the running sweep.
    rest: Cost,
}

struct QueuedJob {
    job: Job,
    /// The transfer begins at the end of the previous one, so the arm does not move. Set by
    /// `begin` and `interrupt`.
    goes_on: bool,
}

impl QueuedJob {
    fn moved(&self) -> TransferredBytes {
        moved(self.job.transfer.direction, self.job.transfer.len)
    }

    fn end(&self) -> u64 {
        self.job.position + u64::from(self.job.transfer.len)
    }

    /// The first blocks of a new stream: nothing is promised yet.
    fn is_first(&self, now: MonoTime) -> bool {
        (now + FAR..=now + JOIN).contains(&self.job.deadline)
    }
}

impl Sweeps {
    pub(super) fn new(model: DiskModel, jobs_max: usize) -> Self {
        let (waiting, sweep) = (Vec::with_capacity(jobs_max), Vec::with_capacity(jobs_max));
        Self { model, waiting, sweep, rest: Cost::default() }
    }

    pub(super) fn set_model(&mut self, model: DiskModel) {
        self.model = model;
    }

    pub(super) fn push(&mut self, job: Job) {
        assert!(self.waiting.len() < self.waiting.capacity(), "a job has a place in its arena");
        self.waiting.push(QueuedJob { job, goes_on: false });
    }

    /// Moves the deadline of the read of `block` to `deadline`, if it waits.
    pub(super) fn promote(&mut self, block: BlockRef, deadline: MonoTime) -> bool {
        let mut waiting = self.waiting.iter_mut().map(|waiting| &mut waiting.job);
        let job = waiting
            .find(|job| job.transfer.block == block && job.transfer.direction == Direction::Read);
        let found = job.map(|job| job.deadline = job.deadline.min(deadline));
        found.is_some()
    }

    /// Removes the read of `block`, if it waits or is still ahead in the running sweep.
    pub(super) fn remove(&mut self, block: BlockRef) -> bool {
        let is_it =
            |job: &Job| (job.transfer.direction, job.transfer.block) == (Direction::Read, block);
        if let Some(at) = self.waiting.iter().position(|waiting| is_it(&waiting.job)) {
            self.waiting.swap_remove(at);
            return true;
        }
        let at = self.sweep.iter().position(|swept| is_it(&swept.job));
        at.is_some_and(|at| {
            self.sweep.remove(at);
            self.count_rest();
            true
        })
    }

    /// The next transfer of the running sweep.
    pub(super) fn pop(&mut self) -> Option<Job> {
        let next = self.sweep.pop()?;
        self.rest.remove(&next);
        Some(next.job)
    }

    pub(super) fn is_running(&self) -> bool {
        !self.sweep.is_empty()
    }

    /// Whether jobs wait outside of any sweep.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a job that is due before `limit` has not been begun.
    pub(super) fn is_due_before(&self, limit: MonoTime) -> bool {
        let jobs = self.waiting.iter().chain(&self.sweep);
        jobs.map(|queued| &queued.job).any(|job| job.deadline < limit)
    }

    /// Time by the model of all jobs that are due before `limit` and have not been begun.
    pub(super) fn backlog(&self, limit: MonoTime) -> Nanos {
        let jobs = self.waiting.iter().chain(&self.sweep).map(|queued| &queued.job);
        let due = jobs.filter(|job| job.deadline < limit);
        let mut cost = Cost::default();
        for job in due {
            cost.visits += 1;
            cost.moved = cost.moved.plus(moved(job.transfer.direction, job.transfer.len));
        }
        cost.time(&self.model)
    }

    /// Begins a sweep over the most urgent jobs that fit into `left`. With `at_least_one` it takes
    /// at least one job: no other work needs the time. On a disk with an arm, the first blocks of
    /// new streams do not join a sweep of other jobs, in which they could wait for nearly a cycle:
    /// they [interrupt](Self::interrupt) it, or follow.
    pub(super) fn begin(&mut self, now: MonoTime, left: Nanos, at_least_one: bool) {
        let model = self.model;
        self.waiting.sort_unstable_by_key(|waiting| waiting.job.position);
        let mut end = None;
        for waiting in &mut self.waiting {
            waiting.goes_on = end == Some(waiting.job.position);
            end = Some(waiting.end());
        }
        let mut cost = Cost::default();
        let firsts = self.waiting.iter().filter(|waiting| waiting.is_first(now)).count();
        let are_apart = model.has_arm() && (1..self.waiting.len()).contains(&firsts);
        let fits_all = |waiting: &QueuedJob| cost.add(waiting) && cost.time(&model) <= left;
        if are_apart || !self.waiting.iter().all(fits_all) {
            self.waiting
                .sort_unstable_by_key(|waiting| (waiting.job.deadline, waiting.job.position));
        }
        let mut cost = Cost::default();
        let fits = self.waiting.iter().take_while(|waiting| {
            let first = cost.visits == 0 && at_least_one;
            let is_apart = are_apart && waiting.is_first(now);
            !is_apart && cost.add(waiting) && (first || cost.time(&model) <= left)
        });
        let count = fits.count();
        self.sweep.extend(self.waiting.drain(..count));
        // Popped from the back: the lowest position first. Without an arm the most urgent: a sweep
        // that takes too long then makes no stream late whose blocks are due after it.
        let has_arm = mutant!(SweepUnsorted, true, model.has_arm());
        self.sweep.sort_unstable_by_key(|QueuedJob { job, .. }| {
            let position = mutant!(SweepUnsorted, job.deadline.0 % 997, job.position);
            core::cmp::Reverse(if has_arm { position } else { job.deadline.0 })
        });
        self.count_rest();
    }

    /// Whether the running sweep may be interrupted for the first blocks of new streams: they wait,
    /// nothing else does, and the next transfer is not of a new stream.
    pub(super) fn may_interrupt(&self, now: MonoTime) -> bool {
        let is_next = self.sweep.last().is_some_and(|next| !next.is_first(now));
        let is_arm = self.model.has_arm() && is_next && !self.waiting.is_empty();
        is_arm && self.waiting.iter().all(|waiting| waiting.job.deadline >= now + FAR)
    }

    /// Puts the first blocks of the new streams that came first in front of the running sweep, as
    /// many as leave it enough of `left` by the model. They are swept in the order of positions;
    /// then the arm goes back.
    pub(super) fn interrupt(&mut self, now: MonoTime, left: Nanos) {
        let model = self.model;
        self.waiting.sort_unstable_by_key(|waiting| (waiting.job.deadline, waiting.job.position));
        let firsts = || self.waiting.iter().take_while(|waiting| waiting.is_first(now));
        let Some(first) = firsts().next().map(|first| first.job.deadline) else { return };
        let way_back = model.moving(MilliVisits(1000), TransferredBytes::NOTHING);
        let for_firsts = left.saturating_sub(self.rest.time(&model) + way_back);
        let count = fitting(&model, for_firsts, firsts());
        // All of the first stream, or nothing: it begins only with all its blocks.
        if firsts().nth(count).is_some_and(|next| next.job.deadline == first) {
            return;
        }
        let begun = self.sweep.len();
        self.sweep.extend(self.waiting.drain(..count));
        self.sweep[begun..].sort_unstable_by_key(|first| core::cmp::Reverse(first.job.position));
        self.count_rest();
        if self.rest.time(&model) + way_back > left {
            // Blocks of several streams lie between each other: the arm moves more often in the
            // order of positions than in that of the streams, in which they were counted.
            let later = self.sweep.extract_if(begun.., |swept| swept.job.deadline != first);
            self.waiting.extend(later);
            self.count_rest();
        }
    }

    /// Counts the cost of the running sweep.
    fn count_rest(&mut self) {
        let (mut end, mut rest) = (None, Cost::default());
        for swept in self.sweep.iter_mut().rev() {
            swept.goes_on = end == Some(swept.job.position);
            end = Some(swept.end());
            rest.visits += u64::from(!swept.goes_on);
            rest.moved = rest.moved.plus(swept.moved());
        }
        self.rest = rest;
    }
}

/// The number of jobs in this order that fit into `left`.
fn fitting<'a>(model: &DiskModel, left: Nanos, jobs: impl Iterator<Item = &'a QueuedJob>) -> usize {
    let (mut end, mut cost) = (None, Cost::default());
    let fits = jobs.take_while(|waiting| {
        let goes_on = end == Some(waiting.job.position);
        end = Some(waiting.end());
        cost.add(&QueuedJob { job: waiting.job, goes_on }) && cost.time(model) <= left
    });
    fits.count()
}

/// The cost of a sweep so far.
#[derive(Default)]
struct Cost {
    visits: u64,
    moved: TransferredBytes,
}

impl Cost {
    /// Counts one more job; always true, for use in a condition.
    fn add(&mut self, waiting: &QueuedJob) -> bool {
        self.visits += u64::from(self.visits == 0 || !waiting.goes_on);
        self.moved = self.moved.plus(waiting.moved());
        true
    }

    /// The cost without one of its jobs.
    fn remove(&mut self, swept: &QueuedJob) {
        self.visits -= u64::from(!swept.goes_on);
        self.moved = self.moved.minus(swept.moved());
    }

    fn time(&self, model: &DiskModel) -> Nanos {
        model.moving(MilliVisits(self.visits * 1000), self.moved)
    }
}
