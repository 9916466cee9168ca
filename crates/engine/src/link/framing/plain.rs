//! Bytes as they are: paced by a byte clock and perhaps a plan, or as fast as the peer takes them.

use std::sync::Arc;

use tactus_core::byte_clock::ByteClock;
use tactus_core::datagrams::Plan;
use tactus_core::mutant;
use tactus_core::polyline::Polyline;
use tactus_core::ports::{FilePart, HeldPlace, LinkPort};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::{Call, CallResult, Limit, Readiness, send_parts, taken_of};
use crate::egress::Memory;
use crate::link::send_queue::SendQueue;
use crate::message::{ConnectionEnd, Outcome};

/// Bytes of a file offered to a socket in one call: more than any socket takes.
const FILE_PART_MAX: Bytes = Bytes(1 << 30);
/// Blocks offered to a socket in one call. A send is at most 512 KiB: two blocks of 256 KiB and the
/// one that it began in. Only streams over 400 Mbit/s send more.
const BLOCKS: usize = 16;

/// Bytes of a title as they are.
pub(in crate::link) struct Plain {
    /// When they are due, if not at one rate. The delivery server also holds it, and longer.
    plan: Option<Arc<Plan>>,
}

impl Plain {
    pub(in crate::link) const AT_ONE_RATE: Self = Self { plan: None };

    pub(super) fn new(plan: Option<Arc<Plan>>) -> Self {
        Self { plan }
    }

    /// Whether it has one rate.
    pub(super) fn is_even(&self) -> bool {
        self.plan.is_none()
    }

    /// The position that may be sent by `until`: that of the plan, within the burst and the rate of
    /// the clock.
    pub(super) fn allowed(&self, clock: &ByteClock, until: MonoTime) -> Bytes {
        let allowed = clock.allowed(until);
        let begun = clock.start() + mutant!(PlanLate, Nanos(62_500_000), Nanos(0));
        let planned = self.line().map(|line| line.allowed(until.since(begun)));
        planned.map_or(allowed, |planned| planned.min(allowed))
    }

    /// When byte `position` is due.
    pub(super) fn due(&self, clock: &ByteClock, position: Bytes) -> MonoTime {
        let due = clock.due(position);
        let line = self.line();
        line.map_or(due, |line| due.max(clock.start() + line.due(position, line.hint(position))))
    }

    pub(super) fn readiness(
        &self,
        queue: &SendQueue,
        clock: &ByteClock,
        until: MonoTime,
    ) -> Readiness {
        let allowed = self.allowed(clock, until);
        let due = due(queue, allowed);
        let is_due = due > queue.sent;
        let ready = mutant!(Unleased, due, due.min(queue.fed()));
        Readiness { is_pending: is_due, is_due, starved: None, limit: Limit::at(ready), allowed }
    }

    pub(super) fn gap(
        &self,
        queue: &SendQueue,
        clock: &ByteClock,
        allowed: Bytes,
        until: MonoTime,
    ) -> Nanos {
        let wanted = queue.len.map_or(allowed, |len| allowed.min(len));
        self.ahead(clock, queue.fed(), wanted, until)
    }

    /// How much later the clock must be so that it allows `position` instead of `allowed` at
    /// `until`.
    pub(super) fn ahead(
        &self,
        clock: &ByteClock,
        position: Bytes,
        allowed: Bytes,
        until: MonoTime,
    ) -> Nanos {
        let missing = allowed.saturating_sub(position);
        match self.plan {
            _ if missing == Bytes(0) => Nanos(0),
            Some(_) => until.since(self.due(clock, position)),
            None => clock.rate().time_for(missing),
        }
    }

    fn line(&self) -> Option<&Polyline> {
        self.plan.as_ref()?.line.as_ref()
    }
}

/// One past the last due byte. A growing title ends with the last byte fed.
fn due(queue: &SendQueue, allowed: Bytes) -> Bytes {
    match queue.len {
        Some(len) => allowed.min(len),
        None if queue.is_growing() => allowed.min(queue.fed()),
        None => allowed,
    }
}

pub(super) fn send<P: LinkPort>(
    call: &mut Call<'_, P>,
    end: &ConnectionEnd,
    until: Bytes,
) -> Result<Option<CallResult>, Outcome> {
    let most = until.saturating_sub(call.queue.sent);
    if most == Bytes(0) {
        return Ok(None);
    }
    let (offered, sent) = match call.memory() {
        Memory::Arena(view) => {
            let mut parts = [&[][..]; BLOCKS];
            let mut count = 0;
            let mut offered = Bytes(0);
            for fed in call.blocks().take(BLOCKS) {
                if offered == most {
                    break;
                }
                let len = u64::from(fed.len).min((most - offered).0) as usize;
                parts[count] = &view.bytes(&fed.lease)[fed.at as usize..][..len];
                offered += Bytes(len as u64);
                count += 1;
            }
            (offered, send_parts(call.port, call.now, end, &parts[..count]))
        }
        Memory::PageCache => {
            let file = call.queue.file;
            let first = call.blocks().next().expect("only what was fed is offered");
            if first.lease.is_sole() {
                let len = Bytes(u64::from(first.len)).min(most);
                let place = HeldPlace {
                    volume: call.queue.volume as u32,
                    place: first.lease.block().place,
                    has_more: len < most,
                };
                let part = FilePart { file, offset: first.offset, len: len.0 as u32 };
                (len, call.send_held(end, place, part))
            } else {
                let (offset, most) = run(call, most.min(FILE_PART_MAX));
                (most, call.send_file(end, FilePart { file, offset, len: most.0 as u32 }))
            }
        }
    };
    let offered = offered.0 as usize;
    let taken = taken_of(offered, sent)?;
    let title = Bytes(mutant!(PartialSendSkipped, offered, taken) as u64);
    Ok(Some(CallResult { offered, taken, title, ..CallResult::default() }))
}

/// The offset in the file of the next bytes, and the number of them, up to `most`, that are
/// contiguous.
fn run<P: LinkPort>(call: &Call<'_, P>, most: Bytes) -> (Bytes, Bytes) {
    let mut blocks = call.blocks();
    let first = blocks.next().expect("only what was fed is offered");
    let mut len = Bytes(u64::from(first.len));
    while len < most
        && let Some(next) = blocks.next()
    {
        if next.offset != first.offset + len {
            return (first.offset, len);
        }
        len += Bytes(u64::from(next.len));
    }
    (first.offset, most)
}
