//! Successions: a refused request waits for the room of the viewer's stream before.
//!
//! Promise: a stream is ended for its successor only if its client has closed the connection, or if
//! both streams have the id of one session. No other stream ends, and none is late: the successor
//! begins when the stream before has retired, with its promise returned under the same lock. Every
//! wait has a bound ([`OPEN_MAX`], [`CLOSED_MAX`], [`RETIRE_MAX`]), and so has the number of waits.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tactus_engine::message::TitleId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::playbacks::{Successor, Ticket, ViewerId};
use super::refusal::{Refusal, Shortage};
use super::spec::DeliverySpec;
use super::stream_table::{AdmittedRequest, StreamTable};
use super::{Broker, Grant, Room, Shared};

/// How long a stream may still be open when its successor has been answered: a round trip of a slow
/// network, and the player's own time.
const OPEN_MAX: Duration = Duration::from_secs(1);
/// How much later than a request the end of a connection may come that was closed before it, on
/// another way through proxies.
const CLOSED_MAX: Duration = Duration::from_millis(100);
/// How long a closed stream may take to retire: its reads at a slow disk have to end.
const RETIRE_MAX: Duration = Duration::from_secs(2);

/// Whether a player may open this stream before it closes the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// It seeks: it closes the stream before when it has the head of the new answer.
    Likely,
    /// It begins: the stream before is closed already, or is another viewer's.
    Unlikely,
    /// It asks for a few bytes: an open stream is something else, and keeps its room.
    Never,
}

/// The result of a request for admission.
pub enum Admission {
    /// Admitted, by the specification of this number.
    Granted(usize, Grant),
    /// Refused, unless a stream of the same viewer ends now.
    Waits(Succession),
}

/// A request that waits for the room of a stream of its viewer. Dropping it ends the wait.
pub struct Succession {
    shared: Arc<Shared>,
    playback: (ViewerId, TitleId),
    ticket: Ticket,
    /// Why it does not fit beside the stream before.
    shortage: Shortage,
    /// Set when a stream has been found that makes room for it.
    vacated: Option<oneshot::Receiver<()>>,
    open_max: Duration,
}

/// The streams of a viewer.
enum Search {
    /// A stream whose client has closed the connection.
    Closed(u32),
    /// A stream of the same title whose connection is open.
    Open(u32),
    /// A stream of the same title that has been admitted and not begun, or one that another request
    /// waits for. That request may be given up already, as by a player that seeks twice in a
    /// moment.
    Begins,
    None,
}

impl Broker {
    /// As [`Self::admit`], by the first of `specs` that fits; all are of one viewer and title. A
    /// request that does not fit may wait for the room of another stream of its viewer: one that
    /// has been closed, or one of the same title that may be closed soon.
    ///
    /// # Errors
    /// [`Refusal`] names the resource that the last of them lacks, if there is no such stream.
    ///
    /// # Panics
    /// If there is no specification.
    pub fn admit_or_succeed(
        &self,
        specs: &[DeliverySpec<'_>],
        overlap: Overlap,
    ) -> Result<Admission, Refusal> {
        let last = specs.last().expect("a request has a specification");
        let mut table = self.shared.table();
        // A look that can do without a rate leaves the room to the next seek.
        let is_spared = overlap == Overlap::Never && last.rate.is_none();
        let room = match last.playback() {
            _ if is_spared => Room::Free,
            // It waits for the room of an open stream first.
            Some((viewer, _)) if table.playbacks.slots_of(&viewer).next().is_some() => {
                Room::Vacancy
            }
            Some(_) | None => Room::Return,
        };
        let admitted = self.shared.decide_first(&mut table, specs, room);
        if let Err(shortage) = admitted {
            let waits = self.succession(&mut table, last, shortage, overlap);
            if let Some(succession) = waits {
                return Ok(Admission::Waits(succession));
            }
            table.refusals.count(shortage.resource());
        }
        drop(table);
        let (nth, grant) = self.granted_first(specs, admitted)?;
        Ok(Admission::Granted(nth, grant))
    }

    fn granted_first(
        &self,
        specs: &[DeliverySpec<'_>],
        admitted: Result<(usize, AdmittedRequest), Shortage>,
    ) -> Result<(usize, Grant), Refusal> {
        let (nth, admitted) = match admitted {
            Ok((nth, admitted)) => (nth, Ok(admitted)),
            Err(shortage) => {
                // Not a pace that was only for successors.
                let usual = specs.iter().rposition(|spec| !spec.is_for_successors);
                (usual.unwrap_or(specs.len() - 1), Err(shortage))
            }
        };
        Ok((nth, self.granted(&specs[nth], admitted)?))
    }

    fn succession(
        &self,
        table: &mut StreamTable,
        spec: &DeliverySpec<'_>,
        shortage: Shortage,
        overlap: Overlap,
    ) -> Option<Succession> {
        let playback = spec.playback()?;
        let open_max = match overlap {
            Overlap::Likely => OPEN_MAX,
            Overlap::Unlikely | Overlap::Never => CLOSED_MAX,
        };
        if overlap == Overlap::Never {
            return None;
        }
        let found = table.search(&playback);
        if matches!(found, Search::None) {
            return None;
        }
        let ticket = table.playbacks.begin_wait()?;
        let vacated = match found {
            Search::Closed(slot) => Some(table.claim(slot, ticket)),
            Search::Open(_) | Search::Begins | Search::None => None,
        };
        let shared = Arc::clone(&self.shared);
        Some(Succession { shared, playback, ticket, shortage, vacated, open_max })
    }
}

impl Succession {
    /// Whether the stream before is still open. Its player closes it when it has the head of the
    /// answer.
    pub fn is_open(&self) -> bool {
        self.vacated.is_none()
    }

    /// Waits for the room, and takes it for the first of `specs` that fits.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource, if no stream of the viewer has ended or the new one
    /// needs more than the one before.
    pub async fn admit(
        mut self,
        broker: &Broker,
        specs: &[DeliverySpec<'_>],
    ) -> Result<(usize, Grant), Refusal> {
        let is_vacated = self.is_vacated().await;
        self.decide(broker, specs, is_vacated)
    }

    fn decide(
        &self,
        broker: &Broker,
        specs: &[DeliverySpec<'_>],
        is_vacated: bool,
    ) -> Result<(usize, Grant), Refusal> {
        let mut table = self.shared.table();
        // Without a claim there may be a vacancy, or room for other reasons.
        let room = if is_vacated { Room::Claimed(self.ticket) } else { Room::Return };
        let admitted = self.shared.decide_first(&mut table, specs, room);
        let admitted = admitted.map_err(|now| if is_vacated { now } else { self.shortage });
        if let Err(shortage) = &admitted {
            table.refusals.count(shortage.resource());
        }
        drop(table);
        broker.granted_first(specs, admitted)
    }

    /// Waits until a stream of the viewer has made room.
    async fn is_vacated(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(vacated) = &mut self.vacated {
                return matches!(timeout(RETIRE_MAX, vacated).await, Ok(Ok(())));
            }
            match self.look(begun.elapsed() >= self.open_max) {
                Look::Claimed(vacated) => self.vacated = Some(vacated),
                Look::Again(pause) => tokio::time::sleep(pause).await,
                Look::Nothing => return false,
            }
        }
    }

    /// Looks for a stream of the viewer to succeed; when the wait for its end is over, an open one
    /// too, if it is certainly of the same session.
    fn look(&self, is_over: bool) -> Look {
        let mut table = self.shared.table();
        let (viewer, _) = &self.playback;
        if table.playbacks.has_vacancy(viewer) {
            // The engine has noticed the end of a stream before this did.
            return Look::Nothing;
        }
        let (_, device) = *viewer;
        match table.search(&self.playback) {
            Search::Closed(slot) => Look::Claimed(table.claim(slot, self.ticket)),
            Search::Open(slot) if is_over && device.is_certain() => {
                Look::Claimed(table.claim(slot, self.ticket))
            }
            Search::Open(_) | Search::Begins if !is_over => {
                Look::Again(table.playbacks.look_every())
            }
            Search::Open(_) | Search::Begins | Search::None => Look::Nothing,
        }
    }
}

/// The result of a look at the streams of a viewer.
enum Look {
    /// A stream ends, and its room is kept.
    Claimed(oneshot::Receiver<()>),
    /// To be repeated after this time.
    Again(Duration),
    /// No further stream makes room.
    Nothing,
}

impl Drop for Succession {
    fn drop(&mut self) {
        self.shared.table().playbacks.end_wait();
    }
}

impl StreamTable {
    /// Looks for a stream of this viewer: a closed one that no request waits for, of this title if
    /// there is one, else an open one of this title.
    fn search(&self, (viewer, title): &(ViewerId, TitleId)) -> Search {
        let streams = self.playbacks.slots_of(viewer).filter_map(|index| {
            let slot = &self.slots[index as usize];
            let of_title = slot.playback.as_ref()?.1 == *title;
            Some((index, of_title, slot))
        });
        let (mut sockets, mut open, mut closed, mut begins) = (vec![], vec![], None, false);
        for (index, of_title, slot) in streams {
            match &slot.output {
                _ if slot.successor.as_ref().is_some_and(|one| !one.vacated.is_closed()) => {
                    begins |= of_title;
                }
                // It has not begun, or is a vacancy that another request takes. If the client has
                // left, it has retired, and its grant is about to be dropped.
                None if slot.title.is_none() && !slot.is_left => begins |= of_title,
                Some(output) if !slot.stopped => {
                    // A local client's ring has no socket: its session ends it.
                    let Some(socket) = &output.socket else { continue };
                    sockets.push(PollFd::new(socket, PollFlags::RDHUP));
                    open.push((index, of_title));
                }
                _ if of_title || closed.is_none() => closed = Some(index),
                _ => {}
            }
        }
        // A failed poll leaves no events: the connections count as open.
        let polled = rustix::event::poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let is_gone = |at: usize| polled.is_ok() && sockets[at].revents().intersects(gone);
        let gone = || (0..open.len()).filter(|&at| is_gone(at)).map(|at| open[at]);
        let own = gone().find(|&(_, of_title)| of_title).map(|(index, _)| index);
        let of_other = || gone().next().map(|(index, _)| index);
        match own.or(closed).or_else(of_other) {
            Some(index) => Search::Closed(index),
            None => {
                let own = open.iter().find(|(_, of_title)| *of_title);
                let other = if begins { Search::Begins } else { Search::None };
                own.map_or(other, |&(index, _)| Search::Open(index))
            }
        }
    }

    /// Ends the stream at `index`, and keeps its room for the request with `ticket`.
    fn claim(&mut self, index: u32, ticket: Ticket) -> oneshot::Receiver<()> {
        let (vacated, receiver) = oneshot::channel();
        let slot = &mut self.slots[index as usize];
        slot.successor = Some(Successor { ticket, vacated });
        if slot.output.is_some() {
            self.stop(index);
        }
        receiver
    }
}
