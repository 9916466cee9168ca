//! Bytes as they are: paced by a byte clock, or as fast as the peer takes them.

use tactus_core::byte_clock::ByteClock;
use tactus_core::mutant;
use tactus_core::ports::{FilePart, LinkPort, SocketHandle};
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::{Call, CallResult, Limit, Readiness, taken_of};
use crate::egress::Memory;
use crate::link::send_queue::SendQueue;
use crate::message::Outcome;

/// Bytes of a file offered to a socket in one call: more than any socket takes.
const FILE_PART_MAX: Bytes = Bytes(1 << 30);
/// Blocks offered to a socket in one call. A send is at most 512 KiB: two blocks of 256 KiB and the
/// one that it began in. Only streams over 400 Mbit/s send more.
const BLOCKS: usize = 16;

pub(super) fn readiness(queue: &SendQueue, clock: &ByteClock, until: MonoTime) -> Readiness {
    let allowed = clock.allowed(until);
    let due = due(queue, allowed);
    let is_due = due > queue.sent;
    let ready = mutant!(Unleased, due, due.min(queue.fed()));
    Readiness { is_pending: is_due, is_due, starved: None, limit: Limit::at(ready), allowed }
}

/// One past the last due byte. A growing title ends with the last byte fed.
fn due(queue: &SendQueue, allowed: Bytes) -> Bytes {
    match queue.len {
        Some(len) => allowed.min(len),
        None if queue.is_growing() => allowed.min(queue.fed()),
        None => allowed,
    }
}

pub(super) fn gap(queue: &SendQueue, clock: &ByteClock, allowed: Bytes) -> Nanos {
    let wanted = queue.len.map_or(allowed, |len| allowed.min(len));
    let missing = wanted.saturating_sub(queue.fed());
    if missing == Bytes(0) { Nanos(0) } else { clock.rate().time_for(missing) }
}

pub(super) fn send<P: LinkPort>(
    call: &mut Call<'_, P>,
    socket: SocketHandle,
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
            (offered, call.port.send(call.now, socket, &parts[..count]))
        }
        Memory::PageCache => {
            let (offset, most) = run(call, most.min(FILE_PART_MAX));
            let part = FilePart { file: call.queue.file, offset, len: most.0 as u32 };
            (most, call.port.send_file(call.now, socket, part))
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
