//! One local client within the file server: its requests under way and its leased blocks.
//!
//! Promise: everything of a client is bounded, and nothing that it writes is used unchecked.

use tactus_core::local::{Answer, Operation, REQUEST_WORDS, Request};
use tactus_core::timed::{ReserveFault, TimedRead};
use tactus_core::units::{Bytes, MonoTime};
use tactus_ring::arena::Lease;
use tactus_ring::shared::{Broken, SharedBytes};

use crate::message::local::Handle;
use crate::message::{LocalClient, TitleId, VolumeId};

/// Requests of a client under way at once; further ones wait in the ring.
pub const REQUESTS_MAX: usize = 16;

/// Blocks that a client waits for at once.
pub const WANTS_MAX: usize = 4;

/// Blocks that are kept for a client after a read, because the next one is often near.
pub const HELD_MAX: usize = 4;

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// More bytes can be copied.
    Going,
    /// A block was wanted, and has not come.
    Waiting,
    /// The result is known; the answer waits for its time.
    Done(Result<u32, u32>),
}

/// A request under way.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) request: Request,
    /// Bytes to copy: as requested, or less at the end of the title.
    pub(super) len: u32,
    pub(super) copied: u32,
    /// Its moment is kept: it was taken out of the reserve of its title.
    pub(super) is_promised: bool,
    pub(super) progress: Progress,
}

/// A block that is kept for a client.
pub(super) struct ClientLease {
    pub(super) volume: VolumeId,
    pub(super) title: TitleId,
    pub(super) block: u64,
    /// Bytes of the block that were wanted: a title that grows has more of them later.
    pub(super) len: u32,
    pub(super) lease: Lease,
}

/// A row of the table.
pub(super) struct Entry {
    pub(super) client: Box<LocalClient>,
    pub(super) pending: [Option<Pending>; REQUESTS_MAX],
    /// The oldest first.
    pub(super) held: Vec<ClientLease>,
    /// Blocks of reads whose moments are kept, until they are copied.
    pub(super) promised: [Option<ClientLease>; REQUESTS_MAX],
    /// Requests under way.
    pub(super) under_way: usize,
    /// Wants that the block servers have not answered.
    pub(super) wants: usize,
    /// The same of reads whose moments are kept.
    pub(super) promised_wants: usize,
    /// It has written what no client writes.
    pub(super) has_lied: bool,
    /// No more requests are taken.
    pub(super) is_ended: bool,
    /// To be reported when nothing is left.
    pub(super) is_detaching: bool,
    /// Answers were pushed since the last look at its mark.
    pub(super) has_answers: bool,
    /// A request for a title that was not open when it was taken, and the turn of that. The command
    /// that opens it may have come since: the next turn tries once more.
    pub(super) early: Option<([u64; REQUEST_WORDS], u64)>,
}

impl Entry {
    pub(super) fn new(client: Box<LocalClient>, held: Vec<ClientLease>) -> Self {
        Self {
            client,
            pending: [None; REQUESTS_MAX],
            held,
            promised: [const { None }; REQUESTS_MAX],
            under_way: 0,
            wants: 0,
            promised_wants: 0,
            has_lied: false,
            is_ended: false,
            is_detaching: false,
            has_answers: false,
            early: None,
        }
    }

    /// Takes the next request, if there is one and there is room for it and its answer; and whether
    /// it was taken before, in an earlier turn.
    pub(super) fn take(
        &mut self,
        turn: u64,
    ) -> Result<Option<([u64; REQUEST_WORDS], bool)>, Broken> {
        if self.is_ended || self.under_way == REQUESTS_MAX {
            return Ok(None);
        }
        match self.early.take_if(|(_, taken)| *taken != turn) {
            Some((words, _)) => Ok(Some((words, true))),
            None if self.early.is_some() => Ok(None),
            None => Ok(self.client.requests.pop()?.map(|words| (words, false))),
        }
    }

    /// Whether answers of all requests under way and of one more have room in the ring.
    pub(super) fn has_room(&mut self) -> Result<bool, Broken> {
        Ok(self.client.answers.free()? as usize > self.under_way)
    }

    pub(super) fn answer(&mut self, token: u64, result: Result<u32, u32>, at: MonoTime) {
        let answer = Answer { token, result, at };
        match self.client.answers.push(&answer.encode()) {
            Ok(true) => self.has_answers = true,
            // There was room when the request was taken: the client has lied since.
            Ok(false) | Err(Broken) => self.has_lied = true,
        }
    }

    /// Loses the answers that wait for their time.
    #[cfg(feature = "mutants")]
    pub(super) fn forget_answers(&mut self) {
        let is_done = |pending: &mut Pending| matches!(pending.progress, Progress::Done(_));
        let lost = self.pending.iter_mut().filter_map(|pending| pending.take_if(is_done));
        self.under_way -= lost.count();
    }

    /// Begins a request. Returns its number, or the error number if it cannot be.
    pub(super) fn begin(&mut self, now: MonoTime, request: Request) -> Result<usize, u32> {
        let len = self.checked_len(&request)?;
        let is_promised = self.take_of_reserve(now, &request, len)?;
        let at = self.pending.iter().position(Option::is_none);
        let at = at.expect("requests are taken only if there is room");
        let progress = match request.operation {
            // The control side carries it out.
            operation if operation.is_of_writer() => Progress::Waiting,
            _ if len == 0 => Progress::Done(Ok(0)),
            _ => Progress::Going,
        };
        self.pending[at] = Some(Pending { request, len, copied: 0, is_promised, progress });
        self.under_way += 1;
        if let Some(handle) = self.handle_of(&request) {
            handle.requests += 1;
        }
        Ok(at)
    }

    /// Takes a read at a moment out of the reserve of its title, if it has one.
    fn take_of_reserve(&mut self, now: MonoTime, request: &Request, len: u32) -> Result<bool, u32> {
        let handle = self.handle_of(request).filter(|_| request.has_moment());
        let Some((reserve, memory)) =
            handle.and_then(|handle| Some((handle.reserve.as_mut()?, &handle.memory)))
        else {
            return Ok(false);
        };
        let len = Bytes(len.into());
        let blocks = match memory {
            Some(_) => 0,
            None => reserve.reserve.blocks(request.offset, request.offset + len),
        };
        let taken = reserve.take(now, TimedRead { when: request.when, len, blocks });
        taken.map(|()| true).map_err(|fault| match fault {
            ReserveFault::TooLong => EMSGSIZE,
            ReserveFault::TooNear => ETIME,
            ReserveFault::TooMany => EBUSY,
        })
    }

    /// The number of bytes that it will get.
    fn checked_len(&mut self, request: &Request) -> Result<u32, u32> {
        match request.operation {
            Operation::Nothing => Ok(0),
            operation if operation.is_of_writer() => check_of_writer(request, &self.client.data),
            _ => {
                let data_has = self.client.data.has(request.at, u64::from(request.len));
                let handle = self.handle_of(request).filter(|handle| !handle.is_closing);
                let origin = &handle.ok_or(EBADF)?.origin;
                if !data_has {
                    return Err(EFAULT);
                }
                let rest = origin.len.0.saturating_sub(request.offset.0);
                Ok(rest.min(u64::from(request.len)) as u32)
            }
        }
    }

    pub(super) fn handle_of(&mut self, request: &Request) -> Option<&mut Handle> {
        match request.operation {
            Operation::Read => self.client.handles.get_mut(request.handle as usize)?.as_mut(),
            _ => None,
        }
    }

    /// A block that is kept for it, with at least `len` bytes.
    pub(super) fn held(
        &self,
        volume: VolumeId,
        title: TitleId,
        block: u64,
        len: u32,
    ) -> Option<usize> {
        let is_it = |held: &ClientLease| {
            (held.volume, held.title, held.block) == (volume, title, block) && held.len >= len
        };
        self.held.iter().position(is_it)
    }
}

impl Pending {
    /// The next byte to copy.
    pub(super) fn next(&self) -> Bytes {
        Bytes(self.request.offset.0 + u64::from(self.copied))
    }

    /// One behind the last byte to copy.
    pub(super) fn end(&self) -> Bytes {
        Bytes(self.request.offset.0 + u64::from(self.len))
    }
}

/// Checks what can be checked without the table of writers, which the control side has. Returns the
/// number of bytes.
fn check_of_writer(request: &Request, data: &SharedBytes) -> Result<u32, u32> {
    let has_bytes = request.operation == Operation::Write;
    // Nothing is written at a time.
    if request.has_moment() || has_bytes != (request.len > 0) || (!has_bytes && request.at != 0) {
        return Err(EINVAL);
    }
    match data.has(request.at, u64::from(request.len)) {
        true => Ok(request.len),
        false => Err(EFAULT),
    }
}

pub(super) const EBADF: u32 = 9;
const EFAULT: u32 = 14;
const EBUSY: u32 = 16;
const EINVAL: u32 = 22;
const ETIME: u32 = 62;
const EMSGSIZE: u32 = 90;
