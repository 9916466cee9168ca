//! Where continuity counters and timestamps are behind each datagram of a trick.
//!
//! Promise: whoever goes on behind the last datagram that has left learns what stood in it, however much had been made ahead. It is of the four streams that a trick has: three tables, and the pictures.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::ts::trick::{Counts, VideoProgram};
use tactus_core::ts::{Count, PACKET, Packet, Pid};

/// One is written, the other one read.
#[derive(Clone)]
pub(super) struct Trail(Arc<Mutex<Steps>>);

/// What a datagram leaves behind.
#[derive(Clone, Copy)]
struct Step {
    counts: [u8; 4],
    /// Ticks of 90 kHz from the first timestamp.
    ticks: u32,
}

struct Steps {
    /// Of the association table, the program's table, that of the services, and the pictures.
    pids: [Pid; 4],
    /// In what was cut last.
    now: [u8; 4],
    /// Behind each datagram, but for the first ones.
    behind: VecDeque<Step>,
    /// How many of those are forgotten.
    forgotten: u64,
}

/// Datagrams that are remembered: half a second is made ahead, and one picture more, which is fewer at 1 Gbit/s.
const STEPS_MAX: usize = 65_536;

impl Trail {
    /// Of what is shown as `video_program`, behind `before`.
    pub(super) fn new(video_program: &VideoProgram, before: &[Count]) -> Self {
        let pids = [Pid(0), video_program.pmt_pid, Pid::SDT, video_program.pid];
        let last = |pid| before.iter().find(|count| count.pid == pid).map_or(0, |count| count.last);
        let (now, behind) = (pids.map(last), VecDeque::new());
        Self(Arc::new(Mutex::new(Steps { pids, now, behind, forgotten: 0 })))
    }

    /// What the next packets go on behind.
    pub(super) fn counts(&self) -> Counts {
        let [pat, pmt, sdt, video_program] = self.steps().now;
        Counts { pat, pmt, sdt, video_program }
    }

    /// These packets are the next datagram, with this timestamp from the first one on.
    pub(super) fn add<'a>(&self, ticks: u32, packets: impl Iterator<Item = &'a [u8; PACKET]>) {
        let mut steps = self.steps();
        for packet in packets.filter_map(Packet::read) {
            if let Some(place) = steps.pids.iter().position(|pid| *pid == packet.pid()) {
                steps.now[place] = packet.continuity();
            }
        }
        let counts = steps.now;
        steps.behind.push_back(Step { counts, ticks });
        if steps.behind.len() > STEPS_MAX {
            steps.behind.pop_front();
            steps.forgotten += 1;
        }
    }

    /// Where counters and timestamps are when so many datagrams have left; nothing when none has.
    pub(super) fn behind(&self, datagrams: u64) -> (Vec<Count>, u32) {
        let steps = self.steps();
        let nth = datagrams.checked_sub(steps.forgotten + 1);
        let behind = nth.and_then(|nth| steps.behind.get(usize::try_from(nth).ok()?));
        let Some(Step { counts, ticks }) = behind else { return (vec![], 0) };
        let all = steps.pids.iter().zip(counts);
        let of = |(&pid, &last)| Count { pid, last, step: 0, is_behind: true };
        (all.map(of).collect(), *ticks)
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        // Each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
