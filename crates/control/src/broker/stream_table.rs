//! The broker's stream table: the promises, and the commands to the engine.
//!
//! Promise: a slot is reused when the engine has retired it, and its promise returns at that time.
//! A socket without a waiting caller is closed here. This module decides nothing: the
//! [ledger](tactus_core::ledger) admits.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use tactus_core::cost::{Cost, OutputCost, PlannedCost};
use tactus_core::envelope::Envelope;
use tactus_core::generated::TimedDatagram;
use tactus_core::ledger::{Ledger, Level, Rejection, Resource};
use tactus_core::overload::Need;
use tactus_core::ports::{FileHandle, Waker};
use tactus_core::units::{BitRate, Bytes};
use tactus_engine::message::{
    ClassChange, Command, Origin, Outcome, Pin, StreamId, StreamRing, TitleId, VolumeId,
};
use tactus_ring::spsc::{Keep, Producer};
use tactus_storage::catalogue::{self, OpenTitle};
use tactus_sys::file;
use tokio::sync::oneshot;

use super::bad_ranges::{self, BadRange, BadRanges, Version};
use super::hot_titles::{self, HotTitles};
use super::interleaving::{self, Messages};
use super::output::Output;
use super::playbacks::{Playbacks, Successor, Ticket, Vacancy, ViewerId};
use super::prices::DatagramCost;
use super::refusal::{Refusals, ShareExceeded};
use super::senders::{Load, Sender, Servers};
use super::shares::{self, Claim, Shares};
use super::spec::{BestEffortKind, DeliverySpec, ResourceRequest};
use super::viewer::{Party, Viewer};
use super::{BrokerRules, DegradationLevel, DeliveryResult, Punctuality};

pub(super) struct StreamTable {
    pub(super) ledger: Ledger,
    /// The cost of datagrams for new streams: from the rules until it has been measured.
    pub(super) datagram: DatagramCost,
    /// Of each delivery server.
    pub(super) commands: Vec<Producer<Command>>,
    /// Changes of the limits of link classes; `None` if there is no datagram link.
    pub(super) class_changes: Option<Producer<ClassChange>>,
    pub(super) waker: Box<dyn Waker>,
    /// Free slots of the stream table.
    pub(super) free: Vec<u32>,
    pub(super) slots: Vec<Slot>,
    pub(super) best_effort: u32,
    /// Short answers without a rate.
    pub(super) short_answers: u32,
    /// The deliveries of each server.
    pub(super) load: Load,
    /// The use of each client.
    pub(super) shares: Shares,
    /// The streams that may succeed each other, and their vacancies.
    pub(super) playbacks: Playbacks,
    /// Number of deliveries so far.
    pub(super) begun: u64,
    pub(super) refusals: Refusals,
    pub(super) hot_titles: HotTitles,
    /// Damaged blocks that have been logged.
    pub(super) damaged: BTreeSet<(TitleId, u64)>,
    /// Unreadable ranges.
    pub(super) bad_ranges: BadRanges,
}

/// Limit of this set. With more damaged blocks, some are logged again.
const DAMAGED_MAX: usize = 1024;

/// Damage that is not reported yet: a block that differs from the stored bytes, or cannot be read.
pub(super) struct Damage {
    pub(super) title: Arc<OpenTitle>,
    pub(super) block: u64,
    /// The error number of an unreadable block; `None` for a readable one.
    pub(super) errno: Option<i32>,
}

/// An admitted request.
pub(super) struct AdmittedRequest {
    pub(super) slot: u32,
    pub(super) servers: Servers,
    pub(super) cost: PlannedCost,
    /// Limit of its blocks.
    pub(super) window: u32,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// The waiting receiver of the socket.
    pub(super) finished: Option<oneshot::Sender<DeliveryResult>>,
    /// Waits for the slot, which the same grant uses again.
    pub(super) retired: Option<oneshot::Sender<()>>,
    /// The output, while the engine sends.
    pub(super) output: Option<Output>,
    /// It carries frames.
    pub(super) is_framed: bool,
    /// Messages between frames: the first one is at the engine.
    pub(super) messages: Messages,
    /// Keeps the file open until no read of it is under way.
    pub(super) title: Option<TitleFile>,
    /// The cost that returns when the stream retires; the grant is gone.
    pub(super) release: Option<PlannedCost>,
    pub(super) servers: Servers,
    /// Set without a rate.
    pub(super) without_rate: Option<BestEffortKind>,
    /// Its use of a client's share.
    pub(super) claim: Option<(Party, Claim)>,
    /// The client, if it is not the other end of the connection.
    pub(super) client: Option<String>,
    /// Its viewer and title, if another stream of the viewer may succeed it.
    pub(super) playback: Option<(ViewerId, TitleId)>,
    /// The request that waits for its room.
    pub(super) successor: Option<Successor>,
    /// The viewer has closed the connection, has all bytes or takes none, and the room is not yet
    /// kept for it.
    pub(super) is_left: bool,
    /// The room is also kept when all bytes have been sent.
    pub(super) keeps_room: bool,
    /// Number of the delivery, counted over all so far.
    pub(super) begun: u64,
    /// Its need of the disk, as promised.
    pub(super) need: Need,
    /// Its reads come after those of all others.
    pub(super) is_deferred: bool,
    /// The engine has the command to end it.
    pub(super) stopped: bool,
    /// Its socket comes back when it is stopped, for a delivery that continues it.
    pub(super) is_continued: bool,
    /// The title whose viewers it counts for, and whether it relies on the title being pinned.
    pub(super) watches: Option<(TitleId, bool)>,
    /// The slot keeps this title in memory.
    pub(super) pins: Option<TitleId>,
}

/// A room that was kept for a viewer, out of all sums while a request of this viewer is decided.
pub(super) struct RoomAside {
    vacancy: Vacancy,
    playback: Option<(ViewerId, TitleId)>,
    servers: Servers,
    without_rate: Option<BestEffortKind>,
    claim: Option<(Party, Claim)>,
    client: Option<String>,
    watches: Option<(TitleId, bool)>,
}

impl Slot {
    /// The newest stream of this slot, whose index is `index`.
    pub(super) fn stream(&self, index: u32) -> StreamId {
        let Self { generation, servers: Servers { delivery: server, .. }, .. } = *self;
        StreamId { server, index, generation }
    }
}

impl RoomAside {
    /// Whether its stream was of this title.
    pub(super) fn is_of(&self, title: TitleId) -> bool {
        self.vacancy.title == title
    }
}

/// Why a title is not pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PinFault {
    /// A part of it cannot be read.
    Damaged,
    /// There is no room for it now.
    Busy,
}

/// A title, and the file that the engine reads.
pub struct TitleFile {
    pub(super) title: Arc<OpenTitle>,
    /// `None` if the engine reads the title's own file: past the page cache, where readers do not
    /// interact.
    pub(super) file: Option<OwnedFd>,
    /// The memory of the ring, if chunks are generated out of it.
    _chunks: Option<Keep<TimedDatagram>>,
    /// The ring of a local client that it is sent to.
    pub(super) ring: Option<Arc<StreamRing>>,
}

impl TitleFile {
    /// # Errors
    /// The error number, if file descriptors are exhausted.
    pub(super) fn open(title: &Arc<OpenTitle>, rules: &BrokerRules) -> Result<Self, i32> {
        // Reopens the file: read-ahead state belongs to the file description.
        let file = rules.sendfile[usize::from(title.volume.0)]
            .then(|| title.sent_file().and_then(|_| file::reopen(&title.file)))
            .transpose()
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok(Self { title: Arc::clone(title), file, _chunks: None, ring: None })
    }

    /// A title from which chunks are generated.
    pub(super) fn chunks(title: &Arc<OpenTitle>, chunks: Keep<TimedDatagram>) -> Self {
        Self { title: Arc::clone(title), file: None, _chunks: Some(chunks), ring: None }
    }

    pub(crate) fn origin(&self) -> Origin {
        let own = self.title.file.as_fd();
        let file = self.file.as_ref().map_or(own, AsFd::as_fd);
        // Opened before, if it is used at all.
        let sent_file = self.title.sent_file().unwrap_or(own);
        let [file, sent_file] = [file, sent_file].map(|file| FileHandle(file.as_raw_fd()));
        let OpenTitle { volume, id: title, position, len, ref sums, .. } = *self.title;
        Origin { volume, title, file, sent_file, position, len, sums: sums.clone() }
    }
}

impl StreamTable {
    /// Adds a viewer of `title`, which is read into memory from the second viewer on.
    pub(super) fn watch(
        &mut self,
        slot: u32,
        title: Option<&Arc<OpenTitle>>,
        level: DegradationLevel,
        rules: &BrokerRules,
    ) {
        let Some(title) = title else { return };
        let relies = self.hot_titles.is_pinned(title.id);
        self.slots[slot as usize].watches = Some((title.id, relies));
        if self.hot_titles.enter(title.id, relies) && level < DegradationLevel::Ahead {
            self.pin(title, rules);
        }
    }

    /// Checks that the viewer stays within its share.
    pub(super) fn check_share(
        &self,
        viewer: &Viewer,
        spec: &DeliverySpec<'_>,
        rules: &BrokerRules,
    ) -> Result<(), ShareExceeded> {
        let Viewer { party, share, .. } = viewer;
        let over = |resource| move |over| ShareExceeded { resource, over };
        let Some(claim) = shares::claim(viewer, spec.rate, spec.is_short) else { return Ok(()) };
        let rate = match claim {
            Claim::Download | Claim::Short => {
                let max = match claim {
                    Claim::Short => self.short_answers_max(),
                    _ => rules.downloads_max,
                };
                // Without any downloads, the share is not the reason of the refusal.
                let max = u64::from(max.max(1));
                return self
                    .shares
                    .check(party, claim, *share, max)
                    .map_err(over(Resource::Streams));
            }
            Claim::Rate(rate) => rate,
        };
        let link = self.ledger.limits().link.0;
        self.shares.check(party, claim, *share, link).map_err(over(Resource::Link))?;
        let mut levels = self.ledger.levels();
        let promised = levels.find(|level| level.resource == Resource::Link);
        let promised = BitRate(promised.map_or(0, |level| level.used));
        // Rates are not counted per volume: with several disks, a client's streams may be on
        // another one.
        let has_one_disk = self.ledger.limits().disks.len() == 1;
        // The streams of a client are on any core.
        for resource in [Resource::Disk, Resource::Cpu] {
            if resource == Resource::Disk && !has_one_disk {
                continue;
            }
            let levels = self.ledger.levels().filter(|level| level.resource == resource);
            let part = levels
                .fold((0, 0), |(used, limit), level| (used + level.used, limit + level.limit));
            let checked = self.shares.check_part(party, rate, *share, part, promised);
            checked.map_err(over(resource))?;
        }
        Ok(())
    }

    /// Adds the use of a viewer at `slot`.
    pub(super) fn take_share(&mut self, slot: u32, viewer: &Viewer, spec: &DeliverySpec<'_>) {
        let at = &mut self.slots[slot as usize];
        at.client = Some(viewer.client.clone());
        if let Some(claim) = shares::claim(viewer, spec.rate, spec.is_short) {
            self.shares.take(&viewer.party, claim);
            at.claim = Some((viewer.party.clone(), claim));
        }
    }

    /// An eighth of the table: short answers end soon.
    fn short_answers_max(&self) -> u32 {
        (self.slots.len() / 8).max(1) as u32
    }

    /// Has the engine end a delivery, once.
    pub(super) fn stop(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !std::mem::replace(&mut slot.stopped, true) {
            let stream = slot.stream(index);
            self.command(Command::Stop(stream));
        }
    }

    /// Sends a command to the delivery server of its stream.
    pub(super) fn command(&mut self, command: Command) {
        let server = usize::from(command.stream().server.0);
        let pushed = self.commands[server].push(command);
        assert!(pushed.is_ok(), "the ring holds all commands for every place");
        self.waker.wake();
    }

    /// Frees the socket. Returns damage that is not reported yet.
    pub(super) fn finished(
        &mut self,
        stream: StreamId,
        outcome: Outcome,
        sent: Bytes,
        late: Punctuality,
    ) -> Option<Damage> {
        let slot = &mut self.slots[stream.index as usize];
        assert!(slot.generation == stream.generation, "a place is used again after it retired");
        let usable = match outcome {
            Outcome::Complete | Outcome::Unreadable { .. } => true,
            // Whole bytes of the title have been sent.
            Outcome::Stopped => slot.is_continued,
            _ => false,
        };
        let usable = if slot.is_framed { interleaving::is_whole(outcome) } else { usable };
        let output = slot.output.take().filter(|_| usable);
        let socket = output.and_then(Output::into_socket);
        slot.messages.give_back();
        let title = slot.title.as_ref().map(|source| Arc::clone(&source.title));
        let finished = slot.finished.take();
        slot.is_left = match outcome {
            Outcome::PeerGone(_) => true,
            // A player that pauses for long goes on with another request.
            Outcome::Complete | Outcome::TooSlow => slot.keeps_room,
            // Ended for a request of its viewer, which may have gone since.
            Outcome::Stopped => slot.successor.is_some(),
            _ => false,
        };
        // Before the caller gets the result and tries again.
        let mut readable_to = None;
        let mut found = None;
        if let (Outcome::Unreadable { block, errno }, Some(title)) = (outcome, &title) {
            let block_size = self.ledger.limits().disks[usize::from(title.volume.0)].block.0;
            let start = block * block_size;
            readable_to = Some(start);
            // A growing title gets another tag when it is whole, and a failed part of it is not
            // flushed.
            if bad_ranges::is_of_a_place(errno) && title.following.is_none() {
                let Version { volume, etag } = version_of(title);
                let file = catalogue::path_of(&title.file);
                let bytes = start..(start + block_size).min(title.len.0.max(start + 1));
                let since = Instant::now();
                self.bad_ranges.insert(BadRange { volume, file, etag, bytes, errno, since });
                found = Some(Damage { title: Arc::clone(title), block, errno: Some(errno) });
            }
        }
        if let Some(finished) = finished {
            // If the caller has gone, the socket closes here.
            drop(finished.send(DeliveryResult {
                socket,
                outcome,
                sent: sent.0,
                readable_to,
                late,
            }));
        }
        let (Outcome::Damaged { block }, Some(title)) = (outcome, title) else { return found };
        if self.damaged.len() >= DAMAGED_MAX {
            self.damaged.clear();
        }
        self.damaged.insert((title.id, block)).then_some(Damage { title, block, errno: None })
    }

    pub(super) fn pinned(&mut self, stream: StreamId) {
        if let Some(title) = self.slots[stream.index as usize].pins {
            self.hot_titles.complete_pin(title);
        }
    }

    pub(super) fn retired(&mut self, stream: StreamId) -> Option<TitleFile> {
        let slot = &mut self.slots[stream.index as usize];
        let title = slot.title.take();
        if let Some(retired) = slot.retired.take() {
            // The grant may have been dropped with its request.
            retired.send(()).ok();
        }
        if let Some(pinned) = slot.pins.take() {
            // The pin ended by itself, as the title could not be read.
            if self.hot_titles.slot_of(pinned) == Some(stream.index)
                && let Some(pin) = self.hot_titles.end_pin(pinned)
            {
                self.ledger.release(pin.cost);
            }
            self.vacate(stream.index);
            return title;
        }
        if let Some(cost) = slot.release.take() {
            self.leave(stream.index, cost);
        }
        title
    }

    /// Takes a slot and a promise for a delivery, if necessary in place of a pinned title without
    /// viewers.
    pub(super) fn admit(
        &mut self,
        needs: &ResourceRequest,
        envelope: Option<&Envelope>,
        title: Option<TitleId>,
        rules: &BrokerRules,
    ) -> Result<AdmittedRequest, Rejection> {
        let is_pinned = title.is_some_and(|title| self.hot_titles.is_pinned(title))
            && !needs.is_long_burst(&self.ledger);
        let without_rate = needs.without_rate();
        let (used, max) = match without_rate {
            Some(BestEffortKind::ShortAnswer) => (self.short_answers, self.short_answers_max()),
            Some(BestEffortKind::Download) => (self.best_effort, rules.downloads_max),
            None => (0, u32::MAX),
        };
        let limit = u64::from(max);
        if used >= max {
            return Err(Rejection {
                resource: Resource::Streams,
                number: 0,
                needed: limit + 1,
                limit,
                class: None,
            });
        }
        let (cost, window) = needs.cost_over_time(&self.ledger, rules, envelope, is_pinned);
        let only = self.only_servers(needs.sender);
        let (cost, servers) = loop {
            let load = (only, &self.load);
            match needs.sender.place(&cost, &self.ledger, &rules.servers, load) {
                Ok(placed) => break placed,
                Err(Rejection { resource: Resource::Arena | Resource::Streams, .. })
                    if self.give_up_one(title) => {}
                Err(short) => return Err(short),
            }
        };
        let streams = u64::from(self.ledger.limits().streams);
        // The slot of a pin that was given up is free only when the engine has retired it.
        let none_free = Rejection {
            resource: Resource::Streams,
            number: 0,
            needed: streams + 1,
            limit: streams,
            class: None,
        };
        let slot = self.free.pop().ok_or(none_free)?;
        self.ledger.admit_planned(&cost)?;
        self.occupy(slot, servers);
        self.slots[slot as usize].need = cost.disk_need();
        self.slots[slot as usize].without_rate = without_rate;
        if without_rate.is_some() {
            self.load.without_rate[usize::from(servers.sender)] += 1;
        }
        match without_rate {
            Some(BestEffortKind::ShortAnswer) => self.short_answers += 1,
            Some(BestEffortKind::Download) => self.best_effort += 1,
            None => {}
        }
        Ok(AdmittedRequest { slot, servers, cost, window })
    }

    /// The only servers that can serve a delivery: those of the stream that it follows.
    fn only_servers(&self, sender: Sender) -> Option<Servers> {
        let Sender::Packets { after: Some(after) } = sender else { return None };
        let slot = &self.slots[after.index as usize];
        (slot.generation == after.generation).then_some(slot.servers)
    }

    /// Gives a slot that was free to a stream of these servers.
    fn occupy(&mut self, slot: u32, servers: Servers) {
        self.slots[slot as usize].servers = servers;
        self.load.rows[usize::from(servers.delivery.0)] += 1;
    }

    /// Takes a slot back.
    fn vacate(&mut self, slot: u32) {
        let Servers { delivery, .. } = self.slots[slot as usize].servers;
        self.load.rows[usize::from(delivery.0)] -= 1;
        self.free.push(slot);
    }

    /// Reads `title` into memory if half of the arena stays for all other streams.
    pub(super) fn pin(&mut self, title: &Arc<OpenTitle>, rules: &BrokerRules) {
        let blocks = self.blocks_of(title);
        let (used, limit) = self.arena(title.volume);
        let leaves_half = used + u64::from(blocks) <= limit / 2;
        // A pin takes a slot in the table; viewers come first.
        let has_places = self.free.len() > self.slots.len() / 8;
        if leaves_half && has_places {
            self.begin_pin(title, rules).ok();
        }
    }

    /// Blocks of the arena for a whole title.
    pub(super) fn blocks_of(&self, title: &OpenTitle) -> u32 {
        self.ledger.disk(u32::from(title.volume.0)).pinned(title.len).window
    }

    /// Promised blocks of a volume's arena, and all of them.
    pub(super) fn arena(&self, volume: VolumeId) -> (u64, u64) {
        let mut levels = self.ledger.levels();
        let is_it =
            |level: &Level| (level.resource, level.number) == (Resource::Arena, volume.0.into());
        levels.find(is_it).map_or((0, 0), |level| (level.used, level.limit))
    }

    pub(super) fn begin_pin(
        &mut self,
        title: &Arc<OpenTitle>,
        rules: &BrokerRules,
    ) -> Result<(), PinFault> {
        if self.bad_ranges.within(Instant::now(), &version_of(title), 0..title.len.0).is_some() {
            return Err(PinFault::Damaged);
        }
        let source = self.ledger.disk(u32::from(title.volume.0)).pinned(title.len);
        let (cost, window) = (Cost::stream(source.cost, OutputCost::NONE), source.window);
        self.ledger.check(cost).map_err(|_| PinFault::Busy)?;
        let source = TitleFile::open(title, rules).map_err(|_| PinFault::Busy)?;
        let index = self.free.pop().ok_or(PinFault::Busy)?;
        self.ledger.admit(cost).expect("there was room for it");
        self.occupy(index, Servers { sender: 0, delivery: self.load.fewest_rows() });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let origin = source.origin();
        slot.title = Some(source);
        slot.pins = Some(title.id);
        let stream = slot.stream(index);
        let volume = title.volume;
        let pin = hot_titles::Pin { slot: index, cost, volume, blocks: window, is_complete: false };
        self.hot_titles.begin_pin(title.id, pin);
        self.command(Command::Pin(Pin { stream, origin, window }));
        Ok(())
    }

    /// Gives up a pinned title that is not needed, but not `wanted`. Its memory may be promised at
    /// once: a delivery server takes commands in order, and all its blocks are in memory to be
    /// returned. A stream of another delivery server waits for the return.
    pub(super) fn give_up_one(&mut self, wanted: Option<TitleId>) -> bool {
        let Some(title) = self.hot_titles.least_needed(wanted) else { return false };
        self.give_up(title);
        true
    }

    pub(super) fn give_up(&mut self, title: TitleId) {
        let pin = self.hot_titles.end_pin(title).expect("it is pinned");
        self.ledger.release(pin.cost);
        let stream = self.slots[pin.slot as usize].stream(pin.slot);
        self.command(Command::Stop(stream));
    }

    /// Returns the promise of a retired stream, or keeps it for the next stream of its viewer.
    pub(super) fn leave(&mut self, index: u32, cost: PlannedCost) {
        let slot = &mut self.slots[index as usize];
        let successor = slot.successor.take().filter(|successor| !successor.vacated.is_closed());
        let is_left = std::mem::take(&mut slot.is_left);
        match &slot.playback {
            Some((_, title)) if is_left || successor.is_some() => {
                // Who has gone is no viewer who makes a title hot. But the memory that it relied on
                // stays for its successor.
                if let Some((watched, _)) = slot.watches.take_if(|&mut (_, relies)| !relies) {
                    self.hot_titles.leave(watched, false);
                }
                self.playbacks.vacate((index, cost), *title, successor);
            }
            _ => self.release(index, &cost),
        }
    }

    /// Frees a room that is kept for this viewer, or that the request with `ticket` has waited for.
    pub(super) fn set_aside(
        &mut self,
        playback: &(ViewerId, TitleId),
        ticket: Option<Ticket>,
    ) -> Option<RoomAside> {
        let vacancy = self.playbacks.take(playback, ticket)?;
        let slot = &self.slots[vacancy.slot as usize];
        let (playback, client) = (slot.playback.clone(), slot.client.clone());
        let (servers, without_rate) = (slot.servers, slot.without_rate);
        let (claim, watches) = (slot.claim.clone(), slot.watches);
        self.release(vacancy.slot, &vacancy.cost);
        Some(RoomAside { vacancy, playback, servers, without_rate, claim, client, watches })
    }

    /// Keeps a room again. Nothing has been admitted since it was set aside.
    pub(super) fn put_back(&mut self, room: RoomAside) {
        let RoomAside { vacancy, playback, servers, without_rate, claim, client, watches } = room;
        if let Some((title, true)) = watches
            && !self.hot_titles.is_pinned(title)
        {
            // The title in memory that it relied on was given up to make room.
            return;
        }
        let free = self.free.iter().rposition(|&free| free == vacancy.slot);
        self.free.remove(free.expect("no stream has begun in it"));
        self.occupy(vacancy.slot, servers);
        if let Some((viewer, _)) = &playback {
            self.playbacks.enter(viewer, vacancy.slot);
        }
        if let Some(kind) = without_rate {
            self.load.without_rate[usize::from(servers.sender)] += 1;
            match kind {
                BestEffortKind::ShortAnswer => self.short_answers += 1,
                BestEffortKind::Download => self.best_effort += 1,
            }
        }
        if let Some((party, claim)) = &claim {
            self.shares.take(party, *claim);
        }
        if let Some((title, relies)) = watches {
            self.hot_titles.enter(title, relies);
        }
        self.ledger.restore_planned(&vacancy.cost);
        let slot = &mut self.slots[vacancy.slot as usize];
        (slot.playback, slot.client) = (playback, client);
        slot.without_rate = without_rate;
        (slot.claim, slot.watches) = (claim, watches);
        self.playbacks.keep_again(vacancy);
    }

    /// Whether at least half of the memory of a volume's blocks is free, and the longer burst does
    /// not cost the stream of a pinned title its envelope.
    pub(super) fn has_spare_memory_for(&self, spec: &DeliverySpec<'_>) -> bool {
        let is_pinned = self.hot_titles.is_pinned(spec.title.id);
        if is_pinned && spec.envelope.is_some() && spec.needs.exceeds_pin(&self.ledger) {
            return false;
        }
        let number = u32::from(spec.needs.volume.0);
        let is_arena = |level: &Level| level.resource == Resource::Arena && level.number == number;
        self.ledger.levels().find(is_arena).is_some_and(|level| level.used <= level.limit / 2)
    }

    /// Frees rooms whose time is over.
    pub(super) fn release_expired(&mut self) {
        while let Some(vacancy) = self.playbacks.poll_expired() {
            let slot = &self.slots[vacancy.slot as usize];
            if let Some((viewer, title)) = slot.playback.clone().filter(|_| slot.keeps_room) {
                self.playbacks.depart(viewer, title);
            }
            self.release(vacancy.slot, &vacancy.cost);
        }
        self.playbacks.forget_departures();
    }

    pub(super) fn release(&mut self, index: u32, cost: &PlannedCost) {
        let slot = &mut self.slots[index as usize];
        slot.is_left = false;
        slot.successor = None;
        if let Some((viewer, _)) = slot.playback.take() {
            self.playbacks.leave(&viewer, index);
        }
        if let Some(kind) = slot.without_rate.take() {
            self.load.without_rate[usize::from(slot.servers.sender)] -= 1;
            match kind {
                BestEffortKind::ShortAnswer => self.short_answers -= 1,
                BestEffortKind::Download => self.best_effort -= 1,
            }
        }
        slot.client = None;
        if let Some((party, claim)) = slot.claim.take() {
            self.shares.give_back(&party, claim);
        }
        if let Some((title, relied)) = slot.watches.take() {
            self.hot_titles.leave(title, relied);
        }
        self.ledger.release_planned(cost);
        self.vacate(index);
    }
}

pub(super) fn version_of(title: &OpenTitle) -> Version {
    Version { volume: title.volume, etag: title.etag.clone() }
}
