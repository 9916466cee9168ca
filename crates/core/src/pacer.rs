//! The pacer: the departure time of every packet of a link, by classes with guaranteed, borrowed
//! and limited rates.
//!
//! Promise: no packet leaves before it is due or above a ceiling. A due packet leaves unless a
//! ceiling or another packet is in its way. A class gets its guarantee; the rest of the rate goes
//! by priority and then exactly by share. Operations per packet and wake-ups do not depend on the
//! number of classes. The pacer knows neither sockets nor the content of packets. The argument:
//! `docs/design/pacer.md`.

mod clock;
mod line;

mod class;
mod wheel;

#[cfg(test)]
mod tests;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::hint::black_box;

pub use class::{Class, PRIORITIES, Packet, RATE_MAX};
pub use clock::PACKET_MAX;

use crate::mutant;
use crate::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos};
use class::{Family, Node, QueueState};
use clock::Clock;
use line::{KeyQueue, Link, NONE};
use wheel::Wheel;

/// Depth limit of the tree of classes, without the link.
pub const DEPTH_MAX: usize = 8;

/// Limit of the time that a class at its ceiling makes up for after other classes kept it from
/// sending. A burst of many streams that are due at once ends after a fraction of it. A longer
/// starvation does not justify a burst.
pub const JAM_MAX: Nanos = MILLISECOND;

/// Limit of the time that is made up for after a stall of the machine or of the caller. The same as
/// for TCP: the longest tick.
pub const STALL_MAX: Nanos = Nanos::from_millis(250);

/// Capacity and time resolution of a pacer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Classes, including streams.
    pub classes: usize,
    /// Classes with children, besides the link: 6 KB each.
    pub parents: usize,
    /// A turn's length: at least 1 us.
    pub tick: Nanos,
}

/// The identifier of a class. After the class is removed it identifies nothing, even if the slot
/// has a new class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId {
    /// Its slot: a small number, for tables beside the pacer.
    pub index: u32,
    life: u32,
}

/// The link itself, the parent of all classes.
pub const LINK: ClassId = ClassId { index: 0, life: 1 };

/// Why a class cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddClassError {
    /// all classes of this link are in use: raise its number of classes
    Classes,
    /// all places for classes with children are in use: raise their number
    Parents,
    /// classes lie at most eight deep
    Depth,
    /// the parent is a stream with a packet of its own
    ParentSends,
}

impl fmt::Display for AddClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classes => "all classes of this link are in use: raise its number of classes",
            Self::Parents => "all places for classes with children are in use: raise their number",
            Self::Depth => "classes lie at most eight deep",
            Self::ParentSends => "the parent is a stream with a packet of its own",
        })
    }
}

impl core::error::Error for AddClassError {}

/// A packet that leaves now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    /// The class of the packet.
    pub class: ClassId,
    /// The packet as it was offered.
    pub packet: Packet,
    /// The beginning of the tick in which it leaves, which is the time of the decision.
    pub at: MonoTime,
}

/// Work of the pacer since its creation: for metrics and cost measurements.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkCounters {
    /// Turns that reached a later tick.
    pub turns: u64,
    /// Packets that left.
    pub packets: u64,
    /// Entries into lines and the wheel, moves within them, and classes passed by packets.
    pub steps: u64,
}

/// The classes of one link.
pub struct Pacer {
    tick: Nanos,
    /// The tick of this turn, and its beginning.
    turn: u64,
    now: MonoTime,
    /// The beginning of the last tick that was processed or had nothing to process.
    before: MonoTime,
    nodes: Vec<Node>,
    links: Vec<Link>,
    wheel: Wheel,
    /// Classes woken in this turn.
    woken: Vec<u32>,
    families: Vec<Family>,
    free_nodes: Vec<u32>,
    free_families: Vec<u32>,
    work: WorkCounters,
}

impl Pacer {
    /// Makes a link of `rate` without classes.
    ///
    /// # Panics
    /// If the pacer does not support the rate, or the tick is shorter than 1 us.
    pub fn new(limits: Limits, rate: BitRate, now: MonoTime) -> Self {
        assert!(limits.tick >= Nanos(1_000), "a tick is at least 1 us");
        let places = limits.classes + 1;
        let turn = now.0 / limits.tick.0;
        let begin = MonoTime(turn * limits.tick.0);
        let mut pacer = Self {
            tick: limits.tick,
            turn,
            now: begin,
            before: begin,
            nodes: vec![Node::FREE; places],
            links: vec![Link::FREE; places],
            wheel: Wheel::new(places, turn),
            woken: Vec::with_capacity(places),
            families: vec![Family::EMPTY; limits.parents + 1],
            free_nodes: (1..places as u32).rev().collect(),
            free_families: (1..=limits.parents as u32).rev().collect(),
            work: WorkCounters::default(),
        };
        let link = Class { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate };
        link.check();
        pacer.nodes[ROOT as usize] = Node { class: link, life: LINK.life, family: 0, ..Node::FREE };
        pacer
    }

    /// Its work so far.
    pub const fn work(&self) -> WorkCounters {
        self.work
    }

    /// The limits of `class`, or `None` if it has been removed.
    pub fn class(&self, class: ClassId) -> Option<Class> {
        self.find(class).map(|id| self.nodes[id as usize].class)
    }

    /// Bytes sent by `class` and all classes below it, or `None` if it has been removed.
    pub fn sent(&self, class: ClassId) -> Option<Bytes> {
        self.find(class).map(|id| self.nodes[id as usize].sent)
    }

    /// Whether `class` exists and has a packet that has not left.
    pub fn has_packet(&self, class: ClassId) -> bool {
        self.find(class).is_some_and(|id| self.nodes[id as usize].packet.is_some())
    }

    /// Adds a class below `parent`.
    ///
    /// # Errors
    /// If there is no room for it; nothing has changed then.
    ///
    /// # Panics
    /// If the parent has been removed, or the pacer does not support a rate.
    pub fn add(&mut self, parent: ClassId, class: Class) -> Result<ClassId, AddClassError> {
        class.check();
        let parent = self.find(parent).expect("a class is added to one that is there");
        let depth = self.nodes[parent as usize].depth + 1;
        if usize::from(depth) > DEPTH_MAX {
            return Err(AddClassError::Depth);
        }
        if self.nodes[parent as usize].packet.is_some() {
            return Err(AddClassError::ParentSends);
        }
        if self.nodes[parent as usize].family == NONE {
            if self.free_nodes.is_empty() {
                return Err(AddClassError::Classes);
            }
            self.nodes[parent as usize].family =
                self.free_families.pop().ok_or(AddClassError::Parents)?;
        }
        let id = self.free_nodes.pop().ok_or(AddClassError::Classes)?;
        let node = &mut self.nodes[id as usize];
        let life = node.life + 1;
        *node = Node { class, life, parent, depth, ..Node::FREE };
        self.family(parent).members += 1;
        self.promise(id, BitRate(0), class.guaranteed);
        Ok(ClassId { index: id, life })
    }

    /// Removes a class without children. Its packet, if any, does not leave.
    ///
    /// # Panics
    /// If it has children, is the link, or has been removed already.
    pub fn remove(&mut self, class: ClassId) {
        let id = self.find(class).expect("a class is removed once");
        assert!(id != ROOT && self.nodes[id as usize].family == NONE, "children go first");
        self.retire(id);
        let guaranteed = self.nodes[id as usize].class.guaranteed;
        self.promise(id, guaranteed, BitRate(0));
        let node = &mut self.nodes[id as usize];
        node.life += 1;
        node.packet = None;
        let parent = node.parent;
        self.free_nodes.push(id);
        let family = self.family(parent);
        family.members -= 1;
        if family.members == 0 && parent != ROOT {
            *family = Family::EMPTY;
            self.free_families.push(self.nodes[parent as usize].family);
            self.nodes[parent as usize].family = NONE;
        }
    }

    /// Changes the limits of a class, from its next packet on.
    ///
    /// # Panics
    /// If it is the link or has been removed, or the pacer does not support a rate.
    pub fn change(&mut self, now: MonoTime, class: ClassId, to: Class) {
        to.check();
        self.turn_to(now);
        let id = self.find(class).expect("a class is changed while it is there");
        assert!(id != ROOT, "the link has a rate and nothing else");
        self.put(id, to);
    }

    /// Changes the link's rate, from the next packet on.
    ///
    /// # Panics
    /// If the pacer does not support the rate.
    pub fn set_link(&mut self, now: MonoTime, rate: BitRate) {
        self.turn_to(now);
        let link = Class { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate };
        link.check();
        self.put(ROOT, link);
    }

    /// Gives a stream its next packet. It may leave in the same turn.
    ///
    /// # Panics
    /// If the class has children, has a packet already, or has been removed, or the packet is empty
    /// or larger than [`PACKET_MAX`].
    pub fn offer(&mut self, now: MonoTime, class: ClassId, packet: Packet) {
        self.turn_to(now);
        assert!(Bytes(0) < packet.bytes && packet.bytes <= PACKET_MAX, "1 byte to 1 MiB");
        let id = self.find(class).expect("a packet is offered by a class that is there");
        let node = &mut self.nodes[id as usize];
        assert!(node.family == NONE && id != ROOT, "only a class without children sends");
        assert!(node.packet.is_none(), "a stream has one packet at a time");
        node.packet = Some(packet);
        self.settle(id);
    }

    /// Delay of this turn after its scheduled time: the upper bound of the lateness of packets due
    /// in it.
    pub fn behind(&self) -> Nanos {
        self.now.since(self.before + self.tick)
    }

    /// Increases the size of an offered packet that has not left.
    ///
    /// # Panics
    /// If the class has no packet, or the new size is above [`PACKET_MAX`] or below the old size.
    pub fn enlarge(&mut self, class: ClassId, bytes: Bytes) {
        let id = self.find(class).expect("a class that is there has a packet");
        let packet = self.nodes[id as usize].packet.as_mut().expect("it has not left");
        assert!(packet.bytes <= bytes && bytes <= PACKET_MAX, "it grows, up to 1 MiB");
        packet.bytes = bytes;
    }

    /// Withdraws a stream's packet, if it has not left: the stream pauses, or has another packet to
    /// send.
    pub fn withdraw(&mut self, class: ClassId) -> Option<Packet> {
        let id = self.find(class)?;
        self.retire(id);
        self.nodes[id as usize].packet.take()
    }

    /// The next packet that leaves now; `None` if there is no further one.
    pub fn poll_send(&mut self, now: MonoTime) -> Option<Departure> {
        self.turn_to(now);
        if self.nodes[ROOT as usize].place == QueueState::Owed {
            return Some(self.send());
        }
        // This tick has been processed: a class that enters now has missed nothing of it.
        self.before = self.now;
        None
    }

    /// When to poll again; `None` if no packet is offered.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        if self.nodes[ROOT as usize].place == QueueState::Owed {
            return Some(self.now);
        }
        self.wheel.next().map(|tick| MonoTime(tick * self.tick.0))
    }

    /// Advances to the tick of `now`, as every other call does.
    pub fn turn_to(&mut self, now: MonoTime) {
        if now < self.now + self.tick {
            return;
        }
        let turn = now.0 / self.tick.0;
        // Ticks without a scheduled turn have not been missed.
        let seen = match self.nodes[ROOT as usize].place {
            QueueState::Owed => self.turn,
            _ => self.wheel.next().map_or(turn, |next| next.min(turn)) - 1,
        };
        self.before = MonoTime(seen * self.tick.0);
        self.turn = turn;
        self.now = MonoTime(turn * self.tick.0);
        self.work.turns += 1;
        self.wheel.turn(turn, &mut self.work.steps);
        self.woken.clear();
        self.woken.extend(self.wheel.awake());
        // Loaded together first, so that the cache misses overlap.
        let nodes = self.woken.iter().map(|&id| &self.nodes[id as usize]);
        let due = |node: &Node| node.packet.map_or(0, |packet| packet.due.0);
        black_box(nodes.fold(0, |read, node| read ^ due(node) ^ node.busy ^ node.sent.0));
        while let Some(id) = self.wheel.wake() {
            self.wake(id);
        }
    }

    /// The slots of the classes woken in this turn, mostly streams. A caller can prefetch its own
    /// state of each before the first of them sends.
    pub fn woken(&self) -> &[u32] {
        &self.woken
    }

    /// Wakes a class whose time has come.
    fn wake(&mut self, id: u32) {
        match self.nodes[id as usize].place {
            QueueState::Waits => self.settle(id),
            QueueState::Blocked => self.go_on(id),
            QueueState::Lent => {
                self.leave_line(id);
                self.enter_line(id);
            }
            QueueState::Idle | QueueState::Owed => {}
        }
    }

    /// Takes the packet of the first class and returns its departure.
    fn send(&mut self) -> Departure {
        let mut path = [PathClass::NONE; DEPTH_MAX];
        let mut depth = 0;
        let mut id = ROOT;
        let mut own = self.nodes[ROOT as usize].class.guaranteed;
        // A class with children is in line because of them.
        while self.nodes[id as usize].family != NONE {
            let passed = self.pass(id, own);
            path[depth] = passed;
            depth += 1;
            (id, own) = (passed.id, passed.guaranteed);
        }
        let path = &path[..depth];
        let node = &mut self.nodes[id as usize];
        let packet = node.packet.take().expect("who stands in a line has a packet");
        let departure =
            Departure { class: ClassId { index: id, life: node.life }, packet, at: self.now };
        self.work.packets += 1;
        self.work.steps += depth as u64;
        self.count(packet.bytes, path);
        // From below: the state of a class is known when its children have settled.
        for passed in path.iter().rev() {
            self.stand_back(passed.id);
        }
        let has_more = self.families[0].ready > 0;
        self.nodes[ROOT as usize].place = QueueState::Idle;
        if has_more {
            self.go_on(ROOT);
        } else {
            self.nodes[ROOT as usize].busy = self.turn;
        }
        departure
    }

    /// Removes the first child of `id` from its line; `own` is the guarantee of `id`.
    fn pass(&mut self, id: u32, own: BitRate) -> PathClass {
        if own > BitRate(0) && self.family(id).is_forgone {
            self.judge_again(id);
        }
        let family = &mut self.families[self.nodes[id as usize].family as usize];
        let (links, moves) = (&mut self.links, &mut self.work.steps);
        let (id, is_owed) = match family.owed.take_first(links, moves) {
            Some(id) => (id, true),
            None => {
                let priority = family.borrowing.trailing_zeros() as usize;
                let priority = mutant!(PriorityIgnored, lowest(family.borrowing), priority);
                let line = &mut family.lent[priority];
                let id = line.take_first(links, moves).expect("a class in line has one who sends");
                if line.is_empty() {
                    family.borrowing &= !(1 << self.nodes[id as usize].class.priority);
                }
                (id, false)
            }
        };
        let asked = self.nodes[id as usize].class.guaranteed;
        let guaranteed = match asked.min(own) {
            BitRate(0) => BitRate(0),
            _ if family.promised <= own => asked,
            _ => mutant!(PromisesUncut, asked, cut(asked, own, family.promised)),
        };
        // A class in the line of the owed may have lost its guarantee meanwhile.
        PathClass { id, is_owed: is_owed && guaranteed > BitRate(0), guaranteed }
    }

    /// Wakes the borrowing children of `id` that have a guarantee, which counts from now on. When
    /// they entered the line, a class above them had no guarantee. One pass over the line, after a
    /// change above.
    fn judge_again(&mut self, id: u32) {
        let family = &mut self.families[self.nodes[id as usize].family as usize];
        family.is_forgone = false;
        for child in family.lent.iter().flat_map(|line| line.members(&self.links)) {
            let node = &mut self.nodes[child as usize];
            if node.class.guaranteed > BitRate(0) {
                node.guarantee.pull_up(self.before);
                self.work.steps += 1;
                self.wheel.set(child, self.turn + 1);
            }
        }
    }

    /// Counts a packet on the link and on all classes of its path.
    fn count(&mut self, bytes: Bytes, path: &[PathClass]) {
        let stalled = self.now.before(STALL_MAX);
        let jammed = self.before.before(JAM_MAX).max(stalled);
        let link = &mut self.nodes[ROOT as usize];
        link.ceiling.pull_up(jammed);
        link.ceiling.advance(bytes, link.class.guaranteed);
        for passed in path {
            let node = &mut self.nodes[passed.id as usize];
            if let Some(ceiling) = node.class.ceiling {
                node.ceiling.pull_up(jammed);
                node.ceiling.advance(bytes, ceiling);
            }
            node.sent += bytes;
            if passed.is_owed {
                node.guarantee.pull_up(stalled);
                node.guarantee.advance(bytes, passed.guaranteed);
            } else {
                node.share.advance(bytes, node.class.share);
            }
        }
    }

    /// Puts a class that has just been served, and is in no line, into its new place.
    fn stand_back(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        node.place = QueueState::Idle;
        node.busy = self.turn;
        let (parent, allowed) = (node.parent, node.allowed());
        let has_more = node.family != NONE && self.families[node.family as usize].ready > 0;
        if has_more && allowed <= self.now {
            self.enter_line(id);
            return;
        }
        self.family(parent).ready -= 1;
        if has_more {
            self.block(id, allowed);
        } else {
            self.wheel.clear(id);
        }
    }

    /// Puts an idle or waiting class into its place. Its clocks start at the last processed tick:
    /// unused rate is not saved.
    fn settle(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        let now = mutant!(DueEarly, self.now + self.tick, self.now);
        if let Some(packet) = node.packet
            && packet.due > now
        {
            node.place = QueueState::Waits;
            self.sleep_until(id, packet.due);
            return;
        }
        if mutant!(IdleSaved, false, node.busy != self.turn) {
            node.ceiling.pull_up(self.before);
            node.guarantee.pull_up(self.before);
            node.busy = self.turn;
        }
        self.go_on(id);
    }

    /// Puts a class with a packet, which is in no place, into line or to sleep.
    fn go_on(&mut self, id: u32) {
        let allowed = self.nodes[id as usize].allowed();
        if allowed > self.now {
            self.block(id, allowed);
            return;
        }
        if id == ROOT {
            self.nodes[ROOT as usize].place = QueueState::Owed;
            return;
        }
        self.enter_line(id);
        let parent = self.nodes[id as usize].parent;
        self.family(parent).ready += 1;
        // A blocked parent continues at its own time.
        if self.nodes[parent as usize].place == QueueState::Idle {
            self.settle(parent);
        }
    }

    fn block(&mut self, id: u32, until: MonoTime) {
        self.nodes[id as usize].place = QueueState::Blocked;
        self.sleep_until(id, until);
    }

    /// Enters a class into the right line of its parent.
    fn enter_line(&mut self, id: u32) {
        self.work.steps += 1;
        let parent = self.nodes[id as usize].parent;
        let is_guaranteed = mutant!(NothingOwed, false, self.is_guaranteed(id));
        let family = &mut self.families[self.nodes[parent as usize].family as usize];
        let node = &mut self.nodes[id as usize];
        if !is_guaranteed && node.class.guaranteed > BitRate(0) {
            // Classes above may get a guarantee while it is in line; it has missed nothing until
            // then.
            node.guarantee.pull_up(self.before);
            family.is_forgone = true;
        }
        let owed_from = node.guarantee.due();
        if is_guaranteed && owed_from <= self.now {
            node.place = QueueState::Owed;
            family.owed.enter(&mut self.links, id, owed_from.0);
            self.wheel.clear(id);
            return;
        }
        let priority = node.class.priority;
        if family.lent[usize::from(priority)].base() > VIRTUAL_MAX {
            node.place = QueueState::Idle;
            self.rewind(parent, priority);
            self.enter_line(id);
            return;
        }
        let line = &mut family.lent[usize::from(priority)];
        mutant!(CreditKept, (), node.share.pull_up(MonoTime(line.base())));
        node.place = QueueState::Lent;
        line.enter(&mut self.links, id, node.share.due().0);
        family.borrowing |= 1 << priority;
        if is_guaranteed {
            self.sleep_until(id, owed_from);
        }
    }

    /// Resets the virtual time of siblings to zero, and keeps their lead over it. If shares equal
    /// the actual rates, virtual time runs like real time, and a reset comes after 146 years.
    fn rewind(&mut self, parent: u32, priority: u8) {
        let family = &mut self.families[self.nodes[parent as usize].family as usize];
        let line = &mut family.lent[usize::from(priority)];
        let base = MonoTime(line.base());
        *line = KeyQueue::EMPTY;
        for (id, node) in self.nodes.iter_mut().enumerate().skip(1) {
            if node.parent != parent || node.class.priority != priority {
                continue;
            }
            node.share.rewind(base);
            if node.place == QueueState::Lent {
                line.enter(&mut self.links, id as u32, node.share.due().0);
            }
        }
    }

    fn leave_line(&mut self, id: u32) {
        let Node { parent, place, class, .. } = self.nodes[id as usize];
        let family = &mut self.families[self.nodes[parent as usize].family as usize];
        if place == QueueState::Owed {
            family.owed.leave(&mut self.links, id);
            return;
        }
        let line = &mut family.lent[usize::from(class.priority)];
        line.leave(&mut self.links, id);
        if line.is_empty() {
            family.borrowing &= !(1 << class.priority);
        }
    }

    /// Removes a class from all places, and the classes above it that have no packet without it.
    fn retire(&mut self, id: u32) {
        self.wheel.clear(id);
        let place = self.nodes[id as usize].place;
        let is_in_line = id != ROOT && matches!(place, QueueState::Owed | QueueState::Lent);
        if is_in_line {
            self.leave_line(id);
        }
        let node = &mut self.nodes[id as usize];
        node.place = QueueState::Idle;
        if !matches!(place, QueueState::Idle | QueueState::Waits) {
            node.busy = self.turn;
        }
        if is_in_line {
            let parent = node.parent;
            let family = self.family(parent);
            family.ready -= 1;
            if family.ready == 0 {
                self.retire(parent);
            }
        }
    }

    /// Changes a class in any place.
    fn put(&mut self, id: u32, to: Class) {
        let was_idle = self.nodes[id as usize].place == QueueState::Idle;
        self.retire(id);
        let before = self.before;
        let node = &mut self.nodes[id as usize];
        let from = core::mem::replace(&mut node.class, to);
        // A class without a ceiling has nothing to make up for.
        if from.ceiling.is_none() {
            node.ceiling.pull_up(before);
        }
        if from.guaranteed == BitRate(0) {
            node.guarantee.pull_up(before);
        }
        if from.priority != to.priority {
            // Lines of different priorities are independent.
            node.share = Clock::at(MonoTime(0));
        }
        if id != ROOT {
            self.promise(id, from.guaranteed, to.guaranteed);
        }
        if !was_idle {
            self.settle(id);
        }
    }

    /// Updates the sum of guarantees of a class's parent.
    fn promise(&mut self, id: u32, from: BitRate, to: BitRate) {
        let parent = self.nodes[id as usize].parent;
        let family = self.family(parent);
        family.promised = family.promised - from + to;
    }

    /// Whether a class has a guarantee: all classes above it must have one, too.
    fn is_guaranteed(&self, mut id: u32) -> bool {
        while id != ROOT {
            let node = &self.nodes[id as usize];
            if node.class.guaranteed == BitRate(0) {
                return false;
            }
            id = node.parent;
        }
        true
    }

    fn sleep_until(&mut self, id: u32, time: MonoTime) {
        let tick = time.0.div_ceil(self.tick.0);
        self.work.steps += 1;
        self.wheel.set(id, tick.max(self.turn + 1));
    }

    fn family(&mut self, id: u32) -> &mut Family {
        &mut self.families[self.nodes[id as usize].family as usize]
    }

    fn find(&self, class: ClassId) -> Option<u32> {
        let node = self.nodes.get(class.index as usize)?;
        (node.life == class.life).then_some(class.index)
    }
}

/// A class on the path of a packet.
#[derive(Clone, Copy)]
struct PathClass {
    id: u32,
    is_owed: bool,
    /// Its guarantee now, scaled down if the guarantees of its siblings do not fit.
    guaranteed: BitRate,
}

impl PathClass {
    const NONE: Self = Self { id: NONE, is_owed: false, guaranteed: BitRate(0) };
}

const ROOT: u32 = LINK.index;

/// A packet advances virtual time by at most its bytes at the smallest share: 2^53 ns for 1 MiB at
/// 1 bit/s. This limit leaves room for the next packet.
const VIRTUAL_MAX: u64 = 1 << 62;

/// The part of `own` for `asked`, if `promised` is asked in all. Rounds down, but not to zero: a
/// clock at rate zero would never advance.
fn cut(asked: BitRate, own: BitRate, promised: BitRate) -> BitRate {
    let part = u128::from(asked.0) * u128::from(own.0) / u128::from(promised.0);
    BitRate((part as u64).max(1))
}

#[cfg(feature = "mutants")]
const fn lowest(borrowing: u8) -> usize {
    7 - borrowing.leading_zeros() as usize
}
