//! The disk server: the only user of its device.
//!
//! It moves jobs from the block server into the cycle's queues, transfers from the cycle to the
//! device, and filled blocks back. It does the same for the writes and flushes of its write path.
//! All decisions are in `tactus_core::cycle`. The control side decides what an error of a write or
//! flush means: the disk server reports each error once and repeats no request.

mod prober;
mod write_path;

use std::sync::Arc;

use tactus_core::cycle::{BlockReadEnd, Cycle, CycleLimits, IN_MEMORY_MAX, JobEnd, Turn};
use tactus_core::estimator::Estimate;
use tactus_core::ports::{Completion, Direction, DiskPort, Transfer, Waker};
use tactus_core::units::{MonoTime, Nanos};
use tactus_ring::spsc::{Consumer, Producer};

use crate::counters::DiskCounters;
use crate::internal::{Round, ToDisk};
use crate::server::Server;

use prober::Prober;

pub use prober::ProbeSetup;
pub(crate) use write_path::WritePath;

/// One device, its cycle, and the rings to its block server and its write path.
pub struct DiskServer<P> {
    port: P,
    cycle: Cycle,
    length: Nanos,
    requests: Consumer<ToDisk>,
    filled: Producer<BlockReadEnd>,
    /// The write path of uploads; `None` if the volume takes no uploads.
    write_path: Option<WritePath>,
    counters: Arc<DiskCounters>,
    published: PublishedEstimate,
    flying: Vec<InFlightTransfer>,
    /// `None` if the disk is not probed.
    prober: Option<Prober>,
    cycle_now: u64,
    /// If transfers were under way at the last poll: its time, and that to the next one.
    left: Option<(MonoTime, Nanos)>,
    /// When the flushes at the device were begun.
    flushing_since: Option<MonoTime>,
}

/// The rings of a disk server.
pub(crate) struct DiskRings {
    pub(crate) requests: Consumer<ToDisk>,
    pub(crate) filled: Producer<BlockReadEnd>,
    pub(crate) write_path: Option<WritePath>,
}

/// A transfer under way, and the time of its hand-over.
struct InFlightTransfer {
    transfer: Transfer,
    since: MonoTime,
    turn: Turn,
    /// It needs no device.
    in_memory: bool,
}

impl<P: DiskPort> DiskServer<P> {
    pub(crate) fn new(
        port: P,
        limits: CycleLimits,
        rings: DiskRings,
        (probe, waker): (Option<ProbeSetup>, Option<Box<dyn Waker>>),
        counters: Arc<DiskCounters>,
    ) -> Self {
        let flying = Vec::with_capacity((limits.in_flight_max() + IN_MEMORY_MAX) as usize);
        let (length, cycle) = (limits.length, Cycle::new(limits));
        let DiskRings { requests, filled, write_path } = rings;
        let (cycle_now, left, flushing_since) = (0, None, None);
        let prober = probe.map(Prober::new);
        let mut published = PublishedEstimate { waker, last: None };
        if let Some(estimate) = cycle.estimate() {
            published.publish(&counters, estimate);
        }
        Self {
            port,
            cycle,
            length,
            requests,
            filled,
            write_path,
            counters,
            published,
            flying,
            prober,
            cycle_now,
            left,
            flushing_since,
        }
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
                    let dropped = self.cycle.forget(block);
                    self.answer(dropped);
                }
                ToDisk::Commit(Round::Stream) => self.cycle.commit(),
                ToDisk::Commit(Round::Part) => self.cycle.commit_part(),
                ToDisk::Commit(Round::Cycle) => self.cycle.commit_cycle(now),
            }
        }
        match &mut self.write_path {
            Some(write_path) => any | write_path.take_requests(now, &mut self.cycle),
            None => any,
        }
    }

    fn take_completions(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(completion) = self.port.poll_completion(now) {
            any = true;
            let mut flying = self.flying.iter();
            let at = flying.position(|flying| flying.transfer == completion.transfer);
            let at = at.expect("the device completes each transfer once");
            let flying = self.flying.swap_remove(at);
            self.count(now, &flying, completion);
            let ended = if flying.in_memory {
                self.cycle.handle_completion_in_memory(now, completion, self.port.waited())
            } else {
                self.cycle.handle_completion(now, completion)
            };
            self.answer(ended);
        }
        any
    }

    fn answer(&mut self, ended: Option<JobEnd>) {
        match ended {
            Some(JobEnd::Filled(filled)) => {
                let pushed = self.filled.push(filled);
                assert!(pushed.is_ok(), "the ring holds every place of the arena");
            }
            Some(JobEnd::Written(written)) => self.write_path().written(written),
            None => {}
        }
    }

    fn count(&self, now: MonoTime, flying: &InFlightTransfer, completion: Completion) {
        let counters = &self.counters;
        let turn = flying.turn;
        if flying.transfer.direction == Direction::Write {
            counters.writes.add(1);
            match completion.result {
                Ok(bytes) => {
                    counters.written_bytes.add(u64::from(bytes));
                    let floor = if turn == Turn::Floor { u64::from(bytes) } else { 0 };
                    counters.floor_bytes.add(floor);
                }
                Err(_) => counters.write_faults.add(1),
            }
            return;
        }
        // What needs no device says nothing about it.
        if !flying.in_memory {
            counters.service.record(now.since(flying.since).0);
        }
        counters.transfers.add(1);
        match completion.result {
            Ok(bytes) if turn == Turn::RealTime => counters.real_time_bytes.add(u64::from(bytes)),
            Ok(bytes) => counters.best_effort_bytes.add(u64::from(bytes)),
            Err(_) => counters.faults.add(1),
        }
    }

    fn take_synced(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(synced) = self.port.poll_synced(now) {
            any = true;
            self.cycle.handle_synced(now);
            let write_path = self.write_path.as_mut().expect("only a write path asks for flushes");
            write_path.synced(now, synced, &mut self.cycle, &self.counters);
        }
        any
    }

    fn start(&mut self, now: MonoTime) -> bool {
        let mut any = self.start_syncs(now);
        while let Some((transfer, turn)) = self.cycle.poll_transfer(now) {
            let taken = self.port.submit(now, transfer);
            assert!(taken.is_ok(), "the device's queue is at least as deep as the model's depth");
            let is_read = transfer.direction == Direction::Read;
            let in_memory = turn == Turn::RealTime && is_read && !self.port.needs_device();
            if turn == Turn::RealTime {
                self.cycle.note_begun(now, !in_memory);
            }
            self.flying.push(InFlightTransfer { transfer, since: now, turn, in_memory });
            // Best-effort pieces take turns with flushes, few at a time.
            if turn == Turn::RealTime
                && let len @ 1.. = self.port.read_ahead()
            {
                self.cycle.note_read_ahead(now, len);
            }
            any = true;
        }
        // Real-time work may have left room only for a flush.
        any |= self.start_syncs(now);
        if any {
            self.port.kick(now);
        }
        any
    }

    fn start_syncs(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(sync) = self.cycle.poll_sync(now) {
            let taken = self.port.submit_sync(now, sync);
            assert!(taken.is_ok(), "the port takes as many flushes as are in a group");
            self.write_path().note_sync(now, sync);
            self.flushing_since = Some(now);
            any = true;
        }
        any
    }

    fn write_path(&mut self) -> &mut WritePath {
        self.write_path.as_mut().expect("only a write path writes")
    }

    /// Time until the next poll for completions. Reads from memory end at once, and their blocks
    /// are due much later: the core polls for them when it next wakes to send. When each of these
    /// polls woke the core, it woke for them more often than for sends.
    fn next_look(&self, now: MonoTime) -> Nanos {
        match self.flushing_since {
            Some(since) => flush_look(now.since(since), self.port.first_look()),
            None => self.cycle.patience(now).clamp(POLL_INTERVAL, POLL_INTERVAL_MAX),
        }
    }

    /// Counts a missed cycle, one that ends with real-time work in the queue, and one through which
    /// an upload has waited.
    fn watch_cycle(&mut self, now: MonoTime) {
        let cycle = now.0 / self.length.0;
        if cycle != self.cycle_now {
            if cycle == self.cycle_now + 1 && self.cycle.is_overdue(now) {
                self.counters.cycles_missed.add(1);
            }
            let begun = MonoTime(self.cycle_now * self.length.0);
            let oldest = self.write_path.as_ref().and_then(WritePath::oldest);
            let waited = oldest.is_some_and(|oldest| oldest < begun);
            self.counters.upload_cycles_waited.add(u64::from(waited));
            self.counters.upload_time.set(self.cycle.upload_time().0);
            self.cycle_now = cycle;
        }
    }
}

impl<P: DiskPort + Send> Server for DiskServer<P> {
    fn poll(&mut self, now: MonoTime) -> bool {
        let (left, planned) = self.left.take().unwrap_or((now, Nanos(0)));
        let away = now.since(left).saturating_sub(planned.saturating_sub(POLL_INTERVAL));
        if away > AWAY {
            self.counters.unattended.add(away.0);
        }
        self.watch_cycle(now);
        if self.cycle.end_cycles(now)
            && let Some(estimate) = self.cycle.estimate()
        {
            self.published.publish(&self.counters, estimate);
        }
        let mut any = self.take_requests(now);
        if self.cycle.in_flight() > 0 {
            any |= self.take_completions(now);
            if let Some(prober) = &mut self.prober {
                any |= prober.take_completions(now, &mut self.cycle, &self.counters);
            }
            if away > IN_TIME {
                self.cycle.note_late_poll(now, Nanos(away.0 - IN_TIME.0));
            }
        }
        if self.cycle.is_flushing() {
            any |= self.take_synced(now);
        }
        any |= self.start(now);
        if let Some(prober) = &mut self.prober {
            any |= prober.start(now, &mut self.cycle);
        }
        if let Some(write_path) = &mut self.write_path {
            write_path.wake();
        }
        if !self.cycle.is_flushing() {
            self.flushing_since = None;
        }
        let in_flight = self.cycle.in_flight() as u64 + u64::from(self.cycle.is_flushing());
        self.counters.in_flight.set(in_flight);
        self.left = (in_flight > 0).then(|| (now, self.next_look(now)));
        any
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        if self.flushing_since.is_some() || self.cycle.in_flight() > 0 {
            return Some(now + self.next_look(now));
        }
        self.cycle.poll_timeout(now)
    }

    fn may_leave(&mut self) -> bool {
        self.port.may_leave() && self.prober.as_mut().is_none_or(Prober::may_leave)
    }

    fn leave(&mut self, cpu: u32) {
        self.port.leave(cpu);
        if let Some(prober) = &mut self.prober {
            prober.leave(cpu);
        }
    }
}

/// Time until the next look for the end of flushes that were begun so long ago. The answer is late
/// by half of the time that they take, or by `first`, and by an interval at most.
fn flush_look(elapsed: Nanos, first: Nanos) -> Nanos {
    Nanos(elapsed.0 / 2).clamp(first.min(POLL_INTERVAL), POLL_INTERVAL)
}

/// The estimate that the control side has.
struct PublishedEstimate {
    /// Wakes the control side when the ratio, the pressure or the leftover changes.
    waker: Option<Box<dyn Waker>>,
    last: Option<Estimate>,
}

impl PublishedEstimate {
    fn publish(&mut self, counters: &DiskCounters, estimate: Estimate) {
        let Estimate { ratio, pressure, leftover, confidence, samples } = estimate;
        counters.model_ratio.set(u64::from(ratio.0));
        counters.pressure.set(pressure.map_or(0, |ratio| u64::from(ratio.0)));
        counters.leftover.set(leftover as u64);
        counters.confidence.set(u64::from(confidence));
        counters.samples.set(samples);
        let last = self.last.replace(estimate);
        let is_news = last.is_some_and(|last| {
            (last.ratio, last.pressure, last.leftover) != (ratio, pressure, leftover)
        });
        if is_news && let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

/// A poll that comes later than this was held up by other programs: several times the time of the
/// other servers of a core.
const AWAY: Nanos = Nanos::from_millis(5);

/// Interval of polling for completions while there are transfers: a wake-up for each one would cost
/// 4 us a block. The queue has to be deep enough to last so long (`DiskModel::polled_every`).
pub const POLL_INTERVAL: Nanos = Nanos::from_millis(1);

/// Longest interval of polling while all transfers are reads from memory. A core that sends two
/// hundred television streams wakes about as often.
const POLL_INTERVAL_MAX: Nanos = Nanos::from_millis(10);

/// A poll in this time after the last one is in time.
const IN_TIME: Nanos = Nanos::from_micros(1_250);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tactus_core::disk_model::Ratio;
    use tactus_core::estimator::Leftover;

    use super::*;

    struct Woken(Arc<AtomicU32>);

    impl Waker for Woken {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn r11_the_control_side_wakes_for_what_changes_a_promise_and_for_nothing_else() {
        let woken = Arc::new(AtomicU32::new(0));
        let waker: Box<dyn Waker> = Box::new(Woken(Arc::clone(&woken)));
        let mut published = PublishedEstimate { waker: Some(waker), last: None };
        let counters = DiskCounters::default();
        let calm = Estimate {
            ratio: Ratio::ONE,
            pressure: None,
            leftover: Leftover::Nothing,
            confidence: 0,
            samples: 0,
        };
        let slow = Estimate { ratio: Ratio::of_thousandths(1_500), ..calm };
        let behind = Estimate { leftover: Leftover::Deferred, ..slow };
        let late = Estimate {
            leftover: Leftover::Promised,
            pressure: Some(Ratio::of_thousandths(2_000)),
            ..behind
        };
        let surer = Estimate { confidence: 500, samples: 10, ..calm };
        let steps =
            [(calm, 0), (calm, 0), (surer, 0), (slow, 1), (slow, 1), (behind, 2), (late, 3)];
        for (estimate, wakes) in steps.into_iter().chain([(late, 3), (calm, 4)]) {
            published.publish(&counters, estimate);
            assert_eq!(counters.estimate(), estimate);
            assert_eq!(woken.load(Ordering::Relaxed), wakes, "{estimate:?}");
        }
    }

    #[test]
    fn the_end_of_a_flush_is_found_soon_and_by_few_looks() {
        let shortest = Nanos::from_micros(100);
        for micros in (1..40_000).step_by(7) {
            let took = Nanos::from_micros(micros);
            let (mut elapsed, mut looks) = (Nanos(0), 0);
            while elapsed < took {
                elapsed += flush_look(elapsed, shortest);
                looks += 1;
            }
            let late = Nanos(elapsed.0 - took.0);
            assert!(late <= Nanos(took.0 / 2).max(shortest), "{late} after {took}");
            assert!(late <= POLL_INTERVAL, "{late} after {took}");
            assert!(looks <= 8 + micros / 1_000, "{looks} looks in {took}");
        }
        // A device whose flushes are long is looked at once in an interval.
        assert_eq!(flush_look(Nanos(0), POLL_INTERVAL), POLL_INTERVAL);
        assert_eq!(flush_look(Nanos(0), Nanos::from_millis(5)), POLL_INTERVAL);
    }
}
