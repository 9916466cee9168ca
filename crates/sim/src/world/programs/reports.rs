//! The control side of local programs: what the file server reports about them.

use tactus_engine::message::{ClientId, LocalClient, LocalCommand, LocalReport, Origin};

use super::{Moments, OpenTitle};
use crate::verdict::{Invariant, broken, require};
use crate::world::World;
use crate::world::schedule::Act;

impl World {
    pub(in crate::world) fn read_local_reports(&mut self) {
        while let Some(report) = self.control.local.as_mut().and_then(|local| local.reports.pop()) {
            match report {
                LocalReport::Closed { client, handle, origin, .. } => {
                    self.note_closed(client, handle, &origin);
                }
                LocalReport::Forwarded { client, place, request } => {
                    let slot = self.slot_of(client);
                    let is_liar = self.programs.slots[slot].spec.is_liar;
                    require(is_liar, Invariant::TrueOutcome, || {
                        format!("{request:?} of program {slot}, which writes nothing")
                    });
                    if self.programs.slots[slot].running.is_some() {
                        let result = Err(EBADF);
                        self.order(LocalCommand::Answer { client, place, result });
                    }
                }
                LocalReport::Broken(client) => {
                    let slot = self.slot_of(client);
                    let is_liar = self.programs.slots[slot].spec.is_liar;
                    require(is_liar, Invariant::TrueOutcome, || {
                        format!("honest program {slot} was broken off at {:?}", self.now)
                    });
                    self.tally.broken_off += 1;
                    self.detach(slot);
                }
                LocalReport::Detached(client) => self.note_detached(*client),
            }
        }
    }

    /// The slot of a client that the engine has.
    fn slot_of(&self, client: ClientId) -> usize {
        let at = usize::from(client.index);
        let slot = &self.programs.slots[at];
        let is_known = slot.is_attached && slot.life == client.generation;
        require(is_known, Invariant::TrueOutcome, || {
            format!("a report about {client:?} at {:?}, which has ended", self.now)
        });
        at
    }

    fn note_closed(&mut self, client: ClientId, handle: u32, origin: &Origin) {
        let at = self.slot_of(client);
        let row = &mut self.programs.slots[at].titles[handle as usize];
        let closed = row.take_if(|open| open.is_closing && open.title as u64 == origin.title.0);
        let Some(closed) = closed else {
            broken(
                Invariant::TrueOutcome,
                format!("{handle} of program {at} was not to be closed at {:?}", self.now),
            )
        };
        self.give_back(closed);
    }

    /// What a title that is not open any more was promised returns.
    fn give_back(&mut self, closed: OpenTitle) {
        if let Some(Moments { grant, .. }) = closed.moments {
            self.broker.release(grant);
        }
    }

    fn note_detached(&mut self, client: LocalClient) {
        let at = self.slot_of(client.id());
        let slot = &mut self.programs.slots[at];
        let left: Vec<_> = slot.titles.iter_mut().filter_map(Option::take).collect();
        let origins = client.into_origins().count();
        let is_right = slot.running.is_none() && origins == left.len();
        require(is_right, Invariant::NothingLeft, || {
            format!("program {at} has ended with {origins} of {} titles", left.len())
        });
        slot.is_attached = false;
        let rests = slot.spec.rests;
        for open in left {
            self.give_back(open);
        }
        self.trace.note_all([self.now.0, at as u64]);
        self.push_act(self.now + rests, at, Act::Begin);
    }
}

/// What the control side of the server answers about a writer that it does not know.
const EBADF: u32 = 9;
