//! The write path: requests to write and flush uploads come in, and their answers go out.
//!
//! Promise: each request is answered once, with the result of the device, and not before the device
//! has answered. A failed flush is never repeated.

use tactus_core::cycle::{BlockWriteEnd, Cycle, Job};
use tactus_core::mutant;
use tactus_core::ports::{Direction, Sync, SyncResult, Transfer, Waker};
use tactus_core::units::MonoTime;
use tactus_ring::spsc::{Consumer, Producer};

use crate::counters::DiskCounters;
use crate::message::{WriteAnswer, WriteClass, WriteRequest};

/// One volume's write path.
pub(crate) struct WritePath {
    requests: Consumer<WriteRequest>,
    answers: Producer<WriteAnswer>,
    /// Wakes the control side when there are answers.
    waker: Box<dyn Waker>,
    answered: bool,
    /// The token of the write in each place of the write share.
    tokens: Vec<u32>,
    /// Flushes at the device, and the times of their hand-over.
    flushing: Vec<(Sync, MonoTime)>,
}

impl WritePath {
    /// Makes a write path for a write share with this number of `places`.
    pub(crate) fn new(
        places: u32,
        flushes: usize,
        requests: Consumer<WriteRequest>,
        answers: Producer<WriteAnswer>,
        waker: Box<dyn Waker>,
    ) -> Self {
        Self {
            requests,
            answers,
            waker,
            answered: false,
            tokens: vec![0; places as usize],
            flushing: Vec::with_capacity(flushes),
        }
    }

    pub(super) fn take_requests(&mut self, now: MonoTime, cycle: &mut Cycle) -> bool {
        let mut any = false;
        while let Some(request) = self.requests.pop() {
            any = true;
            match request {
                WriteRequest::Write { token, block, file, offset, len, class, position } => {
                    self.tokens[block.place as usize] = token;
                    let direction = Direction::Write;
                    let transfer =
                        Transfer { direction, block, file, offset, at: 0, len, sum: None };
                    match class {
                        WriteClass::BestEffort => {
                            let deadline = MonoTime(u64::MAX);
                            cycle.add_best_effort(Job { transfer, deadline, position });
                        }
                        WriteClass::Paced { deadline } => {
                            cycle.add_recording(now, Job { transfer, deadline, position });
                        }
                    }
                }
                WriteRequest::Sync { token, file, reach } => {
                    cycle.add_sync(Sync { token, file, reach });
                }
            }
        }
        any
    }

    pub(super) fn written(&mut self, written: BlockWriteEnd) {
        let token = self.tokens[written.block.place as usize];
        self.answer(WriteAnswer::Written { token, result: written.result });
    }

    pub(super) fn note_sync(&mut self, now: MonoTime, sync: Sync) {
        self.flushing.push((sync, now));
        if mutant!(AckBeforeFlush, true, false) {
            self.answer(WriteAnswer::Synced { token: sync.token, result: Ok(()) });
        }
    }

    pub(super) fn synced(
        &mut self,
        now: MonoTime,
        synced: SyncResult,
        cycle: &mut Cycle,
        counters: &DiskCounters,
    ) {
        let at = self.flushing.iter().position(|&(sync, _)| sync == synced.sync);
        let (sync, since) = self.flushing.swap_remove(at.expect("a flush ends once"));
        counters.sync_time.record(now.since(since).0);
        counters.syncs.add(1);
        counters.sync_faults.add(u64::from(synced.result.is_err()));
        if mutant!(SyncRetried, synced.result.is_err(), false) {
            cycle.add_sync(sync);
            return;
        }
        if mutant!(AckBeforeFlush, true, false) {
            return;
        }
        self.answer(WriteAnswer::Synced { token: sync.token, result: synced.result });
    }

    /// Wakes the control side if there are answers.
    pub(super) fn wake(&mut self) {
        if std::mem::take(&mut self.answered) {
            self.waker.wake();
        }
    }

    fn answer(&mut self, answer: WriteAnswer) {
        let pushed = self.answers.push(answer);
        assert!(pushed.is_ok(), "the ring holds an answer for every place and flush");
        self.answered = true;
    }
}
