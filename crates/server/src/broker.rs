//! The broker: the only place that admits or refuses, and the way to the engine.
//!
//! Promise: what it grants the ledger has room for; a refusal names the short resource and changes
//! nothing; whatever becomes of a request (finished, cancelled, connection lost), its grant returns
//! when the engine has retired the stream, and not before. A socket that is handed over belongs to
//! the engine until it reports the stream as finished.

mod bad_ranges;
mod output;
mod prices;
mod refusal;
mod shares;

mod generated;

mod spec;

mod degradation;
mod hot_titles;
mod interleaving;

mod book;

mod grant;

mod active;
mod classes;
mod following;
mod planned;
mod recording;

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tactus_core::cost::{Order, PacedRead, SendCost, Share};
use tactus_core::ledger::{Ledger, Level, Resource};
use tactus_core::ports::Waker;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_engine::counters::StreamCounters;
use tactus_engine::message::{Command, Outcome, Rate, Report, VolumeId};
use tactus_ring::spsc::{Consumer, Producer};

use crate::broker::bad_ranges::BadRanges;
use crate::broker::book::{Admitted, Book, Damage, Place, version_of};
use crate::broker::hot_titles::HotTitles;
use crate::broker::refusal::{beyond_share, refusal};
use crate::broker::shares::{Shares, is_short};
use crate::broker::spec::{Needs, Read};
use crate::catalogue::{self, OpenTitle};
use crate::config::{BestEffort, ClientShare};

pub use active::ActiveStream;
pub use bad_ranges::BadRange;
pub use classes::{ClassUse, Unchanged};
pub use degradation::{Degradations, Step};
pub use generated::{ChunkRing, GeneratedRate, Reading};
pub use grant::{Grant, Running, Source};
pub use interleaving::{Interleaver, is_whole};
pub use output::{Door, OUTLET_BUFFER, OUTLET_BUFFER_MIN, Outlet, Output};
pub use planned::Planned;
pub use prices::DatagramCost;
pub use recording::RecordGrant;
pub use refusal::{RESOURCES, Refusal, Refusals};
pub use shares::{Party, Viewer};
pub use spec::DeliverySpec;

/// Admits deliveries and hands them to the engine.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    book: Mutex<Book>,
    rules: BrokerRules,
    /// What the engine counts for each place.
    streams: Arc<[StreamCounters]>,
    /// What volumes have given up; nothing before it is known.
    degradations: OnceLock<Degradations>,
}

/// What the broker goes by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerRules {
    /// Deliveries without a rate.
    pub best_effort: BestEffort,
    /// What a refused client is told to wait.
    pub retry_after: Duration,
    /// Media time that a stream at its title's rate sends at once at its start.
    pub start_burst: Nanos,
    /// CPU time of datagrams, at first.
    pub datagram: DatagramCost,
    /// For each volume, whether its titles are read through the page cache.
    pub sendfile: Vec<bool>,
    /// For each volume, what sending its blocks to a connection costs.
    pub connections: Vec<SendCost>,
    /// How the classes of the link are called.
    pub classes: Vec<String>,
}

/// What became of a delivery.
#[derive(Debug)]
pub struct Delivered {
    /// The socket, for the next request; none when the connection is of no more use.
    pub socket: Option<OwnedFd>,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes that the socket has taken.
    pub sent: u64,
    /// Where the place begins that could not be read. The socket can still be given what lies before.
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

impl Delivered {
    fn without_socket(outcome: Outcome) -> Self {
        Self { socket: None, outcome, sent: 0, readable_to: None, late: Punctuality::default() }
    }
}

impl Broker {
    /// A broker over `ledger`, whose streams go to the engine through `commands`, waking it by
    /// `waker`, and which counts for them in `counters`.
    pub fn new(
        ledger: Ledger,
        commands: Producer<Command>,
        waker: Box<dyn Waker>,
        rules: BrokerRules,
        counters: Arc<[StreamCounters]>,
    ) -> Self {
        let streams = ledger.terms().streams;
        let book = Book {
            ledger,
            datagram: rules.datagram,
            commands,
            class_changes: None,
            waker,
            free: (0..streams).rev().collect(),
            places: (0..streams).map(|_| Place::default()).collect(),
            best_effort: 0,
            short_answers: 0,
            shares: Shares::default(),
            begun: 0,
            refusals: Refusals::default(),
            hot_titles: HotTitles::default(),
            damaged: BTreeSet::new(),
            bad_ranges: BadRanges::default(),
        };
        let (book, degradations) = (Mutex::new(book), OnceLock::new());
        Self { shared: Arc::new(Shared { book, rules, streams: counters, degradations }) }
    }

    /// Reserves what a delivery needs. When several viewers watch a title at a rate, it is read into
    /// memory, and the next ones need no disk.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit(&self, spec: &DeliverySpec<'_>) -> Result<Grant, Refusal> {
        let DeliverySpec { title, needs, rate, viewer, is_of_any_title, ref what, .. } = *spec;
        let rules = &self.shared.rules;
        let step = self.shared.step(needs.volume);
        // Best effort neither makes a title hot nor relies on it; of a title that grows nothing is held.
        let (refuses_from, order) = match needs.read {
            Read::Elsewhere => (None, None),
            Read::BestEffort(..) => (Some(Step::Downloads), None),
            Read::Paced(PacedRead { order, .. }, _) => (Some(Step::Newcomers), Some(order)),
        };
        let is_any = is_of_any_title || title.following.is_some();
        let hot = order.filter(|_| !is_any).map(|_| title);
        let mut book = self.shared.book();
        let is_held = hot.is_some_and(|title| book.hot_titles.is_held(title.id));
        if refuses_from.is_some_and(|from| step >= from) && !is_held {
            book.refusals.count(Resource::Disk);
            drop(book);
            return Err(self.shared.too_slow(what));
        }
        if let Some(viewer) = viewer
            && let Err(over) = book.check_share(viewer, spec, rules)
        {
            book.refusals.count(over.resource);
            drop(book);
            return Err(beyond_share(over, viewer, what, rules));
        }
        let admitted = match book.admit(&needs, hot.map(|title| title.id), rules) {
            Ok(admitted) => admitted,
            Err(short) => {
                book.refusals.count(short.resource);
                drop(book);
                return Err(refusal(short, what, rules));
            }
        };
        // A reader of scattered blocks is no further viewer; but the memory that it relies on stays.
        if order != Some(Order::Scattered) || is_held {
            book.watch(admitted.place, hot, step, rules);
        }
        if let Some(viewer) = viewer {
            book.take_share(admitted.place, viewer, spec);
        }
        drop(book);
        let Admitted { place, cost, window } = admitted;
        let shared = Arc::clone(&self.shared);
        Ok(Grant { shared, place, cost, window, rate, retiring: None, in_engine: false })
    }

    /// How far `bytes` of a title can be read, as far as is known: to their end, or to a place that could
    /// not be read a while ago, for which the disk is not asked again so soon.
    pub fn readable(&self, title: &OpenTitle, bytes: &Range<u64>) -> u64 {
        let book = self.shared.book();
        let bad = book.bad_ranges.within(Instant::now(), &version_of(title), bytes.clone());
        bad.map_or(bytes.end, |bad| bad.bytes.start.max(bytes.start))
    }

    /// Places that could not be read, and are not asked for meanwhile.
    pub fn bad_places(&self) -> Vec<BadRange> {
        self.shared.book().bad_ranges.all(Instant::now())
    }

    /// Forgets bad places of titles that are gone or have been replaced; `is_current` may block.
    pub fn forget_bad_places(&self, is_current: impl Fn(&BadRange) -> bool) {
        let gone: Vec<_> =
            self.bad_places().into_iter().filter(|place| !is_current(place)).collect();
        if !gone.is_empty() {
            self.shared.book().bad_ranges.retain(|place| !gone.contains(place));
        }
    }

    /// The share of one client in deliveries without a rate.
    pub fn best_effort_share(&self) -> ClientShare {
        self.shared.rules.best_effort.client_share
    }

    /// How full everything is.
    pub fn levels(&self) -> Vec<Level> {
        self.shared.book().ledger.levels().collect()
    }

    /// How many more streams whose own rate is `rate` would be admitted from `volume`.
    pub fn room_for(&self, volume: VolumeId, rate: BitRate, tick: Tick) -> u32 {
        self.limit_for(volume, rate, tick).0
    }

    /// Like [`Self::room_for`], with the resource that refuses the next stream.
    pub fn limit_for(&self, volume: VolumeId, rate: BitRate, tick: Tick) -> (u32, Resource) {
        let burst = rate.bytes_in(self.shared.rules.start_burst);
        let rate = Rate { rate, burst, tick: Tick::for_rate(rate, tick) };
        let share = Share::whole(Bytes(u64::MAX / 2));
        let needs = Needs::of_connection(&self.shared.rules, volume, Some(rate), share);
        let book = self.shared.book();
        book.ledger.limit_for(needs.cost(&book.ledger, false).0)
    }

    /// The size in which titles of `volume` are read.
    pub fn block_of(&self, volume: VolumeId) -> Bytes {
        self.shared.book().ledger.terms().disks[usize::from(volume.0)].block
    }

    /// What the engine counts for a slot of the delivery table.
    pub fn counters_of(&self, place: u32) -> Option<&StreamCounters> {
        self.shared.streams.get(place as usize)
    }

    fn rules(&self) -> &BrokerRules {
        &self.shared.rules
    }

    /// Titles of which all is held in memory.
    pub fn held_titles(&self) -> usize {
        self.shared.book().hot_titles.held()
    }

    /// Requests that were refused so far.
    pub fn refusals(&self) -> Refusals {
        self.shared.book().refusals
    }

    /// Deliveries that hold a grant.
    pub fn streams(&self) -> u32 {
        self.shared.book().ledger.streams()
    }

    /// The reservable rate of the link.
    pub fn link(&self) -> BitRate {
        self.shared.book().ledger.terms().link
    }

    /// How many disks there are.
    pub fn volumes(&self) -> u16 {
        self.shared.book().ledger.terms().disks.len() as u16
    }

    /// Ends every running delivery.
    pub fn stop_all(&self) {
        let mut book = self.shared.book();
        for index in 0..book.places.len() as u32 {
            let place = &book.places[index as usize];
            if place.finished.is_some() || place.output.is_some() {
                book.stop(index);
            }
        }
    }

    /// From now on heeds what volumes have given up.
    pub(crate) fn heed(&self, degradations: Degradations) {
        // Told twice: the first one stays.
        self.shared.degradations.set(degradations).ok();
    }

    /// Ends an eighth of the deliveries that need the disk of `volume`, at least one: those without a
    /// rate first, then the newest. Answers how many.
    pub(crate) fn end_newest(&self, volume: VolumeId) -> u32 {
        let mut book = self.shared.book();
        let places = (0u32..).zip(&book.places);
        let mut running: Vec<_> = places
            .filter(|(_, place)| {
                let runs = place.output.is_some() && !place.stopped;
                let title = place.title.as_ref().filter(|_| runs);
                let relies = place.watches.is_some_and(|(_, relies)| relies);
                title.is_some_and(|source| source.title.volume == volume) && !relies
            })
            // Without a rate first, then the newest.
            .map(|(index, place)| (place.without_rate.is_none(), u64::MAX - place.begun, index))
            .collect();
        running.sort_unstable();
        running.truncate(running.len().div_ceil(8));
        for &(_, _, index) in &running {
            book.stop(index);
        }
        running.len() as u32
    }

    /// The punctuality of the ended stream at `place`.
    pub(crate) fn late(&self, place: u32) -> Punctuality {
        let counters = self.shared.streams.get(place as usize);
        let late = |one: &StreamCounters| Punctuality {
            lateness: Nanos(one.ended_lateness.value()),
            underruns: one.ended_underruns.value(),
        };
        counters.map(late).unwrap_or_default()
    }

    /// Payload bytes that the session at `place` had sent when its last stream ended.
    pub(crate) fn session_bytes(&self, place: u32) -> u64 {
        let counters = self.shared.streams.get(place as usize);
        counters.map_or(0, |one| one.ended_session_bytes.value())
    }

    /// Passes on all reports that are there. Called by the one thread that waits for them.
    pub fn handle_reports(&self, reports: &mut Consumer<Report>) {
        while let Some(report) = reports.pop() {
            match report {
                Report::Finished { stream, outcome, sent } => {
                    let late = self.late(stream.index);
                    let damaged = self.shared.book().finished(stream, outcome, sent, late);
                    if let Some(Damage { title, block, errno }) = damaged {
                        let name = catalogue::path_of(&title.file);
                        match errno {
                            None => tracing::error!(
                                title = %name.display(), block,
                                "a block is not what was stored, and was not sent; `tactus verify` says more"
                            ),
                            Some(errno) => tracing::error!(
                                title = %name.display(), block, errno,
                                "a block cannot be read; nobody asks for it again for ten minutes"
                            ),
                        }
                    }
                }
                Report::Interleaved { stream, message, is_sent } => {
                    self.shared.book().interleaved(stream, message, is_sent);
                }
                Report::Held { stream } => self.shared.book().held(stream),
                Report::Retired { stream, .. } => {
                    // Closing a file may take long: not under the lock.
                    drop(self.shared.book().retired(stream));
                }
            }
        }
    }
}

impl Shared {
    /// What a volume has given up.
    fn step(&self, volume: VolumeId) -> Step {
        self.degradations.get().map_or(Step::Nothing, |degradations| degradations.step(volume))
    }

    fn too_slow(&self, what: &str) -> Refusal {
        let message = format!("no room for {what}: the disk is slower than it was measured");
        Refusal { resource: Resource::Disk, retry_after: self.rules.retry_after, message }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic while the book was open has already been reported; its sums are kept by single
        // statements that cannot be half done.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "broker/tests.rs"]
mod tests;
