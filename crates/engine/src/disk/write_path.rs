//! The write path: requests to write and flush uploads come in, and their answers go out.
//!
//! Promise: each request is answered once, with the result of the device, and not before the device
//! has answered. A failed flush is never repeated. A request for a flush that waits already joins
//! it: the flush covers all that was done before it begins.

use tactus_core::cycle::{BlockWriteEnd, Cycle, Job};
use tactus_core::mutant;
use tactus_core::ports::{Direction, DiskFault, Sync, SyncResult, Transfer, Waker};
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
    /// The write in each place of the write share.
    writes: Vec<PlaceWrite>,
    /// Flushes that wait in the cycle, and the times of their requests.
    waiting: Vec<(Sync, MonoTime)>,
    /// Flushes at the device, and the times of their hand-over.
    flushing: Vec<(Sync, MonoTime)>,
    /// Requests that have joined a flush.
    joined: Vec<JoinedRequest>,
}

/// The last write of a place.
#[derive(Clone, Copy, Default)]
struct PlaceWrite {
    token: u32,
    /// When an upload has requested it; `None` for one that has ended, or of a recording.
    since: Option<MonoTime>,
}

/// A request that is answered with the result of another request's flush.
struct JoinedRequest {
    token: u32,
    /// The token of that flush.
    flush: u32,
}

impl WritePath {
    /// Makes a write path for a write share with this number of `places`, with at most `syncs_max`
    /// unanswered flushes, of which `flushes` are at the device.
    pub(crate) fn new(
        places: u32,
        syncs_max: usize,
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
            writes: vec![PlaceWrite::default(); places as usize],
            waiting: Vec::with_capacity(syncs_max),
            flushing: Vec::with_capacity(flushes),
            joined: Vec::with_capacity(syncs_max),
        }
    }

    pub(super) fn take_requests(&mut self, now: MonoTime, cycle: &mut Cycle) -> bool {
        let mut any = false;
        while let Some(request) = self.requests.pop() {
            any = true;
            match request {
                WriteRequest::Write { token, block, file, offset, len, class, position } => {
                    let since = matches!(class, WriteClass::BestEffort).then_some(now);
                    self.writes[block.place as usize] = PlaceWrite { token, since };
                    let direction = Direction::Write;
                    let transfer = Transfer::new(direction, block, file, offset, len);
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
                    self.add_sync(now, Sync { token, file, reach }, cycle);
                }
            }
        }
        any
    }

    /// Adds a flush to the cycle, or joins one of the same file that has not begun.
    fn add_sync(&mut self, now: MonoTime, sync: Sync, cycle: &mut Cycle) {
        let is_same = |other: &&Sync| (other.file, other.reach) == (sync.file, sync.reach);
        let late =
            mutant!(JoinLate, self.flushing.iter().map(|(sync, _)| sync).find(is_same), None);
        let mut waiting = self.waiting.iter().map(|(sync, _)| sync);
        match waiting.find(is_same).or(late) {
            Some(&Sync { token: flush, .. }) => {
                self.joined.push(JoinedRequest { token: sync.token, flush });
            }
            None => {
                self.waiting.push((sync, now));
                cycle.add_sync(sync);
            }
        }
    }

    /// The request of the write or flush of an upload that has waited the longest.
    pub(super) fn oldest(&self) -> Option<MonoTime> {
        let writes = self.writes.iter().filter_map(|write| write.since);
        writes.chain(self.waiting.iter().map(|&(_, since)| since)).min()
    }

    pub(super) fn written(&mut self, written: BlockWriteEnd) {
        let write = &mut self.writes[written.block.place as usize];
        write.since = None;
        let token = write.token;
        self.answer(WriteAnswer::Written { token, result: written.result });
    }

    /// Notes that a flush goes to the device: later requests do not join it.
    pub(super) fn note_sync(&mut self, now: MonoTime, sync: Sync) {
        let at = self.waiting.iter().position(|(waiting, _)| waiting.token == sync.token);
        self.waiting.swap_remove(at.expect("a flush waits before it begins"));
        self.flushing.push((sync, now));
        if mutant!(AckBeforeFlush, true, false) {
            self.answer_synced(sync.token, Ok(()));
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
            self.waiting.push((sync, now));
            cycle.add_sync(sync);
            return;
        }
        if mutant!(AckBeforeFlush, true, false) {
            return;
        }
        self.answer_synced(sync.token, synced.result);
    }

    /// Answers a flush, and all requests that have joined it.
    fn answer_synced(&mut self, flush: u32, result: Result<(), DiskFault>) {
        self.answer(WriteAnswer::Synced { token: flush, result });
        while let Some(at) = self.joined.iter().position(|joined| joined.flush == flush) {
            let JoinedRequest { token, .. } = self.joined.swap_remove(at);
            self.answer(WriteAnswer::Synced { token, result });
        }
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
