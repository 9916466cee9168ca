//! The block server: which block of which title is in memory, and which streams hold it.
//!
//! Promise: streams share a block that is in memory or being read, except for a block with a sole
//! lease. A block is never evicted while a stream holds it, and each want is answered exactly once.
//! The block server is the only owner of its arena. A read without waiters is dropped unless the
//! disk has begun it. A block that is known to differ from the stored bytes is lent to no stream.
//! It decides nothing about time: deadlines pass through it to the disk.
//!
//! With several delivery servers, the reads of a cycle are complete when each of those with running
//! streams has asked. A want of one may overtake the return of another one, whose place was
//! promised to it meanwhile: it waits for the place.

mod index;
mod recency;

use std::collections::VecDeque;
use std::sync::Arc;

use tactus_core::cycle::{BlockReadEnd, BlockReadError, Job};
use tactus_core::mutant;
use tactus_core::ports::{self, Direction, DiskFault, Sum, Transfer};
use tactus_core::units::{Bytes, MonoTime, SECTOR};
use tactus_ring::arena::{ArenaOwner, BlockRef, Lease, View};
use tactus_ring::spsc::{Consumer, Producer};

use crate::block::index::{Index, Key};
use crate::block::recency::Recency;
use crate::counters::BlockCounters;
use crate::internal::{BlockRequest, FromBlock, Round, RoundEnd, ToBlock, ToDisk};
use crate::pool::{List, Pool};
use crate::server::Server;

/// The owner of one arena, between the servers that want its blocks and one disk server.
pub struct BlockServer {
    keeper: ArenaOwner,
    /// The bytes of the blocks; `None` if only the port sees and compares them.
    view: Option<View>,
    index: Index,
    recency: Recency,
    places: Vec<Slot>,
    waiters: Pool<Waiter>,
    requesters: Vec<Requester>,
    /// Of each delivery server; they are the first requesters.
    rounds: Vec<CycleRound>,
    /// Wants without a place, which is on its way back from another delivery server.
    without_place: VecDeque<(usize, BlockRequest)>,
    disk: Producer<ToDisk>,
    filled: Consumer<BlockReadEnd>,
    counters: Arc<BlockCounters>,
    /// Reads went to the disk after the last commit.
    uncommitted: bool,
    /// The disk has a part of the reads of a cycle.
    has_part: bool,
}

/// The last round of a delivery server at the beginning of a cycle.
#[derive(Clone, Copy, Default)]
struct CycleRound {
    cycle: u64,
    /// It has streams that may want something at the beginning of the next cycle.
    asks_again: bool,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    key: Option<Key>,
    state: State,
    generation: u32,
    /// The content that has been read, or is being read.
    content: Content,
}

/// The valid length of a block and its checksum.
#[derive(Clone, Copy, Default)]
struct Content {
    /// Bytes of the title.
    len: u32,
    /// Their expected checksum, if it is known.
    sum: Option<Sum>,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Free,
    Filling(Fill),
    /// In memory and leased by no stream: on the recency list.
    Idle,
    Leased,
}

/// A read under way.
#[derive(Clone, Copy)]
struct Fill {
    content: Content,
    /// The job as the disk has it, with the earliest deadline of the waiters.
    job: Job,
    /// All waiters are best effort.
    best_effort: bool,
    /// Whom to answer when the block is filled. The read uses the file of the first one, so
    /// abandoned wants also stay until the disk has answered.
    waiters: List,
    /// Number of waiters that have not been abandoned.
    wanting: u32,
    /// No sole lease: other streams are to find the block.
    is_shared: bool,
}

/// A want to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Waiter {
    /// The number of its requester.
    requester: usize,
    token: u32,
}

/// The rings to and from one server that wants blocks.
pub(crate) struct Requester {
    pub(crate) requests: Consumer<ToBlock>,
    pub(crate) answers: Producer<FromBlock>,
}

/// The rings of a block server.
pub(crate) struct BlockRings {
    /// The delivery servers, and then all others.
    pub(crate) requesters: Vec<Requester>,
    pub(crate) delivery_servers: usize,
    pub(crate) disk: Producer<ToDisk>,
    pub(crate) filled: Consumer<BlockReadEnd>,
}

impl BlockServer {
    /// `waiters` is the limit of open wants.
    pub(crate) fn new(
        keeper: ArenaOwner,
        view: Option<View>,
        waiters: usize,
        rings: BlockRings,
        counters: Arc<BlockCounters>,
    ) -> Self {
        let places = keeper.places();
        Self {
            keeper,
            view,
            index: Index::new(places),
            recency: Recency::new(places),
            places: vec![Slot::default(); places as usize],
            waiters: Pool::new(waiters),
            requesters: rings.requesters,
            rounds: vec![CycleRound::default(); rings.delivery_servers],
            without_place: VecDeque::with_capacity(places as usize),
            disk: rings.disk,
            filled: rings.filled,
            counters,
            uncommitted: false,
            has_part: false,
        }
    }

    fn handle_want(&mut self, requester: usize, want: BlockRequest) {
        if let Some(round) = self.rounds.get_mut(requester) {
            round.asks_again |= !want.best_effort;
        }
        let waiter = Waiter { requester, token: want.token };
        let key = Key { title: want.title, block: want.block };
        let content = Content { len: want.len, sum: want.sum };
        let found = self.index.find(key);
        let known = found.filter(|&place| self.places[place as usize].content.serves(content));
        let Some(place) = known else {
            if let Some(place) = found {
                self.supersede(key, place);
            }
            let Some(block) = self.take_place() else {
                assert!(self.without_place.len() < self.places.len(), "each is promised a place");
                self.without_place.push_back((requester, want));
                return;
            };
            self.counters.misses.add(1);
            let fill = self.fill_of(waiter, want);
            self.begin_fill(Some(key), fill, block);
            return;
        };
        self.counters.hits.add(1);
        let State::Filling(fill) = &mut self.places[place as usize].state else {
            self.lend(place, waiter);
            return;
        };
        self.waiters.push_back(&mut fill.waiters, waiter);
        fill.wanting += 1;
        fill.best_effort &= want.best_effort;
        if want.deadline < mutant!(PromotionForgotten, MonoTime(0), fill.job.deadline) {
            fill.job.deadline = want.deadline;
            let block = fill.job.transfer.block;
            self.tell_disk(ToDisk::Promote { block, deadline: want.deadline });
            self.uncommitted = true;
        }
    }

    /// A new read of the block is needed. The block at `place` stays with its present holders and
    /// waiters only.
    fn supersede(&mut self, key: Key, place: u32) {
        self.index.remove(key);
        let entry = &mut self.places[place as usize];
        entry.key = None;
        if matches!(entry.state, State::Idle) {
            self.recency.remove(place);
            self.evict(place);
        }
    }

    fn evict(&mut self, place: u32) {
        let entry = &mut self.places[place as usize];
        entry.state = State::Free;
        self.keeper.evict(BlockRef { place, generation: entry.generation });
    }

    /// Has the disk drop a read when its last waiter has gone; an answer on its way stays.
    fn handle_abandon(&mut self, gone: Waiter, key: Key) {
        let is_it = |(requester, want): &(usize, BlockRequest)| {
            Waiter { requester: *requester, token: want.token } == gone
        };
        if let Some(at) = self.without_place.iter().position(is_it) {
            self.without_place.remove(at);
            return self.answer(gone.requester, FromBlock::Dropped { token: gone.token });
        }
        let Some(place) = self.index.find(key) else { return };
        let State::Filling(fill) = &mut self.places[place as usize].state else { return };
        // The want may have been answered, and the block may be read again for other waiters.
        if !self.waiters.iter(&fill.waiters).any(|&waiter| waiter == gone) {
            return;
        }
        fill.wanting -= 1;
        if fill.wanting == 0 {
            let block = fill.job.transfer.block;
            mutant!(DropForgotten, (), self.tell_disk(ToDisk::Drop { block }));
        }
    }

    fn fill_of(&mut self, waiter: Waiter, want: BlockRequest) -> Fill {
        let transfer = Transfer {
            direction: Direction::Read,
            block: ports::BlockRef { place: u32::MAX, generation: 0 },
            file: want.file,
            offset: Bytes(want.block * u64::from(self.keeper.block_size())),
            at: 0,
            len: want.len.next_multiple_of(SECTOR as u32),
            sum: if self.view.is_none() { want.sum } else { None },
            reads_ahead: want.reads_ahead,
            rest: want.rest,
        };
        let job = Job { transfer, deadline: want.deadline, position: want.position };
        let mut waiters = List::default();
        self.waiters.push_back(&mut waiters, waiter);
        let content = Content { len: want.len, sum: want.sum };
        let BlockRequest { best_effort, is_shared, .. } = want;
        Fill { content, job, best_effort, waiters, wanting: 1, is_shared }
    }

    /// A place for a block that is to be read. The ledger grants no more blocks than there are
    /// places: if none is free, at least one is idle. Only a place that one delivery server gives
    /// back may not be here yet when another one has been promised it: `None`.
    fn take_place(&mut self) -> Option<BlockRef> {
        if let Some(block) = self.keeper.take() {
            return Some(block);
        }
        if let Some(place) = self.recency.front() {
            self.evict_oldest(place);
            return Some(self.keeper.take().expect("a place has just become free"));
        }
        assert!(self.rounds.len() > 1, "the ledger grants no more than the arena has");
        None
    }

    /// Serves wants that have waited for places, as far as there are any now.
    fn serve_without_place(&mut self) {
        let is_any = !self.without_place.is_empty();
        for _ in 0..self.without_place.len() {
            if self.recency.front().is_none() && self.keeper.counts().free == 0 {
                break;
            }
            let (requester, want) = self.without_place.pop_front().expect("it is counted");
            self.handle_want(requester, want);
        }
        if is_any {
            self.commit(Round::Stream);
        }
    }

    /// Has the disk fill a place with the block of `key`. Without a key, the block serves only its
    /// waiters.
    fn begin_fill(&mut self, key: Option<Key>, mut fill: Fill, block: BlockRef) {
        let BlockRef { place, generation } = block;
        if let Some(key) = key {
            self.index.insert(key, place);
        }
        fill.job.transfer.block = ports::BlockRef { place, generation };
        let (state, content) = (State::Filling(fill), fill.content);
        self.places[place as usize] = Slot { key, state, generation, content };
        self.tell_disk(ToDisk::Read { job: fill.job, best_effort: fill.best_effort });
        self.uncommitted = true;
    }

    fn commit(&mut self, round: Round) {
        if std::mem::take(&mut self.uncommitted) {
            self.tell_disk(ToDisk::Commit(round));
        }
    }

    /// Ends the round of a delivery server at the beginning of a cycle. The last one completes the
    /// reads of the cycle, which the disk then sorts as one sweep.
    fn commit_cycle(&mut self, requester: usize, round: CycleRound) {
        self.rounds[requester] = round;
        let has_asked = |other: &CycleRound| other.cycle >= round.cycle || !other.asks_again;
        if !self.rounds.iter().all(has_asked) {
            self.has_part |= self.uncommitted;
            self.commit(Round::Part);
            return;
        }
        self.uncommitted |= std::mem::take(&mut self.has_part);
        self.commit(Round::Cycle);
    }

    /// Makes room by the block at `place`, which was used longest ago.
    fn evict_oldest(&mut self, place: u32) {
        self.recency.remove(place);
        let key = self.places[place as usize].key.take().expect("an idle place has a block");
        self.index.remove(key);
        self.evict(place);
        self.counters.evictions.add(1);
    }

    fn handle_filled(&mut self, filled: BlockReadEnd) {
        let place = filled.block.place;
        let block = BlockRef { place, generation: filled.block.generation };
        let entry = &mut self.places[place as usize];
        let State::Filling(mut fill) = std::mem::take(&mut entry.state) else {
            panic!("{block:?} is filled once")
        };
        let unfilled = match filled.result {
            Ok(bytes) if bytes >= fill.content.len => {
                self.keeper.filled(block);
                if self.is_intact(block, &fill) {
                    self.hand_out(place, &mut fill);
                    return;
                }
                BlockReadError::Fault(DiskFault::DAMAGED)
            }
            // The file has become shorter than the title was: its bytes are gone.
            Ok(_) => BlockReadError::Fault(DiskFault(CUT_SHORT)),
            Err(unfilled) => unfilled,
        };
        let key = self.places[place as usize].key.take();
        if let Some(key) = key {
            self.index.remove(key);
        }
        match filled.result {
            Ok(bytes) if bytes >= fill.content.len => self.keeper.evict(block),
            _ => self.keeper.failed(block),
        }
        if unfilled == BlockReadError::Fault(DiskFault::DAMAGED) {
            self.counters.damaged.add(1);
        }
        if unfilled == BlockReadError::Dropped && fill.wanting > 0 {
            // A new waiter has come meanwhile, perhaps in a round that has ended.
            let block = self.keeper.take().expect("its place has just become free");
            self.begin_fill(key, fill, block);
            self.tell_disk(ToDisk::Commit(Round::Stream));
            return;
        }
        while let Some(Waiter { requester, token }) = self.waiters.pop_front(&mut fill.waiters) {
            let answer = match unfilled {
                BlockReadError::Fault(DiskFault(errno)) => FromBlock::Failed { token, errno },
                BlockReadError::Dropped => FromBlock::Dropped { token },
            };
            self.answer(requester, answer);
        }
    }

    /// Whether a filled block holds the stored bytes.
    fn is_intact(&mut self, block: BlockRef, fill: &Fill) -> bool {
        let sum =
            mutant!(SumSkipped, fill.content.sum.filter(|_| !fill.best_effort), fill.content.sum);
        let (Some(view), Some(sum)) = (&self.view, sum) else { return true };
        let lease = self.keeper.lend(block);
        let found = crc_fast::crc32_iscsi(&view.bytes(&lease)[..sum.len as usize]);
        self.keeper.give_back(lease);
        found == sum.crc32c
    }

    /// Lends a filled block to all its waiters. In the page cache a single waiter gets the sole
    /// lease, and may move the pages out of the place: others find them in the page cache.
    fn hand_out(&mut self, place: u32, fill: &mut Fill) {
        let entry = &mut self.places[place as usize];
        entry.state = State::Leased;
        let first = self.waiters.pop_front(&mut fill.waiters).expect("somebody has asked for it");
        let mut next = self.waiters.pop_front(&mut fill.waiters);
        if self.view.is_none() && next.is_none() && !fill.is_shared {
            if let Some(key) = entry.key.take() {
                self.index.remove(key);
            }
            let block = BlockRef { place, generation: entry.generation };
            let lease = self.keeper.lend_solely(block);
            return self.answer(first.requester, FromBlock::Ready { token: first.token, lease });
        }
        self.lend(place, first);
        while let Some(waiter) = next {
            self.lend(place, waiter);
            next = self.waiters.pop_front(&mut fill.waiters);
        }
    }

    fn lend(&mut self, place: u32, waiter: Waiter) {
        let entry = &mut self.places[place as usize];
        if matches!(entry.state, State::Idle) {
            self.recency.remove(place);
            entry.state = State::Leased;
        }
        let lease = self.keeper.lend(BlockRef { place, generation: entry.generation });
        self.answer(waiter.requester, FromBlock::Ready { token: waiter.token, lease });
    }

    fn handle_return(&mut self, lease: Lease) {
        let place = lease.block().place;
        if !self.keeper.give_back(lease) {
            return;
        }
        let entry = &mut self.places[place as usize];
        if entry.key.is_none() {
            return self.evict(place);
        }
        entry.state = State::Idle;
        self.recency.push_back(place);
    }

    fn answer(&mut self, requester: usize, answer: FromBlock) {
        let pushed = self.requesters[requester].answers.push(answer);
        assert!(pushed.is_ok(), "the ring holds an answer for every want");
    }

    fn tell_disk(&mut self, message: ToDisk) {
        let pushed = self.disk.push(message);
        assert!(pushed.is_ok(), "the ring holds a message for every place");
    }
}

impl Content {
    /// Whether this block also serves a want for `other`.
    fn serves(self, other: Self) -> bool {
        let is_long_enough = mutant!(ShortBlockKept, true, self.len >= other.len);
        is_long_enough && (other.sum.is_none() || self.sum == other.sum)
    }
}

impl Server for BlockServer {
    fn poll(&mut self, _now: MonoTime) -> bool {
        let mut any = false;
        while let Some(filled) = self.filled.pop() {
            any = true;
            self.handle_filled(filled);
        }
        for requester in 0..self.requesters.len() {
            while let Some(request) = self.requesters[requester].requests.pop() {
                any = true;
                match request {
                    ToBlock::Want(want) => self.handle_want(requester, want),
                    ToBlock::Return(lease) => self.handle_return(lease),
                    ToBlock::Commit(RoundEnd::Stream) => self.commit(Round::Stream),
                    ToBlock::Commit(RoundEnd::Cycle { cycle, asks_again }) => {
                        self.commit_cycle(requester, CycleRound { cycle, asks_again });
                    }
                    ToBlock::Abandon { token, title, block } => {
                        self.handle_abandon(Waiter { requester, token }, Key { title, block });
                    }
                }
            }
        }
        if any {
            self.serve_without_place();
            let counts = self.keeper.counts();
            self.counters.resident.set(u64::from(counts.ready + counts.lent));
            self.counters.leased.set(u64::from(counts.lent));
        }
        any
    }

    fn poll_timeout(&self, _now: MonoTime) -> Option<MonoTime> {
        None
    }
}

/// The error number of a title that has become shorter since it was opened: `ENODATA`.
const CUT_SHORT: i32 = 61;
