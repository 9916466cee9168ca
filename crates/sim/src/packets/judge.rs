//! Checks of the pacer's promises at each departure.

use std::collections::HashMap;

use tactus_core::pacer::{ClassId, Departure, JAM_MAX, STALL_MAX};
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos};

use super::plan::{Load, Plan, StreamPlan};
use crate::verdict::{Invariant, broken, require};

/// The place of the link among the classes.
const LINK: usize = 0;

/// Bits, times 1e9, that a class has sent beyond its ceiling since it was last within it.
struct Bucket {
    ceiling: BitRate,
    level: u128,
    /// Time of the last drain.
    drained: MonoTime,
    /// The largest packet that it lets through.
    largest: u64,
}

/// An observed stream.
struct WatchedStream {
    plan: StreamPlan,
    /// Whether lateness and guarantees are judged.
    is_admitted: bool,
    /// Tolerated lateness while all other streams send at once.
    jam: Nanos,
    /// Since when it has had packets; `None` while it is off.
    since: Option<MonoTime>,
    /// The tick in which it stopped, and since when it had sent.
    rest: Option<(u64, MonoTime)>,
    /// Lateness of that turn: a newcomer gets as much in it as the other streams.
    credit: Nanos,
    /// Pauses of the machine since then.
    paused: Nanos,
    /// Bytes sent since then.
    sent: u64,
    /// Bytes that the first twin had sent then.
    twin: u64,
}

pub(super) struct Judge {
    load: Load,
    tick: Nanos,
    buckets: HashMap<usize, Bucket>,
    /// By place.
    watched: HashMap<usize, WatchedStream>,
    /// The places of the plan's parents.
    parents: Vec<usize>,
    plan: Plan,
    twins: Vec<usize>,
    /// The beginning of the previous turn, and of the judged one.
    before: MonoTime,
    pauses: u64,
    /// Time to send one packet of every stream.
    round: Nanos,
    /// The smallest rate of the link so far.
    link_min: BitRate,
}

impl Judge {
    pub(super) fn new(plan: &Plan, parents: &[ClassId]) -> Self {
        let all: u64 = plan.streams.iter().map(|stream| stream.bytes).sum();
        let mut judge = Self {
            load: plan.load,
            tick: plan.tick,
            buckets: HashMap::new(),
            watched: HashMap::new(),
            parents: parents.iter().map(|parent| parent.index as usize).collect(),
            plan: plan.clone(),
            twins: vec![],
            before: plan.begin,
            pauses: 0,
            round: plan.link.time_for(Bytes(all)),
            link_min: plan.link,
        };
        judge.limit(LINK, Some(plan.link), plan.begin);
        for (number, class) in plan.parents.iter().enumerate() {
            judge.limit(judge.parents[number], class.ceiling, plan.begin);
        }
        judge
    }

    /// Sets the ceiling of the class at `place` from now on.
    pub(super) fn limit(&mut self, place: usize, ceiling: Option<BitRate>, now: MonoTime) {
        let Some(ceiling) = ceiling else {
            self.buckets.remove(&place);
            return;
        };
        if place == LINK {
            self.link_min = self.link_min.min(ceiling);
            let all: u64 = self.plan.streams.iter().map(|stream| stream.bytes).sum();
            self.round = self.link_min.time_for(Bytes(all));
        }
        let passes = |stream: &&StreamPlan| {
            place == LINK || stream.parent.is_some_and(|parent| self.parents[parent] == place)
        };
        let largest = self.plan.streams.iter().filter(passes).map(|stream| stream.bytes).max();
        let largest = largest.unwrap_or(0);
        let drained = self.before.max(MonoTime(0)).min(now);
        self.buckets.insert(place, Bucket { ceiling, level: 0, drained, largest });
    }

    pub(super) fn join(&mut self, place: usize, plan: StreamPlan, now: MonoTime) {
        let (mut jam, mut is_admitted) = (self.round, self.load == Load::Admitted);
        if let Some(parent) = plan.parent {
            let own = self.plan.parents[parent].guaranteed;
            let siblings = self.plan.streams.iter().filter(|stream| stream.parent == plan.parent);
            let all: u64 = siblings.map(|stream| stream.bytes).sum();
            jam += if own > BitRate(0) { own.time_for(Bytes(all)) } else { Nanos(0) };
        }
        is_admitted &= plan.class.guaranteed > BitRate(0);
        let jam = Nanos(2 * (jam.0 + self.tick.0));
        if plan.class.ceiling.is_some() {
            let (ceiling, largest) = (plan.class.ceiling.unwrap_or_default(), plan.bytes);
            self.buckets.insert(place, Bucket { ceiling, level: 0, drained: self.before, largest });
        }
        if plan.is_twin {
            self.twins.push(place);
        }
        let watched = WatchedStream {
            plan,
            is_admitted,
            jam,
            since: None,
            rest: None,
            credit: Nanos(0),
            paused: Nanos(0),
            sent: 0,
            twin: 0,
        };
        self.watched.insert(place, watched);
        self.switch(place, true, now);
    }

    pub(super) fn switch(&mut self, place: usize, on: bool, now: MonoTime) {
        let twin = self.twins.first().map_or(0, |twin| self.watched[twin].sent);
        let watched = self.watched.get_mut(&place).expect("it has joined");
        let tick = now.0 / self.tick.0;
        if !on {
            watched.rest = watched.since.take().map(|since| (tick, since));
            return;
        }
        if let Some((_, since)) = watched.rest.filter(|&(stopped, _)| stopped == tick) {
            // The pacer cannot distinguish a pause within a tick from no pause.
            watched.since = Some(since);
            return;
        }
        watched.since = Some(now);
        watched.credit = now.since(self.before).min(STALL_MAX);
        watched.paused = Nanos(0);
        watched.twin = twin;
        watched.sent = 0;
    }

    pub(super) fn leave(&mut self, place: usize) {
        self.watched.remove(&place);
        self.buckets.remove(&place);
    }

    pub(super) fn stand_still(&mut self, pause: Nanos) {
        self.pauses += 1;
        for watched in self.watched.values_mut() {
            watched.paused += pause;
        }
    }

    /// Checks a packet that leaves in the turn that begins at `begin`.
    pub(super) fn see(&mut self, place: usize, departure: &Departure, begin: MonoTime) {
        let Departure { packet, at, .. } = *departure;
        require(at == begin && packet.due <= begin, Invariant::NeverEarly, || {
            format!("{departure:?} in the turn of {begin:?}")
        });
        let watched = self.watched.get_mut(&place).expect("who sends has joined");
        watched.sent += packet.bytes.0;
        let (plan, jam) = (watched.plan, watched.jam);
        if watched.is_admitted && plan.kind == super::TrafficKind::Paced {
            require(self.before < packet.due + jam, Invariant::NeverLate, || {
                format!(
                    "{departure:?} could have left at {:?}, {jam:?} after its time: {plan:?} in \
                     {:?}",
                    self.before,
                    plan.parent.map(|parent| self.plan.parents[parent])
                )
            });
        }
        let parent = plan.parent.map(|parent| self.parents[parent]);
        for class in [Some(LINK), parent, Some(place)].into_iter().flatten() {
            if let Some(bucket) = self.buckets.get_mut(&class) {
                bucket.pour(packet.bytes, self.before, begin, class);
            }
        }
        if !self.twins.is_empty() {
            let on_link = match plan.parent {
                Some(parent) => self.plan.parents[parent],
                None => plan.class,
            };
            // Twins always have packets, and the first priority.
            let may = on_link.priority == 0 || on_link.guaranteed > BitRate(0);
            require(may, Invariant::LentByPriority, || format!("{departure:?} of {on_link:?}"));
        }
        self.compare(place);
    }

    /// Compares a stream directly on the link with a twin, by their shares.
    fn compare(&self, place: usize) {
        let Some(&twin) = self.twins.first() else { return };
        let (one, other) = (&self.watched[&place], &self.watched[&twin]);
        let class = one.plan.class;
        if one.plan.parent.is_some() || class.priority != 0 || place == twin {
            return;
        }
        let got =
            |sent: u64, share: BitRate| i128::from(sent) * 8_000_000_000 / i128::from(share.0);
        let own = got(one.sent, class.share);
        let its = got(other.sent - one.twin, other.plan.class.share);
        let packet = |of: &WatchedStream| got(of.plan.bytes, of.plan.class.share);
        // The tolerance: a few packets each, the lateness of owed packets, and the bit per second
        // by which guarantees are rounded down when they are scaled.
        let life = one.since.map_or(0, |since| self.before.since(since).0);
        let rounding = got(life / 8_000_000_000 + 1, class.share.min(other.plan.class.share));
        let slack = (2 + self.pauses as i128) * (2 * packet(one) + 2 * packet(other))
            + i128::from(2 * self.round.0 + one.credit.0)
            + rounding;
        let is_bounded = class.ceiling.is_some() || one.plan.kind == super::TrafficKind::Paced;
        require(own <= its + slack, Invariant::SharesExact, || {
            format!(
                "place {place} is {} ns ahead of a twin, at most {slack}: {:?}",
                own - its,
                one.plan
            )
        });
        require(is_bounded || own + slack >= its, Invariant::SharesExact, || {
            format!(
                "place {place} is {} ns behind a twin, at most {slack}: {:?}",
                its - own,
                one.plan
            )
        });
    }

    /// Ends a turn: checks that streams that always send have got their guarantees.
    pub(super) fn end_turn(&mut self, begin: MonoTime) {
        self.before = begin;
    }

    /// Checks that streams that always send have got their guarantees.
    pub(super) fn check_guarantees(&self) {
        for (place, watched) in &self.watched {
            let WatchedStream { plan, since: Some(since), paused, sent, jam, .. } = watched else {
                continue;
            };
            if !watched.is_admitted || plan.kind == super::TrafficKind::Paced {
                continue;
            }
            let span = self.before.since(*since).saturating_sub(*paused).saturating_sub(*jam);
            let owed = plan.class.guaranteed.bytes_in(span).0;
            require(sent + 2 * plan.bytes >= owed, Invariant::GuaranteeKept, || {
                format!("place {place} has sent {sent} of {owed} bytes in {span:?}: {plan:?}")
            });
        }
    }
}

impl Bucket {
    fn pour(&mut self, bytes: Bytes, before: MonoTime, begin: MonoTime, place: usize) {
        let rate = u128::from(self.ceiling.0);
        let past = before.since(self.drained);
        self.level = self.level.saturating_sub(u128::from(past.0) * rate);
        self.drained = self.drained.max(before);
        self.level += u128::from(bytes.0) * 8_000_000_000;
        // Packets that leave in a turn belong to the time since the previous turn.
        let span = begin.since(before);
        let packets = if span > STALL_MAX { 2 } else { 1 };
        let most = u128::from(JAM_MAX.0 + span.min(STALL_MAX).0) * rate
            + u128::from(packets * self.largest) * 8_000_000_000;
        if self.level > most {
            let what =
                format!("place {place} is {} bytes above", (self.level - most) / 8_000_000_000);
            broken(Invariant::CeilingKept, what);
        }
    }
}
