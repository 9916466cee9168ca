//! Best-effort streams: round robin in the time that paced streams leave, with a budget of bytes.

use tactus_core::ports::LinkPort;
use tactus_core::stagger::Slot;
use tactus_core::units::{Bytes, KIB, MIB, MonoTime};

use super::framing::Limit;
use super::{Attempt, LinkServer};
use crate::message::Outcome;

/// Bytes that all best-effort streams together send in one slot. 800 MB/s, and a paced stream of
/// the next slot waits at most 0.3 ms for it.
const SLOT_BUDGET: Bytes = Bytes(MIB);
/// Bytes that one stream sends in its turn.
const TURN_BUDGET: Bytes = Bytes(256 * KIB);
/// Slots for which a stream with a full socket is skipped: 5 ms.
const BACK_OFF: u64 = 4;

/// The order of service.
pub(super) struct BestEffort {
    streams: Vec<u32>,
    /// Index of each stream in `streams`.
    at: Vec<usize>,
    next: usize,
}

impl BestEffort {
    pub(super) fn new(streams: usize) -> Self {
        Self { streams: Vec::with_capacity(streams), at: vec![0; streams], next: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(super) fn enter(&mut self, stream: u32) {
        self.at[stream as usize] = self.streams.len();
        self.streams.push(stream);
    }

    pub(super) fn leave(&mut self, stream: u32) {
        let at = self.at[stream as usize];
        self.streams.swap_remove(at);
        if let Some(&moved) = self.streams.get(at) {
            self.at[moved as usize] = at;
        }
    }

    fn turn(&mut self) -> Option<u32> {
        if self.next >= self.streams.len() {
            self.next = 0;
        }
        let stream = self.streams.get(self.next).copied();
        self.next += 1;
        stream
    }
}

impl<P: LinkPort> LinkServer<P> {
    /// Serves each best-effort stream once, until the slot's budget is used.
    pub(super) fn serve_best_effort(&mut self, now: MonoTime) -> bool {
        let mut budget = SLOT_BUDGET;
        let mut any = false;
        for _ in 0..self.best_effort.streams.len() {
            let Some(index) = self.best_effort.turn() else { break };
            let delivery = &self.deliveries[index as usize];
            let most = delivery.queue.available.min(TURN_BUDGET).min(budget);
            if most > Bytes(0) && delivery.not_before <= self.slot {
                any = true;
                budget -= self.serve_one(now, index, most);
            }
            self.watch_drain(now, index);
            if budget == Bytes(0) {
                break;
            }
        }
        any
    }

    fn serve_one(&mut self, now: MonoTime, index: u32, most: Bytes) -> Bytes {
        let before = self.deliveries[index as usize].queue.sent;
        let attempt = self.send(now, index, Limit::at(before + most));
        let slot = self.slot;
        let delivery = &mut self.deliveries[index as usize];
        let taken = delivery.queue.sent - before;
        match attempt {
            Attempt::Ended(outcome) => self.close(index, outcome),
            Attempt::Whole if delivery.is_complete() => self.close(index, Outcome::Complete),
            Attempt::Whole => {}
            Attempt::Blocked => delivery.not_before = Slot(slot.0 + BACK_OFF),
        }
        taken
    }

    fn watch_drain(&mut self, now: MonoTime, index: u32) {
        let patience = self.patience;
        let delivery = &mut self.deliveries[index as usize];
        let (since, sent) = delivery.drained;
        if delivery.stream.is_none() || now.since(since) < patience.drain_window {
            return;
        }
        let starved = delivery.queue.available == Bytes(0);
        if !starved && delivery.queue.sent.saturating_sub(sent) < patience.drain_min {
            self.close(index, Outcome::TooSlow);
            return;
        }
        delivery.drained = (now, delivery.queue.sent);
    }
}
