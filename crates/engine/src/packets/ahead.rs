//! Work for a whole turn, before the turn begins.
//!
//! A stream's state is cold when it is due: thousands of other streams have been sent since. Loaded
//! one after the other, each cache line costs a full wait, a sixth of the cost of a message. Loaded
//! together, without dependencies between them, the waits overlap.

use std::hint::black_box;

use tactus_core::mutant;
use tactus_core::units::{MonoTime, Nanos};

use super::{PacketServer, StreamKind};

impl PacketServer {
    /// Runs once in a turn, before the first message leaves.
    pub(super) fn look_ahead(&mut self, now: MonoTime) {
        let turn = self.pacer.work().turns;
        if std::mem::replace(&mut self.looked_up, turn) == turn {
            return;
        }
        self.read_ahead();
        self.catch_up(now);
    }

    /// In a late turn, each stream has more due than the normal message. All of it goes into one
    /// message, as the cost is per message and time is short. A port with transmit times of its own
    /// is not late.
    fn catch_up(&mut self, now: MonoTime) {
        let behind = self.pacer.behind();
        if behind == Nanos(0) || self.ahead > Nanos(0) {
            return;
        }
        let turn = MonoTime(now.0 / self.tick.0 * self.tick.0);
        for nth in 0..self.pacer.woken().len() {
            let class = self.pacer.woken()[nth];
            let StreamKind::Read(index) = self.streams_of[class as usize] else { continue };
            let Some(entry) = &mut self.entries[index as usize] else { continue };
            // The pacer wakes inner classes too, and slots are reused.
            let Some(offered) = entry.offered.filter(|_| entry.class.index == class) else {
                continue;
            };
            // A class that has used up its limit is late for that reason only.
            let late = turn.min(offered.due + behind);
            let late = mutant!(LateEarly, late + Nanos::from_millis(50), late);
            if let Some(bytes) = entry.catch_up(late) {
                self.pacer.enlarge(entry.class, bytes);
            }
        }
    }

    /// Loads the state of the due streams, and then the memory that this state points to.
    fn read_ahead(&self) {
        let woken = || {
            self.pacer.woken().iter().filter_map(|&class| match self.streams_of[class as usize] {
                StreamKind::Read(index) => Some(index as usize),
                StreamKind::Generated(_) => None,
            })
        };
        let mut read = 0;
        for index in woken() {
            let counters = &self.streams[index];
            read ^= counters.bytes.value() ^ counters.session_bytes.value();
            read ^= self.entries[index].as_ref().map_or(0, |entry| entry.look_up());
        }
        for entry in woken().filter_map(|index| self.entries[index].as_ref()) {
            let fed = self.fed.first(&entry.fed).map_or(0, |fed| u64::from(fed.at) ^ fed.offset.0);
            read ^= entry.cutter.look_up_plan() ^ fed;
        }
        black_box(read);
    }
}
