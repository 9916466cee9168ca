//! The schedule: which streams the link visits in which slot.
//!
//! Promise: each stream is visited in the slots of its tick and phase, and no slot is much fuller
//! than the others. Few streams share few slots, so an almost idle link rarely wakes.

use tactus_core::stagger::{SLOTS_PER_SECOND, Slot, Tick};

const NONE: u32 = u32::MAX;

/// The period of all ticks, in slots.
const TURN: usize = SLOTS_PER_SECOND as usize;

/// A slot takes streams until it sends this much; then the next slot opens. Thirty television
/// streams: under 1 ms of sending in a slot of 1.25 ms. Fuller slots wake fewer threads, here and
/// at local receivers, for the same bytes.
const COMFORTABLE: u64 = 2 * 1024 * 1024;

/// Lists of streams by tick and phase.
pub(super) struct Schedule {
    heads: [Vec<u32>; Tick::ALL.len()],
    nodes: Vec<Node>,
    /// Bytes that each slot of the turn sends.
    load: Vec<u64>,
    /// Streams that each slot of the turn visits.
    visits: Vec<u32>,
    /// Number of streams.
    streams: usize,
}

#[derive(Clone, Copy)]
struct Node {
    before: u32,
    after: u32,
    tick: Tick,
    phase: u32,
    bytes: u64,
}

impl Schedule {
    pub(super) fn new(streams: usize) -> Self {
        let empty = Node { before: NONE, after: NONE, tick: Tick::Ms10, phase: 0, bytes: 0 };
        Self {
            // The last slot of a longer interval belongs to no phase: its list stays empty.
            heads: Tick::ALL.map(|tick| vec![NONE; tick.slots() as usize]),
            nodes: vec![empty; streams],
            load: vec![0; TURN],
            visits: vec![0; TURN],
            streams: 0,
        }
    }

    /// Enters a stream that sends `bytes` each `tick`. Returns the slot after `now` in which it is
    /// first visited.
    pub(super) fn enter(&mut self, stream: u32, tick: Tick, bytes: u64, now: Slot) -> Slot {
        // From the next slot on, so that of equal phases the soonest wins.
        let slots = (1..=tick.slots()).map(|ahead| Slot(now.0 + ahead));
        let first = slots
            .filter(|slot| slot.phase(tick) < tick.phases())
            .min_by_key(|slot| self.cost(tick, slot.phase(tick), bytes))
            .expect("never empty");
        let phase = first.phase(tick);
        self.add(tick, phase, bytes, true);
        self.streams += 1;
        let head = &mut self.heads[tick as usize][phase as usize];
        let after = std::mem::replace(head, stream);
        if after != NONE {
            self.nodes[after as usize].before = stream;
        }
        self.nodes[stream as usize] =
            Node { before: NONE, after, tick, phase: phase as u32, bytes };
        first
    }

    /// Removes a stream.
    pub(super) fn leave(&mut self, stream: u32) {
        let Node { before, after, tick, phase, bytes } = self.nodes[stream as usize];
        match before {
            NONE => self.heads[tick as usize][phase as usize] = after,
            before => self.nodes[before as usize].after = after,
        }
        if after != NONE {
            self.nodes[after as usize].before = before;
        }
        self.add(tick, u64::from(phase), bytes, false);
        self.streams -= 1;
    }

    /// How often a stream is visited.
    pub(super) fn tick(&self, stream: u32) -> Tick {
        self.nodes[stream as usize].tick
    }

    /// The first stream to visit in `slot` with `tick`; the others follow by [`Self::after`].
    pub(super) fn first(&self, slot: Slot, tick: Tick) -> Option<u32> {
        let head = self.heads[tick as usize][slot.phase(tick) as usize];
        (head != NONE).then_some(head)
    }

    /// The stream that is visited after `stream` in the same slot.
    pub(super) fn after(&self, stream: u32) -> Option<u32> {
        let after = self.nodes[stream as usize].after;
        (after != NONE).then_some(after)
    }

    /// The first slot after `slot` that visits a stream.
    pub(super) fn next_visit(&self, slot: Slot) -> Option<Slot> {
        if self.streams == 0 {
            return None;
        }
        let slots = (1..=TURN as u64).map(|ahead| Slot(slot.0 + ahead));
        slots.into_iter().find(|slot| self.visits[slot.0 as usize % TURN] > 0)
    }

    /// The cost of `bytes` more in the slots of a phase: slots in use that have room come first,
    /// then empty ones, then the least full.
    fn cost(&self, tick: Tick, phase: u64, bytes: u64) -> (u8, u64) {
        let slots = tick.visits(phase).map(|slot| slot as usize);
        let fullest = slots.clone().map(|slot| self.load[slot]).max().unwrap_or(0);
        let in_use = slots.clone().any(|slot| self.visits[slot] > 0);
        match (in_use, fullest + bytes <= COMFORTABLE) {
            (true, true) => (0, 0),
            (false, _) => (1, 0),
            (true, false) => (2, fullest),
        }
    }

    fn add(&mut self, tick: Tick, phase: u64, bytes: u64, enters: bool) {
        for slot in tick.visits(phase).map(|slot| slot as usize) {
            if enters {
                self.load[slot] += bytes;
                self.visits[slot] += 1;
            } else {
                self.load[slot] -= bytes;
                self.visits[slot] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(schedule: &Schedule, slot: Slot) -> Vec<u32> {
        let firsts = Tick::ALL.iter().filter_map(|&tick| schedule.first(slot, tick));
        firsts
            .flat_map(|first| std::iter::successors(Some(first), |&s| schedule.after(s)))
            .collect()
    }

    #[test]
    fn each_stream_is_visited_in_the_slots_of_its_tick_and_phase() {
        let mut schedule = Schedule::new(400);
        let mut firsts = vec![];
        for stream in 0..400u32 {
            let tick = Tick::ALL[stream as usize % Tick::ALL.len()];
            firsts.push((tick, schedule.enter(stream, tick, 10_000, Slot(1000))));
        }
        for slot in (1001..1801).map(Slot) {
            let now = visited(&schedule, slot);
            for (stream, &(tick, first)) in firsts.iter().enumerate() {
                let due = slot.0 >= first.0 && slot.phase(tick) == first.phase(tick);
                let early = slot.0 < first.0;
                assert_eq!(now.contains(&(stream as u32)) && !early, due, "{stream} {slot:?}");
            }
        }
    }

    #[test]
    fn few_streams_share_slots_and_many_spread_evenly() {
        let mut schedule = Schedule::new(4000);
        for stream in 0..8 {
            schedule.enter(stream, Tick::Ms62, 68_750, Slot(5));
        }
        // One phase of 62.5 ms in a second.
        assert_eq!(schedule.visits.iter().filter(|&&visits| visits > 0).count(), 16);
        for stream in 8..4000 {
            schedule.enter(stream, Tick::Ms62, 31_250, Slot(5));
        }
        let (most, least) =
            (schedule.load.iter().max().unwrap(), schedule.load.iter().min().unwrap());
        assert!(most - least <= 68_750, "{most} {least}");
    }

    #[test]
    fn a_schedule_that_all_have_left_is_empty() {
        let mut schedule = Schedule::new(50);
        for stream in 0..50 {
            let tick = Tick::ALL[stream as usize % Tick::ALL.len()];
            schedule.enter(stream, tick, 4096, Slot(u64::from(stream)));
        }
        assert!(schedule.next_visit(Slot(3)).is_some());
        for stream in (0..50).step_by(2).chain((1..50).step_by(2)) {
            schedule.leave(stream);
        }
        assert_eq!(schedule.next_visit(Slot(3)), None);
        assert!(schedule.load.iter().all(|&bytes| bytes == 0));
        assert!((0..TURN as u64).all(|slot| visited(&schedule, Slot(slot)).is_empty()));
    }
}
