//! Full UDP outputs: their kept messages, and the streams that wait for them.
//!
//! Promise: a full UDP output makes only its own streams late. It loses nothing, and its messages
//! leave in order when it has room again. No allocation after the start. Kept messages lie in the
//! memory of their batch. If UDP outputs that became full one after the other use all of that
//! memory, all streams wait.

use std::collections::VecDeque;

use tactus_core::mutant;
use tactus_core::pacer::STALL_MAX;
use tactus_core::ports::{BatchProgress, SocketHandle, Stop};
use tactus_core::units::MonoTime;

use super::PacketServer;
use super::batch::{Batch, DueMessage, KEPT_MAX};
use crate::pool::{List, Pool};

/// Full UDP outputs that are tried in a tick. A thousand full UDP outputs then cost a part of the
/// core, and each is tried every 16 ms.
const LOOKS_MAX: usize = 16;

/// All full UDP outputs; the first one is tried next.
pub(super) struct FullUdpOutputs {
    udp_outputs: VecDeque<FullOutput>,
    /// Time of the next try.
    again: MonoTime,
    kept: Pool<DueMessage>,
    waiting: Pool<u32>,
}

#[derive(Clone, Copy)]
struct FullOutput {
    udp_output: SocketHandle,
    since: MonoTime,
    /// Its kept messages.
    kept: List,
    /// The slots of streams that have become due meanwhile. Their next message stays with them.
    waiting: List,
}

impl FullUdpOutputs {
    pub(super) fn new(streams: usize) -> Self {
        let (kept, waiting) = (Pool::new(KEPT_MAX), Pool::new(streams));
        let udp_outputs = VecDeque::with_capacity(streams + 1);
        Self { udp_outputs, again: MonoTime(0), kept, waiting }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.udp_outputs.is_empty()
    }

    /// The time of the next try.
    pub(super) fn again(&self) -> Option<MonoTime> {
        (!self.is_empty()).then_some(self.again)
    }

    fn find(&mut self, udp_output: SocketHandle) -> Option<&mut FullOutput> {
        self.udp_outputs.iter_mut().find(|full| full.udp_output == udp_output)
    }

    /// Whether the due stream in `place` must wait because its UDP output is full.
    pub(super) fn waits(&mut self, place: u32, udp_output: SocketHandle) -> bool {
        let Self { udp_outputs, waiting, .. } = self;
        let is_its =
            |full: &&mut FullOutput| mutant!(FullForAll, true, full.udp_output == udp_output);
        let Some(full) = udp_outputs.iter_mut().find(is_its) else { return false };
        waiting.push_back(&mut full.waiting, place);
        true
    }

    /// Whether the first message of the batch is kept, as its UDP output is full.
    fn keeps(&mut self, udp_output: SocketHandle, batch: &mut Batch) -> bool {
        let Self { udp_outputs, kept, .. } = self;
        let Some(full) = udp_outputs.iter_mut().find(|full| full.udp_output == udp_output) else {
            return false;
        };
        kept.push_back(&mut full.kept, batch.keep());
        true
    }

    /// Forgets the waiting streams: all have new times.
    pub(super) fn forget_waiting(&mut self) {
        for full in &mut self.udp_outputs {
            while self.waiting.pop_front(&mut full.waiting).is_some() {}
        }
    }

    /// Removes the messages of the closed stream in `place`. A UDP output without messages stays
    /// listed until its next try.
    pub(super) fn cancel(&mut self, place: u32, batch: &mut Batch) {
        for full in &mut self.udp_outputs {
            let count = self.kept.iter(&full.kept).count();
            for _ in 0..count {
                let gathered = self.kept.pop_front(&mut full.kept).expect("so many were counted");
                if gathered.index == place {
                    batch.give_back(&gathered);
                } else {
                    self.kept.push_back(&mut full.kept, gathered);
                }
            }
            let count = self.waiting.iter(&full.waiting).count();
            for _ in 0..count {
                let other = self.waiting.pop_front(&mut full.waiting).expect("it was counted");
                if other != place {
                    self.waiting.push_back(&mut full.waiting, other);
                }
            }
        }
    }
}

impl PacketServer {
    /// Offers the gathered messages to their UDP outputs. The messages that a UDP output does not
    /// take are kept for it.
    pub(super) fn flush(&mut self, now: MonoTime) {
        while let Some(udp_output) = self.batch.udp_output() {
            if self.full.keeps(udp_output, &mut self.batch) {
                continue;
            }
            let described = self.batch.describe(
                self.batch.first_of_one_udp_output(),
                &self.entries,
                &self.generated,
                &self.fed,
                &self.memories,
            );
            let (batch, due) = (described.batch(), described.due());
            let BatchProgress { messages, stop } =
                self.port.send_timed(now, udp_output, batch, due);
            self.counters.calls.add(1);
            for _ in 0..messages {
                let gathered = self.batch.take();
                self.leave(&gathered, true);
            }
            match stop {
                None => {}
                Some(Stop::Full) if !mutant!(FullDropped, true, false) => {
                    self.fill_up(now, now, udp_output, List::default());
                }
                Some(Stop::Refused(_) | Stop::Full) => {
                    let gathered = self.batch.take();
                    let was_taken =
                        stop == Some(Stop::Full) || mutant!(RefusedCounted, true, false);
                    self.leave(&gathered, was_taken);
                }
            }
        }
    }

    fn fill_up(&mut self, now: MonoTime, since: MonoTime, udp_output: SocketHandle, waiting: List) {
        self.counters.full.add(1);
        let FullUdpOutputs { udp_outputs, again, .. } = &mut self.full;
        if udp_outputs.is_empty() {
            *again = now + self.tick;
        }
        if udp_outputs.len() == udp_outputs.capacity() {
            // Entries of streams that have been closed meanwhile; each of the others has a message.
            udp_outputs.retain(|full| !full.kept.is_empty() || !full.waiting.is_empty());
        }
        assert!(udp_outputs.len() < udp_outputs.capacity(), "each has a stream");
        udp_outputs.push_back(FullOutput { udp_output, since, kept: List::default(), waiting });
    }

    /// Offers full UDP outputs their kept messages, if it is time. Returns whether there was a UDP
    /// output to try.
    pub(super) fn look_at_full(&mut self, now: MonoTime) -> bool {
        if self.full.is_empty() || now < self.full.again {
            return false;
        }
        self.full.again = now + self.tick;
        // UDP outputs that are still full, or full again, go to the end.
        for _ in 0..self.full.udp_outputs.len().min(LOOKS_MAX) {
            let is_open = self.offer_kept(now);
            let first = self.full.udp_outputs.pop_front().expect("nobody else takes it out");
            if is_open {
                self.open_again(now, first);
            } else {
                self.full.udp_outputs.push_back(first);
            }
        }
        true
    }

    /// Whether the first UDP output has taken all kept messages.
    fn offer_kept(&mut self, now: MonoTime) -> bool {
        while let FullOutput { udp_output, kept, .. } = self.full.udp_outputs[0]
            && !kept.is_empty()
        {
            let described = self.batch.describe(
                self.full.kept.iter(&kept),
                &self.entries,
                &self.generated,
                &self.fed,
                &self.memories,
            );
            let (batch, due) = (described.batch(), described.due());
            let BatchProgress { messages, stop } =
                self.port.send_timed(now, udp_output, batch, due);
            self.counters.calls.add(1);
            for _ in 0..messages {
                self.leave_kept(true);
            }
            match stop {
                None => {}
                Some(Stop::Refused(_)) => self.leave_kept(false),
                Some(Stop::Full) => {
                    self.counters.full.add(1);
                    return false;
                }
            }
        }
        true
    }

    fn leave_kept(&mut self, was_taken: bool) {
        let kept = &mut self.full.udp_outputs[0].kept;
        let gathered = self.full.kept.pop_front(kept).expect("what was offered is kept");
        self.leave(&gathered, was_taken);
        self.batch.give_back(&gathered);
    }

    /// The UDP output has taken all kept messages: its waiting streams continue, each with one
    /// message. A very late stream gets a new time for the rest.
    fn open_again(&mut self, now: MonoTime, full: FullOutput) {
        let FullOutput { udp_output, since, mut waiting, .. } = full;
        if now.since(since) > STALL_MAX {
            self.counters.stalls.add(1);
        }
        while !waiting.is_empty() {
            if !self.batch.has_room() {
                self.flush(now);
            }
            if let Some(full) = self.full.find(udp_output) {
                full.waiting = waiting;
                return;
            }
            if !self.batch.has_room() {
                self.fill_up(now, since, udp_output, waiting);
                return;
            }
            let place = self.full.waiting.pop_front(&mut waiting).expect("somebody waits");
            self.depart(now, place);
        }
    }

    /// Removes all messages of the closed stream in `place` from batches.
    pub(super) fn cancel(&mut self, place: u32) {
        self.batch.cancel(place);
        if !self.full.is_empty() {
            self.full.cancel(place, &mut self.batch);
        }
    }
}
