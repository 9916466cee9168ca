//! The pacer: which packet leaves a link when, by classes that are promised, lent and limited rates.
//!
//! Promise: no packet leaves before it is due or above a ceiling; none that is due stays when nothing
//! is in its way; a class gets what it is guaranteed, and what is left goes by priority and then
//! exactly by share. Operations per packet and wake-ups do not depend on the number of classes. It
//! knows neither sockets nor what the bytes are. The argument: `docs/design/pacer.md`.

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
use class::{Family, Node, Place};
use clock::Clock;
use line::{Line, Link, NONE};
use wheel::Wheel;

/// Classes on top of each other, the link not counted.
pub const DEPTH_MAX: usize = 8;

/// What a class makes up for at its ceiling after others kept it from sending. A burst of many
/// streams that are due at once is over after a fraction of it; what starves a class for longer is
/// no reason for a burst.
pub const JAM_MAX: Nanos = MILLISECOND;

/// What is made up for after the machine, or whoever polls, stood still. As for TCP: the longest of
/// its ticks.
pub const STALL_MAX: Nanos = Nanos::from_millis(250);

/// How much a pacer has room for, and how finely it divides time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Classes, streams among them.
    pub classes: usize,
    /// Classes that have children, besides the link: 6 KB each.
    pub parents: usize,
    /// A turn's length: at least 1 us.
    pub tick: Nanos,
}

/// A class by name. Of a class that has been removed it names nothing, whoever has its place now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId {
    /// Its place: small numbers, for tables beside the pacer.
    pub index: u32,
    life: u32,
}

/// The link itself, the parent of all classes.
pub const LINK: ClassId = ClassId { index: 0, life: 1 };

/// Why a class cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// all classes of this link are in use: raise its number of classes
    Classes,
    /// all places for classes with children are in use: raise their number
    Parents,
    /// classes lie at most eight deep
    Depth,
    /// the parent is a stream with a packet of its own
    ParentSends,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classes => "all classes of this link are in use: raise its number of classes",
            Self::Parents => "all places for classes with children are in use: raise their number",
            Self::Depth => "classes lie at most eight deep",
            Self::ParentSends => "the parent is a stream with a packet of its own",
        })
    }
}

impl core::error::Error for Refused {}

/// A packet that leaves now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    /// Whose.
    pub class: ClassId,
    /// What it was offered as.
    pub packet: Packet,
    /// The beginning of the tick in which it leaves: what was decided by.
    pub at: MonoTime,
}

/// What the pacer has done since it was made: for metrics, and for showing what it costs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Turns in which it went on to a later tick.
    pub turns: u64,
    /// Packets that left.
    pub packets: u64,
    /// Entries into lines and the wheel, moves within them, and classes a packet went through.
    pub steps: u64,
}

/// The classes of one link.
pub struct Pacer {
    tick: Nanos,
    /// The tick of this turn, and its beginning.
    turn: u64,
    now: MonoTime,
    /// The beginning of the last tick that has been seen to, or had nothing to see to.
    before: MonoTime,
    nodes: Vec<Node>,
    links: Vec<Link>,
    wheel: Wheel,
    /// Who was waited for until this turn.
    woken: Vec<u32>,
    families: Vec<Family>,
    free_nodes: Vec<u32>,
    free_families: Vec<u32>,
    work: Work,
}

impl Pacer {
    /// A link of `rate` without classes.
    ///
    /// # Panics
    /// When the rate is not one that the pacer keeps, or the tick is shorter than 1 us.
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
            work: Work::default(),
        };
        let link = Class { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate };
        link.check();
        pacer.nodes[ROOT as usize] = Node { class: link, life: LINK.life, family: 0, ..Node::FREE };
        pacer
    }

    /// What it has done.
    pub const fn work(&self) -> Work {
        self.work
    }

    /// What `class` may, or `None` when it is gone.
    pub fn class(&self, class: ClassId) -> Option<Class> {
        self.find(class).map(|id| self.nodes[id as usize].class)
    }

    /// What `class` and all below it have sent, or `None` when it is gone.
    pub fn sent(&self, class: ClassId) -> Option<Bytes> {
        self.find(class).map(|id| self.nodes[id as usize].sent)
    }

    /// Whether `class` is there and has a packet that has not left.
    pub fn has_packet(&self, class: ClassId) -> bool {
        self.find(class).is_some_and(|id| self.nodes[id as usize].packet.is_some())
    }

    /// Adds a class below `parent`.
    ///
    /// # Errors
    /// When there is no room for it; nothing has changed then.
    ///
    /// # Panics
    /// When the parent has been removed, or a rate is not one that the pacer keeps.
    pub fn add(&mut self, parent: ClassId, class: Class) -> Result<ClassId, Refused> {
        class.check();
        let parent = self.find(parent).expect("a class is added to one that is there");
        let depth = self.nodes[parent as usize].depth + 1;
        if usize::from(depth) > DEPTH_MAX {
            return Err(Refused::Depth);
        }
        if self.nodes[parent as usize].packet.is_some() {
            return Err(Refused::ParentSends);
        }
        if self.nodes[parent as usize].family == NONE {
            if self.free_nodes.is_empty() {
                return Err(Refused::Classes);
            }
            self.nodes[parent as usize].family =
                self.free_families.pop().ok_or(Refused::Parents)?;
        }
        let id = self.free_nodes.pop().ok_or(Refused::Classes)?;
        let node = &mut self.nodes[id as usize];
        let life = node.life + 1;
        *node = Node { class, life, parent, depth, ..Node::FREE };
        self.family(parent).members += 1;
        self.promise(id, BitRate(0), class.guaranteed);
        Ok(ClassId { index: id, life })
    }

    /// Takes out a class without children; a packet that it has will not leave.
    ///
    /// # Panics
    /// When it has children, is the link, or has been removed already.
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

    /// Changes what a class may, from its next packet on.
    ///
    /// # Panics
    /// When it is the link or has been removed, or a rate is not one that the pacer keeps.
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
    /// When the rate is not one that the pacer keeps.
    pub fn set_link(&mut self, now: MonoTime, rate: BitRate) {
        self.turn_to(now);
        let link = Class { guaranteed: rate, ceiling: Some(rate), priority: 0, share: rate };
        link.check();
        self.put(ROOT, link);
    }

    /// Gives a stream its next packet. It may leave in this very turn.
    ///
    /// # Panics
    /// When the class has children, has a packet already, or has been removed, and when the packet is
    /// empty or larger than [`PACKET_MAX`].
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

    /// How long after the turn that was wanted this one came: what is due in it has been late by up to so much.
    pub fn behind(&self) -> Nanos {
        self.now.since(self.before + self.tick)
    }

    /// A packet that has not left is larger than it was offered as.
    ///
    /// # Panics
    /// When the class has no packet, and when it is larger than [`PACKET_MAX`] now, or smaller than it was.
    pub fn enlarge(&mut self, class: ClassId, bytes: Bytes) {
        let id = self.find(class).expect("a class that is there has a packet");
        let packet = self.nodes[id as usize].packet.as_mut().expect("it has not left");
        assert!(packet.bytes <= bytes && bytes <= PACKET_MAX, "it grows, up to 1 MiB");
        packet.bytes = bytes;
    }

    /// Takes a stream's packet back, if it has not left: the stream pauses, or has something else to
    /// send.
    pub fn withdraw(&mut self, class: ClassId) -> Option<Packet> {
        let id = self.find(class)?;
        self.retire(id);
        self.nodes[id as usize].packet.take()
    }

    /// The next packet that leaves now, until there is none.
    pub fn poll_send(&mut self, now: MonoTime) -> Option<Departure> {
        self.turn_to(now);
        if self.nodes[ROOT as usize].place == Place::Owed {
            return Some(self.send());
        }
        // This tick has been seen to: who comes now has missed nothing of it.
        self.before = self.now;
        None
    }

    /// When to poll again; `None` while nothing is offered.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        if self.nodes[ROOT as usize].place == Place::Owed {
            return Some(self.now);
        }
        self.wheel.next().map(|tick| MonoTime(tick * self.tick.0))
    }

    /// Goes on to the tick of `now`, as every other call does.
    pub fn turn_to(&mut self, now: MonoTime) {
        if now < self.now + self.tick {
            return;
        }
        let turn = now.0 / self.tick.0;
        // Ticks that nobody had asked for have not been missed.
        let seen = match self.nodes[ROOT as usize].place {
            Place::Owed => self.turn,
            _ => self.wheel.next().map_or(turn, |next| next.min(turn)) - 1,
        };
        self.before = MonoTime(seen * self.tick.0);
        self.turn = turn;
        self.now = MonoTime(turn * self.tick.0);
        self.work.turns += 1;
        self.wheel.turn(turn, &mut self.work.steps);
        self.woken.clear();
        self.woken.extend(self.wheel.awake());
        // Read together first: the processor waits for all of them at once then, not for one after the other.
        let nodes = self.woken.iter().map(|&id| &self.nodes[id as usize]);
        let due = |node: &Node| node.packet.map_or(0, |packet| packet.due.0);
        black_box(nodes.fold(0, |read, node| read ^ due(node) ^ node.busy ^ node.sent.0));
        while let Some(id) = self.wheel.wake() {
            self.wake(id);
        }
    }

    /// The places of the classes that were waited for until this turn, streams for the most part: whoever keeps something
    /// for each can look it up before the first of them sends.
    pub fn woken(&self) -> &[u32] {
        &self.woken
    }

    /// The time has come that a class has waited for.
    fn wake(&mut self, id: u32) {
        match self.nodes[id as usize].place {
            Place::Waits => self.settle(id),
            Place::Blocked => self.go_on(id),
            Place::Lent => {
                self.leave_line(id);
                self.enter_line(id);
            }
            Place::Idle | Place::Owed => {}
        }
    }

    /// Takes the packet of the class that is first, and says that it leaves.
    fn send(&mut self) -> Departure {
        let mut path = [Passed::NONE; DEPTH_MAX];
        let mut depth = 0;
        let mut id = ROOT;
        let mut own = self.nodes[ROOT as usize].class.guaranteed;
        // Who has children that send stands in line because of them.
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
        // From below: whether a class has more to send is known when its children have settled.
        for passed in path.iter().rev() {
            self.stand_back(passed.id);
        }
        let has_more = self.families[0].ready > 0;
        self.nodes[ROOT as usize].place = Place::Idle;
        if has_more {
            self.go_on(ROOT);
        } else {
            self.nodes[ROOT as usize].busy = self.turn;
        }
        departure
    }

    /// Takes the child of `id` that is first out of its line; `own` is what `id` is guaranteed.
    fn pass(&mut self, id: u32, own: BitRate) -> Passed {
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
        // What stands among the owed may have lost its guarantee since.
        Passed { id, is_owed: is_owed && guaranteed > BitRate(0), guaranteed }
    }

    /// Wakes those of the lent children of `id` that are guaranteed something, which counts from now on: when they entered
    /// something above was guaranteed nothing. One pass over who stands there, after a change above.
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

    /// Counts a packet on the link and on all classes that it came through.
    fn count(&mut self, bytes: Bytes, path: &[Passed]) {
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

    /// Puts a class that has just been served, and stands in no line, where it belongs now.
    fn stand_back(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        node.place = Place::Idle;
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

    /// Puts a class that was idle or waited where it belongs. Its clocks start at the last tick that
    /// was seen to: what it did not use it has not saved.
    fn settle(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        let now = mutant!(DueEarly, self.now + self.tick, self.now);
        if let Some(packet) = node.packet
            && packet.due > now
        {
            node.place = Place::Waits;
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

    /// Puts a class that has something to send, and stands nowhere, into line or to sleep.
    fn go_on(&mut self, id: u32) {
        let allowed = self.nodes[id as usize].allowed();
        if allowed > self.now {
            self.block(id, allowed);
            return;
        }
        if id == ROOT {
            self.nodes[ROOT as usize].place = Place::Owed;
            return;
        }
        self.enter_line(id);
        let parent = self.nodes[id as usize].parent;
        self.family(parent).ready += 1;
        // A parent that is blocked goes on when its own time comes.
        if self.nodes[parent as usize].place == Place::Idle {
            self.settle(parent);
        }
    }

    fn block(&mut self, id: u32, until: MonoTime) {
        self.nodes[id as usize].place = Place::Blocked;
        self.sleep_until(id, until);
    }

    /// Enters a class into the line of its parent where it belongs.
    fn enter_line(&mut self, id: u32) {
        self.work.steps += 1;
        let parent = self.nodes[id as usize].parent;
        let is_guaranteed = mutant!(NothingOwed, false, self.is_guaranteed(id));
        let family = &mut self.families[self.nodes[parent as usize].family as usize];
        let node = &mut self.nodes[id as usize];
        if !is_guaranteed && node.class.guaranteed > BitRate(0) {
            // Those above may be guaranteed something while it stands here; it has missed nothing until then.
            node.guarantee.pull_up(self.before);
            family.is_forgone = true;
        }
        let owed_from = node.guarantee.due();
        if is_guaranteed && owed_from <= self.now {
            node.place = Place::Owed;
            family.owed.enter(&mut self.links, id, owed_from.0);
            self.wheel.clear(id);
            return;
        }
        let priority = node.class.priority;
        if family.lent[usize::from(priority)].base() > VIRTUAL_MAX {
            node.place = Place::Idle;
            self.rewind(parent, priority);
            self.enter_line(id);
            return;
        }
        let line = &mut family.lent[usize::from(priority)];
        mutant!(CreditKept, (), node.share.pull_up(MonoTime(line.base())));
        node.place = Place::Lent;
        line.enter(&mut self.links, id, node.share.due().0);
        family.borrowing |= 1 << priority;
        if is_guaranteed {
            self.sleep_until(id, owed_from);
        }
    }

    /// Takes the virtual time of siblings back to zero, with all that they are ahead of it. Where shares
    /// are what classes really get it runs like the real one, and that takes 146 years.
    fn rewind(&mut self, parent: u32, priority: u8) {
        let family = &mut self.families[self.nodes[parent as usize].family as usize];
        let line = &mut family.lent[usize::from(priority)];
        let base = MonoTime(line.base());
        *line = Line::EMPTY;
        for (id, node) in self.nodes.iter_mut().enumerate().skip(1) {
            if node.parent != parent || node.class.priority != priority {
                continue;
            }
            node.share.rewind(base);
            if node.place == Place::Lent {
                line.enter(&mut self.links, id as u32, node.share.due().0);
            }
        }
    }

    fn leave_line(&mut self, id: u32) {
        let Node { parent, place, class, .. } = self.nodes[id as usize];
        let family = &mut self.families[self.nodes[parent as usize].family as usize];
        if place == Place::Owed {
            family.owed.leave(&mut self.links, id);
            return;
        }
        let line = &mut family.lent[usize::from(class.priority)];
        line.leave(&mut self.links, id);
        if line.is_empty() {
            family.borrowing &= !(1 << class.priority);
        }
    }

    /// Takes a class out of everything, and those above it that have nothing to send without it.
    fn retire(&mut self, id: u32) {
        self.wheel.clear(id);
        let place = self.nodes[id as usize].place;
        let is_in_line = id != ROOT && matches!(place, Place::Owed | Place::Lent);
        if is_in_line {
            self.leave_line(id);
        }
        let node = &mut self.nodes[id as usize];
        node.place = Place::Idle;
        if !matches!(place, Place::Idle | Place::Waits) {
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

    /// Changes a class, wherever it is.
    fn put(&mut self, id: u32, to: Class) {
        let was_idle = self.nodes[id as usize].place == Place::Idle;
        self.retire(id);
        let before = self.before;
        let node = &mut self.nodes[id as usize];
        let from = core::mem::replace(&mut node.class, to);
        // What had no rate has nothing to make up for.
        if from.ceiling.is_none() {
            node.ceiling.pull_up(before);
        }
        if from.guaranteed == BitRate(0) {
            node.guarantee.pull_up(before);
        }
        if from.priority != to.priority {
            // Lines of different priorities have nothing to do with each other.
            node.share = Clock::at(MonoTime(0));
        }
        if id != ROOT {
            self.promise(id, from.guaranteed, to.guaranteed);
        }
        if !was_idle {
            self.settle(id);
        }
    }

    /// Counts a change of what a class is guaranteed on its parent.
    fn promise(&mut self, id: u32, from: BitRate, to: BitRate) {
        let parent = self.nodes[id as usize].parent;
        let family = self.family(parent);
        family.promised = family.promised - from + to;
    }

    /// Whether a class is guaranteed anything: so must be all above it.
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

/// A class that a packet comes through.
#[derive(Clone, Copy)]
struct Passed {
    id: u32,
    is_owed: bool,
    /// What it is guaranteed now, with its siblings cut to fit.
    guaranteed: BitRate,
}

impl Passed {
    const NONE: Self = Self { id: NONE, is_owed: false, guaranteed: BitRate(0) };
}

const ROOT: u32 = LINK.index;

/// Virtual time runs as fast as a packet's bytes by the smallest share: 2^53 ns for each at 1 bit/s, so that
/// this leaves room for the next.
const VIRTUAL_MAX: u64 = 1 << 62;

/// `asked` as a part of `own`, of which `promised` is asked in all. Rounds down, but not to nothing: a
/// clock at rate zero would never come.
fn cut(asked: BitRate, own: BitRate, promised: BitRate) -> BitRate {
    let part = u128::from(asked.0) * u128::from(own.0) / u128::from(promised.0);
    BitRate((part as u64).max(1))
}

#[cfg(feature = "mutants")]
const fn lowest(borrowing: u8) -> usize {
    7 - borrowing.leading_zeros() as usize
}
