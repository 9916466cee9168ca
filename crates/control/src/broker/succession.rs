//! Successions: a refused request waits for the room of the viewer's stream before.
//!
//! Promise: a stream is ended for its successor only if its client has closed the connection, or if
//! both streams have the id of one session. No other stream ends, and none is late: the successor
//! begins when the stream before has retired, with its promise returned under the same lock. Every
//! wait has a bound ([`OPEN_MAX`], [`CLOSED_MAX`], [`RETIRE_MAX`]), and so has the number of waits.
//! A request that may have a slower pace waits no longer than [`SLOWER_AFTER`] before it has one.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tactus_engine::message::TitleId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::playbacks::{Successor, Ticket, ViewerId};
use super::refusal::{Refusal, Shortage};
use super::spec::DeliverySpec;
use super::stream_table::{AdmittedRequest, StreamTable};
use super::{Broker, Grant, Paces, Room, Shared};

/// How long a stream may still be open when its successor has been answered: a round trip of a slow
/// network, and the player's own time.
const OPEN_MAX: Duration = Duration::from_secs(1);
/// How much later than a request the end of a connection may come that was closed before it, on
/// another way through proxies.
const CLOSED_MAX: Duration = Duration::from_millis(100);
/// How long a closed stream may take to retire: its reads at a slow disk have to end.
const RETIRE_MAX: Duration = Duration::from_secs(2);
/// How long a request waits for the room that it needs before it has a slower pace. On a fast
/// network and disk the stream before is closed and has retired by then. On others the slower pace
/// lasts until it has.
const SLOWER_AFTER: Duration = Duration::from_millis(100);

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
    /// Set when a stream has been found that makes room for it.
    vacated: Option<oneshot::Receiver<()>>,
    /// The newest vacancy of its viewer that it did not fit into.
    newest: Option<u64>,
    begun: Instant,
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
        let mut admitted = self.shared.decide_first(&mut table, specs, room, Paces::Usual);
        if admitted.is_err() {
            if let Some(succession) = self.succession(&mut table, last, overlap) {
                return Ok(Admission::Waits(succession));
            }
            admitted = self.shared.decide_first(&mut table, specs, room, Paces::Slower);
        }
        if let Err(shortage) = &admitted {
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
        let found = table.search(&playback, None);
        if matches!(found, Search::None) {
            return None;
        }
        let ticket = table.playbacks.begin_wait()?;
        let vacated = match found {
            Search::Closed(slot) => Some(table.claim(slot, ticket)),
            Search::Open(_) | Search::Begins | Search::None => None,
        };
        let newest = table.playbacks.newest_vacancy(&playback.0);
        let (shared, begun) = (Arc::clone(&self.shared), Instant::now());
        Some(Succession { shared, playback, ticket, vacated, newest, begun, open_max })
    }
}

impl Succession {
    /// Whether the stream before is still open. Its player closes it when it has the head of the
    /// answer.
    pub fn is_open(&self) -> bool {
        self.vacated.is_none()
    }

    /// Waits for the room, and takes it for the first of `specs` that fits. A viewer whose room has
    /// been kept, or that returns, has a slower pace if that takes longer than a tenth of a second.
    ///
    /// # Errors
    /// [`Refusal`] names the short resource, if no stream of the viewer has ended or the new one
    /// needs more than the one before.
    pub async fn admit(
        mut self,
        broker: &Broker,
        specs: &[DeliverySpec<'_>],
    ) -> Result<(usize, Grant), Refusal> {
        if specs.iter().any(|spec| spec.is_for_successors) {
            let usual = timeout(SLOWER_AFTER, self.usual(specs)).await.ok().flatten();
            let admitted = usual.or_else(|| self.decide(specs, Paces::Slower).ok());
            if let Some(admitted) = admitted {
                return broker.granted_first(specs, Ok(admitted));
            }
        }
        let admitted = match self.usual(specs).await {
            Some(admitted) => Ok(admitted),
            None => self.decide(specs, Paces::Slower),
        };
        if let Err(shortage) = &admitted {
            self.shared.table().refusals.count(shortage.resource());
        }
        broker.granted_first(specs, admitted)
    }

    fn decide(
        &self,
        specs: &[DeliverySpec<'_>],
        paces: Paces,
    ) -> Result<(usize, AdmittedRequest), Shortage> {
        let room = Room::Waited(self.ticket);
        self.shared.decide_first(&mut self.shared.table(), specs, room, paces)
    }

    /// Waits until one of the usual paces fits. `None` if no stream of the viewer makes room any
    /// more. It may be dropped and begun again.
    async fn usual(&mut self, specs: &[DeliverySpec<'_>]) -> Option<(usize, AdmittedRequest)> {
        loop {
            if let Some(vacated) = &mut self.vacated {
                let until = self.begun + self.open_max + RETIRE_MAX;
                let is_vacated = matches!(timeout_at(until, vacated).await, Ok(Ok(())));
                self.vacated = None;
                if !is_vacated {
                    return None;
                }
            } else {
                match self.look() {
                    Look::Claimed(vacated) => {
                        self.vacated = Some(vacated);
                        continue;
                    }
                    Look::Again(pause) => {
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                    Look::Vacancy => {}
                    Look::Nothing => return None,
                }
            }
            if let Ok(admitted) = self.decide(specs, Paces::Usual) {
                return Some(admitted);
            }
        }
    }

    /// Looks for a stream of the viewer to succeed; when the wait for its end is over, an open one
    /// too, if it is certainly of the same session.
    fn look(&mut self) -> Look {
        let is_over = self.begun.elapsed() >= self.open_max;
        let mut table = self.shared.table();
        let (viewer, _) = &self.playback;
        let newest = table.playbacks.newest_vacancy(viewer);
        if newest > self.newest {
            // The engine has noticed the end of a stream before this did.
            self.newest = newest;
            return Look::Vacancy;
        }
        let (_, device) = *viewer;
        match table.search(&self.playback, Some(self.ticket)) {
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
    /// The room of a stream is kept that has ended.
    Vacancy,
    /// To be repeated after this time.
    Again(Duration),
    /// No further stream makes room.
    Nothing,
}

impl Drop for Succession {
    fn drop(&mut self) {
        // A stream that is about to end for this request leaves its room to the viewer.
        self.vacated = None;
        self.shared.table().playbacks.end_wait(self.ticket);
    }
}

impl StreamTable {
    /// Looks for a stream of this viewer: a closed one that no request waits for, of this title if
    /// there is one, else an open one of this title. Rooms that the request with `ticket` may take
    /// at once are none.
    fn search(&self, (viewer, title): &(ViewerId, TitleId), ticket: Option<Ticket>) -> Search {
        let slots = self.playbacks.slots_of(viewer);
        let slots = slots.filter(|&index| !self.playbacks.is_vacancy(index, ticket));
        let streams = slots.filter_map(|index| {
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
