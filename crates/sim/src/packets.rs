//! Worlds of packets: the pacer on a link of its own, with late turns, streams that come, go and
//! pause, and classes whose rates change while they send.
//!
//! Promise: each departure is judged when it happens, by sums of the judge's own. `plan.rs` draws
//! the world, `judge.rs` checks it.

mod plan;

mod judge;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tactus_core::byte_clock::ByteClock;
use tactus_core::pacer::{Class, ClassId, LINK, Limits, Pacer, Packet};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use crate::dice::Dice;
use crate::run::caught;
use crate::trace::Trace;
use crate::verdict::{Invariant, Violation, broken, require};
use judge::Judge;
use plan::{Event, EventKind, Plan, TrafficKind};

/// Statistics of a world of packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PacketTally {
    /// Streams.
    pub streams: u64,
    /// Packets that left.
    pub packets: u64,
    /// Turns of the pacer.
    pub turns: u64,
    /// Its operations.
    pub steps: u64,
    /// Simulated time.
    pub simulated: Nanos,
    /// A hash of all departures.
    pub trace: u64,
}

/// Runs the world of `seed` twice.
///
/// # Errors
/// The first broken invariant.
pub fn run(seed: u64) -> Result<PacketTally, Violation> {
    let first = caught(|| World::new(Plan::draw(seed)).run())?;
    let second = caught(|| World::new(Plan::draw(seed)).run())?;
    if first == second {
        return Ok(first);
    }
    let detail = format!("{first:?}, and the second time {second:?}");
    Err(Violation { invariant: Invariant::Deterministic, detail })
}

/// The selection of worlds.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The first seed; the others count up from it.
    pub first: u64,
    /// Limit of seeds.
    pub seeds_max: u64,
    /// Duration.
    pub lasts: Duration,
    /// Threads.
    pub threads: usize,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct SearchResult {
    /// Number of worlds run.
    pub worlds: u64,
    /// Sums over them.
    pub tally: PacketTally,
    /// The seed of a broken promise, and the violation.
    pub failure: Option<(u64, Violation)>,
}

/// Runs one world after the other, until a promise is broken or the time is over.
pub fn search(search: &Search) -> SearchResult {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let found = Mutex::new(SearchResult::default());
    let work = || {
        while begin.elapsed() < search.lasts {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= search.seeds_max {
                break;
            }
            let seed = search.first.wrapping_add(number);
            let result = run(seed);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.worlds += 1;
            match result {
                Ok(tally) => found.tally.add(&tally),
                Err(violation) => found.failure = Some((seed, violation)),
            }
            if found.failure.is_some() {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..search.threads.max(1) {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl PacketTally {
    fn add(&mut self, other: &Self) {
        self.streams += other.streams;
        self.packets += other.packets;
        self.turns += other.turns;
        self.steps += other.steps;
        self.simulated += other.simulated;
        self.trace ^= other.trace;
    }
}

/// An active stream.
struct Stream {
    class: ClassId,
    bytes: u64,
    /// When its packets are due, for those that are paced.
    clock: Option<ByteClock>,
    sent: u64,
    is_on: bool,
}

struct World {
    plan: Plan,
    pacer: Pacer,
    judge: Judge,
    dice: Dice,
    now: MonoTime,
    parents: Vec<ClassId>,
    /// By the class's place; streams take turns in them.
    streams: Vec<Option<Stream>>,
    /// The place of each active stream of the plan.
    places: Vec<Option<usize>>,
    trace: Trace,
}

impl World {
    fn new(plan: Plan) -> Self {
        let limits = Limits {
            classes: plan.parents.len() + plan.streams.len(),
            parents: plan.parents.len(),
            tick: plan.tick,
        };
        let mut pacer = Pacer::new(limits, plan.link, plan.begin);
        let mut add = |class| pacer.add(LINK, class).expect("there is room");
        let parents: Vec<ClassId> = plan.parents.iter().map(|&class| add(class)).collect();
        let judge = Judge::new(&plan, &parents);
        Self {
            pacer,
            judge,
            dice: Dice::new(plan.seed).fork(2),
            now: plan.begin,
            parents,
            streams: (0..=limits.classes).map(|_| None).collect(),
            places: vec![None; plan.streams.len()],
            trace: Trace::default(),
            plan,
        }
    }

    fn run(mut self) -> PacketTally {
        let end = self.plan.begin + self.plan.duration;
        let mut event = 0;
        let mut pauses = self.plan.pauses.clone().into_iter().peekable();
        loop {
            let coming = self.plan.events.get(event).map(|event| event.at);
            let next = [self.pacer.poll_timeout(), coming].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next < end) else { break };
            let late = self.dice.below(self.plan.lateness.0 + 1);
            // Usually slightly late, rarely very late.
            let late = Nanos(if self.dice.chance(100) { late } else { late / 16 });
            let mut turn = self.now.max(next) + late;
            if let Some((_, pause)) = pauses.next_if(|&(at, _)| at <= turn) {
                turn += pause;
                self.stand_still(turn, pause);
            }
            self.now = turn;
            while let Some(&one) = self.plan.events.get(event).filter(|event| event.at <= turn) {
                event += 1;
                self.happen(one);
            }
            let allocated = allocation_counter::measure(|| self.turn());
            if allocated.count_total != 0 {
                broken(Invariant::NoAllocation, format!("{allocated:?} at {turn:?}"));
            }
        }
        self.finish()
    }

    /// Sends the packets that may leave now.
    fn turn(&mut self) {
        let begin = MonoTime(self.now.0 / self.plan.tick.0 * self.plan.tick.0);
        while let Some(departure) = self.pacer.poll_send(self.now) {
            let place = departure.class.index as usize;
            let stream = self.streams[place].as_mut().expect("who sends is there");
            assert_eq!(stream.class, departure.class, "the name is that of this life");
            self.trace.note_all([departure.at.0, place as u64, departure.packet.bytes.0]);
            self.judge.see(place, &departure, begin);
            stream.sent += departure.packet.bytes.0;
            self.offer(place);
        }
        self.judge.end_turn(begin);
        if self.pacer.poll_timeout().is_some_and(|next| next <= begin) {
            broken(Invariant::Progress, format!("nobody sends at {begin:?}, but work is left"));
        }
    }

    fn offer(&mut self, place: usize) {
        let stream = self.streams[place].as_ref().expect("who offers is there");
        if !stream.is_on {
            return;
        }
        let due = stream.clock.map_or(MonoTime(0), |clock| clock.due(Bytes(stream.sent)));
        self.pacer.offer(self.now, stream.class, Packet { due, bytes: Bytes(stream.bytes) });
    }

    /// A stall of the machine of `pause`: like the link server, the owner moves the streams'
    /// clocks.
    fn stand_still(&mut self, turn: MonoTime, pause: Nanos) {
        self.judge.stand_still(pause);
        self.now = turn;
        for place in 0..self.streams.len() {
            let Some(stream) = &mut self.streams[place] else { continue };
            if let Some(clock) = stream.clock {
                stream.clock = Some(clock.delayed(pause));
                if self.pacer.withdraw(stream.class).is_some() {
                    self.offer(place);
                }
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event.kind {
            EventKind::Join(number) => self.join(number),
            EventKind::Leave(number) => {
                let place = self.places[number].take().expect("who leaves has joined");
                let stream = self.streams[place].take().expect("its place is its own");
                self.pacer.remove(stream.class);
                self.judge.leave(place);
            }
            EventKind::Switch(number, on) => {
                let place = self.places[number].expect("moods end before it leaves");
                let stream = self.streams[place].as_mut().expect("its place is its own");
                if stream.is_on != on {
                    stream.is_on = on;
                    self.pacer.withdraw(stream.class);
                    self.judge.switch(place, on, self.now);
                    self.offer(place);
                }
            }
            EventKind::Ceiling(parent, ceiling) => {
                let id = self.parents[parent];
                let class = self.pacer.class(id).expect("parents stay");
                self.pacer.change(self.now, id, Class { ceiling, ..class });
                self.judge.limit(id.index as usize, ceiling, self.now);
            }
            EventKind::Link(rate) => {
                self.pacer.set_link(self.now, rate);
                self.judge.limit(0, Some(rate), self.now);
            }
        }
    }

    fn join(&mut self, number: usize) {
        let plan = self.plan.streams[number];
        let parent = plan.parent.map_or(LINK, |parent| self.parents[parent]);
        let class = self.pacer.add(parent, plan.class).expect("there is room");
        let clock = (plan.kind == TrafficKind::Paced).then(|| ByteClock::new(self.now, plan.rate));
        let place = class.index as usize;
        let stream = Stream { class, bytes: plan.bytes, clock, sent: 0, is_on: true };
        self.streams[place] = Some(stream);
        self.places[number] = Some(place);
        self.judge.join(place, plan, self.now);
        self.offer(place);
    }

    /// Removes all streams; no state may be left.
    fn finish(mut self) -> PacketTally {
        self.judge.check_guarantees();
        for stream in self.streams.iter().flatten() {
            self.pacer.withdraw(stream.class);
        }
        if let Some(left) = self.pacer.poll_timeout() {
            broken(Invariant::NothingLeft, format!("a timer at {left:?}"));
        }
        for stream in self.streams.iter().flatten() {
            self.pacer.remove(stream.class);
        }
        for &parent in &self.parents {
            self.pacer.remove(parent);
        }
        let work = self.pacer.work();
        let ticks = self.now.since(self.plan.begin).0 / self.plan.tick.0 + 2;
        let bounded = work.turns <= ticks
            && work.steps <= STEPS_MAX * work.packets + work.turns + self.plan.spare_steps();
        require(bounded, Invariant::BoundedTurn, || format!("{work:?} in {ticks} ticks"));
        PacketTally {
            streams: self.plan.streams.len() as u64,
            packets: work.packets,
            turns: work.turns,
            steps: work.steps,
            simulated: self.plan.duration,
            trace: self.trace.hash(),
        }
    }
}

/// Operations per packet: two lines, each with at most ten moves, an entry and an exit; two entries
/// into the wheel and a look.
const STEPS_MAX: u64 = 28;
