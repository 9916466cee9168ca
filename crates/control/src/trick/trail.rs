//! The trail: continuity counters and timestamps behind each datagram of a trick play.
//!
//! Promise: the counters behind the last sent datagram are available, however many datagrams were
//! generated ahead. The trail covers the four elementary streams of a trick play: three tables, and
//! the video frames.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::ts::trick::{Counts, VideoProgram};
use tactus_core::ts::{Count, PACKET, Packet, Pid};

/// One handle writes, the other one reads.
#[derive(Clone)]
pub(super) struct Trail(Arc<Mutex<Steps>>);

/// The state behind a datagram.
#[derive(Clone, Copy)]
struct Step {
    counts: [u8; 4],
    /// Ticks of 90 kHz from the first timestamp.
    ticks: u32,
}

struct Steps {
    /// PIDs of the association table, the program map table, the service description table, and the
    /// video frames.
    pids: [Pid; 4],
    /// Counters in the last datagram.
    now: [u8; 4],
    /// The state behind each datagram, except the first ones.
    behind: VecDeque<Step>,
    /// Number of removed entries.
    forgotten: u64,
}

/// Limit of the entries: half a second is generated ahead, and one video frame more; at 1 Gbit/s
/// these are fewer datagrams.
const STEPS_MAX: usize = 65_536;

impl Trail {
    /// A trail of a trick play with `video_program`, continuing the counters `before`.
    pub(super) fn new(video_program: &VideoProgram, before: &[Count]) -> Self {
        let pids = [Pid(0), video_program.pmt_pid, Pid::SDT, video_program.pid];
        let last = |pid| before.iter().find(|count| count.pid == pid).map_or(0, |count| count.last);
        let (now, behind) = (pids.map(last), VecDeque::new());
        Self(Arc::new(Mutex::new(Steps { pids, now, behind, forgotten: 0 })))
    }

    /// The counters that the next packets continue.
    pub(super) fn counts(&self) -> Counts {
        let [pat, pmt, sdt, video_program] = self.steps().now;
        Counts { pat, pmt, sdt, video_program }
    }

    /// Adds the next datagram, with these packets and this timestamp relative to the first one.
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

    /// Counters and timestamp when this number of datagrams have left; empty if none has.
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
        // Each change is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
