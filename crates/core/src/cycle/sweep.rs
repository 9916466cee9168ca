//! Sweeps: the selection and the order of waiting real-time transfers.
//!
//! Promise: the most urgent jobs go first, as many as fit the given time by the model. Within a
//! sweep the order is that of positions; on a disk without an arm, that of deadlines. This module
//! does not decide when a sweep may begin.

use alloc::vec::Vec;

use super::Job;
use super::best_effort::moved;
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
    sweep: Vec<Job>,
}

struct QueuedJob {
    job: Job,
    /// The transfer begins at the end of the previous one, so the arm does not move. Set by
    /// `begin`.
    goes_on: bool,
}

impl Sweeps {
    pub(super) fn new(model: DiskModel, jobs_max: usize) -> Self {
        let (waiting, sweep) = (Vec::with_capacity(jobs_max), Vec::with_capacity(jobs_max));
        Self { model, waiting, sweep }
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
        let at = self.sweep.iter().position(is_it);
        at.is_some_and(|at| {
            self.sweep.remove(at);
            true
        })
    }

    /// The next transfer of the running sweep.
    pub(super) fn pop(&mut self) -> Option<Job> {
        self.sweep.pop()
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
        let waiting = self.waiting.iter().map(|waiting| &waiting.job);
        waiting.chain(&self.sweep).any(|job| job.deadline < limit)
    }

    /// Time by the model of all jobs that are due before `limit` and have not been begun.
    pub(super) fn backlog(&self, limit: MonoTime) -> Nanos {
        let waiting = self.waiting.iter().map(|waiting| &waiting.job);
        let due = waiting.chain(&self.sweep).filter(|job| job.deadline < limit);
        let mut cost = Cost::default();
        for job in due {
            cost.visits += 1;
            cost.moved = cost.moved.plus(moved(job.transfer.direction, job.transfer.len));
        }
        cost.time(&self.model)
    }

    /// Begins a sweep over the most urgent jobs that fit into `left`. With `at_least_one` it takes
    /// at least one job: no other work needs the time.
    pub(super) fn begin(&mut self, left: Nanos, at_least_one: bool) {
        let model = self.model;
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
            let first = cost.visits == 0 && at_least_one;
            cost.add(waiting) && (first || cost.time(&model) <= left)
        });
        let count = fits.count();
        self.sweep.extend(self.waiting.drain(..count).map(|waiting| waiting.job));
        // Popped from the back: the lowest position first. Without an arm the most urgent: a sweep
        // that takes too long then makes no stream late whose blocks are due after it.
        let has_arm = mutant!(SweepUnsorted, true, model.has_arm());
        self.sweep.sort_unstable_by_key(|job| {
            let position = mutant!(SweepUnsorted, job.deadline.0 % 997, job.position);
            core::cmp::Reverse(if has_arm { position } else { job.deadline.0 })
        });
    }
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
        let transfer = waiting.job.transfer;
        self.visits += u64::from(self.visits == 0 || !waiting.goes_on);
        self.moved = self.moved.plus(moved(transfer.direction, transfer.len));
        true
    }

    fn time(&self, model: &DiskModel) -> Nanos {
        model.moving(MilliVisits(self.visits * 1000), self.moved)
    }
}
