//! The world of a seed: a link, classes, streams, and events.

use tactus_core::pacer::{Class, PRIORITIES, STALL_MAX};
use tactus_core::units::{BitRate, MILLISECOND, MonoTime, Nanos, SECOND};

use crate::dice::Dice;

/// Whether the demand fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Load {
    /// All guarantees fit, and paced streams are on time.
    Admitted,
    /// The demand exceeds the link: shares are exact.
    Crowded,
}

/// When a stream has packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TrafficKind {
    /// By its byte clock.
    Paced,
    /// Always.
    Greedy,
    /// Sometimes, and then without a limit.
    Moody,
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPlan {
    /// Its parent in the plan; `None` for the link.
    pub(super) parent: Option<usize>,
    pub(super) class: Class,
    pub(super) kind: TrafficKind,
    pub(super) rate: BitRate,
    pub(super) bytes: u64,
    /// Whether it exists for the whole run and always sends, directly on the link.
    pub(super) is_twin: bool,
}

/// An event and its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) at: MonoTime,
    pub(super) kind: EventKind,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventKind {
    Join(usize),
    Leave(usize),
    Switch(usize, bool),
    /// A parent's ceiling changes.
    Ceiling(usize, Option<BitRate>),
    Link(BitRate),
}

/// A world.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) load: Load,
    pub(super) tick: Nanos,
    pub(super) link: BitRate,
    pub(super) begin: MonoTime,
    pub(super) duration: Nanos,
    /// Turns are late by up to this much.
    pub(super) lateness: Nanos,
    /// The stalls of the machine: time and length.
    pub(super) pauses: Vec<(MonoTime, Nanos)>,
    pub(super) parents: Vec<Class>,
    pub(super) streams: Vec<StreamPlan>,
    pub(super) events: Vec<Event>,
}

/// Packets of a world, roughly.
const PACKETS: u64 = 60_000;
const PACKET_MEAN: u64 = 1_000;

impl Plan {
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed).fork(1);
        let load = dice.pick(&[Load::Admitted, Load::Crowded]);
        let link = BitRate(dice.spread(10_000_000, 100_000_000_000));
        let busy = Nanos(PACKETS * PACKET_MEAN * 8 * SECOND.0 / (link.0 / 8) / 8);
        let duration = busy.clamp(MILLISECOND.times(20), SECOND.times(5));
        let mut plan = Self {
            seed,
            load,
            tick: Nanos(dice.pick(&[50_000, 100_000, 250_000, 1_000_000])),
            link,
            begin: MonoTime(dice.between(SECOND.0, 1 << 50)),
            duration,
            lateness: Nanos(dice.pick(&[0, 100_000, 1_000_000, 20_000_000])),
            pauses: vec![],
            parents: vec![],
            streams: vec![],
            events: vec![],
        };
        plan.draw_streams(&mut dice);
        plan.draw_events(&mut dice);
        plan
    }

    /// Operations that belong to no packet: for events, and for moved clocks.
    pub(super) fn spare_steps(&self) -> u64 {
        let touched = self.events.len() + self.streams.len() * self.pauses.len();
        8 * touched as u64
    }

    fn draw_streams(&mut self, dice: &mut Dice) {
        let count = dice.spread(1, 2_000) as usize;
        let parents = dice.below(9) as usize;
        let load = match self.load {
            Load::Admitted => dice.between(100, 850),
            Load::Crowded => dice.between(1_200, 3_000),
        };
        let is_promised = self.load == Load::Admitted || dice.chance(500);
        let weights: Vec<u64> = (0..count).map(|_| dice.spread(1, 1_000)).collect();
        let sum: u64 = weights.iter().sum();
        let mut asked = vec![0; parents];
        for weight in weights {
            let part = u128::from(self.link.0) * u128::from(load) * u128::from(weight);
            let rate = BitRate(((part / 1_000 / u128::from(sum)) as u64).max(1_000));
            let parent = dice.below(parents as u64 + 1) as usize;
            let parent = (parent < parents).then_some(parent);
            if let Some(parent) = parent {
                asked[parent] += rate.0;
            }
            self.streams.push(self.draw_stream(dice, rate, parent, is_promised));
        }
        self.parents =
            asked.into_iter().map(|asked| self.draw_parent(dice, asked, is_promised)).collect();
        match self.load {
            Load::Admitted => self.draw_rest(dice),
            Load::Crowded => self.draw_twins(dice, is_promised),
        }
    }

    fn draw_stream(
        &self,
        dice: &mut Dice,
        rate: BitRate,
        parent: Option<usize>,
        is_promised: bool,
    ) -> StreamPlan {
        let kind = match dice.below(10) {
            0..6 => TrafficKind::Paced,
            6..8 => TrafficKind::Greedy,
            _ => TrafficKind::Moody,
        };
        let is_crowded = self.load == Load::Crowded;
        let class = Class {
            guaranteed: if is_promised { rate } else { BitRate(0) },
            ceiling: (is_crowded && dice.chance(300)).then_some(rate),
            priority: if dice.chance(500) { 0 } else { dice.below(PRIORITIES as u64) as u8 },
            share: rate,
        };
        StreamPlan { parent, class, kind, rate, bytes: self.draw_bytes(dice), is_twin: false }
    }

    fn draw_parent(&self, dice: &mut Dice, asked: u64, is_promised: bool) -> Class {
        // Slightly more than the demand of its streams: the link may have less to spare.
        let rate = BitRate((asked + asked / 20).clamp(1_000, self.link.0));
        Class {
            guaranteed: if is_promised { rate } else { BitRate(0) },
            ceiling: dice.chance(300).then_some(rate),
            priority: dice.below(PRIORITIES as u64) as u8,
            share: rate,
        }
    }

    /// Draws the streams that use the rest.
    fn draw_rest(&mut self, dice: &mut Dice) {
        for _ in 0..dice.below(10) {
            let rate = BitRate(dice.spread(1_000, self.link.0));
            let class = Class {
                guaranteed: BitRate(0),
                ceiling: dice.chance(500).then_some(rate),
                priority: dice.below(PRIORITIES as u64) as u8,
                share: rate,
            };
            let kind = dice.pick(&[TrafficKind::Greedy, TrafficKind::Moody]);
            let bytes = self.draw_bytes(dice);
            self.streams.push(StreamPlan {
                parent: None,
                class,
                kind,
                rate,
                bytes,
                is_twin: false,
            });
        }
    }

    /// Draws the streams that always send; their shares must always be equal.
    fn draw_twins(&mut self, dice: &mut Dice, is_promised: bool) {
        for _ in 0..dice.between(2, 6) {
            let rate = BitRate((self.link.0 / dice.spread(2, 1_000)).max(1_000));
            let class = Class {
                guaranteed: if is_promised { rate } else { BitRate(0) },
                ceiling: None,
                priority: 0,
                share: rate,
            };
            let (kind, bytes) = (TrafficKind::Greedy, self.draw_bytes(dice));
            self.streams.push(StreamPlan { parent: None, class, kind, rate, bytes, is_twin: true });
        }
    }

    /// Several segments may leave as one on fast links.
    fn draw_bytes(&self, dice: &mut Dice) -> u64 {
        match self.link.0 {
            1_000_000_000.. => dice.pick(&[200, 1_316, 1_500, 7 * 1_316, 65_000]),
            _ => dice.pick(&[200, 564, 1_316, 1_500]),
        }
    }

    fn draw_events(&mut self, dice: &mut Dice) {
        let within = |dice: &mut Dice, of: Nanos| Nanos(dice.below(of.0.max(1)));
        for number in 0..self.streams.len() {
            let StreamPlan { kind, is_twin, .. } = self.streams[number];
            let join = match is_twin || dice.chance(300) {
                true => self.begin,
                false => self.begin + within(dice, self.duration),
            };
            self.events.push(Event { at: join, kind: EventKind::Join(number) });
            let mut at = join;
            let moods = if kind == TrafficKind::Moody { dice.below(12) } else { 0 };
            for mood in 0..moods {
                at += within(dice, Nanos(self.duration.0 / 8));
                self.events.push(Event { at, kind: EventKind::Switch(number, mood % 2 == 1) });
            }
            if !is_twin && dice.chance(300) {
                at += within(dice, self.duration);
                self.events.push(Event { at, kind: EventKind::Leave(number) });
            }
        }
        if self.load == Load::Crowded {
            for _ in 0..dice.below(6) {
                let at = self.begin + within(dice, self.duration);
                let link = BitRate(self.link.0 / 1_000 * dice.between(500, 1_500));
                let kind = match self.parents.len() as u64 {
                    parents @ 1.. if dice.chance(500) => {
                        let parent = dice.below(parents) as usize;
                        // The guarantee of a class never exceeds its ceiling.
                        let rate = BitRate(self.parents[parent].share.0 * dice.between(1, 4));
                        EventKind::Ceiling(parent, dice.chance(500).then_some(rate))
                    }
                    _ => EventKind::Link(link),
                };
                self.events.push(Event { at, kind });
            }
        }
        if dice.chance(250) {
            for _ in 0..dice.between(1, 3) {
                let at = self.begin + within(dice, self.duration);
                self.pauses.push((at, STALL_MAX + within(dice, SECOND.times(3))));
            }
            self.pauses.sort_unstable();
        }
        // Events of the same time keep the order of drawing.
        self.events.sort_by_key(|event| event.at);
    }
}
