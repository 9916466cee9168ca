//! The file server: serves the requests of local clients out of the memory that they share.
//!
//! Promise: each request that was taken is answered once. A client's blocks, requests and time are
//! bounded; its reads come after those of all streams. Whatever a client writes, no other client
//! and no stream is harmed. When a client is detached, everything that it held is returned before
//! it is reported. It reads no disk itself and opens no file.

mod attention;
mod client;
mod forwarding;
mod lead_time;
#[cfg(any(test, feature = "fuzz-targets"))]
pub mod program;

#[cfg(any(test, feature = "fuzz-targets"))]
pub(crate) mod fixture;

use std::sync::Arc;

use tactus_core::local::{Request, processor_word};
use tactus_core::mutant;
use tactus_core::ports::{FilePart, FilePort, Waker};
use tactus_core::timed::ReserveUse;
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_ring::shared::Broken;
use tactus_ring::spsc::{Consumer, Producer};

use crate::counters::FileCounters;
use crate::egress::Memory;
use crate::file::attention::Attention;
use crate::file::client::{ClientLease, EBADF, Entry, Pending, Progress};
use crate::file::lead_time::LeadTime;
use crate::internal::{BlockRequest, FromBlock, RoundEnd, ToBlock};
use crate::message::local::Handle;
use crate::message::{ClientId, LocalClient, LocalCommand, LocalReport, Origin, VolumeId};
use crate::server::Server;

pub use client::{HELD_MAX, REQUESTS_MAX, WANTS_MAX};

/// Places of each volume's arena that one client can hold or wait for, whatever it does.
pub const PLACES_OF_CLIENT: u32 = (WANTS_MAX + HELD_MAX) as u32;

/// The same with the places that the ledger has promised to its reads at moments.
pub const PLACES_OF_CLIENT_MAX: u32 = PLACES_OF_CLIENT + REQUESTS_MAX as u32;

/// The table of local clients and its rings.
pub struct FileServer {
    clients: Vec<Option<Entry>>,
    /// Slots in use, in no order.
    active: Vec<u16>,
    /// Memory for the leases of a client, one for each free slot.
    spare: Vec<Vec<ClientLease>>,
    volumes: Vec<Volume>,
    port: Box<dyn FilePort>,
    commands: Consumer<LocalCommand>,
    reports: Producer<LocalReport>,
    /// Wakes the control side when there are reports.
    waker: Box<dyn Waker>,
    attention: Attention,
    /// Where it runs, as its clients know it; zero before the first request.
    processor: u64,
    /// The program that was served last may follow with its next request at once.
    expects_more: bool,
    /// The next turn should follow at once.
    is_awake: bool,
    lead_time: LeadTime,
    /// The time of the earliest answer that waits for its time.
    next_answer: Option<MonoTime>,
    /// A turn without sleep follows, because a moment is near.
    is_near: bool,
    /// When the next block is wanted for a read whose moment is kept.
    next_want: Option<MonoTime>,
    /// The last turn has left something to do.
    has_work: bool,
    /// Counts the turns.
    turn: u64,
    counters: Arc<FileCounters>,
}

/// One volume's side of the file server.
pub(crate) struct FileVolume {
    pub(crate) block: Bytes,
    pub(crate) memory: Memory,
    pub(crate) to_block: Producer<ToBlock>,
    pub(crate) from_block: Consumer<FromBlock>,
}

struct Volume {
    parts: FileVolume,
    /// Wants went out after the last commit.
    uncommitted: bool,
}

/// The parts of a file server.
pub(crate) struct FileParts {
    pub(crate) clients: usize,
    pub(crate) volumes: Vec<FileVolume>,
    pub(crate) port: Box<dyn FilePort>,
    pub(crate) commands: Consumer<LocalCommand>,
    pub(crate) reports: Producer<LocalReport>,
    pub(crate) waker: Box<dyn Waker>,
    pub(crate) counters: Arc<FileCounters>,
}

impl FileServer {
    pub(crate) fn new(parts: FileParts) -> Self {
        let spare = || Vec::with_capacity(HELD_MAX);
        let volume = |parts| Volume { parts, uncommitted: false };
        Self {
            clients: (0..parts.clients).map(|_| None).collect(),
            active: Vec::with_capacity(parts.clients),
            spare: (0..parts.clients).map(|_| spare()).collect(),
            volumes: parts.volumes.into_iter().map(volume).collect(),
            port: parts.port,
            commands: parts.commands,
            reports: parts.reports,
            waker: parts.waker,
            attention: Attention::default(),
            processor: 0,
            expects_more: false,
            is_awake: false,
            lead_time: LeadTime::default(),
            next_answer: None,
            is_near: false,
            next_want: None,
            has_work: false,
            turn: 0,
            counters: parts.counters,
        }
    }

    fn handle_command(&mut self, command: LocalCommand) {
        match command {
            LocalCommand::Attach(client) => {
                let index = client.id.index;
                client.own_processor.store(self.processor);
                let held = self.spare.pop().expect("one for each slot");
                let row = &mut self.clients[usize::from(index)];
                assert!(row.is_none(), "a slot is given away once");
                *row = Some(Entry::new(client, held));
                self.active.push(index);
                self.counters.clients.set(self.active.len() as u64);
            }
            LocalCommand::Open { client, handle, origin } => {
                let row = &mut self.entry(client).client.handles[handle as usize];
                assert!(row.is_none(), "a handle is given away once");
                let (memory, reserve) = (None, None);
                *row = Some(Handle { origin, memory, requests: 0, reserve, is_closing: false });
            }
            LocalCommand::Map { client, handle, memory } => {
                let row = self.entry(client).client.handles[handle as usize].as_mut();
                let row = row.expect("an open handle is mapped");
                assert!(row.memory.is_none(), "a title is mapped once");
                row.memory = Some(memory);
            }
            LocalCommand::Reserve { client, handle, reserve } => {
                let row = self.entry(client).client.handles[handle as usize].as_mut();
                let row = row.expect("room is reserved for an open handle");
                assert!(row.reserve.is_none(), "room is reserved once");
                row.reserve = Some(ReserveUse::new(reserve));
            }
            LocalCommand::Close { client, handle } => {
                let row = self.entry(client).client.handles[handle as usize].as_mut();
                row.expect("an open handle is closed").is_closing = true;
                self.close_if_done(client, handle);
            }
            LocalCommand::Answer { client, place, result } => {
                self.end_forwarded(client, usize::from(place), result);
            }
            LocalCommand::Detach(client) => {
                let entry = self.entry(client);
                (entry.is_ended, entry.is_detaching) = (true, true);
                self.detach_if_done(client.index);
            }
        }
    }

    fn entry(&mut self, client: ClientId) -> &mut Entry {
        let entry = self.clients[usize::from(client.index)].as_mut();
        entry.filter(|entry| entry.client.id == client).expect("the control side knows who is here")
    }

    fn row(&mut self, index: u16) -> &mut Entry {
        self.clients[usize::from(index)].as_mut().expect("an active slot has a client")
    }

    fn close_if_done(&mut self, client: ClientId, handle: u32) {
        let row = &mut self.entry(client).client.handles[handle as usize];
        if let Some(closed) = row.take_if(|open| open.is_closing && open.requests == 0) {
            let Handle { origin, memory, .. } = closed;
            self.report(LocalReport::Closed { client, handle, origin, memory });
        }
    }

    /// Reports a client that is detached, when the block servers have answered all its wants.
    fn detach_if_done(&mut self, index: u16) {
        let entry = self.row(index);
        if !entry.is_detaching || entry.wants + entry.promised_wants > 0 {
            return;
        }
        while let Some(held) = mutant!(ClientLeaseKept, None, self.row(index).held.pop()) {
            self.give_back(held);
        }
        for at in 0..REQUESTS_MAX {
            self.give_back_promised(index, at);
        }
        let entry = self.clients[usize::from(index)].take().expect("it was just there");
        self.spare.push(entry.held);
        self.active.retain(|&active| active != index);
        self.counters.clients.set(self.active.len() as u64);
        self.report(LocalReport::Detached(entry.client));
    }

    fn report(&mut self, report: LocalReport) {
        let pushed = self.reports.push(report);
        assert!(pushed.is_ok(), "the ring holds the reports of all clients");
        self.waker.wake();
    }

    fn give_back(&mut self, held: ClientLease) {
        self.tell(held.volume, ToBlock::Return(held.lease));
    }

    /// Returns the block of a read whose moment is kept, if it has one.
    fn give_back_promised(&mut self, index: u16, at: usize) {
        if let Some(held) = self.row(index).promised[at].take() {
            self.give_back(held);
        }
    }

    fn tell(&mut self, volume: VolumeId, message: ToBlock) {
        let pushed = self.volumes[usize::from(volume.0)].parts.to_block.push(message);
        assert!(pushed.is_ok(), "the ring holds everything that the clients may want");
    }

    /// The token of a want: which client waits for it, and for which request.
    fn token(index: u16, request: usize) -> u32 {
        u32::from(index) * REQUESTS_MAX as u32 + request as u32
    }

    fn handle_block(&mut self, volume: u16, answer: FromBlock) {
        let (token, result) = match answer {
            FromBlock::Ready { token, lease } => (token, Ok(lease)),
            FromBlock::Failed { token, errno } => (token, Err(errno.unsigned_abs())),
            // Nothing is abandoned here.
            FromBlock::Dropped { token } => (token, Err(EIO)),
        };
        let (index, at) = (token / REQUESTS_MAX as u32, token as usize % REQUESTS_MAX);
        let (index, volume) = (index as u16, VolumeId(volume));
        let entry = self.clients[usize::from(index)].as_mut().expect("it waits for its wants");
        let pending = entry.pending[at].as_mut().expect("a request waits for its want");
        match pending.is_promised {
            true => entry.promised_wants -= 1,
            false => entry.wants -= 1,
        }
        let handle = pending.request.handle;
        let block_size = self.volumes[usize::from(volume.0)].parts.block;
        let block = pending.next().0 / block_size.0;
        let open = entry.client.handles[handle as usize].as_ref();
        let origin = &open.expect("a handle is open while requests are under way").origin;
        let (title, len) = (origin.title, len_of(origin, block, block_size));
        let mut returned = None;
        match result {
            Ok(lease) => {
                pending.progress = Progress::Going;
                let held = ClientLease { volume, title, block, len, lease };
                if pending.is_promised {
                    let before = entry.promised[at].replace(held);
                    assert!(before.is_none(), "a read has one block at a time");
                } else if entry.is_ended || entry.held(volume, title, block, len).is_some() {
                    returned = Some(held);
                } else {
                    if entry.held.len() == HELD_MAX {
                        returned = Some(entry.held.remove(0));
                    }
                    entry.held.push(held);
                }
            }
            Err(errno) => pending.progress = Progress::Done(Err(errno)),
        }
        if let Some(held) = returned {
            self.give_back(held);
        }
        self.detach_if_done(index);
    }

    /// Takes requests of a client and goes on with those under way.
    fn serve(&mut self, now: MonoTime, index: u16) -> bool {
        let mut any = false;
        match self.take_requests(now, index) {
            Ok(taken) => any |= taken,
            Err(Broken) => self.row(index).has_lied = true,
        }
        // Reads whose moments are kept do not wait for the others of their program.
        let mut budgets = [COPY_MAX; 2];
        let mut left = self.row(index).under_way;
        for at in 0..REQUESTS_MAX {
            if left == 0 {
                break;
            }
            if let Some(pending) = self.row(index).pending[at] {
                left -= 1;
                let budget = &mut budgets[usize::from(pending.is_promised)];
                let did = self.advance(now, index, at, budget);
                self.expects_more |= did && !pending.request.has_moment();
                any |= did;
            }
        }
        let entry = self.row(index);
        if std::mem::take(&mut entry.has_answers) {
            if entry.client.client_mark.must_ring() {
                entry.client.bell.wake();
                self.counters.rings.add(1);
            } else {
                self.expects_more = true;
            }
        }
        if self.row(index).has_lied {
            self.break_off(index);
        }
        any
    }

    fn take_requests(&mut self, now: MonoTime, index: u16) -> Result<bool, Broken> {
        let (mut any, mut expects_more) = (false, false);
        let turn = self.turn;
        for _ in 0..TAKE_MAX {
            let entry = self.row(index);
            let Some((words, was_early)) = entry.take(turn)? else { break };
            any = true;
            if !entry.has_room()? {
                // An honest client takes its answers before it asks for more than fit.
                return Err(Broken);
            }
            let begun = Request::decode(&words)
                .and_then(|request| Ok((request, entry.begin(now, request)?)));
            // A read at a moment is followed by others that are no more urgent.
            expects_more |= !begun.is_ok_and(|(request, _)| request.has_moment());
            match begun {
                Ok((request, at)) if request.operation.is_of_writer() => {
                    self.forward(index, at, request);
                }
                Ok(_) => {}
                Err(EBADF) if !was_early => {
                    // The control side opens a title before its client can name it, but the
                    // commands of this turn were taken before this request.
                    entry.early = Some((words, turn));
                    break;
                }
                Err(errno) => {
                    entry.answer(words[0], Err(errno), now);
                    self.counters.refused.add(1);
                }
            }
            self.counters.requests.add(1);
        }
        self.expects_more |= expects_more;
        Ok(any)
    }

    /// Nothing is taken from this client any more.
    fn break_off(&mut self, index: u16) {
        let entry = self.row(index);
        if !std::mem::replace(&mut entry.is_ended, true) {
            let id = entry.client.id;
            self.report(LocalReport::Broken(id));
        }
    }

    /// Goes on with one request. Returns whether anything was done.
    fn advance(&mut self, now: MonoTime, index: u16, at: usize, budget: &mut u32) -> bool {
        let mut any = false;
        loop {
            let entry = self.clients[usize::from(index)].as_mut().expect("it is served");
            let Some(mut pending) = entry.pending[at] else { return any };
            match pending.progress {
                Progress::Waiting => return any,
                Progress::Done(result) => {
                    let when = pending.request.when;
                    if when > now {
                        let next = self.next_answer.map_or(when, |next| next.min(when));
                        self.next_answer = Some(next);
                        return any;
                    }
                    entry.answer(pending.request.token, result, now);
                    if pending.is_promised {
                        self.counters.promised.add(1);
                        self.counters.late.add(u64::from(now.since(when) > LATE));
                    }
                    self.finish(index, at, pending);
                    return true;
                }
                Progress::Going => {}
            }
            if entry.is_ended {
                // Nobody waits for these bytes.
                pending.progress = Progress::Done(Err(EIO));
                entry.pending[at] = Some(pending);
                continue;
            }
            let LocalClient { handles, data, .. } = &mut *entry.client;
            let open = handles[pending.request.handle as usize].as_ref();
            if let Some(memory) = open.and_then(|open| open.memory.as_ref()) {
                if *budget == 0 {
                    self.has_work = true;
                    return any;
                }
                let len = (pending.len - pending.copied).min(*budget);
                let to = pending.request.at + u64::from(pending.copied);
                data.copy_from(to, memory, pending.next().0, len as usize);
                (any, *budget) = (true, *budget - len);
                pending.copied += len;
                if pending.copied == pending.len {
                    pending.progress = Progress::Done(Ok(pending.len));
                }
                entry.pending[at] = Some(pending);
                continue;
            }
            let open = entry.client.handles[pending.request.handle as usize].as_ref();
            let open = open.expect("a handle is open while requests are under way");
            let origin = &open.origin;
            let volume = &mut self.volumes[usize::from(origin.volume.0)];
            let block_size = volume.parts.block;
            let block = pending.next().0 / block_size.0;
            let len = len_of(origin, block, block_size);
            let held = match pending.is_promised {
                true => entry.promised[at].as_ref(),
                false => {
                    entry.held(origin.volume, origin.title, block, len).map(|at| &entry.held[at])
                }
            };
            let Some(ClientLease { lease, .. }) = held else {
                let mut want = want_of(origin, block, block_size, Self::token(index, at));
                if let Some(used) = open.reserve.as_ref().filter(|_| pending.is_promised) {
                    let left = used.reserve.blocks(pending.next(), pending.end());
                    let when = pending.request.when;
                    let wanted = mutant!(MomentWantedLate, when, used.reserve.wanted(when, left));
                    if wanted > now {
                        let next = self.next_want.map_or(wanted, |next| next.min(wanted));
                        self.next_want = Some(next);
                        return any;
                    }
                    want.deadline = used.reserve.due(when, left);
                    want.best_effort = mutant!(MomentBestEffort, true, false);
                    entry.promised_wants += 1;
                } else if entry.wants == client::WANTS_MAX {
                    return any;
                } else {
                    entry.wants += 1;
                }
                let id = origin.volume;
                pending.progress = Progress::Waiting;
                entry.pending[at] = Some(pending);
                volume.uncommitted = true;
                self.counters.wants.add(1);
                self.tell(id, ToBlock::Want(want));
                return true;
            };
            if *budget == 0 {
                self.has_work = true;
                return any;
            }
            let within = (pending.next().0 % block_size.0) as u32;
            let len = (pending.len - pending.copied).min(block_size.0 as u32 - within).min(*budget);
            let to = pending.request.at + u64::from(pending.copied);
            let copied = match volume.parts.memory.view() {
                Some(view) => {
                    let bytes = &view.bytes(lease)[within as usize..(within + len) as usize];
                    entry.client.data.copy_in(to, bytes);
                    Ok(())
                }
                None => {
                    let part = FilePart { file: origin.sent_file, offset: pending.next(), len };
                    let port = &mut self.port;
                    entry.client.data.fill(to, len as usize, |into| port.read(part, into))
                }
            };
            any = true;
            *budget -= len;
            match copied {
                Ok(()) => pending.copied += len,
                Err(errno) => pending.progress = Progress::Done(Err(errno.unsigned_abs())),
            }
            if pending.progress == Progress::Going && pending.copied == pending.len {
                pending.progress = Progress::Done(Ok(pending.len));
            }
            entry.pending[at] = Some(pending);
            let is_copied = pending.progress != Progress::Going
                || pending.next().0.is_multiple_of(block_size.0);
            if pending.is_promised && is_copied {
                self.give_back_promised(index, at);
            }
        }
    }

    /// A request was answered.
    fn finish(&mut self, index: u16, at: usize, pending: Pending) {
        self.counters.bytes.add(u64::from(pending.copied));
        self.give_back_promised(index, at);
        let entry = self.row(index);
        entry.pending[at] = None;
        entry.under_way -= 1;
        let id = entry.client.id;
        if let Some(handle) = entry.handle_of(&pending.request) {
            handle.requests -= 1;
            if handle.is_closing {
                self.close_if_done(id, pending.request.handle);
            }
        }
    }

    /// Tells the clients where the server runs, if it has moved since it last fell asleep.
    fn say_where(&mut self) {
        let here = processor_word(self.port.processor());
        if here != self.processor {
            self.processor = here;
            for &index in &self.active {
                let row = self.clients[usize::from(index)].as_ref();
                row.expect("an active slot has a client").client.own_processor.store(here);
            }
        }
    }

    /// Whether the client's program runs on the processor of this server: it cannot ask again
    /// before this thread sleeps. It is not trusted: one that lies is waited for in vain, or not.
    fn is_beside(&mut self, index: u16) -> bool {
        let processor = self.processor;
        self.row(index).client.client_processor.load() == processor
    }

    /// Whether a program has taken the mark to ring, after the request that it rings for was taken
    /// by a turn of another cause. Its next request would not ring.
    fn is_unmarked(&self) -> bool {
        let mut active =
            self.active.iter().filter_map(|&at| self.clients[usize::from(at)].as_ref());
        active.any(|entry| !entry.client.own_mark.is_set())
    }

    /// Falls asleep: from now on clients ring. Looks once more at what came before.
    fn fall_asleep(&mut self, now: MonoTime) -> bool {
        let mut any = false;
        for at in 0..self.active.len() {
            let index = self.active[at];
            self.row(index).client.own_mark.set();
            any |= self.serve(now, index);
        }
        any
    }

    fn commit(&mut self) {
        for volume in &mut self.volumes {
            if std::mem::take(&mut volume.uncommitted) {
                let pushed = volume.parts.to_block.push(ToBlock::Commit(RoundEnd::Stream));
                assert!(pushed.is_ok(), "there are no more commits than wants");
            }
        }
    }
}

/// The number of bytes of a block that the title had when it was opened.
fn len_of(origin: &Origin, block: u64, block_size: Bytes) -> u32 {
    (origin.len.0 - block * block_size.0).min(block_size.0) as u32
}

fn want_of(origin: &Origin, block: u64, block_size: Bytes, token: u32) -> BlockRequest {
    let offset = block * block_size.0;
    let len = len_of(origin, block, block_size);
    BlockRequest {
        token,
        title: origin.title,
        block,
        file: origin.file,
        len,
        sum: origin.sums.as_ref().map(|sums| sums.of_block(Bytes(offset), block_size)),
        deadline: MonoTime(u64::MAX),
        position: origin.position + offset,
        best_effort: true,
        is_shared: true,
        reads_ahead: false,
        rest: Bytes(origin.len.0 - offset - u64::from(len)),
    }
}

impl Server for FileServer {
    fn poll(&mut self, now: MonoTime) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.lead_time.begin_turn(now);
        let mut any = false;
        while let Some(command) = self.commands.pop() {
            any = true;
            self.handle_command(command);
        }
        for volume in 0..self.volumes.len() {
            while let Some(answer) = self.volumes[volume].parts.from_block.pop() {
                any = true;
                self.handle_block(volume as u16, answer);
            }
        }
        if self.active.is_empty() {
            (self.is_awake, self.has_work, self.next_answer) = (false, false, None);
            (self.is_near, self.next_want) = (false, None);
            self.lead_time.stay_awake();
            return any;
        }
        (self.has_work, self.next_answer, self.next_want) = (false, None, None);
        let (mut is_asked, mut is_worth_waiting) = (false, false);
        for at in 0..self.active.len() {
            let index = self.active[at];
            self.expects_more = false;
            if self.serve(now, index) {
                if !is_asked && !self.is_awake {
                    self.say_where();
                }
                is_asked = true;
                is_worth_waiting |= self.expects_more && !self.is_beside(index);
            }
        }
        if is_worth_waiting {
            self.attention.extend(now);
        }
        let was_awake = std::mem::replace(&mut self.is_awake, self.attention.stays(now));
        match (was_awake, self.is_awake) {
            (true, false) => is_asked |= self.fall_asleep(now),
            (false, true) => {
                for at in 0..self.active.len() {
                    let index = self.active[at];
                    self.row(index).client.own_mark.clear();
                }
            }
            // A mark that a client has taken to ring is set again.
            (false, false) if is_asked || self.is_unmarked() => is_asked |= self.fall_asleep(now),
            _ => {}
        }
        let is_near = self.next_answer.is_some_and(|at| self.lead_time.includes(now, at));
        self.is_near = self.attention.approaches(now, is_near);
        match self.is_awake || is_near {
            true => self.lead_time.stay_awake(),
            false => self.lead_time.sleep_until(self.next_answer),
        }
        self.commit();
        // Requests may be left in the rings, for which no client rings again.
        self.has_work |= is_asked;
        any | is_asked
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        if self.is_awake || self.is_near {
            return Some(now);
        }
        let resumed = self.has_work.then(|| self.attention.resumed(now));
        // A little before a moment, unless the time for such waits is used up.
        let next = self.next_answer.map(|next| match self.lead_time.includes(now, next) {
            true => next,
            false => next.before(self.lead_time.length()),
        });
        resumed.into_iter().chain(next).chain(self.next_want).min()
    }

    /// A move needs nothing: all of the server goes with it.
    fn leave(&mut self, _cpu: u32) {
        // The processor of another core may take longer to wake up.
        self.lead_time = LeadTime::default();
        #[cfg(feature = "mutants")]
        if mutant!(AnswersLeftBehind, true, false) {
            self.clients.iter_mut().flatten().for_each(Entry::forget_answers);
        }
    }
}

/// Requests that are taken from one client in a turn. A client that writes requests which are
/// refused as fast as this server reads them would have no end of them.
const TAKE_MAX: usize = 2 * REQUESTS_MAX;

/// Bytes that are copied for one client before it is the next one's turn, and that of the other
/// servers: a few microseconds.
const COPY_MAX: u32 = 16 << 10;

/// A read whose moment was promised counts as late if it is answered so long after it.
const LATE: Nanos = Nanos::from_millis(1);

/// Part of its core that copies for clients may take, in thousandths. Streams have their turns
/// however much clients ask for; the ledger leaves this out, so that their turns are in time.
pub const CORE_SHARE_THOUSANDTHS: u64 = 100;

const EIO: u32 = 5;

#[cfg(test)]
mod tests;
