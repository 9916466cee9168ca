//! The schedule: which streams the link visits in which slot.
//!
//! Promise: each stream is visited in the slots of its tick and phase. Few streams share few slots,
//! so the core rarely wakes for them; the more a link sends, the more evenly its slots are filled.

use tactus_core::stagger::{SLOTS_PER_SECOND, Slot, Tick};

const NONE: u32 = u32::MAX;

/// The period of all ticks, in slots.
const TURN: usize = SLOTS_PER_SECOND as usize;

/// What a link sends within a slot even if it copies: under 1.25 ms. By reference it takes a third
/// of that.
pub(super) const SLOT_LOAD: u64 = 2 * 1024 * 1024;

/// A call and its packet take as long as so many bytes.
const SEND_LOAD: u64 = 16 * 1024;

/// So many slots' time a slot may use, if those behind it are unused: 200 television streams then
/// wake the core 36 times a second instead of 108.
const REACH: u64 = 4;

/// Lists of streams by tick and phase.
pub(super) struct Schedule {
    heads: [Vec<u32>; Tick::ALL.len()],
    nodes: Vec<Node>,
    /// What each slot of the turn sends: bytes, and [`SEND_LOAD`] for each send.
    load: Vec<u64>,
    /// The sum of it.
    total: u64,
    /// Streams that each slot of the turn visits.
    visits: Vec<u32>,
    /// Number of streams.
    streams: usize,
    cursor: Cursor,
}

#[derive(Clone, Copy)]
struct Node {
    before: u32,
    after: u32,
    tick: Tick,
    phase: u32,
    load: u64,
}

/// How far the visits of a slot are.
struct Cursor {
    slot: Slot,
    /// Of [`Tick::ALL`]; behind its end all streams of the slot have been visited.
    tick: usize,
    /// The next stream of this tick.
    next: u32,
}

impl Schedule {
    pub(super) fn new(streams: usize) -> Self {
        let empty = Node { before: NONE, after: NONE, tick: Tick::Ms10, phase: 0, load: 0 };
        Self {
            // The last slot of a longer interval belongs to no phase: its list stays empty.
            heads: Tick::ALL.map(|tick| vec![NONE; tick.slots() as usize]),
            nodes: vec![empty; streams],
            load: vec![0; TURN],
            total: 0,
            visits: vec![0; TURN],
            streams: 0,
            cursor: Cursor { slot: Slot(0), tick: Tick::ALL.len(), next: NONE },
        }
    }

    /// Enters a stream that sends `bytes` each `tick`. Returns the slot after `now` in which it is
    /// first visited.
    pub(super) fn enter(&mut self, stream: u32, tick: Tick, bytes: u64, now: Slot) -> Slot {
        let load = bytes + SEND_LOAD;
        // From the next slot on, so that of equal phases the soonest wins.
        let slots = (1..=tick.slots()).map(|ahead| Slot(now.0 + ahead));
        let first = slots
            .filter(|slot| slot.phase(tick) < tick.phases())
            .min_by_key(|slot| self.cost(tick, slot.phase(tick), load))
            .expect("never empty");
        let phase = first.phase(tick);
        self.add(tick, phase, load, true);
        self.streams += 1;
        let head = &mut self.heads[tick as usize][phase as usize];
        let after = std::mem::replace(head, stream);
        if after != NONE {
            self.nodes[after as usize].before = stream;
        }
        self.nodes[stream as usize] = Node { before: NONE, after, tick, phase: phase as u32, load };
        first
    }

    /// Removes a stream.
    pub(super) fn leave(&mut self, stream: u32) {
        let Node { before, after, tick, phase, load } = self.nodes[stream as usize];
        if self.cursor.next == stream {
            self.cursor.next = after;
        }
        match before {
            NONE => self.heads[tick as usize][phase as usize] = after,
            before => self.nodes[before as usize].after = after,
        }
        if after != NONE {
            self.nodes[after as usize].before = before;
        }
        self.add(tick, u64::from(phase), load, false);
        self.streams -= 1;
    }

    /// How often a stream is visited.
    pub(super) fn tick(&self, stream: u32) -> Tick {
        self.nodes[stream as usize].tick
    }

    /// Begins the visits of a slot.
    pub(super) fn begin(&mut self, slot: Slot) {
        self.cursor = Cursor { slot, tick: 0, next: self.head(slot, 0) };
    }

    /// The next stream to visit in the slot that was begun, with what its send adds to the slot's
    /// load.
    pub(super) fn next(&mut self) -> Option<(u32, u64)> {
        while self.cursor.next == NONE {
            if self.cursor.tick + 1 >= Tick::ALL.len() {
                self.cursor.tick = Tick::ALL.len();
                return None;
            }
            self.cursor.tick += 1;
            self.cursor.next = self.head(self.cursor.slot, self.cursor.tick);
        }
        let stream = self.cursor.next;
        let Node { after, load, .. } = self.nodes[stream as usize];
        self.cursor.next = after;
        Some((stream, load))
    }

    /// The streams that [`Self::next`] returns before those of a longer tick.
    pub(super) fn upcoming(&self) -> impl Iterator<Item = u32> {
        let node = |stream: u32| (stream != NONE).then_some(stream);
        std::iter::successors(node(self.cursor.next), move |&stream| {
            node(self.nodes[stream as usize].after)
        })
    }

    /// Whether the visits of the slot that was begun may not have ended.
    pub(super) fn is_visiting(&self) -> bool {
        self.cursor.tick < Tick::ALL.len()
    }

    fn head(&self, slot: Slot, tick: usize) -> u32 {
        self.heads[tick][slot.phase(Tick::ALL[tick]) as usize]
    }

    /// The first slot after `slot` that visits a stream.
    pub(super) fn next_visit(&self, slot: Slot) -> Option<Slot> {
        if self.streams == 0 {
            return None;
        }
        let slots = (1..=TURN as u64).map(|ahead| Slot(slot.0 + ahead));
        slots.into_iter().find(|slot| self.visits[slot.0 as usize % TURN] > 0)
    }

    /// The cost of `load` more in the slots of a phase: slots in use that have room come first,
    /// then empty ones with the most empty slots behind them, then those behind a slot that uses
    /// their time, then the least full.
    fn cost(&self, tick: Tick, phase: u64, load: u64) -> (u8, u64) {
        let slots = tick.visits(phase).map(|slot| slot as usize);
        let reach = self.reach();
        let of_least = slots.clone().map(|slot| self.slots_free(slot, reach)).min();
        let has_room = |slot: usize| {
            let room = SLOT_LOAD * self.slots_free(slot, reach);
            self.load[slot] + load <= room && !self.is_overrun(slot)
        };
        let is_in_use = slots.clone().any(|slot| self.visits[slot] > 0);
        match (is_in_use, slots.clone().all(has_room)) {
            (true, true) => (0, 0),
            (false, true) => (1, reach - of_least.unwrap_or(reach)),
            (false, false) => (2, 0),
            (true, false) => (3, slots.map(|slot| self.load[slot]).max().unwrap_or(0)),
        }
    }

    /// How many slots' time a slot may use: the fuller the link, the fewer. What has been filled so
    /// stays so, and later delays the slots behind it.
    fn reach(&self) -> u64 {
        (SLOT_LOAD * SLOTS_PER_SECOND / self.total.max(1)).clamp(1, REACH)
    }

    /// The slot, and the unused ones behind it.
    fn slots_free(&self, slot: usize, reach: u64) -> u64 {
        let is_free = |behind: &u64| self.visits[(slot + *behind as usize) % TURN] == 0;
        1 + (1..reach).take_while(is_free).count() as u64
    }

    /// Whether the slot is unused and one before it needs its time.
    fn is_overrun(&self, slot: usize) -> bool {
        let overruns =
            |back: u64| self.load[(slot + TURN - back as usize) % TURN] > SLOT_LOAD * back;
        self.visits[slot] == 0 && (1..REACH).any(overruns)
    }

    fn add(&mut self, tick: Tick, phase: u64, load: u64, enters: bool) {
        for slot in tick.visits(phase).map(|slot| slot as usize) {
            if enters {
                self.load[slot] += load;
                self.total += load;
                self.visits[slot] += 1;
            } else {
                self.load[slot] -= load;
                self.total -= load;
                self.visits[slot] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(schedule: &mut Schedule, slot: Slot) -> Vec<u32> {
        schedule.begin(slot);
        let visited = std::iter::from_fn(|| schedule.next().map(|(stream, _)| stream)).collect();
        assert!(!schedule.is_visiting());
        visited
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
            let now = visited(&mut schedule, slot);
            for (stream, &(tick, first)) in firsts.iter().enumerate() {
                let due = slot.0 >= first.0 && slot.phase(tick) == first.phase(tick);
                let early = slot.0 < first.0;
                assert_eq!(now.contains(&(stream as u32)) && !early, due, "{stream} {slot:?}");
            }
        }
    }

    fn used(schedule: &Schedule) -> usize {
        schedule.visits.iter().filter(|&&visits| visits > 0).count()
    }

    #[test]
    fn few_streams_share_slots_and_many_spread_evenly() {
        let mut schedule = Schedule::new(4000);
        for stream in 0..8 {
            schedule.enter(stream, Tick::Ms62, 68_750, Slot(5));
        }
        // One phase of 62.5 ms in a second.
        assert_eq!(used(&schedule), 16);
        for stream in 8..4000 {
            schedule.enter(stream, Tick::Ms62, 31_250, Slot(5));
        }
        // Those that were filled while the link was less than half full stay fuller.
        let mut loads = schedule.load.clone();
        loads.sort_unstable();
        assert!(loads.iter().all(|&load| load <= REACH * SLOT_LOAD), "{loads:?}");
        let even = &loads[..loads.len() * 4 / 5];
        let (least, most) = (even[0], even[even.len() - 1]);
        assert!(most - least <= 68_750, "{least} {most}");
    }

    #[test]
    fn a_slot_sends_for_no_longer_than_it_is_to_the_next_one_in_use() {
        let mut schedule = Schedule::new(400);
        for stream in 0..400 {
            let now = Slot(u64::from(stream) * 37);
            schedule.enter(stream, Tick::Ms55, 61_112, now);
            let slots = 0..TURN;
            let in_use = slots.filter(|&slot| schedule.visits[slot] > 0);
            for slot in in_use {
                let free = schedule.slots_free(slot, REACH);
                assert!(schedule.load[slot] <= free * SLOT_LOAD, "{slot} of {stream}");
            }
        }
        // At most six slots between two visits of a stream.
        assert!(used(&schedule) <= 6 * 18, "{}", used(&schedule));
    }

    #[test]
    fn small_sends_fill_a_slot_by_their_number() {
        let mut schedule = Schedule::new(2000);
        for stream in 0..2000 {
            schedule.enter(stream, Tick::Ms250, 4000, Slot(0));
        }
        let most = schedule.visits.iter().max().expect("slots");
        assert!(u64::from(*most) <= REACH * SLOT_LOAD / SEND_LOAD, "{most} sends in one slot");
    }

    #[test]
    fn a_stream_that_leaves_or_comes_between_two_visits_of_a_slot_disturbs_no_other() {
        let mut schedule = Schedule::new(5);
        for stream in 0..4 {
            assert_eq!(schedule.enter(stream, Tick::Ms62, 10_000, Slot(7)), Slot(8));
        }
        schedule.begin(Slot(8));
        assert_eq!(schedule.next().map(|(stream, _)| stream), Some(3));
        // The next one, the one that was visited, and a new one in front of them.
        schedule.leave(2);
        schedule.leave(3);
        schedule.enter(4, Tick::Ms62, 10_000, Slot(8));
        assert!(schedule.is_visiting());
        assert_eq!(schedule.next().map(|(stream, _)| stream), Some(1));
        assert_eq!(schedule.next().map(|(stream, _)| stream), Some(0));
        assert_eq!(schedule.next(), None);
        assert!(!schedule.is_visiting());
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
        assert!((0..TURN as u64).all(|slot| visited(&mut schedule, Slot(slot)).is_empty()));
    }
}
