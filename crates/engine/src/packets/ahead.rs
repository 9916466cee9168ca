//! What is done for a whole turn before it begins.
//!
//! A stream's state is cold when its time comes: thousands of others have been sent for since. Met one after the other
//! each of its lines of memory is waited for alone, a sixth of what a message costs. Read in one go, with nothing that
//! depends on them between, they come together.

use std::hint::black_box;

use tactus_core::mutant;
use tactus_core::units::{MonoTime, Nanos};

use super::{Of, PacketServer};

impl PacketServer {
    /// Once in a turn, before anything leaves.
    pub(super) fn look_ahead(&mut self, now: MonoTime) {
        let turn = self.pacer.work().turns;
        if std::mem::replace(&mut self.looked_up, turn) == turn {
            return;
        }
        self.read_ahead();
        self.catch_up(now);
    }

    /// A turn that comes late finds more due of each stream than what leaves together as a rule. All of it goes as one
    /// message: what a message costs is what there is no time for. A port that keeps the times itself is not late.
    fn catch_up(&mut self, now: MonoTime) {
        let behind = self.pacer.behind();
        if behind == Nanos(0) || self.ahead > Nanos(0) {
            return;
        }
        let turn = MonoTime(now.0 / self.tick.0 * self.tick.0);
        for nth in 0..self.pacer.woken().len() {
            let class = self.pacer.woken()[nth];
            let Of::Read(index) = self.streams_of[class as usize] else { continue };
            let Some(entry) = &mut self.entries[index as usize] else { continue };
            // Classes are woken too, and places are used again.
            let Some(offered) = entry.offered.filter(|_| entry.class.index == class) else {
                continue;
            };
            // A class that may not send more is late because of that.
            let late = turn.min(offered.due + behind);
            let late = mutant!(LateEarly, late + Nanos::from_millis(50), late);
            if let Some(bytes) = entry.catch_up(late) {
                self.pacer.enlarge(entry.class, bytes);
            }
        }
    }

    /// Reads the state of those whose time has come, and then what that points to.
    fn read_ahead(&self) {
        let woken = || {
            self.pacer.woken().iter().filter_map(|&class| match self.streams_of[class as usize] {
                Of::Read(index) => Some(index as usize),
                Of::Generated(_) => None,
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
