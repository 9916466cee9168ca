//! The broker: the only part that admits or refuses, and the only one that commands the engine.
//!
//! Promise: the ledger has room for every grant. A refusal names the short resource and changes
//! nothing. However a request ends (finished, cancelled, connection lost), its grant returns when
//! the engine has retired the stream, and not before. A socket that is handed over belongs to the
//! engine until the engine reports the stream as finished.

mod bad_ranges;
mod prices;
mod senders;
mod viewer;

mod shares;

mod playbacks;
mod refusal;

mod output;

mod generated;

mod spec;

mod degradation;
mod hot_titles;
mod interleaving;

mod stream_table;

mod grant;
mod keeping;
mod moves;

mod active;
mod classes;
mod following;
mod overload;
mod recording;
mod scheduled_reader;
mod succession;
mod timed;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tactus_core::cost::{Order, PacedRead, SendCost, TitlePart};
use tactus_core::ledger::{Ledger, Level, Resource};
use tactus_core::ports::Waker;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_engine::counters::StreamCounters;
use tactus_engine::message::{ClassChange, Command, Outcome, Rate, Report, VolumeId};
use tactus_ring::spsc::{Consumer, Producer};
use tactus_storage::catalogue::{self, OpenTitle};

use crate::broker::bad_ranges::BadRanges;
use crate::broker::hot_titles::HotTitles;
use crate::broker::playbacks::{Playbacks, Ticket};
use crate::broker::refusal::{Shortage, refusal};
use crate::broker::senders::Load;
use crate::broker::shares::{Shares, is_short};
use crate::broker::spec::{Read, ResourceRequest};
use crate::broker::stream_table::{
    AdmittedRequest, Damage, RoomAside, Slot, StreamTable, version_of,
};
use crate::settings::ClientShare;

pub use active::ActiveStream;
pub use bad_ranges::BadRange;
pub use classes::{ClassUse, ClassesError};
pub use degradation::{DegradationLevel, Degradations};
pub use generated::{ChunkRing, GeneratedRate, Reading};
pub use grant::{Grant, Running, Source};
pub use hot_titles::KeptTitle;
pub use interleaving::{Interleaver, is_whole};
pub use keeping::KeepFault;
pub use output::{Output, UDP_BUFFER, UDP_BUFFER_MIN, UdpOutput};
pub use prices::DatagramCost;
pub use recording::RecordGrant;
pub use refusal::{RESOURCES, Refusal, Refusals};
pub use scheduled_reader::ScheduledReader;
pub use senders::ServerNumbers;
pub use spec::DeliverySpec;
pub use stream_table::TitleFile;
pub use succession::{Admission, Overlap, Succession};
pub use timed::TimedGrant;
pub use viewer::{Device, Party, Viewer};

/// Admits deliveries and hands them to the engine.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<StreamTable>,
    rules: BrokerRules,
    /// The engine's counters of each slot.
    streams: Arc<[StreamCounters]>,
    /// The degradation level of each volume.
    degradations: Degradations,
}

/// The parts of a broker.
pub struct BrokerParts {
    /// Sums the promises.
    pub ledger: Ledger,
    /// The ring of commands to each delivery server.
    pub commands: Vec<Producer<Command>>,
    /// The ring of changes of link classes; `None` if no datagrams are sent.
    pub class_changes: Option<Producer<ClassChange>>,
    /// Wakes the engine after a command.
    pub waker: Box<dyn Waker>,
    /// The rules of admission.
    pub rules: BrokerRules,
    /// The engine's counters of each slot.
    pub counters: Arc<[StreamCounters]>,
    /// The degradation level of each volume.
    pub degradations: Degradations,
}

/// The rules of admission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerRules {
    /// Most deliveries without a rate at once.
    pub downloads_max: u32,
    /// The share of them that one client may have.
    pub download_share: ClientShare,
    /// The retry time in a refusal.
    pub retry_after: Duration,
    /// Media time that a stream at its title's rate sends at once at its start.
    pub start_burst: Nanos,
    /// How late a peer may take its bytes before its stream ends.
    pub behind_max: Nanos,
    /// The CPU time of datagrams, before it is measured.
    pub datagram: DatagramCost,
    /// For each volume, whether its titles are read through the page cache.
    pub sendfile: Vec<bool>,
    /// For each volume, the cost of sending its blocks to a connection.
    pub connections: Vec<SendCost>,
    /// The names of the link classes.
    pub classes: Vec<String>,
    /// The servers of deliveries.
    pub servers: ServerNumbers,
    /// The processor of each core of the ledger.
    pub cpus: Vec<u32>,
}

/// The result of a delivery.
#[derive(Debug)]
pub struct DeliveryResult {
    /// The socket, for the next request; `None` if the connection is unusable.
    pub socket: Option<OwnedFd>,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes that the socket has taken.
    pub sent: u64,
    /// The first unreadable byte. The bytes before it can still be delivered.
    pub readable_to: Option<u64>,
    /// Its punctuality.
    pub late: Punctuality,
}

/// The punctuality of an ended stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Punctuality {
    /// The lateness of its latest send.
    pub lateness: Nanos,
    /// Sends that were not on time.
    pub underruns: u64,
}

impl DeliveryResult {
    fn without_socket(outcome: Outcome) -> Self {
        Self { socket: None, outcome, sent: 0, readable_to: None, late: Punctuality::default() }
    }
}

impl Broker {
    /// Makes a broker without streams.
    pub fn new(parts: BrokerParts) -> Self {
        let BrokerParts { ledger, commands, class_changes, waker, rules, counters, degradations } =
            parts;
        let streams = ledger.limits().streams;
        let table = StreamTable {
            ledger,
            datagram: rules.datagram,
            commands,
            class_changes,
            waker,
            free: (0..streams).rev().collect(),
            slots: (0..streams).map(|_| Slot::default()).collect(),
            best_effort: 0,
            short_answers: 0,
            load: Load::new(&rules.servers),
            shares: Shares::default(),
            playbacks: Playbacks::default(),
            begun: 0,
            refusals: Refusals::default(),
            hot_titles: HotTitles::default(),
            damaged: BTreeSet::new(),
            bad_ranges: BadRanges::default(),
        };
        let table = Mutex::new(table);
        Self { shared: Arc::new(Shared { table, rules, streams: counters, degradations }) }
    }

    /// Reserves the resources of a delivery. A title that several viewers watch at a rate becomes
    /// hot and is read into memory; its next viewers need no disk time. A viewer whose stream has
    /// just ended gets the room of that stream.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit(&self, spec: &DeliverySpec<'_>) -> Result<Grant, Refusal> {
        let admitted = self.decide_one(spec, Room::Vacancy);
        if let Err(shortage) = &admitted {
            self.shared.table().refusals.count(shortage.resource());
        }
        self.granted(spec, admitted)
    }

    /// As [`Self::admit`], for what is tried again: it counts as no refusal.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_again(&self, spec: &DeliverySpec<'_>) -> Result<Grant, Refusal> {
        self.granted(spec, self.decide_one(spec, Room::Vacancy))
    }

    /// As [`Self::admit_again`], by free room only.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_by_free_room(&self, spec: &DeliverySpec<'_>) -> Result<Grant, Refusal> {
        self.granted(spec, self.decide_one(spec, Room::Free))
    }

    fn decide_one(&self, spec: &DeliverySpec<'_>, room: Room) -> Result<AdmittedRequest, Shortage> {
        let specs = std::slice::from_ref(spec);
        let admitted =
            self.shared.decide_first(&mut self.shared.table(), specs, room, Paces::Usual);
        admitted.map(|(_, admitted)| admitted)
    }

    fn granted(
        &self,
        spec: &DeliverySpec<'_>,
        admitted: Result<AdmittedRequest, Shortage>,
    ) -> Result<Grant, Refusal> {
        let rules = &self.shared.rules;
        let AdmittedRequest { slot, servers, cost, window } =
            admitted.map_err(|shortage| refusal(shortage, spec.viewer, &spec.what, rules))?;
        let (shared, rate) = (Arc::clone(&self.shared), spec.rate);
        Ok(Grant { shared, slot, servers, cost, window, rate, retiring: None, in_engine: false })
    }

    /// The end of the readable part of `bytes`: up to a known bad range, which is not read again so
    /// soon.
    pub fn readable(&self, title: &OpenTitle, bytes: &Range<u64>) -> u64 {
        let table = self.shared.table();
        let bad = table.bad_ranges.within(Instant::now(), &version_of(title), bytes.clone());
        bad.map_or(bytes.end, |bad| bad.bytes.start.max(bytes.start))
    }

    /// The known bad ranges, which are not read meanwhile.
    pub fn bad_ranges(&self) -> Vec<BadRange> {
        self.shared.table().bad_ranges.all(Instant::now())
    }

    /// Forgets bad ranges of titles that are gone or have been replaced; `is_current` may block.
    pub fn forget_bad_ranges(&self, is_current: impl Fn(&BadRange) -> bool) {
        let gone: Vec<_> =
            self.bad_ranges().into_iter().filter(|range| !is_current(range)).collect();
        if !gone.is_empty() {
            self.shared.table().bad_ranges.retain(|range| !gone.contains(range));
        }
    }

    /// The share of one client in deliveries without a rate.
    pub fn best_effort_share(&self) -> ClientShare {
        self.shared.rules.download_share
    }

    /// Whether a stream of this viewer runs, or the room of one is kept.
    pub fn is_inside(&self, viewer: &Viewer) -> bool {
        let id = playbacks::id_of(viewer);
        id.is_some_and(|id| self.shared.table().playbacks.slots_of(&id).next().is_some())
    }

    /// The number of the newest room that is kept for any request of this viewer.
    pub fn newest_room(&self, viewer: &Viewer) -> Option<u64> {
        self.shared.table().playbacks.newest_vacancy(&playbacks::id_of(viewer)?)
    }

    /// As [`Self::is_inside`], or this viewer has departed lately.
    pub fn has_been_inside(&self, viewer: &Viewer) -> bool {
        let id = playbacks::id_of(viewer);
        let is_known = |id| {
            let table = self.shared.table();
            table.playbacks.slots_of(&id).next().is_some() || table.playbacks.has_departed(&id)
        };
        id.is_some_and(is_known)
    }

    /// The use of every resource.
    pub fn levels(&self) -> Vec<Level> {
        self.shared.table().ledger.levels().collect()
    }

    /// A title and the files by which the engine reads it, for one reader without a delivery.
    ///
    /// # Errors
    /// If file descriptors are exhausted.
    pub fn title_file(&self, title: &Arc<OpenTitle>) -> io::Result<TitleFile> {
        TitleFile::open(title, &self.shared.rules).map_err(io::Error::from_raw_os_error)
    }

    /// The title's file for a program of this machine, which then reads it through the page cache,
    /// beside the disk's cycle. The file description belongs to the caller alone. `None` where such
    /// reads could harm streams (on a disk with an arm, on a degraded volume) or would show bytes
    /// that are not durable (of a title that grows).
    ///
    /// # Errors
    /// If file descriptors are exhausted.
    pub fn plain_file(&self, title: &OpenTitle) -> io::Result<Option<OwnedFd>> {
        if !self.takes_cached_io(title.volume) || title.following.is_some() {
            return Ok(None);
        }
        tactus_sys::file::reopen(&title.file).map(Some)
    }

    /// Whether programs of this machine may read and write files of `volume` through the page
    /// cache, beside the disk's cycle: not on a disk with an arm, and not on a degraded volume.
    pub fn takes_cached_io(&self, volume: VolumeId) -> bool {
        let has_arm =
            self.shared.table().ledger.limits().disks[usize::from(volume.0)].model.has_arm();
        !has_arm && self.shared.level(volume) == DegradationLevel::Nothing
    }

    /// How many more streams whose own rate is `rate` would be admitted from `volume`.
    pub fn room_for(&self, volume: VolumeId, rate: BitRate, tick: Tick) -> u32 {
        self.limit_for(volume, rate, tick).0
    }

    /// Like [`Self::room_for`], with the resource that refuses the next stream.
    pub fn limit_for(&self, volume: VolumeId, rate: BitRate, tick: Tick) -> (u32, Resource) {
        let burst = rate.bytes_in(self.shared.rules.start_burst);
        let rate = Rate { rate, burst, tick: Tick::for_rate(rate, tick) };
        let part = TitlePart::whole(Bytes(u64::MAX / 2));
        let needs = ResourceRequest::of_connection(&self.shared.rules, volume, Some(rate), part);
        let table = self.shared.table();
        let servers = &self.shared.rules.servers;
        let senders = needs.sender.numbers(servers);
        let cost = needs.cost(&table.ledger, false).0;
        table.ledger.limit_for(cost, senders, &servers.deliveries)
    }

    /// The block size of `volume`.
    pub fn block_of(&self, volume: VolumeId) -> Bytes {
        self.shared.table().ledger.limits().disks[usize::from(volume.0)].block
    }

    /// The cycle of the disk.
    fn cycle_of(&self, volume: VolumeId) -> Nanos {
        self.shared.table().ledger.limits().disks[usize::from(volume.0)].cycle
    }

    /// The engine's counters of a slot of the stream table.
    pub fn counters_of(&self, slot: u32) -> Option<&StreamCounters> {
        self.shared.streams.get(slot as usize)
    }

    fn rules(&self) -> &BrokerRules {
        &self.shared.rules
    }

    /// The number of titles that are wholly in memory.
    pub fn pinned_titles(&self) -> usize {
        self.shared.table().hot_titles.pinned()
    }

    /// The refused requests so far.
    pub fn refusals(&self) -> Refusals {
        self.shared.table().refusals
    }

    /// Deliveries that hold a grant.
    pub fn streams(&self) -> u32 {
        self.shared.table().ledger.streams()
    }

    /// The reservable rate of the link.
    pub fn link(&self) -> BitRate {
        self.shared.table().ledger.limits().link
    }

    /// The number of volumes.
    pub fn volumes(&self) -> u16 {
        self.shared.table().ledger.limits().disks.len() as u16
    }

    /// Ends every running delivery.
    pub fn stop_all(&self) {
        let mut table = self.shared.table();
        for index in 0..table.slots.len() as u32 {
            let slot = &table.slots[index as usize];
            if slot.finished.is_some() || slot.output.is_some() {
                table.stop(index);
            }
        }
    }

    /// Ends an eighth of the deliveries that need the disk of `volume`, at least one: deliveries
    /// without a rate first, then the newest. Returns the number of ended deliveries.
    pub(crate) fn end_newest(&self, volume: VolumeId) -> u32 {
        let mut table = self.shared.table();
        let slots = (0u32..).zip(&table.slots);
        let mut running: Vec<_> = slots
            .filter(|(_, slot)| {
                let runs = slot.output.is_some() && !slot.stopped;
                let title = slot.title.as_ref().filter(|_| runs);
                let relies = slot.watches.is_some_and(|(_, relies)| relies);
                title.is_some_and(|source| source.title.volume == volume) && !relies
            })
            // Without a rate first, then the newest.
            .map(|(index, slot)| (slot.without_rate.is_none(), u64::MAX - slot.begun, index))
            .collect();
        running.sort_unstable();
        running.truncate(running.len().div_ceil(8));
        for &(_, _, index) in &running {
            table.stop(index);
        }
        running.len() as u32
    }

    /// The punctuality of the ended stream at `slot`.
    pub fn late(&self, slot: u32) -> Punctuality {
        let counters = self.shared.streams.get(slot as usize);
        let late = |one: &StreamCounters| Punctuality {
            lateness: Nanos(one.ended_lateness.value()),
            underruns: one.ended_underruns.value(),
        };
        counters.map(late).unwrap_or_default()
    }

    /// Payload bytes that the session at `slot` had sent when its last stream ended.
    pub(crate) fn session_bytes(&self, slot: u32) -> u64 {
        let counters = self.shared.streams.get(slot as usize);
        counters.map_or(0, |one| one.ended_session_bytes.value())
    }

    /// Passes on all waiting reports. Called by the one thread that waits for reports.
    pub fn handle_reports(&self, reports: &mut Consumer<Report>) {
        while let Some(report) = reports.pop() {
            match report {
                Report::Finished { stream, outcome, sent } => {
                    let late = self.late(stream.index);
                    let damaged = self.shared.table().finished(stream, outcome, sent, late);
                    if let Some(Damage { title, block, errno }) = damaged {
                        let name = catalogue::path_of(&title.file);
                        match errno {
                            None => tracing::error!(
                                title = %name.display(), block,
                                "a block is not what was stored, and was not sent; \
                                 `tactus verify` says more"
                            ),
                            Some(errno) => tracing::error!(
                                title = %name.display(), block, errno,
                                "a block cannot be read; nobody asks for it again for ten minutes"
                            ),
                        }
                    }
                }
                Report::Interleaved { stream, message, is_sent } => {
                    self.shared.table().interleaved(stream, message, is_sent);
                }
                Report::Pinned { stream } => self.shared.table().pinned(stream),
                Report::Retired { stream, .. } => {
                    // Closing a file may take long, so it happens outside of the lock.
                    drop(self.shared.table().retired(stream));
                }
            }
        }
    }
}

/// The rooms that a request may take.
#[derive(Clone, Copy)]
enum Room {
    /// Room that is free.
    Free,
    /// Also a room that is kept for its viewer.
    Vacancy,
    /// The same, and a viewer whose room is not kept any longer has the paces of a successor.
    Return,
    /// The same, and the room that this request has waited for.
    Waited(Ticket),
}

/// The paces that are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paces {
    /// Those that any viewer may have.
    Usual,
    /// If none of them fits, those that are only for successors.
    Slower,
}

/// Most rooms of a viewer that one request takes, if it needs more than the first of them.
const ROOMS_MAX: usize = 4;

impl Shared {
    /// The degradation level of a volume.
    fn level(&self, volume: VolumeId) -> DegradationLevel {
        self.degradations.level(volume)
    }

    /// Admits a request by the first of `specs` that fits; returns its number. A room that is kept
    /// for its viewer is free from then on; further ones are if it needs more than the first. A
    /// refused request leaves all of them as they are.
    fn decide_first(
        &self,
        table: &mut StreamTable,
        specs: &[DeliverySpec<'_>],
        room: Room,
        paces: Paces,
    ) -> Result<(usize, AdmittedRequest), Shortage> {
        let playback = specs.first().expect("a request has a specification").playback();
        let playback = playback.filter(|_| !matches!(room, Room::Free));
        let ticket = match room {
            Room::Waited(ticket) => Some(ticket),
            Room::Free | Room::Vacancy | Room::Return => None,
        };
        let set_aside = |table: &mut StreamTable| table.set_aside(playback.as_ref()?, ticket);
        let mut rooms: Vec<_> = set_aside(table).into_iter().collect();
        let mut admitted = self.decide_any(table, specs, Paces::Usual, !rooms.is_empty());
        while admitted.is_err()
            && (1..ROOMS_MAX).contains(&rooms.len())
            && let Some(another) = set_aside(table)
        {
            rooms.push(another);
            admitted = self.decide_any(table, specs, Paces::Usual, true);
        }
        let returns = matches!(room, Room::Return | Room::Waited(_)) && rooms.is_empty();
        let departure = playback.as_ref().filter(|_| returns);
        let departure = departure.and_then(|playback| table.playbacks.departure(playback));
        let is_of_title =
            |room: &RoomAside| playback.as_ref().is_some_and(|(_, title)| room.is_of(*title));
        let succeeds = rooms.iter().any(is_of_title) || departure.is_some();
        if admitted.is_err() && paces == Paces::Slower && succeeds {
            admitted = self.decide_any(table, specs, Paces::Slower, !rooms.is_empty());
        }
        match &admitted {
            Ok(_) => departure.into_iter().for_each(|one| table.playbacks.end_absence(one)),
            Err(_) => rooms.into_iter().rev().for_each(|room| table.put_back(room)),
        }
        admitted
    }

    /// Admits a request by the first of its usual or its slower `specs` that fits; returns its
    /// number.
    fn decide_any(
        &self,
        table: &mut StreamTable,
        specs: &[DeliverySpec<'_>],
        paces: Paces,
        succeeds: bool,
    ) -> Result<(usize, AdmittedRequest), Shortage> {
        let mut shortage = Shortage::SlowDisk;
        for (nth, spec) in specs.iter().enumerate() {
            let is_slower = spec.is_for_successors;
            let is_left_out = spec.takes_spare && !table.has_spare_memory_for(spec);
            if is_left_out || is_slower != (paces == Paces::Slower) {
                continue;
            }
            match self.decide(table, spec, succeeds) {
                Ok(admitted) => return Ok((nth, admitted)),
                Err(short) => shortage = short,
            }
        }
        Err(shortage)
    }

    /// Admits a request; `succeeds` if a room was kept for it.
    fn decide(
        &self,
        table: &mut StreamTable,
        spec: &DeliverySpec<'_>,
        succeeds: bool,
    ) -> Result<AdmittedRequest, Shortage> {
        let DeliverySpec { title, needs, viewer, is_of_any_title, .. } = *spec;
        let level = self.level(needs.volume);
        let playback = spec.playback();
        // Best effort neither makes a title hot nor relies on a hot one. A growing title is never
        // pinned.
        let (refuses_from, order) = match needs.read {
            Read::Elsewhere => (None, None),
            Read::BestEffort(..) => (Some(DegradationLevel::Downloads), None),
            Read::Paced(PacedRead { order, .. }, _) => {
                (Some(DegradationLevel::Newcomers), Some(order))
            }
        };
        let is_any = is_of_any_title || title.following.is_some();
        let hot = order.filter(|_| !is_any).map(|_| title);
        let is_pinned = hot.is_some_and(|title| table.hot_titles.is_pinned(title.id));
        if refuses_from.is_some_and(|from| level >= from) && !is_pinned && !succeeds {
            return Err(Shortage::SlowDisk);
        }
        if let Some(viewer) = viewer {
            table.check_share(viewer, spec, &self.rules).map_err(Shortage::Share)?;
        }
        let title_id = hot.map(|title| title.id);
        let admitted = table.admit(&needs, spec.envelope.as_ref(), title_id, &self.rules);
        let admitted = admitted.map_err(Shortage::Room)?;
        // A reader of scattered blocks does not count as a viewer; but the memory that it relies on
        // stays.
        if order != Some(Order::Scattered) || is_pinned {
            table.watch(admitted.slot, hot, level, &self.rules);
        }
        if let Some(viewer) = viewer {
            table.take_share(admitted.slot, viewer, spec);
        }
        if let Some((id, title)) = playback {
            table.playbacks.enter(&id, admitted.slot);
            let slot = &mut table.slots[admitted.slot as usize];
            slot.playback = Some((id, title));
            slot.keeps_room = spec.keeps_room;
        }
        Ok(admitted)
    }

    fn table(&self) -> MutexGuard<'_, StreamTable> {
        // A panic while the table was locked has already been reported. Each sum of the table
        // changes in one statement, so no change is half done.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.release_expired();
        table
    }
}

#[cfg(test)]
#[path = "broker/tests.rs"]
mod tests;
