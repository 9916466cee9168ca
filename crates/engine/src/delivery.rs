//! The delivery server: the stream table. It decides which blocks each running stream needs next,
//! and when. Of several delivery servers each has the rows of its own streams.
//!
//! Promise: at the start of each disk cycle it wants every block that is due in the next cycle. It
//! feeds the link in order. When a stream ends, everything that it held is returned before the
//! stream is reported as retired. It reads no disk and sends nothing itself.
//!
//! ```text
//! Start ─► Priming ── blocks in memory ─► Running ── link has sent all ─► Draining ─► Retired
//!             └───────── stop, disk failure ───────────────────────────────▲
//! ```

mod entry;

use std::sync::Arc;

use tactus_core::byte_clock::DueTimes;
use tactus_core::cycle::{DEFERRED, JOIN};
use tactus_core::datagrams::TitleSchedule;
use tactus_core::kernel_read_ahead::{TurnLimits, Turns};
use tactus_core::mutant;
use tactus_core::ports::{DiskFault, Waker};
use tactus_core::read_ahead::Piece;
use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos};
use tactus_ring::arena::Lease;
use tactus_ring::spsc::{Consumer, Producer};

use crate::counters::{DeliveryCounters, DiskCounters};
use crate::delivery::entry::{Entry, Phase, ReadsAhead, WantedBlock};
use crate::internal::{
    BlockRequest, FromBlock, FromLink, LinkMessage, Open, OpenBlocks, OpenContent, RoundEnd,
    ToBlock, ToLink,
};
use crate::message::{
    Command, Connection, Content, Datagrams, Delivery, INTERLEAVED_MAX, Origin, Outcome, Output,
    Pin, Report, ReturnedMemory, Start, StreamId,
};
use crate::pool::Pool;
use crate::server::Server;

/// The properties of a volume that the table needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeLimits {
    /// The disk's cycle.
    pub cycle: Nanos,
    /// Size of a block.
    pub block: Bytes,
    /// The turns in which the kernel begins to read ahead for streams; `None` if it may do so from
    /// the first block on.
    pub read_ahead: Option<TurnLimits>,
}

/// The table and its rings.
pub struct DeliveryServer {
    entries: Vec<Entry>,
    /// Slots in use, in no order.
    active: Vec<u32>,
    wanted: Pool<WantedBlock>,
    volumes: Vec<Volume>,
    commands: Consumer<Command>,
    reports: Producer<Report>,
    /// Wakes the control side when there are reports.
    waker: Box<dyn Waker>,
    reported: bool,
    links: Links,
    counters: Arc<DeliveryCounters>,
}

/// The servers that send, by output.
#[derive(Default)]
pub(crate) struct Links {
    /// Each link server.
    pub(crate) connections: Vec<LinkEnd<Connection>>,
    /// Each packet server; none if no datagrams are sent.
    pub(crate) datagrams: Vec<LinkEnd<Datagrams>>,
}

/// The rings of one link.
pub(crate) struct LinkEnd<O> {
    pub(crate) requests: Producer<ToLink<O>>,
    pub(crate) answers: Consumer<FromLink>,
}

struct Volume {
    limits: VolumeLimits,
    /// What its disk server has learned.
    disk: Arc<DiskCounters>,
    read_ahead: Option<Turns>,
    /// The cycle whose blocks have been wanted.
    cycle: u64,
    to_block: Producer<ToBlock>,
    from_block: Consumer<FromBlock>,
    /// Wants went out after the last commit.
    uncommitted: bool,
    /// The block server waits for this server's commit at the beginning of the next cycle.
    is_awaited: bool,
}

/// One volume's side of a delivery server.
pub(crate) struct VolumeParts {
    pub(crate) limits: VolumeLimits,
    pub(crate) disk: Arc<DiskCounters>,
    pub(crate) to_block: Producer<ToBlock>,
    pub(crate) from_block: Consumer<FromBlock>,
}

/// The parts of a delivery server.
pub(crate) struct DeliveryParts {
    pub(crate) streams: usize,
    /// Limit of open wants.
    pub(crate) wants: usize,
    pub(crate) volumes: Vec<VolumeParts>,
    pub(crate) commands: Consumer<Command>,
    pub(crate) reports: Producer<Report>,
    pub(crate) waker: Box<dyn Waker>,
    pub(crate) links: Links,
    pub(crate) counters: Arc<DeliveryCounters>,
}

impl DeliveryServer {
    pub(crate) fn new(parts: DeliveryParts) -> Self {
        let volumes = parts.volumes.into_iter().map(|volume| Volume {
            limits: volume.limits,
            disk: volume.disk,
            read_ahead: volume.limits.read_ahead.map(Turns::new),
            cycle: 0,
            to_block: volume.to_block,
            from_block: volume.from_block,
            uncommitted: false,
            is_awaited: false,
        });
        Self {
            entries: (0..parts.streams).map(|_| Entry::free()).collect(),
            active: Vec::with_capacity(parts.streams),
            wanted: Pool::new(parts.wants),
            volumes: volumes.collect(),
            commands: parts.commands,
            reports: parts.reports,
            waker: parts.waker,
            reported: false,
            links: parts.links,
            counters: parts.counters,
        }
    }

    fn start(&mut self, now: MonoTime, start: Start) {
        let Start { stream, delivery: Delivery { content, output } } = start;
        self.counters.started.add(1);
        match content {
            Content::Blocks(blocks, framing, schedule, workspace) => {
                let limits = self.limits_of(&blocks.origin);
                let entry = Entry::of_blocks(stream, blocks, limits);
                let entry = entry.sent(framing, schedule, output);
                self.enter(Entry { workspace, ..entry });
                self.ask_alone(now, stream.index);
            }
            Content::Chunks(chunks) => {
                let entry = Entry::of_chunks(stream);
                self.enter(Entry { output: Some(output.clone()), ..entry });
                self.links.open(stream, OpenContent::Chunks(chunks), output);
            }
        }
    }

    /// A pin is a download that is never sent: its blocks stay in memory.
    fn pin(&mut self, now: MonoTime, pin: Pin) {
        let index = pin.stream.index;
        let limits = self.limits_of(&pin.origin);
        self.enter(Entry::of_pin(pin, limits));
        self.ask_alone(now, index);
    }

    fn limits_of(&self, origin: &Origin) -> VolumeLimits {
        self.volumes[usize::from(origin.volume.0)].limits
    }

    /// Adds the row of a stream.
    fn enter(&mut self, entry: Entry) {
        let index = entry.stream.index;
        let row = &mut self.entries[index as usize];
        assert!(row.is_free(), "the broker gives a slot away once");
        *row = Entry { active_at: self.active.len(), ..entry };
        self.active.push(index);
        self.counters.streams.set(self.active.len() as u64);
    }

    /// Sends the wants of one stream, at any time.
    fn ask_alone(&mut self, now: MonoTime, index: u32) {
        self.ask(now, index);
        let volume = usize::from(self.entries[index as usize].origin.volume.0);
        self.commit(volume);
    }

    /// Extends a growing title.
    fn extend(&mut self, now: MonoTime, stream: StreamId, end: Bytes, is_whole: bool) {
        let entry = &mut self.entries[stream.index as usize];
        if entry.stream != stream || !entry.is_reading() || !entry.read.is_growing() {
            return;
        }
        entry.read.extend(end, is_whole);
        entry.end = end;
        entry.origin.len = entry.origin.len.max(end);
        self.ask_alone(now, stream.index);
        self.settle(now, stream.index);
    }

    /// Puts the further reads of a stream behind those of all others, or no longer.
    fn defer(&mut self, stream: StreamId, is_deferred: bool) {
        let entry = &mut self.entries[stream.index as usize];
        if entry.stream == stream {
            entry.is_deferred = is_deferred;
        }
    }

    /// Sends the length of a title that has grown to its end to the link. A stream that has reached
    /// the end waits for its last blocks without being late, so the link gets its length only when
    /// it has been fed all of them.
    fn settle(&mut self, now: MonoTime, index: u32) {
        let entry = &mut self.entries[index as usize];
        if !entry.is_open_ended || entry.read.is_growing() || entry.phase != Phase::Running {
            return;
        }
        let cycle = self.volumes[usize::from(entry.origin.volume.0)].limits.cycle;
        let is_fed = entry.read.is_complete() && self.wanted.front(&entry.wanted).is_none();
        let is_ahead = entry.law().is_some_and(|law| {
            !entry.read.is_at_end() && entry.read.due(&law) >= entry.read.horizon(&law, now, cycle)
        });
        if is_fed || is_ahead {
            entry.is_open_ended = false;
            let (stream, len) = (entry.stream, entry.end - entry.first);
            self.links.pass(entry.output.as_ref(), LinkMessage::Settle { stream, len });
        }
    }

    /// Wants every block of the stream that is due by the next cycle's end.
    fn ask(&mut self, now: MonoTime, index: u32) {
        let entry = &mut self.entries[index as usize];
        if !entry.is_reading() {
            return;
        }
        let at = usize::from(entry.origin.volume.0);
        let volume = &mut self.volumes[at];
        let cycle = volume.limits.cycle;
        let horizon = match entry.law() {
            Some(law) => entry.read.horizon(&law, now, cycle),
            None => now,
        };
        loop {
            let law = match &entry.clock {
                Some(clock) => Some(TitleSchedule { clock: *clock, plan: entry.plan.as_deref() }),
                None => None,
            };
            let deadline = match (&law, entry.rate) {
                // A block of a growing title was due before it existed; it is not late.
                (Some(law), _) if entry.is_open_ended => {
                    entry.read.due(law).max(now + cycle.times(2))
                }
                (Some(law), _) => entry.read.due(law),
                // The first blocks of a new stream come after everything that is already promised.
                (None, Some(_)) => mutant!(NewcomersFirst, MonoTime(0), now + JOIN),
                (None, None) => MonoTime(u64::MAX),
            };
            let deadline = match (entry.is_deferred, entry.rate) {
                (true, Some(_)) => deadline + DEFERRED,
                _ => deadline,
            };
            let law = law.as_ref().map(|law| -> &dyn DueTimes { law });
            let Some(mut piece) = entry.read.poll(law, horizon) else { break };
            if let Some(block_list) = &entry.block_list {
                piece.block = block_list.block_at(piece.block);
            }
            let token =
                self.wanted.push_back(&mut entry.wanted, WantedBlock::new(entry.stream, piece));
            let want = want_of(entry, volume.limits.block, piece, token, deadline);
            let pushed = volume.to_block.push(ToBlock::Want(want));
            assert!(pushed.is_ok(), "the ring holds every want that the ledger grants");
            volume.uncommitted = true;
            volume.is_awaited |= entry.rate.is_some();
        }
    }

    /// Ends a round of wants of one stream.
    fn commit(&mut self, volume: usize) {
        let volume = &mut self.volumes[volume];
        if std::mem::take(&mut volume.uncommitted) {
            volume.end_round(RoundEnd::Stream);
        }
    }

    /// Ends the round of all running streams at the beginning of a cycle. The block server waits
    /// for it, if the last round said so or one of the streams has begun since.
    fn commit_cycle(&mut self, volume: usize, asks_again: bool) {
        let volume = &mut self.volumes[volume];
        let has_wants = std::mem::take(&mut volume.uncommitted);
        volume.is_awaited |= asks_again;
        let waiting = volume.to_block.capacity() - volume.to_block.free();
        if has_wants || volume.is_awaited && waiting < EMPTY_ROUNDS {
            volume.is_awaited = asks_again;
            volume.end_round(RoundEnd::Cycle { cycle: volume.cycle, asks_again });
        }
    }

    /// Begins a cycle for each volume whose cycle has ended.
    fn turn_cycles(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        for at in 0..self.volumes.len() {
            let cycle = now.0 / self.volumes[at].limits.cycle.0;
            if cycle == self.volumes[at].cycle {
                continue;
            }
            self.volumes[at].cycle = cycle;
            any = true;
            self.prepare_turns(at);
            let mut asks_again = false;
            for place in 0..self.active.len() {
                let index = self.active[place];
                let entry = &self.entries[index as usize];
                if usize::from(entry.origin.volume.0) == at && entry.rate.is_some() {
                    asks_again |= entry.is_reading();
                    self.let_read_ahead(now, index);
                    self.ask(now, index);
                }
            }
            self.commit_cycle(at, asks_again);
        }
        any
    }

    /// Updates the turns of a volume: the sum of the rates of its streams, and the learned speed
    /// of its disk.
    fn prepare_turns(&mut self, volume: usize) {
        let Volume { read_ahead, disk, .. } = &mut self.volumes[volume];
        if let Some(turns) = read_ahead {
            let entries = self.active.iter().map(|&index| &self.entries[index as usize]);
            let reading = entries
                .filter(|entry| entry.is_reading() && usize::from(entry.origin.volume.0) == volume);
            let rates = reading.filter_map(|entry| entry.rate).map(|rate| rate.rate.0);
            let estimate = disk.estimate();
            let learned = (estimate.confidence > 0).then_some(estimate.ratio);
            turns.note(BitRate(rates.sum()), learned);
        }
    }

    /// Lets the kernel read ahead for a stream, if it is the stream's turn.
    fn let_read_ahead(&mut self, now: MonoTime, index: u32) {
        let entry = &mut self.entries[index as usize];
        let volume = &mut self.volumes[usize::from(entry.origin.volume.0)];
        if let Some(turns) = &mut volume.read_ahead
            && entry.reads_ahead == ReadsAhead::NotYet
            && entry.is_settled(now)
            && turns.take(now)
        {
            entry.reads_ahead = ReadsAhead::InTurn;
        }
    }

    fn handle_ready(&mut self, now: MonoTime, volume: usize, token: u32, lease: Lease) {
        let wanted = self.wanted.get_mut(token);
        let stream = wanted.stream;
        let entry = &mut self.entries[stream.index as usize];
        if wanted.abandoned {
            self.wanted.remove(token);
            entry.waiting -= 1;
            self.give_back(volume, lease);
            self.retire_if_done(stream.index);
            return;
        }
        wanted.lease = Some(lease);
        self.feed(stream.index);
        self.settle(now, stream.index);
    }

    fn handle_failed(&mut self, now: MonoTime, token: u32, errno: i32) {
        let wanted = self.wanted.get_mut(token);
        let stream = wanted.stream;
        let (abandoned, block) = (wanted.abandoned, wanted.piece.block);
        wanted.failed = true;
        if abandoned {
            self.wanted.remove(token);
            self.entries[stream.index as usize].waiting -= 1;
            self.retire_if_done(stream.index);
        } else {
            let outcome = match DiskFault(errno) {
                DiskFault::DAMAGED => Outcome::Damaged { block },
                DiskFault(errno) => Outcome::Unreadable { block, errno },
            };
            self.end(now, stream.index, outcome);
        }
    }

    fn handle_dropped(&mut self, token: u32) {
        let wanted = self.wanted.remove(token);
        assert!(wanted.abandoned, "what a stream waits for is read");
        self.entries[wanted.stream.index as usize].waiting -= 1;
        self.retire_if_done(wanted.stream.index);
    }

    /// Feeds the ready blocks at the front to the link. A stream that is still priming begins once
    /// it holds everything that it has wanted.
    fn feed(&mut self, index: u32) {
        if self.waits_for_whom_it_follows(index) {
            return;
        }
        let entry = &mut self.entries[index as usize];
        if let Some(ready) = &mut entry.pinned {
            *ready += 1;
            if entry.read.is_complete() && *ready == entry.read.out() {
                let stream = entry.stream;
                self.report(Report::Pinned { stream });
            }
            return;
        }
        match entry.phase {
            Phase::Priming => {
                let cycle = self.volumes[usize::from(entry.origin.volume.0)].limits.cycle;
                let ready = self.wanted.iter(&entry.wanted).take_while(|w| w.lease.is_some());
                let (blocks, bytes) = ready.fold((0, Bytes(0)), |(blocks, bytes), wanted| {
                    (blocks + 1, bytes + Bytes(u64::from(wanted.piece.len)))
                });
                let Some(rate) = entry.begin(cycle, blocks, bytes) else { return };
                entry.phase = Phase::Running;
                let (stream, turn) = (entry.stream, entry.end - entry.first);
                let blocks = OpenBlocks {
                    volume: entry.origin.volume,
                    file: entry.origin.sent_file,
                    first: entry.first,
                    framing: entry.framing,
                    rate,
                    len: (!entry.is_open_ended && !entry.repeats).then_some(turn),
                    turn: entry.repeats.then_some(turn),
                    plan: entry.plan.clone(),
                    workspace: entry.workspace.take(),
                };
                if let Some(output) = entry.output.clone() {
                    self.links.open(stream, OpenContent::Blocks(blocks), output);
                }
                if let Some(message) = entry.message.take() {
                    entry.messages_at_link += 1;
                    let message = LinkMessage::Interleave { stream, message };
                    self.links.pass(entry.output.as_ref(), message);
                }
            }
            Phase::Running => {}
            Phase::Free | Phase::Draining => return,
        }
        while let Some(front) = self.wanted.front(&entry.wanted) {
            let wanted = self.wanted.get_mut(front);
            let Some(lease) = wanted.lease.take() else { break };
            let piece = wanted.piece;
            self.wanted.pop_front(&mut entry.wanted);
            entry.at_link += 1;
            let stream = entry.stream;
            let block = self.volumes[usize::from(entry.origin.volume.0)].limits.block;
            let offset = Bytes(piece.block * block.0 + u64::from(piece.at));
            let feed = LinkMessage::Feed { stream, lease, at: piece.at, len: piece.len, offset };
            self.links.pass(entry.output.as_ref(), feed);
        }
        self.feed_follower(index);
    }

    /// Whether the stream's predecessor has not been opened at the link yet: its first blocks may
    /// come from a slower disk.
    fn waits_for_whom_it_follows(&mut self, index: u32) -> bool {
        let entry = &self.entries[index as usize];
        let stream = entry.stream;
        if entry.phase != Phase::Priming {
            return false;
        }
        let Some(Output::Datagrams(Datagrams { after: Some(after), .. })) = entry.output else {
            return false;
        };
        let before = &mut self.entries[after.index as usize];
        let waits = before.stream == after && before.phase == Phase::Priming;
        if waits {
            before.follower = Some(stream);
        }
        waits
    }

    /// Feeds the follower that waits until the link has opened this stream, or will never open it.
    fn feed_follower(&mut self, index: u32) {
        if let Some(follower) = self.entries[index as usize].follower.take()
            && self.entries[follower.index as usize].stream == follower
        {
            self.feed(follower.index);
        }
    }

    fn handle_link(&mut self, now: MonoTime, message: FromLink) {
        match message {
            FromLink::Clock { stream, clock } => {
                let entry = &mut self.entries[stream.index as usize];
                if entry.stream == stream && entry.phase == Phase::Running {
                    entry.clock = Some(clock);
                }
            }
            FromLink::Returned { stream, lease } => {
                let entry = &mut self.entries[stream.index as usize];
                let volume = usize::from(entry.origin.volume.0);
                entry.at_link -= 1;
                entry.read.give_back();
                let refill = entry.rate.is_none();
                self.give_back(volume, lease);
                if refill {
                    self.ask(now, stream.index);
                    self.commit(volume);
                }
                self.retire_if_done(stream.index);
            }
            FromLink::Interleaved { stream, message, is_sent } => {
                self.entries[stream.index as usize].messages_at_link -= 1;
                self.report(Report::Interleaved { stream, message, is_sent });
                self.finish(stream.index);
            }
            FromLink::Closed { stream, outcome, sent, workspace } => {
                let entry = &mut self.entries[stream.index as usize];
                entry.sent = sent;
                entry.workspace = workspace;
                entry.link_closed = true;
                let is_cut =
                    entry.is_framed() && matches!(outcome, Outcome::PeerGone(_) | Outcome::TooSlow);
                if is_cut {
                    // The connection was cut within a frame. The report must say that it is
                    // unusable, not the earlier reason of the end.
                    entry.outcome = Some(outcome);
                }
                let outcome = entry.outcome.unwrap_or(outcome);
                self.end(now, stream.index, outcome);
                self.finish(stream.index);
            }
        }
    }

    /// Stops reading for a stream; its blocks are returned.
    fn end(&mut self, _now: MonoTime, index: u32, outcome: Outcome) {
        let entry = &mut self.entries[index as usize];
        let was = entry.phase;
        if matches!(was, Phase::Free | Phase::Draining) {
            return;
        }
        entry.phase = Phase::Draining;
        entry.outcome = Some(outcome);
        let (volume, title) = (usize::from(entry.origin.volume.0), entry.origin.title);
        if let Some(turns) = &mut self.volumes[volume].read_ahead
            && entry.reads_ahead == ReadsAhead::InTurn
        {
            turns.end();
        }
        let mut list = std::mem::take(&mut entry.wanted);
        while let Some(token) = self.wanted.detach_front(&mut list) {
            let wanted = self.wanted.get_mut(token);
            if wanted.lease.is_none() && !wanted.failed {
                wanted.abandoned = true;
                self.entries[index as usize].waiting += 1;
                let abandon = ToBlock::Abandon { token, title, block: wanted.piece.block };
                let pushed = self.volumes[volume].to_block.push(abandon);
                assert!(pushed.is_ok(), "the ring holds an end for every want");
                continue;
            }
            if let Some(lease) = self.wanted.remove(token).lease {
                self.give_back(volume, lease);
            }
        }
        let entry = &mut self.entries[index as usize];
        if was == Phase::Priming {
            // The link never opened it.
            entry.link_closed = true;
            if let Some(message) = entry.message.take() {
                let stream = entry.stream;
                self.report(Report::Interleaved { stream, message, is_sent: false });
            }
            self.feed_follower(index);
            self.finish(index);
        } else if !entry.link_closed {
            let stream = entry.stream;
            self.links.pass(entry.output.as_ref(), LinkMessage::Close(stream));
        }
        self.retire_if_done(index);
    }

    /// Reports the end of a stream to the control side: its socket is free.
    fn finish(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let is_closed = entry.link_closed && entry.messages_at_link == 0;
        if entry.phase != Phase::Draining || entry.finished || !is_closed {
            return;
        }
        entry.finished = true;
        let outcome = entry.outcome.expect("a stream ends with an outcome");
        let counter = match outcome {
            Outcome::Complete => Some(&self.counters.completed),
            Outcome::DiskFailed(_) | Outcome::Unreadable { .. } => Some(&self.counters.disk_failed),
            Outcome::Damaged { .. } => Some(&self.counters.damaged),
            Outcome::TooSlow => Some(&self.counters.too_slow),
            Outcome::PeerGone(_) => Some(&self.counters.peer_gone),
            Outcome::Stopped => None,
        };
        if let Some(counter) = counter {
            counter.add(1);
        }
        let (stream, sent) = (entry.stream, entry.sent);
        self.report(Report::Finished { stream, outcome, sent });
        self.retire_if_done(index);
    }

    fn retire_if_done(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let holds_nothing = entry.waiting == 0 && entry.at_link == 0;
        if !(entry.phase == Phase::Draining && entry.finished && holds_nothing) {
            return;
        }
        let (stream, at) = (entry.stream, entry.active_at);
        let memory = ReturnedMemory {
            sums: entry.origin.sums.take(),
            block_list: entry.block_list.take(),
            plan: entry.plan.take(),
            workspace: entry.workspace.take(),
        };
        entry.phase = Phase::Free;
        // The control side holds a ring until this report.
        entry.output = None;
        self.active.swap_remove(at);
        if let Some(&moved) = self.active.get(at) {
            self.entries[moved as usize].active_at = at;
        }
        self.counters.streams.set(self.active.len() as u64);
        self.report(Report::Retired { stream, memory });
    }

    fn give_back(&mut self, volume: usize, lease: Lease) {
        let pushed = self.volumes[volume].to_block.push(ToBlock::Return(lease));
        assert!(pushed.is_ok(), "the ring holds every lease of the arena");
    }

    fn stop(&mut self, now: MonoTime, stream: StreamId) {
        let is_this_life = self.entries[stream.index as usize].stream == stream;
        if mutant!(GenerationUnchecked, true, is_this_life) {
            self.end(now, stream.index, Outcome::Stopped);
        }
    }

    /// Has the link send a message between frames, or reports that it comes too late.
    fn interleave(&mut self, stream: StreamId, message: Box<[u8]>) {
        assert!((1..=INTERLEAVED_MAX).contains(&message.len()), "a message is short");
        let entry = &mut self.entries[stream.index as usize];
        let phase = if entry.stream == stream { entry.phase } else { Phase::Free };
        match phase {
            Phase::Priming => {
                assert!(entry.message.is_none(), "one message at a time");
                entry.message = Some(message);
            }
            Phase::Running => {
                entry.messages_at_link += 1;
                let message = LinkMessage::Interleave { stream, message };
                self.links.pass(entry.output.as_ref(), message);
            }
            Phase::Free | Phase::Draining => {
                self.report(Report::Interleaved { stream, message, is_sent: false });
            }
        }
    }

    fn report(&mut self, report: Report) {
        let pushed = self.reports.push(report);
        assert!(pushed.is_ok(), "the ring holds four reports for every stream");
        self.reported = true;
    }
}

impl Volume {
    fn end_round(&mut self, round: RoundEnd) {
        let pushed = self.to_block.push(ToBlock::Commit(round));
        assert!(pushed.is_ok(), "there are no more commits than wants and empty rounds");
    }
}

impl Links {
    /// Opens a stream at the server that sends it.
    fn open(&mut self, stream: StreamId, content: OpenContent, output: Output) {
        match output {
            Output::Connection(output) => {
                let link = &mut self.connections[usize::from(output.link.0)];
                link.give(ToLink::Open(Open { stream, content, output }));
            }
            Output::Datagrams(output) => {
                let server = &mut self.datagrams[usize::from(output.server.0)];
                server.give(ToLink::Open(Open { stream, content, output }));
            }
        }
    }

    /// Passes a message of an opened stream to its link. A pin is opened at no link.
    fn pass(&mut self, output: Option<&Output>, pass: LinkMessage) {
        match output {
            Some(Output::Connection(Connection { link, .. })) => {
                self.connections[usize::from(link.0)].give(ToLink::Message(pass));
            }
            Some(Output::Datagrams(Datagrams { server, .. })) => {
                self.datagrams[usize::from(server.0)].give(ToLink::Message(pass));
            }
            None => {}
        }
    }

    fn pop(&mut self) -> Option<FromLink> {
        let connections = self.connections.iter_mut().find_map(|link| link.answers.pop());
        connections.or_else(|| self.datagrams.iter_mut().find_map(|link| link.answers.pop()))
    }
}

impl<O: Send> LinkEnd<O> {
    fn give(&mut self, message: ToLink<O>) {
        let pushed = self.requests.push(message);
        assert!(pushed.is_ok(), "the ring holds every lease and four messages for every stream");
    }
}

/// Rounds without a want end with a message only while fewer messages than this wait in the ring.
/// It has room for them beside all wants. Without the message, the disk waits for the head of its
/// cycle.
pub(crate) const EMPTY_ROUNDS: usize = 16;

fn want_of(
    entry: &Entry,
    block: Bytes,
    piece: Piece,
    token: u32,
    deadline: MonoTime,
) -> BlockRequest {
    let Origin { title, file, position, len, ref sums, .. } = entry.origin;
    let offset = piece.block * block.0;
    let end = (offset + block.0).min(len.0);
    BlockRequest {
        token,
        title,
        block: piece.block,
        file,
        len: (end - offset) as u32,
        sum: sums.as_ref().map(|sums| sums.of_block(Bytes(offset), block)),
        deadline,
        position: position + offset,
        best_effort: entry.rate.is_none(),
        is_shared: entry.pinned.is_some(),
        reads_ahead: entry.reads_ahead != ReadsAhead::NotYet,
        rest: Bytes(len.0 - end),
    }
}

impl Server for DeliveryServer {
    fn poll(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        while let Some(message) = self.links.pop() {
            any = true;
            self.handle_link(now, message);
        }
        for volume in 0..self.volumes.len() {
            while let Some(answer) = self.volumes[volume].from_block.pop() {
                any = true;
                match answer {
                    FromBlock::Ready { token, lease } => {
                        self.handle_ready(now, volume, token, lease);
                    }
                    FromBlock::Failed { token, errno } => self.handle_failed(now, token, errno),
                    FromBlock::Dropped { token } => self.handle_dropped(token),
                }
            }
        }
        while let Some(command) = self.commands.pop() {
            any = true;
            match command {
                Command::Start(start) => self.start(now, start),
                Command::Pin(pin) => self.pin(now, pin),
                Command::Stop(stream) => self.stop(now, stream),
                Command::Interleave { stream, message } => self.interleave(stream, message),
                Command::Defer { stream, is_deferred } => self.defer(stream, is_deferred),
                Command::Extend { stream, end, is_whole } => {
                    self.extend(now, stream, end, is_whole);
                }
            }
        }
        any |= self.turn_cycles(now);
        if std::mem::take(&mut self.reported) {
            self.waker.wake();
        }
        any
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        if self.active.is_empty() {
            return None;
        }
        let ends = self.volumes.iter().map(|volume| {
            let cycle = volume.limits.cycle;
            MonoTime((now.0 / cycle.0 + 1) * cycle.0)
        });
        ends.min()
    }
}
