//! The disk server: the only one that talks to its device.
//!
//! It moves jobs from the block server into the cycle's queues, transfers from the cycle to the
//! device, and filled blocks back. All decisions are `tactus_core::cycle`'s.

use std::sync::Arc;

use tactus_core::cycle::{Cycle, CycleLimits, Filled};
use tactus_core::ports::{DiskPort, Transfer};
use tactus_core::units::{MonoTime, Nanos};
use tactus_ring::spsc::{Consumer, Producer};

use crate::counters::DiskCounters;
use crate::internal::{Round, ToDisk};
use crate::server::Server;

/// One device, its cycle, and the rings to its block server.
pub struct DiskServer<P> {
    port: P,
    cycle: Cycle,
    length: Nanos,
    requests: Consumer<ToDisk>,
    filled: Producer<Filled>,
    counters: Arc<DiskCounters>,
    /// Transfers at the device, and when they went there.
    flying: Vec<(Transfer, MonoTime, bool)>,
    cycle_now: u64,
}

impl<P: DiskPort> DiskServer<P> {
    pub(crate) fn new(
        port: P,
        limits: CycleLimits,
        requests: Consumer<ToDisk>,
        filled: Producer<Filled>,
        counters: Arc<DiskCounters>,
    ) -> Self {
        let flying = Vec::with_capacity(limits.model.depth as usize);
        let (length, cycle) = (limits.length, Cycle::new(limits));
        Self { port, cycle, length, requests, filled, counters, flying, cycle_now: 0 }
    }

    fn take_requests(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(request) = self.requests.pop() {
            any = true;
            match request {
                ToDisk::Read { job, best_effort: true } => self.cycle.add_best_effort(job),
                ToDisk::Read { job, best_effort: false } => self.cycle.add_real_time(job),
                ToDisk::Promote { block, deadline } => self.cycle.promote(block, deadline),
                ToDisk::Drop { block } => {
                    if let Some(dropped) = self.cycle.forget(block) {
                        self.answer(dropped);
                    }
                }
                ToDisk::Commit(Round::Stream) => self.cycle.commit(),
                ToDisk::Commit(Round::Cycle) => self.cycle.commit_cycle(now),
            }
        }
        any
    }

    fn take_completions(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(completion) = self.port.poll_completion(now) {
            any = true;
            let at = self.flying.iter().position(|&(transfer, ..)| transfer == completion.transfer);
            let at = at.expect("the device completes each transfer once");
            let (_, since, real_time) = self.flying.swap_remove(at);
            self.counters.service.record(now.since(since).0);
            self.counters.transfers.add(1);
            match completion.result {
                Ok(bytes) if real_time => self.counters.real_time_bytes.add(u64::from(bytes)),
                Ok(bytes) => self.counters.best_effort_bytes.add(u64::from(bytes)),
                Err(_) => self.counters.faults.add(1),
            }
            if let Some(filled) = self.cycle.handle_completion(completion) {
                self.answer(filled);
            }
        }
        any
    }

    fn answer(&mut self, filled: Filled) {
        let pushed = self.filled.push(filled);
        assert!(pushed.is_ok(), "the ring holds every place of the arena");
    }

    fn start_transfers(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some((transfer, real_time)) = self.cycle.poll_transfer(now) {
            let taken = self.port.submit(now, transfer);
            assert!(taken.is_ok(), "the device's queue is at least as deep as the model's depth");
            self.flying.push((transfer, now, real_time));
            any = true;
        }
        if any {
            self.port.kick(now);
        }
        any
    }

    /// A cycle that ends with real-time work in the queue has been missed.
    fn watch_cycle(&mut self, now: MonoTime) {
        let cycle = now.0 / self.length.0;
        if cycle != self.cycle_now {
            if cycle == self.cycle_now + 1 && self.cycle.is_overdue(now) {
                self.counters.cycles_missed.add(1);
            }
            self.cycle_now = cycle;
        }
    }
}

impl<P: DiskPort + Send> Server for DiskServer<P> {
    fn poll(&mut self, now: MonoTime) -> bool {
        self.watch_cycle(now);
        let mut any = self.take_requests(now);
        if self.cycle.in_flight() > 0 {
            any |= self.take_completions(now);
        }
        any | self.start_transfers(now)
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        if self.cycle.in_flight() > 0 {
            return Some(now + LOOK_AGAIN);
        }
        self.cycle.best_effort_waiting().then(|| self.cycle.best_effort_from(now))
    }
}

/// How often the completions are looked at while there are transfers: waking for each one would cost
/// 4 us a block. At depth 16 and 256 KiB this still moves 4 GB/s.
const LOOK_AGAIN: Nanos = Nanos::from_millis(1);
