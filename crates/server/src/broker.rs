//! The broker: the only place that admits or refuses, and the way to the engine.
//!
//! Promise: what it grants the ledger has room for; a refusal names the short resource and changes
//! nothing; whatever becomes of a request (finished, cancelled, connection lost), its grant returns
//! when the engine has retired the stream, and not before. A socket that is handed over belongs to
//! the engine until it reports the stream as finished.

mod bad_ranges;
mod book;
mod classes;
mod datagrams;
mod degradation;
mod following;
mod frames;
mod hot_titles;
mod made;
mod planned;
mod recording;
mod refusal;
mod request;
mod running;
mod shares;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tactus_core::block_list::BlockList;
use tactus_core::cost::{Cost, Order, OutputCost, PacedRead, SendCost, Share};
use tactus_core::datagrams::Form;
use tactus_core::ledger::{Ledger, Level, Resource};
use tactus_core::ports::{SocketHandle, Waker};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_engine::counters::StreamCounters;
use tactus_engine::message::{
    Backpressure, Blocks, Command, Connection, Delivery, Extent, Outcome, Output, Pace, Rate,
    Report, Schedule, Start, StreamId, VolumeId,
};
use tactus_ring::spsc::{Consumer, Producer};
use tokio::sync::oneshot;

use crate::broker::bad_ranges::BadRanges;
use crate::broker::book::{Admitted, Book, Damage, Place, Source, version_of};
use crate::broker::hot_titles::HotTitles;
use crate::broker::refusal::{beyond_share, in_class, refusal};
use crate::broker::request::{Read, Request, Without};
use crate::broker::shares::Shares;
use crate::catalogue::{self, OpenTitle};
use crate::config::{BestEffort, ClientShare};

pub use bad_ranges::BadRange;
pub use classes::{ClassUse, Unchanged};
pub use datagrams::{
    DatagramCost, Door, OUTLET_BUFFER, OUTLET_BUFFER_MIN, Outlet, Sending, Target,
};
pub use degradation::{Degradations, Step};
pub use frames::{Framed, Interleaver, Lane, is_whole};
pub use made::{MadeRate, MadeRing, MadeStream, MadeWay, Reading};
pub use planned::Planned;
pub use recording::RecordGrant;
pub use refusal::{RESOURCES, Refusal, Refusals};
pub use running::Running;
pub use shares::{Party, Viewer};

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

/// What a stream goes out by.
enum Way {
    Socket(OwnedFd),
    Frames(TcpStream, Lane),
    Reader(UnixStream),
    Outlet(Target),
    /// A connection that made frames go into.
    Made(Arc<OwnedFd>, SocketAddr),
}

impl Way {
    fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Socket(socket) => rustix::net::getpeername(socket).ok()??.try_into().ok(),
            Self::Frames(socket, _) => socket.peer_addr().ok(),
            Self::Reader(_) => None,
            Self::Outlet(target) => Some(target.to),
            Self::Made(_, peer) => Some(*peer),
        }
    }

    /// Where it goes, and what frames the blocks of a title on the way.
    fn output(&self) -> (Form, Output) {
        let connection = |socket| Connection::of(SocketHandle(socket));
        match self {
            Self::Socket(socket) => (Form::Udp, Output::Connection(connection(socket.as_raw_fd()))),
            Self::Frames(socket, lane) => {
                let connection = connection(socket.as_raw_fd());
                let output = Connection { channel: lane.channel, ..connection };
                (Form::Rtp(lane.session), Output::Connection(output))
            }
            Self::Reader(socket) => {
                let connection = connection(socket.as_raw_fd());
                let output = Connection { backpressure: Backpressure::Wait, ..connection };
                (Form::Udp, Output::Connection(output))
            }
            Self::Outlet(target) => (target.form, Output::Datagrams(target.output())),
            Self::Made(socket, _) => {
                (Form::Udp, Output::Connection(connection(socket.as_raw_fd())))
            }
        }
    }
}

/// What a delivery sends of its title.
struct Part {
    range: Range<u64>,
    grows: bool,
    repeats: bool,
    /// Instead of the range, which is then as long.
    block_list: Option<BlockList>,
}

impl Part {
    /// Once, and no more than is there.
    const fn of(range: Range<u64>) -> Self {
        Self { range, grows: false, repeats: false, block_list: None }
    }
}

/// What somebody would like to have delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The disk that the title lies on.
    pub volume: VolumeId,
    /// How fast; the tick is lengthened or shortened to suit the rate.
    pub pace: Pace,
    /// Bytes to deliver in all.
    pub len: Bytes,
}

/// Room for one delivery at a time. Returned when dropped.
pub struct Grant {
    shared: Arc<Shared>,
    place: u32,
    cost: Cost,
    /// Blocks that its streams may hold or wait for at once.
    window: u32,
    pace: Pace,
    /// A stream of this grant that has finished but perhaps not retired.
    retiring: Option<oneshot::Receiver<()>>,
    in_engine: bool,
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

    /// Reserves what `wanted` needs.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit(&self, wanted: &Wanted) -> Result<Grant, Refusal> {
        self.admit_as(wanted, None, None)
    }

    /// Reserves what the delivery of `len` bytes of `title` needs. When several viewers watch it, it
    /// is read into memory, and the next ones need no disk.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_title(
        &self,
        title: &Arc<OpenTitle>,
        pace: Pace,
        len: Bytes,
    ) -> Result<Grant, Refusal> {
        self.admit_as(&Wanted { volume: title.volume, pace, len }, Some(title), None)
    }

    /// Like [`Self::admit`], for a client, within its share. A short answer without a rate does not
    /// count as a download.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource; nothing has changed.
    pub fn admit_for(
        &self,
        viewer: &Viewer,
        title: &Arc<OpenTitle>,
        pace: Pace,
        len: Bytes,
    ) -> Result<Grant, Refusal> {
        self.admit_as(&Wanted { volume: title.volume, pace, len }, Some(title), Some(viewer))
    }

    fn admit_as(
        &self,
        wanted: &Wanted,
        title: Option<&Arc<OpenTitle>>,
        viewer: Option<&Viewer>,
    ) -> Result<Grant, Refusal> {
        let rules = &self.shared.rules;
        // Of a title that still grows nothing is held, and nobody knows how long it will be.
        let title = title.filter(|title| title.following.is_none());
        let pace = suited(wanted.pace);
        let title_len = title.map_or(Bytes(u64::MAX), |title| title.len);
        let share = Share { len: wanted.len, title_len };
        // Best effort neither makes a title hot nor relies on it.
        let title = title.filter(|_| pace != Pace::BestEffort);
        let step = self.shared.step(wanted.volume);
        let is_refused = match pace {
            Pace::BestEffort => step >= Step::Downloads,
            Pace::Paced { .. } => step >= Step::Newcomers,
        };
        let mut book = self.shared.book();
        if is_refused && !title.is_some_and(|title| book.hot_titles.is_held(title.id)) {
            book.refusals.count(Resource::Disk);
            drop(book);
            return Err(self.shared.too_slow(&what(wanted.pace)));
        }
        if let Some(viewer) = viewer
            && let Err(over) = book.check_share(viewer, wanted, rules)
        {
            book.refusals.count(over.resource);
            drop(book);
            return Err(beyond_share(over, viewer, &what(wanted.pace), rules));
        }
        let is_short = viewer.is_some() && shares::is_short(wanted);
        let without = if is_short { Without::ShortAnswer } else { Without::Download };
        let request = to_connection(wanted.volume, pace, share, without, rules);
        let admitted = book.admit(&request, title.map(|title| title.id), rules);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(short) => {
                book.refusals.count(short.resource);
                drop(book);
                return Err(refusal(short, &what(wanted.pace), rules));
            }
        };
        book.watch(admitted.place, title, step, rules);
        if let Some(viewer) = viewer {
            book.take_share(admitted.place, viewer, wanted);
        }
        drop(book);
        Ok(self.grant(admitted, pace))
    }

    fn grant(&self, admitted: Admitted, pace: Pace) -> Grant {
        let Admitted { place, cost, window } = admitted;
        let shared = Arc::clone(&self.shared);
        Grant { shared, place, cost, window, pace, retiring: None, in_engine: false }
    }

    /// Delivers `range` of `title` to `socket`, which must be non-blocking and prepared for the
    /// link. When the future is dropped, the delivery is stopped with its grant.
    ///
    /// # Panics
    /// When the range is empty.
    pub async fn deliver(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        socket: impl Into<OwnedFd>,
    ) -> Delivered {
        assert!(range.start < range.end, "an empty range is answered without the engine");
        let part = Part::of(range);
        let delivered = self.start(grant, title, part, Way::Socket(socket.into())).await;
        match delivered {
            Ok(delivered) => ended(delivered.await),
            Err(ended) => ended,
        }
    }

    /// Begins a delivery of `range`; of a title that grows, up to what is there. The future that it gives
    /// is its end.
    async fn start(
        &self,
        grant: &mut Grant,
        title: &Arc<OpenTitle>,
        part: Part,
        way: Way,
    ) -> Result<oneshot::Receiver<Delivered>, Delivered> {
        let Part { range, grows, repeats, block_list } = part;
        if let Some(retiring) = grant.retiring.take() {
            // A closed channel says the same: the place is empty.
            drop(retiring.await);
        }
        let source = match Source::open(title, &self.shared.rules) {
            Ok(source) => source,
            Err(errno) => {
                return Err(Delivered::without_socket(Outcome::DiskFailed(errno)));
            }
        };
        let (finished, delivered) = oneshot::channel();
        let (retired, retiring) = oneshot::channel();
        {
            let mut book = self.shared.book();
            book.begun += 1;
            let begun = book.begun;
            let place = &mut book.places[grant.place as usize];
            let mut origin = source.origin();
            if block_list.is_none() {
                origin.len = origin.len.max(Bytes(range.end));
            }
            let (framing, output) = way.output();
            let plan = match &way {
                Way::Socket(_) | Way::Reader(_) | Way::Made(..) => None,
                Way::Frames(_, lane) => lane.plan.clone(),
                Way::Outlet(target) => target.plan.clone(),
            };
            let schedule = match (grant.pace, plan) {
                (Pace::BestEffort, _) => Schedule::BestEffort,
                (Pace::Paced { rate, burst, tick }, plan) => {
                    let rate = Rate { rate, burst, tick };
                    plan.map_or(Schedule::ByteClock(rate), |plan| Schedule::Plan(rate, plan))
                }
            };
            let range = Bytes(range.start)..Bytes(range.end);
            let extent = match block_list {
                Some(list) => Extent::List(list),
                None if grows => Extent::Growing(range),
                None if repeats => Extent::Repeating(range),
                None => Extent::Range(range),
            };
            let blocks = Blocks { origin, extent, window: grant.window };
            let delivery = match Delivery::of_blocks(blocks, framing, schedule, output) {
                Ok(delivery) => delivery,
                Err(error) => {
                    tracing::error!(%error, "a delivery cannot begin");
                    return Err(Delivered::without_socket(Outcome::Stopped));
                }
            };
            place.begun = begun;
            place.stopped = false;
            place.generation = place.generation.wrapping_add(1);
            place.finished = Some(finished);
            place.retired = Some(retired);
            place.title = Some(source);
            place.way = Some(way);
            let stream = StreamId { index: grant.place, generation: place.generation };
            grant.in_engine = true;
            grant.retiring = Some(retiring);
            book.command(Command::Start(Start { stream, delivery }));
        }
        Ok(delivered)
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
        let pace = Pace::Paced { rate, burst, tick: Tick::for_rate(rate, tick) };
        let share = Share::whole(Bytes(u64::MAX / 2));
        let rules = &self.shared.rules;
        let request = to_connection(volume, pace, share, Without::Download, rules);
        let book = self.shared.book();
        book.ledger.limit_for(request.cost(&book.ledger, false).0)
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

    /// Size of a block of a volume.
    pub fn block(&self, volume: VolumeId) -> Bytes {
        self.shared.book().ledger.terms().disks[usize::from(volume.0)].block
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
            if place.finished.is_some() || place.way.is_some() {
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
                let title = place.title.as_ref().filter(|_| place.way.is_some() && !place.stopped);
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

impl Drop for Grant {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        let place = &mut book.places[self.place as usize];
        if self.in_engine && place.title.is_some() {
            // Not retired yet: the engine may still send or read for it.
            place.release = Some(self.cost);
            if place.way.is_some() {
                book.stop(self.place);
            }
        } else {
            book.release(self.place, self.cost);
        }
    }
}

fn ended(delivered: Result<Delivered, oneshot::error::RecvError>) -> Delivered {
    delivered.unwrap_or(Delivered::without_socket(Outcome::Stopped))
}

fn suited(pace: Pace) -> Pace {
    match pace {
        Pace::Paced { rate, burst, tick } => {
            Pace::Paced { rate, burst, tick: Tick::for_rate(rate, tick) }
        }
        Pace::BestEffort => Pace::BestEffort,
    }
}

/// A title that is read once, to a connection.
fn to_connection(
    volume: VolumeId,
    pace: Pace,
    share: Share,
    without: Without,
    rules: &BrokerRules,
) -> Request {
    let (read, output) = match pace {
        Pace::Paced { rate, burst, tick } => {
            let reading = PacedRead { rate, tick, burst, order: Order::Once, is_held: false };
            let cost = rules.connections[usize::from(volume.0)];
            (Read::Paced(reading, share), OutputCost::connection(cost, rate, tick))
        }
        Pace::BestEffort => (Read::BestEffort(share, without), OutputCost::NONE),
    };
    Request { volume, read, output }
}

/// A pace for people.
fn what(pace: Pace) -> String {
    match pace {
        Pace::Paced { rate, .. } => format!("a stream of {rate}"),
        Pace::BestEffort => "a download without a rate".to_owned(),
    }
}

#[cfg(test)]
#[path = "broker/tests.rs"]
mod tests;
