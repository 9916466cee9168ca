//! Playbacks: the streams of one viewer, one after another as it seeks.
//!
//! Promise: the room of a stream whose viewer has closed it or has all of it stays free for the
//! next stream of this viewer for [`VACANCY`], and for no other viewer. Each room has one
//! successor. No stream of another viewer is found here. Every search is bounded by
//! [`WATCHED_MAX`] or [`DEPARTURES_MAX`].

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tactus_core::cost::PlannedCost;
use tactus_engine::message::TitleId;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::viewer::{Device, Party, Viewer};

/// A viewer: requests with the same value cannot be told apart.
pub(super) type ViewerId = (Party, Device);

/// The viewer of a stream, if its streams may succeed each other.
pub(super) fn id_of(viewer: &Viewer) -> Option<ViewerId> {
    Some((viewer.party.clone(), viewer.device?))
}

/// How long the room of a stream is kept for the next one of its viewer. A player that closes a
/// connection to seek sends the next request when it has a new connection: it needs three round
/// trips with TLS, which are 1.8 s by a satellite, or a second more if its first packet is lost
/// (RFC 6298: the first timeout of TCP is 1 s). A browser on a busy machine is as late.
///
/// A room that is kept is not sold. If viewers stay for five minutes, two seconds are one room in
/// 150.
pub(super) const VACANCY: Duration = Duration::from_secs(2);

/// How long a viewer may still return to a title after its room. It has the bytes that it has been
/// sent: a browser closes its connection while it plays what it has kept, and asks for the next
/// bytes behind that. Chromium keeps tens of megabytes, which are minutes.
pub(super) const ABSENCE_MAX: Duration = Duration::from_secs(300);

/// Most departures that are kept; the oldest is forgotten. A search of all takes some microseconds.
pub(super) const DEPARTURES_MAX: usize = 1024;

/// Most streams of one viewer that a search looks at: those that began first.
pub(super) const WATCHED_MAX: usize = 256;

/// The room of a stream that has ended.
#[derive(Debug)]
pub(super) struct Vacancy {
    /// Its slot in the stream table, which is not free yet.
    pub(super) slot: u32,
    /// Its promise, which is not returned yet.
    pub(super) cost: PlannedCost,
    pub(super) title: TitleId,
    until: Instant,
    /// The waiting request that gets it; any of the viewer if there is none.
    ticket: Option<Ticket>,
    /// Its number among all so far.
    nth: u64,
}

/// A viewer whose room was kept and is free now.
#[derive(Debug)]
struct Departure {
    viewer: ViewerId,
    title: TitleId,
    until: Instant,
}

/// A waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket(u64);

/// The request that waits for the room of a stream.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) ticket: Ticket,
    pub(super) vacated: oneshot::Sender<()>,
}

/// The streams of each viewer, and the vacancies.
#[derive(Debug, Default)]
pub(super) struct Playbacks {
    viewers: HashMap<ViewerId, Vec<u32>>,
    vacancies: Vec<Vacancy>,
    /// The oldest first.
    departures: VecDeque<Departure>,
    /// Vacancies so far.
    vacated: u64,
    tickets: u64,
    /// Requests that wait.
    waiting: u32,
}

impl Playbacks {
    /// Adds a stream.
    pub(super) fn enter(&mut self, viewer: &ViewerId, slot: u32) {
        self.viewers.entry(viewer.clone()).or_default().push(slot);
    }

    /// Removes a stream.
    pub(super) fn leave(&mut self, viewer: &ViewerId, slot: u32) {
        let slots = self.viewers.get_mut(viewer).expect("a stream that leaves has entered");
        slots.retain(|&each| each != slot);
        if slots.is_empty() {
            self.viewers.remove(viewer);
        }
    }

    /// The streams of a viewer, vacancies included.
    pub(super) fn slots_of(&self, viewer: &ViewerId) -> impl Iterator<Item = u32> {
        let slots = self.viewers.get(viewer).map_or(&[][..], Vec::as_slice);
        slots.iter().copied().take(WATCHED_MAX)
    }

    /// Keeps the room of a stream for its viewer, or for the request that waits for it.
    pub(super) fn vacate(
        &mut self,
        (slot, cost): (u32, PlannedCost),
        title: TitleId,
        successor: Option<Successor>,
    ) {
        let ticket = successor.as_ref().map(|successor| successor.ticket);
        let until = Instant::now() + VACANCY;
        self.vacated += 1;
        let nth = self.vacated;
        self.vacancies.push(Vacancy { slot, cost, title, until, ticket, nth });
        if let Some(successor) = successor {
            // A request that has gone leaves the vacancy to expire.
            successor.vacated.send(()).ok();
        }
    }

    /// Takes a vacancy of `viewer` that no other request waits for: first those that the request
    /// with `ticket` has waited for, then those of this title.
    pub(super) fn take(
        &mut self,
        (viewer, title): &(ViewerId, TitleId),
        ticket: Option<Ticket>,
    ) -> Option<Vacancy> {
        let own = self.own_vacancies(viewer, ticket);
        let at = own.min_by_key(|&at| {
            let vacancy = &self.vacancies[at];
            (vacancy.ticket.is_none(), vacancy.title != *title)
        })?;
        Some(self.vacancies.swap_remove(at))
    }

    /// Keeps a vacancy again that was taken, until the same time.
    pub(super) fn keep_again(&mut self, vacancy: Vacancy) {
        self.vacancies.push(vacancy);
    }

    /// The number of the newest vacancy of `viewer` that no request waits for.
    pub(super) fn newest_vacancy(&self, viewer: &ViewerId) -> Option<u64> {
        self.own_vacancies(viewer, None).map(|at| self.vacancies[at].nth).max()
    }

    /// Whether the stream at `slot` has ended, and its room is kept for the request with `ticket`
    /// or for any of its viewer.
    pub(super) fn is_vacancy(&self, slot: u32, ticket: Option<Ticket>) -> bool {
        let is_for = |of: Option<Ticket>| of.is_none() || of == ticket;
        self.vacancies.iter().any(|vacancy| vacancy.slot == slot && is_for(vacancy.ticket))
    }

    fn own_vacancies(
        &self,
        viewer: &ViewerId,
        ticket: Option<Ticket>,
    ) -> impl Iterator<Item = usize> {
        let slots = self.viewers.get(viewer).map_or(&[][..], Vec::as_slice);
        let is_for = move |of: Option<Ticket>| of.is_none() || of == ticket;
        let is_own =
            move |vacancy: &Vacancy| is_for(vacancy.ticket) && slots.contains(&vacancy.slot);
        let all = self.vacancies.iter().enumerate();
        all.filter(move |(_, vacancy)| is_own(vacancy)).map(|(at, _)| at)
    }

    /// Takes a vacancy whose time is over.
    pub(super) fn poll_expired(&mut self) -> Option<Vacancy> {
        if self.vacancies.is_empty() {
            return None;
        }
        let now = Instant::now();
        let at = self.vacancies.iter().position(|vacancy| vacancy.until <= now)?;
        Some(self.vacancies.swap_remove(at))
    }

    /// Notes that the room of a viewer is not kept any longer.
    pub(super) fn depart(&mut self, viewer: ViewerId, title: TitleId) {
        if self.departures.len() >= DEPARTURES_MAX {
            self.departures.pop_front();
        }
        let until = Instant::now() + ABSENCE_MAX;
        self.departures.push_back(Departure { viewer, title, until });
    }

    /// Whether this viewer has departed from any title lately.
    pub(super) fn has_departed(&self, viewer: &ViewerId) -> bool {
        self.departures.iter().any(|departure| departure.viewer == *viewer)
    }

    /// A departure of this viewer from this title.
    pub(super) fn departure(&self, (viewer, title): &(ViewerId, TitleId)) -> Option<usize> {
        let is_it = |one: &Departure| one.viewer == *viewer && one.title == *title;
        self.departures.iter().position(is_it)
    }

    /// Ends the absence of a viewer: each departure is for one return.
    pub(super) fn end_absence(&mut self, departure: usize) {
        self.departures.remove(departure);
    }

    /// Forgets departures whose time is over.
    pub(super) fn forget_departures(&mut self) {
        if self.departures.is_empty() {
            return;
        }
        let now = Instant::now();
        while self.departures.pop_front_if(|departure| departure.until <= now).is_some() {}
    }

    /// Begins a wait; none if [`WAITING_MAX`] requests wait.
    pub(super) fn begin_wait(&mut self) -> Option<Ticket> {
        if self.waiting >= WAITING_MAX {
            return None;
        }
        self.waiting += 1;
        self.tickets += 1;
        Some(Ticket(self.tickets))
    }

    /// Ends a wait. A room that it has not taken is for any request of its viewer.
    pub(super) fn end_wait(&mut self, ticket: Ticket) {
        self.waiting -= 1;
        for vacancy in &mut self.vacancies {
            vacancy.ticket.take_if(|of| *of == ticket);
        }
    }

    /// The time between two looks of one waiting request: longer if many wait, so that all together
    /// look at most four times per millisecond.
    pub(super) fn look_every(&self) -> Duration {
        Duration::from_millis(4) + Duration::from_micros(250) * self.waiting
    }
}

/// Limit of requests that wait for a room at once; further ones are refused without a wait. A wait
/// takes a tenth of a second, so this allows hundreds of seeks in a second on a full server.
const WAITING_MAX: u32 = 64;
