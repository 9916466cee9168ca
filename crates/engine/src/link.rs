//! The link server: sends each stream's bytes when the byte clock says so.
//!
//! Promise: no byte leaves before it is due; a peer that does not take its bytes delays nobody and
//! is ended after a bound; when the machine itself stood still, or the disk did, the clocks are
//! moved instead of sending a burst. It knows no titles and no disks: it is fed leases in order, and returns each.

mod best_effort;
mod entry;
mod framed;
mod frames;
mod made;
mod making;
mod planned;
mod roster;

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::mutant;
use tactus_core::ports::{FilePart, LinkPort, Sent};
use tactus_core::stagger::{SLOT, Slot, Tick};
use tactus_core::units::{BitRate, Bytes, KIB, MonoTime, Nanos, SECOND};
use tactus_ring::spsc::{Consumer, Producer};

use crate::counters::{LinkCounters, StreamCounters};
use crate::feeding::{Fed, Memory, Moved, Second};
use crate::internal::{FromLink, Open, ToLink};
use crate::link::best_effort::BestEffort;
use crate::link::entry::Entry;
use crate::link::frames::Frames;
use crate::link::made::Made;
use crate::link::roster::Roster;
use crate::message::{Outcome, Pace, Sink, StreamId};
use crate::pool::Pool;
use crate::server::Server;

/// When a peer counts as too slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A paced stream ends when its oldest unsent byte is overdue by this much.
    pub behind_max: Nanos,
    /// A best-effort stream ends when it takes fewer bytes than `drain_min` in this time.
    pub drain_window: Nanos,
    /// See `drain_window`.
    pub drain_min: Bytes,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            behind_max: SECOND.times(10),
            drain_window: SECOND.times(60),
            drain_min: Bytes(4 * KIB * 60),
        }
    }
}

/// A network path and the streams on it.
pub struct LinkServer<P> {
    port: P,
    memories: Vec<Memory>,
    requests: Consumer<ToLink>,
    answers: Producer<FromLink>,
    entries: Vec<Entry>,
    fed: Pool<Fed>,
    roster: Roster,
    best_effort: BestEffort,
    moved: Moved,
    /// Room in the ring of answers that moved clocks leave to all others.
    reserved: usize,
    /// For packets whose bytes lie in the page cache.
    stage: Vec<u8>,
    patience: Patience,
    /// The last slot whose streams have been visited.
    slot: Slot,
    counters: Arc<LinkCounters>,
    streams: Arc<[StreamCounters]>,
}

/// What a link server is made of, besides its port.
pub(crate) struct LinkParts {
    /// The memory of each volume's blocks.
    pub(crate) memories: Vec<Memory>,
    pub(crate) requests: Consumer<ToLink>,
    pub(crate) answers: Producer<FromLink>,
    pub(crate) patience: Patience,
    /// Most leases that can be held at once.
    pub(crate) leases: usize,
    pub(crate) counters: Arc<LinkCounters>,
    pub(crate) streams: Arc<[StreamCounters]>,
}

impl<P: LinkPort> LinkServer<P> {
    pub(crate) fn new(port: P, parts: LinkParts) -> Self {
        let streams = parts.streams.len();
        Self {
            port,
            memories: parts.memories,
            requests: parts.requests,
            answers: parts.answers,
            entries: (0..streams).map(|_| Entry::free()).collect(),
            fed: Pool::new(parts.leases),
            roster: Roster::new(streams),
            best_effort: BestEffort::new(streams),
            moved: Moved::new(streams),
            reserved: parts.leases + 2 * streams,
            stage: vec![0; framed::STAGE],
            patience: parts.patience,
            slot: Slot(0),
            counters: parts.counters,
            streams: parts.streams,
        }
    }

    /// One that has had nobody to visit has not stood still.
    fn wake(&mut self, now: MonoTime) {
        if self.roster.next_visit(self.slot).is_none() {
            self.slot = self.slot.max(Slot::at(now));
        }
    }

    fn open(&mut self, now: MonoTime, open: Open) {
        self.wake(now);
        let index = open.stream.index;
        let entry = &mut self.entries[index as usize];
        let (stream, pace, sink, turn) = (open.stream, open.pace, open.sink, open.turn);
        let plan = open.plan.clone();
        *entry = Entry::new(open, now);
        let Pace::Paced { rate, burst, tick } = pace else {
            self.best_effort.enter(index);
            return;
        };
        self.streams[index as usize].rate.set(rate.0);
        let each = rate.bytes_in(tick.span());
        let first = self.roster.enter(index, tick, each.0, self.slot.max(Slot::at(now)));
        // One tick's bytes are allowed at the first visit, so that all visits send the same.
        let law = ByteClock::new(first.begin().before(tick.span()), rate);
        let clock = law.with_burst(burst);
        entry.clock = Some(clock);
        if let Sink::Frames(sink) = sink {
            // What is sent in advance has the timestamps of its own time.
            entry.frames = Some(Frames::new(sink, law, turn, plan));
        }
        entry.first = first;
        self.answer(FromLink::Clock { stream, clock });
    }

    fn feed(&mut self, stream: StreamId, fed: Fed) {
        let entry = &mut self.entries[stream.index as usize];
        if entry.stream != Some(stream) {
            // Closed while the lease was on its way.
            self.answer(FromLink::Returned { stream, lease: fed.lease });
            return;
        }
        entry.available += Bytes(u64::from(fed.len));
        self.fed.push_back(&mut entry.fed, fed);
    }

    /// The length of a stream is known now.
    fn settle(&mut self, stream: StreamId, len: Bytes) {
        let entry = &mut self.entries[stream.index as usize];
        if entry.stream != Some(stream) {
            return;
        }
        entry.len = Some(len);
        if entry.is_complete() {
            self.close(stream.index, Outcome::Complete);
        }
    }

    /// Visits all streams of `slot`.
    fn visit_slot(&mut self, now: MonoTime, slot: Slot) {
        for tick in Tick::ALL {
            let mut next = self.roster.first(slot, tick);
            while let Some(index) = next {
                // Read before the visit: a stream that ends leaves the roster.
                next = self.roster.after(index);
                self.visit(now, slot, index);
            }
        }
    }

    fn visit(&mut self, now: MonoTime, slot: Slot, index: u32) {
        let entry = &mut self.entries[index as usize];
        if slot < entry.first {
            return;
        }
        if entry.made.is_some() {
            return self.visit_made(now, slot, index);
        }
        if entry.frames.is_some() {
            return self.visit_frames(now, slot, index);
        }
        let clock = entry.clock.expect("the roster holds only paced streams");
        let allowed = clock.allowed(slot.begin());
        let due = allowed.min(entry.end()).saturating_sub(entry.sent);
        if entry.len.is_none() && allowed > entry.end() && !entry.was_blocked {
            // It has come up with the end of a title that grows: its clock waits for it. A peer that
            // takes nothing keeps the window full, which looks the same, and is not waited for.
            let ahead = allowed - entry.end();
            self.move_clock(index, clock.rate().time_for(ahead));
        }
        if due == Bytes(0) {
            return;
        }
        let entry = &mut self.entries[index as usize];
        let clock = entry.clock.expect("the roster holds only paced streams");
        let second = entry.window.visit(now, entry.sent, entry.was_blocked);
        if let Some(second) = second {
            self.count_second(index, second);
        }
        let entry = &mut self.entries[index as usize];
        let lateness = now.since(slot.begin());
        self.counters.lateness.record(lateness.0);
        self.streams[index as usize].lateness_max.raise(lateness.0);
        let ready = mutant!(Unleased, due, due.min(entry.available));
        if ready < due && !entry.was_blocked {
            self.counters.underruns.add(1);
            self.streams[index as usize].underruns.add(1);
        }
        let taken = self.send(now, index, ready);
        let entry = &mut self.entries[index as usize];
        match taken {
            Taken::Ended(outcome) => self.close(index, outcome),
            Taken::Bytes(_) if entry.is_complete() => self.close(index, Outcome::Complete),
            Taken::Bytes(taken) => {
                let (is_blocked, missing) = (taken < ready, due - ready);
                entry.was_blocked = is_blocked || entry.was_blocked && missing > Bytes(0);
                if let Some(owed_max) = entry.waited_for.filter(|_| is_blocked) {
                    let forgotten = (due - taken).saturating_sub(owed_max);
                    if forgotten > Bytes(0) {
                        self.move_clock(index, clock.rate().time_for(forgotten));
                    }
                    return;
                }
                let overdue = now.since(clock.due(entry.sent + Bytes(1)));
                if is_blocked && overdue > self.patience.behind_max {
                    self.close(index, Outcome::TooSlow);
                } else if !is_blocked && missing > Bytes(0) {
                    self.move_clock(index, clock.rate().time_for(missing));
                }
            }
        }
    }

    /// Starts a new segment: what was missing is not owed at once, or the disk that was late would be
    /// asked for more than was admitted until it has caught up, and all its streams with it.
    fn move_clock(&mut self, index: u32, by: Nanos) {
        let entry = &mut self.entries[index as usize];
        let by = mutant!(DebtKept, Nanos(0), by);
        entry.clock = entry.clock.map(|clock| clock.delayed(by));
        if let Some(frames) = &mut entry.frames {
            frames.delay(by);
        }
        self.moved.add(index);
    }

    /// Tells the delivery server of moved clocks, as far as there is room beside what must be told.
    fn tell_moved(&mut self) {
        while self.answers.free() > self.reserved
            && let Some(index) = self.moved.take()
        {
            let entry = &self.entries[index as usize];
            if let (Some(stream), Some(clock)) = (entry.stream, entry.clock) {
                self.answer(FromLink::Clock { stream, clock });
            }
        }
    }

    fn count_second(&self, index: u32, second: Second) {
        let stream = &self.streams[index as usize];
        stream.second_bytes.set(second.bytes.0);
        if !second.was_blocked {
            let deviation = second.deviation(BitRate(stream.rate.value()));
            stream.deviation.set(deviation);
            self.counters.deviation.record(deviation);
        }
    }

    /// Sends up to `most` of what the stream has been fed, and returns the leases used up.
    fn send(&mut self, now: MonoTime, index: u32, most: Bytes) -> Taken {
        let mut left = most;
        while left > Bytes(0) {
            let (offered, sent) = self.offer(now, index, left);
            let taken = match sent {
                Sent::Some(taken) => Bytes(u64::from(taken)),
                Sent::Blocked => Bytes(0),
                Sent::Broken(errno) => return Taken::Ended(Outcome::PeerGone(errno)),
                Sent::Lost(errno) => return Taken::Ended(Outcome::DiskFailed(errno)),
            };
            assert!(taken <= offered, "a socket takes no more than it was offered");
            self.counters.sends.add(1);
            self.use_up(index, mutant!(PartialSendSkipped, offered, taken));
            left -= taken;
            if taken < offered {
                self.counters.blocked.add(1);
                break;
            }
        }
        Taken::Bytes(most - left)
    }

    /// Offers up to `most` to the socket once; says how much that was.
    fn offer(&mut self, now: MonoTime, index: u32, most: Bytes) -> (Bytes, Sent) {
        let entry = &self.entries[index as usize];
        let socket = entry.socket.expect("a visited stream has a socket");
        let view = match &self.memories[entry.volume] {
            Memory::Arena(view) => view,
            Memory::PageCache => {
                let (offset, most) = self.run(entry, most.min(FILE_PART_MAX));
                let part = FilePart { file: entry.file, offset, len: most.0 as u32 };
                return (most, self.port.send_file(now, socket, part));
            }
        };
        let mut parts = [&[][..]; PARTS];
        let mut count = 0;
        let mut offered = Bytes(0);
        for fed in self.fed.iter(&entry.fed).take(PARTS) {
            if offered == most {
                break;
            }
            let len = u64::from(fed.len).min((most - offered).0) as usize;
            parts[count] = &view.bytes(&fed.lease)[fed.at as usize..][..len];
            offered += Bytes(len as u64);
            count += 1;
        }
        (offered, self.port.send(now, socket, &parts[..count]))
    }

    /// Where in its file the next bytes of a stream are, and how many up to `most` lie in one piece.
    fn run(&self, entry: &Entry, most: Bytes) -> (Bytes, Bytes) {
        let mut fed = self.fed.iter(&entry.fed);
        let first = fed.next().expect("only what was fed is offered");
        let mut len = Bytes(u64::from(first.len));
        while len < most
            && let Some(next) = fed.next()
        {
            if next.offset != first.offset + len {
                return (first.offset, len);
            }
            len += Bytes(u64::from(next.len));
        }
        (first.offset, most)
    }

    /// Counts `taken` bytes as sent and gives back the leases that they used up.
    fn use_up(&mut self, index: u32, taken: Bytes) {
        let entry = &mut self.entries[index as usize];
        entry.sent += taken;
        entry.available -= taken;
        self.counters.bytes.add(taken.0);
        self.streams[index as usize].bytes.add(taken.0);
        let mut left = taken.0 as u32;
        while let Some(at) = self.fed.front(&entry.fed) {
            let fed = self.fed.get_mut(at);
            let used = fed.len.min(left);
            fed.at += used;
            fed.len -= used;
            fed.offset += Bytes(u64::from(used));
            left -= used;
            if fed.len > mutant!(LeaseEarly, fed.at, 0) {
                break;
            }
            let fed = self.fed.pop_front(&mut entry.fed).expect("the front is there");
            let stream = entry.stream.expect("an open stream sends");
            give(&mut self.answers, FromLink::Returned { stream, lease: fed.lease });
        }
        assert!(left == 0, "only what was fed is sent");
    }

    fn close(&mut self, index: u32, outcome: Outcome) {
        let entry = &mut self.entries[index as usize];
        let stream = entry.stream.take().expect("a stream is closed once");
        while let Some(fed) = self.fed.pop_front(&mut entry.fed) {
            let back = FromLink::Returned { stream, lease: fed.lease };
            mutant!(LeaseLost, (), give(&mut self.answers, back));
        }
        let sent = entry.sent;
        if let Some(frames) = &entry.frames {
            frames.cutter.keep();
        }
        let text = entry.frames.as_mut().and_then(Frames::give_up);
        let text = text.or_else(|| entry.made.as_mut().and_then(Made::give_up));
        if entry.clock.is_some() || entry.made.is_some() {
            self.roster.leave(index);
        } else {
            self.best_effort.leave(index);
        }
        self.entries[index as usize] = Entry::free();
        if let Some(text) = text {
            self.answer(FromLink::Inserted { stream, text, is_sent: false });
        }
        // Now, and not when the place is opened again: until then it belongs to a stream that begins.
        self.streams[index as usize].clear();
        self.answer(FromLink::Closed { stream, outcome, sent });
    }

    fn take_requests(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(request) = self.requests.pop() {
            any = true;
            match request {
                ToLink::Open(open) => self.open(now, open),
                ToLink::Make(make) => self.make(now, make),
                ToLink::Feed { stream, lease, at, len, offset } => {
                    self.feed(stream, Fed { lease, at, len, offset });
                }
                ToLink::Settle { stream, len } => self.settle(stream, len),
                ToLink::Insert { stream, text } => self.insert(now, stream, text),
                ToLink::Close(stream) => {
                    let entry = &self.entries[stream.index as usize];
                    if entry.stream != Some(stream) {
                        continue;
                    }
                    match (&entry.frames, &entry.made) {
                        (Some(_), _) => self.close_frames(now, stream.index),
                        (_, Some(_)) => self.close_made(now, stream.index),
                        (None, None) => self.close(stream.index, Outcome::Stopped),
                    }
                }
            }
        }
        any
    }

    /// Moves all clocks when the machine itself stood still for longer than a tick: what was due in
    /// the meantime is sent at the streams' rates, not in one burst.
    fn watch_stall(&mut self, now: MonoTime) {
        let Some(expected) = self.roster.next_visit(self.slot) else { return };
        let stall = now.since(expected.begin());
        if stall <= STALL {
            return;
        }
        self.counters.stalls.add(1);
        // Whole slots, so that every stream keeps its phase.
        let pause = SLOT.times(stall.0 / SLOT.0);
        for index in 0..self.entries.len() as u32 {
            let entry = &mut self.entries[index as usize];
            let is_paced = entry.clock.is_some();
            if is_paced || entry.made.is_some() {
                self.counters.stalled_streams.add(1);
                self.counters.lateness.record(pause.0);
                self.streams[index as usize].count_stall(pause);
            }
            if let Some(made) = &mut entry.made {
                made.delay(pause);
                self.streams[index as usize].epoch.set(made.begin.0);
            }
            if is_paced {
                self.move_clock(index, pause);
            }
        }
        self.slot = Slot(self.slot.0 + pause.0 / SLOT.0);
    }

    fn answer(&mut self, answer: FromLink) {
        give(&mut self.answers, answer);
    }
}

fn give(answers: &mut Producer<FromLink>, answer: FromLink) {
    let pushed = answers.push(answer);
    assert!(pushed.is_ok(), "the ring holds an answer for every lease and stream");
}

enum Taken {
    Bytes(Bytes),
    /// Nothing more can be sent.
    Ended(Outcome),
}

impl<P: LinkPort + Send> Server for LinkServer<P> {
    fn poll(&mut self, now: MonoTime) -> bool {
        let mut any = self.take_requests(now);
        let current = Slot::at(now);
        if current > self.slot {
            self.watch_stall(now);
            while let Some(slot) = self.roster.next_visit(self.slot).filter(|&s| s <= current) {
                self.visit_slot(now, slot);
                self.slot = slot;
                any = true;
            }
            self.slot = current;
            any |= self.serve_best_effort(now);
            self.tell_moved();
        }
        any
    }

    fn poll_timeout(&self, _now: MonoTime) -> Option<MonoTime> {
        if !self.best_effort.is_empty() {
            return Some(Slot(self.slot.0 + 1).begin());
        }
        self.roster.next_visit(self.slot).map(Slot::begin)
    }
}

/// A machine that stood still for longer than the longest tick has stalled.
const STALL: Nanos = Tick::Ms250.span();

/// Bytes of a file offered to a socket in one call: more than any socket takes.
const FILE_PART_MAX: Bytes = Bytes(1 << 30);
/// Blocks offered to a socket in one call. A send is at most 512 KiB, so two blocks of 256 KiB and
/// the one they began in; more only for streams over 400 Mbit/s.
const PARTS: usize = 16;
