//! The control side of a simulated world: clients that start, leave and seek, and their reports.

use std::sync::Arc;

use tactus_core::classes::ClassNumber;
use tactus_core::cost::TitlePart;
use tactus_core::datagrams::{Framing, Plan, Session};
use tactus_core::envelope::{Envelope, Spans};
use tactus_core::ports::FileHandle;
use tactus_core::stagger::Tick;
use tactus_core::sums::{Sums, UNIT};
use tactus_core::timeline::slot_of;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::message::{
    self, Blocks, Command, Connection, Datagrams, Extent, LinkId, Origin, Outcome, Output,
    PacketServerId, Pin, Rate, Report, Schedule, Start, StreamId, TitleId, VolumeId,
};
use tactus_ring::spsc::Consumer;

use super::schedule::Event;
use super::{Mode, World};
use crate::broker::{Grant, Request};
use crate::content;
use crate::device::open;
use crate::dice::Dice;
use crate::net::{DatagramPromise, Delivery, DeliveryState, PacedPromise};
use crate::plan::PlannedRange;
use crate::swarm::{ClientKind, ClientSpec, DatagramSpec, wire_max};
use crate::title::{Audience, Title};
use crate::verdict::{Invariant, require};

/// A client.
pub(super) struct Client {
    pub(super) spec: ClientSpec,
    dice: Dice,
    /// Stops a delivery that has ended long ago, if it is confused.
    stale: Option<StreamId>,
}

/// A delivery that holds a grant.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) stream: StreamId,
    client: usize,
    pub(super) grant: Grant,
    title: usize,
    pub(super) started: MonoTime,
    /// When the client stopped it.
    pub(super) stopped: Option<MonoTime>,
    /// When it was reported as finished.
    pub(super) finished: Option<MonoTime>,
    /// Its reads come after those of all others.
    pub(super) is_deferred: bool,
    /// A pin whose memory is already promised to others.
    is_given_up: bool,
    /// Further ranges that the client wants with the same grant.
    parts_left: u64,
    len: Bytes,
}

/// The state of a title that is pinned in memory, or will be.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PinnedTitle {
    pinner: Option<StreamId>,
    is_complete: bool,
    /// Streams that were admitted because it is pinned.
    relying: u32,
}

impl Client {
    pub(super) fn new(number: usize, spec: ClientSpec, dice: &Dice) -> Self {
        Self { spec, dice: dice.fork(10_000 + number as u64), stale: None }
    }
}

impl World {
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { client } => self.arrive(client),
            Event::Leave { stream } => self.leave(stream),
            Event::Reports => {
                self.read_reports();
                self.look_at_disks();
            }
            Event::Grow { stream, every } => self.grow(stream, every),
            Event::Upload { uploader } => self.upload(uploader),
            Event::Answers { volume } => self.read_answers(volume),
            Event::FollowDisks => self.follow_disks(),
            Event::Program { slot, life, act } => self.act(slot, life, act),
            Event::LocalReports => self.read_local_reports(),
            Event::Move => self.move_one(),
            Event::Balance => self.balance(),
            Event::LookAround => self.look_around(),
        }
    }

    fn arrive(&mut self, client: usize) {
        if self.now >= self.end {
            return;
        }
        let Some(title) = self.choose_title(client) else { return };
        let (first, end) = self.choose_range(client, title);
        let spec = self.clients[client].spec;
        let ClientSpec { rate, tick, burst, .. } = spec;
        let asked = match spec.kind {
            ClientKind::Pinner if self.pinned[title].pinner.is_some() => {
                return self.push(self.now + SECOND, Event::Arrive { client });
            }
            ClientKind::Pinner => Request::Pin,
            ClientKind::Downloader => Request::BestEffort,
            _ if spec.datagrams.is_some() => {
                let is_pinned = self.pinned[title].is_complete;
                let wire = wire_max(rate);
                let repeats = spec.datagrams.is_some_and(|datagrams| datagrams.repeats);
                let turn = Some(end - first).filter(|&turn| repeats && turn >= TURN_MIN);
                Request::Datagrams { rate, wire, is_pinned, turn }
            }
            _ => Request::Paced { rate, tick, burst, is_pinned: self.pinned[title].is_complete },
        };
        let planned = self.draw_plan(client, title, &asked, end - first);
        let asked = match (asked, &planned) {
            (Request::Paced { tick, is_pinned, .. }, Some(PlannedRange { line, peak })) => {
                Request::Paced { rate: *peak, tick, burst: line.burst(), is_pinned }
            }
            _ => asked,
        };
        let title_len = self.titles[title].len;
        // A client with several ranges uses one grant; and a client at the end of a growing title
        // may wait for more.
        let may_be_more = spec.kind == ClientKind::Ranger || self.titles[title].growth.is_some();
        let len = if may_be_more { title_len } else { end - first };
        let part = match asked {
            // Two turns may need the same block, which is then two leases.
            Request::Datagrams { turn: Some(_), .. } => TitlePart::whole(Bytes(u64::MAX)),
            _ => TitlePart { len, title_len },
        };
        let is_full = self.learned[spec.volume].is_overloaded();
        let envelope = match (asked, &planned) {
            (Request::Paced { .. }, Some(PlannedRange { line, .. }))
                if self.broker.holds_burst(spec.volume, asked, part) =>
            {
                let cycle = self.swarm.volumes[spec.volume].cycle;
                Envelope::of(line, Spans::of(cycle, self.swarm.behind_max))
            }
            _ => None,
        };
        let admitted = match envelope {
            _ if is_full => None,
            Some(envelope) => {
                let begin = slot_of(self.now);
                self.broker.admit_planned(spec.volume, asked, part, &envelope, begin)
            }
            None => self.broker.admit(spec.volume, asked, part),
        };
        let Some(grant) = admitted else {
            self.tally.refused += 1;
            let again = self.now + spec.retry + spec.think;
            self.push(again, Event::Arrive { client });
            return;
        };
        let parts_left = match spec.kind {
            ClientKind::Ranger => self.clients[client].dice.below(8),
            _ => 0,
        };
        self.pinned[title].relying += u32::from(grant.is_resident());
        self.tally.resident += u64::from(grant.is_resident());
        if grant.request == Request::Pin {
            self.pin(client, grant, title);
        } else {
            self.tally.planned += u64::from(planned.is_some());
            self.start(client, grant, title, (first, end), (parts_left, planned));
        }
    }

    /// The plan of a range, if the client has plans and the range does not grow.
    fn draw_plan(
        &mut self,
        client: usize,
        title: usize,
        asked: &Request,
        len: Bytes,
    ) -> Option<PlannedRange> {
        let lasts = self.swarm.duration;
        let Client { spec, dice, .. } = &mut self.clients[client];
        let fits = spec.has_plans && self.titles[title].growth.is_none();
        if !fits || !matches!(asked, Request::Paced { .. }) {
            return None;
        }
        PlannedRange::draw(dice, len, spec.rate, spec.burst, lasts)
    }

    fn pin(&mut self, client: usize, grant: Grant, title: usize) {
        let stream = self.broker.begin(&grant);
        let origin = self.origin(title);
        self.pinned[title].pinner = Some(stream);
        self.note_live(client, grant, title, stream, origin.len, 0);
        self.command(Command::Pin(Pin { stream, origin, window: grant.window() }));
    }

    /// The available part of a title.
    pub(super) fn origin(&mut self, title: usize) -> Origin {
        let Title { volume, position, len, has_sums, .. } = self.titles[title];
        let sums = has_sums.then(|| {
            let known = self.sums[title].get_or_insert_with(|| sums_of(title as u64, len));
            Arc::clone(known)
        });
        let len = self.titles[title].len_at(self.now);
        let volume = VolumeId(volume as u16);
        let (title, file) = (TitleId(title as u64), FileHandle(title as i32));
        Origin { volume, title, file, sent_file: file, position, len, sums }
    }

    /// Extends a growing title in the engine.
    fn grow(&mut self, stream: StreamId, every: Nanos) {
        let live = self.live[stream.index as usize].as_ref();
        let Some(live) = live.filter(|live| live.stream == stream && live.finished.is_none())
        else {
            return;
        };
        let title = &self.titles[live.title];
        let end = title.len_at(self.now);
        let is_whole = end == title.len;
        // The rest of the ring is for urgent commands.
        let commands = &mut self.control.commands[usize::from(stream.server.0)];
        let has_room = commands.free() > 6 * self.swarm.streams as usize;
        self.starting.push((title.volume, stream.server));
        let is_said = has_room && commands.push(Command::Extend { stream, end, is_whole }).is_ok();
        self.wake(stream.server);
        if !(is_said && is_whole) {
            self.push(self.now + every, Event::Grow { stream, every });
        }
    }

    fn choose_title(&mut self, client: usize) -> Option<usize> {
        let Client { spec, dice, .. } = &mut self.clients[client];
        let other = match spec.kind {
            ClientKind::Downloader => Audience::Paced,
            _ => Audience::Downloads,
        };
        let fits = |title: &Title| title.volume == spec.volume && title.audience != other;
        let count = self.titles.iter().filter(|title| fits(title)).count() as u64;
        if count == 0 {
            return None;
        }
        // Some titles have many viewers.
        let chosen = if spec.follows { dice.below(count.min(2)) } else { dice.below(count) };
        let mut titles = self.titles.iter().enumerate().filter(|(_, title)| fits(title));
        titles.nth(chosen as usize).map(|(at, _)| at)
    }

    fn choose_range(&mut self, client: usize, title: usize) -> (Bytes, Bytes) {
        let len = self.titles[title].len_at(self.now).0;
        let Client { spec, dice, .. } = &mut self.clients[client];
        let first = if spec.follows { 0 } else { dice.below(len) };
        let most = match spec.kind {
            ClientKind::Ranger => dice.spread(1, 200_000),
            _ => len,
        };
        (Bytes(first), Bytes((first + most).min(len)))
    }

    fn start(
        &mut self,
        client: usize,
        grant: Grant,
        title: usize,
        (first, end): (Bytes, Bytes),
        (parts_left, planned): (u64, Option<PlannedRange>),
    ) {
        let spec = self.clients[client].spec;
        let stream = self.broker.begin(&grant);
        let whole = self.titles[title].len;
        // Some clients at the end of a growing title wait for more.
        let is_live = end < whole && end == self.titles[title].len_at(self.now);
        let grows = is_live && parts_left == 0 && self.clients[client].dice.chance(500);
        let last = if grows { whole } else { end };
        let volume = &self.swarm.volumes[grant.volume];
        // A disk that is learned keeps its promise to all but the newest streams.
        let is_learned = volume.guess.is_some();
        let healthy = (is_learned || volume.faults.is_empty()) && self.swarm.pauses.is_empty();
        let (schedule, paced) = match grant.request {
            Request::BestEffort | Request::Pin | Request::Record { .. } | Request::Timed { .. } => {
                (Schedule::BestEffort, None)
            }
            Request::Datagrams { rate, .. } => {
                (Schedule::ByteClock(Rate { rate, burst: Bytes(0), tick: Tick::Ms10 }), None)
            }
            Request::Paced { rate, tick, burst, .. } => (
                match &planned {
                    Some(PlannedRange { line, .. }) => {
                        let plan = Arc::new(Plan::of_times(line.clone()));
                        Schedule::Plan(Rate { rate, burst, tick }, plan)
                    }
                    None => Schedule::ByteClock(Rate { rate, burst, tick }),
                },
                Some(PacedPromise {
                    rate: rate.0,
                    burst: burst.0,
                    tick: tick.span(),
                    lateness: self.visit_lateness(),
                }),
            ),
        };
        let delivery = Delivery {
            title: title as u64,
            first,
            end: last,
            paced,
            is_promised: healthy && self.swarm.mode != Mode::Liveness && !grows,
            grows: healthy && self.swarm.mode != Mode::Liveness && grows,
        };
        let repeats = matches!(grant.request, Request::Datagrams { turn: Some(_), .. }) && !grows;
        let (framing, output) = match (spec.datagrams, grant.request) {
            (Some(datagrams), Request::Datagrams { rate, .. }) => {
                self.begin_datagrams(stream, rate, datagrams, (delivery, repeats))
            }
            _ => {
                let seconds = self.broker.seconds(&grant);
                let plan = planned.map(|planned| planned.promise(seconds));
                let mut net = open(&self.net);
                let delivery = (delivery, plan);
                let socket = net.connect(self.now, stream.index, delivery, spec.receiver);
                let connection =
                    Connection { link: self.link_of(stream), ..Connection::of(socket) };
                (Framing::Plain, Output::Connection(connection))
            }
        };
        self.starting.push((grant.volume, stream.server));
        let origin = self.origin(title);
        let range = first..end;
        let extent = match (grows, repeats) {
            (true, _) => Extent::Growing(range),
            (false, true) => Extent::Repeating(range),
            (false, false) => Extent::Range(range),
        };
        let blocks = Blocks { origin, extent, window: grant.window() };
        let delivery = message::Delivery::of_blocks(blocks, framing, schedule, output)
            .expect("a client asks for what fits together");
        self.note_live(client, grant, title, stream, last - first, parts_left);
        self.command(Command::Start(Start { stream, delivery }));
        if grows {
            let every = Nanos::from_millis(self.clients[client].dice.spread(5, 1000));
            self.push(self.now + every, Event::Grow { stream, every });
            self.tally.followers += 1;
        }
        let client = &mut self.clients[client];
        if let Some(stale) = client.stale.take().filter(|_| client.spec.is_confused) {
            self.command(Command::Stop(stale));
        }
    }

    /// The class of streams that leave by `udp_output`.
    fn class_of(&self, udp_output: usize) -> Option<ClassNumber> {
        self.swarm.ceiling.filter(|_| udp_output == 0).map(|_| ClassNumber(0))
    }

    /// The link server of a delivery. Each delivery of a slot has another link than the one before.
    fn link_of(&self, stream: StreamId) -> LinkId {
        let number = stream.index.wrapping_add(stream.generation) as usize;
        LinkId((number % self.swarm.links) as u16)
    }

    /// The packet server of a delivery, by the same rule.
    fn packet_server_of(&self, stream: StreamId) -> PacketServerId {
        let number = stream.index.wrapping_add(stream.generation) as usize;
        PacketServerId((number % self.swarm.packet_servers) as u16)
    }

    /// An address for a stream of datagrams, and how it leaves.
    fn begin_datagrams(
        &mut self,
        stream: StreamId,
        rate: BitRate,
        spec: DatagramSpec,
        (delivery, repeats): (Delivery, bool),
    ) -> (Framing, Output) {
        let DatagramSpec { udp_output, is_rtp, is_v6, burst, .. } = spec;
        let mut dice = self.dice.fork(u64::from(stream.generation));
        let session = Session {
            source: dice.next() as u32,
            sequence: dice.next() as u16,
            timestamp: dice.next() as u32,
        };
        let framing = if is_rtp { Framing::Rtp(session) } else { Framing::Plain };
        // A faulty UDP output makes no other stream late.
        let is_well = self.swarm.udp_outputs[udp_output].faults.is_empty();
        // Streams that share a ceiling wait for each other, without admission.
        let class = self.class_of(udp_output);
        let is_promised = delivery.is_promised && is_well && class.is_none();
        let delivery = Delivery { is_promised, ..delivery };
        let promise = DatagramPromise {
            delivery,
            repeats,
            rate: rate.0,
            framing,
            burst,
            tick: self.swarm.packet_tick,
            lateness: self.swarm.lateness,
        };
        let mut udp_outputs = open(&self.udp_outputs);
        let (socket, to) = udp_outputs.join(self.now, stream.index, (udp_output, is_v6), promise);
        let server = self.packet_server_of(stream);
        let datagrams = Datagrams { server, burst, class, ..Datagrams::to(socket, to) };
        (framing, Output::Datagrams(datagrams))
    }

    fn note_live(
        &mut self,
        client: usize,
        grant: Grant,
        title: usize,
        stream: StreamId,
        len: Bytes,
        parts_left: u64,
    ) {
        self.trace.note_all([self.now.0, u64::from(stream.index), title as u64, len.0]);
        self.live[stream.index as usize] = Some(Live {
            stream,
            client,
            grant,
            title,
            started: self.now,
            stopped: None,
            finished: None,
            is_deferred: false,
            is_given_up: false,
            parts_left,
            len,
        });
        self.tally.started += 1;
        self.live_count += 1;
        self.tally.streams_max = self.tally.streams_max.max(self.live_count);
        let Client { spec, dice, .. } = &mut self.clients[client];
        let stay = Nanos(spec.stay.0 / 2 + dice.below(spec.stay.0));
        self.push(self.now + stay, Event::Leave { stream });
    }

    pub(super) fn command(&mut self, command: Command) {
        let server = command.stream().server;
        let pushed = self.control.commands[usize::from(server.0)].push(command);
        require(pushed.is_ok(), Invariant::Assertion, || "the ring of commands is full".to_owned());
        self.wake(server);
    }

    pub(super) fn leave(&mut self, stream: StreamId) {
        let now = self.now;
        let live = self.live[stream.index as usize].as_mut();
        let Some(live) = live.filter(|live| live.stream == stream) else { return };
        if live.stopped.is_some() || live.finished.is_some() {
            return;
        }
        let pinned = &mut self.pinned[live.title];
        if live.grant.request == Request::Pin && now < self.end {
            // A pin with relying streams stays; an incomplete one has no memory to give.
            if pinned.relying > 0 || !pinned.is_complete {
                return self.push(now + SECOND, Event::Leave { stream });
            }
            // Its memory may be promised at once: a delivery server takes commands in order, and a
            // stream of another one waits for the memory.
            live.is_given_up = true;
            self.broker.release(live.grant);
        }
        if live.grant.request == Request::Pin {
            *pinned = PinnedTitle { relying: pinned.relying, ..PinnedTitle::default() };
        }
        live.stopped = Some(now);
        open(&self.net).release_promise(stream.index);
        open(&self.udp_outputs).release_promise(stream.index);
        live.parts_left = 0;
        let client = live.client;
        self.trace.note_all([now.0, u64::from(stream.index), u64::from(stream.generation)]);
        self.command(Command::Stop(stream));
        if self.clients[client].spec.kind == ClientKind::Zapper {
            // The new request does not wait for the end of the old one.
            self.push(now + MILLISECOND, Event::Arrive { client });
        }
    }

    fn read_reports(&mut self) {
        while let Some(report) = self.control.reports.iter_mut().find_map(Consumer::pop) {
            match report {
                Report::Finished { stream, outcome, sent } => self.finished(stream, outcome, sent),
                Report::Retired { stream, .. } => self.retired(stream),
                Report::Pinned { stream } => self.is_pinned(stream),
                Report::Interleaved { .. } => unreachable!("no client interleaves messages"),
            }
        }
    }

    fn is_pinned(&mut self, stream: StreamId) {
        let live = self.live[stream.index as usize].as_ref();
        let known = live.filter(|live| live.stream == stream && live.grant.request == Request::Pin);
        require(known.is_some(), Invariant::TrueOutcome, || {
            format!("{stream:?} is pinned, but nobody asked for that")
        });
        self.trace.note_all([self.now.0, u64::from(stream.index)]);
        if let Some(live) = known.filter(|live| live.stopped.is_none()) {
            self.pinned[live.title].is_complete = true;
            self.tally.pinned += 1;
        }
    }

    fn finished(&mut self, stream: StreamId, outcome: Outcome, sent: Bytes) {
        let now = self.now;
        self.trace.note_all([now.0, u64::from(stream.index), sent.0]);
        let live = self.live[stream.index as usize].as_mut();
        let known = live.filter(|live| live.stream == stream && live.finished.is_none());
        let Some(live) = known else {
            crate::verdict::broken(
                Invariant::TrueOutcome,
                format!("{stream:?} finished at {now:?}, but nobody waits for that"),
            );
        };
        live.finished = Some(now);
        self.last_finished[live.title] = now;
        if live.grant.request == Request::Pin {
            if self.pinned[live.title].pinner == Some(stream) {
                let relying = self.pinned[live.title].relying;
                self.pinned[live.title] = PinnedTitle { relying, ..PinnedTitle::default() };
            }
            return;
        }
        let left = open(&self.udp_outputs).leave(stream.index);
        let received = left.unwrap_or_else(|| open(&self.net).disconnect(now, stream.index));
        let damaged = open(&self.devices[live.grant.volume]).is_damaged(live.title);
        let true_outcome = is_true(outcome, &received, live, damaged);
        require(true_outcome && received.sent == sent, Invariant::TrueOutcome, || {
            format!(
                "{outcome:?} after {sent:?} at {now:?}, damaged: {damaged}: {received:?} {live:?}"
            )
        });
    }

    fn retired(&mut self, stream: StreamId) {
        let now = self.now;
        let slot = &mut self.live[stream.index as usize];
        let known = slot.take_if(|live| live.stream == stream && live.finished.is_some());
        let Some(live) = known else {
            crate::verdict::broken(
                Invariant::TrueOutcome,
                format!("{stream:?} retired at {now:?}, but has not finished"),
            );
        };
        self.live_count -= 1;
        self.trace.note_all([now.0, u64::from(stream.index)]);
        let Live { client, grant, title, .. } = live;
        self.clients[client].stale = Some(stream);
        if live.parts_left > 0 && now < self.end {
            let range = self.choose_range(client, title);
            self.start(client, grant, title, range, (live.parts_left - 1, None));
            return;
        }
        self.pinned[title].relying -= u32::from(grant.is_resident());
        if !live.is_given_up {
            self.broker.release(grant);
        }
        self.broker.vacate(grant);
        let seeks = self.clients[client].spec.kind == ClientKind::Zapper && live.stopped.is_some();
        if !seeks {
            let again = now + self.clients[client].spec.think;
            self.push(again, Event::Arrive { client });
        }
    }

    /// Ends everything: clients leave, faults end.
    pub(super) fn close(&mut self) {
        for device in &self.devices {
            open(device).heal();
        }
        open(&self.udp_outputs).heal();
        let streams: Vec<StreamId> = self.live.iter().flatten().map(|live| live.stream).collect();
        for stream in streams {
            self.leave(stream);
        }
    }

    /// Checks progress: streams begin, and end after a stop.
    pub(super) fn check_progress(&self) {
        let now = self.now;
        let mut has_waiters = vec![false; self.titles.len()];
        for live in self.live.iter().flatten().filter(|live| live.finished.is_none()) {
            has_waiters[live.title] = true;
        }
        for live in self.live.iter().flatten() {
            let spec = &self.swarm.volumes[live.grant.volume];
            let healthy = spec.faults.is_empty() && self.swarm.pauses.is_empty();
            let bound = spec.cycle.times(8) + SECOND;
            // A read without other waiters is dropped, unless the disk works on it. A read with
            // other waiters continues: for a download in best-effort time, of which there may be
            // none.
            let shares = has_waiters[live.title];
            let has_time = !matches!(live.grant.request, Request::BestEffort | Request::Pin);
            // By then its first blocks have been read, with or without waiters.
            let begins = live.started + spec.cycle.times(BEGIN_CYCLES);
            let (since, bound) = match (live.finished, live.stopped) {
                (Some(_), _) if healthy && !shares => (self.last_finished[live.title], LANDED),
                (Some(finished), _) if healthy && has_time => (finished.max(begins), bound),
                (None, None) if !self.has_begun(live.stream.index) => (begins, bound),
                (None, Some(stopped)) if self.swarm.pauses.is_empty() => (stopped, bound),
                _ => continue,
            };
            let waits = now.since(since);
            require(waits <= bound, Invariant::Progress, || {
                format!("too long by {waits:?} at {now:?}: {live:?}")
            });
        }
    }
}

impl World {
    fn has_begun(&self, place: u32) -> bool {
        open(&self.net).has_begun(place) && open(&self.udp_outputs).has_begun(place)
    }
}

/// A shorter turn has sums that are rounded by more than the book allows.
const TURN_MIN: Bytes = Bytes(16 << 10);

/// Time for the disk's present work to land and for the reports: the two reads of a disk with an
/// arm take 60 ms, the three ms of reads of flash take less.
const LANDED: Nanos = Nanos::from_millis(250);

/// Cycles in which a stream begins, if many do: they share the time that running ones leave.
const BEGIN_CYCLES: u64 = 20;

/// The stored checksums of a title.
fn sums_of(title: u64, len: Bytes) -> Arc<Sums> {
    let begins = (0..len.0).step_by(UNIT.0 as usize);
    let units = begins.map(|at| content::sum(title, (at, len.0.min(at + UNIT.0))));
    Arc::new(Sums::new(len, units.collect()).expect("one for each unit"))
}

/// Whether a delivery can have ended with this outcome.
fn is_true(outcome: Outcome, received: &DeliveryState, live: &Live, damaged: bool) -> bool {
    match outcome {
        Outcome::Complete => received.sent == live.len,
        Outcome::PeerGone(_) => received.is_broken,
        Outcome::TooSlow => received.ever_blocked,
        Outcome::DiskFailed(_) | Outcome::Unreadable { .. } | Outcome::Damaged { .. } => damaged,
        Outcome::Stopped => live.stopped.is_some(),
    }
}
